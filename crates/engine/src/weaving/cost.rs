//! Prices of code on this machine, and meters that count how often code runs.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ingraft_codegen::{Cost, SLOTS_PER_CYCLE};
use ingraft_model::{
    Expr, Insertion, Instrumentation, Parts, PointKind, Shape, Snippet, Stmt, ValueUnit, Variable, VariableId,
    VariableKind, vector,
};
use ingraft_process::TickClock;
use rustc_hash::FxHashMap;

/// Times of basic operations on this machine in nanoseconds, measured once. Each is that of the quickest of several rounds, because a
/// processor that is interrupted or clocked down says nothing about the code.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// Time of a cycle of a core at its present speed.
    pub cycle_ns: f64,
    /// Time of a reading of the time stamp counter.
    pub clock_ns: f64,
    /// Time of a call of the vDSO for the time.
    pub vdso_ns: f64,
    /// Time of an uncontended operation with a `lock` prefix.
    pub locked_ns: f64,
    /// Time of a system call that reads the thread's processor time.
    pub system_call_ns: f64,
}

/// Number of rounds, of which the quickest counts, and number of steps of a round, which takes some ten microseconds.
const ROUNDS: u32 = 40;
const STEPS: u32 = 2_000;
/// Cycles of a step of the chain below: a multiplication takes three on all processors since 2008, and an `or` takes one.
const CHAIN: f64 = 4.0;

impl Prices {
    /// The prices of this machine; the first call measures them, which takes a few milliseconds.
    pub fn here() -> Prices {
        static HERE: OnceLock<Prices> = OnceLock::new();
        *HERE.get_or_init(Prices::measure)
    }

    fn measure() -> Prices {
        let chain = || {
            let mut x = black_box(3u64);
            for _ in 0..STEPS {
                x = x.wrapping_mul(x | 1);
            }
            black_box(x);
        };
        let cycle_ns = quickest(chain) / CHAIN;
        let word = AtomicU64::new(0);
        let locked_ns = quickest(|| {
            for _ in 0..STEPS {
                black_box(&word).fetch_add(1, Ordering::Relaxed);
            }
        });
        let reading_ns = |clock: TickClock| {
            quickest(|| {
                for _ in 0..STEPS {
                    black_box(clock.ticks());
                }
            })
        };
        let (clock_ns, vdso_ns) = (reading_ns(TickClock::counter()), reading_ns(TickClock::monotonic(None)));
        let system_call_ns = quickest(|| {
            for _ in 0..STEPS / 100 {
                black_box(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime));
            }
        }) * 100.0;
        Prices { cycle_ns, clock_ns, vdso_ns, locked_ns, system_call_ns }
    }

    /// Time of a worst case in nanoseconds.
    pub fn ns(&self, cost: Cost) -> f64 {
        f64::from(cost.busy()) / f64::from(SLOTS_PER_CYCLE) * self.cycle_ns
            + f64::from(cost.clocks) * self.clock_ns
            + f64::from(cost.vdso) * self.vdso_ns
            + f64::from(cost.locked) * self.locked_ns
            + f64::from(cost.system_calls) * self.system_call_ns
    }

    /// Time of a worst case in cycles of a core.
    pub fn cycles(&self, cost: Cost) -> f64 {
        self.ns(cost) / self.cycle_ns
    }
}

/// Time of one step of the quickest round, in nanoseconds.
fn quickest(round: impl Fn()) -> f64 {
    let time = || {
        let begin = Instant::now();
        round();
        begin.elapsed().as_secs_f64() * 1e9
    };
    let best = (0..ROUNDS).map(|_| time()).fold(f64::INFINITY, f64::min);
    // if the clock stands still, the price must not become 0
    (best / f64::from(STEPS)).max(0.01)
}

/// Largest number of counters for the snippets of one pair; further snippets share the last counter.
const METERS_MAX: u32 = 16;

/// Counters of the hits of a pair's snippets. Each snippet begins by adding 1 to a counter, which is the same at all points of the snippet.
/// A pair that counts its hits anyway has no such counter, and snippets whose number of runs another one tells have none.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    /// Each snippet as it was evaluated, the same snippet with its counter, and the index of that counter among the pair's meters.
    known: Vec<(Arc<Snippet>, Arc<Snippet>, u32)>,
    /// Number of variables before the first counter.
    base: Option<u32>,
}

/// Snippets and variables with meters that were made for a request. Pairs of one metric share them.
#[derive(Default)]
pub struct Metered {
    snippets: FxHashMap<(*const Snippet, VariableId), MeteredItem<Snippet>>,
    variables: FxHashMap<(*const Variable, u32), MeteredItem<[Variable]>>,
}

/// An evaluated item, and the same item with meters. The evaluated item is kept so that its address is not reused.
type MeteredItem<T> = (Arc<T>, Arc<T>);

impl Metered {
    /// The snippet with a count in front of it.
    fn with(&mut self, plain: &Arc<Snippet>, counter: VariableId) -> Arc<Snippet> {
        let (_, metered) = self.snippets.entry((Arc::as_ptr(plain), counter)).or_insert_with(|| {
            let count = Stmt::Add(counter, Expr::Const(1));
            (Arc::clone(plain), Arc::new(Snippet { stmts: counted(&plain.stmts, count) }))
        });
        Arc::clone(metered)
    }

    /// The variables, followed by this number of meters.
    fn counting(&mut self, plain: &Arc<[Variable]>, counters: u32) -> Arc<[Variable]> {
        let counter = |n| Variable {
            name: format!("hits of snippet {n}"),
            // meters count events, so the catch-up does not count calls in progress
            kind: VariableKind::Counter,
            shape: Shape::Counter,
            unit: ValueUnit::Plain,
            sampled: false,
        };
        let (_, counting) = self
            .variables
            .entry((plain.as_ptr(), counters))
            .or_insert_with(|| (Arc::clone(plain), plain.iter().cloned().chain((0..counters).map(counter)).collect()));
        Arc::clone(counting)
    }
}

impl Meters {
    /// The variables with which a pair was evaluated, without the meters.
    pub fn before<'v>(&self, variables: &'v [Variable]) -> &'v [Variable] {
        let count = self.base.and_then(|base| usize::try_from(base).ok()).unwrap_or(variables.len());
        variables.get(..count).unwrap_or(variables)
    }

    /// Adds meters to an instrumentation; known snippets get the same meters as before.
    pub fn apply(&mut self, instrumentation: &mut Instrumentation, made: &mut Metered) {
        let variables = &instrumentation.variables;
        let counts_itself = instrumentation.insertions.iter().all(|i| counts_itself(&i.snippet, variables));
        if counts_itself && self.known.is_empty() {
            return;
        }
        let records = opens_records(instrumentation);
        let base = u32::try_from(instrumentation.variables.len()).unwrap_or(u32::MAX);
        self.base = Some(base);
        let variables = Arc::clone(&instrumentation.variables);
        for insertion in instrumentation.insertions.iter_mut().filter(|i| !is_told(i, records, &variables)) {
            let known = self.known.iter().find(|(plain, ..)| *plain == insertion.snippet);
            let metered = match known {
                Some((_, metered, _)) => Arc::clone(metered),
                None => {
                    let next = self.known.iter().map(|(.., number)| number + 1).max().unwrap_or(0);
                    let number = next.min(METERS_MAX - 1);
                    let plain = Arc::clone(&insertion.snippet);
                    let metered = made.with(&plain, VariableId(base + number));
                    self.known.push((plain, Arc::clone(&metered), number));
                    metered
                }
            };
            insertion.snippet = metered;
        }
        let counters = self.known.iter().map(|(.., number)| number + 1).max().unwrap_or(0);
        instrumentation.variables = made.counting(&instrumentation.variables, counters);
    }
}

/// Whether each call of the function opens a record.
fn opens_records(instrumentation: &Instrumentation) -> bool {
    let opens = |i: &Insertion| i.snippet.stmts.iter().any(|stmt| matches!(stmt, Stmt::Open(..)));
    instrumentation.insertions.iter().any(|i| i.point == PointKind::Entry && i.parts == Parts::All && opens(i))
}

/// Whether a snippet needs no meter: its vector counts its runs, or the meter of the entry tells about how often it runs. Calls that open records come to
/// an exit, and additions to the sum of a path cost as little as a meter.
fn is_told(insertion: &Insertion, opens_records: bool, variables: &[Variable]) -> bool {
    if additions_of(&insertion.snippet).is_some() {
        return true;
    }
    let is_sum = |v: VariableId| variables.get(v.0 as usize).is_some_and(|v| v.kind == VariableKind::PathSum);
    let additions = insertion.snippet.as_additions();
    let adds_only = additions.is_some_and(|all| all.iter().all(|(variable, _)| is_sum(*variable)));
    opens_records && (insertion.point == PointKind::Exit || adds_only)
}

/// Whether a snippet counts its runs anyway: it adds 1 to a variable of its pair, and other numbers at most to variables of other pairs.
fn counts_itself(snippet: &Snippet, variables: &[Variable]) -> bool {
    let is_alias = |variable: VariableId| {
        variables.get(variable.0 as usize).is_some_and(|variable| matches!(variable.shape, Shape::Alias(_)))
    };
    let additions = snippet.as_additions().unwrap_or_default();
    matches!(additions.split_first(), Some(((_, 1), others)) if others.iter().all(|(variable, _)| is_alias(*variable)))
}

/// The statements with a count in front of them. If all of them depend on a flag, so does the count: where the flag is not set, the code costs
/// hardly anything. Other conditions may cost more than what depends on them.
fn counted(stmts: &[Stmt], count: Stmt) -> Vec<Stmt> {
    let with = |stmts: &[Stmt]| std::iter::once(count.clone()).chain(stmts.iter().cloned()).collect();
    match stmts {
        [Stmt::If(condition, body)] if is_flag(condition) => vec![Stmt::If(condition.clone(), with(body))],
        _ => with(stmts),
    }
}

/// Whether a condition only looks at variables of the thread.
fn is_flag(condition: &Expr) -> bool {
    let mut flag = true;
    condition.each(&mut |e| {
        flag &= matches!(e, Expr::Const(_) | Expr::Variable(_) | Expr::Unary(..) | Expr::Binary(..));
    });
    flag
}

/// Counter of the runs of a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// The counter.
    pub counter: u32,
    /// Whether the snippet does nothing else.
    pub plain: bool,
}

impl Meter {
    /// The counter of a snippet's runs; `None` if they are not counted. `counters` are the first counters of the variables.
    pub fn of(snippet: &Snippet, counters: &[u32], variables: &[Variable]) -> Option<Meter> {
        if let Some(vector) = additions_of(snippet) {
            let counter = counters.get(vector.0 as usize)?.checked_add(vector::USED)?;
            return Some(Meter { counter, plain: false });
        }
        let variable = meter(snippet)?.0 as usize;
        // A path adds to its sum, which counts nothing.
        let counts = variables.get(variable)?.kind != VariableKind::PathSum;
        counts.then_some(Meter { counter: *counters.get(variable)?, plain: snippet.as_increment().is_some() })
    }
}

/// The vector that counts the additions with which a snippet begins ([`vector::USED`]). Several snippets may share one: then each costs the mean of all.
fn additions_of(snippet: &Snippet) -> Option<VariableId> {
    match snippet.stmts.first() {
        Some(Stmt::AddIn(v, _, number, _)) if !matches!(number, Expr::Const(_)) => Some(*v),
        _ => None,
    }
}

/// The variable that counts the runs of a snippet, as [`counted`] has them counted; `None` if the snippet does not begin by adding 1.
fn meter(snippet: &Snippet) -> Option<VariableId> {
    let counted = match snippet.stmts.as_slice() {
        [Stmt::If(condition, body)] if is_flag(condition) => body,
        all => all,
    };
    match counted.first() {
        Some(Stmt::Add(variable, Expr::Const(1))) => Some(*variable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_behind_a_flag_is_counted_where_it_runs() {
        let add = |n| Stmt::Add(VariableId(n), Expr::Const(1));
        let of = |stmts: Vec<Stmt>| {
            let snippet = Snippet { stmts: counted(&stmts, add(9)) };
            (snippet.to_string(), meter(&snippet))
        };
        let flagged = || Stmt::If(Expr::Variable(VariableId(1)), vec![add(0)]);
        let meter = Some(VariableId(9));
        assert_eq!(of(vec![flagged()]), ("if (v1) { v9++; v0++; }".to_owned(), meter));
        assert_eq!(of(vec![flagged(), add(2)]), ("v9++; if (v1) { v0++; } v2++;".to_owned(), meter));
        // The condition itself may be what costs.
        let read = Stmt::If(Expr::Read(Box::new(Expr::Arg(0)), ingraft_model::Scalar::INT), vec![add(0)]);
        assert_eq!(of(vec![read]), ("v9++; if (read($arg[0], i32)) { v0++; }".to_owned(), meter));
    }

    #[test]
    fn a_vector_counts_the_runs_of_code_that_adds_to_it() {
        let ranges = ingraft_model::Ranges::numbers(4).expect("a range");
        let add = |number| Snippet { stmts: vec![Stmt::AddIn(VariableId(0), ranges, number, Expr::Const(1))] };
        let counts = Some(Meter { counter: 40 + vector::USED, plain: false });
        assert_eq!(Meter::of(&add(Expr::Arg(0)), &[40], &[]), counts);
        assert_eq!(Meter::of(&add(Expr::Const(2)), &[40], &[]), None);
    }

    #[test]
    fn the_sum_of_a_path_counts_no_runs() {
        let variable = |kind| Variable {
            name: String::new(),
            kind,
            shape: Shape::Counter,
            unit: ValueUnit::Plain,
            sampled: false,
        };
        let variables = [VariableKind::PathSum, VariableKind::Counter].map(variable);
        let adds = |n| Snippet { stmts: vec![Stmt::Add(VariableId(n), Expr::Const(1))] };
        assert_eq!(Meter::of(&adds(0), &[4, 5], &variables), None);
        assert_eq!(Meter::of(&adds(1), &[4, 5], &variables), Some(Meter { counter: 5, plain: true }));
        assert_eq!(Meter::of(&adds(1), &[4], &variables), None);
    }

    #[test]
    fn prices_are_those_of_a_processor() {
        let prices = Prices::here();
        assert!((0.1..5.0).contains(&prices.cycle_ns), "{prices:?}");
        assert!((1.0..500.0).contains(&prices.clock_ns), "{prices:?}");
        assert!((1.0..5000.0).contains(&prices.vdso_ns), "{prices:?}");
        assert!((0.5..500.0).contains(&prices.locked_ns), "{prices:?}");
        let cost = Cost { slots: 8, clocks: 2, ..Cost::default() };
        assert!((prices.ns(cost) - 2.0 * prices.cycle_ns - 2.0 * prices.clock_ns).abs() < 1e-9);
    }
}
