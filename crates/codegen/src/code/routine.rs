//! The shared routines, each with its registers on entry and return.

/// A shared routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routine {
    /// At an entry: removes the records of calls that have ended without an exit. Records that a jump has just handed over to this
    /// function stay, and lose their mark.
    Prune,
    /// Before a record is closed: finds the record of this call whose name is in ecx, and removes the records above it. Returns the top in
    /// rcx, or 0 if there is no such record.
    Find,
    /// Removes all records of this frame whose name is in ecx, because their calls cannot be followed. Returns the top in rcx.
    GiveUp,
    /// As [`Routine::Prune`], for the records of the goroutine that this thread executes, see `goroutine`.
    PruneGoroutine,
    /// Moves the thread's last record into the list of the goroutine that it executes. If it cannot be kept there, counts the call as
    /// unrecorded. Returns the top in rcx.
    Park,
    /// Before a record is closed: takes the record of this call whose name is in ecx from the list of the goroutine. Returns the top in
    /// rcx, or 0 if there is no such record.
    Fetch,
    /// Reads the thread's processor time by a system call. Leaves the result in the shard (`CPU_LAST`) and keeps rcx.
    CpuTime,
    /// Reads the time if the time stamp counter is unusable, see `wall`. Returns it in rdx and keeps rcx.
    Time,
    /// Calls a function of the program, see `calling`. Returns the result in rcx.
    Call,
    /// Reads memory of the program by a system call: edx bytes from the address in rcx. Returns the bytes in rcx, zero-extended, or 0 if
    /// the memory cannot be read.
    Read,
    /// Reads a text of the program by a system call: as many bytes from the address in rcx as can be read, but at most
    /// [`ingraft_model::RecordField::TEXT_BYTES`], into the words that were pushed last. Returns the number of bytes in rcx.
    Text,
    /// Cuts the text that was pushed last, of which rcx bytes were read, to its length in rdx, see `cut`: clears the bytes behind it. Returns
    /// the number of bytes that stay plus 1 in rcx; one more if there are further ones; 0 if none could be read.
    Cut,
    /// Writes memory of the program by a system call: the lowest edx bytes of the word that was pushed last, to the address in rcx.
    /// Overwrites rcx.
    Write,
    /// Asks the kernel for counts of this thread, and adds up those whose bits are set in edx (see [`ingraft_model::Usage::counts`]).
    /// Returns the sum in rcx.
    Usage,
    /// Reads the hardware event whose counter index is in edx, see `event`. Returns the count in rcx.
    Event,
    /// At the loader's hook: tells the engine that the loader has mapped or unmapped something, and waits for the engine. Keeps rcx.
    Await,
    /// Before an append to a full buffer: waits until the engine has emptied the buffers, see `room`. Keeps rcx.
    Room,
    /// At an entry: finds or makes the context of the call whose key is in rdx, and enters it, see `contexts`. The lower half of rcx is the offset
    /// in a shard of the tree, bits 32 to 37 are [`ingraft_model::ContextShape::shift`], and bit 38 is set if recursive calls have contexts of their
    /// own. Keeps rcx.
    Enter,
    /// At an entry whose record was moved into the list of the goroutine: finds or makes the context of the call at the stack pointer in rdx, and
    /// stores it in the record, see `contexts`. Bits 0 to 38 of rcx are as for [`Routine::Enter`], the other ones are the number of the function.
    /// Keeps rcx.
    EnterMoving,
    /// At the end of such a call, whose record is the thread's last one: adds its own time to a value in its context, and its time to that of the
    /// calls inside of its caller. The stack pointer is in rdx. Bits 0 to 37 of rcx are as for [`Routine::Enter`], the next two are the number of the
    /// value. Keeps rcx.
    LeaveMoving,
    /// Reads the word at the offset in rcx in the descriptor of the goroutine, see `goroutine`; the stack pointer of this call is in rdx. Returns it in
    /// rcx, or 0 if the thread executes no goroutine.
    Descriptor,
    /// Tells whether a call of the goroutine keeps notes, see `notes`; the stack pointer of this call is in rdx. Returns 0, 1 or 2 in rcx, as
    /// [`ingraft_model::Expr::Notes`] says.
    KeepsNotes,
    /// After the record of the call at the stack pointer in rdx, whose name is in ecx, was moved into the list of the goroutine: begins to keep notes for
    /// it. Keeps rcx.
    BeginNotes,
    /// Notes a call for the goroutine. The header of its record is in ecx; the words that were pushed last are its beginning and its time. Keeps rcx.
    AddNote,
    /// Appends the notes of the goroutine to the buffer of the thread. The lower half of rcx is the offset in a shard of the buffer's first counter, the
    /// upper half the binary logarithm of its capacity. Keeps rcx.
    TellNotes,
    /// Forgets the notes of the goroutine. Keeps rcx.
    EndNotes,
    /// Before a fork: prepares a shard for the child, see `birth`. Keeps rcx.
    Fork,
    /// After a fork, in parent and child: ecx holds the result of fork, rdx the time. Keeps rcx.
    Forked,
    /// Before control leaves the stack: sets the records of the thread aside, see `stacks`. The stack pointer of this call is in rdx. Keeps rcx.
    LeaveStack,
    /// When control has come to another stack: fetches its records, see `stacks`. The stack pointer is in rdx. Keeps rcx.
    EnterStack,
    /// At an entry, by a call: opens the record of the call at the stack pointer in rdx, whose name is in ecx. The first word that it keeps is the time
    /// stamp counter, which is also returned in rax. Returns the top before the record in rcx, or 0 if there is no room: then the call is counted as
    /// unrecorded. Overwrites rdx. See `timed`.
    OpenTimed,
    /// At an exit, by a call: if the last record is that of the call at the stack pointer in rdx with the name in ecx, turns the first word that it
    /// keeps into the time since then, which is also returned in rax. Returns the top in rcx, and overwrites rdx. Otherwise returns 0 in rcx, and
    /// keeps rdx.
    CloseTimed,
    /// As [`Routine::CloseTimed`], and turns the second word into the call's own time.
    CloseTimedOwn,
    /// By a call: adds the time in rax, in ticks, to the histogram whose first counter has the offset in ecx. Overwrites rax, rcx and rdx.
    ObserveCoarse,
    /// The same, for a histogram of medium resolution.
    ObserveMedium,
    /// The same, for a histogram of fine resolution.
    ObserveFine,
}

impl Routine {
    pub const ALL: [Routine; 36] = [
        Routine::Prune,
        Routine::Find,
        Routine::GiveUp,
        Routine::PruneGoroutine,
        Routine::Park,
        Routine::Fetch,
        Routine::CpuTime,
        Routine::Read,
        Routine::Text,
        Routine::Cut,
        Routine::Write,
        Routine::Call,
        Routine::Await,
        Routine::Room,
        Routine::Usage,
        Routine::Event,
        Routine::Time,
        Routine::Enter,
        Routine::EnterMoving,
        Routine::LeaveMoving,
        Routine::Descriptor,
        Routine::KeepsNotes,
        Routine::BeginNotes,
        Routine::AddNote,
        Routine::TellNotes,
        Routine::EndNotes,
        Routine::Fork,
        Routine::Forked,
        Routine::LeaveStack,
        Routine::EnterStack,
        Routine::OpenTimed,
        Routine::CloseTimed,
        Routine::CloseTimedOwn,
        Routine::ObserveCoarse,
        Routine::ObserveMedium,
        Routine::ObserveFine,
    ];
}
