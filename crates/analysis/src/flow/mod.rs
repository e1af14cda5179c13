//! Control flow and live registers of one function of an image. It uses `file`, `text`, `functions` and `image`.

mod blocks;
pub(crate) mod body;
mod cancellation;
mod graph;
mod jumps;
pub(crate) mod liveness;
pub(crate) mod points;
mod returns;
pub(crate) mod system_calls;
mod traversal;
mod ways_in;

pub(crate) use self::blocks::cfg;
pub(crate) use self::graph::FlowGraph;
pub(crate) use self::returns::never_returns;
