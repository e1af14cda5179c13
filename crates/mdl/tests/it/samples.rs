//! Small samples with their verdicts. The crate accepts what Paradyn accepted and refuses what Paradyn refused, unless an extension of the
//! language changes the verdict on purpose.

use ingraft_mdl::{Diagnostic, Library, ParseOptions, RenderStyle};

/// A metric whose base holds `body`, with the lists, flag, scratch counter and timer that it may use.
fn around(body: &str) -> String {
    format!(
        "resourceList heap is procedure {{ items {{ \"malloc\" }}; flavor {{ unix }}; }}\n\
         resourceList numbers is int {{ items {{ \"1\", \"0x10\" }}; flavor {{ unix }}; }}\n\
         constraint flag /Code/* is counter {{ prepend preInsn $constraint[0].entry (* flag++; *) }}\n\
         metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; flavor {{ unix }}; counter tmp;\n\
           constraint flag; base is counter {{ {body} }} }}"
    )
}

fn metric(fields: &str) -> String {
    format!("metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; {fields} }}")
}

fn code(code: &str) -> String {
    around(&format!("append preInsn $start.entry (* {code} *)"))
}

fn findings(text: &str) -> Vec<Diagnostic> {
    Library::new(ParseOptions::default()).load("t.mdl", text)
}

#[track_caller]
fn legal(text: &str) -> Vec<Diagnostic> {
    let mut library = Library::new(ParseOptions::default());
    let found = library.load("t.mdl", text);
    assert!(!found.iter().any(Diagnostic::is_error), "{}", library.render(&found, RenderStyle::Plain));
    found
}

#[track_caller]
fn illegal(text: &str, fragment: &str) {
    let found = findings(text);
    let errors: Vec<&Diagnostic> = found.iter().filter(|d| d.is_error()).collect();
    assert!(errors.len() == 1 && errors[0].message.contains(fragment), "{fragment}: {errors:#?}\n{text}");
}

#[test]
fn legal_lists() {
    let (items, flavor, library) = ("items { \"a\", \"b\" };", "flavor = { unix };", "library true;");
    for body in [
        [items, flavor, ""],
        [flavor, items, ""],
        [items, flavor, library],
        [items, library, flavor],
        [flavor, items, library],
        [flavor, library, items],
        [library, items, flavor],
        [library, flavor, items],
    ] {
        legal(&format!("resourceList l is procedure {{ {} }}", body.concat()));
    }
    legal("resourceList (procedure, \"l\" {\"a\"}, true, unix);");
    legal("resourceList (procedure, \"l\", (\"a\"), true, unix);");
    legal("resourceList l is procedure { items { \"a\" }; flavor { unix }; library TRUE; }");
}

#[test]
fn legal_metrics_and_constraints() {
    legal(&metric("flavor = { unix }; base is counter { }"));
    legal(&metric("flavor { unix }; base is counter { };"));
    assert!(legal("constraint C /Code/* is default;").is_empty());
    legal("constraint C is default;");
    legal(&around("if (1) foreach f in $procedures append preInsn f.entry (* m++; *)"));
    legal(&around("{ { } { append preInsn $start.entry (* m++; m++; *) } }"));
    legal(
        "constraint c /SyncObject/Mutex is counter { append preInsn $start.entry (* if ($arg[0] == $constraint[0]) c = 1; *) }",
    );
    for statement in [
        "Call(\"f\", 1, &tmp);",
        "Call(\"f\",);",
        "",
        "tmp = m = 0;",
        "m = 1 + tmp = 2;",
        "m += tmp++;",
        "m += numbers[1];",
    ] {
        legal(&code(statement));
    }
}

#[test]
fn older_spellings_are_notes() {
    for (text, notes) in [
        ("constraint c /Code/* is counter { prepend preInsn $constraint.entry (* c++; *) }".to_owned(), 1),
        ("constraint c /Procedure/* is default; constraint d /SyncObject/MsgTag/* is default;".to_owned(), 2),
        ("list l { \"a\", \"b\" } list \"old\" { \"a\" \"b\" }".to_owned(), 2),
        ("list l is procedure { items { \"a\" }; flavor { unix }; }".to_owned(), 1),
        (code("setCounter(m, 1); addCounter(m, $arg[0]); subCounter(m, 1); functionCall(\"f\", 1);"), 4),
        (around("foreach f in heap if libraryTag(f.tag) append preInsn f.entry (* m++; *)"), 1),
        (metric("foldOperator sum; base is counter { }"), 1),
        ("metric m { name \"m\"; units u; aggregate avg; style EventCounter; base is counter { } }".to_owned(), 1),
        ("daemon { name \"d\"; command \"paradynd\"; args { \"-a\" \"-b\" }; }".to_owned(), 3),
        ("visi { name \"v\"; command \"rthist\"; }".to_owned(), 3),
        (
            "exclude_lib \"libc.so\"; exclude_func \"m\" \"f\"; exclude_func \"g\"; exclude_node \"/Code/x\";"
                .to_owned(),
            4,
        ),
        ("process p { command \"a b\"; daemon d; host \"h\"; user u; dir \"/\"; autoStart FALSE; }".to_owned(), 0),
    ] {
        let found = legal(&text);
        assert_eq!(found.len(), notes, "{text}\n{found:#?}");
    }
}

#[test]
fn illegal_in_syntax() {
    illegal(&around("append preInsn $start.entry m++;"), "expected code in `(*` and `*)`");
    illegal(&code("a[0] = 1;"), "an element of `a` cannot be assigned to");
    illegal("resourceList (procedure, \"l\", {\"a\"}, true, unix);", "a `,` before `{`");
    illegal("resourceList l is procedure { items { a }; flavor { unix }; }", "expected an item in quotes");
    illegal("resourceList l is procedure { items { \"a\" }; }", "the list `l` has no `flavor`");
    illegal("constraint c /Code is replace counter { }", "a replacement outside of a metric");
    illegal("tunable_constant { }", "a `tunable_constant` without constants");
    illegal(&format!("tunable_constant \"costLimit\" {}.0;", "9".repeat(400)), "is no number");
    illegal("exclude noCase noCase \"/Code/a\";", "said twice");
    illegal(&metric("flavor unix; base is counter { }"), "expected `{`");
    illegal(&metric("base is hwTimer { }"), "expected `(` and an event");
    illegal("daemon d { command \"c\"; dir \"x\"; }", "expected a word");
    illegal(&code("5 = m;"), "this cannot be assigned to");
    illegal(&code("x.f = 1;"), "this cannot be assigned to");
    illegal(&code("f(,1);"), "expected an expression");
    illegal(&code("metric = 1;"), "expected an expression, found the word `metric`");
    illegal("metric name { }", "`name` is a reserved word");
    illegal("exclude \"libc\";", "excludes nothing");
    illegal("exclude regex \"/Code/(\";", "unclosed group");
    illegal("metrik m { name \"m\"; units u; }", "`metrik` begins no definition");
}

#[test]
fn illegal_in_the_static_stage() {
    illegal(
        &around("append postInsn heap.return (* m++; *)"),
        "`heap` is a list (each is a procedure), which has no field `return`",
    );
    illegal(&around("foreach f in heap append postInsn f.return (* m++; *)"), "nothing runs behind a return");
    illegal(&around("foreach p in 3 append preInsn $start.entry (* m++; *)"), "foreach needs a list, this is a number");
    illegal(
        &metric("base is wallTimer { append preInsn $start.entry (* m = 1; *) }"),
        "`m` is a wallTimer, which only its own calls change",
    );
    illegal(
        &metric("base is wallTimer { append preInsn $start.entry (* startProcessTimer(m); *) }"),
        "`startProcessTimer` acts on a processTimer",
    );
    illegal(
        &metric("counter t; base is wallTimer { append preInsn $start.entry (* t = m; *) }"),
        "a wallTimer has no value",
    );
    illegal(&code("nothing++;"), "nothing defines `nothing`");
    illegal(&code("heap++;"), "`heap` is a list (each is a procedure), not a variable");
    illegal(&code("m = &tmp;"), "an address can only be given to a called function");
    illegal(&code("m = readSymbol(1);"), "`readSymbol` takes the name of a variable");
    illegal(&code("m = $constraint[0];"), "`$constraint` means nothing here");
    illegal(&code("m = $elapsed;"), "only known at its return");
    let observe = |values: &str| {
        metric(&format!("base is histogram {{ append preInsn $start.return (* observe(m, {values}); *) }}"))
    };
    legal(&observe("$cpu, $own"));
    illegal(&observe("$own"), "`observe` takes 2 arguments");
    illegal(&observe("$elapsed + 1, $own"), "`$own` is the own part of a time");
    illegal(&observe("$elapsed, $self"), "`observe` takes 2 arguments");
    illegal(&code("m = $own;"), "`$own` is only known as the last argument");
    let early = "`$return` is only known at returns and behind calls";
    for text in
        [code("m = $return;"), code("m = $return.double;"), around("append preInsn $start.calls (* m += $return; *)")]
    {
        illegal(&text, early);
    }
    legal(&around("append postInsn $start.calls (* m += $return; *) append preInsn $start.return (* m += $return; *)"));
    illegal(&code("heap[0] = 1;"), "cannot be assigned to");
    illegal(&around("if ($arg[0]) append preInsn $start.entry (* m++; *)"), "is only known while the program runs");
    illegal(&around("if ($machine + 1) append preInsn $start.entry (* m++; *)"), "`+` between a string and a number");
    illegal(&around("append preInsn $start (* m++; *)"), "code goes to points, this is a procedure");
    illegal(&around("append preInsn $start.entri (* m++; *)"), "has no field `entri`");
    illegal(&metric("constraint none; base is counter { }"), "no constraint has the name `none`");
    illegal(
        &metric("constraint r /Code is replace wallTimer { } base is counter { }"),
        "this replaces a `counter` by a `wallTimer`",
    );
    illegal(
        &metric(
            "constraint r /Code/* is replace counter { } constraint s /Code/* is replace counter { } base is counter { }",
        ),
        "both replace the code of the same foci",
    );
    illegal("constraint c /Cod is default;", "there is no hierarchy /Cod");
    illegal("constraint c /Code/*/*/* is default;", "at most two more levels");
    illegal("constraint c /SyncObject/Mutexes is default;", "/SyncObject has no `Mutexes`");
    illegal("constraint c /SyncObject is default { \"Mutexes\" };", "/SyncObject has no `Mutexes`");
    illegal("constraint c /Code is default { \"Mutex\" };", "only a default of /SyncObject");
    legal("constraint C /SyncObject is default { \"Mutex\", \"CondVar\" }");
    illegal(
        "constraint c /Code/* is counter { append preInsn $constraint[7].entry (* c++; *) }",
        "the last element of this constraint's path is `$constraint[2]`",
    );
    illegal(
        "resourceList l is int { items { \"one\" }; flavor { unix }; }",
        "`one` is no item of a list of type `int`",
    );
    illegal("metric m { name \"m\"; units u; }", "the metric `m` lacks `aggregateOperator`, `style`, `base`");
    illegal(&metric("vector over list none; base is counter { }"), "no list has the name `none`");
    illegal(&metric("vector over table 0, 64, 0; base is counter { }"), "between 1 and 32768");
    illegal(
        &metric("vector over map \"f\", 64; base is counter { append preInsn $start.entry (* m++; *) }"),
        "`m` is a vector",
    );
    let keyed = |code: &str| {
        metric(&format!("vector over keys; base is counter {{ append preInsn $start.entry (* {code} *) }}"))
    };
    illegal(&keyed("if (m) m[0]++;"), "`m` is a vector");
    illegal(&keyed("m[1] = 3;"), "the values of `m` add up");
    for (code, message) in [
        ("m[1, 2]++; m[1]++;", "another key of this metric has other parts"),
        ("m[str($arg[0]), 2]++; m[2, str($arg[0])]++;", "another key of this metric has other parts"),
        ("if (m[1, 2] > 0) m[1, 2]++;", "the value of such a key can be added to, not read"),
        ("if (m[str($arg[0])]++ > 0) m[str($arg[0])]++;", "the value of such a key can be added to, not read"),
        ("m[str()]++;", "`str` takes an address, and perhaps a length"),
        ("m[str(1), str(2), str(3), str(4)]++;", "a key of too many parts"),
        ("m[1, 2, 3, 4, 5, 6, 7, 8, 9]++;", "a key of too many parts"),
        ("m[$arg[0, 1]]++;", "several values where one belongs"),
        ("m[(1, 2)]++;", "expected `)`"),
        ("m[1,]++;", "expected an expression"),
    ] {
        illegal(&keyed(code), message);
    }
    illegal(
        &metric("vector over table 0, 64, 8; base is counter { append preInsn $start.entry (* m[1, 2]++; *) }"),
        "several values where one belongs",
    );
    illegal(
        &metric("vector over objects; base is counter { append preInsn $start.entry (* if (m[1]) discover(m, 1, \"Mutex\"); *) }")
            .replace("EventCounter", "SampledFunction"),
        "a list of objects, which have no values",
    );
    illegal(&metric("vector over objects; base is counter { }"), "a level, no event");
    for (code, message) in [
        ("m[1]++;", "`m` is a list of objects, which only its own calls change"),
        ("discover(m, 1);", "`discover` takes three arguments"),
        ("retire(m, 1, \"Lock\");", "this is no kind of object"),
        ("discover($arg[0], 1, \"Mutex\");", "`discover` acts on the metric itself"),
    ] {
        let objects = format!("vector over objects; base is counter {{ append preInsn $start.entry (* {code} *) }}");
        illegal(&metric(&objects).replace("EventCounter", "SampledFunction"), message);
    }
    illegal(
        &metric("vector over keys; base is wallTimer { }"),
        "a vector of `wallTimer`; only counters can be indexed",
    );
    illegal(
        &metric("vector over keys; base is counter { }").replace("Operator sum", "Operator max"),
        "the values of several threads and processes add up",
    );
}

#[test]
fn what_was_extended_on_purpose() {
    for text in [
        metric("base is counter { };") + ";",
        code("if (m) { m++; } else { tmp--; }"),
        code("if (m) m++; else if (tmp) tmp++; else { }"),
        code("m--; m = !tmp; m = ~tmp % 3 ^ 0x1F << 2 | 1 & 7;"),
        code("Call(\"f\"); Call(\"f\" , 1);"),
        around("foreach f in $procedures if (f.name == \"main\") append preInsn f.entry (* m++; *)"),
        around("foreach mod in $modules if (mod.name == \"a\") { } else append preInsn $exit.entry (* m++; *)"),
        around("if (numbers[0] == 1) append preInsn heap[0].entry (* m++; *)"),
        "/* a comment */ constraint c /Code/* is counter { /* over\r\n lines */ }\r\n".to_owned(),
        "constraint c /Code/* is inclusive; constraint d /Code/* is exclusive;".to_owned(),
        metric(
            "base is histogram { foreach f in $procedures append preInsn f.return (* observe(m, $elapsed - $self); *) }",
        ),
        metric(
            "base is histogram { foreach f in $procedures append preInsn f.return (* observe(m, $elapsed, $own); *) }",
        ),
        metric("base is hwCounter(\"instructions\") { append preInsn $start.entry (* sampleHwCounter(m); *) }"),
        metric("vector over keys; base is counter { append preInsn $start.entry (* m[$arg[0]]++; *) }"),
        metric(
            "vector over keys; base is counter { append preInsn $start.entry (* m[$arg[0], str($arg[1]), str($arg[2], 4)] += 2; *) }",
        ),
        metric(
            "vector over table 0, 4096, 64; base is counter { append preInsn $start.entry (* m[$arg[0]] += m[1]; *) }",
        ),
        around(
            "foreach f in $procedures { append preInsn f.blocks (* m++; *) append preInsn f.edges (* m++; *) \
            foreach l in f.loops { append preInsn l.enter (* m++; *) append preInsn l.start_iter (* m++; *) } }",
        ),
        code("m = readSymbol(\"file.c:name\") + readAddress(4096) + $globalId;"),
    ] {
        legal(&text);
    }
}

#[test]
fn precedence_is_that_of_c_and_the_difference_is_said() {
    for (written, read, warned) in [
        ("a - b - c", "(a - b) - c", true),
        ("a * b + c", "(a * b) + c", true),
        ("a == b && c == d", "(a == b) && (c == d)", true),
        ("a / b / c", "(a / b) / c", true),
        ("a + b + c", "", false),
        ("a + b - c", "", false),
        ("a && b && c", "", false),
        ("a + b * c", "", false),
        ("(a - b) - c", "", false),
        ("a % b % c", "", false),
        ("-a + b", "", false),
    ] {
        let declare = "counter a; counter b; counter c; counter d;";
        let text = metric(&format!("{declare} base is counter {{ append preInsn $start.entry (* m = {written}; *) }}"));
        let found = legal(&text);
        assert_eq!(!found.is_empty(), warned, "{written}: {found:#?}");
        assert!(
            found.iter().all(|d| d.code == "MDL021" && d.message.contains(&format!("read as `{read}`"))),
            "{found:#?}"
        );
    }
}

/// The record of a call has room for five arguments and clocks that the code at the end of the call needs.
#[test]
fn what_the_end_of_a_call_needs_has_room() {
    let end = |code: &str| around(&format!("append preInsn $start.return (* {code} *)"));
    let six = "the code at the end of a call uses 6 arguments and clocks";
    illegal(&end("m += $arg[0] + $arg[1] + $arg[2] + $arg[3] + $arg[4] + $arg[5];"), six);
    illegal(&end("m += $arg[0] + $arg[1] + $arg[2] + $arg[3].double + $elapsed + $cpu;"), six);
    illegal(&end("if ($arg[0] > $arg[1]) { m += $arg[2] + $arg[3]; tmp = $arg[2].double + $self; }"), six);
    legal(&end("m += $arg[0] + $arg[1] + $arg[2] + $arg[3] + $arg[4] + $arg[4] + $arg[3].x;"));
    legal(&end("m += $elapsed + $self + $arg[0] + $arg[1] + $arg[2] + $arg[2].float;"));
    // At an entry, no argument has to be kept.
    legal(&code("m += $arg[0] + $arg[1] + $arg[2] + $arg[3] + $arg[4] + $arg[5];"));
}

#[test]
fn a_histogram_holds_times_or_values() {
    let observing = |code: &str, more: &str| {
        metric(&format!(
            "base is histogram {{ append preInsn $start.return (* {code} *) }} \
             constraint c /Code/* is replace histogram {{ append preInsn $constraint[0].return (* {more} *) }}"
        ))
    };
    let mixed = "observes a time alone and other values";
    illegal(&observing("observe(m, $elapsed); observe(m, $arg[0]);", ""), mixed);
    illegal(&observing("observe(m, $elapsed); observe(m, $cpu); observe(m, $elapsed - $cpu);", ""), mixed);
    illegal(&observing("", "if ($return) observe(m, ($elapsed)); else observe(m, 7);"), mixed);
    legal(&observing("observe(m, $elapsed); observe(m, $cpu);", "observe(m, $return);"));
    // The request chooses one of the two branches.
    legal(&metric(
        "base is histogram { foreach f in $procedures if (f.name == \"a\") append preInsn f.return (* observe(m, $elapsed); *) \
         else append preInsn f.return (* observe(m, $return); *) }",
    ));
}

#[test]
fn warnings() {
    for (text, fragment) in [
        (
            "constraint c /Code/* is counter { prepend preInsn $constraint[0].entry (* c = 1; *) append preInsn $constraint[0].return (* c = 0; *) }".to_owned(),
            "go wrong in recursion",
        ),
        ("constraint c /Code/sin is default;".to_owned(), "never matches"),
        ("constraint c /Process/* is default;".to_owned(), "has no effect"),
        ("tunable_constant \"costLimti\" 3;".to_owned(), "no tunable has the name"),
        ("append preInsn $start.entry (* *)".to_owned(), "outside of metrics and constraints"),
        (code("m;"), "this value is not used"),
        (metric("units v; base is counter { }"), "the last one counts"),
    ] {
        let found = legal(&text);
        assert!(found.len() == 1 && found[0].message.contains(fragment), "{found:#?}");
    }
}

/// One definition with an error never hides the rest: the library knows which metrics need it.
#[test]
fn errors_concern_those_who_need_the_definition() {
    let mut library = Library::new(ParseOptions::default());
    let text = "resourceList bad is procedure { items { \"a\" } }\n\
        resourceList good is procedure { items { \"a\" }; flavor { unix }; }\n\
        constraint through /Code/* is counter { foreach f in bad append preInsn f.entry (* through++; *) }\n\
        metric by_list { name \"by_list\"; units u; aggregateOperator sum; style EventCounter; \
          base is counter { foreach f in bad append preInsn f.entry (* by_list++; *) } }\n\
        metric by_constraint { name \"by_constraint\"; units u; aggregateOperator sum; style EventCounter; \
          constraint through; base is counter { } }\n\
        metric wrong { name \"called_wrong\"; units u; aggregateOperator sum; style EventCounter; \
          base is counter { append preInsn $start.entry (* wrong = nothing; *) } }\n\
        metric right { name \"right\"; units u; aggregateOperator sum; style EventCounter; \
          base is counter { foreach f in good append preInsn f.entry (* right++; *) } }\n";
    assert!(library.load("t.mdl", text).iter().any(Diagnostic::is_error));
    for (metric, concerned) in
        [("by_list", true), ("by_constraint", true), ("called_wrong", true), ("right", false), ("nowhere", true)]
    {
        assert_eq!(library.concerned(metric), concerned, "{metric}");
    }
    // A later definition without errors replaces it.
    let mended = "metric wrong { name \"called_wrong\"; units u; aggregateOperator sum; style EventCounter; base is counter { } }";
    assert!(library.load("u.mdl", mended).is_empty());
    assert!(!library.concerned("called_wrong"));
}
