//! Tests of real servers, compared with their own statistics, and of all functions of a program at once.

use std::path::Path;
use std::process::{Command, Stdio};

use ingraft_testing::server::{Nginx, Postgres, Redis};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, have, output, scaled, skip, source_directory};

use crate::calling::definitions;
use crate::library::{last, value, watch};
use crate::tool;

/// Panics if fewer than 99 of 100 functions that were requested in a module are counted, or fewer than `least`.
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
    // The request for the statistics is a command, too. An answer lacks its own request, and the next answer includes it. So both answers
    // lack one request each, and the difference is exact.
    let session;
    let earlier = {
        let earlier = redis.command_calls();
        session = tool().count(pid, &["call", "processCommand"]);
        earlier
    };
    // There are enough clients for the I/O threads to take part. These threads spin, so a machine with few processors serves single
    // commands slowly.
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
fn functions_of_redis_without_their_callees() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let pid = redis.pid();
    let before = Text::of(pid);
    let mdl = source_directory().join("tests/e2e/mdl/calls.mdl");
    let (pid_text, mdl) = (pid.to_string(), mdl.to_str().expect("a path"));
    // This function has adjacent calls, jumps past calls, and calls right before returns. Every call in it is woven before and after.
    let function = "/Code/redis-server/incrDecrCommand";
    let metrics = ["calls", "calls_made", "calls_back", "own_time", "callee_time", "wall_time"];
    let pairs = metrics.map(|metric| format!("{metric}@{function}"));
    let own = ["processCommand", "call"].map(|function| format!("own_time@/Code/redis-server/{function}"));
    let fixed = ["watch", "-p", &pid_text, "-I", mdl, "--max-overhead", "10000"];
    let mut session = tool().start(fixed.into_iter().chain(pairs.iter().chain(&own).map(String::as_str)));
    session.wait_for("attached");
    let commands = scaled(20_000, 500_000);
    redis.load(&["-n", &commands.to_string(), "-c", "10", "-P", "16", "-q", "-t", "incr"]);
    assert_eq!(redis.ask(&["GET counter:__rand_int__"]), [commands.to_string()]);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let [calls, made, back, own_time, callees, whole] = pairs.each_ref().map(|pair| value(&outcome, pair));
    assert_eq!(calls, commands.cast_signed());
    assert!(made == back && made > calls, "{made} calls made, {back} came back");
    assert!(own_time > 0 && callees > 0 && own_time + callees <= whole, "{own_time} and {callees} of {whole} ns");
    assert!(own.iter().all(|pair| value(&outcome, pair) > 0));
    target::assert_clean(pid, &before);
}

#[test]
fn a_function_of_redis_is_called_at_every_command() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let (pid, mdl) = (redis.pid(), definitions());
    let before = Text::of(pid);
    let pid_text = pid.to_string();
    let earlier = redis.command_calls();
    let fixed = ["watch", "-p", &pid_text, "-I", &mdl, "--allow-calls", "--max-overhead", "10000"];
    let mut session = tool().start(fixed.into_iter().chain(["used_memory@/Code/redis-server/call"]));
    session.wait_for("attached");
    let commands = scaled(100_000, 1_000_000);
    redis.load(&["-n", &commands.to_string(), "-c", "25", "-P", "16", "-q", "-t", "set,get"]);
    let served = redis.command_calls() - earlier;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(served >= 2 * commands);
    assert_eq!(value(&outcome, "used_memory@/Code/redis-server/call"), served.cast_signed());
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
    // The first connection of pgbench only asks for the scale and ends. The test needs the connection that has written something.
    let mut sql = postgres.session();
    ingraft_testing::wait_until("the client has written", || {
        sql.ask("select count(*) > 0 from pgbench_history;") == "t"
    });
    let Some(pid) = postgres.backends().into_iter().find(|&pid| pid != sql.pid) else {
        panic!("pgbench ended before it was measured: {:?}", load.try_wait())
    };
    let session = tool().count(pid, &["postgres:*"]);
    // The session ends with its client, and the measurement ends with the session.
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
    if !Path::new(python).exists() {
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
    if !Path::new(python).exists() {
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
    // An interpreter with its ssl module has these libraries loaded.
    let python = "/usr/bin/python3.11";
    if !Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let target =
        Mutatee::spawn(Command::new(python).arg("-u").arg(source_directory().join("tests/mutatees/worker.py")));
    let tool = tool();
    assert_nearly_all(&tool, target.pid(), "libc", 2000);
    assert_nearly_all(&tool, target.pid(), "libcrypto", 8000);
}

/// Returns one percent of an expected value.
fn percent(of: i64) -> i64 {
    of / 100
}

#[test]
fn redis_metrics_equal_its_own_statistics() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let pid = redis.pid();
    let before = Text::of(pid);
    // With a memory limit, redis checks its memory before every command.
    redis.ask(&["CONFIG SET appendonly yes", "CONFIG SET appendfsync no", "CONFIG SET maxmemory 1gb"]);
    ingraft_testing::wait_until("the log is written", || {
        redis.statistic("persistence", "aof_rewrite_in_progress") == 0
    });
    let metrics = [
        "redis_commands",
        "redis_executions",
        "redis_client_reads",
        "redis_client_writes",
        "redis_key_lookups",
        "redis_keys_added",
        "redis_log_appends",
        "redis_log_flushes",
        "redis_eviction_checks",
        "redis_execution_time",
        "redis_execution_latency",
    ];
    let session = watch(&[pid], &[], &metrics);
    redis.ask(&["CONFIG RESETSTAT"]);
    let keys = scaled(500, 20_000);
    let words: String = (0..500).map(|i| format!(" element{i}")).collect();
    redis.ask(&[&format!("RPUSH list{words}")]);
    let adding: Vec<String> = (0..keys).map(|i| format!("SET key{i} value")).collect();
    redis.ask(&adding.iter().map(String::as_str).collect::<Vec<_>>());
    let reading: Vec<String> = (0..2 * keys).map(|i| format!("GET key{i}")).collect();
    redis.ask(&reading.iter().map(String::as_str).collect::<Vec<_>>());
    let deleting: Vec<String> = (keys / 2..2 * keys).map(|i| format!("DEL key{i}")).collect();
    redis.ask(&deleting.iter().map(String::as_str).collect::<Vec<_>>());
    // The server appends the commands of a script one by one, between two commands that group them, and writes them at once.
    let scripted = 16;
    redis.ask(&[&format!("EVAL \"for i = 1, {scripted} do redis.call('set', 'many', i) end\" 0")]);
    // The ranges are so long that the work of `call` around the command itself is small.
    let ranges = scaled(10_000, 50_000);
    redis.load(&["-n", &ranges.to_string(), "-c", "8", "-q", "LRANGE", "list", "0", "499"]);
    let info = redis.ask(&["INFO everything"]).remove(0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let statistic = |name: &str| -> i64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
    };
    let of_commands = |what: &str| -> i64 {
        let lines = info.lines().filter(|line| line.starts_with("cmdstat_"));
        lines.filter_map(|l| l.split_once(&format!("{what}="))?.1.split(',').next()?.parse::<i64>().ok()).sum()
    };
    // The answer to the last request does not include that request.
    let asked = 1;
    let keys = i64::try_from(keys).expect("small");
    let of = |metric: &str| value(&outcome, metric);
    assert_eq!(of("redis_executions"), of_commands("calls") + asked);
    let commands = statistic("total_commands_processed") - scripted + asked;
    assert_eq!([of("redis_commands"), of("redis_eviction_checks")], [commands; 2]);
    assert_eq!(of("redis_keys_added"), keys + 2);
    let written = keys + 1 + keys - keys / 2;
    assert_eq!([of("redis_log_flushes"), of("redis_log_appends")], [written + 1, written + scripted + 2]);
    // The hits and misses of redis are those of commands that read; SET and RPUSH also look up a key to write it.
    let read = statistic("keyspace_hits") + statistic("keyspace_misses");
    assert_eq!(of("redis_key_lookups"), read + keys + 1 + scripted);
    // A few reads and writes lie at the ends of the measurement, because the server reads a request before it answers.
    assert!((of("redis_client_reads") - statistic("total_reads_processed")).abs() <= 3, "{outcome:#?}");
    assert!((of("redis_client_writes") - statistic("total_writes_processed")).abs() <= 3, "{outcome:#?}");
    assert_eq!(of("redis_execution_latency"), of("redis_executions"));
    // The clock of redis counts whole microseconds, so the time of each command is known to one.
    let (own, time) = (of_commands("usec") * 1000, of("redis_execution_time"));
    let error = 3 * percent(own) + 1000 * of("redis_executions");
    assert!((time - own).abs() <= error, "{time} ns, but redis says {own} ns");
    let sum = last(&outcome, "redis_execution_latency", "sum");
    assert!((sum - own).abs() <= error, "{sum} ns, but redis says {own} ns");
    target::assert_clean(pid, &before);
}

#[test]
fn nginx_metrics_equal_its_own_statistics() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    let metrics = [
        "nginx_connections",
        "nginx_requests",
        "nginx_responses",
        "nginx_subrequests",
        "nginx_file_lookups",
        "nginx_request_time",
        "nginx_handling_latency",
    ];
    let session = watch(&workers, &[], &metrics);
    let start = nginx.requests();
    nginx.request(500);
    let slow = usize::try_from(scaled(2, 20)).expect("small");
    nginx.get("/slow/large", slow);
    let own = nginx.requests() - start;
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.all("removed").len(), 2, "{outcome:#?}");
    let of = |metric: &str| value(&outcome, metric);
    let own = i64::try_from(own).expect("small") + 1;
    assert_eq!([of("nginx_requests"), of("nginx_responses"), of("nginx_handling_latency")], [own; 3]);
    assert_eq!([of("nginx_connections"), of("nginx_subrequests")], [4, 0]);
    assert_eq!(of("nginx_file_lookups"), i64::try_from(slow).expect("small"));
    let slow: f64 = nginx.slow_requests().iter().sum();
    let time = of("nginx_request_time") as f64 / 1e9;
    // The clock of nginx advances once in each round of its loop. The fast requests together also take less than this tolerance.
    assert!((time - slow).abs() < 0.03 * slow + 0.1, "{time} s, but nginx says {slow} s");
    workers.iter().for_each(|&pid| target::assert_clean(pid, &before));
}

#[test]
fn nginx_in_front_of_another_equals_the_statistics_of_both() {
    let (back, nginx) = match Nginx::start().and_then(|back| Nginx::in_front_of(&back).map(|nginx| (back, nginx))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    // After this request, the connections are closed that were opened before nginx was ready.
    nginx.request(1);
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    let metrics = [
        "nginx_requests",
        "nginx_responses",
        "nginx_subrequests",
        "nginx_upstream_requests",
        "nginx_upstream_connects",
        "nginx_event_rounds",
    ];
    let session = watch(&workers, &[], &metrics);
    let (rounds, [_, handled, passed]) = (nginx.rounds(), back.served());
    let n = usize::try_from(scaled(50, 1000)).expect("small");
    for path in ["/passed", "/kept", "/cached", "/guarded/index.html"] {
        nginx.get(path, n);
    }
    let rounds = nginx.rounds() - rounds;
    // The later answer includes its own request.
    let served = back.served();
    let (handled, passed) = (served[1] - handled - 1, served[2] - passed - 1);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of = |metric: &str| usize::try_from(value(&outcome, metric)).expect("a number of things");
    let log = nginx.log("passed.log");
    let cached = log.lines().filter(|line| line.starts_with("HIT ")).count();
    assert_eq!([of("nginx_upstream_requests"), log.lines().count()], [3 * n; 2]);
    assert_eq!((usize::try_from(passed).expect("small"), cached), (3 * n - cached, n - 1));
    assert_eq!(of("nginx_upstream_connects"), usize::try_from(handled).expect("small"));
    let inner = nginx.log("parts.log").lines().count();
    assert_eq!([of("nginx_subrequests"), inner], [2 * n; 2]);
    assert_eq!([of("nginx_requests"), of("nginx_responses")], [4 * n, 4 * n + inner]);
    assert_eq!(of("nginx_event_rounds"), rounds);
    target::assert_clean(workers[0], &before);
}

#[test]
fn allocations_of_nginx_are_those_that_a_debugger_counts() {
    let (_back, nginx) = match Nginx::start().and_then(|back| Nginx::in_front_of(&back).map(|nginx| (back, nginx))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    if !have("gdb") {
        skip!("gdb is not installed");
    }
    let worker = nginx.workers()[0];
    let before = Text::of(worker);
    let load = || {
        nginx.request(20);
        nginx.get("/guarded/index.html", 20);
        nginx.rounds()
    };
    // The first load does the work that nginx does only once.
    load();
    let functions = ["ngx_palloc", "ngx_pnalloc", "ngx_pmemalign", "ngx_pcalloc"];
    let pid = worker.to_string();
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-p", &pid]);
    for (i, function) in functions.iter().enumerate() {
        gdb.args(["-ex", &format!("break *{function}"), "-ex", &format!("ignore {} 10000000", i + 1)]);
    }
    // gdb stops counting when the second connection ends.
    gdb.args([
        "-ex",
        "break *ngx_http_close_connection",
        "-ex",
        "ignore 5 1",
        "-ex",
        "continue",
        "-ex",
        "info breakpoints",
    ]);
    let gdb = gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start gdb");
    ingraft_testing::wait_until("gdb has attached", || target::tracer(worker) != 0);
    load();
    let told = gdb.wait_with_output().expect("what gdb said").stdout;
    let told = String::from_utf8_lossy(&told);
    let hits = |number: usize| -> i64 {
        let lines = told.lines().skip_while(|line| !line.starts_with("Num "));
        let mut own = lines.skip_while(|line| !line.starts_with(&format!("{number} "))).skip(1);
        let hits = own.next().and_then(|line| line.trim().strip_prefix("breakpoint already hit ")?.split(' ').next());
        hits.and_then(|hits| hits.parse().ok()).unwrap_or(0)
    };
    let [plain, unaligned, aligned, zeroed] = [1, 2, 3, 4].map(hits);
    // In this build, ngx_palloc is not inlined, and ngx_pcalloc calls it.
    assert!(zeroed > 0 && plain > zeroed && unaligned > 0, "{told}");
    let session = watch(&[worker], &[], &["nginx_pool_allocations"]);
    load();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(value(&outcome, "nginx_pool_allocations"), plain + unaligned + aligned, "{told}");
    target::assert_clean(worker, &before);
}

/// Returns the milliseconds of a time as wrk prints it.
fn milliseconds(text: &str) -> f64 {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    let found = units.iter().find_map(|(unit, scale)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * scale));
    found.unwrap_or_else(|| panic!("no time: {text}"))
}

/// Returns the milliseconds for which processes were ready to run but had no processor, by the kernel's account.
fn kept_waiting(pids: &[i32]) -> f64 {
    let of = |pid: &i32| -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the process's statistics");
        text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).expect("a number")
    };
    pids.iter().map(of).sum::<f64>() / 1e6
}

/// Largest number of runs of wrk.
const RUNS: usize = 5;

#[test]
fn percentiles_of_nginx_agree_with_those_of_its_client() {
    let nginx = match Nginx::start() {
        Ok(nginx) if have("wrk") => nginx,
        Ok(_) => skip!("wrk is not installed"),
        Err(why) => skip!("{why}"),
    };
    let before = Text::of(nginx.workers()[0]);
    // The requests take some milliseconds, and their times differ by less than two.
    let script = tempfile::Builder::new().suffix(".lua").tempfile().expect("a file");
    let lua = "request = function() return wrk.format('GET', '/busy/' .. string.rep('a', math.random(120, 148))) end\n";
    std::fs::write(script.path(), lua).expect("a script");
    let mut agree = false;
    for _ in 0..RUNS {
        let run = run_of_wrk(&nginx, script.path());
        // If a request takes twice the average time, wrk adds further values for requests that it assumes were delayed.
        let made_up = run.max >= 1.9 * run.interval;
        agree = run.off.is_empty();
        assert!(agree || made_up, "{:#?}: {}", run.off, run.text);
        if agree {
            break;
        }
        eprintln!("again, as wrk has made requests up: {:#?}: {}", run.off, run.text);
    }
    target::assert_clean(nginx.workers()[0], &before);
    if !agree {
        skip!("wrk has made requests up in every run: the machine holds them back");
    }
}

/// Results of one run of wrk, by wrk and by ingraft.
struct Run {
    /// Differences between the two, in words.
    off: Vec<String>,
    /// Time of the longest request in nginx, in milliseconds.
    max: f64,
    /// Average time from one request to the next, in milliseconds.
    interval: f64,
    /// Output of wrk.
    text: String,
}

fn run_of_wrk(nginx: &Nginx, script: &Path) -> Run {
    let workers = nginx.workers();
    let session = watch(&workers, &[], &["nginx_handling_latency", "nginx_handling_time"]);
    let url = format!("http://127.0.0.1:{}/", nginx.port);
    let seconds = scaled(5, 30);
    let busy = kept_waiting(&workers);
    let text = output(
        Command::new("wrk").args(["-t1", "-c1", "--latency", &format!("-d{seconds}s"), "-s"]).arg(script).arg(url),
    );
    // The last request may still be in progress when wrk ends.
    let rest = || workers.iter().all(|&pid| target::waits_in(pid, 232));
    ingraft_testing::wait_until("nginx waits for events", rest);
    let busy = kept_waiting(&workers) - busy;
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.all("removed").len(), 2, "{outcome:#?}");
    let words = |begin: &str| -> Vec<&str> {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("no {begin} in {text}")).split_whitespace().collect()
    };
    let requests: f64 =
        text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok()).expect("a number");
    // One worker serves the only connection.
    let samples = outcome.all("sample").into_iter().filter(|sample| sample["metric"] == "nginx_handling_latency");
    let sample = samples.max_by_key(|sample| sample["value"].as_i64()).expect("a distribution");
    let own = |key: &str| sample[key].as_f64().expect("a number") / 1e6;
    let seen = value(&outcome, "nginx_handling_latency") as f64;
    assert!((requests..=requests + 1.0).contains(&seen), "{seen} of {requests}: {text}");
    let (time, sum) = (
        value(&outcome, "nginx_handling_time") as f64 / 1e6,
        last(&outcome, "nginx_handling_latency", "sum") as f64 / 1e6,
    );
    assert!((time - sum).abs() < 0.01 * sum, "{time} ms in all, but {sum} ms one by one");
    // A bucket is a thirty-second wide, and the time to the next request has about this size, too. If other programs keep nginx from its
    // processor, they also delay the client, which measures longer times.
    let late = 1.0 + 2.0 * busy / requests;
    let mut off = Vec::new();
    let mut compare = |name: &str, own: f64, client: f64, most: f64| {
        if (own - client).abs() >= most {
            off.push(format!("{name}: {own} ms, but wrk says {client} ms"));
        }
    };
    for (name, key, share) in [("50%", "p50", 0.06), ("90%", "p90", 0.06), ("99%", "p99", 0.12)] {
        let client = milliseconds(words(name)[1]);
        compare(name, own(key), client, share * client + late);
    }
    let client = milliseconds(words("Latency ")[1]);
    compare("mean", time / requests, client, 0.05 * client + late);
    let (max, interval) = (own("max"), seconds as f64 * 1e3 / requests);
    Run { off, max, interval, text }
}

#[test]
fn postgres_metrics_equal_its_own_statistics() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut sql = postgres.session();
    sql.tell("create extension pg_stat_statements; create table gate (); begin; lock table gate;");
    assert_eq!(sql.ask("select 1;"), "1");
    // All clients are connected, and wait in a statement that does not use the executor.
    let script = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        script.path(),
        "\\set aid random(1, 100000)\nbegin;\nlock table gate in access share mode;\n\
         update pgbench_accounts set abalance = abalance + 1 where aid = :aid;\n\
         select sum(abalance) from pgbench_accounts where aid between :aid and :aid + 20000;\n\
         insert into pgbench_history (tid, bid, aid, delta, mtime) values (1, 1, :aid, 1, current_timestamp);\nend;\n",
    )
    .expect("a script");
    let transactions = scaled(25, 500);
    let mut load = postgres
        .client("pgbench")
        .args(["-n", "-c", "8", "-t", &transactions.to_string(), "-f"])
        .arg(script.path())
        .arg("postgres")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start pgbench");
    let own = sql.pid;
    let waiting = "select count(*) from pg_locks where not granted and locktype = 'relation';";
    ingraft_testing::wait_until("all clients wait", || sql.ask(waiting) == "8");
    let backends: Vec<i32> = postgres.backends().into_iter().filter(|&pid| pid != own).collect();
    assert_eq!(backends.len(), 8);
    let metrics = [
        "postgres_executions",
        "postgres_execution_time",
        "postgres_execution_latency",
        "postgres_queries",
        "postgres_rows_inserted",
        "postgres_rows_updated",
    ];
    let session = watch(&backends, &[], &metrics);
    assert_eq!(sql.ask("select pg_stat_statements_reset() is null;"), "f");
    sql.tell("commit;");
    assert!(load.wait().expect("wait for pgbench").success());
    let outcome = session.finish().assert_code(0);
    let of = |metric: &str| value(&outcome, metric);
    let transactions = 8 * i64::try_from(transactions).expect("small");
    let mut told = |what: &str| -> f64 {
        let query = format!(
            "select {what} from pg_stat_statements where query like '%pgbench_%' and query not like '%pg_stat%';"
        );
        sql.ask(&query).parse().expect("a number")
    };
    assert_eq!(of("postgres_executions"), 3 * transactions);
    assert_eq!(of("postgres_execution_latency"), 3 * transactions);
    assert_eq!(told("sum(calls)") as i64, 3 * transactions);
    assert_eq!([of("postgres_rows_inserted"), of("postgres_rows_updated")], [transactions; 2]);
    let (time, own) = (of("postgres_execution_time") as f64 / 1e6, told("sum(total_exec_time)"));
    assert!((time - own).abs() < 0.03 * own, "{time} ms, but PostgreSQL says {own} ms");
}
