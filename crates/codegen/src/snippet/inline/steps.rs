//! Steps of the code of a point, one after the other.

use ingraft_model::contexts::CURRENT;
use ingraft_model::layout::COUNTERS;
use ingraft_model::{
    BinaryOp, CallRecord, ContextShape, Expr, Fold, KeyField, KeyParts, Places, Ranges, Restore, Stmt, TableShape,
    VariableId, Whose,
};

use crate::snippet::activation::LEFT_BY_TAIL_JUMP;

/// One thing that the code does. Variables are indices of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InlineStep {
    Add(u32, i32),
    Set(u32, i64),
    /// Adds 1 to the value of the granule with the number that is in a variable.
    CountIn {
        first: u32,
        ranges: Ranges,
        number: u32,
    },
    /// Adds 1 to the value of the key that is the sum of a variable and a number.
    CountAt {
        first: u32,
        places: Places,
        number: u32,
        plus: i32,
    },
    /// No other record may be of this frame than those that the code itself opens or closes.
    Bare,
    /// A record of an earlier call of this frame, if there is one, stays handed over.
    HandOn,
    /// The same, but a call that went on with this one by a tail jump may end here too: its record only restores this variable.
    Ends(Option<u32>),
    /// Opens a record with this name that restores a variable.
    Open {
        name: u32,
        restore: Option<u32>,
    },
    /// Begins a call that has a record with this name only inside of another one of the function: `v` is the first counter of the outermost one.
    Begin {
        name: u32,
        v: u32,
    },
    /// Ends such a call.
    End {
        name: u32,
        v: u32,
    },
    /// The last record must be one of this frame with this name.
    Find {
        name: u32,
    },
    /// Marks the record that was found as handed over.
    HandOver,
    /// Sets a variable to what the record that was found would restore.
    SetRestored(u32),
    /// Removes the record that was found.
    Close,
    /// Enters the context of a function.
    Enter {
        tree: u32,
        shape: ContextShape,
        function: u32,
    },
    /// Counts the sum of a variable and a number below the context of the thread.
    CountBelow {
        tree: u32,
        shape: ContextShape,
        function: u32,
        number: u32,
        plus: i32,
    },
}

impl InlineStep {
    /// Whether it is about activation records.
    pub(super) fn is_of_records(&self) -> bool {
        matches!(self, InlineStep::Bare | InlineStep::Ends(_) | InlineStep::Open { .. } | InlineStep::Find { .. })
            || self.is_outermost()
    }

    /// Whether it is about a call that has a record only inside of another one of its function.
    pub(super) fn is_outermost(&self) -> bool {
        matches!(self, InlineStep::Begin { .. } | InlineStep::End { .. })
    }

    /// Whether it looks for a place, which a register holds up to the change.
    pub(super) fn has_place(&self) -> bool {
        matches!(self, InlineStep::Enter { .. } | InlineStep::CountBelow { .. } | InlineStep::CountAt { .. })
    }
}

/// Adds the steps of statements. `None` if a statement has no step.
pub(super) fn lower(stmts: &[Stmt], counters: &[u32], steps: &mut Vec<InlineStep>) -> Option<()> {
    let index = |v: VariableId| counters.get(v.0 as usize).copied();
    let name = |record: &CallRecord| index(record.activations).map(|index| COUNTERS + 8 * index);
    for stmt in stmts {
        if let Some((record, v)) = stmt.record().and_then(|record| Some((record, outermost_of(record)?))) {
            let (name, v) = (name(record)?, index(v)?);
            let (step, body) = begin_or_end(stmt, name, v)?;
            steps.push(step);
            lower(body, counters, steps)?;
            continue;
        }
        match stmt {
            Stmt::Add(v, Expr::Const(amount)) => steps.push(InlineStep::Add(index(*v)?, i32::try_from(*amount).ok()?)),
            Stmt::Set(v, Expr::Const(value)) => {
                let set = InlineStep::Set(index(*v)?, *value);
                // Nothing comes between two settings of a variable that could see the first value.
                steps.pop_if(|last| matches!((last, set), (InlineStep::Set(a, _), InlineStep::Set(b, _)) if *a == b));
                steps.push(set);
            }
            Stmt::Set(v, Expr::Restored) => {
                let v = index(*v)?;
                // Nothing sees a value that was set right before the record was found.
                let before = steps.iter().rposition(|step| !matches!(step, InlineStep::Find { .. }));
                let is_set = |at: &usize| matches!(steps.get(*at), Some(InlineStep::Set(set, _)) if *set == v);
                if let Some(at) = before.filter(is_set) {
                    steps.remove(at);
                }
                steps.push(InlineStep::SetRestored(v));
            }
            Stmt::AddIn(v, ranges, Expr::Variable(number), Expr::Const(1)) => {
                let short = i32::try_from(ranges.base()).is_ok() && i32::try_from(ranges.length()).is_ok();
                if ranges.granule() != 1 || !short {
                    return None;
                }
                steps.push(InlineStep::CountIn { first: index(*v)?, ranges: *ranges, number: index(*number)? });
            }
            Stmt::AddAt(v, table, key, Expr::Const(1)) => {
                let [KeyField::Number(key)] = key.as_slice() else { return None };
                let (number, plus) = sum_of(key)?;
                steps.push(count_at(index(*v)?, *table, index(number)?, plus)?);
            }
            Stmt::Prune => steps.push(InlineStep::Bare),
            Stmt::CloseHanded(record, body) => steps.push(InlineStep::Ends(handed(record, body).and_then(index))),
            Stmt::HandOver(_, Whose::Earlier, _) => steps.push(InlineStep::HandOn),
            Stmt::GiveUp(_, Whose::Earlier, _) => steps.push(InlineStep::Bare),
            Stmt::Open(record, body) if record.kept.is_empty() => {
                let restore = match record.restore {
                    Some(Restore::Value(v) | Restore::Flag(v)) => Some(index(v)?),
                    Some(Restore::Timer(..) | Restore::Outermost(_)) => return None,
                    None => None,
                };
                steps.push(InlineStep::Open { name: name(record)?, restore });
                lower(body, counters, steps)?;
            }
            Stmt::Close(record, body) if record.kept.is_empty() => {
                steps.push(InlineStep::Find { name: name(record)? });
                lower(body, counters, steps)?;
                steps.push(InlineStep::Close);
            }
            // The statements are for a call without a record.
            Stmt::HandOver(record, Whose::Own, _) => {
                steps.extend([InlineStep::Find { name: name(record)? }, InlineStep::HandOver]);
            }
            Stmt::GiveUp(record, Whose::Own, _) => {
                let Some(Restore::Value(v) | Restore::Flag(v)) = record.restore else { return None };
                let counted = InlineStep::Add(index(record.activations)? + LEFT_BY_TAIL_JUMP, 1);
                steps.extend([InlineStep::Bare, InlineStep::Find { name: name(record)? }]);
                steps.extend([InlineStep::SetRestored(index(v)?), counted, InlineStep::Close]);
            }
            Stmt::Enter(v, shape, function) => {
                steps.push(InlineStep::Enter { tree: index(*v)?, shape: *shape, function: *function });
            }
            Stmt::CountBelow(v, shape, function, e) => {
                let ((number, plus), (shape, function)) = (sum_of(e)?, (*shape, *function));
                let (tree, number) = (index(*v)?, index(number)?);
                steps.push(InlineStep::CountBelow { tree, shape, function, number, plus });
            }
            _ => return None,
        }
    }
    Some(())
}

/// The variable of the outermost call, if such a call has no record.
fn outermost_of(record: &CallRecord) -> Option<VariableId> {
    if let Some(Restore::Outermost(v)) = record.restore { Some(v) } else { None }
}

/// The step that begins or ends a call whose outermost one has no record, and the statements after it.
fn begin_or_end(stmt: &Stmt, name: u32, v: u32) -> Option<(InlineStep, &[Stmt])> {
    match stmt {
        Stmt::Open(_, body) => Some((InlineStep::Begin { name, v }, body)),
        Stmt::Close(_, body) if body.is_empty() => Some((InlineStep::End { name, v }, body)),
        _ => None,
    }
}

/// Leaves earlier records to the mark of this call's own one: the next function looks at marks from the last record on. If this call hands over
/// none, there must be no earlier one.
pub(super) fn hand_on(steps: &mut Vec<InlineStep>) {
    let marks = steps.contains(&InlineStep::HandOver);
    steps.retain(|step| !(marks && *step == InlineStep::HandOn));
    steps.iter_mut().filter(|step| **step == InlineStep::HandOn).for_each(|step| *step = InlineStep::Bare);
}

/// The variable of a handed record that only restores it when the call ends.
fn handed(record: &CallRecord, body: &[Stmt]) -> Option<VariableId> {
    match (record.restore, body) {
        (Some(Restore::Value(v)), [Stmt::Set(set, Expr::Restored)]) if *set == v => Some(v),
        _ => None,
    }
}

/// The variable and the number of which a value is the sum.
fn sum_of(e: &Expr) -> Option<(VariableId, i32)> {
    match e {
        Expr::Variable(v) => Some((*v, 0)),
        Expr::Binary(BinaryOp::Add, a, b) => match (&**a, &**b) {
            (Expr::Variable(v), Expr::Const(plus)) => Some((*v, i32::try_from(*plus).ok()?)),
            _ => None,
        },
        _ => None,
    }
}

fn count_at(first: u32, table: TableShape, number: u32, plus: i32) -> Option<InlineStep> {
    let sums = table.fold == Fold::Sum && Some(table.parts) == KeyParts::of([false]);
    sums.then_some(InlineStep::CountAt { first, places: table.places, number, plus })
}

/// The steps without those that only count.
pub(super) fn own_of(steps: &[InlineStep]) -> impl Iterator<Item = InlineStep> {
    steps.iter().copied().filter(|step| !matches!(step, InlineStep::Add(..)))
}

/// The variable of a record that was handed over to this call, if code of its own is for that case: this call opens or closes one record, which
/// restores the same variable.
pub(super) fn handed_in(steps: &[InlineStep]) -> Option<u32> {
    let (ends, own): (Vec<InlineStep>, Vec<InlineStep>) =
        own_of(steps).partition(|step| matches!(step, InlineStep::Ends(_)));
    match (own.as_slice(), ends.as_slice()) {
        // The contexts of both restore that of the caller.
        ([InlineStep::Bare, InlineStep::Open { restore: Some(v), .. }, InlineStep::Enter { tree, .. }], [])
            if *v == tree + CURRENT =>
        {
            Some(*v)
        }
        ([InlineStep::Find { .. }, InlineStep::SetRestored(v), InlineStep::Close], [_, ..])
            if ends.iter().all(|step| *step == InlineStep::Ends(Some(*v))) =>
        {
            Some(*v)
        }
        _ => None,
    }
}
