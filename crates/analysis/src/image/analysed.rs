//! An analysed image: its outline, its functions, and the questions that the engine asks.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use iced_x86::Code;
use ingraft_model::point::Padding;
use ingraft_model::{CallPoint, CallSite, Callee, PointKind, Refusal, Site, Svma, SvmaRange};

use crate::file::elf::{Elf, ImageKind, Segment};
use crate::file::error::ImageError;
use crate::file::go::{Go, Suspensions};
use crate::file::relocs::{self, Pointers};
use crate::file::symbol::Label;
use crate::file::{symbols, unwind};
use crate::flow::cfg;
use crate::flow::code::FunctionCode;
use crate::functions::cache;
use crate::functions::discover;
use crate::functions::discovered::Discovered;
use crate::functions::function::Function;
use crate::functions::sweep;
use crate::image::memo::Memo;
use crate::sites::call;
use crate::sites::entry;
use crate::sites::exit;
use crate::sites::leap;
use crate::text::bits::TextBits;
use crate::text::decode;

/// Shortest stretch of padding that an island fits into.
const ISLAND: u32 = 5;

/// An image with everything that the image-wide pass found out. Immutable: any number of threads may ask.
#[derive(Debug)]
pub struct Image {
    elf: Elf,
    found: Discovered,
    pointers: Pointers,
    go: Go,
    landing_pads: Vec<u64>,
    restartable: Vec<(Svma, Svma, Svma)>,
    padding: Vec<Padding>,
    /// Where the parts of functions lie, and whose they are, by its index.
    parts: Vec<(Range<u64>, usize)>,
    /// Slots that the loader fills, and the offset of each one's symbol name; sorted, once somebody has asked for them.
    imports: OnceLock<Vec<(u64, u64)>>,
    /// The functions that leave by a jump like longjmp's, once somebody has asked for them.
    leaping: OnceLock<Vec<usize>>,
    entries: Memo<Result<Arc<Site>, Refusal>>,
    exits: Memo<Exits>,
}

/// The exits of a function, each with why it cannot be woven, or why it is not certain that these are all.
type Exits = Result<Vec<Result<Arc<Site>, Refusal>>, Refusal>;

impl Image {
    /// Analyses an image: reads its tables and decodes its text once, in parallel in the rayon pool of the caller.
    pub fn parse(bytes: Arc<[u8]>) -> Result<Self, ImageError> {
        Ok(Self::from_elf(Elf::parse(bytes)?, None))
    }

    /// The same, with the symbols of a separate debug file. That it belongs to the image (build id, CRC) is the caller's
    /// to check; a file that is none is an error.
    pub fn parse_with_debug(bytes: Arc<[u8]>, debug: Option<Arc<[u8]>>) -> Result<Self, ImageError> {
        let debug = debug.map(Elf::parse_debug).transpose()?;
        Ok(Self::from_elf(Elf::parse(bytes)?, debug.as_ref()))
    }

    /// Analyses an image whose outline was read before, e.g. to find its debug file ([`Elf::parse_debug`]).
    pub fn from_elf(elf: Elf, debug: Option<&Elf>) -> Self {
        let pointers = relocs::read(&elf);
        let go = Go::read(&elf, &pointers);
        let (symbols, mut unwind) = rayon::join(|| symbols::read(&elf, debug, &go), || unwind::read(&elf));
        // A recovered panic lands like a caught exception.
        unwind.landing_pads.extend(go.recoveries(&elf));
        let found = discover::discover(&elf, symbols, &unwind, &pointers, &go);
        Self::assemble(elf, found, pointers, go, unwind.landing_pads)
    }

    /// The results of the pass as bytes for [`Image::from_cache`]. The caller adds a checksum.
    pub fn to_cache(&self) -> Vec<u8> {
        cache::store(&self.elf, &self.found, &self.landing_pads)
    }

    /// The image of a file without the pass, from what [`Image::to_cache`] gave for the same file; `None` if it is for another file, of
    /// another version of this crate, or damaged in a way that shows.
    pub fn from_cache(elf: Elf, cache: &[u8]) -> Option<Self> {
        let stored = cache::load(&elf, cache)?;
        let pointers = relocs::read(&elf);
        let go = Go::read(&elf, &pointers);
        Some(Self::assemble(elf, stored.found, pointers, go, stored.landing_pads))
    }

    fn assemble(elf: Elf, found: Discovered, pointers: Pointers, go: Go, mut landing_pads: Vec<u64>) -> Self {
        landing_pads.sort_unstable();
        landing_pads.dedup();
        let restartable = relocs::restartable_sequences(&elf, &pointers);
        let island = |&(start, len): &(u64, u32)| {
            let bytes = elf.data_at(start, u64::from(len)).filter(|_| len >= ISLAND)?.to_vec();
            Some(Padding { range: Svma(start)..Svma(start + u64::from(len)), bytes })
        };
        // Go's runtime ends the program if a signal finds a program counter between two functions of its table, where no entry of the
        // table of program counters describes it (runtime/symtab.go, `pcvalue`): nothing may be executed there.
        let islands = if elf.is_go() { &[] } else { &found.padding[..] };
        let padding = islands.iter().filter_map(island).collect();
        let numbered = found.functions.iter().enumerate();
        let mut parts: Vec<_> =
            numbered.flat_map(|(i, f)| f.parts().iter().map(move |p| (p.start.0..p.end.0, i))).collect();
        parts.sort_unstable_by_key(|(range, _)| range.start);
        Image {
            elf,
            found,
            pointers,
            go,
            landing_pads,
            restartable,
            padding,
            parts,
            imports: OnceLock::new(),
            leaping: OnceLock::new(),
            entries: Memo::default(),
            exits: Memo::default(),
        }
    }

    /// The outline of the file.
    pub fn elf(&self) -> &Elf {
        &self.elf
    }

    /// The build id of the linker.
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

    /// Whether and how the image may be moved.
    pub fn kind(&self) -> ImageKind {
        self.elf.kind()
    }

    /// Where a program begins.
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

    /// Where a variable is that the image defines for others under this name.
    pub fn variable(&self, name: &str) -> Option<Svma> {
        symbols::variable(&self.elf, name).map(Svma)
    }

    /// Whether code of the image may set or use the gs base: `wrgsbase`, a gs prefix, `arch_prctl` with `ARCH_SET_GS`, or
    /// `arch_prctl` imported. Defining `arch_prctl`, as a libc does, is no use.
    pub fn uses_gs(&self) -> bool {
        self.found.uses_gs
    }

    /// All functions, sorted by address.
    pub fn functions(&self) -> &[Function] {
        &self.found.functions
    }

    /// Symbols in text that have no type and name none of [`Image::functions`]: places inside of functions, data, and code of which nothing
    /// shows that a function begins there. Sorted by address.
    pub fn labels(&self) -> &[Label] {
        &self.found.labels
    }

    /// The function whose first byte is at an address.
    pub fn function_at(&self, start: Svma) -> Option<&Function> {
        let index = self.found.functions.binary_search_by_key(&start.0, |f| f.start).ok()?;
        self.found.functions.get(index)
    }

    /// The function whose head holds an address; the innermost where several do.
    pub fn function_containing(&self, at: Svma) -> Option<&Function> {
        let after = self.found.functions.partition_point(|f| f.start <= at.0);
        self.found.functions[..after].last().filter(|f| f.range().contains(&at))
    }

    /// The function that has a part or, if none has, its head at an address.
    pub(crate) fn function_around(&self, at: u64) -> Option<&Function> {
        let after = self.parts.partition_point(|(range, _)| range.start <= at);
        let part = self.parts[..after].last().filter(|(range, _)| range.contains(&at));
        part.map(|(_, i)| &self.found.functions[*i]).or_else(|| self.function_containing(Svma(at)))
    }

    /// The critical sections of restartable sequences (`__rseq_cs`).
    pub fn restartable_sequences(&self) -> impl Iterator<Item = SvmaRange> {
        self.restartable.iter().map(|s| s.0..s.1)
    }

    /// Everything needed to weave the entry of a function, or why that cannot be.
    pub fn entry_site(&self, function: &Function) -> Result<Arc<Site>, Refusal> {
        self.entries.get(function.start, || entry::site(self, function).map(Arc::new))
    }

    /// Everything needed to weave the exits of a function, in order of address: its returns, and its jumps to other functions; for each, or
    /// why that one cannot be woven. An error if it is not certain that these are all. Sites of one function share no byte; one that
    /// begins where the entry's does is for the same springboard.
    pub fn exit_sites(&self, function: &Function) -> Result<Vec<Result<Arc<Site>, Refusal>>, Refusal> {
        let shared = |sites: Vec<Result<Site, Refusal>>| sites.into_iter().map(|site| site.map(Arc::new)).collect();
        self.exits.get(function.start, || exit::sites(self, function).map(shared))
    }

    /// Whom control goes to at an exit of a function that is a jump to another one, as far as the file tells; none at a return.
    pub fn tail_jump(&self, function: &Function, exit: &Site) -> Option<Callee> {
        exit::tail_jump(self, function, exit)
    }

    /// Whether the sites of a function of this kind were asked for already, so that they are there at once.
    pub fn knows_sites(&self, function: &Function, kind: PointKind) -> bool {
        match kind {
            PointKind::Entry => self.entries.knows(function.start),
            PointKind::Exit => self.exits.knows(function.start),
            _ => false,
        }
    }

    /// The calls of a function that control can reach, in order of address. An error if it is not certain that these are all.
    pub fn call_sites(&self, function: &Function) -> Result<Vec<CallSite>, Refusal> {
        call::sites(self, function)
    }

    /// Everything needed to weave before (or behind) the calls of a function that control can reach, in order of address; for each, or why
    /// that one cannot be woven. An error if it is not certain that these are all.
    pub fn call_points(&self, function: &Function, after: bool) -> Result<Vec<CallPoint>, Refusal> {
        call::points(self, function, after)
    }

    /// Whether a function leaves for another place of the stack and nothing else: the last step of longjmp.
    pub fn leaps(&self, function: &Function) -> bool {
        leap::leaps(self, function)
    }

    /// All functions that do.
    pub fn leaping(&self) -> impl Iterator<Item = &Function> {
        let found = self.leaping.get_or_init(|| leap::all(self));
        found.iter().filter_map(|number| self.functions().get(*number))
    }

    /// The control flow of a function: blocks, edges and points.
    pub fn analyse(&self, function: &Function) -> FunctionCode {
        cfg::analyse(self, function)
    }

    /// Stretches between functions that nothing reaches and where code may lie, at least five bytes each, sorted. None in Go programs.
    pub fn padding(&self) -> &[Padding] {
        &self.padding
    }

    /// Whether an address lies in the linker's stubs (`.plt`).
    pub fn is_stub(&self, at: Svma) -> bool {
        self.elf.text_index(at.0).is_some_and(|region| self.elf.text[region].stubs)
    }

    /// The slot that a stub of the linker jumps through.
    pub fn stub_slot(&self, stub: Svma) -> Option<Svma> {
        if !self.is_stub(stub) {
            return None;
        }
        let at = stub.0 + if self.elf.begins_with_endbr(stub.0) { 4 } else { 0 };
        let jump = decode::one(self.elf.data_from(at)?, at)?;
        let through_memory = jump.code() == Code::Jmp_rm64 && jump.is_ip_rel_memory_operand();
        through_memory.then(|| Svma(jump.ip_rel_memory_address()))
    }

    /// The name that the loader looks up in order to fill a slot of the global offset table.
    pub fn import_at(&self, slot: Svma) -> Option<&str> {
        let imports = self.imports.get_or_init(|| relocs::imports(&self.elf));
        let index = imports.binary_search_by_key(&slot.0, |import| import.0).ok()?;
        self.elf.dynamic_name(imports[index].1)
    }

    /// A slot of this file in which the loader puts what a resolver (IFUNC) has chosen, if there is one.
    pub fn chosen_by(&self, resolver: Svma) -> Option<Svma> {
        relocs::chosen_by(&self.elf, resolver.0).map(Svma)
    }

    pub(crate) fn pointers(&self) -> &Pointers {
        &self.pointers
    }

    pub(crate) fn arrivals(&self) -> &TextBits {
        &self.found.arrivals
    }

    /// Where goroutines may be suspended in a range of addresses.
    pub(crate) fn suspensions(&self, range: &Range<u64>) -> Suspensions {
        self.go.suspensions(&self.elf, range)
    }

    /// Whether control enters a function behind its first instruction only, by a return address that no call made.
    pub(crate) fn is_returned_into(&self, function: &Function) -> bool {
        sweep::is_returned_into(&self.elf, function.start) || self.go.is_top_frame(&self.elf, function.start)
    }

    /// Whether a jump to an address calls a function: its first byte, the one behind its `endbr64`, or other images.
    pub(crate) fn is_tail_target(&self, at: u64) -> bool {
        let Some(region) = self.elf.text_index(at) else { return true };
        let starts = |start: u64| self.function_at(Svma(start)).is_some();
        let behind_endbr = at.checked_sub(4).is_some_and(|start| starts(start) && self.elf.begins_with_endbr(start));
        self.elf.text[region].stubs || starts(at) || behind_endbr
    }

    /// Where exceptions land in a range.
    pub(crate) fn landing_pads_in(&self, range: &Range<u64>) -> &[u64] {
        let index = |at| self.landing_pads.partition_point(|pad| *pad < at);
        &self.landing_pads[index(range.start)..index(range.end)]
    }

    pub(crate) fn is_landing_pad(&self, at: u64) -> bool {
        self.landing_pads.binary_search(&at).is_ok()
    }

    /// Whether bytes belong to a restartable sequence or to what the kernel demands in front of its abort handler.
    pub(crate) fn in_restartable_sequence(&self, at: u64, len: u64) -> bool {
        self.restartable.iter().any(|s| {
            // A signature in the four bytes before the abort handler.
            let abort = s.2.0.wrapping_sub(4)..s.2.0.wrapping_add(1);
            s.0.0 < at + len && at < s.1.0 || abort.start < at + len && at < abort.end
        })
    }

    /// Length of the proven padding that begins at an address.
    pub(crate) fn padding_behind(&self, end: u64) -> u64 {
        let found = self.found.padding.binary_search_by_key(&end, |p| p.0);
        found.map_or(0, |index| u64::from(self.found.padding[index].1))
    }

    pub(crate) fn back_branches_to(&self, function: u64) -> impl Iterator<Item = u64> {
        let all = &self.found.back_branches;
        let first = all.partition_point(|b| b.0 < function);
        all[first..].iter().take_while(move |b| b.0 == function).map(|b| b.1)
    }
}
