//! Addresses of an image at which control arrives, and bytes that must stay in place.

use std::collections::BTreeSet;
use std::ops::Range;

use ingraft_model::{Svma, SvmaRange};

use crate::file::go::Suspensions;
use crate::file::restartable::{self, RestartableSequence, RestartableSequences};
use crate::functions::discovered::SideEntry;
use crate::functions::function::Function;
use crate::functions::sweep;
use crate::image::AnalysedImage;
use crate::text::decode::DecodeCursor;
use crate::text::transfer::ControlTransfer;

/// Largest number of instructions of a handler that are followed to its jump.
const HANDLER_MAX: usize = 16;

impl AnalysedImage {
    /// The addresses in a range at which a goroutine may be suspended.
    pub(crate) fn suspensions(&self, range: &Range<u64>) -> Suspensions {
        self.go.suspensions(&self.elf, range)
    }

    /// Whether control enters a function only after its first instruction, by a return address that no call made.
    pub(crate) fn is_returned_into(&self, function: &Function) -> bool {
        sweep::is_returned_into(&self.elf, function.start) || self.go.is_top_frame(&self.elf, function.start)
    }

    /// Whether a jump to an address calls a function: the address is a function's first byte, the byte after its `endbr64`, a stub of the
    /// linker, or outside the text.
    pub(crate) fn is_tail_target(&self, at: u64) -> bool {
        let Some(region) = self.elf.text_index(at) else { return true };
        let starts = |start: u64| self.function_at(Svma(start)).is_some();
        let behind_endbr = at.checked_sub(4).is_some_and(|start| starts(start) && self.elf.begins_with_endbr(start));
        self.elf.text[region].stubs || starts(at) || behind_endbr
    }

    /// Starts of the functions that begin in a range.
    pub(crate) fn starts_in(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let index = |at| self.functions().partition_point(|f| f.start < at);
        self.functions()[index(range.start)..index(range.end)].iter().map(|f| f.start)
    }

    /// The landing pads of exceptions in a range.
    pub(crate) fn landing_pads_in(&self, range: &Range<u64>) -> &[u64] {
        let index = |at| self.landing_pads.partition_point(|pad| *pad < at);
        &self.landing_pads[index(range.start)..index(range.end)]
    }

    /// Whether bytes belong to a restartable sequence, or to the signature that the kernel demands before its abort handler.
    pub(crate) fn in_restartable_sequence(&self, at: u64, len: u64) -> bool {
        restartable::overlaps(&self.restartable, &(at..at.saturating_add(len)))
    }

    /// The bytes that restartable sequences need in place, joined. All text if the file has too many.
    pub(super) fn critical(&self, sequences: &RestartableSequences) -> Vec<Range<u64>> {
        if sequences.too_many {
            return restartable::joined(self.elf.text.iter().map(|region| region.svma..region.end()).collect());
        }
        let mut ranges: Vec<Range<u64>> = sequences.described.iter().flat_map(RestartableSequence::ranges).collect();
        ranges.extend(sequences.undescribed.iter().map(|handler| restartable::at_handler(*handler)));
        // Many handlers may be about one function.
        let starts = sequences.undescribed.iter().flat_map(|handler| self.around_handler(*handler));
        for start in starts.collect::<BTreeSet<u64>>() {
            let Some(f) = self.function_at(Svma(start)) else { continue };
            ranges.extend(std::iter::once(&f.range()).chain(f.parts()).map(|range| range.start.0..range.end.0));
        }
        restartable::joined(ranges)
    }

    /// The starts of the functions around the handler of a sequence without a descriptor, and around the place where the handler leads:
    /// their instructions may be critical.
    fn around_handler(&self, handler: u64) -> impl Iterator<Item = u64> {
        let mut cursor = DecodeCursor::new(self.elf.data_from(handler).unwrap_or_default(), handler);
        let code = std::iter::from_fn(|| cursor.next()).take(HANDLER_MAX);
        let leads = code.map(|i| ControlTransfer::of(&i)).find(|transfer| *transfer != ControlTransfer::Next);
        let target = match leads {
            Some(ControlTransfer::Jump(to) | ControlTransfer::Branch(to)) => Some(to),
            _ => None,
        };
        [Some(handler), target].into_iter().flatten().filter_map(|at| Some(self.function_around(at)?.start))
    }

    /// Whether a static probe (USDT) is at an address. No springboard covers one: a uprobe that is set there later would write a byte into
    /// the springboard, and make threads go on after that byte.
    pub(crate) fn is_probe(&self, at: u64) -> bool {
        self.probes.binary_search(&at).is_ok()
    }

    /// Whether other code compares program counters with places in a function other than its first byte.
    pub(crate) fn is_compared(&self, function: &Function) -> bool {
        let ranges = std::iter::once(function.range()).chain(function.parts().iter().cloned());
        let compared = |range: SvmaRange| {
            self.side_entries_in(&(range.start.0..range.end.0)).iter().any(|entry| entry.why & SideEntry::COMPARED != 0)
        };
        ranges.into_iter().any(compared)
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
