//! Tests that the result of a request is reused for other functions only where it holds for them.

use ingraft_mdl::{Evaluator, ParseOptions, evaluate, shipped};
use ingraft_model::Focus;

use crate::support::Table;

/// Metrics whose code differs from function to function.
const PARTICULAR: &str = r#"
resourceList particular is procedure { items { "/Code/server/call" }; flavor { unix }; }
metric by_name {
    name "by_name"; units calls; aggregateOperator sum; style EventCounter; unitsType unnormalized;
    constraint by_name_of /Code/* is replace counter {
        if ($constraint[0].name == "call") append preInsn $constraint[0].entry (* by_name += 2; *)
        append preInsn $constraint[0].entry (* by_name++; *)
    }
    base is counter { }
}
metric by_start {
    name "by_start"; units calls; aggregateOperator sum; style EventCounter; unitsType unnormalized;
    constraint by_start_of /Code/* is replace counter {
        append preInsn $start.entry (* by_start += 2; *)
        append preInsn $constraint[0].entry (* by_start++; *)
    }
    base is counter { }
}
metric by_list {
    name "by_list"; units calls; aggregateOperator sum; style EventCounter; unitsType unnormalized;
    constraint by_list_of /Code/* is replace counter {
        foreach f in particular { append preInsn f.entry (* by_list += 2; *) }
        append preInsn $constraint[0].entry (* by_list++; *)
    }
    base is counter { }
}
"#;

/// An evaluator returns for each function what a separate evaluation returns, in whatever order the functions come.
#[test]
fn an_evaluator_says_what_each_request_says_alone() {
    let mut library = shipped::library(ParseOptions::default());
    let findings = library.load("particular.mdl", PARTICULAR);
    assert!(findings.is_empty(), "{findings:?}");
    let program = Table::server();
    let functions = ["main", "call", "processCommand", "queue_put", "no_such_function"];
    let foci = |n: usize| {
        let function = functions[n % functions.len()];
        ["", ",/Process/4711", ",/Process/4711/7"].map(|more| format!("/Code/server/{function}{more}"))
    };
    for metric in library.metrics() {
        for first in 0..functions.len() {
            let evaluator = Evaluator::new(&library, &program, &[]);
            for focus in (first..first + functions.len()).flat_map(foci) {
                let focus = Focus::parse(&focus).expect("a focus");
                let alone = evaluate(&library, &metric.name, &focus, &program);
                let among = evaluator.evaluate(&metric.name, &focus);
                assert_eq!(format!("{among:?}"), format!("{alone:?}"), "{} at {focus}", metric.name);
            }
        }
    }
}
