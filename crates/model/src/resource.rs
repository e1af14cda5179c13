//! Resources and foci: the parts of a program to which a metric is restricted. A focus names at most one resource of each hierarchy.

use std::fmt;

/// A resource: the root of its hierarchy and the names below it, e.g. `/Code/redis-server/call`. The root alone means the
/// whole hierarchy. Names are kept decoded; `%2F` and `%2C` appear only in the text form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourcePath {
    /// `Code`, `Process`, `Machine` or `SyncObject` (`Host` is read as `Machine`).
    pub root: String,
    /// The names below the root.
    pub names: Vec<String>,
}

/// A focus: at most one resource of each hierarchy, sorted by root. An empty focus is the whole program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Focus {
    parts: Vec<ResourcePath>,
}

/// Reason why a text is no focus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FocusError {
    /// A resource does not begin with a slash.
    #[error("`{0}` is no resource: it must begin with `/`")]
    NoSlash(String),
    /// An unknown hierarchy.
    #[error("unknown hierarchy `/{0}`; there are /Code, /Process, /Machine and /SyncObject")]
    UnknownRoot(String),
    /// Two resources of one hierarchy.
    #[error("two resources of the hierarchy `/{0}`; a focus has at most one of each")]
    Twice(String),
    /// An empty name between two slashes.
    #[error("an empty name in `{0}`")]
    EmptyName(String),
    /// A `%` that is not followed by two hexadecimal digits.
    #[error("a `%` without two hexadecimal digits in `{0}`")]
    BadEscape(String),
    /// More levels than the hierarchy has.
    #[error("`{0}` has more levels than its hierarchy")]
    TooDeep(String),
}

impl ResourcePath {
    /// A resource from names that are not escaped.
    pub fn new<S: Into<String>>(root: &str, names: impl IntoIterator<Item = S>) -> Self {
        ResourcePath { root: root.to_owned(), names: names.into_iter().map(Into::into).collect() }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, FocusError> {
        let rest = text.strip_prefix('/').ok_or_else(|| FocusError::NoSlash(text.to_owned()))?;
        let mut parts = split_outside_brackets(rest, '/').into_iter();
        let root = match parts.next().unwrap_or_default() {
            "Host" => "Machine",
            root @ ("Code" | "Process" | "Machine" | "SyncObject") => root,
            other => return Err(FocusError::UnknownRoot(other.to_owned())),
        };
        let mut names = Vec::new();
        for part in parts {
            if part.is_empty() {
                return Err(FocusError::EmptyName(text.to_owned()));
            }
            names.push(unescape(part).ok_or_else(|| FocusError::BadEscape(text.to_owned()))?);
        }
        let deepest = if root == "Code" || root == "SyncObject" || root == "Machine" { 3 } else { 2 };
        if names.len() > deepest {
            return Err(FocusError::TooDeep(text.to_owned()));
        }
        Ok(ResourcePath { root: root.to_owned(), names })
    }
}

impl Focus {
    /// A focus of these resources.
    pub fn new(parts: impl IntoIterator<Item = ResourcePath>) -> Result<Self, FocusError> {
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort();
        for pair in parts.windows(2) {
            if pair[0].root == pair[1].root {
                return Err(FocusError::Twice(pair[0].root.clone()));
            }
        }
        Ok(Focus { parts })
    }

    /// Reads the text form: resources joined by commas; the empty text is the whole program.
    pub fn parse(text: &str) -> Result<Self, FocusError> {
        if text.trim().is_empty() {
            return Ok(Focus::default());
        }
        let parts = split_outside_brackets(text, ',');
        Focus::new(parts.into_iter().map(|p| ResourcePath::parse(p.trim())).collect::<Result<Vec<_>, _>>()?)
    }

    /// The resource of a hierarchy, if the focus restricts it (the root alone restricts nothing).
    pub fn part(&self, root: &str) -> Option<&ResourcePath> {
        self.parts.iter().find(|p| p.root == root && !p.names.is_empty())
    }

    /// All resources, sorted by root.
    pub fn parts(&self) -> &[ResourcePath] {
        &self.parts
    }
}

/// Splits at `separator`, but not inside `()` and `<>`, which C++ and Rust names contain. An opening bracket counts only if the text has
/// its closing bracket later. Those of an operator's name, as in `operator<<`, are none, and the `>` of an arrow, as in `#0x1a->0x40`, closes
/// nothing.
fn split_outside_brackets(text: &str, separator: char) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut closers: Vec<char> = Vec::new();
    let last = |closer: char| {
        text.char_indices().filter(|(i, c)| *c == closer && !is_arrow(text, *i)).map(|(i, _)| i).next_back()
    };
    let (round, angle) = (last(')'), last('>'));
    for (i, c) in text.char_indices() {
        match c {
            '<' | '>' if is_of_operator(text, i) => {}
            '(' if round.is_some_and(|last| i < last) => closers.push(')'),
            '<' if angle.is_some_and(|last| i < last) => closers.push('>'),
            '>' if is_arrow(text, i) => {}
            c if closers.last() == Some(&c) => {
                closers.pop();
            }
            c if c == separator && closers.is_empty() => {
                out.push(&text[start..i]);
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

/// Whether a `<` or `>` at this place belongs to the name of a C++ operator.
fn is_of_operator(text: &str, at: usize) -> bool {
    let before = text[..at].trim_end_matches(['<', '>', '=']);
    let name = &text[before.len()..=at];
    before.ends_with("operator") && ["<<=", "<=>", ">>="].iter().any(|operator| operator.starts_with(name))
}

/// Whether a `>` at this place is the end of an arrow.
fn is_arrow(text: &str, at: usize) -> bool {
    text[at..].starts_with('>') && text[..at].ends_with('-')
}

fn unescape(name: &str) -> Option<String> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let hex = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

impl fmt::Display for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.root)?;
        for name in &self.names {
            f.write_str("/")?;
            for piece in name.split_inclusive(['%', '/', ',']) {
                let plain = piece.trim_end_matches(['%', '/', ',']);
                f.write_str(plain)?;
                f.write_str(match piece.get(plain.len()..) {
                    Some("%") => "%25",
                    Some("/") => "%2F",
                    Some(",") => "%2C",
                    _ => "",
                })?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Focus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        Focus::parse(text).map_or_else(|e| format!("error: {e}"), |f| f.to_string())
    }

    #[test]
    fn foci_are_read_and_written() {
        for (text, expected) in [
            ("", ""),
            ("/Code/redis-server/call", "/Code/redis-server/call"),
            ("/Process/7/8,/Code/m", "/Code/m,/Process/7/8"),
            ("/Host/h", "/Machine/h"),
            ("/Code/m/f(int, char),/Process/7", "/Code/m/f(int%2C char),/Process/7"),
            ("/Code/m/a%2Fb%2Cc", "/Code/m/a%2Fb%2Cc"),
            ("/Code/m/std::map<int, long>::at", "/Code/m/std::map<int%2C long>::at"),
            ("/Code/m/operator<,/Process/7", "/Code/m/operator<,/Process/7"),
            ("/Code/m/f/#0x1a->0x40,/Process/7", "/Code/m/f/#0x1a->0x40,/Process/7"),
            ("/Code/m/operator</#0x1a->0x40,/Process/7", "/Code/m/operator</#0x1a->0x40,/Process/7"),
            ("/Code/m/operator->/#0x1a", "/Code/m/operator->/#0x1a"),
            ("/Code/m/operator<< <char, A>(A&)/#0x1a", "/Code/m/operator<< <char%2C A>(A&)/#0x1a"),
            ("/Code/m/operator<=> <A>()/#0x1a,/Process/7", "/Code/m/operator<=> <A>()/#0x1a,/Process/7"),
            ("/Code/m/operator>><A/B>()/#0x1a", "/Code/m/operator>><A%2FB>()/#0x1a"),
            ("/Code/m/<fn(u8, u8) -> u8 as A/B>::f/#0x1a", "/Code/m/<fn(u8%2C u8) -> u8 as A%2FB>::f/#0x1a"),
            ("/Code/m/f/#loop@-0x8", "/Code/m/f/#loop@-0x8"),
            ("Code/m", "error: `Code/m` is no resource: it must begin with `/`"),
            ("/Code/a,/Code/b", "error: two resources of the hierarchy `/Code`; a focus has at most one of each"),
            ("/Cod/a", "error: unknown hierarchy `/Cod`; there are /Code, /Process, /Machine and /SyncObject"),
            ("/Code//a", "error: an empty name in `/Code//a`"),
            ("/Code/%2", "error: a `%` without two hexadecimal digits in `/Code/%2`"),
        ] {
            assert_eq!(round(text), expected, "{text}");
        }
    }
}
