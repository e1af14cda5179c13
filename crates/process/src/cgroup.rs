//! The processes of a control group (cgroups(7)) and of the groups below it.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use ingraft_model::Pid;
use rustix::fs::statfs;

use crate::limits::unescape;

/// Magic numbers of the control group file systems, version 2 and 1, as statfs(2) returns them (linux/magic.h).
const MAGICS: [i64; 2] = [0x6367_7270, 0x0027_e0eb];

/// The file that lists the processes of a group, in both versions.
const PROCESSES: &str = "cgroup.procs";

/// A control group that does not exist or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoGroup {
    /// No folder of that name is a control group.
    #[error("no control group is called `{path}`")]
    Missing {
        /// Requested name.
        path: String,
    },
    /// The list of its processes cannot be read.
    #[error("the processes of the control group {} cannot be read: {source}", path.display())]
    Unreadable {
        /// Folder of the control group.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl NoGroup {
    /// Advice for the user in one line.
    pub fn hint(&self) -> &'static str {
        match self {
            NoGroup::Missing { .. } => {
                "write the path as /proc/PID/cgroup has it behind `0::`, or the whole path of its folder (also for version 1)"
            }
            NoGroup::Unreadable { .. } => "name the group above it, or run as root",
        }
    }
}

/// The processes of a control group and of the groups below it, in order of their ids, without processes of other pid namespaces. `path` is
/// a folder in a mount of control groups of either version, or a path below the mount of version 2, with or without a leading slash. The
/// function reads nothing else: a file system of control groups has no links, so a caller cannot lead the engine out of it.
pub fn in_control_group(path: &str) -> Result<Vec<Pid>, NoGroup> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let top = folders(path, &mounts).into_iter().find(|folder| is_group(folder));
    let top = top.ok_or_else(|| NoGroup::Missing { path: path.to_owned() })?;
    let mut found = Vec::new();
    let mut open = vec![top.clone()];
    while let Some(folder) = open.pop() {
        match fs::read_to_string(folder.join(PROCESSES)) {
            // The kernel lists a process of another pid namespace as 0.
            Ok(text) => found.extend(text.lines().filter_map(|l| l.parse().ok()).filter(|pid| *pid > 0).map(Pid)),
            // A group that was removed has no processes. Those of a threaded group are listed in the group above it.
            Err(_) if folder != top => {}
            Err(source) => return Err(NoGroup::Unreadable { path: folder, source }),
        }
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        open.extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The folders that a path may mean, according to the text of /proc/PID/mountinfo. Empty for a path that begins with `.` or contains `..`.
fn folders(path: &str, mounts: &str) -> Vec<PathBuf> {
    let is_plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::RootDir);
    if path.is_empty() || !Path::new(path).components().all(is_plain) {
        return Vec::new();
    }
    let mount = |line: &str| {
        let (fields, after) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(fields.split(' ').nth(4)?));
        let kind = after.split(' ').next()?;
        ["cgroup", "cgroup2"].contains(&kind).then_some((point, kind == "cgroup2"))
    };
    let mounts: Vec<(PathBuf, bool)> = mounts.lines().filter_map(mount).collect();
    let whole = mounts.iter().any(|(point, _)| Path::new(path).starts_with(point)).then(|| PathBuf::from(path));
    let below = |(point, is_2): &(PathBuf, bool)| is_2.then(|| point.join(path.trim_start_matches('/')));
    whole.into_iter().chain(mounts.iter().filter_map(below)).collect()
}

/// Whether a folder belongs to a file system of control groups.
fn is_group(folder: &Path) -> bool {
    // Check the folder as named: the target of a link has another name.
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    is_folder && statfs(folder).is_ok_and(|fs| MAGICS.contains(&fs.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                          32 25 0:28 / /sys/fs/cgroup/uni\\040fied rw shared:3 - cgroup2 cgroup2 rw\n";

    #[test]
    fn paths_are_whole_or_below_the_mount_of_version_2() {
        let found = |path| folders(path, MOUNTS).iter().map(|f| f.display().to_string()).collect::<Vec<_>>();
        assert_eq!(found("a.slice/b"), ["/sys/fs/cgroup/uni fied/a.slice/b"]);
        assert_eq!(found("/a"), ["/sys/fs/cgroup/uni fied/a"]);
        assert_eq!(found("/sys/fs/cgroup/cpu/a")[0], "/sys/fs/cgroup/cpu/a");
        assert_eq!(found("/"), ["/sys/fs/cgroup/uni fied/"]);
        for path in ["", "../a", "a/../../b"] {
            assert!(found(path).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_folder_elsewhere_is_no_group() {
        assert!(matches!(in_control_group("/tmp"), Err(NoGroup::Missing { .. })));
        // A link to a group is no group either.
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("group");
        std::os::unix::fs::symlink("/sys/fs/cgroup", &link).unwrap();
        assert!(matches!(in_control_group(link.to_str().unwrap()), Err(NoGroup::Missing { .. })));
        assert!(matches!(in_control_group("no such group"), Err(NoGroup::Missing { .. })));
    }
}
