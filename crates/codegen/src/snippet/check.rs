//! Checks of a snippet before it is compiled: its nesting, its variables, and what code can be made of.

use ingraft_model::contexts::{FUNCTIONS_MAX, METRICS_MAX};
use ingraft_model::layout::goroutine::DESCRIPTOR;
use ingraft_model::snippet::Appended;
use ingraft_model::{
    Called, Capacity, ContextShape, Expr, Float, Fold, KeyField, KeyParts, NotesStmt, ProgramCall, Recorded, Restore,
    Shape, Snippet, Stmt, TableShape, VariableId,
};

use crate::code::environment::CodegenError;
use crate::snippet::words::{WORDS, words_of};

/// Maximum nesting of a snippet. Each level may push one word onto the target's stack.
const DEPTH_MAX: u32 = 64;

/// Checks the nesting, and that every variable is bound to counters that exist.
pub(crate) fn snippet(snippet: &Snippet, bound: &[u32], counters: u32) -> Result<(), CodegenError> {
    check_stmts(
        &snippet.stmts,
        &|v: VariableId, shape: Shape| {
            let index = bound.get(v.0 as usize).ok_or(CodegenError::Unbound { variable: v.0 })?;
            let end = index.saturating_add(shape.slots());
            if end <= counters { Ok(()) } else { Err(CodegenError::CounterOutOfRange { index: end - 1, counters }) }
        },
        0,
    )
}

/// Check that a variable is bound to counters of the given shape.
type BindingCheck<'a> = dyn Fn(VariableId, Shape) -> Result<(), CodegenError> + 'a;

/// Fails if contexts of this shape have no metric with this number.
fn has_metric(shape: ContextShape, metric: u8) -> Result<(), CodegenError> {
    if shape.metrics() && usize::from(metric) < METRICS_MAX { Ok(()) } else { Err(CodegenError::NoContext) }
}

fn has_number(function: u32) -> Result<(), CodegenError> {
    if (1..=FUNCTIONS_MAX).contains(&function) { Ok(()) } else { Err(CodegenError::NoContext) }
}

fn check_stmts(stmts: &[Stmt], bound: &BindingCheck<'_>, depth: u32) -> Result<(), CodegenError> {
    stmts.iter().try_for_each(|stmt| match stmt {
        Stmt::Add(v, e) | Stmt::Set(v, e) => bound(*v, Shape::Counter).and_then(|()| check_expr(e, bound, depth)),
        Stmt::If(c, body) => check_expr(c, bound, depth).and_then(|()| check_stmts(body, bound, deeper(depth)?)),
        Stmt::Prune | Stmt::Await | Stmt::Fork | Stmt::Forked | Stmt::Switch(_) => Ok(()),
        Stmt::Open(record, body)
        | Stmt::Close(record, body)
        | Stmt::HandOver(record, _, body)
        | Stmt::GiveUp(record, _, body)
        | Stmt::CloseHanded(record, body) => {
            bound(record.activations, Shape::Activations)?;
            match record.restore {
                Some(Restore::Value(v) | Restore::Flag(v)) => bound(v, Shape::Counter)?,
                Some(Restore::Timer(v, clock)) => bound(v, Shape::Timer(clock))?,
                Some(Restore::Outermost(v)) => bound(v, Shape::Outermost)?,
                None => {}
            }
            check_stmts(body, bound, deeper(depth)?)
        }
        Stmt::Start(v, clock) | Stmt::Stop(v, clock) => bound(*v, Shape::Timer(*clock)),
        Stmt::Observe(v, resolution, e, _) => {
            bound(*v, Shape::Histogram(*resolution)).and_then(|()| check_expr(e, bound, depth))
        }
        Stmt::AddAt(v, table, key, e) => {
            if KeyParts::of(key.iter().map(KeyField::is_text)) != Some(table.parts) || table.fold != Fold::Sum {
                return Err(CodegenError::NoKey);
            }
            bound(*v, Shape::Table(*table))?;
            // The check assumes that all words of the key, and the amount, are on the stack when a part is computed.
            let depth = (0..=table.parts.words()).try_fold(depth, |depth, _| deeper(depth))?;
            key.iter().flat_map(KeyField::operands).try_for_each(|part| check_expr(part, bound, depth))?;
            check_expr(e, bound, depth)
        }
        Stmt::AddListed(v, listing, key, e) => {
            bound(*v, Shape::Listed(*listing))?;
            check_expr(key, bound, deeper(depth)?).and_then(|()| check_expr(e, bound, depth))
        }
        Stmt::AddIn(v, ranges, number, e) => {
            bound(*v, Shape::Vector(ranges.count()))?;
            check_expr(number, bound, deeper(depth)?).and_then(|()| check_expr(e, bound, depth))
        }
        Stmt::Append(v, capacity, appended) => {
            let fits = (1..=Appended::BYTES_MAX).contains(&appended.bytes.len()) && !appended.bytes.contains(&0);
            if fits { bound(*v, Shape::Buffer(*capacity)) } else { Err(CodegenError::NoAppend) }
        }
        Stmt::Record(v, capacity, recorded) => {
            if recorded.words() > Recorded::WORDS_MAX || recorded.number == u16::MAX || recorded.limit == Some(0) {
                return Err(CodegenError::NoRecord);
            }
            bound(*v, Shape::Records(*capacity, false))?;
            // The check assumes that all words of the record are on the stack when a value is computed.
            let depth = (0..recorded.words()).try_fold(depth, |depth, _| deeper(depth))?;
            recorded.fields.iter().try_for_each(|field| check_expr(field.operand(), bound, depth))
        }
        Stmt::BeginGroup(v) | Stmt::KeepGroup(v) => bound(*v, Shape::Records(Capacity::SMALLEST, false)),
        Stmt::Notes(stmt) => check_notes(*stmt, bound),
        Stmt::Enter(v, shape, function) | Stmt::EnterMoving(v, shape, function) => {
            has_number(*function)?;
            bound(*v, Shape::Contexts(*shape))
        }
        Stmt::CountBelow(v, shape, function, e) | Stmt::EnterValue(v, shape, function, _, e) => {
            has_number(*function)?;
            bound(*v, Shape::Contexts(*shape)).and_then(|()| check_expr(e, bound, depth))
        }
        Stmt::LeaveValue(v, shape) => bound(*v, Shape::Contexts(*shape)),
        Stmt::LeaveMoving(v, shape, metric) => {
            has_metric(*shape, *metric).and_then(|()| bound(*v, Shape::Contexts(*shape)))
        }
        Stmt::AddContext(v, shape, metric, e) => {
            has_metric(*shape, *metric)?;
            bound(*v, Shape::Contexts(*shape)).and_then(|()| check_expr(e, bound, depth))
        }
        Stmt::Mark(v, key, _) => {
            bound(*v, Shape::Table(TableShape::OBJECTS)).and_then(|()| check_expr(key, bound, depth))
        }
        Stmt::Call(call) => check_call(call, bound, depth),
        Stmt::Store(_, _, e) => check_expr(e, bound, depth),
        Stmt::Write(address, _, e) => {
            check_expr(address, bound, deeper(depth)?).and_then(|()| check_expr(e, bound, depth))
        }
    })
}

fn check_notes(stmt: NotesStmt, bound: &BindingCheck<'_>) -> Result<(), CodegenError> {
    match stmt {
        NotesStmt::Begin(v) => bound(v, Shape::Activations),
        NotesStmt::Add(u16::MAX) => Err(CodegenError::NoRecord),
        NotesStmt::Tell(v, capacity) => bound(v, Shape::Records(capacity, false)),
        NotesStmt::Add(_) | NotesStmt::End => Ok(()),
    }
}

fn check_expr(e: &Expr, bound: &BindingCheck<'_>, depth: u32) -> Result<(), CodegenError> {
    match e {
        Expr::Const(_) | Expr::Arg(_) | Expr::Return | Expr::ReturnAddress => Ok(()),
        Expr::Saved(_) | Expr::Elapsed(..) | Expr::Restored => Ok(()),
        Expr::Lost(v) => bound(*v, Shape::Records(Capacity::SMALLEST, false)),
        Expr::OfGoroutine(at) if *at <= DESCRIPTOR - 8 => Ok(()),
        Expr::OfGoroutine(_) => Err(CodegenError::NoGoroutines { why: "a descriptor is not so large" }),
        // The environment decides whether these can be read, see [`crate::snippet::reading`].
        Expr::Load(..) | Expr::Usage(_) | Expr::Now(_) | Expr::ThreadPointer | Expr::Notes => Ok(()),
        Expr::Event(v) => bound(*v, Shape::Event),
        Expr::Float(float) if float.register < Float::ARGS_MAX => Ok(()),
        Expr::Float(_) => Err(CodegenError::NoFloat),
        Expr::Text(_) | Expr::Address(_) => {
            Err(CodegenError::NoCall { why: "a text or an address is an argument of something else" })
        }
        Expr::Variable(v) | Expr::Number(v) => bound(*v, Shape::Counter),
        Expr::ValueAt(v, places, key) => {
            let table = TableShape { places: *places, ..TableShape::SUMS };
            bound(*v, Shape::Table(table)).and_then(|()| check_expr(key, bound, depth))
        }
        Expr::ValueIn(v, ranges, number) => {
            bound(*v, Shape::Vector(ranges.count())).and_then(|()| check_expr(number, bound, depth))
        }
        Expr::Unary(_, e) | Expr::Read(e, _) => check_expr(e, bound, deeper(depth)?),
        Expr::Since(v, e) => bound(*v, Shape::Counter).and_then(|()| check_expr(e, bound, deeper(depth)?)),
        Expr::Binary(_, a, b) => check_expr(a, bound, deeper(depth)?).and_then(|()| check_expr(b, bound, depth + 1)),
        Expr::Call(call) => check_call(call, bound, depth),
    }
}

fn check_call(call: &ProgramCall, bound: &BindingCheck<'_>, depth: u32) -> Result<(), CodegenError> {
    if let Called::Named(_) = call.callee {
        return Err(CodegenError::NoCall { why: "it is known by its name only" });
    }
    if call.args.len() > ProgramCall::ARGS_MAX {
        return Err(CodegenError::NoCall { why: "more than six arguments" });
    }
    // The check assumes that all texts and words of a call are on the stack when an argument is computed.
    let texts = call.args.iter().map(|e| if let Expr::Text(text) = e { words_of(text).len() } else { 0 });
    let words = texts.sum::<usize>().saturating_add(WORDS as usize);
    let depth = (0..words).try_fold(depth, |depth, _| deeper(depth))?;
    call.args.iter().try_for_each(|e| match e {
        Expr::Text(_) => Ok(()),
        Expr::Address(v) => bound(*v, Shape::Counter),
        e => check_expr(e, bound, depth),
    })
}

fn deeper(depth: u32) -> Result<u32, CodegenError> {
    if depth < DEPTH_MAX { Ok(depth + 1) } else { Err(CodegenError::TooDeep { limit: DEPTH_MAX }) }
}
