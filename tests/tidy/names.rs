//! Checks that each name of a type is declared once: a name that several types have says what none of them is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[test]
fn a_name_means_one_type() {
    let declared = declared();
    let twice: Vec<_> = declared.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "names of several types, of which the new one needs another: {twice:#?}");
}

/// The names of the types of the product, each with the files that declare it: one file may do so for several platforms. Generated code is in
/// no source directory, so it is not read.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let root = crate::root();
    let sources = crate::files::sources(&root.join("crates"));
    let in_tests: Vec<PathBuf> = sources.iter().flat_map(|(file, text)| modules_of_tests(file, text)).collect();
    let mut declared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in &sources {
        let below = file.strip_prefix(&root).expect("a path below the root");
        let is_product = below.iter().nth(2).is_some_and(|name| name == "src")
            && !in_tests.iter().any(|module| file.starts_with(module) || file.with_extension("").starts_with(module));
        for name in types(text).into_iter().filter(|_| is_product) {
            declared.entry(name.to_owned()).or_default().insert(below.display().to_string());
        }
    }
    declared
}

/// The paths, without extension, of the modules that a file declares for tests only.
fn modules_of_tests(file: &Path, text: &str) -> Vec<PathBuf> {
    let is_folder = ["mod.rs", "lib.rs", "main.rs"].iter().any(|root| file.ends_with(root));
    let folder = if is_folder { file.parent().expect("a folder").to_owned() } else { file.with_extension("") };
    let modules = text.split("#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split_once(';'));
    modules.filter(|(name, _)| !name.contains(['{', '\n'])).map(|(name, _)| folder.join(name)).collect()
}

/// The names of the types that a text declares before its tests. Types that belong to a trait are none of their own.
fn types(text: &str) -> Vec<&str> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].lines().filter_map(declared_by).collect()
}

/// The name of the type that a line declares.
fn declared_by(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type =
        ["struct", "enum", "trait", "union"].contains(&keyword) || keyword == "type" && !line.starts_with(' ');
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found() {
        let text = "pub struct A<'a> {\npub(crate) enum B {\n    type Item = A;\ntype C = u8;\n// struct D\nlet structure = E;\n";
        assert_eq!(types(text), ["A", "B", "C"]);
        assert_eq!(types("trait A {}\n\n#[cfg(test)]\nmod tests {\n    struct B;\n}"), ["A"]);
    }

    #[test]
    fn modules_of_tests_are_found() {
        let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\nmod tests {\n    let _ = 1;\n}";
        assert_eq!(modules_of_tests(Path::new("x/lib.rs"), text), [Path::new("x/b")]);
        assert_eq!(modules_of_tests(Path::new("x/y.rs"), text), [Path::new("x/y/b")]);
    }
}
