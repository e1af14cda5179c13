//! State that the driver shares with readers of values.

use std::sync::Arc;

use ingraft_model::{Fold, ObjectState, Shape};
use ingraft_process::SharedArea;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::pairs::PairKey;
use crate::program::symbols::Symbols;
use crate::readings::values::{Columns, EndedThreads, Raw, Ruler, Shapes, Slots};

use super::buffers::Buffers;
use super::costs::{Ledger, Timers};
use super::frozen::Frozen;
use super::measurement::Measurement;
use super::roster::Roster;

/// State that readers of values use.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) area: Option<Arc<SharedArea>>,
    /// The threads that count.
    pub(super) roster: Roster,
    pub(super) ended: EndedThreads,
    /// Number of counters, from 0 on, into which code may have counted.
    pub(super) used_counters: u32,
    /// Shapes of the variables that counters belong to.
    pub(super) shapes: Shapes,
    /// Names of addresses; empty until a pair has values by key.
    pub(super) symbols: Symbols,
    /// Whether system calls of generated code may not reach the kernel, as the look at the attachment found.
    pub(super) filtered: bool,
    /// Accounts of the costs of pairs.
    pub(super) ledger: Ledger,
    /// Number of pairs by the clock of their timer.
    pub(super) timers: Timers,
    /// Buffers to which threads append.
    pub(super) buffers: Buffers,
    /// Frozen values of pairs whose code was taken out, by the first counter.
    pub(super) frozen: FxHashMap<u32, Frozen>,
}

impl Shared {
    /// The present values of all counters; `None` without a data area.
    pub(super) fn columns(&self) -> Option<Columns<'_>> {
        let area = self.area.as_deref()?;
        Some(Columns::new(area, &self.ended, self.used_counters, &|identity| self.roster.thread(identity)))
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

    /// The pairs of a measurement that were taken out, those without values for clients included.
    pub(super) fn taken_out(&self, measurement: &Measurement) -> FxHashSet<PairKey> {
        let views = measurement.views.iter().chain(&measurement.hidden);
        let out = views.filter(|view| self.frozen.contains_key(&view.value.first));
        out.map(|view| view.key.clone()).collect()
    }
}
