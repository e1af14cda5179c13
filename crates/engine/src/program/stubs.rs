//! Programs whose own file has hardly any code, because a library has it: interpreters and virtual machines (python3, ruby, java).

use crate::program::modules::{ModuleFile, Modules};

/// Largest number of bytes of code of a program file that counts as hardly any.
const LITTLE: u64 = 32 << 10;
/// Smallest number of bytes of code of the library that has the code of such a program.
const MUCH: u64 = 512 << 10;
/// Libraries that serve programs of all kinds.
const RUNTIMES: [&str; 10] = [
    "libc",
    "libm",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libcrypto",
    "libssl",
    "libsystemd",
    "ld-linux-x86-64",
    "ld-musl-x86_64",
];
/// The pattern of a request for all functions of the program's own module.
const OWN_MODULE: &str = ":*";

/// The warning that a request for the program's own module says little about the program; `None` if it says much, or asks for more.
pub fn warning(modules: &Modules, patterns: &[String]) -> Option<String> {
    if patterns != [OWN_MODULE] {
        return None;
    }
    let code = |file: &ModuleFile| file.file.code().map(|mapping| mapping.len()).sum::<u64>();
    let program = modules.mapped().find(|file| file.is_program)?;
    let libraries = modules.mapped().filter(|file| !file.is_program).map(|file| (&file.names[..], code(file)));
    let (name, bytes) = library_of(code(program), libraries)?;
    let mib = bytes as f64 / f64::from(1 << 20);
    Some(format!(
        "{} itself has hardly any code: {name} has {mib:.1} MiB, and '{name}:*' names its functions",
        program.name
    ))
}

/// The library that has the code of a program with so many bytes of its own, by its shortest name, with the number of its bytes.
fn library_of<'n>(own: u64, libraries: impl Iterator<Item = (&'n [String], u64)>) -> Option<(&'n str, u64)> {
    let serves_all = |names: &[String]| names.iter().any(|name| RUNTIMES.contains(&name.as_str()));
    let (names, bytes) = libraries.filter(|(names, _)| !serves_all(names)).max_by_key(|(_, bytes)| *bytes)?;
    let name = names.iter().min_by_key(|name| name.len())?;
    (own <= LITTLE && bytes >= MUCH).then_some((name, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_library_that_serves_not_all_programs_has_the_code() {
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<String>>();
        let (libc, python) = (names(&["libc.so.6", "libc"]), names(&["libpython3.11.so.1.0", "libpython3.11"]));
        let all = || [(&libc[..], 9 << 20), (&python[..], 3 << 20)].into_iter();
        assert_eq!(library_of(4096, all()), Some(("libpython3.11", 3 << 20)));
        assert_eq!(library_of(1 << 20, all()), None, "the program has code of its own");
        assert_eq!(library_of(4096, all().take(1)), None);
        assert_eq!(library_of(4096, [(&python[..], 1 << 10)].into_iter()), None);
    }
}
