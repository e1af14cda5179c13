//! Woven code as values: points, their snippets, and the records that undo them.

use ingraft_model::{Avma, AvmaRange, Gpr, PcMove, PointKind, TextWrite};

use crate::code::block::{LINK, displacement, text_write};
use crate::code::cost::Cost;

/// All that removing a piece of woven code needs, without this crate: a removal's plan is the concatenation of records.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RemovalRecord {
    /// Writes that put the original bytes back.
    pub text: Vec<TextWrite>,
    /// Program counters in the code, each with the address where the thread goes on.
    pub moves: Vec<PcMove>,
    /// Ranges out of which threads are stepped.
    pub step_out: Vec<AvmaRange>,
    /// The code that nothing leads to afterwards.
    pub code: AvmaRange,
}

/// The copy of a displaced jump, return or call. A point at the original has its springboard over the copy. If a jump leads to a point without
/// passing it, the point makes the copy of the jump lead past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inner {
    /// The instruction in the text.
    pub original: Avma,
    /// First byte of the copy.
    pub copy: Avma,
    /// The first bytes of the copy, which a springboard overwrites.
    pub bytes: [u8; 5],
    /// Target of the copy of a jump, conditional or not; `None` for returns and calls.
    pub leads: Option<Avma>,
    /// Addresses where control goes on if a conditional jump is not taken: in the text, and behind the copy. `None` for other instructions.
    pub next: Option<(Avma, Avma)>,
}

impl Inner {
    /// The write that makes the copy of a jump lead to `to`.
    pub(crate) fn leading(&self, to: u64) -> Option<TextWrite> {
        let field = self.copy.0 + if self.bytes.starts_with(&[0x0f]) { 2 } else { 1 };
        let [old, new] = [self.leads?.0, to].map(|target| displacement(field + 4, target).map(i32::to_le_bytes));
        Some(text_write(field, &old?, &new?))
    }
}

/// A point that is woven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenPoint {
    /// Kind of the point.
    pub kind: PointKind,
    /// Resume address of a thread that has not changed anything since the point: the springboard of an entry and behind a call, elsewhere the
    /// point's instruction. At a call that leads to the base itself: the callee, `None` if it is not known.
    pub resume: Option<Avma>,
    /// Layout of the stack at the point.
    pub stack: StackView,
    /// First byte of the springboard.
    pub at: Avma,
    /// First byte of the function.
    pub function: Avma,
    /// First byte of the base trampoline, to which the springboard leads.
    pub base: Avma,
    /// The first of nine live bytes: a plain count if that is the only snippet, else they lead to the first one, or to `leave`.
    pub slot: Avma,
    /// Behind the slot and the snippets that were woven together with the point: what the base trampoline saved is restored.
    pub leave: Avma,
    /// The displaced instructions.
    pub tail: Avma,
    /// Behind them and the way home. Instructions follow that are displaced only to make room, if there are any.
    pub tail_end: Avma,
    /// First original byte that was not displaced.
    pub home: Avma,
    /// Return address of the call in front of which the point lies; `None` elsewhere.
    pub returns_to: Option<Avma>,
    /// The register that the check of the shard uses; none with locked counters.
    pub scratch: Option<Gpr>,
    /// Whether rax may be overwritten by snippets.
    pub rax_free: bool,
    /// Words that the base trampoline pushes.
    pub pushed: u8,
    /// The worst case of reaching it, without its snippets and the jumps between them and without what the function itself does:
    /// springboard, base trampoline, way home.
    pub cost: Cost,
    /// The snippets, in the order in which they run.
    pub minis: Vec<WovenMini>,
    /// The displaced instructions that others may need. Points that have one as their host, or lead one, go before this or together with it.
    pub inner: Vec<Inner>,
    /// Copy into which the point is woven, if another point displaces its instruction.
    pub host: Option<Inner>,
    /// Jumps to the springboard that other points displace: their copies lead to the tail.
    pub led: Vec<Inner>,
    /// First bytes of stretches that are displaced to make room for islands.
    pub cleared: Vec<Avma>,
    /// Record that removes the point, without its snippets; for a point with a host: together with the host.
    pub removal: RemovalRecord,
}

impl WovenPoint {
    /// The copies that it changes in the code of other points, which have to stay as long as it does.
    pub fn needs(&self) -> impl Iterator<Item = &Inner> {
        self.host.iter().chain(&self.led)
    }

    /// Whether a thread that stands there in the displaced instructions has the point behind it.
    pub fn is_passed_at(&self, at: Avma) -> bool {
        (self.tail..self.tail_end).contains(&at)
    }

    /// All records that removing the point needs, its snippets' included.
    pub fn records(&self) -> impl Iterator<Item = &RemovalRecord> + Clone {
        std::iter::once(&self.removal).chain(self.minis.iter().map(|m| &m.removal))
    }
}

/// A snippet in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenMini {
    /// Number of the snippet, unique at its point.
    pub id: u64,
    /// Displacement of the counter, if the snippet is a plain count: alone at its point it stands in the slot.
    pub count: Option<u32>,
    /// Code of the snippet; `None` if it stands in the point's slot.
    pub code: Option<MiniCode>,
    /// Worst case of the snippet, with the jumps to it and to the next one.
    pub cost: Cost,
    /// Record that removes the snippet together with its point.
    pub removal: RemovalRecord,
}

/// The code of a snippet in the chain of its point. What is woven together with the point lies behind the slot, one behind the other, as
/// part of the point's own code; what comes later lies for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiniCode {
    /// First instruction, to which the link before it leads.
    pub start: Avma,
    /// Last instruction, the live link to the next snippet or to the point's `leave`: a `jmp rel32`, or a nop if that is right behind it.
    pub link: Avma,
    /// Range that is freed with it: the code aside ([`MiniCode::aside`]), and before that all of it if it lies for itself.
    pub range: AvmaRange,
}

impl MiniCode {
    /// Range from the first instruction to behind the link.
    pub fn own(&self) -> AvmaRange {
        self.start..self.link.offset(LINK as i64)
    }

    /// Range of the twin that counts in shard 0, if there is one, and of the code that runs only sometimes behind it.
    pub fn aside(&self) -> AvmaRange {
        let own = self.own();
        if self.range.start == own.start { own.end..self.range.end } else { self.range.clone() }
    }
}

/// Layout of the stack for the snippets of a point, in bytes from the stack pointer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackView {
    /// Address that tells one call from another, the same at its beginning and its end. Of a function it is the stack pointer at its entry. Of a
    /// call that a function makes it is one byte less than the stack pointer before it, so that it lies between those of caller and
    /// callee.
    pub key: i8,
    /// First argument on the stack.
    pub arguments: i8,
}

impl StackView {
    /// At entries and exits.
    pub const FUNCTION: StackView = StackView { key: 0, arguments: 8 };
    /// At a call whose return address is pushed.
    pub const CALLED: StackView = StackView { key: 7, arguments: 8 };
    /// Before and behind a call.
    pub const CALLING: StackView = StackView { key: -1, arguments: 0 };
}
