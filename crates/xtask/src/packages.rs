//! Debian packages that the tests use. If a package is missing, its tests are skipped and say so. Only root can install packages.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A program to look for and the package that brings it.
const NEEDED: &[(&str, &str)] = &[
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("strip", "binutils"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("nginx", "nginx-light"),
    ("wrk", "wrk"),
    ("postgres", "postgresql-15"),
    ("pgbench", "postgresql-contrib"),
    ("gdb", "gdb"),
    ("valgrind", "valgrind"),
    ("qemu-x86_64", "qemu-user"),
    ("perf", "linux-perf"),
    ("genhtml", "lcov"),
    ("llvm-bolt-19", "bolt-19"),
    ("/usr/lib/llvm-19/lib/libbolt_rt_instr.a", "libbolt-19-dev"),
    ("llvm-profdata-19", "llvm-19"),
    ("clang-19", "clang-19"),
    ("musl-gcc", "musl-tools"),
    ("go", "golang-go"),
    ("node", "nodejs"),
    ("javac", "openjdk-17-jdk-headless"),
    ("haproxy", "haproxy"),
    ("mariadbd", "mariadb-server-core"),
    ("mariadb", "mariadb-client-core"),
    ("setpriv", "util-linux"),
    ("mmdebstrap", "mmdebstrap"),
    ("man", "man-db"),
    ("curl", "curl"),
    ("prometheus", "prometheus"),
    ("lintian", "lintian"),
    ("node", "nodejs"),
    ("/usr/bin/python3.11", "python3"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
    ("/usr/include/sqlite3.h", "libsqlite3-dev"),
    ("/usr/include/openssl/ssl.h", "libssl-dev"),
    ("/usr/lib/python3/dist-packages/pip", "python3-pip"),
    ("/usr/lib/python3.11/ensurepip", "python3-venv"),
];

/// Servers that only the long forms measure.
const SERVERS: &[(&str, &str)] = &[
    ("apache2", "apache2-bin"),
    ("dovecot", "dovecot-imapd"),
    ("erl", "erlang-base"),
    ("etcd", "etcd-server"),
    ("lighttpd", "lighttpd"),
    ("memcached", "memcached"),
    ("mosquitto", "mosquitto"),
    ("named", "bind9"),
    ("php", "php-cli"),
    ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    ("ruby", "ruby"),
    ("slapd", "slapd"),
    ("squid", "squid"),
    ("stunnel4", "stunnel4"),
    ("unbound", "unbound"),
    ("varnishd", "varnish"),
];

/// Installs the missing packages of the tests if this is root and there is apt-get; otherwise prints their names. `full` includes the servers
/// of the long forms.
pub fn install(full: bool) -> Result<()> {
    let present = |program: &str| std::path::Path::new(program).exists() || ingraft_testing::have(program);
    let needed = NEEDED.iter().chain(if full { SERVERS } else { &[] });
    let missing: Vec<&str> = needed.filter(|(program, _)| !present(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !ingraft_testing::is_root() || !ingraft_testing::have("apt-get") {
        eprintln!("not installed, tests that need them will be skipped: {}", missing.join(" "));
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    // Packages of servers start them. A policy forbids this while the packages are installed.
    let policy = std::path::Path::new("/usr/sbin/policy-rc.d");
    let own_policy = !policy.exists();
    if own_policy {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(policy, "#!/bin/sh\nexit 101\n").context("forbid the start of servers")?;
        std::fs::set_permissions(policy, std::fs::Permissions::from_mode(0o755))?;
    }
    let apt = |arguments: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(arguments);
        Ok(command.status().context("run apt-get")?.success())
    };
    let installed =
        apt(&["update"]).and_then(|_| apt(&[&["install", "--no-install-recommends"], missing.as_slice()].concat()));
    if own_policy {
        std::fs::remove_file(policy).context("allow the start of servers again")?;
    }
    ensure!(installed?, "apt-get could not install {}", missing.join(" "));
    Ok(())
}
