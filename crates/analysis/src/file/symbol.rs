//! Symbols of code as values.

use ingraft_model::Svma;

use crate::file::name::FunctionName;

/// A symbol that names code.
#[derive(Clone, Debug)]
pub(crate) struct CodeSymbol {
    pub svma: u64,
    pub size: u64,
    pub ifunc: bool,
    pub name: FunctionName,
}

/// A symbol in text that has no type, so that it may name a function, a place inside a function, or data.
#[derive(Clone, Debug)]
pub struct UntypedLabel {
    /// The address that it names.
    pub at: Svma,
    /// The name that the symbol gives it.
    pub name: FunctionName,
}

/// Contents of the symbol tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeSymbols {
    pub functions: Vec<CodeSymbol>,
    /// Symbols in text that have no type (`STT_NOTYPE`): labels of assembly, some of which name functions.
    pub labels: Vec<UntypedLabel>,
    /// The addresses of all symbols without a type, including those whose names cannot be read.
    pub labelled: Vec<u64>,
    /// Whether `arch_prctl` is imported.
    pub imports_arch_prctl: bool,
}
