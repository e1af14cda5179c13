//! Text of a target, read page by page: many places lie close to each other, and reading a few bytes costs as much as reading a page.

use std::sync::{Arc, Mutex, PoisonError};

use ingraft_model::Avma;
use ingraft_model::machine::PAGE;
use ingraft_process::Target;
use rustc_hash::FxHashMap;

/// Pages with their content at the first read. A later state needs a new object.
#[derive(Debug, Default)]
pub(crate) struct TextPages {
    known: Mutex<FxHashMap<u64, Arc<[u8]>>>,
}

impl TextPages {
    /// Fills `bytes` with the target's memory at an address. Returns false if a part of it cannot be read.
    pub(crate) fn read(&self, target: &Target, at: Avma, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let from = at.0.wrapping_add(done as u64);
            let page = self.page(target, from - from % PAGE);
            let there = page.get((from % PAGE) as usize..).unwrap_or_default();
            let n = there.len().min(rest.len());
            if n == 0 {
                return false;
            }
            rest[..n].copy_from_slice(&there[..n]);
            done += n;
        }
        true
    }

    fn page(&self, target: &Target, start: u64) -> Arc<[u8]> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = known().get(&start) {
            return Arc::clone(page);
        }
        let mut bytes = vec![0; PAGE as usize];
        let n = target.read_some(Avma(start), &mut bytes).unwrap_or(0);
        bytes.truncate(n);
        let page: Arc<[u8]> = bytes.into();
        known().insert(start, Arc::clone(&page));
        page
    }
}
