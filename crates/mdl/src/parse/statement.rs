//! Statements of the two languages: those that the tool executes, and those that the program executes.

use super::{ErrorReported, Parsed, Parser};
use crate::ast::{CodeKind, CodeStatement, ExprKind, InsertStatement, MetaKind, MetaStatement, SyntaxExpr};
use crate::diagnostic::codes;
use crate::lex::TokenKind;

impl Parser<'_, '_> {
    /// Reads a block of statements of the meta language: `{ meta_stmt … }`.
    pub(super) fn meta_block(&mut self) -> Parsed<Vec<MetaStatement>> {
        self.nested(|p| p.block(Self::meta))
    }

    pub(super) fn meta(&mut self) -> Parsed<MetaStatement> {
        self.nested(Self::meta_here)
    }

    fn meta_here(&mut self) -> Parsed<MetaStatement> {
        let start = self.at;
        let kind = match self.peek() {
            TokenKind::Mark("{") => MetaKind::Block(self.block(Self::meta)?),
            TokenKind::Word("foreach") => {
                self.bump();
                let variable = self.name("a loop variable")?;
                self.need_word("in")?;
                let list = self.expr()?;
                MetaKind::Foreach(variable, list, Box::new(self.meta()?))
            }
            TokenKind::Word("if") => {
                let span = self.bump();
                let condition = self.expr()?;
                if !matches!(condition.kind, ExprKind::Paren(_)) {
                    self.old(span, "an `if` without parentheses is an older spelling", "write `if (…)`");
                }
                let then = Box::new(self.meta()?);
                let otherwise = if self.eat_word("else") { Some(Box::new(self.meta()?)) } else { None };
                MetaKind::If(condition, then, otherwise)
            }
            TokenKind::Word("append" | "prepend") => MetaKind::Insert(self.insert()?),
            _ => {
                return self.expected_help("a statement", "one of: foreach, if, append, prepend, or a block in braces");
            }
        };
        Ok(MetaStatement { kind, span: self.span_from(start) })
    }

    fn insert(&mut self) -> Parsed<InsertStatement> {
        let prepend = self.at_word("prepend");
        self.bump();
        let after = self.choice("`preInsn` or `postInsn`", &[("preInsn", false), ("postInsn", true)])?;
        let points = self.expr()?;
        let constrained = self.eat_word("constrained");
        let code_start = self.at;
        if !self.at_mark("(*") {
            return self.expected_help("code in `(*` and `*)`", "write `append preInsn f.entry (* m++; *)`");
        }
        let open = self.bump();
        let mut code = Vec::new();
        loop {
            if self.eat_mark("*)") {
                break;
            }
            if self.eat_mark(";") {
                continue;
            }
            let outside =
                self.at_mark("}") || self.word().is_some_and(|w| matches!(w, "append" | "prepend" | "foreach"));
            if self.at_end() || self.at_definition() || outside {
                self.error(codes::EXPECTED, open, "this `(*` is never closed").help = Some("add a `*)`".to_owned());
                break;
            }
            let start = self.at;
            match self.code() {
                Ok(statement) => code.push(statement),
                Err(ErrorReported) => self.recover(start),
            }
            if self.at == start {
                self.bump();
            }
        }
        Ok(InsertStatement { prepend, after, points, constrained, code, code_span: self.span_from(code_start) })
    }

    fn code(&mut self) -> Parsed<CodeStatement> {
        self.nested(Self::code_here)
    }

    fn code_here(&mut self) -> Parsed<CodeStatement> {
        let start = self.at;
        let kind = if self.at_mark("{") {
            CodeKind::Block(self.block(Self::code)?)
        } else if self.eat_word("if") {
            let condition = self.condition()?;
            let then = Box::new(self.code()?);
            let otherwise = if self.eat_word("else") { Some(Box::new(self.code()?)) } else { None };
            CodeKind::If(condition, then, otherwise)
        } else {
            let expr = self.expr()?;
            self.semicolon()?;
            CodeKind::Expr(expr)
        };
        Ok(CodeStatement { kind, span: self.span_from(start) })
    }

    /// Reads `( expr )`. The parentheses are required, because the statement that follows could continue the expression.
    fn condition(&mut self) -> Parsed<SyntaxExpr> {
        let start = self.at;
        self.need_mark("(")?;
        let inner = self.expr()?;
        self.need_mark(")")?;
        Ok(SyntaxExpr { kind: ExprKind::Paren(Box::new(inner)), span: self.span_from(start) })
    }
}
