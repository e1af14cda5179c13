//! `print(…)`: records of values.

use ingraft_mdl::{Library, ParseOptions, evaluate};
use ingraft_model::{ColumnContent, Focus, Instrumentation, RecordContent, Scalar, ValueNames, WordOrigin};

use crate::support::{Table, show, states};

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

fn evaluated(library: &Library, function: &str) -> Instrumentation {
    let focus = Focus::parse(&format!("/Code/server/{function}")).expect("a focus");
    evaluate(library, "m", &focus, &Table::server()).expect("right").instrumentation
}

fn columns(library: &Library, function: &str) -> Vec<Vec<(String, ColumnContent)>> {
    let named = |columns: &Vec<ingraft_model::RecordColumn>| {
        columns.iter().map(|c| (c.name.clone(), c.content.kind())).collect()
    };
    evaluated(library, function).records.iter().map(named).collect()
}

/// The meaning of the first value of a record.
fn first(library: &Library, function: &str) -> RecordContent {
    evaluated(library, function).records[0][0].content.clone()
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
fn values_are_recorded_by_their_types() {
    let of = |value: &str| {
        let library = library(false, &format!("print({value});"));
        let shown = show(&library, "m", "/Code/server/queue_get");
        let record = shown.split("time, ").nth(1).and_then(|rest| rest.split(';').next()).expect("a record").to_owned();
        (first(&library, "queue_get"), record)
    };
    let text = |at: i64| format!("text at read(($arg[0] + {at}), u64), read(($arg[0] + {}), u64)", at + 8);
    for name in ["$arg[0].name", "str($arg[0].name)", "$arg.x.name"] {
        assert_eq!(of(name), (RecordContent::BoundedText, text(16)));
    }
    let state = (RecordContent::Number(ValueNames::Of(states())), "read(($arg[0] + 4), i32)".to_owned());
    assert_eq!(of("$arg[0].state"), state);
    assert_eq!(of("$arg[0].list"), (RecordContent::List(Some(Scalar::INT)), text(64)));
    let (content, record) = of("$arg[0].option");
    let RecordContent::Variants(true, variants) = content else { panic!("{content:?}") };
    // the data of the third variant with data has no room any more
    let contents: Vec<Option<RecordContent>> = variants.into_iter().map(|variant| variant.data).collect();
    let bounded = Some(RecordContent::BoundedText);
    let number = Some(RecordContent::Number(ValueNames::None));
    assert_eq!(contents, [None, bounded.clone(), bounded, Some(RecordContent::Hidden), number]);
    assert!(record.starts_with("read(($arg[0] + 88), u64), text at"), "{record}");
    assert_eq!(record.matches("text at").count(), 2, "{record}");
}

#[test]
fn results_and_keys_have_the_names_of_enumerations() {
    let at_end = library(true, "print($return);");
    assert_eq!(first(&at_end, "main"), RecordContent::Return(ValueNames::OfRegister(WordOrigin::Result)));
    let by = |at_end: bool, key: &str, function: &str| {
        let point =
            if at_end { "prepend preInsn $constraint[0].return" } else { "append preInsn $constraint[0].entry" };
        let text = format!(
            "metric m {{ name \"m\"; units calls; aggregateOperator sum; style EventCounter; vector over keys;\nconstraint c \
             /Code/* is replace counter {{ {point} (* {key} *) }}\nbase is counter {{ }} }}\n"
        );
        let mut library = Library::new(ParseOptions::default());
        let found: Vec<_> = library.load("m.mdl", &text).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{found:?}");
        let names = evaluated(&library, function).key_names;
        assert_eq!(names.len(), 1);
        names[0].clone()
    };
    assert_eq!(by(false, "m[$arg[0].state]++;", "call"), ValueNames::Of(states()));
    assert_eq!(by(false, "m[($arg[0].state)] += 2;", "call"), ValueNames::Of(states()));
    assert_eq!(by(true, "m[$return]++;", "main"), ValueNames::OfRegister(WordOrigin::Result));
    assert_eq!(by(true, "m[$arg[2]]++;", "main"), ValueNames::OfRegister(WordOrigin::Argument(2)));
    assert_eq!(by(false, "m[$arg[0].other]++;", "call"), ValueNames::None);
    assert_eq!(by(false, "m[$arg[0].state + 1]++;", "call"), ValueNames::None, "a computed number is no enumerator");
    assert_eq!(by(false, "m[$arg[0].state]++; m[$arg[0].other]++;", "call"), ValueNames::None);
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
