//! Snippets: machine-independent descriptions of the code to run at a point. They have no loops, so every snippet has a worst-case cost
//! (hollingsworth97, section 3).

mod calls;
mod key;
mod needs;
mod renumber;
mod sizes;
mod text;

use std::sync::Arc;

use crate::Avma;
use crate::buffer::Capacity;
use crate::call::{Called, ProgramCall};
use crate::contexts::ContextShape;
use crate::histogram::Resolution;
use crate::listed::KeyListing;
use crate::object::ObjectState;
use crate::table::{Places, TableShape};
use crate::vector::Ranges;

use calls::{calls_of, place_call, place_in};

pub use key::KeyField;

/// A variable of a metric-focus pair. In every shard it takes as many adjacent slots as its [`Shape`] says. The number is local to the
/// snippets of the pair until the engine replaces it by the index of the variable's first counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// Shape of a variable: the counters that it takes in every shard, all 0 at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Shape {
    /// One value.
    #[default]
    Counter,
    /// The number of starts without a stop, then the clock at all stops minus the clock at all starts. The second is one word, so that it
    /// can be read while the timer runs. It is then negative, and the present clock has to be added.
    Timer(Clock),
    /// The sum, the largest value, the complement of the smallest, the sum of own times ([`crate::histogram::OWN`]), and two words of the sum of
    /// squares ([`crate::histogram::SQUARES`]); then one count for each bucket (see [`crate::histogram`]).
    Histogram(Resolution),
    /// Numbers of calls of one [`CallRecord`] by outcome. The first counts calls that ended without passing an exit (by an exception, by
    /// longjmp, or because their thread ended). The others count exits whose entry was not seen, entries that could not be recorded, and
    /// calls that ended in a tail jump that the engine cannot follow.
    Activations,
    /// State of the outermost open call of one function, see [`crate::outermost`].
    Outermost,
    /// Values by key (see [`crate::table`]).
    Table(TableShape),
    /// This number of values by index (see [`crate::vector`]).
    Vector(u32),
    /// Values of keys that the engine lists (see [`crate::listed`]).
    Listed(KeyListing),
    /// Bytes that a thread appends, and that the engine takes while the thread runs (see [`crate::buffer`]).
    Buffer(Capacity),
    /// Records of values that a thread appends, and that the engine takes while the thread runs (see [`crate::records`]). `true` if
    /// there is a small limit on their number, so that they cost little however often control comes to their code.
    Records(Capacity, bool),
    /// The calls of functions by calling context (see [`crate::contexts`]).
    Contexts(ContextShape),
    /// A processor event that each thread counts by itself. It takes no counters; the variable stands for the number of the event in the
    /// target ([`crate::layout::header::EVENTS`]).
    Event,
    /// One value that a variable of another pair holds: the counter with this index. The variable itself takes no counters.
    Alias(u32),
}

impl Shape {
    /// Number of counters that a variable of this shape takes in every shard.
    pub const fn slots(self) -> u32 {
        match self {
            Shape::Counter => 1,
            Shape::Timer(_) => 2,
            Shape::Activations => 4,
            Shape::Outermost => crate::outermost::SLOTS,
            Shape::Histogram(resolution) => crate::histogram::HEAD + resolution.buckets(),
            Shape::Table(table) => table.slots(),
            Shape::Vector(count) => crate::vector::slots(count),
            Shape::Listed(listing) => listing.slots(),
            Shape::Contexts(contexts) => contexts.slots(),
            Shape::Buffer(capacity) | Shape::Records(capacity, _) => capacity.slots(),
            Shape::Event | Shape::Alias(_) => 0,
        }
    }
}

/// Clock that a timer or a record reads at the beginning and at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clock {
    /// The processor's time stamp counter.
    Wall,
    /// The processor time of the thread, in ticks of the same length (see [`crate::CpuClock`]).
    Cpu,
}

/// Units of time in a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// Ticks of the processor's time stamp counter, which are not rounded.
    Ticks,
    /// Nanoseconds, rounded down.
    Nanoseconds,
}

/// Record that a thread keeps of an active call, from its entry to its exit. The record holds the call's stack pointer. By comparison with
/// it, code finds out that the call has ended without passing an exit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallRecord {
    /// Variable of [`Shape::Activations`]. No two records share one, so it also identifies the record.
    pub activations: VariableId,
    /// Values that the record keeps, in this order, each once; at most [`CallRecord::KEPT_MAX`].
    pub kept: Vec<KeptValue>,
    /// Variable that is set back to its value before the call if the call ends without passing an exit.
    pub restore: Option<Restore>,
}

impl CallRecord {
    /// Whether the statements of the record also run without a record, see [`Restore::Flag`].
    pub fn is_optional(&self) -> bool {
        matches!(self.restore, Some(Restore::Flag(_)))
    }

    /// Maximum number of values that a record keeps.
    pub const KEPT_MAX: usize = crate::layout::record::KEPT_MAX as usize;

    /// Whether the record keeps the time of a clock.
    pub fn is_timed(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept, KeptValue::Time(_)))
    }
}

/// Value from the beginning of a call that the code at its end can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeptValue {
    /// The time of a clock, for [`Expr::Elapsed`].
    Time(Clock),
    /// The time by a clock that this thread has spent in calls that keep this value and have ended ([`crate::layout::record::SPENT`]). The
    /// end of the call turns it into the call's own time: its time without that of such calls inside of it. The record must keep the time of
    /// the clock too. Nothing is kept for calls that move between threads.
    Spent(Clock),
    /// The time of a clock, unchanged and in ticks, for [`Expr::Saved`]. The record must keep [`KeptValue::Time`] of the clock too: both are of
    /// one reading.
    Began(Clock),
    /// The value of the variable of [`Restore::Value`] after the statements of [`Stmt::Open`], for [`Expr::Saved`]. 0 for a call that began before
    /// the code was there.
    Inside,
    /// The n-th integer argument, for [`Expr::Saved`].
    Argument(u8),
    /// The unchanged content of a floating-point argument's register, for [`Expr::Saved`].
    Float(Float),
}

/// Side of a switch to another stack, see [`crate::layout::stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackSwitch {
    /// Control leaves the stack: the records of its calls are set aside.
    Leave,
    /// Control goes on on a stack: the records of its calls come back.
    Enter,
}

/// Owner of the record that a tail jump hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// The function that jumps: its entry opened the record.
    Own,
    /// A function from which control came to this one by a tail jump; its record may be absent.
    Earlier,
}

/// A variable that is set back if a call ends without passing an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restore {
    /// A counter that serves as a flag.
    Value(VariableId),
    /// A flag that code at both ends of the call sets to constants. The flag is right with and without a record; the record serves only
    /// calls that end without passing an exit. If there is no room for a record, the code runs without one.
    Flag(VariableId),
    /// The number of starts of a timer. To set it back, the timer is stopped or continued.
    Timer(VariableId, Clock),
    /// The value of a variable of [`Shape::Outermost`]. The outermost call has no record, and leaves the value 0 behind. The end of a call inside of it sets
    /// the value back by itself. The statements of [`Stmt::Close`] run only for a call with a record.
    Outermost(VariableId),
}

impl Restore {
    /// Returns the variable that is set back.
    pub fn variable(self) -> VariableId {
        match self {
            Restore::Value(v) | Restore::Flag(v) | Restore::Timer(v, _) | Restore::Outermost(v) => v,
        }
    }
}

/// Operators of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// Two's complement negation.
    Negate,
    /// Logical not: 1 for 0, otherwise 0.
    Not,
    /// Bitwise complement.
    Complement,
}

/// Operators of two operands, on signed 64-bit integers that wrap. Comparisons and logic give 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    /// Signed division, rounded towards zero. Division by zero gives 0, because a snippet must not fault.
    Divide,
    /// Remainder of the signed division. Division by zero gives 0.
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    LogicalAnd,
    LogicalOr,
}

/// Size of an integer in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum IntegerWidth {
    One,
    Two,
    Four,
    Eight,
}

impl IntegerWidth {
    /// Returns the width with this number of bytes, if there is one.
    pub const fn of(bytes: u64) -> Option<IntegerWidth> {
        Some(match bytes {
            1 => IntegerWidth::One,
            2 => IntegerWidth::Two,
            4 => IntegerWidth::Four,
            8 => IntegerWidth::Eight,
            _ => return None,
        })
    }

    /// Number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            IntegerWidth::One => 1,
            IntegerWidth::Two => 2,
            IntegerWidth::Four => 4,
            IntegerWidth::Eight => 8,
        }
    }
}

/// Size of an integer in the program's memory, and how it is extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar {
    /// Size of the integer in memory.
    pub width: IntegerWidth,
    /// Whether the integer is sign-extended; otherwise it is zero-extended.
    pub signed: bool,
}

impl Scalar {
    /// An `int` of C.
    pub const INT: Scalar = Scalar { width: IntegerWidth::Four, signed: true };
    /// A pointer.
    pub const POINTER: Scalar = Scalar { width: IntegerWidth::Eight, signed: false };

    /// Extends the lowest bytes of a word. The other bytes have no effect.
    pub const fn extend(self, word: u64) -> i64 {
        match (self.width, self.signed) {
            (IntegerWidth::One, true) => word as i8 as i64,
            (IntegerWidth::One, false) => word as u8 as i64,
            (IntegerWidth::Two, true) => word as i16 as i64,
            (IntegerWidth::Two, false) => word as u16 as i64,
            (IntegerWidth::Four, true) => word as i32 as i64,
            (IntegerWidth::Four, false) => word as u32 as i64,
            (IntegerWidth::Eight, _) => word.cast_signed(),
        }
    }
}

/// A floating-point argument or result, in the vector register of the System V convention. Its value is truncated towards zero. NaN, and
/// values that do not fit into 64 bits, give 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Float {
    /// Number of the vector register: from 0 to [`Float::ARGS_MAX`] - 1 for an argument, 0 for a result.
    pub register: u8,
    /// Format of the number.
    pub format: FloatFormat,
}

impl Float {
    /// Maximum number of arguments in vector registers.
    pub const ARGS_MAX: u8 = 8;
}

/// Floating-point formats of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FloatFormat {
    /// A `float` of C.
    Single,
    /// A `double` of C.
    Double,
}

impl FloatFormat {
    /// Number of stored fraction bits, without the implicit leading bit.
    pub const fn fraction_bits(self) -> u32 {
        match self {
            FloatFormat::Single => 23,
            FloatFormat::Double => 52,
        }
    }

    /// Bias of the exponent: the stored exponent of the number 1.
    pub const fn bias(self) -> u32 {
        match self {
            FloatFormat::Single => 127,
            FloatFormat::Double => 1023,
        }
    }
}

/// Numbers that the kernel counts for each thread and that the thread can read by getrusage(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Page faults of both kinds.
    PageFaults,
    /// Page faults that needed no reading from a disk.
    MinorFaults,
    /// Page faults that needed a reading from a disk.
    MajorFaults,
    /// Context switches, voluntary or not.
    ContextSwitches,
}

impl Usage {
    /// Set of the kernel's counts whose sum is the number: bit value 1 for minor faults, 2 for major faults, 4 for switches.
    pub const fn counts(self) -> u32 {
        match self {
            Usage::MinorFaults => 1,
            Usage::MajorFaults => 2,
            Usage::PageFaults => 3,
            Usage::ContextSwitches => 4,
        }
    }
}

/// An expression; its value is a signed integer of 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(i64),
    /// The n-th integer argument, from 0, of the function at whose entry the snippet runs; before a call, the n-th argument of the callee.
    /// System V: rdi, rsi, rdx, rcx, r8, r9, then the stack.
    Arg(u8),
    /// The value that a function returns (rax), at an exit and after a call.
    Return,
    /// The address to which the function returns, at its entry and at its exits. After a tail jump, that is the return address of the call
    /// that the jump continues.
    ReturnAddress,
    /// A floating-point argument or result, truncated to an integer.
    Float(Float),
    /// A count that the kernel keeps for this thread, read by a system call.
    Usage(Usage),
    /// Number of occurrences of an event in this thread since its first reading, read by RDPMC without a system call. The variable has
    /// [`Shape::Event`]. If a reading fails, the result is that of the last one, and the failure is counted.
    Event(VariableId),
    /// Present time of a clock, in ticks; 0 in threads without a shard. Instructions before the point have ended by then.
    Now(Clock),
    /// Difference of a value from the one where this thread has computed the expression last; 0 at the first time, and in threads without a shard. The
    /// variable keeps the value, which must not be 0. If a signal handler computes it meanwhile, the sum of all results is still the whole difference.
    Since(VariableId, Box<Expr>),
    /// Address of a text that ends with a zero byte and exists as long as the call does. Allowed only as an argument of a [`ProgramCall`].
    Text(Arc<str>),
    /// Address of this thread's slot of a variable. Allowed only as an argument of a [`ProgramCall`].
    Address(VariableId),
    /// Argument, or time of the beginning, that the record of the enclosing [`Stmt::Close`] has kept; a floating-point argument is truncated.
    Saved(KeptValue),
    /// Time since the record of the enclosing [`Stmt::Close`] was opened. The record must have kept the time of this clock.
    Elapsed(Clock, TimeUnit),
    /// Value to which the record of the enclosing [`Stmt::Close`] would set its variable back, see [`Restore::Value`]: the variable's value
    /// when the record was opened.
    Restored,
    /// This thread's value of a variable.
    Variable(VariableId),
    /// This thread's value of a key in a table of so many places, whose keys are numbers. 0 if the table has no place for the key, or if the
    /// thread has no shard.
    ValueAt(VariableId, Places, Box<Expr>),
    /// This thread's value of the granule that contains a number; 0 if the number is outside of the range.
    ValueIn(VariableId, Ranges, Box<Expr>),
    /// The thread pointer, as the libc has stored it at the place to which it points (fs:0). The thread's own data is found relative to it.
    ThreadPointer,
    /// Number of records that were lost since this thread's last [`Stmt::BeginGroup`]. The variable has [`Shape::Records`].
    Lost(VariableId),
    /// Whether a call of the goroutine keeps notes of the calls inside of it ([`Stmt::Notes`]): 0 if none does, 1 if it is a call around this one, 2 if it is
    /// this call. 0 in threads without a shard.
    Notes,
    /// A word of the descriptor of the goroutine, at this offset; 0 in threads without a shard, and outside of the stack of a goroutine. The offset is less
    /// than [`crate::layout::goroutine::DESCRIPTOR`].
    OfGoroutine(u32),
    /// Number of the variable's first counter. It tells a pair from all others that are measured at the same time.
    Number(VariableId),
    /// An integer of the program at an address that is mapped and readable as long as the process lives.
    Load(Avma, Scalar),
    /// An integer of the program at any address, read by a system call that never faults. 0 if it cannot be read, and in fork children that
    /// are not measured.
    Read(Box<Expr>, Scalar),
    /// An operator applied to one value.
    Unary(UnaryOp, Box<Expr>),
    /// An operator applied to two values.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Calls a function of the program and gives its result.
    Call(Box<ProgramCall>),
}

impl Expr {
    /// Visits the operands of the expression and then the expression itself.
    pub fn each(&self, visit: &mut dyn FnMut(&Expr)) {
        match self {
            Expr::Call(call) => call.args.iter().for_each(|e| e.each(visit)),
            Expr::Unary(_, e)
            | Expr::Since(_, e)
            | Expr::Read(e, _)
            | Expr::ValueAt(_, _, e)
            | Expr::ValueIn(_, _, e) => e.each(visit),
            Expr::Binary(_, a, b) => {
                a.each(visit);
                b.each(visit);
            }
            Expr::Const(_)
            | Expr::Arg(_)
            | Expr::Return
            | Expr::ReturnAddress
            | Expr::Float(_)
            | Expr::Usage(_)
            | Expr::Now(_)
            | Expr::Event(_)
            | Expr::Text(_)
            | Expr::Address(_)
            | Expr::Saved(_)
            | Expr::Elapsed(..)
            | Expr::Restored
            | Expr::Variable(_)
            | Expr::Lost(_)
            | Expr::Notes
            | Expr::OfGoroutine(_)
            | Expr::Number(_)
            | Expr::ThreadPointer
            | Expr::Load(..) => {}
        }
        visit(self);
    }
}

/// A statement of a snippet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Add a value to this thread's slot of a variable.
    Add(VariableId, Expr),
    /// Set this thread's slot of a variable.
    Set(VariableId, Expr),
    /// Do the statements if the value is not 0.
    If(Expr, Vec<Stmt>),
    /// Close the records of calls that have ended without passing an exit. It comes once at an entry or before a call, before any record is
    /// opened there. Records that are opened at the same stack pointer later belong to this call.
    Prune,
    /// At the loader's hook: tell the engine that a file was mapped or unmapped. Then wait until the engine has scanned the mappings, but no longer than
    /// [`crate::layout::LOADER_WAIT_NS`] after its last renewal. Elsewhere, the thread tells the engine that it is there, and waits in the same way.
    Await,
    /// Only at the entry of the C library's fork: claim a shard for the child and copy this thread's state to it, see
    /// [`crate::layout::birth`].
    Fork,
    /// Only at the exits of the C library's fork: in the parent, forget the child's shard; in the child, turn the copy into the child's
    /// initial state.
    Forked,
    /// Only at the entry and the exits of functions that go on on another stack, see [`crate::layout::stacks`].
    Switch(StackSwitch),
    /// At an entry or before a call: open an activation record and do the statements. If there is no room for a record, count that and do
    /// nothing else.
    Open(CallRecord, Vec<Stmt>),
    /// At an exit or after a call: if the record of this call is open, do the statements and close it. If not, count that. Records that
    /// were opened later are closed first.
    Close(CallRecord, Vec<Stmt>),
    /// At a tail jump to a function whose exits close the record: mark the record of this frame as handed over, and leave it open. If the
    /// frame has no record and the owner is [`Whose::Own`], count the call as unseen, and do the statements if they need no record.
    HandOver(CallRecord, Whose, Vec<Stmt>),
    /// At a tail jump that the engine cannot follow: discard the record, restore its variable, and count the call as left by a tail jump.
    /// If there is no such record, this acts as [`Stmt::HandOver`].
    GiveUp(CallRecord, Whose, Vec<Stmt>),
    /// At an exit of a function that is the target of tail jumps: if a call that ended in such a jump has a record open for this frame, do
    /// the statements and close the record.
    CloseHanded(CallRecord, Vec<Stmt>),
    /// Start a timer. If it runs already, increase the nesting by one.
    Start(VariableId, Clock),
    /// Undo one start of a timer. If it does not run, do nothing.
    Stop(VariableId, Clock),
    /// Record a value in a histogram of this resolution, that of the variable's shape. A negative value is recorded as 0. With a clock, also
    /// add the call's own time by it, [`KeptValue::Spent`], to the histogram's sum of own times.
    Observe(VariableId, Resolution, Expr, Option<Clock>),
    /// Add to the value of a key in a table. The operands are the parts of the key, of the kinds that the table says, and the number to add.
    AddAt(VariableId, TableShape, Vec<KeyField>, Expr),
    /// Add to the value of the granule that contains a number, or to the counter for numbers outside of the range. The operands are the
    /// number and the number to add.
    AddIn(VariableId, Ranges, Expr, Expr),
    /// Add to the value of a key if the engine lists the key. The operands are the key and the number to add.
    AddListed(VariableId, KeyListing, Expr, Expr),
    /// Store a mark for an object, by its address, in a table: the time, with the object's new state in the lowest bits (see
    /// [`crate::object`]).
    Mark(VariableId, Expr, ObjectState),
    /// Append bytes to this thread's buffer of this capacity. If the buffer is full, or if the thread has no shard, count them as lost. If
    /// [`Appended::waits`] is set, a thread that has a shard waits for room first.
    Append(VariableId, Capacity, Appended),
    /// Append values to this thread's buffer of this capacity, as one record (see [`crate::records`]). If there is no room, or if the thread
    /// has no shard, count the record as lost.
    Record(VariableId, Capacity, Recorded),
    /// Begin a group of records: forget those that this thread has made since its last [`Stmt::KeepGroup`], and how many were lost.
    BeginGroup(VariableId),
    /// Let the engine take the records that this thread has made since its last [`Stmt::BeginGroup`].
    KeepGroup(VariableId),
    /// In a call that moves between threads: keep or tell what calls inside of it were.
    Notes(NotesStmt),
    /// At the entry of the function with this number: count the call in its context, which becomes that of the thread. A record must restore the
    /// thread's context.
    Enter(VariableId, ContextShape, u32),
    /// As [`Stmt::Enter`], for a call that moves between threads: its record keeps the context ([`crate::layout::goroutine::CONTEXT`]), and the
    /// thread has none. The caller's context is that of the goroutine's last call that has one in this tree.
    EnterMoving(VariableId, ContextShape, u32),
    /// At the end of such a call, whose record keeps [`KeptValue::Time`] and [`KeptValue::Spent`] first: add its own time to the value of the metric
    /// with this number in its context, and its time to what the caller's record keeps.
    LeaveMoving(VariableId, ContextShape, u8),
    /// Count a value below the thread's context, which stays that of the thread: as a call from there of the function with this number, whose
    /// return address has the lowest bits of the value.
    CountBelow(VariableId, ContextShape, u32, Expr),
    /// Count a value as [`Stmt::CountBelow`] does; with a resolution, the value is not negative, and the number of its bucket is counted. Metrics are added
    /// at the place of the value until [`Stmt::LeaveValue`], or until a record restores the thread's context. If there is no room for it, the thread's
    /// context stays.
    EnterValue(VariableId, ContextShape, u32, Option<Resolution>, Expr),
    /// If a value below a context is the thread's context, set that back to the context.
    LeaveValue(VariableId, ContextShape),
    /// Add to the value of the metric with this number in the thread's context.
    AddContext(VariableId, ContextShape, u8, Expr),
    /// Call a function of the program and ignore its result.
    Call(ProgramCall),
    /// Set an integer of the program at an address that is mapped and writable as long as the process lives. Fork children do not do this.
    Store(Avma, IntegerWidth, Expr),
    /// Set an integer of the program at any address. The operands are the address, the width and the value. A system call does this and
    /// never faults: memory that cannot be written stays as it is. Fork children do not do this.
    Write(Expr, IntegerWidth, Expr),
}

/// Statements about the notes of a goroutine: the calls that have ended inside of an open call, until that one ends. See
/// [`crate::layout::goroutine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotesStmt {
    /// After the record of a call with these activations was opened: the goroutine begins to keep notes for this call, unless it keeps some for a call
    /// around it.
    Begin(VariableId),
    /// At the end of a call inside, whose record keeps [`KeptValue::Time`] and [`KeptValue::Began`] of the wall clock: note it under this number.
    Add(u16),
    /// Append the notes to this thread's buffer as records, whose values are the beginning and the time in ticks. Those without room are added to the
    /// lost ones, as are those that were not kept. Each leaves room for a record that does not.
    Tell(VariableId, Capacity),
    /// Forget the notes, and keep none until the next [`NotesStmt::Begin`].
    End,
}

/// Bytes that a snippet appends to a buffer as a whole: a signal handler that interrupts the snippet appends its own before or after them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Appended {
    /// Whether the time by the clock of wall timers precedes the others, as [`crate::token::Token::Time`].
    pub time: bool,
    /// Whether the stack pointer at the point precedes the bytes, as [`crate::token::Token::Stack`].
    pub stack: bool,
    /// At most [`Appended::BYTES_MAX`] bytes, none of which is 0.
    pub bytes: Vec<u8>,
    /// Whether the thread waits if the buffer is full, until the engine has emptied it, but no longer than
    /// [`crate::layout::ROOM_WAIT_NS`]. It does not wait if the buffer is closed.
    pub waits: bool,
}

impl Appended {
    /// Largest number of bytes.
    pub const BYTES_MAX: usize = 8;

    /// Number of bytes with those for the time and the stack pointer.
    pub fn length(&self) -> u32 {
        let time = if self.time { crate::token::TIME_BYTES } else { 0 };
        let stack = if self.stack { crate::token::STACK_BYTES } else { 0 };
        self.bytes.len() as u32 + time + stack
    }
}

/// Values that a snippet appends to a buffer as one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// Number that tells this record's statement from others of the same buffer.
    pub number: u16,
    /// Whether the time by the clock of wall timers is the record's first value.
    pub time: bool,
    /// Further values, in this order.
    pub fields: Vec<RecordField>,
    /// Largest number of records that a thread makes until the engine permits more. Others are counted as skipped, and their values are not
    /// computed. `None` if there is no limit.
    pub limit: Option<u32>,
    /// Whether the record leaves room for one that does not, however large that one is.
    pub leaves_room: bool,
}

impl Recorded {
    /// Largest number of words of a record.
    pub const WORDS_MAX: u32 = crate::records::WORDS_MAX;

    /// Number of words of the record, with its header.
    pub fn words(&self) -> u32 {
        1 + u32::from(self.time) + self.fields.iter().map(RecordField::words).sum::<u32>()
    }
}

/// A value in a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordField {
    /// A number.
    Number(Expr),
    /// The bytes at an address, as many as can be read but at most [`RecordField::TEXT_BYTES`]. The first word holds how many were read; 0 if
    /// none could be read, and in fork children that are not measured.
    Text(Expr),
}

impl RecordField {
    /// Largest number of bytes of a text.
    pub const TEXT_BYTES: u32 = 64;

    /// Number of words in the record.
    pub const fn words(&self) -> u32 {
        match self {
            RecordField::Number(_) => 1,
            RecordField::Text(_) => 1 + RecordField::TEXT_BYTES / 8,
        }
    }

    /// The number, or the address of the text.
    pub const fn operand(&self) -> &Expr {
        match self {
            RecordField::Number(e) | RecordField::Text(e) => e,
        }
    }

    /// The number, or the address of the text.
    pub const fn operand_mut(&mut self) -> &mut Expr {
        match self {
            RecordField::Number(e) | RecordField::Text(e) => e,
        }
    }
}

/// Code that one request runs at one point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Snippet {
    /// The statements, in order.
    pub stmts: Vec<Stmt>,
}

impl Snippet {
    /// `variable++`, the snippet of a count.
    pub fn increment(variable: VariableId) -> Self {
        Snippet { stmts: vec![Stmt::Add(variable, Expr::Const(1))] }
    }

    /// Whether the snippet reads this clock.
    pub fn reads(&self, clock: Clock) -> bool {
        fn any(stmts: &[Stmt], clock: Clock) -> bool {
            stmts.iter().any(|stmt| match stmt {
                Stmt::Start(_, c) | Stmt::Stop(_, c) => *c == clock,
                Stmt::Open(record, body)
                | Stmt::Close(record, body)
                | Stmt::HandOver(record, _, body)
                | Stmt::GiveUp(record, _, body)
                | Stmt::CloseHanded(record, body) => record.kept.contains(&KeptValue::Time(clock)) || any(body, clock),
                Stmt::If(_, body) => any(body, clock),
                Stmt::Mark(..) => clock == Clock::Wall,
                Stmt::Append(_, _, appended) => appended.time && clock == Clock::Wall,
                Stmt::Record(_, _, recorded) => recorded.time && clock == Clock::Wall,
                Stmt::Add(..)
                | Stmt::Set(..)
                | Stmt::AddAt(..)
                | Stmt::AddIn(..)
                | Stmt::AddListed(..)
                | Stmt::Prune
                | Stmt::Observe(..)
                | Stmt::Call(_)
                | Stmt::Store(..)
                | Stmt::Write(..)
                | Stmt::BeginGroup(_)
                | Stmt::KeepGroup(_)
                | Stmt::Notes(_)
                | Stmt::Enter(..)
                | Stmt::EnterMoving(..)
                | Stmt::LeaveMoving(..)
                | Stmt::CountBelow(..)
                | Stmt::EnterValue(..)
                | Stmt::LeaveValue(..)
                | Stmt::AddContext(..)
                | Stmt::Await
                | Stmt::Switch(_)
                | Stmt::Fork => false,
                Stmt::Forked => clock == Clock::Wall,
            })
        }
        let mut found = any(&self.stmts, clock);
        self.each_expr(&mut |e| found |= *e == Expr::Now(clock));
        found
    }

    /// Returns the snippet with other sizes of its histograms and of its tables of sums.
    #[must_use]
    pub fn with_sizes(&self, resolution: Resolution, places: Places) -> Snippet {
        let mut other = self.clone();
        sizes::set(&mut other.stmts, resolution, places);
        other
    }

    /// Every call that the snippet makes. A call comes before the calls in its arguments.
    pub fn calls(&self) -> Vec<&ProgramCall> {
        let mut calls = Vec::new();
        calls_of(&self.stmts, &mut calls);
        calls
    }

    /// Replaces every callee by the result of `place`. Stops at the first error.
    pub fn place_callees<E>(&mut self, place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
        place_in(&mut self.stmts, place)
    }

    /// The tables of listed keys that the snippet uses.
    pub fn listings(&self) -> Vec<(VariableId, KeyListing)> {
        let mut found = Vec::new();
        self.each_stmt(&mut |stmt| {
            if let Stmt::AddListed(variable, listing, ..) = stmt {
                found.push((*variable, *listing));
            }
        });
        found
    }

    /// Visits every statement. A statement comes before those in its body.
    fn each_stmt(&self, visit: &mut dyn FnMut(&Stmt)) {
        fn all(stmts: &[Stmt], visit: &mut dyn FnMut(&Stmt)) {
            for stmt in stmts {
                visit(stmt);
                if let Some(body) = stmt.body() {
                    all(body, visit);
                }
            }
        }
        all(&self.stmts, visit);
    }

    /// Visits every expression. The operands come before their expression.
    pub fn each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        fn all(stmts: &[Stmt], visit: &mut dyn FnMut(&Expr)) {
            for stmt in stmts {
                match stmt {
                    Stmt::Add(_, e)
                    | Stmt::Set(_, e)
                    | Stmt::Observe(_, _, e, _)
                    | Stmt::Store(_, _, e)
                    | Stmt::AddContext(_, _, _, e)
                    | Stmt::CountBelow(_, _, _, e)
                    | Stmt::EnterValue(_, _, _, _, e)
                    | Stmt::Mark(_, e, _) => e.each(visit),
                    Stmt::AddAt(_, _, key, e) => {
                        key.iter().flat_map(KeyField::operands).for_each(|part| part.each(visit));
                        e.each(visit);
                    }
                    Stmt::AddIn(_, _, key, e) | Stmt::AddListed(_, _, key, e) | Stmt::Write(key, _, e) => {
                        key.each(visit);
                        e.each(visit);
                    }
                    Stmt::If(condition, body) => {
                        condition.each(visit);
                        all(body, visit);
                    }
                    Stmt::Open(_, body)
                    | Stmt::Close(_, body)
                    | Stmt::HandOver(_, _, body)
                    | Stmt::GiveUp(_, _, body)
                    | Stmt::CloseHanded(_, body) => all(body, visit),
                    // The key of a context has the return address.
                    Stmt::Enter(..) | Stmt::EnterMoving(..) => visit(&Expr::ReturnAddress),
                    Stmt::Call(call) => call.args.iter().for_each(|e| e.each(visit)),
                    Stmt::Record(_, _, recorded) => recorded.fields.iter().for_each(|f| f.operand().each(visit)),
                    Stmt::Prune
                    | Stmt::LeaveMoving(..)
                    | Stmt::LeaveValue(..)
                    | Stmt::BeginGroup(_)
                    | Stmt::KeepGroup(_)
                    | Stmt::Notes(_)
                    | Stmt::Await
                    | Stmt::Switch(_)
                    | Stmt::Fork
                    | Stmt::Forked
                    | Stmt::Start(..)
                    | Stmt::Stop(..)
                    | Stmt::Append(..) => {}
                }
            }
        }
        all(&self.stmts, visit);
    }

    /// Returns the variables and the numbers that are added to them if the snippet consists of additions of constants alone.
    pub fn as_additions(&self) -> Option<Vec<(VariableId, i64)>> {
        let one = |stmt: &Stmt| match stmt {
            Stmt::Add(variable, Expr::Const(number)) => Some((*variable, *number)),
            _ => None,
        };
        self.stmts.iter().map(one).collect()
    }

    /// Returns the variable if the snippet consists of one increment by 1, the case with the shortest code.
    pub fn as_increment(&self) -> Option<VariableId> {
        match self.stmts.as_slice() {
            [Stmt::Add(variable, Expr::Const(1))] => Some(*variable),
            _ => None,
        }
    }
}

impl Stmt {
    /// The statements in the body of this statement, if it has a body.
    pub fn body(&self) -> Option<&[Stmt]> {
        match self {
            Stmt::If(_, body)
            | Stmt::Open(_, body)
            | Stmt::Close(_, body)
            | Stmt::HandOver(_, _, body)
            | Stmt::GiveUp(_, _, body)
            | Stmt::CloseHanded(_, body) => Some(body),
            _ => None,
        }
    }

    /// The activation record that this statement opens, closes or hands over.
    pub fn record(&self) -> Option<&CallRecord> {
        match self {
            Stmt::Open(record, _)
            | Stmt::Close(record, _)
            | Stmt::HandOver(record, ..)
            | Stmt::GiveUp(record, ..)
            | Stmt::CloseHanded(record, _) => Some(record),
            _ => None,
        }
    }
}

impl Expr {
    fn calls_in<'a>(&'a self, calls: &mut Vec<&'a ProgramCall>) {
        match self {
            Expr::Binary(_, a, b) => {
                a.calls_in(calls);
                b.calls_in(calls);
            }
            Expr::Unary(_, e)
            | Expr::Since(_, e)
            | Expr::Read(e, _)
            | Expr::ValueAt(_, _, e)
            | Expr::ValueIn(_, _, e) => e.calls_in(calls),
            Expr::Call(call) => {
                calls.push(call);
                call.args.iter().for_each(|e| e.calls_in(calls));
            }
            _ => {}
        }
    }

    /// Whether evaluation of the expression calls a function.
    pub fn has_calls(&self) -> bool {
        let mut calls = Vec::new();
        self.calls_in(&mut calls);
        !calls.is_empty()
    }

    fn place_callees<E>(&mut self, place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
        match self {
            Expr::Unary(_, e)
            | Expr::Since(_, e)
            | Expr::Read(e, _)
            | Expr::ValueAt(_, _, e)
            | Expr::ValueIn(_, _, e) => e.place_callees(place),
            Expr::Binary(_, a, b) => a.place_callees(place).and_then(|()| b.place_callees(place)),
            Expr::Call(call) => place_call(call, place),
            _ => Ok(()),
        }
    }
}

impl UnaryOp {
    /// Applies the operator to a value.
    pub fn apply(self, a: i64) -> i64 {
        match self {
            UnaryOp::Negate => a.wrapping_neg(),
            UnaryOp::Not => i64::from(a == 0),
            UnaryOp::Complement => !a,
        }
    }
}

impl BinaryOp {
    /// Applies the operator to two values.
    pub fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            BinaryOp::Add => a.wrapping_add(b),
            BinaryOp::Subtract => a.wrapping_sub(b),
            BinaryOp::Multiply => a.wrapping_mul(b),
            BinaryOp::Divide if b == 0 => 0,
            BinaryOp::Divide => a.wrapping_div(b),
            BinaryOp::Remainder if b == 0 => 0,
            BinaryOp::Remainder => a.wrapping_rem(b),
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            BinaryOp::ShiftLeft => a << (b & 63),
            BinaryOp::ShiftRight => a >> (b & 63),
            BinaryOp::Equal => i64::from(a == b),
            BinaryOp::NotEqual => i64::from(a != b),
            BinaryOp::Less => i64::from(a < b),
            BinaryOp::LessOrEqual => i64::from(a <= b),
            BinaryOp::Greater => i64::from(a > b),
            BinaryOp::GreaterOrEqual => i64::from(a >= b),
            BinaryOp::LogicalAnd => i64::from(a != 0 && b != 0),
            BinaryOp::LogicalOr => i64::from(a != 0 || b != 0),
        }
    }

    /// The operator's symbol in the text.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Remainder => "%",
            BinaryOp::And => "&",
            BinaryOp::Or => "|",
            BinaryOp::Xor => "^",
            BinaryOp::ShiftLeft => "<<",
            BinaryOp::ShiftRight => ">>",
            BinaryOp::Equal => "==",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessOrEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterOrEqual => ">=",
            BinaryOp::LogicalAnd => "&&",
            BinaryOp::LogicalOr => "||",
        }
    }
}
