//! Tests of the metrics of PostgreSQL under load, each compared with what the server counts, logs or explains itself, or with a debugger's
//! counts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use ingraft_testing::server::{Postgres, PostgresSession};
use ingraft_testing::{find, have, output, scaled, skip, target, wait_until};

use crate::backends::{follow, value_in};
use crate::library::{value, watch};

/// Settings of a server that does nothing by itself. With this `wal_level`, the background writer logs nothing.
const QUIET: [&str; 7] = [
    "autovacuum=off",
    "bgwriter_lru_maxpages=0",
    "checkpoint_timeout=1d",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_logical_replication_workers=0",
    "max_parallel_workers_per_gather=0",
];

const CLIENTS: u64 = 8;

/// Returns a pgbench with eight clients, each of which runs a script `each` times.
fn pgbench(postgres: &Postgres, script: &Path, each: u64) -> Command {
    let mut command = postgres.client("pgbench");
    command.args(["-n", "-c", &CLIENTS.to_string(), "-t", &each.to_string(), "-f"]).arg(script).arg("postgres");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn script(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a script");
    file
}

/// Returns the process of the server whose title has this name.
fn process(postgres: &Postgres, name: &str) -> i32 {
    let title = format!("postgres: {name}");
    let titled =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|t| t.starts_with(title.as_bytes()));
    target::children(postgres.pid()).into_iter().find(titled).unwrap_or_else(|| panic!("no {name}"))
}

/// Queries for the server's counts: of a database (`DB`), of the objects that all databases share (0), and of the database's files.
const STATISTICS: [(&str, &str); 10] = [
    ("commits", "pg_stat_get_db_xact_commit(DB)"),
    ("rollbacks", "pg_stat_get_db_xact_rollback(DB)"),
    ("inserted", "pg_stat_get_db_tuples_inserted(DB)"),
    ("updated", "pg_stat_get_db_tuples_updated(DB)"),
    ("deleted", "pg_stat_get_db_tuples_deleted(DB)"),
    ("fetched", "pg_stat_get_db_blocks_fetched(DB) + pg_stat_get_db_blocks_fetched(0)"),
    ("hit", "pg_stat_get_db_blocks_hit(DB) + pg_stat_get_db_blocks_hit(0)"),
    ("records", "(select wal_records from pg_stat_get_wal())"),
    ("sessions wrote", "pg_stat_get_buf_written_backend()"),
    ("checkpoints wrote", "pg_stat_get_bgwriter_buf_written_checkpoints()"),
];

/// A session that reads the server's statistics without being counted in them: it uses another database, and nothing shared.
struct Observer {
    sql: PostgresSession,
    database: String,
}

impl Observer {
    fn of(postgres: &Postgres) -> Observer {
        let mut sql = postgres.session_in("template1");
        let database = sql.ask("select oid from pg_database where datname = 'postgres';");
        Observer { sql, database }
    }

    /// Returns the server's statistics after a checkpoint, when all other clients have ended.
    fn statistics(&mut self, postgres: &Postgres) -> BTreeMap<&'static str, i64> {
        wait_until("its clients are gone", || postgres.backends() == [self.sql.pid]);
        let made = "select pg_stat_get_bgwriter_requested_checkpoints();";
        let before = self.sql.ask(made);
        self.sql.tell("checkpoint;");
        // When the checkpointer has reported all its work, it waits for the next checkpoint.
        let idle = "select count(*) from pg_stat_get_activity(null) \
                    where backend_type = 'checkpointer' and wait_event = 'CheckpointerMain';";
        wait_until("the checkpoint is told", || self.sql.ask(made) != before && self.sql.ask(idle) == "1");
        // This session reports its own work when it is asked to.
        assert_eq!(self.sql.ask("select pg_stat_force_next_flush() is null;"), "f");
        let questions = STATISTICS.map(|(_, question)| question.replace("DB", &self.database)).join(", ");
        let answer = self.sql.ask(&format!("select concat_ws(' ', {questions});"));
        let numbers = answer.split(' ').map(|number| number.parse().expect("a number"));
        STATISTICS.iter().map(|(name, _)| *name).zip(numbers).collect()
    }
}

/// Returns the number of sorts in a statement, by the server's own plan.
fn sorts_of(postgres: &Postgres, statement: &str) -> i64 {
    let plan = output(postgres.client("psql").args(["-XAtc", &format!("explain analyze {statement}"), "postgres"]));
    let loops = |line: &str| line.rsplit_once("loops=")?.1.trim_end_matches(')').parse::<i64>().ok();
    plan.lines().filter(|line| line.contains("Sort  (")).filter_map(loops).sum()
}

#[test]
fn what_eight_clients_do_is_what_the_server_counts() {
    let own = ["shared_buffers=1MB", "log_statement=all", "log_parser_stats=on", "log_planner_stats=on"];
    let postgres = match Postgres::start_with(&[&QUIET[..], &own].concat()) {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let sorting = "select count(*) from generate_series(1, 3) g, lateral \
                   (select aid from pgbench_accounts where aid between :aid + g and :aid + 50 order by filler, aid limit 5) s;";
    let sorts = sorts_of(&postgres, &sorting.replace(":aid", "7"));
    assert_eq!(sorts, 3);
    // The table's free space map is made before the measurement, because the server counts a new file like a written page.
    let prepare = ["-qc", "insert into pgbench_history (tid) values (1);", "-c", "vacuum pgbench_history;", "postgres"];
    output(postgres.client("psql").args(prepare));
    let mut observer = Observer::of(&postgres);
    let before = observer.statistics(&postgres);
    let pages = postgres.pages(&observer.database);
    let observing = format!("[{}]", observer.sql.pid);
    let logged = || {
        let log = postgres.log();
        let others: Vec<&str> = log.lines().filter(|line| !line.contains(&observing)).collect();
        let count = |what: &str| others.iter().filter(|line| line.contains(what)).count() as i64;
        [
            count("LOG:  PARSER STATISTICS"),
            count("LOG:  PLANNER STATISTICS"),
            count("LOG:  statement: ") + count("LOG:  execute "),
        ]
    };
    let logged_before = logged();
    let metrics = [
        "postgres_queries",
        "postgres_plans",
        "postgres_statements",
        "postgres_commits",
        "postgres_aborts",
        "postgres_page_requests",
        "postgres_page_reads",
        "postgres_page_writes",
        "postgres_wal_records",
        "postgres_wal_flushes",
        "postgres_rows_inserted",
        "postgres_rows_updated",
        "postgres_rows_deleted",
        "postgres_sorts",
    ];
    let session = follow(postgres.pid(), &target::children(postgres.pid()), &metrics);
    // All clients update one row, so other transactions often come first. The deleted rows come back by the rollback.
    let script = script(&format!(
        "\\set aid random(1, 99000)\nbegin;\n\
         update pgbench_accounts set abalance = abalance + 1 where aid = :aid;\n\
         update pgbench_branches set bbalance = bbalance + 1 where bid = 1;\n\
         insert into pgbench_history (tid, bid, aid, delta, mtime) values (1, 1, :aid, 1, current_timestamp);\nend;\n\
         {sorting}\nbegin;\ndelete from pgbench_accounts where aid between :aid and :aid + 3;\nrollback;\n"
    ));
    let each = scaled(25, 500);
    for protocol in ["simple", "prepared"] {
        let status = pgbench(&postgres, script.path(), each).args(["-M", protocol]).status();
        assert!(status.expect("pgbench").success());
    }
    let errors = 5;
    let mut sql = postgres.session();
    for _ in 0..errors {
        sql.tell("select 1 / (aid * 0) from pgbench_accounts limit 1;");
    }
    // One query string holds two statements.
    assert_eq!(sql.ask("do $$ begin end $$\\; select 7;"), "7");
    drop(sql);
    let after = observer.statistics(&postgres);
    let logged = logged();
    let outcome = session.interrupt().assert_code(0);
    let grown = (postgres.pages(&observer.database) - pages).cast_signed();
    let said = |name: &str| after[name] - before[name];
    let transactions = (2 * CLIENTS * each).cast_signed();
    let checkpoints = value_in(&outcome, process(&postgres, "checkpointer"), "postgres_page_writes");
    let of_clients = |metric: &str| value_in(&outcome, postgres.pid(), metric);
    // The observer also writes pages that others have changed, when it needs their buffers.
    let of_sessions = |metric: &str| of_clients(metric) + value_in(&outcome, observer.sql.pid, metric);
    let compared = [
        ("queries", of_clients("postgres_queries"), logged[0] - logged_before[0]),
        ("plans", of_clients("postgres_plans"), logged[1] - logged_before[1]),
        // One query string, and so one line of the log, held two statements.
        ("statements", of_clients("postgres_statements"), logged[2] - logged_before[2] + 1),
        ("commits", of_clients("postgres_commits"), said("commits")),
        ("aborts", of_clients("postgres_aborts"), said("rollbacks")),
        ("aborts", of_clients("postgres_aborts"), transactions + errors),
        ("page requests", of_clients("postgres_page_requests"), said("fetched")),
        // A new page is requested, but not read.
        ("page reads", of_clients("postgres_page_reads"), said("fetched") - said("hit") - grown),
        ("page writes", of_sessions("postgres_page_writes"), said("sessions wrote")),
        ("page writes of the checkpointer", checkpoints, said("checkpoints wrote")),
        ("log records", value(&outcome, "postgres_wal_records"), said("records")),
        // The server flushes the log before it writes a page that is not new, and at the end of a transaction that has written.
        ("log flushes", of_sessions("postgres_wal_flushes"), said("sessions wrote") - grown + transactions),
        ("rows inserted", of_clients("postgres_rows_inserted"), said("inserted")),
        ("rows updated", of_clients("postgres_rows_updated"), said("updated")),
        ("rows deleted", of_clients("postgres_rows_deleted"), said("deleted")),
        ("sorts", of_clients("postgres_sorts"), sorts * transactions),
    ];
    let wrong: Vec<_> = compared.iter().filter(|(_, measured, said)| measured != said || *said == 0).collect();
    assert!(wrong.is_empty(), "measured, but the server says: {wrong:#?}");
}

/// Returns the waits for locks in the server's log: the number of the long waits, and the milliseconds of the waits that got the lock.
fn logged_waits(log: &str) -> (i64, f64) {
    let lasted = log.lines().filter(|line| line.contains(" still waiting for ")).count();
    let took = |line: &str| line.strip_suffix(" ms")?.rsplit_once(" after ")?.1.parse::<f64>().ok();
    let ended = log.lines().filter(|line| line.contains(" acquired ")).filter_map(took).sum();
    (lasted as i64, ended)
}

/// Returns the milliseconds that the server has logged for whole statements that end with this text.
fn logged_statements(log: &str, end: &str) -> f64 {
    let took =
        |line: &str| line.strip_suffix(end)?.rsplit_once("duration: ")?.1.split_once(" ms")?.0.parse::<f64>().ok();
    log.lines().filter_map(took).sum()
}

/// Returns the number of calls of the planner in the server's log, and the milliseconds that they took.
fn logged_plans(log: &str) -> (u64, f64) {
    let took = |line: &str| line.strip_suffix(" s elapsed")?.rsplit_once(' ')?.1.parse::<f64>().ok();
    log.lines().filter_map(took).fold((0, 0.0), |(calls, sum), seconds| (calls + 1, sum + 1e3 * seconds))
}

/// The server reads its clock both inside and outside of the measured code. The measured time lies between its two times, however long
/// other
/// programs delay the server.
#[test]
fn times_of_planning_and_of_waiting_are_those_that_the_server_tells() {
    let own = [
        "log_lock_waits=on",
        "log_min_duration_statement=0",
        "deadlock_timeout=5ms",
        "join_collapse_limit=12",
        "geqo=off",
    ];
    let postgres = match Postgres::start_with(&[&QUIET[..], &own].concat()) {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let (mut holder, mut planner) = (postgres.session(), postgres.session());
    holder.tell("create table gate ();");
    let tables: String = (1..8).map(|i| format!(" join pgbench_accounts a{i} using (aid)")).collect();
    let statement = format!("explain (summary) select from pgbench_accounts a0{tables} \\g | grep Planning");
    let plan = |planner: &mut PostgresSession| {
        let told = planner.ask(&statement);
        let time = told.strip_prefix("Planning Time: ").and_then(|time| time.strip_suffix(" ms")?.parse::<f64>().ok());
        time.unwrap_or_else(|| panic!("no time: {told}"))
    };
    plan(&mut planner);
    assert_eq!(holder.ask("select 1;"), "1");
    let metrics = ["postgres_lock_sleeps", "postgres_lock_wait", "postgres_plan_time"];
    let session = follow(postgres.pid(), &target::children(postgres.pid()), &metrics);
    planner.tell("set log_planner_stats = on;");
    let plans = scaled(10, 200);
    let planned: f64 = (0..plans).map(|_| plan(&mut planner)).sum();
    let script = script("begin;\nlock table gate in access share mode;\nend;\n");
    let (rounds, given_up) = (scaled(3, 30), 2);
    for round in 1..=rounds {
        holder.tell("begin; lock table gate;");
        assert_eq!(holder.ask("select 1;"), "1");
        let mut load = pgbench(&postgres, script.path(), 1).spawn().expect("start pgbench");
        wait_until("all wait", || logged_waits(&postgres.log()).0 == (round * CLIENTS).cast_signed());
        holder.tell("commit;");
        assert!(load.wait().expect("pgbench").success());
    }
    // These waits end with an error, which leaves them by siglongjmp.
    holder.tell("begin; lock table gate;");
    assert_eq!(holder.ask("select 1;"), "1");
    let mut impatient = postgres.session();
    impatient.tell("set lock_timeout = '300ms';");
    assert_eq!(impatient.ask("select 1;"), "1");
    let begun = Instant::now();
    for _ in 0..given_up {
        impatient.tell("select count(*) from gate;");
    }
    assert_eq!(impatient.ask("select 1;"), "1");
    let impatience = begun.elapsed().as_secs_f64() * 1e3;
    drop(impatient);
    holder.tell("commit;");
    let log = postgres.log();
    let ((waits, waited), (logged, inside)) = (logged_waits(&log), logged_plans(&log));
    let locking = logged_statements(&log, "statement: lock table gate in access share mode;");
    let outcome = session.interrupt().assert_code(0);
    let of = |pid: i32, metric: &str| value_in(&outcome, pid, metric);
    assert_eq!(waits, (rounds * CLIENTS).cast_signed() + given_up);
    assert_eq!(of(postgres.pid(), "postgres_lock_sleeps"), waits);
    let time = of(postgres.pid(), "postgres_lock_wait") as f64 / 1e6;
    let planning = of(planner.pid, "postgres_plan_time") as f64 / 1e6;
    // The measured wait begins before the server reads the clock and ends after it logs the wait. It is a part of the time of the
    // statement.
    let (least, most) = (waited + 300.0 * given_up as f64, locking + impatience);
    // The clocks may differ by a thousandth while the system's clock is adjusted.
    assert!(least <= time && time <= 1.001 * most, "{time} ms, but PostgreSQL says {least} to {most} ms");
    // The planner runs inside of the measured function, and that runs inside of the explained statement.
    assert_eq!(logged, plans);
    assert!(
        0.999 * inside <= planning && planning <= 1.001 * planned,
        "{planning} ms, but PostgreSQL says {inside} to {planned} ms"
    );
    requests_of_locks(&postgres);
}

fn gdb() -> Command {
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch", "-ex", "set debuginfod enabled off"]).stderr(Stdio::null());
    command
}

/// Returns a place for a breakpoint that is executed exactly once in each call of the server's function: the function's first jump, call
/// or return.
fn behind_entry(function: &str) -> String {
    let program = find("postgres").expect("it runs");
    let code = output(gdb().args(["-ex", &format!("disassemble {function}")]).arg(program));
    let leaves = |line: &&str| ["\tj", "\tcall", "\tret"].iter().any(|word| line.contains(word));
    let line = code.lines().find(leaves).unwrap_or_else(|| panic!("{code}"));
    let offset: u32 = line.split(['+', '>']).nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    assert!(offset >= 20, "too near for two: {code}");
    format!("*((char *) &{function} + {offset})")
}

/// A debugger attaches while a backend is measured, counts the same calls with breakpoints, and stays to the backend's end.
fn requests_of_locks(postgres: &Postgres) {
    if !have("gdb") {
        skip!("gdb is not installed");
    }
    let places = ["-probe-stap postgresql:lwlock__acquire".to_owned(), behind_entry("LockAcquireExtended")];
    let mut sql = postgres.session();
    assert_eq!(sql.ask("select 1;"), "1");
    let pid = sql.pid;
    let session = watch(&[pid], &[], &["postgres_light_locks", "postgres_locks"]);
    let mut debugger = gdb();
    debugger.args(["-p", &pid.to_string(), "-ex", "handle all nostop print pass"]);
    for (number, place) in places.iter().enumerate() {
        debugger.args(["-ex", &format!("break {place}"), "-ex", &format!("ignore {} 1000000000", number + 1)]);
    }
    debugger.args(["-ex", "echo counting\\n", "-ex", "continue", "-ex", "info breakpoints"]);
    let mut debugger = debugger.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start gdb");
    let mut lines = BufReader::new(debugger.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "counting"), "gdb does not count");
    let running = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "));
    wait_until("it may run again", running);
    for i in 0..scaled(30, 1000) {
        sql.tell(&format!("select pg_advisory_lock(key) from generate_series(1, {i}) key \\g /dev/null"));
        sql.tell(&format!("update pgbench_accounts set abalance = 0 where aid = {i};"));
        sql.tell("insert into pgbench_history (tid) values (1);");
    }
    drop(sql);
    let told: Vec<String> = lines.collect();
    assert!(debugger.wait().expect("gdb").success());
    let hits =
        |line: &String| line.trim().strip_prefix("breakpoint already hit ")?.split(' ').next()?.parse::<i64>().ok();
    let hits: Vec<i64> = told.iter().filter_map(hits).collect();
    // If a signal arrives at a breakpoint, gdb stops and counts there twice.
    let signals = told.iter().filter(|line| line.contains("received signal")).count() as i64;
    let outcome = session.finish().assert_code(0);
    let measured = ["postgres_light_locks", "postgres_locks"].map(|metric| value(&outcome, metric));
    let same = |(&hits, &measured): (&i64, &i64)| measured > 0 && (measured..=measured + signals).contains(&hits);
    assert!(hits.len() == 2 && hits.iter().zip(&measured).all(same), "{measured:?}, but gdb says {told:#?}");
}
