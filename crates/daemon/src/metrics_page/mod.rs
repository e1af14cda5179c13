//! `GET /metrics` for Prometheus: the values of all measurements that stay, and the daemon's own health, read when they are asked for.
//!
//! `names`, `text`, `values`, `page` and `health` make the page and know nothing of HTTP; `serve` answers requests for it.

mod health;
mod names;
mod page;
mod serve;
mod text;
mod values;

pub use serve::{MetricsAccess, MetricsServer};
