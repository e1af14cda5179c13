//! Functions with a summary of each kind of point: in place, in a copy of the function, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use ingraft_analysis::FunctionCode;
use ingraft_model::{BlockId, BlockPoint, EdgeKind, FunctionBody, FunctionId, How, PointKind, Refusal, Svma};

use crate::api::{FunctionEntry, FunctionFacts, PointSummary};
use crate::program::modules::Modules;
use crate::weaving::sites::{Text, whole};
use crate::weaving::trial;

/// A point, and the reason why it has no place in the text.
type PointInText = (Svma, Option<Refusal>);

/// The function as it is copied, or the reason why it cannot be.
type CopyableFunction = Result<Arc<FunctionBody>, Refusal>;

/// Describes a function. `entry` says whether a springboard at its entry would be exposed to uprobes, or why there can be none. With `blocks`,
/// the description includes basic blocks and edges.
pub fn describe(
    text: &Text<'_>,
    modules: &Modules,
    function: FunctionId,
    entry: Option<&Result<bool, Refusal>>,
    blocks: bool,
) -> Option<FunctionEntry> {
    let (file, module, f) = modules.resolve(function)?;
    let parts: u64 = f.parts().iter().map(|p| p.end.0 - p.start.0).sum();
    let code = module.image.analyse(f);
    let copy = whole(text, modules, function);
    let refusal = entry.and_then(|entry| entry.as_ref().err());
    let how = if refusal.is_none() { How::InPlace } else { How::Refused };
    let mut points =
        vec![PointSummary { kind: PointKind::Entry, count: 1, how, why_not: refusal.cloned().map(Into::into) }];
    for kind in [PointKind::Exit, PointKind::CallBefore] {
        let places = code.points_of(kind).map(|point| (point.at, point.refusal.clone())).collect();
        points.push(summary(kind, places, &copy));
    }
    if blocks {
        points.extend([
            blocks_of(&code, module.image.block_points(f), &copy),
            edges_of(module.image.edges(f).len(), trial::edges(text, modules, function)),
        ]);
    }
    Some(FunctionEntry {
        function: super::code::named(file, f),
        size: f.size() + parts,
        points,
        facts: FunctionFacts { tail_exits: tail_exits(&code), exposed: matches!(entry, Some(Ok(true))) },
    })
}

/// Summary of a function's blocks.
fn blocks_of(code: &FunctionCode, points: Result<Vec<BlockPoint>, Refusal>, copy: &CopyableFunction) -> PointSummary {
    let starts = code.cfg.blocks.iter().map(|block| block.range.start);
    let places = match points {
        Ok(points) => starts.zip(points.into_iter().map(|point| point.site.err())).collect(),
        Err(refusal) => starts.map(|at| (at, Some(refusal.clone()))).collect(),
    };
    summary(PointKind::Block, places, copy)
}

/// Summary of a function's edges, whose points all are in a copy. `known` is their number if there can be no copy.
fn edges_of(known: usize, edges: Result<Vec<Result<(), Refusal>>, Refusal>) -> PointSummary {
    let edges = edges.unwrap_or_else(|why| vec![Err(why); known]);
    let refused: Vec<Refusal> = edges.iter().filter_map(|edge| edge.clone().err()).collect();
    summed(PointKind::Edge, edges.len(), edges.len() - refused.len(), refused)
}

/// Summary of the points of one kind. Those without a place in the text may have one in a copy of the function.
fn summary(kind: PointKind, places: Vec<PointInText>, copy: &CopyableFunction) -> PointSummary {
    let count = places.len();
    let without: Vec<PointInText> = places.into_iter().filter(|(_, refusal)| refusal.is_some()).collect();
    let (copied, refused): (Vec<PointInText>, Vec<PointInText>) =
        without.into_iter().partition(|(at, _)| copy.as_ref().is_ok_and(|body| has_point(body, kind, *at)));
    summed(kind, count, copied.len(), refused.into_iter().filter_map(|(_, refusal)| refusal).collect())
}

/// Summary of `count` points, of which `copied` are in a copy, and some refused.
fn summed(kind: PointKind, count: usize, copied: usize, refused: Vec<Refusal>) -> PointSummary {
    let how = match (copied, refused.len()) {
        (0, 0) => How::InPlace,
        (_, 0) => How::Relocated,
        (_, n) if n == count => How::Refused,
        _ => How::Partly,
    };
    let why_not = refused.into_iter().next().map(Into::into);
    PointSummary { kind, count: u32::try_from(count).unwrap_or(u32::MAX), how, why_not }
}

/// Whether a copy of a function has the point of this kind at an address of the original.
fn has_point(body: &FunctionBody, kind: PointKind, at: Svma) -> bool {
    match kind {
        PointKind::Entry => false,
        PointKind::Exit => body.exits.iter().any(|exit| exit.at == at && exit.is_return),
        PointKind::CallBefore | PointKind::CallAfter => body.blocks.iter().any(|b| b.block.range.contains(&at)),
        PointKind::Block | PointKind::Edge => true,
    }
}

/// Number of a function's exits that jump to another function.
fn tail_exits(code: &FunctionCode) -> u32 {
    let jumping: BTreeSet<BlockId> =
        code.cfg.edges.iter().filter(|e| e.kind == EdgeKind::TailJump).map(|e| e.from).collect();
    u32::try_from(jumping.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_without_a_place_may_be_in_a_copy() {
        let (no, other) = (|| Some(Refusal::NoSuchPoint), Refusal::NoRoomNearby);
        let copy = Ok(Arc::new(FunctionBody {
            function: Svma(0x1000),
            blocks: ingraft_model::IndexVec::default(),
            edges: Vec::new(),
            entry: None,
            exits: Vec::new(),
        }));
        let how = |kind, refusals: &[Option<Refusal>], copy: &CopyableFunction| {
            let places = refusals.iter().map(|refusal| (Svma(0x1000), refusal.clone())).collect();
            let summary = summary(kind, places, copy);
            assert_eq!(summary.why_not.is_some(), matches!(summary.how, How::Partly | How::Refused));
            (summary.count, summary.how)
        };
        let (block, exit) = (PointKind::Block, PointKind::Exit);
        assert_eq!(how(block, &[], &copy), (0, How::InPlace));
        assert_eq!(how(block, &[None, None], &copy), (2, How::InPlace));
        assert_eq!(how(block, &[None, no()], &copy), (2, How::Relocated));
        assert_eq!(how(block, &[None, no()], &Err(other.clone())), (2, How::Partly));
        assert_eq!(how(block, &[no(), no()], &Err(other.clone())), (2, How::Refused));
        let edges = |edges: Result<Vec<Result<(), Refusal>>, Refusal>| {
            let summary = edges_of(3, edges);
            (summary.count, summary.how)
        };
        assert_eq!(edges(Ok(vec![Ok(()); 2])), (2, How::Relocated));
        assert_eq!(edges(Ok(vec![Ok(()), Err(Refusal::NoSuchPoint)])), (2, How::Partly));
        assert_eq!(edges(Err(Refusal::NoSuchPoint)), (3, How::Refused));
        // The copy has no exit there, such as that of a tail jump.
        assert_eq!(how(exit, &[None, no()], &copy), (2, How::Partly));
    }
}
