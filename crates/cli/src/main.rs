//! The program `ingraft`.

#![forbid(unsafe_code)]

/// An insertion into all functions of a program makes millions of small objects. With this allocator it takes a fifth less time than with
/// that of the C library, which grows the memory of a thread by a system call for each page.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    ingraft_cli::main()
}
