//! The calls of functions of the program in statements.

use super::{Called, KeyField, ProgramCall, Stmt};

/// Adds the calls of functions of the program in statements.
pub(super) fn calls_of<'a>(stmts: &'a [Stmt], calls: &mut Vec<&'a ProgramCall>) {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e)
            | Stmt::Set(_, e)
            | Stmt::Observe(_, _, e, _)
            | Stmt::Store(_, _, e)
            | Stmt::AddContext(_, _, _, e)
            | Stmt::CountBelow(_, _, _, e)
            | Stmt::EnterValue(_, _, _, _, e)
            | Stmt::Mark(_, e, _) => e.calls_in(calls),
            Stmt::AddAt(_, _, key, e) => {
                key.iter().flat_map(KeyField::operands).for_each(|part| part.calls_in(calls));
                e.calls_in(calls);
            }
            Stmt::AddIn(_, _, key, e) | Stmt::AddListed(_, _, key, e) | Stmt::Write(key, _, e) => {
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
            Stmt::Record(_, _, recorded) => recorded.fields.iter().for_each(|f| f.operand().calls_in(calls)),
            Stmt::Prune
            | Stmt::BeginGroup(_)
            | Stmt::KeepGroup(_)
            | Stmt::Notes(_)
            | Stmt::Enter(..)
            | Stmt::EnterMoving(..)
            | Stmt::LeaveMoving(..)
            | Stmt::LeaveValue(..)
            | Stmt::Await
            | Stmt::Fork
            | Stmt::Switch(_)
            | Stmt::Forked
            | Stmt::Start(..)
            | Stmt::Stop(..)
            | Stmt::Append(..) => {}
        }
    }
}

/// Sets the functions of the program that statements call.
pub(super) fn place_in<E>(stmts: &mut [Stmt], place: &mut dyn FnMut(&Called) -> Result<Called, E>) -> Result<(), E> {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e)
            | Stmt::Set(_, e)
            | Stmt::Observe(_, _, e, _)
            | Stmt::Store(_, _, e)
            | Stmt::AddContext(_, _, _, e)
            | Stmt::CountBelow(_, _, _, e)
            | Stmt::EnterValue(_, _, _, _, e)
            | Stmt::Mark(_, e, _) => e.place_callees(place)?,
            Stmt::AddAt(_, _, key, e) => {
                key.iter_mut().flat_map(KeyField::operands_mut).try_for_each(|part| part.place_callees(place))?;
                e.place_callees(place)?;
            }
            Stmt::AddIn(_, _, key, e) | Stmt::AddListed(_, _, key, e) | Stmt::Write(key, _, e) => {
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
            Stmt::Record(_, _, recorded) => {
                recorded.fields.iter_mut().try_for_each(|f| f.operand_mut().place_callees(place))?;
            }
            Stmt::Prune
            | Stmt::BeginGroup(_)
            | Stmt::KeepGroup(_)
            | Stmt::Notes(_)
            | Stmt::Enter(..)
            | Stmt::EnterMoving(..)
            | Stmt::LeaveMoving(..)
            | Stmt::LeaveValue(..)
            | Stmt::Await
            | Stmt::Fork
            | Stmt::Switch(_)
            | Stmt::Forked
            | Stmt::Start(..)
            | Stmt::Stop(..)
            | Stmt::Append(..) => {}
        }
    }
    Ok(())
}

/// Sets the function of the program that a call calls.
pub(super) fn place_call<E>(
    call: &mut ProgramCall,
    place: &mut dyn FnMut(&Called) -> Result<Called, E>,
) -> Result<(), E> {
    call.callee = place(&call.callee)?;
    call.args.iter_mut().try_for_each(|e| e.place_callees(place))
}
