//! Finds the folders of a crate and the paths between them in the text of its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maps each folder of a crate to the folders that it uses, and each used folder to the files that use it.
type Uses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Returns a cycle between the folders below the `src` directory of a crate: one line for each use, with the files that make it. `None` if
/// the folders form no cycle. Paths that begin with `super` are not read.
pub fn cycle(src: &Path) -> Option<String> {
    let mut files = Vec::new();
    for (path, text) in crate::files::sources(src) {
        let name = path.strip_prefix(src).expect("a path below src").to_string_lossy().into_owned();
        files.push((name, text));
    }
    cycle_of(&files)
}

fn cycle_of(files: &[(String, String)]) -> Option<String> {
    let uses = uses(files);
    let found = uses.keys().find_map(|start| way_back(&uses, start))?;
    let arrow = |pair: &[String]| {
        let by: Vec<&str> = uses[&pair[0]][&pair[1]].iter().map(String::as_str).collect();
        format!("{} uses {}: {}", pair[0], pair[1], by.join(", "))
    };
    Some(found.windows(2).map(arrow).collect::<Vec<_>>().join("\n"))
}

/// Returns the graph of folders. A name that the crate's root re-exports counts as a use of the folder that defines it.
fn uses(files: &[(String, String)]) -> Uses {
    let folders: BTreeSet<String> = files.iter().filter_map(|(name, _)| folder(name)).collect();
    let root = files.iter().find(|(name, _)| name == "lib.rs").map_or("", |(_, text)| text.as_str());
    let exported = exported(&without_comments(root), &folders);
    let mut uses: Uses = folders.iter().map(|folder| (folder.clone(), BTreeMap::new())).collect();
    for (name, text) in files {
        let Some(from) = folder(name) else { continue };
        for first in first_names(&without_comments(text)) {
            let to = folders.get(&first).or_else(|| exported.get(&first));
            let Some(to) = to.filter(|to| **to != from) else { continue };
            uses.entry(from.clone()).or_default().entry(to.clone()).or_default().insert(name.clone());
        }
    }
    uses
}

/// Returns the folder of a file: the first component of its path. A file in `src` itself counts as a folder of its name without the
/// extension; the root of the crate has none (`None`).
fn folder(name: &str) -> Option<String> {
    let first = name.split('/').next().unwrap_or_default();
    let first = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(first, "lib" | "main")).then(|| first.to_owned())
}

/// Returns the shortest path of uses from a folder through others back to itself.
fn way_back(uses: &Uses, start: &String) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in uses[&way[way.len() - 1]].keys() {
                let way: Vec<String> = way.iter().chain([next]).cloned().collect();
                if next == start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

/// Returns the names that the root re-exports, each with its folder.
fn exported(root: &str, folders: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for statement in root.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else { continue };
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let Some(folder) = path.split("::").next().and_then(|first| folders.get(first.trim())) else { continue };
        for name in path.split(|c: char| !is_of_name(c)).filter(|name| !name.is_empty()) {
            exported.insert(name.to_owned(), folder.clone());
        }
    }
    exported
}

/// Returns the first name of each path that begins at the crate's root, including the members of `crate::{…}`.
fn first_names(text: &str) -> Vec<String> {
    const ROOT: &str = "crate::";
    let mut names = Vec::new();
    for (at, _) in text.match_indices(ROOT).filter(|(at, _)| !text[..*at].ends_with(is_of_name)) {
        let rest = &text[at + ROOT.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(members(group)),
            None => names.extend(first_name(rest)),
        }
    }
    names
}

/// Returns the first name of each member of a group of paths, up to the brace that closes the group.
fn members(group: &str) -> Vec<String> {
    let (mut depth, mut names, mut begins) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && is_of_name(c) => {
                names.extend(first_name(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let name = text.split(|c: char| !is_of_name(c)).next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::cycle_of;

    fn cycle(files: &[(&str, &str)]) -> Option<String> {
        cycle_of(&files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn arrows_in_one_direction_form_no_cycle() {
        let lib = ("lib.rs", "mod low;\nmod high;\npub use high::Top;\n");
        let high = ("high/top.rs", "use crate::low::{a, b};\nuse crate::high::other;\n");
        let low =
            ("low/a.rs", "//! Used by [`crate::high`].\nfn a() { 1 } // as crate::high::Top\nmycrate::high::x();\n");
        assert_eq!(cycle(&[lib, high, low]), None);
    }

    #[test]
    fn a_cycle_is_named_with_its_files() {
        let high = ("high/top.rs", "use crate::{\n    low::{a, b},\n    middle,\n};\n");
        let middle = ("middle.rs", "fn f() {\n    crate::low::a()\n}\n");
        let low = ("low/deep/a.rs", "use crate::middle;\n");
        let found = cycle(&[high, middle, low]);
        assert_eq!(found.as_deref(), Some("low uses middle: low/deep/a.rs\nmiddle uses low: middle.rs"));
    }

    #[test]
    fn a_cycle_over_three_folders_is_found() {
        let files = [("a/x.rs", "use crate::b;"), ("b/x.rs", "use crate::{c::y, d};"), ("c/x.rs", "crate::a::z()")];
        let found = cycle(&files);
        assert_eq!(found.as_deref(), Some("a uses b: a/x.rs\nb uses c: b/x.rs\nc uses a: c/x.rs"));
    }

    #[test]
    fn a_name_that_the_root_exports_leads_to_its_folder() {
        let lib = ("lib.rs", "pub use high::{\n    inner::Top,\n    Other,\n};\n");
        let high = ("high/top.rs", "use crate::low::a;\n");
        let low = ("low/a.rs", "use crate::Top;\n");
        let found = cycle(&[lib, high, low]);
        assert_eq!(found.as_deref(), Some("high uses low: high/top.rs\nlow uses high: low/a.rs"));
    }
}
