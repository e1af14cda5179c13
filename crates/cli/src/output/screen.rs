//! Frames on a terminal: each replaces the one before, and none is larger than the screen, so that every line can be reached again.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use unicode_width::UnicodeWidthChar;

/// The frame on the terminal of the standard output. Messages to standard error appear on the same terminal: they remove it first.
static SHOWN: LazyLock<Frame> = LazyLock::new(Frame::default);

/// Number of lines of a frame that is on the screen, right above the cursor; 0: there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame(Arc<AtomicUsize>);

impl Frame {
    /// The one of the standard output.
    pub(super) fn of_stdout() -> Self {
        SHOWN.clone()
    }

    /// Puts this many lines on the screen.
    pub(super) fn put(&self, lines: usize) {
        self.0.store(lines, Ordering::Relaxed);
    }

    /// What removes the frame from the screen when it is written.
    pub(super) fn take(&self) -> String {
        match self.0.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            n => format!("\r\x1b[{n}A\x1b[J"),
        }
    }
}

/// Removes the frame of the standard output before something else is written to the same terminal.
pub(super) fn make_way() {
    if io::stderr().is_terminal() {
        let clear = SHOWN.take();
        if !clear.is_empty() {
            let mut stdout = io::stdout().lock();
            let _closed = stdout.write_all(clear.as_bytes()).and_then(|()| stdout.flush());
        }
    }
}

/// The part of a text that a screen shows: the first lines, one less than its height because the cursor is below them, each as far as it
/// fits. Escape sequences take no column.
pub(super) fn clip(text: &str, width: usize, height: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines().take(height.saturating_sub(1)) {
        let (mut used, mut escape) = (0, false);
        for c in line.chars() {
            if escape || c == '\x1b' {
                // a sequence ends with its first letter
                escape = !c.is_ascii_alphabetic();
                out.push(c);
                continue;
            }
            used += c.width().unwrap_or(0);
            if used <= width {
                out.push(c);
            }
        }
        out.push('\n');
    }
    out
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
        let frame = Frame::default();
        frame.put(3);
        assert_eq!((frame.take().as_str(), frame.take().as_str()), ("\r\x1b[3A\x1b[J", ""));
    }
}
