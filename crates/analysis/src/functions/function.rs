//! Functions as values.

use std::borrow::Cow;

use ingraft_model::{Offset, Svma, SvmaRange};

use crate::file::name::FunctionName;
use crate::functions::facts::CodeFacts;

/// Kind of the code at a function's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// A function that is called.
    Normal,
    /// A resolver: it chooses an implementation at load time, and callers reach that implementation instead (`STT_GNU_IFUNC`).
    IfuncResolver,
    /// A stub of the linker that jumps into another image (`.plt`).
    Stub,
}

/// A function: a contiguous head, and parts that the compiler moved elsewhere.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) names: Vec<FunctionName>,
    pub(crate) kind: FunctionKind,
    pub(crate) parts: Vec<SvmaRange>,
    pub(crate) facts: CodeFacts,
}

impl Function {
    /// Address of the function's first byte.
    pub fn start(&self) -> Svma {
        Svma(self.start)
    }

    /// Length of the contiguous head in bytes; 0 if nothing is known about its end.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Address range of the contiguous head.
    pub fn range(&self) -> SvmaRange {
        Svma(self.start)..Svma(self.start + self.size)
    }

    /// Address ranges of the parts away from the head (`.cold`), sorted.
    pub fn parts(&self) -> &[SvmaRange] {
        &self.parts
    }

    /// Whether an address lies in the head or in one of the parts.
    pub fn contains(&self, at: Svma) -> bool {
        self.range().contains(&at) || self.parts.iter().any(|p| p.contains(&at))
    }

    /// Distance of an address from the function's first byte, as refusals state it.
    pub(crate) fn offset_of(&self, at: u64) -> Offset {
        Offset::between(self.start, at)
    }

    /// All names of the function, aliases and versions included; the first is the one to show. Empty if the function has no name.
    pub fn names(&self) -> &[FunctionName] {
        &self.names
    }

    /// Kind of the code at the first byte.
    pub fn kind(&self) -> FunctionKind {
        self.kind
    }

    /// The name to show, demangled: a global one before a local one, few underscores before many, short before long. For a function without
    /// names, `sub_` and the address.
    pub fn display_name(&self) -> Cow<'_, str> {
        self.names.first().map_or_else(|| Cow::Owned(format!("sub_{:x}", self.start)), |n| Cow::Borrowed(n.display()))
    }

    /// Every spelling under which a request may name the function: mangled, with version, demangled, and demangled
    /// without parameter list, ABI tags or defaults of the standard library.
    pub fn spellings(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let nameless = self.names.is_empty().then(|| self.display_name());
        nameless.into_iter().chain(self.names.iter().flat_map(|n| {
            let own = [
                Some(Cow::Borrowed(n.mangled())),
                n.versioned().map(Cow::Owned),
                n.demangled().map(Cow::Borrowed),
                n.without_parameters().map(Cow::Borrowed),
            ];
            own.into_iter().flatten().chain(n.without_tags().chain(n.abbreviated()).map(Cow::Owned))
        }))
    }
}
