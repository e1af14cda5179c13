//! Tests of code at exits and around calls: what it remembers from the beginning of a call to its end.

use ingraft_mdl::{ProgramFacts, evaluate};
use ingraft_model::{Focus, Instrumentation};

use crate::support::{Table, library, show};

const EXAMPLES: &str = include_str!("../../../../tests/golden/mdl/paradyn_examples.mdl");

/// A metric `m` with these fields.
fn metric(fields: &str) -> String {
    format!("metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; {fields} }}")
}

/// Evaluates a metric `m` with this base, and returns the result as text.
fn base(kind: &str, body: &str) -> String {
    show(&library(&[&metric(&format!("counter tmp; base is {kind} {{ {body} }}"))]), "m", "")
}

fn done(text: &str, metric: &str, focus: &str) -> Instrumentation {
    let focus = Focus::parse(focus).expect("focus");
    evaluate(&library(&[text]), metric, &focus, &Table::server()).expect("evaluated").instrumentation
}

/// Returns one line per variable.
fn variables(done: &Instrumentation) -> String {
    let line = |(i, v): (usize, &ingraft_model::Variable)| {
        let sampled = if v.sampled { " sampled" } else { "" };
        format!("v{i} {} {:?} {:?} {:?}{sampled}\n", v.name, v.kind, v.shape, v.unit)
    };
    done.variables.iter().enumerate().map(line).collect()
}

#[test]
fn exits_and_calls_take_counters() {
    for (body, expected) in [
        ("append preInsn $start.return (* m++; *)", "main.return Metric Append: v0++;\n"),
        (
            "append preInsn $start.return (* if ($return > 0) m += $return; *)",
            "main.return Metric Append: if (($return > 0)) { v0 += $return; }\n",
        ),
        ("append preInsn $start.calls (* m += $arg[6]; *)", "main.calls Metric Append: v0 += $arg[6];\n"),
        (
            "foreach c in $start.calls { append preInsn c (* m++; *) prepend postInsn c (* m += $return; *) }",
            "main.calls Metric Append: v0++;\nmain.calls after Metric Prepend: v0 += $return;\n",
        ),
        // Scratch variables and events that are only counted need no record.
        (
            "append preInsn $start.entry (* tmp = $arg[2]; m++; *) prepend preInsn $start.return (* if (tmp > 9) m += tmp; tmp = 0; *)",
            "main Metric Append: v1 = $arg[2]; v0++;\nmain.return Metric Prepend: if ((v1 > 9)) { v0 += v1; } v1 = 0;\n",
        ),
    ] {
        assert_eq!(base("counter", body), expected, "{body}");
    }
}

#[test]
fn timers_are_in_records() {
    let body = "foreach f in $procedures if (f.name == \"call\") { \
                  append preInsn f.entry (* startWallTimer(m); *) prepend preInsn f.return (* stopWallTimer(m); *) } \
                append preInsn $start.entry (* startWallTimer(m); *) prepend preInsn $exit.entry (* stopWallTimer(m); *)";
    assert_eq!(
        base("wallTimer", body),
        "call Metric Append: open r2 restore v0 { start v0; }\n\
         call.return Metric Prepend: close r2 restore v0 { stop v0; }\n\
         main Metric Append: start v0;\n\
         _exit Metric Prepend: stop v0;\n"
    );
    let done = done(&metric(&format!("counter tmp; base is wallTimer {{ {body} }}")), "m", "");
    assert_eq!(
        variables(&done),
        "v0 m Counter Timer(Wall) Ticks sampled\nv1 tmp Scratch Counter Plain\nv2 m.calls(m) Activations Activations Plain sampled\n"
    );
}

#[test]
fn all_code_at_the_ends_of_a_call_is_in_its_record() {
    // The record holds the code of both ends in the order in which it would run, conditions included.
    let body = "append preInsn $start.entry (* tmp = 1; *) prepend preInsn $start.entry (* if ($arg[0]) startWallTimer(m); *) \
                append preInsn $start.return (* tmp = 0; *) prepend preInsn $start.return (* stopWallTimer(m); *)";
    assert_eq!(
        base("wallTimer", body),
        "main Metric Prepend: open r2 restore v0 { if ($arg[0]) { start v0; } v1 = 1; }\n\
         main.return Metric Append: close r2 restore v0 { stop v0; v1 = 0; }\n"
    );
    // The record that is opened first is closed last.
    let body =
        "append preInsn $start.entry (* startWallTimer(m); *) append preInsn $start.return (* stopWallTimer(m); *)";
    assert!(base("wallTimer", body).contains("main.return Metric Prepend: close"));
}

#[test]
fn a_timer_that_stands_still_in_calls_has_two_records() {
    let body = "foreach f in $procedures if (f.name == \"call\") { \
                  append preInsn f.entry (* startWallTimer(m); *) prepend preInsn f.return (* stopWallTimer(m); *) \
                  foreach c in f.calls { append preInsn c (* stopWallTimer(m); *) prepend postInsn c (* startWallTimer(m); *) } }";
    assert_eq!(
        base("wallTimer", body),
        "call Metric Append: open r2 restore v0 { start v0; }\n\
         call.return Metric Prepend: close r2 restore v0 { stop v0; }\n\
         call.calls Metric Append: open r3 restore v0 { stop v0; }\n\
         call.calls after Metric Prepend: close r3 restore v0 { start v0; }\n"
    );
    let done = done(&metric(&format!("counter tmp; base is wallTimer {{ {body} }}")), "m", "");
    assert!(done.variables[2].sampled && !done.variables[3].sampled, "calls from it are no calls of it");
    assert!(done.insertions.iter().all(|i| i.group == 0 && i.except.is_empty()));
}

#[test]
fn levels_are_restored_and_events_are_not() {
    let level = "append preInsn $start.entry (* m++; *) prepend preInsn $start.return (* m--; *)";
    assert_eq!(
        base("counter", level),
        "main Metric Append: open r2 restore v0 { v0++; }\nmain.return Metric Prepend: close r2 restore v0 { v0 += -1; }\n"
    );
    let events = "append preInsn $start.entry (* m++; *) prepend preInsn $start.return (* m += 2; *)";
    assert_eq!(base("counter", events), "main Metric Append: v0++;\nmain.return Metric Prepend: v0 += 2;\n");
    let sampled = "metric m { name \"m\"; units u; aggregateOperator max; style SampledFunction; base is counter { \
                   append preInsn $start.entry (* m++; *) prepend preInsn $start.return (* m += 2; *) } }";
    assert!(show(&library(&[sampled]), "m", "").starts_with("main Metric Append: open r1 restore v0"));
}

#[test]
fn arguments_and_time_are_kept_from_the_entry() {
    for (code, open, close) in [
        ("m += $elapsed;", "r2 time", "v0 += $elapsed;"),
        (
            "m += $arg[3] + $arg[1] * $arg[3];",
            "r2 $arg[1] $arg[3]",
            "v0 += (saved $arg[3] + (saved $arg[1] * saved $arg[3]));",
        ),
        (
            "if ($arg[0] > 2 && $elapsed >= 1000) m++;",
            "r2 time $arg[0]",
            "if (((saved $arg[0] > 2) && ($elapsed >= 1000))) { v0++; }",
        ),
        ("m += $elapsed - $cpu;", "r2 time cpu_time", "v0 += ($elapsed - $cpu);"),
        ("m += $arg[1].float * $arg[1];", "r2 $arg[1] f32 in xmm1", "v0 += (saved f32 in xmm1 * saved $arg[1]);"),
    ] {
        assert_eq!(
            base("counter", &format!("prepend preInsn $start.return (* {code} *)")),
            format!("main Metric Append: open {open} {{ }}\nmain.return Metric Prepend: close {open} {{ {close} }}\n")
        );
    }
    assert_eq!(
        base("counter", "append postInsn $start.calls (* if ($return < $arg[2]) m++; *)"),
        "main.calls Metric Prepend: open r2 $arg[2] { }\n\
         main.calls after Metric Append: close r2 $arg[2] { if (($return < saved $arg[2])) { v0++; } }\n"
    );
    // If the limit is exceeded only when the code of a request is joined, the error names the metric.
    let many = "append preInsn $start.return (* m += $arg[0] + $arg[1] + $arg[2] + $arg[3].double; *) \
                append preInsn $start.return (* m += $elapsed + $cpu; *)";
    let many = base("counter", many);
    let six = "error[MDL005]: the metric `m`: the code at the end of a call uses 6 arguments and clocks";
    assert!(many.contains(six), "{many}");
}

#[test]
fn time_without_callees_adds_up() {
    let text = metric(
        "base is histogram { foreach f in $procedures if (f.name < \"d\") \
           prepend preInsn f.return (* if ($self > 5) observe(m, $self); *) }",
    );
    let expected = |name: &str| {
        format!(
            "{name} Metric Append: open r2 time restore v1 {{ v1 = 0; }}\n\
             {name}.return Metric Prepend: close r2 time restore v1 {{ \
             if ((($elapsed - v1) > 5)) {{ observe v0, ($elapsed - v1); }} v1 = (restored + $elapsed); }}\n"
        )
    };
    let shown = show(&library(&[&text]), "m", "");
    assert!(shown.starts_with(&expected("call")) && shown.contains(&expected("calloc")), "{shown}");
    assert_eq!(
        variables(&done(&text, "m", "")),
        "v0 m Counter Histogram(Fine) Plain sampled\n\
         v1 m.callees Scratch Counter Plain\n\
         v2 m.calls(m.callees, time) Activations Activations Plain sampled\n"
    );
    // Each restored variable has its own record. The innermost record holds the code and the time.
    let both = "append preInsn $start.entry (* m++; *) prepend preInsn $start.return (* m--; tmp += $self; *)";
    assert_eq!(
        base("counter", both),
        "main Metric Append: open r3 restore v0 { open r4 time restore v2 { v2 = 0; v0++; } }\n\
         main.return Metric Prepend: close r4 time restore v2 { \
         v0 += -1; v1 += ($elapsed - v2); v2 = (restored + $elapsed); } close r3 restore v0 { }\n"
    );
}

#[test]
fn histograms_hold_ticks_or_values() {
    let observe = |code: &str| format!("base is histogram {{ prepend preInsn $start.return (* {code} *) }}");
    let ticks = done(&metric(&observe("observe(m, ($elapsed));")), "m", "");
    assert_eq!(ticks.insertions[1].snippet.to_string(), "close r1 time { observe v0, elapsed_ticks; }");
    assert!(variables(&ticks).starts_with("v0 m Counter Histogram(Fine) Ticks sampled\n"));
    let own = done(&metric(&observe("observe(m, $cpu, $own);")), "m", "");
    assert_eq!(
        own.insertions[1].snippet.to_string(),
        "close r1 cpu_time cpu_spent { observe v0, cpu_elapsed_ticks, cpu_own; }"
    );
    let values = done(&metric(&observe("observe(m, $return); observe(m, $elapsed / 2);")), "m", "");
    assert_eq!(
        values.insertions[1].snippet.to_string(),
        "close r1 time { observe v0, $return; observe v0, ($elapsed / 2); }"
    );
    assert!(variables(&values).starts_with("v0 m Counter Histogram(Fine) Plain sampled\n"));
    let chosen = "base is histogram { if (1) append preInsn $start.return (* observe(m, $elapsed); *) \
                  if (1) append preInsn $start.return (* observe(m, $return); *) }";
    let mixed = show(&library(&[&metric(chosen)]), "m", "");
    assert!(mixed.contains("error[MDL032]: `m` observes a time alone and other values"), "{mixed}");
    // The text decides on the unit, so that code in libraries that are loaded later has the same unit.
    let nowhere =
        |code: &str| format!("base is histogram {{ foreach f in none prepend preInsn f.return (* {code} *) }}");
    let list = "resourceList none is procedure { items { \"nowhere\" }; flavor { unix }; }";
    for (code, unit) in [("observe(m, $cpu);", "Ticks"), ("observe(m, $elapsed + 0);", "Plain")] {
        let later = done(&format!("{list} {}", metric(&nowhere(code))), "m", "");
        assert_eq!(variables(&later), format!("v0 m Counter Histogram(Fine) {unit} sampled\n"), "{code}");
    }
    // Other code observes values that are no time alone. Therefore a time alone is in nanoseconds, too.
    let both = "base is histogram { if (1) prepend preInsn $start.return (* observe(m, $elapsed); *) \
                if (1) foreach f in none prepend preInsn f.return (* if ($return) { observe(m, $return); } *) }";
    let both = done(&format!("{list} {}", metric(both)), "m", "");
    assert_eq!(both.insertions[1].snippet.to_string(), "close r1 time { observe v0, $elapsed; }");
    assert!(variables(&both).starts_with("v0 m Counter Histogram(Fine) Plain sampled\n"));
    let sizes = metric("base is histogram { append preInsn $start.entry (* observe(m, $arg[0]); *) }");
    assert_eq!(show(&library(&[&sizes]), "m", ""), "main Metric Append: observe v0, $arg[0];\n");
}

#[test]
fn flags_in_words() {
    let text = "constraint inside /Code/* is inclusive; constraint within /Code is inclusive; constraint only /Code/* is exclusive;"
        .to_owned();
    let with = |fields: &str| {
        text.clone()
            + &metric(&format!("{fields} base is counter {{ append preInsn $start.entry constrained (* m++; *) }}"))
    };
    assert_eq!(
        show(&library(&[&with("constraint inside;")]), "m", "/Code/server/call"),
        "main Metric Append: if (v1) { v0++; }\n\
         call FlagSet Prepend: open r2 restore v1 { v1++; }\n\
         call.return FlagClear Append: close r2 restore v1 { v1 += -1; }\n"
    );
    let module = show(&library(&[&with("constraint within;")]), "m", "/Code/server");
    assert_eq!(module.lines().count(), 1 + 2 * 5, "{module}");
    assert_eq!(
        show(&library(&[&with("constraint only;")]), "m", "/Code/server/call"),
        "main Metric Append: if (v1) { v0++; }\n\
         call FlagSet Prepend: open r2 flag v1 { v1 = 1; }\n\
         call.return FlagClear Append: close r2 flag v1 { v1 = 0; }\n\
         call.calls FlagClear Append: open r3 flag v1 { v1 = 0; }\n\
         call.calls after FlagSet Prepend: close r3 flag v1 { v1 = 1; }\n"
    );
    // Records of flags also count unfinished calls. These counts are not sampled, because they are not about calls of the metric.
    let done = done(&with("constraint inside;"), "m", "/Code/server/call");
    assert!(done.variables[1..].iter().all(|v| !v.sampled));
    assert_eq!(done.insertions.iter().map(|i| i.group).collect::<Vec<_>>(), [0, 1, 1]);
}

#[test]
fn large_writes_of_a_function() {
    assert_eq!(
        show(&library(&[EXAMPLES]), "large_write_bytes", "/Code/server/call"),
        "write Metric Append: v1 = $arg[2];\n\
         write.return Metric Prepend: if (v2) { if (((v1 >= 4096) && ($return > 0))) { v0 += $return; } }\n\
         pwrite64 Metric Append: v1 = $arg[2];\n\
         pwrite64.return Metric Prepend: if (v2) { if (((v1 >= 4096) && ($return > 0))) { v0 += $return; } }\n\
         call FlagSet Prepend: open r3 restore v2 { v2++; }\n\
         call.return FlagClear Append: close r3 restore v2 { v2 += -1; }\n"
    );
}

#[test]
fn waits_for_one_mutex_in_one_function() {
    let shown = show(&library(&[EXAMPLES]), "lock_wait", "/Code/server/call,/SyncObject/Mutex/0x1000");
    assert_eq!(
        shown,
        "pthread_mutex_lock Metric Append: open r3 restore v0 { if (v1) { if (v2) { start v0; } } }\n\
         pthread_mutex_lock.return Metric Prepend: close r3 restore v0 { if (v1) { if (v2) { stop v0; } } }\n\
         call FlagSet Prepend: open r4 restore v1 { v1 = 1; }\n\
         call.return FlagClear Append: close r4 restore v1 { v1 = 0; }\n\
         call.calls FlagClear Append: open r5 restore v1 { v1 = 0; }\n\
         call.calls after FlagSet Prepend: close r5 restore v1 { v1 = 1; }\n\
         pthread_mutex_lock FlagSet Prepend: open r6 restore v2 { if (($arg[0] == 4096)) { v2 = 1; } }\n\
         pthread_mutex_lock.return FlagClear Append: close r6 restore v2 { v2 = 0; }\n"
    );
    // The wait in a lock is the function's own time, so calls of the lock's functions do not clear the flag.
    let done = done(EXAMPLES, "lock_wait", "/Code/server/call,/SyncObject/Mutex/0x1000");
    let program = Table::server();
    for insertion in &done.insertions {
        let names: Vec<&str> = insertion.except.iter().map(|f| program.function_name(*f)).collect();
        let at_calls = insertion.point.is_at_call();
        assert_eq!(names, if at_calls { &["pthread_mutex_lock"][..] } else { &[] });
    }
    // A `default` constraint needs no flag. A focus on a module needs the flag that counts activations.
    assert!(
        show(&library(&[EXAMPLES]), "lock_wait", "/SyncObject/Mutex")
            .starts_with("pthread_mutex_lock Metric Append: open r1 restore v0 { start v0; }\n")
    );
    assert_eq!(show(&library(&[EXAMPLES]), "lock_wait", "/Code/server").lines().count(), 2 + 2 * 5);
}

/// Returns the insertions of the flags, with names instead of numbers.
fn flag_code(done: &Instrumentation) -> Vec<String> {
    let flags = done.insertions.iter().filter(|i| i.group > 0);
    flags
        .map(|i| {
            let mut text = i.snippet.to_string();
            for (n, v) in done.variables.iter().enumerate().rev() {
                text = text.replace(&format!("v{n}"), &v.name).replace(&format!("r{n} "), &format!("{} ", v.name));
            }
            format!("{:?} {:?} {:?} {:?}: {text}", i.function, i.point, i.role, i.order)
        })
        .collect()
}

#[test]
fn the_flag_of_two_metrics_is_the_same_code_on_the_same_names() {
    let large = done(EXAMPLES, "large_write_bytes", "/Code/server/call");
    let heap = done(EXAMPLES, "heap_requests", "/Code/server/call");
    assert_eq!(flag_code(&large), flag_code(&heap));
    assert_eq!(flag_code(&heap).len(), 2);
    assert!(
        flag_code(&heap)[0].ends_with("open inFunction.calls(inFunction) restore inFunction { inFunction++; }"),
        "{:?}",
        flag_code(&heap)
    );
}

#[test]
fn a_flag_and_its_metric_at_one_function_open_and_close_like_brackets() {
    let text = "constraint inside /Code/* is inclusive;".to_owned()
        + &metric(
            "constraint inside; base is wallTimer { foreach f in $procedures if (f.name == \"call\") { \
            append preInsn f.entry constrained (* startWallTimer(m); *) prepend preInsn f.return constrained (* stopWallTimer(m); *) } }",
        );
    let done = done(&text, "m", "/Code/server/call");
    let order = |point| {
        let mut all: Vec<_> = done.insertions.iter().filter(|i| i.point == point).collect();
        all.sort_by_key(|i| i.role);
        all.into_iter().map(|i| i.group).collect::<Vec<_>>()
    };
    assert_eq!(order(ingraft_model::PointKind::Entry), [1, 0]);
    assert_eq!(order(ingraft_model::PointKind::Exit), [0, 1]);
}

#[test]
fn records_of_thousands_of_functions_are_two_snippets() {
    let functions: Vec<String> = (0..13_900).map(|i| format!("function_{i}")).collect();
    let names: Vec<&str> = functions.iter().map(String::as_str).collect();
    let program = crate::support::Indexed::new(Table::new(&[("server", &names)]));
    let text = metric(
        "base is histogram { foreach f in $procedures prepend preInsn f.return (* if ($return) observe(m, $elapsed); else observe(m, $elapsed); *) }",
    );
    let begin = std::time::Instant::now();
    let done = evaluate(&library(&[&text]), "m", &Focus::default(), &program).expect("evaluated").instrumentation;
    println!("{:?}", begin.elapsed());
    assert_eq!(done.insertions.len(), 2 * 13_900);
    assert_eq!(done.variables.len(), 3);
    for pair in done.insertions.chunks(2) {
        assert!(pair.iter().zip(&done.insertions).all(|(a, b)| std::sync::Arc::ptr_eq(&a.snippet, &b.snippet)));
    }
}
