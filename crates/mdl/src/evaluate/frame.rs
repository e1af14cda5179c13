//! Calls from their beginning to their end.
//!
//! The code at the entry and at the exits of a function belongs together, and so does the code before and after a call. Activation records
//! hold the values that the code must remember in between, and the variables that an exception or longjmp must not leave changed.

use std::collections::{BTreeSet, HashMap, HashSet};

use ingraft_model::snippet::{BinaryOp, CallRecord, KeptValue, Restore, TimeUnit};
use ingraft_model::{Clock, Expr, FunctionId, Order, Parts, PointKind, Shape, Stmt, Style, VariableId, VariableKind};

use super::insert::{InsertionDraft, VariableChanges};
use super::meta::Evaluation;
use super::walk::{each_expr, each_stmt};
use crate::diagnostic::codes;

/// Part of a run that has a beginning and an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FrameKind {
    /// A call of the function, from its entry to its exit.
    Function,
    /// A call that the function makes, from before to after the call instruction.
    Call,
}

impl FrameKind {
    fn of(place: PointKind) -> FrameKind {
        if place.is_at_call() { FrameKind::Call } else { FrameKind::Function }
    }

    fn opening(self) -> PointKind {
        match self {
            FrameKind::Function => PointKind::Entry,
            FrameKind::Call => PointKind::CallBefore,
        }
    }

    fn closing(self) -> PointKind {
        match self {
            FrameKind::Function => PointKind::Exit,
            FrameKind::Call => PointKind::CallAfter,
        }
    }
}

/// The code at both ends of a frame, each in the order in which it runs.
#[derive(Default)]
struct FrameCode {
    opening: Vec<InsertionDraft>,
    closing: Vec<InsertionDraft>,
}

impl FrameCode {
    fn add(&mut self, draft: &InsertionDraft, frame: FrameKind) {
        let end = if draft.point_kind == frame.closing() { &mut self.closing } else { &mut self.opening };
        match draft.order {
            Order::Append => end.push(draft.clone()),
            Order::Prepend => end.insert(0, draft.clone()),
        }
    }
}

/// Whether points of this kind are inside of a function, and so at neither end of a call.
fn is_inside(place: PointKind) -> bool {
    matches!(place, PointKind::Block | PointKind::Edge)
}

fn code(drafts: &[InsertionDraft]) -> Vec<Stmt> {
    drafts.iter().flat_map(|d| &d.snippet.stmts).cloned().collect()
}

/// A record that the definition's code has, so that its code in all functions uses the same record.
#[derive(Clone, Debug)]
pub(super) struct KnownRecord {
    frame: FrameKind,
    innermost: bool,
    record: CallRecord,
}

impl Evaluation<'_> {
    /// Joins the code at both ends of every frame that needs a record, and puts it into the record. The record that is opened first is
    /// closed last, whatever order the text asks for at the exit.
    pub(super) fn with_records(&mut self, drafts: Vec<InsertionDraft>) -> Vec<InsertionDraft> {
        if !drafts.iter().any(|d| d.point_kind == FrameKind::of(d.point_kind).closing()) {
            return drafts;
        }
        let mut frames: HashMap<(FunctionId, FrameKind), FrameCode> = HashMap::new();
        for draft in drafts.iter().filter(|draft| !is_inside(draft.point_kind)) {
            let frame = FrameKind::of(draft.point_kind);
            frames.entry((draft.function, frame)).or_default().add(draft, frame);
        }
        let mut out = Vec::with_capacity(drafts.len());
        let mut joined = HashSet::new();
        for draft in drafts {
            let frame = FrameKind::of(draft.point_kind);
            let key = (draft.function, frame);
            if let Some(ends) = frames.remove(&key)
                && let Some(pair) = self.join(frame, &ends)
            {
                joined.insert(key);
                out.extend(pair);
            }
            if is_inside(draft.point_kind) || !joined.contains(&key) {
                out.push(draft);
            }
        }
        out
    }

    /// Returns the code at both ends of a frame with its records; `None` if the frame needs no record.
    fn join(&mut self, frame: FrameKind, ends: &FrameCode) -> Option<[InsertionDraft; 2]> {
        let last = ends.closing.last()?;
        let (mut opening, mut closing) = (code(&ends.opening), code(&ends.closing));
        let order = ends.opening.first().map_or_else(|| last.order.mirrored(), |first| first.order);
        let role = if opening.is_empty() { last.role.mirrored() } else { self.role(order, &opening) };
        let (kept, callees) = self.kept(&mut closing);
        let mut restored = self.changed_by_both(&opening, &closing);
        restored.extend(callees.map(Restore::Value));
        if restored.is_empty() && kept.is_empty() {
            return None;
        }
        if kept.len() > CallRecord::KEPT_MAX {
            let message = format!("the code at the end of a call uses {} arguments and clocks", kept.len());
            let help = format!("at most {} are kept; keep others in counters", CallRecord::KEPT_MAX);
            self.error(codes::TOO_LARGE, last.span, message, help);
            return None;
        }
        if let Some(callees) = callees {
            opening.insert(0, Stmt::Set(callees, Expr::Const(0)));
            let elapsed = Expr::Elapsed(Clock::Wall, TimeUnit::Nanoseconds);
            let sum = Expr::Binary(BinaryOp::Add, Box::new(Expr::Restored), Box::new(elapsed));
            closing.push(Stmt::Set(callees, sum));
        }
        let (outer, innermost) = self.records(frame, &restored, kept);
        let mut begin = vec![Stmt::Open(innermost.clone(), opening)];
        let mut end = vec![Stmt::Close(innermost, closing)];
        for record in outer.into_iter().rev() {
            begin = vec![Stmt::Open(record.clone(), begin)];
            end.push(Stmt::Close(record, Vec::new()));
        }
        let (function, span) = (last.function, last.span);
        let begin = InsertionDraft {
            function,
            point_kind: frame.opening(),
            parts: Parts::All,
            order,
            role,
            snippet: self.shared(begin),
            span,
        };
        let (order, role) = (order.mirrored(), role.mirrored());
        let end = InsertionDraft {
            function,
            point_kind: frame.closing(),
            parts: Parts::All,
            order,
            role,
            snippet: self.shared(end),
            span,
        };
        Some([begin, end])
    }

    /// Returns the values of the beginning that the code at the end needs, and the variable of the time in callees if the code uses
    /// `$self`.
    /// Replaces arguments in the code by kept arguments.
    fn kept(&self, closing: &mut [Stmt]) -> (Vec<KeptValue>, Option<VariableId>) {
        let (mut kept, mut callees) = (BTreeSet::new(), None);
        each_expr(closing, &mut |expr| {
            match *expr {
                Expr::Arg(n) => *expr = Expr::Saved(KeptValue::Argument(n)),
                Expr::Variable(v) if self.callees == Some(v) => callees = self.callees,
                _ => {}
            }
            kept.extend(match *expr {
                Expr::Saved(kept) => Some(kept),
                Expr::Elapsed(clock, _) => Some(KeptValue::Time(clock)),
                _ => None,
            });
        });
        each_stmt(closing, &mut |stmt| {
            if let Stmt::Observe(_, _, _, Some(clock)) = stmt {
                kept.extend([KeptValue::Time(*clock), KeptValue::Spent(*clock)]);
            }
        });
        (kept.into_iter().collect(), callees)
    }

    /// Returns the variables that the code changes at the beginning and again at the end, and that an unfinished call must not leave
    /// changed:
    /// timers, flags, and a metric that is a level. Counted events stay counted.
    fn changed_by_both(&self, opening: &[Stmt], closing: &[Stmt]) -> Vec<Restore> {
        let mut found = Vec::new();
        let ends = changed(closing);
        for v in changed(opening).into_iter().filter(|v| ends.contains(v)) {
            let Some(variable) = self.variables.get(v.0 as usize) else { continue };
            match (variable.shape, variable.kind) {
                (Shape::Timer(clock), _) => found.push(Restore::Timer(v, clock)),
                (_, VariableKind::Flag) if self.exclusive => found.push(Restore::Flag(v)),
                (_, VariableKind::Flag) => found.push(Restore::Value(v)),
                (_, VariableKind::Counter) if self.is_level(v, opening) || self.is_level(v, closing) => {
                    found.push(Restore::Value(v));
                }
                _ => {}
            }
        }
        found
    }

    fn is_level(&self, v: VariableId, stmts: &[Stmt]) -> bool {
        let change = VariableChanges::of(stmts, v);
        self.metric.info.style == Style::SampledFunction || change.set || change.down
    }

    /// Returns one record for each restored variable, but at least one. The last record is the innermost: it holds the code, and keeps
    /// clocks and arguments.
    fn records(
        &mut self,
        frame: FrameKind,
        restored: &[Restore],
        kept: Vec<KeptValue>,
    ) -> (Vec<CallRecord>, CallRecord) {
        let (innermost, outer) = restored.split_last().map_or((None, restored), |(last, outer)| (Some(*last), outer));
        let outer = outer.iter().map(|v| self.record(frame, false, Vec::new(), Some(*v))).collect();
        (outer, self.record(frame, true, kept, innermost))
    }

    /// Returns a record: an equal one of the same definition, or a new one. Records of functions and of call sites have different names,
    /// because both may have the same stack pointer.
    fn record(
        &mut self,
        frame: FrameKind,
        innermost: bool,
        kept: Vec<KeptValue>,
        restore: Option<Restore>,
    ) -> CallRecord {
        let same = |known: &&KnownRecord| {
            let record = &known.record;
            (known.frame, known.innermost, &record.kept, record.restore) == (frame, innermost, &kept, restore)
        };
        if let Some(known) = self.records.iter().find(same) {
            return known.record.clone();
        }
        // The name lists the remembered values, because another evaluation may create the same record at another position.
        let restored = restore.and_then(|restore| self.variables.get(restore.variable().0 as usize));
        let restored = restored.map(|variable| variable.name.clone());
        let remembers: Vec<String> = restored.into_iter().chain(kept.iter().map(KeptValue::to_string)).collect();
        let calls = match frame {
            FrameKind::Function => "calls",
            FrameKind::Call => "sites",
        };
        let name = format!("{}.{calls}({})", self.definition, remembers.join(", "));
        let kind = if innermost { VariableKind::Activations } else { VariableKind::OuterActivations };
        let activations = self.variable(&name, kind, Shape::Activations);
        self.variables[activations.0 as usize].sampled = self.group == 0 && frame == FrameKind::Function && innermost;
        let record = CallRecord { activations, kept, restore };
        self.records.push(KnownRecord { frame, innermost, record: record.clone() });
        record
    }
}

/// The variables that statements change, each once, in order.
fn changed(stmts: &[Stmt]) -> Vec<VariableId> {
    let mut found = Vec::new();
    each_stmt(stmts, &mut |stmt| {
        if let Stmt::Add(v, _) | Stmt::Set(v, _) | Stmt::Start(v, _) | Stmt::Stop(v, _) = stmt
            && !found.contains(v)
        {
            found.push(*v);
        }
    });
    found
}
