//! Checks that the engine's session names no kind of measurement: it knows them by one trait.

use std::collections::BTreeSet;

/// Kinds of measurements. `Counts` and `Metrics` are ordinary words besides.
const KINDS: &[&str] =
    &["coverage", "coverages", "covered", "profile", "profiled", "profiles", "trace", "traced", "traces"];

#[test]
fn the_session_names_no_kind() {
    let session = crate::root().join("crates/engine/src/session");
    let mut found = BTreeSet::new();
    for (path, text) in crate::files::sources(&session) {
        for (number, line) in text.lines().enumerate() {
            // Outside of texts, which are between quotation marks.
            let code = line.split("//").next().unwrap_or_default();
            let code: String = code.split('"').step_by(2).collect();
            if let Some(name) = kind_in(&code) {
                found.insert(format!("{}:{}: {name}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "the session names kinds:\n{}", found.into_iter().collect::<Vec<_>>().join("\n"));
}

/// A name in a line of code that is about one kind; `None` if there is none.
fn kind_in(code: &str) -> Option<&str> {
    let is_folder = |name: &str| name == "kinds" && code.contains("::kinds::");
    let is_variant = |name: &str| {
        let begins = [" ", "(", "!", "&"].iter().any(|before| code.contains(&format!("{before}Kind::{name}")));
        name != "default" && begins
    };
    let is_named = |name: &str| name.split('_').flat_map(words).any(|word| KINDS.contains(&word.as_str()));
    let mut names = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
    names.find(|name| is_folder(name) || is_variant(name) || is_named(name))
}

/// The words of a name in camel case, in small letters.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for c in name.chars() {
        match words.last_mut() {
            Some(word) if !c.is_uppercase() => word.push(c),
            _ => words.push(c.to_lowercase().collect()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::kind_in;

    #[test]
    fn kinds_are_found_in_names() {
        for (code, name) in [
            ("fn begin_profile(&self)", "begin_profile"),
            ("let trace = new();", "trace"),
            ("drain.of::<TracePlan>()", "TracePlan"),
            ("matches!(kind, Kind::Counts(_))", "Counts"),
            ("use crate::kinds::metrics;", "kinds"),
        ] {
            assert_eq!(kind_in(code), Some(name), "{code}");
        }
        for code in ["tracing::debug!(%error)", "self.kinds()", "ErrorKind::Failed", "Kind::default()", "counts(&v)"] {
            assert_eq!(kind_in(code), None, "{code}");
        }
    }
}
