//! Records of metrics that are lowered: their snippets, the code of these, and its cost.

use ingraft_api::{LoweredLine, LoweredMetric, LoweredPiece};
use ingraft_model::PointKind;
use serde::Serialize;

use super::{Host, bytes, hex};

/// A metric and the snippets that it is lowered to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoweredObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) metric: String,
    pub(crate) focus: String,
    pub(crate) pieces: Vec<Piece>,
    /// Reason why the metric has no snippets; null if it has some.
    pub(crate) problem: Option<String>,
    /// Whether the metric measures something in the program, at this focus or at one of its functions.
    pub(crate) applies: bool,
}

/// A snippet and its code at a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Piece {
    pub(crate) point: &'static str,
    /// Whether the snippet runs after the point's instruction instead of before it.
    pub(crate) after: bool,
    /// Number of functions that the snippet goes into.
    pub(crate) functions: u32,
    /// Name of the function whose code is shown.
    pub(crate) function: String,
    pub(crate) snippet: String,
    /// Worst case in cycles, including the code on the way to the snippet; null if the snippet cannot be woven.
    pub(crate) cycles: Option<f64>,
    pub(crate) ns: Option<f64>,
    pub(crate) why_not: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) code: Vec<Instruction>,
}

/// An instruction of generated code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Instruction {
    /// Name of the part of the code that begins at this instruction; left out if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    pub(crate) at: String,
    pub(crate) bytes: String,
    pub(crate) text: String,
}

impl LoweredObject {
    /// The record of a metric.
    pub(crate) fn new(metric: LoweredMetric, host: Host) -> Self {
        let LoweredMetric { metric, focus, pieces, problem, applies } = metric;
        let pieces = pieces.into_iter().map(Piece::from).collect();
        LoweredObject { host, metric, focus: focus.to_string(), pieces, problem, applies }
    }
}

impl From<LoweredPiece> for Piece {
    fn from(piece: LoweredPiece) -> Self {
        let instruction = |LoweredLine { label, at, bytes: code, text }: LoweredLine| Instruction {
            label: Some(label).filter(|label| !label.is_empty()),
            at: hex(at),
            bytes: bytes(&code),
            text,
        };
        Piece {
            point: piece.point.word(),
            after: piece.point == PointKind::CallAfter,
            functions: piece.functions,
            function: piece.function,
            snippet: piece.snippet,
            cycles: piece.cycles,
            ns: piece.ns,
            why_not: piece.refused.map(|why| why.to_string()),
            code: piece.code.into_iter().map(instruction).collect(),
        }
    }
}
