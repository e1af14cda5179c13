//! Finds functions, control flow and points in ELF images.
//!
//! [`AnalysedImage::parse`] reads an image's tables and decodes its text once, in parallel. Afterwards every query about one function is
//! cheap: [`AnalysedImage::entry_site`] describes the place of a springboard at the entry, [`AnalysedImage::exit_sites`] does so for the
//! exits, [`AnalysedImage::call_sites`] lists the calls, [`AnalysedImage::cfg`] returns the control-flow graph, and
//! [`AnalysedImage::analyse`] the points with it.
//!
//! The crate is pure: its functions take bytes and return values. A hostile file gives an error or fewer facts, never a panic, and costs
//! time and memory in proportion to its size.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod data;
mod file;
mod flow;
mod functions;
mod image;
mod sites;
mod text;

pub use data::debug_files::{DebugFileName, DebugSections, FindDebugFile, no_debug_files};
pub use data::debug_info::DebugInfo;
pub use data::error::TypeError;
pub use data::lines::SourceRange;
pub use data::types::{ArgumentPlace, DescribedValue, MemberPath};
pub use data::variables::DataSymbol;
pub use file::elf::{Elf, ImageKind, Segment, SegmentFlags};
pub use file::error::ImageError;
pub use file::frames::{FrameRules, FrameTable, Registers, UnwindError, Unwound};
pub use file::linkage::Linkage;
pub use file::name::{FunctionName, SymbolBinding, SymbolVersion, demangle};
pub use file::symbol::UntypedLabel;
pub use flow::points::{CandidatePoint, FunctionCode};
pub use functions::function::{Function, FunctionKind};
pub use functions::unwinders::{AsyncUnwinder, AsyncUnwinding, may_fault};
pub use functions::vdso::plain_function;
pub use image::{AnalysedImage, GoroutineLayout};
pub use text::disassembly::{DisassembledLine, disassemble};
pub use text::events::block_events;
