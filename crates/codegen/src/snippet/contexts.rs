//! Calling contexts in a thread's own shard, see [`ingraft_model::contexts`]. Several threads may use shard 0 at once, so there code enters no
//! context.
//!
//! A goroutine moves between threads, so its context must mean the same in all of them. The keys, parents and targets of such contexts are in
//! shard 0, where all threads find and make them. A thread counts calls in its own shard, at the same place. The context of a call is in its
//! record, in the list of the goroutine, as the word with which a place names its parent.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeLabel, cl, dword_ptr, eax, ecx, edi, edx, esi, qword_ptr, r8, r9, r9d, r10,
    r11, r12, r13, rax, rcx, rdi, rdx, rsi,
};
use ingraft_model::contexts::{
    ADDRESS_BITS, CALLS, CONTEXT_SHIFT, CURRENT, FIRST, FULL, FURTHER, KEY, METRICS_MAX, OUTSIDE, PARENT, PARENT_BIAS,
    PLACE, PROBES, TAKEN, TARGET, VALUES, key,
};
use ingraft_model::layout::{COUNTERS, TOP, goroutine, record};
use ingraft_model::table::MULTIPLIER;
use ingraft_model::{ContextShape, Expr, KeptValue, Resolution, VariableId};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

/// Bit of rcx at the call of the routine: recursive calls have contexts of their own.
const FULL_BIT: u32 = 38;
/// Bit of rcx at the call of the routine: the context of the thread stays. It needs [`FULL_BIT`] too.
const STAY_BIT: u32 = 63;
/// First bit of the number of the function in rcx, at the call of the routine for calls that move.
const FUNCTION_BIT: u32 = FULL_BIT + 1;
/// Largest mask of places, see [`ContextShape::mask`].
const MASK_MAX: u32 = PLACE * ((1 << *ContextShape::BITS.end()) - 1);
/// Largest number of contexts that are looked at for an earlier call of the function.
const STEPS: u32 = 1 << *ContextShape::BITS.end();
/// Registers that the routine uses besides those of every routine.
const USED: [AsmRegister64; 6] = [rcx, rdx, rsi, rdi, r11, r12];
/// The same of the routine for calls that move.
const USED_MOVING: [AsmRegister64; 7] = [rcx, rdx, rsi, rdi, r11, r12, r13];

/// Place of what tells contexts apart: their keys, parents and targets.
#[derive(Clone, Copy)]
enum Identity {
    /// The shard of the thread.
    Own,
    /// Shard 0, which threads use at once.
    Shared,
}

impl Generator<'_> {
    /// Counts a call of a function in its context, which becomes that of the thread.
    pub(crate) fn enter_context(&mut self, v: VariableId, shape: ContextShape, function: u32) -> Result<(), Assembly> {
        let how = u64::from(shape.full()) << FULL_BIT;
        self.count_call(v, shape, function, how, |g| g.value(&Expr::ReturnAddress))
    }

    /// Counts a call that moves between threads, whose record was just moved into the list of its goroutine.
    pub(crate) fn enter_moving(&mut self, v: VariableId, shape: ContextShape, function: u32) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.call()?;
        let how = u64::from(shape.shift()) << 32 | u64::from(shape.full()) << FULL_BIT;
        let tree = u64::from(COUNTERS + 8 * self.index(v)?);
        self.a.mov(rcx, tree | how | u64::from(function) << FUNCTION_BIT)?;
        self.routine(Routine::EnterMoving, end)?;
        self.place(&mut end)
    }

    /// Adds the own time of a call that moves between threads to a value in its context. Its record is the thread's last one.
    pub(crate) fn leave_moving(&mut self, v: VariableId, shape: ContextShape, metric: u8) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        if !matches!(self.closed.as_slice(), [KeptValue::Time(_), KeptValue::Spent(_), ..]) {
            return Err(Assembly("the own time of a call needs its time, and that of the calls inside".to_owned()));
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.call()?;
        let how = u64::from(shape.shift()) << 32 | u64::from(metric) << FULL_BIT;
        self.a.mov(rcx, u64::from(COUNTERS + 8 * self.index(v)?) | how)?;
        self.routine(Routine::LeaveMoving, end)?;
        self.place(&mut end)
    }

    /// Counts a value below the context of the thread, which stays.
    pub(crate) fn count_below(
        &mut self,
        v: VariableId,
        shape: ContextShape,
        function: u32,
        e: &Expr,
    ) -> Result<(), Assembly> {
        self.count_call(v, shape, function, 1 << FULL_BIT | 1 << STAY_BIT, |g| g.value(e))
    }

    /// Counts a value, or its bucket, below the context of the thread. The place of the value becomes that context.
    pub(crate) fn enter_value(
        &mut self,
        v: VariableId,
        shape: ContextShape,
        function: u32,
        (resolution, e): (Option<Resolution>, &Expr),
    ) -> Result<(), Assembly> {
        self.count_call(v, shape, function, 1 << FULL_BIT, |g| {
            g.value(e)?;
            let Some(resolution) = resolution else { return Ok(()) };
            g.limited()?;
            g.bucket(resolution)
        })
    }

    /// Makes the context of a value that of the thread, if the value is the thread's context: the sign of its key tells that.
    pub(crate) fn leave_value(&mut self, v: VariableId, shape: ContextShape) -> Result<(), Assembly> {
        const { assert!(key(VALUES, 0) == 1 << 63) };
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let (current, mut end) = (self.word_of(v, CURRENT)?, self.a.create_label());
        self.a.mov(rcx, current)?;
        self.a.test(ecx, ecx)?;
        self.a.je(end)?;
        self.a.and(ecx, shape.mask() as i32)?;
        self.a.cmp(self.in_place(v, FIRST + KEY)?, 0)?;
        self.a.jns(end)?;
        self.a.mov(rax, self.in_place(v, FIRST + PARENT)?)?;
        self.a.sub(rax, PARENT_BIAS as i32)?;
        self.a.mov(current, rax)?;
        self.place(&mut end)
    }

    /// Counts a call in its context. `how` has bits for the routine, and `address` loads the address of the key into rax.
    fn count_call(
        &mut self,
        v: VariableId,
        shape: ContextShape,
        function: u32,
        how: u64,
        address: impl FnOnce(&mut Self) -> Result<(), Assembly>,
    ) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let [mut missed, mut end] = std::array::from_fn(|_| self.a.create_label());
        let current = self.word_of(v, CURRENT)?;
        // The key in rdx, and the first place to compare in rcx.
        address(self)?;
        self.a.shl(rax, u64::BITS - ADDRESS_BITS)?;
        self.a.shr(rax, u64::BITS - ADDRESS_BITS)?;
        self.a.mov(rdx, key(function, 0).cast_signed())?;
        self.a.or(rdx, rax)?;
        self.a.mov(rax, current)?;
        self.a.shl(rax, CONTEXT_SHIFT)?;
        self.a.xor(rax, rdx)?;
        self.a.mov(rcx, MULTIPLIER)?;
        self.a.imul_2(rcx, rax)?;
        self.a.shr(rcx, shape.shift())?;
        self.a.and(ecx, shape.mask() as i32)?;
        self.a.cmp(self.in_place(v, FIRST + KEY)?, rdx)?;
        self.a.jne(missed)?;
        self.a.mov(rax, current)?;
        self.a.add(rax, PARENT_BIAS as i32)?;
        self.a.cmp(self.in_place(v, FIRST + PARENT)?, rax)?;
        self.a.jne(missed)?;
        self.a.inc(self.in_place(v, FIRST + CALLS)?)?;
        if how >> STAY_BIT == 0 {
            self.a.mov(rax, self.in_place(v, FIRST + TARGET)?)?;
            self.a.mov(current, rax)?;
        }
        self.a.jmp(end)?;
        self.place(&mut missed)?;
        let tree = u64::from(COUNTERS + 8 * self.index(v)?);
        self.a.mov(rcx, tree | u64::from(shape.shift()) << 32 | how)?;
        self.routine(Routine::Enter, end)?;
        self.place(&mut end)
    }

    /// Adds to the value of a metric in the thread's context.
    pub(crate) fn add_in_context(
        &mut self,
        v: VariableId,
        (shape, metric): (ContextShape, u8),
        e: &Expr,
    ) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let [mut outside, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.value(e)?;
        self.a.mov(rcx, self.word_of(v, CURRENT)?)?;
        self.a.test(ecx, ecx)?;
        self.a.je(outside)?;
        self.a.and(ecx, shape.mask() as i32)?;
        self.add(self.in_place(v, shape.values() + u32::from(metric))?, &Operand::Register(rax))?;
        self.a.jmp(end)?;
        self.place(&mut outside)?;
        self.add(self.word_of(v, OUTSIDE + u32::from(metric))?, &Operand::Register(rax))?;
        self.place(&mut end)
    }

    /// Operand for a counter of the place in rcx; `n` is that of the first place.
    fn in_place(&self, v: VariableId, n: u32) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(v)? + n))).gs())
    }
}

impl Listing<'_> {
    /// Operand for a counter of the tree at r9.
    fn of_tree(&self, n: u32) -> AsmMemoryOperand {
        self.own_from(r9, 8 * n)
    }

    /// Operand for a counter of the place at r11.
    fn of_place(&self, n: u32) -> AsmMemoryOperand {
        self.own_from(r11, 8 * (FIRST + n))
    }

    /// Loads the offset of the tree that rcx describes into r9, and the mask of places into r8. Jumps to `done` if no such tree is inside of the
    /// counters.
    fn load_tree(&mut self, done: CodeLabel) -> Result<(), Assembly> {
        self.a.mov(r9d, ecx)?;
        self.a.shr(rcx, 32)?;
        self.a.mov(r8, -1i64)?;
        self.a.shr(r8, cl)?;
        self.a.and(r8, -(PLACE as i32))?;
        self.a.cmp(r8, MASK_MAX as i32)?;
        self.a.ja(done)?;
        self.a.lea(rax, qword_ptr(r9 + r8 * 8 + 8 * (FIRST + PLACE)))?;
        self.a.cmp(rax, self.holes.records as i32)?;
        self.a.ja(done)?;
        self.a.cmp(r9, COUNTERS as i32)?;
        Ok(self.a.jb(done)?)
    }

    /// Emits [`Routine::Enter`]. If rcx describes no tree inside of the counters, it does nothing.
    pub(crate) fn enter_context(&mut self) -> Result<(), Assembly> {
        let mut done = self.a.create_label();
        self.enter(&USED)?;
        self.load_tree(done)?;
        self.a.mov(r10, self.of_tree(CURRENT))?;
        self.a.lea(rsi, qword_ptr(r10 + PARENT_BIAS))?;
        self.count_in_place(Identity::Own, done)?;
        self.a.test(ecx, ecx)?;
        self.a.js(done)?;
        self.a.mov(rax, self.of_place(TARGET))?;
        self.a.mov(self.of_tree(CURRENT), rax)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED)
    }

    /// Counts a call at its place, and loads that into r11; makes the context if there is none. The tree is loaded, the caller's context is in r10, the
    /// word for it in rsi, the key in rdx. The sign of ecx stays. Jumps to `full` if there is no room, which is counted too.
    fn count_in_place(&mut self, identity: Identity, full: CodeLabel) -> Result<(), Assembly> {
        let [mut probe, mut next, mut free, mut walk, mut first, mut store, mut found] =
            std::array::from_fn(|_| self.a.create_label());
        // The first place in rax.
        self.a.mov(rdi, r10)?;
        self.a.shl(rdi, CONTEXT_SHIFT)?;
        self.a.xor(rdi, rdx)?;
        self.a.mov(rax, MULTIPLIER)?;
        self.a.imul_2(rax, rdi)?;
        self.a.shr(rax, cl)?;
        self.a.and(rax, r8)?;
        self.a.mov(edi, PROBES)?;
        self.a.set_label(&mut probe)?;
        self.a.lea(r11, qword_ptr(r9 + rax * 8))?;
        self.a.mov(r12, self.known(identity, r11, KEY))?;
        self.a.test(r12, r12)?;
        self.a.je(free)?;
        self.a.cmp(r12, rdx)?;
        self.a.jne(next)?;
        self.a.cmp(self.known(identity, r11, PARENT), rsi)?;
        self.a.je(found)?;
        self.a.set_label(&mut next)?;
        self.a.add(eax, PLACE as i32)?;
        self.a.and(rax, r8)?;
        self.a.dec(edi)?;
        self.a.jne(probe)?;
        self.a.inc(self.of_tree(FULL))?;
        self.a.jmp(full)?;

        // A handler, or another thread, may take the place meanwhile. Then it is looked at once more.
        self.a.set_label(&mut free)?;
        self.a.mov(r12, rax)?;
        self.a.xor(eax, eax)?;
        let (key, taken) = (self.known(identity, r11, KEY), self.known_of_tree(identity, TAKEN));
        match identity {
            Identity::Own => self.a.cmpxchg(key, rdx)?,
            Identity::Shared => self.a.lock().cmpxchg(key, rdx)?,
        }
        self.a.mov(rax, r12)?;
        self.a.jne(probe)?;
        match identity {
            Identity::Own => self.a.inc(taken)?,
            Identity::Shared => self.a.lock().inc(taken)?,
        }
        self.a.lea(rdi, qword_ptr(rax + 1))?;
        self.a.test(ecx, 1 << (FULL_BIT - 32))?;
        self.a.jne(store)?;
        // The first context of the same function at or above this one becomes that of the call. The number of steps is limited, because the
        // program may have overwritten the tree. It is no negative number, so the bit that lets the context of the thread stay is not in it.
        self.a.mov(ecx, STEPS)?;
        self.a.set_label(&mut walk)?;
        self.a.test(r10, r10)?;
        self.a.je(store)?;
        self.a.mov(rax, r10)?;
        self.a.and(rax, r8)?;
        self.a.lea(rax, qword_ptr(r9 + rax * 8))?;
        self.a.mov(r12, self.known(identity, rax, KEY))?;
        self.a.xor(r12, rdx)?;
        self.a.shr(r12, ADDRESS_BITS)?;
        self.a.test(r12, r12)?;
        self.a.je(first)?;
        self.a.mov(r10, self.known(identity, rax, PARENT))?;
        self.a.sub(r10, PARENT_BIAS as i32)?;
        self.a.dec(ecx)?;
        self.a.jne(walk)?;
        self.a.jmp(store)?;
        self.a.set_label(&mut first)?;
        self.a.mov(rdi, r10)?;
        self.a.set_label(&mut store)?;
        // A thread that sees the parent sees the target too.
        self.a.mov(self.known(identity, r11, TARGET), rdi)?;
        self.a.mov(self.known(identity, r11, PARENT), rsi)?;
        self.a.set_label(&mut found)?;
        Ok(self.a.inc(self.of_place(CALLS))?)
    }

    /// Operand for a counter of the place at a register, which tells what the place is.
    fn known(&self, identity: Identity, place: AsmRegister64, n: u32) -> AsmMemoryOperand {
        match identity {
            Identity::Own => self.own_from(place, 8 * (FIRST + n)),
            Identity::Shared => qword_ptr(place + self.holes.at(8 * (FIRST + n))),
        }
    }

    /// Operand for a counter of the tree at r9, where it tells what places are.
    fn known_of_tree(&self, identity: Identity, n: u32) -> AsmMemoryOperand {
        match identity {
            Identity::Own => self.of_tree(n),
            Identity::Shared => qword_ptr(r9 + self.holes.at(8 * n)),
        }
    }

    /// Loads the address of the caller's record into r9: the first one that has a context in this tree, from the record with the number in rsi on.
    /// Jumps to `none` if there is none. The end of the stack is in r8, the call's key in rdx, the offset of the tree in ecx.
    ///
    /// Records without a name belong to measurements that were removed. A record whose return address is no longer on the stack belongs to an
    /// earlier goroutine.
    fn caller(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        let record = |field: u32| qword_ptr(r9 + field);
        let mut again = self.a.create_label();
        self.a.set_label(&mut again)?;
        self.a.test(rsi, rsi)?;
        self.a.je(none)?;
        self.locate()?;
        self.a.mov(rsi, record(record::SAVED))?;
        self.a.cmp(dword_ptr(r9 + record::NAME), 0)?;
        self.a.je(again)?;
        self.a.mov(eax, dword_ptr(r9 + record::RESTORE))?;
        self.a.and(eax, !record::HANDED.cast_signed())?;
        self.a.cmp(eax, ecx)?;
        self.a.jne(again)?;
        self.a.cmp(record(goroutine::CONTEXT), 0)?;
        self.a.je(again)?;
        self.a.mov(rax, record(record::SP))?;
        self.a.cmp(rax, rdx)?;
        self.a.jb(again)?;
        self.a.mov(rax, qword_ptr(r8 + rax))?;
        self.a.cmp(record(goroutine::RETURN), rax)?;
        Ok(self.a.jne(again)?)
    }

    /// Emits [`Routine::LeaveMoving`]. It does nothing if rcx describes no tree inside of the counters.
    pub(crate) fn leave_moving(&mut self) -> Result<(), Assembly> {
        let [mut alone, mut positive, mut outside, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_MOVING)?;
        self.a.mov(r12, rdx)?;
        self.goroutine(done)?;
        self.a.mov(esi, dword_ptr(r8 + 8))?;
        self.a.mov(r8, r12)?;
        self.a.sub(r8, rdx)?;
        // Of the call's record, the context is in r11, the time in r12, and that without the calls inside in r13.
        self.a.mov(rax, self.own(TOP))?;
        self.a.mov(r11, self.own_from(rax, self.last(goroutine::CONTEXT)))?;
        self.a.mov(r12, self.own_from(rax, self.last(record::KEPT)))?;
        self.a.mov(r13, r12)?;
        self.a.sub(r13, self.own_from(rax, self.last(goroutine::INSIDE)))?;
        // Each reading of a clock may be late, so the calls inside may seem to take longer than the call.
        self.a.jae(positive)?;
        self.a.xor(r13, r13)?;
        self.a.set_label(&mut positive)?;
        self.a.test(r11, r11)?;
        self.a.je(done)?;
        self.caller(alone)?;
        self.a.add(qword_ptr(r9 + goroutine::INSIDE), r12)?;
        self.a.set_label(&mut alone)?;
        self.load_tree(done)?;
        // The values follow the free places after the last one, and are as many as the places of contexts.
        self.a.lea(rax, qword_ptr(r8 + r8))?;
        self.a.lea(rax, qword_ptr(r9 + rax * 8 + 8 * (FIRST + (FURTHER + 2) * PLACE)))?;
        self.a.cmp(rax, self.holes.records as i32)?;
        self.a.ja(done)?;
        self.a.shr(ecx, FULL_BIT - 32)?;
        self.a.and(ecx, METRICS_MAX as i32 - 1)?;
        self.a.lea(r9, qword_ptr(r9 + rcx * 8))?;
        self.a.sub(r11, PARENT_BIAS as i32)?;
        self.a.je(outside)?;
        self.a.and(r11, r8)?;
        self.a.lea(r11, qword_ptr(r11 + r8))?;
        self.a.lea(r9, qword_ptr(r9 + r11 * 8))?;
        self.a.add(self.of_tree(FIRST + (FURTHER + 1) * PLACE), r13)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut outside)?;
        self.a.add(self.of_tree(OUTSIDE), r13)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED_MOVING)
    }

    /// Emits [`Routine::EnterMoving`]. It does nothing if rcx describes no tree inside of the counters, or if the goroutine's last record is not
    /// that of the call, which then counts as unrecorded.
    pub(crate) fn enter_moving(&mut self) -> Result<(), Assembly> {
        let [mut called, mut full, mut done] = std::array::from_fn(|_| self.a.create_label());
        let record = |field: u32| qword_ptr(r9 + field);
        self.enter(&USED_MOVING)?;
        self.a.mov(r12, rdx)?;
        self.goroutine(done)?;
        self.last_of_goroutine(done)?;
        self.a.cmp(record(record::SP), rdx)?;
        self.a.jne(done)?;
        self.a.cmp(dword_ptr(r9 + record::RESTORE), ecx)?;
        self.a.jne(done)?;
        self.a.cmp(record(goroutine::CONTEXT), 0)?;
        self.a.jne(done)?;
        // r8 is the end of the stack, r12 the return address, r13 the record.
        self.a.mov(r8, r12)?;
        self.a.sub(r8, rdx)?;
        self.a.mov(r12, qword_ptr(r12))?;
        self.a.mov(record(goroutine::RETURN), r12)?;
        self.a.mov(r13, r9)?;
        self.a.mov(r11, PARENT_BIAS)?;
        self.a.mov(rsi, record(record::SAVED))?;
        self.caller(called)?;
        self.a.mov(r11, record(goroutine::CONTEXT))?;
        self.a.set_label(&mut called)?;
        self.a.mov(rsi, r11)?;
        self.a.lea(r10, qword_ptr(rsi - PARENT_BIAS as i32))?;
        self.load_tree(done)?;
        self.a.mov(edx, ecx)?;
        self.a.shr(edx, FUNCTION_BIT - 32)?;
        self.a.shl(rdx, ADDRESS_BITS)?;
        self.a.shl(r12, u64::BITS - ADDRESS_BITS)?;
        self.a.shr(r12, u64::BITS - ADDRESS_BITS)?;
        self.a.or(rdx, r12)?;
        self.count_in_place(Identity::Shared, full)?;
        self.a.mov(rsi, self.known(Identity::Shared, r11, TARGET))?;
        self.a.add(rsi, PARENT_BIAS as i32)?;
        // Without a place, the call has the context of its caller.
        self.a.set_label(&mut full)?;
        self.a.mov(qword_ptr(r13 + goroutine::CONTEXT), rsi)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED_MOVING)
    }
}
