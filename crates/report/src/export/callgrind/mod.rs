//! The profile format of Callgrind, which callgrind_annotate and KCachegrind read: <https://valgrind.org/docs/manual/cl-format.html>.
//!
//! Costs of instructions are exact. The inclusive cost of a call is an estimate (`inclusive.rs`), because counts of edges do not tell
//! which caller made a callee execute an instruction. A profile of calling contexts has exact inclusive costs (`contexts.rs`).

mod contexts;
mod inclusive;

use std::fmt::Write;

use ingraft_model::Svma;
use rustc_hash::FxHashMap;

use super::Exporter;
use super::text::one_line;
use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::ProfileKind;
use inclusive::InclusiveCosts;

/// Name of what is not known, as Callgrind writes it.
const UNKNOWN: &str = "???";

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "callgrind",
    reader: "callgrind_annotate",
    kinds: &[ProfileKind::Counts, ProfileKind::Contexts],
    of_one_module: false,
    why_empty: None,
    write: |program, options| match program.contexts() {
        Some(tree) => contexts::callgrind(program, tree, options.value).into(),
        None => callgrind(program).into(),
    },
};

/// The profile as Callgrind writes it, with a position for each instruction and the event `Ir` (executed instructions).
fn callgrind(program: &ProfiledProgram<'_>) -> String {
    let functions = &program.profile().functions;
    let total = functions.iter().fold(0, |sum: u64, function| sum.saturating_add(function.executed()));
    let inclusive = InclusiveCosts::of(program);
    let text = head(program, "Ir", &total.to_string());
    let mut writer = CallgrindWriter { text, ..CallgrindWriter::default() };
    for routine in program.hottest() {
        writer.function(program, &routine, &inclusive);
    }
    writer.text += &format!("totals: {total}\n");
    writer.text
}

/// The beginning of a file with these events and their totals.
fn head(program: &ProfiledProgram<'_>, events: &str, totals: &str) -> String {
    let profile = program.profile();
    let mut text = String::from("# callgrind format\nversion: 1\n");
    text += &format!("creator: ingraft-{}\n", env!("CARGO_PKG_VERSION"));
    text += &format!("pid: {}\ncmd: {}\npart: 1\n\n", profile.pid, one_line(&profile.program));
    text += &format!("positions: instr line\nevents: {events}\nsummary: {totals}\n\n");
    text
}

/// Names that have a number: only the first mention has the name.
#[derive(Default)]
struct NumberedNames(FxHashMap<String, usize>);

impl NumberedNames {
    fn mention(&mut self, name: &str) -> String {
        let next = self.0.len() + 1;
        match self.0.get(name) {
            Some(number) => format!("({number})"),
            None => {
                self.0.insert(name.to_owned(), next);
                format!("({next}) {}", one_line(name))
            }
        }
    }
}

/// The calls of one function by another one, from one place.
struct CallsFromSite<'a> {
    caller: &'a ProfiledRoutine<'a>,
    callee: &'a ProfiledRoutine<'a>,
    count: u64,
    /// Address of the instruction.
    at: Svma,
    /// Source line of the instruction; 0 if it is not known.
    line: u32,
}

#[derive(Default)]
struct CallgrindWriter {
    text: String,
    objects: NumberedNames,
    files: NumberedNames,
    functions: NumberedNames,
}

impl CallgrindWriter {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _written = self.text.write_fmt(line);
        self.text.push('\n');
    }

    fn function(&mut self, program: &ProfiledProgram<'_>, routine: &ProfiledRoutine<'_>, inclusive: &InclusiveCosts) {
        let own = routine.line().map_or(UNKNOWN, |(file, _)| file);
        let (object, file) = (self.objects.mention(&routine.module.path), self.files.mention(own));
        let function = self.functions.mention(&name(routine));
        self.line(format_args!("ob={object}\nfl={file}\nfn={function}"));
        let mut present = own.to_owned();
        for (number, block) in routine.function.blocks.iter().enumerate().filter(|(_, block)| block.count > 0) {
            for step in routine.steps(block) {
                let (file, line) = routine.code().line(step.at).unwrap_or((own, 0));
                if file != present {
                    // Code of another file is inlined; `fe` ends it.
                    let (kind, mention) = (if file == own { "fe" } else { "fi" }, self.files.mention(file));
                    self.line(format_args!("{kind}={mention}"));
                    file.clone_into(&mut present);
                }
                let cost = block.count.saturating_mul(step.instructions);
                self.line(format_args!("0x{:x} {line} {cost}", step.at.0));
            }
            self.calls(program, routine, number, inclusive);
        }
        self.text.push('\n');
    }

    /// Writes the calls at the end of a block.
    fn calls(
        &mut self,
        program: &ProfiledProgram<'_>,
        routine: &ProfiledRoutine<'_>,
        block: usize,
        inclusive: &InclusiveCosts,
    ) {
        let Some(last) = routine.function.blocks.get(block).map(|block| block.last) else { return };
        let line = routine.code().line(last).map_or(0, |(_, line)| line);
        for call in routine.calls_from(block).filter(|call| call.count > 0) {
            let Some(callee) = program.callee(routine, &call.callee) else { continue };
            self.call(
                &CallsFromSite { caller: routine, callee: &callee, count: call.count, at: last, line },
                inclusive,
            );
        }
        for (at, count) in routine.tail_jumps(block) {
            if let Some(callee) = program.at(routine.function.module, at) {
                self.call(&CallsFromSite { caller: routine, callee: &callee, count, at: last, line }, inclusive);
            }
        }
    }

    fn call(&mut self, call: &CallsFromSite<'_>, inclusive: &InclusiveCosts) {
        let CallsFromSite { caller, callee, count, at, line } = call;
        let (file, target) = callee.line().unwrap_or((UNKNOWN, 0));
        let (object, file) = (self.objects.mention(&callee.module.path), self.files.mention(file));
        let function = self.functions.mention(&name(callee));
        let cost = inclusive.of_calls(caller, callee, *count);
        self.line(format_args!("cob={object}\ncfi={file}\ncfn={function}"));
        self.line(format_args!("calls={count} 0x{:x} {target}", callee.function.start.0));
        self.line(format_args!("0x{:x} {line} {cost}", at.0));
    }
}

fn name(routine: &ProfiledRoutine<'_>) -> String {
    let name = &routine.function.name;
    if name.is_empty() { format!("0x{:x}", routine.function.start.0) } else { name.clone() }
}
