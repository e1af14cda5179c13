//! Functions of an image: the pass over all code that finds them and its facts about each. It uses `file` and `text`.

pub(crate) mod cache;
pub(crate) mod discover;
pub(crate) mod discovered;
pub(crate) mod explore;
pub(crate) mod facts;
pub(crate) mod function;
pub(crate) mod jump_table;
pub(crate) mod stray;
pub(crate) mod sweep;
pub(crate) mod unwinders;
pub(crate) mod vdso;
