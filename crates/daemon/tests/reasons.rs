//! Checks that docs/protocol.md lists exactly the reasons that errors can have.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(dir: &Path, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push(text.split("#[cfg(test)]").next().unwrap().to_owned());
        }
    }
}

/// Returns the quoted word at the beginning of a text, and the text after it.
fn word(text: &str) -> Option<(&str, &str)> {
    let (word, rest) = text.trim_start().strip_prefix('"')?.split_once('"')?;
    let good = !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    good.then_some((word, rest))
}

/// Returns the reasons in a source file: the word after a kind of error, or the first word of a pair of reason and hint.
fn reasons(source: &str) -> impl Iterator<Item = String> {
    let after_kind = source.split("Kind::").skip(1).filter_map(|rest| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        Some(word(rest.strip_prefix(',')?)?.0.to_owned())
    });
    let in_pair = source.split(" (").skip(1).filter_map(|rest| {
        let (reason, rest) = word(rest)?;
        let hint = rest.strip_prefix(',')?.trim_start();
        hint.starts_with('"').then(|| reason.to_owned())
    });
    // The reasons that helper functions of the engine return are in the list that assigns their kinds.
    let sorted = source.split("const LASTING:").skip(1).flat_map(|rest| {
        let list = rest.split("];").next().unwrap_or_default();
        list.split(',').filter_map(|word_| Some(word(word_.rsplit('[').next()?)?.0.to_owned())).collect::<Vec<_>>()
    });
    after_kind.chain(in_pair).chain(sorted)
}

/// Returns the words in the first column of the table under a heading.
fn listed(heading: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/protocol.md")).unwrap();
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(word, _)| word.to_owned()).collect()
}

#[test]
fn every_reason_is_documented() {
    let mut texts = Vec::new();
    for krate in ["engine", "daemon", "wire"] {
        sources(&root().join("crates").join(krate).join("src"), &mut texts);
    }
    let given: BTreeSet<String> = texts.iter().flat_map(|text| reasons(text)).collect();
    let listed = listed("Errors");
    let missing: Vec<_> = given.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&given).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/protocol.md lacks {missing:?} and lists for nothing {stale:?}"
    );
}

#[test]
fn every_refusal_is_documented() {
    let given: BTreeSet<String> = ingraft_wire::refusal::REASONS.iter().map(|r| (*r).to_owned()).collect();
    assert_eq!(listed("Refusals"), given);
}
