//! Output of results: lines of JSON for scripts, aligned text for people, and a table that redraws itself on a terminal.

mod destination;
pub(crate) mod forward;
pub(crate) mod histogram;
pub(crate) mod history;
pub(crate) mod keys;
pub(crate) mod number;
pub(crate) mod progress;
mod screen;
pub(crate) mod table;
pub(crate) mod words;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anstyle::{AnsiColor, Style};

use crate::args::Format;
use crate::exit::{Failure, Stop};
use crate::objects::{self, Object};
pub(crate) use destination::Destination;
use forward::Forwarder;
use screen::ScreenFrame;

/// Style of headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Style of less important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Style of successes.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of failures.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Style of warnings.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// The sink of results: the standard output, or the file of `-o`.
pub(crate) struct Output {
    format: Format,
    sink: Box<dyn Write + Send>,
    /// The file of `-o` without any change to what is written.
    file: Option<Destination>,
    /// The file of `--record-fd`, in the same way.
    descriptor: Option<File>,
    /// Whether the output is the standard output.
    is_stdout: bool,
    name: String,
    /// Whether people watch the output, so that it may be redrawn.
    terminal: bool,
    /// Frame on the screen, which the next text replaces.
    shown: ScreenFrame,
    /// Text gathered for one write; `None` if text is written at once.
    gathered: Option<String>,
    /// Text of many lines that are written together; `None` if each is written at once.
    batch: Option<String>,
    /// Whether each write begins a line, because a program may have left the terminal in the middle of one.
    begins_lines: bool,
}

/// Error of a file of `-o` that cannot be written.
pub(crate) fn unwritten(path: &Path, e: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {e}", path.display()), "choose another file with -o")
}

impl Output {
    /// Opens this file as the output, or the descriptor of this number, or the standard output. The stream strips colours unless it is a terminal that shows them; it respects NO_COLOR.
    pub(crate) fn open(format: Format, file: Option<&Path>, descriptor: Option<i32>) -> Result<Self, Stop> {
        if let Some(path) = file {
            let file = Destination::prepare(path)?;
            let output = Output::to(format, Box::new(file.clone()), path.display().to_string());
            return Ok(Output { file: Some(file), ..output });
        }
        if let Some(number) = descriptor {
            let unopened = |e: io::Error| {
                let what = format!("cannot write to descriptor {number}: {e}");
                Failure::usage(what, format!("open it for ingraft, such as by {number}>records in a shell"))
            };
            let file = ingraft_daemon::inherited(number).map_err(unopened)?;
            let plain = file.try_clone().map_err(unopened)?;
            let output = Output::to(format, Box::new(plain), format!("descriptor {number}"));
            return Ok(Output { descriptor: Some(file), ..output });
        }
        let stdout = io::stdout();
        let terminal = format == Format::Table && stdout.is_terminal();
        let sink = Box::new(anstream::AutoStream::auto(stdout));
        let output = Output::to(format, Box::new(io::sink()), "the standard output".to_owned());
        Ok(Output { sink, terminal, shown: ScreenFrame::of_stdout(), is_stdout: true, ..output })
    }

    /// An output without colours.
    fn to(format: Format, sink: Box<dyn Write + Send>, name: String) -> Self {
        Output {
            format,
            sink: Box::new(anstream::StripStream::new(sink)),
            file: None,
            descriptor: None,
            is_stdout: false,
            name,
            terminal: false,
            shown: ScreenFrame::default(),
            gathered: None,
            batch: None,
            begins_lines: false,
        }
    }

    /// An output that collects text in memory.
    #[cfg(test)]
    pub(crate) fn to_sink(format: Format, sink: Box<dyn Write + Send>) -> Self {
        Output::to(format, sink, "a test".to_owned())
    }

    /// An output that collects text in memory as if it were a terminal.
    #[cfg(test)]
    pub(crate) fn to_screen(sink: Box<dyn Write + Send>) -> Self {
        Output { terminal: true, ..Output::to_sink(Format::Table, sink) }
    }

    /// Whether the output is for scripts.
    pub(crate) fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether people watch the output, so that it may be redrawn.
    pub(crate) fn live(&self) -> bool {
        self.terminal
    }

    /// Notes that another program writes to the same screen, so that the output must not be redrawn any more.
    pub(crate) fn shared(&mut self) {
        self.terminal = false;
    }

    /// Keeps records off the lines of a program that this command starts, and that inherits its standard output.
    pub(crate) fn apart_from_program(&mut self) -> Result<(), Stop> {
        if !self.json() || !self.is_stdout {
            return Ok(());
        }
        if io::stdout().is_terminal() {
            self.begins_lines = true;
        } else {
            let plain: Box<dyn Write + Send> = Box::new(Forwarder::start()?);
            self.sink = Box::new(anstream::StripStream::new(plain));
        }
        Ok(())
    }

    /// Largest width of a line in columns; `None` if the output is no screen.
    pub(crate) fn width(&self) -> Option<usize> {
        self.terminal.then(|| screen_size().0)
    }

    /// Largest number of lines of a frame.
    pub(crate) fn height(&self) -> usize {
        screen_size().1
    }

    /// Writes an object as a line of JSON; nothing in a table.
    pub(crate) fn object(&mut self, object: &Object) -> Result<(), Stop> {
        if self.json() { self.write(&json_line(object)) } else { Ok(()) }
    }

    /// Writes text for people; nothing in JSON.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Stop> {
        if self.json() {
            return Ok(());
        }
        if self.batch.is_some() {
            return self.write(text); // Nothing is redrawn within a batch.
        }
        let clear = self.shown.take(columns());
        self.write(&(clear + text))
    }

    /// Writes text in both formats; for content that is made for another program.
    pub(crate) fn verbatim(&mut self, text: &[u8]) -> Result<(), Stop> {
        let written = self.sink.write_all(text).and_then(|()| self.sink.flush());
        written.map_err(|e| Stop::from_output(&e, &self.name))
    }

    /// Writes bytes in both formats as they are, also those that a terminal would take for colours.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let written = match (&mut self.file, &mut self.descriptor) {
            (Some(file), _) => file.write_all(bytes),
            (None, Some(file)) => file.write_all(bytes),
            (None, None) => io::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush()),
        };
        written.map_err(|e| Stop::from_output(&e, &self.name))
    }

    /// Draws a frame over the previous one; the part that does not fit on the screen is omitted.
    pub(crate) fn frame(&mut self, text: &str) -> Result<(), Stop> {
        let (width, height) = screen_size();
        let text = screen::clip(text, width, height);
        let clear = self.shown.take(columns());
        self.write(&(clear + &text))?;
        self.shown.put(&text);
        Ok(())
    }

    /// Writes the output of `lines` at once, although `lines` writes it in many pieces.
    pub(crate) fn together(&mut self, lines: impl FnOnce(&mut Output) -> Result<(), Stop>) -> Result<(), Stop> {
        self.gathered = Some(String::new());
        let result = lines(self);
        let text = self.gathered.take().unwrap_or_default();
        self.write(&text).and(result)
    }

    fn write(&mut self, text: &str) -> Result<(), Stop> {
        if let Some(gathered) = &mut self.gathered {
            gathered.push_str(text);
            return Ok(());
        }
        if let Some(batch) = &mut self.batch {
            batch.push_str(text);
            return if batch.len() < BATCH_BYTES { Ok(()) } else { self.write_batch() };
        }
        match self.begins_lines {
            true => self.verbatim(format!("\n{text}").as_bytes()),
            false => self.verbatim(text.as_bytes()),
        }
    }

    /// Begins to write many lines together, for output of millions of lines. [`Output::end_batch`] writes the last ones.
    pub(crate) fn begin_batch(&mut self) {
        self.batch = Some(String::new());
    }

    /// Writes the lines that are left of a batch, and writes at once from then on.
    pub(crate) fn end_batch(&mut self) -> Result<(), Stop> {
        let written = self.write_batch();
        self.batch = None;
        written
    }

    fn write_batch(&mut self) -> Result<(), Stop> {
        let text = self.batch.as_mut().map(std::mem::take).unwrap_or_default();
        self.verbatim(text.as_bytes())
    }

    /// Whether the reader of the standard output is gone; the check writes nothing.
    pub(crate) fn reader_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let stdout = io::stdout();
        let stream = self.descriptor.as_ref().map_or(stdout.as_fd(), |file| file.as_fd());
        let mut fds = [PollFd::from_borrowed_fd(stream, PollFlags::empty())];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0) && fds[0].revents().contains(PollFlags::ERR)
    }
}

/// Number of bytes from which on a batch of lines is written.
const BATCH_BYTES: usize = 64 << 10;

/// Width and height of the terminal, at least 20 by 6; 80 by 24 if the terminal does not state them.
fn screen_size() -> (usize, usize) {
    terminal_size::terminal_size().map_or((80, 24), |(w, h)| (usize::from(w.0.max(20)), usize::from(h.0.max(6))))
}

/// Width of the terminal, however narrow; 80 if the terminal does not state it.
fn columns() -> usize {
    terminal_size::terminal_size().map_or(80, |(w, _)| usize::from(w.0.max(1)))
}

/// An object as a line of JSON.
pub(crate) fn json_line(object: &Object) -> String {
    let mut line = serde_json::to_string(object).unwrap_or_default();
    line.push('\n');
    line
}

/// Reports a failure and the advice about it on standard error, which may be closed too.
pub(crate) fn report(failure: &Failure, format: Format) {
    let text = match format {
        Format::Json => json_line(&Object::Error(objects::ErrorObject {
            host: failure.host.clone(),
            what: failure.what.clone(),
            hint: failure.hint.clone(),
            reason: failure.reason.clone(),
            pid: failure.pid,
        })),
        Format::Table => failure_text(failure),
    };
    to_stderr(&text);
}

fn failure_text(failure: &Failure) -> String {
    let host = failure.host.as_ref().map(|h| format!("{h}: ")).unwrap_or_default();
    let mut text = format!("{BAD}error:{BAD:#} {host}{}\n", one_line(&failure.what));
    if !failure.hint.is_empty() {
        text += &format!("{HEADING}hint:{HEADING:#} {}\n", one_line(&failure.hint));
    }
    text
}

/// Writes a warning to standard error; the command continues.
pub(crate) fn warn(what: &str, format: Format) {
    to_stderr(&match format {
        Format::Json => json_line(&Object::Warning(objects::WarningObject { what: what.to_owned() })),
        Format::Table => {
            let what = abbreviated(what);
            format!("{WARN}warning:{WARN:#} {}\n", one_line(&what))
        }
    });
}

/// A text for people, in which names of C++ have no defaults of the standard library.
pub(crate) fn abbreviated(text: &str) -> Cow<'_, str> {
    ingraft_model::names::abbreviated(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes to standard error; a closed standard error is ignored.
pub(crate) fn to_stderr(text: &str) {
    screen::make_way();
    let mut stderr = anstream::AutoStream::auto(io::stderr());
    let _closed = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Reports why a command stopped early and returns its exit code.
pub(crate) fn end(stop: Stop, format: Format) -> std::process::ExitCode {
    match stop {
        Stop::Failure(failure) => {
            report(&failure, format);
            crate::exit::code(failure.exit)
        }
        Stop::Reported(exit) => crate::exit::code(exit),
        Stop::ReaderGone => std::process::ExitCode::SUCCESS,
    }
}
