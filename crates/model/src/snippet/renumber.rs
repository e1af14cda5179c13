//! Other numbers for the variables of a snippet, so that the code of several definitions can share one list of variables.

use super::{CallRecord, Expr, KeyField, NotesStmt, Restore, Snippet, Stmt, VariableId};

impl Snippet {
    /// Adds `by` to the number of each variable.
    #[must_use]
    pub fn renumbered(&self, by: u32) -> Snippet {
        let mut other = self.clone();
        stmts(&mut other.stmts, by);
        other
    }
}

const fn moved(v: &mut VariableId, by: u32) {
    v.0 = v.0.saturating_add(by);
}

fn record(record: &mut CallRecord, by: u32) {
    moved(&mut record.activations, by);
    match &mut record.restore {
        Some(Restore::Value(v) | Restore::Flag(v) | Restore::Timer(v, _) | Restore::Outermost(v)) => moved(v, by),
        None => {}
    }
}

fn stmts(all: &mut [Stmt], by: u32) {
    for stmt in all {
        match stmt {
            Stmt::Add(v, e) | Stmt::Set(v, e) | Stmt::Observe(v, _, e, _) | Stmt::Mark(v, e, _) => {
                moved(v, by);
                expr(e, by);
            }
            Stmt::AddAt(v, _, key, e) => {
                moved(v, by);
                key.iter_mut().flat_map(KeyField::operands_mut).for_each(|part| expr(part, by));
                expr(e, by);
            }
            Stmt::AddIn(v, _, key, e) | Stmt::AddListed(v, _, key, e) => {
                moved(v, by);
                expr(key, by);
                expr(e, by);
            }
            Stmt::Write(address, _, e) => {
                expr(address, by);
                expr(e, by);
            }
            Stmt::Store(_, _, e) => expr(e, by),
            Stmt::If(condition, body) => {
                expr(condition, by);
                stmts(body, by);
            }
            Stmt::Open(of, body)
            | Stmt::Close(of, body)
            | Stmt::HandOver(of, _, body)
            | Stmt::GiveUp(of, _, body)
            | Stmt::CloseHanded(of, body) => {
                record(of, by);
                stmts(body, by);
            }
            Stmt::Start(v, _) | Stmt::Stop(v, _) | Stmt::Append(v, ..) | Stmt::BeginGroup(v) | Stmt::KeepGroup(v) => {
                moved(v, by)
            }
            Stmt::Enter(v, ..) | Stmt::EnterMoving(v, ..) | Stmt::LeaveMoving(v, ..) | Stmt::LeaveValue(v, ..) => {
                moved(v, by)
            }
            Stmt::AddContext(v, _, _, e) | Stmt::CountBelow(v, _, _, e) | Stmt::EnterValue(v, _, _, _, e) => {
                moved(v, by);
                expr(e, by);
            }
            Stmt::Record(v, _, recorded) => {
                moved(v, by);
                recorded.fields.iter_mut().for_each(|field| expr(field.operand_mut(), by));
            }
            Stmt::Call(call) => call.args.iter_mut().for_each(|e| expr(e, by)),
            Stmt::Notes(NotesStmt::Begin(v) | NotesStmt::Tell(v, _)) => moved(v, by),
            Stmt::Notes(NotesStmt::Add(_) | NotesStmt::End) => {}
            Stmt::Prune | Stmt::Await | Stmt::Fork | Stmt::Forked | Stmt::Switch(_) => {}
        }
    }
}

fn expr(e: &mut Expr, by: u32) {
    match e {
        Expr::Event(v) | Expr::Address(v) | Expr::Variable(v) | Expr::Lost(v) | Expr::Number(v) => moved(v, by),
        Expr::ValueAt(v, _, key) | Expr::ValueIn(v, _, key) => {
            moved(v, by);
            expr(key, by);
        }
        Expr::Unary(_, of) | Expr::Read(of, _) => expr(of, by),
        Expr::Since(v, of) => {
            moved(v, by);
            expr(of, by);
        }
        Expr::Binary(_, a, b) => {
            expr(a, by);
            expr(b, by);
        }
        Expr::Call(call) => call.args.iter_mut().for_each(|e| expr(e, by)),
        Expr::Const(_)
        | Expr::Arg(_)
        | Expr::Return
        | Expr::ReturnAddress
        | Expr::Float(_)
        | Expr::Usage(_)
        | Expr::Now(_)
        | Expr::Text(_)
        | Expr::Saved(_)
        | Expr::Elapsed(..)
        | Expr::Restored
        | Expr::Notes
        | Expr::OfGoroutine(_)
        | Expr::ThreadPointer
        | Expr::Load(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snippet::{BinaryOp, KeptValue, RecordField, Recorded};
    use crate::{Capacity, Clock};

    #[test]
    fn all_variables_move_together() {
        let v = |n| VariableId(n);
        let of = |n, m| CallRecord {
            activations: v(n),
            kept: vec![KeptValue::Time(Clock::Wall)],
            restore: Some(Restore::Value(v(m))),
        };
        let sum = |n| Expr::Binary(BinaryOp::Add, Box::new(Expr::Variable(v(n))), Box::new(Expr::Arg(1)));
        let code = |by: u32| Snippet {
            stmts: vec![
                Stmt::Set(v(by), sum(by + 1)),
                Stmt::Open(of(by + 2, by + 3), vec![Stmt::If(sum(by), vec![Stmt::Start(v(by + 4), Clock::Wall)])]),
                Stmt::Record(
                    v(by + 5),
                    Capacity::of_bytes(0).expect("small"),
                    Recorded {
                        number: 1,
                        time: true,
                        fields: vec![RecordField::Number(sum(by + 6)), RecordField::Number(Expr::Lost(v(by + 5)))],
                        limit: None,
                        leaves_room: true,
                    },
                ),
                Stmt::BeginGroup(v(by + 5)),
                Stmt::KeepGroup(v(by + 5)),
            ],
        };
        assert_eq!(code(0).renumbered(7), code(7));
    }
}
