//! Sites of points: entries, exits and calls, and room for islands near them. It uses all other folders but `data`.

pub(crate) mod call;
pub(crate) mod clearing;
pub(crate) mod entry;
pub(crate) mod exit;
pub(crate) mod leap;
pub(crate) mod springboard;
pub(crate) mod stretch;
