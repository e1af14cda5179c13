//! Calling contexts in a thread's own shard, see [`ingraft_model::contexts`]. Several threads may use shard 0 at once, so there code enters no
//! context.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeLabel, cl, eax, ecx, edi, qword_ptr, r8, r9, r9d, r10, r11, r12, rax, rcx,
    rdi, rdx, rsi,
};
use ingraft_model::contexts::{
    ADDRESS_BITS, CALLS, CONTEXT_SHIFT, CURRENT, FIRST, FULL, KEY, OUTSIDE, PARENT, PARENT_BIAS, PLACE, PROBES, TAKEN,
    TARGET, key,
};
use ingraft_model::layout::COUNTERS;
use ingraft_model::table::MULTIPLIER;
use ingraft_model::{ContextShape, Expr, Resolution, VariableId};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

/// Bit of rcx at the call of the routine: recursive calls have contexts of their own.
const FULL_BIT: u32 = 38;
/// Bit of rcx at the call of the routine: the context of the thread stays. It needs [`FULL_BIT`] too.
const STAY_BIT: u32 = 63;
/// Largest mask of places, see [`ContextShape::mask`].
const MASK_MAX: u32 = PLACE * ((1 << *ContextShape::BITS.end()) - 1);
/// Largest number of contexts that are looked at for an earlier call of the function.
const STEPS: u32 = 1 << *ContextShape::BITS.end();
/// Registers that the routine uses besides those of every routine.
const USED: [AsmRegister64; 6] = [rcx, rdx, rsi, rdi, r11, r12];

impl Generator<'_> {
    /// Counts a call of a function in its context, which becomes that of the thread.
    pub(crate) fn enter_context(&mut self, v: VariableId, shape: ContextShape, function: u32) -> Result<(), Assembly> {
        let how = u64::from(shape.full()) << FULL_BIT;
        self.count_call(v, shape, function, how, |g| g.value(&Expr::ReturnAddress))
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

    /// Counts the bucket of a value below the context of the thread. The place of the bucket becomes that context.
    pub(crate) fn enter_bucket(
        &mut self,
        v: VariableId,
        shape: ContextShape,
        function: u32,
        (resolution, e): (Resolution, &Expr),
    ) -> Result<(), Assembly> {
        self.count_call(v, shape, function, 1 << FULL_BIT, |g| {
            g.value(e)?;
            g.limited()?;
            g.bucket(resolution)
        })
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
        let [mut probe, mut next, mut free, mut walk, mut first, mut store, mut found, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED)?;
        self.load_tree(done)?;
        // r10 is the context now, rsi the word for it, and rax the first place.
        self.a.mov(r10, self.of_tree(CURRENT))?;
        self.a.lea(rsi, qword_ptr(r10 + PARENT_BIAS))?;
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
        self.a.mov(r12, self.of_place(KEY))?;
        self.a.test(r12, r12)?;
        self.a.je(free)?;
        self.a.cmp(r12, rdx)?;
        self.a.jne(next)?;
        self.a.cmp(self.of_place(PARENT), rsi)?;
        self.a.je(found)?;
        self.a.set_label(&mut next)?;
        self.a.add(eax, PLACE as i32)?;
        self.a.and(rax, r8)?;
        self.a.dec(edi)?;
        self.a.jne(probe)?;
        self.a.inc(self.of_tree(FULL))?;
        self.a.jmp(done)?;

        // A handler may take the place meanwhile. Then it is looked at once more.
        self.a.set_label(&mut free)?;
        self.a.mov(r12, rax)?;
        self.a.xor(eax, eax)?;
        self.a.cmpxchg(self.of_place(KEY), rdx)?;
        self.a.mov(rax, r12)?;
        self.a.jne(probe)?;
        self.a.inc(self.of_tree(TAKEN))?;
        self.a.lea(rdi, qword_ptr(rax + 1))?;
        self.a.test(ecx, 1 << (FULL_BIT - 32))?;
        self.a.jne(store)?;
        // The first context of the same function at or above this one becomes that of the thread. The number of steps is limited, because the
        // program may have overwritten the tree. It is no negative number, so the bit that lets the context of the thread stay is not in it.
        self.a.mov(ecx, STEPS)?;
        self.a.set_label(&mut walk)?;
        self.a.test(r10, r10)?;
        self.a.je(store)?;
        self.a.mov(rax, r10)?;
        self.a.and(rax, r8)?;
        self.a.lea(rax, qword_ptr(r9 + rax * 8))?;
        self.a.mov(r12, self.own_from(rax, 8 * (FIRST + KEY)))?;
        self.a.xor(r12, rdx)?;
        self.a.shr(r12, ADDRESS_BITS)?;
        self.a.test(r12, r12)?;
        self.a.je(first)?;
        self.a.mov(r10, self.own_from(rax, 8 * (FIRST + PARENT)))?;
        self.a.sub(r10, PARENT_BIAS as i32)?;
        self.a.dec(ecx)?;
        self.a.jne(walk)?;
        self.a.jmp(store)?;
        self.a.set_label(&mut first)?;
        self.a.mov(rdi, r10)?;
        self.a.set_label(&mut store)?;
        self.a.mov(self.of_place(TARGET), rdi)?;
        self.a.mov(self.of_place(PARENT), rsi)?;
        self.a.set_label(&mut found)?;
        self.a.inc(self.of_place(CALLS))?;
        self.a.test(ecx, ecx)?;
        self.a.js(done)?;
        self.a.mov(rax, self.of_place(TARGET))?;
        self.a.mov(self.of_tree(CURRENT), rax)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED)
    }
}
