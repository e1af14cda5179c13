//! Programs of the system: all points of all functions are woven at once, and proven.

use crate::support::program;

const PROGRAMS: [&str; 4] =
    ["/usr/sbin/nginx", "/usr/bin/redis-server", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3.11"];

/// Weaves entries and exits, and with `calls` also points at calls. Panics if the proof fails, or if too few functions are woven
/// completely.
fn assert_woven(calls: bool, least: f64) {
    for path in PROGRAMS {
        let Some(program) = program::weave_all(path.as_ref(), calls) else {
            eprintln!("skipped: {path} is missing");
            continue;
        };
        assert_eq!(program.proof, Ok(()), "{path}");
        let left: Vec<_> = program.functions.iter().filter(|f| !f.whole()).map(|f| f.name.as_str()).collect();
        assert!(program.points > program.functions.len());
        assert!(program.unharmed() >= 0.75, "{path}: {:.1} %", 100.0 * program.unharmed());
        assert!(program.share() >= least, "{path}: {:.1} %, not {}", 100.0 * program.share(), left.join(", "));
    }
}

#[test]
fn entries_and_exits_of_whole_programs_are_proven() {
    assert_woven(false, 0.97);
}

#[test]
fn all_points_of_whole_programs_are_proven() {
    assert_woven(true, 0.93);
}
