//! Splits a text into tokens and comments. The lexer never fails: it reports and skips text that is no token.

use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::source::{SourceSpan, SourceText};

/// Kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind<'s> {
    /// A name or keyword, with its `$` if it has one.
    Word(&'s str),
    /// A whole number.
    Int(i64),
    /// A number with a point; only tunables take it.
    Fixed(f64),
    /// A string, its escapes resolved.
    Text(String),
    /// `true` or `false` in any letter case.
    Bool(bool),
    /// An operator or a bracket.
    Mark(&'static str),
    /// End of the text, after the last token.
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceToken<'s> {
    pub(crate) kind: TokenKind<'s>,
    pub(crate) span: SourceSpan,
}

/// Operators and brackets, longest first, because the longest match wins: `(*` is always the code bracket.
const MARKS: [&str; 38] = [
    "(*", "*)", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=", "-=", "&", "|", "^", "~", "!",
    "%", "+", "-", "/", "*", "<", ">", "=", "(", ")", "{", "}", "[", "]", ",", ";", ".", "$",
];

/// Position of the reader in `constraint NAME PATH`, because `/*` in a path is no comment.
#[derive(Clone, Copy, PartialEq)]
enum PathPosition {
    No,
    Name,
    Inside,
}

pub(crate) struct LexedText<'s> {
    /// The tokens; the last one is [`TokenKind::End`].
    pub(crate) tokens: Vec<SourceToken<'s>>,
    /// Comments with their marks, in order.
    pub(crate) comments: Vec<SourceSpan>,
}

struct Lexer<'s, 'd> {
    source: &'s SourceText,
    text: &'s str,
    at: usize,
    path: PathPosition,
    tokens: Vec<SourceToken<'s>>,
    comments: Vec<SourceSpan>,
    diagnostics: &'d mut Vec<Diagnostic>,
}

pub(crate) fn lex<'s>(source: &'s SourceText, diagnostics: &mut Vec<Diagnostic>) -> LexedText<'s> {
    let text = source.text();
    let at = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut lexer =
        Lexer { source, text, at, path: PathPosition::No, tokens: Vec::new(), comments: Vec::new(), diagnostics };
    while lexer.step() {}
    let end = lexer.span(text.len());
    lexer.tokens.push(SourceToken { kind: TokenKind::End, span: SourceSpan { start: end.end, end: end.end } });
    LexedText { tokens: lexer.tokens, comments: lexer.comments }
}

fn word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

fn word_part(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Whether a text is one name.
pub(crate) fn is_word(text: &str) -> bool {
    let bytes = text.strip_prefix('$').unwrap_or(text).as_bytes();
    let boolean = text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false");
    bytes.first().is_some_and(|b| word_start(*b)) && bytes.iter().all(|b| word_part(*b)) && !boolean
}

impl<'s> Lexer<'s, '_> {
    /// Returns the span from `from` to the current position.
    fn span(&self, from: usize) -> SourceSpan {
        SourceSpan { start: from as u32, end: self.at as u32 }
    }

    fn rest(&self) -> &'s str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_while(&mut self, keep: impl Fn(u8) -> bool) {
        while self.at < self.text.len() && keep(self.byte(0)) {
            self.at += 1;
        }
    }

    fn report(
        &mut self,
        code: &'static str,
        severity: Severity,
        span: SourceSpan,
        message: impl Into<String>,
        help: &str,
    ) {
        self.diagnostics.push(Diagnostic::at(code, severity, self.source, span, message).help(help));
    }

    fn push(&mut self, from: usize, kind: TokenKind<'s>) {
        self.path = match (&kind, self.path) {
            (TokenKind::Word("constraint"), _) => PathPosition::Name,
            (TokenKind::Word(_), PathPosition::Name) => PathPosition::Inside,
            (TokenKind::Word(word), PathPosition::Inside) if *word != "is" => PathPosition::Inside,
            (TokenKind::Mark("/" | "*"), PathPosition::Inside) => PathPosition::Inside,
            _ => PathPosition::No,
        };
        let span = self.span(from);
        self.tokens.push(SourceToken { kind, span });
    }

    fn step(&mut self) -> bool {
        self.skip_while(|b| b.is_ascii_whitespace());
        let from = self.at;
        if from >= self.text.len() || self.diagnostics.len() >= crate::parse::MAX_FINDINGS {
            return false;
        }
        let (first, second) = (self.byte(0), self.byte(1));
        if first == b'/' && second == b'/' {
            let line = self.rest().split('\n').next().unwrap_or_default();
            self.at += line.trim_end_matches('\r').len();
            self.comments.push(self.span(from));
        } else if first == b'/' && second == b'*' && self.path != PathPosition::Inside {
            self.block_comment(from);
        } else if word_start(first) || (first == b'$' && word_start(second)) {
            self.at += 1;
            self.skip_while(word_part);
            let word = &self.text[from..self.at];
            let kind = if word.eq_ignore_ascii_case("true") {
                TokenKind::Bool(true)
            } else if word.eq_ignore_ascii_case("false") {
                TokenKind::Bool(false)
            } else {
                TokenKind::Word(word)
            };
            self.push(from, kind);
        } else if first.is_ascii_digit() {
            self.number(from);
        } else if first == b'"' {
            self.string(from);
        } else if let Some(mark) = MARKS.into_iter().find(|m| self.rest().starts_with(m)) {
            self.at += mark.len();
            self.push(from, TokenKind::Mark(mark));
        } else {
            self.at += self.rest().chars().next().map_or(1, char::len_utf8);
            let span = self.span(from);
            let text = self.source.slice(span);
            self.report(
                codes::CHARACTER,
                Severity::Error,
                span,
                format!("the character `{}` has no meaning here", text.escape_debug()),
                "remove it; text belongs into a \"string\" or a // comment",
            );
        }
        true
    }

    fn block_comment(&mut self, from: usize) {
        match self.text[from + 2..].find("*/") {
            Some(length) => self.at = from + 2 + length + 2,
            None => {
                self.at = self.text.len();
                let span = SourceSpan { start: from as u32, end: from as u32 + 2 };
                self.report(
                    codes::UNTERMINATED,
                    Severity::Error,
                    span,
                    "this comment has no end",
                    "end it with `*/`; everything behind it was skipped",
                );
            }
        }
        self.comments.push(self.span(from));
    }

    fn number(&mut self, from: usize) {
        let hex = self.byte(0) == b'0' && matches!(self.byte(1), b'x' | b'X');
        let fixed = |l: &Self| l.byte(0) == b'.' && l.byte(1).is_ascii_digit();
        self.skip_while(word_part);
        let whole = &self.text[from..self.at];
        let kind = if hex {
            u64::from_str_radix(&whole[2..], 16).ok().map(|v| TokenKind::Int(v as i64))
        } else if whole.bytes().all(|b| b.is_ascii_digit()) && fixed(self) {
            self.at += 1;
            self.skip_while(word_part);
            self.text[from..self.at].parse().ok().filter(|v: &f64| v.is_finite()).map(TokenKind::Fixed)
        } else {
            whole.parse().ok().map(TokenKind::Int)
        };
        if kind.is_none() {
            let span = self.span(from);
            let message = format!("`{}` is no number, or does not fit into 64 bits", self.source.slice(span));
            self.report(
                codes::NUMBER,
                Severity::Error,
                span,
                message,
                "numbers are decimal, or hexadecimal as in 0x1f",
            );
        }
        self.push(from, kind.unwrap_or(TokenKind::Int(0)));
    }

    fn string(&mut self, from: usize) {
        self.at += 1;
        let mut value = String::new();
        loop {
            let Some(c) = self.rest().chars().next().filter(|c| *c != '\n') else {
                let span = self.span(from);
                self.report(
                    codes::UNTERMINATED,
                    Severity::Error,
                    span,
                    "this string has no end on its line",
                    "end it with `\"`; write a line break as \\n",
                );
                break;
            };
            self.at += c.len_utf8();
            match c {
                '"' => break,
                '\\' => self.escape(&mut value),
                c => value.push(c),
            }
        }
        self.push(from, TokenKind::Text(value));
    }

    fn escape(&mut self, value: &mut String) {
        let from = self.at - 1;
        let (first, hex) = (self.byte(0), self.text.get(self.at + 1..self.at + 3));
        let resolved = match first {
            b'\\' => Some('\\'),
            b'"' => Some('"'),
            b'n' => Some('\n'),
            b't' => Some('\t'),
            b'r' => Some('\r'),
            b'0' => Some('\0'),
            b'x' => match hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(u8::is_ascii) {
                Some(byte) => {
                    self.at += 2;
                    Some(char::from(byte))
                }
                None => None,
            },
            _ => None,
        };
        match resolved {
            Some(c) => {
                self.at += 1;
                value.push(c);
            }
            None => {
                value.push('\\');
                let span = self.span(from);
                self.report(
                    codes::ESCAPE,
                    Severity::Warning,
                    span,
                    "a backslash that begins no known escape is kept as it is",
                    "write `\\\\` for a backslash; known are \\\\ \\\" \\n \\t \\r \\0 and \\x00 to \\x7f",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> (String, usize) {
        let source = SourceText::new("t", text);
        let mut diagnostics = Vec::new();
        let lexed = lex(&source, &mut diagnostics);
        let shown: Vec<String> = lexed
            .tokens
            .iter()
            .map(|t| match &t.kind {
                TokenKind::Word(w) => (*w).to_owned(),
                TokenKind::Int(i) => i.to_string(),
                TokenKind::Fixed(f) => format!("{f:?}"),
                TokenKind::Text(s) => format!("{s:?}"),
                TokenKind::Bool(b) => format!("<{b}>"),
                TokenKind::Mark(m) => (*m).to_owned(),
                TokenKind::End => "END".to_owned(),
            })
            .collect();
        (shown.join(" "), diagnostics.len())
    }

    #[test]
    fn tokens() {
        for (text, expected, findings) in [
            ("a $b_1 // c\r\n TrUe\r\n", "a $b_1 <true> END", 0),
            ("(*x++;*)", "(* x ++ ; *) END", 0),
            ("constraint c /Code/*/* is /* no */ counter", "constraint c / Code / * / * is counter END", 0),
            ("0x1F 010 0.25 1.x", "31 10 0.25 1 . x END", 0),
            ("0xffffffffffffffff", "-1 END", 0),
            ("12ab 99999999999999999999", "0 0 END", 2),
            (r#""a\"b\x41\." """#, r#""a\"bA\\." "" END"#, 1),
            ("\"open\nnext", "\"open\" next END", 1),
            ("a ? b § c", "a b c END", 2),
            ("a /* open", "a END", 1),
            ("a>>=1 !b ~c a--", "a >> = 1 ! b ~ c a -- END", 0),
        ] {
            assert_eq!(kinds(text), (expected.to_owned(), findings), "{text}");
        }
    }
}
