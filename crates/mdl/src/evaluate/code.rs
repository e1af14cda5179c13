//! The code language: statements that the program executes, to snippets.

use ingraft_model::{BinaryOp, Expr as Out, Stmt, UnaryOp, VariableId};

use super::VariableKind;
use super::meta::{Binding, Evaluation, Value, binary, unary};
use crate::ast::{AssignOp, Callee, Code, CodeKind, Expr, ExprKind};

/// Functions of Paradyn's run-time library that are plain arithmetic.
fn helper(name: &str, args: usize) -> Option<BinaryOp> {
    match (name, args) {
        ("DYNINSTAdd", 2) => Some(BinaryOp::Add),
        ("DYNINSTSub", 2) => Some(BinaryOp::Subtract),
        ("DYNINSTMult", 2) => Some(BinaryOp::Multiply),
        _ => None,
    }
}

impl<'a> Evaluation<'a> {
    pub(super) fn block(&mut self, code: &'a [Code], out: &mut Vec<Stmt>) {
        for statement in code {
            self.code(statement, out);
        }
    }

    fn code(&mut self, code: &'a Code, out: &mut Vec<Stmt>) {
        match &code.kind {
            CodeKind::Block(inner) => self.block(inner, out),
            CodeKind::Expr(expr) => self.effect(expr, out),
            CodeKind::If(condition, then, otherwise) => {
                let condition = self.value(condition);
                let (mut yes, mut no) = (Vec::new(), Vec::new());
                self.code(then, &mut yes);
                if let Some(otherwise) = otherwise {
                    self.code(otherwise, &mut no);
                }
                match condition {
                    Some(Out::Const(0)) => out.append(&mut no),
                    Some(Out::Const(_)) => out.append(&mut yes),
                    Some(condition) if no.is_empty() => out.push(Stmt::If(condition, yes)),
                    Some(condition) => {
                        // the first branch may change what the condition looks at
                        let decided = self.variable("else", VariableKind::Scratch, false);
                        out.push(Stmt::Set(decided, condition));
                        out.push(Stmt::If(Out::Variable(decided), yes));
                        out.push(Stmt::If(Out::Unary(UnaryOp::Not, Box::new(Out::Variable(decided))), no));
                    }
                    None => {}
                }
            }
        }
    }

    /// An expression for its effect.
    fn effect(&mut self, expr: &'a Expr, out: &mut Vec<Stmt>) {
        match &expr.bare().kind {
            ExprKind::Assign(target, op, value) => {
                // x = y = 0
                let value = match &value.bare().kind {
                    ExprKind::Assign(inner, ..) => {
                        self.effect(value, out);
                        self.value(inner)
                    }
                    _ => self.value(value),
                };
                let (Some(target), Some(value)) = (self.target(target), value) else { return };
                out.push(match op {
                    AssignOp::Set => Stmt::Set(target, value),
                    AssignOp::Add => Stmt::Add(target, value),
                    AssignOp::Subtract => Stmt::Add(target, fold_unary(UnaryOp::Negate, value)),
                });
            }
            ExprKind::Step(target, up) => {
                if let Some(target) = self.target(target) {
                    out.push(Stmt::Add(target, Out::Const(if *up { 1 } else { -1 })));
                }
            }
            // a value that nobody uses; only its findings matter
            _ => {
                self.value(expr);
            }
        }
    }

    fn target(&mut self, expr: &'a Expr) -> Option<VariableId> {
        match &expr.bare().kind {
            ExprKind::Name(name) => self.variable_named(name),
            _ => None,
        }
    }

    fn variable_named(&self, name: &str) -> Option<VariableId> {
        match self.names.iter().rev().find(|(n, _)| *n == name)?.1 {
            Binding::Variable(id) => Some(id),
            Binding::Value(_) => None,
        }
    }

    /// A value of the code language; `None` after a finding.
    fn value(&mut self, expr: &'a Expr) -> Option<Out> {
        match &expr.kind {
            ExprKind::Int(value) => Some(Out::Const(*value)),
            ExprKind::Paren(inner) => self.value(inner),
            ExprKind::Name(name) => match self.variable_named(name) {
                Some(id) => Some(Out::Variable(id)),
                None => self.known(expr),
            },
            ExprKind::Index(..) => self.known(expr),
            ExprKind::Arg(index) => {
                let Some(Out::Const(index)) = self.value(index) else {
                    return self.refuse(expr, "an argument with a number that is not known when the request arrives");
                };
                match u8::try_from(index) {
                    Ok(index) => Some(Out::Arg(index)),
                    Err(_) => self.refuse(expr, "an argument beyond the 256th"),
                }
            }
            ExprKind::Unary(op, operand) => Some(fold_unary(*op, self.value(operand)?)),
            ExprKind::Binary(op, a, b) => {
                let (a, b) = (self.value(a), self.value(b));
                Some(fold_binary(*op, a?, b?))
            }
            ExprKind::Call(callee, args) => self.call(expr, callee, args),
            ExprKind::Text(_) => self.refuse(expr, "strings in code"),
            ExprKind::Return => self.refuse(expr, "`$return`"),
            ExprKind::GlobalId => self.refuse(expr, "`$globalId`"),
            ExprKind::Elapsed => self.refuse(expr, "`$elapsed`"),
            ExprKind::SelfTime => self.refuse(expr, "`$self`"),
            ExprKind::Address(_) => self.refuse(expr, "addresses of variables"),
            ExprKind::Field(..) | ExprKind::Assign(..) | ExprKind::Step(..) => self.refuse(expr, "this as a value"),
        }
    }

    fn call(&mut self, expr: &Expr, callee: &Callee, args: &'a [Expr]) -> Option<Out> {
        // the argument of readSymbol is a name, not a value
        let args = if callee.name == "readSymbol" { &[] } else { args };
        let values: Vec<Option<Out>> = args.iter().map(|a| self.value(a)).collect();
        if !callee.quoted {
            if let (Some(op), [a, b]) = (helper(&callee.name, args.len()), values.as_slice()) {
                return Some(fold_binary(op, a.clone()?, b.clone()?));
            }
            if let ("DYNINSTTwoComparesAndedExpr", [a, b, c, d]) = (callee.name.as_str(), values.as_slice()) {
                let first = fold_binary(BinaryOp::Equal, a.clone()?, b.clone()?);
                let second = fold_binary(BinaryOp::Equal, c.clone()?, d.clone()?);
                return Some(fold_binary(BinaryOp::LogicalAnd, first, second));
            }
        }
        self.refuse(expr, &format!("the call of `{}`", callee.name))
    }

    /// A value that the meta language knows when the request arrives.
    fn known(&mut self, expr: &'a Expr) -> Option<Out> {
        match self.expr(expr) {
            Value::Int(value) => Some(Out::Const(value)),
            Value::Refused => None,
            Value::Text(_) => self.refuse(expr, "strings in code"),
            _ => self.refuse(expr, "this as a value"),
        }
    }

    fn refuse(&mut self, expr: &Expr, what: &str) -> Option<Out> {
        let verb = if what.starts_with("addresses") || what.starts_with("strings") { "are" } else { "is" };
        self.not_woven(expr.span, format!("{what} {verb} not woven yet"));
        None
    }
}

fn fold_unary(op: UnaryOp, value: Out) -> Out {
    match value {
        Out::Const(value) => Out::Const(unary(op, value)),
        value => Out::Unary(op, Box::new(value)),
    }
}

fn fold_binary(op: BinaryOp, a: Out, b: Out) -> Out {
    match (a, b) {
        (Out::Const(a), Out::Const(b)) => Out::Const(binary(op, a, b)),
        (a, b) => Out::Binary(op, Box::new(a), Box::new(b)),
    }
}
