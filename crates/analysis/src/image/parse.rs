//! An image from the bytes of a file, or from the stored results of the pass.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use ingraft_model::Svma;
use ingraft_model::point::Padding;

use crate::file::elf::Elf;
use crate::file::error::ImageError;
use crate::file::go::GoFunctions;
use crate::file::relocs::{self, CodePointerWords};
use crate::file::{patchable, probes, restartable, symbols, unwind};
use crate::functions::discovered::Discovered;
use crate::functions::{cache, discover};
use crate::image::AnalysedImage;
use crate::image::memo::{FunctionMemo, WeakCache};

/// Length of the shortest padding that an island fits into, in bytes.
const ISLAND: u32 = 5;

impl AnalysedImage {
    /// Analyses an image: reads its tables and decodes its text once, in parallel in the rayon pool of the caller.
    pub fn parse(bytes: Arc<[u8]>) -> Result<Self, ImageError> {
        Ok(Self::from_elf(Elf::parse(bytes)?, None))
    }

    /// Analyses an image, with the symbols of a separate debug file. The caller must check that the debug file belongs to the image (build
    /// id, CRC); a file that is no debug file is an error.
    pub fn parse_with_debug(bytes: Arc<[u8]>, debug: Option<Arc<[u8]>>) -> Result<Self, ImageError> {
        let debug = debug.map(Elf::parse_debug).transpose()?;
        Ok(Self::from_elf(Elf::parse(bytes)?, debug.as_ref()))
    }

    /// Analyses an image whose outline was read before, e.g. to find its debug file ([`Elf::parse_debug`]).
    pub fn from_elf(elf: Elf, debug: Option<&Elf>) -> Self {
        Self::from_elf_counting(elf, debug, &AtomicU64::new(0))
    }

    /// Analyses a file as [`AnalysedImage::from_elf`] does. Meanwhile adds to `done` the number of bytes of text that were decoded, of
    /// [`Elf::text_bytes`].
    pub fn from_elf_counting(elf: Elf, debug: Option<&Elf>, done: &AtomicU64) -> Self {
        let pointers = relocs::read(&elf);
        let go = GoFunctions::read(&elf, &pointers);
        let (symbols, mut unwind) = rayon::join(|| symbols::read(&elf, debug, &go), || unwind::read(&elf));
        // A recovered panic continues at a landing pad, as a caught exception does.
        unwind.landing_pads.extend(go.recoveries(&elf));
        let found = discover::discover(&elf, symbols, &unwind, &pointers, &go, done);
        Self::assemble(elf, found, pointers, go, unwind.landing_pads)
    }

    /// The results of the pass as bytes for [`AnalysedImage::from_cache`]. The caller adds a checksum.
    pub fn to_cache(&self) -> Vec<u8> {
        cache::store(&self.elf, &self.found, &self.landing_pads)
    }

    /// Builds the image of a file without the pass, from the result of [`AnalysedImage::to_cache`] for the same file. `None` if the bytes
    /// are for another file, come from another version of this crate, or are visibly damaged.
    pub fn from_cache(elf: Elf, cache: &[u8]) -> Option<Self> {
        let stored = cache::load(&elf, cache)?;
        let pointers = relocs::read(&elf);
        let go = GoFunctions::read(&elf, &pointers);
        Some(Self::assemble(elf, stored.found, pointers, go, stored.landing_pads))
    }

    fn assemble(
        elf: Elf,
        found: Discovered,
        pointers: CodePointerWords,
        go: GoFunctions,
        mut landing_pads: Vec<u64>,
    ) -> Self {
        landing_pads.sort_unstable();
        landing_pads.dedup();
        let sequences = restartable::find(&elf, &pointers);
        let (patchable, probes) = (patchable::places(&elf, &pointers), probes::places(&elf));
        let island = |&(start, len): &(u64, u32)| {
            let bytes = elf.data_at(start, u64::from(len)).filter(|_| len >= ISLAND)?.to_vec();
            Some(Padding { range: Svma(start)..Svma(start + u64::from(len)), bytes })
        };
        // Nothing may be executed between two functions of Go's table: if a signal finds a program counter there, Go's runtime ends the
        // program, because no entry of the table of program counters describes the address (runtime/symtab.go, `pcvalue`).
        let islands = if elf.is_go() { &[] } else { &found.padding[..] };
        let padding = islands.iter().filter_map(island).collect();
        let numbered = found.functions.iter().enumerate();
        let mut parts: Vec<_> =
            numbered.flat_map(|(i, f)| f.parts().iter().map(move |p| (p.start.0..p.end.0, i))).collect();
        parts.sort_unstable_by_key(|(range, _)| range.start);
        let mut image = AnalysedImage {
            elf,
            found,
            pointers,
            go,
            landing_pads,
            restartable: Vec::new(),
            patchable,
            probes,
            padding,
            parts,
            imports: OnceLock::new(),
            goroutines: OnceLock::new(),
            longjmps: OnceLock::new(),
            stack_switches: OnceLock::new(),
            entries: FunctionMemo::default(),
            exits: FunctionMemo::default(),
            bodies: WeakCache::default(),
            blocks: FunctionMemo::default(),
            edges: FunctionMemo::default(),
            loops: FunctionMemo::default(),
            returns: FunctionMemo::default(),
        };
        image.restartable = image.critical(&sequences);
        image
    }
}
