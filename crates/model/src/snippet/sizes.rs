//! Sizes of variables in a snippet, which follow from the number of such variables in the process.

use super::{Expr, KeyField, Stmt};
use crate::histogram::Resolution;
use crate::table::{Places, TableShape};

/// Sets the sizes of the histograms and of the tables of sums.
pub(super) fn set(stmts: &mut [Stmt], resolution: Resolution, places: Places) {
    for stmt in stmts {
        match stmt {
            Stmt::Observe(_, old, e, _) => {
                *old = resolution;
                expr(e, places);
            }
            Stmt::AddAt(_, TableShape { places: old, .. }, key, e) => {
                *old = places;
                key.iter_mut().flat_map(KeyField::operands_mut).for_each(|part| expr(part, places));
                expr(e, places);
            }
            Stmt::If(condition, body) => {
                expr(condition, places);
                set(body, resolution, places);
            }
            Stmt::Open(_, body)
            | Stmt::Close(_, body)
            | Stmt::HandOver(_, _, body)
            | Stmt::GiveUp(_, _, body)
            | Stmt::CloseHanded(_, body) => set(body, resolution, places),
            Stmt::Add(_, e)
            | Stmt::Set(_, e)
            | Stmt::Mark(_, e, _)
            | Stmt::Store(_, _, e)
            | Stmt::AddContext(_, _, _, e)
            | Stmt::CountBelow(_, _, _, e)
            | Stmt::EnterValue(_, _, _, _, e) => expr(e, places),
            Stmt::AddIn(_, _, number, e) | Stmt::AddListed(_, _, number, e) | Stmt::Write(number, _, e) => {
                expr(number, places);
                expr(e, places);
            }
            Stmt::Record(_, _, recorded) => {
                recorded.fields.iter_mut().for_each(|field| expr(field.operand_mut(), places))
            }
            Stmt::Call(call) => call.args.iter_mut().for_each(|e| expr(e, places)),
            Stmt::Prune
            | Stmt::Await
            | Stmt::Fork
            | Stmt::Switch(_)
            | Stmt::Forked
            | Stmt::Start(..)
            | Stmt::Stop(..)
            | Stmt::BeginGroup(_)
            | Stmt::KeepGroup(_)
            | Stmt::Notes(_)
            | Stmt::Enter(..)
            | Stmt::EnterMoving(..)
            | Stmt::LeaveMoving(..)
            | Stmt::LeaveValue(..)
            | Stmt::Append(..) => {}
        }
    }
}

fn expr(e: &mut Expr, places: Places) {
    match e {
        Expr::ValueAt(_, old, key) => {
            *old = places;
            expr(key, places);
        }
        Expr::ValueIn(_, _, e) | Expr::Unary(_, e) | Expr::Since(_, e) | Expr::Read(e, _) => expr(e, places),
        Expr::Binary(_, a, b) => {
            expr(a, places);
            expr(b, places);
        }
        Expr::Call(call) => call.args.iter_mut().for_each(|e| expr(e, places)),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snippet::{BinaryOp, CallRecord, Snippet, VariableId};
    use crate::table::KeyParts;

    #[test]
    fn all_tables_and_histograms_get_the_size() {
        let v = VariableId;
        let code = |resolution, places| {
            let value = || Expr::ValueAt(v(0), places, Box::new(Expr::Arg(0)));
            let both = Expr::Binary(BinaryOp::Add, Box::new(value()), Box::new(Expr::Const(1)));
            let parts = KeyParts::of([true, false]).expect("parts");
            let key = vec![KeyField::BoundedText(Expr::Arg(0), value()), KeyField::Number(both.clone())];
            let body = vec![
                Stmt::AddAt(v(1), TableShape { parts, places, ..TableShape::SUMS }, key, both.clone()),
                Stmt::Observe(v(2), resolution, value(), None),
            ];
            let record = CallRecord { activations: v(3), kept: Vec::new(), restore: None };
            Snippet { stmts: vec![Stmt::If(value(), vec![Stmt::Open(record, body)]), Stmt::Set(v(4), both)] }
        };
        let small = code(Resolution::Fine, Places::FEW);
        assert_eq!(small.with_sizes(Resolution::Coarse, Places::MANY), code(Resolution::Coarse, Places::MANY));
    }
}
