//! Visits all statements and values of a snippet, or of a definition.

use ingraft_model::{Expr, KeyField, Stmt};

use crate::ast::{CodeKind, CodeStatement, ExprKind, MetaKind, MetaStatement};

/// Visits every statement, outer ones before inner ones.
pub(super) fn each_stmt(stmts: &[Stmt], visit: &mut dyn FnMut(&Stmt)) {
    for stmt in stmts {
        visit(stmt);
        if let Some(inner) = stmt.body() {
            each_stmt(inner, visit);
        }
    }
}

/// Visits every value, inner ones before outer ones.
pub(super) fn each_expr(stmts: &mut [Stmt], visit: &mut dyn FnMut(&mut Expr)) {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e)
            | Stmt::Set(_, e)
            | Stmt::Observe(_, _, e, _)
            | Stmt::Store(_, _, e)
            | Stmt::Mark(_, e, _) => parts(e, visit),
            Stmt::AddAt(_, _, key, e) => {
                key.iter_mut().flat_map(KeyField::operands_mut).for_each(|part| parts(part, visit));
                parts(e, visit);
            }
            Stmt::AddIn(_, _, key, e) | Stmt::AddListed(_, _, key, e) | Stmt::Write(key, _, e) => {
                parts(key, visit);
                parts(e, visit);
            }
            Stmt::AddContext(_, _, _, e) | Stmt::CountBelow(_, _, _, e) | Stmt::EnterValue(_, _, _, _, e) => {
                parts(e, visit)
            }
            Stmt::If(condition, inner) => {
                parts(condition, visit);
                each_expr(inner, visit);
            }
            Stmt::Open(_, inner)
            | Stmt::Close(_, inner)
            | Stmt::HandOver(_, _, inner)
            | Stmt::GiveUp(_, _, inner)
            | Stmt::CloseHanded(_, inner) => each_expr(inner, visit),
            Stmt::Call(call) => call.args.iter_mut().for_each(|e| parts(e, visit)),
            Stmt::Record(_, _, recorded) => recorded.fields.iter_mut().for_each(|f| parts(f.operand_mut(), visit)),
            Stmt::Start(..)
            | Stmt::Stop(..)
            | Stmt::Prune
            | Stmt::Await
            | Stmt::Fork
            | Stmt::Switch(_)
            | Stmt::Forked
            | Stmt::Enter(..)
            | Stmt::EnterMoving(..)
            | Stmt::LeaveMoving(..)
            | Stmt::LeaveValue(..)
            | Stmt::BeginGroup(_)
            | Stmt::KeepGroup(_)
            | Stmt::Notes(_)
            | Stmt::Append(..) => {}
        }
    }
}

fn parts(expr: &mut Expr, visit: &mut dyn FnMut(&mut Expr)) {
    match expr {
        Expr::Unary(_, e) | Expr::Since(_, e) | Expr::Read(e, _) | Expr::ValueAt(_, _, e) | Expr::ValueIn(_, _, e) => {
            parts(e, visit)
        }
        Expr::Binary(_, a, b) => {
            parts(a, visit);
            parts(b, visit);
        }
        Expr::Call(call) => call.args.iter_mut().for_each(|e| parts(e, visit)),
        _ => {}
    }
    visit(expr);
}

/// Whether a definition has `observe`, and every `observe` in it records a time of a call alone.
pub(super) fn observes_times_alone<'a>(bodies: impl Iterator<Item = &'a [MetaStatement]>) -> bool {
    let (mut times, mut others) = (0, 0);
    for body in bodies {
        each_code(body, &mut |code| {
            if let CodeKind::Expr(expr) = &code.kind
                && let ExprKind::Call(callee, args) = &expr.bare().kind
                && let ("observe", false, [_, value, ..]) = (callee.name.as_str(), callee.quoted, args.as_slice())
            {
                let counted = if let ExprKind::Elapsed(_) = value.bare().kind { &mut times } else { &mut others };
                *counted += 1;
            }
        });
    }
    times > 0 && others == 0
}

/// Visits every statement that the program is to execute, whether it will have a point or not.
fn each_code<'a>(body: &'a [MetaStatement], visit: &mut dyn FnMut(&'a CodeStatement)) {
    for meta in body {
        match &meta.kind {
            MetaKind::Block(inner) => each_code(inner, visit),
            MetaKind::Foreach(_, _, inner) => each_code(std::slice::from_ref(inner), visit),
            MetaKind::If(_, then, otherwise) => {
                each_code(std::slice::from_ref(then), visit);
                each_code(otherwise.as_deref().map_or(&[], std::slice::from_ref), visit);
            }
            MetaKind::Insert(insert) => insert.code.iter().for_each(|code| each_part(code, visit)),
        }
    }
}

fn each_part<'a>(code: &'a CodeStatement, visit: &mut dyn FnMut(&'a CodeStatement)) {
    visit(code);
    match &code.kind {
        CodeKind::Block(inner) => inner.iter().for_each(|code| each_part(code, visit)),
        CodeKind::If(_, then, otherwise) => {
            each_part(then, visit);
            otherwise.iter().for_each(|code| each_part(code, visit));
        }
        CodeKind::Expr(_) => {}
    }
}
