//! Suspects: the parts of a function whose times or iterations are measured, because its variance may come from them. The prediction chooses them,
//! and says which share each may have.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ingraft_api::{SharesOptions, Suspect};
use ingraft_model::{Offset, Svma};
use ingraft_report::{CallTarget, EdgeEnd, FunctionProfile, FunctionTimes, TimedPart, VarianceCause};

/// Predicted time of the callee of a call site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CalleeTime {
    /// Mean time of a call, in the unit of the prediction.
    pub(super) mean: f64,
    /// Variance of the time of a call.
    pub(super) variance: f64,
}

/// The suspects of a function, at most [`SharesOptions::SUSPECTS_MAX`]. `callees` has the predicted time of the callee of each call site.
///
/// A suspect with a predicted time is ranked by the variance that it would bring if nothing depended on anything else: a call site by how often
/// it is passed and by the time of the callee, a loop by the time of an entry, as if each iteration were the last one with the same
/// probability. Nothing is known of callees that are not profiled, such as those that wait in the kernel, so they have half of the places
/// if there are so many of them. First come those that are not called exactly once in each call.
pub(super) fn suspects(
    function: &FunctionProfile,
    times: &FunctionTimes,
    callees: &[Option<CalleeTime>],
) -> Vec<Suspect> {
    let calls = (function.calls as f64).max(1.0);
    let mut known: Vec<(f64, Suspect)> = Vec::new();
    let mut unknown: Vec<(bool, u64, Suspect)> = Vec::new();
    for (site, callee) in function.call_sites.iter().zip(callees) {
        let Some(block) = function.blocks.get(site.block).filter(|_| site.count > 0) else { continue };
        if site.callee == CallTarget::System {
            continue;
        }
        let suspect = Suspect::CallSite(Offset::between(function.start.0, block.last.0));
        let often = site.count as f64 / calls;
        match callee {
            Some(CalleeTime { mean, variance }) => {
                let passages = if often <= 1.0 { often * (1.0 - often) } else { often };
                known.push((often * variance + passages * mean * mean, suspect));
            }
            None => unknown.push((site.count == function.calls, site.count, suspect)),
        }
    }
    for node in times.times.nodes.iter().filter(|node| node.frequency > 0.0) {
        let TimedPart::Loop(header) = node.origin else { continue };
        let Some(block) = function.blocks.get(header) else { continue };
        let suspect = Suspect::Loop(Offset::between(function.start.0, block.start.0));
        known.push((node.frequency * node.mean * node.mean, suspect));
    }
    known.sort_by(|a, b| b.0.total_cmp(&a.0));
    unknown.sort_by_key(|(is_always, count, suspect)| (*is_always, Reverse(*count), *suspect));
    let most = SharesOptions::SUSPECTS_MAX;
    let of_known = most - unknown.len().min(most / 2);
    let mut seen = BTreeSet::new();
    let known = known.into_iter().map(|(_, suspect)| suspect).filter(|suspect| seen.insert(*suspect));
    let mut all: Vec<Suspect> = known.collect();
    let rest = all.split_off(all.len().min(of_known));
    all.extend(unknown.into_iter().map(|(.., suspect)| suspect).chain(rest));
    all.truncate(most);
    all
}

/// The ways of control in a function.
struct Ways<'p> {
    function: &'p FunctionProfile,
}

impl Ways<'_> {
    fn successors(&self, block: usize) -> impl Iterator<Item = usize> {
        self.function.edges.iter().filter(move |edge| edge.from == block).filter_map(|edge| match edge.to {
            EdgeEnd::Block(to) => Some(to),
            EdgeEnd::Outside(_) | EdgeEnd::Dynamic => None,
        })
    }

    /// The blocks to which ways from a block lead that do not pass another one. The block itself is among them.
    fn from(&self, block: usize, without: usize) -> BTreeSet<usize> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![block]);
        while let Some(at) = next.pop() {
            if at != without && seen.insert(at) {
                next.extend(self.successors(at));
            }
        }
        seen
    }

    /// Whether a block runs only for some ways of the branch of another one.
    fn depends_on(&self, block: usize, branch: usize) -> bool {
        let ways: Vec<bool> = self.successors(branch).map(|to| self.from(to, branch).contains(&block)).collect();
        ways.contains(&true) && ways.contains(&false)
    }

    /// Whether a loop with this header contains a block.
    fn is_in_loop(&self, block: usize, header: usize) -> bool {
        let around =
            |from: usize, to: usize| self.successors(from).any(|next| self.from(next, usize::MAX).contains(&to));
        block == header || around(header, block) && around(block, header)
    }
}

/// The predicted share of each suspect: its own, and those of the branches that decide whether, or how often, it runs. A branch of several suspects
/// counts for the first of them.
pub(super) fn predicted(function: &FunctionProfile, times: &FunctionTimes, suspects: &[Suspect]) -> Vec<f64> {
    let ways = Ways { function };
    let block = |suspect: &Suspect| match suspect {
        Suspect::CallSite(at) => {
            let at: Svma = function.start.offset(at.0);
            function.blocks.iter().position(|block| block.last == at)
        }
        Suspect::Loop(at) => {
            let at = function.start.offset(at.0);
            function.blocks.iter().position(|block| block.start == at)
        }
    };
    let blocks: Vec<Option<usize>> = suspects.iter().map(block).collect();
    let find = |is_it: &dyn Fn(&Suspect, usize) -> bool| {
        suspects.iter().zip(&blocks).position(|(suspect, block)| block.is_some_and(|block| is_it(suspect, block)))
    };
    let is_loop = |suspect: &Suspect| matches!(suspect, Suspect::Loop(_));
    let mut all = vec![0.0; suspects.len()];
    for share in &times.times.shares {
        let of = match share.cause {
            VarianceCause::Callee(at) => find(&|suspect, block| !is_loop(suspect) && block == at),
            VarianceCause::Trips(header) => find(&|suspect, block| is_loop(suspect) && block == header),
            VarianceCause::Exit(branch) => find(&|suspect, block| is_loop(suspect) && ways.is_in_loop(branch, block))
                .or_else(|| find(&|_, block| ways.depends_on(block, branch))),
            VarianceCause::Branch(branch) => find(&|_, block| ways.depends_on(block, branch)),
            VarianceCause::Arrival => None,
        };
        if let Some(sum) = of.and_then(|of| all.get_mut(of)) {
            *sum += share.share.independent;
        }
    }
    all
}
