//! The results of the image-wide pass as values.

use crate::file::symbol::UntypedLabel;
use crate::functions::function::Function;
use crate::text::bits::TextBits;

/// An address other than the start of a function, at which control may arrive from other code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SideEntry {
    pub at: u64,
    /// The reasons why control may arrive there: a mask of [`SideEntry::ADDRESSED`] and the other bits. [`SideEntry::COMPARED`] is none.
    pub why: u8,
}

impl SideEntry {
    /// Data holds the address, or an instruction makes it.
    pub const ADDRESSED: u8 = 1;
    /// A call leads there.
    pub const CALLED: u8 = 2;
    /// Another function branches or runs on there.
    pub const BRANCHED: u8 = 4;
    /// A symbol without a type names the place.
    pub const NAMED: u8 = 8;
    /// Other code compares the address with an address that it is given, as handlers do with program counters.
    pub const COMPARED: u8 = 16;

    /// Whether only values speak for it that are equal to the address, and that may as well be other numbers.
    pub fn may_be_a_number(&self) -> bool {
        self.why & !(SideEntry::ADDRESSED | SideEntry::COMPARED) == 0
    }
}

/// The results of the image-wide pass.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub functions: Vec<Function>,
    /// Symbols without a type that name none of the functions, sorted by address and name.
    pub labels: Vec<UntypedLabel>,
    pub arrivals: TextBits,
    /// Places other than starts of functions at which control may arrive from elsewhere, sorted by address.
    pub side_entries: Vec<SideEntry>,
    /// Addresses of the tables that indirect jumps read, sorted.
    pub tables: Vec<u64>,
    /// Proven padding after functions: (first byte, length), sorted.
    pub padding: Vec<(u64, u32)>,
    /// (function, branch): addresses of functions and of their own branches back to their entry, sorted.
    pub back_branches: Vec<(u64, u64)>,
    pub uses_gs: bool,
}
