//! Checks that .deny.toml allows every dependency's licence, for machines without cargo-deny.

#[test]
fn dependencies_have_allowed_licences() {
    let allowed = allowed();
    let metadata = crate::metadata(true);
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let Some(licence) = package["license"].as_str() else { panic!("{name} names no licence") };
        assert!(satisfied(&licence.replace('/', " OR "), &allowed), "{name}: {licence} is not allowed by .deny.toml");
    }
}

fn allowed() -> Vec<String> {
    let text = std::fs::read_to_string(crate::root().join(".deny.toml")).expect(".deny.toml");
    let line = text.lines().find(|line| line.starts_with("allow = [")).expect("the list of licences");
    line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether these licences fulfil an SPDX expression. AND binds tighter than OR.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let parts = |word: &str| split(expression, word);
    let alternatives = parts(" OR ");
    if alternatives.len() > 1 {
        return alternatives.iter().any(|part| satisfied(part, allowed));
    }
    let all = parts(" AND ");
    if all.len() > 1 {
        return all.iter().all(|part| satisfied(part, allowed));
    }
    let term = expression.trim();
    match term.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => satisfied(inner, allowed),
        None => allowed.iter().any(|licence| licence == term),
    }
}

/// Splits at a word that stands outside parentheses.
fn split<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && at >= start && expression[at..].starts_with(word) => {
                parts.push(&expression[start..at]);
                start = at + word.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[test]
fn expressions_are_understood() {
    let allowed = ["MIT".to_owned(), "Zlib".to_owned()];
    assert!(satisfied("MIT", &allowed));
    assert!(satisfied("(GPL-3.0 OR MIT) AND Zlib", &allowed));
    assert!(!satisfied("(GPL-3.0 OR MIT) AND BSD-2-Clause", &allowed));
    assert!(!satisfied("GPL-3.0", &allowed));
}
