//! The edges between a function's basic blocks as points.

use ingraft_model::{Edge, EdgePoint, EdgeTarget, Refusal};

use crate::functions::function::Function;
use crate::image::Image;
use crate::sites::entry;

/// The edges between the blocks of a function, sorted, each with its site or the reason why it cannot be woven. An error if it is not
/// certain where control can arrive in the function.
pub(crate) fn points(image: &Image, function: &Function) -> Result<Vec<EdgePoint>, Refusal> {
    entry::check_kind(function)?;
    let cfg = image.cfg(function);
    cfg.ways_in_proven.clone()?;
    let start = |block: usize| cfg.blocks.get(block).map(|block| block.range.start);
    let point = |edge: &Edge| match edge.to {
        EdgeTarget::Block(to) => Some(EdgePoint {
            from: start(edge.from)?,
            to: start(to)?,
            kind: edge.kind,
            site: Err(Refusal::NotYet { kind: "edge" }),
        }),
        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    };
    Ok(cfg.edges.iter().filter_map(point).collect())
}
