//! Insertion of code at points: the kind of point, the functions, the order among other code there, and the role of the code.

use std::sync::Arc;

use ingraft_model::{
    BinaryOp, Expr as Out, FunctionId, Insertion, LoopEdges, Order, Parts, PointId, PointKind, Refusal, Role, Snippet,
    Stmt, UnaryOp, VariableId,
};

use super::meta::{Evaluation, FlagWord, LoopOf, MetaValue};
use super::walk::each_stmt;
use crate::ast::{InsertStatement, MetaKind, MetaStatement};
use crate::source::SourceSpan;

/// Code of one definition at the points of one kind in one function. [`Evaluation::with_records`] joins drafts that share a record.
#[derive(Clone, Debug)]
pub(super) struct InsertionDraft {
    pub(super) function: FunctionId,
    pub(super) point_kind: PointKind,
    /// The points of the kind that the code is for.
    pub(super) parts: Parts,
    pub(super) order: Order,
    pub(super) role: Role,
    pub(super) snippet: Arc<Snippet>,
    /// Position of the code in the source.
    pub(super) span: SourceSpan,
}

impl<'a> Evaluation<'a> {
    pub(super) fn insert(&mut self, insert: &'a InsertStatement) {
        let target = match self.expr(&insert.points) {
            // Code after the instruction of a call belongs to the point after the call. Code after the first instruction of a function runs
            // last at the entry, before the instruction, which changes none of the values that the code can use.
            MetaValue::Points(PointKind::CallBefore, functions) if insert.after => {
                Some((PointKind::CallAfter, functions))
            }
            MetaValue::Points(point, functions) | MetaValue::Part(point, functions) => Some((point, functions)),
            MetaValue::Refused => None,
            _ => {
                self.wrong(&insert.points, "points");
                None
            }
        };
        self.point_kind = target.as_ref().map(|(place, _)| *place);
        let functions = target.iter().flat_map(|(_, functions)| functions);
        self.functions_here = functions.map(|(function, _)| *function).collect();
        let mut stmts = Vec::new();
        self.block(&insert.code, &mut stmts);
        let Some((place, functions)) = target else { return };
        if insert.constrained && !stmts.is_empty() {
            for flag in self.flags.iter().rev() {
                stmts = vec![Stmt::If(Out::Variable(*flag), stmts)];
            }
        }
        let last = insert.after && place == PointKind::Entry;
        let order = if insert.prepend && !last { Order::Prepend } else { Order::Append };
        let before = self.drafts.len();
        self.draft(functions, place, order, stmts, insert.code_span);
        if last {
            self.late.extend(self.drafts.drain(before..));
        }
    }

    /// Adds drafts of the code for one kind of point in several functions.
    fn draft(
        &mut self,
        functions: impl IntoIterator<Item = (FunctionId, Parts)>,
        place: PointKind,
        order: Order,
        stmts: Vec<Stmt>,
        span: SourceSpan,
    ) {
        if stmts.is_empty() {
            return;
        }
        let role = self.role(order, &stmts);
        let stmts = match self.flag.filter(|_| place == PointKind::Edge) {
            Some(flag) => above_zero(stmts, flag),
            None => stmts,
        };
        let snippet = self.shared(stmts);
        let drafts = functions.into_iter().map(|(function, parts)| {
            let snippet = Arc::clone(&snippet);
            InsertionDraft { function, point_kind: place, parts, order, role, snippet, span }
        });
        self.drafts.extend(drafts);
    }

    /// Returns the snippet of these statements. Equal statements share one snippet.
    pub(super) fn shared(&mut self, stmts: Vec<Stmt>) -> Arc<Snippet> {
        let snippet = Snippet { stmts };
        if let Some(known) = self.snippets.get(&snippet) {
            return Arc::clone(known);
        }
        let snippet = Arc::new(snippet);
        self.snippets.insert(Arc::clone(&snippet));
        snippet
    }

    /// Returns the role of code: whether a constraint's code sets or clears its flag. If the code does both or neither, prepended code
    /// counts as setting and appended code as clearing.
    pub(super) fn role(&self, order: Order, stmts: &[Stmt]) -> Role {
        let Some(flag) = self.flag else { return Role::Metric };
        let change = VariableChanges::of(stmts, flag);
        match (change.up, change.down, order) {
            (true, false, _) => Role::FlagSet,
            (false, true, _) => Role::FlagClear,
            (_, _, Order::Prepend) => Role::FlagSet,
            (_, _, Order::Append) => Role::FlagClear,
        }
    }

    /// Adds drafts for the flag of a constraint that is `inclusive` (the flag counts the functions' activations on the thread's stack) or
    /// `exclusive` (the flag is set while one of the functions itself executes).
    pub(super) fn worded(&mut self, word: FlagWord, flag: VariableId, functions: &[FunctionId], span: SourceSpan) {
        let add = |n| vec![Stmt::Add(flag, Out::Const(n))];
        let set = |n| vec![Stmt::Set(flag, Out::Const(n))];
        let (up, down) = match word {
            FlagWord::Inclusive => (add(1), add(-1)),
            FlagWord::Exclusive => (set(1), set(0)),
        };
        let all = || functions.iter().map(|function| (*function, Parts::All));
        self.draft(all(), PointKind::Entry, Order::Prepend, up, span);
        self.draft(all(), PointKind::Exit, Order::Append, down, span);
        if word == FlagWord::Exclusive {
            self.draft(all(), PointKind::CallBefore, Order::Append, set(0), span);
            self.draft(all(), PointKind::CallAfter, Order::Prepend, set(1), span);
        }
    }

    /// Adds drafts for the flag of a constraint that is `inclusive` at a focus on a loop: the flag counts the executions of the loop on the
    /// thread's stack.
    pub(super) fn inside_loop(&mut self, flag: VariableId, loops: &[LoopOf], span: SourceSpan) {
        let add = |n| vec![Stmt::Add(flag, Out::Const(n))];
        let at = |of: fn(&LoopEdges) -> &Result<Arc<[PointId]>, Refusal>| {
            loops.iter().map(move |(function, one)| (*function, Parts::of_points(of(one).clone())))
        };
        self.draft(at(|one| &one.enter), PointKind::Edge, Order::Prepend, add(1), span);
        self.draft(at(|one| &one.exit), PointKind::Edge, Order::Append, add(-1), span);
    }

    /// Turns the drafts of one definition into final insertions.
    pub(super) fn place_drafts(&mut self) {
        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.append(&mut self.late);
        let drafts = self.with_records(drafts);
        let (group, nothing) = (self.group, Arc::from([]));
        self.insertions.extend(drafts.into_iter().map(|draft| Insertion {
            function: draft.function,
            point: draft.point_kind,
            parts: draft.parts,
            order: draft.order,
            role: draft.role,
            snippet: draft.snippet,
            group,
            except: Arc::clone(if draft.point_kind.is_at_call() { &self.measured } else { &nothing }),
        }));
    }

    /// Adds to `found` the functions of every list that the statements iterate over by its name.
    pub(super) fn listed(&self, statements: &'a [MetaStatement], found: &mut Vec<FunctionId>) {
        for statement in statements {
            match &statement.kind {
                MetaKind::Block(inner) => self.listed(inner, found),
                MetaKind::If(_, then, otherwise) => {
                    self.listed(std::slice::from_ref(then), found);
                    self.listed(otherwise.as_deref().map_or(&[], std::slice::from_ref), found);
                }
                MetaKind::Foreach(_, list, inner) => {
                    found.extend(self.functions_of_list(list));
                    self.listed(std::slice::from_ref(inner), found);
                }
                MetaKind::Insert(_) => {}
            }
        }
    }
}

/// Returns statements that subtract from the flag only if it is above 0: a thread that was inside of a loop when the measurement began has
/// not added to the flag before it leaves the loop.
fn above_zero(stmts: Vec<Stmt>, flag: VariableId) -> Vec<Stmt> {
    let guarded = |stmt| match stmt {
        Stmt::Add(v, Out::Const(n)) if v == flag && n < 0 => {
            let above = Out::Binary(BinaryOp::Greater, Box::new(Out::Variable(v)), Box::new(Out::Const(0)));
            Stmt::If(above, vec![Stmt::Add(v, Out::Const(n))])
        }
        other => other,
    };
    stmts.into_iter().map(guarded).collect()
}

/// Changes that statements make to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct VariableChanges {
    /// Whether a statement sets the variable to something else than 0, or adds to it.
    pub(super) up: bool,
    /// Whether a statement sets the variable to 0, or subtracts from it.
    pub(super) down: bool,
    /// Whether a statement sets the variable.
    pub(super) set: bool,
}

impl VariableChanges {
    pub(super) fn of(stmts: &[Stmt], variable: VariableId) -> VariableChanges {
        let mut change = VariableChanges::default();
        each_stmt(stmts, &mut |stmt| {
            let (value, set) = match stmt {
                Stmt::Set(v, value) if *v == variable => (value, true),
                Stmt::Add(v, value) if *v == variable => (value, false),
                _ => return,
            };
            let down = match (value, set) {
                (Out::Const(c), true) => *c == 0,
                (Out::Const(c), false) => *c < 0,
                (Out::Unary(UnaryOp::Negate, _), false) => true,
                _ => false,
            };
            change.set |= set;
            change.up |= !down;
            change.down |= down;
        });
        change
    }
}
