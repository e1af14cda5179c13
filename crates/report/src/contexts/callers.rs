//! Trees of callers: for each function, the functions that have called it, and the share of its value that comes from there.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{ContextProfile, ContextValue, ReturnSite};

/// Largest number of levels of a tree of callers, so that functions over such a tree may be recursive.
const DEPTH_MAX: usize = 500;

/// A function, or a caller of one, with its callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerNode {
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// Return address of the calls that it made; `None` at the root.
    pub site: Option<ReturnSite>,
    /// Sum of the root's own values in the contexts to which this chain of callers leads.
    pub value: i64,
    /// Number of the root's calls in these contexts.
    pub calls: u64,
    /// The callers, those with the largest values first. What they lack of the value and the calls comes from outside of all contexts, or
    /// from callers beyond the limits.
    pub callers: Vec<CallerNode>,
}

/// A context of the function at the root, and how far its chain of callers is climbed.
#[derive(Clone, Copy)]
struct Climbed {
    /// Index of the context that is reached.
    at: usize,
    value: i64,
    calls: u64,
}

impl ContextProfile {
    /// The trees of callers, one for each function with a context, those with the largest values first. `depth` is the largest number of
    /// levels below a root, and `count` the largest number of trees and of callers of a node.
    pub fn callers(&self, of: ContextValue, depth: usize, count: usize) -> Vec<CallerNode> {
        let mut functions: BTreeMap<usize, Vec<Climbed>> = BTreeMap::new();
        for (at, (context, value)) in self.contexts.iter().zip(self.values(of)).enumerate() {
            functions.entry(context.function).or_default().push(Climbed { at, value, calls: context.calls });
        }
        let groups = functions.into_iter().map(|(function, contexts)| ((function, None), contexts)).collect();
        self.caller_nodes(groups, depth.min(DEPTH_MAX), count)
    }

    /// The nodes of groups of contexts with one function and call site.
    fn caller_nodes(
        &self,
        groups: BTreeMap<(usize, Option<ReturnSite>), Vec<Climbed>>,
        depth: usize,
        count: usize,
    ) -> Vec<CallerNode> {
        let sum = |((function, site), contexts): ((usize, Option<ReturnSite>), Vec<Climbed>)| {
            let value = contexts.iter().fold(0, |sum: i64, context| sum.saturating_add(context.value));
            let calls = contexts.iter().fold(0, |sum: u64, context| sum.saturating_add(context.calls));
            (CallerNode { function, site, value, calls, callers: Vec::new() }, contexts)
        };
        let mut nodes: Vec<_> = groups.into_iter().map(sum).collect();
        nodes.sort_by_key(|(node, _)| Reverse((node.value, node.calls)));
        nodes.truncate(count);
        let with_callers = |(node, contexts)| CallerNode { callers: self.callers_of(contexts, depth, count), ..node };
        nodes.into_iter().map(with_callers).collect()
    }

    fn callers_of(&self, contexts: Vec<Climbed>, depth: usize, count: usize) -> Vec<CallerNode> {
        let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
        let mut groups: BTreeMap<_, Vec<Climbed>> = BTreeMap::new();
        for climbed in contexts {
            let Some(context) = self.contexts.get(climbed.at) else { continue };
            let caller = context.parent.and_then(|parent| Some((parent, self.contexts.get(parent)?.function)));
            let Some((at, function)) = caller else { continue };
            groups.entry((function, Some(context.site))).or_default().push(Climbed { at, ..climbed });
        }
        self.caller_nodes(groups, depth, count)
    }
}
