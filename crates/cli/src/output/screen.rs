//! Frames on a terminal: each replaces the previous one, and none is larger than the screen, so that every line can be overwritten.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use unicode_width::UnicodeWidthChar;

/// The frame on the terminal of the standard output. Messages to standard error appear on the same terminal, so they remove the frame
/// first.
static SHOWN: LazyLock<ScreenFrame> = LazyLock::new(ScreenFrame::default);

/// The frame on the screen, right above the cursor: the number of columns of each line. Empty if there is no frame.
#[derive(Clone, Debug, Default)]
pub(super) struct ScreenFrame(Arc<Mutex<Vec<usize>>>);

impl ScreenFrame {
    /// Returns the frame of the standard output.
    pub(super) fn of_stdout() -> Self {
        SHOWN.clone()
    }

    /// Notes that this text is on the screen.
    pub(super) fn put(&self, text: &str) {
        *self.lines() = text.lines().map(columns).collect();
    }

    /// Forgets the frame, and returns the text that removes it from a screen of this width. A terminal that has become narrower since the
    /// frame was drawn has wrapped its lines, so that they take more rows.
    pub(super) fn take(&self, width: usize) -> String {
        let lines = std::mem::take(&mut *self.lines());
        match lines.iter().map(|columns| columns.div_ceil(width.max(1)).max(1)).sum() {
            0_usize => String::new(),
            rows => format!("\r\x1b[{rows}A\x1b[J"),
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the frame of the standard output before something else is written to the same terminal.
pub(super) fn make_way() {
    if io::stderr().is_terminal() {
        let clear = SHOWN.take(super::columns());
        if !clear.is_empty() {
            let mut stdout = io::stdout().lock();
            let _closed = stdout.write_all(clear.as_bytes()).and_then(|()| stdout.flush());
        }
    }
}

/// The part of a text that fits on a screen: the first lines, one less than the height because the cursor is below them, each cut to the
/// width. Escape sequences take no column.
pub(super) fn clip(text: &str, width: usize, height: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines().take(height.saturating_sub(1)) {
        let mut used = 0;
        for (c, columns) in with_columns(line) {
            used += columns.unwrap_or(0);
            if columns.is_none() || used <= width {
                out.push(c);
            }
        }
        out.push('\n');
    }
    out
}

/// The number of columns that a line takes.
fn columns(line: &str) -> usize {
    with_columns(line).filter_map(|(_, columns)| columns).sum()
}

/// The characters of a line with the number of columns that each takes; `None` for those of escape sequences.
fn with_columns(line: &str) -> impl Iterator<Item = (char, Option<usize>)> {
    let mut escape = false;
    line.chars().map(move |c| {
        if escape || c == '\x1b' {
            // An escape sequence ends with its first letter.
            escape = !c.is_ascii_alphabetic();
            return (c, None);
        }
        (c, Some(c.width().unwrap_or(0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_not_larger_than_the_screen() {
        assert_eq!(clip("abcdef\ngh\ni\nj\n", 4, 4), "abcd\ngh\ni\n");
        assert_eq!(clip("\x1b[1mabc\x1b[0m \x1b[2mdef\x1b[0m\n", 5, 9), "\x1b[1mabc\x1b[0m \x1b[2md\x1b[0m\n");
        assert_eq!(clip("████▏ x", 5, 2), "████▏\n");
        assert_eq!((clip("", 4, 4), clip("a", 0, 4), clip("a", 4, 0)), (String::new(), "\n".to_owned(), String::new()));
    }

    #[test]
    fn a_frame_is_removed_once() {
        let frame = ScreenFrame::default();
        frame.put("a\n\nbc\n");
        assert_eq!((frame.take(80).as_str(), frame.take(80).as_str()), ("\r\x1b[3A\x1b[J", ""));
    }

    #[test]
    fn lines_that_a_narrower_terminal_has_wrapped_are_removed_with_all_their_rows() {
        let frame = ScreenFrame::default();
        let rows = |width| {
            frame.put("\x1b[1mabcdef\x1b[0m\n\nab\n████▏ x\n");
            frame.take(width)
        };
        // The lines of the frame have 6, 0, 2 and 7 columns.
        for (width, n) in [(7, 4), (6, 5), (4, 6), (3, 7), (1, 16), (0, 16), (80, 4)] {
            assert_eq!(rows(width), format!("\r\x1b[{n}A\x1b[J"), "{width} columns");
        }
    }
}
