//! State that readers of values share with the driver.

use std::sync::Arc;

use ingraft_model::{Fold, ObjectState, Pid, Shape, ThreadIdentity, Tid};
use ingraft_process::{SharedArea, ThreadBase};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::program::symbols::Symbols;
use crate::readings::values::{Columns, EndedThreads, Raw, Ruler, Shapes, Slots};

use super::accounts::{Ledger, Timers};
use super::{cost, loader};

/// State that readers use.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) area: Option<Arc<SharedArea>>,
    pub(super) identity: Option<ThreadIdentity>,
    pub(super) ended: EndedThreads,
    /// The hook that tells that the loader has worked.
    pub(super) hook: Option<loader::Hook>,
    /// Counters from 0 up to here may have been counted into.
    pub(super) used_counters: u32,
    /// Shapes of the variables to which counters belong.
    pub(super) shapes: Shapes,
    /// Names of addresses; empty until a pair has values by key.
    pub(super) symbols: Symbols,
    /// Identities (as the target's threads see themselves, or fs bases) to thread ids as we see them.
    pub(super) tids: FxHashMap<u64, Tid>,
    /// Fork children count like threads of the target.
    pub(super) family: bool,
    /// Process of each thread of followed children, of ended threads too.
    pub(super) followed: FxHashMap<Tid, Pid>,
    /// Everything is being taken out of the target and its children: they are not looked at.
    pub(super) leaving: bool,
    /// Processes of fork children that began without the state of the thread that forked.
    pub(super) stateless: FxHashSet<Pid>,
    /// Costs of pairs.
    pub(super) ledger: Ledger,
    /// Number of pairs by the clock of their timer.
    pub(super) timers: Timers,
    /// Values that stay as they are, by the first counter.
    pub(super) frozen: FxHashMap<u32, cost::Frozen>,
}

impl Shared {
    /// The values of all counters now; `None` without a data area.
    pub(super) fn columns(&self) -> Option<Columns<'_>> {
        let area = self.area.as_deref()?;
        let by_id = matches!(self.identity, Some(ThreadIdentity::FsOffset(_)));
        let tid = |identity: u64| self.tids.get(&identity).copied().or(by_id.then_some(Tid(identity as i32)));
        Some(Columns::new(area, &self.ended, self.used_counters, &tid))
    }

    /// States of synchronisation objects by address; empty if no list of them is kept.
    pub(super) fn objects(&self, columns: &Columns<'_>) -> FxHashMap<u64, ObjectState> {
        let lists =
            self.shapes.tables().filter(|(first, fold)| *fold == Fold::Last && !self.frozen.contains_key(first));
        let tables = lists
            .flat_map(|(first, fold)| columns.threads(Slots { first, shape: Shape::Table(fold) }, &[], Ruler::PLAIN));
        let all = tables.map(|(_, raw)| raw).fold(Raw::default(), Raw::plus);
        all.table.iter().flat_map(|table| table.states()).collect()
    }

    /// Notes the thread pointers of threads, if threads are told apart by them.
    pub(super) fn remember(&mut self, threads: &[ThreadBase], identity: ThreadIdentity) {
        if identity == ThreadIdentity::FsBase {
            self.tids.extend(threads.iter().map(|t| (t.fs_base, t.tid)));
        }
    }
}
