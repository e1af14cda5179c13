//! Checks docs/mdl.md: every example works, and the table of codes equals that of the crate.

use ingraft_mdl::{ParseOptions, RenderStyle, codes, format};

const PAGE: &str = include_str!("../../../../docs/mdl.md");

/// Returns the fenced examples: the words after ```mdl, and the text.
fn examples() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(claim) = line.strip_prefix("```mdl") {
            let text: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            found.push((claim.trim().to_owned(), text.join("\n") + "\n"));
        }
    }
    found
}

#[test]
fn every_example_does_what_the_page_says() {
    let examples = examples();
    assert!(examples.len() >= 10);
    for (claim, text) in examples {
        // Examples use definitions of the shipped library.
        let mut library = ingraft_mdl::shipped::library(ParseOptions::default());
        let findings = library.load("docs/mdl.md", &text);
        let said: Vec<String> = findings.iter().map(|d| format!("{} {}", d.severity, d.code)).collect();
        assert_eq!(said.join(", "), claim, "{text}\n{}", library.render(&findings, RenderStyle::Plain));
        assert!(format("docs/mdl.md", &text, ParseOptions::default()).is_ok());
    }
}

#[test]
fn the_table_of_codes_is_complete() {
    let rows: Vec<&str> = PAGE.lines().filter(|l| l.starts_with("| MDL")).collect();
    let expected: Vec<String> = codes::ALL.iter().map(|(code, meaning)| format!("| {code} | {meaning} |")).collect();
    assert_eq!(rows, expected);
}

#[test]
fn the_table_of_shipped_metrics_is_complete() {
    let table = PAGE.lines().filter(|l| l.starts_with("| `") && l.contains(".mdl`"));
    let listed: Vec<&str> = table.flat_map(|l| l.split('`').skip(3).step_by(2)).collect();
    let mut listed: Vec<String> = listed.into_iter().map(str::to_owned).collect();
    let library = ingraft_mdl::shipped::library(ParseOptions::default());
    let mut shipped: Vec<String> = library.metrics().iter().map(|metric| metric.name.to_string()).collect();
    listed.sort();
    shipped.sort();
    assert_eq!(listed, shipped);
}
