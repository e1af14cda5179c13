//! Jumps that data among code seems to make. The sweep decodes whatever lies in the text, and constants there look like instructions.

use std::ops::Range;

use iced_x86::Instruction;
use ingraft_model::Svma;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::functions::function::Function;
use crate::functions::jump_table::{JumpResolver, Predecessors, ResolvedJump, TableMemo};
use crate::functions::sweep::{self, Sweep};
use crate::text::bits::TextBits;
use crate::text::decode;
use crate::text::transfer::ControlTransfer;

/// Largest number of rounds in which jump tables are followed: the code at a target may read another table.
const ROUNDS: usize = 8;

/// Tells which jumps into functions are none.
pub(crate) struct StrayJumps<'a> {
    pub sweep: &'a Sweep<'a>,
    /// The functions with their parts, and the ranges between these: together the whole text. Sorted.
    pub regions: Vec<(u64, u64)>,
    /// Addresses at which control may arrive, other than those in the sets of the sweep: starts of functions, landing pads, labels of symbols,
    /// and targets of all jumps that were decoded, even of those that are none. Sorted.
    pub entries: Vec<u64>,
    /// For each function that was looked at, the address ranges of its instructions, sorted.
    code: FxHashMap<u64, Vec<Range<u64>>>,
    /// For each region that was looked at, by its start, the instructions to which control can lead; `None` if they are not all known.
    reached: FxHashMap<u64, Option<FxHashSet<u64>>>,
}

impl<'a> StrayJumps<'a> {
    pub fn new(sweep: &'a Sweep<'a>, regions: Vec<(u64, u64)>, entries: Vec<u64>) -> Self {
        StrayJumps { sweep, regions, entries, code: FxHashMap::default(), reached: FxHashMap::default() }
    }

    /// Whether a jump into a function is none: its target lies within an instruction of the function, and control cannot lead to the jump from
    /// any address at which control may arrive.
    ///
    /// An address counts if any code or data names it, or any jump or call leads there, garbage included. Every indirect jump in the region must
    /// be resolved. What is left out is a jump of other code whose targets are not known: as everywhere, it is taken to stay in its function or
    /// to lead to an address that something names.
    pub fn is_stray(&mut self, from: u64, function: &Function, target: u64) -> bool {
        self.is_within_instruction(function, target) && !self.may_run(from)
    }

    fn is_within_instruction(&mut self, function: &Function, target: u64) -> bool {
        let Range { start: Svma(start), end: Svma(end) } = function.range();
        let image = self.sweep.image;
        let spans = || sweep::instructions(image, start, end).iter().map(|i| i.ip()..i.next_ip()).collect();
        let code = self.code.entry(start).or_insert_with(spans);
        let first = code.partition_point(|i| i.start < target);
        (start + 1..end).contains(&target)
            && code.get(first).is_none_or(|i| i.start != target)
            && code[..first].last().is_some_and(|i| i.contains(&target))
    }

    /// Whether control may lead to an instruction.
    fn may_run(&mut self, at: u64) -> bool {
        let region = self.regions.partition_point(|r| r.0 <= at).checked_sub(1).map(|n| self.regions[n]);
        let Some((start, end)) = region.filter(|r| at < r.1) else { return true };
        if !self.reached.contains_key(&start) {
            let reached = self.reach(start, end);
            self.reached.insert(start, reached);
        }
        self.reached[&start].as_ref().is_none_or(|reached| reached.contains(&at))
    }

    /// The instructions of a region to which control can lead.
    fn reach(&self, start: u64, end: u64) -> Option<FxHashSet<u64>> {
        let (image, pointers) = (self.sweep.image, self.sweep.pointers);
        let bytes = image.data_at(start, end - start)?;
        let first = self.entries.partition_point(|at| *at < start);
        let mut work: Vec<u64> = self.entries[first..].iter().copied().take_while(|at| *at < end).collect();
        for set in [&self.sweep.addressed, &self.sweep.calls] {
            work.extend(in_range(set, start, end));
        }
        let entries = work.clone();
        let (mut seen, mut code, mut jumps) = (FxHashSet::default(), Vec::<Instruction>::new(), Vec::new());
        for _ in 0..ROUNDS {
            while let Some(mut at) = work.pop() {
                while (start..end).contains(&at) && seen.insert(at) {
                    let Some(i) = decode::one(&bytes[(at - start) as usize..], at) else { break };
                    at = i.next_ip();
                    let transfer = ControlTransfer::of(&i);
                    work.extend(transfer.branch_target());
                    if transfer == ControlTransfer::Indirect && !i.is_ip_rel_memory_operand() {
                        jumps.push(i.ip());
                    }
                    code.push(i);
                    if !transfer.runs_on() && !transfer.comes_back() {
                        break;
                    }
                }
            }
            code.sort_unstable_by_key(|i| i.ip());
            let whole = start..end;
            let before = Predecessors::new(&code, entries.clone(), vec![true; code.len()]);
            let memory = TableMemo::new(code.len());
            let inside = std::slice::from_ref(&whole);
            let resolver =
                JumpResolver { image, pointers, code: &code, inside, before: &before, tables: &[], memory: &memory };
            let mut budget = 16 * code.len() + 256;
            for jump in &jumps {
                let index = code.binary_search_by_key(jump, |i| i.ip()).ok()?;
                match resolver.resolve(index, &mut budget) {
                    ResolvedJump::Table(targets) if targets.bounded || targets.absolute => work.extend(targets.places),
                    // The labels to which a pointer may lead are in the sets.
                    ResolvedJump::Pointer => {}
                    ResolvedJump::Table(_) | ResolvedJump::Distances(_) => return None,
                }
            }
            work.retain(|at| whole.contains(at) && !seen.contains(at));
            if work.is_empty() {
                return Some(seen);
            }
        }
        None
    }
}

/// The addresses of a set in a range.
fn in_range(set: &TextBits, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
    let mut from = start;
    std::iter::from_fn(move || {
        let found = set.first(from, end)?;
        from = found + 1;
        Some(found)
    })
}
