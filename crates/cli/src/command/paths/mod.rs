//! Paths of functions: `ingraft profile paths`, and saved profiles with paths.

mod classes;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ingraft_api::PathsOptions;
use ingraft_report::{
    ContextUnit, FunctionProfile, PathBegin, PathCount, PathEnd, PathInContext, PathProfile, ProfiledProgram,
    ProfiledRoutine, SavedProfile,
};

pub(crate) use classes::PathClasses;

use ingraft_model::EVENT_NAMES;

use super::contexts::amounts;
use super::report::modules;
use super::report::records::offset;
use super::report::tables::{callers, shown};
use crate::objects::paths::{PathObject, PathsObject, begin_word, end_word};
use crate::objects::{Object, RecordedFunction};
use crate::output::DIM;
use crate::output::histogram::share;
use crate::output::number::{grouped_u64, plural, time};
use crate::output::table::{Cell, TextTable};

/// Part of all instructions on paths that a hot path has, as in the tables of Ammons, Ball and Larus (1997).
const HOT: f64 = 0.01;
/// Largest number of blocks of a path in a table. Longer paths have their first and last blocks there.
const WAY: usize = 12;
/// Largest number of paths of a function that are compared, so that lines tell them apart.
const COMPARED: usize = 200;

/// A path of a function, with the instructions of all its runs.
struct RanPath<'a> {
    routine: ProfiledRoutine<'a>,
    path: &'a PathCount,
    /// The context of the runs; `None` if these are all runs.
    context: Option<Option<usize>>,
    runs: u64,
    /// Values of these runs.
    values: &'a [i64],
    each: u64,
    instructions: u64,
}

/// The paths of a profile with their source lines, as far as the files of the modules can be read.
pub(crate) fn with_files(profile: &SavedProfile, rows: usize, width: Option<usize>) -> String {
    let has_paths = |number: usize| profile.functions.iter().any(|f| f.module == number && f.paths.is_some());
    let code = profile.modules.iter().enumerate().map(|(number, module)| match has_paths(number) {
        true => modules::read(module).unwrap_or_default(),
        false => ingraft_report::ModuleCode::default(),
    });
    text(&ProfiledProgram::new(profile, code.collect()), rows, width)
}

/// The paths with the most instructions, or with the largest values of the first metric, and what they are among all.
pub(crate) fn text(program: &ProfiledProgram<'_>, rows: usize, width: Option<usize>) -> String {
    let mut all: Vec<RanPath<'_>> = program.functions().flat_map(paths_of).collect();
    all.sort_by_key(|ran| {
        let value = ran.values.first().copied();
        (Reverse((value, ran.instructions)), ran.routine.key(), ran.path.number, ran.context)
    });
    let names = program.path_metrics();
    if !names.is_empty() {
        return with_values(program, &all, rows, width);
    }
    let has_contexts = all.iter().any(|ran| ran.context.is_some());
    let whole = all.iter().fold(0_u64, |sum, ran| sum.saturating_add(ran.instructions));
    let runs = all.iter().fold(0_u64, |sum, ran| sum.saturating_add(ran.runs));
    let mut table = TextTable::new()
        .shrinking("FUNCTION")
        .right("PATH")
        .right("RUNS")
        .right("SHARE")
        .right("INSTR/RUN")
        .right("INSTRUCTIONS")
        .right("SHARE OF THEM")
        .shrinking("WAY")
        .optional(&["INSTRUCTIONS", "SHARE"]);
    if has_contexts {
        table = table.shrinking("CALLED BY");
    }
    for ran in all.iter().take(rows) {
        let mut row = vec![
            shown(&ran.routine.function.name, ran.routine.function.start).into(),
            grouped_u64(ran.path.number).into(),
            grouped_u64(ran.runs).into(),
            share(ran.runs, runs).into(),
            grouped_u64(ran.each).into(),
            grouped_u64(ran.instructions).into(),
            share(ran.instructions, whole).into(),
            way(&ran.routine, ran.path).into(),
        ];
        row.extend(has_contexts.then(|| Cell::styled(called_by(program, ran.context.flatten()), DIM)));
        table.row(row);
    }
    if all.is_empty() {
        return notes(program, &all, whole);
    }
    table.render(width) + &notes(program, &all, whole)
}

/// The table of paths with values.
fn with_values(program: &ProfiledProgram<'_>, all: &[RanPath<'_>], rows: usize, width: Option<usize>) -> String {
    let names = program.path_metrics();
    let whole = all.iter().fold(0_i64, |sum, ran| sum.saturating_add(ran.values.first().copied().unwrap_or(0)));
    let mut table = TextTable::new().shrinking("FUNCTION").right("PATH").right("RUNS").right("INSTR/RUN");
    for (n, name) in names.iter().enumerate() {
        table = table.right(&format!("{}/RUN", title(name))).right(&title(name));
        if n == 0 {
            table = table.right("SHARE");
        }
    }
    let has_contexts = all.iter().any(|ran| ran.context.is_some());
    table = table.shrinking("WAY").optional(&["INSTR/RUN", "PATH"]);
    if has_contexts {
        table = table.shrinking("CALLED BY");
    }
    for ran in all.iter().take(rows) {
        let mut row: Vec<Cell> = vec![
            shown(&ran.routine.function.name, ran.routine.function.start).into(),
            grouped_u64(ran.path.number).into(),
            grouped_u64(ran.runs).into(),
            grouped_u64(ran.each).into(),
        ];
        for (n, (name, value)) in names.iter().zip(ran.values).enumerate() {
            row.extend([per_run(name, *value, ran.runs).into(), amounts::amount(name, *value).into()]);
            row.extend((n == 0).then(|| amounts::share(*value, whole).into()));
        }
        row.push(way(&ran.routine, ran.path).into());
        row.extend(has_contexts.then(|| Cell::styled(called_by(program, ran.context.flatten()), DIM)));
        table.row(row);
    }
    let instructions = all.iter().fold(0_u64, |sum, ran| sum.saturating_add(ran.instructions));
    let notes = notes(program, all, instructions);
    if all.is_empty() { notes } else { table.render(width) + &notes }
}

/// The mean value of a run.
fn per_run(name: &str, value: i64, runs: u64) -> String {
    let mean = value as f64 / runs.max(1) as f64;
    match ContextUnit::of(name) {
        ContextUnit::Nanoseconds => time(mean),
        ContextUnit::Bytes | ContextUnit::Count => format!("{mean:.2}"),
    }
}

/// The lines below a table.
fn notes(program: &ProfiledProgram<'_>, all: &[RanPath<'_>], whole: u64) -> String {
    let of = |take: &dyn Fn(&PathProfile) -> u64| {
        let each = program.functions().filter_map(|routine| routine.function.paths.as_ref().map(take));
        each.fold(0_u64, u64::saturating_add)
    };
    let functions = program.functions().filter(|routine| routine.function.paths.is_some()).count() as u64;
    let (possible, ran) = (of(&|paths| paths.possible), of(&|paths| paths.paths.len() as u64));
    let mut notes = vec![format!(
        "{} of {} ran, in {}",
        grouped_u64(ran),
        plural(possible, "path", "paths"),
        plural(functions, "function", "functions")
    )];
    let in_contexts = all.iter().filter(|ran| ran.context.is_some()).count() as u64;
    if in_contexts > 0 {
        notes.push(format!("told apart by context, they are {}", grouped_u64(in_contexts)));
    }
    let is_hot = |ran: &&RanPath<'_>| ran.instructions as f64 >= HOT * whole as f64 && ran.instructions > 0;
    let (hot, of_hot) =
        all.iter().filter(is_hot).fold((0, 0_u64), |(n, sum), ran| (n + 1, sum.saturating_add(ran.instructions)));
    if hot > 0 {
        let has = if hot == 1 { "has" } else { "have" };
        notes.push(format!(
            "{} of 1 % or more of the instructions {has} {} of them",
            plural(hot, "path", "paths"),
            share(of_hot, whole)
        ));
    }
    let mut more = |number: u64, one: &str, many: &str| {
        if number > 0 {
            notes.push(plural(number, one, many));
        }
    };
    more(of(&|paths| paths.late), "path had begun before", "paths had begun before");
    more(of(&|paths| paths.open), "call is in progress", "calls are in progress");
    more(of(&|paths| paths.left), "path was left in the middle", "paths were left in the middle");
    more(of(&|paths| paths.unlisted), "run is of paths that are not listed", "runs are of paths that are not listed");
    let cut = of(&|paths| u64::from(paths.is_cut));
    more(cut, "function has too many paths, which were cut", "functions have too many paths, which were cut");
    notes.into_iter().map(|note| format!("{DIM}{note}{DIM:#}\n")).collect()
}

/// The paths of a function that have run.
fn paths_of<'a>(routine: ProfiledRoutine<'a>) -> impl Iterator<Item = RanPath<'a>> {
    let paths = routine.function.paths.as_ref().map(|paths| paths.paths.as_slice()).unwrap_or_default();
    let ran = move |path: &'a PathCount, context, (runs, values): (u64, &'a [i64])| {
        let each = path.instructions(&routine.function.blocks);
        RanPath { routine, path, context, runs, values, each, instructions: runs.saturating_mul(each) }
    };
    let by_context = routine.function.paths.as_ref().map(|paths| paths.by_context.as_slice()).unwrap_or_default();
    let of_context =
        move |of: &'a PathInContext| Some(ran(paths.get(of.path)?, Some(of.context), (of.count, of.values.as_slice())));
    let of_context = by_context.iter().filter_map(of_context);
    let of_path = move |path: &'a PathCount| ran(path, None, (path.count, path.values.as_slice()));
    let all = paths.iter().filter(|_| by_context.is_empty()).map(of_path);
    of_context.chain(all)
}

/// The callers of a context.
fn called_by(program: &ProfiledProgram<'_>, context: Option<usize>) -> String {
    program.all_contexts().map_or_else(String::new, |contexts| callers(contexts, context))
}

/// The way of a path in words: lines of source, or offsets of blocks if these are not known or do not tell the paths of the function apart.
fn way(routine: &ProfiledRoutine<'_>, path: &PathCount) -> String {
    let own = by_lines(routine, path).filter(|own| {
        let paths = routine.function.paths.iter().flat_map(|paths| &paths.paths).take(COMPARED);
        paths.filter(|other| by_lines(routine, other).as_ref() == Some(own)).count() <= 1
    });
    let offsets = || path.blocks.iter().filter_map(|block| start(routine.function, *block)).collect();
    let parts = own.unwrap_or_else(offsets);
    let (first, last) = parts.split_at(parts.len().min(WAY / 2));
    let (left_out, last) = last.split_at(last.len().saturating_sub(WAY / 2));
    let dots = if left_out.is_empty() { "" } else { " …" };
    let rest = if last.is_empty() { String::new() } else { format!(" {}", last.join(" ")) };
    let begins = match path.begins {
        PathBegin::Entry => "",
        PathBegin::Elsewhere => "(from outside) ",
        PathBegin::Loop => "↻ ",
        PathBegin::Return => "(returned again) ",
    };
    let ends = match path.ends {
        PathEnd::Exit => "",
        PathEnd::Loop => " ↻",
        PathEnd::Call => " (call that may return again)",
        PathEnd::Never => " (no end)",
    };
    format!("{begins}{}{dots}{rest}{ends}", first.join(" "))
}

/// The lines of the blocks of a path, the first one with its file; `None` if the line of a block is not known.
fn by_lines(routine: &ProfiledRoutine<'_>, path: &PathCount) -> Option<Vec<String>> {
    let (mut parts, mut file) = (Vec::new(), String::new());
    for block in &path.blocks {
        let (of, line) = line(routine, *block)?;
        parts.push(if of == file { line } else { format!("{of}:{line}") });
        file = of;
    }
    Some(parts)
}

/// Name of the source file of a block, and its lines there.
fn line(routine: &ProfiledRoutine<'_>, block: usize) -> Option<(String, String)> {
    let (file, first, last) = routine.lines(routine.function.blocks.get(block)?)?;
    let name = file.rsplit('/').next().unwrap_or(file).to_owned();
    Some((name, if first == last { first.to_string() } else { format!("{first}-{last}") }))
}

/// Offset of a block in its function.
fn start(function: &FunctionProfile, block: usize) -> Option<String> {
    function.blocks.get(block).map(|block| offset(block.start, function.start))
}

/// The records of a function with paths, whose values have these names.
pub(crate) fn records<'a>(function: &'a FunctionProfile, id: &RecordedFunction, names: &[String]) -> Vec<Object> {
    let Some(paths) = &function.paths else { return Vec::new() };
    let how = names.iter().map(|name| (name.clone(), how(name)));
    let how: BTreeMap<String, &'static str> = how.collect();
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let path = |(path, context, (count, values)): (&PathCount, Option<Option<usize>>, (u64, &Vec<i64>))| {
        let events = metrics(function, path, count).into_iter().map(|(name, sum)| (name.to_owned(), signed(sum)));
        let values = names.iter().cloned().zip(values.iter().copied());
        Object::Path(PathObject {
            id: id.clone(),
            path: path.number,
            blocks: path.blocks.iter().filter_map(|block| start(function, *block)).collect(),
            begins: begin_word(path.begins),
            ends: end_word(path.ends),
            next: path.next.and_then(|block| start(function, block)),
            context: context.flatten().map(|index| index as u64 + 1),
            count: signed(count),
            late: 0,
            open: 0,
            metrics: events.chain(values).collect(),
            how: how.clone(),
        })
    };
    let summary = Object::Paths(PathsObject {
        id: id.clone(),
        possible: paths.possible,
        ran: paths.paths.len() as u64,
        cut: paths.is_cut,
        late: paths.late,
        open: paths.open,
        left: paths.left,
        unlisted: paths.unlisted,
        inexact: paths.inexact.clone(),
    });
    let of_context =
        |of: &'a PathInContext| Some((paths.paths.get(of.path)?, Some(of.context), (of.count, &of.values)));
    let by_context = paths.by_context.iter().filter_map(of_context);
    let of_path = |path: &'a PathCount| (path, None, (path.count, &path.values));
    let all = paths.paths.iter().filter(|_| paths.by_context.is_empty()).map(of_path);
    by_context.chain(all).map(path).chain([summary]).collect()
}

/// The way in which a value of paths is told.
fn how(name: &str) -> &'static str {
    if ContextUnit::of(name) == ContextUnit::Nanoseconds { "clocked" } else { "counted" }
}

/// Title of a value of paths.
fn title(name: &str) -> String {
    let own = name.strip_prefix(PathsOptions::TOTAL);
    own.map_or_else(|| amounts::title(name), |own| format!("TOTAL {}", amounts::title(own)))
}

/// Sums of events over so many runs of a path. A saved profile knows only the instructions.
fn metrics(function: &FunctionProfile, path: &PathCount, count: u64) -> BTreeMap<&'static str, u64> {
    let runs = |each: u64| count.saturating_mul(each);
    let Some(details) = &function.details else {
        return BTreeMap::from([(EVENT_NAMES[0], runs(path.instructions(&function.blocks)))]);
    };
    let mut sums = [0_u64; EVENT_NAMES.len()];
    for of in path.blocks.iter().filter_map(|block| details.events.get(*block)) {
        for (sum, each) in sums.iter_mut().zip([of.instructions, of.calls, of.branches, of.reads, of.writes]) {
            *sum += u64::from(each);
        }
    }
    EVENT_NAMES.into_iter().zip(sums.map(runs)).collect()
}
