//! Removal by records: the journal, the bytes that a target has now, and what dead engines left. It uses `program` and `readings`.

pub(crate) mod ground;
pub(crate) mod journal;
pub(crate) mod leftover;
pub(crate) mod restore;
pub(crate) mod signature;
