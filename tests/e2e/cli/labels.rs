//! Tests of symbols without a type, as in assembly that does not say which of its labels are functions.

use ingraft_testing::Mutatee;
use ingraft_testing::target::{self, Text};

use crate::tool;

#[test]
fn untyped_functions_are_listed_and_counted_where_they_are_proven() {
    let mut target = Mutatee::start("labels", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let pid = target.pid_text();
    let outcome = tool.run(["functions", "-p", &pid, "labels:*"]).assert_code(0);
    let functions = outcome.all("function");
    let size = |name: &str| functions.iter().find(|f| f["function"] == name).and_then(|f| f["size"].as_u64());
    for name in ["direct", "helper", "framed"] {
        assert!(size(name).is_some_and(|size| size > 0), "{name}: {functions:#?}");
    }
    assert!(size("pointed").is_none() && size("numbers").is_none(), "data may look like code: {functions:#?}");
    let left_out: Vec<&str> = outcome.all("untyped").iter().filter_map(|object| object["symbol"].as_str()).collect();
    assert!(left_out.contains(&"pointed") && left_out.contains(&"numbers"), "{left_out:?}");
    assert!(!left_out.iter().any(|name| ["direct", "helper", "framed", "main"].contains(name)), "{left_out:?}");
    // The output for people says so, too.
    let output = tool.plain_command(["functions", "-p", &pid, "labels:*"]).output().expect("run ingraft");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("without a type") && text.contains("pointed"), "{text}");

    let session = tool.measure("count", target.pid(), &["direct", "helper", "framed"]);
    let truth = target.ask("go 50");
    let counts = session.interrupt().assert_code(0).assert_removed().counts();
    for name in ["direct", "helper", "framed"] {
        assert_eq!(counts.get(name), Some(&truth.tally(name)), "{name}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn patterns_name_the_untyped_symbols_that_they_leave_out() {
    let target = Mutatee::start("labels", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let pid = target.pid_text();
    let count = |pattern: &str| tool.run(["count", "-p", &pid, pattern, "--for", "100ms"]);
    let refused = count("pointed").assert_error(3, &["`pointed` in labels has no type"]);
    drop(refused);
    // For a label inside of a function, the advice names the function.
    let refused = count("inside_of_helper").assert_error(3, &["measure `helper`"]);
    drop(refused);
    let counted = count("labels:*").assert_code(0);
    assert!(counted.stderr.contains("without a type") && counted.stderr.contains("`numbers`"), "{}", counted.stderr);
    target::assert_clean(target.pid(), &before);
}
