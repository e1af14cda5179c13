//! Exact profiles of small programs, taken by executing every instruction as a single step. The tests compare what other tools read from
//! exported profiles with these counts.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use ingraft_analysis::{AnalysedImage, Function, FunctionKind, disassemble};
use ingraft_model::{self as model, EdgeKind, EdgeTarget, Key, Svma};
use ingraft_report::{
    BlockCount, CallCount, CallTarget, EdgeCount, EdgeEnd, FunctionProfile, ModuleCode, ModuleInfo, SavedProfile,
};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Number of steps from one address of the program to another one. The address is 0 outside of the program.
type Steps = BTreeMap<(u64, u64), u64>;

/// A compiled program with its exact profile.
pub struct Stepped {
    pub profile: SavedProfile,
    pub bytes: Vec<u8>,
}

impl Stepped {
    /// Executes a program step by step and returns its profile.
    pub fn run(path: &Path) -> Stepped {
        let bytes = std::fs::read(path).expect("read the program");
        let image = AnalysedImage::parse(bytes.clone().into()).expect("analyse the program");
        let low = image.segments().iter().map(|segment| segment.svma.0).min().expect("a segment");
        let high = image.segments().iter().map(|segment| segment.svma.0 + segment.mem_size).max().expect("a segment");
        let (steps, bias) = steps(path, image.entry().0, (low, high));
        let module = ModuleInfo {
            name: path.file_name().expect("a name").to_string_lossy().into_owned(),
            path: path.display().to_string(),
            build_id: image.build_id().unwrap_or_default().to_vec(),
            bias,
            mapped: (low, high),
        };
        let functions = image.functions().iter().filter(|function| function.kind() != FunctionKind::Stub);
        let functions = functions.map(|function| profile(&image, function, &steps)).collect();
        let program = module.path.clone();
        let profile = SavedProfile { pid: 4711, program, modules: vec![module], functions, ..SavedProfile::default() };
        Stepped { profile, bytes }
    }

    pub fn code(&self) -> Vec<ModuleCode> {
        vec![ModuleCode::parse(&self.bytes, None)]
    }

    pub fn function(&self, name: &str) -> &FunctionProfile {
        self.profile.functions.iter().find(|function| function.name == name).expect("the function")
    }
}

/// The steps of a program, and the distance from addresses in its file to those in the process.
fn steps(path: &Path, entry: u64, (low, high): (u64, u64)) -> (Steps, u64) {
    let mut held = Command::new("/bin/sh");
    held.args(["-c", "read -r go && exec \"$0\""]).arg(path).stdin(Stdio::piped()).stdout(Stdio::null());
    // The loader resolves all functions before the program begins, so that there are fewer steps.
    held.env("LD_BIND_NOW", "1");
    let mut child = held.spawn().expect("start the program");
    let pid = Pid::from_raw(child.id().try_into().expect("a process id"));
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXEC | ptrace::Options::PTRACE_O_EXITKILL).expect("seize");
    child.stdin.take().expect("a pipe").write_all(b"go\n").expect("let the program start");
    let wait = || waitpid(pid, Some(WaitPidFlag::__WALL)).expect("wait for the program");
    let name = path.display().to_string();
    // The shell may have been seized before it was executed itself.
    let line = loop {
        assert!(matches!(wait(), WaitStatus::PtraceEvent(..)));
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        if let Some(line) = maps.lines().find(|line| line.ends_with(&name)) {
            break line.to_owned();
        }
        ptrace::cont(pid, None).expect("continue");
    };
    let start = u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("an address");
    let bias = start - (low & !0xfff);
    run_to(pid, bias + entry);
    let mut steps = Steps::new();
    let mut before = 0;
    loop {
        ptrace::step(pid, None).expect("step");
        match wait() {
            WaitStatus::Stopped(..) => {}
            WaitStatus::Exited(_, status) => {
                assert_eq!(status, 0);
                let _ended = child.wait();
                return (steps, bias);
            }
            other => panic!("{other:?}"),
        }
        let at = ptrace::getregs(pid).expect("registers").rip.wrapping_sub(bias);
        let at = if (low..high).contains(&at) { at } else { 0 };
        if at != 0 || before != 0 {
            *steps.entry((before, at)).or_default() += 1;
        }
        before = at;
    }
}

/// Runs a program until it arrives at an address.
fn run_to(pid: Pid, at: u64) {
    let text = at as ptrace::AddressType;
    let original = ptrace::read(pid, text).expect("read the text");
    ptrace::write(pid, text, original & !0xff | 0xcc).expect("set a breakpoint");
    ptrace::cont(pid, None).expect("continue");
    let status = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("wait for the program");
    assert!(matches!(status, WaitStatus::Stopped(_, Signal::SIGTRAP)), "{status:?}");
    ptrace::write(pid, text, original).expect("remove the breakpoint");
    let mut registers = ptrace::getregs(pid).expect("registers");
    registers.rip = at;
    ptrace::setregs(pid, registers).expect("set the registers");
}

fn profile(image: &AnalysedImage, function: &Function, steps: &Steps) -> FunctionProfile {
    let cfg = image.cfg(function);
    let last: Vec<Svma> = cfg.blocks.iter().map(|block| last(image, block)).collect();
    let arrivals = |at: Svma| steps.iter().filter(move |((_, to), _)| *to == at.0);
    let step = |from: Svma, to: Svma| steps.get(&(from.0, to.0)).copied().unwrap_or(0);
    let blocks: Vec<BlockCount> =
        cfg.blocks.iter().zip(&last).map(|(block, last)| counted(block, *last, arrivals(block.range.start))).collect();
    let branches_to = |to: model::BlockId| {
        let edges = cfg.edges.iter().filter(move |e| e.to == EdgeTarget::Block(to) && e.kind != EdgeKind::CallReturn);
        edges.map(|edge| last[edge.from.index()].0).collect::<Vec<_>>()
    };
    let edges = cfg.edges.iter().map(|edge| EdgeCount {
        from: edge.from.index(),
        kind: edge.kind,
        to: match edge.to {
            EdgeTarget::Block(block) => EdgeEnd::Block(block.index()),
            EdgeTarget::Outside(at) => EdgeEnd::Outside(at),
            EdgeTarget::Dynamic => EdgeEnd::Dynamic,
        },
        count: match edge.to {
            EdgeTarget::Block(to) if edge.kind == EdgeKind::CallReturn => {
                let branches = branches_to(to);
                Some(
                    arrivals(blocks[to.index()].start)
                        .filter(|((from, _), _)| !branches.contains(from))
                        .map(|(_, n)| n)
                        .sum(),
                )
            }
            EdgeTarget::Block(to) => Some(step(last[edge.from.index()], blocks[to.index()].start)),
            EdgeTarget::Outside(at) => Some(step(last[edge.from.index()], at)),
            EdgeTarget::Dynamic if edge.kind == EdgeKind::Return => Some(blocks[edge.from.index()].count),
            EdgeTarget::Dynamic => None,
        },
    });
    let calls = image.call_sites(function).unwrap_or_default().into_iter().filter_map(|call| {
        let block = last.iter().position(|last| *last == call.at)?;
        let callee = match call.callee {
            model::Callee::Direct(at) => match image.functions().iter().find(|f| f.start() == at) {
                Some(stub) if stub.kind() == FunctionKind::Stub => CallTarget::Named(name(stub)),
                _ => CallTarget::Own(at),
            },
            model::Callee::Slot(_) | model::Callee::Computed => CallTarget::Indirect,
        };
        Some(CallCount { block, callee, count: blocks[block].count })
    });
    let own = cfg.entry.map_or_else(Vec::new, branches_to);
    FunctionProfile {
        module: 0,
        name: name(function),
        start: function.start(),
        size: function.size(),
        calls: arrivals(function.start()).filter(|((from, _), _)| !own.contains(from)).map(|(_, n)| n).sum(),
        edges: edges.collect(),
        call_sites: calls.collect(),
        blocks,
        unknown: Vec::new(),
        inexact: None,
        details: None,
        paths: None,
    }
}

fn name(function: &Function) -> String {
    let name = function.names().first().map(|name| name.mangled().to_owned());
    name.unwrap_or_else(|| function.display_name().into_owned()).trim_end_matches("@plt").to_owned()
}

fn counted<'a>(
    block: &model::Block,
    last: Svma,
    arrivals: impl Iterator<Item = (&'a (u64, u64), &'a u64)>,
) -> BlockCount {
    BlockCount {
        start: block.range.start,
        size: (block.range.end.0 - block.range.start.0) as u32,
        instructions: block.instructions,
        last,
        count: arrivals.map(|(_, count)| count).sum(),
    }
}

fn last(image: &AnalysedImage, block: &model::Block) -> Svma {
    let (start, end) = (block.range.start, block.range.end);
    let bytes = image.bytes_at(start, (end.0 - start.0) as usize).expect("the bytes of a block");
    Svma(disassemble(start.0, bytes).last().expect("an instruction").at)
}
