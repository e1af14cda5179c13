//! The queries about sites and control flow that an image answers.

use std::sync::Arc;

use ingraft_model::{
    Block, BlockPoint, CallPoint, CallSite, Callee, Cfg, FunctionBody, LoopEdges, PointId, PointKind, Refusal, Site,
    SvmaRange,
};

use crate::flow::body::DecodedFunction;
use crate::flow::points::{self, FunctionCode};
use crate::flow::{self, FlowGraph};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::sites::{block, call, entry, exit, longjmp, refused, stack_switch};

impl AnalysedImage {
    /// The site of a function's entry, with all that weaving needs, or the reason why the entry cannot be woven.
    pub fn entry_site(&self, function: &Function) -> Result<Arc<Site>, Refusal> {
        self.entries.get(function.start, || entry::site(self, function).map(Arc::new))
    }

    /// The sites of a function's exits (returns, and jumps to other functions), in order of address: for each, the site or the reason why
    /// the exit cannot be woven. An error if it is not certain that these are all. Sites of one function share no byte; a site that begins
    /// where the entry's begins is for the same springboard.
    pub fn exit_sites(&self, function: &Function) -> Result<Vec<Result<Arc<Site>, Refusal>>, Refusal> {
        let shared = |sites: Vec<Result<Site, Refusal>>| sites.into_iter().map(|site| site.map(Arc::new)).collect();
        self.exits.get(function.start, || exit::sites(self, function).map(shared))
    }

    /// The target of an exit that is a jump to another function, as far as the file tells; `None` at a return.
    pub fn tail_jump(&self, function: &Function, exit: &Site) -> Option<Callee> {
        exit::tail_jump(self, function, exit)
    }

    /// Whether the sites of a function of this kind are in the cache, so that the answer is immediate.
    pub fn knows_sites(&self, function: &Function, kind: PointKind) -> bool {
        match kind {
            PointKind::Entry => self.entries.knows(function.start),
            PointKind::Exit => self.exits.knows(function.start),
            PointKind::CallBefore | PointKind::CallAfter | PointKind::Block | PointKind::Edge => false,
        }
    }

    /// The calls of a function that control can reach, in order of address. An error if it is not certain that these are all.
    pub fn call_sites(&self, function: &Function) -> Result<Vec<CallSite>, Refusal> {
        call::sites(self, function)
    }

    /// The targets of all calls of a function, and of its jumps to other functions, in order of address. Instructions count also if control
    /// does not reach them, so this is known for each function.
    pub fn callees(&self, function: &Function) -> Vec<Callee> {
        call::callees(self, function)
    }

    /// The sites before (or after) the calls of a function that control can reach, in order of address: for each, the site or the reason
    /// why that place cannot be woven. An error if it is not certain that these are all.
    pub fn call_points(&self, function: &Function, after: bool) -> Result<Vec<CallPoint>, Refusal> {
        call::points(self, function, after)
    }

    /// The beginnings of a function's basic blocks, in order of address. An error if it is not certain where control arrives in the function.
    pub fn block_points(&self, function: &Function) -> Result<Vec<BlockPoint>, Refusal> {
        block::points(self, function)
    }

    /// The whole function: its blocks with their bytes, and its edges. An error if it is not certain where control can arrive in it. While
    /// somebody has the result, the next request gets the same one.
    pub fn body(&self, function: &Function) -> Result<Arc<FunctionBody>, Refusal> {
        self.bodies.get(function.start, || block::body(self, function))
    }

    /// Whether every exit of a function is the last step of longjmp: a jump to another frame.
    pub fn is_longjmp(&self, function: &Function) -> bool {
        longjmp::is_longjmp(self, function)
    }

    /// All functions for which `is_longjmp` holds.
    pub fn longjmps(&self) -> impl Iterator<Item = &Function> {
        let found = self.longjmps.get_or_init(|| longjmp::all(self));
        found.iter().filter_map(|number| self.functions().get(*number))
    }

    /// The functions that save the stack pointer and go on on another stack, by their code. It may name functions that go on on the same one.
    pub fn stack_switches(&self) -> impl Iterator<Item = &Function> {
        let found = self.stack_switches.get_or_init(|| stack_switch::all(self));
        found.iter().filter_map(|number| self.functions().get(*number))
    }

    /// The control-flow graph of a function.
    pub fn cfg(&self, function: &Function) -> Cfg {
        let body = DecodedFunction::new(self, function);
        flow::cfg(&body, &FlowGraph::new(&body))
    }

    /// The basic blocks of a function, in order of address.
    pub fn blocks(&self, function: &Function) -> Arc<[Block]> {
        self.blocks.get(function.start, || self.cfg(function).blocks.into_iter().collect())
    }

    /// The points at the edges between the basic blocks of a function, sorted.
    pub fn edges(&self, function: &Function) -> Arc<[PointId]> {
        self.edges.get(function.start, || PointId::of_edges(&self.cfg(function), function.start()).into())
    }

    /// The loops of a function, sorted by header.
    pub fn loops(&self, function: &Function) -> Arc<[LoopEdges]> {
        self.loops.get(function.start, || LoopEdges::all(&self.cfg(function), function.start()).into())
    }

    /// The basic blocks that hold code of a range, with their function; `None` if no function is there.
    pub fn blocks_in(&self, range: &SvmaRange) -> Option<(&Function, Vec<Block>)> {
        let function = self.function_around(range.start.0)?;
        let overlaps = |block: &&Block| block.range.start < range.end && range.start < block.range.end;
        Some((function, self.blocks(function).iter().filter(overlaps).cloned().collect()))
    }

    /// The control flow of a function, and its points.
    pub fn analyse(&self, function: &Function) -> FunctionCode {
        let mut code = points::analyse(self, function);
        refused::add(self, function, &mut code);
        code
    }
}
