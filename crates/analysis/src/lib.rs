//! ELF images to functions, control flow and points.
//!
//! [`Image::parse`] reads an image's tables and decodes its text once, in parallel; afterwards every question about one function
//! is cheap: [`Image::entry_site`] says what a springboard at its entry must know, [`Image::exit_sites`] the same of its exits,
//! [`Image::call_sites`] lists its calls, [`Image::analyse`] gives blocks, edges and points. Pure: bytes in, values out. Hostile files
//! give an error or fewer facts, never a panic, and cost time and memory in proportion to their size.

#![forbid(unsafe_code)]

mod bits;
mod body;
mod cache;
mod call;
mod cfg;
mod clearing;
mod data;
mod debug_info;
mod decode;
mod discover;
mod elf;
mod entry;
mod error;
mod exit;
mod explore;
mod flow;
mod frames;
mod function;
mod go;
mod image;
mod jump_table;
mod leap;
mod liveness;
mod memo;
mod name;
mod relocs;
mod stretch;
mod sweep;
mod symbols;
mod types;
mod unwind;
mod vdso;

pub use cfg::{Block, Edge, EdgeKind, EdgeTarget, FunctionCode, Point};
pub use data::DataSymbol;
pub use debug_info::DebugInfo;
pub use elf::{Elf, ImageKind, Segment, SegmentFlags};
pub use error::ImageError;
pub use frames::{FrameRules, FrameTable, Registers, UnwindError, Unwound};
pub use function::{Function, FunctionKind};
pub use image::Image;
pub use name::{Binding, Name, Version};
pub use symbols::Label;
pub use types::{Reach, TypeError};
pub use vdso::plain_function;
