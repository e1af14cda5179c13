//! Checks the edges between crates, and between the folders of a crate, by the table of the architecture (docs/architecture.md).

use std::collections::{BTreeMap, BTreeSet};

/// Each crate and the crates of this workspace that it may use at run time or while it is built.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("analysis", &["model"]),
    ("mdl", &["model"]),
    ("process", &["model"]),
    ("profile", &["model"]),
    ("codegen", &["model", "analysis"]),
    ("report", &["model", "analysis", "profile"]),
    ("api", &["model", "profile", "report"]),
    ("engine", &["model", "analysis", "mdl", "process", "profile", "report", "codegen", "api"]),
    ("wire", &["model", "report", "api"]),
    ("daemon", &["engine", "wire", "api", "model"]),
    ("cli", &["daemon", "wire", "api", "model", "mdl", "report"]),
];

/// Crates that are no part of the product, each with the crates of the product that it may link.
const TOOLS: &[(&str, &[&str])] = &[("xtask", &["testing"]), ("testing", &[])];

/// Crates that tests and benchmarks of any crate may use in addition.
const FOR_TESTS: &[&str] = &["testing"];

/// Crates whose folders form no cycle: no folder uses itself through other folders.
const LAYERED: &[&str] = &["analysis", "codegen", "engine"];

#[test]
fn crates_use_only_what_the_table_allows() {
    let metadata = crate::metadata(false);
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = short(package["name"].as_str().expect("a name"));
        let allowed: BTreeMap<_, _> = MAY_USE.iter().chain(TOOLS).copied().collect();
        let Some(&may_use) = allowed.get(name.as_str()) else {
            panic!("crate {name} is not in the table of tests/tidy/edges.rs")
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let Some(used) = dependency["name"].as_str().expect("a name").strip_prefix("ingraft-") else { continue };
            let for_tests = dependency["kind"] == "dev";
            // A crate's tests may use crates below it, never crates above.
            let ok = may_use.contains(&used) || for_tests && (FOR_TESTS.contains(&used) || below(&name).contains(used));
            assert!(ok, "{name} must not use {used}");
        }
        seen.insert(name);
    }
    for (name, _) in MAY_USE {
        assert!(seen.contains(*name), "crate {name} of the table does not exist");
    }
}

#[test]
fn folders_of_a_crate_form_no_cycle() {
    for name in LAYERED {
        let cycle = crate::folders::cycle(&crate::root().join("crates").join(name).join("src"));
        assert!(cycle.is_none(), "the folders of crate {name} use each other:\n{}", cycle.unwrap_or_default());
    }
}

/// Returns all crates that the table lets a crate reach, directly or not.
fn below(name: &str) -> BTreeSet<&'static str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![name];
    while let Some(next) = open.pop() {
        let of_next: &[&'static str] = MAY_USE.iter().find(|(name, _)| *name == next).map_or(&[], |&(_, used)| used);
        for &used in of_next {
            if reached.insert(used) {
                open.push(used);
            }
        }
    }
    reached
}

fn short(name: &str) -> String {
    name.strip_prefix("ingraft-").unwrap_or_else(|| panic!("package {name} is not named ingraft-…")).to_owned()
}

#[test]
fn every_crate_is_described() {
    let text = std::fs::read_to_string(crate::root().join("docs/architecture.md")).expect("docs/architecture.md");
    for (name, _) in MAY_USE.iter().chain(TOOLS) {
        assert!(text.contains(&format!("`{name}`")), "docs/architecture.md does not name the crate `{name}`");
    }
}

#[test]
fn pure_crates_know_no_system() {
    // A pure crate turns bytes and values into values, and uses no file, clock, process or thread.
    const PURE: &[&str] = &["model", "analysis", "mdl", "profile", "codegen", "report", "api"];
    const SYSTEM: &[&str] = &[
        "std::fs",
        "std::process",
        "std::net",
        "std::env::var",
        "std::time::SystemTime",
        "std::time::Instant",
        "libc::",
        "nix::",
        "rustix::",
        "std::thread",
        "available_parallelism",
    ];
    // The analysis of one image runs in the thread pool of its caller.
    const RAYON: &[&str] = &["analysis"];
    for name in PURE {
        let rayon: &[&str] = if RAYON.contains(name) { &[] } else { &["rayon::"] };
        for (path, text) in crate::files::sources(&crate::root().join("crates").join(name).join("src")) {
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for word in SYSTEM.iter().chain(rayon) {
                let used = product.lines().any(|line| line.contains(word) && !line.trim_start().starts_with("//"));
                assert!(!used || is_test(&path), "{}: a pure crate uses {word}", path.display());
            }
        }
    }
}

fn is_test(path: &std::path::Path) -> bool {
    path.file_stem()
        .and_then(|stem| stem.to_str())
        .is_some_and(|stem| stem == "tests" || stem.ends_with("_tests") || stem == "build")
        || path.components().any(|part| part.as_os_str() == "tests")
}
