//! Catch-up of calls that are in progress when a measurement begins. In the stop in which the code is inserted, flags, timers and other
//! states of every thread are set as if the code had been there all along. Calls that began earlier are not counted.

mod outcome;
mod replay;
mod walk;

use std::time::Instant;

use ingraft_model::layout::{FIRST_SHARD, OWNER};
use ingraft_model::{Avma, AvmaRange, Clock, DataArea, PointKind, Snippet, ThreadIdentity, Tid, Variable};
use ingraft_process::{HeldRegisters, HeldThreads, SharedArea, Target, Visitor};
use rustc_hash::FxHashMap;

pub use self::outcome::CaughtUp;
use self::outcome::Uncaught;
use self::replay::{Shard, StateChanges};
use self::walk::{ActiveCall, Walk};
pub use self::walk::{OriginalPositions, Walker};
use crate::program::modules::Modules;
use crate::weaving::plan::{PlannedChange, Woven};
use crate::weaving::wanted::WantedPoints;

/// State that an entry's code would have set, or the reason why it is not known.
type PreparedState = Result<StateChanges, Uncaught>;

/// States that the snippets of a point set, in order: the index of each in `prepared`, and the counters of its pair.
type States<'a> = Vec<(usize, &'a [u32])>;

/// A function with new code at its entry.
struct Entry<'a> {
    /// Addresses from the function's first byte to its springboard. A thread there has not entered the function yet. `None` if such a
    /// thread is moved past the code, because it may have come by the function's own branch.
    unentered: Option<std::ops::RangeInclusive<Avma>>,
    states: States<'a>,
}

/// States to set for each call in progress, each with the stack pointer that identifies the records: at the call's entry, and before a call
/// that it makes.
type Calls<'c, 'a> = Vec<Vec<(&'c States<'a>, u64)>>;

/// The data area, and the clocks of the threads that count in it.
pub struct AreaWithClocks<'a> {
    /// The data area.
    pub area: &'a SharedArea,
    /// Way in which threads are told apart.
    pub identity: ThreadIdentity,
    /// Reads a clock of the timers in ticks: the wall clock, or the processor time of a thread.
    pub now: &'a (dyn Fn(Clock, Tid) -> u64 + Sync),
}

/// Data that the catch-up needs in the stop.
pub struct CatchUp<'a> {
    counters: AreaWithClocks<'a>,
    places: OriginalPositions,
    walker: Walker,
    prepared: Vec<PreparedState>,
    entries: Vec<Entry<'a>>,
    /// Address ranges of these functions, sorted, each with the index of its entry.
    code: Vec<(AvmaRange, usize)>,
    /// States to set before the calls that functions make, by return address.
    before_calls: FxHashMap<Avma, States<'a>>,
    caught_up: CaughtUp,
}

impl<'a> CatchUp<'a> {
    /// Prepares for a `change` from `now` to `after`. `None` if no call in progress can matter to the change.
    pub fn prepare<'v>(
        target: &Target,
        modules: &Modules,
        (now, after): (&Woven, &Woven),
        wanted: &'a [WantedPoints<'a>],
        change: &PlannedChange,
        variables: &dyn Fn(usize) -> &'v [Variable],
        counters: AreaWithClocks<'a>,
    ) -> Option<Self> {
        let mut prepared = Vec::new();
        // pairs of one metric share variables and snippets
        let mut known: FxHashMap<(*const Variable, *const Snippet), Option<usize>> = FxHashMap::default();
        let (mut entries, mut code, mut before_calls) = (Vec::new(), Vec::new(), FxHashMap::default());
        for w in wanted.iter().filter(|w| w.kind.opens()) {
            let mut minis: Vec<_> =
                w.minis.iter().filter(|m| !change.refused.contains_key(&(w.function, m.pair))).collect();
            minis.sort_by_key(|m| m.role);
            let mut states = Vec::new();
            let mut ids = Vec::new();
            for m in minis {
                let variables = variables(m.pair);
                let number = known.entry((variables.as_ptr(), std::ptr::from_ref(m.snippet))).or_insert_with(|| {
                    let state = StateChanges::of(&m.snippet.stmts, variables).transpose()?;
                    prepared.push(state);
                    Some(prepared.len() - 1)
                });
                if let Some(number) = *number {
                    states.push((number, &*m.counters));
                    ids.push(m.id);
                }
            }
            if w.kind != PointKind::Entry {
                for (_, point) in after.points_of(w.function).filter(|(point, _)| point.point.kind() == w.kind) {
                    // a call may lack some of the snippets
                    let there = |id: &u64| point.minis.iter().any(|m| m.id == *id);
                    let its = states.iter().zip(&ids).filter(|(_, id)| there(id)).map(|(state, _)| *state);
                    if let Some(returns_to) = point.returns_to {
                        before_calls.insert(returns_to, its.collect());
                    }
                }
                continue;
            }
            let Some((_, module, function)) = modules.resolve(w.function).filter(|_| !states.is_empty()) else {
                continue;
            };
            let start = function.start().to_avma(module.bias);
            let Some(springboard) = after.entry_of(w.function) else { continue };
            for part in std::iter::once(&function.range()).chain(function.parts()) {
                code.push((part.start.to_avma(module.bias)..part.end.to_avma(module.bias), entries.len()));
            }
            let moved = change.plan.moves.binary_search_by_key(&springboard, |m| m.from).is_ok();
            entries.push(Entry { unentered: (!moved).then_some(start..=springboard), states });
        }
        if !prepared.iter().any(Result::is_ok) {
            return None;
        }
        code.sort_unstable_by_key(|(range, _)| range.start);
        let (places, walker) = (OriginalPositions::new(now, after), Walker::new(target, modules));
        let caught_up = CaughtUp::default();
        Some(CatchUp { counters, places, walker, prepared, entries, code, before_calls, caught_up })
    }

    /// Numbers of calls that were caught up, and of calls that could not be.
    pub fn done(self) -> CaughtUp {
        self.caught_up
    }

    /// The entry with new code of the function to which a frame belongs, if the code at the function's exits will run for this call.
    fn active(&self, frame: &ActiveCall) -> Option<&Entry<'a>> {
        let after = self.code.partition_point(|(range, _)| range.start <= frame.at);
        let (range, number) = self.code.get(after.checked_sub(1)?)?;
        let entry = self.entries.get(*number).filter(|_| range.contains(&frame.at))?;
        match frame.past {
            Some(PointKind::Entry) => Some(entry),
            Some(PointKind::Exit) => None,
            _ => {
                let enters = |e: &Entry<'_>| e.unentered.as_ref().is_some_and(|before| before.contains(&frame.at));
                Some(entry).filter(|e| frame.calls || !enters(e))
            }
        }
    }

    /// The calls of a thread whose states must be set, outermost first, up to a change of the stack; and the number of such calls beyond
    /// it.
    fn calls(&self, walk: &Walk) -> (Calls<'_, 'a>, u64) {
        let mut found = Calls::new();
        let (mut lowest, mut elsewhere) = (u64::MAX, 0);
        for frame in walk.frames.iter().rev() {
            let descends = frame.sp < lowest;
            if descends && elsewhere == 0 {
                lowest = frame.sp;
            }
            let entry = self.active(frame).map(|entry| (&entry.states, frame.sp));
            let call = self.before_calls.get(&frame.at.offset(1)).filter(|_| frame.calls);
            // the record of a call that is made has an address between the stack pointers of caller and callee
            let states: Vec<_> = entry.into_iter().chain(call.map(|s| (s, frame.stack.wrapping_sub(1)))).collect();
            match states.is_empty() {
                true => {}
                false if descends && elsewhere == 0 => found.push(states),
                false => elsewhere += 1,
            }
        }
        (found, elsewhere)
    }

    fn thread(
        &self,
        held: &mut HeldThreads<'_>,
        i: usize,
        tid: Tid,
        registers: &HeldRegisters,
        walk: &Walk,
    ) -> CaughtUp {
        let mut done = CaughtUp::default();
        let (calls, elsewhere) = self.calls(walk);
        done.missed(Uncaught::OtherStack, elsewhere);
        if calls.is_empty() {
            return done;
        }
        let all = calls.len() as u64;
        let Some((shard, is_new)) = self.shard(held, registers) else {
            done.missed(Uncaught::NoShard, all);
            return done;
        };
        let layout = self.counters.area.layout();
        let start = layout.stride * u64::from(shard);
        let load = |at: u32| self.counters.area.read_u64(start + u64::from(at)).ok();
        let now = |clock| (self.counters.now)(clock, tid);
        let word_at = |sp: u64| {
            let mut word = [0; 8];
            held.read(Avma(sp), &mut word).map_or(0, |()| u64::from_le_bytes(word))
        };
        let Some(mut state) = Shard::new(&layout, &now, &word_at, &load) else {
            done.missed(Uncaught::NoShard, all);
            return done;
        };
        for call in &calls {
            let mut missed = None;
            let states = call.iter().flat_map(|(states, sp)| states.iter().map(|s| (s, *sp)));
            for ((number, counters), sp) in states {
                let outcome = match self.prepared.get(*number) {
                    Some(Ok(prepared)) => state.replay(prepared, counters, sp),
                    Some(Err(why)) => Err(*why),
                    None => Ok(()),
                };
                if let (Ok(()), Some(Ok(prepared))) = (outcome, self.prepared.get(*number)) {
                    done.opened.extend(prepared.records(counters).map(|record| (tid, record)));
                }
                missed = outcome.err().or(missed);
            }
            match missed {
                Some(why) => done.missed(why, 1),
                None => done.calls += 1,
            }
        }
        let written = state
            .writes()
            .into_iter()
            .try_for_each(|(at, word)| self.counters.area.write_u64(start + u64::from(at), word));
        let own = written.and_then(|()| match is_new {
            true => held.set_gs_base(i, start).map(drop),
            false => Ok(()),
        });
        if let Err(error) = own {
            tracing::debug!(%error, "calls in progress are not caught up");
            return CaughtUp { not_unwound: 1, ..CaughtUp::default() };
        }
        done
    }

    /// A thread's shard, and whether it was claimed just now, so that the thread's gs base must be set.
    fn shard(&self, held: &HeldThreads<'_>, registers: &HeldRegisters) -> Option<(u32, bool)> {
        let layout = self.counters.area.layout();
        let identity = match self.counters.identity {
            ThreadIdentity::Locked => return None,
            ThreadIdentity::FsBase => registers.fs_base,
            ThreadIdentity::FsOffset(offset) => {
                let mut id = [0; 4];
                held.read(Avma(registers.fs_base.wrapping_add(offset.into())), &mut id).ok()?;
                u32::from_le_bytes(id).into()
            }
        };
        // the thread is in a function that a snippet has called, so its calls are not the program's
        if layout.is_calling(registers.gs_base) {
            return None;
        }
        let now = shard_of(&layout, registers.gs_base).filter(|_| identity != 0)?;
        let owner = || self.counters.area.read_u64(layout.stride * u64::from(now) + u64::from(OWNER)).ok();
        if now >= FIRST_SHARD && owner() == Some(identity) {
            return Some((now, false));
        }
        self.counters.area.claim(identity).ok().flatten().map(|shard| (shard, true))
    }
}

/// The shard that a gs base leads to; `None` if the gs base is the program's own.
fn shard_of(layout: &DataArea, gs_base: u64) -> Option<u32> {
    let number = gs_base.checked_div(layout.stride).filter(|_| gs_base.is_multiple_of(layout.stride))?;
    u32::try_from(number).ok().filter(|n| *n < layout.shards)
}

impl Visitor for CatchUp<'_> {
    fn knows(&self, pc: Avma) -> bool {
        self.places.of(pc).is_some()
    }

    fn visit(&mut self, held: &mut HeldThreads<'_>) {
        let (mut done, begin) = (CaughtUp::default(), Instant::now());
        for (i, thread) in held.threads().to_vec().iter().enumerate() {
            let Some(registers) = thread.registers.filter(|_| thread.known) else {
                done.not_unwound += 1;
                continue;
            };
            let walk = self.walker.walk(&registers, &self.places, &mut |at| held.word(i, at));
            done.not_unwound += u32::from(!walk.whole);
            done.add(self.thread(held, i, thread.tid, &registers, &walk));
        }
        tracing::debug!(elapsed = ?begin.elapsed(), calls = done.calls, "calls in progress are caught up");
        self.caught_up = done;
    }
}
