//! Tests that the package can be installed in a clean Debian, used, upgraded, removed and purged.

use std::fs;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, program, skip, wait_until};

use crate::Package;
use crate::debian::Debian;

#[test]
fn the_package_lives_in_a_clean_debian() {
    let package = match Package::make() {
        Ok(package) => package,
        Err(why) => skip!("{why}"),
    };
    let debian = match Debian::boot() {
        Ok(debian) => debian,
        Err(why) => skip!("{why}"),
    };
    fs::copy(&package.path, debian.root().join("var/tmp/ingraft.deb")).expect("copy the package");
    let threads = program("threads-static").unwrap_or_else(|why| panic!("{why}"));
    fs::copy(threads, debian.root().join("var/tmp/threads")).expect("copy a target program");
    let before = debian.paths();

    debian.run("dpkg --install /var/tmp/ingraft.deb");
    the_programs_run(&debian);
    the_manual_is_there(&debian);
    completions_complete(&debian);
    the_service_runs(&debian);

    let mut worker = Mutatee::spawn(debian.command("/var/tmp/threads").arg("2"));
    let pid = target::children(worker.pid())[0];
    let text = Text::of(pid);
    measurements_outlive_the_daemon(&debian, pid);
    programs_of_the_daemon_outlive_it(&debian);

    // The installation of the same version again is an upgrade, too.
    let old = main_pid(&debian);
    debian.run("dpkg --install /var/tmp/ingraft.deb");
    assert_ne!(main_pid(&debian), old, "an upgrade starts the daemon again");
    text.assert_not_in(pid);

    debian.run("dpkg --remove ingraft");
    target::assert_clean(pid, &text);
    worker.ask("solo 100").assert_right();
    assert!(worker.end().success());
    assert!(!debian.root().join("usr/bin/ingraft").exists());
    assert!(debian.root().join("etc/ingraft/ingraftd.toml").exists(), "removing keeps the configuration");
    debian.run("dpkg --purge ingraft");
    let (before, after): (std::collections::BTreeSet<_>, std::collections::BTreeSet<_>) =
        (before.into_iter().collect(), debian.paths().into_iter().collect());
    let difference: Vec<_> = before.symmetric_difference(&after).collect();
    assert!(difference.is_empty(), "a purged package leaves nothing: {difference:?}");
}

fn the_programs_run(debian: &Debian) {
    let version = format!(" {}\n", env!("CARGO_PKG_VERSION"));
    assert!(debian.run("ingraft --version").ends_with(&version));
    assert!(debian.run("ingraftd --version").ends_with(&version));
    let said = debian.run(
        "(echo solo 1000; echo quit) >/var/tmp/commands
         ingraft count --until-exit work_0 --format json -- /var/tmp/threads 1 </var/tmp/commands",
    );
    let count = said.lines().rev().find(|line| line.contains("\"type\":\"count\"")).unwrap_or_else(|| panic!("{said}"));
    assert!(count.contains("\"calls\":1000"), "{said}");
    // The demo measures functions of the program itself by name, so the stripped program must have their symbols.
    assert!(debian.run("ingraft demo --for 500ms").contains("Counted exactly, and left no trace."));
}

fn the_manual_is_there(debian: &Debian) {
    for (page, word) in [("ingraft", "EXIT STATUS"), ("ingraft-count", "EXAMPLES"), ("ingraftd", "--socket-mode")] {
        let text = debian.run(&format!("MANWIDTH=80 man -P cat {page}"));
        assert!(text.contains(word) && text.contains("SEE ALSO"), "{page}: {text}");
    }
    assert!(debian.run("mandb -q && apropos ingraft-latency").contains("(1)"));
}

fn completions_complete(debian: &Debian) {
    let complete = |program: &str, words: &str| {
        let script = format!(
            "source /usr/share/bash-completion/bash_completion
             _completion_loader {program}
             function=$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
             COMP_WORDS=({words}) COMP_CWORD=$(( $(set -- {words}; echo $#) - 1 ))
             \"$function\" {program} \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"
             echo \"${{COMPREPLY[@]}}\""
        );
        ingraft_testing::output(debian.command("bash").args(["-c", &script]))
    };
    assert_eq!(complete("ingraft", "ingraft lat").trim(), "latency");
    assert_eq!(complete("ingraft", "ingraft count --until").trim(), "--until-exit");
    assert_eq!(complete("ingraftd", "ingraftd --socket-g").trim(), "--socket-group");
}

fn the_service_runs(debian: &Debian) {
    assert_eq!(debian.run("systemctl is-enabled ingraftd"), "enabled\n");
    assert_eq!(debian.run("systemctl is-active ingraftd"), "active\n");
    assert_eq!(debian.run("systemd-analyze verify ingraftd.service 2>&1"), "");
    assert_eq!(debian.run("stat -c %a /run/ingraft/ingraftd.sock /var/lib/ingraft"), "600\n700\n");
    // If the daemon had a filter of system calls, it could not suspend the filters of its targets.
    let status = debian.run(&format!("cat /proc/{}/status", main_pid(debian).trim()));
    assert!(status.contains("\nSeccomp:\t0\n"), "{status}");
    debian.run("systemctl reload ingraftd");
    debian.run("ingraft --daemon unix:/run/ingraft/ingraftd.sock status");
}

fn main_pid(debian: &Debian) -> String {
    debian.run("systemctl show --property MainPID --value ingraftd")
}

/// Kept measurements are still there after a restart of the daemon.
fn measurements_outlive_the_daemon(debian: &Debian, pid: i32) {
    let text = Text::of(pid);
    debian
        .run("ingraft --daemon unix:/run/ingraft/ingraftd.sock count -n threads work_0 work_1 --no-remove --for 100ms");
    text.assert_not_in(pid);
    let old = main_pid(debian);
    debian.run("systemctl restart ingraftd");
    assert_ne!(main_pid(debian), old);
    text.assert_not_in(pid);
    let status = debian.run("ingraft --daemon unix:/run/ingraft/ingraftd.sock status --format json");
    assert!(status.contains("\"kept\":1"), "{status}");
}

/// A program that the daemon has started is no part of the daemon's service, and lives on without it.
fn programs_of_the_daemon_outlive_it(debian: &Debian) {
    debian.run(
        "ingraft --daemon unix:/run/ingraft/ingraftd.sock count malloc --for 100ms -- sleep 1000
         systemctl stop ingraftd",
    );
    assert!(!debian.root().join("run/ingraft/ingraftd.sock").exists());
    let pid = debian.run("for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" != sleep ] || echo ${p#/proc/}; done");
    debian.run(&format!("kill {}; systemctl start ingraftd", pid.trim()));
    wait_until("the service is there", || debian.run("systemctl is-active ingraftd || true") == "active\n");
}
