//! Values of counters, as the shards of living and of ended threads add up to them. It uses no other folder.

pub(crate) mod values;
