//! Checks that docs/protocol.md lists exactly the reasons that errors and refusals can have, and the status codes of errors.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeSet;
use std::path::Path;

use ingraft_api::Reason;
use ingraft_model::Refusal;

/// Reasons whose status code the gRPC library of either side chooses, and those that only the command line gives.
const NOT_OF_SERVER: [Reason; 6] = [
    Reason::Unimplemented,
    Reason::Cancelled,
    Reason::Unexplained,
    Reason::EngineEnded,
    Reason::OwnGs,
    Reason::Rewritten,
];

/// The rows of the table under a heading: the word in the first column, and the second column.
fn listed(heading: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(word, rest)| (word.to_owned(), rest.split(" |").next().unwrap().to_owned())).collect()
}

fn words(rows: &[(String, String)]) -> BTreeSet<&str> {
    rows.iter().map(|(word, _)| word.as_str()).collect()
}

/// The name of a status code as gRPC writes it, e.g. `NOT_FOUND`.
fn code(reason: Reason) -> String {
    let name = format!("{:?}", ingraft_wire::failure::code(reason.class()));
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[test]
fn every_reason_is_documented() {
    let rows = listed("Errors");
    assert_eq!(words(&rows), Reason::ALL.iter().map(|reason| reason.word()).collect());
    for (word, status) in &rows {
        let reason = Reason::of(word).unwrap();
        assert!(
            status.contains(&code(reason)) || NOT_OF_SERVER.contains(&reason),
            "{word}: {status} is not its status"
        );
    }
}

#[test]
fn every_refusal_is_documented() {
    assert_eq!(words(&listed("Refusals")), Refusal::WORDS.iter().copied().collect());
}
