//! Functions of a target, with the points that can be woven in them.

use ingraft_model::{How, Pid, PointKind, Refusal, Svma};

/// A function by module, name, and offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name.
    pub function: String,
    /// Address of the function's first byte in the file.
    pub offset: Svma,
}

/// One function of a target.
#[derive(Clone, Debug)]
pub struct FunctionEntry {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name (demangled).
    pub function: String,
    /// Address of the function's first byte in the file.
    pub offset: Svma,
    /// Size in bytes, parts included.
    pub size: u64,
    /// Summary of each kind of point.
    pub points: Vec<PointSummary>,
    /// Number of exits that jump to another function.
    pub tail_exits: u32,
    /// Whether a uprobe that is set on the function while its entry is woven would kill the program.
    pub exposed: bool,
}

/// The functions of a target.
#[derive(Clone, Debug)]
pub struct FunctionList {
    /// The process.
    pub pid: Pid,
    /// The functions, in the order of the patterns.
    pub functions: Vec<FunctionEntry>,
    /// Symbols that the patterns match and that are not listed as functions.
    pub untyped: Vec<UntypedSymbol>,
}

/// A symbol in text without a type (`STT_NOTYPE`) at which nothing shows that a function begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntypedSymbol {
    /// Base name of the mapped file.
    pub module: String,
    /// Name (demangled).
    pub name: String,
    /// Address in the file.
    pub offset: Svma,
    /// Name of the function that contains the symbol's address; `None` if no function does.
    pub inside: Option<String>,
}

/// The points of one kind of one function.
#[derive(Clone, Debug)]
pub struct PointSummary {
    /// Kind of the points.
    pub kind: PointKind,
    /// Number of points.
    pub count: u32,
    /// Way in which the points are reached.
    pub how: How,
    /// Reason why some points cannot be reached; `None` if all can.
    pub why_not: Option<Refusal>,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug)]
pub struct RefusedFunction {
    /// The function that is not measured.
    pub function: FunctionRef,
    /// Reason why the function is not measured.
    pub reason: Refusal,
}
