//! Control flow and live registers of one function of an image. It uses `file`, `text`, `functions` and `image`.

pub(crate) mod body;
pub(crate) mod cfg;
pub(crate) mod code;
pub(crate) mod liveness;
mod reached;

pub(crate) use self::reached::{Flow, follow};
