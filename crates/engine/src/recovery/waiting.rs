//! Programs that suspend contexts in signal handlers. A program counter then waits in memory, in text or in generated code. The code stays,
//! and no context may continue within a write.

use ingraft_model::{Avma, AvmaRange, DataArea, TextWrite};
use ingraft_process::{Preemption, Target, Words};

use crate::background::in_background;

/// The file of a program that switches stacks. The program handles signals too, so generated code stays until the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept(String);

impl Kept {
    /// The warning that says so.
    pub fn warning(&self) -> String {
        format!(
            "ingraft's memory stays until the process ends: {} switches stacks and the program handles signals, so a context may be suspended in generated code",
            self.0
        )
    }
}

/// Finds out whether generated code must stay until the program ends.
pub fn keeps(target: &Target) -> Option<Kept> {
    match in_background(|| target.preemption()) {
        Preemption::Likely(file) => Some(Kept(file)),
        Preemption::Go | Preemption::Unknown => None,
    }
}

/// Words that may be the program counters of suspended contexts in the pages of these writes; `None` if the program suspends none.
pub fn near(target: &Target, text: &[TextWrite], area: Option<DataArea>) -> Option<Words> {
    const PAGE: u64 = 4096;
    if text.is_empty() || keeps(target).is_none() {
        return None;
    }
    let mut pages: Vec<u64> = text.iter().map(|write| write.at.0 / PAGE).collect();
    pages.dedup();
    let pages: Vec<AvmaRange> = pages.into_iter().map(|page| Avma(page * PAGE)..Avma((page + 1) * PAGE)).collect();
    let except = area.map(|area| area.range()).into_iter().collect();
    Some(in_background(|| Words::search(target, pages, except)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_the_file() {
        assert!(Kept("fibres".to_owned()).warning().contains(": fibres switches stacks"));
    }
}
