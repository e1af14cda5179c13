//! Diagnostics about a text or a request. They are collected; no diagnostic is fatal by itself.

use std::fmt;

use crate::source::{SourceSpan, SourceText};

/// Severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Information; the author need not do anything.
    Note,
    /// The definition is used, but probably does not say what the author meant.
    Warning,
    /// The definition or the request is dropped.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// One finding with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{severity}[{code}]: {message}", LinePosition(file, *line, *column))]
pub struct Diagnostic {
    /// Stable code, one of [`crate::codes`].
    pub code: &'static str,
    /// Severity of the diagnostic.
    pub severity: Severity,
    /// Name of the source; empty when the finding is about a request.
    pub file: String,
    /// Position in the source.
    pub span: SourceSpan,
    /// Line of the first byte, from 1; 0 without a position.
    pub line: u32,
    /// Column of the first byte, from 1, in characters; 0 without a position.
    pub column: u32,
    /// The finding in one sentence, without a full stop.
    pub message: String,
    /// Advice on what to do about the problem.
    pub help: Option<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

struct LinePosition<'a>(&'a str, u32, u32);

impl fmt::Display for LinePosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.1 == 0 { Ok(()) } else { write!(f, "{}:{}:{}: ", self.0, self.1, self.2) }
    }
}

impl Diagnostic {
    /// Returns a finding at a position in a source.
    pub fn at(
        code: &'static str,
        severity: Severity,
        source: &SourceText,
        span: SourceSpan,
        message: impl Into<String>,
    ) -> Self {
        let (line, column) = source.position(span.start);
        let file = source.name().to_owned();
        Diagnostic { code, severity, file, span, line, column, message: message.into(), help: None, notes: Vec::new() }
    }

    /// Returns an error about a request, without a position in a text.
    pub fn request(code: &'static str, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            file: String::new(),
            span: SourceSpan::default(),
            line: 0,
            column: 0,
            message: message.into(),
            help: None,
            notes: Vec::new(),
        }
    }

    /// Sets the advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Whether the diagnostic is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The codes of all diagnostics with their meaning, as docs/mdl.md lists them.
pub mod codes {
    macro_rules! codes {
        ($($name:ident = $code:literal, $meaning:literal;)*) => {
            $(#[doc = $meaning] pub const $name: &str = $code;)*
            /// Code and meaning of each diagnostic, in order.
            pub const ALL: &[(&str, &str)] = &[$(($code, $meaning)),*];
        };
    }
    codes! {
        CHARACTER = "MDL001", "a character that the language does not use";
        UNTERMINATED = "MDL002", "a string or block comment without an end";
        NUMBER = "MDL003", "a number that is malformed or does not fit";
        ESCAPE = "MDL004", "an escape in a string that is not known; the backslash is kept";
        TOO_LARGE = "MDL005", "a text or a construct beyond the limits of the reader";
        EXPECTED = "MDL010", "something else was expected here";
        RESERVED = "MDL011", "a reserved word where a name must be";
        FIELD = "MDL012", "a field that this kind of definition does not have";
        MISSING = "MDL013", "a required field is missing";
        REPEATED = "MDL014", "something that may be said once is said again";
        OLD_SPELLING = "MDL020", "an older spelling; it means what the note says";
        GROUPING = "MDL021", "operators that Paradyn grouped from the right; here they group as in C";
        IGNORED = "MDL022", "accepted, but without effect";
        UNKNOWN_NAME = "MDL030", "a name that nothing defines";
        UNKNOWN_FIELD = "MDL031", "a field that values of this type do not have";
        TYPE = "MDL032", "a value of another type is needed";
        TARGET = "MDL033", "something that cannot be assigned to";
        PLACE = "MDL034", "code at a place where it cannot run or has no meaning";
        KIND = "MDL035", "an accumulator of another kind";
        PATH = "MDL036", "a path that no focus can match";
        PATTERN = "MDL037", "an exclusion that is no pattern of code";
        IDIOM = "MDL038", "code that is legal and counts wrongly in common programs";
        NO_METRIC = "MDL050", "no metric of this name";
        NO_CONSTRAINT = "MDL051", "the metric has no constraint for a hierarchy of the focus";
        TWO_REPLACEMENTS = "MDL052", "two replacements match the same focus";
        NOT_FOUND = "MDL053", "the program has no such resource";
        NOT_WOVEN = "MDL054", "this version checks the construct but does not execute it yet";
        FLAVOR = "MDL055", "the definition belongs to another flavor";
        FOCUS = "MDL056", "the focus belongs to another process or machine";
        VALUE = "MDL057", "a value that is only known with the program does not fit";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_displayed() {
        let mut seen: Vec<_> = codes::ALL.iter().map(|c| c.0).collect();
        seen.dedup();
        assert_eq!(seen.len(), codes::ALL.len());
        let source = SourceText::new("a.mdl", "x\ny");
        let d = Diagnostic::at(codes::TYPE, Severity::Error, &source, SourceSpan { start: 2, end: 3 }, "no");
        assert_eq!(d.to_string(), "a.mdl:2:1: error[MDL032]: no");
        assert_eq!(Diagnostic::request(codes::NO_METRIC, "no").to_string(), "error[MDL050]: no");
    }
}
