//! Doubts about the counts of a profile: threads whose places are not known, and leaps out of signal handlers. Each may change the counts of one
//! path by 1, but only in functions in which the thread has counted.

use std::sync::Arc;

use ingraft_model::{Focus, FunctionRef as MdlFunction, Tid};
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, MetricFocus};
use crate::measure::request::Wanted;
use crate::profile::leaps;
use crate::program::modules::{ModuleFile, Modules};
use crate::weaving::positions::Seen;

use super::control::Control;
use super::driver::Session;
use super::inclusive::is_of_inclusive;
use super::measurement::Measurement;
use super::pair::PairKey;
use super::profile::{Profile, Profiled};
use super::view::View;

/// The libraries that have functions which leave signal handlers.
const LIBRARIES: [&str; 2] = ["libc", "ld-musl-x86_64"];

/// Signals for which glibc sets handlers of its own.
const OF_LIBC: u64 = 0b11 << 31;

/// Leaps since a profile began.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaps {
    /// Number of leaps that were counted.
    pub(super) counted: u64,
    /// Function whose leaps are not counted, with the reason; `None` if all are.
    blind: Option<String>,
}

impl Leaps {
    /// Whether a run may have ended in the middle.
    pub(super) fn any(&self) -> bool {
        self.counted > 0 || self.blind.is_some()
    }

    /// A sentence about the counts that the leaps may change; `None` if there were none.
    pub(super) fn words(&self) -> Option<String> {
        if let Some(blind) = &self.blind {
            return Some(format!("jumps out of signal handlers may have ended runs in the middle, and {blind}"));
        }
        match self.counted {
            0 => None,
            1 => Some(
                "1 jump may have left a signal handler (siglongjmp) and the run that the signal had interrupted, which may change the counts of one path by 1"
                    .to_owned(),
            ),
            n => Some(format!(
                "{n} jumps may have left signal handlers (siglongjmp) and the runs that the signals had interrupted: each may change the counts of one path by 1"
            )),
        }
    }
}

/// The threads whose places were not known when counts were read.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspects {
    /// For each function of the profile, the number of these threads that have counted there.
    of_function: Vec<u64>,
}

impl Session {
    /// The pair that counts the leaps of a profile; `None` if the process makes none.
    pub(super) fn leaps(&self, modules: &Modules, id: MeasurementId) -> Option<Wanted> {
        if !modules.leaves_handlers(&self.target) {
            return None;
        }
        let has_some =
            |file: &ModuleFile| file.is_program || file.names.iter().any(|n| LIBRARIES.contains(&n.as_str()));
        for error in modules.load_files(&self.target, &self.context.images, &has_some) {
            tracing::debug!(%error, "leaps of a file that cannot be analysed are not counted");
        }
        Some(Wanted {
            pair: Arc::new(MetricFocus { metric: leaps::METRIC.to_owned(), focus: Focus::default() }),
            function: None,
            instrumentation: leaps::instrumentation(modules)?,
            plan: None,
            body: None,
            traced: Arc::default(),
            warnings: Vec::new(),
            helpers: format!("profile {}", id.0).into(),
        })
    }

    /// Takes the pair of leaps out of a list of pairs, because it has no value for clients. Returns its view.
    pub(super) fn split_leaps(
        &self,
        control: &Control,
        keys: &mut Vec<(PairKey, Option<MdlFunction>)>,
    ) -> Option<View> {
        let at = keys.iter().position(|(key, _)| is_of_leaps(key))?;
        let key = keys.remove(at);
        self.views(control, &[key]).pop()
    }

    /// Whether the process has a handler of a signal; true if the kernel does not tell.
    pub(super) fn handles_signals(&self) -> bool {
        self.target.status().map_or(true, |status| status.caught & !OF_LIBC != 0)
    }

    /// The counters of the leaps of a measurement, and of the calls that may have set a handler.
    pub(super) fn leap_counters(control: &Control, measurement: &Measurement) -> Vec<u32> {
        let pair = measurement.hidden.leaps.as_ref().and_then(|view| control.pairs.get(&view.key));
        pair.map_or_else(Vec::new, |pair| pair.counters.clone())
    }

    /// The leaps of a measurement since it began, by the values of the counters.
    pub(super) fn leaps_of(control: &Control, measurement: &Measurement, values: &[u64]) -> Leaps {
        let pair = measurement.hidden.leaps.as_ref().and_then(|view| control.pairs.get(&view.key));
        let handlers = values.get(1).is_none_or(|calls| *calls > 0);
        let counted = values.first().copied().filter(|_| measurement.handled || handlers).unwrap_or_default();
        let refused = pair.and_then(|pair| pair.unwoven.first());
        let blind = refused.map(|(_, f)| format!("those by `{}` are not counted: {}", f.function.function, f.reason));
        Leaps { counted, blind }
    }

    /// The threads that were at unknown places, or of which `ended` may have been inside of runs at the end of the target. `counters` has the
    /// counters of each function.
    ///
    /// A thread without a shard of its own may be any of those that share counters. If it has a shard no more, its counters are no evidence.
    pub(super) fn suspects(&self, counters: &[Vec<u32>], seen: &Seen, ended: u64) -> Suspects {
        let unknown: FxHashSet<Tid> = seen.unknown.iter().copied().collect();
        if unknown.is_empty() && ended == 0 {
            return Suspects::default();
        }
        let most = unknown.len() as u64 + ended;
        let flat: Vec<u32> = counters.iter().flatten().copied().collect();
        let shared = self.shared();
        let Some(columns) = shared.columns() else { return Suspects { of_function: vec![most; counters.len()] } };
        let rows = columns.rows(&flat);
        let with_shard: FxHashSet<Tid> = rows.held.iter().filter_map(|(tid, _)| *tid).collect();
        let elsewhere = unknown.iter().filter(|tid| !with_shard.contains(tid)).count() as u64;
        let is_suspect = |tid: &Option<Tid>| ended > 0 || tid.is_some_and(|tid| unknown.contains(&tid));
        let mut by_function = Vec::with_capacity(counters.len());
        let mut first = 0;
        for own in counters {
            let range = first..first + own.len();
            first = range.end;
            let has = |row: &[(usize, i64)]| {
                let from = row.partition_point(|(index, _)| *index < range.start);
                row.get(from).is_some_and(|(index, _)| range.contains(index))
            };
            let counted = rows.held.iter().filter(|(tid, row)| is_suspect(tid) && has(row)).count() as u64;
            let without = rows.held.iter().any(|(tid, row)| tid.is_none() && has(row)) || has(&rows.ended);
            by_function.push((counted + if without { elsewhere } else { 0 }).min(most));
        }
        Suspects { of_function: by_function }
    }
}

/// Whether a pair counts the leaps of a profile.
fn is_of_leaps(key: &PairKey) -> bool {
    &*key.text == leaps::METRIC
}

/// Whether a pair has no value for clients, so that a request is not about it.
pub(super) fn is_hidden(key: &PairKey) -> bool {
    is_of_leaps(key) || is_of_inclusive(key)
}

/// Reason why the counts of a function are not exact; `None` if they are. `number` is its index, and `counts` tells whether it may have run.
pub(super) fn doubt(
    control: &Control,
    (profile, number, profiled): (&Profile, usize, &Profiled),
    (suspects, leaps): (&Suspects, &Leaps),
    may_have_run: bool,
) -> Option<String> {
    if !control.pairs.contains_key(&profiled.key) {
        return Some("its code was taken out before the profile was read".to_owned());
    }
    if control.family {
        return Some("fork children count with the target, for another measurement".to_owned());
    }
    let late = if profiled.unknown { profile.unknown } else { 0 };
    let threads = late + suspects.of_function.get(number).copied().unwrap_or_default();
    let unknown = match threads {
        0 => None,
        1 => Some("1 thread was at an unknown place, which may change the counts of one path by 1".to_owned()),
        n => Some(format!("{n} threads were at unknown places: each may change the counts of one path by 1")),
    };
    let reasons: Vec<String> = unknown.into_iter().chain(leaps.words().filter(|_| may_have_run)).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
