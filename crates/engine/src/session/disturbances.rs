//! Changes by other programs to woven code: how the engine notices and reports them.

use crate::recovery::ground;
use crate::recovery::ground::{Left, Why};

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;

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
        self.findings.date(warnings, now_ns());
    }

    /// Examines the woven code, and logs each change by other programs once.
    pub fn notice_disturbances(&self) {
        let found = self.disturbances(&self.control());
        self.findings.note(self.pid(), found, now_ns());
    }
}
