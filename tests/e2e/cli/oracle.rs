//! If a measurement begins at any moment of a program, its values must equal those of an oracle that has looked at every instruction
//! since.
//! The oracle knows nothing of ingraft: it single-steps a run that is always the same, and finds calls by program counters and stack
//! pointers.

use std::collections::BTreeMap;
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, output, program, scaled, source_directory};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::tool;

const FUNCTIONS: [&str; 6] = ["leaf", "guarded", "inner", "leaver", "middle", "outer"];
/// Functions in the foci: the metric counts the calls of `leaf` while such a function is on the stack.
const FOCI: [&str; 3] = ["inner", "middle", "outer"];
const RUN: &str = "run 5";

/// Returns the addresses at which functions begin, in a program at a fixed address.
fn symbols() -> BTreeMap<String, u64> {
    let table = output(Command::new("nm").arg(program("steps").expect("gcc")));
    let symbol = |line: &str| {
        let mut words = line.split(' ');
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?.to_owned(), at))
    };
    table.lines().filter_map(symbol).collect()
}

/// Waits until a held process has stopped again.
pub(crate) fn stopped(pid: Pid) -> Signal {
    match waitpid(pid, Some(WaitPidFlag::__WALL)) {
        Ok(WaitStatus::Stopped(_, signal) | WaitStatus::PtraceEvent(_, signal, _)) => signal,
        other => panic!("{pid} did not stop: {other:?}"),
    }
}

/// Holds a program right before the first instruction of its run, by a breakpoint that is then removed.
pub(crate) fn hold_at_start(target: &mut Mutatee, start: u64, command: &str) -> Pid {
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("seize the program");
    ptrace::interrupt(pid).expect("interrupt the program");
    stopped(pid);
    let address = start as ptrace::AddressType;
    let word = ptrace::read(pid, address).expect("read the program");
    ptrace::write(pid, address, word & !0xff | 0xcc).expect("write the program");
    target.tell(command);
    loop {
        ptrace::cont(pid, None).expect("let the program go on");
        // The first stop may be the one that PTRACE_INTERRUPT asked for, in a system call.
        if stopped(pid) == Signal::SIGTRAP && ptrace::getregs(pid).expect("its registers").rip == start + 1 {
            break;
        }
    }
    ptrace::write(pid, address, word).expect("write the program");
    let mut registers = ptrace::getregs(pid).expect("its registers");
    registers.rip = start;
    ptrace::setregs(pid, registers).expect("set its registers");
    pid
}

pub(crate) fn step(pid: Pid) -> (u64, u64) {
    ptrace::step(pid, None).expect("step");
    assert_eq!(stopped(pid), Signal::SIGTRAP);
    let registers = ptrace::getregs(pid).expect("its registers");
    (registers.rip, registers.rsp)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Entered,
    Returned,
    /// The call's frame is gone, but the call did not return.
    Left,
}

/// A call that began or ended when the run had executed `after` instructions.
#[derive(Clone, Copy, Debug)]
struct Event {
    after: u64,
    function: &'static str,
    what: What,
}

/// Steps through a whole run. Returns the events, and the number of instructions.
fn look(symbols: &BTreeMap<String, u64>) -> (Vec<Event>, u64) {
    let mut target = Mutatee::start("steps", &[]);
    let entries: BTreeMap<u64, &'static str> = FUNCTIONS.iter().map(|f| (symbols[*f], *f)).collect();
    let pid = hold_at_start(&mut target, symbols["rounds"], RUN);
    let bottom = ptrace::getregs(pid).expect("its registers").rsp;
    // `open` holds for each call in progress the location of its return address, the return address, and the function.
    let (mut events, mut open, mut after) = (Vec::new(), Vec::<(u64, u64, &'static str)>::new(), 0);
    loop {
        let (pc, sp) = step(pid);
        after += 1;
        while let Some((frame, home, function)) = open.pop_if(|(frame, ..)| *frame < sp) {
            let what = if (frame + 8, home) == (sp, pc) { What::Returned } else { What::Left };
            events.push(Event { after, function, what });
        }
        if sp > bottom {
            ptrace::detach(pid, None).expect("let it go");
            target.reply();
            return (events, after);
        }
        if let Some(function) = entries.get(&pc) {
            events.push(Event { after, function, what: What::Entered });
            let home = ptrace::read(pid, sp as ptrace::AddressType).expect("read its stack");
            open.push((sp, home.cast_unsigned(), function));
        }
    }
}

/// Values that a measurement must have if it begins at a certain moment of the run.
#[derive(Default, Debug, PartialEq, Eq)]
struct Truth {
    /// Calls that begin after the moment, by function.
    calls: BTreeMap<&'static str, i64>,
    /// Numbers by function: of these calls that return, of these that end otherwise, and of calls that return but began before the moment.
    returned: BTreeMap<&'static str, [i64; 3]>,
    /// Calls of `leaf` while a function was on the stack.
    inside: BTreeMap<&'static str, i64>,
}

fn truth(events: &[Event], moment: u64) -> Truth {
    let mut truth = Truth {
        calls: FUNCTIONS.map(|f| (f, 0)).into(),
        returned: FUNCTIONS.map(|f| (f, [0; 3])).into(),
        inside: FOCI.map(|f| (f, 0)).into(),
    };
    let mut open: Vec<(&str, bool)> = Vec::new();
    for event in events {
        let seen = event.after >= moment;
        let add = |to: &mut BTreeMap<&'static str, i64>, f| *to.entry(f).or_default() += i64::from(seen);
        if event.what == What::Entered {
            add(&mut truth.calls, event.function);
            if event.function == "leaf" {
                let around = FOCI.into_iter().filter(|f| open.iter().any(|(on_stack, _)| on_stack == f));
                around.for_each(|f| add(&mut truth.inside, f));
            }
            open.push((event.function, seen));
            continue;
        }
        let (function, whole) = open.pop().expect("what ends has begun");
        assert_eq!(function, event.function);
        // An event of the last instruction before the moment has happened before the measurement.
        if event.after > moment {
            let at = match event.what {
                What::Returned if whole => 0,
                What::Left if whole => 1,
                What::Returned => 2,
                _ => continue,
            };
            truth.returned.get_mut(event.function).expect("one of them")[at] += 1;
        }
    }
    truth
}

fn measured(outcome: &Outcome) -> Truth {
    let last = |metric: &str, function: &str| {
        let focus = format!("/Code/steps/{function}");
        let samples = outcome.all("sample");
        let sample = samples.into_iter().rfind(|s| s["metric"] == metric && s["focus"] == focus.as_str());
        sample.unwrap_or_else(|| panic!("no {metric} of {function}: {outcome:#?}")).clone()
    };
    let value = |metric: &str, function: &str| last(metric, function)["value"].as_i64().expect("a number");
    let ends = |function: &str| {
        let sample = last("latency", function);
        let number = |key: &str| sample[key].as_i64().unwrap_or(0);
        [number("value"), number("left"), number("unseen")]
    };
    Truth {
        calls: FUNCTIONS.map(|f| (f, value("calls", f))).into(),
        returned: FUNCTIONS.map(|f| (f, ends(f))).into(),
        inside: FOCI.map(|f| (f, value("leaves_inside", f))).into(),
    }
}

#[test]
fn values_are_right_from_any_moment_on() {
    let symbols = symbols();
    let (events, instructions) = look(&symbols);
    assert!(events.iter().any(|e| e.what == What::Left) && events.iter().any(|e| e.function == "inner"));
    let definitions = source_directory().join("tests/e2e/mdl/steps.mdl").to_str().expect("a path").to_owned();
    let pairs: Vec<String> = FUNCTIONS
        .iter()
        .flat_map(|f| [format!("calls@/Code/steps/{f}"), format!("latency@/Code/steps/{f}")])
        .chain(FOCI.iter().map(|f| format!("leaves_inside@/Code/steps/{f}")))
        .collect();
    let (tool, moments) = (tool(), scaled(12, 100));
    let (mut wrong, mut not_unwound) = (Vec::new(), 0);
    for round in 0..moments {
        // The moments are spread over the run, at offsets that follow no pattern of the program.
        let moment = instructions * round / moments + round * 7919 % (instructions / moments);
        let mut target = Mutatee::start("steps", &[]);
        let before = Text::of(target.pid());
        let pid = hold_at_start(&mut target, symbols["rounds"], RUN);
        let mut at = None;
        for _ in 0..moment {
            at = Some(step(pid));
        }
        ptrace::detach(pid, Signal::SIGSTOP).expect("let it go");
        let fixed =
            ["watch", "-p", &target.pid_text(), "-I", &definitions, "--max-overhead", "10000"].map(String::from);
        let mut session = tool.start(fixed.iter().chain(&pairs));
        let attached = session.wait_for("attached");
        kill(pid, Signal::SIGCONT).expect("let it go on");
        target.reply();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let (seen, known) = (measured(&outcome), truth(&events, moment));
        // While longjmp has restored only a part of the registers, no stack can be unwound, and the answer says so.
        let told = attached["not_unwound"] == 1;
        not_unwound += u64::from(told);
        if seen != known && !told {
            wrong.push(format!("after {moment} of {instructions} at {at:x?}:\n{seen:?}\n{known:?}"));
        }
    }
    assert!(not_unwound <= moments / 20, "{not_unwound} of {moments}");
    assert!(wrong.is_empty(), "{} of {moments} moments:\n{}", wrong.len(), wrong.join("\n"));
}
