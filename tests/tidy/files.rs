//! Checks rules for source files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest number of lines of a file; a file is about one idea.
const LINES_MAX: usize = 1000;

/// Returns all Rust sources below a directory, with their text.
pub fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.push((path, text));
            }
        }
    }
    found
}

/// Returns the paths of all files that are under version control; nothing if there is no git.
fn tracked_paths() -> Vec<PathBuf> {
    let root = crate::root();
    let Ok(output) = Command::new("git").current_dir(&root).args(["ls-files", "-z"]).output() else {
        return Vec::new();
    };
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    names.split('\0').filter(|name| !name.is_empty()).map(|name| root.join(name)).collect()
}

/// Returns the text files that are under version control; nothing if there is no git.
fn tracked() -> Vec<(PathBuf, String)> {
    let texts = tracked_paths().into_iter();
    texts.filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text))).collect()
}

/// Extensions of files that may be under version control. A file that a program has left behind by accident has another one.
const EXTENSIONS: &[&str] = &[
    "c", "cpp", "css", "go", "h", "java", "js", "lock", "md", "mdl", "out", "pl", "profile", "proto", "py", "rs", "s",
    "service", "sh", "toml", "trace", "txt",
];

#[test]
fn tracked_files_have_known_extensions() {
    for path in tracked_paths() {
        let Some(extension) = path.extension() else { continue };
        assert!(EXTENSIONS.iter().any(|known| extension == *known), "{}: not a source file", path.display());
    }
}

#[test]
fn only_process_may_be_unsafe() {
    let root = crate::root();
    for entry in std::fs::read_dir(root.join("crates")).expect("crates") {
        let directory = entry.expect("a crate").path();
        let name = directory.file_name().expect("a name").to_string_lossy().into_owned();
        let roots: Vec<PathBuf> = ["src/lib.rs", "src/main.rs"]
            .map(|file| directory.join(file))
            .into_iter()
            .filter(|path| path.exists())
            .collect();
        assert!(!roots.is_empty(), "crate {name} has neither src/lib.rs nor src/main.rs");
        for path in roots {
            let text = std::fs::read_to_string(&path).expect("a crate root");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert!(forbids || name == "process", "{}: #![forbid(unsafe_code)] is missing", path.display());
        }
    }
}

#[test]
fn files_are_short() {
    for (path, text) in tracked() {
        let is_code = path
            .extension()
            .is_some_and(|extension| ["rs", "c", "cpp", "s", "go", "py", "proto"].iter().any(|e| extension == *e));
        let lines = text.lines().count();
        assert!(!is_code || lines <= LINES_MAX, "{} has {lines} lines: split it by ideas", path.display());
    }
}

#[test]
fn a_module_with_parts_begins_in_mod_rs() {
    for (path, _) in tracked() {
        let beside = path.extension().is_some_and(|extension| extension == "rs") && path.with_extension("").is_dir();
        assert!(!beside, "{}: move it to mod.rs in the folder of its parts", path.display());
    }
}

#[test]
fn nothing_is_left_unfinished() {
    // The words are written in halves, so that this file passes its own check.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("to", "do!("),
        concat!("unimplemen", "ted!("),
    ];
    for (path, text) in tracked() {
        if path.ends_with("Cargo.toml") || path.ends_with("Cargo.lock") {
            continue; // these files name the lints against such words
        }
        for (number, line) in text.lines().enumerate() {
            for word in words {
                assert!(!line.contains(word), "{}:{}: {word}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn no_private_paths() {
    let words = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/tmp/tar", "get")];
    for (path, text) in tracked() {
        for (number, line) in text.lines().enumerate() {
            for word in words {
                // `/proc/PID/root/PATH` is a path of the kernel's.
                let found = line
                    .match_indices(word)
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '}' || c == '>'));
                assert!(!found, "{}:{}: {word} is a path of somebody's machine", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn every_shipped_document_is_linked() {
    let root = crate::root();
    let readme = std::fs::read_to_string(root.join("README.md")).expect("README.md");
    for entry in std::fs::read_dir(root.join("docs")).expect("docs") {
        let name = entry.expect("a document").file_name().to_string_lossy().into_owned();
        assert!(readme.contains(&format!("docs/{name}")), "README.md does not link docs/{name}");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = crate::root();
    for (path, text) in
        tracked().into_iter().filter(|(path, _)| path.extension().is_some_and(|extension| extension == "md"))
    {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                let found = path.parent().unwrap_or(&root).join(file);
                assert!(found.exists(), "{}: nothing at {target}", path.display());
            }
        }
    }
}

#[test]
fn documents_show_the_unit_that_packages_have() {
    let read = |path: &str| std::fs::read_to_string(crate::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let unit = format!("```ini\n{}```\n", read("crates/xtask/dist/ingraftd.service"));
    assert!(
        read("docs/operation.md").contains(&unit),
        "docs/operation.md and crates/xtask/dist/ingraftd.service differ"
    );
}
