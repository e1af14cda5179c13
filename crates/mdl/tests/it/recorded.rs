//! `print(…)`: records of values.

use ingraft_mdl::{Library, ParseOptions, evaluate};
use ingraft_model::{ColumnContent, Focus};

use crate::support::{Table, show};

fn library(at_end: bool, code: &str) -> Library {
    let point = if at_end { "prepend preInsn $constraint[0].return" } else { "append preInsn $constraint[0].entry" };
    let text = format!(
        "metric m {{ name \"m\"; units calls; aggregateOperator sum; style EventCounter;\nconstraint c /Code/* is replace \
         counter {{ {point} (* {code} *) }}\nbase is counter {{ }} }}\n"
    );
    let mut library = Library::new(ParseOptions::default());
    let found: Vec<_> = library.load("m.mdl", &text).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{found:?}");
    library
}

fn columns(library: &Library, function: &str) -> Vec<Vec<(String, ColumnContent)>> {
    let focus = Focus::parse(&format!("/Code/server/{function}")).expect("a focus");
    let evaluated = evaluate(library, "m", &focus, &Table::server()).expect("right").instrumentation;
    let named =
        |columns: &Vec<ingraft_model::RecordColumn>| columns.iter().map(|c| (c.name.clone(), c.content)).collect();
    evaluated.records.iter().map(named).collect()
}

#[test]
fn values_are_recorded_at_the_end_of_a_call() {
    let code =
        "if ($return < 0) { m++; print($arg[1], str($arg[0]), str($arg[0], $return), $caller, $return, $elapsed); }";
    let library = library(true, code);
    use ColumnContent as C;
    let expected = [
        ("$arg[1]", C::Number),
        ("str($arg[0])", C::Text),
        ("str($arg[0], $return)", C::BoundedText),
        ("$caller", C::Caller),
        ("$return", C::Return),
        ("$elapsed", C::Elapsed),
    ];
    assert_eq!(columns(&library, "main"), [expected.map(|(name, content)| (name.to_owned(), content)).to_vec()]);
    let shown = show(&library, "m", "/Code/server/main");
    let record = "record v1 0 time, saved $arg[1], text at saved $arg[0], text at saved $arg[0], $return, $caller, \
                  $return, $elapsed;";
    assert!(shown.contains(record), "{shown}");
}

#[test]
fn each_statement_has_a_number_of_its_own() {
    let library = library(false, "if ($arg[0] == 1) print($arg[0]); else print($arg[1], $arg[2]);");
    assert_eq!(columns(&library, "main").iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    let shown = show(&library, "m", "/Code/server/main");
    assert!(shown.contains("record v1 0 time, $arg[0];") || shown.contains(" 0 time, $arg[0];"), "{shown}");
    assert!(shown.contains(" 1 time, $arg[1], $arg[2];"), "{shown}");
}

#[test]
fn all_arguments_are_those_that_a_call_keeps() {
    let library = library(true, "print(args(), $elapsed);");
    let names =
        |function| -> Vec<String> { columns(&library, function).concat().into_iter().map(|(name, _)| name).collect() };
    assert_eq!(names("call"), ["id", "name", "a", "b", "$elapsed"]);
    assert_eq!(names("main"), ["$elapsed"], "nothing is known of them");
    let shown = show(&library, "m", "/Code/server/call");
    assert!(shown.contains("text at saved $arg[1]"), "{shown}");
}

#[test]
fn strings_of_cpp_have_their_length() {
    let library = library(false, "print(str($arg[0]), str($arg[1]));");
    let contents: Vec<ColumnContent> = columns(&library, "queue_put").concat().into_iter().map(|c| c.1).collect();
    assert_eq!(contents, [ColumnContent::BoundedText, ColumnContent::Text]);
    let shown = show(&library, "m", "/Code/server/queue_put");
    assert!(shown.contains("text at read($arg[0], u64), read(($arg[0] + 8), u64), text at $arg[1];"), "{shown}");
}

#[test]
fn records_have_a_largest_length() {
    let text = "str($arg[0]), ".repeat(5);
    let shown = show(&library(false, &format!("print({text}$arg[1]);")), "m", "/Code/server/main");
    assert!(shown.contains("record"), "{shown}");
    let shown = show(&library(false, &format!("print({text}$arg[1], $arg[1]);")), "m", "/Code/server/main");
    assert!(shown.contains("a record of 49 words is too long"), "{shown}");
}

#[test]
fn print_is_a_statement_and_str_a_value_of_it() {
    let findings = |code: &str| -> String {
        let text = format!(
            "metric m {{ name \"m\"; units calls; aggregateOperator sum; style EventCounter;\nbase is counter {{ foreach f in \
             $procedures {{ append preInsn f.entry (* {code} *) }} }} }}\n"
        );
        let mut library = Library::new(ParseOptions::default());
        library.load("m.mdl", &text).iter().map(|d| format!("{d}\n")).collect()
    };
    assert!(findings("m = print($arg[0]);").contains("`print` has no value"));
    assert!(findings("print(str($arg[0], 1, 2));").contains("`str` takes an address, and perhaps a length"));
    assert!(findings("print($return);").contains("only known at returns"));
}
