//! Regular expressions for `exclude regex`: those of the crate [`regex`], anchored at both ends, which match in linear time.

use regex::RegexBuilder;

/// Largest size of a compiled expression, in bytes.
const SIZE_MAX: usize = 1 << 20;
/// Depth to which groups may nest.
const NESTING_MAX: u32 = 64;

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct Regex(regex::Regex);

impl Regex {
    /// Compiles an expression. The error says in one line why the expression is invalid.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let anchored = format!("^(?:{text})$");
        // The expression must be valid by itself: `a)|(b` would be valid between the anchors.
        let compile = |text: &str| RegexBuilder::new(text).size_limit(SIZE_MAX).nest_limit(NESTING_MAX).build();
        compile(text).and_then(|_| compile(&anchored)).map(Regex).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the regular expression is too long".to_owned(),
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
                format!("the regular expression is wrong: {last}")
            }
        })
    }

    /// Whether the whole text matches.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_whole_texts() {
        for (expression, yes, no) in [
            ("abc", "abc", "abcd"),
            ("a.c", "axc", "ac"),
            ("ab*c", "abbbc", "abb"),
            ("ab+c", "abc", "ac"),
            ("ab?c", "ac", "abbc"),
            ("(ab|cd)+e", "abcde", "abc"),
            ("^x$", "x", "xx"),
            ("[^a-c]+", "xyz", "xaz"),
            ("[]x]", "]", "y"),
            (r"\.\d+", ".42", "42"),
            ("(a*)*b", "aaab", "aaa"),
            ("a|", "", "b"),
            ("a|b", "b", "ab"),
            ("a{2}", "aa", "a"),
        ] {
            let regex = Regex::new(expression).expect(expression);
            assert!(regex.matches(yes), "{expression} {yes}");
            assert!(!regex.matches(no), "{expression} {no}");
        }
    }

    #[test]
    fn bad_expressions_are_errors() {
        let nested = "(".repeat(100) + &")".repeat(100);
        for bad in ["(", ")", "*a", "[a", "a\\", "a)|(b", "(a{1000}){1000}", &nested] {
            let why = Regex::new(bad).expect_err(bad);
            assert!(!why.contains('\n') && why.starts_with("the regular expression"), "{why}");
        }
    }
}
