//! Compares docs/json.md with the types of the records that the command line prints: the records, their keys, the types of values, and
//! when a
//! key is null or left out. The test reads both as text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Files with the types of the records.
const SOURCES: &[&str] = &[
    "crates/cli/src/objects/mod.rs",
    "crates/cli/src/objects/changes.rs",
    "crates/cli/src/objects/code.rs",
    "crates/cli/src/objects/contexts.rs",
    "crates/cli/src/objects/findings.rs",
    "crates/cli/src/objects/histograms.rs",
    "crates/cli/src/objects/hot.rs",
    "crates/cli/src/objects/inserted.rs",
    "crates/cli/src/objects/keyed.rs",
    "crates/cli/src/objects/lowered.rs",
    "crates/cli/src/objects/paths.rs",
    "crates/cli/src/objects/printed.rs",
    "crates/cli/src/objects/refused.rs",
    "crates/cli/src/objects/slow.rs",
    "crates/cli/src/objects/stacks.rs",
    "crates/cli/src/objects/times.rs",
    "crates/cli/src/objects/totals.rs",
    "crates/cli/src/objects/traces.rs",
    "crates/api/src/function.rs",
    "crates/api/src/pair.rs",
];

/// Key that any record may have. The document describes it once.
const EVERYWHERE: &str = "host";

/// A key as scripts see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Word for the type of the key's value.
    kind: String,
    /// Whether the value may be null.
    null: bool,
    /// Whether the key may be missing.
    left_out: bool,
}

/// Keys of a record by path: `a.b` is a key of an object, `a[].b` one of the objects of a list.
type Keys = BTreeMap<String, Key>;

/// Field of a type: its name, its type, and its attributes.
type Field = (String, String, String);

/// The fields of structures by the name of the structure.
type Structures = BTreeMap<String, Vec<Field>>;

/// Returns the structures of the sources, and the name of each record with the name of its structure.
fn structures() -> (Structures, Vec<(String, String)>) {
    let (mut found, mut variants) = (BTreeMap::new(), Vec::new());
    for source in SOURCES {
        let text = std::fs::read_to_string(crate::root().join(source)).unwrap_or_else(|e| panic!("{source}: {e}"));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line == "pub(crate) enum Object {" {
                let all = lines.by_ref().take_while(|line| *line != "}");
                let pairs = all.filter_map(|line| line.trim().trim_end_matches("),").split_once('('));
                variants.extend(pairs.map(|(variant, name)| (snake(variant), name.to_owned())));
            } else if let Some(name) = public(line).and_then(|line| line.strip_prefix("struct ")?.strip_suffix(" {")) {
                let (mut fields, mut attributes) = (Vec::new(), String::new());
                for line in lines.by_ref().map(str::trim).take_while(|line| *line != "}") {
                    if line.starts_with("#[") {
                        attributes += line;
                    } else if let Some((field, of)) = public(line).and_then(|line| line.split_once(": ")) {
                        let attributes = std::mem::take(&mut attributes);
                        let renamed = attributes.split_once("rename = \"").and_then(|(_, rest)| rest.split_once('"'));
                        let key = renamed.map_or(field, |(key, _)| key).to_owned();
                        fields.push((key, of.trim_end_matches(',').to_owned(), attributes));
                    }
                }
                found.insert(name.to_owned(), fields);
            }
        }
    }
    (found, variants)
}

/// The line of a public item or field without its visibility; `None` for other lines.
fn public(line: &str) -> Option<&str> {
    line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub "))
}

/// Converts a name such as `TakenOut` to `taken_out`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(character.to_lowercase());
    }
    text
}

/// Adds the keys of a structure, below a prefix. `left_out` tells whether the whole structure may be missing.
fn collect(all: &Structures, name: &str, prefix: &str, left_out: bool, keys: &mut Keys) {
    for (field, of, attributes) in &all[name] {
        if field == EVERYWHERE {
            continue;
        }
        let skipped = attributes.contains("skip_serializing_if");
        let inner = |of: &str, outer: &str| Some(of.strip_prefix(outer)?.strip_suffix('>')?.to_owned());
        let optional = inner(of, "Option<");
        let of = optional.clone().unwrap_or_else(|| of.clone());
        if attributes.contains("flatten") {
            collect(all, &of, prefix, left_out || optional.is_some(), keys);
            continue;
        }
        let element = inner(&of, "Vec<");
        // An optional element is null in the list.
        let element = element.map(|element| inner(&element, "Option<").unwrap_or(element));
        let path = format!("{prefix}{field}");
        match (&element, all.contains_key(&of)) {
            // A list of the same objects has the keys that are described already.
            (Some(element), _) if element == name => {}
            (Some(element), _) if all.contains_key(element) => {
                collect(all, element, &format!("{path}[]."), false, keys)
            }
            (_, true) => collect(all, &of, &format!("{path}."), false, keys),
            _ => {}
        }
        let kind = match (&element, of.as_str()) {
            (Some(element), _) => match element.as_str() {
                "String" => "list of texts",
                // A key as what it is: a name, a number, a text, or null.
                "KeyText" => "list",
                "[u64; 3]" => "list of lists",
                element if all.contains_key(element) => "list of objects",
                _ => "list of integers",
            },
            (None, "String" | "&'static str") => "text",
            (None, "bool") => "boolean",
            (None, "f64") => "number",
            (None, "i32" | "i64" | "u32" | "u64" | "usize") => "integer",
            (None, of) if of.starts_with("BTreeMap<") || all.contains_key(of) => "object",
            (None, of) => panic!("{name}.{field}: no word for the type {of}"),
        };
        let key = Key { kind: kind.to_owned(), null: optional.is_some() && !skipped, left_out: left_out || skipped };
        keys.insert(path, key);
    }
}

/// A section of the document.
struct Section {
    /// Keys in the section's table.
    keys: Keys,
    /// Examples in the section.
    examples: Vec<Value>,
}

/// Returns the sections of the third level, by heading.
fn sections(page: &str) -> BTreeMap<String, Section> {
    let mut rows: BTreeMap<String, (Vec<&str>, Vec<Value>)> = BTreeMap::new();
    let mut heading = String::new();
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line.strip_prefix("### ").unwrap_or_default().to_owned();
        } else if !heading.is_empty() {
            let (table, examples) = rows.entry(heading.clone()).or_default();
            if line.starts_with("{\"type\"") {
                examples.push(serde_json::from_str(line).unwrap_or_else(|e| panic!("{heading}: {e}: {line}")));
            } else if line.starts_with("| `") || line.starts_with("| keys of ") {
                table.push(line);
            }
        }
    }
    let tables: BTreeMap<&str, &[&str]> = rows.iter().map(|(name, (table, _))| (name.as_str(), &table[..])).collect();
    let keys_of = |name: &str| {
        let mut keys = Keys::new();
        documented(&tables, name, "", false, &mut keys);
        keys
    };
    rows.iter()
        .map(|(name, (_, examples))| (name.clone(), Section { keys: keys_of(name), examples: examples.clone() }))
        .collect()
}

/// Adds the keys of a table below a prefix; a row "keys of [GROUP](#group)" stands for the rows of that section.
fn documented(tables: &BTreeMap<&str, &[&str]>, name: &str, prefix: &str, left_out: bool, keys: &mut Keys) {
    let table = tables.get(name).unwrap_or_else(|| panic!("no section {name}"));
    for row in *table {
        let cells: Vec<&str> = row.trim_matches('|').splitn(3, '|').map(str::trim).collect();
        let [key, kind, meaning] = cells[..] else { panic!("{name}: not three cells: {row}") };
        let own = key.split('`').nth(1).unwrap_or_default();
        // An object inside a group has its keys whenever the object is present.
        let absent = left_out && !own.contains('.') || meaning.contains("left out");
        if let Some((_, group)) = key.split_once("keys of [") {
            let group = group.split(']').next().unwrap_or_default();
            documented(tables, group, &format!("{prefix}{own}"), absent && own.is_empty(), keys);
        } else {
            let key = Key {
                kind: kind.to_owned(),
                null: meaning.contains("null if") || meaning.contains("null until") || meaning.contains("null for"),
                left_out: absent,
            };
            let again = keys.insert(format!("{prefix}{own}"), key);
            assert!(again.is_none(), "{name}: {prefix}{own} is described twice");
        }
    }
}

#[test]
fn every_record_and_key_is_described() {
    let page = std::fs::read_to_string(crate::root().join("docs/json.md")).expect("docs/json.md");
    let sections = sections(&page);
    let (all, variants) = structures();
    assert!(variants.len() > 20, "the records were not found: {variants:?}");
    for (record, name) in &variants {
        let mut keys = Keys::new();
        collect(&all, name, "", false, &mut keys);
        let section = sections.get(record).unwrap_or_else(|| panic!("docs/json.md does not describe `{record}`"));
        for (path, key) in &keys {
            let said = section.keys.get(path);
            assert_eq!(
                said,
                Some(key),
                "docs/json.md, record `{record}`, key `{path}`: left: what it says, right: the type"
            );
        }
        let unknown: Vec<&String> = section.keys.keys().filter(|path| !keys.contains_key(*path)).collect();
        assert!(unknown.is_empty(), "docs/json.md, record `{record}`: keys that do not exist: {unknown:?}");
    }
    let records: BTreeSet<&str> = variants.iter().map(|(record, _)| record.as_str()).collect();
    for (name, section) in &sections {
        assert!(
            section.examples.is_empty() || records.contains(name.as_str()),
            "docs/json.md describes `{name}`, which no command prints"
        );
    }
}

#[test]
fn the_examples_of_records_have_their_keys() {
    let page = std::fs::read_to_string(crate::root().join("docs/json.md")).expect("docs/json.md");
    let (_, variants) = structures();
    let sections = sections(&page);
    for (record, _) in &variants {
        let Section { keys, examples } = &sections[record];
        assert!(!examples.is_empty(), "docs/json.md has no example of `{record}`");
        for example in examples {
            assert_eq!(example["type"], **record, "an example of another record: {example}");
            for (path, key) in keys.iter().filter(|(path, _)| !path.contains(['.', '['])) {
                let value = example.get(path);
                assert!(value.is_some() || key.left_out, "docs/json.md: the example of `{record}` lacks `{path}`");
                assert!(value != Some(&Value::Null) || key.null, "docs/json.md: `{path}` of `{record}` is null");
            }
            let known = |path: &str| path == "type" || keys.contains_key(path);
            let unknown: Vec<&String> = example.as_object().expect("an object").keys().filter(|k| !known(k)).collect();
            assert!(unknown.is_empty(), "docs/json.md: the example of `{record}` has {unknown:?}");
        }
    }
}
