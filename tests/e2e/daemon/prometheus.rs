//! Tests of the page for Prometheus: its values are those of `ingraft read`, its callers are checked, and Prometheus itself reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ingraft_testing::server::free_port;
use ingraft_testing::{BOUND, Daemon, Mutatee, Tool, have, open_directory, skip, source_directory, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{client, daemon};

const SECRET: &str = "0123456789abcdef-metrics";

/// Writes a token file, and returns its path.
fn token(directory: &Path, secret: &str) -> PathBuf {
    let path = directory.join("token");
    std::fs::write(&path, secret).expect("write the token");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
    path
}

/// Starts a daemon that serves metrics for clients with the token.
fn serving(directory: &Path, more: &[&str]) -> Daemon {
    let token = token(directory, SECRET);
    let own = ["--metrics", "127.0.0.1:0", "--token-file", token.to_str().expect("a path")];
    daemon(directory, &[&own, more].concat())
}

/// Address of the page, without scheme and path.
fn address(daemon: &Daemon) -> &str {
    let uri = daemon.addresses.last().expect("an address");
    uri.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("the page's address")
}

/// Sends a request, and returns the head and the body of the answer.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    let mut answer = String::new();
    // A server that refuses a request may close the connection before it has read all of it.
    let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    if let Err(error) = asked {
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}: {answer}");
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), body.to_owned())
}

fn get(address: &str, path: &str, headers: &str) -> (String, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"))
}

/// Returns the page.
fn page(daemon: &Daemon) -> String {
    let (head, body) = get(address(daemon), "/metrics", &format!("Authorization: Bearer {SECRET}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{body}");
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
    body
}

/// A series of a page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ExportedSeries {
    name: String,
    labels: BTreeMap<String, String>,
    value: String,
}

impl ExportedSeries {
    fn parse(line: &str) -> ExportedSeries {
        let end = line.find(['{', ' ']).expect("a value");
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        while let Some(inner) = rest.strip_prefix(['{', ',']) {
            let (label, quoted) = inner.split_once("=\"").expect("a label");
            let (mut text, mut characters) = (String::new(), quoted.char_indices());
            let end = loop {
                match characters.next().expect("the end of a label") {
                    (at, '"') => break at + 1,
                    (_, '\\') => match characters.next().expect("an escaped character").1 {
                        'n' => text.push('\n'),
                        c => text.push(c),
                    },
                    (_, c) => text.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), text).is_none(), "{line}");
            rest = &quoted[end..];
        }
        let value = rest.trim_start_matches('}').strip_prefix(' ').expect("a value").to_owned();
        ExportedSeries { name: name.to_owned(), labels, value }
    }

    fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Returns all series of a page. Panics if two have the same name and labels, or if one is outside of its family.
fn all(page: &str) -> Vec<ExportedSeries> {
    let (mut family, mut families) = (String::new(), BTreeSet::new());
    let mut found: Vec<ExportedSeries> = Vec::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap_or_default().to_owned();
            assert!(families.insert(family.clone()), "{family} comes twice");
        } else if !line.starts_with('#') {
            let series = ExportedSeries::parse(line);
            assert!(series.name.starts_with(&family), "{line} outside of its family");
            found.push(series);
        }
    }
    let unique: BTreeSet<_> = found.iter().map(|series| (&series.name, &series.labels)).collect();
    assert_eq!(unique.len(), found.len(), "a series comes twice");
    found
}

/// Returns the only value of the series with this name and these labels.
fn value(all: &[ExportedSeries], name: &str, labels: &[(&str, &str)]) -> String {
    let is = |s: &&ExportedSeries| s.name == name && labels.iter().all(|(label, text)| s.label(label) == *text);
    let found: Vec<_> = all.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0].value.clone()
}

/// Writes nanoseconds as seconds, by another way than the daemon does.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Measures the mutatee `calls` in several ways, and leaves all measurements in.
fn leave_in(tool: &Tool, target: &Mutatee) {
    let pid = target.pid_text();
    let mdl = source_directory().join("tests/e2e/mdl/exported.mdl");
    let mdl = mdl.to_str().expect("a path");
    for arguments in [
        &["count", "direct", "Square::*", "twice", "thrice"][..],
        &["latency", "maker", "sum_of_eight"],
        &[
            "watch",
            "-I",
            mdl,
            "byArgument@/Code/calls/direct",
            "argument_sizes@/Code/calls/direct",
            "active_threads",
            "pause_time",
            "wall_time@/Code/calls/maker",
        ],
    ] {
        let (command, rest) = arguments.split_first().expect("a command");
        let own = [command, "-p", &pid, "--for", "10ms", "--no-remove", "--max-overhead", "10000"];
        let _ = tool.run([&own, rest].concat()).assert_code(0);
    }
}

/// Returns the expected series for the buckets of a histogram, with their increments, as texts.
fn increments(of: &Value, text: impl Fn(u64) -> String) -> Vec<(String, u64)> {
    let number = |value: &Value| value.as_u64().expect("a number");
    // A histogram without a value has no buckets.
    let buckets = of["buckets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut out: Vec<(String, u64)> = Vec::new();
    for bucket in buckets {
        let (bound, count) = (text(number(&bucket[1]) - 1), number(&bucket[2]));
        // Buckets of ticks may end in the same nanosecond.
        match out.last_mut().filter(|(before, _)| *before == bound) {
            Some((_, before)) => *before += count,
            None => out.push((bound, count)),
        }
    }
    out
}

/// Compares the buckets of a histogram with those of the page: each has the upper bound and the number of values of one of ours, or no
/// value. Removes the compared series.
fn compare(series: &mut Vec<ExportedSeries>, family: &str, labels: &[(&str, &str)], of: &[(String, u64)], sum: &str) {
    let is = |s: &ExportedSeries| labels.iter().all(|(label, text)| s.label(label) == *text);
    let is_bucket = |s: &ExportedSeries| s.name == format!("{family}_bucket") && is(s);
    let buckets: Vec<_> = series.iter().filter(|s| is_bucket(s)).collect();
    let (mut before, mut found) = (0, Vec::new());
    for bucket in &buckets {
        let below: u64 = bucket.value.parse().expect("a number");
        if below > before {
            found.push((bucket.label("le").to_owned(), below - before));
        }
        before = below;
    }
    assert_eq!(found, of, "{family} {labels:?}");
    assert_eq!(buckets.last().expect("a bucket").label("le"), "+Inf");
    let count: u64 = of.iter().map(|(_, count)| count).sum();
    assert_eq!(value(series, &format!("{family}_count"), labels), count.to_string());
    assert_eq!(value(series, &format!("{family}_sum"), labels), sum);
    series.retain(|s| !(s.name.starts_with(&format!("{family}_")) && is(s)));
}

/// Compares all measured values of a page with the records of `ingraft read`.
fn compare_all(page: &str, records: &[Value], pid: &str) {
    let mut left: Vec<_> = all(page).into_iter().filter(|series| series.name.starts_with("ingraft_")).collect();
    assert!(left.iter().all(|series| series.label("pid") == pid && series.label("process") == "calls"), "{page}");
    let mut measurement = String::new();
    let number = |record: &Value, key: &str| record[key].as_u64().unwrap_or_else(|| panic!("{key} of {record}"));
    let one = |left: &mut Vec<ExportedSeries>, name: &str, labels: &[(&str, &str)], expected: &str| {
        assert_eq!(value(left, name, labels), expected, "{name} {labels:?}");
        left.retain(|s| !(s.name == name && labels.iter().all(|(label, text)| s.label(label) == *text)));
    };
    for record in records {
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let id = measurement.clone();
        let function = [("measurement", id.as_str()), ("module", text("module")), ("function", text("function"))];
        let focus = [("measurement", id.as_str()), ("focus", text("focus"))];
        match text("type") {
            "kept" => measurement = number(record, "measurement").to_string(),
            "count" => one(&mut left, "ingraft_calls_total", &function, &number(record, "calls").to_string()),
            "latency" => {
                one(&mut left, "ingraft_calls_total", &function, &number(record, "calls").to_string());
                let sum = seconds(record["sum_ns"].as_u64().unwrap_or(0));
                compare(&mut left, "ingraft_latency_seconds", &function, &increments(record, seconds), &sum);
            }
            "sample" => match text("metric") {
                "byArgument" => {
                    for key in record["keys"].as_array().expect("keys") {
                        let labels = [&focus[..], &[("key", key["key"].as_str().expect("a key"))]].concat();
                        one(&mut left, "ingraft_by_argument_total", &labels, &number(key, "value").to_string());
                    }
                    one(&mut left, "ingraft_by_argument_other_keys", &focus, &record["others"].to_string());
                }
                "argument_sizes" => {
                    let (buckets, sum) = (increments(record, |n| n.to_string()), record["sum"].as_u64().unwrap_or(0));
                    compare(&mut left, "ingraft_argument_sizes_bytes", &focus, &buckets, &sum.to_string());
                }
                "active_threads" => one(&mut left, "ingraft_active_threads", &focus, &record["value"].to_string()),
                metric @ ("pause_time" | "wall_time") => {
                    let ns = number(record, "value");
                    one(&mut left, &format!("ingraft_{metric}_seconds_total"), &focus, &seconds(ns));
                }
                other => panic!("not expected: {other}"),
            },
            _ => {}
        }
    }
    assert_eq!(left, [], "series that no record has");
}

/// Returns the records of `ingraft read`.
fn records(tool: &Tool, target: &Mutatee) -> Vec<Value> {
    let outcome = tool.run(["read", &target.pid_text()]).assert_code(0);
    let lines = ["kept", "count", "latency", "sample"];
    let all = outcome.objects.iter().filter(|o| lines.iter().any(|kind| o["type"] == *kind));
    all.cloned().collect()
}

#[test]
fn the_page_has_the_values_of_read() {
    let directory = open_directory();
    let daemon = serving(directory.path(), &[]);
    let mut target = Mutatee::start("calls", &[]);
    let tool = client(&daemon);
    assert_eq!(value(&all(&page(&daemon)), "ingraftd_series", &[]), "0");
    leave_in(&tool, &target);
    let mut calls = 0;
    // In the last round, there are more keys than an answer lists, and enough times for neighbouring buckets.
    for rounds in [0, 300, 2000] {
        target.ask(&format!("make {rounds}")).assert_right();
        target.ask(&format!("arguments {}", 10 * rounds)).assert_right();
        calls += rounds;
        let found = page(&daemon);
        compare_all(&found, &records(&tool, &target), &target.pid_text());
        let all = all(&found);
        let direct = [("function", "direct"), ("module", "calls")];
        assert_eq!(value(&all, "ingraft_calls_total", &direct), calls.to_string());
        let of_keys = ["ingraft_by_argument_total", "ingraft_by_argument_other_keys"];
        let keys = all.iter().filter(|series| of_keys.contains(&series.name.as_str()));
        let keyed: u64 = keys.map(|series| series.value.parse::<u64>().expect("a number")).sum();
        assert_eq!(keyed, calls, "every call has a key");
        let series = all.iter().filter(|series| series.name.starts_with("ingraft_")).count();
        assert_eq!(value(&all, "ingraftd_series", &[]), series.to_string());
        assert_eq!(value(&all, "ingraftd_series_left_out", &[("reason", "limit"), ("family", "")]), "0");
        let of_target = [("pid", target.pid_text())];
        let of_target = [(of_target[0].0, of_target[0].1.as_str())];
        assert_eq!(value(&all, "ingraftd_target_kept_measurements", &of_target), "3");
        assert_eq!(value(&all, "ingraftd_target_up", &of_target), "1");
        let points = tool.inserted(target.pid())[0]["points"].to_string();
        assert_eq!(value(&all, "ingraftd_target_points", &of_target), points);
        let float = |name: &str| value(&all, name, &of_target).parse::<f64>().expect("a number");
        let (longest, sum) =
            (float("ingraftd_target_longest_hold_seconds"), float("ingraftd_target_held_seconds_total"));
        assert!(longest > 0.0 && longest <= sum, "{longest} {sum}");
        assert!(float("ingraftd_target_observed_cost_ratio") >= 0.0);
    }
    // C++ names, and documentation with quotes and a backslash.
    let found = page(&daemon);
    assert!(found.contains("function=\"Square::area(long)\""), "{found}");
    assert!(found.contains("# HELP ingraft_by_argument_total Calls by the \\\\ first \"argument\".\n"), "{found}");
    // The next daemon has the same series, and a refused request is counted. It measures the frequency of the clock anew, so the bounds of times
    // may differ in the last digit.
    let names = |page: &str| {
        let measured = all(page).into_iter().filter(|series| series.name.starts_with("ingraft_"));
        let named = measured.map(|mut series| {
            if series.name == "ingraft_latency_seconds_bucket" {
                series.labels.remove("le");
            }
            (series.name, series.labels)
        });
        named.collect::<BTreeSet<_>>()
    };
    daemon.kill();
    let daemon = serving(directory.path(), &[]);
    let tool = client(&daemon);
    let again = page(&daemon);
    let codeless = ["ingraft_active_threads", "ingraft_pause_time_seconds_total"];
    let before: BTreeSet<_> =
        names(&found).into_iter().filter(|(name, _)| !codeless.contains(&name.as_str())).collect();
    let differ: Vec<_> = names(&again).symmetric_difference(&before).cloned().collect();
    assert_eq!(differ, []);
    let _ = tool.run(["count", "-p", &target.pid_text(), "--for", "1ms", "no_such_function"]).assert_code(3);
    let refused = value(&all(&page(&daemon)), "ingraftd_refused_requests_total", &[("reason", "no_such_function")]);
    assert_eq!(refused, "1");
    tool.detach(target.pid());
    assert_eq!(value(&all(&page(&daemon)), "ingraftd_series", &[]), "0");
    assert!(daemon.terminate().success());
}

#[test]
fn series_beyond_the_limit_are_told() {
    let directory = open_directory();
    let daemon = serving(directory.path(), &["--metrics-max-series", "3"]);
    let target = Mutatee::start("calls", &[]);
    let tool = client(&daemon);
    leave_in(&tool, &target);
    let all = all(&page(&daemon));
    let number = |name: &str, labels: &[(&str, &str)]| value(&all, name, labels).parse::<usize>().expect("a number");
    assert_eq!((number("ingraftd_series", &[]), number("ingraftd_series_limit", &[])), (3, 3));
    assert_eq!(all.iter().filter(|series| series.name.starts_with("ingraft_")).count(), 3);
    let counted = records(&tool, &target).iter().filter(|r| r["type"] == "count" || r["type"] == "latency").count();
    let left_out = |family| number("ingraftd_series_left_out", &[("reason", "limit"), ("family", family)]);
    assert_eq!(left_out("ingraft_calls_total"), counted - 3);
    assert!(left_out("ingraft_latency_seconds") >= 2 * 3);
    assert_eq!(left_out(""), 0, "all families are told");
    tool.detach(target.pid());
}

#[test]
fn the_last_values_of_an_ended_target_stay() {
    let directory = open_directory();
    let daemon = serving(directory.path(), &[]);
    let mut target = Mutatee::start("calls", &[]);
    let tool = client(&daemon);
    let pid = target.pid_text();
    let _ = tool.run(["count", "-p", &pid, "--for", "10ms", "--no-remove", "direct"]).assert_code(0);
    let of_target = [("pid", pid.as_str()), ("process", "calls")];
    assert_eq!(value(&all(&page(&daemon)), "ingraftd_target_up", &of_target), "1");
    target.ask("make 70").assert_right();
    assert!(target.end().success());
    wait_until("the end is told", || value(&all(&page(&daemon)), "ingraftd_target_up", &of_target) == "0");
    assert_eq!(value(&all(&page(&daemon)), "ingraft_calls_total", &of_target), "70");
    assert!(daemon.terminate().success());
}

#[test]
fn only_clients_with_the_token_read_the_page() {
    let directory = open_directory();
    let daemon = serving(directory.path(), &[]);
    let at = address(&daemon);
    let refused = |headers: &str| {
        let (head, body) = get(at, "/metrics", headers);
        assert!(
            head.starts_with("HTTP/1.1 401 ") && head.to_lowercase().contains("www-authenticate: bearer"),
            "{head}"
        );
        assert!(body.contains("Authorization: Bearer TOKEN") && !body.contains("ingraft_"), "{body}");
    };
    refused("");
    refused("Authorization: Bearer wrong-wrong-wrong-wrong\r\n");
    refused(&format!("Authorization: Basic {SECRET}\r\n"));
    let refusals = |reason| value(&all(&page(&daemon)), "ingraftd_refused_requests_total", &[("reason", reason)]);
    assert_eq!((refusals("token_missing").as_str(), refusals("token_wrong").as_str()), ("1", "2"));
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    assert!(get(at, "/", &bearer).0.starts_with("HTTP/1.1 404 "));
    let (head, body) = ask(at, &format!("HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    let (head, _) = ask(at, &format!("POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n"));
    assert!(head.starts_with("HTTP/1.1 405 ") && head.to_lowercase().contains("allow: get, head"), "{head}");

    // A changed token takes effect at SIGHUP.
    let new = "another-secret-of-metrics";
    token(directory.path(), new);
    kill(Pid::from_raw(daemon.pid()), Signal::SIGHUP).expect("signal the daemon");
    daemon.logged(&["the configuration was read again"]);
    refused(&bearer);
    assert!(get(at, "/metrics", &format!("Authorization: Bearer {new}\r\n")).0.starts_with("HTTP/1.1 200 "));
    assert!(daemon.terminate().success());
}

#[test]
fn an_open_page_needs_the_loopback() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &["--metrics", "127.0.0.1:0", "--metrics-open"]);
    let at = address(&daemon);
    assert!(get(at, "/metrics", "").0.starts_with("HTTP/1.1 200 "));
    // A web page whose name points to the loopback must not read the values.
    let (head, _) = ask(at, "GET /metrics HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let checked = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ingraftd"));
        let output = command.args(arguments).arg("--check-config").output().expect("run the daemon");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let tls = ["--tls-cert=c", "--tls-key=k", "--client-ca=a"];
    for (arguments, words) in [
        (&["--metrics=127.0.0.1:0"][..], ["needs a token", "token-file"]),
        (&["--metrics=0.0.0.0:9464", "--metrics-open"], ["needs TLS", "tls-cert"]),
        (&["--metrics=0.0.0.0:9464", "--metrics-open", tls[0], tls[1], tls[2]], ["needs the token", "leave out"]),
        (&["--metrics=9464"], ["is no address", "127.0.0.1:9464"]),
    ] {
        let (code, text) = checked(arguments);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((code, lines.len()), (Some(2), 2), "{text}");
        assert!(lines[0].contains(words[0]) && lines[1].contains(words[1]), "{text}");
    }
    assert_eq!(checked(&["--metrics=[::1]:9464", "--metrics-open"]).0, Some(0));
    assert!(daemon.terminate().success());
}

#[test]
fn other_addresses_need_tls_a_certificate_and_the_token() {
    if !have("curl") {
        skip!("curl is not installed");
    }
    let directory = open_directory();
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("write a file");
        path.to_str().expect("a path").to_owned()
    };
    let new_key = || rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new([]).expect("parameters");
    // OpenSSL takes a certificate with the name of its authority for one that has signed itself.
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(parameters, new_key()).expect("an authority");
    let own = new_key();
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("parameters");
    let signed = parameters.signed_by(&own, &authority).expect("a certificate");
    let (cert, key) = (write("cert.pem", signed.pem()), write("key.pem", own.serialize_pem()));
    let authority = write("ca.pem", authority.pem());
    let token = token(directory.path(), SECRET);
    let daemon = daemon(
        directory.path(),
        &[
            "--metrics",
            "0.0.0.0:0",
            "--token-file",
            token.to_str().expect("a path"),
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--client-ca",
            &authority,
        ],
    );
    let uri = daemon.addresses.last().expect("an address");
    let port = uri.strip_prefix("https://0.0.0.0:").and_then(|rest| rest.strip_suffix("/metrics")).expect("TLS");
    let page = format!("https://localhost:{port}/metrics");
    let bearer = format!("Authorization: Bearer {SECRET}");
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-4", "-s", "-w", "%{http_code}", "--cacert", &authority]).args(arguments).arg(&page);
        String::from_utf8(command.output().expect("run curl").stdout).expect("UTF-8")
    };
    let identity = ["--cert", &cert, "--key", &key];
    let answer = curl(&[&identity[..], &["-H", &bearer]].concat());
    assert!(answer.ends_with("200") && answer.contains("\ningraftd_series 0\n"), "{answer}");
    assert!(curl(&identity).ends_with("401"), "without the token");
    assert_eq!(curl(&["-H", &bearer]), "000", "without a certificate");
    let (head, _) = get(&format!("127.0.0.1:{port}"), "/metrics", &format!("{bearer}\r\n"));
    assert!(!head.contains("HTTP"), "without TLS: {head}");
    assert!(daemon.terminate().success());
}

#[test]
fn hostile_readers_do_no_harm() {
    let directory = open_directory();
    let daemon = serving(directory.path(), &[]);
    let at = address(&daemon);
    let serves = || drop(page(&daemon));
    // Heads that are too large, or that are none.
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(1000));
    for request in [&long, &many, "\0\x01\x02\r\n\r\n", "GET  /metrics\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (head, _) = ask(at, request);
        assert!(head.is_empty() || head.starts_with("HTTP/1.1 4"), "{head}");
        serves();
    }
    // Many connections that send nothing, or a part of a request.
    let open: Vec<TcpStream> = (0..400)
        .filter_map(|n| {
            let mut stream = TcpStream::connect(at).ok()?;
            let part: &[u8] = if n % 2 == 0 { b"GET /metrics HT" } else { b"" };
            stream.write_all(part).ok()?;
            Some(stream)
        })
        .collect();
    // The crowd is this test's own user, whose connections make room for each other: one may be turned away at first.
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    wait_until("a reader is served", || get(at, "/metrics", &bearer).0.starts_with("HTTP/1.1 200 "));
    // The daemon ends a connection that does not send its request.
    let last = open.last().expect("a connection");
    last.set_read_timeout(Some(BOUND)).expect("a bound");
    let mut rest = Vec::new();
    let ended = Read::read_to_end(&mut { last }, &mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    drop(open);
    wait_until("a reader is served", || get(at, "/metrics", &bearer).0.starts_with("HTTP/1.1 200 "));
    assert!(daemon.terminate().success());
}

/// A running Prometheus. Dropping it ends it.
struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    fn start(directory: &Path, of: &Daemon) -> Prometheus {
        let address = format!("127.0.0.1:{}", free_port());
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\nscrape_configs:\n- job_name: ingraft\n  authorization: \
             {{credentials_file: {}}}\n  static_configs: [{{targets: ['{}']}}]\n",
            directory.join("token").display(),
            self::address(of)
        );
        let file = directory.join("prometheus.yml");
        std::fs::write(&file, config).expect("write the configuration");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("prometheus").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start prometheus");
        let prometheus = Prometheus { child, address };
        wait_until("prometheus listens", || TcpStream::connect(&prometheus.address).is_ok());
        wait_until("prometheus is ready", || get(&prometheus.address, "/-/ready", "").0.starts_with("HTTP/1.1 200 "));
        prometheus
    }

    /// Returns the answer to a query: the labels and the value of each series.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (head, body) = ask(
            &self.address,
            &format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address),
        );
        assert!(head.contains(" 200 "), "{head}\n{body}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        let found = answer["data"]["result"].as_array().expect("series").iter();
        found
            .map(|series| {
                let value = series["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number");
                (series["metric"].clone(), value)
            })
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn prometheus_reads_the_page() {
    if !have("prometheus") || !have("promtool") {
        skip!("prometheus is not installed");
    }
    let directory = open_directory();
    let daemon = serving(directory.path(), &[]);
    let mut target = Mutatee::start("calls", &[]);
    let tool = client(&daemon);
    leave_in(&tool, &target);
    let _ = get(address(&daemon), "/metrics", "");
    target.ask("make 400").assert_right();
    target.ask("arguments 300").assert_right();

    let mut lint = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    lint.stdin.take().expect("a pipe").write_all(page(&daemon).as_bytes()).expect("write the page");
    let linted = lint.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&linted.stdout).into_owned() + &String::from_utf8_lossy(&linted.stderr);
    assert!(linted.status.success() && said.is_empty(), "{said}");

    let prometheus = Prometheus::start(directory.path(), &daemon);
    wait_until("prometheus has read the page", || !prometheus.query("ingraft_calls_total").is_empty());
    assert!(prometheus.query("up").iter().all(|(_, up)| *up == 1.0));
    let records = records(&tool, &target);
    let counted = records.iter().find(|r| r["type"] == "count" && r["function"] == "direct").expect("a count");
    let calls = counted["calls"].as_u64().expect("a number");
    assert_eq!(calls, 400);
    let number = |query: &str| match prometheus.query(query).as_slice() {
        [(_, value)] => *value,
        other => panic!("{query}: {other:?}"),
    };
    assert_eq!(number("ingraft_calls_total{function=\"direct\"}"), 400.0);
    assert_eq!(number("sum(ingraft_by_argument_total)"), 400.0);
    assert_eq!(number("ingraft_calls_total{function=\"Square::area(long)\"}"), {
        let area = records.iter().find(|r| r["function"] == "Square::area(long)").expect("a count");
        area["calls"].as_u64().expect("a number") as f64
    });
    let latency = records.iter().find(|r| r["type"] == "latency" && r["function"] == "sum_of_eight").expect("times");
    let of = "{function=\"sum_of_eight\"}";
    assert_eq!(number(&format!("ingraft_latency_seconds_count{of}")), latency["timed"].as_u64().expect("timed") as f64);
    let sum = latency["sum_ns"].as_u64().expect("a sum");
    assert_eq!(number(&format!("ingraft_latency_seconds_sum{of}")), seconds(sum).parse::<f64>().expect("a number"));
    let mut below = 0;
    let buckets = prometheus.query(&format!("ingraft_latency_seconds_bucket{of}"));
    let bound = |metric: &Value| metric["le"].as_str().and_then(|le| le.parse::<f64>().ok());
    for (end, count) in increments(latency, seconds) {
        below += count;
        let end: f64 = end.parse().expect("a number");
        let found = buckets.iter().find(|(metric, _)| bound(metric) == Some(end));
        assert_eq!(found.map(|(_, value)| *value), Some(below as f64), "up to {end}: {buckets:?}");
    }
    // A quantile lies in the bucket in which the exact one lies.
    let median = number(&format!("histogram_quantile(0.5, ingraft_latency_seconds_bucket{of})")) * 1e9;
    let exact = latency["p50_ns"].as_u64().expect("a median");
    let buckets = latency["buckets"].as_array().expect("buckets").iter();
    let bounds = buckets.map(|b| (b[0].as_u64().expect("a number"), b[1].as_u64().expect("a number")));
    let (first, end) = bounds.into_iter().find(|(first, end)| (*first..*end).contains(&exact)).expect("its bucket");
    assert!(median > first as f64 - 1.5 && median < end as f64 + 1.5, "{median} and {exact}: {first} to {end}");
    drop(prometheus);
    tool.detach(target.pid());
    assert!(daemon.terminate().success());
}
