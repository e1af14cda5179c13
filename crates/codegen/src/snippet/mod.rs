//! Snippets to machine code: mini trampolines, the slots that lead to them, and the shared routines that they use. This folder uses
//! `code`.

pub(crate) mod activation;
mod append;
pub(crate) mod birth;
pub(crate) mod calling;
pub(crate) mod check;
pub(crate) mod contexts;
pub(crate) mod cpu;
pub(crate) mod cut;
mod encoding;
pub(crate) mod event;
pub(crate) mod float;
pub(crate) mod generator;
pub(crate) mod goroutine;
pub(crate) mod inline;
pub(crate) mod listed;
pub(crate) mod loaded;
pub(crate) mod loader;
pub(crate) mod mini;
pub(crate) mod notes;
pub(crate) mod outermost;
mod pool;
pub(crate) mod reading;
pub(crate) mod record;
pub(crate) mod room;
pub(crate) mod routines;
pub(crate) mod slot;
pub(crate) mod slow;
pub(crate) mod stacks;
pub(crate) mod storing;
pub(crate) mod table;
pub(crate) mod template;
mod timed;
pub(crate) mod usage;
pub(crate) mod vector;
pub(crate) mod wall;
pub(crate) mod words;

#[cfg(test)]
pub(crate) mod tests;
