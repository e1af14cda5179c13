//! The table of known gaps: ids count from 1 in each part, each row has four cells, and the tests that it names exist.

use std::collections::BTreeMap;

/// The rows of the table that begin with an id, each as its cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let is_gap = |row: &&str| {
        let id = row.trim_start_matches("| ").split(' ').next().unwrap_or_default();
        let number = id.strip_prefix(['W', 'H', 'R', 'D']);
        row.split('|').count() == 6 && number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines().filter(is_gap).map(|row| row.split('|').map(str::trim).skip(1).take(4).collect()).collect()
}

#[test]
fn gaps_have_ids_and_tests_that_exist() {
    let root = crate::root();
    let text = std::fs::read_to_string(root.join("docs/gaps.md")).expect("docs/gaps.md");
    let rows = rows(&text);
    assert_eq!(rows.len(), text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id")).count() - 4);
    let mut last: BTreeMap<char, u32> = BTreeMap::new();
    for row in &rows {
        let [id, sees, when, test] = row[..] else { panic!("{row:?} has four cells") };
        let (part, number) = (id.chars().next().expect("a letter"), id[1..].parse::<u32>().expect("a number"));
        let before = last.insert(part, number).unwrap_or(0);
        assert_eq!(number, before + 1, "{id} follows {part}{before}");
        assert!(!sees.is_empty() && !when.is_empty(), "{id} says what a user sees, and when");
        let Some((module, name)) = test.trim_matches('`').split_once("::") else { continue };
        let file = ["cli", "daemon"].map(|folder| root.join(format!("tests/e2e/{folder}/{module}.rs")));
        let source = file.iter().find_map(|file| std::fs::read_to_string(file).ok());
        let source = source.unwrap_or_else(|| panic!("{id}: no tests {module}"));
        assert!(source.contains(&format!("fn {name}")), "{id}: no test {test}");
    }
}
