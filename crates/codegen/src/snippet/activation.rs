//! Activation records, timers and histograms in a thread's own shard. Shard 0 has none of them: code that works on shard 0 only counts
//! that a call could not be recorded.
//!
//! Code writes a record, adds it by moving the top, and then writes the record's stack pointer again. A signal handler that runs in
//! between finds either no record of this call, or one with the right stack pointer. Records that the handler adds above are gone when it
//! returns.

use iced_x86::code_asm::{AsmMemoryOperand, cl, dword_ptr, eax, ecx, edx, qword_ptr, rax, rcx, rdx, rsp};
use ingraft_model::histogram::{HEAD, OWN, Resolution, SQUARE_BITS, SQUARES, VALUE_BITS};
use ingraft_model::layout::{COUNTERS, goroutine, record};
use ingraft_model::{
    BinaryOp, CallRecord, Clock, CpuClock, Expr, KeptValue, Restore, Stmt, TimeUnit, VariableId, WallClock, Whose,
};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, Operand, ShardAccess};
use crate::snippet::loaded::{self, Loaded};
use crate::snippet::routines;

/// Counters of a timer: depth of nesting (the timer runs if it is not 0), and clock at all stops less clock at all starts.
const NEST: u32 = 0;
const SUM_OF_STOPS: u32 = 1;
/// Counters of a record's activations: exits whose call began before the measurement, calls that could not be recorded, and calls that left
/// by a tail jump.
const UNSEEN: u32 = 1;
pub(crate) const UNRECORDED: u32 = 2;
pub(crate) const LEFT_BY_TAIL_JUMP: u32 = 3;
/// Counters of a histogram: sum, largest value, complement of the smallest value. The sum of own times, the sums of
/// squares and the buckets follow.
pub(crate) const SUM: u32 = 0;
pub(crate) const LARGEST: u32 = 1;
pub(crate) const SMALLEST: u32 = 2;

/// Mask that covers every bucket number. The mask keeps the address of the bucket inside the shard, whatever the value.
pub(crate) fn bucket_mask(resolution: Resolution) -> i32 {
    (resolution.buckets().next_power_of_two() - 1) as i32
}

/// Offset in a record of the n-th word that it keeps.
fn kept_at(n: u32) -> u32 {
    record::KEPT + 8 * n
}

impl Generator<'_> {
    fn last(&self, field: u32) -> u32 {
        routines::last(self.env, field)
    }

    /// Displacement from the top to a field of the record that comes next.
    fn next(&self, field: u32) -> u32 {
        let data = self.env.data;
        data.displacement(data.records() + field)
    }

    fn top(&self) -> AsmMemoryOperand {
        routines::top(self.env)
    }

    pub(crate) fn slot(&self, v: VariableId, n: u32) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(u64::from(self.env.data.counter(self.index(v)? + n))).gs())
    }

    /// Offset in a shard of the first counter of a variable.
    pub(crate) fn offset(&self, v: VariableId) -> Result<u32, Assembly> {
        Ok(COUNTERS + 8 * self.index(v)?)
    }

    /// Loads the stack pointer that identifies this call into rdx.
    pub(crate) fn call(&mut self) -> Result<(), Assembly> {
        Ok(self.a.lea(rdx, qword_ptr(rsp + (8 * self.depth + i32::from(self.frame.stack.key))))?)
    }

    /// Reads the clock into rax; overwrites rdx.
    fn clock(&mut self, clock: Clock) -> Result<(), Assembly> {
        if clock == Clock::Cpu {
            return self.cpu_clock();
        }
        self.wall_clock()
    }

    /// Reads the clock as [`Generator::clock`] does, after all earlier instructions have ended. A processor that is free to reorder them
    /// reads the counter before a lock or a load that waits for memory, so a call that takes a lock would have taken 0 ns.
    fn clock_at_end(&mut self, clock: Clock) -> Result<(), Assembly> {
        let counter = match clock {
            Clock::Wall => self.env.wall == WallClock::Tsc,
            Clock::Cpu => matches!(self.env.cpu, CpuClock::Rseq { .. }),
        };
        if counter {
            self.a.lfence()?;
        }
        self.clock(clock)
    }

    /// Reads the clock into rax for [`Expr::Now`].
    pub(crate) fn now(&mut self, clock: Clock) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        self.used = [true; 3];
        self.clock_at_end(clock)
    }

    /// Computes the clock minus `since` in rax, or 0 if that is negative. The clocks of two processors may differ, by less time than a
    /// migration takes.
    fn clock_since(&mut self, clock: Clock, since: AsmMemoryOperand) -> Result<(), Assembly> {
        let mut later = self.a.create_label();
        self.clock_at_end(clock)?;
        self.a.sub(rax, since)?;
        self.a.jae(later)?;
        self.a.xor(eax, eax)?;
        self.place(&mut later)
    }

    pub(crate) fn prune(&mut self) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        if self.frame.stack.moving {
            return self.prune_goroutine();
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.a.mov(rcx, self.top())?;
        self.call()?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        self.a.ja(end)?;
        self.routine(Routine::Prune, end)?;
        self.place(&mut end)
    }

    /// Compares the stack pointer of the last record with that of this call. It is not above if the record is of no open call. In a thread that has
    /// never had any record, the word that is compared is 0.
    pub(crate) fn compare_last_record(&mut self) -> Result<(), Assembly> {
        self.used[0] = true;
        self.push(rcx)?;
        self.a.mov(rcx, self.top())?;
        self.a.lea(rax, qword_ptr(rsp + (8 * self.depth + i32::from(self.frame.stack.key))))?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rax)?;
        self.pop(rcx)
    }

    /// Compares the top with the end of the first record, and returns the operator to test. The operator holds if this thread has more
    /// than that record, or if the thread has never had any record.
    pub(crate) fn has_records(&mut self) -> Result<BinaryOp, Assembly> {
        self.a.cmp(self.top(), record::SIZE as i32)?;
        Ok(BinaryOp::NotEqual)
    }

    pub(crate) fn open(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        match r.restore {
            _ if self.access == ShardAccess::Shared => self.unrecorded(r),
            Some(Restore::Outermost(v)) => self.open_outermost(v, r, body),
            _ => self.open_record(r, body),
        }
    }

    /// Opens the record of a call, whether the call needs one or not.
    pub(crate) fn open_record(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        if self.open_timed(r, body)? {
            return Ok(());
        }
        self.used = [true; 3];
        let [mut full, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.a.mov(rcx, self.top())?;
        self.call()?;
        // The record must lie after the first one, which ends every search, and within the room for records.
        self.a.lea(eax, dword_ptr(rcx - record::SIZE as i32))?;
        self.a.cmp(eax, (record::ROOM - record::SIZE) as i32)?;
        self.a.jae(full)?;
        let sp = qword_ptr(rcx + self.next(record::SP)).gs();
        for step in 0..2 {
            match self.frame.stack.moving {
                // No search of the thread's own records passes this record.
                true => self.a.mov(sp, -1)?,
                false => self.a.mov(sp, rdx)?,
            }
            if step == 0 {
                self.a.add(self.top(), record::SIZE as i32)?;
            }
        }
        self.a.mov(dword_ptr(rcx + self.next(record::NAME)).gs(), self.offset(r.activations)? as i32)?;
        let restore = self.restored(r)?;
        let tree = self.tree_of(r, body)?;
        let word = restore.map(|(_, word)| word).or(tree).unwrap_or(0);
        self.a.mov(dword_ptr(rcx + self.next(record::RESTORE)).gs(), word as i32)?;
        if let Some((v, word)) = restore {
            let mut saved = self.a.create_label();
            if body.iter().any(|stmt| matches!(stmt, Stmt::Enter(..))) {
                // If this call goes on with one that ended by a tail jump, both restore the context of the caller, so the order in which they
                // are closed does not matter.
                let mut own = self.a.create_label();
                self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
                self.a.jne(own)?;
                self.a.cmp(dword_ptr(rcx + self.last(record::RESTORE)).gs(), word as i32)?;
                self.a.jne(own)?;
                self.a.mov(rax, qword_ptr(rcx + self.last(record::SAVED)).gs())?;
                self.a.jmp(saved)?;
                self.place(&mut own)?;
            }
            self.a.mov(rax, self.slot(v, 0)?)?;
            self.place(&mut saved)?;
            self.a.mov(qword_ptr(rcx + self.next(record::SAVED)).gs(), rax)?;
        }
        self.keep(r, 0, tree.is_some())?;
        // These statements are about the record in the list of the goroutine.
        if tree.is_some() || body.iter().any(|stmt| matches!(stmt, Stmt::Notes(_))) {
            self.park()?;
            self.stmts(body)?;
        } else {
            if !r.is_optional() {
                self.stmts(body)?;
            }
            self.keep_inside(r)?;
            if self.frame.stack.moving {
                self.park()?;
            }
        }
        self.a.jmp(end)?;
        self.place(&mut full)?;
        self.unrecorded(r)?;
        self.place(&mut end)?;
        if r.is_optional() { self.stmts(body) } else { Ok(()) }
    }

    /// Begins a context in the new record of a call that moves; rcx holds the top before it. Returns the offset in a shard of the tree. `None` for
    /// another call.
    fn tree_of(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<Option<u32>, Assembly> {
        let tree = body.iter().find_map(|stmt| match stmt {
            Stmt::EnterMoving(tree, ..) => Some(*tree),
            _ => None,
        });
        let Some(tree) = tree else { return Ok(None) };
        if !self.frame.stack.moving || r.restore.is_some() || r.kept.len() > goroutine::KEPT_MAX {
            let why = "only the record of a goroutine has a context, and it keeps no more than times";
            return Err(Assembly(why.to_owned()));
        }
        self.a.mov(qword_ptr(rcx + self.next(goroutine::CONTEXT)).gs(), 0)?;
        self.offset(tree).map(Some)
    }

    /// Variable that a record sets back, and the word that says so.
    fn restored(&self, r: &CallRecord) -> Result<Option<(VariableId, u32)>, Assembly> {
        let Some(restore) = r.restore else { return Ok(None) };
        let (v, timer) = match restore {
            Restore::Value(v) | Restore::Flag(v) | Restore::Outermost(v) => (v, 0),
            Restore::Timer(v, Clock::Wall) => (v, record::RESTORE_WALL),
            Restore::Timer(v, Clock::Cpu) => (v, record::RESTORE_CPU),
        };
        Ok(Some((v, self.offset(v)? | timer)))
    }

    /// Stores what the new record keeps besides its first word, the time in rax, and what it sets back. rcx holds the top before it.
    pub(crate) fn keep_rest(&mut self, r: &CallRecord) -> Result<(), Assembly> {
        for (n, _) in (0..).zip(&r.kept).filter(|(_, kept)| **kept == KeptValue::Began(Clock::Wall)) {
            self.a.mov(qword_ptr(rcx + self.next(kept_at(n))).gs(), rax)?;
        }
        if let Some((v, word)) = self.restored(r)? {
            self.a.mov(dword_ptr(rcx + self.next(record::RESTORE)).gs(), word as i32)?;
            self.a.mov(rax, self.slot(v, 0)?)?;
            self.a.mov(qword_ptr(rcx + self.next(record::SAVED)).gs(), rax)?;
        }
        self.keep(r, 1, false)
    }

    /// Stores what the new record keeps from the word with the number `first` on; rcx holds the top before it. `moves` tells whether it has a context
    /// of a goroutine.
    fn keep(&mut self, r: &CallRecord, first: u32, moves: bool) -> Result<(), Assembly> {
        let all = (0..).zip(r.kept.iter().take(CallRecord::KEPT_MAX)).filter(|(n, _)| *n >= first);
        // Times are the first words of a record; the reverse order reads the clocks last.
        for (n, kept) in all.collect::<Vec<_>>().into_iter().rev() {
            let from = match kept {
                // The calls inside add their times there.
                KeptValue::Spent(_) if moves => {
                    self.a.mov(qword_ptr(rcx + self.next(kept_at(n))).gs(), 0)?;
                    continue;
                }
                KeptValue::Spent(_) if self.frame.stack.moving => continue,
                // It is kept together with the time.
                KeptValue::Began(_) | KeptValue::Inside => continue,
                KeptValue::Spent(clock) => self.a.mov(rax, self.spent(*clock)).map(|()| rax)?,
                KeptValue::Time(clock) => self.clock(*clock).map(|()| rax)?,
                KeptValue::Float(float) => self.float(*float).map(|()| rax)?,
                KeptValue::Argument(n) => match self.source(&Expr::Arg(*n))? {
                    Operand::Register(from) => from,
                    Operand::Immediate(_) | Operand::Memory(_) => rax,
                },
            };
            self.a.mov(qword_ptr(rcx + self.next(kept_at(n))).gs(), from)?;
            let KeptValue::Time(clock) = *kept else { continue };
            if let Some((also, _)) = (0..).zip(&r.kept).find(|(_, kept)| **kept == KeptValue::Began(clock)) {
                self.a.mov(qword_ptr(rcx + self.next(kept_at(also))).gs(), from)?;
            }
        }
        Ok(())
    }

    /// Stores [`KeptValue::Inside`] in the last record, which was just opened.
    pub(crate) fn keep_inside(&mut self, r: &CallRecord) -> Result<(), Assembly> {
        let Some(n) = (0..).zip(&r.kept).find_map(|(n, kept)| (*kept == KeptValue::Inside).then_some(n)) else {
            return Ok(());
        };
        let Some(Restore::Value(v)) = r.restore else {
            return Err(Assembly("a value inside of a call needs a variable that the record restores".to_owned()));
        };
        self.a.mov(rcx, self.top())?;
        self.a.mov(rax, self.slot(v, 0)?)?;
        Ok(self.a.mov(qword_ptr(rcx + self.last(kept_at(n))).gs(), rax)?)
    }

    pub(crate) fn close(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        if let Some(Restore::Outermost(v)) = r.restore {
            return self.close_outermost(v, r, body);
        }
        let inside = if r.is_optional() { &[] } else { body };
        if !self.close_timed(r, inside)? {
            self.at_record(r, Whose::Own, |g| g.end(r, inside), |_| Ok(()))?;
        }
        let recorded = self.access == ShardAccess::Own;
        if recorded && r.is_optional() { self.stmts(body) } else { Ok(()) }
    }

    pub(crate) fn close_handed(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        self.at_record(r, Whose::Earlier, |g| g.end(r, body), |_| Ok(()))
    }

    pub(crate) fn hand_over(&mut self, r: &CallRecord, whose: Whose, body: &[Stmt]) -> Result<(), Assembly> {
        let mark = |g: &mut Self| {
            g.a.or(dword_ptr(rcx + g.last(record::RESTORE)).gs(), record::HANDED)?;
            if g.frame.stack.moving { g.park() } else { Ok(()) }
        };
        self.at_record(r, whose, mark, |g| g.without_record(r, body))
    }

    pub(crate) fn give_up(&mut self, r: &CallRecord, whose: Whose, body: &[Stmt]) -> Result<(), Assembly> {
        let take_away = |g: &mut Self| {
            if g.frame.stack.moving {
                g.a.inc(g.slot(r.activations, LEFT_BY_TAIL_JUMP)?)?;
                return Ok(g.a.sub(g.top(), record::SIZE as i32)?);
            }
            let mut done = g.a.create_label();
            g.a.mov(ecx, g.offset(r.activations)? as i32)?;
            g.routine(Routine::GiveUp, done)?;
            g.place(&mut done)
        };
        self.at_record(r, whose, take_away, |g| g.without_record(r, body))
    }

    /// Emits the statements that run at the end of a call even if the call has no record.
    fn without_record(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        if r.is_optional() { self.stmts(body) } else { Ok(()) }
    }

    /// Emits `found_it` for the case that this frame has the record; the record is then the last one, and rcx holds the top. For
    /// `Whose::Own`, the other case counts the call as unseen and runs `missed_it`.
    pub(crate) fn at_record(
        &mut self,
        r: &CallRecord,
        whose: Whose,
        found_it: impl FnOnce(&mut Self) -> Result<(), Assembly>,
        missed_it: impl FnOnce(&mut Self) -> Result<(), Assembly>,
    ) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            // The call was counted as unrecorded at its entry.
            return Ok(());
        }
        self.used = [true; 3];
        let name = self.offset(r.activations)? as i32;
        let [mut search, mut found, mut answer, mut missed, mut end] = std::array::from_fn(|_| self.a.create_label());
        if self.frame.stack.moving {
            self.fetch(r, missed)?;
            found_it(self)?;
            self.a.jmp(end)?;
            self.place(&mut missed)?;
            self.missed(r, whose, missed_it)?;
            return self.place(&mut end);
        }
        self.a.mov(rcx, self.top())?;
        self.call()?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        if whose == Whose::Earlier {
            // The frame has no record at all. Most calls end here, so this comparison is all that they pay.
            self.a.ja(end)?;
        }
        self.a.jne(search)?;
        self.a.cmp(dword_ptr(rcx + self.last(record::NAME)).gs(), name)?;
        self.a.jne(search)?;
        self.place(&mut found)?;
        found_it(self)?;
        self.a.jmp(end)?;
        self.place(&mut search)?;
        self.a.mov(ecx, name)?;
        self.routine(Routine::Find, answer)?;
        self.place(&mut answer)?;
        self.a.test(ecx, ecx)?;
        self.a.jne(found)?;
        self.missed(r, whose, missed_it)?;
        self.place(&mut end)
    }

    /// Emits the end of a call without a record. If there is no room for further records, it is one of the calls that had none at their entries, and is
    /// counted already: calls with records are outside of it.
    pub(crate) fn missed(
        &mut self,
        r: &CallRecord,
        whose: Whose,
        missed_it: impl FnOnce(&mut Self) -> Result<(), Assembly>,
    ) -> Result<(), Assembly> {
        if whose == Whose::Earlier {
            return Ok(());
        }
        let mut counted = self.a.create_label();
        if !self.frame.stack.moving {
            self.a.cmp(self.top(), record::ROOM as i32)?;
            self.a.jae(counted)?;
        }
        self.a.inc(self.slot(r.activations, UNSEEN)?)?;
        self.place(&mut counted)?;
        missed_it(self)
    }

    /// Ends the call of the last record: turns start times into durations, runs the statements, and removes the record.
    pub(crate) fn end(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        self.loaded = Loaded { top: true, field: None };
        self.end_from(r, 0, body)
    }

    /// Ends the call of the last record, of which so many words are durations already. The first one is in rax, and the top in rcx.
    pub(crate) fn end_timed(&mut self, r: &CallRecord, done: u32, body: &[Stmt]) -> Result<(), Assembly> {
        self.loaded = Loaded { top: true, field: Some(kept_at(0)) };
        self.end_from(r, done, body)
    }

    fn end_from(&mut self, r: &CallRecord, done: u32, body: &[Stmt]) -> Result<(), Assembly> {
        for (n, kept) in (done..).zip(r.kept.iter().skip(done as usize)) {
            if let KeptValue::Time(clock) = kept {
                let time = qword_ptr(rcx + self.last(kept_at(n))).gs();
                self.clock_since(*clock, time)?;
                self.a.mov(time, rax)?;
                self.loaded.field = Some(kept_at(n));
            }
        }
        for (n, kept) in (done..).zip(r.kept.iter().skip(done as usize)) {
            if let KeptValue::Spent(clock) = kept {
                self.own_time(&r.kept, *clock, kept_at(n))?;
            }
        }
        let around = std::mem::replace(&mut self.closed, r.kept.clone());
        self.stmts(body)?;
        self.closed = around;
        Ok(self.a.sub(self.top(), record::SIZE as i32)?)
    }

    /// Operand for the time that this thread has spent in ended calls with own times.
    fn spent(&self, clock: Clock) -> AsmMemoryOperand {
        let word = record::SPENT + if clock == Clock::Cpu { 8 } else { 0 };
        qword_ptr(u64::from(self.env.data.displacement(self.env.data.records() + word))).gs()
    }

    /// Turns the kept time spent in ended calls, at `field` of the last record, into the own time of the call that ends, and adds the call to
    /// the time spent. The sum at the entry is known, so calls inside that have ended without an exit leave nothing wrong.
    fn own_time(&mut self, kept: &[KeptValue], clock: Clock, field: u32) -> Result<(), Assembly> {
        let Some(time) = kept.iter().position(|kept| *kept == KeptValue::Time(clock)) else {
            return Err(Assembly(format!("the own time by the {clock}clock needs its time")));
        };
        if self.frame.stack.moving {
            return Ok(());
        }
        let mut later = self.a.create_label();
        let time = qword_ptr(rcx + self.last(kept_at(time as u32))).gs();
        let own = qword_ptr(rcx + self.last(field)).gs();
        self.a.mov(rdx, self.spent(clock))?;
        self.a.mov(rax, own)?;
        self.a.sub(rdx, rax)?;
        self.a.add(rax, time)?;
        self.a.mov(self.spent(clock), rax)?;
        self.a.mov(rax, time)?;
        // Each reading of a clock may be late, so the calls inside may seem to take longer than the call.
        self.a.sub(rax, rdx)?;
        self.a.jae(later)?;
        self.a.xor(eax, eax)?;
        self.place(&mut later)?;
        self.a.mov(own, rax)?;
        self.loaded.field = Some(field);
        Ok(())
    }

    /// Counts a call that has no record.
    fn unrecorded(&mut self, r: &CallRecord) -> Result<(), Assembly> {
        let slot = self.slot(r.activations, UNRECORDED)?;
        match self.access {
            ShardAccess::Own => self.a.inc(slot)?,
            ShardAccess::Shared => {
                let absolute = u64::from(self.env.data.counter(self.index(r.activations)? + UNRECORDED));
                self.a.lock().inc(qword_ptr(absolute))?;
            }
        }
        Ok(())
    }

    /// Loads a field of the record that the enclosing statement closes into rax.
    pub(crate) fn field(&mut self, field: u32) -> Result<(), Assembly> {
        let Loaded { top, field: known } = self.loaded;
        if known == Some(field) {
            return Ok(());
        }
        if !top {
            self.used[1] = true;
            self.a.mov(rcx, self.top())?;
        }
        Ok(self.a.mov(rax, qword_ptr(rcx + self.last(field)).gs())?)
    }

    /// Loads the word that holds `kept` in the record that the enclosing statement closes into rax. Fails if the record does not keep it.
    pub(crate) fn kept(&mut self, kept: KeptValue) -> Result<(), Assembly> {
        match (0..).zip(&self.closed).find(|(_, known)| **known == kept) {
            Some((n, _)) => self.field(kept_at(n)),
            None => Err(Assembly(format!("{kept} is not kept"))),
        }
    }

    /// Converts ticks in rax to nanoseconds.
    pub(crate) fn nanoseconds(&mut self) -> Result<(), Assembly> {
        self.used[2] = true;
        self.a.mov(edx, self.env.ticks.mult)?;
        self.a.mul(rdx)?;
        Ok(self.a.shrd(rax, rdx, self.env.ticks.shift.min(63))?)
    }

    /// Loads the function's result into rax. The result is the first word that the base trampoline of an exit has pushed.
    pub(crate) fn returned(&mut self) -> Result<(), Assembly> {
        Ok(self.a.mov(rax, qword_ptr(rsp + 8 * (self.depth - 1)))?)
    }

    pub(crate) fn start(&mut self, timer: VariableId, clock: Clock) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true, self.used[1], true];
        let mut runs = self.a.create_label();
        self.a.cmp(self.slot(timer, NEST)?, 0)?;
        self.a.jne(runs)?;
        self.clock(clock)?;
        self.a.sub(self.slot(timer, SUM_OF_STOPS)?, rax)?;
        self.place(&mut runs)?;
        Ok(self.a.inc(self.slot(timer, NEST)?)?)
    }

    pub(crate) fn stop(&mut self, timer: VariableId, clock: Clock) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true, self.used[1], true];
        let [mut nested, mut later, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.a.cmp(self.slot(timer, NEST)?, 1)?;
        self.a.jl(end)?;
        self.a.jne(nested)?;
        self.clock_at_end(clock)?;
        self.a.add(self.slot(timer, SUM_OF_STOPS)?, rax)?;
        // The clocks of two processors may differ by some ticks, and a negative sum would say that the timer runs.
        self.a.jns(later)?;
        self.a.mov(self.slot(timer, SUM_OF_STOPS)?, 0)?;
        self.place(&mut later)?;
        self.place(&mut nested)?;
        self.a.dec(self.slot(timer, NEST)?)?;
        self.place(&mut end)
    }

    pub(crate) fn observe(
        &mut self,
        (histogram, resolution): (VariableId, Resolution),
        e: &Expr,
        own: Option<Clock>,
    ) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        if let Some(clock) = own.filter(|_| !self.frame.stack.moving) {
            self.kept(KeptValue::Spent(clock))?;
            self.a.inc(rax)?;
            self.loaded.field = None;
            self.a.add(self.slot(histogram, OWN)?, rax)?;
        }
        if self.observe_time((histogram, resolution), e)? {
            return Ok(());
        }
        if !loaded::is_kept(e) {
            self.loaded = Loaded::default();
        }
        self.value(e)?;
        self.loaded = Loaded::default();
        let [mut positive, mut smaller, mut larger] = std::array::from_fn(|_| self.a.create_label());
        if !matches!(e, Expr::Elapsed(_, TimeUnit::Ticks)) {
            self.a.test(rax, rax)?;
            self.a.jns(positive)?;
            self.a.xor(eax, eax)?;
            self.place(&mut positive)?;
        }
        self.a.add(self.slot(histogram, SUM)?, rax)?;
        self.a.cmp(self.slot(histogram, LARGEST)?, rax)?;
        self.a.jae(smaller)?;
        self.a.mov(self.slot(histogram, LARGEST)?, rax)?;
        self.place(&mut smaller)?;
        self.a.mov(rdx, rax)?;
        self.a.not(rdx)?;
        self.a.cmp(self.slot(histogram, SMALLEST)?, rdx)?;
        self.a.jae(larger)?;
        self.a.mov(self.slot(histogram, SMALLEST)?, rdx)?;
        self.place(&mut larger)?;
        self.limited()?;
        self.square(histogram)?;
        self.bucket(resolution)?;
        let first = u64::from(self.env.data.counter(self.index(histogram)? + HEAD));
        Ok(self.a.inc(qword_ptr(rax * 8 + first).gs())?)
    }

    /// Replaces a value in rax of more than [`VALUE_BITS`] bits by the largest one. Uses rdx.
    pub(crate) fn limited(&mut self) -> Result<(), Assembly> {
        let mut fits = self.a.create_label();
        self.a.mov(rdx, rax)?;
        self.a.shr(rdx, VALUE_BITS)?;
        self.a.je(fits)?;
        self.a.mov(rax, (1i64 << VALUE_BITS) - 1)?;
        self.place(&mut fits)
    }

    /// Replaces the value in rax, of at most [`VALUE_BITS`] bits, by the number of its bucket, computed as in `Resolution::bucket_of`. Uses rcx.
    pub(crate) fn bucket(&mut self, resolution: Resolution) -> Result<(), Assembly> {
        self.a.mov(rcx, rax)?;
        self.a.or(rcx, resolution.per_octave() as i32)?;
        self.a.bsr(rcx, rcx)?;
        self.a.sub(ecx, resolution.sub_bits() as i32)?;
        self.a.shr(rax, cl)?;
        self.a.shl(ecx, resolution.sub_bits())?;
        self.a.add(eax, ecx)?;
        Ok(self.a.and(eax, bucket_mask(resolution))?)
    }

    /// Adds the square of the value in rax to the two sums of squares of a histogram. The value has at most [`VALUE_BITS`] bits; it stays in rax.
    fn square(&mut self, histogram: VariableId) -> Result<(), Assembly> {
        self.a.mov(rcx, rax)?;
        self.a.mul(rax)?;
        self.a.add(self.slot(histogram, SQUARES)?, rax)?;
        self.a.shrd(rax, rdx, SQUARE_BITS)?;
        self.a.add(self.slot(histogram, SQUARES + 1)?, rax)?;
        Ok(self.a.mov(rax, rcx)?)
    }

    /// Tells the engine that the loader has mapped or unmapped something, and waits for the engine.
    pub(crate) fn await_engine(&mut self) -> Result<(), Assembly> {
        self.used[0] = true;
        let mut end = self.a.create_label();
        self.routine(Routine::Await, end)?;
        self.place(&mut end)
    }

    /// Jumps to a shared routine, which resumes at `label`.
    pub(crate) fn routine(&mut self, routine: Routine, label: iced_x86::code_asm::CodeLabel) -> Result<(), Assembly> {
        self.a.lea(rax, iced_x86::code_asm::ptr(label))?;
        self.a.jmp(routines::FAR)?;
        let mut behind = self.a.create_label();
        self.place(&mut behind)?;
        self.exits.push((behind, routine));
        Ok(())
    }
}
