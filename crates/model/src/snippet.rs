//! Snippets: what to do at a point, independent of the machine. No loops, so that every snippet has a worst-case cost
//! (hollingsworth97, section 3).

use std::fmt;
use std::sync::Arc;

use crate::Avma;
use crate::call::{Call, Called};
use crate::histogram::Resolution;
use crate::listed::Listing;
use crate::object::ObjectState;
use crate::table::Fold;
use crate::vector::Ranges;

/// A variable of a metric-focus pair: as many neighbouring slots in every shard as its [`Shape`] says. The number is local to its
/// [`crate::snippet`] set until the engine binds it to the index of its first counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// Shape of a variable: the counters that it takes in every shard, all 0 at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Shape {
    /// One value.
    #[default]
    Counter,
    /// Number of starts without a stop; the ticks of the clock at its stops less those at its starts. The latter is one word, so
    /// that it can be read while the timer runs: negative then, and less than the time by the clock now.
    Timer(Clock),
    /// The sum, the largest and the complement of the smallest value; then one count per bucket (see [`crate::histogram`]).
    Histogram(Resolution),
    /// Counts of activations of one [`Record`]: ended without passing their exit (exceptions, longjmp, the end of a thread), exits
    /// whose entry was not seen, entries that could not be recorded, calls that went on in a function whose exits are not known to end them.
    Activations,
    /// Values by key (see [`crate::table`]).
    Table(Fold),
    /// So many values by index (see [`crate::vector`]).
    Vector(u32),
    /// Values of keys that the engine lists (see [`crate::listed`]).
    Listed(Listing),
    /// An event of the processor that each thread counts for itself: no counters, but the number of the event in the target
    /// ([`crate::layout::header::EVENTS`]).
    Event,
}

impl Shape {
    /// Number of counters.
    pub const fn slots(self) -> u32 {
        match self {
            Shape::Counter => 1,
            Shape::Timer(_) => 2,
            Shape::Activations => 4,
            Shape::Histogram(resolution) => 3 + resolution.buckets(),
            Shape::Table(_) => crate::table::SLOTS,
            Shape::Vector(count) => crate::vector::slots(count),
            Shape::Listed(listing) => listing.slots(),
            Shape::Event => 0,
        }
    }
}

/// Clock that a timer or a record reads at its ends.
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
    /// Of the processor's time stamp counter: nothing is rounded.
    Ticks,
    /// Nanoseconds, rounded down.
    Nanoseconds,
}

/// Record that a thread keeps of an active call, from its entry to its exit. The record holds the call's stack pointer, by which it is known
/// when the call has ended without passing an exit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Variable of [`Shape::Activations`]; two records never share one, so it names the record as well.
    pub activations: VariableId,
    /// Values that the record keeps, in that order, each once; at most [`Record::KEPT_MAX`].
    pub kept: Vec<Kept>,
    /// Variable that is set back to its present value if the call ends without passing an exit.
    pub restore: Option<Restore>,
}

impl Record {
    /// Whether code in it needs no record, see [`Restore::Flag`].
    pub fn is_optional(&self) -> bool {
        matches!(self.restore, Some(Restore::Flag(_)))
    }

    /// Most that a record keeps.
    pub const KEPT_MAX: usize = crate::layout::record::KEPT_MAX as usize;

    /// Whether the time of the call is kept by some clock.
    pub fn is_timed(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept, Kept::Time(_)))
    }
}

/// Value from the beginning of a call that code at its end can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kept {
    /// A clock, for [`Expr::Elapsed`].
    Time(Clock),
    /// The n-th integer argument, for [`Expr::Saved`].
    Argument(u8),
    /// A floating-point argument, for [`Expr::Saved`]: as it was in its register.
    Float(Float),
}

/// Owner of the record that a jump from one function to another is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// The function that jumps: its entry has opened the record.
    Own,
    /// A function from which control has come to this one by such a jump, if it has.
    Earlier,
}

/// A variable that an unfinished call must not leave changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restore {
    /// A counter: a flag.
    Value(VariableId),
    /// A flag that code at both ends of the call sets to numbers: that is right whether or not there is a record, which is only for calls that
    /// end otherwise. Where there is none, as there is no room for it, the code runs all the same.
    Flag(VariableId),
    /// The number of starts of a timer; the timer is stopped or goes on accordingly.
    Timer(VariableId, Clock),
}

impl Restore {
    /// The variable.
    pub fn variable(self) -> VariableId {
        match self {
            Restore::Value(v) | Restore::Flag(v) | Restore::Timer(v, _) => v,
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
    /// Signed, towards zero; by zero gives 0, as a snippet must not fault.
    Divide,
    /// Signed; by zero gives 0.
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
pub enum Width {
    One,
    Two,
    Four,
    Eight,
}

impl Width {
    /// The width of so many bytes, if there is one.
    pub const fn of(bytes: u64) -> Option<Width> {
        Some(match bytes {
            1 => Width::One,
            2 => Width::Two,
            4 => Width::Four,
            8 => Width::Eight,
            _ => return None,
        })
    }

    /// Number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
            Width::Eight => 8,
        }
    }
}

/// An integer in the memory of the program, and how it becomes 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar {
    /// Size of the integer in memory.
    pub width: Width,
    /// Whether the first bit is the sign; if not, the value is filled up with zeroes.
    pub signed: bool,
}

impl Scalar {
    /// An `int` of C.
    pub const INT: Scalar = Scalar { width: Width::Four, signed: true };
    /// A pointer.
    pub const POINTER: Scalar = Scalar { width: Width::Eight, signed: false };

    /// The value of the lowest bytes of a word; the others do not matter.
    pub const fn extend(self, word: u64) -> i64 {
        match (self.width, self.signed) {
            (Width::One, true) => word as i8 as i64,
            (Width::One, false) => word as u8 as i64,
            (Width::Two, true) => word as i16 as i64,
            (Width::Two, false) => word as u16 as i64,
            (Width::Four, true) => word as i32 as i64,
            (Width::Four, false) => word as u32 as i64,
            (Width::Eight, _) => word.cast_signed(),
        }
    }
}

/// A floating-point number that an argument or a result is: in the vector register that the System V convention says. Its value is truncated
/// towards zero; what is no number, or does not fit into 64 bits, is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Float {
    /// Number of the register: of arguments from 0 to [`Float::ARGS_MAX`] less one, 0 of a result.
    pub register: u8,
    /// Format of the number.
    pub format: FloatFormat,
}

impl Float {
    /// Most arguments that go in vector registers.
    pub const ARGS_MAX: u8 = 8;
}

/// Formats of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FloatFormat {
    /// A `float` of C.
    Single,
    /// A `double`.
    Double,
}

impl FloatFormat {
    /// Bits of its fraction, without the one that is not written.
    pub const fn fraction_bits(self) -> u32 {
        match self {
            FloatFormat::Single => 23,
            FloatFormat::Double => 52,
        }
    }

    /// The exponent as it is written of the number 1, half of what the exponent's bits hold.
    pub const fn bias(self) -> u32 {
        match self {
            FloatFormat::Single => 127,
            FloatFormat::Double => 1023,
        }
    }
}

/// Numbers that the kernel counts for each thread and tells that thread itself (getrusage(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Page faults of both kinds.
    PageFaults,
    /// Page faults that needed no reading from a disk.
    MinorFaults,
    /// Page faults that needed a reading from a disk.
    MajorFaults,
    /// Switches to another thread, by itself or not.
    ContextSwitches,
}

impl Usage {
    /// Counts that make up the number, as bits: minor faults 1, major faults 2, switches 4.
    pub const fn counts(self) -> u32 {
        match self {
            Usage::MinorFaults => 1,
            Usage::MajorFaults => 2,
            Usage::PageFaults => 3,
            Usage::ContextSwitches => 4,
        }
    }
}

/// A value: 64 bits, signed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(i64),
    /// The n-th integer argument of the function at whose entry the snippet stands, or before a call of the callee, from 0 (System V: rdi, rsi, rdx, rcx,
    /// r8, r9, then the stack).
    Arg(u8),
    /// The value that the function returns (rax): at an exit, and behind a call.
    Return,
    /// A floating-point argument or result, truncated.
    Float(Float),
    /// Count of the kernel for this thread: a system call.
    Usage(Usage),
    /// Count of an event for this thread since the thread read it first: by RDPMC, without a system call. The variable is of
    /// [`Shape::Event`]. A reading that cannot be had is the last one, and counted.
    Event(VariableId),
    /// The address of a text that ends with a zero byte and is there as long as the call: only as an argument of a [`Call`].
    Text(Arc<str>),
    /// The address of this thread's slot of a variable: only as an argument of a [`Call`].
    Address(VariableId),
    /// An argument that the record of the enclosing [`Stmt::Close`] has kept; a floating-point one truncated.
    Saved(Kept),
    /// Time since the record of the enclosing [`Stmt::Close`] was opened, by a clock that it has kept.
    Elapsed(Clock, TimeUnit),
    /// Value that the record of the enclosing [`Stmt::Close`] would put back, see [`Restore::Value`]: the value when it was opened.
    Restored,
    /// This thread's value of a variable.
    Variable(VariableId),
    /// This thread's value of a key in a table; 0 if the table has no place for it, and without a shard.
    ValueAt(VariableId, Box<Expr>),
    /// This thread's value of the granule in which a number lies; 0 outside.
    ValueIn(VariableId, Ranges, Box<Expr>),
    /// The thread's pointer, as its libc has stored it where the pointer leads (fs:0): from there on the thread has data of its own.
    ThreadPointer,
    /// Number of the variable's first counter; it tells a pair from all others that are measured with it.
    Number(VariableId),
    /// An integer of the program at an address that is mapped and readable as long as the process lives.
    Load(Avma, Scalar),
    /// An integer of the program at any address; 0 if it cannot be read. A system call, which never faults; in fork children, which
    /// nobody measures, 0.
    Read(Box<Expr>, Scalar),
    /// An operator applied to one value.
    Unary(UnaryOp, Box<Expr>),
    /// An operator applied to two values.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Result of a function of the program that is called now.
    Call(Box<Call>),
}

impl Expr {
    /// Visits its parts and then itself.
    pub fn each(&self, visit: &mut dyn FnMut(&Expr)) {
        match self {
            Expr::Call(call) => call.args.iter().for_each(|e| e.each(visit)),
            Expr::Unary(_, e) | Expr::Read(e, _) | Expr::ValueAt(_, e) | Expr::ValueIn(_, _, e) => e.each(visit),
            Expr::Binary(_, a, b) => {
                a.each(visit);
                b.each(visit);
            }
            Expr::Const(_)
            | Expr::Arg(_)
            | Expr::Return
            | Expr::Float(_)
            | Expr::Usage(_)
            | Expr::Event(_)
            | Expr::Text(_)
            | Expr::Address(_)
            | Expr::Saved(_)
            | Expr::Elapsed(..)
            | Expr::Restored
            | Expr::Variable(_)
            | Expr::Number(_)
            | Expr::ThreadPointer
            | Expr::Load(..) => {}
        }
        visit(self);
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Add a value to this thread's slot of a variable.
    Add(VariableId, Expr),
    /// Set this thread's slot of a variable.
    Set(VariableId, Expr),
    /// Do the statements if the value is not 0.
    If(Expr, Vec<Stmt>),
    /// Close the records of calls that have ended without passing an exit: once at an entry or before a call, before any record is opened
    /// there, because what is open afterwards at this call's stack pointer belongs to this call.
    Prune,
    /// At the loader's hook, and only there: tell the engine that something was mapped or unmapped, and wait until it has looked at what was
    /// mapped, for at most [`crate::layout::LOADER_WAIT_NS`].
    Await,
    /// At the entry of the C library's fork, and only there: claim a shard for the child and copy this thread's state there, see
    /// [`crate::layout::birth`].
    Fork,
    /// At the exits of that function: in the parent, forget the child's shard; in the child, make of the copy what the child begins with.
    Forked,
    /// Open an activation record and do the statements; nothing of it if no record can be had, which is counted. At an entry or before a call.
    Open(Record, Vec<Stmt>),
    /// If the record of this call is open: do the statements and close it. If not, count that. At an exit or behind a call; records that were
    /// opened later are closed before.
    Close(Record, Vec<Stmt>),
    /// At a jump to another function, whose exits close the record: leave it open, so that the call lasts until its frame is gone. If there is no
    /// such record and the call is the function's own, count that, and do the statements if they need no record.
    HandOver(Record, Whose, Vec<Stmt>),
    /// At a jump to another function that the engine cannot follow: take the record away, give back what it restores, and count the call as left by a
    /// tail jump. The rest is as in [`Stmt::HandOver`].
    GiveUp(Record, Whose, Vec<Stmt>),
    /// At an exit of a function to which others jump: if a record of one of their calls is open for this frame, do the statements and close it.
    CloseHanded(Record, Vec<Stmt>),
    /// Start a timer, or nest it one deeper.
    Start(VariableId, Clock),
    /// Undo one start of a timer; nothing if it does not run.
    Stop(VariableId, Clock),
    /// Enter a value into a histogram, of the resolution that is its shape's; negative ones as 0.
    Observe(VariableId, Resolution, Expr),
    /// Add to the value of a key in a table: the key, then what is added.
    AddAt(VariableId, Expr, Expr),
    /// Add to the value of the granule in which a number lies, or to that of what lies outside: the number, then what is added.
    AddIn(VariableId, Ranges, Expr, Expr),
    /// Add to the value of a key if the engine lists it: the key, then what is added.
    AddListed(VariableId, Listing, Expr, Expr),
    /// Note in a table what an object is from now on, by its address: the time with the state in its lowest bits, see [`crate::object`].
    Mark(VariableId, Expr, ObjectState),
    /// Call a function of the program for its effect.
    Call(Call),
    /// Set an integer of the program at an address that is mapped and writable as long as the process lives; not in fork children.
    Store(Avma, Width, Expr),
    /// Set an integer of the program at any address: the address, how wide it is, the value. A system call, which never faults: what cannot be written
    /// stays as it is. Not in fork children.
    Write(Expr, Width, Expr),
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

    /// Whether it reads that clock.
    pub fn reads(&self, clock: Clock) -> bool {
        fn any(stmts: &[Stmt], clock: Clock) -> bool {
            stmts.iter().any(|stmt| match stmt {
                Stmt::Start(_, c) | Stmt::Stop(_, c) => *c == clock,
                Stmt::Open(record, body)
                | Stmt::Close(record, body)
                | Stmt::HandOver(record, _, body)
                | Stmt::GiveUp(record, _, body)
                | Stmt::CloseHanded(record, body) => record.kept.contains(&Kept::Time(clock)) || any(body, clock),
                Stmt::If(_, body) => any(body, clock),
                Stmt::Mark(..) => clock == Clock::Wall,
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
                | Stmt::Await
                | Stmt::Fork => false,
                Stmt::Forked => clock == Clock::Wall,
            })
        }
        any(&self.stmts, clock)
    }

    /// Returns the snippet with histograms of another resolution.
    #[must_use]
    pub fn with_resolution(&self, resolution: Resolution) -> Snippet {
        fn set(stmts: &mut [Stmt], to: Resolution) {
            for stmt in stmts {
                match stmt {
                    Stmt::Observe(_, resolution, _) => *resolution = to,
                    Stmt::If(_, body)
                    | Stmt::Open(_, body)
                    | Stmt::Close(_, body)
                    | Stmt::HandOver(_, _, body)
                    | Stmt::GiveUp(_, _, body)
                    | Stmt::CloseHanded(_, body) => set(body, to),
                    Stmt::Add(..)
                    | Stmt::Set(..)
                    | Stmt::Prune
                    | Stmt::Await
                    | Stmt::Fork
                    | Stmt::Forked
                    | Stmt::Start(..)
                    | Stmt::Stop(..)
                    | Stmt::AddAt(..)
                    | Stmt::AddIn(..)
                    | Stmt::AddListed(..)
                    | Stmt::Mark(..)
                    | Stmt::Call(_)
                    | Stmt::Store(..)
                    | Stmt::Write(..) => {}
                }
            }
        }
        let mut other = self.clone();
        set(&mut other.stmts, resolution);
        other
    }

    /// Every call that it makes, outer ones before those in their arguments.
    pub fn calls(&self) -> Vec<&Call> {
        let mut calls = Vec::new();
        calls_of(&self.stmts, &mut calls);
        calls
    }

    /// Puts in place of every callee what `place` says; the first error ends it.
    pub fn place_callees<E>(&mut self, place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
        place_in(&mut self.stmts, place)
    }

    /// The tables of listed keys in which it looks keys up.
    pub fn listings(&self) -> Vec<(VariableId, Listing)> {
        let mut found = Vec::new();
        self.each_stmt(&mut |stmt| {
            if let Stmt::AddListed(variable, listing, ..) = stmt {
                found.push((*variable, *listing));
            }
        });
        found
    }

    /// Whether it reads or sets memory of the program, or asks for what the kernel counts, by system calls.
    pub fn asks_kernel(&self) -> bool {
        let mut found = self.writes();
        self.each_expr(&mut |e| found |= matches!(e, Expr::Read(..) | Expr::Usage(_) | Expr::Event(_)));
        found
    }

    /// Whether it reads or sets data of which every thread has its own.
    pub fn has_own_data(&self) -> bool {
        let mut found = false;
        self.each_expr(&mut |e| found |= *e == Expr::ThreadPointer);
        found
    }

    /// The integers of the program that it sets where they lie as long as the process lives.
    pub fn stores(&self) -> Vec<(Avma, Width)> {
        let mut found = Vec::new();
        self.each_stmt(&mut |stmt| {
            if let Stmt::Store(at, width, _) = stmt {
                found.push((*at, *width));
            }
        });
        found
    }

    /// Whether it sets memory of the program at addresses that it computes.
    pub fn writes(&self) -> bool {
        let mut found = false;
        self.each_stmt(&mut |stmt| found |= matches!(stmt, Stmt::Write(..)));
        found
    }

    /// Whether it changes the program: calls its functions, or sets its variables.
    pub fn interferes(&self) -> bool {
        !self.calls().is_empty() || !self.stores().is_empty() || self.writes()
    }

    /// Visits every statement, outer ones before inner ones.
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

    /// Visits every value, inner ones before outer ones.
    pub fn each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        fn all(stmts: &[Stmt], visit: &mut dyn FnMut(&Expr)) {
            for stmt in stmts {
                match stmt {
                    Stmt::Add(_, e)
                    | Stmt::Set(_, e)
                    | Stmt::Observe(_, _, e)
                    | Stmt::Store(_, _, e)
                    | Stmt::Mark(_, e, _) => e.each(visit),
                    Stmt::AddAt(_, key, e)
                    | Stmt::AddIn(_, _, key, e)
                    | Stmt::AddListed(_, _, key, e)
                    | Stmt::Write(key, _, e) => {
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
                    Stmt::Call(call) => call.args.iter().for_each(|e| e.each(visit)),
                    Stmt::Prune | Stmt::Await | Stmt::Fork | Stmt::Forked | Stmt::Start(..) | Stmt::Stop(..) => {}
                }
            }
        }
        all(&self.stmts, visit);
    }

    /// The variable if the snippet is nothing but one increment by 1: the case with the shortest code.
    pub fn as_increment(&self) -> Option<VariableId> {
        match self.stmts.as_slice() {
            [Stmt::Add(variable, Expr::Const(1))] => Some(*variable),
            _ => None,
        }
    }
}

fn calls_of<'a>(stmts: &'a [Stmt], calls: &mut Vec<&'a Call>) {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e) | Stmt::Set(_, e) | Stmt::Observe(_, _, e) | Stmt::Store(_, _, e) | Stmt::Mark(_, e, _) => {
                e.calls_in(calls)
            }
            Stmt::AddAt(_, key, e)
            | Stmt::AddIn(_, _, key, e)
            | Stmt::AddListed(_, _, key, e)
            | Stmt::Write(key, _, e) => {
                key.calls_in(calls);
                e.calls_in(calls);
            }
            Stmt::If(e, body) => {
                e.calls_in(calls);
                calls_of(body, calls);
            }
            Stmt::Open(_, body)
            | Stmt::Close(_, body)
            | Stmt::HandOver(_, _, body)
            | Stmt::GiveUp(_, _, body)
            | Stmt::CloseHanded(_, body) => calls_of(body, calls),
            Stmt::Call(call) => {
                calls.push(call);
                call.args.iter().for_each(|e| e.calls_in(calls));
            }
            Stmt::Prune | Stmt::Await | Stmt::Fork | Stmt::Forked | Stmt::Start(..) | Stmt::Stop(..) => {}
        }
    }
}

fn place_in<E>(stmts: &mut [Stmt], place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e) | Stmt::Set(_, e) | Stmt::Observe(_, _, e) | Stmt::Store(_, _, e) | Stmt::Mark(_, e, _) => {
                e.place_callees(place)?
            }
            Stmt::AddAt(_, key, e)
            | Stmt::AddIn(_, _, key, e)
            | Stmt::AddListed(_, _, key, e)
            | Stmt::Write(key, _, e) => {
                key.place_callees(place)?;
                e.place_callees(place)?;
            }
            Stmt::If(e, body) => {
                e.place_callees(place)?;
                place_in(body, place)?;
            }
            Stmt::Open(_, body)
            | Stmt::Close(_, body)
            | Stmt::HandOver(_, _, body)
            | Stmt::GiveUp(_, _, body)
            | Stmt::CloseHanded(_, body) => place_in(body, place)?,
            Stmt::Call(call) => place_call(call, place)?,
            Stmt::Prune | Stmt::Await | Stmt::Fork | Stmt::Forked | Stmt::Start(..) | Stmt::Stop(..) => {}
        }
    }
    Ok(())
}

fn place_call<E>(call: &mut Call, place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
    call.callee = place(&call.callee)?;
    call.args.iter_mut().try_for_each(|e| e.place_callees(place))
}

impl Stmt {
    /// The statements in it.
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
}

impl Expr {
    fn calls_in<'a>(&'a self, calls: &mut Vec<&'a Call>) {
        match self {
            Expr::Binary(_, a, b) => {
                a.calls_in(calls);
                b.calls_in(calls);
            }
            Expr::Unary(_, e) | Expr::Read(e, _) | Expr::ValueAt(_, e) | Expr::ValueIn(_, _, e) => e.calls_in(calls),
            Expr::Call(call) => {
                calls.push(call);
                call.args.iter().for_each(|e| e.calls_in(calls));
            }
            _ => {}
        }
    }

    /// Whether computing it calls a function.
    pub fn has_calls(&self) -> bool {
        let mut calls = Vec::new();
        self.calls_in(&mut calls);
        !calls.is_empty()
    }

    fn place_callees<E>(&mut self, place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
        match self {
            Expr::Unary(_, e) | Expr::Read(e, _) | Expr::ValueAt(_, e) | Expr::ValueIn(_, _, e) => {
                e.place_callees(place)
            }
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

    /// The operator as it is written.
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

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(value) => write!(f, "{value}"),
            Expr::Arg(n) => write!(f, "$arg[{n}]"),
            Expr::Return => f.write_str("$return"),
            Expr::Float(float) => float.fmt(f),
            Expr::Usage(usage) => usage.fmt(f),
            Expr::Event(v) => write!(f, "event v{}", v.0),
            Expr::Text(text) => write!(f, "{text:?}"),
            Expr::Address(v) => write!(f, "&v{}", v.0),
            Expr::Saved(kept) => write!(f, "saved {kept}"),
            Expr::Elapsed(clock, TimeUnit::Ticks) => write!(f, "{clock}elapsed_ticks"),
            Expr::Elapsed(Clock::Wall, TimeUnit::Nanoseconds) => f.write_str("$elapsed"),
            Expr::Elapsed(Clock::Cpu, TimeUnit::Nanoseconds) => f.write_str("$cpu"),
            Expr::Restored => f.write_str("restored"),
            Expr::Variable(v) => write!(f, "v{}", v.0),
            Expr::ValueAt(v, key) => write!(f, "v{}[{key}]", v.0),
            Expr::ValueIn(v, ranges, n) => write!(f, "v{}[{}]", v.0, granule(ranges, n)),
            Expr::ThreadPointer => f.write_str("thread pointer"),
            Expr::Number(v) => write!(f, "number of v{}", v.0),
            Expr::Load(at, scalar) => write!(f, "{scalar} at {:#x}", at.0),
            Expr::Read(address, scalar) => write!(f, "read({address}, {scalar})"),
            Expr::Unary(op, e) => {
                let symbol = match op {
                    UnaryOp::Negate => "-",
                    UnaryOp::Not => "!",
                    UnaryOp::Complement => "~",
                };
                write!(f, "{symbol}({e})")
            }
            Expr::Binary(op, a, b) => write!(f, "({a} {} {b})", op.symbol()),
            Expr::Call(call) => call.fmt(f),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Time(clock) => write!(f, "{clock}time"),
            Kept::Argument(n) => Expr::Arg(*n).fmt(f),
            Kept::Float(float) => float.fmt(f),
        }
    }
}

/// As in Rust, and the register: `f64 in xmm0`.
impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = match self.format {
            FloatFormat::Single => 32,
            FloatFormat::Double => 64,
        };
        write!(f, "f{bits} in xmm{}", self.register)
    }
}

/// The name of the event.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Usage::PageFaults => "page-faults",
            Usage::MinorFaults => "minor-faults",
            Usage::MajorFaults => "major-faults",
            Usage::ContextSwitches => "context-switches",
        })
    }
}

/// As in Rust: `i32`, `u8`.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.signed { 'i' } else { 'u' }, 8 * self.width.bytes())
    }
}

fn write_block(f: &mut fmt::Formatter<'_>, head: &dyn fmt::Display, body: &[Stmt]) -> fmt::Result {
    write!(f, "{head} {{")?;
    for s in body {
        write!(f, " {s}")?;
    }
    f.write_str(" }")
}

/// Formats the number of the granule, and the number of granules.
fn granule(ranges: &Ranges, number: &Expr) -> String {
    format!("({number} - {}) / {} < {}", ranges.base(), ranges.granule(), ranges.count())
}

/// A prefix: nothing for the wall clock.
impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::Wall => "",
            Clock::Cpu => "cpu_",
        })
    }
}

/// A prefix: nothing for the function's own.
impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Own => "",
            Whose::Earlier => "earlier ",
        })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.activations.0)?;
        for kept in &self.kept {
            write!(f, " {kept}")?;
        }
        match self.restore {
            Some(Restore::Flag(v)) => write!(f, " flag v{}", v.0),
            Some(Restore::Value(v) | Restore::Timer(v, _)) => write!(f, " restore v{}", v.0),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Stmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stmt::Add(v, Expr::Const(1)) => write!(f, "v{}++;", v.0),
            Stmt::Add(v, e) => write!(f, "v{} += {e};", v.0),
            Stmt::Set(v, e) => write!(f, "v{} = {e};", v.0),
            Stmt::If(c, body) => write_block(f, &format_args!("if ({c})"), body),
            Stmt::Prune => f.write_str("prune;"),
            Stmt::Await => f.write_str("await;"),
            Stmt::Fork => f.write_str("fork;"),
            Stmt::Forked => f.write_str("forked;"),
            Stmt::Open(record, body) => write_block(f, &format_args!("open {record}"), body),
            Stmt::Close(record, body) => write_block(f, &format_args!("close {record}"), body),
            Stmt::HandOver(record, whose, body) => write_block(f, &format_args!("hand over {whose}{record}"), body),
            Stmt::GiveUp(record, whose, body) => write_block(f, &format_args!("give up {whose}{record}"), body),
            Stmt::CloseHanded(record, body) => write_block(f, &format_args!("close handed {record}"), body),
            Stmt::Start(v, clock) => write!(f, "{clock}start v{};", v.0),
            Stmt::Stop(v, clock) => write!(f, "{clock}stop v{};", v.0),
            Stmt::Observe(v, _, e) => write!(f, "observe v{}, {e};", v.0),
            Stmt::AddAt(v, key, e) => write!(f, "v{}[{key}] += {e};", v.0),
            Stmt::AddListed(v, _, key, e) => write!(f, "if listed v{}[{key}] += {e};", v.0),
            Stmt::AddIn(v, ranges, n, e) => write!(f, "v{}[{}] += {e};", v.0, granule(ranges, n)),
            Stmt::Mark(v, key, ObjectState { kind, retired: false }) => {
                write!(f, "discover v{}, {key}, {};", v.0, kind.name())
            }
            Stmt::Mark(v, key, ObjectState { kind, retired: true }) => {
                write!(f, "retire v{}, {key}, {};", v.0, kind.name())
            }
            Stmt::Call(call) => write!(f, "{call};"),
            Stmt::Store(at, width, e) => write!(f, "u{} at {:#x} = {e};", 8 * width.bytes(), at.0),
            Stmt::Write(address, width, e) => write!(f, "write({address}, u{}, {e});", 8 * width.bytes()),
        }
    }
}

impl fmt::Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.stmts.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{s}")?;
        }
        Ok(())
    }
}
