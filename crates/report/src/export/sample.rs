//! The text format of LLVM's sample profiles, which `clang -fprofile-sample-use` and llvm-profdata read
//! (llvm/include/llvm/ProfileData/SampleProfReader.h).
//!
//! A function is a line `NAME:TOTAL:CALLS`. Each of its source lines is a line `OFFSET[.DISCRIMINATOR]: COUNT [CALLEE:COUNT …]`, with the
//! distance from the line at which the function is declared. Functions that were inlined are nested, one blank deeper. The count of a
//! line is the largest count of its instructions, as llvm-profgen computes it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use super::Exporter;
use super::text::one_line;
use crate::code::SourceFrame;
use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::{CallTarget, ProfileKind};

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "llvm-sample",
    reader: "clang -fprofile-sample-use",
    kinds: &[ProfileKind::Counts],
    of_one_module: true,
    why_empty: None,
    write: |program, options| llvm_sample(program, options.module).into(),
};

/// A profile by source lines for clang. `module` is the index of the module. Functions that
/// were not executed, and code without a source line, are left out.
fn llvm_sample(program: &ProfiledProgram<'_>, module: usize) -> String {
    let mut functions: BTreeMap<Rc<str>, Samples> = BTreeMap::new();
    let routines = program.functions().filter(|routine| routine.function.module == module);
    for routine in routines.filter(|routine| routine.function.executed() > 0) {
        let mut samples = Samples::default();
        let Some(name) = add(program, &routine, &mut samples) else { continue };
        samples.calls = routine.function.calls;
        functions.entry(name).or_default().merge(samples);
    }
    let mut text = String::new();
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|(_, samples)| std::cmp::Reverse(samples.total()));
    for (name, samples) in &functions {
        // Writing to a text does not fail.
        let _written = writeln!(text, "{}:{}:{}", one_line(name), samples.total(), samples.calls);
        samples.write(1, &mut text);
    }
    text
}

/// Distance from the declaration of the function, and discriminator.
type LineLocation = (u32, u64);

/// The samples of a function, or of an inlined copy of one.
#[derive(Default)]
struct Samples {
    calls: u64,
    /// Counts of lines, with the called functions.
    lines: BTreeMap<LineLocation, (u64, BTreeMap<String, u64>)>,
    inlined: BTreeMap<(LineLocation, Rc<str>), Samples>,
}

impl Samples {
    fn total(&self) -> u64 {
        let lines = self.lines.values().fold(0, |sum: u64, (count, _)| sum.saturating_add(*count));
        self.inlined.values().fold(lines, |sum, inlined| sum.saturating_add(inlined.total()))
    }

    /// Adds the samples of another copy of the function.
    fn merge(&mut self, other: Samples) {
        self.calls = self.calls.saturating_add(other.calls);
        for (place, (count, callees)) in other.lines {
            let line = self.lines.entry(place).or_default();
            line.0 = line.0.saturating_add(count);
            for (callee, count) in callees {
                let sum = line.1.entry(callee).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        for (key, inlined) in other.inlined {
            self.inlined.entry(key).or_default().merge(inlined);
        }
    }

    /// Writes the lines, with this number of blanks before each.
    fn write(&self, depth: usize, text: &mut String) {
        for ((offset, discriminator), (count, callees)) in &self.lines {
            let _written = write!(text, "{:depth$}{}: {count}", "", numbers(*offset, *discriminator));
            for (callee, count) in callees {
                let _written = write!(text, " {}:{count}", one_line(callee));
            }
            text.push('\n');
        }
        for (((offset, discriminator), name), inlined) in &self.inlined {
            let (place, total) = (numbers(*offset, *discriminator), inlined.total());
            let _written = writeln!(text, "{:depth$}{place}: {}:{total}", "", one_line(name));
            inlined.write(depth + 1, text);
        }
    }
}

fn numbers(offset: u32, discriminator: u64) -> String {
    if discriminator == 0 { offset.to_string() } else { format!("{offset}.{discriminator}") }
}

/// Adds the counts of a function. Returns the name of the function in the debugging information; `None` if no instruction has lines.
fn add(program: &ProfiledProgram<'_>, routine: &ProfiledRoutine<'_>, samples: &mut Samples) -> Option<Rc<str>> {
    let mut name = None;
    for (number, block) in routine.function.blocks.iter().enumerate() {
        for step in routine.steps(block) {
            let frames = routine.frames(step.at);
            let Some(outermost) = frames.last().filter(|_| frames.iter().all(known)) else { continue };
            name.get_or_insert_with(|| Rc::clone(&outermost.function));
            let Some((holder, place)) = holder(samples, &frames) else { continue };
            let line = holder.lines.entry(place).or_default();
            line.0 = line.0.max(block.count);
            if step.at == block.last {
                for call in routine.calls_from(number).filter(|call| call.count > 0) {
                    let callee = match &call.callee {
                        CallTarget::Named(name) => Some(name.clone()),
                        callee => program.callee(routine, callee).map(|callee| callee.function.name.clone()),
                    };
                    let sum = callee.map(|callee| line.1.entry(callee).or_default());
                    sum.into_iter().for_each(|sum| *sum = sum.saturating_add(call.count));
                }
            }
        }
    }
    name
}

fn known(frame: &SourceFrame) -> bool {
    frame.line > 0 && frame.declared > 0 && !frame.function.is_empty()
}

/// The samples of the innermost function of an instruction, and the place of the instruction in it.
fn holder<'a>(samples: &'a mut Samples, frames: &[SourceFrame]) -> Option<(&'a mut Samples, LineLocation)> {
    let mut outer = frames.iter().rev();
    let mut frame = outer.next()?;
    let mut holder = samples;
    for inner in outer {
        holder = holder.inlined.entry((place(frame), Rc::clone(&inner.function))).or_default();
        frame = inner;
    }
    Some((holder, place(frame)))
}

/// Place of a frame in its function. The offset has 16 bits, as in LLVM.
fn place(frame: &SourceFrame) -> LineLocation {
    (frame.line.wrapping_sub(frame.declared) & 0xffff, base(frame.discriminator))
}

/// The part of a discriminator that tells apart the blocks of a line. The other parts number copies of a block
/// (llvm/include/llvm/IR/DebugInfoMetadata.h).
fn base(discriminator: u64) -> u64 {
    if discriminator & 1 == 1 {
        return 0;
    }
    let rest = discriminator >> 1;
    if rest & 0x20 == 0 { rest & 0x1f } else { (rest >> 1) & 0xfe0 | rest & 0x1f }
}
