//! Functions that were asked for and are not measured.

use std::collections::{HashMap, HashSet};

use ingraft_api::{MetricFocus, NamedFunction, PairInfo, RefusedFunction};
use ingraft_model::{PartName, Pid, Svma};
use serde::Serialize;

use super::{Host, RecordedFunction};

/// A function that was asked for and is not measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RefusedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: String,
    /// Metric of the pair that may not measure the function; left out with `focus` if the refusal holds for every pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metric: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) focus: Option<String>,
    /// Reason of the refusal as a stable word.
    pub(crate) reason: String,
    pub(crate) why_not: String,
}

impl RefusedObject {
    /// The record of a function that is not measured.
    pub(crate) fn new(of: &Unmeasured<'_>, pid: Pid, host: Host) -> Self {
        let RecordedFunction { host, pid, module, function, offset } =
            RecordedFunction::new(of.refused.function.clone(), pid, host);
        RefusedObject {
            host,
            pid,
            module,
            function,
            offset,
            metric: of.pair.map(|pair| pair.metric.clone()),
            focus: of.pair.map(|pair| pair.focus.to_string()),
            reason: of.refused.reason.reason().to_owned(),
            why_not: of.refused.reason.to_string(),
        }
    }
}

/// A function that is not measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmeasured<'a> {
    /// The function, and the reason.
    pub(crate) refused: &'a RefusedFunction,
    /// The pair that is refused, if other pairs measure the function.
    pub(crate) pair: Option<&'a MetricFocus>,
}

impl Unmeasured<'_> {
    /// The part of the function that is not measured; `None` for the whole function.
    pub(crate) fn part(&self) -> Option<PartName> {
        self.pair.and_then(|pair| PartName::of(&pair.focus))
    }

    /// The name of the function, with its part or the metric that is refused.
    pub(crate) fn name(&self) -> String {
        let function = &self.refused.function.function;
        match (self.part(), self.pair) {
            (Some(part), _) => format!("{function}{part}"),
            (None, Some(pair)) => format!("{function} by {}", pair.metric),
            (None, None) => function.clone(),
        }
    }
}

/// Module and offset of a function, which tell it from all others of the program.
pub(crate) type FunctionAt<'a> = (&'a str, Svma);

/// The place of a function.
pub(crate) fn place(function: &NamedFunction) -> FunctionAt<'_> {
    (&function.module, function.offset)
}

/// Returns each refused function of the pairs, and of the patterns (`others`), once. If some pairs measure a function, it is returned once for
/// each pair that may not measure it. The pair is named unless the pair is about the function alone.
pub(crate) fn unmeasured<'a>(pairs: &'a [PairInfo], others: &'a [RefusedFunction]) -> Vec<Unmeasured<'a>> {
    let of_pairs = pairs.iter().enumerate().flat_map(|(n, pair)| pair.refused.iter().map(move |one| (one, Some(n))));
    let all: Vec<_> = others.iter().map(|one| (one, None)).chain(of_pairs).collect();
    let mut of: HashMap<FunctionAt<'_>, HashSet<usize>> = HashMap::new();
    for (refused, pair) in &all {
        of.entry(place(&refused.function)).or_default().extend(*pair);
    }
    // The pairs that may concern a function: those about it, and those about no single function.
    let mut about: HashMap<Option<FunctionAt<'_>>, usize> = HashMap::new();
    for pair in pairs {
        *about.entry(pair.function.as_ref().map(place)).or_default() += 1;
    }
    let about = |function| about.get(&function).copied().unwrap_or_default();
    let is_part = |pair: &PairInfo| PartName::of(&pair.pair.focus).is_some();
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for (refused, number) in all {
        let at = place(&refused.function);
        let Some(its) = of.get(&at) else { continue };
        let partly = !its.is_empty() && about(None) + about(Some(at)) > its.len();
        let is_its_own = |pair: &PairInfo| pair.function.as_ref().map(place) == Some(at);
        let pair = number
            .and_then(|n| pairs.get(n))
            .filter(|pair| partly || its.len() == 1 && !is_its_own(pair) || is_part(pair));
        let by_part = number.is_none() && its.iter().any(|n| pairs.get(*n).is_some_and(is_part));
        if partly && pair.is_none() || by_part {
            // Another entry reports that a pair may not measure the function, so the match with the pattern is not reported again.
            continue;
        }
        let pair = pair.map(|pair| pair.pair.as_ref());
        if seen.insert((at, pair)) {
            out.push(Unmeasured { refused, pair });
        }
    }
    out
}
