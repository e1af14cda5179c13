//! Requests: from patterns, metrics and foci to code, and values that need no code. It uses `program` and `weaving`.

pub(crate) mod calls;
pub(crate) mod event_places;
pub(crate) mod foci;
pub(crate) mod internal;
pub(crate) mod lower;
pub(crate) mod request;
pub(crate) mod sizes;
mod source_lines;
mod value_names;
