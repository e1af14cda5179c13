//! Refusals of an insertion: requests of which nothing can be measured, and the reasons that they are told.

use std::cmp::Reverse;

use ingraft_model::{FunctionId, Instrumentation, Refusal};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::RefusedFunction;
use crate::error::{Error, Reason};
use crate::measure::request::WantedPair;
use crate::pairs::{BoundPair, CommonSnippets, Fresh, PairKey, PointDraft, RefusedPieces, function_ref};
use crate::program::modules::Modules;
use crate::weaving::bodies::Copies;
use crate::weaving::sites::{Text, sites};
use crate::weaving::wanted::WantedPoints;

use super::control::Control;
use super::driver::Session;

/// Number of pairs that are looked at together for one that can be measured.
const A_FEW: usize = 64;

impl Session {
    /// Fails if no pair of these, which are not inserted yet, can be measured. Changes nothing.
    pub(super) fn refuse_hopeless_pairs(&self, control: &mut Control, wanted: &[WantedPair]) -> Result<(), Error> {
        // One pair with a place is enough, and it is usually among the first.
        match wanted.chunks(A_FEW).any(|few| self.refuse_all_of(control, few).is_ok()) {
            true => Ok(()),
            false => self.refuse_all_of(control, wanted),
        }
    }

    /// Fails if none of these pairs can be measured.
    fn refuse_all_of(&self, control: &mut Control, wanted: &[WantedPair]) -> Result<(), Error> {
        let keys: Vec<PairKey> = wanted.iter().map(PairKey::of).collect();
        if keys.iter().any(|key| control.pairs.contains_key(key)) {
            return Ok(());
        }
        let fresh = |(key, w): (PairKey, &WantedPair)| Fresh::alone(key, w.instrumentation.clone());
        let (bound, _) = self.bind(control, keys.into_iter().zip(wanted).map(fresh).collect())?;
        let common = CommonSnippets::default();
        let draft = PointDraft::of(&bound, &common, &mut control.minis);
        let hopeless = self.refuse_hopeless(control, draft.wanted(), &bound);
        control.give_back(&bound);
        hopeless
    }

    pub(super) fn refuse_hopeless(
        &self,
        control: &Control,
        wanted: &[WantedPoints<'_>],
        bound: &[BoundPair],
    ) -> Result<(), Error> {
        let mut reasons = RefusedPieces::default();
        // the definitions of each pair that have no place so far
        let groups = |i: &Instrumentation| i.insertions.iter().map(|i| i.group).collect::<FxHashSet<_>>();
        let mut placeless: Vec<_> = bound.iter().map(|(_, instrumentation, _)| groups(instrumentation)).collect();
        let woven = control.attached.iter().flat_map(|a| a.woven.changes());
        let (text, modules) = (Text::new(&self.target, woven), &control.modules);
        // all points of a function are adjacent
        for of_function in wanted.chunk_by(|a, b| a.function == b.function) {
            let pairs = || of_function.iter().flat_map(|w| w.minis.iter().map(|m| (w.function, m.pair)));
            for w in of_function {
                let mut found = sites(&text, modules, w.function, w.kind);
                w.assign(&mut found);
                let woven = control.attached.as_ref().map(|attached| &attached.woven);
                let (w, own) = (std::slice::from_ref(w), std::slice::from_mut(&mut found));
                let copies = Copies::choose(woven, (&text, modules), w, own);
                let [w] = w else { continue };
                let records = || control.modules.goroutine_pointer().is_some();
                let records = control.attached.as_ref().map_or_else(records, |a| a.env.goroutine.is_some());
                reasons.extend(w.refused(&found, &copies, records));
                self.name_kept(control, &mut reasons);
            }
            let places: FxHashSet<_> = pairs().filter(|p| !reasons.contains_key(p)).collect();
            for (function, pair) in places {
                let (Some((key, i, _)), Some(left)) = (bound.get(pair), placeless.get_mut(pair)) else { continue };
                i.insertions.iter().filter(|i| i.function == function).for_each(|i| _ = left.remove(&i.group));
                if left.is_empty() && !key.is_hidden() {
                    return Ok(());
                }
            }
        }
        self.all_refused(modules, bound, &reasons).map_or(Ok(()), Err)
    }

    /// Returns the error for a request of which no pair can be measured: each has a definition whose points are all refused. `None` if some
    /// pair can be measured.
    pub(super) fn all_refused(&self, modules: &Modules, bound: &[BoundPair], reasons: &RefusedPieces) -> Option<Error> {
        let is_asked = |(_, (key, i, _)): &(usize, &BoundPair)| !i.insertions.is_empty() && !key.is_hidden();
        let mut with_code = bound.iter().enumerate().filter(is_asked).peekable();
        // Pairs that only help others come without them.
        with_code.peek()?;
        if with_code.any(|(pair, (_, instrumentation, _))| !is_unmeasured(instrumentation, pair, reasons)) {
            return None;
        }
        let ((function, pair), refusal) = most_frequent(reasons)?;
        if !self.target.is_alive() {
            return Some(self.failed(ingraft_process::ProcessError::Gone(self.pid())));
        }
        let name = function_ref(modules, *function).map_or_else(String::new, |f| f.function);
        let part = bound.get(*pair).and_then(|(key, ..)| key.pair.focus.part("Code")?.names.get(2));
        let functions: FxHashSet<FunctionId> = reasons.keys().map(|(f, _)| *f).collect();
        let what = match (functions.len(), part, reasons.len()) {
            (n, None, _) => none_of(n, &name, refusal),
            (1, Some(part), 1) => format!("`{name}{part}` cannot be instrumented: {refusal}"),
            (1, Some(part), n) => {
                format!("none of {n} parts of `{name}` can be instrumented; `{name}{part}`: {refusal}")
            }
            (n, Some(part), _) => format!("none of {n} functions can be instrumented; `{name}{part}`: {refusal}"),
        };
        let hint = match refusal {
            Refusal::Kept { .. } => format!(
                "`ingraft read {pid}` prints the values that it has, and goes on; to count anew, take it out first: `ingraft detach -p {pid}`",
                pid = self.pid()
            ),
            _ => LISTS.to_owned(),
        };
        Some(Error::new(Reason::AllRefused, what, hint).about(self.pid()))
    }

    /// Returns the error for a request whose pairs are inserted, but have no code where it was asked for. `None` if some pair has a value.
    pub(super) fn all_unmeasured(&self, control: &Control, keys: &[(PairKey, Option<FunctionId>)]) -> Option<Error> {
        let asked = keys.iter().filter(|(key, _)| !key.is_hidden());
        let mut refused = Vec::new();
        for (key, _) in asked {
            let pair = control.pairs.get(key).filter(|pair| pair.unmeasured)?;
            refused.extend(pair.unwoven.iter().map(|(_, refused)| refused));
        }
        let first = refused.first()?;
        let what = none_of(refused.len(), &first.function.function, &first.reason);
        Some(Error::new(Reason::AllRefused, what, LISTS).about(self.pid()))
    }
}

/// Where users read more of refusals.
const LISTS: &str = "`ingraft functions` lists the functions with what can be done";

/// Words for functions that are all refused, one of them for this reason.
fn none_of(functions: usize, name: &str, why: &dyn std::fmt::Display) -> String {
    match functions {
        1 => format!("`{name}` cannot be instrumented: {why}"),
        n => format!("none of {n} functions can be instrumented; `{name}`: {why}"),
    }
}

/// A function, and the number of a pair that is refused there.
type PairInFunction = (FunctionId, usize);

/// The reason of the most refusals, at the first place that it concerns.
fn most_frequent(reasons: &RefusedPieces) -> Option<(&PairInFunction, &Refusal)> {
    let mut of_text: FxHashMap<String, (usize, Reverse<&PairInFunction>)> = FxHashMap::default();
    for (place, refusal) in reasons {
        let entry = of_text.entry(refusal.to_string()).or_insert((0, Reverse(place)));
        *entry = (entry.0 + 1, entry.1.max(Reverse(place)));
    }
    let (_, Reverse(place)) = of_text.into_values().max()?;
    Some((place, reasons.get(place)?))
}

/// Whether one of a pair's definitions, the metric's or a constraint's, is woven nowhere, so that its value means nothing.
pub(super) fn is_unmeasured(instrumentation: &Instrumentation, pair: usize, refused: &RefusedPieces) -> bool {
    if refused.is_empty() {
        return false;
    }
    let mut groups: FxHashMap<u32, bool> = FxHashMap::default();
    for insertion in &instrumentation.insertions {
        let has_place = groups.entry(insertion.group).or_default();
        *has_place |= !refused.contains_key(&(insertion.function, pair));
    }
    groups.values().any(|has_place| !has_place)
}

/// The functions of an instrumentation that could not be woven.
pub(super) fn refused_of(
    control: &Control,
    instrumentation: &Instrumentation,
    refused: &RefusedPieces,
    pair: usize,
) -> Vec<(FunctionId, RefusedFunction)> {
    if refused.is_empty() {
        return Vec::new();
    }
    let functions: FxHashSet<FunctionId> = instrumentation.insertions.iter().map(|i| i.function).collect();
    let mut unwoven: Vec<FunctionId> = functions.into_iter().filter(|f| refused.contains_key(&(*f, pair))).collect();
    unwoven.sort_unstable();
    let told = |f: FunctionId| {
        let (function, reason) = (function_ref(&control.modules, f)?, refused.get(&(f, pair))?.clone());
        Some((f, RefusedFunction { function, reason: reason.into() }))
    };
    unwoven.into_iter().filter_map(told).collect()
}
