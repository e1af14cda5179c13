//! Lowers the code language (statements that the program executes) to snippets.
//!
//! `$arg[n]` in code at the end of a call is lowered as at the beginning. When the code of both ends is joined, it becomes the kept
//! argument.

use ingraft_model::{
    BinaryOp, Called, Clock, Expr as Out, ObjectKind, ObjectState, PointKind, ProgramCall, Resolution, Shape, Stmt,
    TableShape, TimeUnit, UnaryOp, ValueUnit, VariableId, VariableKind,
};

use super::meta::{Evaluation, MetaValue, NameBinding, binary, unary};
use super::vector::VectorSlot;
use crate::ast::{AssignOp, CalledName, CodeKind, CodeStatement, ExprKind, SyntaxExpr};
use crate::diagnostic::codes;
use crate::source::SourceSpan;

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
    pub(super) fn block(&mut self, code: &'a [CodeStatement], out: &mut Vec<Stmt>) {
        for statement in code {
            self.code(statement, out);
        }
    }

    fn code(&mut self, code: &'a CodeStatement, out: &mut Vec<Stmt>) {
        match &code.kind {
            CodeKind::Block(inner) => self.block(inner, out),
            CodeKind::Expr(expr) => {
                let mut own = Vec::new();
                self.effect(expr, &mut own);
                out.append(&mut self.before);
                out.append(&mut own);
            }
            CodeKind::If(condition, then, otherwise) => {
                let condition = self.value(condition);
                out.append(&mut self.before);
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
                        // The first branch may change a value that the condition reads, so the condition is evaluated once.
                        let decided = self.kept_at(code.span, "else");
                        out.push(Stmt::Set(decided, condition));
                        out.push(Stmt::If(Out::Variable(decided), yes));
                        out.push(Stmt::If(Out::Unary(UnaryOp::Not, Box::new(Out::Variable(decided))), no));
                    }
                    None => {}
                }
            }
        }
    }

    /// Returns the scratch variable for the value that the expression at `span` computes. The code in all functions shares it.
    pub(super) fn kept_at(&mut self, span: SourceSpan, name: &str) -> VariableId {
        let key = (self.source, span);
        if let Some(known) = self.decisions.get(&key) {
            return *known;
        }
        let new = self.variable(name, VariableKind::Scratch, Shape::Counter);
        self.decisions.insert(key, new);
        new
    }

    /// Lowers an expression that stands as a statement.
    fn effect(&mut self, expr: &'a SyntaxExpr, out: &mut Vec<Stmt>) {
        match &expr.bare().kind {
            ExprKind::Assign(target, op, value) => {
                if let Some(added) = self.added(expr) {
                    return out.extend(added.map(|(slot, amount)| slot.add(amount)));
                }
                let value = self.value(value);
                if target.is_memory() {
                    if let Some(value) = value {
                        self.assigned(target, *op, value, out);
                    }
                    return;
                }
                let (Some(target), Some(value)) = (self.target(target), value) else { return };
                out.push(match op {
                    AssignOp::Set => Stmt::Set(target, value),
                    AssignOp::Add => Stmt::Add(target, value),
                    AssignOp::Subtract => Stmt::Add(target, fold_unary(UnaryOp::Negate, value)),
                });
            }
            ExprKind::Step(target, up) if target.is_memory() => {
                let op = if *up { AssignOp::Add } else { AssignOp::Subtract };
                self.assigned(target, op, Out::Const(1), out);
            }
            ExprKind::Step(target, up) => {
                if let Some(added) = self.added(expr) {
                    return out.extend(added.map(|(slot, amount)| slot.add(amount)));
                }
                if let Some(target) = self.target(target) {
                    out.push(Stmt::Add(target, Out::Const(if *up { 1 } else { -1 })));
                }
            }
            ExprKind::Call(callee, args) if !callee.quoted => match (callee.name.as_str(), args.as_slice()) {
                ("startWallTimer", [timer]) => self.timer(timer, Clock::Wall, Stmt::Start, out),
                ("startProcessTimer", [timer]) => self.timer(timer, Clock::Cpu, Stmt::Start, out),
                ("stopWallTimer", [timer]) => self.timer(timer, Clock::Wall, Stmt::Stop, out),
                ("stopProcessTimer", [timer]) => self.timer(timer, Clock::Cpu, Stmt::Stop, out),
                ("startHwTimer", [timer]) => self.start_events(timer, out),
                ("stopHwTimer", [timer]) => self.stop_events(timer, out),
                ("sampleHwCounter", [counter]) => self.sample_events(counter, out),
                ("observe", [histogram, value, own @ ..]) if own.len() <= 1 => {
                    let histogram = self.accumulator(histogram, Shape::Histogram(Resolution::Fine), "a histogram");
                    // The checker has reported an own time without a time.
                    let clock = match (&value.bare().kind, own) {
                        (ExprKind::Elapsed(clock), [_]) if self.observes_times => Some(*clock),
                        _ => None,
                    };
                    let value = self.observed(value);
                    if let (Some(histogram), Some(value)) = (histogram, value) {
                        out.push(Stmt::Observe(histogram, Resolution::Fine, value, clock));
                    }
                }
                ("print", args) => self.printed(expr, args, out),
                ("discover" | "retire", [list, address, kind]) if self.object_list(list).is_some() => {
                    let (list, address) = (self.object_list(list), self.value(address));
                    let kind =
                        if let ExprKind::Text(kind) = &kind.bare().kind { ObjectKind::named(kind) } else { None };
                    if let (Some(list), Some(address), Some(kind)) = (list, address, kind) {
                        let retired = callee.name == "retire";
                        out.push(Stmt::Mark(list, address, ObjectState { kind, retired }));
                    }
                }
                _ => self.effect_of_call(expr, out),
            },
            ExprKind::Call(..) => self.effect_of_call(expr, out),
            // The value is not used; only the findings about the expression matter.
            _ => {
                self.value(expr);
            }
        }
    }

    /// Returns the value of a vector that an assignment changes, and the amount that it adds; `None` if it changes something else.
    fn added(&mut self, assignment: &'a SyntaxExpr) -> Option<Option<(VectorSlot, Out)>> {
        let assignment = &assignment.bare().kind;
        let (ExprKind::Assign(target, ..) | ExprKind::Step(target, _)) = assignment else { return None };
        let ExprKind::Index(name, index) = &target.bare().kind else { return None };
        let amount = match assignment {
            ExprKind::Assign(_, AssignOp::Add, value) => self.value(value),
            ExprKind::Assign(_, AssignOp::Subtract, value) => Some(fold_unary(UnaryOp::Negate, self.value(value)?)),
            ExprKind::Step(_, up) => Some(Out::Const(if *up { 1 } else { -1 })),
            // The checker has reported such an assignment.
            _ => None,
        };
        Some(self.slot(&name.name, index).flatten().zip(amount))
    }

    /// Adds to a value of a vector before the statement. Returns the new value, or with `was` the value before the addition; `None` for a key whose value cannot be
    /// read, which the checker has reported.
    fn value_of_addition(
        &mut self,
        expr: &SyntaxExpr,
        target: &SyntaxExpr,
        (mut slot, amount): (VectorSlot, Out),
        was: bool,
    ) -> Option<Out> {
        let number = slot.number_mut()?;
        if !matches!(number, Out::Const(_) | Out::Arg(_)) {
            let index = self.kept_at(target.span, "index");
            let computed = std::mem::replace(number, Out::Variable(index));
            self.before.push(Stmt::Set(index, computed));
        }
        let now = slot.clone().value()?;
        if !was {
            self.before.push(slot.add(amount));
            return Some(now);
        }
        let until_then = self.kept_at(expr.span, "was");
        self.before.extend([Stmt::Set(until_then, now), slot.add(amount)]);
        Some(Out::Variable(until_then))
    }

    /// Returns the list of objects that a call acts on; `None` if the expression names no such list.
    fn object_list(&mut self, expr: &'a SyntaxExpr) -> Option<VariableId> {
        self.target(expr).filter(|v| self.shape_of(*v) == Shape::Table(TableShape::OBJECTS))
    }

    pub(super) fn shape_of(&self, v: VariableId) -> Shape {
        self.variables[v.0 as usize].shape
    }

    /// Lowers a call of a function of the program whose result is not used.
    fn effect_of_call(&mut self, expr: &'a SyntaxExpr, out: &mut Vec<Stmt>) {
        if let Some(Out::Call(call)) = self.value(expr) {
            out.push(Stmt::Call(*call));
        }
    }

    pub(super) fn timer(
        &mut self,
        expr: &'a SyntaxExpr,
        clock: Clock,
        act: fn(VariableId, Clock) -> Stmt,
        out: &mut Vec<Stmt>,
    ) {
        out.extend(self.accumulator(expr, Shape::Timer(clock), "such a timer").map(|timer| act(timer, clock)));
    }

    /// Returns the variable of this shape that a start, stop, sample, observation or called function acts on.
    pub(super) fn accumulator(&mut self, expr: &'a SyntaxExpr, shape: Shape, wanted: &str) -> Option<VariableId> {
        let found = self.target(expr).filter(|v| self.variables[v.0 as usize].shape == shape);
        if found.is_none() {
            self.error(codes::KIND, expr.span, format!("this is not {wanted}"), "");
        }
        found
    }

    /// Lowers the value of `observe`. A time alone stays in ticks of the clock if the text observes only times. Any other value is in its
    /// own unit.
    fn observed(&mut self, expr: &'a SyntaxExpr) -> Option<Out> {
        let unit = if self.observes_times { TimeUnit::Ticks } else { TimeUnit::Nanoseconds };
        let (value, unit) = match &expr.bare().kind {
            ExprKind::Elapsed(clock) => (self.elapsed(expr, *clock, unit), ValueUnit::Ticks),
            _ => (self.value(expr), ValueUnit::Plain),
        };
        if *self.observed.get_or_insert(unit) != unit {
            let message = format!("`{}` observes a time alone and other values", self.metric.info.name);
            let help = "a histogram holds one or the other: observe `$elapsed` or `$cpu` alone everywhere, or nowhere";
            self.error(codes::TYPE, expr.span, message, help);
            return None;
        }
        value
    }

    pub(super) fn target(&mut self, expr: &'a SyntaxExpr) -> Option<VariableId> {
        match &expr.bare().kind {
            ExprKind::Name(name) => self.variable_named(name),
            _ => None,
        }
    }

    pub(super) fn variable_named(&self, name: &str) -> Option<VariableId> {
        match self.names.iter().rev().find(|(n, _)| *n == name)?.1 {
            NameBinding::Variable(id) => Some(id),
            NameBinding::Value(_) | NameBinding::Item(..) => None,
        }
    }

    /// Lowers a value of the code language; `None` after a finding.
    pub(super) fn value(&mut self, expr: &'a SyntaxExpr) -> Option<Out> {
        match &expr.kind {
            ExprKind::Int(value) => Some(Out::Const(*value)),
            ExprKind::Paren(inner) => self.value(inner),
            ExprKind::Name(name) => match self.variable_named(name) {
                Some(id) => Some(Out::Variable(id)),
                None => self.known(expr),
            },
            ExprKind::Index(name, index) => match self.slot(&name.name, index) {
                Some(slot) => slot.and_then(VectorSlot::value),
                None => self.known(expr),
            },
            ExprKind::Arg(_) | ExprKind::NamedArg(_)
                if matches!(self.point_kind, Some(PointKind::Block | PointKind::Edge)) =>
            {
                let message = "arguments are known at entries, calls and returns, not at blocks and edges".to_owned();
                self.error(codes::PLACE, expr.span, message, "");
                None
            }
            ExprKind::NamedArg(name) => self.argument_named(expr, name),
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
                if let Some(compared) = self.compared_texts(expr, *op, a, b) {
                    return compared;
                }
                let (a, b) = (self.value(a), self.value(b));
                Some(both_sides(*op, a?, b?))
            }
            ExprKind::Call(callee, args) => self.call(expr, callee, args),
            ExprKind::Text(_) => self.text_alone(expr),
            // The checker has reported it.
            ExprKind::Row(_) => None,
            ExprKind::Return => self.at_end(expr, "`$return` is only known at returns and behind calls", Out::Return),
            ExprKind::Caller => match self.point_kind {
                None | Some(PointKind::Entry | PointKind::Exit) => Some(Out::ReturnAddress),
                Some(_) => {
                    let message = "`$caller` is only known at entries and returns".to_owned();
                    self.error(codes::PLACE, expr.span, message, "");
                    None
                }
            },
            ExprKind::GlobalId => Some(Out::Number(VariableId(0))),
            ExprKind::Elapsed(clock) => self.elapsed(expr, *clock, TimeUnit::Nanoseconds),
            ExprKind::SelfTime => {
                let all = self.elapsed(expr, Clock::Wall, TimeUnit::Nanoseconds)?;
                let callees = Out::Variable(self.time_in_callees());
                Some(Out::Binary(BinaryOp::Subtract, Box::new(all), Box::new(callees)))
            }
            // The checker has reported these.
            ExprKind::Address(_) | ExprKind::Own => None,
            ExprKind::Field(of, field) => self.member(expr, of, &field.name),
            ExprKind::Assign(target, ..) => match self.added(expr) {
                Some(added) => self.value_of_addition(expr, target, added?, false),
                None => self.value_of_assignment(expr, target),
            },
            // As in C, the result is the value before the step.
            ExprKind::Step(target, up) => {
                if let Some(added) = self.added(expr) {
                    return self.value_of_addition(expr, target, added?, true);
                }
                let now = self.value_of_assignment(expr, target)?;
                Some(fold_binary(if *up { BinaryOp::Subtract } else { BinaryOp::Add }, now, Out::Const(1)))
            }
        }
    }

    /// Makes an assignment that stands inside an expression before the whole statement, and returns the assigned value.
    fn value_of_assignment(&mut self, expr: &'a SyntaxExpr, target: &'a SyntaxExpr) -> Option<Out> {
        let mut own = Vec::new();
        self.effect(expr, &mut own);
        self.before.append(&mut own);
        self.value(target)
    }

    /// Returns the time of the call by a clock.
    fn elapsed(&mut self, expr: &SyntaxExpr, clock: Clock, unit: TimeUnit) -> Option<Out> {
        self.at_end(expr, "the time of a call is only known at its return", Out::Elapsed(clock, unit))
    }

    /// Returns a value that exists only at the end of a call. Elsewhere reports `otherwise` as an error.
    pub(super) fn at_end(&mut self, expr: &SyntaxExpr, otherwise: &str, value: Out) -> Option<Out> {
        match self.point_kind {
            None | Some(PointKind::Exit | PointKind::CallAfter) => Some(value),
            Some(_) => {
                self.error(codes::PLACE, expr.span, otherwise.to_owned(), "");
                None
            }
        }
    }

    fn time_in_callees(&mut self) -> VariableId {
        if let Some(known) = self.callees {
            return known;
        }
        let name = format!("{}.callees", self.definition);
        let new = self.variable(&name, VariableKind::Scratch, Shape::Counter);
        self.callees = Some(new);
        new
    }

    fn call(&mut self, expr: &'a SyntaxExpr, callee: &CalledName, args: &'a [SyntaxExpr]) -> Option<Out> {
        if let Some(known) = self.data(expr, callee, args) {
            return known;
        }
        let values: Vec<Option<Out>> = args.iter().map(|a| self.argument(a)).collect();
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
        if ["readSymbol", "readAddress"].contains(&callee.name.as_str()) && !callee.quoted {
            return self.refuse(expr, &format!("the call of `{}`", callee.name));
        }
        let args: Vec<Out> = values.into_iter().collect::<Option<_>>()?;
        if args.len() > ProgramCall::ARGS_MAX {
            let message = format!("`{}` is called with more than {} arguments", callee.name, ProgramCall::ARGS_MAX);
            self.error(codes::TYPE, expr.span, message, "what does not fit into registers is not passed");
            return None;
        }
        Some(Out::Call(Box::new(ProgramCall { callee: Called::Named(callee.name.clone()), args })))
    }

    /// Returns a value that the meta language knows when the request arrives, as a constant.
    pub(super) fn known(&mut self, expr: &'a SyntaxExpr) -> Option<Out> {
        match self.expr(expr) {
            MetaValue::Int(value) => Some(Out::Const(value)),
            MetaValue::Refused => None,
            MetaValue::Text(_) => self.text_alone(expr),
            _ => self.refuse(expr, "this as a value"),
        }
    }

    pub(super) fn refuse(&mut self, expr: &SyntaxExpr, what: &str) -> Option<Out> {
        self.not_woven(expr.span, format!("{what} is not woven yet"));
        None
    }
}

fn fold_unary(op: UnaryOp, value: Out) -> Out {
    match value {
        Out::Const(value) => Out::Const(unary(op, value)),
        value => Out::Unary(op, Box::new(value)),
    }
}

/// Returns an operator that computes both of its sides. If a side of `&&` or `||` has a call, the call is made whatever the other side is.
fn both_sides(op: BinaryOp, a: Out, b: Out) -> Out {
    let bitwise = match op {
        BinaryOp::LogicalAnd => BinaryOp::And,
        BinaryOp::LogicalOr => BinaryOp::Or,
        _ => return fold_binary(op, a, b),
    };
    if !a.has_calls() && !b.has_calls() {
        return fold_binary(op, a, b);
    }
    let truth = |e| fold_binary(BinaryOp::NotEqual, e, Out::Const(0));
    fold_binary(bitwise, truth(a), truth(b))
}

pub(super) fn fold_binary(op: BinaryOp, a: Out, b: Out) -> Out {
    match (a, b) {
        (Out::Const(a), Out::Const(b)) => Out::Const(binary(op, a, b)),
        (a, b) => Out::Binary(op, Box::new(a), Box::new(b)),
    }
}
