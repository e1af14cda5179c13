//! Events at points: what the kernel counts for a thread and the processor for it, asked by the thread itself.

use ingraft_model::{BinaryOp, Clock, Expr as Out, Shape, Stmt, Usage, VariableId, VariableKind};

use super::code::fold_binary;
use super::meta::Evaluation;
use crate::ast::Expr;

/// Method by which an event is known at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metered {
    /// It is the processor time of the thread, which has a clock.
    ProcessorTime,
    /// The kernel tells the thread.
    Usage(Usage),
    /// The thread reads a counter of its own, if the machine has one.
    Counter,
}

impl Metered {
    /// The event of that name, as `perf list` has it. Whether there is one of that name is not known here.
    pub fn named(event: &str) -> Metered {
        match event {
            "task-clock" | "cpu-clock" => Metered::ProcessorTime,
            "page-faults" | "faults" => Metered::Usage(Usage::PageFaults),
            "minor-faults" => Metered::Usage(Usage::MinorFaults),
            "major-faults" => Metered::Usage(Usage::MajorFaults),
            "context-switches" | "cs" => Metered::Usage(Usage::ContextSwitches),
            _ => Metered::Counter,
        }
    }
}

/// Number of starts of a timer of events, and the count of the events when it was started first.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTimer {
    nest: VariableId,
    begun: VariableId,
}

impl<'a> Evaluation<'a> {
    /// The only accumulator of events is the metric itself.
    fn event_timer(&mut self) -> EventTimer {
        if let Some(known) = self.event_timer {
            return known;
        }
        // as a flag it goes back when a call ends without passing its exit: what is counted until then is not in the value
        let nest = self.variable("started", VariableKind::Flag, Shape::Counter);
        let begun = self.variable("begun", VariableKind::Scratch, Shape::Counter);
        *self.event_timer.insert(EventTimer { nest, begun })
    }

    /// Count of events that the thread has caused so far; `None` if the event is a time, or nothing was said of events.
    fn caused(&self) -> Option<Out> {
        match self.metered? {
            Metered::ProcessorTime => None,
            Metered::Usage(usage) => Some(Out::Usage(usage)),
            Metered::Counter => self.event.map(Out::Event),
        }
    }

    pub(super) fn start_events(&mut self, timer: &'a Expr, out: &mut Vec<Stmt>) {
        if self.metered == Some(Metered::ProcessorTime) {
            return self.timer(timer, Clock::Cpu, Stmt::Start, out);
        }
        let Some(caused) = self.caused() else { return };
        let EventTimer { nest, begun } = self.event_timer();
        let first = fold_binary(BinaryOp::Equal, Out::Variable(nest), Out::Const(0));
        out.push(Stmt::If(first, vec![Stmt::Set(begun, caused)]));
        out.push(Stmt::Add(nest, Out::Const(1)));
    }

    pub(super) fn stop_events(&mut self, timer: &'a Expr, out: &mut Vec<Stmt>) {
        if self.metered == Some(Metered::ProcessorTime) {
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

    pub(super) fn sample_events(&mut self, counter: &'a Expr, out: &mut Vec<Stmt>) {
        if let Some(caused) = self.caused() {
            let counter = self.accumulator(counter, Shape::Counter, "the counter of the metric");
            out.extend(counter.map(|counter| Stmt::Set(counter, caused)));
        }
    }
}
