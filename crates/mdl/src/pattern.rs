//! `exclude`: shell patterns and regular expressions over `/Code/MODULE/FUNCTION`. One matcher serves all uses.

use crate::ast::ExcludeDefinition;
use crate::regex::Regex;

/// Parts of the code that are left out of `$procedures`, `$modules` and `.funcs`.
#[derive(Clone, Debug)]
pub struct Exclusion {
    no_case: bool,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// A shell pattern for the module, and one for the function; `None` if the pattern means whole modules.
    Shell(Vec<char>, Option<Vec<char>>),
    /// A regular expression for the whole path.
    Regex(Regex),
}

impl Exclusion {
    /// Reads a definition. The error says in a sentence why the pattern is invalid.
    pub fn new(exclude: &ExcludeDefinition) -> Result<Self, String> {
        let no_case = exclude.no_case;
        let text = if no_case { exclude.pattern.value.to_lowercase() } else { exclude.pattern.value.clone() };
        if exclude.regex {
            return Ok(Exclusion { no_case, matcher: Matcher::Regex(Regex::new(&text)?) });
        }
        let root = if no_case { "/code/" } else { "/Code/" };
        let rest = text.strip_prefix(root).filter(|r| !r.is_empty());
        let Some(rest) = rest else {
            return Err(format!(
                "`{}` excludes nothing; write \"/Code/MODULE\" or \"/Code/MODULE/FUNCTION\"",
                exclude.pattern.value
            ));
        };
        let (module, function) = rest.split_once('/').map_or((rest, None), |(m, f)| (m, Some(f)));
        if module.is_empty() || function.is_some_and(str::is_empty) {
            return Err(format!("an empty name in `{}`", exclude.pattern.value));
        }
        let matcher = Matcher::Shell(module.chars().collect(), function.map(|f| f.chars().collect()));
        Ok(Exclusion { no_case, matcher })
    }

    /// Whether a whole module is left out.
    pub fn matches_module(&self, module: &str) -> bool {
        let module = self.fold(module);
        match &self.matcher {
            Matcher::Shell(pattern, None) => shell(pattern, &module),
            Matcher::Shell(_, Some(_)) => false,
            Matcher::Regex(regex) => regex.matches(&self.fold(&format!("/Code/{module}"))),
        }
    }

    /// Whether a function is left out, by itself or with its module.
    pub fn matches_function(&self, module: &str, function: &str) -> bool {
        match &self.matcher {
            Matcher::Shell(_, None) => self.matches_module(module),
            Matcher::Shell(modules, Some(functions)) => {
                shell(modules, &self.fold(module)) && shell(functions, &self.fold(function))
            }
            Matcher::Regex(regex) => {
                self.matches_module(module) || regex.matches(&self.fold(&format!("/Code/{module}/{function}")))
            }
        }
    }

    fn fold(&self, text: &str) -> String {
        if self.no_case { text.to_lowercase() } else { text.to_owned() }
    }
}

/// Matches a shell pattern: `*` is any text, `?` any character, `[a-z]` and `[!a-z]` one of a set. Time is linear in text times pattern.
fn shell(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => set(&pattern[p..], text[t]).and_then(|(hit, length)| hit.then_some(length)),
            Some(c) if *c == text[t] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|c| *c == '*')
}

/// Whether the set at the beginning of `pattern` matches the character, and the set's length. Without a closing bracket, `[` is a plain
/// character.
fn set(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = 1 + usize::from(negated);
    let Some(length) = pattern.iter().skip(first + 1).position(|c| *c == ']').map(|i| i + first + 1) else {
        return Some((c == '[', 1));
    };
    let mut hit = false;
    let mut i = first;
    while i < length {
        if i + 2 < length && pattern[i + 1] == '-' {
            hit |= (pattern[i]..=pattern[i + 2]).contains(&c);
            i += 3;
        } else {
            hit |= pattern[i] == c;
            i += 1;
        }
    }
    Some((hit != negated, length + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ast::TextLiteral;
    use crate::source::SourceSpan;

    fn exclusion(pattern: &str, regex: bool, no_case: bool) -> Result<Exclusion, String> {
        let pattern = TextLiteral { value: pattern.to_owned(), span: SourceSpan::default() };
        Exclusion::new(&ExcludeDefinition { no_case, regex, pattern })
    }

    #[test]
    fn patterns_match_modules_and_functions() {
        for (pattern, regex, no_case, module, function, expected) in [
            ("/Code/libc.so.6", false, false, "libc.so.6", "read", true),
            ("/Code/libc.so*", false, false, "libc.so.6", "read", true),
            ("/Code/libx11*", false, true, "libX11.so", "f", true),
            ("/Code/libx11*", false, false, "libX11.so", "f", false),
            ("/Code/*/m?lloc", false, false, "a", "malloc", true),
            ("/Code/*/m?lloc", false, false, "a", "calloc", false),
            ("/Code/*/[a-c]x", false, false, "a", "bx", true),
            ("/Code/*/[!a-c]x", false, false, "a", "bx", false),
            ("/Code/*/[x", false, false, "a", "[x", true),
            ("/Code/.*/(m|c)alloc", true, false, "libc", "calloc", true),
            ("/Code/.*/(m|c)alloc", true, false, "libc", "xcalloc", false),
            ("/Code/lib[a-z]+", true, false, "libc", "f", true),
        ] {
            let exclusion = exclusion(pattern, regex, no_case).expect(pattern);
            assert_eq!(exclusion.matches_function(module, function), expected, "{pattern} {module} {function}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (pattern, regex) in
            [("libc", false), ("/Code/", false), ("/Code//f", false), ("/Code/a/", false), ("(", true)]
        {
            assert!(exclusion(pattern, regex, false).is_err(), "{pattern}");
        }
    }
}
