//! Functions that are measured as a whole: their control-flow graphs, and the points of their blocks and edges.

use std::sync::Arc;

use ingraft_analysis::{Function, FunctionKind, block_events};
use ingraft_codegen::WovenBody;
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{
    Block, BlockEvents, BlockId, Cfg, Edge, EdgeId, EdgeKind, EdgeTarget, FunctionId, IndexVec, Instrumentation, Key,
    MetricInfo, ModuleId, Offset, Parts, PointId, Refusal, Svma, VariableId,
};
use ingraft_profile::{Inexact, NotCounted, ProbeAt, Probes};
use ingraft_report::{BlockCount, EdgeCount, EdgeEnd, FunctionProfile, ModuleInfo, UnsavedDetails};

use crate::program::modules::{Module, Modules};

use super::code;

/// A function that is measured as a whole.
#[derive(Debug)]
pub struct FunctionGraph {
    /// The function.
    pub function: FunctionId,
    /// Name of the function in the symbol table.
    pub symbol: String,
    /// Preferred name of the function, demangled.
    pub name: String,
    /// First byte of the function.
    pub first: Svma,
    /// Length of the function in bytes.
    pub size: u64,
    /// Control-flow graph of the function.
    pub cfg: Cfg,
    /// Events of one execution of each block.
    pub events: IndexVec<BlockId, BlockEvents>,
}

impl FunctionGraph {
    /// The graph of a function, with its module and the function itself. Fails if the function has no code of its own.
    pub fn of(modules: &Modules, function: FunctionId) -> Result<(FunctionGraph, &Module, &Function), Refusal> {
        let (_, module, f) = modules.resolve(function).ok_or(Refusal::NoSuchFunction)?;
        match f.kind() {
            FunctionKind::Normal => {}
            FunctionKind::IfuncResolver => return Err(Refusal::IfuncResolver),
            FunctionKind::Stub => return Err(Refusal::LinkerStub),
        }
        let cfg = module.image.cfg(f);
        let name = f.display_name().into_owned();
        let symbol = symbol(f);
        let events = events(module, &cfg);
        Ok((FunctionGraph { function, symbol, name, first: f.start(), size: f.size(), cfg, events }, module, f))
    }

    /// The module of the function and the function.
    pub fn resolve<'m>(&self, modules: &'m Modules) -> Option<(&'m Module, &'m Function)> {
        modules.resolve(self.function).map(|(_, module, f)| (module, f))
    }

    /// The point of a block or edge; `None` for an edge that leaves the function.
    pub fn point(&self, place: ProbeAt) -> Option<PointId> {
        match place {
            ProbeAt::Edge(edge) => PointId::of_edge(&self.cfg, self.cfg.edges.get(edge)?, self.first),
            ProbeAt::Block(block) => PointId::of_block(&self.cfg, block, self.first),
        }
    }

    /// Code with a counter for each of these blocks and edges.
    pub fn counting(&self, places: &[ProbeAt], metric: Arc<MetricInfo>) -> Instrumentation {
        let insertion = |(n, place): (usize, &ProbeAt)| {
            let (point, variable) = (self.point(*place)?, VariableId(u32::try_from(n).ok()?));
            Some(code::increment(self.function, point.kind(), Parts::One(point), variable))
        };
        let insertions = places.iter().enumerate().filter_map(insertion).collect();
        let variables = (0..places.len()).map(code::variable).collect();
        Instrumentation { variables, ..code::empty(insertions, metric) }
    }

    /// The block that contains an address; `None` if none does. Of two blocks that overlap, the one that begins later.
    pub fn block_around(&self, at: Svma) -> Option<BlockId> {
        let after = self.cfg.blocks.partition_point(|block| block.range.start <= at);
        let id = BlockId(after.0.checked_sub(1)?);
        self.cfg.blocks.get(id)?.range.contains(&at).then_some(id)
    }

    /// This function with the counts of its blocks and edges. `module` is the index of its module in the saved profile.
    pub fn profile(
        &self,
        module: usize,
        block: &dyn Fn(BlockId) -> u64,
        edge: &dyn Fn(EdgeId) -> Option<u64>,
    ) -> FunctionProfile {
        let blocks = self.cfg.blocks.entries().zip(&self.events).map(|((n, of), events)| BlockCount {
            start: of.range.start,
            size: u32::try_from(of.range.end.0.saturating_sub(of.range.start.0)).unwrap_or(u32::MAX),
            instructions: of.instructions,
            last: events.last,
            count: block(n),
        });
        let edges = self.cfg.edges.entries().map(|(n, of)| EdgeCount {
            from: of.from.index(),
            to: match of.to {
                EdgeTarget::Block(to) => EdgeEnd::Block(to.index()),
                EdgeTarget::Outside(at) => EdgeEnd::Outside(at),
                EdgeTarget::Dynamic => EdgeEnd::Dynamic,
            },
            kind: of.kind,
            count: edge(n),
        });
        FunctionProfile {
            module,
            name: self.symbol.clone(),
            start: self.first,
            size: self.size,
            calls: 0,
            blocks: blocks.collect(),
            unknown: Vec::new(),
            edges: edges.collect(),
            call_sites: Vec::new(),
            inexact: None,
            details: Some(UnsavedDetails {
                name: self.name.clone(),
                events: self.events.as_slice().to_vec(),
                ..UnsavedDetails::default()
            }),
            paths: None,
        }
    }

    /// The refusal for the reason why runs of the function cannot be counted.
    pub fn refusal(&self, why: NotCounted) -> Refusal {
        let offset = |at: Svma| Offset::between(self.first.0, at.0);
        match why {
            NotCounted::Inexact(Inexact::WaysIn(refusal) | Inexact::WaysOut(refusal)) => refusal,
            NotCounted::Inexact(Inexact::Unresolved(at)) => Refusal::UnresolvedJump { offset: offset(at) },
            NotCounted::Inexact(Inexact::NoWayIn | Inexact::UnknownBlock(_) | Inexact::TooLarge) => {
                Refusal::NoSuchPoint
            }
            NotCounted::Activations => Refusal::NotDerivable { offset: Offset(0) },
            NotCounted::Block(block) => {
                let at = self.cfg.blocks.get(block).map_or(self.first, |block| block.range.start);
                Refusal::NotDerivable { offset: offset(at) }
            }
        }
    }

    /// The edges and blocks at which the copy of a function has probes. Others are derived if they can be.
    ///
    /// A block in which no springboard fits before its call may have its probes at the call, where all arrivals look alike. If there are several
    /// edges to it, those along which control arrives at its original address are derived, because islands may be scarcer than on trial.
    pub fn probes(&self, copy: &WovenBody) -> Probes {
        let FunctionGraph { cfg, events, first, .. } = self;
        let mut into = IndexVec::filled(0_u32, cfg.blocks.len());
        for edge in &cfg.edges {
            if let EdgeTarget::Block(to) = edge.to
                && let Some(known) = into.get_mut(to)
            {
                *known += 1;
            }
        }
        let is_short = |block: BlockId| match (cfg.blocks.get(block), events.get(block)) {
            (Some(block), Some(events)) => events.calls > 0 && events.last.0 < block.range.start.0 + SPRINGBOARD,
            (None, _) | (_, None) => false,
        };
        let has_probe = |edge: &Edge| {
            let EdgeTarget::Block(to) = edge.to else { return false };
            let is_told = match edge.kind {
                EdgeKind::CallReturn | EdgeKind::JumpTable => into.get(to) == Some(&1) || !is_short(to),
                EdgeKind::Taken | EdgeKind::FallThrough | EdgeKind::TailJump | EdgeKind::Return => true,
            };
            is_told && PointId::of_edge(cfg, edge, *first).is_some_and(|point| copy.probe(point).is_ok())
        };
        let has_block = |block| PointId::of_block(cfg, block, *first).is_some_and(|point| copy.probe(point).is_ok());
        Probes { edges: cfg.edges.iter().map(has_probe).collect(), blocks: cfg.blocks.keys().map(has_block).collect() }
    }
}

/// The first block of a control-flow graph that has the instruction at an address.
pub fn block_of(cfg: &Cfg, at: Svma) -> Option<BlockId> {
    cfg.blocks.entries().find(|(_, block)| block.range.contains(&at)).map(|(block, _)| block)
}

/// A module for a file; `None` if it is not loaded.
pub fn module_info(modules: &Modules, module: ModuleId) -> Option<ModuleInfo> {
    let (file, module) = modules.module(module)?;
    let segments = || module.image.elf().segments().iter();
    Some(ModuleInfo {
        name: file.name.clone(),
        path: file.file.path.display().to_string(),
        build_id: module.image.build_id().unwrap_or_default().to_vec(),
        bias: module.bias.0,
        mapped: (
            segments().map(|s| s.svma.0).min().unwrap_or_default(),
            segments().map(|s| s.svma.0.saturating_add(s.mem_size)).max().unwrap_or_default(),
        ),
    })
}

/// The name of a function in the symbol table, or the one to show if it has none there.
pub fn symbol(function: &Function) -> String {
    function.names().first().map_or_else(|| function.display_name().into_owned(), |name| name.mangled().to_owned())
}

/// Events of one execution of each block.
fn events(module: &Module, cfg: &Cfg) -> IndexVec<BlockId, BlockEvents> {
    let events = |block: &Block| {
        let length = usize::try_from(block.range.end.0.saturating_sub(block.range.start.0)).unwrap_or_default();
        block_events(block.range.start, module.image.bytes_at(block.range.start, length).unwrap_or_default())
    };
    cfg.blocks.iter().map(events).collect()
}
