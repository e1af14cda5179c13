//! Timers and flags are inserted and removed in many rounds, in programs that end their calls in every possible way, while a count stays.
//! The programs compute correctly, the count is exact, and nothing grows.

use std::path::Path;
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Daemon, Mutatee, Tool, open_directory, program, scaled, sibling, skip, source_directory};

/// Time for which each of the programs runs.
fn long() -> Duration {
    Duration::from_secs(scaled(4, 600))
}

/// A program and its measurements.
struct Run<'a> {
    target: Mutatee,
    /// Commands that the target repeats. The last answer has the tallies of `counted`.
    commands: &'a [&'a str],
    /// Functions that one measurement counts all the time.
    counted: &'a [&'a str],
    /// Measurements that are inserted and removed in each round, as `METRIC@FOCUS`.
    guests: &'a [&'a str],
    /// Amount in KiB by which the target's own heap grows and shrinks.
    heap: u64,
    /// Whether dead signal frames may lie beside the target's stacks.
    dead_frames: bool,
}

/// Longest time until the target overwrites dead signal frames.
const DEAD_FRAMES: Duration = Duration::from_secs(20);

impl Run<'_> {
    fn go(mut self) {
        let directory = open_directory();
        let daemon = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
        let tool: Tool = daemon.client(Path::new(env!("CARGO_BIN_EXE_ingraft")));
        let pid = self.target.pid();
        let (before, begin) = (Text::of(pid), Instant::now());
        let mdl = |name: &str| source_directory().join("tests/e2e/mdl").join(name).to_str().expect("a path").to_owned();
        let (inside, arrivals) = (mdl("inside.mdl"), mdl("arrivals.mdl"));
        let count = tool.count(pid, self.counted);
        let (mut size, mut rounds) = (None, 0);
        while begin.elapsed() < long() || rounds < 4 {
            for command in self.commands {
                self.target.tell(command);
                let text = self.target.pid_text();
                let files = ["-I", &inside, "-I", &arrivals];
                let fixed = ["watch", "-p", &text, "--max-overhead", "10000", "--interval", "20ms"];
                let mut guest = tool.start(fixed.iter().chain(&files).chain(self.guests));
                guest.wait_for("changed");
                guest.wait_for("sample");
                assert_eq!(target::tracer(pid), 0, "untraced while it measures");
                let _ = guest.interrupt().assert_code(0);
                self.target.reply().assert_right();
            }
            rounds += 1;
            if rounds == 3 {
                size = Some(Size::of(pid));
            }
        }
        let last = Size::of(pid);
        let truth = self.target.ask(self.commands[self.commands.len() - 1]);
        truth.assert_right();
        let outcome = count.interrupt().assert_code(0).assert_removed();
        for function in self.counted {
            let name = function.rsplit(':').next().unwrap_or(function);
            assert_eq!(outcome.calls(name), truth.tally(name), "{name} after {rounds} rounds");
        }
        // A dead signal frame of another thread of Go looks like a saved context beside a stack. It keeps an arena mapped, although
        // nothing leads
        // to the arena, until the next removal that finds the frame gone. If that thread gets no other signal, the arena stays for ever.
        let begin = Instant::now();
        while target::arenas(pid) > 0 && begin.elapsed() < DEAD_FRAMES {
            self.target.ask(self.commands[0]).assert_right();
            let _ = tool.run(["detach", "-p", &self.target.pid_text()]);
        }
        if self.dead_frames && target::arenas(pid) == 1 {
            before.assert_in(pid);
            assert_eq!(target::tracer(pid), 0, "nobody traces it");
            assert!(target::keeps_context_in_arena(pid), "an arena is left, and no signal frame keeps it");
            println!("a dead signal frame keeps an arena");
        } else {
            target::assert_clean(pid, &before);
        }
        let first = size.expect("three rounds");
        assert!(last.maps <= first.maps + 8, "mappings after {rounds} rounds: {first:?} grew to {last:?}");
        assert!(last.files <= first.files, "files: {first:?} grew to {last:?}");
        assert!(last.resident <= first.resident + self.heap, "memory: {first:?} grew to {last:?}");
        println!("{rounds} rounds; {first:?} then {last:?}");
        assert!(daemon.terminate().success());
    }
}

#[test]
fn exceptions_jumps_and_threads_that_end() {
    let guests = [
        "wall_time@/Code/throws/outer",
        "cpu_time@/Code/throws/middle",
        "latency@/Code/throws/jump_middle",
        "latency@/Code/throws/wait_inside",
        "naps_inside@/Code/throws/outer",
    ];
    Run {
        target: Mutatee::start("throws", &[]),
        commands: &["throw 20000", "jump 20000", "cancel 200"],
        counted: &["outer", "middle", "thrower", "jumper", "wait_inside", "leave_inside"],
        guests: &guests,
        heap: 8 << 10,
        dead_frames: false,
    }
    .go();
}

#[test]
fn coroutines_on_stacks_of_their_own() {
    Run {
        target: Mutatee::start("coroutines", &["3", "8"]),
        commands: &["go 200000"],
        counted: &["work"],
        guests: &["wall_time@/Code/coroutines/work", "cpu_time@/Code/coroutines/leaf", "latency@/Code/coroutines/work"],
        heap: 8 << 10,
        dead_frames: false,
    }
    .go();
}

#[test]
fn goroutines_with_garbage_and_growing_stacks() {
    if let Err(why) = program("gopher") {
        skip!("gopher: {why}");
    }
    Run {
        target: Mutatee::start("gopher", &[]),
        commands: &["go 2000000"],
        counted: &["main.work", "main.deep"],
        guests: &["visits@/Code/gopher/main.work", "arrivals@/Code/gopher/main.deep"],
        heap: 256 << 10,
        dead_frames: true,
    }
    .go();
}
