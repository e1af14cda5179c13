//! Recursive-descent parser, written by hand. After an error, the parser continues after the statement, field or definition with the
//! error,
//! so that one run reports all errors.

mod config;
mod expr;
mod list;
mod metric;
mod statement;

use crate::ast::{ConfigKind, Definition, DefinitionKind, Ident, MdlFile, TextLiteral};
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::lex::{LexedText, SourceToken, TokenKind, lex};
use crate::source::{SourceSpan, SourceText};

/// Options for reading a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ParseOptions {
    /// Whether all operators of two operands have one precedence and group from the right, as in Paradyn.
    pub compat_grouping: bool,
}

/// Deepest nesting of statements and parentheses.
const MAX_DEPTH: u32 = 64;
/// Most parts of one expression.
const MAX_PARTS: u32 = 500;
/// Largest number of findings about one text. After them, reading ends.
pub(crate) const MAX_FINDINGS: usize = 1000;

/// Words that begin a definition and nothing else. The parser never skips one.
const ONLY_DEFINITIONS: [&str; 5] = ["metric", "resourceList", "exclude", "tunable_constant", "visi"];

/// All words that begin a definition.
const DEFINITIONS: [&str; 13] = [
    "metric",
    "constraint",
    "resourceList",
    "list",
    "exclude",
    "daemon",
    "process",
    "visi",
    "tunable_constant",
    "foreach",
    "if",
    "append",
    "prepend",
];

/// Words that cannot be names, as in Paradyn.
const RESERVED: &str = " Call resourceList procedure module string int float flavor MPItype foreach metfocus avg min max sum \
    name units mode developer normal unitsType normalized unnormalized sampled base is append prepend derived if replace \
    constraint constrained in counter processTimer wallTimer hwTimer hwCounter aggregateOperator style EventCounter \
    SampledFunction preInsn postInsn daemon process visi exclude noCase regex tunable_constant command remoteShell host dir \
    user autoStart force limit metric default void items library mrnet_topology setCounter addCounter subCounter functionCall ";

pub(crate) fn reserved(word: &str) -> bool {
    RESERVED.contains(&format!(" {word} "))
}

/// An error was reported. The nearest caller that can recover does so.
struct ErrorReported;

type Parsed<T> = Result<T, ErrorReported>;

struct Parser<'s, 'd> {
    source: &'s SourceText,
    tokens: Vec<SourceToken<'s>>,
    comments: Vec<SourceSpan>,
    at: usize,
    options: ParseOptions,
    depth: u32,
    parts: u32,
    /// Whether the current definition has an error.
    broken: bool,
    diagnostics: &'d mut Vec<Diagnostic>,
}

/// Parses a text. Definitions with errors from which the parser could recover inside of them are kept and marked as broken.
pub fn parse(source: &SourceText, options: ParseOptions, diagnostics: &mut Vec<Diagnostic>) -> MdlFile {
    let LexedText { tokens, comments } = lex(source, diagnostics);
    let lexical = diagnostics.len();
    let mut parser =
        Parser { source, tokens, comments, at: 0, options, depth: 0, parts: 0, broken: false, diagnostics };
    let mut definitions = Vec::new();
    let mut failed = false;
    while !parser.at_end() {
        // A bracket that is left over after an error is not reported as another error.
        if parser.eat_mark(";") || (failed && (parser.eat_mark("}") || parser.eat_mark("*)"))) {
            continue;
        }
        let start = parser.at;
        parser.broken = false;
        (parser.depth, parser.parts) = (0, 0);
        match parser.definition() {
            Ok(kind) => {
                let span = parser.span_from(start);
                let bad_token = parser.diagnostics[..lexical].iter().any(|d| d.is_error() && span.contains(d.span));
                let broken = parser.broken || bad_token;
                let doc = parser.doc_before(start);
                definitions.push(Definition { kind, span, doc, broken });
            }
            Err(ErrorReported) => parser.recover(start),
        }
        failed = parser.broken;
        if parser.at == start {
            parser.at += 1;
        }
    }
    MdlFile { definitions, comments: parser.comments }
}

impl<'s> Parser<'s, '_> {
    fn peek(&self) -> &TokenKind<'s> {
        self.ahead(0)
    }

    fn ahead(&self, n: usize) -> &TokenKind<'s> {
        self.tokens.get(self.at + n).map_or(&TokenKind::End, |t| &t.kind)
    }

    fn span(&self) -> SourceSpan {
        let index = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(index).map_or(SourceSpan::default(), |t| t.span)
    }

    /// Span of the previous token.
    fn before(&self) -> SourceSpan {
        self.at.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(SourceSpan::default(), |t| t.span)
    }

    /// Span from the token with index `start` to the previous one.
    fn span_from(&self, start: usize) -> SourceSpan {
        let first = self.tokens.get(start).map_or(SourceSpan::default(), |t| t.span);
        if self.at > start { first.to(self.before()) } else { SourceSpan { start: first.start, end: first.start } }
    }

    fn bump(&mut self) -> SourceSpan {
        let span = self.span();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        span
    }

    fn at_end(&self) -> bool {
        matches!(self.peek(), TokenKind::End)
    }

    fn at_mark(&self, mark: &str) -> bool {
        matches!(self.peek(), TokenKind::Mark(m) if *m == mark)
    }

    fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word(w) if *w == word)
    }

    fn word(&self) -> Option<&'s str> {
        if let TokenKind::Word(w) = self.peek() { Some(w) } else { None }
    }

    fn eat_mark(&mut self, mark: &str) -> bool {
        let found = self.at_mark(mark);
        if found {
            self.bump();
        }
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.bump();
        }
        found
    }

    /// Reports an error; parsing goes on.
    fn error(&mut self, code: &'static str, span: SourceSpan, message: impl Into<String>) -> &mut Diagnostic {
        self.broken = true;
        self.report(code, Severity::Error, span, message)
    }

    fn report(
        &mut self,
        code: &'static str,
        severity: Severity,
        span: SourceSpan,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        if self.diagnostics.len() == MAX_FINDINGS {
            let message = format!("more than {MAX_FINDINGS} findings; the rest of the text is not read");
            self.diagnostics.push(Diagnostic::at(codes::TOO_LARGE, Severity::Error, self.source, span, message));
            self.at = self.tokens.len().saturating_sub(1);
        }
        self.diagnostics.push(Diagnostic::at(code, severity, self.source, span, message));
        let last = self.diagnostics.len() - 1;
        &mut self.diagnostics[last]
    }

    /// Notes an older spelling, which is accepted.
    fn old(&mut self, span: SourceSpan, message: impl Into<String>, help: impl Into<String>) {
        self.report(codes::OLD_SPELLING, Severity::Note, span, message).help = Some(help.into());
    }

    fn found(&self) -> String {
        match self.peek() {
            TokenKind::End => "the end of the text".to_owned(),
            TokenKind::Word(w) if reserved(w) => format!("the word `{w}`"),
            _ => {
                let text = self.source.slice(self.span());
                if text.chars().count() > 24 { "a string".to_owned() } else { format!("`{text}`") }
            }
        }
    }

    fn expected<T>(&mut self, what: &str) -> Parsed<T> {
        let message = format!("expected {what}, found {}", self.found());
        self.error(codes::EXPECTED, self.span(), message);
        Err(ErrorReported)
    }

    fn expected_help<T>(&mut self, what: &str, help: impl Into<String>) -> Parsed<T> {
        let message = format!("expected {what}, found {}", self.found());
        self.error(codes::EXPECTED, self.span(), message).help = Some(help.into());
        Err(ErrorReported)
    }

    fn need_mark(&mut self, mark: &str) -> Parsed<SourceSpan> {
        if self.at_mark(mark) { Ok(self.bump()) } else { self.expected(&format!("`{mark}`")) }
    }

    fn need_word(&mut self, word: &str) -> Parsed<SourceSpan> {
        if self.at_word(word) { Ok(self.bump()) } else { self.expected(&format!("`{word}`")) }
    }

    /// Reads a `;`. If it is missing at the end of a line or block, reports the error and continues as if it were there.
    fn semicolon(&mut self) -> Parsed<()> {
        if self.eat_mark(";") {
            return Ok(());
        }
        let before = self.before();
        if self.diagnostics.iter().any(|d| d.code == codes::UNTERMINATED && d.span == before) {
            // A string without an end contains the `;`.
            self.broken = true;
            return Ok(());
        }
        let end = before.end;
        let line_ends = self.source.line_index(end) != self.source.line_index(self.span().start);
        if line_ends || self.at_end() || self.at_mark("}") || self.at_mark("*)") {
            let span = SourceSpan { start: end.saturating_sub(1), end };
            self.error(codes::EXPECTED, span, "expected `;` behind this").help = Some("add a `;`".to_owned());
            return Ok(());
        }
        self.expected("`;`")
    }

    /// Reads a name that the author chooses.
    fn name(&mut self, what: &str) -> Parsed<Ident> {
        match self.word() {
            Some(word) if reserved(word) => {
                let message = format!("`{word}` is a reserved word and cannot be {what}");
                self.error(codes::RESERVED, self.span(), message).help = Some("choose another name".to_owned());
                Err(ErrorReported)
            }
            Some(_) => self.any_word(what),
            None => self.expected(what),
        }
    }

    /// Reads a word where reserved ones do no harm: units, flavors, fields.
    fn any_word(&mut self, what: &str) -> Parsed<Ident> {
        match self.word() {
            Some(word) => Ok(Ident { name: word.to_owned(), span: self.bump() }),
            None => self.expected(what),
        }
    }

    fn text(&mut self, what: &str) -> Parsed<TextLiteral> {
        match self.peek() {
            TokenKind::Text(value) => {
                let value = value.clone();
                Ok(TextLiteral { value, span: self.bump() })
            }
            _ => self.expected_help(what, "write it in double quotes"),
        }
    }

    fn boolean(&mut self) -> Parsed<bool> {
        match self.peek() {
            TokenKind::Bool(value) => {
                let value = *value;
                self.bump();
                Ok(value)
            }
            _ => self.expected("`true` or `false`"),
        }
    }

    fn integer(&mut self) -> Parsed<i64> {
        match self.peek() {
            TokenKind::Int(value) => {
                let value = *value;
                self.bump();
                Ok(value)
            }
            _ => self.expected("a whole number"),
        }
    }

    /// Reads one of several words, which are given with their meanings.
    fn choice<T: Copy>(&mut self, what: &str, choices: &[(&'static str, T)]) -> Parsed<T> {
        if let Some((_, value)) = self.word().and_then(|w| choices.iter().find(|(k, _)| *k == w)) {
            let value = *value;
            self.bump();
            return Ok(value);
        }
        let words: Vec<&str> = choices.iter().map(|(k, _)| *k).collect();
        self.expected_help(what, format!("one of: {}", words.join(", ")))
    }

    /// Runs `read` one level deeper, or reports that the nesting is too deep.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            self.error(codes::TOO_LARGE, self.span(), message).help = Some("split it".to_owned());
            return Err(ErrorReported);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Whether the next tokens begin a definition that cannot be anything else.
    fn at_definition(&self) -> bool {
        let word = self.word().is_some_and(|w| ONLY_DEFINITIONS.contains(&w));
        word && matches!(self.ahead(1), TokenKind::Word(_) | TokenKind::Text(_) | TokenKind::Mark("{" | "("))
    }

    /// Skips the rest of the part that began at token `start`. Stops after a `;` or after the end of a block, on the level of the part.
    /// Never skips the bracket that closes the surrounding block, or a word that only begins definitions.
    fn recover(&mut self, start: usize) {
        self.broken = true;
        let mut level = 0_i32;
        for token in &self.tokens[start.min(self.at)..self.at] {
            match token.kind {
                TokenKind::Mark("{" | "(*") => level += 1,
                TokenKind::Mark("}" | "*)") => level -= 1,
                _ => {}
            }
        }
        loop {
            let first = self.at == start;
            if self.at_definition() && !first {
                return;
            }
            match self.peek() {
                TokenKind::End => return,
                TokenKind::Mark("{" | "(*") => level += 1,
                TokenKind::Mark("}" | "*)") if level <= 0 => return,
                TokenKind::Mark("}" | "*)") => {
                    level -= 1;
                    if level == 0 {
                        self.bump();
                        self.eat_mark(";");
                        return;
                    }
                }
                TokenKind::Mark(";") if level <= 0 => {
                    self.bump();
                    return;
                }
                _ => {}
            }
            self.bump();
        }
    }

    /// Reads `{ item item … }` with recovery after each item. The opening brace is the next token.
    fn block<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let open = self.need_mark("{")?;
        let mut items = Vec::new();
        loop {
            if self.eat_mark("}") {
                return Ok(items);
            }
            if self.eat_mark(";") {
                continue;
            }
            if self.at_end() || self.at_definition() || self.at_mark("*)") {
                if !self.broken {
                    self.error(codes::EXPECTED, open, "this `{` is never closed").help = Some("add a `}`".to_owned());
                }
                return Err(ErrorReported);
            }
            let start = self.at;
            match item(self) {
                Ok(value) => items.push(value),
                Err(ErrorReported) => self.recover(start),
            }
            if self.at == start {
                self.bump();
            }
        }
    }

    fn definition(&mut self) -> Parsed<DefinitionKind> {
        let span = self.span();
        let Some(word) = self.word() else {
            if self.at_mark("{") {
                return self.meta().map(DefinitionKind::Statement);
            }
            return self
                .expected_help("a definition", "a text consists of metric, constraint, resourceList, exclude, …");
        };
        match word {
            "metric" => self.metric(),
            "constraint" => self.global_constraint(),
            "resourceList" | "list" => self.list(),
            "exclude" | "exclude_lib" | "exclude_func" | "exclude_node" => self.exclude(),
            "daemon" => self.config(ConfigKind::Daemon),
            "process" => self.config(ConfigKind::Process),
            "visi" => self.config(ConfigKind::Visi),
            "tunable_constant" => self.tunables(),
            "foreach" | "if" | "append" | "prepend" => self.meta().map(DefinitionKind::Statement),
            other => {
                let message = format!("`{other}` begins no definition");
                let help = closest(other, &DEFINITIONS)
                    .map_or_else(|| format!("one of: {}", DEFINITIONS.join(", ")), |w| format!("did you mean `{w}`?"));
                self.error(codes::EXPECTED, span, message).help = Some(help);
                Err(ErrorReported)
            }
        }
    }

    /// Text of the comments directly before the token with index `start`, without a blank line between, and not on a line with other code.
    fn doc_before(&self, start: usize) -> String {
        let floor = start.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(0, |t| t.span.end);
        let mut next = self.tokens.get(start).map_or(0, |t| t.span.start);
        let end = self.comments.partition_point(|c| c.end <= next);
        let mut parts = Vec::new();
        for comment in self.comments[..end].iter().rev() {
            let between = self.source.slice(SourceSpan { start: comment.end, end: next });
            let same_line = floor > 0 && self.source.line_index(floor) == self.source.line_index(comment.start);
            if comment.start < floor || same_line || between.matches('\n').count() > 1 {
                break;
            }
            parts.push(comment_text(self.source.slice(*comment)));
            next = comment.start;
        }
        parts.reverse();
        parts.retain(|p| !p.is_empty());
        parts.join(" ")
    }
}

/// Text of a comment, without its marks and ruled lines.
fn comment_text(comment: &str) -> String {
    let inner = match comment.strip_prefix("/*") {
        Some(block) => block.strip_suffix("*/").unwrap_or(block),
        None => comment.trim_start_matches('/'),
    };
    let lines = inner.lines().map(|l| l.trim().trim_start_matches('*').trim().trim_matches(['-', '=']).trim());
    lines.filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns the nearest candidate, if it is at most two edits away and fewer than half the letters of the word differ.
pub(crate) fn closest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let near = candidates.iter().map(|c| (distance(word, c), *c)).min_by_key(|(d, _)| *d)?;
    (near.0 <= 2 && near.0 * 2 < word.len().max(2)).then_some(near.1)
}

/// Number of edits between two short words, without regard to letter case. For long words the number is very large.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 40 || b.len() > 40 || a.len().abs_diff(b.len()) > 2 {
        return usize::MAX / 4;
    }
    strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}
