//! A saved profile together with the code of its modules: the input of all tables and formats.

use ingraft_model::Svma;
use rustc_hash::FxHashMap;

use crate::code::{CodeStep, ModuleCode, SourceFrame, Symbol};
use crate::contexts::ContextProfile;
use crate::saved::{
    BlockCount, CallCount, CallTarget, EdgeCount, EdgeEnd, FunctionProfile, ModuleInfo, ProfileKind, SavedProfile,
};

/// A saved profile and what is known about the code of its modules.
pub struct ProfiledProgram<'a> {
    profile: &'a SavedProfile,
    code: Vec<ModuleCode>,
    /// Indexes of functions by module and address of the first byte.
    by_start: FxHashMap<(usize, Svma), usize>,
}

impl<'a> ProfiledProgram<'a> {
    /// Puts a profile together with the code of its modules, in the order of [`SavedProfile::modules`]. Modules without code are like
    /// [`ModuleCode::default`].
    pub fn new(profile: &'a SavedProfile, mut code: Vec<ModuleCode>) -> Self {
        code.resize_with(profile.modules.len(), ModuleCode::default);
        let starts = profile.functions.iter().enumerate();
        let by_start = starts.map(|(number, function)| ((function.module, function.start), number)).collect();
        ProfiledProgram { profile, code, by_start }
    }

    /// The profile.
    pub fn profile(&self) -> &'a SavedProfile {
        self.profile
    }

    /// The calling contexts; `None` if this is no profile of contexts. Paths by context have [`ProfiledProgram::all_contexts`].
    pub fn contexts(&self) -> Option<&'a ContextProfile> {
        self.profile.contexts.as_ref().filter(|_| self.profile.kind == ProfileKind::Contexts)
    }

    /// The calling contexts, also of paths; `None` if there are none.
    pub fn all_contexts(&self) -> Option<&'a ContextProfile> {
        self.profile.contexts.as_ref()
    }

    /// Names of the values of each path.
    pub fn path_metrics(&self) -> &'a [String] {
        &self.profile.path_metrics
    }

    /// The code of a module, by its index.
    pub fn code(&self, module: usize) -> Option<&ModuleCode> {
        self.code.get(module)
    }

    /// The profiled functions with their modules, in the order of the profile.
    pub fn functions(&self) -> impl Iterator<Item = ProfiledRoutine<'_>> {
        self.profile.functions.iter().filter_map(|function| self.routine(function))
    }

    /// The functions that have executed an instruction, or may have, the one with most instructions first.
    pub fn hottest(&self) -> Vec<ProfiledRoutine<'_>> {
        let mut found: Vec<_> = self.functions().filter(|routine| routine.function.may_have_run()).collect();
        found.sort_by(|a, b| b.function.executed().cmp(&a.function.executed()).then_with(|| a.key().cmp(&b.key())));
        found
    }

    /// The profiled function that begins at an address of a module.
    pub fn at(&self, module: usize, start: Svma) -> Option<ProfiledRoutine<'_>> {
        self.profile.functions.get(*self.by_start.get(&(module, start))?).and_then(|function| self.routine(function))
    }

    /// The profiled function that a call of another one leads to; `None` if it is not known or not profiled.
    pub fn callee(&self, of: &ProfiledRoutine<'_>, callee: &CallTarget) -> Option<ProfiledRoutine<'_>> {
        match callee {
            CallTarget::Own(at) => self.at(of.function.module, *at),
            CallTarget::Other { module, at } => self.at(*module, *at),
            CallTarget::Named(_) | CallTarget::Indirect | CallTarget::System => None,
        }
    }

    /// The index of the module that formats of one module describe: the program itself, or else the first module with functions.
    pub fn main_module(&self) -> usize {
        let program = self.profile.modules.iter().position(|module| module.path == self.profile.program);
        let has_functions = |module: &usize| self.profile.functions.iter().any(|f| f.module == *module);
        let first = || self.profile.functions.first().map(|function| function.module);
        program.filter(has_functions).or_else(first).unwrap_or(0)
    }

    /// The index of the module of the program itself; `None` if no tracked function is in it.
    pub(crate) fn main_module_of_contexts(&self, tree: &ContextProfile) -> Option<usize> {
        let program = self.profile.modules.iter().position(|module| module.path == self.profile.program);
        program.filter(|program| tree.functions.iter().any(|function| function.module == *program))
    }

    /// The address in a file to which formats of a module relate addresses: 0 for a program at a fixed address, else the lowest address
    /// that the file maps.
    pub fn base(&self, module: usize) -> u64 {
        let module = self.profile.modules.get(module);
        module.filter(|module| module.bias != 0).map_or(0, |module| module.mapped.0)
    }

    fn routine(&self, function: &'a FunctionProfile) -> Option<ProfiledRoutine<'_>> {
        let (module, code) = self.profile.modules.get(function.module).zip(self.code.get(function.module))?;
        Some(ProfiledRoutine { function, module, code })
    }
}

/// A profiled function with its module.
#[derive(Clone, Copy)]
pub struct ProfiledRoutine<'a> {
    /// The function.
    pub function: &'a FunctionProfile,
    /// Module of the function.
    pub module: &'a ModuleInfo,
    code: &'a ModuleCode,
}

impl<'a> ProfiledRoutine<'a> {
    /// Index of the module and address of the first byte, which no two functions share.
    pub fn key(&self) -> (usize, Svma) {
        (self.function.module, self.function.start)
    }

    /// The code of the module.
    pub fn code(&self) -> &'a ModuleCode {
        self.code
    }

    /// The instructions of a block.
    pub fn steps(&self, block: &BlockCount) -> Vec<CodeStep> {
        self.code.steps(block)
    }

    /// Source positions of an instruction, the innermost inlined function first.
    pub fn frames(&self, at: Svma) -> Vec<SourceFrame> {
        self.code.frames(at)
    }

    /// Source file and line of the function's first instruction.
    pub fn line(&self) -> Option<(&'a str, u32)> {
        self.code.line(self.function.start)
    }

    /// Source file of a block, and the first and last of its lines there. `None` if no instruction of the block has a source line.
    pub fn lines(&self, block: &BlockCount) -> Option<(&'a str, u32, u32)> {
        let steps = self.steps(block);
        let mut lines = steps.iter().filter_map(|step| self.code.line(step.at));
        let (file, line) = lines.next()?;
        let more = lines.filter(|(other, _)| *other == file);
        let (first, last) = more.fold((line, line), |(first, last), (_, line)| (first.min(line), last.max(line)));
        Some((file, first, last))
    }

    /// The symbol that an address of the module belongs to.
    pub fn symbol(&self, at: Svma) -> Option<&'a Symbol> {
        self.code.symbol(at)
    }

    /// The edges that leave a block.
    pub fn edges_from(&self, block: usize) -> impl Iterator<Item = &'a EdgeCount> + use<'a> {
        let edges = &self.function.edges;
        let first = edges.partition_point(|edge| edge.from < block);
        edges.iter().skip(first).take_while(move |edge| edge.from == block)
    }

    /// The calls that end a block.
    pub fn calls_from(&self, block: usize) -> impl Iterator<Item = &'a CallCount> + use<'a> {
        let calls = &self.function.call_sites;
        let first = calls.partition_point(|call| call.block < block);
        calls.iter().skip(first).take_while(move |call| call.block == block)
    }

    /// The jumps to other functions of the module at the end of a block that were executed: destination and number of passages.
    pub fn tail_jumps(&self, block: usize) -> impl Iterator<Item = (Svma, u64)> + use<'a> {
        self.edges_from(block).filter_map(|edge| match (edge.to, edge.count) {
            (EdgeEnd::Outside(at), Some(count)) if count > 0 => Some((at, count)),
            (EdgeEnd::Outside(_) | EdgeEnd::Block(_) | EdgeEnd::Dynamic, _) => None,
        })
    }
}

impl FunctionProfile {
    /// Whether the function has executed an instruction, as far as is known.
    fn may_have_run(&self) -> bool {
        self.executed() > 0 || !self.unknown.is_empty()
    }

    /// Number of executed instructions of the function itself.
    pub fn executed(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.executed()))
    }
}

impl BlockCount {
    /// Number of executed instructions of the block.
    pub fn executed(&self) -> u64 {
        self.count.saturating_mul(self.instructions.into())
    }
}
