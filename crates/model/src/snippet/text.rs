//! Snippets as text, for messages and golden files.

use std::fmt;

use super::*;

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(value) => write!(f, "{value}"),
            Expr::Arg(n) => write!(f, "$arg[{n}]"),
            Expr::Return => f.write_str("$return"),
            Expr::Float(float) => float.fmt(f),
            Expr::Usage(usage) => usage.fmt(f),
            Expr::Now(clock) => write!(f, "{clock}now"),
            Expr::Event(v) => write!(f, "event v{}", v.0),
            Expr::Since(v, e) => write!(f, "({e} since v{})", v.0),
            Expr::Text(text) => write!(f, "{text:?}"),
            Expr::Address(v) => write!(f, "&v{}", v.0),
            Expr::Saved(kept) => write!(f, "saved {kept}"),
            Expr::Elapsed(clock, TimeUnit::Ticks) => write!(f, "{clock}elapsed_ticks"),
            Expr::Elapsed(Clock::Wall, TimeUnit::Nanoseconds) => f.write_str("$elapsed"),
            Expr::Elapsed(Clock::Cpu, TimeUnit::Nanoseconds) => f.write_str("$cpu"),
            Expr::Restored => f.write_str("restored"),
            Expr::Variable(v) => write!(f, "v{}", v.0),
            Expr::ValueAt(v, _, key) => write!(f, "v{}[{key}]", v.0),
            Expr::ValueIn(v, ranges, n) => write!(f, "v{}[{}]", v.0, granule(ranges, n)),
            Expr::ReturnAddress => f.write_str("$caller"),
            Expr::Lost(v) => write!(f, "lost of v{}", v.0),
            Expr::Notes => f.write_str("notes"),
            Expr::OfGoroutine(at) => write!(f, "goroutine +{at}"),
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

impl fmt::Display for KeyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyField::Number(e) => e.fmt(f),
            KeyField::Text(e) => write!(f, "text at {e}"),
            KeyField::BoundedText(e, length) => write!(f, "text at {e} of {length} bytes"),
        }
    }
}

impl fmt::Display for KeptValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptValue::Time(clock) => write!(f, "{clock}time"),
            KeptValue::Spent(clock) => write!(f, "{clock}spent"),
            KeptValue::Began(clock) => write!(f, "{clock}began"),
            KeptValue::Inside => f.write_str("inside"),
            KeptValue::Argument(n) => Expr::Arg(*n).fmt(f),
            KeptValue::Float(float) => float.fmt(f),
        }
    }
}

/// Format as in Rust, then the register: `f64 in xmm0`.
impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = match self.format {
            FloatFormat::Single => 32,
            FloatFormat::Double => 64,
        };
        write!(f, "f{bits} in xmm{}", self.register)
    }
}

/// Name of the event.
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

/// Formats the index of the granule that contains a number, and the number of granules.
fn granule(ranges: &Ranges, number: &Expr) -> String {
    format!("({number} - {}) / {} < {}", ranges.base(), ranges.granule(), ranges.count())
}

/// Prefix of a clock's name; empty for the wall clock.
impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::Wall => "",
            Clock::Cpu => "cpu_",
        })
    }
}

/// Prefix of a record's name; empty for the function's own record.
impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Own => "",
            Whose::Earlier => "earlier ",
        })
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.activations.0)?;
        for kept in &self.kept {
            write!(f, " {kept}")?;
        }
        match self.restore {
            Some(Restore::Flag(v)) => write!(f, " flag v{}", v.0),
            Some(Restore::Value(v) | Restore::Timer(v, _)) => write!(f, " restore v{}", v.0),
            Some(Restore::Outermost(v)) => write!(f, " inside v{}", v.0),
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
            Stmt::Switch(StackSwitch::Leave) => f.write_str("leave stack;"),
            Stmt::Switch(StackSwitch::Enter) => f.write_str("enter stack;"),
            Stmt::Open(record, body) => write_block(f, &format_args!("open {record}"), body),
            Stmt::Close(record, body) => write_block(f, &format_args!("close {record}"), body),
            Stmt::HandOver(record, whose, body) => write_block(f, &format_args!("hand over {whose}{record}"), body),
            Stmt::GiveUp(record, whose, body) => write_block(f, &format_args!("give up {whose}{record}"), body),
            Stmt::CloseHanded(record, body) => write_block(f, &format_args!("close handed {record}"), body),
            Stmt::Start(v, clock) => write!(f, "{clock}start v{};", v.0),
            Stmt::Stop(v, clock) => write!(f, "{clock}stop v{};", v.0),
            Stmt::Observe(v, _, e, None) => write!(f, "observe v{}, {e};", v.0),
            Stmt::Observe(v, _, e, Some(clock)) => write!(f, "observe v{}, {e}, {clock}own;", v.0),
            Stmt::AddAt(v, _, key, e) => {
                let parts: Vec<String> = key.iter().map(KeyField::to_string).collect();
                write!(f, "v{}[{}] += {e};", v.0, parts.join(", "))
            }
            Stmt::AddListed(v, _, key, e) => write!(f, "if listed v{}[{key}] += {e};", v.0),
            Stmt::AddIn(v, ranges, n, e) => write!(f, "v{}[{}] += {e};", v.0, granule(ranges, n)),
            Stmt::Mark(v, key, ObjectState { kind, retired: false }) => {
                write!(f, "discover v{}, {key}, {};", v.0, kind.name())
            }
            Stmt::Mark(v, key, ObjectState { kind, retired: true }) => {
                write!(f, "retire v{}, {key}, {};", v.0, kind.name())
            }
            Stmt::Append(v, _, Appended { time, stack, bytes, waits }) => {
                f.write_str(if *waits { "wait for room; " } else { "" })?;
                write!(f, "append v{}", v.0)?;
                f.write_str(if *time { " time" } else { "" })?;
                f.write_str(if *stack { " sp" } else { "" })?;
                bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
                f.write_str(";")
            }
            Stmt::Record(v, _, Recorded { number, time, fields, limit, leaves_room }) => {
                write!(f, "record v{} {number}", v.0)?;
                f.write_str(if *time { " time" } else { "" })?;
                for field in fields {
                    match field {
                        RecordField::Number(e) => write!(f, ", {e}")?,
                        RecordField::Text(e) => write!(f, ", text at {e}")?,
                    }
                }
                limit.map_or(Ok(()), |limit| write!(f, " limit {limit}"))?;
                f.write_str(if *leaves_room { " leaves room" } else { "" })?;
                f.write_str(";")
            }
            Stmt::BeginGroup(v) => write!(f, "begin group v{};", v.0),
            Stmt::KeepGroup(v) => write!(f, "keep group v{};", v.0),
            Stmt::Notes(NotesStmt::Begin(v)) => write!(f, "begin notes v{};", v.0),
            Stmt::Notes(NotesStmt::Add(number)) => write!(f, "note {number};"),
            Stmt::Notes(NotesStmt::Tell(v, _)) => write!(f, "tell notes v{};", v.0),
            Stmt::Notes(NotesStmt::End) => f.write_str("end notes;"),
            Stmt::EnterMoving(v, _, function) => write!(f, "enter moving v{} {function};", v.0),
            Stmt::LeaveMoving(v, _, metric) => write!(f, "leave moving v{} metric {metric};", v.0),
            Stmt::Enter(v, _, function) => write!(f, "enter v{} {function};", v.0),
            Stmt::CountBelow(v, _, function, e) => write!(f, "count below v{} {function} {e};", v.0),
            Stmt::EnterValue(v, _, function, None, e) => write!(f, "enter value v{} {function} {e};", v.0),
            Stmt::EnterValue(v, _, function, Some(_), e) => write!(f, "enter bucket v{} {function} {e};", v.0),
            Stmt::LeaveValue(v, _) => write!(f, "leave value v{};", v.0),
            Stmt::AddContext(v, _, metric, e) => write!(f, "v{} metric {metric} += {e};", v.0),
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
