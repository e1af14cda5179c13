//! Tests of the contents of the package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ingraft_testing::{have, output, skip};

use crate::Package;

/// Limit of a program's length in bytes: programs with debug information are several times as long.
const PROGRAM_BYTES_MAX: u64 = 40_000_000;

#[test]
fn the_package_has_what_a_package_has() {
    let package = match Package::make() {
        Ok(package) => package,
        Err(why) => skip!("{why}"),
    };
    let directory = ingraft_testing::open_directory();
    let root = directory.path();
    output(Command::new("dpkg-deb").arg("--raw-extract").arg(&package.path).arg(root.join("all")));
    let root = &root.join("all");

    let control = read(root, "DEBIAN/control");
    for field in ["Package: ingraft\n", "Architecture: amd64\n", "Depends: libc6 (>= 2.", "libgcc-s1 (>= "] {
        assert!(control.contains(field), "{field} is not in:\n{control}");
    }
    output(Command::new("md5sum").current_dir(root).args(["--check", "--quiet", "DEBIAN/md5sums"]));
    for script in ["postinst", "prerm", "postrm"] {
        output(Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
    for program in ["ingraft", "ingraftd"] {
        let meta = fs::metadata(root.join("usr/bin").join(program)).expect("a program");
        assert!(meta.len() < PROGRAM_BYTES_MAX, "{program} has {} bytes", meta.len());
        assert_eq!(meta.permissions().mode() & 0o7777, 0o755);
    }
    for file in [
        "etc/ingraft/ingraftd.toml",
        "usr/lib/systemd/system/ingraftd.service",
        "usr/share/bash-completion/completions/ingraft",
        "usr/share/bash-completion/completions/ingraftd",
        "usr/share/zsh/vendor-completions/_ingraft",
        "usr/share/fish/vendor_completions.d/ingraft.fish",
        "usr/share/ingraft/mdl/core.mdl",
        "usr/share/ingraft/proto/ingraft/v1/metrics.proto",
        "usr/share/doc/ingraft/README.md",
        "usr/share/doc/ingraft/copyright",
        "usr/share/doc/ingraft/docs/operation.md",
        "usr/share/doc/ingraft/third-party.txt.gz",
        "usr/share/man/man1/ingraft-count.1.gz",
        "usr/share/man/man8/ingraftd.8.gz",
    ] {
        let meta = fs::metadata(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(meta.permissions().mode() & 0o7777, 0o644, "{file}");
    }
    let notices = output(Command::new("gzip").arg("-dc").arg(root.join("usr/share/doc/ingraft/third-party.txt.gz")));
    assert!(notices.contains("\niced-x86 1.") && notices.contains("Permission is hereby granted"), "{notices:.2000}");
    assert!(!notices.contains("\nproptest "), "a crate of tests only is not linked");
    manual_pages_have_no_mistakes(root);
    lintian_finds_nothing(&package.path);
}

/// Renders every manual page and looks for warnings.
fn manual_pages_have_no_mistakes(root: &Path) {
    if !have("man") {
        return println!("skipped: manual pages are not rendered: man-db is not installed");
    }
    for section in ["man1", "man8"] {
        for page in fs::read_dir(root.join("usr/share/man").join(section)).expect("pages") {
            let page = page.expect("a page").path();
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"]).arg(&page).env("LC_ALL", "C.UTF-8");
            let said = man.env("MANWIDTH", "80").output().expect("run man");
            let warnings = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        }
    }
}

fn lintian_finds_nothing(deb: &Path) {
    if !have("lintian") {
        return println!("skipped: lintian is not installed");
    }
    // lintian only reads files, so it may run as root.
    output(Command::new("lintian").args(["--allow-root", "--fail-on", "error,warning"]).arg(deb));
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
