//! Support for end-to-end tests and benchmarks: target programs ([`Mutatee`]), real servers ([`server`]), the programs under test
//! ([`Tool`], [`Daemon`]), and the view of a process from outside ([`target`]).
//!
//! Every function waits for conditions with a bound, never for time, and ends each process that it started by its own id. A failure here is
//! a failed test, so functions panic and say what they were doing.

#![forbid(unsafe_code)]

pub mod causes;
mod daemon;
pub mod field;
mod mutatee;
pub mod server;
pub mod step;
pub mod target;
mod tool;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use daemon::Daemon;
pub use mutatee::{Mutatee, Reply, program};
pub use tool::{Latency, Outcome, Session, Tool};

/// The user and group that unprivileged programs run as when the tests run as root.
pub const NOBODY: u32 = 65534;

/// Longest time of a wait; after it, the test fails. The bound is generous, because test machines are slow. A successful wait ends
/// earlier.
pub const BOUND: Duration = Duration::from_secs(120);

/// [`BOUND`], or ten times as long in a full run: some of its measurements keep a machine busy for minutes.
pub fn bound() -> Duration {
    if full() { BOUND * 10 } else { BOUND }
}

/// Ends the test early, and prints which check was skipped and why.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        eprintln!("skipped: {}", format_args!($($why)*));
        println!("skipped: {}", format_args!($($why)*));
        return;
    }};
}

/// Whether the long forms of the tests were asked for (`INGRAFT_FULL=1`).
pub fn full() -> bool {
    std::env::var_os("INGRAFT_FULL").is_some_and(|value| value != "0")
}

/// Returns the first number in a bounded run, and the second one in a full run.
pub fn scaled(short: u64, long: u64) -> u64 {
    if full() { long } else { short }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Polls until `condition` holds; panics with `what` if that takes longer than [`bound`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < bound(), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Tells the work that runs beside a test to end when this value is dropped, also if the test fails.
pub struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether a program can be found.
pub fn have(program: &str) -> bool {
    find(program).is_some()
}

/// Path of a program, in PATH or in the directories where distributions install servers; `None` if it is in neither.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/lib/postgresql/15/bin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Runs a command to its end and returns its output; panics if the command fails.
pub fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The build directory of the running test or command, which holds the cache of target programs.
pub fn build_directory() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    own.ancestors()
        .find(|directory| directory.join("CACHEDIR.TAG").exists())
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// The root of the source tree.
pub fn source_directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A program that cargo has put beside the running test (`ingraft`, `ingraftd`).
pub fn sibling(program: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let path =
        own.ancestors().skip(1).take(2).map(|directory| directory.join(program)).find(|candidate| candidate.is_file());
    path.unwrap_or_else(|| panic!("{program} is not built beside {}: build the workspace first", own.display()))
}

/// Makes a new directory that unprivileged users can enter.
pub fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::Builder::new()
        .prefix("ingraft-test-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir_in("/tmp")
        .expect("a temporary directory");
    if is_root() {
        std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("give away the directory");
    }
    directory
}

/// Copies a program to a place where an unprivileged user can execute it. The copy has the same name.
pub fn exposed(program: &Path, directory: &Path) -> PathBuf {
    let copy = directory.join(program.file_name().expect("a program has a name"));
    std::fs::copy(program, &copy).expect("copy a program");
    copy
}
