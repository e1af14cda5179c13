//! Access to all threads in the stop in which a plan is applied. A visitor reads their registers and stacks, and may give a thread a shard.

use ingraft_model::{Avma, Tid};

use crate::error::ProcessError;
use crate::procfs::is_thread_of;
use crate::stack::{LiveStacks, SavedPc};
use crate::sys::Regs;
use crate::target::Target;
use crate::tracer::{Tracee, TraceeState, Tracer};

/// Work on the held threads in the stop in which a plan is applied.
pub trait Visitor: Send {
    /// Whether the visitor knows what a thread at this address has executed. While time remains, a thread at another address runs for a
    /// moment before the plan is applied.
    fn knows(&self, pc: Avma) -> bool;

    /// Called once, after the plan was applied and while all threads are still held.
    fn visit(&mut self, held: &mut HeldThreads<'_>);
}

/// A thread, with its position before the plan moved any program counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldThread {
    /// The thread.
    pub tid: Tid,
    /// Registers of the thread. `None` if it did not stop (it sleeps in the kernel and cannot reach user space before the release), or if
    /// it belongs to another process that shares the target's memory.
    pub registers: Option<HeldRegisters>,
    /// Whether the visitor knows the program counter and those that the thread's signal frames save.
    pub known: bool,
    /// Index of the thread in the tracer's list.
    index: usize,
}

/// The registers of a held thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldRegisters {
    /// The program counter.
    pub pc: Avma,
    /// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 … r15, in the order of the DWARF register numbers.
    pub general: [u64; 16],
    /// The thread pointer.
    pub fs_base: u64,
    /// The base of gs.
    pub gs_base: u64,
}

impl HeldRegisters {
    /// The stack pointer.
    pub fn stack_pointer(&self) -> Avma {
        Avma(self.general[7])
    }
}

/// All threads of a target while they are held.
#[derive(Debug)]
pub struct HeldThreads<'a> {
    pub(crate) target: &'a Target,
    pub(crate) tracer: &'a mut Tracer,
    pub(crate) stacks: &'a LiveStacks,
    pub(crate) saved: &'a [SavedPc],
    pub(crate) threads: &'a [HeldThread],
}

impl HeldThreads<'_> {
    /// The threads that have not ended.
    pub fn threads(&self) -> &[HeldThread] {
        self.threads
    }

    /// The program counters of all threads before the plan moved any, each with its thread: those of the threads, also of threads that sleep
    /// in the kernel and did not stop, and those that signal frames on their stacks save.
    pub fn program_counters(&self) -> impl Iterator<Item = (Tid, Avma)> {
        let asleep = |thread: &HeldThread| match self.tracer.threads.get(thread.index)?.state {
            TraceeState::Asleep { pc, .. } => Some(pc),
            TraceeState::Stopped(_) | TraceeState::Running | TraceeState::Gone => None,
        };
        let at =
            move |thread: &HeldThread| Some((thread.tid, thread.registers.map(|r| r.pc).or_else(|| asleep(thread))?));
        let saved = self.saved.iter().filter_map(|saved| Some((self.tracer.threads.get(saved.thread)?.tid, saved.pc)));
        self.threads.iter().filter_map(at).chain(saved)
    }

    /// The stack pointers of all threads, each with its thread: also of threads that sleep in the kernel and did not stop.
    pub fn stack_pointers(&self) -> impl Iterator<Item = (Tid, Avma)> {
        let asleep = |thread: &HeldThread| match self.tracer.threads.get(thread.index)?.state {
            TraceeState::Asleep { sp, .. } => Some(sp),
            TraceeState::Stopped(_) | TraceeState::Running | TraceeState::Gone => None,
        };
        let of = move |thread: &HeldThread| {
            Some((thread.tid, thread.registers.map(|r| r.stack_pointer()).or_else(|| asleep(thread))?))
        };
        self.threads.iter().filter_map(of)
    }

    /// Reads eight bytes of memory for a thread, given by its index in [`HeldThreads::threads`]. Its stack has been read already.
    pub fn word(&self, thread: usize, at: u64) -> Option<u64> {
        let stack = self.threads.get(thread).and_then(|t| self.stacks.word(t.index, at));
        stack.or_else(|| self.target.read_u64(Avma(at)).ok())
    }

    /// Reads memory of the target.
    pub fn read(&self, at: Avma, bytes: &mut [u8]) -> Result<(), ProcessError> {
        self.target.read(at, bytes)
    }

    /// Sets the gs base of a stopped thread. Returns `false` if the thread did not stop or has been killed since.
    pub fn set_gs_base(&mut self, thread: usize, gs_base: u64) -> Result<bool, ProcessError> {
        let Some(i) = self.threads.get(thread).map(|t| t.index) else { return Ok(false) };
        let Some(regs) = self.tracer.regs(i)? else { return Ok(false) };
        self.tracer.set_regs(i, &Regs { gs_base, ..regs })?;
        Ok(matches!(self.tracer.threads[i].state, TraceeState::Stopped(_)))
    }
}

impl HeldRegisters {
    pub(crate) fn of(regs: &Regs) -> Self {
        let r = regs;
        HeldRegisters {
            pc: Avma(r.rip),
            general: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
                r.r15,
            ],
            fs_base: r.fs_base,
            gs_base: r.gs_base,
        }
    }
}

/// The threads with their present positions.
pub(crate) fn held_threads(tracer: &Tracer, known: &dyn Fn(usize, Avma) -> bool) -> Vec<HeldThread> {
    let alone = !tracer.has_sharers();
    let own = |t: &Tracee| matches!(t.state, TraceeState::Stopped(_)) && (alone || is_thread_of(tracer.pid, t.tid));
    let alive = tracer.threads.iter().enumerate().filter(|(_, t)| t.state != TraceeState::Gone);
    alive
        .map(|(i, t)| {
            let registers = t.regs.filter(|_| own(t)).map(|r| HeldRegisters::of(&r));
            HeldThread { tid: t.tid, registers, known: registers.is_some_and(|r| known(i, r.pc)), index: i }
        })
        .collect()
}
