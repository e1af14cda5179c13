//! The engine gets no processor for a while, at any moment, as on a busy or suspended machine. It must not report a thread that it has held
//! in this time as one that did not stop.

mod common;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Mutatee, kill, until, within};
use ingraft_model::{Avma, Pid};
use ingraft_process::Target;

/// Time for which the engine gets no processor: longer than its first wait for a thread.
const AWAY: Duration = Duration::from_millis(120);

/// Stops the target and borrows its only thread repeatedly, in a process of its own.
#[test]
#[ignore = "run by the test below"]
fn engine() {
    let number = |name: &str| std::env::var(name).expect(name).parse::<u64>().expect(name);
    let target = Target::open(Pid(number("TARGET") as i32)).expect("open");
    let near = Avma(number("NEAR"));
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent
        && std::fs::exists(std::env::var("GO").expect("GO")).expect("GO")
    {
        target.survey(None).expect("survey");
        let arena = target.map_arena(&(near..near.offset(4096)), 4096).expect("arena");
        target.unmap(&[arena]).expect("unmap");
    }
}

#[test]
fn threads_that_stopped_meanwhile_are_not_taken_for_sleepers() {
    let times = if std::env::var_os("INGRAFT_FULL").is_some() { 1_000 } else { 40 };
    within(Duration::from_secs(600), move || {
        let mutatee = Mutatee::start("proc_waits", &["read"]);
        let go = std::env::temp_dir().join(format!("ingraft-suspended-{}", std::process::id()));
        std::fs::write(&go, []).expect("file");
        let mut engine = Command::new(std::env::current_exe().expect("own program"))
            .args(["--exact", "engine", "--ignored", "--nocapture", "--test-threads=1"])
            .env("TARGET", mutatee.child.id().to_string())
            .env("NEAR", mutatee.address("counted").0.to_string())
            .env("GO", &go)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("engine");
        let pid = Pid(engine.id() as i32);
        let state = || {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .ok()
                .and_then(|s| s.rsplit(") ").next()?.chars().next())
        };
        for moment in 0..times {
            std::thread::sleep(Duration::from_micros(1_000 + moment * 137 % 1_000));
            kill(pid, 19);
            until("it is suspended or has ended", || matches!(state(), Some('T' | 'Z')));
            std::thread::sleep(AWAY);
            kill(pid, 18);
        }
        std::fs::remove_file(&go).expect("remove");
        let status = engine.wait().expect("wait");
        let mut said = String::new();
        engine.stderr.take().expect("stderr").read_to_string(&mut said).expect("stderr");
        assert!(status.success() && status.signal().is_none(), "{said}");
    });
}
