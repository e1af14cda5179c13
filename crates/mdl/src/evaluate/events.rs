//! Events at points: what the kernel counts for a thread, asked by the thread itself.

use ingraft_model::{BinaryOp, Clock, Expr as Out, Shape, Stmt, Usage, VariableId};

use super::VariableKind;
use super::code::fold_binary;
use super::meta::Evaluation;
use crate::ast::Expr;

/// How an event is known at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metered {
    /// It is the processor time of the thread, which has a clock.
    ProcessorTime,
    /// The kernel tells the thread.
    Usage(Usage),
}

impl Metered {
    /// The event of that name, as `perf list` has it; none if a thread cannot ask for it.
    pub(super) fn named(event: &str) -> Option<Metered> {
        Some(match event {
            "task-clock" | "cpu-clock" => Metered::ProcessorTime,
            "page-faults" | "faults" => Metered::Usage(Usage::PageFaults),
            "minor-faults" => Metered::Usage(Usage::MinorFaults),
            "major-faults" => Metered::Usage(Usage::MajorFaults),
            "context-switches" | "cs" => Metered::Usage(Usage::ContextSwitches),
            _ => return None,
        })
    }
}

/// How often a timer of events is started, and what had been counted when it was started first.
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

    pub(super) fn start_events(&mut self, timer: &'a Expr, out: &mut Vec<Stmt>) {
        match self.metered {
            Some(Metered::ProcessorTime) => self.timer(timer, Clock::Cpu, Stmt::Start, out),
            Some(Metered::Usage(usage)) => {
                let EventTimer { nest, begun } = self.event_timer();
                let first = fold_binary(BinaryOp::Equal, Out::Variable(nest), Out::Const(0));
                out.push(Stmt::If(first, vec![Stmt::Set(begun, Out::Usage(usage))]));
                out.push(Stmt::Add(nest, Out::Const(1)));
            }
            // said where the base is looked at
            None => {}
        }
    }

    pub(super) fn stop_events(&mut self, timer: &'a Expr, out: &mut Vec<Stmt>) {
        match self.metered {
            Some(Metered::ProcessorTime) => self.timer(timer, Clock::Cpu, Stmt::Stop, out),
            Some(Metered::Usage(usage)) => {
                let Some(value) = self.accumulator(timer, Shape::Counter, "the timer of the metric") else { return };
                let EventTimer { nest, begun } = self.event_timer();
                let since = fold_binary(BinaryOp::Subtract, Out::Usage(usage), Out::Variable(begun));
                let last = fold_binary(BinaryOp::Equal, Out::Variable(nest), Out::Const(1));
                let runs = fold_binary(BinaryOp::Greater, Out::Variable(nest), Out::Const(0));
                let stop = vec![Stmt::If(last, vec![Stmt::Add(value, since)]), Stmt::Add(nest, Out::Const(-1))];
                out.push(Stmt::If(runs, stop));
            }
            None => {}
        }
    }

    pub(super) fn sample_events(&mut self, counter: &'a Expr, out: &mut Vec<Stmt>) {
        if let Some(Metered::Usage(usage)) = self.metered {
            let counter = self.accumulator(counter, Shape::Counter, "the counter of the metric");
            out.extend(counter.map(|counter| Stmt::Set(counter, Out::Usage(usage))));
        }
    }
}
