//! The files of a package, laid out below a directory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::notices;
use super::programs::Programs;

/// Paths that differ between the Debian package and the tarball.
pub struct PackageLayout {
    /// Directory of programs and data below the root of the package: `usr`, or empty.
    pub prefix: &'static str,
    /// Directory of zsh's completions below `share`.
    pub zsh: &'static str,
    /// Directory in which the unit finds the daemon.
    pub programs: &'static str,
    /// Directory in which the unit finds the configuration.
    pub config: &'static str,
}

/// A directory that becomes a package.
pub struct PackageTree {
    root: PathBuf,
}

impl PackageTree {
    /// Makes an empty tree; removes the files of an earlier run.
    pub fn new(root: PathBuf) -> Result<PackageTree> {
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
        }
        let tree = PackageTree { root };
        tree.directory(&tree.root)?;
        Ok(tree)
    }

    /// The root of the package.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a file, whatever the umask says.
    pub fn write(&self, to: &str, text: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let path = self.root.join(to);
        self.directory(path.parent().context("a directory")?)?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(())
    }

    /// Copies a file of the source tree, or one with an absolute path.
    pub fn copy(&self, from: impl AsRef<Path>, to: &str, mode: u32) -> Result<()> {
        let from = ingraft_testing::source_directory().join(from);
        self.write(to, fs::read(&from).with_context(|| format!("read {}", from.display()))?, mode)
    }

    /// Writes a compressed file, the same bytes for the same text. The name gets `.gz`.
    pub fn compressed(&self, to: &str, text: impl AsRef<[u8]>) -> Result<()> {
        self.write(&format!("{to}.gz"), gzip(text.as_ref())?, 0o644)
    }

    /// Copies a directory of the source tree with all below it.
    fn copy_all(&self, from: &str, to: &str) -> Result<()> {
        for entry in fs::read_dir(ingraft_testing::source_directory().join(from))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (from, to) = (format!("{from}/{name}"), format!("{to}/{name}"));
            if entry.file_type()?.is_dir() {
                self.copy_all(&from, &to)?;
            } else {
                self.copy(&from, &to, 0o644)?;
            }
        }
        Ok(())
    }

    /// Makes a directory that all may read, and its parents below the root.
    fn directory(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
        for directory in path.ancestors().take_while(|directory| directory.starts_with(&self.root)) {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Lays out what all packages have: programs, manual pages, completions, unit, definitions of metrics and documents.
    pub fn fill(&self, programs: &Programs, layout: &PackageLayout) -> Result<()> {
        let at = |path: &str| Path::new(layout.prefix).join(path).to_string_lossy().into_owned();
        for (name, path) in programs.each() {
            self.copy(path, &at(&format!("bin/{name}")), 0o755)?;
            for (shell, directory, before, after) in [
                ("bash", "bash-completion/completions", "", ""),
                ("zsh", layout.zsh, "_", ""),
                ("fish", "fish/vendor_completions.d", "", ".fish"),
            ] {
                let text = programs.ask(&["completions", shell, name])?;
                self.write(&at(&format!("share/{directory}/{before}{name}{after}")), text, 0o644)?;
            }
        }
        self.manual(programs, &at("share/man"))?;
        let unit = fs::read_to_string(ingraft_testing::source_directory().join("crates/xtask/dist/ingraftd.service"))?;
        let unit = unit.replace("/usr/bin/", &format!("{}/", layout.programs));
        let unit = unit.replace("/etc/ingraft/", &format!("{}/", layout.config));
        self.write(&at("lib/systemd/system/ingraftd.service"), unit, 0o644)?;
        self.copy_all("mdl", &at("share/ingraft/mdl"))?;
        self.copy_all("proto", &at("share/ingraft/proto"))?;
        self.copy_all("docs", &at("share/doc/ingraft/docs"))?;
        self.copy("README.md", &at("share/doc/ingraft/README.md"), 0o644)?;
        self.compressed(&at("share/doc/ingraft/third-party.txt"), notices::text()?)
    }

    /// Writes all manual pages, each into the directory of its section.
    fn manual(&self, programs: &Programs, to: &str) -> Result<()> {
        let pages = self.root.join("pages");
        programs.ask(&["man", "--dir", pages.to_str().context("a path in UTF-8")?])?;
        for page in fs::read_dir(&pages)? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            let section = name.rsplit('.').next().unwrap_or_default();
            self.compressed(&format!("{to}/man{section}/{name}"), fs::read(page.path())?)?;
        }
        fs::remove_dir_all(&pages).context("remove the manual pages")
    }
}

/// Compresses without a date or a name.
fn gzip(text: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .arg("-9n")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("run gzip; is it installed?")?;
    let mut input = child.stdin.take().context("a pipe to gzip")?;
    let text = text.to_owned();
    // gzip may write before it has read all.
    let writer = std::thread::spawn(move || input.write_all(&text));
    let output = child.wait_with_output()?;
    ensure!(output.status.success() && writer.join().is_ok_and(|written| written.is_ok()), "gzip failed");
    Ok(output.stdout)
}
