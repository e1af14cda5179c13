//! The problems of several processes: which processes have what problem, and in which the search goes on. All are pure functions of the findings.

use std::fmt::Write as _;

use super::finding::Finding;
use super::hypothesis::{Hypothesis, TESTED_IN_ORDER};
use crate::objects::findings::{FindingGroupObject, FoundProcess};
use crate::output::number::plural;
use crate::output::{DIM, HEADING};

/// Largest number of processes in which trials are made.
const TESTED_MAX: usize = 3;
/// Largest number of processes that a line names.
const NAMED: usize = 4;
/// Width of the column of numbers of processes.
const NUMBERS: usize = 11;

/// The hypotheses that hold for a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProcessProblems {
    host: Option<String>,
    pid: i32,
    /// Hypotheses that hold for the whole process, each with the mean number of threads that it is about.
    holding: Vec<(Hypothesis, f64)>,
    /// Mean number of active threads; `None` if too little was seen.
    active: Option<f64>,
    is_idle: bool,
    /// Whether trials were made.
    is_tested: bool,
}

/// A hypothesis, and the processes for which it holds: their numbers, and the mean number of threads that it is about in each, those with
/// the most first.
type ProblemGroup = (Hypothesis, Vec<(usize, f64)>);

impl ProcessProblems {
    /// The problems that these findings tell of a process with these mean numbers of threads that are active, and of those that are ready to
    /// run and have no processor.
    pub(super) fn of(
        (host, pid): (Option<String>, i32),
        findings: &[Finding],
        (active, delayed): (f64, f64),
        is_tested: bool,
    ) -> Self {
        let root = findings.first();
        let below = |finding: &&Finding| finding.holds && finding.parent == root.map(|root| root.id);
        let is_problem = |finding: &&Finding| finding.hypothesis != Hypothesis::Idle;
        ProcessProblems {
            host,
            pid,
            holding: findings
                .iter()
                .filter(below)
                .filter(is_problem)
                .map(|finding| match finding.hypothesis {
                    Hypothesis::Delayed => (finding.hypothesis, delayed),
                    _ => (finding.hypothesis, finding.share * active),
                })
                .collect(),
            active: root.map(|_| active),
            is_idle: findings.iter().filter(below).any(|finding| finding.hypothesis == Hypothesis::Idle),
            is_tested,
        }
    }

    fn name(&self) -> String {
        let host = self.host.as_ref().map(|host| format!(" at {host}")).unwrap_or_default();
        format!("process {}{host}", self.pid)
    }
}

/// The hypotheses that hold for some process, those that are about the most threads first. Delays, of which the machine is the cause, are last.
fn groups(all: &[ProcessProblems]) -> Vec<ProblemGroup> {
    let hypotheses = TESTED_IN_ORDER.into_iter().chain([Hypothesis::Delayed]);
    let group = |hypothesis: Hypothesis| {
        let of = |(number, process): (usize, &ProcessProblems)| {
            let threads = process.holding.iter().find(|(held, _)| *held == hypothesis)?.1;
            Some((number, threads))
        };
        let mut members: Vec<(usize, f64)> = all.iter().enumerate().filter_map(of).collect();
        members.sort_by(|a, b| b.1.total_cmp(&a.1));
        (hypothesis, members)
    };
    let mut groups: Vec<ProblemGroup> = hypotheses.map(group).filter(|(_, members)| !members.is_empty()).collect();
    let weight = |(hypothesis, members): &ProblemGroup| hypothesis.weight() * threads_in(members);
    groups.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    groups.sort_by_key(|(hypothesis, _)| *hypothesis == Hypothesis::Delayed);
    groups
}

/// Mean number of threads in all members of a group.
fn threads_in(members: &[(usize, f64)]) -> f64 {
    members.iter().map(|(_, threads)| threads).sum()
}

/// Numbers of the processes in which the search goes on: for each hypothesis that holds, the process in which it is about the most threads.
/// Delays choose a process only if nothing else holds in any.
pub(super) fn chosen(all: &[ProcessProblems]) -> Vec<usize> {
    let mut chosen = Vec::new();
    for (hypothesis, members) in groups(all) {
        let Some((number, _)) = members.first().filter(|(number, _)| !chosen.contains(number)) else { continue };
        if chosen.is_empty() || hypothesis != Hypothesis::Delayed && chosen.len() < TESTED_MAX {
            chosen.push(*number);
        }
    }
    chosen
}

/// The processes that have each problem, out of several, and those in which the search went on.
pub(super) fn text(all: &[ProcessProblems]) -> String {
    let number = all.len();
    let active: f64 = all.iter().filter_map(|process| process.active).sum();
    let mut text = format!("{HEADING}{}{HEADING:#}: {active:.2} threads active on average\n", processes(number));
    let mut line = |members: usize, what: &str, rest: &str| {
        let numbers = format!("{members} of {number}");
        // Writing to a String never fails.
        let _ = writeln!(text, "{numbers:>NUMBERS$}  {HEADING}{what}{HEADING:#}{rest}");
    };
    for (hypothesis, members) in groups(all) {
        let named = members.iter().take(NAMED).filter_map(|(at, threads)| Some((all.get(*at)?, threads)));
        let mut names: Vec<String> =
            named.map(|(process, threads)| format!("{} ({threads:.2} threads)", process.name())).collect();
        if let Some(more) = members.len().checked_sub(NAMED).filter(|more| *more > 0) {
            names.push(format!("{more} more"));
        }
        line(members.len(), hypothesis.name(), &format!(": {}", names.join(", ")));
    }
    let without = || all.iter().filter(|process| process.holding.is_empty());
    let unseen = without().filter(|process| process.active.is_none()).count();
    let idle = without().filter(|process| process.is_idle).count();
    let spread = without().count() - unseen - idle;
    for (what, members) in [("no hypothesis holds", spread), ("mostly idle", idle), ("too little was seen", unseen)] {
        if members > 0 {
            line(members, what, "");
        }
    }
    let tested: Vec<String> = all.iter().filter(|process| process.is_tested).map(ProcessProblems::name).collect();
    if !tested.is_empty() {
        text += &format!("{DIM}searched further, where most threads have each problem: {}{DIM:#}\n", tested.join(", "));
    }
    text
}

/// The records of the hypotheses that hold for some process, those that are about the most threads first.
pub(super) fn records(all: &[ProcessProblems]) -> Vec<FindingGroupObject> {
    let found = |(number, active): &(usize, f64)| {
        let process = all.get(*number)?;
        let (host, pid, searched) = (process.host.clone(), process.pid, process.is_tested);
        Some(FoundProcess { host, pid, active: *active, searched })
    };
    let record = |(hypothesis, members): ProblemGroup| FindingGroupObject {
        targets: all.len(),
        hypothesis: hypothesis.name(),
        active: threads_in(&members),
        processes: members.iter().filter_map(found).collect(),
    };
    groups(all).into_iter().map(record).collect()
}

fn processes(number: usize) -> String {
    plural(number as u64, "process", "processes")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn process(pid: i32, holding: &[(Hypothesis, f64)], active: f64) -> ProcessProblems {
        ProcessProblems {
            host: None,
            pid,
            holding: holding.to_vec(),
            active: Some(active),
            is_idle: active < 0.2,
            is_tested: false,
        }
    }

    #[test]
    fn processes_are_told_by_their_problems() {
        let mut all = vec![
            process(10, &[], 0.0),
            process(11, &[(Hypothesis::Locks, 0.5)], 0.6),
            process(12, &[(Hypothesis::Locks, 0.8), (Hypothesis::Processor, 0.2)], 1.0),
            process(13, &[(Hypothesis::Processor, 0.9)], 0.9),
            process(14, &[], 0.7),
            ProcessProblems { active: None, is_idle: false, ..process(15, &[], 0.0) },
        ];
        assert_eq!(chosen(&all), [2, 3], "the process with most of each");
        for number in chosen(&all) {
            all[number].is_tested = true;
        }
        expect![[r#"
            6 processes: 3.20 threads active on average
                 2 of 6  waits for locks: process 12 (0.80 threads), process 11 (0.50 threads)
                 2 of 6  processor bound: process 13 (0.90 threads), process 12 (0.20 threads)
                 1 of 6  no hypothesis holds
                 1 of 6  mostly idle
                 1 of 6  too little was seen
            searched further, where most threads have each problem: process 12, process 13
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text(&all)).to_string());
        let records = records(&all);
        let told: Vec<_> =
            records.iter().map(|group| (group.hypothesis, group.targets, group.processes.len())).collect();
        assert_eq!(told, [("waits for locks", 6, 2), ("processor bound", 6, 2)]);
        assert_eq!((records[0].processes[0].pid, records[0].processes[0].searched), (12, true));
        assert!((records[0].active - 1.3).abs() < 1e-12);
    }

    #[test]
    fn many_problems_and_processes_are_cut() {
        let each = [Hypothesis::Locks, Hypothesis::Processor, Hypothesis::Disk, Hypothesis::Memory];
        let all: Vec<_> =
            each.iter().zip(1..).map(|(each, n)| process(n, &[(*each, 0.5 - 0.1 * f64::from(n))], 1.0)).collect();
        assert_eq!(chosen(&all), [0, 1, 2]);
        let all: Vec<_> = (1..=6).map(|pid| process(pid, &[(Hypothesis::Disk, 0.5)], 0.5)).collect();
        assert!(text(&all).contains("process 4 (0.50 threads), 2 more"), "{}", text(&all));
        let delayed = process(7, &[(Hypothesis::Delayed, 2.0)], 1.0);
        let locked = process(8, &[(Hypothesis::Locks, 0.5)], 1.0);
        assert_eq!(chosen(&[delayed.clone(), locked]), [1]);
        assert_eq!(chosen(&[process(1, &[], 0.0), delayed]), [1]);
        assert_eq!(chosen(&[process(1, &[], 0.0), process(2, &[], 0.1)]), [] as [usize; 0]);
    }

    #[test]
    fn findings_of_a_process_are_its_problems() {
        let finding = |id, parent, hypothesis, holds| Finding {
            id,
            parent,
            hypothesis,
            place: String::new(),
            share: 0.5,
            share_error: 0.0,
            holds,
            evidence: String::new(),
            command: String::new(),
            refuted_by: String::new(),
            function: None,
            mutex: None,
        };
        let findings = [
            finding(1, None, Hypothesis::Whole, true),
            finding(2, Some(1), Hypothesis::Locks, true),
            finding(3, Some(1), Hypothesis::Processor, false),
            finding(4, Some(2), Hypothesis::Locks, true),
            finding(5, Some(1), Hypothesis::Delayed, true),
        ];
        let found = ProcessProblems::of((None, 9), &findings, (1.6, 0.5), false);
        assert_eq!(
            (found.holding.as_slice(), found.active, found.is_idle),
            (&[(Hypothesis::Locks, 0.8), (Hypothesis::Delayed, 0.5)][..], Some(1.6), false)
        );
        let nothing = ProcessProblems::of((None, 9), &[], (0.0, 0.0), false);
        assert_eq!((nothing.holding.len(), nothing.active), (0, None));
    }
}
