//! The reasons of errors. One table has the words that scripts and clients know, each with its class, with what the error says of the target,
//! and with the time after which another attempt makes sense.

use std::fmt;

/// Class of an error. It decides the status code of gRPC and the exit status of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The request itself is wrong (INVALID_ARGUMENT).
    Usage,
    /// A target, function, metric or measurement does not exist, a name is ambiguous, or everything was refused (NOT_FOUND).
    NotFound,
    /// The caller has no permission, or another process traces or holds the target (PERMISSION_DENIED).
    Denied,
    /// The caller has not authenticated (UNAUTHENTICATED).
    Unauthenticated,
    /// The target ended before the measurement could start (ABORTED).
    Gone,
    /// The two sides have different protocol versions (FAILED_PRECONDITION).
    Version,
    /// The daemon does not answer, the engine is ending, or the target is in a temporary state (UNAVAILABLE).
    Unavailable,
    /// The target or the machine is in a state that waiting does not change (FAILED_PRECONDITION).
    Precondition,
    /// A quota is used up (RESOURCE_EXHAUSTED).
    Exhausted,
    /// The request took longer than its time (DEADLINE_EXCEEDED).
    Late,
    /// Any other failure at run time (INTERNAL).
    Failed,
}

impl ErrorClass {
    /// The exit status of a command that fails with an error of this class.
    pub fn exit(self) -> Exit {
        match self {
            ErrorClass::Usage => Exit::Usage,
            ErrorClass::NotFound => Exit::NotFound,
            ErrorClass::Denied | ErrorClass::Unauthenticated => Exit::Denied,
            ErrorClass::Gone => Exit::Gone,
            ErrorClass::Version
            | ErrorClass::Unavailable
            | ErrorClass::Precondition
            | ErrorClass::Exhausted
            | ErrorClass::Late
            | ErrorClass::Failed => Exit::Failed,
        }
    }
}

/// Exit status of a command that fails, as `ingraft --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command failed while it ran.
    Failed = 1,
    /// The usage or the MDL is wrong.
    Usage = 2,
    /// The target or function does not exist, a name is ambiguous, or nothing can be measured.
    NotFound = 3,
    /// The target may not be traced, or another program traces or holds it.
    Denied = 4,
    /// The target ended before the measurement could start.
    Gone = 5,
}

/// A row of the table.
#[derive(Clone, Copy)]
struct ReasonRow {
    word: &'static str,
    class: ErrorClass,
    unchanged: bool,
    again: bool,
    after_ms: Option<u32>,
}

const fn row(word: &'static str, class: ErrorClass) -> ReasonRow {
    ReasonRow { word, class, unchanged: false, again: false, after_ms: None }
}

impl ReasonRow {
    /// The error says that the target is as it was before.
    const fn unchanged(self) -> ReasonRow {
        ReasonRow { unchanged: true, ..self }
    }

    /// An insertion that failed for this reason is attempted again as long as the request permits.
    const fn again(self) -> ReasonRow {
        ReasonRow { again: true, ..self }
    }

    /// Waiting helps: another attempt makes sense after this time in milliseconds.
    const fn after(self, ms: u32) -> ReasonRow {
        ReasonRow { after_ms: Some(ms), ..self }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $row:expr,)*) => {
        /// Reason of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in the order of docs/protocol.md.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            const fn row(self) -> ReasonRow {
                use ErrorClass::*;
                match self {
                    $(Reason::$name => $row,)*
                }
            }
        }
    };
}

reasons! {
    /// A field of the request is missing or makes no sense.
    InvalidField => row("invalid_field", Usage),
    /// The request names nothing to measure.
    NothingAsked => row("nothing_asked", Usage),
    /// The MDL of the request cannot be used; the diagnostics say why.
    Mdl => row("mdl", Usage),
    /// No event of the kernel has this name.
    NoSuchEvent => row("no_such_event", Usage),
    /// Histories of more pairs were asked for than may be kept.
    TooManyHistories => row("too_many_histories", Usage),
    /// The pattern matches more functions than one answer describes, or than a trace can have.
    TooManyFunctions => row("too_many_functions", Usage),
    /// The patterns mean more pairs than a quota allowed when they were resolved.
    TooManyPairs => row("too_many_pairs", Usage),
    /// No process has this id or name.
    NoSuchProcess => row("no_such_process", NotFound),
    /// Several processes have this name.
    AmbiguousProcess => row("ambiguous_process", NotFound),
    /// The process has ended and waits for its parent.
    Zombie => row("zombie", NotFound),
    /// No image of this name is mapped in the target.
    NoSuchModule => row("no_such_module", NotFound),
    /// No control group has this path, or its processes cannot be read.
    NoSuchGroup => row("no_such_group", NotFound),
    /// No function matches.
    NoSuchFunction => row("no_such_function", NotFound),
    /// The functions that match have no part of this kind, such as a loop.
    NoSuchPart => row("no_such_part", NotFound),
    /// No loaded module has code of the source line, or none has debugging information.
    NoSuchLine => row("no_such_line", NotFound),
    /// A focus names something that a module which is loaded does not have.
    NoSuchResource => row("no_such_resource", NotFound),
    /// Several modules have a function of this name.
    AmbiguousFunction => row("ambiguous_function", NotFound),
    /// No match can be measured.
    AllRefused => row("all_refused", NotFound),
    /// A function that a definition calls cannot be called.
    CannotCall => row("cannot_call", NotFound),
    /// A variable that a definition sets may not be written by the target itself.
    CannotSet => row("cannot_set", NotFound),
    /// The functions are too large to count all of their blocks or edges at once.
    TooMuchCode => row("too_much_code", NotFound),
    /// The measurement would cost more than its limit.
    TooDear => row("too_dear", NotFound),
    /// A metric of the engine's own cannot be restricted.
    FocusOfInternal => row("focus_of_internal", Usage),
    /// The request names a block, an edge or a loop, but profiles and traces are of whole functions.
    PartInProfile => row("part_in_profile", Usage),
    /// The request asks that a profile or trace stays without a client, or that a trace or a profile of counts includes fork children.
    ProfileKept => row("profile_kept", Usage),
    /// The counts by which counters are to be placed are of none of the functions.
    NoEarlierCounts => row("no_earlier_counts", Usage),
    /// The measurement has values and is no profile.
    NoProfile => row("no_profile", Usage),
    /// The condition of a trace is tested at one function, and its pattern matches none or several.
    OneFunction => row("one_function", Usage),
    /// The measurement has values and is no trace.
    NoTrace => row("no_trace", Usage),
    /// The measurement prints no calls, or the metric of a measurement that prints calls prints none or in several places, or a metric that
    /// prints calls is asked for its values.
    NoPrint => row("no_print", Usage),
    /// Another command tells slow calls of goroutines in the process.
    GoroutinesFollowed => row("goroutines_followed", Precondition),
    /// The values of an expression cannot be added up in contexts.
    NoSum => row("no_sum", Usage),
    /// None of the functions of a trace is in a module that is loaded.
    NotLoadedYet => row("not_loaded_yet", NotFound),
    /// The metric measures nothing without a focus.
    NeedsFocus => row("needs_focus", Usage),
    /// No metric has this name, or the metric has no meaning here.
    NoSuchMetric => row("no_such_metric", NotFound),
    /// No measurement has this number, or it was removed.
    NoSuchMeasurement => row("no_such_measurement", NotFound),
    /// The target has no thread of this id.
    NoSuchThread => row("no_such_thread", NotFound),
    /// The measurement keeps no history.
    NoHistory => row("no_history", NotFound),
    /// The measurement has no phase of this number, or the engine no longer keeps it.
    NoSuchPhase => row("no_such_phase", NotFound),
    /// This machine does not count the event.
    EventNotCounted => row("event_not_counted", NotFound),
    /// The program cannot be started.
    CannotStart => row("cannot_start", NotFound).unchanged(),
    /// The kernel, or the rule for callers on a socket, does not allow it.
    NotPermitted => row("not_permitted", Denied),
    /// The kernel does not let this user count the event.
    EventForbidden => row("event_forbidden", Denied),
    /// The target is the engine itself.
    OwnProcess => row("own_process", Denied),
    /// The target has no program.
    KernelThread => row("kernel_thread", Denied),
    /// Another program traces the target. Nobody knows when it will release the target.
    AlreadyTraced => row("already_traced", Denied).again(),
    /// Another engine holds the target. Nobody knows when it will release the target.
    Held => row("held", Denied).again(),
    /// A definition calls a function or sets a variable of the target, and the request does not allow it.
    CallsNotAllowed => row("calls_not_allowed", Denied),
    /// The target is no x86-64 program.
    ForeignCode => row("foreign_code", Denied),
    /// Another program runs the target by translating its code.
    Translated => row("translated", Denied),
    /// The target filters its system calls and the filter cannot be suspended.
    Seccomp => row("seccomp", Denied),
    /// The target turns its system calls into signals, and no thread of it can make one for the engine.
    UserDispatch => row("user_dispatch", Denied).unchanged(),
    /// The target uses a shadow stack.
    ShadowStack => row("shadow_stack", Denied),
    /// The daemon starts programs for its own user only.
    LaunchOtherUser => row("launch_other_user", Denied),
    /// The daemon keeps definitions of its own user only.
    DefineOtherUser => row("define_other_user", Denied),
    /// The server does not know who the caller is.
    NoPeer => row("no_peer", Unauthenticated),
    /// The address needs a token.
    TokenMissing => row("token_missing", Unauthenticated),
    /// The token is not the daemon's.
    TokenWrong => row("token_wrong", Unauthenticated),
    /// The target ended before the measurement could start.
    TargetEnded => row("target_ended", Gone),
    /// The target went on as another program, or executes other programs too often to be attached to.
    TargetReplaced => row("target_replaced", Gone),
    /// Client and daemon speak different versions.
    VersionMismatch => row("version_mismatch", Version),
    /// The other side does not know the call, or is no ingraftd.
    Unimplemented => row("unimplemented", Version),
    /// The caller, or the daemon as a whole, has as much as it may have.
    QuotaExceeded => row("quota_exceeded", Exhausted),
    /// The request is larger than a message may be.
    MessageTooLarge => row("message_too_large", Exhausted),
    /// The request is no message of the call, or is not framed as gRPC says.
    MalformedMessage => row("malformed_message", Usage),
    /// The request did not end in time.
    RequestTooSlow => row("request_too_slow", Late),
    /// The client's deadline for the call has passed.
    DeadlineExceeded => row("deadline_exceeded", Late),
    /// The client cancelled the call before its answer.
    Cancelled => row("cancelled", Failed),
    /// Times cannot be measured in this target.
    NoClock => row("no_clock", Precondition),
    /// Calls cannot be followed, because the threads of the target have no counters of their own.
    NoShards => row("no_shards", Failed),
    /// The daemon is ending.
    ShuttingDown => row("shutting_down", Unavailable).after(5000),
    /// No server answers.
    Unavailable => row("unavailable", Unavailable),
    /// The state directory cannot be written.
    StateDirUnwritable => row("state_dir_unwritable", Precondition),
    /// Fork children of this target are measured with it, and this measurement cannot include them.
    Family => row("family", Precondition),
    /// No function of this target can be called.
    NoCalls => row("no_calls", Precondition),
    /// The journal cannot be written.
    Journal => row("journal", Failed).unchanged(),
    /// A file of the target cannot be read.
    UnreadableImage => row("unreadable_image", Denied),
    /// A file of the target is no ELF file that can be understood.
    BadImage => row("bad_image", NotFound),
    /// The kernel does not tell the children of a process.
    NoChildren => row("no_children", Precondition),
    /// The target filters its system calls, and the metric or the lossless trace needs one.
    Filtered => row("filtered", Precondition),
    /// Threads of this target cannot wait for room: another lossless trace is in it, or the engine cannot map their buffers.
    NoWaits => row("no_waits", Precondition),
    /// The engine does not know where the threads of this program keep thread-local variables.
    NoOwnData => row("no_own_data", Precondition),
    /// The engine may not open as many files as the events need.
    TooManyFiles => row("too_many_files", Precondition),
    /// The process has no free address near the module, or no room for the record of what would be changed.
    NoRoom => row("no_room", Precondition).unchanged(),
    /// A limit on the memory of the target leaves too little room.
    TargetMemoryLimit => row("target_memory_limit", Precondition).unchanged(),
    /// The target has about as many mappings as the machine allows.
    TargetMappingLimit => row("target_mapping_limit", Precondition).unchanged(),
    /// The target has as many files open as it may have; it needs one more for less than a millisecond.
    TargetFileLimit => row("target_file_limit", Precondition).unchanged(),
    /// More events of the processor are read at points of one program than there is room for.
    TooManyEvents => row("too_many_events", Precondition),
    /// Code at points of this target cannot read the event.
    EventNotAtPoints => row("event_not_at_points", Precondition),
    /// The program is starting, and one of its threads has no thread pointer yet while others run.
    NoThreadPointer => row("no_thread_pointer", Unavailable).after(100).unchanged(),
    /// The request needs more counters than fit.
    TooManyCounters => row("too_many_counters", Precondition),
    /// A thread of the target did not stop in time.
    UnstoppableThread => row("unstoppable_thread", Unavailable).after(1000).again(),
    /// A step of the insertion would hold the target's threads for longer than the request permits.
    HoldTooLong => row("hold_too_long", Unavailable).after(1000).again().unchanged(),
    /// No thread of the target can carry a system call.
    NoCarrier => row("no_carrier", Unavailable).after(1000).again().unchanged(),
    /// A thread is at an instruction from which it cannot be moved, or in the handler of a fault of an instruction that would be displaced.
    Busy => row("busy", Unavailable).after(100).again().unchanged(),
    /// Another program has changed the code in memory.
    TextChanged => row("text_changed", Precondition),
    /// The code is mapped shared.
    SharedText => row("shared_text", Precondition),
    /// The daemon ended, or the client went away, before the insertion changed any code.
    GivenUp => row("given_up", Unavailable).after(5000),
    /// The module was unloaded during the request.
    NotMapped => row("not_mapped", Unavailable).after(100),
    /// The kernel cannot provide memory that the engine shares with the target.
    AreaBroken => row("area_broken", Failed),
    /// Another program has changed code that is to be restored.
    BytesDiffer => row("bytes_differ", Failed),
    /// Another version of ingraft has inserted code in the target, and this version cannot read its records.
    OtherVersion => row("other_version", Failed),
    /// The program suspends contexts in signal handlers, and has too much memory to look for them while it is held.
    SuspendedContexts => row("suspended_contexts", Failed).unchanged(),
    /// Memory of an earlier removal is still in use, and the new measurement would identify threads in another way.
    RemovalUnfinished => row("removal_unfinished", Failed),
    /// The engine ended before everything was removed from a target; the journal knows of it.
    ShutdownTimeout => row("shutdown_timeout", Failed),
    /// The engine is shutting down.
    Ending => row("ending", Unavailable).after(5000),
    /// The session with the target has ended during the request.
    SessionOver => row("session_over", Failed),
    /// Another operation on the target failed.
    Process => row("process", Failed).unchanged(),
    /// No code could be generated.
    Codegen => row("codegen", Failed).unchanged(),
    /// The verifier rejected the generated code.
    UnprovenPlan => row("unproven_plan", Failed).unchanged(),
    /// A defect of ingraft: the plan of a change makes no sense.
    BadPlan => row("bad_plan", Failed).unchanged(),
    /// A defect of ingraft.
    Bug => row("bug", Failed),
    /// The command whose engine made the measurement has ended.
    EngineEnded => row("engine_ended", Failed),
    /// A library or a signal handler was loaded beside which woven code must not run.
    OwnGs => row("own_gs", Failed),
    /// The program has changed the code of a function that ran as a copy.
    Rewritten => row("rewritten", Failed),
    /// The other side gave no reason.
    Unexplained => row("unexplained", Failed),
}

impl Reason {
    /// The reason with this word; `None` if this version does not know the word.
    pub fn of(word: &str) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| reason.word() == word)
    }

    /// The stable word for scripts and the protocol, e.g. `no_such_process`.
    pub const fn word(self) -> &'static str {
        self.row().word
    }

    /// Class of the errors with this reason.
    pub const fn class(self) -> ErrorClass {
        self.row().class
    }

    /// Whether the target is as it was before an operation that failed for this reason.
    pub const fn is_unchanged(self) -> bool {
        self.row().unchanged
    }

    /// Whether an insertion that failed for this reason may succeed later.
    pub const fn may_pass(self) -> bool {
        self.row().again
    }

    /// Time in milliseconds after which another attempt makes sense; `None` if waiting does not help, or if nobody knows for how long.
    pub const fn retry_ms(self) -> Option<u32> {
        self.row().after_ms
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A received word may be one that this version does not know.
impl PartialEq<Reason> for String {
    fn eq(&self, reason: &Reason) -> bool {
        self == reason.word()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_unique_and_found() {
        for reason in Reason::ALL {
            assert_eq!(Reason::of(reason.word()), Some(*reason));
            assert!(reason.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{reason}");
        }
        assert_eq!(Reason::of("of_a_later_version"), None);
    }

    #[test]
    fn a_time_to_wait_goes_with_errors_that_pass() {
        for reason in Reason::ALL.iter().filter(|reason| reason.retry_ms().is_some()) {
            assert_eq!(reason.class(), ErrorClass::Unavailable, "{reason}");
        }
        assert!(Reason::Held.may_pass() && Reason::Busy.may_pass() && !Reason::TextChanged.may_pass());
    }

    #[test]
    fn classes_have_the_documented_exit_status() {
        for (reason, status) in [
            (Reason::Process, 1),
            (Reason::Busy, 1),
            (Reason::Mdl, 2),
            (Reason::AllRefused, 3),
            (Reason::Held, 4),
            (Reason::TokenWrong, 4),
            (Reason::TargetEnded, 5),
        ] {
            assert_eq!(reason.class().exit() as u8, status, "{reason}");
        }
    }
}
