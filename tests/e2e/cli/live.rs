//! Tests of live memory by calling context: the program keeps its own account of the blocks that it has not freed yet.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, open_directory, scaled, skip};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::tool;

/// Live bytes and blocks by the function that asks for memory and its caller.
type Live = BTreeMap<(String, String), (i64, i64)>;

/// The account of the program.
fn known(reply: &Reply) -> Live {
    let row = |line: &String| {
        let words: Vec<&str> = line.strip_prefix("live ")?.split(' ').collect();
        let number = |n: usize| words[n].parse::<i64>().expect("a number");
        Some(((words[0].to_owned(), words[1].to_owned()), (number(2), number(3))))
    };
    reply.lines.iter().filter_map(row).filter(|(_, sums)| *sums != (0, 0)).collect()
}

/// Number of blocks from before the measurement that the program has freed.
fn freed_earlier(reply: &Reply) -> u64 {
    let found = reply.lines.iter().find_map(|line| line.strip_prefix("earlier ")?.parse().ok());
    found.expect("a number")
}

fn number(record: &Value, key: &str) -> i64 {
    record[key].as_i64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The account of the tool: that of the functions of the C library, by the two functions above each of them.
fn told<'a>(records: impl Iterator<Item = &'a Value> + Clone) -> Live {
    let by_id: BTreeMap<i64, &Value> = records.clone().map(|record| (number(record, "id"), record)).collect();
    let mut live = Live::new();
    for record in records {
        let above = |record: &Value| by_id.get(&record["parent"].as_i64()?).copied();
        let name = |record: &Value| record["function"].as_str().expect("a name").to_owned();
        let metric = |name: &str| record["metrics"][name].as_i64().unwrap_or(0);
        let sums = (metric("live_bytes"), metric("live_blocks"));
        let Some(asks) = above(record).filter(|_| sums != (0, 0)) else { continue };
        let caller = above(asks).map(name).unwrap_or_default();
        let sum = live.entry((caller, name(asks))).or_default();
        *sum = (sum.0 + sums.0, sum.1 + sums.1);
    }
    live
}

fn measure(target: &Mutatee, more: &[&str]) -> Session {
    let pid = target.pid_text();
    let all = ["profile", "contexts", "-p", &pid, "live:h_*", "--max-overhead", "100000"];
    let mut session = tool().start(all.iter().chain(more));
    session.wait_for("attached");
    session
}

fn assert_equal(outcome: &Outcome, truth: &Reply) {
    assert_eq!(told(outcome.all("context").into_iter()), known(truth));
    let facts = &outcome.one("contexts")["live"];
    let zero = ["lost", "unseen", "unfreed", "unfollowed", "left_out"].map(|key| number(facts, key));
    assert_eq!((zero, &facts["exact"]), ([0; 5], &Value::from(true)), "{facts}");
    // The C library keeps freed blocks for each thread, and frees them again when it ends.
    let (earlier, freed) = (number(facts, "earlier"), freed_earlier(truth) as i64);
    assert!(earlier >= freed, "{earlier} of {freed} earlier blocks");
    let how = |name: &str| outcome.all("context").iter().all(|record| record["how"][name] == "counted");
    assert!(how("live_bytes") && how("live_blocks"));
}

#[test]
fn live_memory_equals_the_programs_account() {
    for seed in 0..scaled(2, 20) {
        let mut target = Mutatee::start("live", &[]);
        let before = Text::of(target.pid());
        let session = measure(&target, &["--metric", "live,blocks"]);
        let mut truth = target.ask(&format!("run {seed} {} 6", scaled(15_000, 200_000)));
        assert!(known(&truth).len() >= 12 && freed_earlier(&truth) > 10, "{truth:?}");
        if seed % 2 == 1 {
            truth = target.ask("drop");
            assert_eq!(known(&truth).len(), 2, "only the leaks are left");
        }
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        assert_equal(&outcome, &truth);
    }
}

/// The records of calls have no room for the arguments of all functions.
#[test]
fn live_memory_is_told_beside_times() {
    let mut target = Mutatee::start("live", &[]);
    let session = measure(&target, &["--metric", "time,cpu,live,blocks"]);
    let truth = target.ask("run 5 4000 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_equal(&outcome, &truth);
}

/// Blocks that are allocated and freed at addresses that were just freed by another thread leave nothing.
#[test]
fn each_interval_tells_what_is_live() {
    let mut target = Mutatee::start("live", &[]);
    let session = measure(&target, &["--metric", "live,blocks", "--interval", "100ms"]);
    let first = target.ask("run 8 3000 4");
    let mut session = session;
    session.wait_for("profile");
    session.wait_for("profile");
    session.wait_for("contexts");
    let truth = target.ask("run 9 3000 4");
    assert_ne!(known(&first), known(&truth));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let all: Vec<&Value> = outcome.objects.iter().collect();
    let ends: Vec<usize> = (0..all.len()).filter(|n| all[*n]["type"] == "contexts").collect();
    let tables: Vec<Live> = ends
        .iter()
        .map(|end| {
            let begin = all[..*end].iter().rposition(|record| record["type"] != "context").map_or(0, |n| n + 1);
            told(all[begin..*end].iter().copied())
        })
        .collect();
    assert!(tables.contains(&known(&first)), "no interval has told {first:?}");
    assert_eq!(tables.last(), Some(&known(&truth)));
}

/// The C library is mapped later than the program, and the last records are those of a program that has ended.
#[test]
fn a_started_program_has_live_memory() {
    let program = ingraft_testing::program("live").expect("gcc").display().to_string();
    let command = ["heap", "live:h_*", "--max-overhead", "100000", "--until-exit", "--", &program, "5000"];
    let outcome = tool().run(command).assert_code(0);
    let truth: Live = known(&Reply { lines: outcome.other.clone() });
    let facts = &outcome.one("contexts")["live"];
    // `calloc` ends by a jump through a slot that the loader had not filled when the code came. The answer says that calls were not seen.
    let follows = facts["exact"] == true;
    assert!(follows || number(facts, "unseen") > 0, "{facts}");
    let bytes = |live: &Live| -> BTreeMap<_, _> {
        let known = live.iter().filter(|((_, function), _)| follows || function != "h_calloc");
        known.map(|(at, (bytes, _))| (at.clone(), *bytes)).collect()
    };
    assert_eq!(bytes(&told(outcome.all("context").into_iter())), bytes(&truth));
}

/// A tool that does not get on loses records. It says so, and calls no value exact.
#[test]
fn lost_records_make_values_incomplete() {
    let mut target = Mutatee::start("live", &[]);
    let session = measure(&target, &["--metric", "live,bytes"]);
    session.signal(Signal::SIGSTOP);
    target.ask("burst 200000");
    session.signal(Signal::SIGCONT);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let facts = &outcome.one("contexts")["live"];
    assert!(number(facts, "lost") > 100_000 && facts["exact"] == false, "{facts}");
    let records = outcome.all("context");
    assert!(records.iter().all(|record| record["how"]["live_bytes"] == "incomplete"));
    assert!(records.iter().all(|record| record["how"]["allocated_bytes"] == "counted"));
}

/// The view has the places with most live bytes first, and its exports have the values.
#[test]
fn the_view_shows_leaks_first() {
    let mut target = Mutatee::start("live", &[]);
    let pid = target.pid_text();
    let directory = open_directory();
    let file = directory.path().join("live").display().to_string();
    let mut session = tool().start(["heap", "-p", &pid, "live:h_*", "--max-overhead", "100000", "-o", &file]);
    session.wait_for("attached");
    target.ask("run 3 8000 4");
    let truth = target.ask("drop");
    let _ = session.interrupt().assert_code(0).assert_removed();
    let bytes: i64 = known(&truth).values().map(|(bytes, _)| bytes).sum();
    let exported = |format: &str| {
        let to = format!("{file}.{format}");
        let _ = tool().run(["report", &file, "--as", format, "-o", &to]).assert_code(0);
        std::fs::read_to_string(&to).expect("a file of text")
    };
    let folded = exported("folded");
    let of_program = folded.lines().filter(|line| line.contains("h_leaks"));
    let sum: i64 = of_program.filter_map(|line| line.rsplit_once(' ')?.1.parse::<i64>().ok()).sum();
    assert_eq!(sum, bytes, "{folded}");
    for (format, begins) in [("svg", "<"), ("speedscope", "{"), ("html", "<"), ("callgrind", "# callgrind")] {
        let text = exported(format);
        assert!(text.starts_with(begins) && text.contains("h_leaks"), "{format}: {}", &text[..text.len().min(200)]);
    }
}

/// Keys that are set take memory below the command that sets them, and none after they were deleted.
#[test]
fn memory_of_redis_is_that_of_its_keys() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    const KEYS: u64 = 20_000;
    const VALUE: u64 = 300;
    let pid = redis.pid();
    let before = Text::of(pid);
    let live_below_set = |act: &dyn Fn()| -> Option<i64> {
        let all = ["heap", "-p", &pid.to_string(), "redis-server:*", "--max-overhead", "100000"];
        let mut session = tool().start(all);
        session.wait_for("attached");
        act();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(pid, &before);
        let records = outcome.all("context");
        let by_id: BTreeMap<i64, &Value> = records.iter().map(|record| (number(record, "id"), *record)).collect();
        let above = |record: &Value| by_id.get(&record["parent"].as_i64()?).copied();
        let serves = |record: &Value| {
            std::iter::successors(above(record), |record| above(record)).any(|record| record["function"] == "main")
        };
        let facts = &outcome.one("contexts")["live"];
        if facts["lost"] != 0 {
            assert_eq!(facts["exact"], false, "{facts}");
            return None;
        }
        assert_eq!(facts["exact"], true, "{facts}");
        Some(
            records.iter().filter(|record| serves(record)).map(|record| number(&record["metrics"], "live_bytes")).sum(),
        )
    };
    // On a machine that is busy with other things, the engine may come too late to take all records.
    let kept = |act: &dyn Fn()| (0..5).find_map(|_| live_below_set(act));
    let load = || {
        let arguments = [&KEYS.to_string(), &VALUE.to_string()];
        redis.load(&[
            "-n",
            arguments[0],
            "-r",
            "100000000",
            "-d",
            arguments[1],
            "-c",
            "10",
            "-P",
            "16",
            "-q",
            "-t",
            "set",
        ]);
    };
    let flush = || assert_eq!(redis.ask(&["FLUSHALL SYNC"]), ["+OK"]);
    let Some(set) = kept(&load) else { skip!("records were lost five times") };
    let least = (KEYS * VALUE) as i64;
    assert!((least..2 * least).contains(&set), "{set} bytes for {KEYS} keys");
    let cleared = || {
        load();
        flush();
    };
    let Some(gone) = kept(&cleared) else { skip!("records were lost five times") };
    assert!(gone < least / 20, "{gone} bytes are left");
}
