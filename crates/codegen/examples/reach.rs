//! Prints, for each file, how many of its functions can have their entry and all of their exits woven together in place, and why the
//! others cannot: `cargo run --release -p ingraft-codegen --example reach -- FILE…`. With `VERBOSE` set, all of their names.

#[path = "../tests/support/program.rs"]
mod program;

use std::collections::BTreeMap;
use std::time::Instant;

use ingraft_model::Refusal;

fn main() {
    let verbose = std::env::var_os("VERBOSE").is_some();
    for path in std::env::args_os().skip(1) {
        let path = std::path::Path::new(&path);
        let start = Instant::now();
        let Some(program) = program::weave_all(path) else {
            println!("{}: not a program", path.display());
            continue;
        };
        println!(
            "{}: {:.2} % of {} functions have their entry and all exits woven; {} points in {:.1?}; proof: {:?}",
            path.display(),
            100.0 * program.share(),
            program.functions.len(),
            program.points,
            start.elapsed(),
            program.proof,
        );
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for f in program.functions.iter().filter(|f| !f.whole()) {
            let why = match (&f.entry, f.exits.first()) {
                (Some(refusal), _) => format!("entry: {}", kind(refusal)),
                (None, Some(refusal)) => format!("exit: {}", kind(refusal)),
                (None, None) => continue,
            };
            reasons.entry(why).or_default().push(format!("{} {:?}", f.name, f.exits.first()));
        }
        for (why, names) in reasons {
            let shown = if verbose { names.len() } else { 3 };
            println!("  {why}: {} ({})", names.len(), names[..names.len().min(shown)].join(", "));
        }
    }
}

/// A refusal without what differs from function to function.
fn kind(refusal: &Refusal) -> String {
    match refusal {
        Refusal::TooShort { available, next } => format!("TooShort {available} before {next}"),
        Refusal::NotAFunction { what } => format!("NotAFunction {what}"),
        Refusal::NotDisplaceable { why, .. } => format!("NotDisplaceable {why}"),
        other => format!("{other:?}").split(['{', ' ']).next().unwrap_or_default().to_owned(),
    }
}
