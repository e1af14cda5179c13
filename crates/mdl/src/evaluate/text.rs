//! Texts in code: arguments of called functions, and texts that code compares with strings of the program.

use std::sync::Arc;

use ingraft_model::{BinaryOp, Expr as Out, IntegerWidth, Scalar, Shape, UnaryOp};

use super::code::fold_binary;
use super::data::plus;
use super::meta::{Evaluation, MetaValue};
use crate::ast::{ExprKind, SyntaxExpr};
use crate::diagnostic::codes;

/// Largest sizes in bytes: of a text as an argument, which lies on the stack, and of a compared text, where each eight bytes take a system
/// call.
const ARGUMENT_MAX: usize = 127;
const COMPARED_MAX: usize = 63;

impl<'a> Evaluation<'a> {
    /// Lowers an argument of a called function: a number, a text, or the address of a counter.
    pub(super) fn argument(&mut self, expr: &'a SyntaxExpr) -> Option<Out> {
        if let ExprKind::Address(of) = &expr.bare().kind {
            return self.accumulator(of, Shape::Counter, "a counter").map(Out::Address);
        }
        let Some(text) = self.text(expr) else { return self.value(expr) };
        if text.len() > ARGUMENT_MAX {
            return self.too_long(expr, ARGUMENT_MAX);
        }
        Some(Out::Text(Arc::from(text)))
    }

    /// Lowers `e == "text"` and `e != "text"`: whether the string at an address is the text. `None` if neither side is a text.
    pub(super) fn compared_texts(
        &mut self,
        expr: &'a SyntaxExpr,
        op: BinaryOp,
        a: &'a SyntaxExpr,
        b: &'a SyntaxExpr,
    ) -> Option<Option<Out>> {
        if !matches!(op, BinaryOp::Equal | BinaryOp::NotEqual) {
            return None;
        }
        let equal = match (self.text(a), self.text(b)) {
            (None, None) => return None,
            (Some(a), Some(b)) => Some(Out::Const(i64::from(a == b))),
            (Some(text), None) => self.is_text(expr, b, &text),
            (None, Some(text)) => self.is_text(expr, a, &text),
        };
        let negated = |equal| match equal {
            Out::Const(c) => Out::Const(i64::from(c == 0)),
            equal => Out::Unary(UnaryOp::Not, Box::new(equal)),
        };
        Some(if op == BinaryOp::Equal { equal } else { equal.map(negated) })
    }

    /// Compares the string at an address with a text. Reads as many bytes of the string as the text has, in as few pieces as possible.
    fn is_text(&mut self, expr: &SyntaxExpr, string: &'a SyntaxExpr, text: &str) -> Option<Out> {
        let string = self.value(string)?;
        if text.len() > COMPARED_MAX {
            return self.too_long(expr, COMPARED_MAX);
        }
        if string.has_calls() {
            return self.refuse(expr, "a comparison of what a function returns with a text (keep it in a `counter`)");
        }
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        let (mut rest, mut equal) = (bytes.as_slice(), None);
        while !rest.is_empty() {
            let width = [IntegerWidth::Eight, IntegerWidth::Four, IntegerWidth::Two, IntegerWidth::One];
            let width = width.into_iter().find(|w| w.bytes() as usize <= rest.len()).unwrap_or(IntegerWidth::One);
            let (piece, after) = rest.split_at(width.bytes() as usize);
            let mut word = [0; 8];
            word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            let offset = Out::Const((bytes.len() - rest.len()) as i64);
            let read = Out::Read(Box::new(plus(string.clone(), offset)), Scalar { width, signed: false });
            let same = fold_binary(BinaryOp::Equal, read, Out::Const(i64::from_le_bytes(word)));
            equal = Some(match equal {
                None => same,
                Some(before) => fold_binary(BinaryOp::LogicalAnd, before, same),
            });
            rest = after;
        }
        equal
    }

    /// Returns the text of an expression, if it is known when the request arrives.
    fn text(&mut self, expr: &'a SyntaxExpr) -> Option<String> {
        match &expr.bare().kind {
            ExprKind::Text(text) => Some(text.clone()),
            ExprKind::Name(_) | ExprKind::Index(..) | ExprKind::Field(..) => {
                // These findings are dropped. Evaluating the expression as a value reports them.
                let findings = self.diagnostics.len();
                let value = self.expr(expr);
                self.diagnostics.truncate(findings);
                if let MetaValue::Text(text) = value { Some(text.into_owned()) } else { None }
            }
            _ => None,
        }
    }

    /// Reports a text where only a number makes sense.
    pub(super) fn text_alone(&mut self, expr: &SyntaxExpr) -> Option<Out> {
        let help = "it may be an argument of a function that is called, or be compared with a string by == or !=";
        self.error(codes::TYPE, expr.span, "a text is no number".to_owned(), help);
        None
    }

    fn too_long(&mut self, expr: &SyntaxExpr, most: usize) -> Option<Out> {
        let message = format!("a text of more than {most} bytes");
        self.error(codes::TOO_LARGE, expr.span, message, "");
        None
    }
}
