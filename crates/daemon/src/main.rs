//! The daemon's program.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ingraft_daemon::run::main()
}
