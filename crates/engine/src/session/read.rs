//! Values, read while the target runs, and what has to be done for them from time to time.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use ingraft_mdl::{FunctionRef as MdlFunction, ValueUnit, VariableKind};
use ingraft_model::{Activations, Clock, Shape, ThreadIdentity, Tid};
use ingraft_process::{ExitStatus, TickClock, thread_exists};
use rustc_hash::FxHashSet;

use crate::api::{Details, Ended, MeasurementId, Reading, Value};
use crate::error::{Error, ErrorKind};
use crate::readings::values::{ENDED_MAX, LastSeen, RECORDS_ONLY, Ruler, Shards, Slots};

use super::clocks::now_ns;
use super::context::AtEnd;
use super::control::Control;
use super::driver::Session;
use super::errors::no_measurement;
use super::internals::OwnValue;
use super::pair::{Pair, PairKey};
use super::view::{Plain, View, Views};

/// Time between two looks for threads that have ended while there are timers, where threads come and go.
const LOOK: Duration = Duration::from_millis(5);
/// The same where they stay.
const LOOK_RARELY: Duration = Duration::from_millis(20);
/// What these looks may take of a processor, as a divisor.
const LOOK_SHARE: u32 = 100;

impl Session {
    /// What a measurement reads, with where its counters stand now.
    pub(super) fn views(&self, control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<View> {
        let shared = self.shared();
        let columns = shared.columns();
        keys.iter()
            .filter_map(|(key, _)| {
                let pair = control.pairs.get(key)?;
                let (value, activations, unit) = pair.value()?;
                let joined = columns.as_ref().filter(|_| pair.users > 0);
                let (now, cpu) = (|| self.time_now(), |tid| self.cpu_ticks(tid));
                let ruler = self.ruler(unit, &now, &cpu);
                let before = joined.map(|c| c.threads(value, &activations, ruler).into_iter().collect());
                Some(View {
                    key: key.clone(),
                    value,
                    activations,
                    unit,
                    aggregate: pair.metric.aggregate,
                    thread: pair.thread,
                    object: pair.object,
                    index_names: pair.index_names.clone(),
                    own: None,
                    before: before.unwrap_or_default(),
                })
            })
            .collect()
    }

    /// How values in a unit are read now.
    pub(super) fn ruler<'a>(
        &self,
        unit: ValueUnit,
        now: &'a dyn Fn() -> u64,
        cpu: &'a dyn Fn(Tid) -> u64,
    ) -> Ruler<'a> {
        match (unit, &self.clock) {
            (ValueUnit::Ticks, Ok(clock)) => Ruler { scale: clock.scale(), now, cpu },
            // without a clock nothing is recorded in ticks
            _ => Ruler::PLAIN,
        }
    }

    /// The wall clock of the timers, which stands still once the target has ended; 0 if there is none.
    pub(super) fn time_now(&self) -> u64 {
        let now = || self.clock.as_ref().map_or(0, TickClock::now);
        self.ended_at.get().copied().unwrap_or_else(now)
    }

    /// What the kernel says of a thread's processor time, as the target's code measures it; what it last said of one that has ended.
    pub(super) fn cpu_ticks(&self, tid: Tid) -> u64 {
        let mut seen = self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner);
        // a child that is measured with its parent is known by its own number
        let ns = self.target.thread_cpu_ns(tid).or_else(|| self.target.child_cpu_ns(tid));
        let Some(ns) = ns else { return seen.get(&tid).copied().unwrap_or(0) };
        let ticks = self.ticks_of(ns);
        seen.insert(tid, ticks);
        ticks
    }

    /// Nanoseconds of processor time in ticks.
    fn ticks_of(&self, ns: u64) -> u64 {
        let rate = self.cpu_rate.get().copied().unwrap_or(0);
        u64::try_from((u128::from(ns) * u128::from(rate)) >> 32).unwrap_or(0)
    }

    /// Stops the clock of the timers if the target has ended. Nobody reads meanwhile: no value that was told is taken back.
    fn stop_the_clock(&self) {
        if self.ended_at.get().is_none() {
            let _nobody_reads = self.shared_mut();
            let now = self.time_now();
            let _ = self.ended_at.set(now);
        }
    }

    /// Lets somebody know of the end of the target as soon as it is noticed.
    pub fn at_end(&self, tell: &Arc<AtEnd>) {
        let mut all = self.at_end.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(tell));
        drop(all);
        if self.ended.get().is_some() {
            tell();
        }
    }

    fn end(&self, ended: Ended) {
        self.stop_the_clock();
        let _ = self.ended.set(ended);
        let all = std::mem::take(&mut *self.at_end.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter().filter_map(Weak::upgrade).for_each(|tell| tell());
    }

    /// Reads the values of a measurement; the target goes on.
    pub fn read(&self, id: MeasurementId, threads: bool) -> Result<Reading, Error> {
        let views =
            self.control().measurements.get(&id).map(|m| Arc::clone(&m.views)).ok_or_else(|| no_measurement(id))?;
        let reading = self.reading(&views, threads);
        if self.shared().area.as_ref().is_some_and(|area| area.is_broken()) {
            let what = "memory that is shared with this process could not be read: its values are lost";
            let hint = "look for memory limits and hardware errors in the kernel's log, and begin another measurement";
            return Err(Error::new(ErrorKind::Failed, "area_broken", what, hint).about(self.pid()));
        }
        Ok(reading)
    }

    pub(super) fn reading(&self, views: &Views, threads: bool) -> Reading {
        // The end is looked up first: values read after it are the last ones.
        let ended = self.ended.get().copied();
        if ended.is_none() {
            if !self.target.is_alive() {
                self.stop_the_clock();
            } else if self.misses_threads() {
                self.bury_ended_threads();
            }
        }
        let shared = self.shared();
        let columns = shared.columns();
        let (now, cpu) = (|| self.time_now(), |tid| self.cpu_ticks(tid));
        let slept_ns = self.clock.as_ref().map_or(0, TickClock::missed_ns);
        let objects = columns.as_ref().map(|columns| shared.objects(columns)).unwrap_or_default();
        let value = |view: &View| {
            let (value, mut details) = match (&view.own, shared.frozen.get(&view.value.first), &columns) {
                (Some(OwnValue::Internal(internal)), ..) => {
                    let before = view.before.get(&None).map_or(0, |before| before.value);
                    (self.internal(*internal, &shared).wrapping_sub(before), Details::NONE)
                }
                (Some(OwnValue::Events(counting)), ..) => {
                    let (rows, counted) = counting.rows();
                    let (value, details) = view.combined(rows, threads);
                    (value, Details { counted, ..details })
                }
                (None, Some(frozen), _) => {
                    let (value, details) = view.combined(frozen.rows.iter().cloned(), threads);
                    (value, Details { taken_out: Some(frozen.why), ..details })
                }
                (None, None, Some(columns)) => {
                    let rows = columns.threads(view.value, &view.activations, self.ruler(view.unit, &now, &cpu));
                    view.combined(rows.into_iter(), threads)
                }
                (None, None, None) => return 0.into(),
            };
            if view.unit == ValueUnit::Ticks {
                details.slept_ns = slept_ns;
            }
            details.object = view.object.and_then(|at| objects.get(&at).copied());
            for key in details.keys.iter_mut().flat_map(|keys| &mut keys.values) {
                if matches!(view.value.shape, Shape::Vector(_)) {
                    key.name = view.index_names.as_ref().and_then(|names| names.name(key.key));
                } else {
                    key.name = shared.symbols.name(key.key);
                    key.object = key.object.or_else(|| objects.get(&key.key).copied());
                }
            }
            for thread in &mut details.threads {
                thread.pid = thread.tid.and_then(|tid| shared.kin.get(&tid).copied());
            }
            Value::new(value, details)
        };
        let values = match &columns {
            Some(columns) if !threads && shared.frozen.is_empty() => {
                let plain = |(view, plain): (&View, &Plain)| match *plain {
                    Plain::Counter(counter) => columns.sum(counter).into(),
                    Plain::Number(slots, unit, calls) => {
                        let ruler = self.ruler(unit, &now, &cpu);
                        let (value, activations) = columns.together(slots, views.calls(calls), ruler);
                        let slept_ns = if unit == ValueUnit::Ticks { slept_ns } else { 0 };
                        if activations == Activations::default() && slept_ns == 0 {
                            return value.into();
                        }
                        Value::new(value, Details { activations, slept_ns, ..Details::NONE })
                    }
                    Plain::No => value(view),
                };
                views.iter().zip(views.plain()).map(plain).collect()
            }
            _ => views.iter().map(value).collect(),
        };
        Reading { time_ns: now_ns(), values, ended }
    }

    /// Waits a little for the end of the target, and does what has to be done from time to time. `false`: the target is gone.
    pub fn watch(&self, at_most: Duration) -> bool {
        if self.ends_within(at_most) {
            self.stop_the_clock();
            // as long as its status was not fetched, the kernel tells what its main thread has taken
            self.cpu_ticks(Tid(self.pid().0));
        }
        if let Some(status) = self.target.wait_exit(Duration::ZERO) {
            let (status, signal) = match status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(signal) => (None, Some(signal)),
                ExitStatus::Unknown => (None, None),
            };
            self.end(Ended { status, signal, exec: false });
            return false;
        }
        if !self.target.is_same_program() {
            self.end(Ended { status: None, signal: None, exec: true });
            return false;
        }
        self.revoke();
        self.bury_ended_threads();
        self.follow_events();
        true
    }

    /// Waits for the end of the target, and looks for threads that have ended meanwhile if timers may run in them.
    fn ends_within(&self, at_most: Duration) -> bool {
        let mut pause = self.look_pause.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = Instant::now();
        let end = now + at_most;
        loop {
            let left = end.saturating_duration_since(now);
            let (wall, cpu) = self.timers();
            if self.target.ends_within(if wall || cpu { left.min(*pause) } else { left }) {
                return true;
            }
            let begin = Instant::now();
            if begin >= end {
                return false;
            }
            // where only wall timers run nothing has to be asked of threads that live on
            let misses = self.misses_threads();
            if cpu || misses {
                self.bury_ended_threads();
            }
            now = Instant::now();
            let least = if misses { LOOK } else { (*pause * 2).clamp(LOOK, LOOK_RARELY) };
            *pause = ((now - begin) * LOOK_SHARE).clamp(least, at_most.max(least));
        }
    }

    /// Whether some thread that counts has ended, or is one that was not seen yet: as cheap to ask as threads count.
    fn misses_threads(&self) -> bool {
        let shared = self.shared();
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (&shared.area, shared.identity) else { return false };
        let lives = |tid: &Tid| thread_exists(shared.kin.get(tid).copied().unwrap_or(self.pid()), *tid);
        let kin = |id: u64| Some(Tid(id as i32)).filter(|tid| shared.kin.contains_key(tid));
        let known = |id: u64| shared.tids.get(&id).copied().or_else(|| kin(id));
        Shards::claims(&**area).iter().any(|(_, identity)| !known(*identity).is_some_and(|tid| lives(&tid)))
    }

    /// Whether there are timers, by clock. How long those of a thread that ended in a measured function have run is known as well as its end is.
    fn timers(&self) -> (bool, bool) {
        let shared = self.shared();
        (shared.wall_timers > 0, shared.cpu_timers > 0)
    }

    /// Frees the shards of threads that have ended.
    pub(super) fn bury_ended_threads(&self) {
        let mut shared = self.shared_mut();
        let shared = &mut *shared;
        // An fs base may belong to the next thread already: its shard is simply used again.
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (shared.area.clone(), shared.identity) else { return };
        if shared.leaving {
            return;
        }
        let claims = Shards::claims(&*area);
        if claims.is_empty() {
            return;
        }
        let Ok(live) = self.target.threads() else { return };
        // the clock stands in front of nothing that a reader has told of a thread that lives
        let now = self.time_now();
        let own_namespace = self.target.status().is_ok_and(|s| s.own_id == self.pid().0);
        let mut living = FxHashSet::default();
        for tid in live {
            let id = if own_namespace {
                tid.0
            } else if let Some((id, _)) = shared.tids.iter().find(|(_, known)| **known == tid) {
                *id as i32
            } else {
                self.target.thread_status(tid).map_or(tid.0, |s| s.own_id)
            };
            let id = id as u64;
            shared.tids.insert(id, tid);
            shared.kin.remove(&tid);
            living.insert(id);
        }
        if shared.family {
            let strangers = claims.iter().map(|(_, identity)| *identity).filter(|id| !living.contains(id));
            let kin: Vec<_> = strangers.filter_map(|id| self.find_kin(Tid(id as i32), area.layout())).collect();
            living.extend(kin.iter().map(|(tid, _)| tid.0 as u64));
            if area.follows_births().unwrap_or(false) {
                let new = kin.iter().filter(|(tid, pid)| tid.0 == pid.0 && !shared.kin.contains_key(tid));
                for (tid, pid) in new {
                    let shard = claims.iter().find(|(_, identity)| *identity == tid.0 as u64).map(|(shard, _)| *shard);
                    if shard.is_some_and(|shard| area.was_born(shard).is_ok_and(|born| !born)) {
                        shared.stateless.insert(*pid);
                    }
                }
            }
            if shared.kin.len() < ENDED_MAX {
                shared.kin.extend(kin);
            }
        }
        // Counters are handed out from 0 on.
        let used = shared.used_counters;
        if shared.family {
            for shard in area.unborn().unwrap_or_default() {
                Shards::free(&*area, shard, used);
            }
        }
        let mut running = Vec::new();
        let seen = self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, identity) in claims {
            let tid = shared.tids.get(&identity).copied().or(own_namespace.then_some(Tid(identity as i32)));
            // the kernel's list ends early when a thread ends while it is being read
            let is_there = |tid: Tid| self.target.thread_cpu_ns(tid).is_some();
            if !living.contains(&identity) && tid.is_some_and(is_there) {
                living.insert(identity);
            }
            if !living.contains(&identity) {
                // of a child whose parent has not asked for its status yet the kernel still knows
                let ended = |tid: Tid| {
                    Some(self.ticks_of(self.target.child_cpu_ns(tid)?)).filter(|_| shared.kin.contains_key(&tid))
                };
                let cpu = || tid.and_then(|tid| ended(tid).or_else(|| seen.get(&tid).copied())).unwrap_or(0);
                let last = LastSeen { wall: now, cpu: area.cpu_last(shard).unwrap_or(0).max(cpu()) };
                shared.ended.bury(&*area, &shared.shapes, shard, tid, used, last);
            } else if shared.cpu_timers > 0 && shared.shapes.timers(Clock::Cpu).any(|n| area.load(shard, n + 1) < 0) {
                running.extend(tid);
            }
        }
        drop(seen);
        // asked now, it is known when they have ended
        for tid in running {
            self.cpu_ticks(tid);
        }
        shared.tids.retain(|id, _| living.contains(id));
        let known: FxHashSet<Tid> = shared.tids.values().chain(shared.kin.keys()).copied().collect();
        self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner).retain(|tid, _| known.contains(tid));
    }
}

impl Pair {
    /// Where its value lies, what became of the calls that it follows, and in what unit it is.
    pub(super) fn value(&self) -> Option<(Slots, Vec<u32>, ValueUnit)> {
        let (first, own) = (*self.counters.first()?, self.variables.first()?);
        let variables = self.counters.iter().zip(self.variables.iter());
        let activations = variables.filter(|(_, v)| v.kind == VariableKind::Activations);
        let activations =
            activations.map(|(first, v)| if v.sampled { *first } else { *first | RECORDS_ONLY }).collect();
        Some((Slots { first, shape: own.shape }, activations, own.unit))
    }
}
