//! Pieces of generated code, the arenas that hold them, and woven points as values. This folder uses no other one.

pub(crate) mod arena;
pub(crate) mod block;
pub(crate) mod body;
pub(crate) mod branches;
pub(crate) mod cost;
pub(crate) mod environment;
pub(crate) mod holes;
pub(crate) mod listing;
pub(crate) mod reach;
pub(crate) mod routine;
pub(crate) mod spread;
pub(crate) mod woven;
