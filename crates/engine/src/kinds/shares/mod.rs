//! Shares of the variance of a function's times: for each call of the function, its time and the values of suspected parts of it. The crate
//! `ingraft-profile` defines the shares (`times/shares.rs`).
//!
//! `plan.rs` finds the points of the parts, and `code.rs` has the code: one record for each call. The engine adds the records up ten times a second.

mod code;
mod plan;

use std::sync::Arc;

use ingraft_model::{FunctionId, VariableId};
use ingraft_process::TickClock;
use ingraft_profile::CallMoments;

use crate::api::{MeasuredSuspect, MeasuredSuspects, MetricFocus, Removed, SharesOptions};
use crate::error::{Error, Reason};
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::session::{Drained, InsertedPairs, KindRequest, Locked, NewBuffers, Records, Running, values_in};

use self::code::{ACTIVATIONS, CALLS, METRIC, PASSED, RECORDS, RECURSIVE};
use self::plan::SharesPlan;
use super::code::{focus, refused};
use super::prints::UNRECORDED;
use super::prints::answer::Counted;
use super::whole;

/// Bits after the point when the length of a tick is computed.
const TICK_BITS: u32 = 32;

/// Measured calls of a function.
pub struct SharesKind {
    options: SharesOptions,
    /// The plan; `None` before the request is evaluated, and if the function is refused.
    plan: Option<SharesPlan>,
    /// Key of the pair; `None` before the request is evaluated.
    key: Option<PairKey>,
    /// First counters of the pair's variables; empty before the insertion.
    counters: Vec<u32>,
    moments: CallMoments,
}

impl Records for SharesKind {
    fn complete(bytes: &[u8]) -> Result<usize, usize> {
        Ok(bytes.len())
    }
}

impl SharesKind {
    /// A measurement that has not begun.
    pub fn new(options: SharesOptions) -> Self {
        SharesKind { options, plan: None, key: None, counters: Vec::new(), moments: CallMoments::default() }
    }

    /// Adds up what threads have recorded. A call whose values have no room in the sums counts as lost.
    fn add(&mut self, drained: &[Drained]) {
        for record in drained.iter().flat_map(|drained| values_in(&drained.bytes)) {
            self.moments.add(&record.words);
        }
    }

    fn counter(&self, variable: VariableId) -> Option<u32> {
        self.counters.get(variable.0 as usize).copied()
    }

    /// The final sums and numbers of calls. `made` and `skipped` are numbers of records.
    fn answer(&self, at: &Locked<'_>, (made, skipped): (u64, u64)) -> MeasuredSuspects {
        let sum = |variable| self.counter(variable).map_or(0, |counter| at.sum(counter));
        let outcome = |variable, n| self.counter(variable).map_or(0, |first| at.sum(first + n));
        let common = |variable| self.counter(variable).map_or(0, |counter| at.common(counter));
        let passed = sum(PASSED);
        let counts = Counted {
            calls: sum(CALLS).max(passed),
            passed,
            made,
            skipped,
            lost: 0,
            unfollowed: outcome(ACTIVATIONS, UNRECORDED).saturating_add(common(CALLS).saturating_sub(common(PASSED))),
            printed: self.moments.calls,
            limited: 0,
        };
        let mut measured = 0;
        let suspects = self.plan.iter().flat_map(|plan| &plan.parts).map(|part| {
            let missed = match (&part.points, code::outcomes(measured)) {
                (Ok(code::PartPoints::CallSite(..)), Some(of)) => {
                    outcome(of, 0).saturating_add(outcome(of, UNRECORDED))
                }
                (Ok(code::PartPoints::Header(_)) | Err(_), _) | (_, None) => 0,
            };
            measured += usize::from(part.points.is_ok());
            let refused = part.points.as_ref().err().cloned();
            MeasuredSuspect { suspect: part.suspect, refused, inside: part.inside.clone(), missed }
        });
        let scale = at.wall_clock().map(TickClock::scale);
        MeasuredSuspects {
            suspects: suspects.collect(),
            moments: self.moments.clone(),
            tick_ns: scale.map_or(0.0, |scale| scale.apply(1 << TICK_BITS) as f64 / (1_u64 << TICK_BITS) as f64),
            counts: counts.counts(true),
            recursive: sum(RECURSIVE),
        }
    }
}

/// The function of a request.
fn only(functions: &[FunctionId]) -> Result<FunctionId, Error> {
    let [function] = functions else {
        let what = format!("{} functions match, and suspects are parts of one function", functions.len());
        return Err(Error::new(Reason::TooManyFunctions, what, "name the function as MODULE+0xOFFSET"));
    };
    Ok(*function)
}

impl Running for SharesKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let named = whole::functions(asked, false)?;
        let function = only(&named)?;
        let Some(focus) = focus(asked.modules, function) else { return Ok(Vec::new()) };
        let texts = whole::texts(asked.modules, &named);
        let plan = texts.get(&function.module).ok_or(ingraft_model::Refusal::NoSuchFunction);
        let plan = plan.and_then(|text| SharesPlan::new((asked.modules, text), function, &self.options.suspects));
        let instrumentation = match &plan {
            Ok(plan) => plan.instrumentation(&self.options),
            Err(why) => refused(function, METRIC, why.clone()),
        };
        let measured = plan.iter().flat_map(|plan| &plan.parts).filter(|part| part.points.is_ok()).count();
        self.moments = CallMoments::new(1 + measured);
        self.plan = plan.ok();
        let pair = Arc::new(MetricFocus { metric: METRIC.to_owned(), focus });
        let owner = Owner { measurement: asked.id, purpose: PairPurpose::Asked };
        let wanted = WantedPair { function: Some(function), ..WantedPair::owned(owner, pair, instrumentation) };
        self.key = Some(PairKey::of(&wanted));
        Ok(vec![wanted])
    }

    fn inserted(&mut self, at: &mut Locked<'_>, _: &mut InsertedPairs<'_>) {
        let Some(pair) = self.key.as_ref().and_then(|key| at.pair(key)).filter(|_| self.plan.is_some()) else { return };
        self.counters = pair.counters().to_vec();
        let Some(first) = self.counter(RECORDS) else { return };
        at.begin_buffers::<SharesKind>(NewBuffers {
            first,
            capacity: self.options.capacity,
            times: false,
            waits: false,
            values: true,
            grouped: false,
            burst: code::burst(&self.options),
            contexts: None,
        });
    }

    fn needs_libraries(&self) -> bool {
        true
    }

    /// A library that was loaded since has no part.
    fn grown(&mut self, _: &mut Locked<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    fn tick(&mut self, at: &mut Locked<'_>) {
        let drained = at.drain::<SharesKind>();
        self.add(&drained);
    }

    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let counts = at.end_buffers::<SharesKind>().map(|last| {
            self.add(&last.drained);
            (last.counts.made, last.counts.skipped)
        });
        removed.shares = Some(self.answer(at, counts.unwrap_or_default()));
    }
}
