//! The libraries that programs need, as packages of Debian.

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::elf::FileHeader64;
use object::read::elf::{Dyn, FileHeader};
use object::{LittleEndian, elf};

/// Libraries, the packages that have them, and the names of their symbol versions before the number.
const LIBRARIES: &[(&[&str], &str, &str)] = &[
    (&["libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"], "libc6", "GLIBC_"),
    (&["libgcc_s.so.1"], "libgcc-s1", "GCC_"),
];

/// Returns the field `Depends` of a package with these programs. Fails for a library that no known package has.
pub fn depends(programs: impl Iterator<Item = (&'static str, impl AsRef<Path>)>) -> Result<String> {
    let mut newest: Vec<Option<Vec<u32>>> = vec![None; LIBRARIES.len()];
    for (name, path) in programs {
        let data = std::fs::read(path.as_ref())?;
        for (library, version) in needed(&data).with_context(|| format!("read the libraries of {name}"))? {
            let Some(at) = LIBRARIES.iter().position(|(names, ..)| names.contains(&library.as_str())) else {
                bail!("{name} needs {library}, and no package is known for it");
            };
            let number = version.as_deref().and_then(|version| version.strip_prefix(LIBRARIES[at].2));
            let number = number.map(|number| number.split('.').filter_map(|part| part.parse().ok()).collect());
            newest[at] = newest[at].take().max(Some(number.unwrap_or_default()));
        }
    }
    let packages = LIBRARIES.iter().zip(newest).filter_map(|((_, package, _), version)| {
        let version: Vec<String> = version?.iter().map(u32::to_string).collect();
        Some(if version.is_empty() { (*package).to_owned() } else { format!("{package} (>= {})", version.join(".")) })
    });
    Ok(packages.collect::<Vec<_>>().join(", "))
}

/// Returns the libraries that a program names, and for each version of symbols that it needs the library again with that version.
fn needed(data: &[u8]) -> object::Result<Vec<(String, Option<String>)>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let header = FileHeader64::<LittleEndian>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut found = Vec::new();
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            found.push((text(entry.string(endian, strings)?), None));
        }
    }
    if let Some((mut libraries, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((library, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                found.push((text(library.file(endian, strings)?), Some(text(version.name(endian, strings)?))));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_the_c_library() {
        let own = std::env::current_exe().unwrap();
        let depends = depends([("own", own)].into_iter()).unwrap();
        assert!(depends.starts_with("libc6 (>= 2."), "{depends}");
    }
}
