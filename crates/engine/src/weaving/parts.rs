//! The parts of generated code: which bytes of an arena and of the text belong to which point, for people who read the code.

use ingraft_codegen::{Chain, Held, RemovalRecord, StackView, WovenBody, WovenPoint};
use ingraft_model::machine::{JUMP, SHORT_JUMP};
use ingraft_model::{Avma, AvmaRange, PcMove, PointKind, TextWrite};

use crate::api::CodePart;

/// Length in bytes of a slot.
const SLOT: i64 = 9;
/// Length in bytes of the link at the end of a snippet.
const LINK: i64 = 5;

/// A range of generated code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedPart {
    /// Addresses of the bytes.
    pub range: AvmaRange,
    /// Name of the part.
    pub part: CodePart,
    /// Metric and focus of the pair of a snippet.
    pub pair: Option<String>,
}

/// A point whose code is in a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedPoint {
    /// Kind of the point; `None` if it is not recorded.
    pub kind: Option<PointKind>,
    /// First byte of the function; `None` if it is not recorded.
    pub function: Option<Avma>,
    /// Instruction of the point; if it is not recorded, the first byte of the springboard.
    pub point: Avma,
    /// Parts of the code, sorted by address. None overlaps another one.
    pub parts: Vec<GeneratedPart>,
    /// Resume addresses of threads in the code, sorted.
    pub moves: Vec<PcMove>,
    /// Ranges that threads leave by single-stepping, shared routines among them.
    pub step_out: Vec<AvmaRange>,
    /// Writes that restore the text.
    pub text: Vec<TextWrite>,
}

/// Everything that is known about the generated code in a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// Name and process id of the engine; empty if they are not known.
    pub holder: String,
    /// Addresses of the arenas.
    pub arenas: Vec<AvmaRange>,
    /// Addresses of the data areas.
    pub areas: Vec<AvmaRange>,
    /// The points.
    pub points: Vec<GeneratedPoint>,
    /// Reason why the points are not known; `None` if they are.
    pub unknown: Option<String>,
}

impl GeneratedPoint {
    /// A point that this engine has woven. `pair_of` returns the pair that a snippet, given by its id, belongs to.
    pub fn woven(woven: &WovenPoint, pair_of: impl Fn(u64) -> Option<String>) -> Self {
        let code = &woven.removal.code;
        let mut parts = FoundParts::default();
        parts.text(&woven.removal.text, woven.at);
        if let Some(host) = &woven.host {
            parts.add(host.copy..host.copy.offset(LINK), CodePart::Springboard);
        }
        if let Some(probe) = woven.probe.as_ref().filter(|_| !woven.is_with_copy()) {
            parts.add(probe.copy..probe.copy.offset(LINK), CodePart::Springboard);
        }
        for mini in &woven.minis {
            let pair = pair_of(mini.id);
            match &mini.code {
                Some(code) => {
                    parts.add_for(code.own(), CodePart::Snippet, pair.clone());
                    parts.add_for(code.aside(), CodePart::SnippetWithoutShard, pair);
                }
                None => parts.add_for(woven.slot..woven.slot.offset(SLOT), CodePart::Snippet, pair),
            }
        }
        if !woven.is_with_copy() {
            parts.add(code.start..woven.base, CodePart::SlowPath);
            parts.add(woven.tail_end..code.end, CodePart::Room);
        }
        parts.add(woven.base..woven.slot, CodePart::Base);
        parts.add(woven.slot..woven.slot.offset(SLOT), CodePart::Slot);
        parts.add(woven.tail..woven.tail_end, CodePart::Relocated);
        parts.add(woven.leave..woven.tail, CodePart::Restore);
        // Where a call leads to the probe, a thread that leaves the code goes on in the callee.
        let called = woven.probe.filter(|probe| probe.holds == Held::Called).map(|probe| probe.at(woven.function));
        let point = called.unwrap_or_else(|| match woven.kind {
            PointKind::Entry => woven.function,
            PointKind::CallAfter => woven.at,
            PointKind::CallBefore if woven.stack == StackView::CALLED => woven.at,
            PointKind::CallBefore | PointKind::Exit | PointKind::Block | PointKind::Edge => {
                woven.resume.unwrap_or(woven.at)
            }
        });
        let mut moves: Vec<PcMove> = woven.records().flat_map(|r| r.moves.iter().copied()).collect();
        moves.sort_unstable();
        GeneratedPoint {
            kind: Some(woven.kind),
            function: Some(woven.function),
            point,
            parts: parts.sorted(),
            moves,
            step_out: woven.records().flat_map(|r| r.step_out.iter().cloned()).collect(),
            text: woven.removal.text.clone(),
        }
    }

    /// The copy of a function, which this engine has woven. It counts as a point whose instruction is the function's first.
    pub fn copy(woven: &WovenBody) -> Self {
        let mut parts = FoundParts::default();
        parts.text(&woven.removal.text, woven.function);
        woven.records().for_each(|record| parts.add(record.code.clone(), CodePart::Relocated));
        let mut moves: Vec<PcMove> = woven.records().flat_map(|record| record.moves.iter().copied()).collect();
        moves.sort_unstable();
        GeneratedPoint {
            kind: None,
            function: Some(woven.function),
            point: woven.function,
            parts: parts.sorted(),
            moves,
            step_out: Vec::new(),
            text: woven.removal.text.clone(),
        }
    }

    /// A point of which the journal of another engine has a record. `chain` has its snippets, if they are recorded. `pair_of` returns the
    /// pair of a snippet, given by the first counter of the pair.
    pub fn recorded(
        removal: &RemovalRecord,
        chain: Option<&Chain>,
        pair_of: impl Fn(u64) -> Option<String>,
    ) -> Option<Self> {
        let first = removal.text.iter().map(|w| w.at).min()?;
        let mut moves = removal.moves.clone();
        moves.sort_unstable();
        let mut parts = FoundParts::default();
        parts.text(&removal.text, first);
        if let Some(chain) = chain {
            for (owner, code) in &chain.snippets {
                let range = match code {
                    Some(code) => code.start..code.link.offset(LINK),
                    None => chain.slot..chain.slot.offset(SLOT),
                };
                parts.add_for(range, CodePart::Snippet, pair_of(*owner));
            }
            parts.add(chain.slot..chain.slot.offset(SLOT), CodePart::Slot);
            parts.add(removal.code.start..chain.slot, CodePart::Base);
            // Copies of displaced instructions are where a thread goes on after the point.
            let passed = |m: &&PcMove| m.from >= chain.leave && m.to != first;
            let tail = moves.iter().find(passed).map_or(removal.code.end, |m| m.from);
            parts.add(chain.leave..tail, CodePart::Restore);
            parts.add(tail..removal.code.end, CodePart::Relocated);
        }
        parts.add(removal.code.clone(), CodePart::Point);
        Some(GeneratedPoint {
            kind: None,
            function: chain.map(|chain| chain.function),
            point: first,
            parts: parts.sorted(),
            moves,
            step_out: removal.step_out.clone(),
            text: removal.text.clone(),
        })
    }

    /// The part that holds an address.
    pub fn part_at(&self, at: Avma) -> Option<&GeneratedPart> {
        let after = self.parts.partition_point(|part| part.range.start <= at);
        self.parts[..after].last().filter(|part| part.range.contains(&at))
    }

    /// Resume address in the text of a thread at an address of the code: that of the last instruction up to the address which has one.
    pub fn resume_at(&self, at: Avma) -> Option<Avma> {
        let part = self.part_at(at)?;
        let after = self.moves.partition_point(|m| m.from <= at);
        if let Some(found) = self.moves[..after].last().filter(|m| part.range.contains(&m.from)) {
            return Some(found.to);
        }
        // A jump in the text is replaced by the original bytes; of a call only the displacement is.
        let write =
            self.text.iter().find(|write| part.part == CodePart::Springboard && write.at == part.range.start)?;
        let is_jump = matches!(write.old_bytes().first(), Some(&JUMP | &SHORT_JUMP));
        Some(if is_jump { write.at } else { self.point })
    }
}

/// Parts as they are found: of two that overlap, the earlier one has the bytes.
#[derive(Default)]
struct FoundParts(Vec<GeneratedPart>);

impl FoundParts {
    fn add(&mut self, range: AvmaRange, part: CodePart) {
        self.add_for(range, part, None);
    }

    fn add_for(&mut self, range: AvmaRange, part: CodePart, pair: Option<String>) {
        let mut free = vec![range];
        for known in &self.0 {
            let taken = &known.range;
            let rest = |piece: AvmaRange| {
                let before = piece.start..piece.end.min(taken.start);
                let after = piece.start.max(taken.end)..piece.end;
                [before, after]
            };
            free = free.into_iter().flat_map(rest).filter(|piece| piece.start < piece.end).collect();
        }
        let pieces = free.into_iter().filter(|piece| piece.start < piece.end);
        self.0.extend(pieces.map(|range| GeneratedPart { range, part, pair: pair.clone() }));
    }

    /// Adds the writes to text; the one with the first byte of the springboard is the springboard, and so is a write inside of a call.
    fn text(&mut self, writes: &[TextWrite], at: Avma) {
        for write in writes {
            let end = write.at.offset(i64::from(write.len));
            let is_jump = write.old_bytes().first() == Some(&JUMP);
            let near = at <= write.at && write.at < at.offset(SLOT);
            let part = if near && (write.at == at || !is_jump) { CodePart::Springboard } else { CodePart::Island };
            self.add(write.at..end, part);
        }
    }

    fn sorted(mut self) -> Vec<GeneratedPart> {
        self.0.sort_by_key(|part| part.range.start);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, bytes: &[u8]) -> TextWrite {
        let mut write = TextWrite { at: Avma(at), len: bytes.len() as u8, old: [0; 8], new: [0x90; 8] };
        write.old[..bytes.len()].copy_from_slice(bytes);
        write
    }

    fn record() -> RemovalRecord {
        RemovalRecord {
            text: vec![write(0x1000, &[0xe9, 1, 0, 0, 0]), write(0x2000, &[0xe9, 2, 0, 0, 0])],
            moves: vec![
                PcMove { from: Avma(0x9030), to: Avma(0x1003) },
                PcMove { from: Avma(0x9010), to: Avma(0x1000) },
                PcMove { from: Avma(0x902c), to: Avma(0x1000) },
            ],
            step_out: vec![Avma(0x8000)..Avma(0x8040)],
            code: Avma(0x9000)..Avma(0x9040),
        }
    }

    #[test]
    fn a_recorded_point_has_the_parts_that_its_chain_tells() {
        let chain =
            Chain { function: Avma(0x1000), slot: Avma(0x9010), leave: Avma(0x902c), snippets: vec![(7, None)] };
        let pair = |owner| (owner == 7).then(|| "calls".to_owned());
        let point = GeneratedPoint::recorded(&record(), Some(&chain), pair).expect("a point");
        let at = |at| point.part_at(Avma(at)).map(|part| part.part);
        assert_eq!(at(0x1004), Some(CodePart::Springboard));
        assert_eq!(at(0x1005), None);
        assert_eq!(at(0x2000), Some(CodePart::Island));
        assert_eq!(at(0x9000), Some(CodePart::Base));
        assert_eq!(at(0x9018), Some(CodePart::Snippet));
        assert_eq!(at(0x9019), Some(CodePart::Point));
        assert_eq!(at(0x902c), Some(CodePart::Restore));
        assert_eq!(at(0x9031), Some(CodePart::Relocated));
        assert_eq!(at(0x9040), None);
        assert_eq!(point.resume_at(Avma(0x9031)), Some(Avma(0x1003)));
        assert_eq!(point.resume_at(Avma(0x9014)), Some(Avma(0x1000)));
        assert_eq!(point.resume_at(Avma(0x1001)), Some(Avma(0x1000)));
        let pairs: Vec<_> = point.parts.iter().filter_map(|part| part.pair.as_deref()).collect();
        assert_eq!(pairs, ["calls"]);
    }

    #[test]
    fn a_point_without_a_chain_is_one_part() {
        let point = GeneratedPoint::recorded(&record(), None, |_| None).expect("a point");
        assert_eq!(point.part_at(Avma(0x9020)).map(|part| part.part), Some(CodePart::Point));
        assert_eq!((point.function, point.kind), (None, None));
        let empty = RemovalRecord { text: Vec::new(), ..record() };
        assert_eq!(GeneratedPoint::recorded(&empty, None, |_| None), None);
    }

    #[test]
    fn parts_never_overlap() {
        let mut parts = FoundParts::default();
        parts.add(Avma(10)..Avma(20), CodePart::Snippet);
        parts.add(Avma(0)..Avma(30), CodePart::Point);
        parts.add(Avma(5)..Avma(5), CodePart::Slot);
        let sorted = parts.sorted();
        let ranges: Vec<_> = sorted.iter().map(|part| (part.range.start.0, part.range.end.0)).collect();
        assert_eq!(ranges, [(0, 10), (10, 20), (20, 30)]);
    }
}
