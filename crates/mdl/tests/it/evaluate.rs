//! The request stage against a program that is a table.

use crate::support::Table;
use ingraft_mdl::{Library, Options, Program, evaluate, shipped};
use ingraft_model::Focus;

fn library(texts: &[&str]) -> Library {
    let mut library = Library::new(Options::default());
    for (i, text) in texts.iter().enumerate() {
        let findings = library.load(&format!("{i}.mdl"), text);
        assert!(!findings.iter().any(ingraft_mdl::Diagnostic::is_error), "{findings:#?}");
    }
    library
}

/// One line per insertion, or the findings.
fn show(library: &Library, metric: &str, focus: &str) -> String {
    let program = Table::server();
    let focus = Focus::parse(focus).expect("focus");
    match evaluate(library, metric, &focus, &program) {
        Err(findings) => findings.iter().map(|d| format!("{d}\n")).collect(),
        Ok(done) => {
            let mut out: String = done.thread.map(|t| format!("thread {t}\n")).unwrap_or_default();
            for insertion in &done.insertions {
                out += &format!(
                    "{} {:?} {:?}: {}\n",
                    program.function_name(insertion.function),
                    insertion.role,
                    insertion.order,
                    insertion.snippet
                );
            }
            out
        }
    }
}

#[test]
fn calls_of_a_function_a_module_and_everything() {
    let library = library(&[shipped::FILES[0].1]);
    assert_eq!(show(&library, "calls", "/Code/server/call"), "call Metric Append: v0++;\n");
    assert_eq!(show(&library, "calls", "/Code/server").lines().count(), 5);
    assert_eq!(show(&library, "calls", "").lines().count(), 14);
    assert_eq!(show(&library, "calls", "/Process/4711/9"), "thread 9\n".to_owned() + &show(&library, "calls", ""));
    assert_eq!(show(&library, "cals", ""), "error[MDL050]: no metric has the name `cals`\n");
    assert_eq!(
        show(&library, "calls", "/Code/server/nothing"),
        "error[MDL053]: the program has no function `nothing` in `server`, which `/Code/server/nothing` names\n"
    );
}
