//! Tests with random texts: nothing may panic, hang, or point outside of the text. PROPTEST_CASES raises the number of tries.

use ingraft_mdl::{Library, ParseOptions, RenderStyle, evaluate, format};
use ingraft_model::Focus;
use proptest::prelude::*;

use crate::sound::assert_sound;
use crate::support::Table;

const WORDS: &[&str] = &[
    "metric",
    "constraint",
    "resourceList",
    "list",
    "exclude",
    "daemon",
    "process",
    "visi",
    "tunable_constant",
    "name",
    "units",
    "aggregateOperator",
    "sum",
    "style",
    "EventCounter",
    "flavor",
    "unix",
    "base",
    "is",
    "counter",
    "wallTimer",
    "histogram",
    "replace",
    "default",
    "inclusive",
    "foreach",
    "f",
    "in",
    "$procedures",
    "$start",
    "$constraint",
    "$arg",
    "$return",
    "if",
    "else",
    "append",
    "prepend",
    "preInsn",
    "postInsn",
    "constrained",
    "(*",
    "*)",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ".",
    "/",
    "*",
    "/Code",
    "/Code/*",
    "entry",
    "return",
    "calls",
    "m",
    "x",
    "1",
    "0x10",
    "\"m\"",
    "\"",
    "=",
    "+=",
    "-=",
    "++",
    "--",
    "+",
    "-",
    "!",
    "~",
    "&",
    "&&",
    "||",
    "<<",
    "==",
    "setCounter",
    "Call",
    "items",
    "library",
    "true",
    "vector",
    "keys",
    "over",
    "table",
    "//c\n",
    "/*",
    "*/",
    "\n",
    "é",
    "\u{0}",
    "procedure",
    "noCase",
    "regex",
    "command",
];

/// Does everything with a text that the crate can do.
fn all(text: &str) {
    for compat_grouping in [false, true] {
        let mut library = Library::new(ParseOptions { compat_grouping });
        let findings = library.load("t.mdl", text);
        for finding in &findings {
            assert!(finding.span.start <= finding.span.end && finding.span.end as usize <= text.len(), "{finding:?}");
        }
        library.render(&findings, RenderStyle::Coloured);
        let program = Table::server();
        for metric in library.metrics() {
            for focus in
                ["", "/Code/server", "/Code/server/call", "/Code/server/call/l", "/SyncObject/Mutex/7,/Code/server"]
            {
                let focus = Focus::parse(focus).expect("focus");
                match evaluate(&library, &metric.name, &focus, &program) {
                    Ok(done) => assert_sound(&done.instrumentation),
                    Err(findings) => drop(library.render(&findings, RenderStyle::Plain)),
                }
            }
        }
        if let Ok(once) = format("t.mdl", text, ParseOptions { compat_grouping }) {
            let twice =
                format("t.mdl", &once, ParseOptions::default()).unwrap_or_else(|f| panic!("{f:#?}\n{text}\n{once}"));
            assert_eq!(once, twice, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn token_soup(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        all(&words.join(" "));
        all(&words.concat());
    }

    #[test]
    fn soup_in_a_metric(words in prop::collection::vec(prop::sample::select(WORDS), 0..25), code in prop::collection::vec(prop::sample::select(WORDS), 0..20)) {
        let (words, code) = (words.join(" "), code.join(" "));
        all(&format!("metric m {{ name \"m\"; units u; aggregateOperator sum; style EventCounter; counter x; {words} \
            base is counter {{ foreach f in $procedures append preInsn f.entry (* {code} *) }} }}"));
    }

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        all(&text);
    }

    #[test]
    fn a_mutated_file(cut in 0..4000_usize, length in 0..40_usize, insert in prop::sample::select(WORDS)) {
        let text = include_str!("../../../../tests/golden/mdl/paradyn_examples.mdl");
        let border = |mut at: usize| { while !text.is_char_boundary(at) { at -= 1; } at };
        let from = border(cut.min(text.len()));
        let to = border((cut + length).min(text.len()));
        all(&format!("{}{insert}{}", &text[..from], &text[to.max(from)..]));
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let n = 50_000;
    for text in [
        "{".repeat(n),
        "if 1 ".repeat(n),
        "foreach f in x ".repeat(n),
        format!("append preInsn {}", "(".repeat(n)),
        format!("append preInsn $start.entry (* x = {}1; *)", "1+".repeat(n)),
        format!("append preInsn $start.entry (* x = {}1; *)", "- ".repeat(n)),
        format!("append preInsn $start.entry (* {}1; *)", "x = ".repeat(n)),
        format!("append preInsn $start.entry (* {}; *)", "if (1) ".repeat(n)),
        format!("append preInsn x{}", ".a".repeat(n)),
        format!("append preInsn x{}", "[x".repeat(n)),
        "metric ".repeat(n),
        "metric m {".repeat(n),
        "constraint ".repeat(n),
        "\"".repeat(n),
        "; } *) ".repeat(n),
        "/".repeat(n),
        format!("metric m {{ {} }}", "units u; ".repeat(n)),
        "x".repeat(5 << 20),
    ] {
        let begin = std::time::Instant::now();
        let mut library = Library::new(ParseOptions::default());
        let findings = library.load("t.mdl", &text);
        assert!(findings.len() < 52_000, "{}", findings.len());
        let head: String = text.chars().take(30).collect();
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{head}: {:?}", begin.elapsed());
    }
}
