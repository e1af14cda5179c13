//! `ingraft report`: saved profiles as tables, as differences, and in the formats of other tools. No engine is needed.

mod contexts;
mod coverage;
pub(crate) mod modules;
pub(crate) mod records;
pub(crate) mod tables;

use std::path::Path;

use ingraft_report::{ContextValue, ExportOptions, Exporter, MergeError, ProfileKind, ProfiledProgram, SavedProfile};

use crate::args::{Export, Format, ReportArgs, names};
use crate::command::contexts::{ContextLayout, ShownContexts, leave_addresses};
use crate::command::paths;
use crate::exit::{Exit, Failure, Stop};
use crate::output::{self, Output};

/// Runs the command.
pub(crate) fn run(args: &ReportArgs, format: Format, out: &mut Output) -> Result<(), Stop> {
    let mut profile = sum(args, format)?;
    contexts::check(&profile, args)?;
    let mut old = args.diff.as_deref().map(|path| Ok::<_, Failure>((path, read(path)?))).transpose()?;
    if let Some((_, old)) = &mut old {
        [&mut profile, old].into_iter().for_each(leave_addresses);
    }
    if let Some((path, old)) = &old {
        tell_other_program(&profile, old, path, format);
    }
    let mut old = old.take().map(|(_, old)| old);
    if let Some(module) = &args.module {
        only(&mut profile, module)?;
        old.iter_mut().try_for_each(|old| only(old, module))?;
    }
    if let Some(old) = &old {
        return changes(&profile, old, args, format, out);
    }
    if let Some(contexts) = profile.contexts.as_ref().filter(|_| profile.kind == ProfileKind::Contexts) {
        return contexts::report(&profile, contexts, args, format, out);
    }
    let export = match (args.export, format) {
        (Some(export), _) => export,
        (None, Format::Json) => Export::Json,
        (None, Format::Table) => {
            let code = modules::code(&profile, &args.binary, format)?;
            let program = ProfiledProgram::new(&profile, code);
            return out.text(&match profile.kind {
                ProfileKind::Counts if profile.functions.iter().any(|function| function.paths.is_some()) => {
                    let counts = tables::profile(&program, args.rows(), out.width());
                    format!("{counts}\n{}", paths::text(&program, args.rows(), out.width()))
                }
                ProfileKind::Counts => tables::profile(&program, args.rows(), out.width()),
                ProfileKind::Coverage => coverage::table(&program, args.rows(), out.width()),
                ProfileKind::Contexts => String::new(),
            });
        }
    };
    let Export::Tool(exporter) = export else {
        ShownContexts::of(&profile, ContextLayout::default()).map_or(Ok(()), |shown| shown.export(out))?;
        return records::profile(&profile, &|function, id| paths::records(function, id, &profile.path_metrics), out);
    };
    write(&profile, exporter, None, args, format, out)
}

/// Writes a profile in the format of another tool. `value` is that of contexts; `None` for their main value.
fn write(
    profile: &SavedProfile,
    exporter: &Exporter,
    value: Option<ContextValue>,
    args: &ReportArgs,
    format: Format,
    out: &mut Output,
) -> Result<(), Stop> {
    if !exporter.describes(profile.kind) {
        let what = match profile.kind {
            ProfileKind::Coverage => "the format needs counts, and a coverage has none",
            ProfileKind::Contexts => "the format is not for calling contexts",
            ProfileKind::Counts => "the format is for calling contexts, and the profile has none",
        };
        let hint = format!("use --as {}", names("or", |exporter| exporter.describes(profile.kind)));
        return Err(Failure::usage(what, hint).into());
    }
    let code = modules::code(profile, &args.binary, format)?;
    let program = ProfiledProgram::new(profile, code);
    let source = |path: &str| std::fs::read_to_string(path).ok();
    let mut options = ExportOptions::new(&program, &source);
    options.value = value.unwrap_or(options.value);
    let bytes = (exporter.write)(&program, &options);
    if let Some(why) = exporter.why_empty.filter(|_| bytes.is_empty()) {
        output::warn(&format!("the result is empty: {why}"), format);
    }
    out.bytes(&bytes)
}

/// Prints the differences between two profiles.
fn changes(
    new: &SavedProfile,
    old: &SavedProfile,
    args: &ReportArgs,
    format: Format,
    out: &mut Output,
) -> Result<(), Stop> {
    let json = match args.export {
        Some(Export::Json) => true,
        None => format == Format::Json,
        Some(_) => {
            let hint = "leave --as out for a table, or use --as json";
            return Err(Failure::usage("no other tool has a format for differences", hint).into());
        }
    };
    let incomparable =
        |e: MergeError| Failure::failed(e.to_string(), "compare profiles of the same build of the program");
    if let Some(contexts) = &new.contexts {
        let value = contexts::value(contexts, args)?;
        let changes = contexts::changes(old, new, args.tree.by_function()).map_err(incomparable)?;
        return match json {
            true => changes.objects(new.pid, out),
            false => out.text(&changes.table(value, args.rows(), out.width())),
        };
    }
    let changes = ingraft_report::diff(old, new).map_err(incomparable)?;
    if json {
        records::changes(new.pid, &changes, out)
    } else {
        out.text(&tables::changes(&changes, args.rows(), out.width()))
    }
}

/// The sum of the profiles of the command.
fn sum(args: &ReportArgs, format: Format) -> Result<SavedProfile, Failure> {
    let mut sum: Option<SavedProfile> = None;
    for path in &args.files {
        let mut next = read(path)?;
        if args.files.len() > 1 {
            leave_addresses(&mut next);
        }
        match &mut sum {
            Some(sum) => {
                tell_other_program(sum, &next, path, format);
                sum.add(&next).map_err(|e| {
                    let what = format!("cannot add {}: {e}", path.display());
                    Failure::failed(what, "add profiles of the same build of the program")
                })?;
            }
            None => sum = Some(next),
        }
    }
    Ok(sum.unwrap_or_default())
}

/// Warns if a profile that was read from a file is of another program than the others.
fn tell_other_program(profile: &SavedProfile, other: &SavedProfile, path: &Path, format: Format) {
    if !other.shares_module_with(profile) {
        let what = format!("{} is a profile of another program: it has no module in common", path.display());
        output::warn(&what, format);
    }
}

/// Reads a saved profile.
pub(crate) fn read(path: &Path) -> Result<SavedProfile, Failure> {
    let name = path.display();
    let bytes =
        std::fs::read(path).map_err(|e| Failure::usage(format!("cannot read {name}: {e}"), "check the path"))?;
    SavedProfile::from_bytes(&bytes).map_err(|e| {
        let hint = "name a file that `ingraft profile … -o FILE` has written completely";
        Failure::failed(format!("cannot read {name}: {e}"), hint)
    })
}

/// Leaves only the functions of a module in a profile.
fn only(profile: &mut SavedProfile, module: &str) -> Result<(), Failure> {
    let Some(wanted) = profile.modules.iter().position(|known| known.name == module) else {
        let names: Vec<&str> = profile.modules.iter().map(|module| module.name.as_str()).collect();
        let hint = format!("the profile has {}", names.join(", "));
        return Err(Failure::new(Exit::NotFound, format!("no module {module} in the profile"), hint));
    };
    profile.functions.retain(|function| function.module == wanted);
    profile.refused.retain(|refused| refused.module == wanted);
    Ok(())
}

#[cfg(test)]
mod tests;
