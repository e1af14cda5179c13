//! Room for islands where there is no padding: straight ranges of a function that may be displaced. A springboard needs only a part of the
//! displaced bytes, and the rest is dead.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction};
use ingraft_model::machine::{PAGE, SPRINGBOARD};
use ingraft_model::{IslandRoom, Svma};

use crate::flow::FlowGraph;
use crate::flow::body::{DecodedFunction, is_direct_branch};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::sites::entry;
use crate::sites::exit;

/// Length of a springboard and of an island after it, in bytes.
const ROOM: u64 = 2 * SPRINGBOARD;
/// Distances from the start of a jump of two bytes at which an island may begin, in bytes.
const REACH: Range<i64> = -126..130;
/// Limits on the functions examined for the sake of another one, the size in bytes and the number: hostile functions may overlap.
const NEIGHBOUR_MAX: u64 = 2048;
const NEIGHBOURS: usize = 8;
/// Largest number of ranges that are offered for one exit.
const OFFERED: usize = 8;

/// Straight ranges of one function from which instructions may be displaced, each as the address ranges of its instructions.
pub(crate) struct IslandRooms(Vec<Vec<Range<u64>>>);

impl IslandRooms {
    /// Finds the ranges of a function. `needed` are sorted address ranges that the function's own points need; no range overlaps them.
    pub fn new(body: &DecodedFunction<'_>, flow: &FlowGraph, needed: &[Range<u64>]) -> Self {
        let mut runs: Vec<Vec<Range<u64>>> = vec![Vec::new()];
        for (index, i) in body.code.iter().enumerate() {
            let range = i.ip()..i.next_ip();
            let free = flow.reaches(index)
                && (runs_on(i) || ends(i, body))
                && !flow.leaves(index)
                && !body.image.is_probe(range.start)
                && !body.is_within_other(range.start)
                && !(range.start + 1..range.end).any(|at| flow.lands(body, at))
                && !overlaps(needed, &range);
            let continues = |run: &Vec<Range<u64>>| {
                run.last().is_some_and(|last| last.end == range.start) && !flow.lands(body, range.start)
            };
            match runs.last_mut().filter(|run| continues(run)) {
                Some(run) if free => run.push(range),
                _ if free => runs.push(vec![range]),
                _ => runs.push(Vec::new()),
            }
            if ends(i, body) {
                runs.push(Vec::new());
            }
        }
        let length = |run: &Vec<Range<u64>>| run.first().zip(run.last()).map_or(0, |(a, b)| b.end - a.start);
        runs.retain(|run| length(run) >= ROOM);
        IslandRooms(runs)
    }

    /// Returns the ranges in which an island is within reach of a two-byte jump at `at`, nearest first, at most [`OFFERED`].
    pub fn near(&self, image: &AnalysedImage, at: u64) -> Vec<IslandRoom> {
        let distance = |of: u64| of.wrapping_sub(at).cast_signed();
        let mut found: Vec<IslandRoom> = Vec::new();
        let in_reach = |run: &&Vec<Range<u64>>| {
            let ends = run.first().zip(run.last());
            ends.is_some_and(|(first, last)| distance(last.end) > REACH.start && distance(first.start) < REACH.end)
        };
        for run in self.0.iter().filter(in_reach) {
            let mut free_from = 0;
            for (index, start) in run.iter().map(|i| i.start).enumerate() {
                let whole = [start, start + SPRINGBOARD].iter().all(|s| s / PAGE == (s + SPRINGBOARD - 1) / PAGE);
                if start < free_from || !whole || !REACH.contains(&distance(start + SPRINGBOARD)) {
                    continue;
                }
                let Some(end) = run[index..].iter().map(|i| i.end).find(|end| end - start >= ROOM) else { break };
                let bytes = image.elf().data_at(start, end - start);
                if let Some(bytes) = bytes.filter(|_| !image.in_restartable_sequence(start, end - start)) {
                    found.push(IslandRoom { at: Svma(start), bytes: bytes.to_vec() });
                    free_from = end;
                }
            }
        }
        found.sort_by_key(|c| distance(c.at.0).unsigned_abs());
        found.truncate(OFFERED);
        found
    }
}

/// The ranges of short functions around an address, without those of the function that begins at `except`.
pub(crate) fn around(image: &AnalysedImage, at: u64, except: Option<u64>) -> Vec<IslandRoom> {
    let places = (at.saturating_sub(REACH.start.unsigned_abs() + ROOM)..at + REACH.end.unsigned_abs()).step_by(8);
    let mut functions: Vec<&Function> = places.filter_map(|at| image.function_around(at)).collect();
    functions.sort_unstable_by_key(|f| f.start);
    functions.dedup_by_key(|f| f.start);
    functions.retain(|f| Some(f.start) != except);
    functions.retain(|f| f.size() + f.parts().iter().map(|p| p.end.0 - p.start.0).sum::<u64>() <= NEIGHBOUR_MAX);
    functions.truncate(NEIGHBOURS);
    let of = |f: &&Function| {
        exit::known(image, f).map_or_else(|_| Vec::new(), |k| k.island_rooms(image, &[]).near(image, at))
    };
    let mut all: Vec<IslandRoom> = functions.iter().flat_map(of).collect();
    all.sort_by_key(|c| c.at.0.abs_diff(at));
    all.dedup();
    all.truncate(OFFERED);
    all
}

fn overlaps(needed: &[Range<u64>], range: &Range<u64>) -> bool {
    let after = needed.partition_point(|n| n.start < range.end);
    needed[..after].iter().rev().take(4).any(|n| n.end > range.start)
}

/// Whether an instruction can be displaced and control may fall through it.
fn runs_on(i: &Instruction) -> bool {
    entry::runs_on(i) || i.flow_control() == FlowControl::ConditionalBranch && i.is_jcc_short_or_near()
}

/// Whether an instruction is a jump inside the function, which ends a range.
fn ends(i: &Instruction, body: &DecodedFunction<'_>) -> bool {
    i.flow_control() == FlowControl::UnconditionalBranch && is_direct_branch(i) && body.contains(i.near_branch_target())
}
