//! The points of one function: its entry, exits and calls.

use ingraft_model::{Cfg, PointKind, Refusal, Svma};

use crate::flow::body::DecodedFunction;
use crate::flow::graph::FlowGraph;
use crate::flow::{blocks, traversal};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::text::transfer::ControlTransfer;

/// A place of a function where snippets could be woven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidatePoint {
    /// Kind of the place.
    pub kind: PointKind,
    /// Address of its instruction.
    pub at: Svma,
    /// Reason why it cannot be woven; `None` if it can.
    pub refusal: Option<Refusal>,
}

/// The control flow of one function, and its points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCode {
    /// Control-flow graph.
    pub cfg: Cfg,
    /// Entry, exits and calls, sorted by address.
    pub points: Vec<CandidatePoint>,
}

impl FunctionCode {
    /// The points of one kind.
    pub fn points_of(&self, kind: PointKind) -> impl Iterator<Item = &CandidatePoint> {
        self.points.iter().filter(move |p| p.kind == kind)
    }
}

/// The control flow of a function and its points, none with a refusal yet.
pub(crate) fn analyse(image: &AnalysedImage, function: &Function) -> FunctionCode {
    let body = DecodedFunction::new(image, function);
    let graph = FlowGraph::new(&body);
    let point = |kind, at| CandidatePoint { kind, at: Svma(at), refusal: None };
    let mut points = vec![point(PointKind::Entry, function.start)];
    let reached =
        body.code.iter().zip(&graph.marks).filter(|(_, mark)| *mark & traversal::REACHED != 0).map(|(i, _)| i);
    let calls =
        reached.filter(|i| matches!(ControlTransfer::of(i), ControlTransfer::Call(_) | ControlTransfer::IndirectCall));
    points.extend(calls.map(|i| point(PointKind::CallBefore, i.ip())));
    let exits = graph.found.exits.iter().chain(&graph.others.exits);
    points.extend(exits.map(|exit| point(PointKind::Exit, body.code[*exit].ip())));
    points.sort_by_key(|p| (p.at, p.kind));
    points.dedup_by_key(|p| (p.at, p.kind));
    FunctionCode { cfg: blocks::cfg(&body, &graph), points }
}
