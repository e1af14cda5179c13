//! Displaceable ranges: whole instructions around a point in the middle of a function, which may be displaced together.
//!
//! Such a range avoids the bytes that the entry's springboard displaces if it can. A range that must reach into them overlaps the entry's
//! springboard, and then only one of the two points can be woven.

use ingraft_model::Refusal;
use ingraft_model::machine::SPRINGBOARD;

use crate::flow::FlowGraph;
use crate::flow::body::{DecodedFunction, INSTRUCTION_MAX};
use crate::sites::entry;
use crate::sites::springboard::{SHORT, SITE_MAX, on_one_page};

/// The displaceable ranges of one function.
pub(crate) struct DisplaceableRanges<'a> {
    pub body: &'a DecodedFunction<'a>,
    pub flow: &'a FlowGraph,
    /// Address of the first byte of the entry's springboard.
    entry: u64,
    /// Address of the first instruction that the entry's springboard leaves in place.
    home: u64,
    /// First address that no earlier site uses.
    pub floor: u64,
    /// Whether control arrives where the language's runtime may have suspended a call. It does not if the engine makes sure that no call is
    /// suspended within the range when the code is inserted.
    pub resumed: bool,
}

impl<'a> DisplaceableRanges<'a> {
    pub fn new(body: &'a DecodedFunction<'a>, flow: &'a FlowGraph) -> Self {
        let entry = entry::first_byte(body.image, body.function);
        let home = entry::displaced_until(body.image, body.function);
        DisplaceableRanges { body, flow, entry, home, floor: 0, resumed: true }
    }

    /// Whether the entry's springboard displaces an instruction, and control reaches the instruction by the entry alone.
    pub fn goes_with_entry(&self, at: u64, end: u64) -> bool {
        at >= self.entry && end <= self.home && !self.lands_within(self.entry, end)
    }

    /// Addresses at which the displaceable range of a point may begin: its own instruction, and each instruction before it, nearest first,
    /// as long as control only falls through. With `branches`, a branch away to elsewhere in the function may be among them.
    pub fn starts(&self, point: usize, branches: bool) -> Vec<u64> {
        let code = &self.body.code;
        let end = code[point].next_ip();
        let (mut index, mut starts) = (point, vec![code[point].ip()]);
        while !self.lands(code[index].ip()) {
            let runs_into = |before: &usize| {
                let i = &code[*before];
                i.next_ip() == code[index].ip()
                    && self.flow.reaches(*before)
                    && !entry::stays_in_go(self.body.image, i)
                    && !self.body.image.is_probe(i.ip())
                    && (entry::runs_on(i) || branches && i.is_jcc_short_or_near() && !self.flow.leaves(*before))
                    && !self.lands_within(i.ip(), i.next_ip())
            };
            let Some(before) = (index.saturating_sub(INSTRUCTION_MAX as usize)..index).rev().find(runs_into) else {
                break;
            };
            let start = code[before].ip();
            if start < self.floor || end - start > SITE_MAX {
                break;
            }
            starts.push(start);
            index = before;
        }
        starts.retain(|start| !self.body.is_within_other(*start));
        starts
    }

    /// The start of the shortest range that a springboard fits into; if there is none, of the longest range that a jump to an island fits
    /// into. `ends` are the addresses up to which the range may reach, the best first.
    pub fn choose(&self, starts: &[u64], ends: &[u64]) -> Result<u64, Refusal> {
        let fits = |start: u64, end: u64, len: u64| end.saturating_sub(start) >= len && on_one_page(start, len);
        let best = |starts: &[u64]| {
            let near = |end: &u64| starts.iter().find(|start| fits(**start, *end, SPRINGBOARD));
            let short = |end: &u64| starts.iter().rev().find(|start| fits(**start, *end, SHORT));
            ends.iter().find_map(near).or_else(|| ends.iter().find_map(short)).copied()
        };
        let until = ends.iter().copied().max().unwrap_or_default();
        let at_entry = |start: &u64| (self.entry..self.home).contains(start);
        let apart = starts.partition_point(|start| !at_entry(start));
        let longest = until.saturating_sub(starts.last().copied().unwrap_or(until));
        best(&starts[..apart]).or_else(|| best(starts)).ok_or(if longest < SHORT {
            Refusal::TooShort { available: longest as u32, next: "the next place where control can arrive" }
        } else {
            Refusal::StraddlesPages
        })
    }

    /// Whether control can arrive at an address other than by falling through, or a static probe is there.
    pub fn lands(&self, at: u64) -> bool {
        if self.resumed { self.flow.lands(self.body, at) } else { self.flow.arrives(self.body, at) }
    }

    /// Whether control can arrive in a range after its first byte.
    pub fn lands_within(&self, start: u64, end: u64) -> bool {
        (start + 1..end).any(|at| self.lands(at))
    }
}
