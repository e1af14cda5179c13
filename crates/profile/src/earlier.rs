//! Counts of an earlier profile, by which the counters of a new one are placed.

use std::collections::BTreeMap;

use ingraft_model::{BlockId, Cfg, Edge, EdgeId, EdgeTarget, IndexVec, Svma};

/// Counts from an earlier profile of the same function, which decide where counters are placed: on the edges that control passed least.
/// Any counts give exact profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// Number of executions of each block.
    pub blocks: IndexVec<BlockId, u64>,
    /// Number of passages of each edge; `None` if it is not known.
    pub edges: IndexVec<EdgeId, Option<u64>>,
}

impl Earlier {
    /// Count of a block.
    pub(crate) fn block(&self, block: BlockId) -> u64 {
        self.blocks.get(block).copied().unwrap_or_default()
    }

    /// Count of an edge. If it is not known, the smaller count of the edge's blocks.
    pub(crate) fn edge(&self, cfg: &Cfg, id: EdgeId) -> u64 {
        let known = self.edges.get(id).copied().flatten();
        let bound = |edge: &Edge| match edge.to {
            EdgeTarget::Block(to) => self.block(edge.from).min(self.block(to)),
            EdgeTarget::Outside(_) | EdgeTarget::Dynamic => self.block(edge.from),
        };
        known.or_else(|| cfg.edges.get(id).map(bound)).unwrap_or_default()
    }
}

/// Counts of functions from an earlier profile, by the build-id of their file and their address in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlierProfile {
    files: BTreeMap<Box<[u8]>, BTreeMap<Svma, Earlier>>,
}

impl EarlierProfile {
    /// Adds the counts of a function. A file without a build-id cannot be recognised, so its functions are left out.
    pub fn add(&mut self, build_id: &[u8], function: Svma, counts: Earlier) {
        if !build_id.is_empty() {
            self.files.entry(build_id.into()).or_default().insert(function, counts);
        }
    }

    /// All functions with their counts: those of one file after the other.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Svma, &Earlier)> {
        let functions = self.files.iter().map(|(build_id, functions)| functions.iter().map(move |of| (build_id, of)));
        functions.flatten().map(|(build_id, (start, counts))| (&**build_id, *start, counts))
    }

    /// The counts of a function; `None` if the profile has none.
    pub fn of(&self, build_id: &[u8], function: Svma) -> Option<&Earlier> {
        self.files.get(build_id)?.get(&function)
    }
}
