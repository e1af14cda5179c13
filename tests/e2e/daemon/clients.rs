//! Tests that two clients of a daemon do everything at once with a server under load: both count exactly what the server's own statistics tell, and
//! the server is as before at the end.

use std::sync::atomic::{AtomicBool, Ordering};

use ingraft_testing::server::{Nginx, Redis};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Outcome, Session, Tool, open_directory, skip};

use crate::{client, daemon};

/// A server, and functions of it that are called once for each request.
struct Served<'s> {
    pids: Vec<i32>,
    /// The function that is counted in all ways.
    function: &'s str,
    /// An expression, as the key and the value of distributions and lines.
    value: &'s str,
    /// A function whose times are predicted, and that is counted now and then.
    other: &'s str,
}

/// Commands that count calls exactly, each with the type of the records and the key of their numbers. `F` stands for the function, `V` for the value.
const EXACT: [(&[&str], &str, &str); 6] = [
    (&["count", "F"], "count", "calls"),
    (&["count", "F", "--by", "V"], "keyed", "value"),
    (&["callers", "F"], "caller", "calls"),
    (&["hist", "F", "V"], "hist", "calls"),
    (&["latency", "F"], "latency", "calls"),
    (&["print", "F", "V", "--limit", "200"], "calls", "calls"),
];

/// Sum of a number of all records of a type.
#[track_caller]
fn sum(outcome: &Outcome, kind: &str, key: &str) -> u64 {
    let number = |record: &&serde_json::Value| record[key].as_u64().unwrap_or_else(|| panic!("no {key}: {record}"));
    outcome.all(kind).iter().map(number).sum()
}

impl Served<'_> {
    /// Starts a command for all processes of the server.
    fn start(&self, tool: &Tool, words: &[&str]) -> Session {
        let mut all = vec![words[0].to_owned()];
        all.extend(self.pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]));
        all.extend(words[1..].iter().map(|word| match *word {
            "F" => self.function.to_owned(),
            "V" => self.value.to_owned(),
            "O" => self.other.to_owned(),
            word => word.to_owned(),
        }));
        if !["hot", "diagnose"].contains(&words[0]) {
            all.extend(["--max-overhead".to_owned(), "1000000".to_owned()]);
        }
        tool.start(all)
    }

    /// Waits until a measurement is inserted in all processes.
    fn inserted(&self, session: &mut Session) {
        for _ in &self.pids {
            let sign = session.try_wait_for_any(&["attached", "changed"]);
            assert!(sign.is_some(), "it is not inserted: {}", session.stderr());
        }
    }
}

/// Samples, predicts, counts and diagnoses while the server is under load.
fn meanwhile(tool: &Tool, served: &Served<'_>) {
    let mut hot = served.start(tool, &["hot", "--interval", "200ms"]);
    let mut times = served.start(tool, &["profile", "times", "O"]);
    served.inserted(&mut times);
    hot.wait_for("samples");
    for _ in 0..3 {
        let mut count = served.start(tool, &["count", "O"]);
        served.inserted(&mut count);
        let _ = count.interrupt().assert_code(0);
    }
    let times = times.interrupt().assert_code(0);
    assert!(!times.all("time").is_empty(), "{times:#?}");
    let hot = hot.interrupt().assert_code(0);
    assert!(!hot.all("hot").is_empty(), "{hot:#?}");
    // An engine has a bounded number of samplings, so this does not begin earlier.
    let diagnosed = served.start(tool, &["diagnose", "--for", "5s"]).finish().assert_code(0);
    assert!(!diagnosed.all("finding").is_empty(), "{diagnosed:#?}");
}

/// Has two clients measure a server. `load` serves some requests, and `requests` tells how many were served so far.
fn measured_by_two(served: &Served<'_>, load: &(dyn Fn() + Sync), requests: &dyn Fn() -> u64) {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let before: Vec<Text> = served.pids.iter().map(|pid| Text::of(*pid)).collect();
    load();
    let earlier = requests();
    let clients = [client(&daemon), client(&daemon)];
    // Both ask for everything at once.
    let mut exact = clients.each_ref().map(|tool| EXACT.map(|(words, ..)| served.start(tool, words)));
    exact.iter_mut().flatten().for_each(|session| served.inserted(session));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                load();
            }
        });
        let both = clients.each_ref().map(|tool| scope.spawn(|| meanwhile(tool, served)));
        let results = both.map(std::thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        loading.join().expect("the load");
        results.into_iter().for_each(|result| result.expect("a client"));
    });
    let truth = requests() - earlier;
    assert!(truth > 0);
    for (client, sessions) in exact.into_iter().enumerate() {
        for (session, (words, kind, key)) in sessions.into_iter().zip(EXACT) {
            let outcome = session.interrupt().assert_code(0);
            assert_eq!(sum(&outcome, kind, key), truth, "{words:?} of client {client}: {outcome:#?}");
        }
    }
    // One client leaves something in, and the other one takes it out.
    let [one, other] = clients;
    let kept = served.start(&one, &["count", "F", "--no-remove", "--for", "100ms"]);
    drop(kept.finish().assert_code(0));
    assert!(served.pids.iter().zip(&before).all(|(pid, before)| Text::of(*pid) != *before), "something is left in");
    served.pids.iter().for_each(|pid| drop(other.detach(*pid)));
    load();
    served.pids.iter().zip(&before).for_each(|(pid, before)| target::assert_clean(*pid, before));
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    assert!(daemon.terminate().success());
}

#[test]
fn two_clients_measure_redis_under_load() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let served = Served { pids: vec![redis.pid()], function: "call", value: "$arg[1]", other: "processCommand" };
    let load = || drop(redis.load(&["-n", "20000", "-c", "25", "-P", "16", "-q", "-t", "set,get"]));
    measured_by_two(&served, &load, &|| redis.command_calls());
    assert_eq!(redis.ask(&["PING"]), ["+PONG"]);
}

#[test]
fn two_clients_measure_nginx_under_load() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let served = Served {
        pids: nginx.workers(),
        function: "ngx_http_process_request",
        value: "$arg[0]",
        other: "ngx_http_core_run_phases",
    };
    measured_by_two(&served, &|| nginx.request(500), &|| nginx.requests());
}
