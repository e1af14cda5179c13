//! One text with definitions: its name, its bytes, and where its lines begin.

use std::fmt;
use std::ops::Range;

/// A range of a source text in bytes, end excluded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct SourceSpan {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl SourceSpan {
    /// Returns the span from the beginning of `self` to the end of `other`.
    pub fn to(self, other: SourceSpan) -> SourceSpan {
        SourceSpan { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the span as a range of indices.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Whether `other` lies inside `self`.
    pub fn contains(self, other: SourceSpan) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl fmt::Debug for SourceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// A named text.
#[derive(Clone, Debug)]
pub struct SourceText {
    name: String,
    text: String,
    lines: Vec<u32>,
}

impl SourceText {
    /// Size in bytes of the longest text that is read. People write definitions by hand, so they are short.
    pub const MAX_BYTES: usize = 4 << 20;

    /// Keeps a text under the name that diagnostics will show. If the text is longer than [`SourceText::MAX_BYTES`], keeps nothing of it.
    pub fn new(name: &str, text: &str) -> Self {
        let text = if text.len() > Self::MAX_BYTES { "" } else { text };
        let mut lines = vec![0];
        lines.extend(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i as u32 + 1));
        SourceText { name: name.to_owned(), text: text.to_owned(), lines }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A part of the text; empty if the span does not fit.
    pub fn slice(&self, span: SourceSpan) -> &str {
        self.text.get(span.range()).unwrap_or_default()
    }

    /// Index from 0 of the line that holds the byte at `offset`.
    pub fn line_index(&self, offset: u32) -> u32 {
        self.lines.partition_point(|start| *start <= offset).saturating_sub(1) as u32
    }

    /// Line and column of a byte, both from 1; columns are counted in characters.
    pub fn position(&self, offset: u32) -> (u32, u32) {
        let line = self.line_index(offset);
        let start = self.lines.get(line as usize).copied().unwrap_or(0);
        let column = self.text.get(start as usize..offset as usize).map_or(0, |t| t.chars().count());
        (line + 1, column as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let source = SourceText::new("x", "a\nbä c\n");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(2), (2, 1));
        assert_eq!(source.position(6), (2, 4));
        assert_eq!(source.position(8), (3, 1));
    }
}
