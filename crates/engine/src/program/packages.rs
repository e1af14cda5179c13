//! Packages of the distribution: finds the one with the symbols that a stripped file lacks, as far as this machine knows.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ingraft_model::Pid;

/// Directory in which dpkg keeps a list of the files of each installed package, `PACKAGE.list` or `PACKAGE:ARCHITECTURE.list`.
const LISTS: &str = "/var/lib/dpkg/info";

/// The package of an installed file; `None` if there is no dpkg, or if the root directories of the target and the engine differ.
pub fn owner(pid: Pid, file: &Path) -> Option<String> {
    let root = |path: &str| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if root(&format!("/proc/{pid}/root/"))? != root("/")? {
        return None;
    }
    owner_in(Path::new(LISTS), file)
}

fn owner_in(lists: &Path, file: &Path) -> Option<String> {
    let file = merged(file.to_str()?);
    let mut entries: Vec<_> = fs::read_dir(lists).ok()?.filter_map(Result::ok).map(|entry| entry.path()).collect();
    entries.sort();
    entries.into_iter().filter(|path| path.extension().is_some_and(|e| e == "list")).find_map(|path| {
        let text = fs::read_to_string(&path).ok()?;
        let package = path.file_stem()?.to_str()?;
        let package = package.split(':').next().unwrap_or(package);
        text.lines().any(|line| merged(line) == file).then(|| package.to_owned())
    })
}

/// A path below `/usr`, as packages name it that are older than the merge of `/bin`, `/lib` and `/sbin` into `/usr`.
fn merged(path: &str) -> &str {
    path.strip_prefix("/usr").filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_file_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let list = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        list("libone:amd64.list", "/.\n/lib\n/lib/libone.so.1\n");
        list("two.list", "/.\n/usr/bin/two\n");
        list("three.md5sums", "/usr/bin/three\n");
        let owner = |file: &str| owner_in(directory.path(), Path::new(file));
        assert_eq!(owner("/usr/lib/libone.so.1").as_deref(), Some("libone"));
        assert_eq!(owner("/usr/bin/two").as_deref(), Some("two"));
        assert_eq!((owner("/usr/bin/three"), owner("/usr/bin/tw")), (None, None));
        assert_eq!(owner_in(&directory.path().join("none"), Path::new("/usr/bin/two")), None);
    }
}
