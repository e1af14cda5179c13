//! Variables of a program and the types of its data. It uses `file`.

pub(crate) mod debug_files;
pub(crate) mod debug_info;
pub(crate) mod error;
pub(crate) mod inlines;
pub(crate) mod lines;
mod locations;
mod shapes;
pub(crate) mod types;
pub(crate) mod variables;
