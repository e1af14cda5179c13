//! Tests that a printed text reads as the same tree, and prints the same again.

use ingraft_mdl::{ParseOptions, format};
use proptest::prelude::*;

fn formatted(text: &str) -> String {
    match format("t.mdl", text, ParseOptions::default()) {
        Ok(printed) => printed,
        Err(findings) => panic!("{findings:#?}\n{text}"),
    }
}

#[test]
fn printing_is_a_fixpoint_for_every_shipped_and_golden_file() {
    let golden = include_str!("../../../../tests/golden/mdl/paradyn_examples.mdl");
    let shipped = ingraft_mdl::shipped::FILES.iter().map(|(_, text)| *text);
    for text in shipped.chain([golden]) {
        let once = formatted(text);
        assert_eq!(formatted(&once), once);
    }
    for (name, text) in ingraft_mdl::shipped::FILES {
        assert_eq!(formatted(text), *text, "{name} is not formatted");
    }
}

#[test]
fn layout() {
    for (text, expected) in [
        ("constraint  C  is default;", "constraint C is default;\n"),
        (
            "constraint  C /SyncObject is default {\"Mutex\",\"Barrier\"}",
            "constraint C /SyncObject is default { \"Mutex\", \"Barrier\" };\n",
        ),
        ("exclude regex noCase \"/Code/a\\.b\";", "exclude noCase regex \"/Code/a\\\\.b\";\n"),
        ("tunable_constant { \"costLimit\" 3; }", "tunable_constant \"costLimit\" 3;\n"),
        ("tunable_constant \"costLimit\" 0xffffffffffffffff;", "tunable_constant \"costLimit\" 0xffffffffffffffff;\n"),
        (
            "exclude \"/Code/a\";\nresourceList l //c\n is procedure {\n items {\"a\"}; // d\n\n flavor {unix}; }",
            "exclude \"/Code/a\";\n\nresourceList l is procedure {\n    items { \"a\" };\n    flavor { unix };\n    //c\n    // d\n}\n",
        ),
        (
            "constraint c /Code/* is counter { if (0XF0 > 012) append preInsn $constraint[0x0].entry (* c += 0xffff0000 & $arg[0x1] | 65536; *) }",
            "constraint c /Code/* is counter {\n    if (0XF0 > 012)\n        append preInsn $constraint[0x0].entry (* c += 0xffff0000 & $arg[0x1] | 65536; *)\n}\n",
        ),
        ("list l { \"a\" \"b\" }", "list l { \"a\", \"b\" }\n"),
        ("resourceList (int, \"a b\" {\"1\"}, TRUE, unix);", "resourceList (int, \"a b\" { \"1\" }, true, unix);\n"),
        ("if 1 append preInsn $start.entry (* *)", "if (1)\n    append preInsn $start.entry (* *)\n"),
        (
            "{ foreach p in l {append preInsn p.entry (* -(-x); - -x; (-x)++; (a+b)*c; a-(b-c); & &x;*)} }",
            "{\n    foreach p in l {\n        append preInsn p.entry (*\n            -(-x);\n            - -x;\n            \
             (-x)++;\n            (a + b) * c;\n            a - (b - c);\n            & &x;\n        *)\n    }\n}\n",
        ),
        (
            "// doc\nconstraint c /Code is counter { // why\n append preInsn $start.entry (* c=1; // one\n if(c){c=2;}else c=3;*) }// end\n// last",
            "// doc\nconstraint c /Code is counter { // why\n    append preInsn $start.entry (*\n        c = 1; // one\n        \
             if (c) {\n            c = 2;\n        }\n        else\n            c = 3;\n    *)\n} // end\n// last\n",
        ),
    ] {
        let once = formatted(text);
        assert_eq!(once, expected);
        assert_eq!(formatted(&once), once);
    }
}

#[test]
fn old_grouping_becomes_parentheses() {
    let text = "append preInsn $start.entry (* a - b - c; a * b + c; *)";
    let printed = format("t", text, ParseOptions { compat_grouping: true }).expect("no error");
    assert!(printed.contains("a - (b - c);") && printed.contains("a * (b + c);"), "{printed}");
}

fn expr() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (0..5000_i64).prop_map(|i| i.to_string()),
        Just("0xffffffffffffffff".to_owned()),
        Just("$return".to_owned()),
        Just("x".to_owned()),
        Just("\"a\\\\ \\\" \\n\"".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let op = prop::sample::select(vec!["+", "-", "*", "/", "%", "<<", "<", "==", "&&", "||", "&", "|", "^", "!="]);
        prop_oneof![
            (inner.clone(), op, inner.clone()).prop_map(|(a, o, b)| format!("{a}{o} {b}")),
            inner.clone().prop_map(|a| format!("({a})")),
            (prop::sample::select(vec!["-", "!", "~", "&"]), inner.clone()).prop_map(|(o, a)| format!("{o} {a}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("f({a},{b})")),
            inner.clone().prop_map(|a| format!("Call(\"g\",{a})")),
            inner.clone().prop_map(|a| format!("l[{a}].name")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("l[{a},{b}]")),
            inner.clone().prop_map(|a| format!("$arg[{a}]")),
            inner.prop_map(|a| format!("(x -= {a})")),
        ]
    })
}

fn code() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        expr().prop_map(|e| format!("{e};")),
        Just("x++; // c\n".to_owned()),
        Just("/* b */ x--;".to_owned())
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (expr(), inner.clone()).prop_map(|(e, c)| format!("if ({e}) {c}")),
            (expr(), inner.clone(), inner.clone()).prop_map(|(e, a, b)| format!("if ({e}) {{ {a} }} else {b}")),
            prop::collection::vec(inner, 0..3).prop_map(|v| format!("{{ {} }}", v.join(" "))),
        ]
    })
}

fn meta() -> impl Strategy<Value = String> {
    let insert = (any::<bool>(), any::<bool>(), any::<bool>(), prop::collection::vec(code(), 0..3)).prop_map(
        |(a, b, c, code)| {
            let (order, place) = (if a { "append" } else { "prepend" }, if b { "preInsn" } else { "postInsn" });
            format!("{order} {place} f.entry {} (* {} *)\n\n", if c { "constrained" } else { "" }, code.join("\n"))
        },
    );
    insert.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|m| format!("foreach f in $procedures {m}")),
            (expr(), inner.clone()).prop_map(|(e, m)| format!("if ({e}) {m}")),
            (expr(), inner.clone(), inner.clone()).prop_map(|(e, a, b)| format!("if ({e}) {{ {a} }} // c\n else {b}")),
            prop::collection::vec(inner, 0..3).prop_map(|v| format!("{{ // open\n {} }}", v.join("// between\n"))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printing_is_a_fixpoint(body in prop::collection::vec(meta(), 1..3), path in "(/Code|/Code/\\*|/Code/\\*/\\*)") {
        let body = body.join("\n");
        let text = format!("// doc\nconstraint c {path} is counter {{ {body} }}\nmetric m {{ base is counter {{ {body} }} name \"n\"; \
            units u; style EventCounter; aggregateOperator max; }} // end");
        let once = formatted(&text);
        let twice = formatted(&once);
        prop_assert_eq!(&twice, &once, "{}", text);
        // No comment is lost.
        prop_assert_eq!(text.matches("//").count() + text.matches("/* b").count(), once.matches("//").count() + once.matches("/* b").count());
    }

    #[test]
    fn printing_changes_no_token(body in meta()) {
        let squeeze = |t: &str| t.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        let plain = body.replace("// c\n", "").replace("/* b */", "").replace("// open\n", "").replace("// between\n", "");
        let printed = formatted(&plain);
        // The printer adds no comma and removes no bracket.
        prop_assert_eq!(squeeze(&printed), squeeze(&plain));
    }
}
