//! Removal by records: the journal, the present bytes of a target, and the remains of dead engines. It uses `program` and `readings`.

pub(crate) mod ground;
pub(crate) mod journal;
pub(crate) mod leftover;
pub(crate) mod restore;
pub(crate) mod signature;
pub(crate) mod waiting;
