//! The coverage format of lcov (the "tracefile" of geninfo(1)), which genhtml and many services read.
//!
//! The count of a line is the largest count of its instructions, summed over the places to which the line was compiled: functions that it
//! was inlined into, and copies of a template. In a coverage, the count is 1 or 0. A line of which it is not known whether it has run is left
//! out, and a branch of which it is not known has the count `-`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Exporter;
use super::text::one_line;
use crate::code::SourceFrame;
use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "lcov",
    reader: "genhtml",
    kinds: &[ProfileKind::Counts, ProfileKind::Coverage],
    of_one_module: false,
    why_empty: Some(
        "no profiled function has source lines; compile with -g, or name a file with debugging information by --binary",
    ),
    write: |program, _| lcov(program).into(),
};

/// Counts of the lines, branches and functions of the source files of all profiled functions. Code without a source line is left out.
fn lcov(program: &ProfiledProgram<'_>) -> String {
    let mut text = String::new();
    for (path, source) in &sources(program) {
        source.write(path, &mut text);
    }
    text
}

/// Number of the source lines that have run, and of all of which it is known.
pub fn ran_lines(program: &ProfiledProgram<'_>) -> (u64, u64) {
    let counts = line_counts(program);
    let all = || counts.values().flat_map(BTreeMap::values);
    (all().filter(|count| **count > 0).count() as u64, all().count() as u64)
}

/// Counts of the lines of the source files of all profiled functions, by path and number.
pub(super) fn line_counts(program: &ProfiledProgram<'_>) -> BTreeMap<Rc<str>, BTreeMap<u32, u64>> {
    sources(program).into_iter().map(|(path, source)| (path, source.lines)).collect()
}

fn sources(program: &ProfiledProgram<'_>) -> BTreeMap<Rc<str>, SourceCounts> {
    let mut files = BTreeMap::new();
    let kind = program.profile().kind;
    for routine in program.functions() {
        function(&routine, kind, &mut files);
    }
    for source in files.values_mut() {
        let SourceCounts { lines, doubtful, .. } = source;
        lines.retain(|line, count| *count > 0 || !doubtful.contains(line));
        if kind == ProfileKind::Coverage {
            lines.values_mut().for_each(|count| *count = (*count).min(1));
        }
    }
    files
}

/// Counts of a source file.
#[derive(Default)]
struct SourceCounts {
    /// Counts of the calls of functions by line and name.
    functions: BTreeMap<(u32, String), u64>,
    /// Counts of the branches at the end of each block, by the line of the last instruction. `None`: the block was not executed,
    /// or it is not known whether the branch was taken.
    branches: BTreeMap<u32, Vec<Vec<Option<u64>>>>,
    lines: BTreeMap<u32, u64>,
    /// Lines with code of which it is not known whether it has run.
    doubtful: BTreeSet<u32>,
}

impl SourceCounts {
    fn write(&self, path: &str, text: &mut String) {
        // Writing to a text does not fail.
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            let _written = text.write_fmt(arguments);
            text.push('\n');
        };
        line(format_args!("TN:\nSF:{}", one_line(path)));
        for (at, name) in self.functions.keys() {
            line(format_args!("FN:{at},{}", one_line(name)));
        }
        for ((_, name), count) in &self.functions {
            line(format_args!("FNDA:{count},{}", one_line(name)));
        }
        let hit = self.functions.values().filter(|count| **count > 0).count();
        line(format_args!("FNF:{}\nFNH:{hit}", self.functions.len()));
        let (mut found, mut hit) = (0, 0);
        for (at, blocks) in &self.branches {
            for (block, branches) in blocks.iter().enumerate() {
                for (branch, count) in branches.iter().enumerate() {
                    let taken = count.map_or_else(|| "-".to_owned(), |count| count.to_string());
                    line(format_args!("BRDA:{at},{block},{branch},{taken}"));
                    found += 1;
                    hit += u64::from(count.is_some_and(|count| count > 0));
                }
            }
        }
        line(format_args!("BRF:{found}\nBRH:{hit}"));
        for (at, count) in &self.lines {
            line(format_args!("DA:{at},{count}"));
        }
        let hit = self.lines.values().filter(|count| **count > 0).count();
        line(format_args!("LF:{}\nLH:{hit}\nend_of_record", self.lines.len()));
    }
}

/// Line of a source file. The file is known by the address of its path, which all frames of a module share.
type LineKey = (usize, u32);

/// A line at one of the places to which it was compiled: the calls that were inlined around it, and the line itself.
type LineInstance = (Vec<LineKey>, LineKey);

/// Adds the counts of a function.
fn function(routine: &ProfiledRoutine<'_>, kind: ProfileKind, files: &mut BTreeMap<Rc<str>, SourceCounts>) {
    let mut paths: FxHashMap<usize, Rc<str>> = FxHashMap::default();
    let mut lines: FxHashMap<LineInstance, u64> = FxHashMap::default();
    let mut around: FxHashMap<LineKey, u64> = FxHashMap::default();
    let mut doubtful: FxHashSet<LineKey> = FxHashSet::default();
    for (number, block) in routine.function.blocks.iter().enumerate() {
        for step in routine.steps(block) {
            let frames = routine.frames(step.at);
            let mut positions = frames.iter().filter(|frame| known(frame)).map(|frame| {
                let file = frame.file.as_ptr().addr();
                paths.entry(file).or_insert_with(|| Rc::clone(&frame.file));
                (file, frame.line)
            });
            let Some(own) = positions.next() else { continue };
            let outer: Vec<LineKey> = positions.collect();
            if routine.function.ran(number).is_none() {
                doubtful.extend(outer.into_iter().chain([own]));
                continue;
            }
            for position in &outer {
                let least = around.entry(*position).or_default();
                *least = if *least == 0 { block.count } else { (*least).min(block.count.max(1)) };
            }
            let most = lines.entry((outer, own)).or_default();
            *most = (*most).max(block.count);
        }
        branches(routine, number, kind, files);
    }
    let mut sums: FxHashMap<LineKey, u64> = FxHashMap::default();
    for ((_, position), count) in lines {
        let sum = sums.entry(position).or_default();
        *sum = sum.saturating_add(count);
    }
    // If the line of an inlined call has no instruction of its own, it was executed when the inlined code was.
    for (position, count) in around {
        sums.entry(position).or_insert(count);
    }
    for ((file, line), count) in sums {
        let Some(path) = paths.get(&file) else { continue };
        let sum = files.entry(Rc::clone(path)).or_default().lines.entry(line).or_default();
        *sum = sum.saturating_add(count);
    }
    for (file, line) in doubtful {
        let Some(path) = paths.get(&file) else { continue };
        files.entry(Rc::clone(path)).or_default().doubtful.insert(line);
    }
    calls(routine, files);
}

/// Adds the calls of a function, unless it is not known whether it was called.
fn calls(routine: &ProfiledRoutine<'_>, files: &mut BTreeMap<Rc<str>, SourceCounts>) {
    let entry = routine.function.blocks.iter().position(|block| block.start == routine.function.start);
    if entry.is_some_and(|entry| routine.function.ran(entry).is_none()) {
        return;
    }
    let frames = routine.frames(routine.function.start);
    if let Some(outermost) = frames.last().filter(|frame| known(frame)) {
        let line = if outermost.declared > 0 { outermost.declared } else { outermost.line };
        let functions = &mut files.entry(Rc::clone(&outermost.file)).or_default().functions;
        let calls = functions.entry((line, routine.function.name.clone())).or_default();
        *calls = calls.saturating_add(routine.function.calls);
    }
}

fn known(frame: &SourceFrame) -> bool {
    frame.line > 0 && !frame.file.is_empty()
}

/// Adds the branches at the end of a block, if it has several. In a profile of counts, all of their counts must be known.
fn branches(
    routine: &ProfiledRoutine<'_>,
    block: usize,
    kind: ProfileKind,
    files: &mut BTreeMap<Rc<str>, SourceCounts>,
) {
    let edges: Vec<Option<u64>> = routine.edges_from(block).map(|edge| edge.count).collect();
    let all_known = edges.iter().all(Option::is_some);
    let Some(block) = routine.function.blocks.get(block).filter(|_| edges.len() > 1) else { return };
    if kind == ProfileKind::Counts && !all_known {
        return;
    }
    let Some(frame) = routine.frames(block.last).into_iter().find(known) else { return };
    let counts = edges.into_iter().map(|count| count.filter(|_| block.count > 0)).collect();
    files.entry(frame.file).or_default().branches.entry(frame.line).or_default().push(counts);
}
