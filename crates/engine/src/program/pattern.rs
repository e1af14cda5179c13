//! Patterns, by which a text selects functions: a name, a glob, `MODULE:GLOB`, or `MODULE+0xOFFSET`. The first `:` that is no part of `::`
//! separates module and function. Nothing before it is the program's own module. At the end, `#0xOFFSET` selects the basic block that begins at this offset in each of the functions,
//! `#0xFROM->0xTO` an edge and `#loop@0xOFFSET` a loop; `#*`, `#*->*` and `#loop@*` select all blocks, edges and loops.

pub use ingraft_model::glob::glob_match;
use std::num::NonZero;

use ingraft_model::{Focus, PartName, Svma};

/// A parsed FUNCTION argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A name or a glob over names, in one module or in all.
    Names {
        /// Glob over module names.
        module: Option<String>,
        /// Glob over function names.
        function: String,
    },
    /// The function that contains an offset of a module.
    Offset {
        /// Glob over module names.
        module: String,
        /// The offset, as `nm` prints it.
        offset: Svma,
    },
}

/// Parts of functions that a text selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartPattern {
    /// The part of this name.
    One(PartName),
    /// All basic blocks.
    AllBlocks,
    /// All edges between basic blocks.
    AllEdges,
    /// All loops.
    AllLoops,
}

impl PartPattern {
    fn parse(text: &str) -> Option<PartPattern> {
        match text {
            "#*" => Some(PartPattern::AllBlocks),
            "#*->*" => Some(PartPattern::AllEdges),
            "#loop@*" => Some(PartPattern::AllLoops),
            name => PartName::parse(name).map(PartPattern::One),
        }
    }

    /// The kind of the parts in words, with an article.
    pub fn words(self) -> &'static str {
        match self {
            PartPattern::One(name) => name.words(),
            PartPattern::AllBlocks => "a block",
            PartPattern::AllEdges => "an edge between blocks",
            PartPattern::AllLoops => "a loop",
        }
    }
}

/// A line of a source file, `FILE.c:LINE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// Last part of the path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: NonZero<u64>,
}

impl SourceLine {
    /// The source line that a text names: a file whose name has a dot, and a number. No function has a number for a name.
    pub fn parse(text: &str) -> Option<SourceLine> {
        let (file, line) = text.rsplit_once(':')?;
        let has_suffix = file.rsplit('/').next()?.contains('.') && !has_wildcard(file);
        let digits = line.bytes().all(|b| b.is_ascii_digit());
        if !has_suffix || !digits {
            return None;
        }
        Some(SourceLine { file: file.to_owned(), line: line.parse().ok()? })
    }
}

impl Pattern {
    /// Splits a text into the text that selects functions, and the parts of them that it selects.
    pub fn split_parts(text: &str) -> (&str, Option<PartPattern>) {
        let Some(at) = text.rfind('#').filter(|at| *at > 0) else { return (text, None) };
        let (functions, parts) = text.split_at(at);
        PartPattern::parse(parts).map_or((text, None), |parts| (functions, Some(parts)))
    }

    /// Parses a text; every text is a pattern. Parts of functions are left out.
    pub fn parse(text: &str) -> Pattern {
        let (text, _) = Pattern::split_parts(text);
        if let Some((module, offset)) = text.rsplit_once("+0x")
            && !module.is_empty()
            && let Ok(offset) = u64::from_str_radix(offset, 16)
        {
            return Pattern::Offset { module: module.to_owned(), offset: Svma(offset) };
        }
        match single_colon(text) {
            Some(i) => Pattern::Names { module: Some(text[..i].to_owned()), function: text[i + 1..].to_owned() },
            None => Pattern::Names { module: None, function: text.to_owned() },
        }
    }

    /// The pattern for all functions of the module that a focus names, if it names one.
    pub fn of_module(focus: &Focus) -> Option<Self> {
        let module = focus.part("Code")?.names.first()?;
        Some(Pattern::Names { module: Some(module.clone()), function: "*".to_owned() })
    }

    /// The name or glob of the pattern's module, if the pattern has one.
    pub fn module(&self) -> Option<&str> {
        match self {
            Pattern::Names { module, .. } => module.as_deref(),
            Pattern::Offset { module, .. } => Some(module),
        }
    }

    /// Whether the pattern could match functions of a module with these names.
    pub fn may_match_module<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        match self {
            Pattern::Names { module: None, .. } => true,
            Pattern::Names { module: Some(glob), .. } | Pattern::Offset { module: glob, .. } => {
                names.into_iter().any(|name| glob_match(glob, name))
            }
        }
    }

    /// The name, if the pattern is a bare name without module and wildcards. Such a name must not match several modules at once.
    pub fn bare_name(&self) -> Option<&str> {
        match self {
            Pattern::Names { module: None, function } if !has_wildcard(function) => Some(function),
            Pattern::Names { .. } | Pattern::Offset { .. } => None,
        }
    }

    /// Whether the pattern is a bare name.
    pub fn is_bare_name(&self) -> bool {
        self.bare_name().is_some()
    }
}

/// Position of the first `:` that is no part of `::`, nor of a tag such as `[abi:cxx11]`.
fn single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut i, mut depth) = (0, 0_usize);
    while i < bytes.len() {
        match bytes[i] {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if bytes[i] == b':' && depth == 0 {
            if bytes.get(i + 1) == Some(&b':') {
                i += 2;
                continue;
            }
            return Some(i);
        }
        i += 1;
    }
    None
}

/// Whether a text has wildcards. Brackets are no wildcards, because many C++ names contain them.
pub fn has_wildcard(glob: &str) -> bool {
    glob.contains(['*', '?'])
}

/// Number of single-character edits between two names, for "did you mean"; `None` above `limit`.
pub fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    Some(strsim::levenshtein(a, b)).filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::Offset;

    fn names(module: Option<&str>, function: &str) -> Pattern {
        Pattern::Names { module: module.map(str::to_owned), function: function.to_owned() }
    }

    #[test]
    fn patterns_are_read() {
        for (text, expected) in [
            ("call", names(None, "call")),
            ("redis-server:zset*", names(Some("redis-server"), "zset*")),
            ("std::map<int>::at", names(None, "std::map<int>::at")),
            ("libx.so:std::f", names(Some("libx.so"), "std::f")),
            ("libx.so+0x1f", Pattern::Offset { module: "libx.so".into(), offset: Svma(0x1f) }),
            ("+0x1f", names(None, "+0x1f")),
            ("a+0xzz", names(None, "a+0xzz")),
            (":f", names(Some(""), "f")),
            ("f[abi:cxx11](int)", names(None, "f[abi:cxx11](int)")),
            ("[vdso]:f[abi:cxx11]", names(Some("[vdso]"), "f[abi:cxx11]")),
        ] {
            assert_eq!(Pattern::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn globs_match() {
        for (glob, text, expected) in [
            ("*", "", true),
            ("zset*", "zsetAdd", true),
            ("zset*", "xzset", false),
            ("*set?dd", "zsetAdd", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "a", false),
            ("a", "a", true),
        ] {
            assert_eq!(glob_match(glob, text), expected, "{glob} {text}");
        }
    }

    #[test]
    fn parts_and_source_lines_are_told_from_functions() {
        let one = |name| Some(PartPattern::One(name));
        let edge = PartName::Edge { from: Offset(0x1a), to: Offset(-0x40) };
        for (text, functions, parts) in [
            ("f#0x1a", "f", one(PartName::Block(Offset(0x1a)))),
            ("m:f#-0x8", "m:f", one(PartName::Block(Offset(-8)))),
            ("m:f#0x1a->-0x40", "m:f", one(edge)),
            ("A::operator->#0x1a->-0x40", "A::operator->", one(edge)),
            ("f#loop@0x8", "f", one(PartName::Loop(Offset(8)))),
            ("m:*#*", "m:*", Some(PartPattern::AllBlocks)),
            ("*#*->*", "*", Some(PartPattern::AllEdges)),
            ("f#loop@*", "f", Some(PartPattern::AllLoops)),
        ] {
            assert_eq!(Pattern::split_parts(text), (functions, parts), "{text}");
            assert_eq!(Pattern::parse(text), Pattern::parse(functions));
        }
        // A version of a symbol is no part, nor is a pattern for all versions.
        for text in [
            "f",
            "f#",
            "f#1a",
            "f#0x",
            "f#0xg",
            "{closure#0}",
            "#0x1a",
            "f#->",
            "f#0x1->",
            "f#0x1->*",
            "f#loop",
            "f#loop@",
            "memcpy@GLIBC_2.14",
            "memcpy@@GLIBC_2.14",
            "memcpy@*",
        ] {
            assert_eq!(Pattern::split_parts(text), (text, None), "{text}");
        }
        let line = |text| SourceLine::parse(text).map(|found| (found.file, found.line.get()));
        assert_eq!(line("server.c:120"), Some(("server.c".to_owned(), 120)));
        assert_eq!(line("src/a.b/server.rs:7"), Some(("src/a.b/server.rs".to_owned(), 7)));
        for text in ["server.c", "server.c:", "server.c:0", "server.c:x", "libc:120", "*.c:7", "a.b/server:7", "ns::f"]
        {
            assert_eq!(line(text), None, "{text}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("procesCommand", "processCommand", 3), Some(1));
        assert_eq!(edit_distance("abc", "xyzuvw", 2), None);
    }
}
