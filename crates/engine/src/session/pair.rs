//! Metric-focus pairs that are woven, and the key by which requests share one.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use ingraft_model::{FunctionRef as MdlFunction, IndexNames, MetricInfo, PointKind, Tid, Variable};
use rustc_hash::FxBuildHasher;

use crate::api::{FunctionRef, MetricFocus, PairInfo, RefusedFunction};
use crate::measure::request::Wanted;
use crate::program::modules::Modules;
use crate::weaving::cost::Meters;

use super::control::Control;
use super::numbering::Numbering;
use super::sharing::GroupId;

/// Key of a pair. Requests with equal keys share code and counters. Cheap to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PairKey {
    /// The metric's text: a redefinition is another metric.
    pub(super) text: Arc<str>,
    /// The lists, constraints and exclusions that are not shipped, which the metric may use.
    pub(super) helpers: Arc<str>,
    pub(super) pair: Arc<MetricFocus>,
    /// Of the pair alone: the text is long, and few metrics have the same name.
    pub(super) hash: u64,
}

/// A snippet that pairs share, where control lands after exceptions, longjmp and tail jumps: its function, which of the points, its number.
pub(super) type Landing = (MdlFunction, PointKind, u64);

/// A metric-focus pair that is woven.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) metric: Arc<MetricInfo>,
    pub(super) variables: Arc<[Variable]>,
    /// The first counter of each variable; the first variable holds the value.
    pub(super) counters: Vec<u32>,
    /// Snippets by number, with the functions at whose points they stand.
    pub(super) minis: Vec<(MdlFunction, u64)>,
    /// The same where exceptions and longjmp land, and at entries to which others jump; other pairs may have them as well.
    pub(super) landings: Vec<Landing>,
    /// Functions at whose unwind targets nothing could be woven.
    pub(super) unlanded: Vec<MdlFunction>,
    /// The end of its calls puts something back.
    pub(super) restores: bool,
    /// Functions that could not be woven, and why.
    pub(super) unwoven: Vec<(MdlFunction, RefusedFunction)>,
    /// One of its definitions is woven nowhere: its value tells nothing.
    pub(super) unmeasured: bool,
    /// The only thread that counts.
    pub(super) thread: Option<Tid>,
    /// The address of the object that the focus names.
    pub(super) object: Option<u64>,
    pub(super) index_names: Option<IndexNames>,
    /// Counters of the hits of its snippets.
    pub(super) meters: Meters,
    /// Orders of its variables, that of the first evaluation included; empty as long as there is only one.
    pub(super) numberings: Vec<Numbering>,
    /// The group whose code it shares, and the place of its key there.
    pub(super) group: Option<(GroupId, u32)>,
    pub(super) users: u32,
}

impl Pair {
    /// The functions in which it is woven.
    pub(super) fn functions(&self) -> Vec<MdlFunction> {
        let mut functions: Vec<_> = self.minis.iter().map(|(f, _)| *f).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    /// The warning that a pair cannot be measured although others are.
    pub(super) fn why_unmeasured(&self, key: &PairKey) -> Option<String> {
        // a function by name is told as refused
        let by_name = key.pair.focus.part("Code").is_some_and(|code| code.names.len() == 2) && self.minis.is_empty();
        if !self.unmeasured || by_name {
            return None;
        }
        let MetricFocus { metric, focus } = &*key.pair;
        Some(format!("`{metric}` at `{focus}` is not measured: one of its definitions can be woven nowhere"))
    }

    /// The functions in which it could not be woven.
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
    pub(super) fn of(wanted: &Wanted) -> Self {
        let key = PairKey::new(Arc::clone(&wanted.instrumentation.metric.text), Arc::clone(&wanted.pair));
        PairKey { helpers: Arc::clone(&wanted.helpers), ..key }
    }

    pub(super) fn new(text: Arc<str>, pair: Arc<MetricFocus>) -> Self {
        let hash = FxBuildHasher.hash_one(&pair);
        PairKey { text, helpers: Arc::default(), pair, hash }
    }
}

pub(super) fn pair_infos(control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<PairInfo> {
    keys.iter()
        .filter_map(|(key, function)| {
            let pair = control.pairs.get(key)?;
            let functions = pair.functions();
            // A focus that names one function by hand is shown like one that came from a pattern.
            let code = key.pair.focus.part("Code").filter(|code| code.names.len() == 2);
            let only = if let [only] = functions.as_slice() { Some(*only) } else { None };
            let function = function.or(only.filter(|_| code.is_some()));
            Some(PairInfo {
                function: function.and_then(|f| function_ref(&control.modules, f)),
                points: functions.len() as u32,
                refused: pair.refused(),
                ..PairInfo::new(Arc::clone(&key.pair), Arc::clone(&pair.metric))
            })
        })
        .collect()
}

/// A function as clients see it.
pub(super) fn function_ref(modules: &Modules, function: MdlFunction) -> Option<FunctionRef> {
    let (file, _, f) = modules.resolve(function)?;
    Some(FunctionRef { module: file.name.clone(), function: f.display_name().into_owned(), offset: f.start() })
}
