//! The program `ingraft`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ingraft_cli::main()
}
