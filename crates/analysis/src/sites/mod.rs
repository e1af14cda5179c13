//! Sites of points: entries, exits and calls, and room for islands near them. It uses `text`, `functions`,
//! `image` and `flow`.

mod block;
mod call;
mod displaceable;
mod entry;
mod exit;
mod first;
mod island_room;
mod longjmp;
mod questions;
mod refused;
mod springboard;
mod stack_switch;
