//! The tarball of static programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::programs::Programs;
use super::tree::{PackageLayout, PackageTree};
use super::{VERSION, succeed};

const LAYOUT: PackageLayout = PackageLayout {
    prefix: "",
    zsh: "zsh/site-functions",
    programs: "/usr/local/bin",
    config: "/usr/local/etc/ingraft",
};

/// Makes the tarball in a directory and returns its path. Its one directory is laid out as below /usr/local.
pub fn make(programs: &Programs, output: &Path, date: u64) -> Result<PathBuf> {
    let name = format!("ingraft-{VERSION}-x86_64-linux");
    let tree = PackageTree::new(output.join(&name))?;
    tree.fill(programs, &LAYOUT)?;
    tree.copy("crates/xtask/dist/ingraftd.toml", "etc/ingraft/ingraftd.toml", 0o644)?;
    for file in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        tree.copy(file, &format!("share/doc/ingraft/{file}"), 0o644)?;
    }
    let path = output.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.current_dir(output)
        .args([
            "--create",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--use-compress-program=gzip -9n",
        ])
        .arg(format!("--mtime=@{date}"))
        .arg("--file")
        .arg(&path)
        .arg(&name);
    succeed(&mut tar)?;
    Ok(path)
}
