//! Metric-focus pairs that are woven, and the key by which requests share one.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use ingraft_model::{FunctionRef as MdlFunction, IndexNames, MetricInfo, PointKind, Refusal, Tid, Variable};
use rustc_hash::FxBuildHasher;

use crate::api::{FunctionRef, MetricFocus, PairInfo, RefusedFunction};
use crate::measure::request::{Owner, Wanted};
use crate::program::modules::Modules;
use crate::weaving::cost::Meters;

use super::control::Control;
use super::numbering::Numbering;
use super::sharing::GroupId;

/// Key of a pair. Requests with equal keys share code and counters. A key is cheap to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PairKey {
    /// Text of the metric, so that a redefined metric has another key.
    pub(super) text: Arc<str>,
    /// Text of the lists, constraints and exclusions that the metric may use, except the shipped ones.
    pub(super) helpers: Arc<str>,
    /// The measurement that has the pair alone; `None` if requests share it.
    pub(super) owner: Option<Owner>,
    pub(super) pair: Arc<MetricFocus>,
    /// Hash of the metric and focus alone, because the text is long and few metrics have the same name.
    pub(super) hash: u64,
}

/// A snippet at a place where control arrives after an exception, a longjmp or a tail jump: its function, the kind of its points, its id.
/// Pairs share such snippets.
pub(super) type UnwindTarget = (MdlFunction, PointKind, u64);

/// Whether a library was unloaded together with the probes in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unloaded {
    /// The probes are where they were woven.
    #[default]
    No,
    /// The library was unloaded.
    Gone,
    /// The library was unloaded and loaded again.
    Back,
}

/// A metric-focus pair that is woven.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(super) metric: Arc<MetricInfo>,
    pub(super) variables: Arc<[Variable]>,
    /// The first counter of each variable; the first variable holds the value.
    pub(super) counters: Vec<u32>,
    /// Ids of the snippets, each with the function at whose points the snippet is woven.
    pub(super) minis: Vec<(MdlFunction, u64)>,
    /// If the insertions were woven apart: for each one, the id of its snippet, or the reason why it is not woven. Otherwise empty.
    pub(super) probes: Vec<Result<u64, Refusal>>,
    /// Whether the code of the probes was unloaded with its library, and whether the library came back without them.
    pub(super) unloaded: Unloaded,
    /// Snippets at unwind targets and at entries to which other functions jump. Other pairs may share them.
    pub(super) unwind_targets: Vec<UnwindTarget>,
    /// Functions at whose unwind targets nothing could be woven.
    pub(super) unlanded: Vec<MdlFunction>,
    /// Whether the end of the pair's calls restores a state.
    pub(super) restores: bool,
    /// Functions that could not be woven, with the reasons.
    pub(super) unwoven: Vec<(MdlFunction, RefusedFunction)>,
    /// Whether one of the pair's definitions is woven at no point, so that the value means nothing.
    pub(super) unmeasured: bool,
    /// The only thread that counts; `None` for all threads.
    pub(super) thread: Option<Tid>,
    /// The address of the object that the focus names.
    pub(super) object: Option<u64>,
    pub(super) index_names: Option<IndexNames>,
    /// Counters of the hits of the pair's snippets.
    pub(super) meters: Meters,
    /// Orders in which evaluations have numbered the pair's variables, the first one included. Empty as long as all orders are equal.
    pub(super) numberings: Vec<Numbering>,
    /// The group whose code the pair shares, and the place of the pair's key there.
    pub(super) group: Option<(GroupId, u32)>,
    pub(super) users: u32,
}

impl Pair {
    /// A pair without code, which holds a counter.
    pub(super) fn without_code(metric: Arc<MetricInfo>, variable: Variable, counter: u32) -> Self {
        Pair {
            metric,
            variables: [variable].into(),
            counters: vec![counter],
            minis: Vec::new(),
            probes: Vec::new(),
            unloaded: Unloaded::No,
            unwind_targets: Vec::new(),
            unlanded: Vec::new(),
            restores: false,
            unwoven: Vec::new(),
            unmeasured: false,
            thread: None,
            object: None,
            index_names: None,
            meters: Meters::default(),
            numberings: Vec::new(),
            group: None,
            users: 0,
        }
    }

    /// The first counter of each variable.
    pub(crate) fn counters(&self) -> &[u32] {
        &self.counters
    }

    /// The variables.
    pub(crate) fn variables(&self) -> &Arc<[Variable]> {
        &self.variables
    }

    /// Functions that could not be woven, with the reasons.
    pub(crate) fn refusals(&self) -> &[(MdlFunction, RefusedFunction)] {
        &self.unwoven
    }

    /// The snippets that are woven, each with the function at whose points it is.
    pub(crate) fn snippets(&self) -> &[(MdlFunction, u64)] {
        &self.minis
    }

    /// Whether a snippet is woven.
    pub(crate) fn is_woven(&self) -> bool {
        !self.minis.is_empty()
    }

    /// Whether a snippet was ever woven. The code of an unloaded library is gone, its counters are not.
    pub(crate) fn was_woven(&self) -> bool {
        !self.minis.is_empty() || self.unloaded != Unloaded::No
    }

    /// If the insertions were woven apart: for each one, the id of its snippet, or the reason why it is not woven.
    pub(crate) fn probes(&self) -> &[Result<u64, Refusal>] {
        &self.probes
    }

    /// Whether the library of the probes was unloaded and loaded again without them.
    pub(crate) fn came_back(&self) -> bool {
        self.unloaded == Unloaded::Back
    }

    /// The functions in which the pair is woven.
    pub(super) fn functions(&self) -> Vec<MdlFunction> {
        let mut functions: Vec<_> = self.minis.iter().map(|(f, _)| *f).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    /// Returns the warning that this pair cannot be measured although other pairs are; `None` if the pair is measured.
    pub(super) fn why_unmeasured(&self, key: &PairKey) -> Option<String> {
        // If the focus names one function, that function is reported as refused instead.
        let by_name = key.pair.focus.part("Code").is_some_and(|code| code.names.len() >= 2) && self.minis.is_empty();
        if !self.unmeasured || by_name {
            return None;
        }
        let MetricFocus { metric, focus } = &*key.pair;
        Some(format!("`{metric}` at `{focus}` is not measured: one of its definitions can be woven nowhere"))
    }

    /// The functions in which the pair could not be woven.
    pub(super) fn refused(&self) -> Vec<RefusedFunction> {
        self.unwoven.iter().map(|(_, refused)| refused.clone()).collect()
    }
}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PairKey {
    /// The key of a wanted pair.
    pub(crate) fn of(wanted: &Wanted) -> Self {
        let key = PairKey::new(Arc::clone(&wanted.instrumentation.metric.text), Arc::clone(&wanted.pair));
        PairKey { helpers: Arc::clone(&wanted.helpers), owner: wanted.owner, ..key }
    }

    pub(super) fn new(text: Arc<str>, pair: Arc<MetricFocus>) -> Self {
        let hash = FxBuildHasher.hash_one(&pair);
        PairKey { text, helpers: Arc::default(), owner: None, pair, hash }
    }

    /// The key of a pair that belongs to one measurement, and whose metric is not of MDL.
    pub(crate) fn owned(owner: Owner, pair: Arc<MetricFocus>) -> Self {
        PairKey { owner: Some(owner), ..PairKey::new(pair.metric.as_str().into(), pair) }
    }

    /// Metric and focus.
    pub(crate) fn pair(&self) -> &MetricFocus {
        &self.pair
    }

    /// Whether the pair has no value for clients, so that no request is about it.
    pub(super) fn is_hidden(&self) -> bool {
        self.owner.is_some_and(|owner| owner.hidden)
    }
}

pub(super) fn pair_infos(control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<PairInfo> {
    keys.iter()
        .filter_map(|(key, function)| {
            let pair = control.pairs.get(key)?;
            let functions = pair.functions();
            // A focus from a pattern comes with its function. A focus that names a function gets it if the pair is woven in that one alone.
            let code = key.pair.focus.part("Code").filter(|code| code.names.len() >= 2);
            let only = if let [only] = functions.as_slice() { Some(*only) } else { None };
            let function = function.or(only.filter(|_| code.is_some()));
            let is_exposed =
                |f: &MdlFunction| control.attached.as_ref().is_some_and(|a| a.woven.is_exposed(&control.modules, *f));
            Some(PairInfo {
                exposed: functions.iter().any(is_exposed),
                function: function.and_then(|f| function_ref(&control.modules, f)),
                edge_kinds: function.map_or_else(Vec::new, |f| control.modules.edge_kinds(f, &key.pair.focus)),
                points: functions.len() as u32,
                refused: pair.refused(),
                ..PairInfo::new(Arc::clone(&key.pair), Arc::clone(&pair.metric))
            })
        })
        .collect()
}

/// A function in the form for clients.
pub(super) fn function_ref(modules: &Modules, function: MdlFunction) -> Option<FunctionRef> {
    let (file, _, f) = modules.resolve(function)?;
    Some(FunctionRef { module: file.name.clone(), function: f.display_name().into_owned(), offset: f.start() })
}
