//! Programs that run another program by translating its code: valgrind, DynamoRIO, Pin, qemu-user and others.
//!
//! The process of such a host has the guest's files mapped, but the processor does not execute their text. A springboard in it is executed as
//! the guest's code was before it, translated anew, or not at all, and the host keeps its own list of the address space. So the engine
//! refuses the process.

use std::path::Path;

use crate::procfs::Mapping;

/// Tools of valgrind, each a program `TOOL-amd64-linux`. Other tools are recognised by their directory.
const VALGRIND: [&str; 11] = [
    "memcheck",
    "cachegrind",
    "callgrind",
    "helgrind",
    "drd",
    "massif",
    "dhat",
    "lackey",
    "none",
    "exp-bbv",
    "exp-sgcheck",
];

/// Processors whose programs qemu runs in user mode, as in the names of its programs (`qemu-aarch64`). `qemu-system-aarch64` is an ordinary
/// program.
const QEMU: [&str; 37] = [
    "aarch64",
    "aarch64_be",
    "alpha",
    "arm",
    "armeb",
    "cris",
    "hexagon",
    "hppa",
    "i386",
    "loongarch64",
    "m68k",
    "microblaze",
    "microblazeel",
    "mips",
    "mips64",
    "mips64el",
    "mipsel",
    "mipsn32",
    "mipsn32el",
    "nios2",
    "or1k",
    "ppc",
    "ppc64",
    "ppc64le",
    "riscv32",
    "riscv64",
    "s390x",
    "sh4",
    "sh4eb",
    "sparc",
    "sparc32plus",
    "sparc64",
    "tilegx",
    "unicore32",
    "x86_64",
    "xtensa",
    "xtensaeb",
];

/// Program files of other hosts.
const PROGRAMS: [(&str, &str); 8] = [
    ("FEX", "FEX"),
    ("FEXInterpreter", "FEX"),
    ("FEXLoader", "FEX"),
    ("box64", "box64"),
    ("box86", "box86"),
    ("pinbin", "Pin"),
    ("libdynamorio.so", "DynamoRIO"),
    ("blink", "blink"),
];

/// Files of which hosts map code into the process of the guest.
const LIBRARIES: [(&str, &str); 7] = [
    ("libdynamorio.so", "DynamoRIO"),
    ("libdrpreload.so", "DynamoRIO"),
    ("pinbin", "Pin"),
    ("libpindwarf.so", "Pin"),
    ("libpin3dwarf.so", "Pin"),
    ("librrpreload.so", "rr"),
    ("librrpage.so", "rr"),
];

/// Memory files of gVisor with the code of a guest.
const GVISOR: [&str; 2] = ["/memfd:runsc-memory", "/memfd:systrap-memory"];

/// The program that runs the process's code by translating it; `None` if the processor executes the code itself. `exe` is the program file
/// of the process.
pub(crate) fn host_of(exe: Option<&Path>, maps: &[Mapping]) -> Option<&'static str> {
    exe.and_then(by_program).or_else(|| maps.iter().filter(|m| m.exec).find_map(by_code))
}

fn base(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn named(list: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    list.iter().find(|(known, _)| *known == name).map(|(_, host)| *host)
}

fn by_program(exe: &Path) -> Option<&'static str> {
    let name = base(exe)?;
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let in_directory = || exe.components().any(|part| part.as_os_str() == "valgrind");
    if name.strip_suffix("-amd64-linux").is_some_and(|tool| VALGRIND.contains(&tool) || in_directory()) {
        return Some("valgrind");
    }
    let qemu = name.strip_prefix("qemu-").map(|rest| rest.strip_suffix("-static").unwrap_or(rest));
    if qemu.is_some_and(|processor| QEMU.contains(&processor)) {
        return Some("qemu-user");
    }
    named(&PROGRAMS, name)
}

fn by_code(mapping: &Mapping) -> Option<&'static str> {
    let path = mapping.file_path();
    if GVISOR.iter().any(|memory| path.as_os_str() == *memory) {
        return Some("gVisor");
    }
    let name = base(&path)?;
    if name.starts_with("vgpreload_") && name.ends_with("-amd64-linux.so") {
        return Some("valgrind");
    }
    named(&LIBRARIES, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::parse_maps;

    fn host(exe: &str, maps: &str) -> Option<&'static str> {
        host_of(Some(Path::new(exe)), &parse_maps(maps.as_bytes()))
    }

    #[test]
    fn hosts_by_their_program() {
        for (exe, expected) in [
            ("/usr/libexec/valgrind/memcheck-amd64-linux", Some("valgrind")),
            ("/opt/valgrind/.in_place/mytool-amd64-linux", Some("valgrind")),
            ("/tmp/callgrind-amd64-linux (deleted)", Some("valgrind")),
            ("/usr/bin/terraform-amd64-linux", None),
            ("/usr/bin/qemu-x86_64", Some("qemu-user")),
            ("/usr/bin/qemu-aarch64-static", Some("qemu-user")),
            ("/usr/bin/qemu-system-x86_64", None),
            ("/usr/bin/qemu-img", None),
            ("/usr/bin/FEXInterpreter", Some("FEX")),
            ("/opt/pin/intel64/bin/pinbin", Some("Pin")),
            ("/opt/dynamorio/lib64/release/libdynamorio.so", Some("DynamoRIO")),
            ("/usr/bin/valgrind", None),
            ("/usr/sbin/nginx", None),
        ] {
            assert_eq!(host(exe, ""), expected, "{exe}");
        }
        assert_eq!(host_of(None, &[]), None);
    }

    #[test]
    fn hosts_by_their_code_in_the_process() {
        let line = |perms: &str, path: &str| format!("7f0000000000-7f0000001000 {perms} 00000000 08:01 77 {path}\n");
        for (path, expected) in [
            ("/usr/libexec/valgrind/vgpreload_core-amd64-linux.so", Some("valgrind")),
            ("/opt/dynamorio/lib64/release/libdynamorio.so", Some("DynamoRIO")),
            ("/opt/pin/intel64/runtime/pincrt/libpindwarf.so", Some("Pin")),
            ("/opt/pin/intel64/bin/pinbin", Some("Pin")),
            ("/usr/lib/rr/librrpreload.so", Some("rr")),
            ("/memfd:runsc-memory (deleted)", Some("gVisor")),
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", None),
        ] {
            assert_eq!(host("/usr/bin/app", &line("r-xp", path)), expected, "{path}");
            assert_eq!(host("/usr/bin/app", &line("r--p", path)), None, "data of {path}");
        }
    }
}
