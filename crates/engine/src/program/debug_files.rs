//! Questions to the debugging information of a module, wherever it is: in the module's own file, in its separate debug file, or in
//! files that these name.

use std::path::{Path, PathBuf};

use ingraft_analysis::{DebugFileName, DebugInfo, DebugSections, Elf, TypeError};
use ingraft_model::Pid;

use crate::program::modules::ModuleFile;

/// Folder of the debugging information of a distribution.
const GLOBAL: &str = "/usr/lib/debug";

/// The answer of the debugging information, which comes from the separate file if the module itself has none.
pub fn ask<T>(
    pid: Pid,
    file: &ModuleFile,
    elf: &Elf,
    question: impl Fn(&DebugInfo<'_>) -> Result<T, TypeError>,
) -> Result<T, TypeError> {
    let program = file.file.path.as_path();
    // The target controls the names. The reader of the information checks that a file belongs to it.
    let find = |name: DebugFileName<'_>| {
        let paths = paths(program, name);
        paths.iter().find_map(|path| ingraft_process::read_named(pid, path).ok())
    };
    let of = |elf| question(&DebugInfo::of(&DebugSections::of(elf, &find)?)?);
    match (of(elf), file.debug(pid, elf)) {
        (Err(TypeError::NoDebugInfo), Some(separate)) => of(separate),
        (own, _) => own,
    }
}

/// The paths at which a file that debugging information names may be: where it was made, and where it is if it was moved with the program.
fn paths(program: &Path, name: DebugFileName<'_>) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    match name {
        DebugFileName::Unit { directory, name } => {
            let moved = Path::new(name).file_name().map(|name| folder.join(name));
            [Some(Path::new(directory).join(name)), Some(folder.join(name)), moved].into_iter().flatten().collect()
        }
        DebugFileName::Package => {
            let name = format!("{}.dwp", program.display());
            let global = Path::new(GLOBAL).join(name.trim_start_matches('/'));
            vec![name.into(), global]
        }
        DebugFileName::Shared { name, build_id } => {
            let Some((first, rest)) = build_id.split_first() else { return Vec::new() };
            let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
            let ids = Path::new(GLOBAL).join(".build-id");
            // A name is relative to the file that has it: the program, or its separate debug file in a folder of `.build-id`.
            let beside = name.strip_prefix("../../").map(|below| Path::new(GLOBAL).join(below));
            let by_id = ids.join(format!("{first:02x}/{hex}.debug"));
            [Some(folder.join(name)), beside, Some(by_id)].into_iter().flatten().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: DebugFileName<'_>) -> Vec<String> {
        paths(Path::new("/opt/app/server"), name).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn files_are_looked_for_where_they_were_made_and_beside_the_program() {
        let unit = texts(DebugFileName::Unit { directory: "/build", name: "obj/a.dwo" });
        assert_eq!(unit, ["/build/obj/a.dwo", "/opt/app/obj/a.dwo", "/opt/app/a.dwo"]);
        let absolute = texts(DebugFileName::Unit { directory: "/build", name: "/tmp/a.dwo" });
        assert_eq!(absolute, ["/tmp/a.dwo", "/tmp/a.dwo", "/opt/app/a.dwo"]);
        assert_eq!(texts(DebugFileName::Package), ["/opt/app/server.dwp", "/usr/lib/debug/opt/app/server.dwp"]);
        let shared = texts(DebugFileName::Shared { name: "../../.dwz/x.debug", build_id: &[0xab, 0xcd, 1] });
        let last = "/usr/lib/debug/.build-id/ab/cd01.debug";
        assert_eq!(shared, ["/opt/app/../../.dwz/x.debug", "/usr/lib/debug/.dwz/x.debug", last]);
        assert!(texts(DebugFileName::Shared { name: "x", build_id: &[] }).is_empty());
    }
}
