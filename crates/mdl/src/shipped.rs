//! The metric library that comes with ingraft.

/// Name and text of each file, in the order in which they are loaded.
pub const FILES: &[(&str, &str)] = &[("core.mdl", include_str!("../../../mdl/core.mdl"))];
