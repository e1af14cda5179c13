//! Wherever control can arrive in text that was changed stands an original instruction or a jump. The addresses of instructions and the targets of
//! branches are those of `objdump`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Mapping};
use ingraft_testing::{Mutatee, find, have, output, skip};

use crate::tool;

/// Number of bytes of a jump behind its first one. Some of them may happen to be those of the original.
const DISPLACEMENT: u64 = 4;

/// An instruction as the disassembler shows it.
struct Listed {
    length: usize,
    /// Address to which it branches, if that is fixed.
    target: Option<u64>,
    /// Where control goes on.
    behind: Behind,
}

/// Ways in which control goes on behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Control goes on there.
    Next,
    /// Control goes on there, or nothing does: a call that may never return.
    Call,
    /// Control never goes on there.
    End,
    /// The instruction does nothing, so it may fill a gap.
    Filler,
}

/// The instructions of a file, by address.
fn listing(path: &str) -> BTreeMap<u64, Listed> {
    let text = output(Command::new("objdump").args(["-d", "-w", path]));
    let parse = |line: &str| {
        let (at, rest) = line.trim_start().split_once(":\t")?;
        let (bytes, words) = rest.split_once('\t').unwrap_or((rest, ""));
        let mut words = words
            .split_whitespace()
            .skip_while(|word| ["bnd", "notrack", "lock", "rep", "repz", "ds", "cs"].contains(word));
        let name = words.next().unwrap_or("(bad)");
        let branches =
            name.starts_with('j') || name.starts_with("call") || name.starts_with("loop") || name == "xbegin";
        let target = words.next().filter(|_| branches).and_then(|word| u64::from_str_radix(word, 16).ok());
        let behind = match name {
            _ if name.starts_with("jmp") || name.starts_with("ret") => Behind::End,
            "hlt" | "ud2" | "(bad)" => Behind::End,
            _ if name.starts_with("call") => Behind::Call,
            _ if name.contains("nop") || name == "data16" || line.ends_with("xchg   %ax,%ax") => Behind::Filler,
            _ => Behind::Next,
        };
        let length = bytes.split_whitespace().count();
        Some((u64::from_str_radix(at, 16).ok()?, Listed { length, target, behind }))
    };
    text.lines().filter_map(parse).collect()
}

/// Facts about a file before its text is changed.
struct Known {
    listing: BTreeMap<u64, Listed>,
    pointers: BTreeSet<u64>,
}

/// Distance from offsets in a file to the addresses in its listing, for the segment that holds an offset.
fn distance(path: &str, offset: u64) -> Option<u64> {
    let text = output(Command::new("readelf").args(["-lW", path]));
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let segment = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [start, address, size] = [1, 2, 4].map(|n| words.get(n).and_then(|word| number(word)));
        (words.first() == Some(&"LOAD")).then_some((start?, address?, size?))
    };
    let mut segments = text.lines().filter_map(segment);
    let (start, address, _) = segments.find(|(start, _, size)| (start & !0xfff..start + size).contains(&offset))?;
    Some(address - start)
}

/// Addresses to which pointers in the data of a position-independent file lead.
fn pointers(path: &str) -> BTreeSet<u64> {
    let text = output(Command::new("readelf").args(["-rW", path]));
    let relative = text.lines().filter(|line| line.contains("R_X86_64_RELATIVE"));
    relative.filter_map(|line| u64::from_str_radix(line.split_whitespace().last()?, 16).ok()).collect()
}

/// Whether an instruction is a jump, or differs from the original in its displacement alone.
fn leads(now: &[u8], original: &[u8]) -> bool {
    let fixed = original.len().saturating_sub(4);
    matches!(now.first(), Some(0xe9 | 0xeb)) || fixed > 0 && now.get(..fixed) == original.get(..fixed)
}

/// The places in the text of a mapping where control arrives and something else stands. Also the number of changed instructions.
fn astray(memory: &File, mapping: &Mapping, known: &mut BTreeMap<String, Known>) -> (Vec<String>, usize) {
    let mut now = vec![0; usize::try_from(mapping.end - mapping.start).expect("a size")];
    memory.read_exact_at(&mut now, mapping.start).expect("the text");
    let file = File::open(&mapping.name).expect("the file");
    let (mut original, mut read) = (vec![0; now.len()], 0);
    while let Ok(more @ 1..) = file.read_at(&mut original[read..], mapping.offset + read as u64) {
        read += more;
    }
    if now[..read] == original[..read] {
        return (Vec::new(), 0);
    }
    let first = mapping.offset + distance(&mapping.name, mapping.offset).expect("a segment");
    let part = |bytes: &[u8], at: u64, length: usize| -> Vec<u8> {
        let from = usize::try_from(at.wrapping_sub(first)).unwrap_or(usize::MAX);
        bytes.get(from..from.saturating_add(length).min(read)).unwrap_or_default().to_vec()
    };
    let name = &mapping.name;
    let new = || Known { listing: listing(name), pointers: pointers(name) };
    let Known { listing, pointers } = known.entry(name.clone()).or_insert_with(new);
    let same = |from: u64, to: u64| {
        let length = usize::try_from(to - from).expect("a length");
        part(&now, from, length) == part(&original, from, length)
    };
    let (mut arrivals, mut fills) = (pointers.clone(), true);
    for (at, listed) in &*listing {
        let end = at + listed.length as u64;
        fills = match listed.behind {
            Behind::Filler => fills,
            Behind::Call | Behind::End => true,
            Behind::Next => false,
        };
        if same(first.max(at.saturating_sub(DISPLACEMENT)), end) {
            arrivals.extend(listed.target);
            let goes_on = !fills || listed.behind == Behind::Call;
            let padding =
                listing.get(&end).is_some_and(|next| listed.behind == Behind::Call && next.behind == Behind::Filler);
            arrivals.extend((goes_on && !padding).then_some(end));
        }
    }
    let (mut found, mut changed) = (Vec::new(), 0);
    for at in arrivals {
        // A branch may lead behind a prefix, where no instruction of the listing begins.
        let Some((start, listed)) = listing.range(..=at).next_back() else { continue };
        let end = start + listed.length as u64;
        if end <= at || same(at, end) {
            continue;
        }
        changed += 1;
        let [is, was] = [&now, &original].map(|bytes| part(bytes, at, usize::try_from(end - at).expect("a length")));
        if !leads(&is, &was) {
            found.push(format!("{} {at:#x}: {is:02x?}, originally {was:02x?}", mapping.name));
        }
    }
    (found, changed)
}

/// Weaves everything into a process, and examines its text. Files with data between functions have instructions that are none.
fn assert_arrivals(pid: i32, files_with_data: &[&str]) {
    let kinds: [&[&str]; 6] = [
        &["count"],
        &["latency", "--max-overhead", "1000000"],
        &["profile", "coverage"],
        &["profile", "edges"],
        &["profile", "contexts", "--max-overhead", "1000000"],
        &["profile", "paths", "--max-overhead", "1000000"],
    ];
    let (tool, mut known) = (tool(), BTreeMap::new());
    for kind in kinds {
        let pid_text = pid.to_string();
        let mut session = tool.start([kind, &["-p", &pid_text, "*"]].concat());
        session.wait_for("attached");
        let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
        let is_text = |m: &Mapping| m.permissions.contains('x') && m.name.starts_with('/');
        let texts = target::maps(pid).into_iter().filter(is_text);
        let texts = texts.filter(|m| files_with_data.iter().all(|name| !m.name.contains(name)));
        let examined: Vec<_> = texts.map(|mapping| astray(&memory, &mapping, &mut known)).collect();
        let changed: usize = examined.iter().map(|(_, changed)| changed).sum();
        let found: Vec<&String> = examined.iter().flat_map(|(found, _)| found).collect();
        println!("{kind:?}: {changed} places");
        assert!(found.is_empty(), "{kind:?}: {found:#?}");
        assert!(changed > 500, "{kind:?} changed {changed} places only");
        let _ = session.interrupt().assert_code(0).assert_removed();
    }
}

#[test]
fn control_arrives_at_whole_instructions_in_a_program_with_threads() {
    if !have("objdump") {
        skip!("no objdump");
    }
    assert_arrivals(Mutatee::start("prefixes", &[]).pid(), &[]);
}

#[test]
fn control_arrives_at_whole_instructions_in_interpreters() {
    let mut seen = 0;
    for (program, arguments) in [("perl", &["-e", "<STDIN>"]), ("sqlite3", &["-batch", ":memory:"])] {
        let Some(path) = find(program).filter(|_| have("objdump")) else { continue };
        let mut command = Command::new(path);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a program");
        let pid = i32::try_from(child.id()).expect("a process id");
        ingraft_testing::wait_until("the program waits for its input", || target::waits_in(pid, 0));
        assert_arrivals(pid, &["libcrypto"]);
        drop(child.stdin.take());
        assert!(child.wait().expect("the program").success());
        seen += 1;
    }
    if seen == 0 {
        skip!("neither perl nor sqlite3, or no objdump");
    }
}
