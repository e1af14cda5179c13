//! The Debian package.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::programs::Programs;
use super::tree::{PackageLayout, PackageTree};
use super::{VERSION, needs, output_of};

/// Revision of the packaging, which follows the version.
const REVISION: &str = "1";
const LAYOUT: PackageLayout =
    PackageLayout { prefix: "usr", zsh: "zsh/vendor-completions", programs: "/usr/bin", config: "/etc/ingraft" };
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package in a directory and returns its path.
pub fn make(programs: &Programs, output: &Path, date: u64) -> Result<PathBuf> {
    let tree = PackageTree::new(output.join("deb"))?;
    tree.fill(programs, &LAYOUT)?;
    tree.copy("crates/xtask/dist/ingraftd.toml", "etc/ingraft/ingraftd.toml", 0o644)?;
    tree.copy("crates/xtask/dist/debian/copyright", "usr/share/doc/ingraft/copyright", 0o644)?;
    let source = ingraft_testing::source_directory();
    tree.compressed("usr/share/doc/ingraft/changelog", std::fs::read(source.join("CHANGELOG.md"))?)?;
    tree.compressed("usr/share/doc/ingraft/changelog.Debian", changelog(date)?)?;
    tree.copy("crates/xtask/dist/debian/lintian-overrides", "usr/share/lintian/overrides/ingraft", 0o644)?;

    let (sums, bytes) = sums(tree.root())?;
    tree.write("DEBIAN/md5sums", sums, 0o644)?;
    tree.write("DEBIAN/conffiles", "/etc/ingraft/ingraftd.toml\n", 0o644)?;
    tree.write("DEBIAN/control", control(programs, bytes)?, 0o644)?;
    for script in SCRIPTS {
        tree.copy(format!("crates/xtask/dist/debian/{script}"), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let path = output.join(format!("ingraft_{VERSION}-{REVISION}_amd64.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group", "-Zxz"]).arg(tree.root()).arg(&path);
    // dpkg-deb reports its work; the caller prints the path.
    output_of(build.env("SOURCE_DATE_EPOCH", date.to_string()))?;
    Ok(path)
}

fn control(programs: &Programs, bytes: u64) -> Result<String> {
    let depends = needs::depends(programs.each())?;
    let description =
        std::fs::read_to_string(ingraft_testing::source_directory().join("crates/xtask/dist/debian/description"))?;
    Ok(format!(
        "Package: ingraft\nVersion: {VERSION}-{REVISION}\nArchitecture: amd64\nMaintainer: {}\nInstalled-Size: {}\n\
         Depends: {depends}\nSection: devel\nPriority: optional\nDescription: {description}",
        maintainer(),
        bytes.div_ceil(1024),
    ))
}

/// Returns the maintainer of the package, from the variables that Debian's own tools read.
fn maintainer() -> String {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    format!("{} <{}>", variable("DEBFULLNAME", "ingraft developers"), variable("DEBEMAIL", "ingraft@ingraft.invalid"))
}

fn changelog(date: u64) -> Result<String> {
    let date = output_of(Command::new("date").env("LC_ALL", "C").args(["-u", "-R", "-d"]).arg(format!("@{date}")))?;
    let date = String::from_utf8(date).context("a date")?;
    Ok(format!(
        "ingraft ({VERSION}-{REVISION}) unstable; urgency=medium\n\n  * Version {VERSION}; changelog.gz says what is new.\n\n \
         -- {}  {}\n",
        maintainer(),
        date.trim()
    ))
}

/// Returns the checksums of all files but those of the package manager, and the sum of their sizes in bytes.
fn sums(root: &Path) -> Result<(String, u64)> {
    let (mut files, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                files.push(path.strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    let (mut lines, mut bytes) = (String::new(), 0);
    for file in files {
        // The package manager counts in whole pages.
        bytes += std::fs::metadata(root.join(&file))?.len().next_multiple_of(4096);
        let line = output_of(Command::new("md5sum").current_dir(root).arg(&file))?;
        write!(lines, "{}", String::from_utf8_lossy(&line))?;
    }
    Ok((lines, bytes))
}
