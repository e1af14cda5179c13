//! Sites of points: entries, exits and calls, and room for islands near them. It uses `text`, `functions`,
//! `image` and `flow`.

mod block;
mod call;
mod clearing;
mod entry;
mod exit;
mod leap;
mod questions;
mod refused;
mod springboard;
mod stretch;
