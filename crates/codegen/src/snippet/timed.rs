//! Records of calls that are timed by the time stamp counter, and histograms of their times, by shared routines.
//!
//! A program whose functions are all timed runs more code of snippets than its caches hold. So what is the same in all of them stands once. A
//! snippet calls these routines, and they return: a processor predicts a return, but not a jump to an address in a register. The number in ecx,
//! an offset in a shard, is all that a routine knows of a function. A routine keeps all registers but rax, rcx and rdx.
//!
//! While a thread is in such a routine, an address of the arena is on its stack. It is there only as long as the program counter of the thread is
//! in the routine, which is waited for in any case (`Arena::shared_by_passers`).

use iced_x86::code_asm::{AsmMemoryOperand, cl, dword_ptr, eax, ecx, qword_ptr, r8, r8d, rax, rcx, rdx};
use ingraft_model::histogram::{HEAD, Resolution, SQUARE_BITS, SQUARES, VALUE_BITS};
use ingraft_model::layout::{TOP, record};
use ingraft_model::{CallRecord, Clock, Expr, KeptValue, Stmt, TimeUnit, VariableId, WallClock, Whose};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::activation::{LARGEST, SMALLEST, SUM, UNRECORDED, bucket_mask};
use crate::snippet::generator::{Generator, ShardAccess};
use crate::snippet::loaded::Loaded;
use crate::snippet::routines;

impl Routine {
    /// For a routine that is called: number of counters that it may change, from the offset in ecx on. `None` for a routine to which code jumps,
    /// with the resume address in rax.
    pub(crate) fn counters_called(self) -> Option<u32> {
        match self {
            Routine::OpenTimed | Routine::CloseTimed | Routine::CloseTimedOwn => Some(UNRECORDED + 1),
            _ => self.observed().map(|resolution| HEAD + resolution.buckets()),
        }
    }

    /// Resolution of the histograms to which the routine adds; `None` for another routine.
    pub(crate) const fn observed(self) -> Option<Resolution> {
        match self {
            Routine::ObserveCoarse => Some(Resolution::Coarse),
            Routine::ObserveMedium => Some(Resolution::Medium),
            Routine::ObserveFine => Some(Resolution::Fine),
            _ => None,
        }
    }
}

impl Listing<'_> {
    /// Operand for a field of a record, at an offset in the room for records from the number in r8.
    fn in_record(&self, offset: u32) -> AsmMemoryOperand {
        self.own_from(r8, self.holes.records.wrapping_add(offset))
    }

    /// Reads the time into rax; overwrites rdx.
    fn stamp(&mut self) -> Result<(), Assembly> {
        self.a.rdtsc()?;
        self.a.shl(rdx, 32)?;
        Ok(self.a.or(rax, rdx)?)
    }

    fn pop_and_return(&mut self) -> Result<(), Assembly> {
        self.a.pop(r8)?;
        Ok(self.a.ret()?)
    }

    /// Emits [`Routine::OpenTimed`].
    pub(crate) fn open_timed(&mut self) -> Result<(), Assembly> {
        let mut full = self.a.create_label();
        let new = |field: u32| record::SIZE + field;
        self.a.push(r8)?;
        self.a.mov(r8d, dword_ptr(self.place(TOP)).gs())?;
        // The record must lie after the first one, which ends every search, and within the room for records.
        self.a.sub(r8d, record::SIZE as i32)?;
        self.a.cmp(r8d, (record::ROOM - record::SIZE) as i32)?;
        self.a.jae(full)?;
        // A handler of a signal in between finds no record of this call, or one with the right stack pointer.
        self.a.mov(self.in_record(new(record::SP)), rdx)?;
        self.a.add(self.own(TOP), record::SIZE as i32)?;
        self.a.mov(self.in_record(new(record::SP)), rdx)?;
        // The upper half, which is 0, is that of the counter to set back.
        self.a.mov(self.in_record(new(record::NAME)), rcx)?;
        self.stamp()?;
        self.a.mov(self.in_record(new(record::KEPT)), rax)?;
        self.a.lea(ecx, dword_ptr(r8 + record::SIZE))?;
        self.pop_and_return()?;
        self.a.set_label(&mut full)?;
        self.a.inc(self.own_from(rcx, 8 * UNRECORDED))?;
        self.a.xor(ecx, ecx)?;
        self.pop_and_return()
    }

    /// Emits [`Routine::CloseTimed`], or [`Routine::CloseTimedOwn`].
    pub(crate) fn close_timed(&mut self, with_own: bool) -> Result<(), Assembly> {
        let [mut missed, mut later] = std::array::from_fn(|_| self.a.create_label());
        let last = |field: u32| field.wrapping_sub(record::SIZE);
        let time = self.in_record(last(record::KEPT));
        self.a.push(r8)?;
        self.a.mov(r8, self.own(TOP))?;
        self.a.cmp(self.in_record(last(record::SP)), rdx)?;
        self.a.jne(missed)?;
        self.a.cmp(dword_ptr(r8 + self.place(self.holes.records.wrapping_add(last(record::NAME)))).gs(), ecx)?;
        self.a.jne(missed)?;
        // See `Generator::clock_at_end`.
        self.a.lfence()?;
        self.stamp()?;
        self.a.sub(rax, time)?;
        self.a.jae(later)?;
        self.a.xor(eax, eax)?;
        self.a.set_label(&mut later)?;
        self.a.mov(time, rax)?;
        if with_own {
            self.own_time(self.in_record(last(record::KEPT + 8)))?;
        }
        self.a.mov(rcx, r8)?;
        self.pop_and_return()?;
        self.a.set_label(&mut missed)?;
        self.a.xor(ecx, ecx)?;
        self.pop_and_return()
    }

    /// Turns the kept time spent in ended calls, at `own`, into the own time of the call that ends, whose time is in rax, as
    /// `Generator::own_time` does. Overwrites rcx and rdx.
    fn own_time(&mut self, own: AsmMemoryOperand) -> Result<(), Assembly> {
        let mut later = self.a.create_label();
        let spent = self.own(self.holes.records.wrapping_add(record::SPENT));
        self.a.mov(rdx, spent)?;
        self.a.mov(rcx, own)?;
        self.a.sub(rdx, rcx)?;
        self.a.add(rcx, rax)?;
        self.a.mov(spent, rcx)?;
        self.a.mov(rcx, rax)?;
        self.a.sub(rcx, rdx)?;
        self.a.jae(later)?;
        self.a.xor(ecx, ecx)?;
        self.a.set_label(&mut later)?;
        Ok(self.a.mov(own, rcx)?)
    }

    /// Emits the routine for histograms of a resolution.
    pub(crate) fn observe(&mut self, resolution: Resolution) -> Result<(), Assembly> {
        let [mut smaller, mut larger, mut fits] = std::array::from_fn(|_| self.a.create_label());
        self.a.push(r8)?;
        self.a.mov(r8, rcx)?;
        let slot = |l: &Self, n: u32| l.own_from(r8, 8 * n);
        self.a.add(slot(self, SUM), rax)?;
        self.a.cmp(slot(self, LARGEST), rax)?;
        self.a.jae(smaller)?;
        self.a.mov(slot(self, LARGEST), rax)?;
        self.a.set_label(&mut smaller)?;
        self.a.mov(rdx, rax)?;
        self.a.not(rdx)?;
        self.a.cmp(slot(self, SMALLEST), rdx)?;
        self.a.jae(larger)?;
        self.a.mov(slot(self, SMALLEST), rdx)?;
        self.a.set_label(&mut larger)?;
        // The largest value that a bucket holds takes the place of a larger one.
        self.a.mov(rdx, rax)?;
        self.a.shr(rdx, VALUE_BITS)?;
        self.a.je(fits)?;
        self.a.mov(rax, (1i64 << VALUE_BITS) - 1)?;
        self.a.set_label(&mut fits)?;
        self.a.mov(rcx, rax)?;
        self.a.mul(rax)?;
        self.a.add(slot(self, SQUARES), rax)?;
        self.a.shrd(rax, rdx, SQUARE_BITS)?;
        self.a.add(slot(self, SQUARES + 1), rax)?;
        self.a.mov(rax, rcx)?;
        // The number of the bucket, as `Resolution::bucket_of` computes it.
        self.a.or(rcx, resolution.per_octave() as i32)?;
        self.a.bsr(rcx, rcx)?;
        self.a.sub(ecx, resolution.sub_bits() as i32)?;
        self.a.shr(rax, cl)?;
        self.a.shl(ecx, resolution.sub_bits())?;
        self.a.add(eax, ecx)?;
        self.a.and(eax, bucket_mask(resolution))?;
        self.a.inc(qword_ptr(r8 + rax * 8 + self.holes.at(8 * HEAD)).gs())?;
        self.pop_and_return()
    }
}

impl Generator<'_> {
    /// Calls a shared routine about the counters from an offset in a shard on. The move of the offset comes right before the call, so that
    /// `counters_in_reach` finds it.
    fn call_routine(&mut self, routine: Routine, offset: u32) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.a.mov(ecx, offset)?;
        self.a.call(routines::FAR)?;
        let mut behind = self.a.create_label();
        self.place(&mut behind)?;
        self.exits.push((behind, routine));
        Ok(())
    }

    /// Whether the record of a call can be opened and closed by shared routines: its first word is the time by the time stamp counter.
    fn is_timed(&self, r: &CallRecord) -> bool {
        self.access == ShardAccess::Own
            && self.env.wall == WallClock::Tsc
            && !self.frame.stack.moving
            && r.kept.first() == Some(&KeptValue::Time(Clock::Wall))
    }

    /// Opens the record of a call by a shared routine. Returns false if the record needs other code.
    pub(crate) fn open_timed(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<bool, Assembly> {
        let enters = |stmt: &Stmt| {
            matches!(stmt, Stmt::Enter(..) | Stmt::EnterMoving(..) | Stmt::EnterValue(..) | Stmt::Notes(_))
        };
        if !self.is_timed(r) || body.iter().any(enters) {
            return Ok(false);
        }
        let inside = if r.is_optional() { &[] } else { body };
        self.call()?;
        self.call_routine(Routine::OpenTimed, self.offset(r.activations)?)?;
        if r.restore.is_some() || r.kept.len() > 1 || !inside.is_empty() {
            let mut end = self.a.create_label();
            self.a.test(ecx, ecx)?;
            self.a.je(end)?;
            self.keep_rest(r)?;
            self.stmts(inside)?;
            self.keep_inside(r)?;
            self.place(&mut end)?;
        }
        if r.is_optional() {
            self.stmts(body)?;
        }
        Ok(true)
    }

    /// Ends a call whose record a shared routine has opened. Returns false if the record needs other code.
    pub(crate) fn close_timed(&mut self, r: &CallRecord, body: &[Stmt]) -> Result<bool, Assembly> {
        if !self.is_timed(r) {
            return Ok(false);
        }
        let name = self.offset(r.activations)?;
        let (routine, done) = match r.kept.get(1) {
            Some(KeptValue::Spent(Clock::Wall)) => (Routine::CloseTimedOwn, 2),
            _ => (Routine::CloseTimed, 1),
        };
        let [mut search, mut found, mut answer, mut missed, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.call()?;
        self.call_routine(routine, name)?;
        self.a.test(ecx, ecx)?;
        self.a.je(search)?;
        self.place(&mut found)?;
        self.end_timed(r, done, body)?;
        self.a.jmp(end)?;
        self.place(&mut search)?;
        self.a.mov(ecx, name)?;
        self.routine(Routine::Find, answer)?;
        self.place(&mut answer)?;
        self.a.test(ecx, ecx)?;
        self.a.je(missed)?;
        // Now the record is the last one.
        self.call_routine(routine, name)?;
        self.a.jmp(found)?;
        self.place(&mut missed)?;
        self.missed(r, Whose::Own, |_| Ok(()))?;
        self.place(&mut end)?;
        Ok(true)
    }

    /// Adds a time to a histogram by a shared routine. Returns false if the value needs other code.
    pub(crate) fn observe_time(
        &mut self,
        (histogram, resolution): (VariableId, Resolution),
        e: &Expr,
    ) -> Result<bool, Assembly> {
        if self.frame.stack.moving || !matches!(e, Expr::Elapsed(_, TimeUnit::Ticks)) {
            return Ok(false);
        }
        self.value(e)?;
        self.loaded = Loaded::default();
        let routine = match resolution {
            Resolution::Coarse => Routine::ObserveCoarse,
            Resolution::Medium => Routine::ObserveMedium,
            Resolution::Fine => Routine::ObserveFine,
        };
        self.call_routine(routine, self.offset(histogram)?)?;
        Ok(true)
    }
}
