//! Records and the output of a started program in one file, without a record on a line of the program.
//!
//! If the program would share the standard output with the records, another process of `ingraft` forwards both: what the program writes
//! into a pipe, at once, and the records, which wait for the end of the program's line. It is a process of its own, so that the program can
//! write on after the command has ended or was killed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use crate::exit::{Failure, Stop};

/// Name of the hidden subcommand that runs [`forward`].
pub(crate) const SUBCOMMAND: &str = "forward-output";
/// Length of a read in bytes. A pipe holds no more, so one read takes all that the program wrote before a record.
const READ: usize = 64 << 10;
/// Number of bytes of waiting records at which the forwarder ends the program's line itself.
const WAITING_MAX: usize = 1 << 20;
/// Answer of the forwarder when all records are written.
const WRITTEN: u8 = b'.';

/// The forwarder of this command. Until it is dropped, the standard output of this process is the pipe for the program.
#[derive(Clone, Debug)]
pub(super) struct Forwarder(Arc<ForwardedOutput>);

#[derive(Debug)]
struct ForwardedOutput {
    records: UnixStream,
    /// The standard output that this process was started with.
    stdout: OwnedFd,
    /// The standard error that this process was started with, if it is the same file.
    stderr: Option<OwnedFd>,
}

impl Forwarder {
    /// Starts the forwarder, and makes the pipe to it the standard output of this process, which programs inherit. The pipe replaces the
    /// standard error too if it is the same file.
    pub(super) fn start() -> Result<Self, Failure> {
        start().map_err(|e| {
            let hint = "name a file for the records with -o, or a descriptor with --record-fd";
            Failure::failed(format!("cannot forward the output of the program: {e}"), hint)
        })
    }
}

fn start() -> io::Result<Forwarder> {
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    let (from_program, to_forwarder) = io::pipe()?;
    let (records, theirs) = UnixStream::pair()?;
    Command::new("/proc/self/exe")
        .arg(SUBCOMMAND)
        .stdin(from_program)
        .stdout(stdout.try_clone()?)
        .stderr(Stdio::from(OwnedFd::from(theirs)))
        // A signal of the terminal, such as Ctrl-C, ends neither the forwarder nor a program that ignores the signal.
        .process_group(0)
        .spawn()?;
    let stderr = is_same_file(&stdout, &stderr)?.then_some(stderr);
    rustix::stdio::dup2_stdout(&to_forwarder)?;
    if stderr.is_some() {
        rustix::stdio::dup2_stderr(&to_forwarder)?;
    }
    Ok(Forwarder(Arc::new(ForwardedOutput { records, stdout, stderr })))
}

fn is_same_file(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let id = |fd: &OwnedFd| -> io::Result<(u64, u64)> {
        let metadata = File::from(fd.try_clone()?).metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    };
    Ok(id(one)? == id(other)?)
}

impl Write for Forwarder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0.records).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ForwardedOutput {
    /// Waits until all records are written, and restores the standard streams of this process.
    fn drop(&mut self) {
        // The forwarder ends early if its output cannot be written. Then nobody reads these records.
        let _gone = self.records.shutdown(Shutdown::Write);
        let _gone = self.records.read(&mut [0]);
        let _stays = rustix::stdio::dup2_stdout(&self.stdout);
        if let Some(stderr) = &self.stderr {
            let _stays = rustix::stdio::dup2_stderr(stderr);
        }
    }
}

/// State of the forwarded output.
#[derive(Debug, Default)]
struct Lines {
    /// Whether the output is in the middle of a line of the program.
    is_inside: bool,
    /// Records that wait for the end of that line.
    waiting: Vec<u8>,
}

impl Lines {
    /// Returns what to write when the program has written this. Waiting records follow the last line that it ends.
    fn of_program(&mut self, bytes: &[u8]) -> Vec<u8> {
        let ended = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(ended);
        let mut text = lines.to_vec();
        if !lines.is_empty() {
            self.is_inside = false;
            text.append(&mut self.whole_records());
        }
        self.is_inside |= !rest.is_empty();
        text.extend_from_slice(rest);
        text
    }

    /// Returns what to write when these bytes of records have come. If `is_last`, no more follow.
    fn of_records(&mut self, bytes: &[u8], is_last: bool) -> Vec<u8> {
        self.waiting.extend_from_slice(bytes);
        let mut text = Vec::new();
        if self.is_inside && !self.waiting.is_empty() && (is_last || self.waiting.len() > WAITING_MAX) {
            text.push(b'\n');
            self.is_inside = false;
        }
        if !self.is_inside {
            text.append(&mut self.whole_records());
        }
        text
    }

    fn whole_records(&mut self) -> Vec<u8> {
        let ended = self.waiting.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.waiting.drain(..ended).collect()
    }
}

/// Forwards the standard input (the pipe of a program) and the standard error (a socket with records) to the standard output, until both
/// have ended or nobody reads the output.
pub(crate) fn forward() -> Result<(), Stop> {
    // An error means that nobody reads the output. The program learns it from its pipe, the command from its socket.
    let _ended = forward_all();
    Ok(())
}

fn forward_all() -> io::Result<()> {
    let mut program = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut records = UnixStream::from(io::stderr().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ];
    let (mut runs, mut records_come) = (true, true);
    while runs || records_come {
        let [has_records, has_output, is_read] = ready(&records, &program, &output, [records_come, runs])?;
        if !is_read {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // Output of the program from before a record precedes the record.
        if has_output {
            let read = program.read(&mut buffer)?;
            runs = read > 0;
            // If a disk is full, the program must not end for it, as it would by a pipe that nobody reads.
            unless_unread(write(&mut output, &lines.of_program(buffer.get(..read).unwrap_or_default())))?;
        }
        if has_records {
            let read = records.read(&mut buffer)?;
            records_come = read > 0;
            let written = write(&mut output, &lines.of_records(buffer.get(..read).unwrap_or_default(), !records_come));
            if written.is_err() {
                // The command learns from its socket that a record is lost.
                records.shutdown(Shutdown::Both)?;
                records_come = false;
                unless_unread(written)?;
            } else if !records_come {
                // The command may have been killed, and then needs no answer.
                let _killed = records.write_all(&[WRITTEN]);
            }
        }
    }
    Ok(())
}

/// The error if it means that nobody reads the output; other errors pass.
fn unless_unread(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|e| if e.kind() == io::ErrorKind::BrokenPipe { Err(e) } else { Ok(()) })
}

/// Writes everything, also to an output that does not block.
fn write(output: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(output, PollFlags::OUT)], None)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits for more. Returns whether records and output of the program have come, each if it is `wanted`, and whether the output is still read.
fn ready(records: &UnixStream, program: &File, output: &File, wanted: [bool; 2]) -> io::Result<[bool; 3]> {
    let flags = |wanted| if wanted { PollFlags::IN } else { PollFlags::empty() };
    // The kernel looks at the records first. If there are some, it then finds all that the program wrote before them.
    let mut fds = [
        PollFd::new(records, flags(wanted[0])),
        PollFd::new(program, flags(wanted[1])),
        PollFd::new(output, PollFlags::empty()),
    ];
    match poll(&mut fds, None) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok([false, false, true]),
        Err(e) => return Err(e.into()),
    }
    let come = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
    let [of_records, of_program, of_output] = [0, 1, 2].map(|n: usize| fds[n].revents());
    Ok([
        wanted[0] && of_records.intersects(come),
        wanted[1] && of_program.intersects(come),
        !of_output.intersects(PollFlags::ERR | PollFlags::NVAL),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn records_wait_for_the_end_of_the_line() {
        let mut lines = Lines::default();
        assert_eq!(text(lines.of_records(b"{1}\n", false)), "{1}\n");
        assert_eq!(text(lines.of_program(b"a\nb")), "a\nb");
        assert_eq!(text(lines.of_records(b"{2}\n{3", false)), "");
        assert_eq!(text(lines.of_program(b"b")), "b");
        assert_eq!(text(lines.of_program(b"c\nd\ne")), "c\nd\n{2}\ne");
        assert_eq!(text(lines.of_records(b"}\n", false)), "");
        assert_eq!(text(lines.of_records(b"", true)), "\n{3}\n");
        assert_eq!(text(lines.of_program(b"f")), "f");
    }

    #[test]
    fn a_line_that_never_ends_is_ended() {
        let mut lines = Lines::default();
        assert_eq!(text(lines.of_program(b"a")), "a");
        let mut record = vec![b'x'; WAITING_MAX];
        record.push(b'\n');
        assert!(lines.of_records(&record, false).starts_with(b"\nx"));
    }
}
