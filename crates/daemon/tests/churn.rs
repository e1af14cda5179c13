//! Measurements that come and go by the hundred in a loaded server leave the others' values, the server and its memory alone.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ingraft_daemon::{ClockChoice, Config, Engine, MAX_OVERHEAD};
use ingraft_engine::{Caller, EnableRequest, ErrorKind, MeasurementId, MetricFocus, TargetSpec};
use ingraft_model::{Focus, How, Pid, PointKind};
use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{open_directory, scaled, skip};

/// Measurements at a time.
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
}

impl Churn {
    /// None if the function's entry and exits need the same bytes.
    fn enable(&self, metric: &str, function: &str) -> Option<MeasurementId> {
        let focus = Focus::parse(&format!("/Code/redis-server/{function}")).unwrap();
        let request = EnableRequest {
            target: TargetSpec::Pid(self.pid),
            pairs: vec![MetricFocus { metric: metric.to_owned(), focus }],
            functions: Vec::new(),
            function_metric: String::new(),
            definitions: Vec::new(),
            keep: false,
            // what a loaded server's busiest functions cost is not the question here
            max_overhead: Some(10_000.0),
            allow_calls: false,
            family: false,
        };
        match self.engine.enable(&request, Caller::Engine, &|_| ()) {
            Ok(enabled) => Some(enabled.id),
            Err(e) if e.kind == ErrorKind::NotFound => None,
            Err(e) => panic!("{metric}@{function}: {e:?}"),
        }
    }

    fn remove(&self, id: MeasurementId) -> i64 {
        self.engine.remove(id, Caller::Engine).unwrap().last.unwrap().values[0].value
    }

    fn value(&self, id: MeasurementId) -> i64 {
        self.engine.read(id, false, Caller::Engine).unwrap().values[0].value
    }

    /// Functions of the program whose entries and exits can all be woven, by names that stand for one function each.
    fn functions(&self) -> Vec<String> {
        let all = self
            .engine
            .functions(&TargetSpec::Pid(self.pid), &["redis-server:*".to_owned()], Caller::Engine, &|_| ())
            .unwrap()
            .1;
        let whole = |how: &How| matches!(how, How::InPlace);
        let mut names: Vec<String> = all
            .into_iter()
            .filter(|f| {
                let kind = |kind| f.points.iter().any(|p| p.kind == kind && whole(&p.how));
                kind(PointKind::Entry) && kind(PointKind::Exit)
            })
            .map(|f| f.function)
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
    let dir = open_directory();
    let engine = Engine::start(Config {
        state_dir: dir.path().to_owned(),
        program: "ingraft".into(),
        max_overhead: MAX_OVERHEAD,
        clock: ClockChoice::Auto,
    })
    .unwrap();
    let churn = Churn { engine, pid: Pid(redis.pid()) };
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
        let load = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redis.load(&["-n", "2000", "-q", "-c", "20", "-t", "set,get,lpush,hset"]);
            }
        });
        let long = Duration::from_secs(scaled(5, 600));
        let (begin, mut random) = (Instant::now(), Random(0x2545_f491_4f6c_dd1d));
        let mut living: Vec<(MeasurementId, i64)> = Vec::new();
        let (mut last, mut changes) = ((0, 0), 0u32);
        while begin.elapsed() < long {
            // it fills up to the limit and empties again
            let filling = (begin.elapsed().as_secs() / scaled(1, 60)).is_multiple_of(2);
            let add = living.is_empty() || living.len() < MOST && random.below(4) < if filling { 3 } else { 1 };
            if add {
                let metric = METRICS[random.below(METRICS.len())];
                let id = churn.enable(metric, &functions[random.below(functions.len())]);
                living.extend(id.map(|id| (id, 0)));
            } else {
                let (id, seen) = living.swap_remove(random.below(living.len()));
                let value = churn.remove(id);
                assert!(value >= seen, "{value} after {seen}");
            }
            changes += 1;
            if !living.is_empty() {
                let at = random.below(living.len());
                living[at].1 = churn.value(living[at].0);
            }
            let now = (churn.value(calls), churn.value(time));
            assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
            last = now;
            if half.is_none() && begin.elapsed() * 2 > long {
                half = Some(Size::of(redis.pid()));
            }
        }
        for (id, _) in living {
            churn.remove(id);
        }
        eprintln!("{changes} changes");
        done.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    let (half, end) = (half.unwrap(), Size::of(redis.pid()));
    assert!(end.maps <= half.maps + 4 && end.files <= half.files + 20, "{half:?} {end:?}");

    let told = redis.command_calls() - commands;
    let seen = churn.remove(calls);
    assert_eq!(u64::try_from(seen).unwrap(), told, "no call was lost");
    let timed = churn.engine.remove(latency, Caller::Engine).unwrap().last.unwrap().values.remove(0);
    let missing = timed.activations;
    assert_eq!(u64::try_from(timed.value).unwrap() + missing.left + missing.unseen + missing.unrecorded, told);
    let removed = churn.engine.remove(time, Caller::Engine).unwrap();
    assert!(removed.text_restored);
    target::assert_clean(redis.pid(), &before);
}
