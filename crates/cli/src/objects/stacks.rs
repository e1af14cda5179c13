//! Records of stacks below functions.

use std::collections::BTreeMap;

use ingraft_api::ModulePlace;
use ingraft_model::Offset;
use serde::Serialize;

use super::{RecordedFunction, hex};

/// A stack below a function, and the share of it in the time of the function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StackObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// The calls that have led to the function, innermost first; empty if no caller is known.
    pub(crate) stack: Vec<StackFrame>,
    /// Whether the last frame is the outermost one.
    pub(crate) whole: bool,
    /// Share in the time that threads ran or waited in the function and in all that it has called, from 0 to 1.
    pub(crate) share: f64,
    /// Standard error of `share`.
    pub(crate) share_error: f64,
    /// Number of samples of threads that ran.
    pub(crate) samples: u64,
    /// Number of looks at threads that waited.
    pub(crate) looks: u64,
    /// By what each number was found.
    pub(crate) how: BTreeMap<&'static str, &'static str>,
}

/// A call on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StackFrame {
    /// Module, or name of the memory, of the calling function.
    pub(crate) module: String,
    /// Name of the calling function; null if it is not known.
    pub(crate) function: Option<String>,
    /// Offset of the first instruction of the calling function; null if it is not known.
    pub(crate) offset: Option<String>,
    /// Offset of the call in the calling function, or in the module if the function is not known.
    pub(crate) call_site: String,
    /// Source line of the call as `FILE:LINE`; null if it is not known.
    pub(crate) source: Option<String>,
    /// Inlined functions in whose code the call is, innermost first.
    pub(crate) inlined: Vec<String>,
}

impl From<&ModulePlace> for StackFrame {
    fn from(place: &ModulePlace) -> Self {
        let ModulePlace { module, at, function, block: _, source, inlined } = place;
        let from = function.as_ref().map_or(0, |function| function.offset.0);
        StackFrame {
            module: module.clone(),
            function: function.as_ref().map(|function| function.function.clone()),
            offset: function.as_ref().map(|function| hex(function.offset.0)),
            call_site: Offset::between(from, at.0).in_name(),
            source: source.as_ref().map(|(file, line)| format!("{file}:{line}")),
            inlined: inlined.clone(),
        }
    }
}
