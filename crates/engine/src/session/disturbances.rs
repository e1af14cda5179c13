//! Changes by other programs to woven code: how the engine notices and reports them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ingraft_model::Pid;

use crate::recovery::ground;
use crate::recovery::ground::{Left, Why};

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;

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
    pub(super) fn note(&self, pid: Pid, found: Vec<String>) {
        let mut known = self.lock();
        for what in found {
            if known.len() < FINDINGS_MAX && !known.iter().any(|(known, _)| *known == what) {
                tracing::warn!(pid = pid.0, "{what}");
                known.push((what, now_ns()));
            }
        }
    }

    /// Adds all findings to warnings, each once, with the time since its first occurrence.
    fn date(&self, warnings: &mut Vec<String>) {
        let now = now_ns();
        for (what, since) in self.lock().iter() {
            let ago = now.saturating_sub(*since) / 1_000_000_000;
            let dated = format!("{what} (seen first {ago} s before the end)");
            match warnings.iter_mut().find(|known| *known == what) {
                Some(known) => *known = dated,
                None => warnings.push(dated),
            }
        }
    }
}

impl Session {
    /// Warnings about places at which other programs have changed code.
    pub(super) fn warnings(&self, control: &Control, left: &[Left]) -> Vec<String> {
        Left::warnings(left, &self.target, &|at| control.modules.name_at(at))
    }

    /// Warnings about changes by other programs to the code that is woven here.
    pub(super) fn disturbances(&self, control: &Control) -> Vec<String> {
        let left = self.disturbed_places(control);
        if left.is_empty() { Vec::new() } else { self.warnings(control, &left) }
    }

    /// Places at which other programs have changed the code that is woven here.
    pub(super) fn disturbed_places(&self, control: &Control) -> Vec<Left> {
        let Some(attached) = &control.attached else { return Vec::new() };
        let text = attached.woven.changes().flat_map(|record| &record.text);
        ground::disturbed(&self.target, text)
    }

    /// Adds to the warnings of a removal the changes that other programs made while the code was woven: places that have the original code
    /// again, which the removal itself does not notice, and earlier findings, each once and with the time since. `left` are the places that
    /// are reported already.
    pub(super) fn add_lost_calls(
        &self,
        control: &Control,
        before: Vec<Left>,
        left: &[Left],
        warnings: &mut Vec<String>,
    ) {
        let lost: Vec<Left> =
            before.into_iter().filter(|l| l.state == Why::Lost && !left.iter().any(|k| k.at == l.at)).collect();
        if !lost.is_empty() {
            warnings.extend(self.warnings(control, &lost));
        }
        self.findings.date(warnings);
    }

    /// Examines the woven code, and logs each change by other programs once.
    pub fn notice_disturbances(&self) {
        let found = self.disturbances(&self.control());
        self.findings.note(self.pid(), found);
    }
}
