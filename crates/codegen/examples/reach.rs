//! Prints, for each file, the share of its functions whose entry and all exits can be woven together, and then the share whose calls can
//! all be woven as well. For the other functions it prints the reasons: `cargo run --release -p ingraft-codegen --example reach -- FILE…`.
//! With `VERBOSE` set, it prints the names of all these functions.

#[path = "../tests/it/support/program.rs"]
mod program;

use std::collections::BTreeMap;
use std::time::Instant;

use ingraft_model::Refusal;

fn main() {
    let verbose = std::env::var_os("VERBOSE").is_some();
    for path in std::env::args_os().skip(1) {
        let path = std::path::Path::new(&path);
        for (calls, what) in [(false, "their entry and all exits woven"), (true, "all calls woven as well")] {
            let start = Instant::now();
            let Some(program) = program::weave_all(path, calls) else {
                println!("{}: not a program", path.display());
                break;
            };
            println!(
                "{}: {:.2} % of {} functions have {what}; {} points in {:.1?}; proof: {:?}",
                path.display(),
                100.0 * program.share(),
                program.functions.len(),
                program.points,
                start.elapsed(),
                program.proof,
            );
            println!("  a uprobe is harmless at {:.1} % of the woven entries", 100.0 * program.unharmed());
            if verbose {
                program
                    .functions
                    .iter()
                    .filter(|f| f.entry.is_none() && !f.unharmed)
                    .for_each(|f| println!("  exposed: {}", f.name));
            }
            print_reasons(&program, verbose);
        }
    }
}

/// Prints the functions that are not woven completely, by the first reason.
fn print_reasons(program: &program::Program, verbose: bool) {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for f in program.functions.iter().filter(|f| !f.whole()) {
        let entry = f.entry.iter().map(|r| ("entry", r));
        let exits = f.exits.iter().map(|r| ("exit", r));
        let before = f.before.iter().map(|r| ("before a call", r));
        let behind = f.behind.iter().map(|r| ("behind a call", r));
        let Some((place, refusal)) = entry.chain(exits).chain(before).chain(behind).next() else { continue };
        reasons.entry(format!("{place}: {}", kind(refusal))).or_default().push(format!("{} {refusal:?}", f.name));
    }
    for (why, names) in reasons {
        let shown = if verbose { names.len() } else { 3 };
        println!("  {why}: {} ({})", names.len(), names[..names.len().min(shown)].join(", "));
    }
}

/// Text of a refusal without the details that differ from function to function.
fn kind(refusal: &Refusal) -> String {
    match refusal {
        Refusal::TooShort { available, next } => format!("TooShort {available} before {next}"),
        Refusal::NotDisplaceable { why, .. } => format!("NotDisplaceable {why}"),
        other => format!("{other:?}").split(['{', ' ']).next().unwrap_or_default().to_owned(),
    }
}
