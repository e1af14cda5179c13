//! Boots a clean Debian with systemd in its own namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ingraft_testing::{build_directory, have, is_root, target, wait_until};

/// Programs that make and boot the Debian system.
const TOOLS: [&str; 6] = ["mmdebstrap", "tar", "unshare", "nsenter", "pivot_root", "setpriv"];
/// Packages of the system besides apt and the essential ones.
const PACKAGES: &str = "systemd,systemd-sysv,man-db,bash-completion";
const SUITE: &str = "bookworm";

/// A running Debian system. Dropping it ends the system with all its processes.
pub struct Debian {
    unshare: Child,
    /// Process id of the system's first process, as seen from outside of the system.
    init: i32,
    cgroup: PathBuf,
    root: tempfile::TempDir,
}

impl Debian {
    /// Unpacks a Debian system and boots it. The error says why this machine cannot run one.
    pub fn boot() -> Result<Debian, String> {
        if !is_root() {
            return Err("only root can boot a Debian".to_owned());
        }
        if let Some(missing) = TOOLS.iter().find(|tool| !have(tool)) {
            return Err(format!("{missing} is not installed"));
        }
        let groups = cgroups().ok_or("no control groups of version 2 are mounted")?;
        let root = tempfile::tempdir_in(build_directory()).expect("a directory");
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--numeric-owner", "--file"]).arg(archive()?).arg("-C").arg(root.path());
        ingraft_testing::output(&mut unpack);

        let cgroup = groups.join(format!("ingraft-test-{}", std::process::id()));
        fs::create_dir(&cgroup).map_err(|error| format!("cannot make a control group: {error}"))?;
        // All processes of the system end with this test, however the test ends.
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec setpriv --pdeathsig KILL unshare \"$@\""])
            .arg(cgroup.join("cgroup.procs"))
            .args(["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child"])
            .args(["--propagation", "private", "sh", "-e"])
            .arg(ingraft_testing::source_directory().join("tests/package/boot.sh").canonicalize().expect("boot.sh"))
            .arg(root.path())
            .stdin(Stdio::null());
        let unshare = command.spawn().expect("run sh");
        let mut debian = Debian { unshare, init: 0, cgroup, root };
        wait_until("systemd has booted", || {
            debian.init = target::children(debian.unshare.id().cast_signed()).first().copied().unwrap_or(0);
            let program = fs::read_link(format!("/proc/{}/exe", debian.init)).unwrap_or_default();
            program.ends_with("systemd") && {
                let mut state = debian.command("systemctl");
                let state = state.arg("is-system-running").stderr(Stdio::null()).output().expect("run nsenter");
                ["running\n", "degraded\n"].iter().any(|booted| state.stdout == booted.as_bytes())
            }
        });
        Ok(debian)
    }

    /// Root directory of the system, as seen from outside of the system.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Returns a command that runs in the system as root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.init.to_string()])
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--", "env", "-i"])
            .args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/", "DEBIAN_FRONTEND=noninteractive"])
            .arg(program);
        command
    }

    /// Runs a script in the system and returns its output; panics if the script fails.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        ingraft_testing::output(self.command("sh").args(["-ec", script]))
    }

    /// Returns all paths in the system except those below directories for temporary files, logs, caches, and the data of systemd and of
    /// the package manager.
    pub fn paths(&self) -> Vec<String> {
        let script = "find / -xdev -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' -not -path '/var/cache/*' \
                      -not -path '/tmp/*' -not -path '/var/tmp/*' -not -path '/var/lib/systemd/*' | sort";
        self.run(script).lines().map(str::to_owned).collect()
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        // When the first process of the namespace ends, all others end, too. The process may have ended already.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        wait_until("the control group can go", || remove_cgroup(&self.cgroup));
    }
}

/// Removes a control group and those below it; returns whether it succeeded. It fails while processes in the group are ending.
fn remove_cgroup(path: &Path) -> bool {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    fs::remove_dir(path).is_ok() || !path.exists()
}

/// Mount point of the control groups of version 2.
fn cgroups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))?;
    Some(PathBuf::from(mount[1]))
}

/// Makes an archive of a clean Debian system, once for all runs in this build directory. The error says why it cannot be made.
fn archive() -> Result<PathBuf, String> {
    let path = build_directory().join(format!("debian-{SUITE}.tar"));
    if !path.exists() {
        let made =
            tempfile::Builder::new().suffix(".tar").tempfile_in(build_directory()).expect("a file").into_temp_path();
        let mut command = Command::new("mmdebstrap");
        command
            .args(["--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io"])
            .arg(format!("--include={PACKAGES}"));
        let output = command.arg(SUITE).arg(&made).stdin(Stdio::null()).output().expect("run mmdebstrap");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("mmdebstrap cannot make a Debian; is a mirror in reach? {said}"));
        }
        fs::rename(&made, &path).expect("keep the archive");
    }
    Ok(path)
}
