//! A metric-focus pair that is woven.

use std::sync::Arc;

use ingraft_model::layout::COUNTERS;
use ingraft_model::{
    Clock, FunctionId, IndexNames, Instrumentation, MetricInfo, ModuleId, PointKind, Refusal, Shape, Stmt, Tid,
    ValueNames, ValueUnit, Variable, VariableKind,
};
use rustc_hash::FxHashSet;

use crate::api::{MetricFocus, RefusedFunction};
use crate::readings::values::{RECORDS_ONLY, Slots};
use crate::weaving::cost::Meters;

use super::key::PairKey;
use super::numbering::Numbering;

/// Id of a group of pairs that share their code.
pub type GroupId = u64;

/// A snippet that pairs share: its function, its purpose there, its id.
pub type UnwindTarget = (FunctionId, Landing, u64);

/// Purpose of a snippet that pairs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Landing {
    /// At points of this kind, control arrives after an exception, a longjmp or a tail jump.
    At(PointKind),
    /// At its entry, the function leaves a stack.
    Leave,
    /// At its exits, the function has come to another stack.
    Enter,
}

impl Landing {
    /// Kind of the points at which the snippet is woven.
    pub fn kind(self) -> PointKind {
        match self {
            Landing::At(kind) => kind,
            Landing::Leave => PointKind::Entry,
            Landing::Enter => PointKind::Exit,
        }
    }
}

/// Whether a library was unloaded together with the probes in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unloaded {
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
pub struct Pair {
    /// The metric.
    pub metric: Arc<MetricInfo>,
    /// The variables of the pair's code; the first one holds the value.
    pub variables: Arc<[Variable]>,
    /// The first counter of each variable.
    pub counters: Vec<u32>,
    /// Ids of the snippets, each with the function at whose points the snippet is woven.
    pub minis: Vec<(FunctionId, u64)>,
    /// If the insertions were woven apart: for each one, the id of its snippet, or the reason why it is not woven. Otherwise empty.
    pub probes: Vec<Result<u64, Refusal>>,
    /// Whether the code of the probes was unloaded with its library, and whether the library came back without them.
    pub unloaded: Unloaded,
    /// Snippets at unwind targets, at entries to which other functions jump, and where stacks are switched. Other pairs may share them.
    pub unwind_targets: Vec<UnwindTarget>,
    /// Functions at whose unwind targets nothing could be woven.
    pub unlanded: Vec<FunctionId>,
    /// Whether the end of the pair's calls restores a state.
    pub restores: bool,
    /// Functions that could not be woven, with the reasons.
    pub unwoven: Vec<(FunctionId, RefusedFunction)>,
    /// Whether one of the pair's definitions is woven at no point, so that the value means nothing.
    pub unmeasured: bool,
    /// The only thread that counts; `None` for all threads.
    pub thread: Option<Tid>,
    /// The address of the object that the focus names.
    pub object: Option<u64>,
    /// Names of the indices of a vector; `None` if they are not known.
    pub index_names: Option<IndexNames>,
    /// Names of the values of each part of keys.
    pub key_names: Vec<ValueNames>,
    /// Counters of the hits of the pair's snippets.
    pub meters: Meters,
    /// Orders in which evaluations have numbered the pair's variables, the first one included. Empty as long as all orders are equal.
    pub(super) numberings: Vec<Numbering>,
    /// The group whose code the pair shares, and the place of the pair's key there.
    pub group: Option<(GroupId, u32)>,
    /// Number of measurements that read the pair.
    pub users: u32,
}

impl Pair {
    /// A pair whose code is not woven yet. `counters` has the first counter of each variable.
    pub fn new(instrumentation: Instrumentation, counters: Vec<u32>) -> Self {
        Pair {
            restores: restores(&instrumentation),
            thread: instrumentation.thread,
            object: instrumentation.object,
            index_names: instrumentation.index_names,
            key_names: instrumentation.key_names,
            ..Pair::holding(instrumentation.metric, instrumentation.variables, counters)
        }
    }

    /// A pair that has counters and no code.
    pub fn holding(metric: Arc<MetricInfo>, variables: Arc<[Variable]>, counters: Vec<u32>) -> Self {
        Pair {
            metric,
            variables,
            counters,
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
            key_names: Vec::new(),
            meters: Meters::default(),
            numberings: Vec::new(),
            group: None,
            users: 0,
        }
    }

    /// The first counter of each variable.
    pub fn counters(&self) -> &[u32] {
        &self.counters
    }

    /// The variables.
    pub fn variables(&self) -> &Arc<[Variable]> {
        &self.variables
    }

    /// Functions that could not be woven, with the reasons.
    pub fn refusals(&self) -> &[(FunctionId, RefusedFunction)] {
        &self.unwoven
    }

    /// The snippets that are woven, each with the function at whose points it is.
    pub fn snippets(&self) -> &[(FunctionId, u64)] {
        &self.minis
    }

    /// Whether a snippet is woven.
    pub fn is_woven(&self) -> bool {
        !self.minis.is_empty()
    }

    /// Whether a snippet was ever woven. The code of an unloaded library is gone, its counters are not.
    pub fn was_woven(&self) -> bool {
        !self.minis.is_empty() || self.unloaded != Unloaded::No
    }

    /// If the insertions were woven apart: for each one, the id of its snippet, or the reason why it is not woven.
    pub fn probes(&self) -> &[Result<u64, Refusal>] {
        &self.probes
    }

    /// Whether the library of the probes was unloaded and loaded again without them.
    pub fn came_back(&self) -> bool {
        self.unloaded == Unloaded::Back
    }

    /// The functions in which the pair is woven.
    pub fn functions(&self) -> Vec<FunctionId> {
        let mut functions: Vec<_> = self.minis.iter().map(|(f, _)| *f).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    /// The function in which the pair is woven; `None` if there are several, or none.
    pub fn only_function(&self) -> Option<FunctionId> {
        let mut functions = self.minis.iter().map(|(f, _)| *f);
        functions.next().filter(|first| functions.all(|f| f == *first))
    }

    /// The functions that were woven for the pair or refused, so that they are not woven again.
    pub fn known_functions(&self) -> FxHashSet<FunctionId> {
        self.minis.iter().map(|(f, _)| *f).chain(self.unwoven.iter().map(|(f, _)| *f)).collect()
    }

    /// Returns the warning that this pair cannot be measured although other pairs are; `None` if the pair is measured. `function` is the one that the
    /// focus names, if it names one.
    pub fn why_unmeasured(&self, key: &PairKey, function: Option<FunctionId>) -> Option<String> {
        // That function is reported as refused instead.
        let by_name = key.pair.focus.part("Code").is_some_and(|code| code.names.len() >= 2) && self.minis.is_empty();
        let is_told = function.is_some_and(|function| self.unwoven.iter().any(|(refused, _)| *refused == function));
        if !self.unmeasured || by_name || is_told {
            return None;
        }
        let MetricFocus { metric, focus } = &*key.pair;
        Some(format!("`{metric}` at `{focus}` is not measured: one of its definitions can be woven nowhere"))
    }

    /// The functions in which the pair could not be woven.
    pub fn refused(&self) -> Vec<RefusedFunction> {
        self.unwoven.iter().map(|(_, refused)| refused.clone()).collect()
    }

    /// Counters of the pair's value, counters of the activations that the pair follows, and unit of the value.
    pub fn value(&self) -> Option<(Slots, Vec<u32>, ValueUnit)> {
        let (first, own) = (*self.counters.first()?, self.variables.first()?);
        let variables = self.counters.iter().zip(self.variables.iter());
        let activations = variables.filter(|(_, v)| v.kind == VariableKind::Activations);
        let activations =
            activations.map(|(first, v)| if v.sampled { *first } else { *first | RECORDS_ONLY }).collect();
        Some((Slots { first, shape: own.shape }, activations, own.unit))
    }

    /// The counters of the left calls that the pair's readings contain.
    pub fn left_calls(&self) -> impl Iterator<Item = u32> {
        let activations = self.value().map(|(_, activations, _)| activations).unwrap_or_default();
        activations.into_iter().filter(|first| first & RECORDS_ONLY == 0)
    }

    /// The names of the pair's activation records: the offsets of the counters of its activations in a shard.
    pub fn records(&self) -> FxHashSet<u32> {
        let variables = self.counters.iter().zip(self.variables.iter());
        let named = variables.filter(|(_, v)| v.shape == Shape::Activations);
        named.map(|(first, _)| COUNTERS + 8 * first).collect()
    }

    /// Whether the pair's value begins at a counter. An earlier or later pair with the same key has another one.
    pub fn begins_at(&self, first: u32) -> bool {
        self.counters.first() == Some(&first)
    }

    /// Whether the pair's code does more than count.
    pub fn is_costly(&self) -> bool {
        is_costly(&self.variables)
    }

    /// The clock of the pair's value, if the value is a timer.
    pub fn timer(&self) -> Option<Clock> {
        match self.variables.first()?.shape {
            Shape::Timer(clock) => Some(clock),
            Shape::Counter
            | Shape::Histogram(_)
            | Shape::Activations
            | Shape::Outermost
            | Shape::Table(_)
            | Shape::Vector(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Contexts(_)
            | Shape::Records(..)
            | Shape::Event
            | Shape::Alias(_) => None,
        }
    }

    /// Id of the snippet with this purpose that the pair shares with others in a function.
    pub fn landing(&self, function: FunctionId, landing: Landing) -> Option<u64> {
        self.unwind_targets.iter().find(|(f, l, _)| (*f, *l) == (function, landing)).map(|(.., id)| *id)
    }

    /// Forgets the functions of modules whose text is gone.
    pub(super) fn forget_modules(&mut self, gone: &[ModuleId]) {
        let stays = |f: &FunctionId| !gone.contains(&f.module);
        let before = self.minis.len();
        self.minis.retain(|(f, _)| stays(f));
        if !self.probes.is_empty() && self.minis.len() < before {
            self.unloaded = Unloaded::Gone;
        }
        self.unwind_targets.retain(|(f, ..)| stays(f));
        self.unlanded.retain(stays);
        self.unwoven.retain(|(f, _)| stays(f));
    }
}

/// Whether code with these variables does more than count, and may be left out if it costs too much. Traces and paths of functions are asked for
/// as a whole.
pub fn is_costly(variables: &[Variable]) -> bool {
    let is_asked_for = |v: &Variable| matches!(v.shape, Shape::Buffer(_)) || v.kind == VariableKind::PathSum;
    !variables.iter().any(is_asked_for)
        && variables.iter().any(|v| !matches!(v.shape, Shape::Counter | Shape::Alias(_) | Shape::Records(_, true)))
}

/// Whether the end of a call restores a state.
pub fn restores(instrumentation: &Instrumentation) -> bool {
    fn any(stmts: &[Stmt]) -> bool {
        stmts.iter().any(|stmt| match stmt {
            Stmt::Open(record, body) => record.restore.is_some() || any(body),
            Stmt::If(_, body) => any(body),
            _ => false,
        })
    }
    instrumentation.insertions.iter().any(|i| any(&i.snippet.stmts))
}
