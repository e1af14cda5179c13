//! The program `ingraft`.

#![forbid(unsafe_code)]

/// An insertion into all functions of a program makes millions of small objects. The allocator of the C library grows the memory of a thread
/// by a system call for each page. The daemon uses it all the same: it returns memory sooner, and the daemon has a limit.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    ingraft_cli::main()
}
