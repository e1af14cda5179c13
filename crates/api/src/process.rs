//! Processes, and the choice of them.

use ingraft_model::Pid;

/// Name or id that selects one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// The process with this id.
    Pid(Pid),
    /// The only process with this comm, or this base name of argv\[0\] or of the executable.
    Name(String),
}

/// No process: a program that is to be started has none yet.
impl Default for TargetSpec {
    fn default() -> Self {
        TargetSpec::Name(String::new())
    }
}

/// A process as `ps` lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessEntry {
    /// Process id.
    pub pid: Pid,
    /// Command name (comm).
    pub name: String,
    /// Real user id.
    pub uid: u32,
    /// Reason why the process cannot be attached to, and the remedy; `None` if it can.
    pub denied: Option<Denied>,
    /// Process id of the parent; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Arguments separated by blanks, or the text that the process has written over them, cut to 256 bytes.
    pub title: String,
    /// Whether the process is a fork child that is measured with its parent.
    pub with_parent: bool,
}

/// Conditions on a process; every condition that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// A glob over the command name and the base name of the first argument.
    pub glob: Option<String>,
    /// The command name, or the base name of the first argument or of the executable.
    pub name: Option<String>,
    /// Path of a control group; processes of the groups below it match too.
    pub cgroup: Option<String>,
}

/// Reason for a refusal, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Reason in one line.
    pub why: String,
    /// Remedy in one line.
    pub hint: String,
}
