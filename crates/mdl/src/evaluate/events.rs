//! Events at points. The thread itself reads the count of events from the kernel or from the processor.

use ingraft_model::{BinaryOp, Clock, Expr as Out, Shape, Stmt, Usage, VariableId, VariableKind};

use super::code::fold_binary;
use super::meta::Evaluation;
use crate::ast::SyntaxExpr;

/// Method by which code at a point reads an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReadMethod {
    /// The event is the processor time of the thread, which a clock measures.
    ProcessorTime,
    /// The thread asks the kernel.
    Usage(Usage),
    /// The thread reads its own processor counter, if the machine has one.
    Counter,
}

impl EventReadMethod {
    /// Returns the method for an event by its name in `perf list`, without checking that such an event exists.
    pub fn named(event: &str) -> EventReadMethod {
        match event {
            "task-clock" | "cpu-clock" => EventReadMethod::ProcessorTime,
            "page-faults" | "faults" => EventReadMethod::Usage(Usage::PageFaults),
            "minor-faults" => EventReadMethod::Usage(Usage::MinorFaults),
            "major-faults" => EventReadMethod::Usage(Usage::MajorFaults),
            "context-switches" | "cs" => EventReadMethod::Usage(Usage::ContextSwitches),
            _ => EventReadMethod::Counter,
        }
    }
}

/// Variables of a timer of events: the number of its starts, and the count of events at the first start.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTimer {
    nest: VariableId,
    begun: VariableId,
}

impl<'a> Evaluation<'a> {
    /// Returns the timer of events. One is enough, because the metric itself is the only accumulator of events.
    fn event_timer(&mut self) -> EventTimer {
        if let Some(known) = self.event_timer {
            return known;
        }
        // The variable is a flag, so the engine restores it when a call ends without passing its exit. The value lacks the events of this
        // call.
        let nest = self.variable("started", VariableKind::Flag, Shape::Counter);
        let begun = self.variable("begun", VariableKind::Scratch, Shape::Counter);
        *self.event_timer.insert(EventTimer { nest, begun })
    }

    /// Count of events that the thread has caused so far; `None` if the event is a time, or the metric has no event.
    fn caused(&self) -> Option<Out> {
        match self.metered? {
            EventReadMethod::ProcessorTime => None,
            EventReadMethod::Usage(usage) => Some(Out::Usage(usage)),
            EventReadMethod::Counter => self.event.map(Out::Event),
        }
    }

    pub(super) fn start_events(&mut self, timer: &'a SyntaxExpr, out: &mut Vec<Stmt>) {
        if self.metered == Some(EventReadMethod::ProcessorTime) {
            return self.timer(timer, Clock::Cpu, Stmt::Start, out);
        }
        let Some(caused) = self.caused() else { return };
        let EventTimer { nest, begun } = self.event_timer();
        let first = fold_binary(BinaryOp::Equal, Out::Variable(nest), Out::Const(0));
        out.push(Stmt::If(first, vec![Stmt::Set(begun, caused)]));
        out.push(Stmt::Add(nest, Out::Const(1)));
    }

    pub(super) fn stop_events(&mut self, timer: &'a SyntaxExpr, out: &mut Vec<Stmt>) {
        if self.metered == Some(EventReadMethod::ProcessorTime) {
            return self.timer(timer, Clock::Cpu, Stmt::Stop, out);
        }
        let Some(caused) = self.caused() else { return };
        let Some(value) = self.accumulator(timer, Shape::Counter, "the timer of the metric") else { return };
        let EventTimer { nest, begun } = self.event_timer();
        let since = fold_binary(BinaryOp::Subtract, caused, Out::Variable(begun));
        let last = fold_binary(BinaryOp::Equal, Out::Variable(nest), Out::Const(1));
        let runs = fold_binary(BinaryOp::Greater, Out::Variable(nest), Out::Const(0));
        let stop = vec![Stmt::If(last, vec![Stmt::Add(value, since)]), Stmt::Add(nest, Out::Const(-1))];
        out.push(Stmt::If(runs, stop));
    }

    pub(super) fn sample_events(&mut self, counter: &'a SyntaxExpr, out: &mut Vec<Stmt>) {
        if let Some(caused) = self.caused() {
            let counter = self.accumulator(counter, Shape::Counter, "the counter of the metric");
            out.extend(counter.map(|counter| Stmt::Set(counter, caused)));
        }
    }
}
