//! Through all statements and values of a snippet.

use ingraft_model::{Expr, Stmt};

/// Every statement, outer ones before inner ones.
pub(super) fn each_stmt(stmts: &[Stmt], visit: &mut dyn FnMut(&Stmt)) {
    for stmt in stmts {
        visit(stmt);
        if let Stmt::If(_, inner) | Stmt::Open(_, inner) | Stmt::Close(_, inner) = stmt {
            each_stmt(inner, visit);
        }
    }
}

/// Every value, inner ones before outer ones.
pub(super) fn each_expr(stmts: &mut [Stmt], visit: &mut dyn FnMut(&mut Expr)) {
    for stmt in stmts {
        match stmt {
            Stmt::Add(_, e) | Stmt::Set(_, e) | Stmt::Observe(_, e) | Stmt::Store(_, _, e) | Stmt::Mark(_, e, _) => {
                parts(e, visit)
            }
            Stmt::AddAt(_, key, e) | Stmt::AddIn(_, _, key, e) | Stmt::Write(key, _, e) => {
                parts(key, visit);
                parts(e, visit);
            }
            Stmt::If(condition, inner) => {
                parts(condition, visit);
                each_expr(inner, visit);
            }
            Stmt::Open(_, inner) | Stmt::Close(_, inner) => each_expr(inner, visit),
            Stmt::Call(call) => call.args.iter_mut().for_each(|e| parts(e, visit)),
            Stmt::Start(..) | Stmt::Stop(..) | Stmt::Settle | Stmt::Await => {}
        }
    }
}

fn parts(expr: &mut Expr, visit: &mut dyn FnMut(&mut Expr)) {
    match expr {
        Expr::Unary(_, e) | Expr::Read(e, _) | Expr::ValueAt(_, e) | Expr::ValueIn(_, _, e) => parts(e, visit),
        Expr::Binary(_, a, b) => {
            parts(a, visit);
            parts(b, visit);
        }
        Expr::Call(call) => call.args.iter_mut().for_each(|e| parts(e, visit)),
        _ => {}
    }
    visit(expr);
}
