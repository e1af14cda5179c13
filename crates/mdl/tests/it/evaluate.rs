//! Tests of the request stage, with a program that is a table.

use crate::support::{self, Table, library, show};
use ingraft_mdl::{Evaluator, Library, ParseOptions, codes, evaluate, shipped};
use ingraft_model::{Flavor, Focus};

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

#[test]
fn a_block_is_a_resource_of_its_function() {
    let library = library(&[shipped::FILES[0].1]);
    let shown = |focus| show(&library, "executions", focus);
    assert_eq!(shown("/Code/server/call/#0x1a"), "call#0x1a Metric Append: v0++;\n");
    assert_eq!(
        shown("/Code/server/call/#0x1b"),
        "error[MDL053]: `/Code/server/call/#0x1b`: no block begins at +0x1b\n"
    );
    let strange = "error[MDL051]: `#1a`, which `/Code/server/call/#1a` names, is no part of a function\n";
    assert_eq!(shown("/Code/server/call/#1a"), strange);
    assert!(shown("/Code/server/none/#0x1a").contains("the program has no function `none`"));
    let calls = show(&library, "calls", "/Code/server/call/#0x1a");
    assert!(calls.contains("has no constraint for a block of /Code"), "{calls}");
}

#[test]
fn an_edge_is_a_resource_of_its_function() {
    let library = library(&[shipped::FILES[0].1]);
    let shown = |focus| show(&library, "executions", focus);
    assert_eq!(shown("/Code/server/call/#0x0->0x1a"), "call#0x0->0x1a FallThrough Metric Append: v0++;\n");
    // Edges with one name are taken together.
    assert_eq!(
        shown("/Code/server/call/#0x1a->0x1a"),
        "call#0x1a->0x1a Taken #0x1a->0x1a JumpTable Metric Append: v0++;\n"
    );
    let missing = "error[MDL053]: `/Code/server/call/#0x0->0x2c`: no edge #0x0->0x2c\n";
    assert_eq!(shown("/Code/server/call/#0x0->0x2c"), missing);
    let calls = show(&library, "calls", "/Code/server/call/#0x0->0x1a");
    assert!(calls.contains("has no constraint for an edge of /Code"), "{calls}");
    let iterations = show(&library, "iterations", "/Code/server/call/#0x0->0x1a");
    assert!(iterations.contains("this is not a loop"), "{iterations}");
}

#[test]
fn a_loop_is_a_resource_of_its_function() {
    let library = library(&[shipped::FILES[0].1]);
    let (call, put) = ("/Code/server/call/#loop@0x1a", "/Code/server/queue_put/#loop@0x1a");
    assert_eq!(show(&library, "iterations", call), "call#0x1a Metric Append: v0++;\n");
    assert_eq!(show(&library, "executions", call), "call#0x0->0x1a FallThrough Metric Append: v0++;\n");
    assert_eq!(show(&library, "iterations", put), "queue_put#0x1a Metric Append: v0++;\n");
    let refused = "control enters the loop at +0x1a other than along an edge between blocks";
    assert_eq!(show(&library, "executions", put), format!("queue_put ({refused}) Metric Append: v0++;\n"));
    let missing = "error[MDL053]: `/Code/server/call/#loop@0x0`: #loop@0x0 is no loop of the function\n";
    assert_eq!(show(&library, "iterations", "/Code/server/call/#loop@0x0"), missing);
    let calls = show(&library, "calls", call);
    assert!(calls.contains("has no constraint for a loop of /Code"), "{calls}");
}

#[test]
fn all_edges_and_loops_of_a_function_are_points() {
    let of = |body: &str| show(&with(&base(body)), "m", "");
    assert_eq!(of("append preInsn $start.edges (* m++; *)"), "main.edges Metric Append: v0++;\n");
    assert_eq!(of("foreach e in $start.edges append preInsn e (* m++; *)"), "main.edges Metric Append: v0++;\n");
    assert!(of("append preInsn $start.edges (* m += $arg[0]; *)").contains("arguments are known at entries"));
    assert_eq!(
        of("foreach l in $start.loops { append preInsn l.enter (* m++; *) append preInsn l.exit (* m--; *)
            append preInsn l.start_iter (* m += 2; *) append preInsn l.end_iter (* m += 3; *) }"),
        "main#0x0->0x1a FallThrough Metric Append: v0++;\n\
         main#0x1a->0x2c FallThrough Metric Append: v0 += -1;\n\
         main#0x1a Metric Append: v0 += 2;\n\
         main#0x1a->0x1a Taken #0x1a->0x1a JumpTable Metric Append: v0 += 3;\n"
    );
    // Each loop is a value of its own: a loop without such edges is refused in its function alone.
    let all = of("foreach f in $procedures foreach l in f.loops append preInsn l.exit (* m++; *)");
    assert_eq!((all.lines().count(), all.matches("control leaves the loop").count()), (14, 1));
}

/// Code that is constrained runs while the thread is in the loop of the focus.
#[test]
fn a_constraint_on_a_loop_holds_from_its_beginning_to_its_end() {
    let metric = |constraint: &str| {
        library(&[&format!(
            "constraint inLoop /Code/*/* is {constraint}\n\
             metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; constraint inLoop; \
             base is counter {{ append preInsn $start.entry constrained (* m++; *) }} }}"
        )])
    };
    let by_hand = metric(
        "counter { prepend preInsn $constraint[0].enter (* inLoop += 1; *) \
                   append preInsn $constraint[0].exit (* inLoop -= 1; *) }",
    );
    let expected = "main Metric Append: if (v1) { v0++; }\n\
                    call#0x0->0x1a FallThrough FlagSet Prepend: v1++;\n\
                    call#0x1a->0x2c FallThrough FlagClear Append: if ((v1 > 0)) { v1 += -1; }\n";
    assert_eq!(show(&by_hand, "m", "/Code/server/call/#loop@0x1a"), expected);
    assert_eq!(show(&metric("inclusive;"), "m", "/Code/server/call/#loop@0x1a"), expected);
    for (word, focus, message) in [
        ("exclusive;", "#loop@0x1a", "`exclusive` is said of functions and modules"),
        ("inclusive;", "#0x1a", "`inclusive` and `exclusive` are said of modules, functions and loops"),
        ("inclusive;", "#0x0->0x1a", "`inclusive` and `exclusive` are said of modules, functions and loops"),
    ] {
        let shown = show(&metric(word), "m", &format!("/Code/server/call/{focus}"));
        assert!(shown.contains(message), "{shown}");
    }
}

#[test]
fn all_blocks_of_a_function_are_points() {
    let code = |code: &str| with(&base(&format!("append preInsn $start.blocks (* {code} *)")));
    assert_eq!(show(&code("m++;"), "m", ""), "main.blocks Metric Append: v0++;\n");
    assert!(show(&code("m += $arg[0];"), "m", "").contains("arguments are known at entries"));
}

#[test]
fn blocks_are_no_ends_of_calls() {
    let body = "append preInsn $start.entry (* m += 1; *) append preInsn $start.blocks (* tmp++; *) \
                prepend preInsn $start.return (* m += $elapsed; *)";
    let shown = show(&with(&format!("counter tmp; {}", base(body))), "m", "");
    let blocks: Vec<&str> = shown.lines().filter(|line| line.contains("blocks")).collect();
    assert_eq!(blocks, ["main.blocks Metric Append: v1++;"]);
    assert_eq!(shown.lines().count(), 3);
}

/// A metric `m` with these fields, and all other definitions that the tests name.
fn with(fields: &str) -> Library {
    library(&[&format!(
        "resourceList heap is procedure {{ items {{ \"malloc\", \"nothing\", \"calloc\", \"malloc\" }}; flavor {{ unix }}; }}\n\
         resourceList there is procedure {{ items {{ \"/Code/server/call\" }}; flavor {{ linux }}; library true; }}\n\
         resourceList elsewhere is procedure {{ items {{ \"malloc\" }}; flavor {{ winnt }}; }}\n\
         resourceList sizes is int {{ items {{ \"8\", \"0x10\" }}; flavor {{ unix }}; }}\n\
         constraint entered /Code/* is counter {{\n\
           append preInsn $constraint[0].entry (* entered++; *)\n\
           prepend preInsn $exit.entry (* entered = 0; *) }}\n\
         constraint inside /Code/* is inclusive;\n\
         constraint any /SyncObject is default;\n\
         constraint mutex /SyncObject/Mutex is default;\n\
         metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; {fields} }}"
    )])
}

fn base(body: &str) -> String {
    format!("base is counter {{ {body} }}")
}

#[test]
fn code_becomes_snippets() {
    for (code, expected) in [
        ("m = 3;", "v0 = 3;"),
        ("m -= $arg[0] * 2;", "v0 += -(($arg[0] * 2));"),
        ("m -= 2;", "v0 += -2;"),
        ("m--; m++;", "v0 += -1; v0++;"),
        ("m = tmp = 4;", "v1 = 4; v0 = v1;"),
        ("if ($arg[0] >= 4096 && !tmp) { m++; tmp = 1; }", "if ((($arg[0] >= 4096) && !(v1))) { v0++; v1 = 1; }"),
        ("if (tmp) m++; else m--;", "v2 = v1; if (v2) { v0++; } if (!(v2)) { v0 += -1; }"),
        ("if (2 > 1) m++; else m--;", "v0++;"),
        ("m += (1 << 4) | 0x0f;", "v0 += 31;"),
        ("m += sizes[1] + DYNINSTAdd($arg[1], 2);", "v0 += (16 + ($arg[1] + 2));"),
        ("m += DYNINSTTwoComparesAndedExpr($arg[0], 1, $arg[1], 2);", "v0 += (($arg[0] == 1) && ($arg[1] == 2));"),
        ("m = 7 / 0 + 7 % 0;", "v0 = 0;"),
        ("m += f(g($arg[0]), 2);", "v0 += call \"f\"(call \"g\"($arg[0]), 2);"),
        ("Call(\"lib:f\"); f(1);", "call \"lib:f\"(); call \"f\"(1);"),
        ("if (f() && $arg[0]) m++;", "if (((call \"f\"() != 0) & ($arg[0] != 0))) { v0++; }"),
    ] {
        let library = with(&format!("counter tmp; {}", base(&format!("append preInsn $start.entry (* {code} *)"))));
        assert_eq!(show(&library, "m", ""), format!("main Metric Append: {expected}\n"), "{code}");
    }
}

#[test]
fn the_meta_language_runs() {
    for (body, functions) in [
        ("foreach f in heap append preInsn f.entry (* m++; *)", "malloc calloc"),
        ("foreach f in there append preInsn f.entry (* m++; *)", "call"),
        ("append preInsn $exit.entry (* m++; *)", "_exit"),
        ("if ($machine == \"node17\") append preInsn $start.entry (* m++; *)", "main"),
        ("if ($machine == \"other\") { } else append preInsn $start.entry (* m++; *)", "main"),
        ("foreach f in $procedures if (f.name == \"free\") append preInsn f.entry (* m++; *)", "free"),
        ("foreach f in $procedures if (libraryTag(f.tag)) append preInsn f.entry (* m++; *)", "call"),
        (
            "foreach l in $modules if (l.name == \"server\") foreach f in l.funcs if (f.name > \"q\") append preInsn f.entry (* m++; *)",
            "queue_put queue_get",
        ),
        ("append preInsn $start.entry (* *)", ""),
    ] {
        let shown = show(&with(&base(body)), "m", "");
        let names: Vec<&str> = shown.lines().filter_map(|l| l.split_once(' ').map(|(name, _)| name)).collect();
        assert_eq!(names.join(" "), functions, "{body}: {shown}");
    }
    let listed = with(&base("foreach s in sizes append preInsn $start.entry (* if ($arg[0] == s) m++; *)"));
    assert_eq!(
        show(&listed, "m", ""),
        "main Metric Append: if (($arg[0] == 8)) { v0++; }\nmain Metric Append: if (($arg[0] == 16)) { v0++; }\n"
    );
}

#[test]
fn flags_guard_constrained_code_and_have_roles() {
    let code = "append preInsn $start.entry (* tmp = 1; *) prepend preInsn $start.entry constrained (* m++; *)";
    let library = with(&format!("counter tmp; constraint entered; constraint any; {}", base(code)));
    assert_eq!(
        show(&library, "m", "/Code/server/call,/SyncObject/Mutex"),
        "main Metric Append: v1 = 1;\n\
         main Metric Prepend: if (v2) { v0++; }\n\
         call FlagSet Append: v2++;\n\
         _exit FlagClear Prepend: v2 = 0;\n"
    );
    assert_eq!(show(&library, "m", ""), "main Metric Append: v1 = 1;\nmain Metric Prepend: v0++;\n");
}

#[test]
fn every_restricted_hierarchy_needs_a_constraint() {
    let library = with(&format!("constraint entered; {}", base("append preInsn $start.entry (* m++; *)")));
    for (focus, fragment) in [
        ("/Code/server", "the metric `m` has no constraint for a module of /Code, as `/Code/server` needs"),
        ("/Code/server/call/#loop@0x1a", "no constraint for a loop of /Code"),
        ("/Code/server/call,/SyncObject/Mutex/7", "no constraint for this synchronisation object of /SyncObject"),
        ("/Machine/other", "error[MDL056]: the program runs on `node17`, not on `other`"),
        ("/Process/12", "error[MDL056]: the focus names the process `12`, the program is 4711"),
        ("/Process/4711/x", "error[MDL056]: `x` in the focus is no thread id"),
        ("/Machine/node17/server{4711}/thr_8,/Process/4711/9", "the focus names two threads"),
    ] {
        let shown = show(&library, "m", focus);
        assert!(shown.lines().count() == 1 && shown.contains(fragment), "{focus}: {shown}");
    }
    assert!(show(&library, "m", "/Machine/node17/server{4711}/thr_8{main}").starts_with("thread 8\n"));
}

#[test]
fn the_tag_of_a_message_is_a_number_and_its_group_a_name() {
    let tagged = "constraint tagged /SyncObject/Message/* is replace counter {
        append preInsn $start.entry (* if ($arg[4] == $constraint[0]) m++; *) }
    constraint group /SyncObject/Message is replace counter {
        if ($constraint[0] == \"world\") append preInsn $start.entry (* m += 2; *) }
    base is counter { append preInsn $start.entry (* m += 3; *) }";
    let of = |focus: &str| show(&with(tagged), "m", focus);
    assert_eq!(of("/SyncObject/Message/world/7"), "main Metric Append: if (($arg[4] == 7)) { v0++; }\n");
    assert_eq!(of("/SyncObject/Message/world"), "main Metric Append: v0 += 2;\n");
    assert_eq!(of("/SyncObject/Message/other"), "");
    // A group may be a number, as the program computes it.
    let own = "constraint own /SyncObject/Message/* is replace counter {
        append preInsn $start.entry (* if ($arg[5] == $constraint[1]) m++; *) } base is counter { }";
    let of_number = show(&with(own), "m", "/SyncObject/Message/0x44000000/7");
    assert!(of_number.contains("if (($arg[5] == 1140850688))"), "{of_number}");
    assert!(of("/SyncObject/Message/world/seven").contains("`seven` in the focus is no number"));
}

#[test]
fn what_is_allowed_without_a_flag_need_not_be_understood() {
    let library = with(&format!("constraint mutex; {}", base("append preInsn $start.entry constrained (* m++; *)")));
    assert_eq!(show(&library, "m", "/SyncObject/Mutex/here"), "main Metric Append: v0++;\n");
}

#[test]
fn a_replacement_of_a_lock_takes_the_address_from_the_focus() {
    let library = library(&[shipped::FILES[0].1, shipped::FILES[2].1]);
    assert_eq!(
        show(&library, "lock_operations", "/SyncObject/Mutex/0x7f00"),
        "pthread_mutex_lock Metric Append: if (($arg[0] == 32512)) { v0++; }\n"
    );
    let of = |name: &str| show(&library, "lock_operations", &format!("/SyncObject/Mutex/{name}"));
    assert!(
        of("here").contains("error[MDL053]: the metric `lock_operations`: the program has no variable `here`"),
        "{}",
        of("here")
    );
    // The address of the variable `level` is 0x5000.
    assert!(of("server.c:level").contains("if (($arg[0] == 20480)) { v0++; }"), "{}", of("server.c:level"));
    assert!(of("level+0x28").contains("if (($arg[0] == 20520)) { v0++; }"), "{}", of("level+0x28"));
    assert!(of("own").contains("`own`: every thread has its own"), "{}", of("own"));
    assert_eq!(show(&library, "lock_operations", "/SyncObject/Mutex").lines().count(), 1);
}

#[test]
fn data_of_the_program_is_read_where_it_lies() {
    let shown = |code: &str| show(&with(&base(&format!("append preInsn $start.entry (* {code} *)"))), "m", "");
    let expect = |code: &str, statement: &str| {
        assert_eq!(shown(code), format!("main Metric Append: {statement}\n"), "{code}");
    };
    expect("m = readSymbol(\"level\");", "v0 = u16 at 0x5000;");
    expect("m = readSymbol(\"server.c:level\") + $globalId;", "v0 = (u16 at 0x5000 + number of v0);");
    // A library may be unloaded, so the code reads its variable by a system call.
    expect("m = readSymbol(\"shared\");", "v0 = read(1879048192, u16);");
    expect("m = readSymbol(\"level\").a.b;", "v0 = read((u64 at 0x5000 + 8), u16);");
    expect("m = readSymbol(\"shared\").a.b.c;", "v0 = read((read(read(1879048192, u64), u64) + 8), u16);");
    expect("m = readSymbol(\"mine\").a;", "v0 = read((thread pointer + -8), u16);");
    expect("m = readSymbol(\"mine\").a.b;", "v0 = read((read((thread pointer + -16), u64) + 8), u16);");
    expect("m += $arg[0].a;", "v0 += read(($arg[0] + 8), u16);");
    expect("m += $arg[1].a.b;", "v0 += read((read($arg[1], u64) + 8), u16);");
    expect("m += readAddress($arg[0] + 4);", "v0 += read(($arg[0] + 4), i32);");
    expect("m += DYNINSTArrayField($arg[0], 2);", "v0 += read(($arg[0] + 8), i32);");
    expect("m += DYNINSTArrayField($arg[0], $arg[1]);", "v0 += read(($arg[0] + ($arg[1] * 4)), i32);");
    expect("m += DYNINSTCountElmsInArray($arg[0], 2);", "v0 += (read($arg[0], i32) + read(($arg[0] + 4), i32));");
    expect("m += DYNINSTCountElmsInArray($arg[0], 0);", "v0 += 0;");
    for (code, reason) in [
        ("m = readSymbol(\"levle\");", "error[MDL053]: the metric `m`: the program has no variable `levle`"),
        ("m = readSymbol(\"own\");", "`own`: every thread has its own"),
        ("m = DYNINSTCountElmsInArray($arg[0], 17);", "at most 16, is not woven yet"),
        ("m = DYNINSTCountElmsInArray($arg[0], $arg[1]);", "at most 16, is not woven yet"),
    ] {
        assert!(shown(code).contains(reason), "{}", shown(code));
    }
    // The argument is kept from the entry; the result is read at the return.
    let both = with(&base("append preInsn $start.return (* m += $arg[0].a + $return.a; *)"));
    let end = "close r1 $arg[0] { v0 += (read((saved $arg[0] + 8), u16) + read(($return + 8), u16)); }";
    assert!(show(&both, "m", "").contains(end), "{}", show(&both, "m", ""));
    let calls = "foreach f in $procedures if (f.name == \"call\") foreach c in f.calls";
    let called = with(&base(&format!("{calls} append postInsn c (* m += $arg[1].a.b + $return.a; *)")));
    let end = "close r1 $arg[1] { v0 += (read((read(saved $arg[1], u64) + 8), u16) + read(($return + 8), u16)); }";
    assert!(show(&called, "m", "").contains(end), "{}", show(&called, "m", ""));
    // Code at entries is made for each function separately, so the member may lie elsewhere in each.
    let several = with(&base("foreach f in $procedures append preInsn f.entry (* m += $arg[0].a; *)"));
    assert!(!show(&several, "m", "").contains("error"), "each function has its own snippet");
}

#[test]
fn texts_and_floating_point_numbers_and_settings() {
    let shown = |code: &str| show(&with(&base(&format!("append preInsn $start.entry (* {code} *)"))), "m", "");
    let expect = |code: &str, statement: &str| {
        assert_eq!(shown(code), format!("main Metric Append: {statement}\n"), "{code}");
    };
    expect("m = Call(\"f\", \"a text\", &m);", "v0 = call \"f\"(\"a text\", &v0);");
    let equal = "((read($arg[0], u16) == 25185) && (read(($arg[0] + 2), u8) == 0))";
    expect("if ($arg[0] == \"ab\") m++;", &format!("if ({equal}) {{ v0++; }}"));
    expect("m = \"ab\" != $arg[0];", &format!("v0 = !({equal});"));
    expect("m = \"a\" == \"b\";", "v0 = 0;");
    expect("m = $arg[2].double - $arg[0].float;", "v0 = (f64 in xmm2 - f32 in xmm0);");
    expect("readSymbol(\"level\") += 2;", "u16 at 0x5000 = (u16 at 0x5000 + 2);");
    expect("readSymbol(\"level\")--;", "u16 at 0x5000 = (u16 at 0x5000 - 1);");
    expect("readSymbol(\"level\").a.b = 1;", "write((u64 at 0x5000 + 8), u16, 1);");
    expect("readSymbol(\"mine\").a++;", "write((thread pointer + -8), u16, (read((thread pointer + -8), u16) + 1));");
    expect("$arg[0].a = $arg[1];", "write(($arg[0] + 8), u16, $arg[1]);");
    expect("$arg[0].a -= 3;", "write(($arg[0] + 8), u16, (read(($arg[0] + 8), u16) - 3));");
    expect("readAddress($arg[0] + 4) = 9;", "write(($arg[0] + 4), u32, 9);");
    // The code follows the pointers once.
    let once = "v1 = (read($arg[0], u64) + 8); write(v1, u16, (read(v1, u16) + 1));";
    expect("$arg[0].a.b++;", once);
    let long = format!("if ($arg[0] == \"{}\") m++;", "x".repeat(64));
    for (code, reason) in [
        ("m = \"a text\";", "error[MDL032]: the metric `m`: a text is no number"),
        ("m += \"a\" + 1;", "a text is no number"),
        (long.as_str(), "a text of more than 63 bytes"),
        ("m = $arg[8].double;", "beyond the eighth"),
        ("readSymbol(\"own\") = 1;", "`own`: every thread has its own"),
        ("readSymbol(\"shared\") = 1;", "not in the writable data of the program itself"),
    ] {
        assert!(shown(code).contains(reason), "{code}: {}", shown(code));
    }
}

#[test]
fn events_at_points_are_asked_for() {
    let body = "append preInsn $start.entry (* startHwTimer(m); *) prepend preInsn $start.return (* stopHwTimer(m); *)";
    let faults = show(&with(&format!("base is hwTimer(\"faults\") {{ {body} }}")), "m", "");
    assert!(faults.contains("if ((v1 == 0)) { v2 = page-faults; } v1++;"), "{faults}");
    assert!(faults.contains("if ((v1 > 0)) { if ((v1 == 1)) { v0 += (page-faults - v2); } v1 += -1; }"), "{faults}");
    let time = show(&with(&format!("base is hwTimer(\"task-clock\") {{ {body} }}")), "m", "");
    assert!(time.contains("cpu_start v0;") && time.contains("cpu_stop v0;"), "{time}");
    let sample = "append preInsn $start.entry (* sampleHwCounter(m); *)";
    let switches = show(&with(&format!("base is hwCounter(\"cs\") {{ {sample} }}")), "m", "");
    assert_eq!(switches, "main Metric Append: v0 = context-switches;\n");
    let clock = show(&with(&format!("base is hwCounter(\"task-clock\") {{ {sample} }}")), "m", "");
    assert!(clock.contains("`task-clock` is a time"), "{clock}");
}

#[test]
fn the_processors_events_are_read_by_the_thread() {
    let body = "append preInsn $start.entry (* startHwTimer(m); *) prepend preInsn $start.return (* stopHwTimer(m); *)";
    let cycles = show(&with(&format!("base is hwTimer(\"cycles:u\") {{ {body} }}")), "m", "");
    assert!(cycles.contains("if ((v2 == 0)) { v3 = event v1; } v2++;"), "{cycles}");
    assert!(cycles.contains("if ((v2 == 1)) { v0 += (event v1 - v3); } v2 += -1;"), "{cycles}");
    let sample = "append preInsn $start.entry (* sampleHwCounter(m); *)";
    let sampled = show(&with(&format!("base is hwCounter(\"r1a8\") {{ {sample} }}")), "m", "");
    assert_eq!(sampled, "main Metric Append: v0 = event v1;\n");
}

#[test]
fn code_behind_the_instruction_of_an_entry_comes_last_there() {
    let body = "append postInsn $start.entry (* m += 2; *) append preInsn $start.entry (* m = 1; *) \
                prepend postInsn $start.entry (* m += 3; *)";
    let shown = show(&with(&base(body)), "m", "");
    let lines = ["main Metric Append: v0 = 1;", "main Metric Append: v0 += 2;", "main Metric Append: v0 += 3;"];
    assert_eq!(shown, lines.map(|l| l.to_owned() + "\n").concat());
}

#[test]
fn assignments_have_values() {
    let shown = |code: &str| {
        show(
            &with(&format!("counter t; counter u; {}", base(&format!("append preInsn $start.entry (* {code} *)")))),
            "m",
            "",
        )
    };
    for (code, expected) in [
        ("m = t = 5;", "v1 = 5; v0 = v1;"),
        ("m = t = u = $arg[0];", "v2 = $arg[0]; v1 = v2; v0 = v1;"),
        ("m += t++;", "v1++; v0 += (v1 - 1);"),
        ("m += t--;", "v1 += -1; v0 += (v1 + 1);"),
        ("m += (t = 1) + (u -= 2);", "v1 = 1; v2 += -2; v0 += (v1 + v2);"),
        ("if (t++ >= 3) m++;", "v1++; if (((v1 - 1) >= 3)) { v0++; }"),
        ("if ($arg[0]) m = t = 1;", "if ($arg[0]) { v1 = 1; v0 = v1; }"),
        ("m = readSymbol(\"level\") = 7;", "u16 at 0x5000 = 7; v0 = u16 at 0x5000;"),
    ] {
        let found = shown(code);
        assert_eq!(found, format!("main Metric Append: {expected}\n"), "{code}");
    }
}

#[test]
fn what_is_not_woven_yet_is_refused_by_name_all_of_it() {
    let body = "append preInsn $start.entry (* m = readSymbol(\"own\"); Call(\"f\", &tmp); *) \
                foreach c in $start.calls append preInsn c (* m += $arg[0].x; *) \
                append preInsn $start.blocks (* m++; *) \
                prepend preInsn $start.return constrained (* m++; *)";
    let library = with(&format!("counter tmp; constraint inside; {}", base(body)));
    let shown = show(&library, "m", "/Code/server/call");
    let reasons: Vec<&str> =
        shown.lines().filter_map(|l| l.split_once("cannot be enabled: ").map(|(_, r)| r)).collect();
    assert_eq!(reasons, ["`own`: every thread has its own", "a call of something that is computed",]);
    assert!(
        shown.lines().all(|l| l.starts_with("0.mdl:") && l.contains("error[MDL054]: the metric `m` cannot be enabled"))
    );
    for (fields, fragment) in [
        (
            "base is counter { append preInsn $start.entry (* f(1, 2, 3, 4, 5, 6, 7); *) }",
            "`f` is called with more than 6 arguments",
        ),
        (
            "base is counter { foreach f in elsewhere append preInsn f.entry (* m++; *) }",
            "the list `elsewhere` exists only for winnt",
        ),
        ("flavor { mpi }; base is counter { }", "exists only for mpi"),
    ] {
        let shown = show(&with(fields), "m", "");
        assert!(shown.contains(fragment), "{fields}: {shown}");
    }
}

#[test]
fn a_vector_over_keys_adds_to_what_the_code_names() {
    let keyed = |code: &str| {
        let body = format!("append preInsn $start.entry (* {code} *)");
        show(&with(&format!("vector over keys; base is counter {{ {body} }}")), "m", "")
    };
    for (code, expected) in [
        ("m[$arg[0]]++;", "v0[$arg[0]] += 1;"),
        ("m[$arg[0] + 1] -= $arg[1];", "v0[($arg[0] + 1)] += -($arg[1]);"),
        ("if (m[1] > 0) m[0]++;", "if ((v0[1] > 0)) { v0[0] += 1; }"),
        ("m[m[$arg[0]]] += m[2];", "v0[v0[$arg[0]]] += v0[2];"),
        // An assignment inside a value evaluates its key once.
        ("if (m[$arg[0]]++ < 5) m[1]++;", "v1 = v0[$arg[0]]; v0[$arg[0]] += 1; if ((v1 < 5)) { v0[1] += 1; }"),
        ("m[0] += (m[f(1)] -= 2);", "v1 = call \"f\"(1); v0[v1] += -2; v0[0] += v0[v1];"),
        ("m[$arg[0], $arg[1] + 1]++;", "v0[$arg[0], ($arg[1] + 1)] += 1;"),
        ("m[str($arg[0]), 7] -= 2;", "v0[text at $arg[0], 7] += -2;"),
        ("m[str($arg[0], $arg[1])]++;", "v0[text at $arg[0] of $arg[1] bytes] += 1;"),
    ] {
        assert!(keyed(code).contains(expected), "{}", keyed(code));
    }
    // An argument in a key is kept from the entry, too.
    let wait = "append preInsn $start.return (* m[$arg[0]] += $elapsed; *)";
    let shown = show(&with(&format!("vector over keys; base is counter {{ {wait} }}")), "m", "");
    assert!(shown.contains("close r1 time $arg[0] { v0[saved $arg[0]] += $elapsed; }"), "{shown}");
    let both = wait.replace("$arg[0]]", "$arg[0], str($arg[1])]");
    let shown = show(&with(&format!("vector over keys; base is counter {{ {both} }}")), "m", "");
    assert!(shown.contains("{ v0[saved $arg[0], text at saved $arg[1]] += $elapsed; }"), "{shown}");
}

#[test]
fn a_vector_over_indices_adds_to_what_the_index_means() {
    let indexed = |over: &str, body: &str| {
        let list = "resourceList parts is procedure { items { \"none\", \"main\" }; flavor { unix }; }";
        let library = library(&[
            list,
            &format!(
                "metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; vector over {over}; \
                 base is counter {{ {body} }} }}"
            ),
        ]);
        show(&library, "m", "")
    };
    let at_start = |code: &str| format!("append preInsn $start.entry (* {code} *)");
    let each = "foreach f in parts append preInsn f.entry (* m[f]++; m[$arg[0]] += 2; *)";
    for (over, body, expected) in [
        // An item keeps its position in the list, whichever items the program has.
        ("list parts", each.to_owned(), "v0[(1 - 0) / 1 < 2] += 1; v0[($arg[0] - 0) / 1 < 2] += 2;"),
        ("table 16, 20, 8", at_start("m[$arg[0]]++;"), "v0[($arg[0] - 16) / 8 < 3] += 1;"),
        ("map \"place\", 5", at_start("m[$arg[0]] -= 3;"), "v0[(call \"place\"($arg[0]) - 0) / 1 < 5] += -3;"),
        ("table 0, 8, 1", at_start("if (m[1]) m[0]++;"), "if (v0[(1 - 0) / 1 < 8]) { v0[(0 - 0) / 1 < 8] += 1; }"),
        (
            "list parts",
            "foreach f in parts append preInsn f.entry (* if (m[f] < 3) m[f]++; *)".to_owned(),
            "if ((v0[(1 - 0) / 1 < 2] < 3)) { v0[(1 - 0) / 1 < 2] += 1; }",
        ),
    ] {
        let shown = indexed(over, &body);
        assert!(shown.contains(expected), "{over}: {shown}");
    }
}

#[test]
fn objects_are_discovered_and_retired() {
    let list = |code: &str| {
        let library = library(&[&format!(
            "metric m {{ name \"m\"; units u; aggregateOperator sum; style SampledFunction; vector over objects; \
             base is counter {{ append preInsn $start.entry (* {code} *) }} }}"
        )]);
        show(&library, "m", "")
    };
    let shown = list("discover(m, $arg[0], \"Mutex\"); retire(m, $arg[1] + 8, \"CondVar\");");
    assert!(shown.contains("discover v0, $arg[0], Mutex; retire v0, ($arg[1] + 8), CondVar;"), "{shown}");
}

#[test]
fn exclusions_leave_code_out_unless_the_focus_names_it() {
    let library =
        library(&[shipped::FILES[0].1, "exclude \"/Code/libc*\"; exclude noCase regex \"/code/server/QUEUE_.*\";"]);
    assert_eq!(show(&library, "calls", "").lines().count(), 3);
    assert_eq!(show(&library, "calls", "/Code/server").lines().count(), 3);
    assert_eq!(show(&library, "calls", "/Code/server/queue_put").lines().count(), 1);
}

#[test]
fn a_later_definition_takes_the_place_of_an_earlier_one() {
    let mut library = with(&base("append preInsn $start.entry (* m++; *)"));
    let again = "metric m { name \"n\"; units v; aggregateOperator max; style SampledFunction; base is counter { } }";
    assert_eq!(library.load("again.mdl", again).len(), 0);
    assert!(library.metric("m").is_none());
    assert_eq!(library.metric("n").map(|i| i.unit.as_str()), Some("v"));
    // A later definition with an error does not replace the earlier one.
    assert_eq!(library.load("bad.mdl", "metric m { name \"n\"; }").len(), 1);
    assert_eq!(library.metric("n").map(|i| i.unit.as_str()), Some("v"));
}

#[test]
fn a_metric_that_counts_nothing_says_so() {
    let program = Table::server();
    for (fields, fragment) in [
        ("base is counter { }".to_owned(), "has no code for this focus"),
        (
            base("foreach f in $procedures if (f.name == \"absent\") append preInsn f.entry (* m++; *)"),
            "nothing that the metric `m` looks for",
        ),
    ] {
        let done = evaluate(&with(&fields), "m", &Focus::default(), &program).expect("evaluated");
        assert!(done.warnings.len() == 1 && done.warnings[0].message.contains(fragment), "{:?}", done.warnings);
    }
}

#[test]
fn endless_requests_end() {
    let body = "foreach a in $procedures foreach b in $procedures foreach c in $procedures foreach d in $procedures \
                foreach e in $procedures foreach f in $procedures if (f.name == \"\") append preInsn f.entry (* m++; *)";
    let shown = show(&with(&base(body)), "m", "");
    assert!(
        shown.contains("error[MDL005]: the metric `m`: more than 5000000 rounds") && shown.lines().count() <= 6,
        "{shown}"
    );
}

#[test]
fn configuration_is_listed() {
    let library = library(&["process redis { command \"redis-server --port 0\"; dir \"/tmp\"; autoStart false; }"]);
    let processes = library.processes();
    assert_eq!((processes[0].name.as_str(), processes[0].command.as_str()), ("redis", "redis-server --port 0"));
    assert_eq!((processes[0].dir.as_deref(), processes[0].auto_start), (Some("/tmp"), false));
}

#[test]
fn one_request_of_thousands_is_cheap() {
    let functions: Vec<String> = (0..13_900).map(|i| format!("function_{i}")).collect();
    let names: Vec<&str> = functions.iter().map(String::as_str).collect();
    let program = support::Indexed::new(Table::new(&[("server", &names)]));
    let library = shipped::library(ParseOptions::default());
    let foci: Vec<Focus> =
        functions.iter().map(|f| Focus::parse(&format!("/Code/server/{f}")).expect("focus")).collect();
    let begin = std::time::Instant::now();
    let mut insertions = 0;
    for focus in &foci {
        insertions += evaluate(&library, "calls", focus, &program).expect("evaluated").instrumentation.insertions.len();
    }
    let each = begin.elapsed() / 13_900;
    assert_eq!(insertions, 13_900);
    println!("{each:?} a request");
    // The limit is a hundred times the usual duration.
    assert!(each < std::time::Duration::from_micros(200), "{each:?}");
    let begin = std::time::Instant::now();
    let all = evaluate(&library, "calls", &Focus::default(), &program).expect("evaluated").instrumentation;
    println!("{:?} for all in one", begin.elapsed());
    assert_eq!(all.insertions.len(), 13_900);
    assert!(all.insertions.iter().all(|i| std::sync::Arc::ptr_eq(&i.snippet, &all.insertions[0].snippet)));
}

#[test]
fn a_file_of_paradyn_counts_calls_of_a_procedure() {
    let library = library(&[include_str!("../../../../tests/golden/mdl/paradyn_calls.mdl")]);
    assert_eq!(show(&library, "old_procedure_calls", "/Code/server/call"), "call Metric Append: v0++;\n");
    assert_eq!(show(&library, "old_procedure_calls", "/Code/server").lines().count(), 5);
    assert_eq!(
        show(&library, "old_procedure_calls", "/SyncObject/Mutex"),
        "main Metric Append: if (($arg[0] > 0)) { v0++; }\n"
    );
}

#[test]
fn a_flavor_that_is_stated_of_a_program_makes_its_definitions_exist() {
    let program = Table::server();
    let library = with("flavor { mpi }; base is counter { foreach f in elsewhere append preInsn f.entry (* m++; *) }");
    let flavors = |names: &[&str]| -> Vec<Flavor> { names.iter().map(|name| Flavor::parse(name).unwrap()).collect() };
    let said = |names: &[&str]| {
        let flavors = flavors(names);
        let found = Evaluator::new(&library, &program, &flavors).evaluate("m", &Focus::default());
        found.map(|found| found.instrumentation.insertions.len()).map_err(|errors| {
            assert!(errors.iter().all(|error| error.code == codes::FLAVOR));
            errors.into_iter().map(|error| format!("{}; {}", error.message, error.help.unwrap_or_default())).collect()
        })
    };
    let error = |text: &str| Err(vec![text.to_owned()]);
    let mpi = "the metric `m` exists only for mpi";
    assert_eq!(said(&[]), error(&format!("{mpi}; if the program is of this kind, say so: `--flavor mpi`")));
    let near = "the program is said to be `mpl`; did you mean `--flavor mpi`?";
    assert_eq!(said(&["mpl"]), error(&format!("{mpi}; {near}")));
    let list = "the metric `m`: the list `elsewhere` exists only for winnt";
    assert_eq!(said(&["mpi"]), error(&format!("{list}; if the program is of this kind, say so: `--flavor winnt`")));
    assert_eq!(said(&["winnt", "mpi"]), Ok(1));
    let unknown = |names: &[&str]| {
        let warnings = library.unknown_flavors(&flavors(names)).into_iter();
        warnings.map(|d| format!("{}; {}", d.message, d.help.unwrap_or_default())).collect::<Vec<_>>()
    };
    assert!(unknown(&["linux", "unix", "mpi", "winnt"]).is_empty());
    assert_eq!(unknown(&["winnd"]), ["no definition names the flavor `winnd`; did you mean `winnt`?"]);
    assert_eq!(unknown(&["pvm"]), ["no definition names the flavor `pvm`; definitions name linux, mpi, unix, winnt"]);
}
