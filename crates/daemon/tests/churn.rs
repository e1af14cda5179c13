//! Many measurements are inserted into a loaded server and removed again. The values of other measurements, the server and its memory must
//! stay right.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ingraft_api::{ErrorClass, Reason};
use ingraft_daemon::{ClockChoice, Config, Engine, MAX_OVERHEAD};
use ingraft_engine::{Caller, EnableRequest, Error, Kind, MeasurementId, MetricFocus, TargetSpec};
use ingraft_model::{Focus, How, Pid, PointKind};
use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Mutatee, Until, open_directory, scaled, skip, wait_until};

/// Maximum number of measurements at a time.
const MOST: usize = 500;
const METRICS: [&str; 5] = ["calls", "returns", "argument0", "wall_time", "latency"];

/// Numbers that look random and are the same in every run (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

struct Churn {
    engine: Engine,
    pid: Pid,
    program: &'static str,
    _dir: tempfile::TempDir,
}

impl Churn {
    fn new(pid: i32, program: &'static str) -> Churn {
        let dir = open_directory();
        let config = Config {
            state_dir: dir.path().to_owned(),
            program: "ingraft".into(),
            max_overhead: MAX_OVERHEAD,
            clock: ClockChoice::Auto,
        };
        Churn { engine: Engine::start(config).unwrap(), pid: Pid(pid), program, _dir: dir }
    }

    /// Inserts a measurement. `None` if the engine answers `NotFound`, e.g. because the function's entry and exits need the same bytes, or
    /// if it answers `too_many_counters`.
    fn enable(&self, metric: &str, function: &str) -> Option<MeasurementId> {
        // The limit is high, because this test does not check the cost in a loaded server's busiest functions.
        self.enable_within(metric, function, 10_000.0, false)
    }

    fn enable_within(&self, metric: &str, function: &str, percent: f64, family: bool) -> Option<MeasurementId> {
        match self.ask(&[(metric, function)], percent, family) {
            Ok(id) => Some(id),
            Err(e) if e.reason.class() == ErrorClass::NotFound || e.reason == Reason::TooManyCounters => None,
            Err(e) => panic!("{metric}@{function}: {e:?}"),
        }
    }

    fn ask(&self, pairs: &[(&str, &str)], percent: f64, family: bool) -> Result<MeasurementId, Error> {
        let pair = |(metric, function): &(&str, &str)| {
            let focus = Focus::parse(&format!("/Code/{}/{function}", self.program)).unwrap();
            Arc::new(MetricFocus { metric: (*metric).to_owned(), focus })
        };
        let request = EnableRequest {
            target: TargetSpec::Pid(self.pid),
            pairs: pairs.iter().map(pair).collect(),
            functions: Vec::new(),
            function_metrics: Vec::new(),
            definitions: Vec::new(),
            keep: false,
            max_overhead: Some(percent),
            max_hold: None,
            allow_calls: false,
            beside_uprobes: false,
            family,
            flavors: Vec::new(),
            max_pairs: None,
            await_modules: false,
            kind: Kind::Metrics,
        };
        self.engine.enable(&request, Caller::Engine, &|_| ()).map(|enabled| enabled.id)
    }

    fn remove(&self, id: MeasurementId) -> i64 {
        self.engine.remove(id, Caller::Engine).unwrap().last.unwrap().values[0].value
    }

    fn value(&self, id: MeasurementId) -> i64 {
        self.engine.read(id, false, Caller::Engine).unwrap().values[0].value
    }

    /// Returns functions of the program whose entries and exits can all be woven. Each name stands for one function only.
    fn functions(&self) -> Vec<String> {
        let all = self
            .engine
            .functions(&TargetSpec::Pid(self.pid), &["redis-server:*".to_owned()], false, Caller::Engine, &|_| ())
            .unwrap()
            .functions;
        let whole = |how: &How| matches!(how, How::InPlace);
        let mut names: Vec<String> = all
            .into_iter()
            .filter(|f| {
                let kind = |kind| f.points.iter().any(|p| p.kind == kind && whole(&p.how));
                kind(PointKind::Entry) && kind(PointKind::Exit)
            })
            .map(|f| f.function.function)
            .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

#[test]
fn five_hundred_come_and_go() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let churn = Churn::new(redis.pid(), "redis-server");
    let before = Text::of(redis.pid());
    let functions = churn.functions();
    assert!(functions.len() > 1000, "{}", functions.len());

    let commands = redis.command_calls();
    let calls = churn.enable("calls", "call").unwrap();
    let time = churn.enable("wall_time", "call").unwrap();
    let latency = churn.enable("latency", "call").unwrap();
    let done = AtomicBool::new(false);
    let mut half = None;
    std::thread::scope(|scope| {
        let until = Until(&done);
        let load = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redis.load(&["-n", "2000", "-q", "-c", "20", "-t", "set,get,lpush,hset"]);
            }
        });
        let long = Duration::from_secs(scaled(5, 600));
        let (begin, mut random) = (Instant::now(), Random(0x2545_f491_4f6c_dd1d));
        let mut living: Vec<(MeasurementId, &str, i64)> = Vec::new();
        let (mut last, mut changes) = ((0, 0), 0u32);
        while begin.elapsed() < long {
            // In turns, the number of measurements rises to the limit and falls again.
            let filling = (begin.elapsed().as_secs() / scaled(1, 60)).is_multiple_of(2);
            let add = living.is_empty() || living.len() < MOST && random.below(4) < if filling { 3 } else { 1 };
            if add {
                let metric = METRICS[random.below(METRICS.len())];
                let id = churn.enable(metric, &functions[random.below(functions.len())]);
                living.extend(id.map(|id| (id, metric, 0)));
            } else {
                let (id, metric, seen) = living.swap_remove(random.below(living.len()));
                let value = churn.remove(id);
                // Arguments are mostly addresses, and the sum of 65,536 of them wraps around.
                assert!(value >= seen || metric == "argument0", "{metric}: {value} after {seen}");
            }
            changes += 1;
            if !living.is_empty() {
                let at = random.below(living.len());
                living[at].2 = churn.value(living[at].0);
            }
            let now = (churn.value(calls), churn.value(time));
            assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
            last = now;
            if half.is_none() && begin.elapsed() * 2 > long {
                half = Some(Size::of(redis.pid()));
            }
        }
        for (id, ..) in living {
            churn.remove(id);
        }
        eprintln!("{changes} changes");
        drop(until);
        load.join().unwrap();
    });
    let (half, end) = (half.unwrap(), Size::of(redis.pid()));
    assert!(end.maps <= half.maps + 4 && end.files <= half.files + 20, "{half:?} {end:?}");

    let told = redis.command_calls() - commands;
    let seen = churn.remove(calls);
    assert_eq!(u64::try_from(seen).unwrap(), told, "no call was lost");
    let timed = churn.engine.remove(latency, Caller::Engine).unwrap().last.unwrap().values.remove(0);
    let missing = timed.details().activations;
    assert_eq!(u64::try_from(timed.value).unwrap() + missing.left + missing.unseen + missing.unrecorded, told);
    let removed = churn.engine.remove(time, Caller::Engine).unwrap();
    assert!(removed.text_restored);
    target::assert_clean(redis.pid(), &before);
}

#[test]
fn histograms_fill_a_shard_to_its_end() {
    // Where address space is limited, the first request alone decides how large a shard is. The server gets the limit of this process.
    let limit = |soft: &str| {
        let arguments = ["--pid".to_owned(), std::process::id().to_string(), format!("--as={soft}:")];
        let limited = std::process::Command::new("prlimit").args(arguments).status();
        assert!(limited.is_ok_and(|status| status.success()), "prlimit");
    };
    limit("17179869184");
    let redis = Redis::start();
    limit("unlimited");
    let redis = match redis {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let churn = Churn::new(redis.pid(), "redis-server");
    let before = Text::of(redis.pid());
    let functions = churn.functions();
    // With more counts before it, the last histogram lies closer to the end of the shard.
    for counts in [0, 400, 800, 1200] {
        let kinds = ["calls", "argument0"].into_iter();
        let counts: Vec<_> = kinds.flat_map(|kind| functions.iter().map(move |f| (kind, &**f))).take(counts).collect();
        let mut all = Vec::new();
        if !counts.is_empty() {
            all.push(churn.ask(&counts, 10_000.0, false).unwrap());
        }
        let mut names = functions.iter();
        let full = loop {
            let name = names.next().expect("more functions than there is room for");
            match churn.ask(&[("latency", name)], 10_000.0, false) {
                Ok(id) => all.push(id),
                Err(e) if e.reason.class() == ErrorClass::NotFound => {}
                Err(e) => break e,
            }
        };
        assert_eq!(full.reason, Reason::TooManyCounters, "{full:?}");
        for id in all {
            churn.remove(id);
        }
    }
    target::assert_clean(redis.pid(), &before);
}

#[test]
fn what_is_inserted_is_told_while_it_changes() {
    let mut target = Mutatee::start("spin", &["2"]);
    let before = Text::of(target.pid());
    let churn = Churn::new(target.pid(), "spin");
    let calls = churn.enable("calls", "sit").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for asker in 0..3 {
            let (churn, done) = (&churn, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if asker == 0 {
                        churn.value(calls);
                    } else {
                        let told = churn.engine.status(Caller::Engine).unwrap();
                        assert!(told.iter().any(|i| i.ours && i.measurements.contains(&calls)), "{told:?}");
                    }
                }
            });
        }
        let _until = Until(&done);
        for _ in 0..scaled(50, 2_000) {
            let time = churn.enable("wall_time", "sit").unwrap();
            churn.remove(time);
        }
    });
    churn.remove(calls);
    target.ask("leave");
    target::assert_clean(target.pid(), &before);
}

/// Returns how often a process has gone to sleep, once it sleeps again.
fn sleeps(pid: Pid) -> u64 {
    let mut last = None;
    wait_until("it sleeps", || {
        let now = (target::status(pid.0, "voluntary_ctxt_switches"), target::state(pid.0));
        let is_settled = now.1 == 'S' && last.as_ref() == Some(&now);
        last = Some(now);
        is_settled
    });
    last.unwrap().0.parse().unwrap()
}

#[test]
fn one_of_several_goes_in_one_stop() {
    let target = Mutatee::start("steps", &[]);
    let before = Text::of(target.pid());
    let churn = Churn::new(target.pid(), "steps");
    let first = churn.enable("calls", "leaf").unwrap();
    // On a busy machine, an insertion or a removal may need more stops. So may the insertion of a timer: the engine asks first whether the
    // threads may read the time stamp counter.
    let stops = (0..scaled(5, 50)).map(|_| {
        let begin = sleeps(churn.pid);
        let counted = churn.enable("calls", "middle").unwrap();
        let inserted = sleeps(churn.pid) - begin;
        churn.remove(counted);
        let timed = churn.enable("wall_time", "middle").unwrap();
        let before_removal = sleeps(churn.pid);
        churn.remove(timed);
        (inserted, sleeps(churn.pid) - before_removal)
    });
    let (insertions, removals): (Vec<u64>, Vec<u64>) = stops.unzip();
    assert_eq!(removals.iter().min(), insertions.iter().min(), "an insertion takes one");
    churn.remove(first);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn what_goes_piece_by_piece_goes_from_a_child_as_well() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let churn = Churn::new(target.pid(), "family");
    let first = churn.enable("calls", "parent_work").unwrap();
    let second = churn.enable("calls", "child_work").unwrap();
    let child: i32 = target.ask("keep").after("child").parse().unwrap();
    churn.remove(first);
    // The child has the code of the second measurement. Another one is inserted in the target only.
    let third = churn.enable("wall_time", "parent_work").unwrap();
    churn.remove(second);
    target.ask("poke 1000").assert_right();
    let removed = churn.engine.remove(third, Caller::Engine).unwrap();
    assert_eq!((removed.text_restored, removed.children_left), (true, Vec::new()));
    target::assert_clean(target.pid(), &before);
    before.assert_in(child);
    target.ask("poke 1000").assert_right();
    target.ask("drop").assert_right();
}

#[test]
fn what_costs_too_much_is_taken_out_of_children_as_well() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let churn = Churn::new(target.pid(), "family");
    let time = churn.enable_within("wall_time", "parent_work", 0.001, true).unwrap();
    let calls = churn.enable_within("calls", "child_work", 0.001, true).unwrap();
    let child: i32 = target.ask("keep").after("child").parse().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let target = &mut target;
        let busy = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                target.ask("poke 100000").assert_right();
            }
        });
        let until = Until(&done);
        let taken_out = || {
            let reading = churn.engine.read(time, false, Caller::Engine).unwrap();
            reading.values[0].details().taken_out.is_some()
        };
        wait_until("it is noticed", taken_out);
        drop(until);
        busy.join().unwrap();
    });
    // Both processes still have the code of the other measurement, which counts calls.
    assert_eq!(before.differences(&Text::of(child)), before.differences(&Text::of(target.pid())));
    before.assert_not_in(child);
    churn.remove(time);
    churn.remove(calls);
    target::assert_clean(target.pid(), &before);
    before.assert_in(child);
    target.ask("poke 1000").assert_right();
    target.ask("drop").assert_right();
}
