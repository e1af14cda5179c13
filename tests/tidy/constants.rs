//! Checks that facts about the machine are written down once.

use crate::files::sources;

/// The file that has them.
const HOME: &str = "crates/model/src/machine.rs";

/// The names of the constants that a text declares.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    let declaration = |line: &'_ str| line.trim_start().starts_with("const ") || line.trim_start().starts_with("pub");
    let names = text.lines().filter(move |line| declaration(line)).filter_map(|line| line.split_once("const "));
    names.filter_map(|(_, rest)| rest.split_once(':')).map(|(name, _)| name)
}

#[test]
fn constants_of_the_machine_are_declared_once() {
    let root = crate::root();
    let home = std::fs::read_to_string(root.join(HOME)).expect("the constants of the machine");
    let known: Vec<&str> = declared(&home).collect();
    assert!(known.contains(&"PAGE") && known.contains(&"SPRINGBOARD"), "{known:?}");
    let is_product = |path: &std::path::Path| path.components().any(|part| part.as_os_str() == "src");
    for (path, text) in sources(&root.join("crates")) {
        if path.ends_with(HOME) || !is_product(&path) {
            continue;
        }
        let again = declared(&text).find(|name| known.contains(name));
        assert!(again.is_none(), "{}: {again:?} is in {HOME}", path.display());
        let is_page = |line: &str| line.contains("const ") && line.contains("PAGE") && line.ends_with("= 4096;");
        assert!(!text.lines().any(is_page), "{}: the size of a page is in {HOME}", path.display());
    }
}
