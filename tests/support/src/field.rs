//! Servers that users run: other runtimes, other allocators, other layouts of code. A server gives the same answer to every request, so a
//! test notices a wrong answer.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::server::{Running, drop_privilege, free_port, get, program};
use crate::{mutatee, output, source_directory, wait_until};

/// A server that computes an answer to each request.
pub struct Field {
    running: Running,
    ask: Ask,
    /// The first answer, which all later answers must equal; `None` before the first request.
    answer: Mutex<Option<String>>,
}

/// Way in which a request is made.
enum Ask {
    /// Over HTTP at this port of the loopback.
    Http(u16),
    /// By the client of MariaDB, through the socket of this name in the server's directory.
    Sql(&'static str),
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
        Field { running: Running { child, directory }, ask: Ask::Http(port), answer: Mutex::default() }
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
        let server = Field { running: Running { child, directory }, ask: Ask::Http(port), answer: Mutex::default() };
        wait_until("haproxy answers", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
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
        let server =
            Field { running: Running { child, directory }, ask: Ask::Sql("data/socket"), answer: Mutex::default() };
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

    /// Process id of the server.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Makes `count` requests. Panics unless each gets the same answer as the first request to this server.
    pub fn request(&self, count: usize) {
        match self.ask {
            Ask::Http(port) => get(port, "/field", count, |answer| self.check(answer)),
            Ask::Sql(socket) => {
                for _ in 0..count {
                    self.check(output(self.sql(socket).args(["field", "-e", STATEMENTS])));
                }
            }
        }
    }

    #[track_caller]
    fn check(&self, answer: String) {
        assert!(!answer.is_empty(), "an empty answer");
        let mut first = self.answer.lock().expect("no other request failed");
        let first = first.get_or_insert_with(|| answer.clone());
        assert_eq!(*first, answer, "another answer than before");
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        // `Running` ends a server by SIGQUIT, at which some runtimes only print the stacks of their threads, so kill it. An error means
        // that the server has ended already.
        let _ = self.running.child.kill();
    }
}
