//! Metrics of paths: what passes while they run, by a clock or by the count of an event (Ammons, Ball and Larus 1997, section 3).
//!
//! The end of each path adds to the value of the path what has passed since the path began. What passes in a call that the path makes counts for
//! the paths of the call, if it has some ([`MetricSpan::Own`]), or for both ([`MetricSpan::Total`]). For the former, a thread keeps what has passed on its
//! present path before the last reading. A call sets that aside in its record and begins anew. However the call ends, the record gives it back.

use std::sync::Arc;

use ingraft_model::{
    BinaryOp, CallRecord, Clock, Expr, Restore, Scale, Shape, Stmt, Variable, VariableId, VariableKind,
};

use crate::api::{MeasurementId, MetricFocus, PathMetric, PathsOptions};
use crate::error::Error;
use crate::kinds::code;
use crate::kinds::event::ReadEvent;
use crate::measure::request::{Owner, PairPurpose};
use crate::pairs::PairKey;
use crate::session::Locked;

/// Name of the metric of the pairs that hold counters for all functions.
const HELD: &str = "path_metric";

/// A number that is read at the ends of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricReading {
    /// A clock, in ticks.
    Clock(Clock),
    /// The count of an event.
    Event(ReadEvent),
}

/// Part of the time of a path that a metric has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSpan {
    /// That without the paths of calls that it makes.
    Own,
    /// All.
    Total,
}

/// A metric of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredMetric {
    /// The number that is read.
    pub reading: MetricReading,
    /// The part that counts.
    pub span: MetricSpan,
}

/// The variables of one metric in the code of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricVariables {
    /// The values of the paths.
    pub values: VariableId,
    /// For [`MetricSpan::Own`], what has passed on the thread's present path before the last reading; else the reading at which the path began.
    state: VariableId,
    /// The last reading in the thread, for [`MetricSpan::Own`].
    last: VariableId,
    /// Outcomes of the calls whose records keep the state.
    activations: VariableId,
}

/// Number of variables of a metric.
const VARIABLES: u32 = 4;

/// The metrics of a request, with the counters that all functions share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathMetrics {
    /// The metrics.
    pub all: Vec<MeasuredMetric>,
    /// For each, the counters of what has passed on a thread's present path, and of the last reading; empty before they are taken.
    held: Vec<[u32; 2]>,
}

impl PathMetrics {
    /// The metrics of a request: those of paths alone, then those with callees. Fails if the event is a time.
    pub fn of(options: &PathsOptions) -> Result<PathMetrics, Error> {
        let clock = |metric: &PathMetric| match metric {
            PathMetric::WallTime => MetricReading::Clock(Clock::Wall),
            PathMetric::CpuTime => MetricReading::Clock(Clock::Cpu),
        };
        let mut readings: Vec<MetricReading> = options.metrics.iter().map(clock).collect();
        if let Some(name) = &options.event {
            readings.push(MetricReading::Event(ReadEvent::named(name)?));
        }
        let spans = [Some(MetricSpan::Own), options.callees.then_some(MetricSpan::Total)].into_iter().flatten();
        let all = spans
            .flat_map(|span| readings.iter().map(move |reading| MeasuredMetric { reading: reading.clone(), span }));
        Ok(PathMetrics { all: all.collect(), held: Vec::new() })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The event of the processor among them.
    pub fn counter(&self) -> Option<Arc<str>> {
        self.all.iter().find_map(|metric| match &metric.reading {
            MetricReading::Event(event) => event.counter(),
            MetricReading::Clock(_) => None,
        })
    }

    /// The variables of each metric. `first` is the number of the first one.
    pub fn ids(&self, first: u32) -> impl Iterator<Item = (&MeasuredMetric, MetricVariables)> {
        let of = move |n: u32| {
            let id = |variable: u32| VariableId(first + VARIABLES * n + variable);
            MetricVariables { values: id(0), state: id(1), last: id(2), activations: id(3) }
        };
        self.all.iter().zip(0..).map(move |(metric, n)| (metric, of(n)))
    }

    /// The variable of an event of the processor.
    fn event(&self, first: u32) -> VariableId {
        VariableId(first + VARIABLES * self.all.len() as u32)
    }

    /// The variables, in the order of their numbers. Values of paths have this shape.
    pub fn variables(&self, values: Shape) -> Vec<Variable> {
        let own = |(n, metric): (usize, &MeasuredMetric)| {
            let [state, last] = self.held.get(n).copied().unwrap_or_default();
            let state = if metric.span == MetricSpan::Own { Shape::Alias(state) } else { Shape::Counter };
            [
                code::named("values", VariableKind::Counter, values),
                code::named("state", VariableKind::PathSum, state),
                code::named("last", VariableKind::Counter, Shape::Alias(last)),
                code::named("outer", VariableKind::OuterActivations, Shape::Activations),
            ]
        };
        let event = self.counter().map(|_| code::named("event", VariableKind::Scratch, Shape::Event));
        self.all.iter().enumerate().flat_map(own).chain(event).collect()
    }

    /// The statements at the entry of a function.
    pub fn entry(&self, first: u32) -> Vec<Stmt> {
        let stmts = |(metric, ids): (&MeasuredMetric, MetricVariables)| match metric.span {
            MetricSpan::Own => {
                let set = vec![Stmt::Set(ids.state, Expr::Const(0))];
                [Stmt::Add(ids.state, self.since(metric, ids.last, first)), Stmt::Open(ids.record(), set)]
            }
            MetricSpan::Total => [Stmt::Open(ids.record(), Vec::new()), Stmt::Set(ids.state, self.read(metric, first))],
        };
        self.ids(first).flat_map(stmts).collect()
    }

    /// The statements at the exits of a function, behind the end of its last path.
    pub fn exit(&self, first: u32) -> Vec<Stmt> {
        let close = |(_, ids): (&MeasuredMetric, MetricVariables)| {
            Stmt::Close(ids.record(), vec![Stmt::Set(ids.state, Expr::Restored)])
        };
        let mut all: Vec<Stmt> = self.ids(first).map(close).collect();
        all.reverse();
        all
    }

    /// The statements where a path begins behind something that belongs to none: control has come there in another way than by a call or an edge.
    pub fn begin(&self, first: u32) -> Vec<Stmt> {
        let stmts = |(metric, ids): (&MeasuredMetric, MetricVariables)| match metric.span {
            MetricSpan::Own => {
                let last = self.since(metric, ids.last, first);
                vec![Stmt::Set(ids.state, last), Stmt::Set(ids.state, Expr::Const(0))]
            }
            MetricSpan::Total => vec![Stmt::Set(ids.state, self.read(metric, first))],
        };
        self.ids(first).flat_map(stmts).collect()
    }

    /// The statements where a path ends and another one may begin. `add` adds an amount to the value of the path, for the metric with this number and the
    /// variable with its values.
    pub fn end(&self, first: u32, add: &dyn Fn(u8, VariableId, Expr) -> Stmt) -> Vec<Stmt> {
        let stmts = |((metric, ids), n): ((&MeasuredMetric, MetricVariables), u8)| match metric.span {
            MetricSpan::Own => {
                let since = self.since(metric, ids.last, first);
                let all = Expr::Binary(BinaryOp::Add, Box::new(since), Box::new(Expr::Variable(ids.state)));
                vec![add(n, ids.values, all), Stmt::Set(ids.state, Expr::Const(0))]
            }
            MetricSpan::Total => vec![add(n, ids.values, self.since(metric, ids.state, first))],
        };
        self.ids(first).zip(0..).flat_map(stmts).collect()
    }

    /// A reading.
    fn read(&self, metric: &MeasuredMetric, first: u32) -> Expr {
        match &metric.reading {
            MetricReading::Clock(clock) => Expr::Now(*clock),
            MetricReading::Event(event) => event.count(self.event(first)),
        }
    }

    fn since(&self, metric: &MeasuredMetric, last: VariableId, first: u32) -> Expr {
        Expr::Since(last, Box::new(self.read(metric, first)))
    }

    /// The pairs that hold the counters for all functions.
    fn keys(&self, id: MeasurementId) -> impl Iterator<Item = [PairKey; 2]> + use<> {
        let key = move |name: String| {
            let pair = Arc::new(MetricFocus { metric: name, focus: Default::default() });
            PairKey::owned(Owner { measurement: id, purpose: PairPurpose::Hidden }, pair)
        };
        (0..self.all.len()).map(move |n| ["state", "last"].map(|of| key(format!("{HELD}_{of}_{n}"))))
    }

    /// All of these pairs.
    pub fn held_keys(&self, id: MeasurementId) -> impl Iterator<Item = PairKey> + use<> {
        self.keys(id).flatten()
    }

    /// Takes the counters that all functions share, unless they are taken.
    pub fn hold(&mut self, at: &mut Locked<'_>) -> Result<(), Error> {
        if self.held.len() == self.all.len() {
            return Ok(());
        }
        for [state, last] in self.keys(at.id()) {
            let mut hold = |key| {
                let variable = code::named(HELD, VariableKind::Scratch, Shape::Counter);
                at.hold_counter(key, code::metric_named(HELD), variable)
            };
            self.held.push([hold(state)?, hold(last)?]);
        }
        Ok(())
    }

    /// Gives the counters back.
    pub fn release(&mut self, at: &mut Locked<'_>) {
        self.held_keys(at.id()).for_each(|key| at.release_counter(&key));
        self.held.clear();
    }
}

impl MeasuredMetric {
    /// A value in nanoseconds, if it is one of a clock. `wall` is the length of a tick. Clocks of two processors may differ a little, so that a sum may be
    /// negative.
    pub fn in_units(&self, value: i64, wall: Scale) -> i64 {
        match self.reading {
            MetricReading::Clock(_) => i64::try_from(wall.apply(u64::try_from(value).unwrap_or(0))).unwrap_or(i64::MAX),
            MetricReading::Event(_) => value,
        }
    }
}

impl MetricVariables {
    /// The record that keeps the state of the caller.
    fn record(self) -> CallRecord {
        CallRecord { activations: self.activations, kept: Vec::new(), restore: Some(Restore::Value(self.state)) }
    }
}
