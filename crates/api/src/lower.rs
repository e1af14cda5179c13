//! The code of metrics, and its costs.

use ingraft_model::{Flavor, Focus, PointKind};

use crate::{TargetSpec, WhyNot};

/// Request for the code of metrics and its costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LowerRequest {
    /// Public names of the metrics; empty for all known metrics.
    pub metrics: Vec<String>,
    /// Focus; `None` for one function if the metric can be restricted to one, otherwise for the whole program.
    pub focus: Option<Focus>,
    /// Process; `None` for a generic function of a form that compilers often emit.
    pub target: Option<TargetSpec>,
    /// Additional MDL sources (name, text).
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`.
    pub flavors: Vec<Flavor>,
    /// Whether the answer contains the machine code.
    pub code: bool,
}

/// Code of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct LoweredMetric {
    /// Public name.
    pub metric: String,
    /// The focus that was used.
    pub focus: Focus,
    /// Snippets of the metric, each once, in the order of the text.
    pub pieces: Vec<LoweredPiece>,
    /// Reason why the metric cannot be measured at the focus; `None` if it can.
    pub problem: Option<String>,
    /// Whether the metric measures something in the program: at the focus or, if it has code for a part of the program only, at one of the
    /// program's functions.
    pub applies: bool,
}

/// A snippet, and the code that it is lowered to at a point.
#[derive(Clone, Debug, PartialEq)]
pub struct LoweredPiece {
    /// Kind of the points that the snippet is for.
    pub point: PointKind,
    /// Number of functions that the snippet goes into.
    pub functions: u32,
    /// Name of the function whose code is shown.
    pub function: String,
    /// The snippet as text.
    pub snippet: String,
    /// Worst case in cycles of a core of this machine, including the code on the way to the snippet; `None` if the snippet cannot be woven.
    pub cycles: Option<f64>,
    /// The same worst case in nanoseconds.
    pub ns: Option<f64>,
    /// Instructions of the code; empty unless asked for.
    pub code: Vec<LoweredLine>,
    /// Reason why the snippet cannot be woven.
    pub refused: Option<WhyNot>,
}

/// An instruction of generated code.
#[derive(Clone, Debug, PartialEq)]
pub struct LoweredLine {
    /// Name of the part of the code that begins at this instruction; empty if none does.
    pub label: String,
    /// Address of the instruction; without a target, an address that no process uses.
    pub at: u64,
    /// Bytes of the instruction.
    pub bytes: Vec<u8>,
    /// Text of the instruction in the syntax of Intel's manuals.
    pub text: String,
}
