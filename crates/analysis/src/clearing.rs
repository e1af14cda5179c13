//! Room for islands where there is no padding: straight stretches of a function that may be displaced, so that what a springboard does not
//! need of them is dead.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction};
use ingraft_model::{Clearing, Svma};

use crate::body::{Body, is_direct_branch};
use crate::entry::{self, PAGE, SPRINGBOARD};
use crate::flow::Flow;

/// A springboard, and an island behind it.
const ROOM: u64 = 2 * SPRINGBOARD;
/// How far before and behind a jump of two bytes an island may begin, counted from the jump.
const REACH: Range<i64> = -126..130;
/// As many as are offered for one exit.
const OFFERED: usize = 6;

/// Where displaced instructions may come from in one function.
pub(crate) struct Clearings<'a> {
    body: &'a Body<'a>,
    /// Straight stretches, as ranges of indices into the code.
    runs: Vec<Range<usize>>,
}

impl<'a> Clearings<'a> {
    /// Looks at a function, leaving alone what its own points need: sorted ranges of addresses.
    pub fn new(body: &'a Body<'a>, flow: &Flow, needed: &[Range<u64>]) -> Self {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        for (index, i) in body.code.iter().enumerate() {
            let continues = index > start
                && body.code.get(index - 1).is_some_and(|before| before.next_ip() == i.ip() && runs_on(before))
                && !flow.lands(body, i.ip());
            if !continues {
                runs.push(start..index);
                start = index;
            }
            let free = flow.reached.get(index) == Some(&true)
                && (runs_on(i) || ends(i, body))
                && flow.exits.binary_search(&index).is_err()
                && !(i.ip() + 1..i.next_ip()).any(|at| flow.lands(body, at))
                && !overlaps(needed, &(i.ip()..i.next_ip()));
            if !free {
                runs.push(start..index);
                start = index + 1;
            }
        }
        runs.push(start..body.code.len());
        runs.retain(|run| length(body, run) >= ROOM);
        Clearings { body, runs }
    }

    /// Those whose islands a jump of two bytes at an address reaches, nearest first.
    pub fn near(&self, at: u64) -> Vec<Clearing> {
        let distance = |of: u64| of.wrapping_sub(at).cast_signed();
        let mut found: Vec<Clearing> = Vec::new();
        for run in &self.runs {
            let code = &self.body.code;
            let mut free_from = 0;
            for index in run.clone() {
                let start = code[index].ip();
                let reaches = REACH.contains(&distance(start + SPRINGBOARD));
                let whole = [start, start + SPRINGBOARD].iter().all(|s| s / PAGE == (s + SPRINGBOARD - 1) / PAGE);
                if start < free_from || !reaches || !whole {
                    continue;
                }
                let last = code[index..run.end].iter().map(Instruction::next_ip).find(|end| end - start >= ROOM);
                let Some(end) = last else { break };
                let image = self.body.image;
                if image.in_restartable_sequence(start, end - start) {
                    continue;
                }
                let Some(bytes) = image.elf().data_at(start, end - start) else { continue };
                found.push(Clearing { at: Svma(start), bytes: bytes.to_vec() });
                free_from = end;
            }
        }
        found.sort_by_key(|c| distance(c.at.0).unsigned_abs());
        found.truncate(OFFERED);
        found
    }
}

fn length(body: &Body<'_>, run: &Range<usize>) -> u64 {
    let code = body.code.get(run.clone()).unwrap_or_default();
    code.first().zip(code.last()).map_or(0, |(first, last)| last.next_ip() - first.ip())
}

fn overlaps(needed: &[Range<u64>], range: &Range<u64>) -> bool {
    let after = needed.partition_point(|n| n.start < range.end);
    needed[..after].iter().rev().take(4).any(|n| n.end > range.start)
}

/// Whether control may run on behind it, and it can be displaced.
fn runs_on(i: &Instruction) -> bool {
    entry::runs_on(i) || i.flow_control() == FlowControl::ConditionalBranch && i.is_jcc_short_or_near()
}

/// A jump inside of the function ends a stretch.
fn ends(i: &Instruction, body: &Body<'_>) -> bool {
    i.flow_control() == FlowControl::UnconditionalBranch && is_direct_branch(i) && body.contains(i.near_branch_target())
}
