//! Shared routines, for code that is rare or needs a loop. A snippet jumps to a routine with the resume address in rax. The routines for
//! activation records take the call's stack pointer in rdx and answer in rcx. A routine keeps all other registers and leaves by `jmp rax`.

use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, dword_ptr, ecx, qword_ptr, r8, r8d, r9, r9d, r10, rax, rcx, rdx, rsp,
};
use ingraft_model::histogram::Resolution;
use ingraft_model::layout::{CHILD_SHARD, TOP, birth, goroutine, record, stacks};
use ingraft_model::{CpuClock, WallClock};

use crate::code::environment::{Assembly, CodegenError, Environment};
use crate::code::listing::{self, Filled, HoleValues, Listing};
use crate::code::routine::Routine;
use crate::snippet::reading::MemoryAccess;

/// Placeholder for a routine's address while a snippet is assembled at address 0. The placeholder is so far away that the assembler uses a
/// jump of five bytes.
pub(crate) const FAR: u64 = 0x1000_0000;

/// Counters of a record's activations: calls that ended without an exit, and calls that left by a tail jump.
pub(crate) const LEFT: u32 = 0;
const LEFT_BY_TAIL_JUMP: u32 = 3;

/// Operand for the top of this thread's activation records.
pub(crate) fn top(env: &Environment) -> AsmMemoryOperand {
    qword_ptr(u64::from(env.data.displacement(TOP))).gs()
}

/// Displacement from the top to a field of the last record.
pub(crate) fn last(env: &Environment, field: u32) -> u32 {
    env.data.displacement(env.data.records() + field - record::SIZE)
}

/// Fills the listing of a routine that has one. `None` if the code of the routine depends on more than holes: such a routine is proven by
/// abstract execution.
pub(crate) fn listing(routine: Routine, holes: &HoleValues) -> Option<Result<Filled, Assembly>> {
    let with = |emit: fn(Listing<'_>) -> Result<Listing<'_>, Assembly>| {
        Some(Listing::new(holes).and_then(emit).and_then(|listing| listing.fill(None)))
    };
    match routine {
        Routine::PruneGoroutine => with(|mut l| l.prune_goroutine().map(|()| l)),
        Routine::Park => with(|mut l| l.park().map(|()| l)),
        Routine::Fetch => with(|mut l| l.fetch().map(|()| l)),
        Routine::Call => with(|mut l| l.call().map(|()| l)),
        Routine::Event => with(|mut l| l.event().map(|()| l)),
        Routine::Cut => with(|mut l| l.cut().map(|()| l)),
        Routine::Enter => with(|mut l| l.enter_context().map(|()| l)),
        Routine::EnterMoving => with(|mut l| l.enter_moving().map(|()| l)),
        Routine::LeaveMoving => with(|mut l| l.leave_moving().map(|()| l)),
        Routine::Descriptor => with(|mut l| l.descriptor().map(|()| l)),
        Routine::KeepsNotes => with(|mut l| l.keeps_notes().map(|()| l)),
        Routine::BeginNotes => with(|mut l| l.begin_notes().map(|()| l)),
        Routine::AddNote => with(|mut l| l.add_note().map(|()| l)),
        Routine::TellNotes => with(|mut l| l.tell_notes().map(|()| l)),
        Routine::EndNotes => with(|mut l| l.end_notes().map(|()| l)),
        Routine::Fork => with(|mut l| l.fork().map(|()| l)),
        Routine::Forked => with(|mut l| l.forked().map(|()| l)),
        Routine::LeaveStack => with(|mut l| l.leave_stack().map(|()| l)),
        Routine::EnterStack => with(|mut l| l.enter_stack().map(|()| l)),
        Routine::OpenTimed => with(|mut l| l.open_timed().map(|()| l)),
        Routine::CloseTimed => with(|mut l| l.close_timed(false).map(|()| l)),
        Routine::CloseTimedOwn => with(|mut l| l.close_timed(true).map(|()| l)),
        Routine::ObserveCoarse => with(|mut l| l.observe(Resolution::Coarse).map(|()| l)),
        Routine::ObserveMedium => with(|mut l| l.observe(Resolution::Medium).map(|()| l)),
        Routine::ObserveFine => with(|mut l| l.observe(Resolution::Fine).map(|()| l)),
        Routine::Time if holes.vdso.is_some() => with(|mut l| l.time().map(|()| l)),
        _ => None,
    }
}

/// Values of the holes in a target.
pub(crate) fn holes(env: &Environment) -> HoleValues {
    let data = &env.data;
    let shard = |n: u32| data.base.0.wrapping_add(data.stride.wrapping_mul(u64::from(n)));
    HoleValues {
        base: data.displacement(0),
        log: data.stride.trailing_zeros(),
        shards: data.shards,
        alive: data.alive(),
        child: shard(CHILD_SHARD),
        rules: shard(birth::RULES),
        lists: shard(goroutine::SHARD),
        stacks: shard(stacks::SHARD),
        records: data.records(),
        readings_open: data.readings_open(),
        identity: env.identity,
        goroutine: env.goroutine,
        vectors: env.vectors,
        vdso: if let WallClock::Vdso(function) = env.wall { Some(function.0) } else { None },
    }
}

/// Assembles a routine. The code is position-independent.
pub(crate) fn assemble(env: &Environment, routine: Routine) -> Result<Vec<u8>, CodegenError> {
    let build = || -> Result<Vec<u8>, Assembly> {
        if let Some(filled) = listing(routine, &holes(env)) {
            return Ok(filled?.bytes);
        }
        let mut w = Writer { a: CodeAssembler::new(64)?, env };
        match routine {
            Routine::Prune => w.prune()?,
            Routine::Find => w.find()?,
            Routine::GiveUp => w.give_up()?,
            Routine::CpuTime => w.cpu_time()?,
            Routine::Await => w.await_engine()?,
            Routine::Room => w.await_room()?,
            Routine::Read => w.memory(MemoryAccess::Read)?,
            Routine::Text => w.text()?,
            Routine::Write => w.memory(MemoryAccess::Write)?,
            Routine::Usage => w.usage()?,
            Routine::Time => w.time()?,
            Routine::PruneGoroutine
            | Routine::Park
            | Routine::Fetch
            | Routine::Call
            | Routine::Event
            | Routine::Cut
            | Routine::Enter
            | Routine::EnterMoving
            | Routine::LeaveMoving
            | Routine::Descriptor
            | Routine::KeepsNotes
            | Routine::BeginNotes
            | Routine::AddNote
            | Routine::TellNotes
            | Routine::EndNotes
            | Routine::Fork
            | Routine::Forked
            | Routine::LeaveStack
            | Routine::EnterStack
            | Routine::OpenTimed
            | Routine::CloseTimed
            | Routine::CloseTimedOwn
            | Routine::ObserveCoarse
            | Routine::ObserveMedium
            | Routine::ObserveFine => return Err(Assembly("the routine has a listing".to_owned())),
        }
        Ok(w.a.assemble_options(0, BlockEncoderOptions::NONE)?.inner.code_buffer)
    };
    build().map_err(|Assembly(why)| CodegenError::Assembler { what: "a shared routine", why })
}

pub(crate) struct Writer<'a> {
    pub a: CodeAssembler,
    pub env: &'a Environment,
}

impl Writer<'_> {
    fn top(&self) -> AsmMemoryOperand {
        top(self.env)
    }

    fn last(&self, field: u32) -> u32 {
        last(self.env, field)
    }

    fn prune(&mut self) -> Result<(), Assembly> {
        let [mut used, mut own, mut unmark, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.save()?;
        self.a.mov(rcx, self.top())?;
        let mut again = self.a.create_label();
        self.a.set_label(&mut again)?;
        self.bound()?;
        self.a.jbe(used)?;
        // The shard has no record: create the first one, which belongs to no call and ends every search.
        let first = self.env.data.displacement(self.env.data.records());
        self.a.mov(qword_ptr(u64::from(first + record::SP)).gs(), -1)?;
        self.a.mov(qword_ptr(u64::from(first + record::NAME)).gs(), 0)?;
        self.a.mov(self.top(), record::SIZE as i32)?;
        self.a.mov(ecx, record::SIZE)?;
        self.a.set_label(&mut used)?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        self.a.ja(done)?;
        self.a.je(own)?;
        let mut left = self.a.create_label();
        self.a.set_label(&mut left)?;
        self.abandon(LEFT)?;
        self.a.jmp(again)?;
        self.a.set_label(&mut own)?;
        // The record belongs to this very frame: either it was handed over, or an earlier call with the same frame has left it.
        self.a.test(dword_ptr(rcx + self.last(record::RESTORE)).gs(), record::HANDED)?;
        self.a.je(left)?;
        self.a.set_label(&mut unmark)?;
        self.a.and(dword_ptr(rcx + self.last(record::RESTORE)).gs(), !record::HANDED.cast_signed())?;
        self.a.sub(rcx, record::SIZE as i32)?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        self.a.jne(done)?;
        self.a.test(dword_ptr(rcx + self.last(record::RESTORE)).gs(), record::HANDED)?;
        self.a.jne(unmark)?;
        self.a.set_label(&mut done)?;
        self.a.mov(rcx, self.top())?;
        self.leave()
    }

    fn find(&mut self) -> Result<(), Assembly> {
        self.save()?;
        self.a.mov(r8d, ecx)?;
        self.search()?;
        self.leave()
    }

    fn give_up(&mut self) -> Result<(), Assembly> {
        let [mut next, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.save()?;
        self.a.push(rcx)?;
        self.a.set_label(&mut next)?;
        self.a.mov(r8, qword_ptr(rsp))?;
        self.search()?;
        self.a.test(ecx, ecx)?;
        self.a.je(done)?;
        self.abandon(LEFT_BY_TAIL_JUMP)?;
        self.a.jmp(next)?;
        self.a.set_label(&mut done)?;
        self.a.pop(rcx)?;
        self.a.mov(rcx, self.top())?;
        self.leave()
    }

    /// Moves the record of this frame whose name is in r8d to the top. Returns the top in rcx, or 0 if there is no such record.
    fn search(&mut self) -> Result<(), Assembly> {
        let [mut scan, mut other, mut hit, mut pop, mut own, mut swap, mut none, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        self.a.mov(rcx, self.top())?;
        self.bound()?;
        self.a.ja(none)?;
        self.a.set_label(&mut scan)?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        self.a.ja(none)?;
        self.a.jb(other)?;
        self.a.cmp(dword_ptr(rcx + self.last(record::NAME)).gs(), r8d)?;
        self.a.je(hit)?;
        self.a.set_label(&mut other)?;
        self.a.sub(rcx, record::SIZE as i32)?;
        self.a.jmp(scan)?;
        self.a.set_label(&mut none)?;
        self.a.xor(ecx, ecx)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut hit)?;
        // `abandon` does not change r8.
        self.a.mov(r8, rcx)?;
        self.a.mov(rcx, self.top())?;
        self.a.set_label(&mut pop)?;
        self.a.cmp(qword_ptr(rcx + self.last(record::SP)).gs(), rdx)?;
        self.a.jae(own)?;
        self.abandon(LEFT)?;
        self.a.jmp(pop)?;
        // If the exits of a call close its records in another order, other records of the same call lie above this one. This record trades
        // places with each of them.
        self.a.set_label(&mut own)?;
        self.a.cmp(r8, self.top())?;
        self.a.mov(rcx, r8)?;
        self.a.jae(done)?;
        self.a.add(r8, record::SIZE as i32)?;
        self.a.set_label(&mut swap)?;
        self.a.mov(r9, qword_ptr(rcx + self.last(0)).gs())?;
        self.a.mov(r10, qword_ptr(rcx + self.last(record::SIZE)).gs())?;
        self.a.mov(qword_ptr(rcx + self.last(0)).gs(), r10)?;
        self.a.mov(qword_ptr(rcx + self.last(record::SIZE)).gs(), r9)?;
        self.a.add(rcx, 8)?;
        self.a.cmp(rcx, r8)?;
        self.a.jne(swap)?;
        self.a.jmp(own)?;
        self.a.set_label(&mut done)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Compares the top in rcx with what it may be: above if there are no records. It is 0 at first. A program that switches stacks in a
    /// signal handler may interrupt the end of a call whose record another context then takes for a stale one. Both remove it, and the top
    /// may come to lie before the first record.
    fn bound(&mut self) -> Result<(), Assembly> {
        self.a.lea(r9, qword_ptr(rcx - record::SIZE as i32))?;
        Ok(self.a.cmp(r9, (record::ROOM - record::SIZE) as i32)?)
    }

    fn cpu_time(&mut self) -> Result<(), Assembly> {
        self.save()?;
        self.renew()?;
        self.leave()
    }

    /// Removes the last record, increments the counter `counter` of its activations, and restores the saved variable. rcx holds the top
    /// before and after.
    fn abandon(&mut self, counter: u32) -> Result<(), Assembly> {
        let [mut restored, mut plain, mut stopped, mut counted, mut cpu, mut timer] =
            std::array::from_fn(|_| self.a.create_label());
        let base = self.env.data.displacement(0);
        let word = |n: u32| base + 8 * n;
        self.a.mov(r9d, dword_ptr(rcx + self.last(record::RESTORE)).gs())?;
        self.a.and(r9d, !record::HANDED.cast_signed())?;
        self.a.je(restored)?;
        self.a.mov(r10, qword_ptr(rcx + self.last(record::SAVED)).gs())?;
        let has_cpu = self.env.cpu != CpuClock::None;
        if has_cpu {
            self.a.btr(r9d, record::RESTORE_CPU.trailing_zeros())?;
            self.a.jb(cpu)?;
        }
        self.a.btr(r9d, record::RESTORE_WALL.trailing_zeros())?;
        self.a.jae(plain)?;
        self.wall_clock()?;
        if has_cpu {
            self.a.jmp(timer)?;
            self.a.set_label(&mut cpu)?;
            self.renew()?;
            self.a.set_label(&mut timer)?;
        }
        self.a.cmp(qword_ptr(r9 + word(0)).gs(), 0)?;
        self.a.je(stopped)?;
        self.a.test(r10, r10)?;
        self.a.jne(plain)?;
        self.a.add(qword_ptr(r9 + word(1)).gs(), rax)?;
        self.a.jmp(plain)?;
        self.a.set_label(&mut stopped)?;
        self.a.test(r10, r10)?;
        self.a.je(plain)?;
        self.a.sub(qword_ptr(r9 + word(1)).gs(), rax)?;
        self.a.set_label(&mut plain)?;
        self.a.mov(qword_ptr(r9 + word(0)).gs(), r10)?;
        self.a.set_label(&mut restored)?;
        // A record whose measurement was removed has the name 0.
        self.a.mov(r9d, dword_ptr(rcx + self.last(record::NAME)).gs())?;
        self.a.test(r9d, r9d)?;
        self.a.je(counted)?;
        self.a.inc(qword_ptr(r9 + word(counter)).gs())?;
        self.a.set_label(&mut counted)?;
        self.a.sub(self.top(), record::SIZE as i32)?;
        Ok(self.a.mov(rcx, self.top())?)
    }

    pub fn save(&mut self) -> Result<(), Assembly> {
        listing::save(&mut self.a)
    }

    pub fn leave(&mut self) -> Result<(), Assembly> {
        listing::leave(&mut self.a)
    }
}
