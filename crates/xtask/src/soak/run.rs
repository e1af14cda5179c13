//! One server under load, from its start to the report about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Outcome, Session, Tool, Until};

use super::answers::{calls_of, faults};
use super::commands::{SeededNumbers, measurement};
use super::load::{CLIENTS, ServerLoad};
use super::servers::{LoadedServer, SoakServer};

/// Longest time for which a request may wait for its answer.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Number of mappings or descriptors by which a server may grow for reasons of its own.
const GROWTH_MAX: usize = 8;

/// Smallest number of sizes in the first and the last third of a run that are compared.
const SIZES_MIN: usize = 3;

/// Report about one server.
pub struct SoakResult {
    pub failures: usize,
    /// Numbers of commands, requests and more.
    pub line: String,
}

/// A server that is being measured.
pub struct SoakRun<'a> {
    server: &'a SoakServer,
    serving: &'a dyn LoadedServer,
    load: ServerLoad,
    tool: Tool,
    numbers: SeededNumbers,
    /// Processes that are measured.
    pids: Vec<i32>,
    /// Sizes of each process after each command that has ended properly.
    sizes: Vec<Vec<Size>>,
    failures: usize,
    commands: usize,
    kills: usize,
    /// Number of commands that have changed nothing, with an honest reason.
    refused: usize,
    /// Longest wait of a request, and longest hold of a thread that a command has told.
    longest: Duration,
    held_ms: f64,
    began: Instant,
}

impl<'a> SoakRun<'a> {
    /// Prepares a run with the programs in this directory.
    pub fn new(server: &'a SoakServer, serving: &'a dyn LoadedServer, programs: &Path, seed: u64) -> SoakRun<'a> {
        SoakRun {
            server,
            serving,
            load: ServerLoad::default(),
            tool: Tool::new(programs.join("ingraft")),
            // Each server has other choices, and the same ones whether it is measured alone or not.
            numbers: SeededNumbers(
                server.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())),
            ),
            pids: serving.targets(),
            sizes: Vec::new(),
            failures: 0,
            commands: 0,
            kills: 0,
            refused: 0,
            longest: Duration::ZERO,
            held_ms: 0.0,
            began: Instant::now(),
        }
    }

    /// Measures the server for this time.
    pub fn run(mut self, time: Duration) -> SoakResult {
        // The clients share the load with this thread, so it is taken out of the run.
        let load = std::mem::take(&mut self.load);
        let serving = self.serving;
        std::thread::scope(|scope| {
            let _until = Until(&load.stop);
            for client in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || load.keep_busy(serving, client));
            }
            scope.spawn(|| load.watch_machine());
            ingraft_testing::wait_until("the server answers", || load.answered() > 20);
            while self.began.elapsed() < time && self.is_alive() {
                self.turn(&load);
            }
            self.end(&load);
        });
        let load_line = format!("{} requests, longest wait {:.0} ms", load.answered(), ms(self.longest));
        let sizes = [self.sizes.first(), self.sizes.last()].map(|sizes| sizes.map(|sizes| total(sizes)));
        let line = format!(
            "{} commands in {:.0} s, {} of them killed, {} refused, {} checks failed; {load_line}, longest hold {:.1} ms; {}",
            self.commands,
            self.began.elapsed().as_secs_f64(),
            self.kills,
            self.refused,
            self.failures,
            self.held_ms,
            if let [Some(first), Some(last)] = sizes { format!("first {first}, last {last}") } else { String::new() }
        );
        SoakResult { failures: self.failures, line }
    }

    /// Runs some commands: two measurements that end by themselves, one that is killed, and one that cleans up; sometimes one with a known number
    /// of requests.
    fn turn(&mut self, load: &ServerLoad) {
        for number in 0..3 {
            let all = self.pids.clone();
            let pids = if self.numbers.one_in(4) { all } else { vec![self.numbers.pick(&self.pids)] };
            let words = measurement(&mut self.numbers, self.server, &pids);
            if number < 2 {
                self.measure(load, &words);
                continue;
            }
            self.kill(load, &words);
            let words = if self.numbers.one_in(3) {
                ["detach".to_owned()].into_iter().chain(of_pids(&pids)).collect()
            } else {
                measurement(&mut self.numbers, self.server, &pids)
            };
            self.measure(load, &words);
        }
        if self.numbers.one_in(2) {
            self.count_exactly(load);
        }
    }

    /// Runs a command to its end, and checks its answer and the server.
    fn measure(&mut self, load: &ServerLoad, words: &[String]) {
        let before = load.answered();
        let started = Instant::now();
        let finished = catch_unwind(AssertUnwindSafe(|| self.tool.start(words).finish()));
        let Ok(outcome) = finished else { return self.fail(words, "the command did not end", None) };
        let took = started.elapsed();
        self.check_answer(words, &outcome);
        self.check_server(load, words, &outcome, before, took);
    }

    /// Starts a command, and kills it at a random moment.
    fn kill(&mut self, load: &ServerLoad, words: &[String]) {
        let before = load.answered();
        // Half of the kills come while the code is inserted, or soon after.
        let bound = if self.numbers.one_in(2) { 500 } else { 4000 };
        let after = Duration::from_millis(self.numbers.below(bound));
        let session = self.tool.start(words);
        std::thread::sleep(after);
        session.kill();
        self.kills += 1;
        self.commands += 1;
        self.check_requests(load, words);
        self.told(words, &format!("killed after {} ms", after.as_millis()), load.answered() - before);
    }

    /// Measures the function that handles requests during a known number of requests, by one command, or by two at once.
    fn count_exactly(&mut self, load: &ServerLoad) {
        const KINDS: &[&[&str]] = &[&["count"], &["profile", "contexts"], &["profile", "paths"], &["latency"]];
        let kinds = if self.server.moves { &KINDS[..2] } else { KINDS };
        let handler = &self.server.handler;
        load.pause();
        let both = self.numbers.one_in(2);
        let chosen: Vec<&[&str]> = if both { vec![KINDS[1], KINDS[0]] } else { vec![self.numbers.pick(kinds)] };
        let commands: Vec<Vec<String>> = chosen.iter().map(|kind| self.exact_command(kind)).collect();
        let start = |words: &Vec<String>| {
            let mut session = self.tool.start(words);
            // Each process has a record of its own.
            let attached = self.pids.iter().all(|_| session.try_wait_for_any(&["attached", "changed"]).is_some());
            (session, attached)
        };
        let sessions: Vec<(Session, bool)> = commands.iter().map(start).collect();
        let rounds = 10 + self.numbers.below(100);
        let count = usize::try_from(rounds * handler.requests).expect("a number of requests");
        let before = load.answered();
        let made = load.request(self.serving, 0, count);
        let started = Instant::now();
        // The command that began last ends first: the others serve it.
        let mut outcomes: Vec<Outcome> = sessions
            .into_iter()
            .rev()
            .map(|(session, attached)| if attached { session.interrupt() } else { session.finish() })
            .collect();
        outcomes.reverse();
        load.resume();
        let requests = load.answered() - before;
        for (words, outcome) in commands.iter().zip(&outcomes) {
            self.check_answer(words, outcome);
            let calls = calls_of(outcome, handler.function);
            let expected = rounds * handler.calls;
            if made && outcome.status.code() == Some(0) && calls.is_some_and(|calls| calls != expected) {
                let why = format!("{calls:?} calls of {} in {count} requests, not {expected}", handler.function);
                self.fail(words, &why, Some(outcome));
            }
        }
        let last = commands.len() - 1;
        self.check_server(load, &commands[last], &outcomes[last], load.answered() - requests, started.elapsed());
    }

    /// Arguments of a command of a kind that measures the function that handles requests.
    fn exact_command(&self, kind: &[&str]) -> Vec<String> {
        let mut words: Vec<String> = kind.iter().copied().map(str::to_owned).collect();
        words.extend(of_pids(&self.pids));
        let limit = ["--max-overhead", "1000000", "--for", "1min"].map(str::to_owned);
        words.extend(limit);
        // Names of C++ have the types of the arguments behind them.
        words.push(format!("{}*", self.server.handler.function));
        words
    }

    /// Checks an answer by itself.
    fn check_answer(&mut self, words: &[String], outcome: &Outcome) {
        self.commands += 1;
        if is_honest_refusal(outcome) {
            self.refused += 1;
            return;
        }
        if outcome.status.code() != Some(0) {
            self.fail(words, &format!("ended with {}: {}", outcome.status, outcome.stderr.trim_end()), Some(outcome));
        }
        let found = catch_unwind(|| faults(outcome));
        for fault in found.unwrap_or_else(|_| vec!["the answer could not be read".to_owned()]) {
            self.fail(words, &fault, Some(outcome));
        }
        let held = outcome.objects.iter().filter_map(|object| object["stopped_ms"].as_f64());
        self.held_ms = held.fold(self.held_ms, f64::max);
    }

    /// Checks that the server is as before a command that has ended.
    fn check_server(&mut self, load: &ServerLoad, words: &[String], outcome: &Outcome, before: u64, took: Duration) {
        self.check_requests(load, words);
        if !self.is_alive() {
            return;
        }
        let mut sizes = Vec::new();
        for pid in self.pids.clone() {
            let different = Text::differences_from_files(pid);
            if !different.is_empty() {
                self.fail(words, &format!("the code of {pid} differs from its files: {different:?}"), Some(outcome));
            }
            if target::tracer(pid) != 0 {
                self.fail(words, &format!("{pid} is still traced"), Some(outcome));
            }
            let is_told = outcome.all("removed").iter().any(|removed| removed["memory_left"] == true);
            if target::arenas(pid) != 0 {
                let why = format!(
                    "{} arenas stay in {pid}, {}",
                    target::arenas(pid),
                    if is_told { "as told" } else { "untold" }
                );
                if is_told { println!("{why}: {}", text(words)) } else { self.fail(words, &why, Some(outcome)) }
            }
            sizes.push(Size::of(pid));
        }
        self.sizes.push(sizes);
        self.told(words, &format!("ended after {:.1} s", took.as_secs_f64()), load.answered() - before);
    }

    /// Checks that all requests got their answers in time.
    fn check_requests(&mut self, load: &ServerLoad, words: &[String]) {
        for failure in load.take_failures() {
            self.fail(words, &format!("a request failed: {failure}"), None);
        }
        let (longest, starved) = (load.take_longest(), load.take_starved());
        if longest > WAIT_MAX + starved {
            self.fail(words, &format!("a request waited for {:.0} ms", ms(longest)), None);
        } else if longest > WAIT_MAX {
            let (waited, starved) = (ms(longest), ms(starved));
            println!("a request waited for {waited:.0} ms, and a thread that only sleeps for {starved:.0} ms");
        }
        self.longest = self.longest.max(longest);
        let dead: Vec<i32> = self.pids.iter().copied().filter(|&pid| !is_alive(pid)).collect();
        if !dead.is_empty() {
            self.fail(words, &format!("{dead:?} died"), None);
        }
    }

    /// Removes everything, and compares the sizes of the server.
    fn end(&mut self, load: &ServerLoad) {
        if !self.is_alive() {
            return;
        }
        let words: Vec<String> = ["detach".to_owned()].into_iter().chain(of_pids(&self.pids)).collect();
        self.measure(load, &words);
        let third = self.sizes.len() / 3;
        // A server grows while it warms up, so a few sizes tell nothing.
        if third < SIZES_MIN {
            return;
        }
        for index in 0..self.pids.len() {
            for (what, of) in [("mappings", maps as fn(&Size) -> usize), ("descriptors", files)] {
                let values: Vec<usize> = self.sizes.iter().map(|sizes| of(&sizes[index])).collect();
                let first = values[..third].iter().max().copied().unwrap_or(usize::MAX);
                let last = values[values.len() - third..].iter().min().copied().unwrap_or(0);
                if last > first.saturating_add(GROWTH_MAX) {
                    let why = format!("{} has {last} {what}, and had {first}: {values:?}", self.pids[index]);
                    self.fail(&words, &why, None);
                }
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.pids.iter().all(|&pid| is_alive(pid))
    }

    /// Prints a line about a command.
    fn told(&self, words: &[String], what: &str, answered: u64) {
        let at = self.began.elapsed().as_secs_f64();
        println!("{:9} {at:6.1} s  {what:21} {answered:6} requests  {}", self.server.name, text(words));
    }

    /// Prints a failure, and keeps the answer of the command.
    fn fail(&mut self, words: &[String], why: &str, outcome: Option<&Outcome>) {
        self.failures += 1;
        println!("{:9} FAILED: {why}\n{:9} FAILED command: ingraft {}", self.server.name, "", text(words));
        if let Some(outcome) = outcome {
            println!("{:9} its answer is in {}", "", self.keep(outcome).display());
        }
    }

    /// Writes an answer to a file.
    fn keep(&self, outcome: &Outcome) -> PathBuf {
        let directory = ingraft_testing::build_directory().join("soak");
        std::fs::create_dir_all(&directory).expect("a directory for answers");
        let path = directory.join(format!("{}-{}-{}.json", self.server.name, std::process::id(), self.failures));
        let lines: String = outcome.objects.iter().map(|object| format!("{object}\n")).collect();
        std::fs::write(&path, lines + &outcome.stderr).expect("write an answer");
        path
    }
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|text| !text.rsplit(") ").next().unwrap_or_default().starts_with(['Z', 'X']))
}

fn of_pids(pids: &[i32]) -> Vec<String> {
    pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]).collect()
}

/// A command as a person would type it.
fn text(words: &[String]) -> String {
    let quote = |word: &String| if word.contains(['*', '#', ':', ' ']) { format!("'{word}'") } else { word.clone() };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn maps(size: &Size) -> usize {
    size.maps
}

fn files(size: &Size) -> usize {
    size.files
}

/// Sizes of all processes together, as text.
fn total(sizes: &[Size]) -> String {
    let sum = |of: fn(&Size) -> usize| sizes.iter().map(of).sum::<usize>();
    let resident: u64 = sizes.iter().map(|size| size.resident).sum();
    format!("{} mappings, {} descriptors and {resident} KiB", sum(maps), sum(files))
}

/// Whether a command has changed nothing, because of the size of the program or of the load of the machine.
fn is_honest_refusal(outcome: &Outcome) -> bool {
    let mut honest = ["too_much_code", "hold_too_long", "no_carrier"].into_iter();
    outcome.all("attached").is_empty()
        && honest.any(|reason| outcome.stderr.contains(&format!("\"reason\":\"{reason}\"")))
}
