//! Saved profiles as tables for people.

use ingraft_model::Svma;
use ingraft_report::{ContextProfile, CountChange, FunctionChange, ProfiledProgram, ProfiledRoutine};

use super::records::offset;
use crate::output::number::{UNKNOWN, grouped_u64, percent, plural, sum_of_known};
use crate::output::table::TextTable;
use crate::output::{DIM, HEADING};

/// Number of blocks of each function in a table of differences.
const BLOCKS: usize = 5;
/// Largest number of callers of a context in a table.
const CALLERS: usize = 4;

/// A name as people read it.
pub(crate) fn shown(name: &str, start: Svma) -> String {
    if name.is_empty() {
        return format!("{:#x}", start.0);
    }
    ingraft_report::demangle(name).map_or_else(|| name.to_owned(), String::from)
}

/// The callers of a context, the next one first.
pub(crate) fn callers(contexts: &ContextProfile, context: Option<usize>) -> String {
    let Some(context) = context else { return "(not known)".to_owned() };
    let parent = |index: &usize| contexts.contexts.get(*index).and_then(|of| of.parent);
    let mut above = std::iter::successors(parent(&context), parent);
    let name = |index: usize| {
        let function = contexts.contexts.get(index).and_then(|of| contexts.functions.get(of.function));
        function.map(|of| shown(&of.name, of.start)).unwrap_or_default()
    };
    let mut names: Vec<String> = above.by_ref().take(CALLERS).map(name).collect();
    names.extend(above.next().map(|_| "…".to_owned()));
    names.join(" ← ")
}

/// The functions and blocks with the most executed instructions.
pub(crate) fn profile(program: &ProfiledProgram<'_>, top: usize, width: Option<usize>) -> String {
    let profile = program.profile();
    let hottest = program.hottest();
    let total = hottest.iter().fold(0, |sum: u64, routine| sum.saturating_add(routine.function.executed()));
    let mut text = format!(
        "{HEADING}{}{HEADING:#}, process {}: {} instructions in {}\n",
        clean(&profile.program),
        profile.pid,
        grouped_u64(total),
        plural(hottest.len() as u64, "function", "functions")
    );
    let inexact: Vec<_> = profile.functions.iter().filter_map(|f| Some((&f.name, f.inexact.as_ref()?))).collect();
    for (name, why) in inexact.iter().take(top) {
        text += &format!("{DIM}not exact: {} ({}){DIM:#}\n", clean(name), clean(why));
    }
    for refused in profile.refused.iter().take(top) {
        let name = shown(&refused.name, refused.start);
        text += &format!("{DIM}not counted: {} ({}){DIM:#}\n", clean(&name), clean(&refused.why));
    }
    let more = inexact.len().saturating_sub(top) + profile.refused.len().saturating_sub(top);
    if more > 0 {
        text += &format!("{DIM}and {more} more functions that are not exact or not counted{DIM:#}\n");
    }
    text.push('\n');
    text += &functions(&hottest, total, top).render(width);
    text.push('\n');
    text + &blocks(&hottest, total, top).render(width)
}

fn functions(hottest: &[ProfiledRoutine<'_>], total: u64, top: usize) -> TextTable {
    let table =
        TextTable::new().right("instructions").right("share").right("calls").shrinking("function").left("module");
    let mut table = table.shrinking("source").optional(&["source", "module"]);
    for routine in hottest.iter().take(top) {
        let executed = routine.function.executed();
        let source = routine.line().map(|(file, line)| position(file, line)).unwrap_or_default();
        table.row(vec![
            sum_of_known(executed, routine.function.unknown.is_empty()).into(),
            percent(share(executed, total)).into(),
            routine.function.known_calls().map_or_else(|| UNKNOWN.to_owned(), grouped_u64).into(),
            shown(&routine.function.name, routine.function.start).into(),
            routine.module.name.as_str().into(),
            source.into(),
        ]);
    }
    table
}

fn blocks(hottest: &[ProfiledRoutine<'_>], total: u64, top: usize) -> TextTable {
    let table = TextTable::new().right("instructions").right("share").right("executions").shrinking("block");
    let mut table = table.shrinking("source").optional(&["source"]);
    let all = hottest.iter().flat_map(|routine| routine.function.blocks.iter().map(move |block| (routine, block)));
    let mut all: Vec<_> = all.filter(|(_, block)| block.count > 0).collect();
    all.sort_by_key(|(_, block)| std::cmp::Reverse(block.executed()));
    for (routine, block) in all.into_iter().take(top) {
        let source = match routine.lines(block) {
            Some((file, first, last)) if last > first => format!("{}-{last}", position(file, first)),
            Some((file, line, _)) => position(file, line),
            None => String::new(),
        };
        let function = shown(&routine.function.name, routine.function.start);
        table.row(vec![
            grouped_u64(block.executed()).into(),
            percent(share(block.executed(), total)).into(),
            grouped_u64(block.count).into(),
            format!("{function}#{}", offset(block.start, routine.function.start)).into(),
            source.into(),
        ]);
    }
    table
}

/// The functions and blocks whose counts differ.
pub(super) fn changes(changes: &[FunctionChange], top: usize, width: Option<usize>) -> String {
    if changes.is_empty() {
        return "no count differs\n".to_owned();
    }
    let table = TextTable::new().right("change").right("old").right("new").left("of");
    let mut table = table.shrinking("function or block").left("module").optional(&["module"]);
    for change in changes.iter().take(top) {
        let name = shown(&change.name, change.start);
        let mut row = |numbers: CountChange, of: &str, name: &str| {
            let (old, new) = (grouped_u64(numbers.old), grouped_u64(numbers.new));
            let cells = [signed(numbers), old, new, of.to_owned(), name.to_owned(), change.module.clone()];
            table.row(cells.into_iter().map(Into::into).collect());
        };
        row(change.instructions, "instructions", &name);
        row(change.calls, "calls", &name);
        for block in change.blocks.iter().take(BLOCKS) {
            row(block.count, "executions", &format!("{name}#{}", offset(block.start, change.start)));
        }
    }
    let more = changes.len().saturating_sub(top);
    let more = if more > 0 { format!("{DIM}{more} more; --top shows more of them{DIM:#}\n") } else { String::new() };
    table.render(width) + &more
}

fn signed(change: CountChange) -> String {
    let sign = match change.old.cmp(&change.new) {
        std::cmp::Ordering::Less => "+",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => "-",
    };
    sign.to_owned() + &grouped_u64(change.old.abs_diff(change.new))
}

pub(super) fn share(part: u64, total: u64) -> f64 {
    part as f64 * 100.0 / total.max(1) as f64
}

/// A source position with the name of the file, without its directories.
pub(crate) fn position(file: &str, line: u32) -> String {
    format!("{}:{line}", file.rsplit('/').next().unwrap_or_default())
}

/// Names come from other processes, so control characters, which could move the cursor, become `?`.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
