//! Expressions, with the parentheses of the author and those that the tree needs.

use crate::ast::{Clock, Expr, ExprKind, UnaryOp, precedence};

/// How tightly what stands around an expression binds.
const LOOSE: u8 = 0;
const UNARY: u8 = 11;
const POSTFIX: u8 = 12;

pub(super) fn expression(expr: &Expr) -> String {
    let mut out = String::new();
    write(expr, LOOSE, &mut out);
    out
}

/// A string as the lexer reads it back.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A number as the lexer reads it back: it knows no sign.
pub(super) fn number(value: i64) -> String {
    if value < 0 { format!("{value:#x}") } else { value.to_string() }
}

fn level(expr: &Expr) -> u8 {
    match &expr.kind {
        ExprKind::Assign(..) => LOOSE,
        ExprKind::Binary(op, ..) => precedence(*op),
        ExprKind::Unary(..) | ExprKind::Address(_) => UNARY,
        _ => POSTFIX + 1,
    }
}

/// Writes `expr` where something of level `around` needs it.
fn write(expr: &Expr, around: u8, out: &mut String) {
    if level(expr) < around {
        out.push('(');
        write(expr, LOOSE, out);
        out.push(')');
        return;
    }
    match &expr.kind {
        ExprKind::Int(value) => out.push_str(&number(*value)),
        ExprKind::Text(text) => out.push_str(&quoted(text)),
        ExprKind::Name(name) => out.push_str(name),
        ExprKind::Return => out.push_str("$return"),
        ExprKind::GlobalId => out.push_str("$globalId"),
        ExprKind::Elapsed(Clock::Wall) => out.push_str("$elapsed"),
        ExprKind::Elapsed(Clock::Cpu) => out.push_str("$cpu"),
        ExprKind::SelfTime => out.push_str("$self"),
        ExprKind::Arg(index) => bracketed("$arg", index, out),
        ExprKind::Index(name, index) => bracketed(&name.name, index, out),
        ExprKind::Paren(inner) => {
            out.push('(');
            write(inner, LOOSE, out);
            out.push(')');
        }
        ExprKind::Field(of, field) => {
            write(of, POSTFIX, out);
            out.push('.');
            out.push_str(&field.name);
        }
        ExprKind::Call(callee, args) => {
            if callee.quoted {
                out.push_str(&format!("Call({}", quoted(&callee.name)));
            } else {
                out.push_str(&callee.name);
                out.push('(');
            }
            for (i, arg) in args.iter().enumerate() {
                out.push_str(if i > 0 || callee.quoted { ", " } else { "" });
                write(arg, LOOSE, out);
            }
            out.push(')');
        }
        ExprKind::Address(operand) => prefixed('&', operand, out),
        ExprKind::Unary(UnaryOp::Negate, operand) => prefixed('-', operand, out),
        ExprKind::Unary(UnaryOp::Not, operand) => prefixed('!', operand, out),
        ExprKind::Unary(UnaryOp::Complement, operand) => prefixed('~', operand, out),
        ExprKind::Step(target, up) => {
            write(target, POSTFIX, out);
            out.push_str(if *up { "++" } else { "--" });
        }
        ExprKind::Assign(target, op, value) => {
            write(target, POSTFIX, out);
            out.push_str(&format!(" {} ", op.symbol()));
            write(value, LOOSE, out);
        }
        ExprKind::Binary(op, a, b) => {
            let own = precedence(*op);
            write(a, own, out);
            out.push_str(&format!(" {} ", op.symbol()));
            write(b, own + 1, out);
        }
    }
}

fn bracketed(name: &str, index: &Expr, out: &mut String) {
    out.push_str(name);
    out.push('[');
    write(index, LOOSE, out);
    out.push(']');
}

/// A blank keeps `- -x` from being read as `--x`.
fn prefixed(mark: char, operand: &Expr, out: &mut String) {
    out.push(mark);
    let at = out.len();
    write(operand, UNARY, out);
    if out[at..].starts_with(mark) {
        out.insert(at, ' ');
    }
}
