//! Real servers, compared with their own statistics; all functions of a program at once.

use std::process::{Command, Stdio};

use ingraft_testing::server::{Nginx, Postgres, Redis};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, have, output, scaled, skip, source_directory};

use crate::tool;

/// Panics when fewer than 99 of 100 functions of a module that were asked for are counted.
fn assert_nearly_all(tool: &ingraft_testing::Tool, pid: i32, module: &str, least: usize) {
    let outcome = tool.run(["functions", "-p", &pid.to_string(), &format!("{module}:*")]).assert_code(0);
    let all = outcome.all("function");
    assert!(all.len() >= least, "{module} has only {} functions", all.len());
    let refused: Vec<_> = all.iter().filter(|function| function["how"]["entry"] == "refused").collect();
    assert!(refused.len() * 100 <= all.len(), "{} of {} functions of {module} are refused", refused.len(), all.len());
    for function in refused {
        assert!(function["why_not"]["entry"].is_string(), "refused without a reason: {function}");
    }
}

#[test]
fn redis_counts_equal_its_own_statistics() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let pid = redis.pid();
    let before = Text::of(pid);
    // Asking is a command too. The one that asks is in its own answer's successor: what this one does not show,
    // the last one does not show either, so that the difference is exact.
    let session;
    let earlier = {
        let earlier = redis.command_calls();
        session = tool().count(pid, &["call", "processCommand"]);
        earlier
    };
    // Enough clients that the I/O threads take part; they spin, so that a machine with few processors serves single commands slowly.
    let (piped, single) = (scaled(200_000, 1_000_000), scaled(10_000, 200_000));
    redis.load(&["-n", &piped.to_string(), "-c", "25", "-P", "16", "-q", "-t", "set"]);
    redis.load(&["-n", &single.to_string(), "-c", "25", "-q", "-t", "get"]);
    let served = redis.command_calls() - earlier;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(served >= piped + single);
    assert_eq!(outcome.calls("call"), served);
    assert_eq!(outcome.calls("processCommand"), served);
    target::assert_clean(pid, &before);
}

#[test]
fn nginx_counts_equal_requests() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    let tool = tool();
    let pids: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let mut session = tool.start(["count", "-p", &pids[0], "-p", &pids[1], "ngx_http_process_request"]);
    session.wait_for("attached");
    session.wait_for("attached");
    for _ in 0..4 {
        nginx.request(250);
    }
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.all("removed").len(), 2, "{outcome:#?}");
    assert_eq!(outcome.calls("ngx_http_process_request"), 1000);
    workers.iter().for_each(|&pid| target::assert_clean(pid, &before));
}

#[test]
fn all_functions_of_nginx() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let tool = tool();
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    assert_nearly_all(&tool, workers[0], "nginx", 1000);
    let mut sessions: Vec<_> = workers.iter().map(|&pid| tool.count(pid, &["nginx:*"])).collect();
    for _ in 0..4 {
        nginx.request(250);
    }
    if have("wrk") {
        let url = format!("http://127.0.0.1:{}/", nginx.port);
        let text = output(Command::new("wrk").args(["-t2", "-c8", "-d2s", &url]));
        assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    }
    let outcomes: Vec<Outcome> =
        sessions.drain(..).map(|session| session.interrupt().assert_code(0).assert_removed()).collect();
    let requests: u64 = outcomes.iter().map(|outcome| outcome.calls("ngx_http_process_request")).sum();
    assert!(requests >= 1000, "{requests} requests counted");
    workers.iter().for_each(|&pid| target::assert_clean(pid, &before));
    nginx.request(100);
    assert_eq!(nginx.workers(), workers, "no worker was replaced");
}

#[test]
fn all_functions_of_a_postgres_backend() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let tool = tool();
    let mut sql = postgres.session();
    let question = "select sum(abalance), count(*), md5(string_agg(filler, '' order by aid)) from pgbench_accounts where aid < 5000;";
    let answer = sql.ask(question);
    let before = Text::of(sql.pid);
    assert_nearly_all(&tool, sql.pid, "postgres", 10_000);
    let session = tool.count(sql.pid, &["postgres:*"]);
    let statements = scaled(50, 1000);
    for _ in 0..statements {
        assert_eq!(sql.ask(question), answer, "a counted backend answers the same");
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("pg_parse_query"), statements);
    assert_eq!(outcome.calls("PortalRun"), statements);
    assert!(outcome.counts().len() > 10_000);
    target::assert_clean(sql.pid, &before);
    assert_eq!(sql.ask(question), answer);
}

#[test]
fn all_functions_of_postgres_under_pgbench() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let transactions = scaled(2000, 30_000);
    let mut load = postgres
        .client("pgbench")
        .args(["-n", "-c", "1", "-t", &transactions.to_string(), "-R", "400", "postgres"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start pgbench");
    // Its first connection only asks for the scale and goes again: the one that has written something is meant.
    let mut sql = postgres.session();
    ingraft_testing::wait_until("the client has written", || {
        sql.ask("select count(*) > 0 from pgbench_history;") == "t"
    });
    let Some(pid) = postgres.backends().into_iter().find(|&pid| pid != sql.pid) else {
        panic!("pgbench ended before it was measured: {:?}", load.try_wait())
    };
    let session = tool().count(pid, &["postgres:*"]);
    // The session ends with its client, and the measurement with it.
    let outcome = session.finish().assert_code(0);
    let output = {
        let status = load.wait().expect("wait for pgbench");
        assert!(status.success());
        load.wait_with_output().expect("what pgbench said")
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains(&format!("number of transactions actually processed: {transactions}/{transactions}")),
        "{text}"
    );
    assert_eq!(outcome.all("ended").len(), 1);
    assert!(outcome.calls("PortalRun") > 0);
}

#[test]
fn all_functions_of_a_python() {
    let python = "/usr/bin/python3.11";
    if !std::path::Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let mut target =
        Mutatee::spawn(Command::new(python).arg("-u").arg(source_directory().join("tests/mutatees/worker.py")));
    let tool = tool();
    let expected = target.ask("work 20").after("result").to_owned();
    let before = Text::of(target.pid());
    assert_nearly_all(&tool, target.pid(), "python3.11", 4000);
    let session = tool.count(target.pid(), &["python3.11:*"]);
    let told = target.ask("work 20");
    assert_eq!(told.after("result"), expected, "a counted interpreter computes the same");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("PyNumber_Power"), told.number("powers"));
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("work 20").after("result"), expected);
}

#[test]
fn all_functions_of_a_python_from_entry_to_exit() {
    let python = "/usr/bin/python3.11";
    if !std::path::Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let mut target =
        Mutatee::spawn(Command::new(python).arg("-u").arg(source_directory().join("tests/mutatees/worker.py")));
    let expected = target.ask("work 20").after("result").to_owned();
    let before = Text::of(target.pid());
    let pid = target.pid().to_string();
    let foci = ["calls", "returns", "wall_time"].map(|metric| format!("{metric}@/Code/python3.11"));
    let mut session = tool().start(["watch", "-p", &pid].iter().map(|a| (*a).to_owned()).chain(foci.clone()));
    session.wait_for("attached");
    for _ in 0..scaled(2, 50) {
        assert_eq!(target.ask("work 20").after("result"), expected, "a timed interpreter computes the same");
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |metric: &str| {
        let sample = outcome.all("sample").into_iter().rfind(|sample| sample["metric"] == metric);
        sample.and_then(|sample| sample["value"].as_i64()).unwrap_or_else(|| panic!("no {metric}: {outcome:#?}"))
    };
    assert!(last("calls") > 0 && last("returns") > 0 && last("wall_time") > 0);
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("work 20").after("result"), expected);
}

#[test]
fn nearly_all_functions_of_common_libraries() {
    // A process that has them loaded: any interpreter with its ssl module.
    let python = "/usr/bin/python3.11";
    if !std::path::Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let target =
        Mutatee::spawn(Command::new(python).arg("-u").arg(source_directory().join("tests/mutatees/worker.py")));
    let tool = tool();
    assert_nearly_all(&tool, target.pid(), "libc", 2000);
    assert_nearly_all(&tool, target.pid(), "libcrypto", 8000);
}
