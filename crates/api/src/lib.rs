//! Requests to the engine and its answers, as plain values. The engine, its services, the protocol and the command line share them. The
//! crate knows no gRPC, no terminal and no engine.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod code;
mod enabled;
mod event;
mod function;
mod inserted;
mod kind;
mod lower;
mod pair;
mod printed;
mod process;
mod profile;
mod reason;
mod removed;
mod request;
mod sampling;
mod shares;
mod value;

pub use self::code::*;
pub use self::enabled::*;
pub use self::event::*;
pub use self::function::*;
pub use self::inserted::*;
pub use self::kind::*;
pub use self::lower::*;
pub use self::pair::*;
pub use self::printed::*;
pub use self::process::*;
pub use self::profile::*;
pub use self::reason::*;
pub use self::removed::*;
pub use self::request::*;
pub use self::sampling::*;
pub use self::shares::*;
pub use self::value::*;
