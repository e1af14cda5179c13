//! Tests that a generic client, which knows only reflection, can use all services, and that the daemon checks its callers.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{
    Mutatee, NOBODY, build_directory, exposed, is_root, open_directory, program, sibling, skip, source_directory,
};
use serde_json::Value;

use crate::{client, daemon};

/// Returns a Python that has grpcio with reflection, made once in the build directory. The error says why there is none.
fn python() -> Result<PathBuf, String> {
    let base = build_directory().join("python");
    let python = base.join("bin/python");
    let usable = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-c", "import grpc_reflection, google.rpc.status_pb2"]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if usable(&python) {
        return Ok(python);
    }
    let fresh = build_directory().join(format!("python.{}", std::process::id()));
    let run = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = said.lines().last().unwrap_or_default().to_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {last}")) }
    };
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&fresh)).and_then(|()| {
        let packages = ["grpcio", "grpcio-reflection", "protobuf", "googleapis-common-protos"];
        run(Command::new(fresh.join("bin/python")).args(["-m", "pip", "-q", "install"]).args(packages))
    });
    if let Err(why) = made {
        let _ = std::fs::remove_dir_all(&fresh);
        return Err(format!("no Python with grpcio: {why}"));
    }
    // A Python environment works only at the path where it was made. Another test may have made one meanwhile.
    let _ = std::fs::remove_file(&base);
    let _ = std::os::unix::fs::symlink(&fresh, &base);
    if usable(&python) { Ok(python) } else { Ok(fresh.join("bin/python")) }
}

/// Runs the generic client on a new target. The error says why there is no Python for it.
fn converse(address: &str, token: Option<&str>) -> Result<(), String> {
    let python = python()?;
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let mut child = Command::new(python)
        .arg(source_directory().join("tests/e2e/daemon/client.py"))
        .args([address, &target.pid_text(), "threads", "work_0"])
        .args(token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the client");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("enabled"));
    before.assert_not_in(target.pid());
    let truth = target.ask("go 3000");
    truth.assert_right();
    writeln!(child.stdin.take().expect("stdin is piped"), "{}", truth.tally("work_0")).expect("tell the client");
    let seen: Value = serde_json::from_str(&lines.next().expect("what the client saw")).expect("a line of JSON");
    assert!(child.wait().expect("wait for the client").success());
    target::assert_clean(target.pid(), &before);
    let services: Vec<&str> = seen["services"].as_array().expect("services").iter().filter_map(Value::as_str).collect();
    for service in ["Processes", "Code", "Metrics", "Profiles", "Instrumentation", "Daemon"] {
        assert!(services.contains(&format!("ingraft.v1.{service}").as_str()), "{services:?}");
    }
    let contains = |key: &str, pid: i32| seen[key].as_array().is_some_and(|list| list.iter().any(|item| *item == pid));
    assert_eq!(seen["health"], 1, "{seen}");
    assert!(contains("processes", target.pid()), "{seen}");
    assert!(seen["metrics"].as_array().is_some_and(|list| list.iter().any(|metric| metric == "calls")), "{seen}");
    assert_eq!(seen["error"]["code"], "NOT_FOUND", "{seen}");
    assert!(seen["error"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{seen}");
    assert_eq!(seen["pairs"], serde_json::json!(["work_0"]));
    assert_eq!(seen["first"], serde_json::json!([0]));
    assert_eq!(seen["streamed"], truth.tally("work_0"));
    assert_eq!(seen["last"], truth.tally("work_0"));
    assert_eq!(seen["text_restored"], true);
    assert!(contains("inserted", target.pid()), "{seen}");
    assert_eq!(seen["profiled"], serde_json::json!(["work_0"]));
    assert_eq!(seen["totals"], serde_json::json!({"functions": 1, "inexact": ""}));
    let idle: Vec<_> = target::threads(target.pid()).into_iter().map(|tid| serde_json::json!([tid, 0])).collect();
    assert_eq!(seen["threads"].as_array(), Some(&idle), "{seen}");
    Ok(())
}

#[test]
fn a_python_client_with_reflection_over_the_socket() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    if let Err(why) = converse(&daemon.uri(), None) {
        skip!("{why}");
    }
    assert!(daemon.terminate().success());
}

#[test]
fn a_python_client_with_reflection_over_the_loopback() {
    let directory = open_directory();
    let token = directory.path().join("token");
    std::fs::write(&token, "a-long-enough-secret-for-a-test-0123456789\n").expect("a token");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a private token");
    let path = token.to_str().expect("a path");
    let daemon = daemon(directory.path(), &["--listen", "http://127.0.0.1:0", "--token-file", path]);
    let address = daemon.addresses.iter().find_map(|uri| uri.strip_prefix("http://")).expect("a loopback address");
    if let Err(why) = converse(address, Some("a-long-enough-secret-for-a-test-0123456789")) {
        skip!("{why}");
    }
    assert!(daemon.terminate().success());
}

#[test]
fn a_token_is_needed_and_must_be_right() {
    let directory = open_directory();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a token");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a private token");
        path
    };
    let right = write("right", "a-long-enough-secret-for-a-test-0123456789\n");
    let wrong = write("wrong", "another-secret-for-a-test-0123456789-01234\n");
    let daemon =
        daemon(directory.path(), &["--listen", "http://127.0.0.1:0", "--token-file", right.to_str().expect("a path")]);
    let uri = daemon.addresses.iter().find(|uri| uri.starts_with("http://")).expect("a loopback address").clone();
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let with = |token: Option<&Path>| ingraft_testing::Tool::new(sibling("ingraft")).with_daemon(&uri, token);
    let arguments = ["count", "-p", &target.pid_text(), "work_0"];
    let _ = with(None).run(arguments).assert_error(4, &["token"]);
    let _ = with(Some(&wrong)).run(arguments).assert_error(4, &["token"]);
    target::assert_clean(target.pid(), &before);
    let session = with(Some(&right)).count(target.pid(), &["work_0"]);
    target.ask("solo 9");
    assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("work_0"), 9);
}

#[test]
fn the_loopback_without_a_token_is_refused() {
    let directory = open_directory();
    let output = Command::new(env!("CARGO_BIN_EXE_ingraftd"))
        .args(["--listen", "http://127.0.0.1:0", "--state-dir"])
        .arg(directory.path().join("state"))
        .output()
        .expect("run ingraftd");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("token"));
}

#[test]
fn the_socket_is_private_and_callers_get_only_their_own() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    if !is_root() {
        skip!("only root can call as somebody else");
    }
    let directory = open_directory();
    let private = daemon(directory.path(), &[]);
    let mode = std::fs::metadata(private.socket()).expect("the socket").mode() & 0o777;
    assert_eq!(mode, 0o600);
    let ours = Mutatee::start("threads", &["1"]);
    let place = open_directory();
    let mut command = Command::new(exposed(&program("threads").expect("gcc"), place.path()));
    let mut theirs = Mutatee::spawn(command.arg("1").uid(NOBODY).gid(NOBODY));
    let stranger = || ingraft_testing::Tool::unprivileged(sibling("ingraft"));
    let outcome = stranger().with_daemon(&private.uri(), None).run(["count", "-p", &theirs.pid_text(), "work_0"]);
    assert_eq!(outcome.status.code(), Some(4), "the socket is not theirs: {outcome:#?}");
    assert!(private.terminate().success());
    let open = open_directory();
    let shared = daemon(open.path(), &["--socket-mode", "666"]);
    let outcome = stranger().with_daemon(&shared.uri(), None).run(["count", "-p", &ours.pid_text(), "work_0"]);
    let _ = outcome.assert_error(4, &[]);
    let session = stranger().with_daemon(&shared.uri(), None).count(theirs.pid(), &["work_0"]);
    theirs.ask("solo 7");
    assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("work_0"), 7);
    // Another user may not remove what root inserted.
    let session = client(&shared).count(ours.pid(), &["work_0"]);
    let outcome = stranger().with_daemon(&shared.uri(), None).run(["detach", "-p", &ours.pid_text()]);
    assert_eq!(outcome.status.code(), Some(4), "{outcome:#?}");
    let _ = session.interrupt().assert_code(0).assert_removed();
}

#[test]
fn a_configuration_is_checked() {
    let directory = open_directory();
    let file = directory.path().join("ingraftd.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("a configuration");
        let output = Command::new(env!("CARGO_BIN_EXE_ingraftd"))
            .arg("--config")
            .arg(&file)
            .args(["--check-config", "--state-dir"])
            .arg(directory.path())
            .output()
            .expect("run ingraftd");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let listen = format!("listen = [\"unix:{}/socket\"]\n", directory.path().display());
    assert_eq!(check(&listen).0, Some(0), "{:?}", check(&listen));
    let (code, said) = check("no_such_key = 1\n");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no_such_key"), "{said}");
    assert_eq!(check("listen = [\"gopher://nowhere\"]\n").0, Some(2));
}
