//! Progress for people who wait: lines on standard error, only if an operation takes longer than half a second (five seconds if standard
//! error is no terminal).

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::Instant;

use super::{DIM, to_stderr};
use crate::args::Format;

/// Time before the first line on a terminal.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time before the first line and between two lines in a log or a pipe, where lines stay.
const PAUSE: Duration = Duration::from_secs(5);

/// Shows the latest line of progress.
pub(crate) struct Progress {
    how: ProgressStyle,
    latest: String,
    /// Time at which progress may be shown next.
    next: Instant,
    on_screen: bool,
    format: Format,
    /// Whether [`Progress::once`] has written its message.
    warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgressStyle {
    /// One line that is overwritten.
    Terminal,
    /// A line every five seconds.
    Lines,
    /// No progress, because scripts read standard error.
    Silent,
}

impl Progress {
    /// Starts the clock. `what` is shown until a more precise text is known.
    pub(crate) fn new(what: &str, format: Format) -> Self {
        let how = match (io::stderr().is_terminal(), format) {
            (true, _) => ProgressStyle::Terminal,
            (false, Format::Table) => ProgressStyle::Lines,
            (false, Format::Json) => ProgressStyle::Silent,
        };
        let first = if how == ProgressStyle::Lines { PAUSE } else { PATIENCE };
        Progress { how, latest: what.to_owned(), next: Instant::now() + first, on_screen: false, format, warned: false }
    }

    /// Replaces the text by a more precise one.
    pub(crate) fn say(&mut self, text: &str) {
        self.latest = text.to_owned();
    }

    /// Reports a text that people and scripts must know; only the first such text is written.
    pub(crate) fn once(&mut self, text: &str) {
        self.say(text);
        if !std::mem::replace(&mut self.warned, true) {
            self.clear();
            super::warn(text, self.format);
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.on_screen) {
            to_stderr("\r\x1b[K");
        }
    }

    /// Returns when it is time to call `show`.
    pub(crate) async fn due(&self) {
        match self.how {
            ProgressStyle::Silent => std::future::pending().await,
            ProgressStyle::Terminal | ProgressStyle::Lines => tokio::time::sleep_until(self.next).await,
        }
    }

    /// Shows the latest text.
    pub(crate) fn show(&mut self) {
        match self.how {
            ProgressStyle::Terminal => {
                // The text is cut to one line, because overwriting clears only one.
                let room = super::screen_size().0.saturating_sub(2);
                let text: String = self.latest.chars().filter(|c| !c.is_control()).take(room).collect();
                to_stderr(&format!("\r\x1b[K{DIM}{text}…{DIM:#}"));
                self.on_screen = true;
                self.next = Instant::now() + PATIENCE / 5;
            }
            ProgressStyle::Lines => {
                to_stderr(&format!("{}…\n", self.latest));
                self.next = Instant::now() + PAUSE;
            }
            ProgressStyle::Silent => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
