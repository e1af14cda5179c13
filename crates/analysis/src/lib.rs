//! ELF images to functions, control flow and points.
//!
//! [`Image::parse`] reads an image's tables and decodes its text once, in parallel; afterwards every question about one function
//! is cheap: [`Image::entry_site`] says what a springboard at its entry must know, [`Image::exit_sites`] the same of its exits,
//! [`Image::call_sites`] lists its calls, [`Image::analyse`] gives blocks, edges and points. Pure: bytes in, values out. Hostile files
//! give an error or fewer facts, never a panic, and cost time and memory in proportion to their size.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod data;
mod file;
mod flow;
mod functions;
mod image;
mod sites;
mod text;

pub use data::debug_info::DebugInfo;
pub use data::error::TypeError;
pub use data::types::Reach;
pub use data::variables::DataSymbol;
pub use file::elf::{Elf, ImageKind, Segment, SegmentFlags};
pub use file::error::ImageError;
pub use file::frames::{FrameRules, FrameTable, Registers, UnwindError, Unwound};
pub use file::name::{Binding, Name, Version};
pub use file::symbol::Label;
pub use flow::code::{Block, Edge, EdgeKind, EdgeTarget, FunctionCode, Point};
pub use functions::function::{Function, FunctionKind};
pub use functions::vdso::plain_function;
pub use image::Image;
