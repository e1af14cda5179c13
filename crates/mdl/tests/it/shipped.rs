//! Tests of the metrics that come with ingraft.

use ingraft_mdl::{Library, ParseOptions, ProgramFacts, RenderStyle, evaluate, shipped};
use ingraft_model::Focus;

use crate::support::{Table, show};

#[test]
fn every_shipped_file_loads_without_a_finding() {
    let mut library = Library::new(ParseOptions::default());
    for (name, text) in shipped::FILES {
        let findings = library.load(name, text);
        assert!(findings.is_empty(), "{}", library.render(&findings, RenderStyle::Plain));
    }
    assert!(library.metrics().len() > 60);
}

#[test]
fn every_metric_has_a_sentence_of_documentation_and_its_own_name() {
    for metric in shipped::library(ParseOptions::default()).metrics() {
        let doc = &metric.doc;
        assert!(
            doc.ends_with('.') && !doc.trim_end_matches('.').contains(". ") && doc.len() > 10,
            "{}: {doc}",
            metric.name
        );
        assert!(metric.text.starts_with(&format!("metric {} {{", metric.name)), "{}", metric.text);
    }
}

/// All requests for the whole program work. A refusal would have to name the metric and a position.
#[test]
fn every_metric_is_enabled_or_refused_by_name() {
    let library = shipped::library(ParseOptions::default());
    let program = Table::server();
    let mut refused = Vec::new();
    for metric in library.metrics() {
        match evaluate(&library, &metric.name, &Focus::default(), &program) {
            Ok(done) => assert!(done.instrumentation.variables[0].sampled),
            Err(findings) => {
                for finding in &findings {
                    assert!(finding.code == "MDL054" && finding.line > 0, "{finding}");
                    assert!(finding.message.contains(&format!("`{}` cannot be enabled", metric.name)), "{finding}");
                }
                refused.push(metric.name.clone());
            }
        }
    }
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn times_of_functions_and_modules() {
    let library = shipped::library(ParseOptions::default());
    for (metric, shown) in [
        ("returns", "call.return Metric Append: v0++;\n"),
        (
            "wall_time",
            "call Metric Append: open r1 restore v0 { start v0; }\n\
             call.return Metric Prepend: close r1 restore v0 { stop v0; }\n",
        ),
        (
            "cpu_time",
            "call Metric Append: open r1 restore v0 { cpu_start v0; }\n\
             call.return Metric Prepend: close r1 restore v0 { cpu_stop v0; }\n",
        ),
        (
            "cpu_latency",
            "call Metric Append: open r1 cpu_time cpu_spent { }\n\
             call.return Metric Prepend: close r1 cpu_time cpu_spent { observe v0, cpu_elapsed_ticks, cpu_own; }\n",
        ),
        (
            "latency",
            "call Metric Append: open r1 time spent { }\n\
             call.return Metric Prepend: close r1 time spent { observe v0, elapsed_ticks, own; }\n",
        ),
        (
            "self_latency",
            "call Metric Append: open r2 time restore v1 { v1 = 0; }\n\
             call.return Metric Prepend: close r2 time restore v1 { observe v0, ($elapsed - v1); v1 = (restored + $elapsed); }\n",
        ),
    ] {
        assert_eq!(show(&library, metric, "/Code/server/call"), shown);
        assert_eq!(show(&library, metric, "/Code/server").lines().count(), 5 * shown.lines().count());
    }
}

/// A focus on a kind of objects restricts the metric to that kind, or is refused.
#[test]
fn a_focus_on_a_kind_of_objects_restricts_to_it() {
    let library = shipped::library(ParseOptions::default());
    let waits = ["pthread_mutex_lock", "pthread_cond_wait", "pthread_barrier_wait", "sem_wait", "MPI_Barrier"];
    let program = Table::new(&[("server", &waits)]);
    let at = |metric: &str, kind: &str| {
        let focus = Focus::parse(&format!("/SyncObject/{kind}")).expect("a focus");
        evaluate(&library, metric, &focus, &program).map(|done| {
            let mut names: Vec<_> =
                done.instrumentation.insertions.iter().map(|i| program.function_name(i.function)).collect();
            names.dedup();
            names.join(" ")
        })
    };
    for (metric, kind, functions) in [
        ("lock_operations", "Mutex", "pthread_mutex_lock"),
        ("lock_wait", "Mutex", "pthread_mutex_lock"),
        ("sync_ops", "Mutex", "pthread_mutex_lock"),
        ("sync_ops", "CondVar", "pthread_cond_wait"),
        ("sync_ops", "Barrier", "pthread_barrier_wait MPI_Barrier"),
        ("sync_ops", "Semaphore", "sem_wait"),
        ("sync_ops", "Message", ""),
        ("sync_wait", "Barrier", "pthread_barrier_wait MPI_Barrier"),
        ("sync_wait", "Semaphore", "sem_wait"),
        ("sync_wait_inclusive", "Mutex", "pthread_mutex_lock"),
        ("msgs", "Message", ""),
        ("msgs_by_tag", "Message", ""),
    ] {
        assert_eq!(at(metric, kind).expect("it can be restricted"), functions, "{metric} {kind}");
    }
    for (metric, kind, fragment) in [
        ("lock_operations", "Barrier", "MDL051"),
        ("lock_wait", "Message", "MDL051"),
        ("sync_ops", "RwLock", "`sync_ops` has no constraint for this kind of /SyncObject"),
        ("sync_wait", "RwLock", "MDL051"),
        ("msg_bytes", "Mutex", "MDL051"),
        ("lock_operations", "Nosuch", "MDL051"),
        ("lock_operations", "Nosuch/7", "MDL051"),
        ("lock_operations", "Nosuch", "/SyncObject has no `Nosuch`"),
    ] {
        let findings = at(metric, kind).expect_err("it cannot be restricted");
        let shown = findings.iter().map(|d| format!("{d}\n")).collect::<String>();
        assert!(findings.len() == 1 && shown.contains(fragment), "{metric} {kind}: {shown}");
    }
}
