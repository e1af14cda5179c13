//! Names of the shared routines.

/// A shared routine, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routine {
    /// At an entry: takes away the records of calls that have ended without passing an exit. Those that a jump has just handed over to this function
    /// stay, and lose their mark.
    Settle,
    /// Before a record is closed: looks for the one of this call whose name is in ecx, and takes away those above it. Answers the top, or 0
    /// if there is no such record.
    Find,
    /// Takes away all records of this frame whose name is in ecx, as their calls cannot be followed. Answers the top.
    GiveUp,
    /// Reads the thread's processor time by a system call; answers in the shard (`CPU_LAST`), and keeps rcx.
    CpuTime,
    /// Reads the time where the time stamp counter is none, see `wall`; answers in rdx, and keeps rcx.
    Time,
    /// Calls a function of the program, see `calling`; answers in rcx.
    Call,
    /// Reads memory of the program by a system call: so many bytes as rdx says, from the address in rcx. Answers them in rcx, the others 0;
    /// all 0 if they cannot be read.
    Read,
    /// Sets memory of the program by a system call: so many bytes as rdx says at the address in rcx, to the lowest of the word that was pushed last.
    /// Changes rcx.
    Write,
    /// Asks the kernel what it has counted for this thread: the sum of the counts whose bits (see [`ingraft_model::Usage::counts`]) are set in
    /// edx. Answers in rcx.
    Usage,
    /// Reads an event of the processor, see `event`: that of the number in edx. Answers in rcx.
    Event,
    /// At the loader's hook: tells the engine that something was mapped, and waits for it. Keeps rcx.
    Await,
    /// Before a fork, see `birth`. Keeps rcx.
    Fork,
    /// After a fork, in parent and child: what fork has returned is in ecx, the time in rdx. Keeps rcx.
    Forked,
}

impl Routine {
    pub const ALL: [Routine; 13] = [
        Routine::Settle,
        Routine::Find,
        Routine::GiveUp,
        Routine::CpuTime,
        Routine::Read,
        Routine::Write,
        Routine::Call,
        Routine::Await,
        Routine::Usage,
        Routine::Event,
        Routine::Time,
        Routine::Fork,
        Routine::Forked,
    ];
}
