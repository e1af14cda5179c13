//! Control-flow graphs of real programs, compared with what `objdump` decodes and with what single-stepped programs execute.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use ingraft_analysis::{AnalysedImage, Function, FunctionKind};
use ingraft_model::{BlockId, Cfg, EdgeKind, EdgeTarget, Loops, Svma, WayInReason};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::system::compile;

/// The instructions of a block.
fn instructions(image: &AnalysedImage, start: Svma, end: Svma) -> Vec<Instruction> {
    let len = (end.0 - start.0) as usize;
    let bytes = image.bytes_at(start, len).unwrap();
    Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).into_iter().collect()
}

/// Every graph of an image agrees with itself.
fn assert_consistent(image: &AnalysedImage, f: &Function, cfg: &Cfg) {
    let name = f.display_name();
    let sorted = cfg.blocks.as_slice().is_sorted_by_key(|b| b.range.start) && cfg.edges.as_slice().is_sorted();
    assert!(sorted && cfg.ways_in.is_sorted());
    let covered: u64 = cfg.blocks.iter().map(|b| b.range.end.0 - b.range.start.0).sum();
    assert!(covered <= 2 * (f.size() + f.parts().iter().map(|p| p.end.0 - p.start.0).sum::<u64>()), "{name}");
    for (index, block) in cfg.blocks.entries() {
        let decoded = instructions(image, block.range.start, block.range.end);
        assert_eq!(decoded.len() as u32, block.instructions, "{name} {block:?}");
        assert!(f.contains(block.range.start), "{name} {block:?}");
        let (last, before) = decoded.split_last().unwrap();
        assert!(before.iter().all(|i| i.flow_control() == FlowControl::Next), "{name} {block:?}");
        for (_, edge) in cfg.edges_from(index) {
            let to = match edge.to {
                EdgeTarget::Block(to) => cfg.blocks.get(to).expect("a block").range.start.0,
                EdgeTarget::Outside(to) => to.0,
                EdgeTarget::Dynamic => continue,
            };
            match edge.kind {
                EdgeKind::FallThrough | EdgeKind::CallReturn => assert_eq!(to, last.next_ip(), "{name}"),
                EdgeKind::Taken => assert_eq!(to, last.near_branch_target(), "{name}"),
                _ => {}
            }
        }
    }
    for way in cfg.ways_in.iter().filter(|way| way.reason != WayInReason::Resumed) {
        assert!(cfg.block_at(way.at).is_some(), "{name} {way:x?}");
    }
    let loops = Loops::of(cfg);
    assert!(loops.all().iter().all(|one| one.body.contains(&one.header) && !one.latches.is_empty()), "{name}");
}

/// Starts of the instructions that `objdump` lists; those with a `lock` prefix have a second one behind it.
fn objdump_starts(file: &Path) -> Option<BTreeSet<u64>> {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(file).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut starts = BTreeSet::new();
    for line in text.lines() {
        let Some((address, instruction)) = line.split_once(":\t") else { continue };
        if let Ok(address) = u64::from_str_radix(address.trim(), 16) {
            starts.insert(address);
            starts.extend(instruction.starts_with("lock ").then_some(address + 1));
        }
    }
    Some(starts)
}

#[test]
fn blocks_hold_the_instructions_that_objdump_lists() {
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/bin/python3.11",
        "/usr/bin/perl",
        "/bin/bash",
        "/lib64/ld-linux-x86-64.so.2",
    ] {
        let (Ok(bytes), Some(expected)) = (std::fs::read(path), objdump_starts(Path::new(path))) else {
            eprintln!("skipped: no {path} or no objdump");
            continue;
        };
        let image = AnalysedImage::parse(bytes.into()).unwrap();
        let (mut found, mut wrong, mut graphs, mut proven) = (BTreeSet::new(), Vec::new(), 0, 0);
        for f in image.functions().iter().filter(|f| f.kind() != FunctionKind::Stub) {
            let cfg = image.cfg(f);
            assert_consistent(&image, f, &cfg);
            graphs += 1;
            proven += usize::from(cfg.ways_in_proven.is_ok());
            for block in &cfg.blocks {
                for i in instructions(&image, block.range.start, block.range.end) {
                    found.insert(i.ip());
                    if !expected.contains(&i.ip()) {
                        wrong.push((f.display_name().into_owned(), i.ip()));
                    }
                }
            }
        }
        // `objdump` reads on through data in text, and is out of step behind it.
        assert!(wrong.len() * 20_000 <= found.len(), "{path}: {} of {}: {wrong:x?}", wrong.len(), found.len());
        assert!(proven * 100 >= graphs * 98, "{path}: {proven} of {graphs}");
        let covered = expected.intersection(&found).count();
        assert!(covered * 100 >= expected.len() * 90, "{path}: {covered} of {}", expected.len());
    }
}

/// A file that a stepped program has mapped.
struct Module {
    image: AnalysedImage,
    bias: u64,
    /// Start, end and function of each head and part, sorted.
    pieces: Vec<(u64, u64, usize)>,
    graphs: Vec<OnceCell<Graph>>,
}

/// A graph with the index of each instruction's block.
struct Graph {
    cfg: Cfg,
    blocks: BTreeMap<u64, (BlockId, Instruction)>,
}

impl Module {
    fn new(path: &Path, bias_of: impl Fn(&AnalysedImage) -> u64) -> Option<Module> {
        let image = AnalysedImage::parse(std::fs::read(path).ok()?.into()).ok()?;
        let bias = bias_of(&image);
        let numbered = image.functions().iter().enumerate().filter(|(_, f)| f.kind() != FunctionKind::Stub);
        let pieces = numbered.flat_map(|(n, f)| {
            let ranges = std::iter::once(f.range()).chain(f.parts().iter().cloned());
            ranges.map(move |range| (range.start.0, range.end.0, n)).collect::<Vec<_>>()
        });
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_unstable();
        let graphs = image.functions().iter().map(|_| OnceCell::new()).collect();
        Some(Module { image, bias, pieces, graphs })
    }

    fn function_at(&self, at: u64) -> Option<usize> {
        let after = self.pieces.partition_point(|piece| piece.0 <= at);
        self.pieces[..after].last().filter(|piece| at < piece.1).map(|piece| piece.2)
    }

    fn graph(&self, function: usize) -> &Graph {
        self.graphs[function].get_or_init(|| {
            let cfg = self.image.cfg(&self.image.functions()[function]);
            let mut blocks = BTreeMap::new();
            for (index, block) in cfg.blocks.entries() {
                let decoded = instructions(&self.image, block.range.start, block.range.end);
                blocks.extend(decoded.into_iter().map(|i| (i.ip(), (index, i))));
            }
            Graph { cfg, blocks }
        })
    }
}

/// Place at which stepping through a program begins.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// The first instruction.
    Start,
    /// The signal SIGUSR1, which the program sends itself and does not get.
    Signal,
}

/// The program counters of `steps` instructions of a program, and its memory map at the end.
fn trace(command: &[&str], begin: From, steps: usize) -> Option<(Vec<u64>, String)> {
    // A shell waits until it is traced and becomes the program then.
    let mut child = Command::new("/bin/sh");
    child.args(["-c", "read -r go && exec \"$0\" \"$@\""]).args(command);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let options = ptrace::Options::PTRACE_O_TRACEEXEC | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).ok()?;
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let wait = || waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
    assert!(matches!(wait(), WaitStatus::PtraceEvent(..)), "the shell becomes the program");
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    if begin == From::Signal {
        loop {
            ptrace::cont(pid, None).unwrap();
            match wait() {
                WaitStatus::Stopped(_, Signal::SIGUSR1) => break,
                WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => {}
                other => panic!("{command:?}: {other:?}"),
            }
        }
    }
    let (mut counters, mut map) = (Vec::with_capacity(steps), maps());
    let mut deliver = None;
    while counters.len() < steps {
        ptrace::step(pid, deliver).unwrap();
        deliver = match wait() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => break,
        };
        let at = ptrace::getregs(pid).unwrap().rip;
        // A repetition of a string instruction, and a stop without a step.
        if counters.last() != Some(&at) {
            counters.push(at);
        }
        if counters.len() % 4096 == 0 {
            map = maps();
        }
    }
    child.kill().ok();
    child.wait().ok();
    Some((counters, map))
}

/// The files of a memory map from which code is executed.
fn modules(map: &str) -> Vec<(u64, u64, Module)> {
    let mut lowest: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut code = Vec::new();
    for line in map.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, rights, _, _, _, path] = words[..] else { continue };
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let path = PathBuf::from(path);
        lowest.entry(path.clone()).or_insert(number(start));
        if rights.contains('x') && path.is_absolute() {
            code.push((number(start), number(end), path));
        }
    }
    let module = |(start, end, path): (u64, u64, PathBuf)| {
        let first = lowest[&path];
        let bias =
            |image: &AnalysedImage| first.wrapping_sub(image.segments().first().map_or(0, |s| s.svma.0 & !0xfff));
        Some((start, end, Module::new(&path, bias)?))
    };
    code.into_iter().filter_map(module).collect()
}

/// Checks one executed transfer from `from` to `to`, both addresses of the file; `from` is `None` if it was in another file.
fn transfer_is_known(module: &Module, from: Option<u64>, to: u64) -> Result<bool, String> {
    let Some(function) = module.function_at(to) else { return Ok(false) };
    let graph = module.graph(function);
    if graph.cfg.ways_in_proven.is_err() {
        return Ok(false);
    }
    let name = module.image.functions()[function].display_name();
    let Some((block, _)) = graph.blocks.get(&to) else {
        return Err(format!("{name}: {to:#x} is no known instruction"));
    };
    let range = |block| &graph.cfg.blocks.get(block).expect("a block").range;
    let begins = range(*block).start.0 == to;
    let own = from.filter(|from| module.function_at(*from) == Some(function));
    let before = own.and_then(|from| graph.blocks.get(&from));
    if let Some((from_block, i)) = before {
        if from_block == block && i.next_ip() == to && !begins {
            return Ok(true);
        }
        let last = range(*from_block).end.0 == i.next_ip();
        let leads = graph.cfg.edges_from(*from_block).any(|(_, edge)| edge.to == EdgeTarget::Block(*block));
        if last && begins && leads {
            return Ok(true);
        }
        let leaves = matches!(
            i.flow_control(),
            FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Call | FlowControl::IndirectCall
        );
        if !leaves {
            return Err(format!("{name}: no edge from {:#x} to {to:#x}", i.ip()));
        }
        if i.flow_control() == FlowControl::IndirectBranch
            && graph.cfg.reasons_at(Svma(to)).all(|r| r == WayInReason::JumpTable)
        {
            return Err(format!("{name}: no edge from the jump at {:#x} to {to:#x}", i.ip()));
        }
    }
    if graph.cfg.reasons_at(Svma(to)).next().is_none() {
        return Err(format!("{name}: {to:#x} is no known way in, from {from:x?}"));
    }
    Ok(true)
}

/// Steps through a program and checks every executed transfer. Returns the names of the functions that have run.
fn assert_traced(command: &[&str], begin: From, steps: usize) -> Option<BTreeSet<String>> {
    let Some((counters, map)) = trace(command, begin, steps) else {
        eprintln!("skipped: {command:?} cannot be traced here");
        return None;
    };
    let modules = modules(&map);
    let place = |at: u64| modules.iter().position(|m| (m.0..m.1).contains(&at));
    let (mut checked, mut wrong) = (0, BTreeSet::new());
    let mut seen = BTreeSet::new();
    let mut last = None;
    for at in counters {
        let here = place(at);
        if let Some(index) = here
            && last.is_some()
            && seen.insert((last, at))
        {
            let module = &modules[index].2;
            let from = last.filter(|from| place(*from) == here).map(|from: u64| from.wrapping_sub(module.bias));
            match transfer_is_known(module, from, at.wrapping_sub(module.bias)) {
                Ok(known) => checked += usize::from(known),
                Err(why) => {
                    wrong.insert(why);
                }
            }
        }
        last = Some(at);
    }
    assert!(wrong.is_empty(), "{command:?}: {} of {checked}: {wrong:#?}", wrong.len());
    assert!(checked > 500, "{command:?}: {checked} different transfers");
    let run = |(_, _, module): &(u64, u64, Module)| {
        let known = module.graphs.iter().enumerate().filter(|(_, graph)| graph.get().is_some()).map(|(n, _)| n);
        known.map(|n| module.image.functions()[n].display_name().into_owned()).collect::<Vec<_>>()
    };
    Some(modules.iter().flat_map(run).collect())
}

#[test]
fn executed_transfers_are_known() {
    assert_traced(
        &["/usr/bin/perl", "-e", "my %h; $h{$_ % 7} .= chr for 1..40; print sort { $a <=> $b } keys %h"],
        From::Start,
        250_000,
    );
    assert_traced(
        &["/bin/bash", "-c", "for i in 1 2 3; do case $i in 1) echo a;; *) printf '%05d %s' $i x;; esac; done"],
        From::Start,
        250_000,
    );
    assert_traced(&["/bin/ls", "-la", "/"], From::Start, 250_000);
}

#[test]
#[ignore = "five million steps take half a minute"]
fn executed_transfers_of_an_interpreter_are_known() {
    assert_traced(
        &["/usr/bin/python3.11", "-S", "-c", "print(sorted({i: str(i) for i in range(9)}))"],
        From::Start,
        5_000_000,
    );
}

const SHAPES: &str = "
    #include <stdexcept>
    #include <setjmp.h>
    #include <signal.h>
    #include <stdio.h>
    static jmp_buf place;
    __attribute__((noinline)) int pick(int n, int a) {
        switch (n) {
        case 0: return a * 3; case 1: return a / 7; case 2: return a ^ 0x55; case 3: return a + n;
        case 4: return a - 9; case 5: return a << 3; case 6: return a % 11; case 9: throw std::runtime_error(\"x\");
        default: return 0;
        }
    }
    __attribute__((noinline)) int threaded(const unsigned char *p, int a) {
        static void *const labels[] = { &&add, &&sub, &&end };
        goto *labels[*p++];
        add: a += 5; goto *labels[*p++];
        sub: a *= 3; goto *labels[*p++];
        end: return a;
    }
    __attribute__((noinline)) int distances(const unsigned char *p, int a) {
        static const int labels[] = { 0, (int)((char *)&&sub - (char *)&&add), (int)((char *)&&end - (char *)&&add) };
        goto *((char *)&&add + labels[*p++]);
        add: a += 5; goto *((char *)&&add + labels[*p++]);
        sub: a *= 3; goto *((char *)&&add + labels[*p++]);
        end: return a;
    }
    __attribute__((noinline)) int caught(int n) { try { return pick(n, 4); } catch (const std::exception &) { return 7; } }
    __attribute__((noinline)) void leave(int n) { if (n > 2) longjmp(place, n); }
    int main() {
        int sum = 0;
        raise(SIGUSR1);
        const unsigned char code[] = { 0, 1, 1, 0, 2 };
        sum += threaded(code, sum & 3) + distances(code, 1);
        if (setjmp(place) == 0) for (int i = 0; i < 5; i++) leave(i);
        for (int i = 0; i < 12; i++) sum += pick(i % 7, sum & 15) + caught(i);
        printf(\"%d %g %s\\n\", sum, sum / 3.0, \"text\");
        return 0;
    }
";

#[test]
fn executed_transfers_of_compiled_shapes_are_known() {
    let full = ["-O3", "-fcf-protection=full"];
    for arguments in [&["-O2"][..], &["-O0"], &["-O2", "-no-pie", "-fno-pie"], &full, &["-Os", "-static"]] {
        let Some((_dir, program)) = compile(SHAPES, "g++", arguments) else { return };
        let Some(traced) = assert_traced(&[program.to_str().unwrap()], From::Signal, 200_000) else { return };
        for name in ["main", "pick", "threaded", "distances", "caught", "leave"] {
            assert!(traced.iter().any(|traced| traced.starts_with(name)), "{arguments:?}: {name} has not run");
        }
    }
}
