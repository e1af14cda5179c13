//! Counts of an earlier profile, by which the counters of a new one are placed.

use ingraft_model::Svma;
use ingraft_profile::Earlier;
use rustc_hash::FxHashMap;

/// Counts of functions from an earlier profile, by the build-id of their file and their address in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlierProfile {
    files: FxHashMap<Box<[u8]>, FxHashMap<Svma, Earlier>>,
}

impl EarlierProfile {
    /// Adds the counts of a function. A file without a build-id cannot be recognised, so its functions are left out.
    pub fn add(&mut self, build_id: &[u8], function: Svma, counts: Earlier) {
        if !build_id.is_empty() {
            self.files.entry(build_id.into()).or_default().insert(function, counts);
        }
    }

    /// The counts of a function; `None` if the profile has none.
    pub fn of(&self, build_id: &[u8], function: Svma) -> Option<&Earlier> {
        self.files.get(build_id)?.get(&function)
    }
}
