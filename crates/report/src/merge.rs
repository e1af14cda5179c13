//! Sums of profiles, and the match of functions of two profiles.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ingraft_model::Svma;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::contexts::ContextProfile;
use crate::saved::{
    BlockCount, CallTarget, EdgeCount, FunctionProfile, ModuleInfo, PathCount, PathInContext, PathProfile, ProfileKind,
    SavedProfile, UnprofiledFunction,
};

/// Reason why profiles are not summed or compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A module with the same path has another build-id in the other profile: the program was built again in between.
    #[error("{path} has different build-ids in the profiles")]
    OtherBuild {
        /// Path of the module.
        path: String,
    },
    /// One profile has counts, the other one is a coverage.
    #[error("one of the profiles has counts, and the other one is a coverage")]
    OtherKind,
    /// One profile has calling contexts, the other one has counts or is a coverage.
    #[error("one of the profiles has calling contexts, and the other one has none")]
    OtherContexts,
    /// The calling contexts or the paths of the profiles have different metrics.
    #[error("the profiles have different metrics: {}, and {}", metrics(one), metrics(other))]
    OtherMetrics {
        /// Names of the metrics of one profile, with commas between them.
        one: String,
        /// Names of the metrics of the other profile.
        other: String,
    },
    /// One profile has counts of a function's paths, the other one has none.
    #[error("one of the profiles has paths of the function {function}, and the other one has none")]
    OtherPaths {
        /// Name of the function.
        function: String,
    },
    /// A function has other blocks or edges in the other profile: another version of the program has written that profile.
    #[error("the profiles divide the function {function} differently into blocks")]
    OtherBlocks {
        /// Name of the function.
        function: String,
    },
    /// A sum does not fit into 64 bits.
    #[error("the sum of the counts of {function} does not fit into 64 bits")]
    TooLarge {
        /// Name of the function.
        function: String,
    },
}

fn metrics(names: &str) -> &str {
    if names.is_empty() { "none" } else { names }
}

/// Fails unless two profiles have the same kind.
pub(crate) fn same_kind(one: ProfileKind, other: ProfileKind) -> Result<(), MergeError> {
    match (one, other) {
        (one, other) if one == other => Ok(()),
        (ProfileKind::Contexts, _) | (_, ProfileKind::Contexts) => Err(MergeError::OtherContexts),
        _ => Err(MergeError::OtherKind),
    }
}

/// Identity of a module in all profiles: its build-id, or its path if it has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModuleIdentity<'a> {
    BuildId(&'a [u8]),
    Path(&'a str),
}

fn identity(module: &ModuleInfo) -> ModuleIdentity<'_> {
    if module.build_id.is_empty() {
        ModuleIdentity::Path(&module.path)
    } else {
        ModuleIdentity::BuildId(&module.build_id)
    }
}

/// For each module of a profile, the index of the same module in another list. Fails if a module has another build-id there.
pub(crate) fn matched(of: &[ModuleInfo], to: &[ModuleInfo]) -> Result<Vec<Option<usize>>, MergeError> {
    let index = |module: &ModuleInfo| {
        let found = to.iter().position(|other| identity(other) == identity(module));
        let other_build = || to.iter().any(|other| !module.path.is_empty() && other.path == module.path);
        match found {
            None if other_build() => Err(MergeError::OtherBuild { path: module.path.clone() }),
            found => Ok(found),
        }
    };
    of.iter().map(index).collect()
}

impl SavedProfile {
    /// Whether a module of this profile is in the other one too. If not, they are profiles of different programs.
    pub fn shares_module_with(&self, other: &SavedProfile) -> bool {
        let is_known = |module: &ModuleInfo| other.modules.iter().any(|known| identity(known) == identity(module));
        self.modules.iter().any(is_known)
    }

    /// Adds the counts, or the calling contexts, of another profile. Modules are the same if their build-ids are, functions if their modules
    /// and addresses are, contexts if all functions and call sites from a root on are.
    /// Facts about the process stay those of this profile; the sum has no details of functions. Fails, and leaves an incomplete sum, if the
    /// profiles do not fit.
    pub fn add(&mut self, other: &SavedProfile) -> Result<(), MergeError> {
        same_kind(self.kind, other.kind)?;
        if self.path_metrics != other.path_metrics {
            let [one, other] = [self, other].map(|profile| profile.path_metrics.join(", "));
            return Err(MergeError::OtherMetrics { one, other });
        }
        let kind = self.kind;
        self.leave_counts();
        let modules = self.join_modules(other)?;
        let module = |index: usize| modules.get(index).copied().unwrap_or(usize::MAX);
        let contexts = match (&mut self.contexts, &other.contexts) {
            (None, None) => Vec::new(),
            (Some(sum), Some(contexts)) => sum.add(contexts, module)?,
            _ => return Err(MergeError::OtherContexts),
        };
        let keys =
            self.functions.iter().enumerate().map(|(number, function)| ((function.module, function.start), number));
        let known: FxHashMap<(usize, Svma), usize> = keys.collect();
        for function in &other.functions {
            let mut function = FunctionProfile { details: None, ..function.clone() };
            function.module = module(function.module);
            for call in &mut function.call_sites {
                if let CallTarget::Other { module: of, .. } = &mut call.callee {
                    *of = module(*of);
                }
            }
            function.paths.iter_mut().for_each(|paths| paths.move_contexts(&contexts));
            let same = known.get(&(function.module, function.start));
            match same.and_then(|number| self.functions.get_mut(*number)) {
                Some(same) => same.add(&function, kind)?,
                None => self.functions.push(function),
            }
        }
        let listed = self.refused.iter().map(|refused| (refused.module, refused.start));
        let mut listed: FxHashSet<(usize, Svma)> = listed.collect();
        for refused in &other.refused {
            let refused = UnprofiledFunction { module: module(refused.module), ..refused.clone() };
            if listed.insert((refused.module, refused.start)) {
                self.refused.push(refused);
            }
        }
        self.began_ns = self.began_ns.min(other.began_ns);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        let (begin, end) = (&mut self.corrected.0, &mut self.corrected.1);
        (*begin, *end) = (begin.saturating_add(other.corrected.0), end.saturating_add(other.corrected.1));
        Ok(())
    }
}

impl FunctionProfile {
    /// Adds the counts of the same function in another profile.
    fn add(&mut self, other: &FunctionProfile, kind: ProfileKind) -> Result<(), MergeError> {
        let shape = |block: &BlockCount| BlockCount { count: 0, ..*block };
        let blocks = self.blocks.iter().map(shape).eq(other.blocks.iter().map(shape));
        let shape = |edge: &EdgeCount| EdgeCount { count: None, ..*edge };
        if !blocks || !self.edges.iter().map(shape).eq(other.edges.iter().map(shape)) {
            return Err(MergeError::OtherBlocks { function: self.name.clone() });
        }
        let unknown: Vec<usize> = match kind {
            ProfileKind::Counts | ProfileKind::Contexts => self.not_both_know(other),
            ProfileKind::Coverage => self.neither_knows(other),
        };
        let too_large = || MergeError::TooLarge { function: other.name.clone() };
        let sum = |a: u64, b: u64| match kind {
            ProfileKind::Counts | ProfileKind::Contexts => a.checked_add(b).ok_or_else(too_large),
            ProfileKind::Coverage => Ok(a.max(b)),
        };
        let calls = self.known_calls().zip(other.known_calls());
        self.calls = match kind {
            ProfileKind::Counts | ProfileKind::Contexts => calls.map_or(Ok(0), |(own, other)| sum(own, other))?,
            ProfileKind::Coverage => sum(self.calls, other.calls)?,
        };
        for (block, other) in self.blocks.iter_mut().zip(&other.blocks) {
            block.count = sum(block.count, other.count)?;
        }
        for (edge, other) in self.edges.iter_mut().zip(&other.edges) {
            edge.count = match (kind, edge.count, other.count) {
                // A place that has run in one of two executions has run, whatever is known of the other one.
                (ProfileKind::Coverage, Some(1..), _) | (ProfileKind::Coverage, _, Some(1..)) => Some(1),
                (_, a, b) => a.zip(b).map(|(a, b)| sum(a, b)).transpose()?,
            };
        }
        self.unknown = unknown;
        if kind == ProfileKind::Counts {
            // A sum of which a part is missing is no count.
            let blocks = self.unknown.iter();
            blocks.for_each(|block| self.blocks.get_mut(*block).into_iter().for_each(|block| block.count = 0));
        }
        self.add_calls(other, &sum)?;
        match (&mut self.paths, &other.paths) {
            (None, None) => {}
            (Some(own), Some(other)) => own.add(other).ok_or_else(too_large)?,
            _ => return Err(MergeError::OtherPaths { function: self.name.clone() }),
        }
        add_reason(&mut self.inexact, other.inexact.as_ref());
        Ok(())
    }

    /// The blocks whose counts are not known in one of two executions.
    fn not_both_know(&self, other: &FunctionProfile) -> Vec<usize> {
        let mut unknown: Vec<usize> = self.unknown.iter().chain(&other.unknown).copied().collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// The blocks of which it is not known whether they have run in one of two executions, and that have run in none as far as is known.
    fn neither_knows(&self, other: &FunctionProfile) -> Vec<usize> {
        let ran = |block: &usize| self.ran(*block) == Some(true) || other.ran(*block) == Some(true);
        let mut unknown = self.not_both_know(other);
        unknown.retain(|block| !ran(block));
        unknown
    }

    /// Adds the calls that the same function made in another profile.
    fn add_calls(
        &mut self,
        other: &FunctionProfile,
        sum: &dyn Fn(u64, u64) -> Result<u64, MergeError>,
    ) -> Result<(), MergeError> {
        let mut more = Vec::new();
        for call in &other.call_sites {
            let first = self.call_sites.partition_point(|own| own.block < call.block);
            let of_block = self.call_sites.iter_mut().skip(first).take_while(|own| own.block == call.block);
            match of_block.into_iter().find(|own| own.callee == call.callee) {
                Some(own) => own.count = sum(own.count, call.count)?,
                None => more.push(call.clone()),
            }
        }
        self.call_sites.append(&mut more);
        self.call_sites.sort_by_key(|call| call.block);
        Ok(())
    }
}

impl SavedProfile {
    /// Adds the calling contexts of another profile of the same process, and the functions that it lacks. The paths of this one have the indexes of contexts there
    /// ([`PathProfile::by_context`]), and get those here.
    pub fn join_contexts(&mut self, other: &SavedProfile) -> Result<(), MergeError> {
        let modules = self.join_modules(other)?;
        let place = |function: &UnprofiledFunction| modules.get(function.module).copied();
        let refused = other.refused.iter().filter_map(|f| Some(UnprofiledFunction { module: place(f)?, ..f.clone() }));
        self.refused.extend(refused);
        let Some(contexts) = &other.contexts else { return Ok(()) };
        let empty = || ContextProfile {
            metrics: contexts.metrics.clone(),
            outside: vec![0; contexts.outside.len()],
            ..ContextProfile::default()
        };
        let module = |index: usize| modules.get(index).copied().unwrap_or(usize::MAX);
        let indexes = self.contexts.get_or_insert_with(empty).add(contexts, module)?;
        self.functions.iter_mut().filter_map(|f| f.paths.as_mut()).for_each(|paths| paths.move_contexts(&indexes));
        Ok(())
    }

    /// Adds the modules of another profile that this one lacks. Returns the index here of each of its modules.
    fn join_modules(&mut self, other: &SavedProfile) -> Result<Vec<usize>, MergeError> {
        let mut modules = Vec::new();
        for (module, found) in other.modules.iter().zip(matched(&other.modules, &self.modules)?) {
            modules.push(found.unwrap_or_else(|| {
                self.modules.push(module.clone());
                self.modules.len() - 1
            }));
        }
        Ok(modules)
    }
}

impl PathProfile {
    /// Gives contexts other indexes.
    fn move_contexts(&mut self, to: &[usize]) {
        let moved = |context: usize| to.get(context).copied();
        self.by_context.iter_mut().for_each(|of| of.context = of.context.and_then(moved));
    }

    /// Adds the counts of the same function in another profile. Paths are the same if their blocks are. Returns `None` if a sum does not fit.
    fn add(&mut self, other: &PathProfile) -> Option<()> {
        let way = |path: &PathCount| PathCount { number: 0, count: 0, values: Vec::new(), ..path.clone() };
        let known: FxHashMap<PathCount, usize> =
            self.paths.iter().enumerate().map(|(at, path)| (way(path), at)).collect();
        let mut places = Vec::with_capacity(other.paths.len());
        for path in &other.paths {
            let at = known.get(&way(path)).copied();
            match at.and_then(|at| self.paths.get_mut(at)) {
                Some(own) => {
                    own.count = own.count.checked_add(path.count)?;
                    add_values(&mut own.values, &path.values)?;
                }
                None => self.paths.push(path.clone()),
            }
            places.push(at.unwrap_or(self.paths.len() - 1));
        }
        let own = self.by_context.drain(..).map(|of| ((of.context, of.path), of));
        let mut runs: BTreeMap<(Option<usize>, usize), PathInContext> = own.collect();
        for PathInContext { context, path, count, values } in &other.by_context {
            let path = *places.get(*path)?;
            let none = || PathInContext { context: *context, path, count: 0, values: vec![0; values.len()] };
            let sum = runs.entry((*context, path)).or_insert_with(none);
            sum.count = sum.count.checked_add(*count)?;
            add_values(&mut sum.values, values)?;
        }
        let mut order: Vec<(usize, PathCount)> = std::mem::take(&mut self.paths).into_iter().enumerate().collect();
        order.sort_by_key(|(_, path)| (Reverse(path.count), path.number));
        let mut sorted = vec![0; order.len()];
        for (place, (before, _)) in order.iter().enumerate() {
            sorted.get_mut(*before).into_iter().for_each(|to| *to = place);
        }
        self.paths = order.into_iter().map(|(_, path)| path).collect();
        let moved = runs.into_values().filter_map(|of| Some(PathInContext { path: *sorted.get(of.path)?, ..of }));
        self.by_context = moved.collect();
        self.by_context.sort_unstable_by_key(|of| (of.path, of.context));
        self.possible = self.possible.max(other.possible);
        self.is_cut |= other.is_cut;
        let sums = [
            (&mut self.late, other.late),
            (&mut self.unlisted, other.unlisted),
            (&mut self.open, other.open),
            (&mut self.left, other.left),
        ];
        for (own, other) in sums {
            *own = own.checked_add(other)?;
        }
        add_reason(&mut self.inexact, other.inexact.as_ref());
        Some(())
    }
}

/// Adds values to sums; `None` if one does not fit.
fn add_values(sums: &mut [i64], values: &[i64]) -> Option<()> {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.checked_add(*value)?;
    }
    Some(())
}

/// Adds the reason why counts are not exact, unless it is known.
fn add_reason(own: &mut Option<String>, other: Option<&String>) {
    match (own, other) {
        (Some(own), Some(other)) if own != other => *own = format!("{own}; {other}"),
        (own @ None, Some(other)) => *own = Some(other.clone()),
        _ => {}
    }
}
