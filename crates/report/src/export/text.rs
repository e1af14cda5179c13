//! Texts and numbers as formats need them.

use std::fmt::Write;

/// A name without control characters, which would end a line of a format of lines.
pub(super) fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A text as HTML or XML. Characters that XML does not permit are question marks.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            '\t' => f.write_char(c),
            '\u{fffe}' | '\u{ffff}' => f.write_char('?'),
            c if c.is_control() => f.write_char('?'),
            c => f.write_char(c),
        })
    }
}

/// A text as a string of JSON.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        self.0.chars().try_for_each(|c| match c {
            '"' => f.write_str("\\\""),
            '\\' => f.write_str("\\\\"),
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c)),
            c => f.write_char(c),
        })?;
        f.write_char('"')
    }
}

/// A number with separators of thousands.
pub(super) struct Grouped(pub(super) u64);

impl std::fmt::Display for Grouped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = self.0.to_string();
        digits.chars().enumerate().try_for_each(|(at, digit)| {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_replaced() {
        let text = "a\"b\\<\n\u{7f}&'\u{ffff}é";
        assert_eq!(Quoted(text).to_string(), "\"a\\\"b\\\\<\\u000a\\u007f&'\u{ffff}é\"");
        assert_eq!(Escaped(text).to_string(), "a&quot;b\\&lt;??&amp;&#39;?é");
        assert_eq!(one_line(text), "a\"b\\<??&'\u{ffff}é");
        assert_eq!((Grouped(999).to_string(), Grouped(1_234_567).to_string()), ("999".into(), "1,234,567".into()));
    }
}
