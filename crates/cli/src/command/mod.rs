//! One file for each subcommand.

pub(crate) mod callers;
pub(crate) mod count;
pub(crate) mod detach;
pub(crate) mod diagnose;
mod expression;
pub(crate) mod functions;
pub(crate) mod hist;
pub(crate) mod hot;
pub(crate) mod inspect;
mod keyed;
pub(crate) mod latency;
pub(crate) mod locate;
pub(crate) mod lower;
pub(crate) mod manual;
pub(crate) mod mdl;
pub(crate) mod metrics;
pub(crate) mod print;
pub(crate) mod profile;
pub(crate) mod ps;
pub(crate) mod read;
pub(crate) mod replay;
pub(crate) mod report;
mod rows;
pub(crate) mod status;
mod summary;
pub(crate) mod trace;
pub(crate) mod watch;
