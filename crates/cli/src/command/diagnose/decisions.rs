//! The decisions of the search: which hold, in what order, and where. All are pure functions of an observation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ingraft_api::NamedFunction;
use ingraft_model::{ResourcePath, Tid};

use super::causes::is_go_wait;
use super::evidence::{ObjectName, Observation, Part, Totals};
use super::finding::Finding;
use super::hypothesis::{Hypothesis, TESTED_IN_ORDER};
use super::pasted::Pasted;
use super::trials;
use crate::output::number::{percent, plural, share_variance, short, time};

/// Share of the active time from which on a hypothesis holds; Paradyn's Performance Consultant has the same.
pub(super) const HOLDS: f64 = 0.2;
/// Share of its parent from which on a refinement holds although it is below [`HOLDS`].
const HOLDS_OF_PARENT: f64 = 0.5;
/// Share of the active time from which on a refinement is tested.
const TESTED: f64 = 0.02;
/// Largest number of refinements of a finding along one hierarchy.
const REFINEMENTS_MAX: usize = 3;
/// Mean number of active threads below which the process is mostly idle.
const ACTIVE: f64 = 0.2;
/// Longest name of a file in a text.
const NAME_MAX: usize = 200;

/// The division of the active time, and what its shares are of.
#[derive(Debug)]
pub(super) struct Division {
    parts: Vec<Part>,
    totals: Totals,
    span: Duration,
    /// Looks at active threads.
    active: f64,
    /// Samples of running threads.
    run_samples: u64,
}

impl Division {
    /// Divides what was seen.
    pub(super) fn of(observation: &Observation) -> Self {
        let parts = observation.parts();
        let is_active = |part: &&Part| part.speaks_for != Some(Hypothesis::Idle);
        // A sum of nothing is -0.
        let active = parts.iter().filter(is_active).map(|part| part.looks).sum::<f64>() + 0.0;
        let run_samples = observation.run_samples();
        Division { parts, totals: observation.totals(), span: observation.span, active, run_samples }
    }

    /// Charges parts of running threads in calls of these functions, which fail and are made again, to retries.
    pub(super) fn retried(&mut self, functions: &[NamedFunction]) {
        for part in &mut self.parts {
            let is_called = part.function.as_ref().is_some_and(|function| functions.contains(function));
            if part.speaks_for == Some(Hypothesis::Processor) && part.kernel && is_called {
                part.speaks_for = Some(Hypothesis::Retries);
                part.function = part.caller.take().or_else(|| part.function.take());
            }
        }
    }

    /// Functions of system calls in which running threads spend enough time that they may be calls that fail, the largest share first.
    pub(super) fn suspects(&self) -> Vec<NamedFunction> {
        let is_call = |part: &&Part| part.speaks_for == Some(Hypothesis::Processor) && part.kernel;
        let mut sums: BTreeMap<(String, u64), (f64, NamedFunction)> = BTreeMap::new();
        for (part, function) in self.parts.iter().filter(is_call).filter_map(|p| Some((p, p.function.as_ref()?))) {
            let key = (function.module.clone(), function.offset.0);
            sums.entry(key).or_insert_with(|| (0.0, function.clone())).0 += part.looks;
        }
        let mut found: Vec<_> = sums.into_values().filter(|(looks, _)| *looks >= HOLDS * self.active).collect();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.into_iter().map(|(_, function)| function).collect()
    }

    /// Mean number of active threads.
    pub(super) fn activity(&self) -> f64 {
        self.active / (self.totals.rounds.max(1)) as f64
    }

    /// Mean number of threads that are ready to run and have no processor.
    pub(super) fn delayed(&self) -> f64 {
        self.totals.delayed.as_secs_f64() / self.span.as_secs_f64().max(1e-9)
    }

    /// Whether the process has little to do. A thread that is ready to run and has no processor has something to do.
    fn is_idle(&self) -> bool {
        self.activity() + self.delayed() < ACTIVE
    }

    fn parts_of(&self, hypothesis: Hypothesis) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.speaks_for == Some(hypothesis))
    }

    /// Share of the active time, and its standard error: that of a binomial distribution of looks, and for a part of the running time also of
    /// the samples of running threads.
    fn share(&self, looks: f64, runs: bool) -> (f64, f64) {
        if self.active <= 0.0 {
            return (0.0, 0.0);
        }
        // An empty sum is -0.
        let share = (looks / self.active).clamp(0.0, 1.0) + 0.0;
        let sampled = if runs { share_variance(share, self.run_samples as f64) } else { 0.0 };
        (share, (share_variance(share, self.active.max(1.0)) + sampled).sqrt())
    }
}

/// The findings of a division in the order of the search: the root, the hypotheses with those that hold first, and their refinements.
pub(super) fn findings(observation: &Observation, division: &Division, pasted: &Pasted) -> Vec<Finding> {
    let mut search = FindingSearch { observation, division, pasted, found: Vec::new() };
    search.root();
    search.idle();
    search.hypotheses();
    search.delays();
    search.refine();
    search.found
}

/// A search in progress.
struct FindingSearch<'a> {
    observation: &'a Observation,
    division: &'a Division,
    pasted: &'a Pasted,
    found: Vec<Finding>,
}

/// A place of a refinement, with what is known of it.
#[derive(Debug)]
struct Refined<'p> {
    place: String,
    looks: f64,
    parts: Vec<&'p Part>,
    command: String,
    function: Option<NamedFunction>,
    mutex: Option<u64>,
}

impl<'a> FindingSearch<'a> {
    fn process(&self) -> String {
        ResourcePath::new("Process", [self.observation.pid.to_string()]).to_string()
    }

    fn push(&mut self, finding: Finding) {
        let id = self.found.len() as u64 + 1;
        self.found.push(Finding { id, ..finding });
    }

    fn root(&mut self) {
        let Division { totals, span, .. } = self.division;
        let active = self.division.activity();
        let evidence = format!(
            "{} in {}; {active:.2} active on average, {:.2} on a processor; {} at threads, {} of running ones",
            plural(totals.threads as u64, "thread", "threads"),
            time(span.as_nanos() as f64),
            totals.cpu.as_secs_f64() / span.as_secs_f64().max(1e-9),
            plural(totals.looks, "look", "looks"),
            plural(self.division.run_samples, "sample", "samples"),
        );
        let unexplained: f64 = self.division.parts.iter().filter(|p| p.speaks_for.is_none()).map(|p| p.looks).sum();
        let (rest, _) = self.division.share(unexplained, false);
        let rest = if rest >= 0.05 { format!("; {} in no hypothesis", percent(100.0 * rest)) } else { String::new() };
        self.push(Finding {
            id: 0,
            parent: None,
            hypothesis: Hypothesis::Whole,
            place: self.process(),
            share: 1.0,
            share_error: 0.0,
            holds: true,
            evidence: evidence + &rest + &self.parked(),
            command: self.pasted.hot(None, None, false),
            refuted_by: Hypothesis::Whole.refuted_by().to_owned(),
            function: None,
            mutex: None,
        });
    }

    /// Text about threads that waited for a lock in the whole time; empty if there are none.
    fn parked(&self) -> String {
        let parked: Vec<&Part> = self.division.parts.iter().filter(|part| part.parked).collect();
        let tids: BTreeSet<Tid> = parked.iter().map(|part| part.tid).collect();
        let Some((function, _)) = most(&parked, |part| part.function.as_ref().map(named)).into_iter().next() else {
            return String::new();
        };
        let threads = plural(tids.len() as u64, "thread", "threads");
        format!("; {threads} waited for a lock in the whole time, parked or in a deadlock, in {function}")
    }

    fn idle(&mut self) {
        let active = self.division.activity();
        let parts: Vec<&Part> = self.division.parts_of(Hypothesis::Idle).collect();
        let calls = most(&parts, |part| Some(part.call.clone()));
        let calls: Vec<String> = calls.into_iter().take(2).map(|(call, _)| call).collect();
        let wait =
            if calls.is_empty() { String::new() } else { format!("; idle threads wait in {}", calls.join(", ")) };
        let rounds = self.division.totals.rounds.max(1) as f64;
        let share = (1.0 - active).clamp(0.0, 1.0);
        let is_go = parts.iter().any(|part| part.function.as_ref().is_some_and(is_go_wait));
        let (of_go, command) = match is_go {
            true => ("; goroutines wait without a thread", self.pasted.offcpu()),
            false => ("", self.pasted.hot(None, None, true)),
        };
        self.push(Finding {
            id: 0,
            parent: Some(1),
            hypothesis: Hypothesis::Idle,
            place: self.process(),
            share,
            share_error: share_variance(share, rounds).sqrt(),
            holds: self.division.is_idle(),
            evidence: format!("{active:.2} threads active on average{wait}{of_go}"),
            command,
            refuted_by: Hypothesis::Idle.refuted_by().to_owned(),
            function: None,
            mutex: None,
        });
    }

    /// Tests the hypotheses for the whole process.
    fn hypotheses(&mut self) {
        let mut tested: Vec<(Hypothesis, f64, f64)> = TESTED_IN_ORDER
            .into_iter()
            .map(|hypothesis| {
                let looks = self.division.parts_of(hypothesis).map(|part| part.looks).sum();
                let (share, error) = self.division.share(looks, !hypothesis.waits());
                (hypothesis, share, error)
            })
            .collect();
        // The sort is stable: of equal ones, that which costs less to test is first.
        tested.sort_by(|a, b| (b.1 * b.0.weight()).total_cmp(&(a.1 * a.0.weight())));
        for (hypothesis, share, share_error) in tested {
            let parts: Vec<&Part> = self.division.parts_of(hypothesis).collect();
            let command = match hypothesis {
                Hypothesis::Memory => self.pasted.watch(&["minor_faults", "major_faults"]),
                _ => self.pasted.hot(None, None, hypothesis.waits()),
            };
            let holds = share >= HOLDS && !self.division.is_idle();
            self.push(Finding {
                id: 0,
                parent: Some(1),
                hypothesis,
                place: self.process(),
                share,
                share_error,
                holds,
                evidence: self.evidence(hypothesis, &parts),
                command,
                refuted_by: hypothesis.refuted_by().to_owned(),
                function: None,
                mutex: None,
            });
        }
        let first = self.found.iter().position(|finding| finding.hypothesis == Hypothesis::Idle && !finding.holds);
        // A process that is not idle has this as its last hypothesis.
        if let Some(first) = first {
            self.found[first..].rotate_left(1);
            self.found.iter_mut().zip(1..).for_each(|(finding, id)| finding.id = id);
        }
    }

    /// Evidence of a hypothesis for the whole process.
    fn evidence(&self, hypothesis: Hypothesis, parts: &[&Part]) -> String {
        if parts.is_empty() {
            return "not seen".to_owned();
        }
        let Division { totals, span, .. } = self.division;
        let seconds = span.as_secs_f64().max(1e-9);
        let mut facts = Vec::new();
        match hypothesis {
            Hypothesis::Processor => {
                let kernel: f64 = parts.iter().filter(|part| part.kernel).map(|part| part.looks).sum();
                let all: f64 = parts.iter().map(|part| part.looks).sum();
                facts.push(format!(
                    "{:.2} processors busy, {} of it in the kernel",
                    totals.cpu.as_secs_f64() / seconds,
                    share_text(kernel / all)
                ));
            }
            Hypothesis::Memory => facts.push(format!(
                "{} minor and {} major page faults/s",
                short(totals.minor_faults as f64 / seconds),
                short(totals.major_faults as f64 / seconds)
            )),
            Hypothesis::Disk if !totals.block_delay.is_zero() => {
                facts.push(format!("{} of delays by block devices", time(totals.block_delay.as_nanos() as f64)));
            }
            _ => {}
        }
        facts.extend(self.mostly(parts));
        let tids: BTreeSet<Tid> = parts.iter().map(|part| part.tid).collect();
        if let Some(tid) = tids.first().filter(|_| tids.len() == 1 && self.division.totals.threads > 1) {
            facts.push(format!("all in thread {tid} {}", clean(self.observation.thread_name(*tid))));
        }
        facts.join("; ")
    }

    /// The function, system call and object that most of these parts have.
    fn mostly(&self, parts: &[&Part]) -> Option<String> {
        let all: f64 = parts.iter().map(|part| part.looks).sum();
        let (function, looks) = most(parts, |part| part.function.as_ref().map(named)).into_iter().next()?;
        let waits: Vec<&Part> = parts
            .iter()
            .copied()
            .filter(|part| part.function.as_ref().map(named).as_ref() == Some(&function))
            .collect();
        let call = most(&waits, |part| Some(part.call.clone()).filter(|call| !call.is_empty()));
        let call = call.into_iter().map(|(call, _)| call).find(|call| !function.ends_with(call.as_str()));
        let object = most(&waits, |part| part.object.as_ref().map(ObjectName::text)).into_iter().next();
        let mut text = format!("{} in {function}", share_text(looks / all));
        if let Some(call) = call {
            text += &format!(", in {call}");
        }
        if let Some((object, _)) = object {
            text += &format!(" for {object}");
        }
        Some(text)
    }

    /// Refines the hypotheses that hold.
    fn refine(&mut self) {
        let holding: Vec<(u64, Hypothesis, f64)> = self
            .found
            .iter()
            .filter(|finding| finding.holds && TESTED_IN_ORDER.contains(&finding.hypothesis))
            .map(|finding| (finding.id, finding.hypothesis, finding.share))
            .collect();
        for (parent, hypothesis, share) in holding {
            let parts: Vec<&Part> = self.division.parts_of(hypothesis).collect();
            self.refine_along((parent, hypothesis, share), self.functions(hypothesis, &parts));
            self.refine_along((parent, hypothesis, share), self.objects(hypothesis, &parts));
            self.refine_along((parent, hypothesis, share), self.threads(hypothesis, &parts));
        }
    }

    fn refine_along(&mut self, (parent, hypothesis, of): (u64, Hypothesis, f64), refined: Vec<Refined<'a>>) {
        let mut refined = refined;
        refined.sort_by(|a, b| b.looks.total_cmp(&a.looks).then_with(|| a.place.cmp(&b.place)));
        for one in refined.into_iter().take(REFINEMENTS_MAX) {
            let (share, share_error) = self.division.share(one.looks, !hypothesis.waits());
            if share < TESTED {
                continue;
            }
            let evidence = self.evidence_at(hypothesis, &one);
            self.push(Finding {
                id: 0,
                parent: Some(parent),
                hypothesis,
                place: one.place,
                share,
                share_error,
                holds: share >= HOLDS || share >= HOLDS_OF_PARENT * of,
                evidence,
                command: one.command,
                refuted_by: hypothesis.refuted_by().to_owned(),
                function: one.function,
                mutex: one.mutex,
            });
        }
    }

    /// Refinements along /Code.
    fn functions(&self, hypothesis: Hypothesis, parts: &[&'a Part]) -> Vec<Refined<'a>> {
        let groups = grouped(parts, |part| part.function.as_ref().map(|f| ((f.module.clone(), f.offset.0), f)));
        let refined = |(function, parts): (&NamedFunction, Vec<&'a Part>)| Refined {
            place: ResourcePath::new("Code", [&function.module, &function.function].map(String::as_str)).to_string(),
            looks: sum(&parts),
            parts,
            command: self.pasted.hot(Some(function), None, hypothesis.waits()),
            function: Some(function.clone()),
            mutex: None,
        };
        groups.into_iter().map(refined).collect()
    }

    /// Refinements along /SyncObject, and by the other objects of waits.
    fn objects(&self, hypothesis: Hypothesis, parts: &[&'a Part]) -> Vec<Refined<'a>> {
        let is_told = matches!(hypothesis, Hypothesis::Locks | Hypothesis::InputOutput | Hypothesis::Disk);
        let parts: Vec<&Part> = parts.iter().copied().filter(|_| is_told).collect();
        let groups = grouped(&parts, |part| part.object.as_ref().map(|object| (object.clone(), object)));
        let refined = |(object, parts): (&ObjectName, Vec<&'a Part>)| {
            let mutex = if let ObjectName::Mutex(address) = object { Some(*address) } else { None };
            let command = match (mutex, parts.first().and_then(|part| part.function.as_ref())) {
                (Some(_), _) => self.pasted.locks(),
                (None, function) => self.pasted.hot(function, None, true),
            };
            Refined { place: object.place(), looks: sum(&parts), parts, command, function: None, mutex }
        };
        groups.into_iter().map(refined).collect()
    }

    /// Refinements along /Process, if several threads are concerned.
    fn threads(&self, hypothesis: Hypothesis, parts: &[&'a Part]) -> Vec<Refined<'a>> {
        let groups = grouped(parts, |part| Some((part.tid, &part.tid)));
        if groups.len() < 2 {
            return Vec::new();
        }
        let refined = |(tid, parts): (&Tid, Vec<&'a Part>)| {
            let names = [self.observation.pid.to_string(), tid.to_string()];
            Refined {
                place: ResourcePath::new("Process", names).to_string(),
                looks: sum(&parts),
                parts,
                command: self.pasted.hot(None, Some(*tid), hypothesis.waits()),
                function: None,
                mutex: None,
            }
        };
        groups.into_iter().map(refined).collect()
    }

    /// Tests whether threads were ready to run and had no processor. The machine is the cause, not the program, so this comes after the other
    /// hypotheses, and its share is of another time.
    fn delays(&mut self) {
        let Division { totals: Totals { cpu, delayed, rounds, .. }, span, active, .. } = self.division;
        let active = active / (*rounds).max(1) as f64 * span.as_secs_f64();
        let delays = delayed.as_secs_f64();
        let share = if delays > 0.0 { delays / (active + delays) } else { 0.0 };
        let evidence = format!(
            "{} ready to run without a processor, {} on one; the kernel counts both; the share is of the active time with these delays",
            time(delayed.as_nanos() as f64),
            time(cpu.as_nanos() as f64)
        );
        self.push(Finding {
            id: 0,
            parent: Some(1),
            hypothesis: Hypothesis::Delayed,
            place: self.process(),
            share,
            share_error: 0.0,
            holds: share >= HOLDS && !self.division.is_idle(),
            evidence,
            command: self.pasted.hot(None, None, false),
            refuted_by: Hypothesis::Delayed.refuted_by().to_owned(),
            function: None,
            mutex: None,
        });
    }

    /// Evidence at a place.
    fn evidence_at(&self, hypothesis: Hypothesis, refined: &Refined<'_>) -> String {
        let mut facts = vec![match hypothesis.waits() {
            true => {
                let seen = refined.parts.iter().map(|part| part.samples).sum();
                format!("seen in {}", plural(seen, "look", "looks"))
            }
            false => {
                let all: f64 = self.division.parts_of(hypothesis).map(|part| part.looks).sum();
                format!("{} of the samples of this hypothesis", share_text(refined.looks / all))
            }
        }];
        if let Some(function) = &refined.function {
            facts.push(format!("{} ({})", function.function, function.module));
            let callers = most(&refined.parts, |part| part.caller.as_ref().map(|f| f.function.clone()));
            if let Some((caller, _)) = callers.into_iter().next() {
                facts.push(format!("called by {caller}"));
            }
            let call = most(&refined.parts, |part| Some(part.call.clone()).filter(|call| !call.is_empty()));
            if let Some((call, _)) = call.into_iter().find(|(call, _)| *call != function.function) {
                facts.push(format!("in {call}"));
            }
            let object = most(&refined.parts, |part| part.object.as_ref().map(ObjectName::text)).into_iter().next();
            facts.extend(object.map(|(object, _)| format!("for {object}")));
        } else {
            let tids: BTreeSet<Tid> = refined.parts.iter().map(|part| part.tid).collect();
            match tids.first().filter(|_| tids.len() == 1) {
                Some(tid) => facts.push(format!("thread {tid} {}", clean(self.observation.thread_name(*tid)))),
                None => facts.push(plural(tids.len() as u64, "thread", "threads")),
            }
            facts.extend(self.mostly(&refined.parts));
        }
        if refined.parts.iter().any(|part| part.inferred) {
            facts.push("that it is a lock is inferred from the value of the futex".to_owned());
        }
        if hypothesis.waits() {
            facts.push("from looks alone".to_owned());
        }
        facts.join("; ")
    }
}

/// Adds what trials of failed calls have found to the findings.
pub(super) fn tell_retries(findings: &mut [Finding], retried: &[(NamedFunction, u64, u64)], pasted: &Pasted) {
    let Some((function, ..)) = retried.first() else { return };
    for finding in findings.iter_mut().filter(|f| f.hypothesis == Hypothesis::Retries && f.holds) {
        finding.evidence += &format!("; counted: {}", trials::failing(retried));
        finding.command = pasted.count_if(function, trials::FAILED);
    }
}

impl ObjectName {
    /// Name in evidence.
    fn text(&self) -> String {
        match self {
            ObjectName::Mutex(address) => format!("the mutex {address:#x}"),
            ObjectName::Futex(address) => format!("the futex {address:#x}"),
            ObjectName::Socket(peer) if peer.is_empty() => "a socket".to_owned(),
            ObjectName::Socket(peer) => format!("{peer} (socket)"),
            ObjectName::File(name) => clean(name),
        }
    }

    /// Place of a finding.
    fn place(&self) -> String {
        match self {
            ObjectName::Mutex(address) => {
                ResourcePath::new("SyncObject", ["Mutex".to_owned(), format!("{address:#x}")]).to_string()
            }
            ObjectName::Futex(address) => format!("futex {address:#x}"),
            ObjectName::Socket(peer) if peer.is_empty() => "socket".to_owned(),
            ObjectName::Socket(peer) => format!("socket {peer}"),
            ObjectName::File(name) => format!("file {}", clean(name)),
        }
    }
}

/// A name from another process without control characters, and not too long.
fn clean(name: &str) -> String {
    name.chars().take(NAME_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn named(function: &NamedFunction) -> String {
    format!("{}:{}", function.module, function.function)
}

fn sum(parts: &[&Part]) -> f64 {
    parts.iter().map(|part| part.looks).sum()
}

/// A share from 0 to 1 in percent.
pub(super) fn share_text(share: f64) -> String {
    if share > 0.0 { percent(100.0 * share) } else { "0 %".to_owned() }
}

/// Names of parts with their looks, the most first.
fn most(parts: &[&Part], name: impl Fn(&Part) -> Option<String>) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for part in parts {
        if let Some(name) = name(part) {
            *sums.entry(name).or_default() += part.looks;
        }
    }
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// Parts by a key, each group with the value of its first part.
fn grouped<'p, K: Ord, V: ?Sized>(
    parts: &[&'p Part],
    key: impl Fn(&'p Part) -> Option<(K, &'p V)>,
) -> Vec<(&'p V, Vec<&'p Part>)> {
    let mut groups: BTreeMap<K, (&V, Vec<&Part>)> = BTreeMap::new();
    for part in parts {
        if let Some((key, value)) = key(part) {
            groups.entry(key).or_insert_with(|| (value, Vec::new())).1.push(part);
        }
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use ingraft_api::{SampledMode, SampledSite, WaitedKind, WaitedThing};

    use super::super::tests::{function, observed, on, run, usage, wait};
    use super::*;

    fn searched(observation: &Observation) -> Vec<Finding> {
        findings(observation, &Division::of(observation), &Pasted::default())
    }

    /// The hypotheses below the root that hold, in their order, with their shares in percent.
    fn holding(findings: &[Finding]) -> Vec<(Hypothesis, u64)> {
        let top = findings.iter().filter(|finding| finding.holds && finding.parent == Some(1));
        top.map(|finding| (finding.hypothesis, (100.0 * finding.share).round() as u64)).collect()
    }

    /// The places of the refinements of a hypothesis that hold.
    fn places(findings: &[Finding], hypothesis: Hypothesis) -> Vec<&str> {
        let refined = findings.iter().filter(|f| f.hypothesis == hypothesis && f.holds && f.parent != Some(1));
        refined.map(|finding| finding.place.as_str()).collect()
    }

    const CONDITION: [&str; 2] = ["libc.so.6:pthread_cond_wait", "m:works"];

    #[test]
    fn idle_workers_do_not_hide_a_thread_that_waits_for_a_disk() {
        let mut threads = vec![usage(1, 100, 5, 50)];
        let mut waits = vec![SampledSite {
            mode: SampledMode::Uninterruptible,
            ..on(WaitedKind::File, wait(1, "read", &["libc.so.6:read", "m:loads"], 95))
        }];
        for tid in 2..66 {
            threads.push(usage(tid, 100, 1, 3));
            waits.push(wait(tid, "futex", &CONDITION, 99));
        }
        let found = searched(&observed(threads, waits, vec![]));
        assert_eq!(holding(&found)[0].0, Hypothesis::Disk);
        assert!(places(&found, Hypothesis::Disk).contains(&"/Code/m/loads"), "{found:#?}");
    }

    #[test]
    fn a_server_without_load_is_mostly_idle() {
        let waits = vec![wait(1, "epoll_wait", &["libc.so.6:epoll_wait", "m:loop"], 99)];
        let found =
            searched(&observed(vec![usage(1, 100, 1, 10)], waits, vec![run(1, SampledMode::Program, &["m:f"], 3)]));
        assert_eq!(holding(&found), [(Hypothesis::Idle, 99)]);
        assert!(found.iter().all(|finding| finding.parent.is_none_or(|parent| parent == 1)), "{found:#?}");
    }

    #[test]
    fn findings_are_numbered_in_the_order_of_the_search() {
        let waits = vec![wait(1, "nanosleep", &["m:naps"], 60)];
        let runs = vec![run(1, SampledMode::Program, &["m:f", "m:main"], 30)];
        let found = searched(&observed(vec![usage(1, 100, 40, 9)], waits, runs));
        let ids: Vec<u64> = found.iter().map(|finding| finding.id).collect();
        assert_eq!(ids, (1..=found.len() as u64).collect::<Vec<_>>());
        assert_eq!((found[0].parent, found[0].hypothesis), (None, Hypothesis::Whole));
        // A sleep may have no waiter, so it comes after other causes of nearly its share.
        assert_eq!(holding(&found), [(Hypothesis::Processor, 40), (Hypothesis::Sleeps, 60)]);
        assert_eq!(places(&found, Hypothesis::Processor), ["/Code/m/f"]);
        assert!(found.iter().all(|finding| finding.id > finding.parent.unwrap_or(0)));
        let fallen = found.iter().filter(|finding| !finding.holds);
        assert!(fallen.clone().count() >= 7, "{found:#?}");
        let with_children = |id| found.iter().any(|finding| finding.parent == Some(id));
        assert!(fallen.clone().all(|finding| !with_children(finding.id)));
    }

    #[test]
    fn locks_are_narrowed_down_to_mutexes_functions_and_threads() {
        let stack = ["libc.so.6:__lll_lock_wait", "libc.so.6:pthread_mutex_lock", "m:takes"];
        let lock = |tid, address| {
            let object = WaitedThing { kind: WaitedKind::Futex, address, ..WaitedThing::default() };
            SampledSite { object: Some(object), ..wait(tid, "futex", &stack, 80) }
        };
        let waits = vec![lock(1, 0x40), lock(2, 0x40)];
        let found = searched(&observed(vec![usage(1, 100, 20, 9), usage(2, 100, 20, 9)], waits, vec![]));
        assert_eq!(holding(&found)[0], (Hypothesis::Locks, 80));
        let expected = ["/Code/m/takes", "/SyncObject/Mutex/0x40", "/Process/7/1", "/Process/7/2"];
        assert_eq!(places(&found, Hypothesis::Locks), expected);
        let mutex = found.iter().find(|finding| finding.mutex.is_some()).expect("the mutex");
        assert!(mutex.command.starts_with("ingraft locks "), "{mutex:#?}");
    }

    #[test]
    fn other_servers_are_named() {
        let object = WaitedThing { kind: WaitedKind::Socket, peer: "127.0.0.1:9".to_owned(), ..WaitedThing::default() };
        let site = SampledSite { object: Some(object), ..wait(1, "recvfrom", &["libc.so.6:recv", "m:asks"], 95) };
        let found = searched(&observed(vec![usage(1, 100, 5, 50)], vec![site], vec![]));
        assert_eq!(holding(&found), [(Hypothesis::InputOutput, 95)]);
        assert_eq!(places(&found, Hypothesis::InputOutput), ["/Code/m/asks", "socket 127.0.0.1:9"]);
        let top = found.iter().find(|finding| finding.hypothesis == Hypothesis::InputOutput).expect("it");
        assert!(top.evidence.contains("m:asks, in recvfrom for 127.0.0.1:9"), "{}", top.evidence);
    }

    #[test]
    fn calls_that_fail_are_retries() {
        let runs = vec![
            run(1, SampledMode::SystemCall, &["libc.so.6:read", "m:polls"], 80),
            run(1, SampledMode::Program, &["m:polls"], 20),
        ];
        let observation = observed(vec![usage(1, 100, 100, 0)], vec![], runs);
        let mut division = Division::of(&observation);
        assert_eq!(division.suspects(), [function("libc.so.6:read")]);
        division.retried(&division.suspects());
        let mut found = findings(&observation, &division, &Pasted::default());
        assert_eq!(holding(&found), [(Hypothesis::Retries, 80), (Hypothesis::Processor, 20)]);
        assert_eq!(places(&found, Hypothesis::Retries), ["/Code/m/polls"]);
        tell_retries(&mut found, &[(function("libc.so.6:read"), 900, 1000)], &Pasted::default());
        let top = found.iter().find(|finding| finding.hypothesis == Hypothesis::Retries).expect("it");
        assert!(top.evidence.contains("900 of 1,000 calls of read failed"), "{}", top.evidence);
        assert!(top.command.contains("$return == -1"), "{}", top.command);
    }

    #[test]
    fn names_from_the_target_move_no_cursor() {
        assert_eq!(clean("a\u{1b}[2Jb"), "a?[2Jb");
        assert_eq!(ObjectName::File("x".repeat(1000)).place().len(), NAME_MAX + 5);
    }
}
