//! Servers that users run: other runtimes, other allocators, other layouts of code. A server gives the same answer to every request, so a
//! test notices a wrong answer.

mod recipes;
mod talk;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use self::recipes::{RECIPES, Recipe};
use self::talk::Step;
use crate::server::{Running, drop_privilege, free_port, get, program};
use crate::{NOBODY, is_root, mutatee, output, source_directory, target, wait_until};

/// A server that computes an answer to each request.
pub struct Field {
    running: Running,
    /// Process that does the work: the started one, or a descendant.
    worker: i32,
    ask: Ask,
    /// Programs that the server needs, which end with it.
    helpers: Vec<Child>,
    /// The first answer, which all later answers must equal; `None` before the first request.
    answer: Mutex<Option<String>>,
}

/// Way in which a request is made.
enum Ask {
    /// Over HTTP at this port of the loopback.
    Http(u16),
    /// By the client of MariaDB, through the socket of this name in the server's directory.
    Sql(&'static str),
    /// In the server's own protocol, on a new TCP connection.
    Talk {
        /// Port of the loopback.
        port: u16,
        /// The sentences, and how each answer ends.
        steps: Vec<Step>,
    },
    /// By one datagram, which the server answers with another.
    Datagram {
        /// Port of the loopback.
        port: u16,
        /// The datagram.
        send: Vec<u8>,
    },
}

/// The statements of one request. They use temporary tables, which each client has for itself, so the answer is always the same.
const STATEMENTS: &str =
    "create temporary table numbers (n int primary key auto_increment, name varchar(50), key (name));
    insert into numbers (name) select sha1(seq) from seq_1_to_500;
    update numbers set name = concat(name, 'x') where n % 3 = 0;
    select count(*), max(name), sum(crc32(name)) from numbers where name like '%x';
    delete from numbers where n % 2 = 0;
    select name from numbers order by name desc limit 3;\n";

impl Field {
    fn new(child: Child, directory: tempfile::TempDir, ask: Ask) -> Field {
        let running = Running { child, directory };
        Field { worker: running.pid(), running, ask, helpers: Vec::new(), answer: Mutex::default() }
    }

    /// Starts a server by its name. The error says what is missing on this machine.
    pub fn named(name: &str) -> Result<Field, String> {
        match name {
            "haproxy" => Field::haproxy(),
            "java" => Field::java(),
            "mariadb" => Field::mariadb(),
            "node" => Field::node(&[]),
            "go" => Field::go(),
            "cpp" => Field::cpp(),
            "perl" => Field::perl(),
            "python" => Field::python(),
            _ => Field::by(RECIPES.iter().find(|recipe| recipe.name == name).ok_or("no such server is known")?),
        }
    }

    /// Starts a server by its recipe. The error says what is missing on this machine.
    fn by(recipe: &Recipe) -> Result<Field, String> {
        let (program, directory) = (program(recipe.program)?, crate::open_directory());
        let (port, second) = (free_port(), free_port());
        let fill = filler(directory.path(), port, second);
        for (name, content) in recipe.files {
            write_for_server(&directory.path().join(name), &fill(content));
        }
        let helpers = helpers(recipe, directory.path());
        let mut command = Command::new(program);
        drop_privilege(&mut command).current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command.args(recipe.arguments.iter().map(|argument| fill(argument)));
        command.envs(recipe.environment.iter().map(|(key, value)| (key, fill(value))));
        let errors = fs::File::create(directory.path().join("errors")).expect("a file for errors");
        let child = command.stderr(errors).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut server = Field::new(child, directory, (recipe.ask)(port));
        server.helpers = helpers;
        if let Some(worker) = recipe.worker {
            wait_until("the worker has started", || server.find_worker(worker));
        }
        wait_until("the server answers", || server.is_ready());
        Ok(server)
    }

    /// Notes the descendant of this name. Returns whether it exists.
    fn find_worker(&mut self, name: &str) -> bool {
        let mut family = vec![self.running.pid()];
        while let Some(pid) = family.pop() {
            if target::status(pid, "Name") == name {
                self.worker = pid;
                return true;
            }
            family.extend(target::children(pid));
        }
        false
    }

    fn is_ready(&self) -> bool {
        match &self.ask {
            Ask::Http(port) | Ask::Talk { port, .. } => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            // A name server that has not read its zones answers with an error code.
            Ask::Datagram { port, send } => {
                talk::over_udp(*port, send).is_ok_and(|answer| answer.get(3).is_some_and(|flags| flags & 15 == 0))
            }
            Ask::Sql(_) => true,
        }
    }

    /// Starts a JavaScript server, with arguments for `node` itself. The error says what is missing on this machine.
    pub fn node(arguments: &[&str]) -> Result<Field, String> {
        let mut command = Command::new(program("node")?);
        command.args(arguments).arg("web.js");
        Ok(Field::web(command, Some("web.js")))
    }

    /// Starts a Go server. The error says what is missing on this machine.
    pub fn go() -> Result<Field, String> {
        Ok(Field::web(Command::new(mutatee::program("web")?), None))
    }

    /// Starts a C++ server. The error says what is missing on this machine.
    pub fn cpp() -> Result<Field, String> {
        Ok(Field::web(Command::new(mutatee::program("pool")?), None))
    }

    /// Starts a Python server. The error says what is missing on this machine.
    pub fn python() -> Result<Field, String> {
        // This is the interpreter of the system; other programs named python3 may be scripts that start it.
        let python = Path::new("/usr/bin/python3");
        if !python.exists() {
            return Err("python3 is not installed".to_owned());
        }
        let mut command = Command::new(python);
        command.args(["-u", "web.py"]);
        Ok(Field::web(command, Some("web.py")))
    }

    /// Starts a Perl server. The error says what is missing on this machine.
    pub fn perl() -> Result<Field, String> {
        let mut command = Command::new(program("perl")?);
        command.arg("web.pl");
        Ok(Field::web(command, Some("web.pl")))
    }

    /// Starts a Java server from its source. The error says what is missing on this machine.
    pub fn java() -> Result<Field, String> {
        program("javac")?;
        let mut command = Command::new(program("java")?);
        command.args(["-Xmx200m", "Web.java"]);
        Ok(Field::web(command, Some("Web.java")))
    }

    /// Starts a server that prints its port, and waits for the port.
    fn web(mut command: Command, source: Option<&str>) -> Field {
        let directory = crate::open_directory();
        if let Some(source) = source {
            fs::copy(source_directory().join("tests/field").join(source), directory.path().join(source))
                .unwrap_or_else(|error| panic!("{source}: {error}"));
        }
        drop_privilege(&mut command).current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("its port");
        let port = line.strip_prefix("port ").and_then(|port| port.trim().parse().ok());
        let port = port.unwrap_or_else(|| panic!("{command:?} printed no port but {line:?}"));
        Field::new(child, directory, Ask::Http(port))
    }

    /// Starts HAProxy with two threads. It answers requests itself, without a server behind it.
    pub fn haproxy() -> Result<Field, String> {
        let (program, directory, port) = (program("haproxy")?, crate::open_directory(), free_port());
        let configuration = format!(
            "global\n nbthread 2\n\
             defaults\n mode http\n timeout client 120s\n timeout connect 120s\n timeout server 120s\n\
             frontend front\n bind 127.0.0.1:{port}\n acl long path_reg ^/[a-z]+$\n http-request set-header X-A %[path,sha1,hex]\n \
             http-request return status 200 content-type text/plain lf-string \"ok %[path,xxh64] %[path,sha1,hex]\" if long\n"
        );
        fs::write(directory.path().join("configuration"), configuration).expect("a configuration");
        let mut command = Command::new(program);
        drop_privilege(&mut command).args(["-db", "-f", "configuration"]).current_dir(directory.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("start haproxy");
        let server = Field::new(child, directory, Ask::Http(port));
        wait_until("haproxy answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Ok(server)
    }

    /// Starts MariaDB without network access.
    pub fn mariadb() -> Result<Field, String> {
        let (install, program) = (program("mariadb-install-db")?, program("mariadbd")?);
        self::program("mariadb")?;
        let directory = crate::open_directory();
        let data = directory.path().join("data");
        let at_data = format!("--datadir={}", data.display());
        output(drop_privilege(
            Command::new(install)
                .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", &at_data])
                .current_dir(directory.path()),
        ));
        let mut command = Command::new(program);
        drop_privilege(&mut command)
            .args([
                "--no-defaults",
                "--skip-networking",
                "--socket=socket",
                "--innodb-flush-log-at-trx-commit=0",
                &at_data,
            ])
            .current_dir(directory.path());
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("start mariadbd");
        let server = Field::new(child, directory, Ask::Sql("data/socket"));
        let client = || server.sql("data/socket").arg("-e").arg("create database if not exists field").output();
        wait_until("mariadb answers", || client().is_ok_and(|output| output.status.success()));
        Ok(server)
    }

    fn directory(&self) -> &Path {
        self.running.directory.path()
    }

    fn sql(&self, socket: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--user=root", "--batch", "--socket"]).arg(self.directory().join(socket));
        command
    }

    /// Id of the process that does the work.
    pub fn pid(&self) -> i32 {
        self.worker
    }

    /// Makes `count` requests. Panics unless each gets the same answer as the first request to this server.
    pub fn request(&self, count: usize) {
        self.request_each(count, || ());
    }

    /// Makes `count` requests as [`Field::request`] does, and calls `answered` after each answer.
    pub fn request_each(&self, count: usize, mut answered: impl FnMut()) {
        let mut check = |answer| {
            answered();
            self.check(answer);
        };
        let mut each = |answer: &dyn Fn() -> String| (0..count).for_each(|_| check(answer()));
        match &self.ask {
            Ask::Http(port) => get(*port, "/field", count, check),
            Ask::Sql(socket) => each(&|| output(self.sql(socket).args(["field", "-e", STATEMENTS]))),
            Ask::Talk { port, steps } => each(&|| talk::over_tcp(*port, steps).escape_ascii().to_string()),
            Ask::Datagram { port, send } => {
                each(&|| talk::over_udp(*port, send).expect("an answer").escape_ascii().to_string())
            }
        }
    }

    #[track_caller]
    fn check(&self, answer: String) {
        assert!(!answer.is_empty(), "an empty answer");
        let answer = without_times(&answer);
        // The lock is free again before a comparison that may panic.
        let mut first = self.answer.lock().expect("the first answer");
        let first = first.get_or_insert_with(|| answer.clone()).clone();
        assert_eq!(first, answer, "another answer than before");
    }
}

/// An answer without the times that Dovecot tells: `(0.001 + 0.000 secs)`.
fn without_times(answer: &str) -> String {
    let parts = answer.split('(').map(|part| part.split_once(" secs)").map_or(part, |(_, rest)| rest));
    parts.collect::<Vec<_>>().join("(")
}

impl Drop for Field {
    fn drop(&mut self) {
        // `Running` ends a server by SIGQUIT, at which some runtimes only print the stacks of their threads, so kill it. An error means
        // that the server has ended already.
        let mut family = vec![self.running.pid()];
        let mut next = 0;
        while let Some(pid) = family.get(next) {
            family.extend(target::children(*pid));
            next += 1;
        }
        for pid in family {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        for helper in &mut self.helpers {
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }
}

/// Returns a function that puts the values of one server into a text of its recipe.
fn filler(directory: &Path, port: u16, second: u16) -> impl Fn(&str) -> String + use<> {
    let uid = if is_root() { NOBODY } else { nix::unistd::geteuid().as_raw() };
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let (user, gid) = user.map_or((uid.to_string(), uid), |user| (user.name, user.gid.as_raw()));
    let group = nix::unistd::Group::from_gid(gid.into()).ok().flatten().map_or(gid.to_string(), |group| group.name);
    let values = [
        ("{dir}", directory.display().to_string()),
        ("{port}", port.to_string()),
        ("{second}", second.to_string()),
        ("{uid}", uid.to_string()),
        ("{gid}", gid.to_string()),
        ("{user}", user),
        ("{group}", group),
    ];
    move |text| values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Writes a file that an unprivileged server may read and change, and makes the directories above it.
fn write_for_server(path: &Path, content: &str) {
    let give = |path: &Path| {
        if is_root() {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("give away a file");
        }
    };
    let parent = path.parent().expect("a directory");
    fs::create_dir_all(parent).expect("a directory");
    fs::write(path, content).expect("a file of the server");
    give(path);
}

/// Makes what a server needs beside its files: a certificate, or the program by which the nodes of Erlang find each other.
fn helpers(recipe: &Recipe, directory: &Path) -> Vec<Child> {
    match recipe.name {
        "stunnel" => {
            let file: PathBuf = directory.join("certificate.pem");
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
            write_for_server(&file, &format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem()));
            Vec::new()
        }
        "rabbitmq" => {
            let mut command = Command::new("epmd");
            let child = drop_privilege(&mut command).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            child.into_iter().collect()
        }
        _ => Vec::new(),
    }
}
