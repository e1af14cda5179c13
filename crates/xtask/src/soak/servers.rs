//! The servers that a soak test measures: how each is started and asked, and which of its functions are measured.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ingraft_testing::field::Field;
use ingraft_testing::server::{Nginx, Postgres, PostgresSession, Redis, get};
use ingraft_testing::{Daemon, Tool, open_directory};

use super::load::CLIENTS;

/// A running server.
pub trait LoadedServer: Sync {
    /// Process ids of the processes that do the work.
    fn targets(&self) -> Vec<i32>;

    /// Makes `count` requests, and calls `answered` after each answer. Panics if an answer is wrong.
    fn request(&self, client: usize, count: usize, answered: &mut dyn FnMut());
}

/// A function whose calls the requests determine.
pub struct HandlerCalls {
    /// Name of the function.
    pub function: &'static str,
    /// Number of calls of the function in so many `requests`.
    pub calls: u64,
    pub requests: u64,
}

/// A server, and what is measured in it.
pub struct SoakServer {
    pub name: &'static str,
    /// Starts the server. The error says what this machine lacks. The directory has the programs of ingraft.
    pub start: fn(&Path) -> Result<Box<dyn LoadedServer>, String>,
    /// Patterns of functions that are measured together or one by one.
    pub few: &'static [&'static str],
    /// Functions whose slow calls are shown.
    pub slow: &'static [&'static str],
    /// Pattern of functions that are shown inside of slow calls.
    pub callees: &'static str,
    /// A function whose calls the requests determine.
    pub handler: HandlerCalls,
    /// Whether calls move between threads (Go): paths, processor times and slow calls are then refused.
    pub moves: bool,
}

/// All servers, in the order in which they are measured.
pub const SERVERS: &[SoakServer] = &[
    SoakServer {
        name: "redis",
        start: |_| Ok(Box::new(RedisServer(Redis::start()?))),
        few: &["processCommand", "call", "lookupKey*", "dict*", "addReply*", "*Command", "zsl*", "sds*", "lua*"],
        slow: &["call", "processCommand", "readQueryFromClient", "evalGenericCommand", "writeToClient", "serverCron"],
        callees: "redis-server:*",
        handler: HandlerCalls { function: "processCommand", calls: 1, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "nginx",
        start: |_| Ok(Box::new(NginxServer(Nginx::start()?, AtomicUsize::new(0)))),
        few: &[
            "ngx_http_*",
            "ngx_palloc",
            "ngx_http_core_run_phases",
            "ngx_http_write_filter",
            "ngx_vslprintf",
            "ngx_*",
        ],
        slow: &["ngx_http_process_request", "ngx_http_core_run_phases", "ngx_http_handler", "ngx_http_output_filter"],
        callees: "ngx_*",
        handler: HandlerCalls { function: "ngx_http_process_request", calls: 1, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "postgres",
        start: |_| PostgresServer::start(),
        few: &["ExecutorRun", "raw_parser", "AllocSet*", "hash_*", "ExecInit*", "heap_*", "btgettuple", "errfinish"],
        slow: &["PortalRun", "ExecutorRun", "pg_parse_query", "CommitTransactionCommand", "heap_update"],
        callees: "postgres:*",
        handler: HandlerCalls { function: "pg_parse_query", calls: 10, requests: 6 },
        moves: false,
    },
    SoakServer {
        name: "mariadb",
        start: |_| Ok(Box::new(FieldServer(Field::named("mariadb")?))),
        few: &[
            "dispatch_command*",
            "JOIN::*",
            "mysql_*",
            "my_hash_sort*",
            "filesort*",
            "*Item_func*::val_*",
            "trans_*",
        ],
        slow: &["dispatch_command*", "mysql_execute_command*", "mysql_select*", "do_command*"],
        callees: "mariadbd:*mysql*",
        handler: HandlerCalls { function: "dispatch_command", calls: 7, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "cpp",
        start: |_| Ok(Box::new(FieldServer(Field::named("cpp")?))),
        few: &[
            "compute*",
            "descend*",
            "measure_shapes*",
            "*area*",
            "sort_words*",
            "handle_request*",
            "Pool::*",
            "std::*",
        ],
        slow: &["handle_request*", "compute*", "Pool::run_job*", "measure_shapes*", "read_request*"],
        callees: "pool:*",
        handler: HandlerCalls { function: "handle_request", calls: 1, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "python",
        start: |_| Ok(Box::new(FieldServer(Field::named("python")?))),
        few: &[
            "_PyEval_EvalFrameDefault",
            "PyDict_*",
            "_PyObject_*",
            "PyUnicode_*",
            "PyErr_*",
            "PyList_Sort",
            "PyEval_*",
        ],
        slow: &["PyObject_Vectorcall", "PyList_Sort", "PyEval_EvalCode", "_PyEval_EvalFrameDefault"],
        callees: "python3.11:Py*",
        handler: HandlerCalls { function: "deflateEnd", calls: 2, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "perl",
        start: |_| Ok(Box::new(FieldServer(Field::named("perl")?))),
        few: &["Perl_pp_*", "Perl_runops_standard", "Perl_sv_*", "Perl_hv_common", "Perl_regexec_flags", "Perl_die*"],
        slow: &["Perl_pp_sort", "Perl_pp_match", "Perl_regexec_flags", "Perl_pp_subst", "Perl_runops_standard"],
        callees: "perl:Perl_*",
        handler: HandlerCalls { function: "Perl_pp_sort", calls: 2, requests: 1 },
        moves: false,
    },
    SoakServer {
        name: "go",
        start: |_| Ok(Box::new(FieldServer(Field::named("go")?))),
        few: &["main.*", "runtime.mallocgc", "net/http.*", "compress/flate.*", "encoding/json.*", "runtime.gc*"],
        slow: &[
            "main.part",
            "net/http.HandlerFunc.ServeHTTP",
            "net/http.(*conn).readRequest",
            "net/http.(*response).finishRequest",
        ],
        callees: "web:main.*",
        handler: HandlerCalls { function: "main.part", calls: 8, requests: 1 },
        moves: true,
    },
    SoakServer {
        name: "rust",
        start: DaemonServer::start,
        few: &["*metrics_page*", "hyper::*", "tokio::runtime::task::*", "*HealthCounts*", "*::poll", "tonic::*"],
        slow: &[
            "ingraft_daemon::metrics_page::serve::MetricsServer::page",
            "ingraft_daemon::metrics_page::page::Page::text",
            "*Context::run_task",
        ],
        callees: "ingraftd:*ingraft*",
        handler: HandlerCalls {
            function: "ingraft_daemon::metrics_page::serve::MetricsServer::page",
            calls: 1,
            requests: 1,
        },
        moves: false,
    },
];

/// Commands of redis, each with the beginning of its answer. `{c}` is the client's number.
const COMMANDS: &[(&str, &str)] = &[
    ("SET key:{c} value", "+OK"),
    ("GET key:{c}", "value"),
    ("DEL list:{c}", ":"),
    ("RPUSH list:{c} a b c d e f g", ":7"),
    ("LINDEX list:{c} 4", "e"),
    ("ZADD set:{c} 1 a 2 b 3 c", ":"),
    ("ZSCORE set:{c} b", "2"),
    ("HSET hash:{c} field other", ":"),
    ("HGET hash:{c} field", "other"),
    ("INCR key:{c}", "-ERR value is not an integer"),
    (
        "EVAL \"local r = redis.pcall('incr', KEYS[1]) if r.err then return 'caught' end return 'not' \" 1 key:{c}",
        "caught",
    ),
    ("EVAL \"return redis.call('incr', KEYS[1])\" 1 key:{c}", "-ERR value is not an integer"),
    ("PFADD sketch:{c} a b c d", ":"),
    ("STRLEN key:{c}", ":5"),
    ("NOSUCHCOMMAND", "-ERR unknown command"),
];

struct RedisServer(Redis);

impl LoadedServer for RedisServer {
    fn targets(&self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn request(&self, client: usize, count: usize, answered: &mut dyn FnMut()) {
        let fill = |text: &str| text.replace("{c}", &client.to_string());
        let commands: Vec<(String, &str)> = COMMANDS.iter().map(|(text, answer)| (fill(text), *answer)).collect();
        let cycle: Vec<&(String, &str)> = commands.iter().cycle().take(count).collect();
        let texts: Vec<&str> = cycle.iter().map(|(text, _)| text.as_str()).collect();
        let mut expected = cycle.iter().map(|(_, answer)| *answer);
        self.0.ask_each(&texts, |command, answer| {
            answered();
            let expected = expected.next().expect("an answer for each command");
            assert!(answer.starts_with(expected), "redis answered {answer} to {command}");
        });
    }
}

/// nginx, and the number of batches of requests so far.
struct NginxServer(Nginx, AtomicUsize);

impl LoadedServer for NginxServer {
    fn targets(&self) -> Vec<i32> {
        self.0.workers()
    }

    fn request(&self, _client: usize, count: usize, answered: &mut dyn FnMut()) {
        const PATHS: &[(&str, usize)] = &[("/counted", 2), ("/large", 120_000), ("/busy/aaaaaaaaaaaaaaaaaaaaaa", 2)];
        let (path, length) = PATHS[self.1.fetch_add(1, Ordering::Relaxed) % PATHS.len()];
        get(self.0.port, path, count, |body| {
            answered();
            assert_eq!(body.len(), length, "the length of {path}");
        });
    }
}

/// Statements, each with its answer. `{c}` is the client's number.
const STATEMENTS: [(&str, &str); 6] = [
    ("select count(*) from pgbench_accounts where aid between 100 and 5000;", "4901"),
    ("select sum(a.aid) from pgbench_accounts a join pgbench_branches b using (bid) where a.aid <= 2000;", "2001000"),
    ("begin; update pgbench_accounts set abalance = abalance + 1 where aid = {c} + 1; commit; select 5;", "5"),
    ("do $$ begin perform 1 / 0; exception when division_by_zero then null; end $$; select 7;", "7"),
    ("select length(string_agg(md5(g::text), '' order by g)) from generate_series(1, 200) g;", "6400"),
    (
        "with recursive f(n, v) as (select 1, 1 union all select n + 1, v + n from f where n < 50) select sum(v) from f;",
        "20875",
    ),
];

struct PostgresServer {
    // The sessions end before the server.
    sessions: Vec<Mutex<PostgresSession>>,
    backends: Vec<i32>,
    _server: Postgres,
}

impl PostgresServer {
    fn start() -> Result<Box<dyn LoadedServer>, String> {
        let server = Postgres::start()?;
        let sessions: Vec<PostgresSession> = (0..CLIENTS).map(|_| server.session()).collect();
        let backends = sessions.iter().map(|session| session.pid).collect();
        let sessions = sessions.into_iter().map(Mutex::new).collect();
        Ok(Box::new(PostgresServer { sessions, backends, _server: server }))
    }
}

impl LoadedServer for PostgresServer {
    fn targets(&self) -> Vec<i32> {
        self.backends.clone()
    }

    fn request(&self, client: usize, count: usize, answered: &mut dyn FnMut()) {
        let mut session = self.sessions[client].lock().unwrap_or_else(PoisonError::into_inner);
        // Batches are whole rounds, so that each call makes the same statements.
        for (statement, expected) in STATEMENTS.iter().cycle().take(count.next_multiple_of(STATEMENTS.len())) {
            let answer = session.ask(&statement.replace("{c}", &client.to_string()));
            answered();
            assert_eq!(answer, *expected, "PostgreSQL answered {statement}");
        }
    }
}

struct FieldServer(Field);

impl LoadedServer for FieldServer {
    fn targets(&self) -> Vec<i32> {
        vec![self.0.pid()]
    }

    fn request(&self, _client: usize, count: usize, answered: &mut dyn FnMut()) {
        self.0.request_each(count, answered);
    }
}

/// `ingraftd` itself: a server of tokio. One client reads its page for Prometheus, and one calls it by gRPC.
struct DaemonServer {
    pid: i32,
    /// Address for gRPC.
    uri: String,
    // The clients share this server, and use the daemon itself no more.
    _daemon: Mutex<Daemon>,
    program: PathBuf,
    directory: tempfile::TempDir,
    port: u16,
}

impl DaemonServer {
    fn start(programs: &Path) -> Result<Box<dyn LoadedServer>, String> {
        let directory = open_directory();
        let token = directory.path().join("token");
        std::fs::write(&token, "0123456789abcdef-soak").map_err(|error| error.to_string())?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, private).map_err(|error| error.to_string())?;
        let token = token.display().to_string();
        let arguments = ["--metrics", "127.0.0.1:0", "--metrics-open", "--listen", "http://127.0.0.1:0"];
        let arguments = arguments.into_iter().chain(["--token-file", &token]);
        let daemon = Daemon::start(&programs.join("ingraftd"), directory.path(), arguments);
        let address = |is_it: fn(&str) -> bool| {
            let found = daemon.addresses.iter().find(|address| is_it(address)).cloned();
            found.ok_or_else(|| format!("an address is missing in {:?}", daemon.addresses))
        };
        let uri = address(|address| address.starts_with("http://") && !address.ends_with("/metrics"))?;
        let page = address(|address| address.ends_with("/metrics"))?;
        let port = page.trim_end_matches("/metrics").rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.ok_or_else(|| format!("no port in {page}"))?;
        let (pid, program) = (daemon.pid(), programs.join("ingraft"));
        Ok(Box::new(DaemonServer { pid, uri, _daemon: Mutex::new(daemon), program, directory, port }))
    }

    /// Calls the daemon by gRPC over HTTP/2.
    fn call(&self, count: usize, answered: &mut dyn FnMut()) {
        let token = self.directory.path().join("token");
        let client = Tool::new(&self.program).with_daemon(&self.uri, Some(&token));
        let commands: [&[&str]; 3] = [&["ps"], &["metrics"], &["status"]];
        for words in commands.iter().cycle().take(count) {
            let output = client.command(*words).stdin(Stdio::null()).output().expect("run ingraft");
            answered();
            let text = String::from_utf8_lossy(&output.stdout);
            let is_right = words[0] != "ps" || text.contains(&format!("\"pid\":{},", self.pid));
            assert!(output.status.success() && is_right, "{words:?}: {output:?}");
        }
    }
}

impl LoadedServer for DaemonServer {
    fn targets(&self) -> Vec<i32> {
        vec![self.pid]
    }

    fn request(&self, client: usize, count: usize, answered: &mut dyn FnMut()) {
        if client == 1 {
            return self.call(count, answered);
        }
        for _ in 0..count {
            get(self.port, "/metrics", 1, |page| {
                answered();
                assert!(page.contains("ingraftd_targets 0"), "another page: {page}");
            });
        }
    }
}
