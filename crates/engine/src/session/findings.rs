//! Findings about changes by other programs to woven code.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ingraft_model::Pid;

/// Largest number of different findings that are remembered until the end.
const FINDINGS_MAX: usize = 64;

/// Findings about changed code that the thread `watch` has logged, each with the Unix time in nanoseconds of its first occurrence.
#[derive(Default)]
pub(super) struct Findings(Mutex<Vec<(String, u64)>>);

impl Findings {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the findings that are new, and remembers them.
    pub(super) fn note(&self, pid: Pid, found: Vec<String>, now_ns: u64) {
        let mut known = self.lock();
        for what in found {
            if known.len() < FINDINGS_MAX && !known.iter().any(|(known, _)| *known == what) {
                tracing::warn!(pid = pid.0, "{what}");
                known.push((what, now_ns));
            }
        }
    }

    /// Adds all findings to warnings, each once, with the time since its first occurrence.
    pub(super) fn date(&self, warnings: &mut Vec<String>, now_ns: u64) {
        for (what, since) in self.lock().iter() {
            let ago = now_ns.saturating_sub(*since) / 1_000_000_000;
            let dated = format!("{what} (seen first {ago} s before the end)");
            match warnings.iter_mut().find(|known| *known == what) {
                Some(known) => *known = dated,
                None => warnings.push(dated),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn dated(findings: &Findings, warnings: &[&str], now_ns: u64) -> Vec<String> {
        let mut warnings = warnings.iter().map(ToString::to_string).collect();
        findings.date(&mut warnings, now_ns);
        warnings
    }

    #[test]
    fn a_finding_keeps_the_time_of_its_first_occurrence() {
        let findings = Findings::default();
        findings.note(Pid(1), vec!["a".to_owned(), "b".to_owned()], 2 * SECOND);
        findings.note(Pid(1), vec!["a".to_owned()], 5 * SECOND);
        let both = ["a (seen first 7 s before the end)", "b (seen first 7 s before the end)"];
        assert_eq!(dated(&findings, &[], 9 * SECOND), both);
        assert_eq!(dated(&findings, &["b", "c"], 9 * SECOND), [both[1], "c", both[0]], "each once");
        assert_eq!(dated(&findings, &[], SECOND)[0], "a (seen first 0 s before the end)", "the clock was set back");
    }

    #[test]
    fn the_number_of_findings_is_bounded() {
        let findings = Findings::default();
        findings.note(Pid(1), (0..FINDINGS_MAX + 1).map(|n| n.to_string()).collect(), 0);
        let kept = dated(&findings, &[], 0);
        assert_eq!(kept.len(), FINDINGS_MAX);
        assert!(kept[0].starts_with("0 ") && kept.iter().all(|what| !what.starts_with("64 ")));
    }
}
