//! The daemon.

fn main() -> std::process::ExitCode {
    ingraft_daemon::run::main()
}
