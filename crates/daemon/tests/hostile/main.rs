//! Attacks on the daemon by clients without any rights. The daemon must survive, limit its memory and serve other clients.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod raw;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ingraft_testing::{Daemon, Until, exposed, open_directory, scaled};
use ingraft_wire::v1;
use ingraft_wire::v1::daemon_client::DaemonClient;
use ingraft_wire::v1::metrics_client::MetricsClient;
use raw::*;
use tonic::transport::Endpoint;

const SECRET: &str = "0123456789abcdef-hostile";
/// Maximum memory of the daemon, in MiB.
const MEMORY_MIB: u64 = 200;
/// Longest time that another client may wait for an answer.
const SERVED_WITHIN: Duration = Duration::from_secs(1);

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const OURS: &str = "/ingraft.v1.Metrics/Check";

/// Starts a daemon that listens on a Unix socket and on the loopback interface.
fn start(directory: &Path, arguments: &[&str]) -> Daemon {
    use std::os::unix::fs::PermissionsExt;
    let token = directory.join("token");
    std::fs::write(&token, SECRET).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut all = vec!["--listen", "http://127.0.0.1:0", "--token-file", token.to_str().unwrap()];
    all.extend(arguments);
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ingraftd")), directory, all)
}

/// Reads a line of /proc/PID/status, in MiB.
fn memory(daemon: &Daemon, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("the daemon lives");
    let kib = status.lines().find_map(|l| l.strip_prefix(line)?.trim_start_matches(':').split_whitespace().next());
    kib.unwrap().parse::<u64>().unwrap() >> 10
}

/// Experience of another client while the daemon is attacked.
#[derive(Debug, Default)]
struct Bystander {
    calls: u32,
    worst: Duration,
    /// Longest delay of a sleep in the same time, which shows how much of the wait is due to the machine.
    stall: Duration,
}

/// Queries the daemon repeatedly over new connections, until `over` is set.
fn stand_by(address: String, token: bool, over: &AtomicBool) -> Bystander {
    const PAUSE: Duration = Duration::from_millis(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut seen = Bystander::default();
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        let answer = runtime.block_on(async {
            let endpoint = Endpoint::try_from(address.clone()).unwrap();
            let channel = loop {
                match endpoint.connect().await.map_err(|e| format!("{e:?}")) {
                    Ok(channel) => break channel,
                    // If the queue of a socket is full, connect fails for a client that does not block. The time until it succeeds counts.
                    Err(e) if e.contains("WouldBlock") => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(e) => return Err(e),
                }
            };
            let mut request = tonic::Request::new(v1::VersionRequest::default());
            if token {
                request.metadata_mut().insert("authorization", format!("Bearer {SECRET}").parse().unwrap());
            }
            DaemonClient::new(channel).version(request).await.map_err(|e| format!("{e:?}"))
        });
        assert!(answer.is_ok(), "{address}: {answer:?}");
        seen.worst = seen.worst.max(start.elapsed());
        seen.calls += 1;
        let start = Instant::now();
        std::thread::sleep(PAUSE);
        seen.stall = seen.stall.max(start.elapsed().saturating_sub(PAUSE));
    }
    seen
}

/// Attacks an address for some time as another user, from several threads. Meanwhile other clients make permitted calls. Then checks the
/// daemon's memory, and how long the other clients waited.
fn attack(name: &str, daemon: &Daemon, address: &str, program: &Path) {
    let over = AtomicBool::new(false);
    let loopback = daemon.addresses[1].clone();
    let unix = daemon.uri().replacen("unix:", "unix://", 1);
    let seen = std::thread::scope(|scope| {
        let _end = Until(&over);
        let asks = [scope.spawn(|| stand_by(unix, false, &over)), scope.spawn(|| stand_by(loopback, true, &over))];
        let mut attacker = Command::new(program);
        attacker.args(["--exact", "attacker", "--nocapture"]).stdout(Stdio::null());
        attacker.env("INGRAFT_ATTACK", name).env("INGRAFT_ATTACKED", address);
        if ingraft_testing::is_root() {
            attacker.uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY);
        }
        let status = attacker.status().unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(status.success(), "{name}: the attacker failed: {status}");
        asks.map(|ask| ask.join().unwrap())
    });
    let (now, most) = (memory(daemon, "VmRSS"), memory(daemon, "VmHWM"));
    println!("{name} at {address}: {now} MiB, at most {most} MiB; {seen:?}");
    assert!(most < MEMORY_MIB, "{name}: the daemon took {most} MiB");
    // If connections come faster than they can be accepted, the kernel drops the first packets of some, of any client. The clients send
    // them again after one second and after two more.
    let again = Duration::from_secs(if name == "idle" { 3 } else { 0 });
    for bystander in seen {
        assert!(bystander.worst < SERVED_WITHIN + again + 2 * bystander.stall, "{name}: {bystander:?}");
    }
}

/// This is not a test, but the program that [`attack`] runs as another user.
#[test]
fn attacker() {
    let Ok(name) = std::env::var("INGRAFT_ATTACK") else { return };
    let address = std::env::var("INGRAFT_ATTACKED").unwrap();
    let (_, each) = ATTACKS.iter().find(|(known, _)| *known == name).unwrap();
    let end = Instant::now() + Duration::from_secs(scaled(2, 75));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < end {
                    each(&address);
                }
            });
        }
    });
}

type Attack = fn(&str);
const ATTACKS: [(&str, Attack); 9] = [
    ("unfinished streams", unfinished_streams),
    ("unfinished heads", unfinished_heads),
    ("header bombs", header_bombs),
    ("continuations", continuations),
    ("windows", windows),
    ("unread answers", unread_answers),
    ("rapid reset", rapid_reset),
    ("settings and pings", settings_and_pings),
    ("idle", idle),
];

/// Makes an attack over the loopback interface, without a token, and over the Unix socket. In the long form it takes at least ten minutes
/// for each address.
fn attacked(name: &str) {
    let directory = open_directory();
    let program = exposed(&std::env::current_exe().unwrap(), directory.path());
    let daemon = start(directory.path(), &["--socket-mode", "0666", "--log", "error"]);
    if name == "unread answers" {
        define_a_long_metric(&daemon);
    }
    for address in [&daemon.addresses[1], &daemon.addresses[0]] {
        attack(name, &daemon, address, &program);
    }
    assert!(daemon.terminate().success());
}

/// Makes the list of metrics a long answer.
fn define_a_long_metric(daemon: &Daemon) {
    let rest = "units calls; aggregateOperator sum; style EventCounter; unitsType unnormalized; base is counter { }";
    let text = format!("metric long {{ name \"{}\"; {rest} }}", "x".repeat(300_000));
    let definitions = vec![v1::Source { name: "long.mdl".into(), text }];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = daemon.uri().replacen("unix:", "unix://", 1);
        let channel = Endpoint::try_from(address).unwrap().connect().await.unwrap();
        MetricsClient::new(channel).define(v1::DefineRequest { definitions }).await.unwrap();
    });
}

/// Opens streams that never end, and sends as much data on each as the daemon accepts.
fn unfinished_streams(address: &str) {
    let mut open = Vec::new();
    for path in [REFLECTION, HEALTH, WATCH, OURS, "/no/such"] {
        let Ok(mut raw) = Raw::begin(address, &[]) else { continue };
        let head = frame(HEADERS, END_HEADERS, 0, &request(path));
        for stream in (1..2000_u32).step_by(2) {
            let mut head = head.clone();
            head[5..9].copy_from_slice(&stream.to_be_bytes());
            // The frames announce a message of 4 MiB and contain all but its end.
            let begin = [&[0, 0, 0x3f, 0xff, 0xff][..], &[0; 11 << 10]].concat();
            if raw.send(&[head, frame(DATA, 0, stream, &begin)].concat()).is_err() {
                break;
            }
        }
        let junk = frame(DATA, 0, 1, &[0; 16 << 10]);
        while raw.send(&junk).is_ok() {}
        raw.drain();
        open.push(raw);
    }
}

fn unfinished_heads(address: &str) {
    // The heads have the maximum size, and the connections stay open.
    let filler = (0..20).flat_map(|n| header(0, &format!("x-{n}"), &[b'y'; 110]));
    let head: Vec<u8> = request(REFLECTION).into_iter().chain(filler).collect();
    let mut open = Vec::new();
    for _ in 0..12 {
        let Ok(mut raw) = Raw::begin(address, &[]) else { continue };
        for stream in (1..8000).step_by(2) {
            let both = [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, 0, stream, &[0, 0, 0x3f, 0xff, 0xff])];
            if raw.send(&both.concat()).is_err() {
                break;
            }
        }
        open.push(raw);
    }
    open.iter_mut().for_each(|raw| _ = raw.drain());
}

/// Sends a small block that becomes a large list of headers (RFC 7541, section 7.3).
fn header_bombs(address: &str) {
    let Ok(mut raw) = Raw::begin(address, &[]) else { return };
    let fill = [request(REFLECTION), header(0x40, "bomb", &[b'x'; 3900])].concat();
    let bomb = [request(REFLECTION), vec![NEWEST; 12_000]].concat();
    let _ = raw.send(&frame(HEADERS, END_HEADERS, 1, &fill));
    for stream in (3..4000).step_by(2) {
        if raw.send(&frame(HEADERS, END_HEADERS, stream, &bomb)).is_err() {
            break;
        }
    }
    raw.drain();
}

fn continuations(address: &str) {
    let Ok(mut raw) = Raw::begin(address, &[]) else { return };
    let _ = raw.send(&frame(HEADERS, 0, 1, &request(REFLECTION)));
    let more = frame(CONTINUATION, 0, 1, &header(0, "more", &[b'x'; 8000]));
    for _ in 0..4000 {
        if raw.send(&more).is_err() {
            break;
        }
    }
    raw.drain();
}

fn windows(address: &str) {
    // The window is closed at first, and then opened as far as possible for all streams at once. The client does not read the answers.
    let Ok(mut raw) = Raw::begin(address, &[0, 4, 0, 0, 0, 0]) else { return };
    let list = [&[0, 0, 0, 0, 2][..], &[0x3a, 0]].concat();
    for stream in (1..600).step_by(2) {
        let both =
            [frame(HEADERS, END_HEADERS, stream, &request(REFLECTION)), frame(DATA, 0, stream, &list.repeat(200))];
        if raw.send(&both.concat()).is_err() {
            break;
        }
    }
    let _ = raw.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    let _ = raw.send(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]));
    for stream in (1..600).step_by(2) {
        if raw.send(&frame(DATA, 0, stream, &list.repeat(200))).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(50));
}

/// Requests large answers and reads none. With a closed window the daemon keeps them; with a window of one byte they are on their way.
fn unread_answers(address: &str) {
    let mut open = Vec::new();
    for window in [0, 1] {
        let Ok(mut raw) = Raw::begin(address, &[0, 4, 0, 0, 0, window]) else { continue };
        for stream in (1..500).step_by(2) {
            let both = [
                frame(HEADERS, END_HEADERS, stream, &request("/ingraft.v1.Metrics/List")),
                frame(DATA, END_STREAM, stream, &[0, 0, 0, 0, 0]),
            ];
            if raw.send(&both.concat()).is_err() {
                break;
            }
        }
        open.push(raw);
    }
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        open.iter_mut().for_each(|raw| _ = raw.drain());
    }
}

fn rapid_reset(address: &str) {
    let Ok(mut raw) = Raw::begin(address, &[]) else { return };
    let head = request(REFLECTION);
    for stream in (1..200_000).step_by(2) {
        let both = [frame(HEADERS, END_HEADERS, stream, &head), frame(RESET, 0, stream, &[0, 0, 0, 8])].concat();
        if raw.send(&both).is_err() {
            break;
        }
    }
    raw.drain();
}

fn settings_and_pings(address: &str) {
    for flood in [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]), frame(PING, 0, 0, &[7; 8])] {
        let Ok(mut raw) = Raw::begin(address, &[]) else { return };
        let many = flood.repeat(1000);
        for _ in 0..200 {
            if raw.send(&many).is_err() {
                break;
            }
        }
    }
}

/// Opens connections that send nothing, or one byte at a time.
fn idle(address: &str) {
    let mut open: Vec<Raw> = Vec::new();
    for n in 0..500 {
        let connected = if n % 2 == 0 { Raw::connect(address) } else { Raw::begin(address, &[]) };
        open.extend(connected.ok());
    }
    for byte in PREFACE {
        open.iter_mut().step_by(2).for_each(|raw| _ = raw.send(&[*byte]));
    }
}

#[test]
fn streams_that_never_end() {
    attacked("unfinished streams");
}

#[test]
fn heads_that_never_end() {
    attacked("unfinished heads");
}

#[test]
fn headers_that_explode() {
    attacked("header bombs");
}

#[test]
fn floods_of_continuations() {
    attacked("continuations");
}

#[test]
fn windows_that_open_and_shut() {
    attacked("windows");
}

#[test]
fn answers_that_nobody_reads() {
    attacked("unread answers");
}

#[test]
fn streams_that_are_reset_at_once() {
    attacked("rapid reset");
}

#[test]
fn floods_of_settings_and_pings() {
    attacked("settings and pings");
}

#[test]
fn connections_that_idle() {
    attacked("idle");
}

/// A connection that sends nothing or too little is closed after some time.
#[test]
fn slow_clients_are_not_waited_for() {
    let directory = open_directory();
    let daemon = start(directory.path(), &[]);
    let bound = Duration::from_secs(60);
    std::thread::scope(|scope| {
        for address in &daemon.addresses {
            scope.spawn(move || {
                let mut silent = Raw::connect(address).unwrap();
                assert!(silent.closes_within(bound), "{address}: a connection without a preface");
            });
            scope.spawn(move || {
                let mut idle = Raw::begin(address, &[]).unwrap();
                assert!(idle.closes_within(bound), "{address}: a connection without a request");
            });
            scope.spawn(move || {
                let mut slow = Raw::begin(address, &[]).unwrap();
                let half = [frame(HEADERS, END_HEADERS, 1, &request(HEALTH)), frame(DATA, 0, 1, &[0, 0, 0, 0, 9, 1])];
                slow.send(&half.concat()).unwrap();
                let start = Instant::now();
                // The status of the answer is in its headers.
                while slow.headers_of(1).is_none() {
                    assert!(start.elapsed() < bound, "{address}: a request that does not end");
                }
            });
        }
    });
}
