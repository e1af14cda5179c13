//! Program counters that wait in the memory of a target and point into generated code: contexts that its handlers have suspended. As long as
//! one may be there, the code stays.

use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, TextWrite};
use ingraft_process::{Options as ApplyOptions, Preemption, Target, Words};
use rayon::prelude::*;

use crate::background::in_background;

/// Reason why generated code stays in a target to which nothing leads any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// This file of the program switches stacks, and the program handles signals, so a context may be suspended anywhere.
    Preempts(String),
    /// The word at this address points into the code.
    Points(Avma),
    /// A part of the memory could not be searched, because it is in swap.
    Unseen,
}

impl Kept {
    /// Whether the code stays until the process ends.
    pub fn is_final(&self) -> bool {
        matches!(self, Kept::Preempts(_))
    }

    /// The warning that says so.
    pub fn warning(&self) -> String {
        match self {
            Kept::Preempts(file) => format!(
                "ingraft's memory stays until the process ends: {file} switches stacks and the program handles signals, so a context may be suspended in generated code"
            ),
            Kept::Points(at) => {
                format!("ingraft's memory stays for now: the word at {:#x} points into generated code", at.0)
            }
            Kept::Unseen => {
                "ingraft's memory stays for now: memory of the process that is in swap may point into it".to_owned()
            }
        }
    }
}

/// Looks for words that point into one of the sorted ranges, at low priority, while the target runs.
pub fn search(target: &Target, ranges: &[AvmaRange], area: Option<DataArea>) -> Words {
    let except: Vec<AvmaRange> = area.map(|area| area.range()).into_iter().collect();
    in_background(|| {
        let memory = target.written_memory(&except);
        let words = memory.pieces.par_iter().with_min_len(8).flat_map_iter(|piece| target.words_into(piece, ranges));
        Words::new(words.collect(), &memory)
    })
}

/// Words that may be the program counters of suspended contexts in the pages of these writes; `None` if the program suspends none.
pub fn near(target: &Target, text: &[TextWrite], area: DataArea) -> Option<Words> {
    const PAGE: u64 = 4096;
    if text.is_empty() || !matches!(preemption(target), Preemption::Likely(_)) {
        return None;
    }
    let mut pages: Vec<u64> = text.iter().map(|write| write.at.0 / PAGE).collect();
    pages.dedup();
    let ranges: Vec<AvmaRange> = pages.into_iter().map(|page| Avma(page * PAGE)..Avma((page + 1) * PAGE)).collect();
    Some(search(target, &ranges, Some(area)))
}

/// What shows that the program suspends contexts in handlers.
pub fn preemption(target: &Target) -> Preemption {
    in_background(|| target.preemption())
}

/// Whether nothing waits in these sorted ranges, in which no thread is: the code there may be replaced. What cannot be found out counts as
/// waiting.
pub fn is_free(target: &Target, ranges: &[AvmaRange], area: DataArea) -> bool {
    if ranges.is_empty() || !target.handles_signals() {
        return true;
    }
    match preemption(target) {
        Preemption::Likely(_) => return false,
        Preemption::Go => return true,
        Preemption::Unknown => {}
    }
    let words = search(target, ranges, Some(area));
    if words.is_part() {
        return false;
    }
    let options = ApplyOptions { check_quiet: ranges.to_vec(), suspended: Some(words), ..ApplyOptions::default() };
    target.apply(&PatchPlan::default(), &options).is_ok_and(|applied| applied.quiet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_a_scheduler_stays_for_good() {
        let all = [Kept::Preempts("fibres".to_owned()), Kept::Points(Avma(16)), Kept::Unseen];
        assert_eq!(all.each_ref().map(Kept::is_final), [true, false, false]);
        assert!(all.iter().all(|kept| kept.warning().starts_with("ingraft's memory stays")));
    }
}
