//! Text of the modules that is in use: bytes under springboards, and padding that islands may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_model::machine::PAGE;
use ingraft_model::point::Padding;
use ingraft_model::{Avma, AvmaRange, Bias};

use crate::code::block::{USER_END, straddles};
use crate::code::body::WovenBody;
use crate::code::woven::WovenPoint;

/// Length of an island: one `jmp rel32`.
pub(crate) const ISLAND: u64 = 5;

/// Text of the modules that one arena serves, as far as weaving needs it.
#[derive(Clone, Debug, Default)]
pub struct TextSpace {
    /// Padding that control never reaches: the bytes by start address. Clones of the value share the map.
    padding: Arc<BTreeMap<u64, Vec<u8>>>,
    /// Ranges that are or will be overwritten: end and name of the owner, by start address.
    taken: BTreeMap<u64, (u64, Arc<str>)>,
    /// Blocks of functions that run as copies, like `taken`. Springboards into the copy lie within them.
    copied: BTreeMap<u64, (u64, Arc<str>)>,
}

/// Five bytes of padding that were taken for an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Island {
    pub at: u64,
    pub old: [u8; 5],
}

impl TextSpace {
    /// A space with no range taken and no padding known.
    pub fn new() -> Self {
        TextSpace::default()
    }

    /// Adds the padding of a module that was loaded with `bias`.
    pub fn add_padding(&mut self, bias: Bias, padding: &[Padding]) {
        let known = Arc::make_mut(&mut self.padding);
        for p in padding.iter().filter(|p| p.bytes.len() as u64 >= ISLAND) {
            let start = p.range.start.to_avma(bias).0;
            if start < USER_END {
                known.insert(start, p.bytes.clone());
            }
        }
    }

    /// Original bytes of the padding, by start address. A verifier compares the bytes under islands with them.
    pub fn padding(&self) -> impl Iterator<Item = (Avma, &[u8])> {
        self.padding.iter().map(|(&at, bytes)| (Avma(at), bytes.as_slice()))
    }

    /// Start and bytes of the padding around an address.
    pub(crate) fn padding_at(&self, at: u64) -> Option<(u64, &[u8])> {
        let (&start, bytes) = self.padding.range(..=at).next_back()?;
        (at - start < bytes.len() as u64).then_some((start, bytes.as_slice()))
    }

    /// Name of the owner of a byte in the range; `None` if all are free.
    pub(crate) fn owner(&self, start: u64, end: u64) -> Option<Arc<str>> {
        let of = |ranges: &BTreeMap<u64, (u64, Arc<str>)>| {
            let (_, (e, name)) = ranges.range(..end).next_back()?;
            (*e > start).then(|| Arc::clone(name))
        };
        of(&self.taken).or_else(|| of(&self.copied))
    }

    /// Takes a range. If part of it is taken already, fails with the name of the owner.
    pub(crate) fn take(&mut self, start: u64, end: u64, name: &str) -> Result<(), String> {
        match self.owner(start, end) {
            Some(other) => Err(other.as_ref().to_owned()),
            None => {
                self.taken.insert(start, (end, Arc::from(name)));
                Ok(())
            }
        }
    }

    /// Takes the blocks of a function that runs as a copy, apart from the springboards in them.
    pub(crate) fn take_blocks(&mut self, blocks: impl Iterator<Item = (u64, u64)>, name: &str) {
        let name: Arc<str> = Arc::from(name);
        self.copied.extend(blocks.map(|(start, end)| (start, (end, Arc::clone(&name)))));
    }

    /// Releases all text that the copy of a function had taken, once its removal is done.
    pub fn release_body(&mut self, body: &WovenBody) {
        for w in &body.removal.text {
            self.taken.remove(&w.at.0);
        }
        self.release_blocks(body.blocks.iter().map(|block| block.original.0));
    }

    /// Releases the blocks of a function that does not run as a copy, by their first addresses.
    pub(crate) fn release_blocks(&mut self, starts: impl Iterator<Item = u64>) {
        starts.for_each(|start| drop(self.copied.remove(&start)));
    }

    /// Releases all text that a point had taken, once the removal of the point is done.
    pub fn release_point(&mut self, point: &WovenPoint) {
        // The removal may write only the displacement of a call, but the whole call was taken.
        self.taken.remove(&point.start().0);
        for w in &point.removal.text {
            self.release(&(w.at..w.at.offset(i64::from(w.len))));
        }
    }

    /// Takes all text again that a point has taken in `before`. Returns whether all of it is free; if not, nothing is taken.
    pub fn take_again(&mut self, point: &WovenPoint, before: &TextSpace) -> bool {
        let starts = point.removal.text.iter().map(|w| w.at.0).chain([point.start().0]);
        let ranges: BTreeMap<u64, (u64, Arc<str>)> =
            starts.filter_map(|start| Some((start, before.taken.get(&start)?.clone()))).collect();
        let taken = |(start, (end, _)): (&u64, &(u64, Arc<str>))| self.owner(*start, *end).is_some();
        let is_there = !ranges.iter().any(taken);
        if is_there {
            self.taken.extend(ranges);
        }
        is_there
    }

    /// Releases the bytes of a text write that was undone.
    pub fn release(&mut self, range: &AvmaRange) {
        self.taken.remove(&range.start.0);
    }

    /// Takes an island that starts in `first..=last` and lies on one page. The search begins at the far end of each padding, because the
    /// short function before the padding needs the near end for its own springboard.
    pub(crate) fn take_island(&mut self, first: u64, last: u64, name: &str) -> Option<Island> {
        let from = self.padding.range(..=first).next_back().map_or(first, |(&at, _)| at);
        let found = self.padding.range(from..=last).find_map(|(&start, bytes)| {
            let end = start.checked_add(bytes.len() as u64)?;
            let low = start.max(first);
            let mut at = end.checked_sub(ISLAND)?.min(last);
            while at >= low {
                if straddles(at, ISLAND) {
                    at = (at & !(PAGE - 1)) + PAGE - ISLAND;
                } else if let Some((&s, _)) = self.taken.range(..at + ISLAND).next_back()
                    && self.owner(at, at + ISLAND).is_some()
                {
                    at = s.checked_sub(ISLAND)?;
                } else {
                    let offset = usize::try_from(at - start).ok()?;
                    let old = bytes.get(offset..offset + 5)?.try_into().ok()?;
                    return Some(Island { at, old });
                }
            }
            None
        })?;
        self.take(found.at, found.at + ISLAND, name).ok()?;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::Svma;

    fn space(at: u64, len: usize) -> TextSpace {
        let mut text = TextSpace::new();
        let range = Svma(at)..Svma(at + len as u64);
        text.add_padding(Bias(0x10000), &[Padding { range, bytes: vec![0xcc; len] }]);
        text
    }

    #[test]
    fn islands_come_from_the_far_end_and_never_straddle() {
        let mut text = space(0x0ff8, 20);
        let starts: Vec<_> =
            std::iter::from_fn(|| text.take_island(0x10f00, 0x11100, "f")).map(|i| i.at - 0x10000).collect();
        assert_eq!(starts, [0x1007, 0x1002, 0x0ffb]);
        text.release(&(Avma(0x11002)..Avma(0x11007)));
        assert_eq!(text.take_island(0x10f00, 0x11005, "f").map(|i| i.at), Some(0x11002));
    }

    #[test]
    fn reach_is_kept() {
        let mut text = space(0x1000, 32);
        assert_eq!(text.take_island(0x10f00, 0x10fff, "f"), None);
        assert_eq!(text.take_island(0x1101c, 0x11100, "f"), None);
        assert_eq!(text.take_island(0x11003, 0x11003, "f").map(|i| i.at), Some(0x11003));
        assert_eq!(text.take(0x11007, 0x11009, "g"), Err("f".to_owned()));
    }
}
