//! Program of a target: its modules and their images, its names, and the text in its memory.

mod c_library;
pub(crate) mod callees;
pub(crate) mod cancellation;
pub(crate) mod code_places;
pub(crate) mod debug_files;
pub(crate) mod departures;
pub(crate) mod file_id;
pub(crate) mod gs_search;
pub(crate) mod handlers;
pub(crate) mod identity;
pub(crate) mod images;
pub(crate) mod labels;
pub(crate) mod libc_search;
pub(crate) mod modules;
pub(crate) mod packages;
pub(crate) mod pattern;
pub(crate) mod stack_switches;
pub(crate) mod stubs;
pub(crate) mod suggestions;
pub(crate) mod symbols;
pub(crate) mod text_pages;
pub(crate) mod unwind_targets;
pub(crate) mod variables;
pub(crate) mod wall;
