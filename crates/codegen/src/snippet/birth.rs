//! State that a fork child inherits if children are measured with their parent, see `layout::birth`. The thread that forks copies its
//! counters and records into a shard for the child. The child turns the copy into the state that it begins with.
//!
//! The copy is made before fork(2), because the parent's own shard changes at once afterwards, and only the forking thread writes to it.
//! The number of the child's shard is in private memory. So the child sees the number as it was at the fork, whatever the parent does
//! later. The slow routine makes the child use that shard (`slow.rs`).

use iced_x86::code_asm::{dword_ptr, eax, ecx, edi, qword_ptr, r8, r8d, r9, r10, rax, rcx, rdi, rdx};
use ingraft_model::layout::{self, CLAIMS, COUNTERS, FIRST_SHARD, OWNER, TOP, birth, header, record};

use crate::code::environment::Assembly;
use crate::code::listing::{HoleValues, Listing};
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};

impl HoleValues {
    /// Displacement of the entry for shard 0 in the table `layout::HEIRS`, which holds for each shard the shard that its thread leaves to a
    /// fork child.
    pub(crate) fn heirs(&self) -> u64 {
        self.child + u64::from(layout::HEIRS)
    }

    /// Number of bits by which the offset of a shard is shifted to the right to give the offset of its entry in that table.
    pub(crate) fn heir_shift(&self) -> u32 {
        self.log.saturating_sub(layout::HEIR_BYTES.trailing_zeros())
    }
}

impl Generator<'_> {
    pub(crate) fn fork(&mut self) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.routine(Routine::Fork, end)?;
        self.place(&mut end)
    }

    pub(crate) fn forked(&mut self) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.returned()?;
        self.a.mov(rcx, rax)?;
        self.wall_clock()?;
        self.a.mov(rdx, rax)?;
        self.routine(Routine::Forked, end)?;
        self.place(&mut end)
    }
}

impl Listing<'_> {
    /// Loads the address of the shard with the rules for inheritance into r10.
    fn rules(&mut self) -> Result<(), Assembly> {
        Ok(self.a.mov(r10, self.holes.rules)?)
    }

    /// Emits [`Routine::Fork`].
    pub(crate) fn fork(&mut self) -> Result<(), Assembly> {
        let [mut reset, mut start, mut probe, mut occupied, mut more, mut won] =
            std::array::from_fn(|_| self.a.create_label());
        let [mut counters, mut copied, mut right, mut records, mut whole, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        let (shards, log, heirs) = (self.holes.shards, self.holes.log, self.holes.heirs());
        let hint = self.place(header::CLAIM_HINT);
        let keep = [rcx, rdx, rdi];
        self.enter(&keep)?;
        // Claim a shard for the child, as a thread claims its own in the slow routine.
        let claim = qword_ptr(rcx * 8 + self.place(CLAIMS));
        self.a.mov(rdx, self.own(OWNER))?;
        self.a.bts(rdx, birth::UNBORN)?;
        self.a.mov(ecx, 1)?;
        self.a.lock().xadd(dword_ptr(hint), ecx)?;
        self.a.cmp(ecx, shards as i32)?;
        self.a.jae(reset)?;
        self.a.cmp(ecx, FIRST_SHARD as i32)?;
        self.a.jae(start)?;
        self.a.set_label(&mut reset)?;
        self.a.mov(ecx, FIRST_SHARD)?;
        self.a.mov(dword_ptr(hint), FIRST_SHARD + 1)?;
        self.a.set_label(&mut start)?;
        self.a.mov(edi, shards.saturating_sub(FIRST_SHARD))?;
        self.a.set_label(&mut probe)?;
        self.a.cmp(claim, 0)?;
        self.a.jne(occupied)?;
        self.a.xor(eax, eax)?;
        self.a.lock().cmpxchg(claim, rdx)?;
        self.a.je(won)?;
        self.a.set_label(&mut occupied)?;
        self.a.inc(ecx)?;
        self.a.cmp(ecx, shards as i32)?;
        self.a.jb(more)?;
        self.a.mov(ecx, FIRST_SHARD)?;
        self.a.set_label(&mut more)?;
        self.a.dec(edi)?;
        self.a.jne(probe)?;
        let missed = self.place(header::BIRTHS_MISSED);
        self.a.lock().inc(dword_ptr(missed))?;
        self.a.jmp(done)?;

        self.a.set_label(&mut won)?;
        self.a.mov(rdx, rcx)?;
        self.a.mov(r9, rcx)?;
        self.a.shl(r9, log)?;
        self.rules()?;
        self.a.mov(rdi, qword_ptr(r10 + TOP))?;
        self.a.mov(ecx, COUNTERS)?;
        let holes = self.holes;
        let child = |offset: u32| qword_ptr(r9 + holes.at(offset));
        self.a.set_label(&mut counters)?;
        self.a.cmp(rcx, rdi)?;
        self.a.jae(copied)?;
        self.a.mov(rax, self.own_from(rcx, 0))?;
        self.a.mov(qword_ptr(r9 + rcx + holes.at(0)), rax)?;
        self.a.add(rcx, 8)?;
        self.a.jmp(counters)?;
        self.a.set_label(&mut copied)?;
        self.a.mov(rdi, self.own(TOP))?;
        // See `Writer::bound` (`routines.rs`) for records that are none.
        self.a.cmp(rdi, record::ROOM as i32)?;
        self.a.jbe(right)?;
        self.a.xor(edi, edi)?;
        self.a.set_label(&mut right)?;
        self.a.mov(child(TOP), rdi)?;
        self.a.xor(ecx, ecx)?;
        let first = self.holes.records;
        self.a.set_label(&mut records)?;
        self.a.cmp(rcx, rdi)?;
        self.a.jae(whole)?;
        self.a.mov(rax, self.own_from(rcx, first))?;
        self.a.mov(qword_ptr(r9 + rcx + holes.at(first)), rax)?;
        self.a.add(rcx, 8)?;
        self.a.jmp(records)?;
        self.a.set_label(&mut whole)?;
        self.a.mov(child(holes.readings_open), 0)?;
        self.a.rdgsbase(r8)?;
        self.a.shr(r8, self.holes.heir_shift())?;
        self.a.rdfsbase(rax)?;
        self.a.mov(qword_ptr(r8 + heirs), rax)?;
        self.a.mov(qword_ptr(r8 + (heirs + 8)), rdx)?;
        self.a.set_label(&mut done)?;
        self.exit(&keep)
    }

    /// Emits [`Routine::Forked`]. On entry, ecx holds the result of fork and rdx the time.
    #[expect(clippy::too_many_lines, reason = "a listing of assembly code")]
    pub(crate) fn forked(&mut self) -> Result<(), Assembly> {
        let [mut child, mut counters, mut store, mut next, mut records, mut each, mut finish, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        let heirs = self.holes.heirs();
        let keep = [rcx, rdx, rdi];
        self.enter(&keep)?;
        self.a.rdgsbase(r9)?;
        self.a.shr(r9, self.holes.log)?;
        self.a.mov(rdi, r9)?;
        self.a.shl(rdi, layout::HEIR_BYTES.trailing_zeros())?;
        self.a.mov(eax, dword_ptr(rdi + (heirs + 8)))?;
        self.a.test(eax, eax)?;
        self.a.je(child)?;
        // The parent: forget the child's shard; if fork has failed, mark the claim so that the engine frees the shard.
        self.a.mov(qword_ptr(rdi + (heirs + 8)), 0)?;
        self.a.test(ecx, ecx)?;
        self.a.jns(done)?;
        self.a.mov(ecx, 1)?;
        self.a.shl(rcx, birth::FAILED)?;
        self.a.mov(qword_ptr(rax * 8 + self.place(CLAIMS)), rcx)?;
        self.a.jmp(done)?;

        // The child: continue only if its shard was prepared by the parent.
        self.a.set_label(&mut child)?;
        let claim = qword_ptr(r9 * 8 + self.place(CLAIMS));
        self.a.bt(claim, birth::UNBORN)?;
        self.a.jae(done)?;
        self.rules()?;
        self.a.mov(rdi, qword_ptr(r10 + TOP))?;
        self.a.mov(ecx, COUNTERS)?;
        self.a.set_label(&mut counters)?;
        self.a.cmp(rcx, rdi)?;
        self.a.jae(records)?;
        self.a.mov(rax, qword_ptr(r10 + rcx))?;
        self.a.cmp(rax, birth::KEEP as i32)?;
        self.a.je(next)?;
        self.a.xor(r8d, r8d)?;
        self.a.cmp(rax, birth::WALL as i32)?;
        self.a.jb(store)?;
        self.a.cmp(rax, birth::CPU as i32)?;
        self.a.ja(store)?;
        let nest = qword_ptr(rcx + self.holes.base.wrapping_sub(8)).gs();
        self.a.cmp(nest, 0)?;
        self.a.jle(store)?;
        self.a.mov(r8, -1i64)?;
        self.a.cmp(rax, birth::CPU as i32)?;
        self.a.je(store)?;
        self.a.mov(r8, rdx)?;
        self.a.neg(r8)?;
        self.a.set_label(&mut store)?;
        let counter = self.own_from(rcx, 0);
        self.a.mov(counter, r8)?;
        self.a.set_label(&mut next)?;
        self.a.add(rcx, 8)?;
        self.a.jmp(counters)?;

        self.a.set_label(&mut records)?;
        self.a.mov(rcx, self.own(TOP))?;
        let first = self.holes.records;
        self.a.set_label(&mut each)?;
        self.a.sub(rcx, record::SIZE as i32)?;
        self.a.cmp(rcx, record::SIZE as i32)?;
        self.a.jl(finish)?;
        let name = dword_ptr(rcx + self.holes.at(first + record::NAME)).gs();
        self.a.mov(eax, name)?;
        self.a.mov(rax, qword_ptr(r10 + rax))?;
        for n in 0..birth::KEPT_TIMES {
            let kept = self.own_from(rcx, first + record::KEPT + 8 * n);
            let [mut wall, mut cpu] = std::array::from_fn(|_| self.a.create_label());
            self.a.bt(eax, birth::KEPT_WALL + n)?;
            self.a.jae(wall)?;
            self.a.mov(kept, rdx)?;
            self.a.set_label(&mut wall)?;
            self.a.bt(eax, birth::KEPT_CPU + n)?;
            self.a.jae(cpu)?;
            self.a.mov(kept, 0)?;
            self.a.set_label(&mut cpu)?;
        }
        self.a.bt(eax, birth::SAVED_TIME)?;
        self.a.jae(each)?;
        let saved = self.own_from(rcx, first + record::SAVED);
        self.a.mov(saved, 0)?;
        self.a.jmp(each)?;

        self.a.set_label(&mut finish)?;
        self.a.mov(self.own(first + birth::BORN), 1)?;
        for word in [record::SPENT, record::SPENT + 8] {
            self.a.mov(self.own(first + word), 0)?;
        }
        self.a.mov(rax, self.own(OWNER))?;
        self.a.mov(claim, rax)?;
        self.a.set_label(&mut done)?;
        self.exit(&keep)
    }
}
