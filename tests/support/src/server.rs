//! Real servers on the loopback, each in a directory of its own and without privilege.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{BOUND, NOBODY, find, is_root, output, wait_until};

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

pub(crate) fn drop_privilege(command: &mut Command) -> &mut Command {
    if is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| format!("{name} is not installed"))
}

/// Requests a page `count` times, one after the other on one connection, and passes each body to `each`. Panics unless each answer is a
/// 200.
pub fn get(port: u16, path: &str, count: usize, mut each: impl FnMut(String)) {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to the server");
    stream.set_read_timeout(Some(BOUND)).expect("set a bound");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    for _ in 0..count {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        (&stream).write_all(request.as_bytes()).expect("send to the server");
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).expect("an answer of the server");
        assert!(line.starts_with("HTTP/1.1 200"), "the server answered {line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a header of the server");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body of the server");
        each(String::from_utf8_lossy(&body).into_owned());
    }
}

/// A started server; dropping it ends the server.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) directory: tempfile::TempDir,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGQUIT: nginx and postgres end their children at once; redis ends, because that is the default action.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), nix::sys::signal::Signal::SIGQUIT);
        for _ in 0..500 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// redis-server with four I/O threads.
pub struct Redis {
    running: Running,
    /// Port of the server.
    pub port: u16,
}

impl Redis {
    /// Starts a server; the error says what this machine lacks.
    pub fn start() -> Result<Redis, String> {
        let program = program("redis-server")?;
        program_of_load("redis-benchmark")?;
        let (directory, port) = (crate::open_directory(), free_port());
        let arguments = format!(
            "--port {port} --bind 127.0.0.1 --daemonize no --appendonly no --io-threads 4 --io-threads-do-reads yes --dir {}",
            directory.path().display()
        );
        let child = drop_privilege(Command::new(program).args(arguments.split(' ')).args(["--save", ""]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("start redis-server");
        let redis = Redis { running: Running { child, directory }, port };
        wait_until("redis answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Ok(redis)
    }

    /// Process id of the server.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Sends commands (each a line of words) over one connection and returns the raw answers; a bulk answer is returned as its text.
    pub fn ask(&self, commands: &[&str]) -> Vec<String> {
        let mut answers = Vec::new();
        self.ask_each(commands, |_, answer| answers.push(answer));
        answers
    }

    /// Sends commands as [`Redis::ask`] does, and passes each with its answer to `each`.
    pub fn ask_each(&self, commands: &[&str], mut each: impl FnMut(&str, String)) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connect to redis");
        stream.set_read_timeout(Some(BOUND)).expect("set a bound");
        let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
        for command in commands {
            (&stream).write_all(format!("{command}\r\n").as_bytes()).expect("send to redis");
            let mut line = String::new();
            reader.read_line(&mut line).expect("an answer of redis");
            let length = line.strip_prefix('$').and_then(|length| length.trim().parse::<usize>().ok());
            if let Some(length) = length {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes).expect("the whole answer of redis");
                line = String::from_utf8_lossy(&bytes).into_owned();
            }
            each(command, line.trim_end().to_owned());
        }
    }

    /// Number of calls of all commands by the server's own statistics, without the command that asks.
    pub fn command_calls(&self) -> u64 {
        let answer = self.ask(&["INFO commandstats"]).remove(0);
        let calls =
            answer.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
        calls.sum()
    }

    /// A number of the server's own statistics by section and name: the first number after `NAME:` or `NAME=`.
    pub fn statistic(&self, section: &str, name: &str) -> u64 {
        let answer = self.ask(&[&format!("INFO {section}")]).remove(0);
        let found = answer.split([':', '=', ',', '\n']).skip_while(|word| *word != name).nth(1);
        found.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no number {name} in {answer}"))
    }

    /// Runs redis-benchmark with these arguments; panics on any error that it reports.
    pub fn load(&self, arguments: &[&str]) -> String {
        let text = output(
            Command::new("redis-benchmark").args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(arguments),
        );
        assert!(!text.to_lowercase().contains("error"), "redis-benchmark: {text}");
        text
    }
}

fn program_of_load(name: &str) -> Result<PathBuf, String> {
    program(name)
}

/// nginx with a master and two workers.
pub struct Nginx {
    running: Running,
    /// Port of the server.
    pub port: u16,
}

/// Returns the configuration of an nginx in front of another one. It passes requests on (`/passed`; `/kept` over connections that are
/// kept;
/// `/cached` with a cache), or makes two subrequests (`/guarded`).
fn front(back: u16, at: &str) -> [String; 2] {
    let passed = format!("access_log {at}/passed.log passed;");
    let outside = format!(
        "proxy_cache_path {at}/cache keys_zone=answers:1m; upstream back {{ server 127.0.0.1:{back}; keepalive 4; }} \
         log_format passed '$upstream_cache_status $upstream_connect_time'; \
         proxy_http_version 1.1; proxy_set_header Connection '';"
    );
    let locations = format!(
        "location /passed {{ proxy_pass http://127.0.0.1:{back}/counted; {passed} }} \
         location /kept {{ proxy_pass http://back/counted; {passed} }} \
         location /cached {{ proxy_pass http://back/counted; proxy_cache answers; proxy_cache_valid 200 1h; {passed} }} \
         location /guarded {{ alias {at}; auth_request /part; mirror /part; }} \
         location /part {{ log_subrequest on; access_log {at}/parts.log times; return 200 'part'; }}"
    );
    [outside, locations]
}

impl Nginx {
    /// Starts a server; the error says what this machine lacks.
    pub fn start() -> Result<Nginx, String> {
        Nginx::launch(2, None)
    }

    /// Starts a server with a single worker in front of another server. Its error log reports all of its work.
    pub fn in_front_of(back: &Nginx) -> Result<Nginx, String> {
        Nginx::launch(1, Some(back.port))
    }

    fn launch(workers: usize, back: Option<u16>) -> Result<Nginx, String> {
        let program = program("nginx")?;
        let (directory, port) = (crate::open_directory(), free_port());
        let at = directory.path().display().to_string();
        std::fs::write(directory.path().join("index.html"), "it works\n").expect("a page");
        std::fs::write(directory.path().join("large"), [b'x'; 120_000]).expect("a large page");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
            .collect();
        let [outside, locations] = back.map_or_else(Default::default, |back| front(back, &at));
        let level = if back.is_some() { "debug" } else { "error" };
        // To find that a path of n letters does not end in b or c, the expression examines it about n * n * n / 6 times.
        let busy = "location ~ ^/busy/a*a*a*a*[bc]$ { return 204; } location /busy/ { return 200 'ok'; }";
        let configuration = format!(
            "daemon off; master_process on; worker_processes {workers}; pid {at}/pid; error_log {at}/error.log {level};\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; {temporary} log_format times '$request_time'; {outside} \
             server {{ listen 127.0.0.1:{port}; root {at}; location /counted {{ return 200 'ok'; }} \
             location /slow {{ alias {at}; limit_rate 100k; access_log {at}/times.log times; }} \
             location /status {{ stub_status; }} {busy} {locations} }} }}\n"
        );
        std::fs::write(directory.path().join("nginx.conf"), configuration).expect("a configuration");
        let child = drop_privilege(
            Command::new(program).arg("-p").arg(&at).args(["-c", "nginx.conf", "-e"]).arg(format!("{at}/error.log")),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("start nginx");
        let nginx = Nginx { running: Running { child, directory }, port };
        let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok() && nginx.workers().len() == workers;
        wait_until("nginx answers", answers);
        Ok(nginx)
    }

    /// Process id of the master.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Process ids of the workers.
    pub fn workers(&self) -> Vec<i32> {
        let serves = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).starts_with("nginx: worker process")
        };
        crate::target::children(self.running.pid()).into_iter().filter(serves).collect()
    }

    /// Requests a small page `count` times, as [`Nginx::get`] does.
    pub fn request(&self, count: usize) {
        self.get("/counted", count);
    }

    /// The seconds that each request of `/slow/large` took by nginx's own clock, in the order of their ends.
    pub fn slow_requests(&self) -> Vec<f64> {
        self.log("times.log").lines().map(|line| line.parse().expect("seconds")).collect()
    }

    /// Number of requests that nginx reports, including the one that asks.
    pub fn requests(&self) -> u64 {
        self.served()[2]
    }

    /// Numbers that nginx reports: connections accepted, connections handled, and requests, including the ones that ask.
    pub fn served(&self) -> [u64; 3] {
        let answer = self.get("/status", 1);
        let numbers = answer.lines().nth(2).map(|line| line.split_whitespace().filter_map(|n| n.parse().ok()));
        let numbers: Vec<u64> = numbers.into_iter().flatten().collect();
        numbers.try_into().unwrap_or_else(|_| panic!("no numbers in {answer}"))
    }

    /// Text of one of the server's log files; empty if there is none.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.running.directory.path().join(name)).unwrap_or_default()
    }

    /// Requests a page `count` times, one after the other on one connection, and returns the last body. Panics unless each answer is a
    /// 200.
    pub fn get(&self, path: &str, count: usize) -> String {
        let mut last = String::new();
        get(self.port, path, count, |body| last = body);
        last
    }

    /// Number of rounds of the event loop by the log of an nginx in front of another one, counted when its worker has no more work.
    pub fn rounds(&self) -> usize {
        let mut rounds = 0;
        wait_until("nginx rests", || {
            let log = self.errors();
            let count = |words: &str| log.lines().filter(|line| line.contains(words)).count();
            rounds = count(": worker cycle");
            let connected = count(" accept: ") != count(" close http connection: ");
            !connected && log.lines().next_back().is_some_and(|line| line.contains(": epoll timer: "))
        });
        rounds
    }

    /// Text of nginx's error log.
    pub fn errors(&self) -> String {
        self.log("error.log")
    }
}

/// PostgreSQL with a pgbench database.
pub struct Postgres {
    running: Running,
    /// Port of the server.
    pub port: u16,
}

impl Postgres {
    /// Starts a server; the error says what this machine lacks.
    pub fn start() -> Result<Postgres, String> {
        Postgres::start_with(&[])
    }

    /// Starts a server with further settings (`NAME=VALUE`); the error says what this machine lacks.
    pub fn start_with(settings: &[&str]) -> Result<Postgres, String> {
        let (initdb, postgres) = (program("initdb")?, program("postgres")?);
        program("pgbench")?;
        let (directory, port) = (crate::open_directory(), free_port());
        let data = directory.path().join("data");
        output(drop_privilege(
            Command::new(initdb)
                .arg("-D")
                .arg(&data)
                .args(["--no-sync", "-A", "trust", "-U", "bench"])
                .current_dir(directory.path()),
        ));
        let child = drop_privilege(Command::new(postgres).arg("-D").arg(&data).arg("-k").arg(directory.path()))
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "jit=off"])
            .args(["-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.track_utility=off"])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("log")).expect("a log"))
            .spawn()
            .expect("start postgres");
        let postgres = Postgres { running: Running { child, directory }, port };
        let ready = || {
            let mut command = postgres.client("psql");
            command.args(["-c", "select 1", "postgres"]).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        wait_until("postgres answers", ready);
        output(postgres.client("pgbench").args(["-i", "-q", "postgres"]));
        Ok(postgres)
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Returns a client program with the address of the server in its arguments.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "bench"]).current_dir("/tmp");
        command
    }

    /// Process ids of the backends that serve a client now.
    pub fn backends(&self) -> Vec<i32> {
        let serves = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).starts_with("postgres: bench ")
        };
        crate::target::children(self.running.pid()).into_iter().filter(serves).collect()
    }

    /// Text of the server's log.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.running.directory.path().join("log")).expect("its log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of pages in the files of a database.
    pub fn pages(&self, database: &str) -> u64 {
        const PAGE: u64 = 8192;
        let files =
            std::fs::read_dir(self.running.directory.path().join("data/base").join(database)).expect("its files");
        let files = files.map(|file| file.expect("a file"));
        // The files of tables and indices have names that begin with a digit.
        let relations = files.filter(|file| file.file_name().as_encoded_bytes()[0].is_ascii_digit());
        relations.map(|file| file.metadata().expect("its size").len() / PAGE).sum()
    }

    /// Opens a session and returns it with its backend's process id.
    pub fn session(&self) -> PostgresSession {
        self.session_in("postgres")
    }

    /// Opens a session in this database and returns it with its backend's process id.
    pub fn session_in(&self, database: &str) -> PostgresSession {
        let mut child = self
            .client("psql")
            .args(["-X", "-q", "-A", "-t", database])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start psql");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut session = PostgresSession { child, output, pid: 0 };
        session.pid = session.ask("select pg_backend_pid();").parse().expect("a process id");
        session
    }
}

/// A session with a backend of its own.
pub struct PostgresSession {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    /// Process id of the backend.
    pub pid: i32,
}

impl PostgresSession {
    /// Sends statements without waiting for them.
    pub fn tell(&mut self, statements: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{statements}").and_then(|()| stdin.flush()).expect("send to psql");
    }

    /// Sends a statement that yields one line, and returns that line.
    pub fn ask(&mut self, statement: &str) -> String {
        self.tell(statement);
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer of psql");
        line.trim_end().to_owned()
    }
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
