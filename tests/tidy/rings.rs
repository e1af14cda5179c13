//! Checks how many modules of a crate use each other in a ring: each of them reaches itself through all the others, so none can be understood or
//! changed alone. The numbers in the table may only fall.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// For each crate, or folder of one, the number of modules in the largest ring of it; 1 if there is none.
const LARGEST: &[(&str, usize)] = &[
    ("analysis", 5),
    ("api", 1),
    ("cli", 2),
    ("codegen", 8),
    ("daemon", 3),
    ("engine", 8),
    ("engine::session", 4),
    ("mdl", 8),
    ("model", 2),
    ("process", 7),
    ("profile", 2),
    ("report", 1),
    ("wire", 1),
];

/// The modules of a crate, by their paths below its root, each with the modules that it uses.
type Uses = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

#[test]
fn rings_of_modules_only_shrink() {
    let mut wrong = Vec::new();
    for (name, most) in LARGEST {
        let mut folders = name.split("::");
        let src = crate::root().join("crates").join(folders.next().unwrap_or_default()).join("src");
        let below: Vec<String> = folders.map(ToOwned::to_owned).collect();
        let uses = uses(&modules(&src));
        let mut ring = largest_ring(&uses, &below);
        if ring.len() != *most {
            ring.sort();
            let names: Vec<String> = ring.iter().map(|module| module.join("::")).collect();
            wrong.push(format!("{name}: {} modules, and the table says {most}: {}", ring.len(), names.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "a ring has grown, or the table is to be lowered:\n{}", wrong.join("\n"));
}

/// The modules of a crate that are files, with their text without comments and tests.
fn modules(src: &Path) -> BTreeMap<Vec<String>, String> {
    let path = |file: &Path| {
        let below = file.strip_prefix(src).expect("a path below src").with_extension("");
        let mut names: Vec<String> = below.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            names.pop();
        }
        names
    };
    let is_product = |file: &Path| !file.iter().any(|name| name == "tests.rs" || name == "tests");
    let files = crate::files::sources(src).into_iter().filter(|(file, _)| is_product(file));
    files.map(|(file, text)| (path(&file), product(&text))).collect()
}

/// The text of a file without comments, and up to its tests.
fn product(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn uses(modules: &BTreeMap<Vec<String>, String>) -> Uses {
    let of_module = |(module, text): (&Vec<String>, &String)| {
        let used = paths(module, text).into_iter().map(|mut path| {
            // A path that is no module is that of an item of one.
            while !modules.contains_key(&path) {
                path.pop();
            }
            path
        });
        // The root names all modules, and is no part of a ring.
        (module.clone(), used.filter(|used| used != module && !used.is_empty()).collect())
    };
    modules.iter().filter(|(module, _)| !module.is_empty()).map(of_module).collect()
}

/// The paths in the text of a module that begin with `crate`, `self` or `super`, from the root of the crate on.
fn paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    for root in ["crate::", "self::", "super::"] {
        for (at, _) in text.match_indices(root) {
            if at > 0 && (is_of_name(bytes[at - 1]) || bytes[at - 1] == b':') {
                continue;
            }
            let mut rest = &text[at..];
            let mut from = module.to_vec();
            if let Some(after) = rest.strip_prefix("crate::") {
                (from, rest) = (Vec::new(), after);
            }
            while let Some(after) = rest.strip_prefix("self::").or_else(|| rest.strip_prefix("super::")) {
                if rest.starts_with("super") {
                    from.pop();
                }
                rest = after;
            }
            members(&from, rest, &mut found);
        }
    }
    found
}

/// Adds the paths of a use tree, and returns the text behind it.
fn members<'t>(from: &[String], tree: &'t str, found: &mut Vec<Vec<String>>) -> &'t str {
    let tree = tree.trim_start();
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match rest.strip_prefix('}') {
                Some(after) => return after,
                None if rest.is_empty() => return rest,
                None => {}
            }
            let after = members(from, rest, found);
            rest = if after.len() < rest.len() { after } else { &rest[1..] };
        }
    }
    let end = tree.bytes().position(|byte| !is_of_name(byte)).unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    let path: Vec<String> = from.iter().cloned().chain((name != "self").then(|| name.to_owned())).collect();
    match rest.strip_prefix("::") {
        Some(more) if more.starts_with(|c: char| c == '{' || c.is_alphanumeric() || c == '_') => {
            members(&path, more, found)
        }
        _ => {
            found.push(path);
            rest
        }
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The largest set of modules that all reach each other and of which one is in a folder; one module if no two do.
fn largest_ring<'u>(uses: &'u Uses, folder: &[String]) -> Vec<&'u Vec<String>> {
    let reached = |start: &Vec<String>| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(next) = open.pop() {
            for used in uses.get(&next).into_iter().flatten() {
                if reached.insert(used.clone()) {
                    open.push(used.clone());
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        uses.keys().map(|module| (module, reached(module))).collect();
    let ring = |module: &Vec<String>| -> Vec<&Vec<String>> {
        let both = |other: &&&Vec<String>| {
            *other == &module || reach[module].contains(**other) && reach[**other].contains(module)
        };
        reach.keys().filter(both).copied().collect()
    };
    uses.keys().filter(|module| module.starts_with(folder)).map(ring).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[Vec<String>]) -> Vec<String> {
        paths.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_begin_at_the_root() {
        let module = ["a".to_owned(), "b".to_owned()];
        let text = "use crate::x::{y, z::{self, W}};\nuse super::{c, d::E};\nlet _ = self::f(super::super::g::h());";
        let found = names(&paths(&module, text));
        assert_eq!(found, ["x::y", "x::z", "x::z::W", "a::b::f", "a::c", "a::d::E", "g::h"]);
        assert!(paths(&module, "mycrate::x; a::self::y").is_empty());
    }

    #[test]
    fn a_ring_is_found() {
        let text = |text: &str| text.to_owned();
        let modules = BTreeMap::from([
            (vec![], text("mod a; mod b; mod c; use crate::a::A;")),
            (vec![text("a")], text("use crate::b::B;")),
            (vec![text("b")], text("use super::c;")),
            (vec![text("c")], text("crate::a::f()")),
            (vec![text("d")], text("use crate::a;")),
        ]);
        let uses = uses(&modules);
        assert_eq!(largest_ring(&uses, &[]).len(), 3);
        assert_eq!(largest_ring(&uses, &[text("b")]).len(), 3);
        assert_eq!(largest_ring(&uses, &[text("d")]).len(), 1);
    }
}
