//! Tests of metrics of paths: the program tells by clocks of the C library how long it was on each way, and asks the kernel for its page faults.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, open_directory, scaled};
use serde_json::Value;

use crate::tool;

/// Page faults that woven code has of its own when it first touches the thread's memory, for each thread.
const OWN_FAULTS: i64 = 60;

fn profiled(program: &'static str, functions: &str, metrics: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start(program, &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let arguments = ["profile", "paths", "-p", &pid, functions, "--max-overhead", "10000"];
    let mut session = tool().start(arguments.iter().chain(metrics));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

fn value(record: &Value, metric: &str) -> i64 {
    record["metrics"][metric].as_i64().unwrap_or_else(|| panic!("no {metric} in {record}"))
}

/// Values of a metric on the paths of a function, the largest one first.
fn values(outcome: &Outcome, function: &str, metric: &str) -> Vec<i64> {
    let own = outcome.all("path").into_iter().filter(|record| record["function"] == function);
    let mut values: Vec<i64> = own.map(|record| value(record, metric)).collect();
    values.sort_unstable_by_key(|value| std::cmp::Reverse(*value));
    values
}

fn number(truth: &Reply, key: &str) -> i64 {
    i64::try_from(truth.number(key)).expect("a small number")
}

/// No path took less time than the program spun on it, and all together took no more than the program ran. The clocks differ by less than a thousandth.
#[test]
fn paths_have_the_times_that_a_program_spends_on_them() {
    for (threads, metric, name, suffix) in
        [(1, "time", "wall_ns", ""), (3, "time", "wall_ns", ""), (2, "cpu", "cpu_ns", "_cpu")]
    {
        let command = format!("run {} {threads}", scaled(100, 1000));
        let (outcome, truth) = profiled("strolls", "strolls:s_*", &["--metric", metric, "--callees"], &command);
        let known = |place: &str| number(&truth, &format!("{place}{suffix}"));
        let of = |function: &str| values(&outcome, function, name);
        let at_least = |found: i64, places: &[&str]| {
            let spun: i64 = places.iter().map(|place| known(place)).sum();
            assert!(
                found >= spun - spun / 1000,
                "{metric} of {places:?}: {found} ns, but the program spun for {spun} ns: {truth:?}"
            );
        };
        let forks = of("s_forks");
        assert_eq!(forks.len(), 2, "{forks:?}");
        at_least(forks[0], &["long"]);
        at_least(forks[1], &["short"]);
        at_least(of("s_calls").iter().sum(), &["own"]);
        at_least(of("s_loops").iter().sum(), &["loop"]);
        let own: i64 = outcome.all("path").iter().map(|record| value(record, name)).sum();
        let most = known("whole") - known("left");
        assert!(own <= most + most / 1000, "{metric}: {own} ns of {most} ns on paths that ended: {truth:?}");
        let total = format!("total_{name}");
        let of = |function: &str| values(&outcome, function, &total);
        at_least(of("s_calls").iter().sum(), &["own", "long", "short"]);
        let within: i64 = of("s_calls").iter().chain(&of("s_loops")).sum();
        assert!(within <= most + most / 1000, "{metric}: {within} ns of {most} ns: {truth:?}");
        let record = outcome.all("path")[0];
        assert_eq!([&record["how"][name], &record["how"][&total]], ["clocked", "clocked"]);
    }
}

/// The kernel counts the faults of a loop, of its callers with it, and of a recursion.
#[test]
fn paths_have_the_page_faults_of_the_kernel() {
    let (laps, threads) = (scaled(1000, 10_000), 4);
    let metrics = ["--event", "page-faults", "--callees"];
    let (outcome, truth) = profiled("faulting", "faulting:e_*", &metrics, &format!("run {laps} {threads}"));
    let near = |found: i64, expected: i64, what: &str| {
        assert!((found - expected).abs() <= OWN_FAULTS * threads, "{what}: {found}, in truth {expected}");
    };
    let [few, many, deep] = ["few", "many", "deep"].map(|key| number(&truth, key));
    assert!(few.min(many).min(deep) > OWN_FAULTS * threads, "{truth:?}");
    let sum = |function: &str, metric: &str| values(&outcome, function, metric).iter().sum::<i64>();
    near(sum("e_touches", "page-faults"), few + many + deep, "all that touch");
    // A function that jumps to another one ends its path there.
    near(sum("e_few", "total_page-faults"), 0, "a jump");
    near(sum("e_laps", "total_page-faults"), few + many + deep, "all laps");
    near(sum("e_laps", "page-faults") + sum("e_deep", "page-faults"), 0, "no own ones");
    // Of five calls inside of each other, each makes a fifth of the faults. The innermost one takes another way.
    let of_deep = values(&outcome, "e_deep", "total_page-faults");
    let [outer, inner] = of_deep[..] else { panic!("{of_deep:?}") };
    near(outer, deep / 5 * (5 + 4 + 3 + 2), "with a call inside");
    near(inner, deep / 5, "without one");
    assert_eq!(outcome.all("path")[0]["how"]["page-faults"], "counted");
}

/// The same function has faults below three others, and the recursion has those of the calls inside.
#[test]
fn paths_have_page_faults_by_context() {
    let (laps, threads) = (scaled(500, 5_000), 4);
    let metrics = ["--contexts", "--event", "page-faults", "--callees"];
    let (outcome, truth) = profiled("faulting", "faulting:e_*", &metrics, &format!("run {laps} {threads}"));
    let contexts = outcome.all("context");
    let context = |id: &Value| contexts.iter().find(|context| context["id"] == *id).expect("a context");
    let sum = |metric: &str, function: &str, caller: &str| {
        let is_it = |path: &&&Value| {
            path["function"] == function && context(&context(&path["context"])["parent"])["function"] == caller
        };
        outcome.all("path").iter().filter(is_it).map(|path| value(path, metric)).sum::<i64>()
    };
    for (key, caller, most) in [("few", "e_few", 3), ("many", "e_many", 17), ("deep", "e_deep", 2)] {
        let (found, known) = (sum("page-faults", "e_touches", caller), number(&truth, key));
        assert!((found - known).abs() <= OWN_FAULTS * threads, "{key}: {found}, in truth {known}");
        assert!(known >= most * i64::try_from(laps).expect("a small number"), "{truth:?}");
    }
    let (deep, within) = (number(&truth, "deep"), sum("total_page-faults", "e_deep", "e_laps"));
    // The outermost call of each recursion has all faults, and folded recursion puts the calls inside into its context.
    let all = deep / 5 * (5 + 4 + 3 + 2 + 1);
    assert!((within - all).abs() <= OWN_FAULTS * threads, "{within}, in truth {all}");
}

/// Saved values are told again, and added up.
#[test]
fn saved_metrics_of_paths_are_told() {
    let directory = open_directory();
    let file = directory.path().join("paths").display().to_string();
    let (outcome, _) = profiled("strolls", "strolls:s_*", &["--metric", "time", "-o", &file], "run 20 1");
    let sum = |outcome: &Outcome| outcome.all("path").iter().map(|record| value(record, "wall_ns")).sum::<i64>();
    let measured = sum(&outcome);
    assert!(measured > 0, "{outcome:#?}");
    assert_eq!(sum(&tool().run(["report", &file]).assert_code(0)), measured);
    assert_eq!(sum(&tool().run(["report", &file, &file]).assert_code(0)), 2 * measured);
}

#[test]
fn metrics_that_paths_do_not_have_are_refused() {
    let target = Mutatee::start("strolls", &[]);
    let pid = target.pid_text();
    for (arguments, words) in [
        (&["--metric", "bytes"][..], "paths have no metric `bytes`"),
        (&["--metric", "time,cpu", "--event", "page-faults", "--callees", "--contexts"], "6 values are more than"),
        (&["--callees"], "--callees needs values"),
        (&["--event", "task-clock"], "`task-clock` is a time"),
    ] {
        let outcome = tool().run(["profile", "paths", "-p", &pid, "strolls:s_*"].iter().chain(arguments));
        assert!(outcome.status.code().is_some_and(|code| code > 0) && outcome.stderr.contains(words), "{outcome:#?}");
    }
}
