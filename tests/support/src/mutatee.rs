//! Target programs: built once into the build directory, and driven by lines of text.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::target::watch_the_host;
use crate::{BOUND, build_directory, have, source_directory};

/// Recipe for a target program: its compiler and the compiler's arguments. Sources are relative to `tests/mutatees`.
struct Recipe {
    compiler: &'static str,
    flags: &'static [&'static str],
    sources: &'static [&'static str],
    strip: bool,
}

const C: &[&str] = &["-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"];

/// Libraries of a program. They are named before the objects that need them, so the linker must keep all of them.
const LIBRARIES: &[&str] = &[
    "-O2",
    "-g",
    "-pthread",
    "-Wl,--no-as-needed",
    "-lz",
    "-lsqlite3",
    "-lssl",
    "-lcrypto",
    "-Wall",
    "-Wextra",
    "-Werror",
];

/// Flags for a program at a fixed address, in which the loader binds all functions at the start.
const STEPS: &[&str] =
    &["-O2", "-g", "-pthread", "-no-pie", "-Wl,-z,now", "-fno-optimize-sibling-calls", "-Wall", "-Wextra", "-Werror"];

/// Flags for a program with hooks in its functions, but not in those of the C++ library.
const ACCOUNT: &[&str] = &[
    "-O1",
    "-g",
    "-pthread",
    "-fno-inline",
    "-fno-optimize-sibling-calls",
    "-finstrument-functions",
    "-finstrument-functions-exclude-file-list=/usr/include,/usr/lib",
    "-Wall",
    "-Wextra",
    "-Werror",
];

fn recipe(name: &str) -> Recipe {
    let (compiler, flags, sources, strip): (_, _, &[&str], _) = match name {
        "threads" => ("gcc", C, &["threads.c"], false),
        "ailing" => ("gcc", C, &["ailing.c"], false),
        "recorder" => ("gcc", C, &["recorder.c"], false),
        "stamps" => ("gcc", C, &["stamps.c"], false),
        "brief" => ("gcc", C, &["brief.c"], false),
        "parting" => ("gcc", C, &["parting.c"], false),
        "faulting" => ("gcc", C, &["faulting.c"], false),
        "executed" => ("gcc", C, &["executed.c"], false),
        "threads-stripped" => ("gcc", C, &["threads.c"], true),
        "threads-static" => ("gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["threads.c"], false),
        "threads-static-pie" => ("gcc", &["-O2", "-g", "-pthread", "-static-pie"] as &[_], &["threads.c"], false),
        "threads-no-pie" => ("gcc", &["-O2", "-g", "-pthread", "-no-pie"] as &[_], &["threads.c"], false),
        "threads-asan" => ("gcc", &["-O2", "-g", "-pthread", "-fsanitize=address"] as &[_], &["threads.c"], false),
        "threads-asan-static" => {
            ("gcc", &["-O2", "-g", "-pthread", "-fsanitize=address", "-static-libasan"] as &[_], &["threads.c"], false)
        }
        "threads-tsan" => ("gcc", &["-O2", "-g", "-pthread", "-fsanitize=thread"] as &[_], &["threads.c"], false),
        "threads-musl" => ("musl-gcc", &["-O2", "-g", "-pthread"] as &[_], &["threads.c"], false),
        "threads-musl-static" => ("musl-gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["threads.c"], false),
        "threads-musl-plain" => {
            ("musl-gcc", &["-O2", "-g", "-pthread", "-static", "-DNO_HANDLERS"] as &[_], &["threads.c"], false)
        }
        "threads-cet" => ("gcc", &["-O2", "-g", "-pthread", "-fcf-protection=full"] as &[_], &["threads.c"], false),
        "moves" => {
            let flags = &["-O2", "-g", "-pthread", "-DMOVES", "-Wall", "-Wextra", "-Werror"];
            ("gcc", flags as &[_], &["threads.c", "moves.c"], false)
        }
        "moves-static" => {
            let flags = &["-O2", "-g", "-pthread", "-static", "-DMOVES"];
            ("gcc", flags as &[_], &["threads.c", "moves.c"], false)
        }
        "openings" => ("gcc", C, &["openings.c"], false),
        "probes" => ("gcc", C, &["probes.c"], false),
        "usdt" => ("gcc", C, &["usdt.c", "usdt.s"], false),
        "sequences" => ("gcc", C, &["sequences.c"], false),
        "departs" => ("g++", &["-O2", "-g", "-pthread", "-Wall", "-Wextra"] as &[_], &["departs.cpp"], false),
        "spin" => ("gcc", C, &["spin.c"], false),
        "sharer" => ("gcc", C, &["sharer.c"], false),
        "attacks" => ("gcc", C, &["attacks.c"], false),
        "blocks" => ("gcc", C, &["blocks.c"], false),
        "detached-musl" => ("musl-gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["detached.c"], false),
        "cancels" => ("gcc", C, &["cancels.c"], false),
        "cancels-musl" => ("musl-gcc", &["-O2", "-g", "-pthread"] as &[_], &["cancels.c"], false),
        "cancels-musl-static" => ("musl-gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["cancels.c"], false),
        "cancels-musl-stripped" => ("musl-gcc", &["-O2", "-pthread", "-static"] as &[_], &["cancels.c"], true),
        "cancels-async" => {
            let flags = &["-O2", "-g", "-pthread", "-fexceptions", "-DASYNCHRONOUS"];
            ("gcc", flags as &[_], &["cancels.c"], false)
        }
        "cancels-async-static" => {
            let flags = &["-O2", "-pthread", "-fexceptions", "-static", "-DASYNCHRONOUS"];
            ("gcc", flags as &[_], &["cancels.c"], true)
        }
        "cancels-plain" => ("gcc", &["-O2", "-g", "-pthread", "-DASYNCHRONOUS"] as &[_], &["cancels.c"], false),
        "cancels-async-musl" => {
            let flags = &["-O2", "-pthread", "-fexceptions", "-static", "-DASYNCHRONOUS"];
            ("musl-gcc", flags as &[_], &["cancels.c"], true)
        }
        "faults" => ("g++", &["-O2", "-g", "-pthread", "-fnon-call-exceptions"] as &[_], &["faults.cpp"], false),
        "births" => ("gcc", C, &["births.c"], false),
        "family" => ("gcc", C, &["family.c"], false),
        "family-gs" => ("gcc", &["-O2", "-g", "-pthread", "-DOWN_GS"] as &[_], &["family.c"], false),
        "family-musl" => ("musl-gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["family.c"], false),
        "shapes" => ("gcc", C, &["shapes.c", "shapes.s"], false),
        "labels" => ("gcc", &["-O2", "-pthread", "-Wall", "-Wextra", "-Werror"], &["labels.c", "labels.s"], false),
        "throws" => ("g++", &["-O2", "-g", "-pthread", "-rdynamic", "-Wall"] as &[_], &["throws.cpp"], false),
        "pool" => ("g++", &["-std=c++17", "-O2", "-g", "-pthread", "-Wall", "-Wextra"] as &[_], &["pool.cpp"], false),
        "tails" => ("g++", &["-O2", "-g", "-pthread", "-Wall"] as &[_], &["tails.cpp"], false),
        "callers" => ("g++", &["-O2", "-g", "-pthread", "-Wall"], &["callers.cpp"], false),
        "prefixes" => ("gcc", C, &["prefixes.c"], false),
        "crammed" => ("gcc", &["-no-pie"] as &[_], &["crammed.s"], false),
        "adjacent" => ("g++", &["-O2", "-g", "-pthread", "-Wall"], &["adjacent.cpp", "adjacent.s"], false),
        "kernel" => ("gcc", C, &["kernel.c"], false),
        "prints" => ("gcc", C, &["prints.c"], false),
        "slow" => ("gcc", C, &["slow.c"], false),
        "live" => ("gcc", C, &["live.c"], false),
        "contexts" => ("g++", ACCOUNT, &["contexts.cpp"], false),
        "looked" => ("gcc", C, &["looked.c"], false),
        "latencies" => ("g++", &["-O2", "-g", "-pthread", "-Wall", "-Wextra"], &["latencies.cpp"], false),
        "paths" => ("g++", &["-O1", "-g", "-pthread", "-Wall", "-Wextra"], &["paths.cpp"], false),
        "levels" => ("gcc", C, &["levels.c"], false),
        "yields" => ("gcc", C, &["yields.c"], false),
        "strolls" => ("gcc", C, &["strolls.c"], false),
        "kinds" => ("gcc", C, &["kinds.c"], false),
        "kinds-clang" => ("clang-19", C, &["kinds.c"], false),
        "kinds-compressed" => ("gcc", &["-O2", "-g", "-gz", "-pthread"] as &[_], &["kinds.c"], false),
        "kinds-cpp" => ("g++", &["-std=c++17", "-O2", "-g", "-pthread", "-Wall"] as &[_], &["kinds.cpp"], false),
        "kinds-rust" => ("rustc", &["--edition=2024", "-O", "-g"] as &[_], &["kinds.rs"], false),
        "kinds-rust-debug" => ("rustc", &["--edition=2024", "-g"] as &[_], &["kinds.rs"], false),
        "skips" => ("gcc", C, &["skips.c"], false),
        "stops" => ("gcc", C, &["stops.c"], false),
        "jumps" => ("gcc", C, &["jumps.c"], false),
        "jumps-static" => ("gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["jumps.c"], false),
        "jumps-musl" => ("musl-gcc", &["-O2", "-g", "-pthread"] as &[_], &["jumps.c"], false),
        "jumps-fortified" => ("gcc", &["-O2", "-g", "-pthread", "-D_FORTIFY_SOURCE=2"] as &[_], &["jumps.c"], false),
        "leaps" => ("gcc", C, &["leaps.c"], false),
        "unrest" => ("gcc", C, &["unrest.c"], false),
        "onstack" => ("g++", &["-O2", "-g", "-pthread", "-Wall"] as &[_], &["onstack.cpp"], false),
        "guest" => ("gcc", C, &["guest.c"], false),
        "blocked" => ("gcc", C, &["blocked.c"], false),
        "partial" => ("gcc", C, &["partial.c"], false),
        "asleep" => ("gcc", C, &["asleep.c"], false),
        "signals" => ("gcc", C, &["signals.c"], false),
        "loads" => ("gcc", C, &["loads.c"], false),
        "libplugin.so" => ("gcc", &["-O2", "-g", "-shared", "-fPIC"] as &[_], &["plugin.c"], false),
        "libother.so" => ("gcc", &["-O2", "-g", "-shared", "-fPIC", "-DFACTOR=17"] as &[_], &["plugin.c"], false),
        "opens" => ("gcc", C, &["opens.c"], false),
        "libbulk.so" => ("gcc", &["-shared", "-fPIC"] as &[_], &["bulk.s"], false),
        "loads-musl" => ("musl-gcc", &["-O2", "-g", "-pthread"] as &[_], &["loads.c"], false),
        // The constructor and the other function of the library match the same pattern.
        "libplugin-musl.so" => {
            ("musl-gcc", &["-O2", "-g", "-shared", "-fPIC", "-Dplugin_born=born_work"] as &[_], &["plugin.c"], false)
        }
        "libowngs.so" => ("gcc", &["-O2", "-g", "-shared", "-fPIC", "-DOWN_GS"] as &[_], &["plugin.c"], false),
        "libowndata.so" => (
            "gcc",
            &["-O2", "-g", "-shared", "-fPIC", "-DOWN_DATA", "-ftls-model=initial-exec"] as &[_],
            &["plugin.c"],
            false,
        ),
        "coroutines" => ("gcc", C, &["coroutines.c"], false),
        "fibres" => ("gcc", C, &["fibres.c"], false),
        "kept" => ("gcc", C, &["kept.c"], false),
        "tight" => ("gcc", C, &["tight.c"], false),
        "patcher" => ("gcc", C, &["patcher.c"], false),
        "selfpatch" => ("gcc", C, &["selfpatch.c"], false),
        "pooled" => ("gcc", C, &["pooled.c"], false),
        "lingers" => ("gcc", C, &["lingers.c"], false),
        "suspended" => ("gcc", C, &["suspended.c"], false),
        "covered" => ("gcc", C, &["covered.c"], false),
        "corner" => ("gcc", C, &["corner.c"], false),
        "trapped" => ("gcc", C, &["trapped.c"], false),
        "determ" => ("gcc", C, &["determ.c"], false),
        "varied" => ("gcc", C, &["varied.c"], false),
        "culprits" => ("gcc", C, &["culprits.c"], false),
        "keepers" => ("gcc", C, &["keepers.c"], false),
        "bench" => ("gcc", C, &["bench.c"], false),
        "data" => ("gcc", C, &["data.c"], false),
        "data-no-pie" => ("gcc", &["-O2", "-g", "-pthread", "-no-pie"] as &[_], &["data.c"], false),
        "data-without-types" => ("gcc", &["-O2", "-g0", "-pthread"] as &[_], &["data.c"], false),
        "calls" => ("g++", &["-O2", "-g", "-pthread", "-Wall"] as &[_], &["calls.cpp"], false),
        "libraries" => ("gcc", LIBRARIES, &["libraries.c"], false),
        "objects" => ("gcc", &["-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"], &["objects.c"], false),
        "figures" => ("gcc", C, &["figures.c"], false),
        "messages" => ("gcc", &["-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"], &["messages.c"], false),
        "tally" => {
            ("gcc", &["-O2", "-g", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-Werror"], &["tally.c"], false)
        }
        "times" => ("gcc", C, &["times.c"], false),
        "crowd" => ("gcc", C, &["crowd.c"], false),
        "gaps" => ("gcc", C, &["gaps.c"], false),
        "returns" => ("gcc", C, &["returns.c"], false),
        "execs" => ("gcc", C, &["execs.c"], false),
        "ticks" => ("gcc", C, &["ticks.c"], false),
        "steps" => ("gcc", STEPS, &["steps.c"], false),
        "paces" => {
            let flags = &[
                "-O2",
                "-g",
                "-pthread",
                "-static",
                "-no-pie",
                "-fno-optimize-sibling-calls",
                "-fno-reorder-blocks-and-partition",
                "-Wall",
                "-Werror",
            ];
            ("gcc", flags as &[_], &["paces.c"], false)
        }
        "events" => ("gcc", C, &["events.c"], false),
        "nested" => ("gcc", C, &["nested.c"], false),
        "speech" => ("gcc", C, &["speech.c"], false),
        "burns" => ("gcc", C, &["burns.c"], false),
        "planted" => ("gcc", C, &["planted.c"], false),
        "compiled" => ("gcc", C, &["compiled.c"], false),
        "climbs" => ("gcc", C, &["climbs.c"], false),
        "burns-static" => ("gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["burns.c"], false),
        "burns-musl-static" => ("musl-gcc", &["-O2", "-g", "-pthread", "-static"] as &[_], &["burns.c"], false),
        "tails-rust" => ("rustc", &["--edition=2024", "-O", "-g"] as &[_], &["tails.rs"], false),
        "twin" => ("rustc", &["--edition=2024", "-O", "-g"] as &[_], &["twin.rs"], false),
        "garbage" => ("rustc", &["--edition=2024", "-O", "-g"] as &[_], &["garbage.rs"], false),
        "contended" => ("rustc", &["--edition=2024", "-O", "-g"] as &[_], &["contended.rs"], false),
        "gopher" => ("go", &["build"] as &[_], &["gopher.go"], false),
        "clocks" => ("go", &["build"] as &[_], &["clocks.go"], false),
        "handlers" => ("go", &["build"] as &[_], &["handlers.go"], false),
        "web" => ("go", &["build"] as &[_], &["web.go"], false),
        "chains" => ("go", &["build"] as &[_], &["chains.go"], false),
        "serving" => ("go", &["build"] as &[_], &["serving.go"], false),
        "hops" => ("go", &["build"] as &[_], &["hops.go"], false),
        "hops-stripped" => ("go", &["build", "-ldflags", "-s -w"] as &[_], &["hops.go"], false),
        "hops-pie" => ("go", &["build", "-buildmode=pie"] as &[_], &["hops.go"], false),
        "parked" => ("go", &["build"] as &[_], &["parked.go"], false),
        "parked-stripped" => ("go", &["build", "-ldflags", "-s -w"] as &[_], &["parked.go"], false),
        "parked-pie" => ("go", &["build", "-buildmode=pie"] as &[_], &["parked.go"], false),
        _ => panic!("no target program {name}"),
    };
    Recipe { compiler, flags, sources, strip }
}

/// The path of a built target program, or the reason why this machine cannot build it (a missing compiler). Each program is built at most
/// once for the same sources and flags; tests in other processes may build the same program at the same time.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let recipe = recipe(name);
    if !have(recipe.compiler) {
        return Err(format!("{} is not installed", recipe.compiler));
    }
    let directory = source_directory().join("tests/mutatees");
    let mut hasher = DefaultHasher::new();
    (recipe.compiler, recipe.flags, recipe.strip).hash(&mut hasher);
    for source in recipe.sources.iter().chain(&["mutatee.h"]) {
        std::fs::read(directory.join(source)).unwrap_or_else(|error| panic!("{source}: {error}")).hash(&mut hasher);
    }
    let cache = build_directory().join("mutatees").join(format!("{:016x}", hasher.finish()));
    let path = cache.join(name);
    if !path.exists() {
        std::fs::create_dir_all(&cache).expect("the cache of target programs");
        let fresh = tempfile::TempDir::new_in(&cache).expect("a temporary directory");
        let made = fresh.path().join(name);
        build(&recipe, &directory, &made, fresh.path());
        // The link fails if another test has made the program meanwhile, and maybe runs it; then that program stays.
        match std::fs::hard_link(&made, &path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{}: {error}", path.display()),
            _ => {}
        }
    }
    Ok(path)
}

fn build(recipe: &Recipe, directory: &Path, made: &Path, scratch: &Path) {
    let mut command = Command::new(recipe.compiler);
    command.current_dir(directory).args(recipe.flags).arg("-o").arg(made).args(recipe.sources);
    if recipe.compiler == "go" {
        command.env("GOCACHE", scratch.join("go")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
    }
    crate::output(&mut command);
    if recipe.strip {
        crate::output(Command::new("strip").arg(made));
    }
}

/// A running target program.
pub struct Mutatee {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl Mutatee {
    /// Starts a target program by name and waits until it is ready. Panics if the program cannot be built; if that is possible, call
    /// [`program`]
    /// first.
    pub fn start(name: &str, arguments: &[&str]) -> Mutatee {
        let path = program(name).unwrap_or_else(|why| panic!("{name}: {why}"));
        Mutatee::spawn(Command::new(path).args(arguments))
    }

    /// Starts a command that speaks the protocol and waits until it is ready.
    pub fn spawn(command: &mut Command) -> Mutatee {
        let mut mutatee = Mutatee::adopt(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        mutatee.wait_line("ready");
        mutatee
    }

    fn adopt(command: &mut Command) -> Mutatee {
        watch_the_host();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Mutatee { child, stdin, lines, name: format!("{:?}", command.get_program()) }
    }

    /// Process id of the program.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Process id of the program as an argument.
    pub fn pid_text(&self) -> String {
        self.child.id().to_string()
    }

    /// Sends a command and waits for its answer.
    pub fn ask(&mut self, command: &str) -> Reply {
        self.tell(command);
        self.reply()
    }

    /// Sends a command without waiting.
    pub fn tell(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("input is open");
        writeln!(stdin, "{command}")
            .unwrap_or_else(|error| panic!("{} does not listen to '{command}': {error}", self.name));
    }

    /// Waits for the end of an answer.
    pub fn reply(&mut self) -> Reply {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(BOUND) {
                Ok(line) if line == "done" => return Reply { lines },
                Ok(line) => lines.push(line),
                Err(error) => {
                    panic!("{} gave no answer ({error}); it said {lines:?}; {:?}", self.name, self.child.try_wait())
                }
            }
        }
    }

    /// Waits for a line that begins with this text, and drops the lines before it.
    pub fn wait_line(&mut self, begin: &str) -> String {
        loop {
            match self.lines.recv_timeout(BOUND) {
                Ok(line) if line.starts_with(begin) => return line,
                Ok(_) => {}
                Err(error) => panic!("{} did not say '{begin}' ({error}); {:?}", self.name, self.child.try_wait()),
            }
        }
    }

    /// Closes the program's input, waits for its end, and returns its exit status.
    pub fn end(mut self) -> std::process::ExitStatus {
        drop(self.stdin.take());
        let mut status = None;
        crate::wait_until("the target program ends", || {
            status = self.child.try_wait().expect("wait for the target program");
            status.is_some()
        });
        status.expect("waited for it")
    }

    /// Whether the program still runs.
    pub fn alive(&mut self) -> bool {
        self.child.try_wait().expect("look at the target program").is_none()
    }
}

impl Drop for Mutatee {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of an answer.
#[derive(Debug)]
pub struct Reply {
    /// The lines as printed, without the closing `done`.
    pub lines: Vec<String>,
}

impl Reply {
    /// Text after these words, on the line that begins with them.
    pub fn after(&self, words: &str) -> &str {
        let found = self.lines.iter().find_map(|line| line.strip_prefix(words)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no '{words}' in {:?}", self.lines))
    }

    /// Number after these words, on the line that begins with them.
    pub fn number(&self, words: &str) -> u64 {
        self.after(words).parse().unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Number of calls of a function, as the program itself has counted them.
    pub fn tally(&self, function: &str) -> u64 {
        self.number(&format!("tally {function}"))
    }

    /// All tallies, by the name of the function.
    pub fn tallies(&self) -> BTreeMap<String, u64> {
        let words = self.lines.iter().filter_map(|line| line.strip_prefix("tally ")?.split_once(' '));
        words.map(|(name, value)| (name.to_owned(), value.parse().expect("a tally is a number"))).collect()
    }

    /// Number of calls by thread id, as the program itself has counted them.
    pub fn threads(&self) -> BTreeMap<u64, u64> {
        let mut threads = BTreeMap::new();
        for (tid, calls) in self.lines.iter().filter_map(|line| line.strip_prefix("thread ")?.split_once(' ')) {
            *threads.entry(tid.parse().expect("a thread id")).or_default() += calls.parse::<u64>().expect("calls");
        }
        threads
    }

    /// Panics if the program saw a wrong result of its own functions.
    pub fn assert_right(&self) {
        let wrong: Vec<_> = self.lines.iter().filter(|line| line.starts_with("wrong ") && *line != "wrong 0").collect();
        assert!(wrong.is_empty(), "the program computed wrong results: {wrong:?}");
    }
}
