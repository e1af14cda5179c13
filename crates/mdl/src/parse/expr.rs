//! Expressions. Operators of two operands group as in C. If Paradyn's grouping (one level, from the right) would give another value, the
//! parser reports it.

use super::{ErrorReported, MAX_PARTS, Parsed, Parser, reserved};
use crate::ast::{AssignOp, BINARY, BinaryOp, CalledName, Clock, ExprKind, Ident, SyntaxExpr, UnaryOp, precedence};
use crate::diagnostic::{Severity, codes};
use crate::lex::TokenKind;

/// Grouping of operands; leaves are their indices.
#[derive(Clone)]
enum OperatorTree {
    Leaf(usize),
    Node(BinaryOp, Box<OperatorTree>, Box<OperatorTree>),
}

/// Normal form of a grouping: groupings of equal value are equal. Sums are signed terms, and chains of one associative operator are flat.
#[derive(PartialEq)]
enum CanonicalTree {
    Leaf(usize),
    Sum(Vec<(bool, CanonicalTree)>),
    Chain(BinaryOp, Vec<CanonicalTree>),
    Node(BinaryOp, Box<CanonicalTree>, Box<CanonicalTree>),
}

impl Parser<'_, '_> {
    pub(super) fn expr(&mut self) -> Parsed<SyntaxExpr> {
        let outermost = self.parts == 0;
        let result = self.nested(Self::binary);
        if outermost {
            self.parts = 0;
        }
        result
    }

    fn binary(&mut self) -> Parsed<SyntaxExpr> {
        let mut operands = vec![self.unary()?];
        let mut operators = Vec::new();
        while let TokenKind::Mark(mark) = self.peek() {
            let Some(op) = BINARY.into_iter().find(|op| op.symbol() == *mark) else { break };
            self.bump();
            operators.push(op);
            operands.push(self.unary()?);
        }
        if operators.len() < 2 {
            return Ok(build(
                &if operators.is_empty() { OperatorTree::Leaf(0) } else { right(&operators, 0) },
                &mut to_slots(operands),
            ));
        }
        let (c, old) = (climb(&operators, &mut 0, 0), right(&operators, 0));
        if !self.options.compat_grouping
            && operators.iter().all(|op| in_paradyn(*op))
            && canonical(&c) != canonical(&old)
        {
            let texts: Vec<&str> = operands.iter().map(|o| self.source.slice(o.span)).collect();
            let (now, then) = (show(&c, &texts, true), show(&old, &texts, true));
            let span = operands[0].span.to(operands[operands.len() - 1].span);
            let message = format!("read as `{now}`; Paradyn read `{then}`");
            self.report(codes::GROUPING, Severity::Warning, span, message).help =
                Some("write parentheses, or read the file with the old grouping".to_owned());
        }
        Ok(build(if self.options.compat_grouping { &old } else { &c }, &mut to_slots(operands)))
    }

    fn unary(&mut self) -> Parsed<SyntaxExpr> {
        self.part()?;
        let start = self.span();
        let prefix = match self.peek() {
            TokenKind::Mark("-") => Some(UnaryOp::Negate),
            TokenKind::Mark("!") => Some(UnaryOp::Not),
            TokenKind::Mark("~") => Some(UnaryOp::Complement),
            TokenKind::Mark("&") => None,
            _ => return self.assignment(),
        };
        self.bump();
        let operand = Box::new(self.nested(Self::unary)?);
        let span = start.to(operand.span);
        let kind = match prefix {
            Some(op) => ExprKind::Unary(op, operand),
            None => ExprKind::Address(operand),
        };
        Ok(SyntaxExpr { kind, span })
    }

    /// Counts one more part of the expression. The limit keeps trees low enough for recursion.
    fn part(&mut self) -> Parsed<()> {
        self.parts += 1;
        if self.parts <= MAX_PARTS {
            return Ok(());
        }
        let message = format!("an expression of more than {MAX_PARTS} parts");
        self.error(codes::TOO_LARGE, self.span(), message).help = Some("split it".to_owned());
        Err(ErrorReported)
    }

    fn assignment(&mut self) -> Parsed<SyntaxExpr> {
        let target = self.postfix()?;
        let op = match self.peek() {
            TokenKind::Mark("=") => AssignOp::Set,
            TokenKind::Mark("+=") => AssignOp::Add,
            TokenKind::Mark("-=") => AssignOp::Subtract,
            _ => return Ok(target),
        };
        if !matches!(target.kind, ExprKind::Name(_) | ExprKind::Index(..)) && !target.is_memory() {
            self.error(codes::TARGET, target.span, "this cannot be assigned to").help =
                Some("only variables can: the metric, its counters, a flag, integers of the program".to_owned());
        }
        self.bump();
        let value = self.expr()?;
        let span = target.span.to(value.span);
        Ok(SyntaxExpr { kind: ExprKind::Assign(Box::new(target), op, Box::new(value)), span })
    }

    fn postfix(&mut self) -> Parsed<SyntaxExpr> {
        let mut expr = self.primary()?;
        loop {
            let step = match self.peek() {
                TokenKind::Mark("++") => Some(true),
                TokenKind::Mark("--") => Some(false),
                TokenKind::Mark("." | "->") => None,
                _ => return Ok(expr),
            };
            self.part()?;
            self.bump();
            let start = expr.span;
            let kind = match step {
                Some(up) => ExprKind::Step(Box::new(expr), up),
                None => ExprKind::Field(Box::new(expr), self.any_word("a field")?),
            };
            expr = SyntaxExpr { kind, span: start.to(self.before()) };
        }
    }

    fn primary(&mut self) -> Parsed<SyntaxExpr> {
        let (start, first) = (self.at, self.span());
        let kind = match self.peek().clone() {
            TokenKind::Int(value) => {
                self.bump();
                ExprKind::Int(value)
            }
            TokenKind::Text(value) => {
                self.bump();
                ExprKind::Text(value)
            }
            TokenKind::Mark("(") => {
                self.bump();
                let inner = self.expr()?;
                self.need_mark(")")?;
                ExprKind::Paren(Box::new(inner))
            }
            TokenKind::Word(word) => self.word_expr(word)?,
            TokenKind::Bool(_) => return self.expected_help("an expression", "write 1 or 0"),
            _ => return self.expected("an expression"),
        };
        let span = if self.at > start { self.span_from(start) } else { first };
        Ok(SyntaxExpr { kind, span })
    }

    fn word_expr(&mut self, word: &str) -> Parsed<ExprKind> {
        let span = self.span();
        match word {
            "$return" | "$caller" | "$globalId" | "$elapsed" | "$cpu" | "$self" | "$own" => {
                self.bump();
                return Ok(match word {
                    "$return" => ExprKind::Return,
                    "$caller" => ExprKind::Caller,
                    "$globalId" => ExprKind::GlobalId,
                    "$elapsed" => ExprKind::Elapsed(Clock::Wall),
                    "$cpu" => ExprKind::Elapsed(Clock::Cpu),
                    "$self" => ExprKind::SelfTime,
                    _ => ExprKind::Own,
                });
            }
            "$arg" => {
                self.bump();
                if self.eat_mark(".") {
                    return Ok(ExprKind::NamedArg(self.any_word("the name of an argument")?.name));
                }
                return Ok(ExprKind::Arg(Box::new(self.index()?)));
            }
            "Call" => return self.quoted_call(),
            "functionCall" => {
                self.old(span, "`functionCall` is an older spelling", "write `Call(\"f\", …)`");
                return self.quoted_call();
            }
            "setCounter" | "addCounter" | "subCounter" => return self.counter_request(word),
            word if reserved(word) => return self.expected("an expression"),
            _ => {}
        }
        let ident = Ident { name: word.to_owned(), span: self.bump() };
        if self.at_mark("[") {
            return Ok(ExprKind::Index(ident, Box::new(self.index()?)));
        }
        if ident.name == "$constraint" {
            self.old(span, "`$constraint` without an index is an older spelling", "write `$constraint[0]`");
            return Ok(ExprKind::Index(ident, Box::new(SyntaxExpr { kind: ExprKind::Int(0), span })));
        }
        if self.eat_mark("(") {
            let args = self.arguments()?;
            return Ok(ExprKind::Call(CalledName { name: ident.name, span, quoted: false }, args));
        }
        Ok(ExprKind::Name(ident.name))
    }

    fn index(&mut self) -> Parsed<SyntaxExpr> {
        self.need_mark("[")?;
        let first = self.expr()?;
        if !self.at_mark(",") {
            self.need_mark("]")?;
            return Ok(first);
        }
        let start = first.span;
        let mut parts = vec![first];
        while self.eat_mark(",") {
            self.part()?;
            parts.push(self.expr()?);
        }
        let span = start.to(self.before());
        self.need_mark("]")?;
        Ok(SyntaxExpr { kind: ExprKind::Row(parts), span })
    }

    /// Reads arguments up to and including the closing bracket.
    fn arguments(&mut self) -> Parsed<Vec<SyntaxExpr>> {
        let mut args = Vec::new();
        if self.eat_mark(")") {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.eat_mark(")") {
                return Ok(args);
            }
            if !self.eat_mark(",") {
                return self.expected("`,` or `)`");
            }
        }
    }

    /// Reads `Call("f")`, `Call("f",)` or `Call("f", a, …)`.
    fn quoted_call(&mut self) -> Parsed<ExprKind> {
        self.bump();
        self.need_mark("(")?;
        let name = self.text("the name of a function")?;
        let callee = CalledName { name: name.value, span: name.span, quoted: true };
        if self.eat_mark(",") {
            return Ok(ExprKind::Call(callee, self.arguments()?));
        }
        if !self.eat_mark(")") {
            return self.expected("`,` or `)`");
        }
        Ok(ExprKind::Call(callee, Vec::new()))
    }

    /// Reads `setCounter(x, e)` of 1995.
    fn counter_request(&mut self, word: &str) -> Parsed<ExprKind> {
        let span = self.bump();
        let op = match word {
            "setCounter" => AssignOp::Set,
            "addCounter" => AssignOp::Add,
            _ => AssignOp::Subtract,
        };
        self.need_mark("(")?;
        let target = self.name("a counter")?;
        self.need_mark(",")?;
        let value = self.expr()?;
        self.need_mark(")")?;
        let help = format!("write `{} {} …`", target.name, op.symbol());
        self.old(span, format!("`{word}` is an older spelling"), help);
        let target = SyntaxExpr { kind: ExprKind::Name(target.name), span: target.span };
        Ok(ExprKind::Assign(Box::new(target), op, Box::new(value)))
    }
}

fn in_paradyn(op: BinaryOp) -> bool {
    use BinaryOp::{And, Or, Remainder, ShiftLeft, ShiftRight, Xor};
    !matches!(op, Remainder | And | Or | Xor | ShiftLeft | ShiftRight)
}

/// Groups as C does, from operator `*next` on, as long as operators bind tighter than `loosest`.
fn climb(operators: &[BinaryOp], next: &mut usize, loosest: u8) -> OperatorTree {
    let mut left = OperatorTree::Leaf(*next);
    while let Some(op) = operators.get(*next).copied().filter(|op| precedence(*op) > loosest) {
        *next += 1;
        let operand = climb(operators, next, precedence(op));
        left = OperatorTree::Node(op, Box::new(left), Box::new(operand));
    }
    left
}

/// Groups as Paradyn does, from operand `from` on.
fn right(operators: &[BinaryOp], from: usize) -> OperatorTree {
    let mut tree = OperatorTree::Leaf(operators.len());
    for i in (from..operators.len()).rev() {
        tree = OperatorTree::Node(operators[i], Box::new(OperatorTree::Leaf(i)), Box::new(tree));
    }
    tree
}

fn canonical(tree: &OperatorTree) -> CanonicalTree {
    use BinaryOp::{Add, LogicalAnd, LogicalOr, Multiply, Subtract};
    match tree {
        OperatorTree::Leaf(i) => CanonicalTree::Leaf(*i),
        OperatorTree::Node(op @ (Add | Subtract), a, b) => {
            let mut terms = signed(canonical(a), true);
            terms.extend(signed(canonical(b), *op == Add));
            CanonicalTree::Sum(terms)
        }
        OperatorTree::Node(op @ (Multiply | LogicalAnd | LogicalOr), a, b) => {
            let mut links = Vec::new();
            for side in [canonical(a), canonical(b)] {
                match side {
                    CanonicalTree::Chain(inner, more) if inner == *op => links.extend(more),
                    other => links.push(other),
                }
            }
            CanonicalTree::Chain(*op, links)
        }
        OperatorTree::Node(op, a, b) => CanonicalTree::Node(*op, Box::new(canonical(a)), Box::new(canonical(b))),
    }
}

fn signed(side: CanonicalTree, plus: bool) -> Vec<(bool, CanonicalTree)> {
    match side {
        CanonicalTree::Sum(terms) => terms.into_iter().map(|(sign, t)| (sign == plus, t)).collect(),
        other => vec![(plus, other)],
    }
}

fn show(tree: &OperatorTree, operands: &[&str], outermost: bool) -> String {
    match tree {
        OperatorTree::Leaf(i) => operands.get(*i).map_or("…", |t| if t.len() > 20 { "…" } else { t }).to_owned(),
        OperatorTree::Node(op, a, b) => {
            let inner = format!("{} {} {}", show(a, operands, false), op.symbol(), show(b, operands, false));
            if outermost { inner } else { format!("({inner})") }
        }
    }
}

fn to_slots(operands: Vec<SyntaxExpr>) -> Vec<Option<SyntaxExpr>> {
    operands.into_iter().map(Some).collect()
}

/// Makes the expression of a grouping; each operand is taken once.
fn build(tree: &OperatorTree, operands: &mut [Option<SyntaxExpr>]) -> SyntaxExpr {
    match tree {
        OperatorTree::Leaf(i) => {
            let empty = SyntaxExpr { kind: ExprKind::Int(0), span: crate::source::SourceSpan::default() };
            operands.get_mut(*i).and_then(Option::take).unwrap_or(empty)
        }
        OperatorTree::Node(op, a, b) => {
            let (a, b) = (build(a, operands), build(b, operands));
            let span = a.span.to(b.span);
            SyntaxExpr { kind: ExprKind::Binary(*op, Box::new(a), Box::new(b)), span }
        }
    }
}
