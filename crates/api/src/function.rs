//! Functions of a target, with the points that can be woven in them.

use std::fmt;

use ingraft_model::{How, Pid, PointKind, Refusal, Svma};
use serde::Serialize;

/// A function by module, name, and offset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamedFunction {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name.
    pub function: String,
    /// Address of the function's first byte in the file.
    pub offset: Svma,
}

/// One function of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionEntry {
    /// Module, name and offset.
    pub function: NamedFunction,
    /// Size in bytes, parts included.
    pub size: u64,
    /// Summary of each kind of point.
    pub points: Vec<PointSummary>,
    /// Further facts.
    pub facts: FunctionFacts,
}

/// Facts about a function that its JSON record has as they are: each is a key of the record, which is left out if it has its default value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionFacts {
    /// Number of exits that jump to another function.
    #[serde(skip_serializing_if = "is_default")]
    pub tail_exits: u32,
    /// Whether a uprobe that is set on the function while its entry is woven would kill the program.
    #[serde(skip_serializing_if = "is_default")]
    pub exposed: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The functions of a target.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct PointSummary {
    /// Kind of the points.
    pub kind: PointKind,
    /// Number of points.
    pub count: u32,
    /// Way in which the points are reached.
    pub how: How,
    /// Reason why some points cannot be reached; `None` if all can.
    pub why_not: Option<WhyNot>,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedFunction {
    /// The function that is not measured.
    pub function: NamedFunction,
    /// Reason why the function is not measured.
    pub reason: WhyNot,
}

/// Reason why a function or a point is not woven.
#[derive(Clone, Debug)]
pub enum WhyNot {
    /// A refusal of this engine.
    Refused(Refusal),
    /// The refusal of another engine, which has told it in words.
    Told {
        /// The stable word.
        reason: String,
        /// The sentence.
        text: String,
    },
}

impl WhyNot {
    /// The stable word for scripts, e.g. `too_short`.
    pub fn reason(&self) -> &str {
        match self {
            WhyNot::Refused(refusal) => refusal.word(),
            WhyNot::Told { reason, .. } => reason,
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::Refused(refusal) => refusal.fmt(f),
            WhyNot::Told { text, .. } => f.write_str(text),
        }
    }
}

/// Reasons are equal if they have the same word and sentence.
impl PartialEq for WhyNot {
    fn eq(&self, other: &Self) -> bool {
        self.reason() == other.reason() && self.to_string() == other.to_string()
    }
}

impl From<Refusal> for WhyNot {
    fn from(refusal: Refusal) -> Self {
        WhyNot::Refused(refusal)
    }
}
