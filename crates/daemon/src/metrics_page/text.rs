//! The text format of Prometheus, version 0.0.4: families with their series. Numbers are written in decimal with all their digits.

use std::fmt::Write;

use super::names::FamilyType;

/// Media type of the page.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Length of the lines of one pair beyond which further series are only counted. Names of functions may be long, and a pair may have a
/// thousand series with such a name.
pub const PAIR_BYTES: usize = 4 << 20;

/// Labels of a series: names with their values.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// The lines of some series of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesLines {
    /// The lines.
    pub text: String,
    /// Number of series, which is the number of lines unless these are too long.
    pub count: usize,
}

impl SeriesLines {
    /// Adds a series with a value in decimal. Labels without a text are left out, as the format takes both for the same.
    pub fn add(&mut self, name: &str, labels: Labels<'_>, value: &str) {
        self.count += 1;
        if self.is_too_long() {
            return;
        }
        self.text += name;
        let mut separator = '{';
        for (label, text) in labels.iter().filter(|(_, text)| !text.is_empty()) {
            self.text.push(separator);
            self.text += label;
            self.text += "=\"";
            escape(text, true, &mut self.text);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        self.text += value;
        self.text.push('\n');
    }

    /// Returns whether series may be missing in the text.
    pub fn is_too_long(&self) -> bool {
        self.text.len() > PAIR_BYTES
    }

    /// Adds further lines.
    pub fn append(&mut self, other: &SeriesLines) {
        self.text += &other.text;
        self.count += other.count;
    }
}

/// Writes the two lines before the series of a family.
pub fn head(name: &str, kind: FamilyType, help: &str, out: &mut String) {
    // Writing to a text does not fail.
    let _ = write!(out, "# HELP {name} ");
    escape(help, false, out);
    let _ = writeln!(out, "\n# TYPE {name} {}", kind.word());
}

/// Appends a text with backslashes and newlines escaped, and quotes if the text stands between quotes.
fn escape(text: &str, quoted: bool, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => *out += "\\\\",
            '\n' => *out += "\\n",
            // Readers of this format do not read on behind it.
            '\0' => out.push(char::REPLACEMENT_CHARACTER),
            '"' if quoted => *out += "\\\"",
            c => out.push(c),
        }
    }
}

/// Returns an integer, divided by ten to the power of `digits`, exactly and without needless zeros.
pub fn decimal(value: i128, digits: u32) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let digits = digits as usize;
    let text = format!("{:0>1$}", value.unsigned_abs(), digits + 1);
    let (whole, part) = text.split_at(text.len() - digits);
    match part.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut lines = SeriesLines::default();
        let function = "operator\"\"_x<char>(\"a\\n\"), {b}";
        lines.add("m_total", &[("pid", "7"), ("function", function), ("key", ""), ("focus", "a\nb\\")], "1");
        lines.add("n", &[], "0.5");
        lines.add("n", &[("key", "")], "2");
        let expected = concat!(
            r#"m_total{pid="7",function="operator\"\"_x<char>(\"a\\n\"), {b}",focus="a\nb\\"} 1"#,
            "\nn 0.5\nn 2\n"
        );
        assert_eq!((lines.text.as_str(), lines.count), (expected, 3));
        let mut text = String::new();
        head("m_total", FamilyType::Counter, "How \"often\"\nx\\y.", &mut text);
        assert_eq!(text, "# HELP m_total How \"often\"\\nx\\\\y.\n# TYPE m_total counter\n");
    }

    #[test]
    fn long_lines_are_only_counted() {
        let (long, mut lines) = ("x".repeat(PAIR_BYTES / 2), SeriesLines::default());
        for count in 1..9 {
            lines.add("m", &[("function", &long)], "1");
            assert_eq!((lines.count, lines.is_too_long()), (count, count > 1));
        }
        assert!(lines.text.len() < 2 * PAIR_BYTES);
    }

    #[test]
    fn numbers_keep_all_digits() {
        for (value, digits, expected) in [
            (0, 0, "0"),
            (0, 9, "0"),
            (31, 9, "0.000000031"),
            (1_500_000_000, 9, "1.5"),
            (-1, 3, "-0.001"),
            (1200, 0, "1200"),
            (i128::from(u64::MAX), 9, "18446744073.709551615"),
            (i128::from(i64::MIN), 0, "-9223372036854775808"),
        ] {
            assert_eq!(decimal(value, digits), expected);
        }
    }

    proptest! {
        #[test]
        fn a_series_is_one_line_and_escapes_are_undone(text: String) {
            let mut lines = SeriesLines::default();
            lines.add("m", &[("a", "1"), ("b", &text)], "1");
            prop_assert_eq!(lines.text.matches('\n').count(), 1);
            let escaped = lines.text.strip_prefix("m{a=\"1\"").and_then(|rest| rest.strip_suffix("} 1\n"));
            let escaped = escaped.expect("labels");
            let read = escaped.strip_prefix(",b=\"").and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
            let (mut plain, mut characters) = (String::new(), read.chars());
            while let Some(c) = characters.next() {
                prop_assert!(c != '"', "an unescaped quote");
                match (c, if c == '\\' { characters.next() } else { None }) {
                    (_, Some('n')) => plain.push('\n'),
                    (_, Some(next)) => plain.push(next),
                    (c, None) => plain.push(c),
                }
            }
            prop_assert_eq!(plain, text.replace('\0', "\u{fffd}"));
        }
    }
}
