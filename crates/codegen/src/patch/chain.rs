//! The snippets of a woven point, in the form that a successor of a dead engine needs: their list, and writes that redirect control past
//! some of them without changes to the code of others.

use ingraft_model::{Avma, TextWrite};

use crate::code::block::{LINK, link_bytes, text_write};
use crate::code::woven::WovenPoint;
use crate::snippet::slot::{Holds, Slot};

/// Snippets of a point, in the order in which they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// First byte of the function.
    pub function: Avma,
    /// Slot of the point, which leads to the first snippet.
    pub slot: Avma,
    /// Address to which the last snippet leads.
    pub leave: Avma,
    /// Number and code of each snippet. The code is `None` for a plain count in the slot.
    pub snippets: Vec<(u64, Option<Linked>)>,
}

/// The code of a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linked {
    /// Address of the first instruction, to which the link before the snippet leads.
    pub start: Avma,
    /// Address of the snippet's own link.
    pub link: Avma,
}

impl Chain {
    /// Chain of a woven point.
    pub fn of(point: &WovenPoint) -> Self {
        let linked = |m: &crate::WovenMini| m.code.as_ref().map(|c| Linked { start: c.start, link: c.link });
        Chain {
            function: point.function,
            slot: point.slot,
            leave: point.leave,
            snippets: point.minis.iter().map(|m| (m.id, linked(m))).collect(),
        }
    }

    /// Returns the chain with only the snippets for which `stays` is true, and the writes that lead past the others. Each write changes
    /// one jump, which a thread executes either as it was or as it is now. The code of removed snippets stays whole, so that a thread in
    /// it can go on. A plain count in the slot always stays, because a thread may be about to read which counter it changes.
    pub fn keeping(&self, stays: impl Fn(u64) -> bool) -> (Chain, Vec<TextWrite>) {
        let left: Vec<_> = self.snippets.iter().filter(|(id, code)| code.is_none() || stays(*id)).copied().collect();
        let mut writes = Vec::new();
        let start_of =
            |snippet: Option<&(u64, Option<Linked>)>| snippet.and_then(|(_, c)| *c).map_or(self.leave, |c| c.start);
        // The slot comes before all snippets.
        for before in std::iter::once(None).chain(left.iter().map(Some)) {
            let position = |all: &[(u64, Option<Linked>)]| {
                before.map_or(0, |b| all.iter().position(|s| s == b).map_or(0, |i| i + 1))
            };
            let (old, new) =
                (start_of(self.snippets.get(position(&self.snippets))), start_of(left.get(position(&left))));
            if old == new {
                continue;
            }
            writes.extend(match before {
                None => relink_slot(self.slot.0, self.leave.0, old.0, new.0),
                Some((_, Some(code))) => link_bytes(code.link.0, old.0)
                    .zip(link_bytes(code.link.0, new.0))
                    .map(|(old, new)| text_write(code.link.0, &old, &new)),
                Some((_, None)) => None,
            });
        }
        writes.sort_unstable_by_key(|w| w.at);
        (Chain { snippets: left, ..self.clone() }, writes)
    }
}

fn relink_slot(at: u64, leave: u64, old: u64, new: u64) -> Option<TextWrite> {
    // Whether threads have shards of their own matters only to a count.
    let slot = |target| Slot { at, private: true, leave, holds: Holds::Link(target) };
    slot(old).becomes(slot(new))?.into_iter().next()
}

const _: () = assert!(LINK <= 8, "a link is one write");

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u64) -> Chain {
        let linked = |i: u64| Linked { start: Avma(0x1100 + 0x40 * i), link: Avma(0x1120 + 0x40 * i) };
        Chain {
            function: Avma(0x400),
            slot: Avma(0x1000),
            leave: Avma(0x2000),
            snippets: (0..n).map(|i| (i, Some(linked(i)))).collect(),
        }
    }

    fn target(write: &TextWrite) -> u64 {
        let displacement = i32::from_le_bytes(write.new[1..5].try_into().expect("four bytes"));
        assert_eq!(write.new[0], 0xe9);
        (write.at.0 + 5).wrapping_add_signed(displacement.into())
    }

    #[test]
    fn control_is_led_past_what_goes() {
        let (left, writes) = chain(4).keeping(|id| id == 1 || id == 3);
        assert_eq!(left.snippets.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 3]);
        let led: Vec<_> = writes.iter().map(|w| (w.at.0, target(w))).collect();
        assert_eq!(led, [(0x1000, 0x1140), (0x1160, 0x11c0)]);
        let (left, writes) = chain(2).keeping(|_| false);
        assert!(left.snippets.is_empty());
        assert_eq!(writes.iter().map(|w| (w.at.0, target(w))).collect::<Vec<_>>(), [(0x1000, 0x2000)]);
        let (left, writes) = chain(3).keeping(|id| id != 2);
        assert_eq!(left.snippets.len(), 2);
        assert_eq!(writes.iter().map(|w| (w.at.0, target(w))).collect::<Vec<_>>(), [(0x1160, 0x2000)]);
    }

    #[test]
    fn what_stays_is_not_touched() {
        assert_eq!(chain(3).keeping(|_| true), (chain(3), Vec::new()));
        let alone = Chain { snippets: vec![(7, None)], ..chain(0) };
        assert_eq!(alone.keeping(|_| false), (alone.clone(), Vec::new()));
    }
}
