//! Programs that suspend contexts in signal handlers. A program counter then waits in memory, in text or in generated code. No context may
//! continue within a write, and code stays as long as one may continue there.

use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, DataArea, TextWrite};
use ingraft_process::{CodePointers, Preemption, Target};

use crate::background::in_background;

/// The file of a program that switches stacks. The program handles signals too, so its contexts may be suspended anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler(String);

impl Scheduler {
    /// Looks for code that switches stacks in a program that handles signals.
    pub fn of(target: &Target) -> Option<Self> {
        match in_background(|| target.preemption()) {
            Preemption::Likely(file) => Some(Scheduler(file)),
            Preemption::Go | Preemption::Unknown => None,
        }
    }

    /// Warns that generated code stays, because a context may be suspended there.
    pub fn warning(&self) -> String {
        format!(
            "ingraft's memory stays for now: {} switches stacks and the program handles signals, and a word in its memory may be the program counter of a context that is suspended in generated code",
            self.0
        )
    }
}

/// Reason of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An insertion, which may be refused.
    Insertion,
    /// A removal, which must not fail.
    Removal,
}

/// Words that may be the program counters of suspended contexts in the pages of these writes or in these sorted ranges of generated code;
/// `None` if the program suspends none.
pub fn near(
    target: &Target,
    purpose: Purpose,
    text: &[TextWrite],
    code: &[AvmaRange],
    area: Option<DataArea>,
) -> Option<CodePointers> {
    if text.is_empty() && code.is_empty() {
        return None;
    }
    Scheduler::of(target)?;
    let mut pages: Vec<u64> = text.iter().map(|write| write.at.0 / PAGE).collect();
    pages.dedup();
    let pages = pages.into_iter().map(|page| Avma(page * PAGE)..Avma((page + 1) * PAGE));
    let mut into: Vec<AvmaRange> = pages.chain(code.iter().cloned()).collect();
    into.sort_by_key(|range| range.start);
    Some(in_background(|| match purpose {
        Purpose::Insertion if !text.is_empty() => CodePointers::search_strictly(target, into, except(area)),
        Purpose::Insertion | Purpose::Removal => CodePointers::search(target, into, except(area)),
    }))
}

/// Words that may lead into generated code, in which no thread is and to which no text leads any more.
pub fn in_settled(target: &Target, code: &[AvmaRange], area: Option<DataArea>) -> CodePointers {
    in_background(|| CodePointers::search_settled(target, code.to_vec(), except(area)))
}

/// The engine's data are not searched.
fn except(area: Option<DataArea>) -> Vec<AvmaRange> {
    area.map(|area| area.range()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_the_file() {
        assert!(Scheduler("fibres".to_owned()).warning().contains(": fibres switches stacks"));
    }
}
