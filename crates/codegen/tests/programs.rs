//! Programs of the system: entries and exits of all of their functions woven at once, and proven.

#[path = "support/program.rs"]
mod program;

#[test]
fn whole_programs_are_proven() {
    for path in ["/usr/sbin/nginx", "/usr/bin/redis-server", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3.11"] {
        let Some(program) = program::weave_all(path.as_ref(), false) else {
            eprintln!("skipped: {path} is missing");
            continue;
        };
        assert_eq!(program.proof, Ok(()), "{path}");
        let left: Vec<_> = program.functions.iter().filter(|f| !f.whole()).map(|f| f.name.as_str()).collect();
        assert!(program.points > program.functions.len());
        assert!(program.share() >= 0.97, "{path}: {:.1} %, not {}", 100.0 * program.share(), left.join(", "));
    }
}
