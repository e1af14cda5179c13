//! Values of counters, summed over the shards of living and of ended threads. It uses no other folder.

pub(crate) mod looks;
pub(crate) mod values;
