//! An analysed image: its outline, and the results of the image-wide pass.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ingraft_model::point::Padding;
use ingraft_model::{Block, FunctionBody, LoopEdges, PointId, Refusal, Site, Svma, SvmaRange};

use crate::file::elf::{Elf, ImageKind, Segment};
use crate::file::go::GoFunctions;
use crate::file::patchable;
use crate::file::relocs::CodePointerWords;
use crate::file::symbol::UntypedLabel;
use crate::functions::discovered::{Discovered, SideEntry};
use crate::functions::function::Function;
use crate::image::goroutines::GoroutineLayout;
use crate::image::memo::{FunctionMemo, WeakCache};
use crate::text::bits::TextBits;

/// An image with the results of the image-wide pass. Immutable, so any number of threads may query it.
#[derive(Debug)]
pub struct AnalysedImage {
    pub(super) elf: Elf,
    pub(super) found: Discovered,
    pub(super) pointers: CodePointerWords,
    pub(super) go: GoFunctions,
    pub(super) landing_pads: Vec<u64>,
    /// Bytes of restartable sequences and their signatures, sorted and joined.
    pub(super) restartable: Vec<Range<u64>>,
    /// Places that the program itself may write, sorted by their first byte.
    pub(super) patchable: Vec<Range<u64>>,
    /// Addresses of static probes (USDT), sorted.
    pub(super) probes: Vec<u64>,
    pub(super) padding: Vec<Padding>,
    /// Address range of each part of a function, with the index of the function.
    pub(super) parts: Vec<(Range<u64>, usize)>,
    /// Slots that the loader fills, each with the offset of its symbol's name; sorted, computed when first asked for.
    pub(super) imports: OnceLock<Vec<(u64, u64)>>,
    /// Places by which goroutines are found; computed when first asked for.
    pub(super) goroutines: OnceLock<Option<GoroutineLayout>>,
    /// Indices of the functions that leave by a jump like longjmp's; computed when first asked for.
    pub(crate) longjmps: OnceLock<Vec<usize>>,
    /// Indices of the functions that switch stacks; computed when first asked for.
    pub(crate) stack_switches: OnceLock<Vec<usize>>,
    /// Entry sites of the functions for which they were asked.
    pub(crate) entries: FunctionMemo<Result<Arc<Site>, Refusal>>,
    /// Exit sites of the functions for which they were asked.
    pub(crate) exits: FunctionMemo<ExitSites>,
    /// The whole functions that are in use.
    pub(crate) bodies: WeakCache<FunctionBody>,
    /// The basic blocks of each function, computed at the first request for that function.
    pub(crate) blocks: FunctionMemo<Arc<[Block]>>,
    /// The points at the edges between the basic blocks of each function, computed at the first request for that function.
    pub(crate) edges: FunctionMemo<Arc<[PointId]>>,
    /// The loops of each function, computed at the first request for that function.
    pub(crate) loops: FunctionMemo<Arc<[LoopEdges]>>,
    /// Whether control comes back from a function, computed at the first request for that function.
    pub(crate) returns: FunctionMemo<bool>,
}

/// The exits of a function: for each, its site or the reason why it cannot be woven. An error if it is not certain that these are all.
pub(crate) type ExitSites = Result<Vec<Result<Arc<Site>, Refusal>>, Refusal>;

impl AnalysedImage {
    /// The outline of the file.
    pub fn elf(&self) -> &Elf {
        &self.elf
    }

    /// The build id that the linker wrote.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.elf.build_id()
    }

    /// Name and CRC-32 of the separate debug file.
    pub fn debuglink(&self) -> Option<(String, u32)> {
        self.elf.debuglink()
    }

    /// The name that a shared object gives itself.
    pub fn soname(&self) -> Option<&str> {
        self.elf.soname()
    }

    /// Whether and how the loader may move the image.
    pub fn kind(&self) -> ImageKind {
        self.elf.kind()
    }

    /// Address at which a program begins.
    pub fn entry(&self) -> Svma {
        self.elf.entry()
    }

    /// The `PT_LOAD` segments, sorted by address.
    pub fn segments(&self) -> &[Segment] {
        self.elf.segments()
    }

    /// The program interpreter.
    pub fn interpreter(&self) -> Option<&str> {
        self.elf.interpreter()
    }

    /// `len` bytes of the file as they are mapped at an address.
    pub fn bytes_at(&self, svma: Svma, len: usize) -> Option<&[u8]> {
        self.elf.bytes_at(svma, len)
    }

    /// Whether code of the image may set or use the gs base: `wrgsbase`, a gs prefix, `arch_prctl` with `ARCH_SET_GS`, or an import of
    /// `arch_prctl`. An image that only defines `arch_prctl`, as a libc does, does not count.
    pub fn uses_gs(&self) -> bool {
        self.found.uses_gs
    }

    /// All functions, sorted by address.
    pub fn functions(&self) -> &[Function] {
        &self.found.functions
    }

    /// Symbols in text that have no type and name none of [`AnalysedImage::functions`]: places inside functions, data, and code at which
    /// nothing shows that a function begins. Sorted by address.
    pub fn labels(&self) -> &[UntypedLabel] {
        &self.found.labels
    }

    /// The critical sections of restartable sequences, and the signatures before their handlers with one byte more, sorted and joined. Where
    /// the program makes the descriptor of one at run time, all of a function; all text of a file with more sequences than programs have.
    pub fn restartable_sequences(&self) -> impl Iterator<Item = SvmaRange> {
        self.restartable.iter().map(|range| Svma(range.start)..Svma(range.end))
    }

    /// The static probes (USDT) in a range: addresses at which other tools may set uprobes at any time.
    pub fn probes_in(&self, range: &SvmaRange) -> impl Iterator<Item = Svma> {
        let index = |at: Svma| self.probes.partition_point(|probe| *probe < at.0);
        let (from, until) = (index(range.start), index(range.end));
        self.probes.get(from..until).unwrap_or_default().iter().copied().map(Svma)
    }

    /// First byte of a place in a range that the program itself may write while it runs, as its sections say: a static key, a sled of XRay, an
    /// entry that was compiled to be patched. `None` if there is none.
    pub fn patchable_in(&self, range: &SvmaRange) -> Option<Svma> {
        let before = |place: &Range<u64>| place.start.saturating_add(patchable::LONGEST) <= range.start.0;
        let near = self.patchable.get(self.patchable.partition_point(before)..).unwrap_or_default();
        let mut its = near.iter().take_while(|place| place.start < range.end.0);
        its.find(|place| range.start.0 < place.end).map(|place| Svma(place.start.max(range.start.0)))
    }

    /// Ranges of at least five bytes between functions that nothing reaches and where code may be put, sorted. None in Go programs.
    pub fn padding(&self) -> &[Padding] {
        &self.padding
    }

    pub(crate) fn pointers(&self) -> &CodePointerWords {
        &self.pointers
    }

    /// Places in a range, other than starts of functions, at which control may arrive from elsewhere.
    pub(crate) fn side_entries_in(&self, range: &Range<u64>) -> &[SideEntry] {
        let index = |at| self.found.side_entries.partition_point(|entry| entry.at < at);
        &self.found.side_entries[index(range.start)..index(range.end)]
    }

    /// Addresses of the tables that indirect jumps read, sorted.
    pub(crate) fn tables(&self) -> &[u64] {
        &self.found.tables
    }

    pub(crate) fn arrivals(&self) -> &TextBits {
        &self.found.arrivals
    }
}
