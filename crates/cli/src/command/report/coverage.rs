//! A coverage as a table for people.

use ingraft_report::{Covered, ProfiledProgram, ProfiledRoutine};

use super::tables::{clean, position, share, shown};
use crate::command::profile::covered_line;
use crate::output::number::{grouped_u64, percent};
use crate::output::table::TextTable;
use crate::output::{DIM, HEADING};

/// The functions with most blocks that have not run.
pub(super) fn table(program: &ProfiledProgram<'_>, top: usize, width: Option<usize>) -> String {
    let profile = program.profile();
    let mut all: Vec<(ProfiledRoutine<'_>, Covered)> =
        program.functions().map(|routine| (routine, routine.function.covered())).collect();
    let whole = all.iter().fold(Covered::default(), |sum, (_, covered)| sum + *covered);
    let heading = format!("{HEADING}{}{HEADING:#}, process {}", clean(&profile.program), profile.pid);
    let mut text = format!("{heading}: {}", covered_line(whole, all.len() as u64));
    let (ran, lines) = ingraft_report::ran_lines(program);
    if lines > 0 {
        let share = percent(share(ran, lines));
        text += &format!("{} of {} source lines have run ({share})\n", grouped_u64(ran), grouped_u64(lines));
    }
    let unknown = profile.functions.iter().filter_map(|f| Some((f, f.inexact.as_ref()?)));
    let unknown = unknown.map(|(f, why)| format!("not complete: {} ({})", shown(&f.name, f.start), clean(why)));
    let refused = profile.refused.iter();
    let refused = refused.map(|f| format!("not covered: {} ({})", shown(&f.name, f.start), clean(&f.why)));
    let told: Vec<String> = unknown.chain(refused).collect();
    for line in told.iter().take(top) {
        text += &format!("{DIM}{}{DIM:#}\n", clean(line));
    }
    if told.len() > top {
        text += &format!("{DIM}and {} more functions that are not complete or not covered{DIM:#}\n", told.len() - top);
    }
    text.push('\n');
    all.sort_by_key(|(routine, covered)| (std::cmp::Reverse(covered.blocks - covered.blocks_ran), routine.key()));
    let table =
        TextTable::new().right("not run").right("blocks").right("share run").shrinking("function").left("module");
    let mut table = table.shrinking("source").optional(&["source", "module"]);
    for (routine, covered) in all.iter().take(top) {
        let source = routine.line().map(|(file, line)| position(file, line)).unwrap_or_default();
        table.row(vec![
            grouped_u64(covered.blocks - covered.blocks_ran - covered.blocks_unknown).into(),
            grouped_u64(covered.blocks).into(),
            percent(share(covered.blocks_ran, covered.blocks)).into(),
            shown(&routine.function.name, routine.function.start).into(),
            routine.module.name.as_str().into(),
            source.into(),
        ]);
    }
    text + &table.render(width)
}
