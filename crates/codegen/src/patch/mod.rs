//! Patches: springboards, base trampolines and relocated instructions, and the plans that weave, change and remove points. This folder
//! uses `code` and `snippet`.

pub(crate) mod back_branches;
pub(crate) mod bodies;
pub(crate) mod body;
pub(crate) mod build;
pub(crate) mod chain;
pub(crate) mod change;
pub(crate) mod choose;
mod counting;
pub(crate) mod lower;
pub(crate) mod parallel;
pub(crate) mod rehost;
pub(crate) mod relocate;
pub(crate) mod renewal;
pub(crate) mod springboard;
pub(crate) mod text_space;
pub(crate) mod weave;
pub(crate) mod with_copy;
