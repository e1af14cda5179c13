//! The profile of one process as a value: how often the blocks and edges of its functions were executed.

use ingraft_model::{BlockEvents, EdgeKind, Svma};
use ingraft_profile::{Earlier, EarlierProfile, PathBegin, PathEnd};

use crate::contexts::ContextProfile;

/// Meaning of the counts of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProfileKind {
    /// Exact numbers of executions.
    #[default]
    Counts,
    /// 1 for what has run, else 0.
    Coverage,
    /// Calls by calling context. There are no counts of blocks and edges.
    Contexts,
}

/// Counts of the blocks and edges of functions of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedProfile {
    /// Meaning of the counts.
    pub kind: ProfileKind,
    /// Name of the machine.
    pub host: String,
    /// Number of the process.
    pub pid: u32,
    /// Path of the program.
    pub program: String,
    /// Time at which counting began, in nanoseconds of Unix time.
    pub began_ns: u64,
    /// Time at which counting ended, in nanoseconds of Unix time.
    pub ended_ns: u64,
    /// Files whose functions are profiled.
    pub modules: Vec<ModuleInfo>,
    /// Profiled functions.
    pub functions: Vec<FunctionProfile>,
    /// Functions that were asked for and are not profiled.
    pub refused: Vec<UnprofiledFunction>,
    /// Calls in progress when counting began, and calls that counting left in progress, as far as they were corrected for.
    pub corrected: (u64, u64),
    /// Longest time for which a thread was held for the reading, in nanoseconds; 0 if the target had ended, and in a saved profile.
    pub held_ns: u64,
    /// Event of the inclusive totals; empty if there are none.
    pub inclusive: String,
    /// The calling contexts; `None` if they were not told apart. Counts have them if those of paths are by context ([`PathProfile::by_context`]).
    pub contexts: Option<ContextProfile>,
    /// Names of the values of each path, such as `wall_ns`. The unit is the end of the name if that is `ns`.
    pub path_metrics: Vec<String>,
}

impl SavedProfile {
    /// Removes what files and sums do not have: details of functions, and facts about the reading.
    pub fn leave_counts(&mut self) {
        self.functions.iter_mut().for_each(|function| function.details = None);
        self.held_ns = 0;
        self.inclusive.clear();
    }

    /// The counts by which the counters of a later profile are placed.
    pub fn earlier(&self) -> EarlierProfile {
        let mut earlier = EarlierProfile::default();
        for function in &self.functions {
            let Some(module) = self.modules.get(function.module) else { continue };
            let blocks = function.blocks.iter().map(|block| block.count).collect();
            let edges = function.edges.iter().map(|edge| edge.count).collect();
            earlier.add(&module.build_id, function.start, Earlier { blocks, edges });
        }
        earlier
    }
}

/// A file that the process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Name of the module, as in lists of functions.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// The file's build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// Distance from the addresses in the file to those in the process.
    pub bias: u64,
    /// Lowest and highest (exclusive) address of the mapped segments, as in the file.
    pub mapped: (u64, u64),
}

/// Counts of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionProfile {
    /// Index of its module.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Length in bytes.
    pub size: u64,
    /// Number of arrivals from outside at the function's first byte; 0 if it is not known ([`FunctionProfile::known_calls`]).
    pub calls: u64,
    /// The basic blocks, sorted by address.
    pub blocks: Vec<BlockCount>,
    /// Sorted indexes of the blocks of which it is not known whether, or how often, they have run. Their counts are 0.
    pub unknown: Vec<usize>,
    /// The edges, sorted by the block that they leave.
    pub edges: Vec<EdgeCount>,
    /// The calls that the function makes, sorted by the block that they end.
    pub call_sites: Vec<CallCount>,
    /// Reason why the counts are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
    /// Details; `None` in a saved profile.
    pub details: Option<UnsavedDetails>,
    /// Counts of its paths; `None` if they were not counted. The counts of blocks and edges are then those on the paths.
    pub paths: Option<PathProfile>,
}

/// The acyclic paths of a function that control has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathProfile {
    /// Number of different paths that the function has.
    pub possible: u64,
    /// Whether paths end, and others begin, at edges that are no back edges, because there would be too many otherwise.
    pub is_cut: bool,
    /// The paths that have run, those that ran most often first.
    pub paths: Vec<PathCount>,
    /// Number of paths that have ended and had begun before the measurement.
    pub late: u64,
    /// Number of paths that have ended and are not among `paths`: there was no place for their numbers, or too many others ran more often.
    pub unlisted: u64,
    /// Number of calls in progress when the counts were read. A call that was left by an exception counts until its thread makes another one.
    pub open: u64,
    /// Number of paths that were left in the middle: by an exception, by longjmp, or with their threads.
    pub left: u64,
    /// Reason why the counts of paths are not exact; `None` if they are.
    pub inexact: Option<String>,
    /// The runs of `paths` by calling context; empty if contexts were not told apart.
    pub by_context: Vec<PathInContext>,
}

/// Runs of a path in one calling context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathInContext {
    /// Index among the contexts of the profile; `None` if the context is not known, because the call had begun before the measurement, or because
    /// there was no room for its context.
    pub context: Option<usize>,
    /// Index among the paths of the function.
    pub path: usize,
    /// Number of runs.
    pub count: u64,
    /// Sums over these runs, in the order of [`SavedProfile::path_metrics`].
    pub values: Vec<i64>,
}

/// A path of a function, and how often it has run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathCount {
    /// Number among all paths of the function.
    pub number: u64,
    /// Beginning of the path.
    pub begins: PathBegin,
    /// Indexes of the blocks, in the order of their execution; at least one.
    pub blocks: Vec<usize>,
    /// End of the path.
    pub ends: PathEnd,
    /// Index of the block at which the next path begins, if it ends at a back edge or a cut.
    pub next: Option<usize>,
    /// Number of times that it has run.
    pub count: u64,
    /// Sums over all runs, in the order of [`SavedProfile::path_metrics`].
    pub values: Vec<i64>,
}

impl PathCount {
    /// Number of instructions of one run.
    pub fn instructions(&self, blocks: &[BlockCount]) -> u64 {
        self.blocks.iter().filter_map(|block| blocks.get(*block)).map(|block| u64::from(block.instructions)).sum()
    }
}

/// Details of a function that saved profiles do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnsavedDetails {
    /// Preferred name, demangled.
    pub name: String,
    /// Events of one execution of each block, in the order of the blocks.
    pub events: Vec<BlockEvents>,
    /// Events of the function with those of all that it calls; `None` if the profile has no inclusive totals.
    pub inclusive: Option<InclusiveTotal>,
    /// The same of calls that the function makes, each with the block that the call ends.
    pub calls: Vec<(usize, InclusiveTotal)>,
}

/// An inclusive total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InclusiveTotal {
    /// Number of events; `None` if it is not known.
    pub events: Option<u64>,
    /// Reason why the number is not exact, or not known; `None` if it is exact.
    pub inexact: Option<String>,
}

impl FunctionProfile {
    /// Number of arrivals at a block; `None` if it is not known.
    pub fn executions(&self, block: usize) -> Option<u64> {
        let known = self.unknown.binary_search(&block).is_err();
        self.blocks.get(block).filter(|_| known).map(|block| block.count)
    }

    /// Number of calls; `None` if it is not known.
    pub fn known_calls(&self) -> Option<u64> {
        (self.unknown.is_empty() || self.calls > 0).then_some(self.calls)
    }

    /// Whether a block has run; `None` if it is not known.
    pub fn ran(&self, block: usize) -> Option<bool> {
        self.executions(block).map(|count| count > 0)
    }
}

/// Numbers of the blocks and branches of a coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Number of blocks.
    pub blocks: u64,
    /// Number of blocks that have run.
    pub blocks_ran: u64,
    /// Number of blocks of which it is not known.
    pub blocks_unknown: u64,
    /// Number of edges that leave blocks with several of them.
    pub branches: u64,
    /// Number of such edges that control has passed.
    pub branches_ran: u64,
    /// Number of such edges of which it is not known.
    pub branches_unknown: u64,
}

impl std::ops::Add for Covered {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Covered {
            blocks: self.blocks + other.blocks,
            blocks_ran: self.blocks_ran + other.blocks_ran,
            blocks_unknown: self.blocks_unknown + other.blocks_unknown,
            branches: self.branches + other.branches,
            branches_ran: self.branches_ran + other.branches_ran,
            branches_unknown: self.branches_unknown + other.branches_unknown,
        }
    }
}

impl FunctionProfile {
    /// Numbers of the function's blocks and branches that have run.
    pub fn covered(&self) -> Covered {
        let (blocks, branches) = (|| (0..self.blocks.len()).map(|block| self.ran(block)), || self.branches());
        let number =
            |all: &mut dyn Iterator<Item = Option<bool>>, of: Option<bool>| all.filter(|ran| *ran == of).count();
        Covered {
            blocks: self.blocks.len() as u64,
            blocks_ran: number(&mut blocks(), Some(true)) as u64,
            blocks_unknown: number(&mut blocks(), None) as u64,
            branches: branches().count() as u64,
            branches_ran: number(&mut branches(), Some(true)) as u64,
            branches_unknown: number(&mut branches(), None) as u64,
        }
    }

    /// For each edge that leaves a block with several of them, whether control has passed it.
    fn branches(&self) -> impl Iterator<Item = Option<bool>> {
        let several = self.edges.chunk_by(|a, b| a.from == b.from).filter(|edges| edges.len() > 1);
        several.flatten().map(|edge| edge.count.map(|count| count > 0))
    }
}

/// A basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCount {
    /// Address of the first byte.
    pub start: Svma,
    /// Length in bytes.
    pub size: u32,
    /// Number of instructions.
    pub instructions: u32,
    /// Address of the last instruction.
    pub last: Svma,
    /// Number of executions.
    pub count: u64,
}

/// An edge out of a block. A call ends its block, and the edge after the call counts its returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeCount {
    /// Index of the block that it leaves.
    pub from: usize,
    /// Destination of the transfer.
    pub to: EdgeEnd,
    /// Kind of the transfer.
    pub kind: EdgeKind,
    /// Number of passages; `None` if it is not known.
    pub count: Option<u64>,
}

/// Destination of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// Block of the function, by its index.
    Block(usize),
    /// Address in the file, outside of the function.
    Outside(Svma),
    /// An address that the stack or a pointer holds.
    Dynamic,
}

/// A call that the function makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// Index of the block that it ends.
    pub block: usize,
    /// The called function.
    pub callee: CallTarget,
    /// Number of executions.
    pub count: u64,
}

/// The function that a call leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// Function at an address in the same file.
    Own(Svma),
    /// Function of a module, by the module's index, at an address in its file.
    Other {
        /// Index of the module.
        module: usize,
        /// Address in its file.
        at: Svma,
    },
    /// Function of another module, known by its name only.
    Named(String),
    /// A function whose address a register or memory holds.
    Indirect,
    /// The kernel.
    System,
}

/// A function without a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnprofiledFunction {
    /// Index of its module.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Reason.
    pub why: String,
}
