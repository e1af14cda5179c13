//! `ingraft check` and `ingraft fmt`: check and format metric definitions as texts. No engine is needed.

use ingraft_mdl::{Diagnostic, Library, ParseOptions, RenderStyle, Severity};
use ingraft_model::Flavor;

use crate::args::{CheckArgs, FmtArgs, Format};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::sources;
use crate::objects::{self, Object};
use crate::output::number::plural;
use crate::output::{self, GOOD, Output};

/// Checks files; reports all errors of all files in one run.
pub(crate) fn check(args: &CheckArgs, format: Format, out: &mut Output) -> Result<(), Stop> {
    let (library, diagnostics) = load(&sources(&args.files)?);
    warn(&library, &args.flavors.names, format);
    // The stream strips the colours if the output is no terminal.
    out.text(&library.render(&diagnostics, RenderStyle::Coloured))?;
    for diagnostic in &diagnostics {
        out.object(&Object::Diagnostic(object(diagnostic)))?;
    }
    let count = |severity| diagnostics.iter().filter(|d| d.severity == severity).count() as u64;
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let files = plural(args.files.len() as u64, "file", "files");
    if errors > 0 {
        let warnings =
            if warnings > 0 { format!(" and {}", plural(warnings, "warning", "warnings")) } else { String::new() };
        out.text(&format!("\n{}{warnings} in {files}\n", plural(errors, "error", "errors")))?;
        return Err(Stop::Reported(Exit::Usage));
    }
    let warnings = if warnings > 0 { format!(", {}", plural(warnings, "warning", "warnings")) } else { String::new() };
    out.text(&format!("{GOOD}no errors{GOOD:#} in {files}{warnings}\n"))
}

/// Formats files: prints the result, or writes it to the files.
pub(crate) fn fmt(args: &FmtArgs, format: Format, out: &mut Output) -> Result<(), Stop> {
    // All files are read before the first one is written.
    let sources = sources(&args.files)?;
    let mut formatted = Vec::new();
    for (name, text) in &sources {
        match ingraft_mdl::format(name, text, ParseOptions::default()) {
            Ok(text) => formatted.push(text),
            Err(diagnostics) => {
                let kept = ingraft_mdl::SourceText::new(name, text);
                say(&diagnostics, |d| ingraft_mdl::render(d, Some(&kept), RenderStyle::Coloured), format);
                return Err(wrong(name).into());
            }
        }
    }
    for ((path, (name, before)), text) in args.files.iter().zip(&sources).zip(&formatted) {
        if !args.write {
            out.verbatim(text.as_bytes())?;
        } else if text != before {
            std::fs::write(path, text).map_err(|e| {
                Failure::failed(format!("cannot write {name}: {e}"), "print it instead: leave --write out")
            })?;
        }
    }
    Ok(())
}

/// Refuses definitions with errors that the given metrics need, with the same words as `check`. The caller has touched no target yet.
/// Errors in other definitions do not matter.
pub(crate) fn accept_for(metrics: &[&str], definitions: &[(String, String)], format: Format) -> Result<(), Stop> {
    if definitions.is_empty() {
        return Ok(());
    }
    let library = load(definitions).0;
    if metrics.iter().any(|metric| library.concerned(metric)) { accept(definitions, format) } else { Ok(()) }
}

/// Refuses definitions with errors, with the same words as `check`. The caller has touched no target yet.
pub(crate) fn accept(definitions: &[(String, String)], format: Format) -> Result<(), Stop> {
    accept_or(definitions, format, wrong)
}

/// Refuses definitions with errors as [`accept`], but with another failure of the first file with an error.
pub(super) fn accept_or(
    definitions: &[(String, String)],
    format: Format,
    failure: impl FnOnce(&str) -> Failure,
) -> Result<(), Stop> {
    if definitions.is_empty() {
        return Ok(());
    }
    let (library, mut diagnostics) = load(definitions);
    diagnostics.retain(Diagnostic::is_error);
    let Some(first) = diagnostics.first() else { return Ok(()) };
    say(&diagnostics, |d| library.render(std::slice::from_ref(d), RenderStyle::Coloured), format);
    Err(failure(&first.file).into())
}

/// Warns of flavors that neither these definitions nor the shipped ones name.
pub(super) fn warn_of_flavors(flavors: &[Flavor], definitions: &[(String, String)], format: Format) {
    if !flavors.is_empty() {
        warn(&load(definitions).0, flavors, format);
    }
}

fn warn(library: &Library, flavors: &[Flavor], format: Format) {
    for Diagnostic { message, help, .. } in library.unknown_flavors(flavors) {
        output::warn(&format!("{message}; {}", help.unwrap_or_default()), format);
    }
}

/// Reads definitions on top of the shipped ones.
fn load(definitions: &[(String, String)]) -> (Library, Vec<Diagnostic>) {
    let mut library = ingraft_mdl::shipped::library(ParseOptions::default());
    let diagnostics = definitions.iter().flat_map(|(name, text)| library.load(name, text)).collect();
    (library, diagnostics)
}

/// Reports diagnostics on standard error.
fn say(diagnostics: &[Diagnostic], render: impl Fn(&Diagnostic) -> String, format: Format) {
    for diagnostic in diagnostics {
        output::to_stderr(&match format {
            Format::Json => output::json_line(&Object::Diagnostic(object(diagnostic))),
            Format::Table => render(diagnostic).trim_end().to_owned() + "\n",
        });
    }
}

fn wrong(file: &str) -> Failure {
    Failure::usage(format!("{file} has errors"), format!("mend them; `ingraft check {file}` shows all findings"))
}

fn object(d: &Diagnostic) -> objects::DiagnosticObject {
    let severity = match d.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    objects::DiagnosticObject {
        file: d.file.clone(),
        line: d.line,
        column: d.column,
        severity,
        code: Some(d.code),
        message: d.message.clone(),
        help: d.help.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_definitions_are_known_and_errors_are_refused() {
        let source = |text: &str| ("m.mdl".to_owned(), text.to_owned());
        assert!(accept(&[], Format::Table).is_ok());
        let (library, diagnostics) = load(&[source("metric broken {")]);
        assert!(library.metric("calls").is_some());
        assert!(diagnostics.iter().any(Diagnostic::is_error));
        let Err(Stop::Failure(failure)) = accept(&[source("metric broken {")], Format::Json) else {
            panic!("accepted");
        };
        assert_eq!((failure.exit, failure.what.as_str()), (Exit::Usage, "m.mdl has errors"));
    }
}
