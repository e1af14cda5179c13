//! The search of a target's own code for the pieces that a borrowed thread uses (`gadgets.rs`).

use std::sync::Arc;

use ingraft_model::Avma;

use crate::error::ProcessError;
use crate::gadgets::{GadgetSearch, Gadgets, LONGEST_BYTES};
use crate::module;
use crate::procfs::Mapping;
use crate::target::{Target, lock};

impl Target {
    /// The code by which a borrowed thread makes system calls and returns to where it was. The search is repeated only if the code is no
    /// longer there.
    pub(crate) fn gadgets(&self) -> Result<Arc<Gadgets>, ProcessError> {
        let mut known = lock(&self.gadgets);
        if let Some(gadgets) = known.as_ref().filter(|g| still_there(g, self)) {
            return Ok(Arc::clone(gadgets));
        }
        let found = Arc::new(find(self)?);
        *known = Some(Arc::clone(&found));
        Ok(found)
    }
}

/// Searches the vDSO and all code that comes from files, also where the program has moved it.
fn find(target: &Target) -> Result<Gadgets, ProcessError> {
    let mut search = GadgetSearch::default();
    for_all_code(target, &mut |start, code| search.look_for_calls(start, code))?;
    if search.lacks_number() {
        for_all_code(target, &mut |start, code| search.look_for_number(start, code))?;
    }
    Ok(search.result())
}

/// Whether the code is still where it was found.
pub(crate) fn still_there(gadgets: &Gadgets, target: &Target) -> bool {
    let mut now = [0; LONGEST_BYTES];
    let holds = |(at, bytes): &(Avma, Vec<u8>)| {
        let now = &mut now[..bytes.len().min(LONGEST_BYTES)];
        target.read(*at, now).is_ok() && now == bytes.as_slice()
    };
    gadgets.way.is_ok() && gadgets.pieces.iter().all(holds)
}

/// Whether the program may write this code while it runs. Just-in-time compilers do so, in memory that is mapped twice.
fn may_change(m: &Mapping) -> bool {
    const IN_MEMORY: [&str; 4] = ["/memfd:", "/dev/shm/", "/anon_hugepage", "/SYSV"];
    m.shared
        || m.write
        || IN_MEMORY.iter().any(|begin| m.path.as_os_str().as_encoded_bytes().starts_with(begin.as_bytes()))
}

/// Passes the readable part of all code to `look`, one mapping at a time, except code that the program may write.
fn for_all_code(target: &Target, look: &mut dyn FnMut(Avma, &[u8])) -> Result<(), ProcessError> {
    let mut bytes = Vec::new();
    let maps = target.maps()?;
    let moved = module::loads(&maps).into_iter().flat_map(|file| file.moved);
    let vdso = maps.iter().filter(|m| m.path.as_os_str() == "[vdso]").cloned();
    let whole = maps.iter().filter(|m| m.is_file() && !may_change(m)).cloned();
    for m in vdso.chain(whole).chain(moved).filter(|m| m.exec) {
        bytes.resize(usize::try_from(m.len()).unwrap_or(0), 0);
        let n = target.read_some(m.range.start, &mut bytes).unwrap_or(0);
        look(m.range.start, &bytes[..n]);
    }
    Ok(())
}
