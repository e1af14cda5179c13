//! Prints expressions, with the parentheses of the author and those that the tree needs.

use crate::ast::{Clock, ExprKind, SyntaxExpr, UnaryOp, precedence};
use crate::source::{SourceSpan, SourceText};

/// Binding strength of the text around an expression, from the loosest to the tightest.
const LOOSE: u8 = 0;
const UNARY: u8 = 11;
const POSTFIX: u8 = 12;

/// Prints an expression of `source`. Numbers stay as they are written there.
pub(super) fn expression(source: &SourceText, expr: &SyntaxExpr) -> String {
    let mut out = String::new();
    write(source, expr, LOOSE, &mut out);
    out
}

/// Returns a number as the source writes it, if the text there is this number.
fn written(source: &SourceText, span: SourceSpan, value: i64) -> String {
    let text = source.slice(span);
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let read = match digits {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(u64::cast_signed),
        None => text.parse().ok(),
    };
    if read == Some(value) { text.to_owned() } else { number(value) }
}

/// Returns a string as the lexer reads it back.
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

/// Returns a number as the lexer reads it back: negative numbers are hexadecimal, because the lexer knows no sign.
pub(super) fn number(value: i64) -> String {
    if value < 0 { format!("{value:#x}") } else { value.to_string() }
}

fn level(expr: &SyntaxExpr) -> u8 {
    match &expr.kind {
        ExprKind::Assign(..) => LOOSE,
        ExprKind::Binary(op, ..) => precedence(*op),
        ExprKind::Unary(..) | ExprKind::Address(_) => UNARY,
        _ => POSTFIX + 1,
    }
}

/// Writes `expr`, in parentheses if it binds less tightly than `around`.
fn write(source: &SourceText, expr: &SyntaxExpr, around: u8, out: &mut String) {
    if level(expr) < around {
        out.push('(');
        write(source, expr, LOOSE, out);
        out.push(')');
        return;
    }
    match &expr.kind {
        ExprKind::Int(value) => out.push_str(&written(source, expr.span, *value)),
        ExprKind::Text(text) => out.push_str(&quoted(text)),
        ExprKind::Name(name) => out.push_str(name),
        ExprKind::Return => out.push_str("$return"),
        ExprKind::Caller => out.push_str("$caller"),
        ExprKind::GlobalId => out.push_str("$globalId"),
        ExprKind::Elapsed(Clock::Wall) => out.push_str("$elapsed"),
        ExprKind::Elapsed(Clock::Cpu) => out.push_str("$cpu"),
        ExprKind::SelfTime => out.push_str("$self"),
        ExprKind::Own => out.push_str("$own"),
        ExprKind::NamedArg(name) => {
            out.push_str("$arg.");
            out.push_str(name);
        }
        ExprKind::Arg(index) => bracketed(source, "$arg", index, out),
        ExprKind::Index(name, index) => bracketed(source, &name.name, index, out),
        ExprKind::Row(parts) => {
            for (i, part) in parts.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(source, part, LOOSE, out);
            }
        }
        ExprKind::Paren(inner) => {
            out.push('(');
            write(source, inner, LOOSE, out);
            out.push(')');
        }
        ExprKind::Field(of, field) => {
            write(source, of, POSTFIX, out);
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
                write(source, arg, LOOSE, out);
            }
            out.push(')');
        }
        ExprKind::Address(operand) => prefixed(source, '&', operand, out),
        ExprKind::Unary(UnaryOp::Negate, operand) => prefixed(source, '-', operand, out),
        ExprKind::Unary(UnaryOp::Not, operand) => prefixed(source, '!', operand, out),
        ExprKind::Unary(UnaryOp::Complement, operand) => prefixed(source, '~', operand, out),
        ExprKind::Step(target, up) => {
            write(source, target, POSTFIX, out);
            out.push_str(if *up { "++" } else { "--" });
        }
        ExprKind::Assign(target, op, value) => {
            write(source, target, POSTFIX, out);
            out.push_str(&format!(" {} ", op.symbol()));
            write(source, value, LOOSE, out);
        }
        ExprKind::Binary(op, a, b) => {
            let own = precedence(*op);
            write(source, a, own, out);
            out.push_str(&format!(" {} ", op.symbol()));
            write(source, b, own + 1, out);
        }
    }
}

fn bracketed(source: &SourceText, name: &str, index: &SyntaxExpr, out: &mut String) {
    out.push_str(name);
    out.push('[');
    write(source, index, LOOSE, out);
    out.push(']');
}

/// Writes an operator before its operand. A blank keeps `- -x` from being read as `--x`.
fn prefixed(source: &SourceText, mark: char, operand: &SyntaxExpr, out: &mut String) {
    out.push(mark);
    let at = out.len();
    write(source, operand, UNARY, out);
    if out[at..].starts_with(mark) {
        out.insert(at, ' ');
    }
}
