//! Unwinding of the stacks of held threads, from the present position of a thread to the function with which it began.

use std::sync::Arc;

use ingraft_analysis::{FrameRules, FrameTable, Registers, Unwound};
use ingraft_codegen::WovenBody;
use ingraft_model::{Avma, AvmaRange, Bias, PointKind};
use ingraft_process::{HeldRegisters, Target};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::background::in_background;
use crate::program::modules::Modules;
use crate::program::wall;
use crate::recovery::signature::is_arena;
use crate::weaving::plan::Woven;

/// Largest number of frames that are unwound.
const FRAMES_MAX: usize = 100_000;

/// Number of positions whose rules are remembered.
const RULES_MAX: usize = 1 << 18;

/// Position of a thread, expressed in the original code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalPosition {
    /// The equivalent original instruction.
    pub at: Avma,
    /// The kind of point whose snippets the thread has passed, if the thread is in the displaced instructions of that point.
    pub past: Option<PointKind>,
}

/// Positions in the original code, by positions in the generated code of a target.
#[derive(Debug, Default)]
pub struct OriginalPositions {
    arenas: Vec<AvmaRange>,
    known: FxHashMap<Avma, OriginalPosition>,
}

impl OriginalPositions {
    /// Positions for the present code, before a change to `after` is applied. If a point gets further snippets, only a thread after the
    /// point has a known position relative to them; elsewhere the position depends on values saved on the stack.
    pub fn new(now: &Woven, after: &Woven) -> Self {
        let mut known = FxHashMap::default();
        for (place, point) in now.points() {
            let changes = after.snippets_at(place) != Some(point.minis.len());
            for m in point.records().flat_map(|r| &r.moves) {
                let past = point.is_passed_at(m.from).then_some(point.kind);
                let in_text = point.removal.text.iter().any(|w| w.at == m.from);
                let aside = (point.tail_end..point.removal.code.end).contains(&m.from);
                if past.is_some() || in_text || aside || !changes {
                    known.insert(m.from, OriginalPosition { at: m.to, past });
                }
            }
        }
        let adopted = now.adopted().flat_map(|r| &r.moves);
        known.extend(adopted.map(|m| (m.from, OriginalPosition { at: m.to, past: None })));
        let copied = now.copied().flat_map(WovenBody::places);
        known.extend(copied.map(|(m, past)| (m.from, OriginalPosition { at: m.to, past })));
        // These threads have run the snippets, and are about to leave the function.
        for probe in
            now.points().filter(|(point, _)| point.point.kind() == PointKind::Exit).filter_map(|(_, p)| p.probe)
        {
            known.extend(
                probe.passed().map(|at| (at, OriginalPosition { at: probe.original, past: Some(PointKind::Exit) })),
            );
        }
        OriginalPositions { arenas: now.arenas(), known }
    }

    /// Position of a thread; `None` if the thread is in generated code without an equivalent.
    pub fn of(&self, pc: Avma) -> Option<OriginalPosition> {
        match self.known.get(&pc) {
            Some(place) => Some(*place),
            None if self.arenas.iter().any(|a| a.contains(&pc)) => None,
            None => Some(OriginalPosition { at: pc, past: None }),
        }
    }
}

/// A call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveCall {
    /// Address of the next instruction; in a caller, address of the last byte of its call.
    pub at: Avma,
    /// Whether the frame is that of a caller, whose call has run.
    pub calls: bool,
    /// See [`OriginalPosition::past`].
    pub past: Option<PointKind>,
    /// Address at which the return address is stored.
    pub sp: u64,
    /// Stack pointer at this position; in a caller, the stack pointer before its call pushed anything.
    pub stack: u64,
}

/// A thread's calls, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The frames, as far as the stack could be unwound.
    pub frames: Vec<ActiveCall>,
    /// Whether the frames are complete.
    pub whole: bool,
}

/// The unwind tables of a target.
#[derive(Debug, Default)]
pub struct Walker {
    /// Address ranges of code, each with the table that describes it, sorted.
    code: Vec<(AvmaRange, Bias, Arc<FrameTable>)>,
    /// Whether frames of Go functions are unwound.
    goroutines: bool,
    /// Ranges of code whose frames are found by the frame pointer where no table describes them, sorted.
    guessed: Vec<AvmaRange>,
    /// Rules that were looked up, by the position and whether it is a return address; `None` for a position without rules.
    rules: FxHashMap<(Avma, bool), Option<Arc<FrameRules>>>,
}

impl Walker {
    /// Reads the unwind tables of all code that is mapped now. Takes too long for a stop.
    pub fn new(target: &Target, modules: &Modules) -> Self {
        let Ok(maps) = target.maps() else { return Walker::default() };
        let code = maps.iter().filter(|m| m.exec);
        let file_of = |m: &ingraft_process::Mapping| {
            let files = modules.mapped().rev();
            let same = |k: &ingraft_process::Mapping| {
                k.exec && (k.range.start, k.inode, k.device) == (m.range.start, m.inode, m.device)
            };
            files.into_iter().find(|f| f.file.code().any(same))
        };
        let parts: Vec<_> = code.map(|m| (m, file_of(m))).collect();
        let tables = in_background(|| {
            let read = |(m, file): &(&ingraft_process::Mapping, Option<&crate::program::modules::ModuleFile>)| {
                let (bias, table) = match file {
                    Some(file) => file.frames(target)?,
                    None if wall::is_vdso(m) => {
                        let (library, bias) = wall::library(target, m)?;
                        (bias, Arc::new(FrameTable::read(&library)))
                    }
                    None => return None,
                };
                Some((m.range.clone(), bias, table))
            };
            parts.par_iter().filter_map(read).collect::<Vec<_>>()
        });
        Walker { code: tables, ..Walker::default() }
    }

    /// Reads the same tables for samples: stacks of goroutines too, and where no table describes code, such as that of a just-in-time compiler,
    /// frames by the frame pointer. Goroutines move between threads, and a frame pointer may be another number, so nothing but estimates may come
    /// of these frames.
    pub fn for_samples(target: &Target, modules: &Modules) -> Self {
        let mut walker = Walker { goroutines: true, ..Walker::new(target, modules) };
        walker.find_code(target);
        walker
    }

    /// Finds the code that the target has mapped now, for frames by the frame pointer. Generated code is left out, because
    /// the frame pointer there may still be that of the caller. Samples learn only some time after an insertion where such code lies.
    pub fn find_code(&mut self, target: &Target) {
        let Ok(maps) = target.maps() else { return };
        self.guessed = maps.into_iter().filter(|m| m.exec && !is_arena(target, m)).map(|m| m.range).collect();
        self.guessed.sort_unstable_by_key(|range| range.start);
    }

    /// Whether frames of code at an address can be found by the frame pointer.
    pub fn guesses_at(&self, at: Avma) -> bool {
        let after = self.guessed.partition_point(|range| range.start <= at);
        after.checked_sub(1).and_then(|index| self.guessed.get(index)).is_some_and(|range| range.contains(&at))
    }

    /// The frame of code that no table describes.
    fn guess(&self, at: Avma, registers: &Registers, read: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Unwound> {
        if !self.guesses_at(at) {
            return None;
        }
        let is_code = |caller: Registers| self.guesses_at(Avma(caller.pc).offset(-1));
        registers.by_frame_pointer(read).filter(|unwound| unwound.caller.is_none_or(is_code))
    }

    /// The rules at a position: that of the next instruction, or of the one to which a call returns.
    fn rules(&mut self, position: Avma, returns: bool) -> Option<Arc<FrameRules>> {
        let (code, goroutines) = (&self.code, self.goroutines);
        let at = if returns { position.offset(-1) } else { position };
        let find = || {
            let after = code.partition_point(|(range, ..)| range.start <= at);
            let (_, bias, table) = code.get(after.checked_sub(1)?).filter(|(range, ..)| range.contains(&at))?;
            let rules = table.rules(at.to_svma(*bias)).ok();
            // A signal suspends a goroutine as if it called the runtime, so no call need end right before the position.
            let of_go = || table.go_rules(position.to_svma(*bias)).ok().filter(|_| goroutines);
            rules.or_else(of_go).map(Arc::new)
        };
        if self.rules.len() >= RULES_MAX {
            // A just-in-time compiler never ceases to have new positions.
            self.rules.clear();
        }
        self.rules.entry((position, returns)).or_insert_with(find).clone()
    }

    /// Unwinds the stack of a thread. `read` reads eight bytes of the stack.
    pub fn walk(
        &mut self,
        from: &HeldRegisters,
        places: &OriginalPositions,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Walk {
        self.walk_from(Registers { pc: from.pc.0, general: from.general.map(Some) }, places, read)
    }

    /// Unwinds the stack of a thread of which some registers may not be known.
    pub fn walk_from(
        &mut self,
        mut registers: Registers,
        places: &OriginalPositions,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Walk {
        let mut walk = Walk::default();
        let mut calls = false;
        // Frames of signal handlers count too, so that two that lead to each other end the walk.
        for _ in 0..FRAMES_MAX {
            let place = if calls {
                Some(OriginalPosition { at: Avma(registers.pc), past: None })
            } else {
                places.of(Avma(registers.pc))
            };
            let Some(place) = place else { return walk };
            registers.pc = place.at.0;
            let at = if calls { place.at.offset(-1) } else { place.at };
            let unwound = match self.rules(place.at, calls) {
                Some(rules) => rules.apply(&registers, read).ok(),
                None => self.guess(at, &registers, read),
            };
            let Some(unwound) = unwound else { return walk };
            // a stack grows downwards, but the stack that a signal interrupted may be anywhere
            if !unwound.signal {
                let Some(stack) = registers.sp().filter(|sp| *sp < unwound.cfa) else { return walk };
                walk.frames.push(ActiveCall { at, calls, past: place.past, sp: unwound.cfa.wrapping_sub(8), stack });
            }
            let Some(caller) = unwound.caller else {
                walk.whole = true;
                return walk;
            };
            if unwound.signal && caller == registers {
                return walk;
            }
            (registers, calls) = (caller, !unwound.signal);
        }
        walk
    }
}
