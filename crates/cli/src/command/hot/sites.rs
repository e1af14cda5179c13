//! The targets that are sampled, each for itself and all together.

use std::collections::{BTreeSet, HashSet};

use ingraft_api::SampledState;

use super::calls::HotCalls;
use super::rows::HotRows;
use super::text::{HeadingTarget, ProcessShare};
use crate::args::{Format, RunningTargets};
use crate::conn::{Client, RequestTarget};
use crate::exit::{Failure, Stop};
use crate::measure;
use crate::objects::EndedObject;
use crate::objects::hot::ThreadShare;
use crate::output::number::plural;
use crate::output::progress::Progress;
use crate::output::{self, words};

/// Largest number of processes that are sampled at one host. Each takes two calls of the engine, which all go on at the same time.
const PROCESSES_MAX: usize = 100;

/// A process that is to be sampled.
pub(in crate::command) struct NamedTarget {
    pub(in crate::command) target: RequestTarget,
    /// Arguments of the process, or the text that it has written over them; empty if they are not known.
    pub(in crate::command) title: String,
}

/// A target that is sampled.
pub(super) struct HotSite {
    pub(super) client: Client,
    /// The process, if the command names it by its id.
    named: Option<i32>,
    title: String,
    /// Samples of threads that run, and of those that wait.
    pub(super) running: HotRows,
    pub(super) waiting: HotRows,
    pub(super) calls: HotCalls,
    /// Whether no further samples of threads that run, or wait, are expected.
    pub(super) over: [bool; 2],
    pub(super) ended: Option<EndedObject>,
    /// Failure that has ended the samples that the command sorts by.
    pub(super) failure: Option<Failure>,
    /// Warning that the other samples are missing, as long as it was not told.
    pub(super) unknown: Option<String>,
}

impl HotSite {
    pub(super) fn new(client: Client, target: &RequestTarget, title: String) -> Self {
        HotSite {
            client,
            named: if let RequestTarget::Pid(pid) = target { Some(*pid) } else { None },
            title,
            running: HotRows::new(SampledState::Running),
            waiting: HotRows::new(SampledState::Waiting),
            calls: HotCalls::default(),
            over: [false; 2],
            ended: None,
            failure: None,
            unknown: None,
        }
    }

    /// Samples of threads in this state.
    pub(super) fn rows(&self, state: SampledState) -> &HotRows {
        match state {
            SampledState::Running => &self.running,
            SampledState::Waiting => &self.waiting,
        }
    }

    /// Whether a reading of threads in this state has come.
    pub(super) fn has_samples(&self, state: SampledState) -> bool {
        !self.rows(state).sum().span.is_zero()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.iter().all(|over| *over)
    }

    /// The failure, with the process that it is about.
    pub(super) fn named_failure(&self) -> Option<Failure> {
        let failure = self.failure.clone()?;
        Some(Failure { pid: failure.pid.or(self.named), ..failure })
    }
}

/// The processes at one host that a command is to sample.
pub(in crate::command) async fn targets(
    client: &Client,
    running: &RunningTargets,
    format: Format,
) -> Result<Vec<NamedTarget>, Failure> {
    let mut all = Vec::new();
    for target in measure::all_running(running) {
        let RequestTarget::Each(choice) = &target else {
            all.push(NamedTarget { target, title: String::new() });
            continue;
        };
        let mut progress = Progress::new("looking at processes", format);
        let mut found = client.choose(choice, &mut progress).await?;
        drop(progress);
        if found.is_empty() {
            return Err(Failure { host: client.host(), ..choice.nobody() });
        }
        found.sort_by_key(|process| process.pid);
        all.extend(
            found.into_iter().map(|found| NamedTarget { target: RequestTarget::Pid(found.pid.0), title: found.title }),
        );
    }
    if let Some(more) = all.len().checked_sub(PROCESSES_MAX).filter(|more| *more > 0) {
        let what = plural(more as u64, "more process is", "more processes are");
        output::warn(&format!("{what} not sampled: a command samples at most {PROCESSES_MAX} at a time"), format);
        all.truncate(PROCESSES_MAX);
    }
    Ok(all)
}

/// Warns of hosts without a target. Fails if no host has one.
pub(super) fn warn_of_missing(missing: Vec<Failure>, sites: &[HotSite], format: Format) -> Result<(), Stop> {
    if sites.is_empty()
        && let Some(first) = missing.first()
    {
        return Err(first.clone().into());
    }
    for failure in missing {
        output::warn(&words::at_host(&failure), format);
    }
    Ok(())
}

/// Warns of targets out of several that cannot be sampled, and of times that are missing, once for each reason.
pub(super) fn warn(sites: &[HotSite], format: Format) {
    let failures: Vec<Failure> = sites.iter().filter_map(HotSite::named_failure).collect();
    words::left_out(&failures, format).iter().for_each(|text| output::warn(text, format));
    let mut told = HashSet::new();
    for site in sites.iter().filter(|site| site.failure.is_none()) {
        let Some(what) = site.unknown.as_ref().filter(|what| told.insert(*what)) else { continue };
        let name = site.named.map(|pid| format!("process {pid}: ")).unwrap_or_default();
        output::warn(&format!("{name}{what}"), format);
    }
}

/// The samples of all sites: of threads that run, and of those that wait.
pub(super) fn together(sites: &[&HotSite]) -> (HotRows, HotRows) {
    let of = |state: SampledState| {
        let all: Vec<&HotRows> =
            sites.iter().filter(|site| site.has_samples(state)).map(|site| site.rows(state)).collect();
        HotRows::together(state, &all)
    };
    (of(SampledState::Running), of(SampledState::Waiting))
}

/// The threads of all sites with samples in a state, those with the most first.
pub(super) fn threads(sites: &[&HotSite], state: SampledState) -> Vec<ThreadShare> {
    let of = |site: &&HotSite| {
        let (host, rows) = (site.client.host(), site.rows(state));
        let pid = Some(rows.sum().pid.0);
        let threads = rows.samples(None).threads.into_iter();
        threads.map(move |thread| ThreadShare { host: host.clone(), pid, ..thread }).collect::<Vec<_>>()
    };
    let mut all: Vec<ThreadShare> = sites.iter().flat_map(of).collect();
    all.sort_by_key(|thread| std::cmp::Reverse(thread.samples));
    all
}

/// The heading of the samples of all sites.
pub(super) fn heading(sites: &[&HotSite]) -> HeadingTarget {
    let threads = |site: &&HotSite| site.running.threads().chain(site.waiting.threads()).collect::<BTreeSet<_>>().len();
    let hosts: HashSet<Option<String>> = sites.iter().map(|site| site.client.host()).collect();
    HeadingTarget::Several { processes: sites.len(), threads: sites.iter().map(threads).sum(), hosts: hosts.len() }
}

/// The share of each site in the samples in a state, the largest first.
pub(super) fn shares(sites: &[&HotSite], state: SampledState) -> Vec<ProcessShare> {
    let whole: f64 = sites.iter().map(|site| site.rows(state).sample_time()).sum();
    let of = |site: &&HotSite| {
        let rows = site.rows(state);
        ProcessShare {
            host: site.client.host(),
            pid: rows.sum().pid.0,
            share: if whole > 0.0 { rows.sample_time() / whole } else { 0.0 },
            title: site.title.clone(),
        }
    };
    let mut all: Vec<ProcessShare> = sites.iter().map(of).collect();
    all.sort_by(|a, b| b.share.total_cmp(&a.share));
    all
}

/// The sites that have sent a reading since all were last shown together.
#[derive(Debug, Default)]
pub(super) struct ReadingRounds {
    heard: Vec<bool>,
}

impl ReadingRounds {
    /// Records a reading of a site. `over` tells of each site whether no further readings are expected. Returns whether all sites are to be
    /// shown: each has sent a reading, or this one has sent a second one, because late sites do not delay the others.
    pub(super) fn reading(&mut self, at: usize, over: &[bool]) -> bool {
        self.heard.resize(over.len(), false);
        let Some(heard) = self.heard.get_mut(at) else { return false };
        let is_second = std::mem::replace(heard, true);
        if is_second {
            self.heard.fill(false);
            // This reading is the first one of the next round.
            if let Some(heard) = self.heard.get_mut(at) {
                *heard = true;
            }
        }
        let is_whole = self.heard.iter().zip(over).all(|(heard, over)| *heard || *over);
        if is_whole {
            self.heard.fill(false);
        }
        is_second || is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_shown_once_each_has_sent_a_reading() {
        let mut rounds = ReadingRounds::default();
        let none = [false; 3];
        let shown: Vec<bool> = [0, 1, 2, 1, 2, 0].into_iter().map(|at| rounds.reading(at, &none)).collect();
        assert_eq!(shown, [false, false, true, false, false, true]);
        // The third is late.
        let shown: Vec<bool> = [0, 1, 0, 1, 2].into_iter().map(|at| rounds.reading(at, &none)).collect();
        assert_eq!(shown, [false, false, true, false, true]);
        // It has ended.
        let shown: Vec<bool> = [0, 1, 1, 0].into_iter().map(|at| rounds.reading(at, &[false, false, true])).collect();
        assert_eq!(shown, [false, true, false, true]);
        // A single site is shown at each reading.
        let mut one = ReadingRounds::default();
        assert!(one.reading(0, &[false]) && one.reading(0, &[true]) && !one.reading(1, &[true]));
    }
}
