//! Traces of running programs, compared with an oracle that single-steps the same run and knows nothing of ingraft.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ingraft_engine::{
    Caller, ClockChoice, Config, EnableRequest, Enabled, Engine, Kind, Reason, TargetSpec, TraceOptions,
};
use ingraft_model::Capacity;
use ingraft_model::buffer::SLACK;
use ingraft_profile::{TraceStep, TracedFunction, Unknown};
use ingraft_report::{TraceChunk, TraceReplay, TracedCode};
use ingraft_testing::{Mutatee, open_directory, output, program, target};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Functions of the program that always runs the same way.
const FUNCTIONS: [&str; 7] = ["leaf", "guarded", "inner", "leaver", "middle", "outer", "rounds"];
const RUN: &str = "run 5";

fn engine() -> (Engine, tempfile::TempDir) {
    let dir = open_directory();
    let config = Config {
        state_dir: dir.path().to_owned(),
        program: "ingraft".into(),
        max_overhead: 5.0,
        clock: ClockChoice::Auto,
    };
    (Engine::start(config).unwrap(), dir)
}

fn tracing(bytes: u32) -> Kind {
    let capacity = Capacity::of_bytes(bytes).unwrap();
    Kind::Trace(TraceOptions { capacity, times: false, lossless: false, when: None })
}

fn request(pid: i32, functions: &[&str]) -> EnableRequest {
    EnableRequest {
        target: TargetSpec::Pid(ingraft_model::Pid(pid)),
        pairs: Vec::new(),
        functions: functions.iter().map(|f| (*f).to_owned()).collect(),
        function_metrics: Vec::new(),
        definitions: Vec::new(),
        flavors: Vec::new(),
        keep: false,
        max_overhead: None,
        max_hold: None,
        allow_calls: false,
        beside_uprobes: false,
        family: false,
        max_pairs: None,
        await_modules: false,
        kind: tracing(1 << 16),
    }
}

/// Addresses of symbols, as in the file.
fn symbols(name: &str) -> BTreeMap<String, u64> {
    let table = output(Command::new("nm").arg(program(name).expect("a compiler")));
    let symbol = |line: &str| {
        let mut words = line.split(' ');
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?.to_owned(), at))
    };
    table.lines().filter_map(symbol).collect()
}

fn stopped(pid: Pid) -> Signal {
    match waitpid(pid, Some(WaitPidFlag::__WALL)) {
        Ok(WaitStatus::Stopped(_, signal) | WaitStatus::PtraceEvent(_, signal, _)) => signal,
        other => panic!("{pid} did not stop: {other:?}"),
    }
}

/// Distance from the addresses in a program's file to those in the process.
fn bias(pid: i32, name: &str) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let first = maps.lines().find(|line| line.ends_with(&format!("/{name}"))).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    // A program at a fixed address begins at 4 MiB.
    if base == 0x40_0000 { 0 } else { base }
}

/// The program counters of a run, as in the file, by single steps from the first instruction of a function until it has returned.
fn counters(name: &str, run: &str, function: &str) -> Vec<u64> {
    let mut target = Mutatee::start(name, &[]);
    let bias = bias(target.pid(), name);
    let start = symbols(name)[function] + bias;
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    stopped(pid);
    let address = start as ptrace::AddressType;
    let word = ptrace::read(pid, address).unwrap();
    ptrace::write(pid, address, word & !0xff | 0xcc).unwrap();
    target.tell(run);
    loop {
        ptrace::cont(pid, None).unwrap();
        if stopped(pid) == Signal::SIGTRAP && ptrace::getregs(pid).unwrap().rip == start + 1 {
            break;
        }
    }
    ptrace::write(pid, address, word).unwrap();
    let mut registers = ptrace::getregs(pid).unwrap();
    registers.rip = start;
    ptrace::setregs(pid, registers).unwrap();
    let bottom = registers.rsp;
    let mut all = vec![start - bias];
    loop {
        ptrace::step(pid, None).unwrap();
        assert_eq!(stopped(pid), Signal::SIGTRAP);
        let registers = ptrace::getregs(pid).unwrap();
        if registers.rsp > bottom {
            break;
        }
        all.push(registers.rip.wrapping_sub(bias));
    }
    ptrace::detach(pid, None).unwrap();
    target.reply();
    all
}

/// Traces a run of a program. Returns the functions, and the chunks.
fn trace(name: &str, functions: &[&str], run: &str) -> (TracedCode, Vec<TraceChunk>) {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start(name, &[]);
    let before = target::Text::of(target.pid());
    let Enabled { id, .. } = engine.enable(&request(target.pid(), functions), Caller::Engine, &|_| ()).unwrap();
    let (_, code) = engine.traced(id, Caller::Engine).unwrap();
    target.tell(run);
    target.reply();
    let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
    let removed = engine.remove(id, Caller::Engine).unwrap();
    assert!(removed.text_restored);
    chunks.extend(removed.trace.unwrap().chunks);
    target::assert_clean(target.pid(), &before);
    (code, chunks)
}

/// The blocks of a trace, by the addresses of their first instructions.
fn blocks(code: &TracedCode, chunks: &[TraceChunk]) -> (Vec<u64>, Vec<Unknown>) {
    let traced: Vec<TracedFunction> = code.functions.iter().map(|f| f.traced().unwrap()).collect();
    let (mut replay, mut found) = (TraceReplay::new(&traced), Vec::new());
    for chunk in chunks {
        let mut note = |step, _| match step {
            TraceStep::Block { function, block, .. } => {
                found.push(code.functions[function as usize].cfg.blocks.get(block).expect("a block").range.start.0);
            }
            TraceStep::Enter { .. } | TraceStep::Leave { .. } | TraceStep::Condition => {}
            TraceStep::Gap => panic!("the trace has a gap"),
        };
        replay.chunk(chunk, &mut note).unwrap();
    }
    (found, replay.unknown().map(|(_, _, unknown)| unknown).collect())
}

/// Traces a run and compares the blocks of these functions with those of single steps, which begin at a function.
fn compare(name: &str, run: &str, begin: &str, functions: &[&str]) {
    let steps = counters(name, run, begin);
    let (code, chunks) = trace(name, functions, run);
    assert_eq!(code.refused, []);
    assert_eq!(code.functions.len(), functions.len());
    let starts: Vec<u64> =
        code.functions.iter().flat_map(|f| f.cfg.blocks.iter().map(|block| block.range.start.0)).collect();
    let expected: Vec<u64> = steps.into_iter().filter(|pc| starts.contains(pc)).collect();
    let (found, unknown) = blocks(&code, &chunks);
    let bytes: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    println!("{} blocks in {bytes} bytes of {functions:?}", found.len());
    assert!(expected.len() >= functions.len(), "{}", expected.len());
    let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{:x?}", chunks.iter().map(|chunk| &chunk.tokens).collect::<Vec<_>>());
    assert_eq!(found.len(), expected.len());
    // An activation that an exception leaves for a function that is not traced stays at the block that it was bound to reach.
    assert!(unknown.iter().all(|unknown| unknown.ahead <= 1), "{unknown:?}");
    let others: Vec<Unknown> = unknown.into_iter().map(|unknown| Unknown { ahead: 0, ..unknown }).collect();
    assert_eq!(others, [Unknown::default()]);
}

#[test]
fn calls_and_recursion_are_regenerated() {
    compare("steps", RUN, "rounds", &FUNCTIONS[..3]);
}

#[test]
fn calls_by_pointers_are_regenerated() {
    compare("steps", RUN, "rounds", &["leaf", "guarded", "inner", "middle"]);
}

#[test]
fn calls_that_longjmp_leaves_are_regenerated() {
    compare("steps", RUN, "rounds", &FUNCTIONS);
}

#[test]
fn calls_that_an_exception_leaves_are_regenerated() {
    compare("throws", "throw 1", "outer", &["middle", "thrower"]);
}

#[test]
fn longjmp_to_a_function_that_is_not_traced_is_regenerated() {
    compare("steps", RUN, "rounds", &["leaf", "inner", "leaver", "middle", "outer", "rounds"]);
}

#[test]
fn exceptions_and_their_cleanups_are_regenerated() {
    compare("throws", "cut 1", "cut", &["through", "dive", "sink"]);
}

#[test]
fn coroutines_lose_what_is_not_certain() {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("coroutines", &["2", "8"]);
    let before = target::Text::of(target.pid());
    let id = engine.enable(&request(target.pid(), &["work", "leaf"]), Caller::Engine, &|_| ()).unwrap().id;
    let (_, code) = engine.traced(id, Caller::Engine).unwrap();
    let reply = target.ask("go 50");
    let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
    chunks.extend(engine.remove(id, Caller::Engine).unwrap().trace.unwrap().chunks);
    target::assert_clean(target.pid(), &before);
    let (found, unknown) = entries(&code, &chunks);
    assert_eq!(found, ["work", "leaf"].map(|f| (f.to_owned(), reply.tally(f))).into());
    let works = reply.tally("work");
    assert!(unknown.iter().all(|unknown| (unknown.gaps, unknown.defects) == (0, 0)), "{unknown:?}");
    // Each activation of `work` switches stacks once, so its return is never told.
    assert!(unknown.iter().map(|unknown| unknown.lost).sum::<u64>() >= works / 2, "{unknown:?}");
    assert!(unknown.iter().map(|unknown| unknown.skipped).sum::<u64>() >= works, "{unknown:?}");
}

/// Number of entries of each function, and of gaps.
fn entries(code: &TracedCode, chunks: &[TraceChunk]) -> (BTreeMap<String, u64>, Vec<Unknown>) {
    let traced: Vec<TracedFunction> = code.functions.iter().map(|f| f.traced().unwrap()).collect();
    let (mut replay, mut found) = (TraceReplay::new(&traced), BTreeMap::new());
    for chunk in chunks {
        let mut note = |step, _| match step {
            TraceStep::Enter { function, .. } => {
                *found.entry(code.functions[function as usize].name.clone()).or_default() += 1;
            }
            TraceStep::Block { .. } | TraceStep::Leave { .. } | TraceStep::Condition | TraceStep::Gap => {}
        };
        replay.chunk(chunk, &mut note).unwrap();
    }
    (found, replay.unknown().map(|(_, _, unknown)| unknown).collect())
}

#[test]
fn each_thread_has_its_own_trace() {
    let functions = ["work_0", "work_1", "work_7"];
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("threads", &[]);
    target.ask("threads 3");
    let before = target::Text::of(target.pid());
    let Enabled { id, .. } = engine.enable(&request(target.pid(), &functions), Caller::Engine, &|_| ()).unwrap();
    let (_, code) = engine.traced(id, Caller::Engine).unwrap();
    let reply = target.ask("go 2000");
    let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
    chunks.extend(engine.remove(id, Caller::Engine).unwrap().trace.unwrap().chunks);
    target::assert_clean(target.pid(), &before);
    let (found, unknown) = entries(&code, &chunks);
    assert_eq!(found, functions.map(|f| (f.to_owned(), reply.tally(f))).into());
    assert!(unknown.len() >= 3 && unknown.iter().all(|unknown| *unknown == Unknown::default()), "{unknown:?}");
}

#[test]
fn traces_follow_each_other_beside_another_measurement() {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("threads", &[]);
    let counted = EnableRequest {
        function_metrics: vec!["calls".to_owned()],
        kind: Kind::Metrics,
        ..request(target.pid(), &["work_0"])
    };
    let count = engine.enable(&counted, Caller::Engine, &|_| ()).unwrap().id;
    for round in 1..=3 {
        // The buffer of the trace before is reused, and was full.
        let small = EnableRequest { kind: tracing(0), ..request(target.pid(), &["work_0"]) };
        let id = engine.enable(&small, Caller::Engine, &|_| ()).unwrap().id;
        let (_, code) = engine.traced(id, Caller::Engine).unwrap();
        target.ask("solo 40");
        let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
        target.ask("solo 5000");
        chunks.extend(engine.remove(id, Caller::Engine).unwrap().trace.unwrap().chunks);
        let (found, unknown) = entries(&code, &chunks);
        assert!(found["work_0"] > 40, "{round} {found:?}");
        assert_eq!(unknown, [Unknown { gaps: 1, ..Unknown::default() }], "{round}");
    }
    assert_eq!(engine.remove(count, Caller::Engine).unwrap().trace, None);
}

#[test]
fn a_lossless_trace_is_removed_beside_a_count_while_threads_wait() {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("threads", &["4"]);
    let before = target::Text::of(target.pid());
    let counted = EnableRequest {
        function_metrics: vec!["calls".to_owned()],
        kind: Kind::Metrics,
        ..request(target.pid(), &["noise"])
    };
    let count = engine.enable(&counted, Caller::Engine, &|_| ()).unwrap().id;
    target.ask("spin");
    let lossless = TraceOptions { capacity: Capacity::of_bytes(0).unwrap(), times: false, lossless: true, when: None };
    for round in 0..5 {
        let request = EnableRequest { kind: Kind::Trace(lossless.clone()), ..request(target.pid(), &["noise"]) };
        let id = engine.enable(&request, Caller::Engine, &|_| ()).unwrap().id;
        let second = engine.enable(&request, Caller::Engine, &|_| ()).unwrap_err();
        assert_eq!(second.reason, Reason::NoWaits);
        let (done, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        let removed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let chunks = engine.take_trace(id, Caller::Engine).unwrap_or_default();
                    taken.fetch_add(chunks.iter().map(|chunk| chunk.tokens.len()).sum(), Ordering::Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            ingraft_testing::wait_until("threads have waited", || taken.load(Ordering::Relaxed) > 100_000);
            let removed = engine.remove(id, Caller::Engine);
            done.store(true, Ordering::Relaxed);
            removed.unwrap()
        });
        assert!(removed.text_restored && removed.warnings.is_empty(), "{round} {:?}", removed.warnings);
    }
    target.ask("rest");
    assert!(engine.remove(count, Caller::Engine).unwrap().text_restored);
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

/// The filter kills the program at a futex(2), which a wait would make.
#[test]
fn threads_do_not_wait_once_the_program_filters_its_system_calls() {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("loads", &[program("libplugin.so").unwrap().to_str().unwrap()]);
    let before = target::Text::of(target.pid());
    let lossless = TraceOptions { capacity: Capacity::of_bytes(0).unwrap(), times: false, lossless: true, when: None };
    let request = EnableRequest { kind: Kind::Trace(lossless), ..request(target.pid(), &["local_work"]) };
    let id = engine.enable(&request, Caller::Engine, &|_| ()).unwrap().id;
    let (_, code) = engine.traced(id, Caller::Engine).unwrap();
    target.ask("call 10").assert_right();
    let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
    target.ask("filter");
    // The engine looks for filters once in 50 ms.
    std::thread::sleep(std::time::Duration::from_millis(60));
    chunks.extend(engine.take_trace(id, Caller::Engine).unwrap());
    target.ask("call 5000").assert_right();
    let removed = engine.remove(id, Caller::Engine).unwrap();
    assert!(removed.warnings.iter().any(|warning| warning.contains("filter")), "{:?}", removed.warnings);
    chunks.extend(removed.trace.unwrap().chunks);
    let (found, unknown) = entries(&code, &chunks);
    assert!(10 < found["local_work"] && found["local_work"] < 5010, "{found:?}");
    assert_eq!(unknown, [Unknown { gaps: 1, ..Unknown::default() }]);
    target.ask("call 50").assert_right();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_full_buffer_leaves_a_gap_that_is_told() {
    let (engine, _dir) = engine();
    let mut target = Mutatee::start("threads", &[]);
    let capacity = Capacity::of_bytes(0).unwrap();
    let request = EnableRequest {
        kind: Kind::Trace(TraceOptions { capacity, times: false, lossless: false, when: None }),
        ..request(target.pid(), &["work_0"])
    };
    let id = engine.enable(&request, Caller::Engine, &|_| ()).unwrap().id;
    let (_, code) = engine.traced(id, Caller::Engine).unwrap();
    target.ask("solo 5000");
    let mut chunks = engine.take_trace(id, Caller::Engine).unwrap();
    target.ask("solo 10");
    chunks.extend(engine.remove(id, Caller::Engine).unwrap().trace.unwrap().chunks);
    let (found, unknown) = entries(&code, &chunks);
    // An entry takes two bytes.
    let before = u64::from((capacity.bytes() - SLACK) / 2);
    assert_eq!(found["work_0"], before + 10);
    assert_eq!(unknown, [Unknown { gaps: 1, ..Unknown::default() }]);
}
