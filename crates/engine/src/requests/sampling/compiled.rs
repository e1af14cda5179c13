//! Names of functions that a just-in-time compiler has made: the file `/tmp/perf-PID.map`, which node, Java agents, .NET, LuaJIT and others write for
//! perf if they are asked to (<https://github.com/torvalds/linux/blob/master/tools/perf/Documentation/jit-interface.txt>). Each line has the address
//! and the length of a function, both as hexadecimal numbers, and its name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ingraft_model::{Avma, Svma};
use ingraft_process::Target;

use crate::api::NamedFunction;

/// Largest number of bytes of the file that are read.
const LENGTH_MAX: u64 = 256 << 20;
/// Module of such functions.
const MODULE: &str = "[jit]";

/// A compiled function for clients. All versions of it are one function.
pub(super) fn compiled(name: &Arc<str>) -> NamedFunction {
    NamedFunction { module: MODULE.to_owned(), function: name.to_string(), offset: Svma(0) }
}

/// The compiled functions of a target.
#[derive(Debug, Default)]
pub(super) struct CompiledFunctions {
    /// End of each function by its first byte, and its name. None overlaps another one.
    functions: BTreeMap<u64, (u64, Arc<str>)>,
    /// Length of the file when it was read.
    length: Option<u64>,
}

impl CompiledFunctions {
    /// Reads the file again if its length has changed.
    pub fn refresh(&mut self, target: &Target) {
        let Some(path) = path(target) else { return };
        // Without the file, functions have no names.
        if let Ok(Some((text, length))) = ingraft_process::read_named_text(target.pid(), &path, LENGTH_MAX, self.length)
        {
            self.functions = parse(&text);
            self.length = Some(length);
        }
    }

    /// The name of the function at an address.
    pub fn at(&self, at: Avma) -> Option<Arc<str>> {
        let (_, (end, name)) = self.functions.range(..=at.0).next_back()?;
        (at.0 < *end).then(|| Arc::clone(name))
    }
}

/// Path of the file from the root of the target, by the process id that the target sees itself.
fn path(target: &Target) -> Option<PathBuf> {
    Some(PathBuf::from(format!("/tmp/perf-{}.map", target.status().ok()?.own_id)))
}

/// Reads the lines of the file. A later function takes the place of those that it overlaps. Lines that are not understood are left out.
fn parse(text: &[u8]) -> BTreeMap<u64, (u64, Arc<str>)> {
    let mut functions: BTreeMap<u64, (u64, Arc<str>)> = BTreeMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(3, ' ');
        let mut number = || {
            let word = words.next()?;
            u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
        };
        let (Some(start), Some(length)) = (number(), number()) else { continue };
        let (Some(end), Some(name)) = (start.checked_add(length), words.next()) else { continue };
        if length == 0 || name.is_empty() {
            continue;
        }
        while let Some((&before, _)) = functions.range(..end).next_back().filter(|(_, (until, _))| *until > start) {
            functions.remove(&before);
        }
        functions.insert(start, (end, name.into()));
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, at: &[u64]) -> Vec<Option<String>> {
        let functions = CompiledFunctions { functions: parse(text.as_bytes()), length: None };
        at.iter().map(|at| functions.at(Avma(*at)).map(|name| name.to_string())).collect()
    }

    #[test]
    fn functions_are_found_by_any_of_their_addresses() {
        let text = "1000 10 LazyCompile:*work /srv/a.js:2:14\n0x2000 0x8 Foo.bar()V\n";
        let work = Some("LazyCompile:*work /srv/a.js:2:14".to_owned());
        let found = names(text, &[0xfff, 0x1000, 0x100f, 0x1010, 0x2007, u64::MAX]);
        assert_eq!(found, [None, work.clone(), work, None, Some("Foo.bar()V".to_owned()), None]);
    }

    #[test]
    fn later_functions_take_the_place_of_earlier_ones() {
        let text = "1000 100 a\n1040 10 b\n2000 10 c\n1ff8 10 d\n3000 10 e\n3000 20 f\n4000 10 g\n3ff0 100 h";
        let found = names(text, &[0x1000, 0x1040, 0x2000, 0x200f, 0x301f, 0x4000]);
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(found, [None, name("b"), name("d"), None, name("f"), name("h")]);
    }

    #[test]
    fn other_lines_are_left_out() {
        let text =
            "\n1000\nx 10 a\n1000 10\n1000 0 a\n1000 10 \nffffffffffffffff 10 a\n\u{fffd} 1 1\n2000 10 ok \u{1b}";
        assert_eq!(names(text, &[0x1000, 0x2000]), [None, Some("ok \u{1b}".to_owned())]);
        assert!(parse(&[0xff, b' ', 0xfe, b'\n']).is_empty());
    }
}
