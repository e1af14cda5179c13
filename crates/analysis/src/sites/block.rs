//! The beginnings of a function's basic blocks as sites for springboards.

use std::cell::RefCell;
use std::ops::Range;

use iced_x86::{Instruction, InstructionInfoFactory};
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{
    Block, BlockId, BlockPoint, BodyBlock, BodyExit, Cfg, Edge, EdgeKind, EdgeTarget, Entered, FreeRegisters,
    FunctionBody, IndexVec, Refusal, Site, SiteKind, Svma, WayInReason,
};

use crate::flow::body::DecodedFunction;
use crate::flow::{self, FlowGraph, system_calls};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::sites::first::free_at;
use crate::sites::island_room::IslandRooms;
use crate::sites::springboard::{SHORT, SITE_MAX, WITHIN_OTHER, on_one_page, probed};
use crate::sites::{entry, island_room};
use crate::text::decode::DecodeCursor;
use crate::text::transfer::ControlTransfer;

/// The sites of all blocks of a function, in order of address, each with the reason if the block cannot be woven. An error if it is not
/// certain where control can arrive in the function: a block that begins at an unknown place would be missing.
pub(crate) fn points(image: &AnalysedImage, function: &Function) -> Result<Vec<BlockPoint>, Refusal> {
    check(image, function)?;
    let body = DecodedFunction::new(image, function);
    let graph = FlowGraph::new(&body);
    let cfg = flow::cfg(&body, &graph);
    cfg.ways_in_proven.clone()?;
    let sites = BlockSites { body: &body, graph: &graph, info: RefCell::new(InstructionInfoFactory::new()) };
    let point = |block: &Block| {
        let start = block.range.start;
        let site = match cfg.reasons_at(start).any(|reason| reason == WayInReason::SyscallReturn) {
            // A thread that has just unmapped its stack, as musl's do at their end, has nowhere to push to.
            true => {
                let offset = function.offset_of(start.0);
                Err(Refusal::NotDisplaceable {
                    offset,
                    why: "it is behind a system call, after which the stack may be gone",
                })
            }
            false => sites.site(start.0, None).map(|site| with_neighbours(image, site)),
        };
        BlockPoint { block: block.clone(), site }
    };
    Ok(cfg.blocks.iter().map(point).collect())
}

/// Fails if no block of the function can be woven.
fn check(image: &AnalysedImage, function: &Function) -> Result<(), Refusal> {
    entry::check(image, function)?;
    if image.elf().is_go() {
        // The stack of a goroutine may end shortly below the stack pointer, where the code of a block would push.
        return Err(Refusal::NotYet { kind: "Go block" });
    }
    Ok(())
}

/// The whole function. An error if it is not certain where control can arrive in it.
pub(crate) fn body(image: &AnalysedImage, function: &Function) -> Result<FunctionBody, Refusal> {
    check(image, function)?;
    let body = DecodedFunction::new(image, function);
    let graph = FlowGraph::new(&body);
    let cfg = flow::cfg(&body, &graph);
    cfg.ways_in_proven.clone()?;
    system_calls::check(&body, &cfg)?;
    let sites = BlockSites { body: &body, graph: &graph, info: RefCell::new(InstructionInfoFactory::new()) };
    let island_rooms = IslandRooms::new(&body, &graph, &[]);
    let room = |site: Site, island_rooms: &IslandRooms| match needs_island(&site) {
        true => Site { island_rooms: island_rooms.near(image, site.at.0), ..site },
        false => with_neighbours(image, site),
    };
    let is_inner = |edge: &Edge| matches!(edge.to, EdgeTarget::Block(_));
    let edges: Vec<Edge> = cfg.edges.iter().filter(|edge| is_inner(edge)).copied().collect();
    let entered = entered(&cfg, &edges);
    let block = |(block, entered): (&Block, &Entered)| {
        let Range { start, end } = block.range.clone();
        let offset = function.offset_of(start.0);
        let bytes = image.elf().data_at(start.0, end.0 - start.0).ok_or(Refusal::UnknownInstruction { offset })?;
        let free = sites.free(start.0);
        Ok(BodyBlock {
            block: block.clone(),
            bytes: bytes.to_vec(),
            entered: *entered,
            room: sites.site(start.0, Some(&free)).map(|site| room(site, &island_rooms)),
            free,
        })
    };
    let blocks = cfg.blocks.iter().zip(&entered).map(block).collect::<Result<_, _>>()?;
    let entry = entry_block(image, function, &cfg, &edges);
    let is_return = |i: &Instruction| ControlTransfer::of(i) == ControlTransfer::Return;
    let leaving = graph.found.exits.iter().filter_map(|exit| body.code.get(*exit));
    let leaving = leaving.map(|i| BodyExit { at: Svma(i.ip()), is_return: is_return(i), free: sites.free(i.ip()) });
    let running_off = graph.found.runs_on.iter();
    let running_off =
        running_off.map(|at| BodyExit { at: Svma(*at), is_return: false, free: FreeRegisters::default() });
    let exits = leaving.chain(running_off).collect();
    Ok(FunctionBody { function: function.start(), blocks, edges, entry, exits })
}

/// The block to which callers come. `None` if there is none, or if control can arrive there other than by a call.
fn entry_block(image: &AnalysedImage, function: &Function, cfg: &Cfg, edges: &[Edge]) -> Option<BlockId> {
    let first = Svma(entry::first_byte(image, function));
    let entry = cfg.block_at(first).or_else(|| cfg.block_at(function.start()))?;
    let start = cfg.blocks.get(entry)?.range.start;
    let calls = |reason| match reason {
        WayInReason::Entry
        | WayInReason::BehindEndbr
        | WayInReason::AddressTaken
        | WayInReason::Named
        | WayInReason::BranchFromElsewhere
        | WayInReason::Called
        | WayInReason::Resumed => true,
        WayInReason::CallReturn | WayInReason::SyscallReturn | WayInReason::LandingPad | WayInReason::JumpTable => {
            false
        }
    };
    let returns = |edge: &Edge| matches!(edge.kind, EdgeKind::CallReturn | EdgeKind::JumpTable);
    let only_calls = !edges.iter().any(|edge| edge.to == EdgeTarget::Block(entry) && returns(edge));
    (only_calls && cfg.reasons_at(start).all(calls)).then_some(entry)
}

/// Whether a springboard of five bytes has no room at a site, because control lands in these bytes, or because a call is there that stays in
/// its place.
fn needs_island(site: &Site) -> bool {
    let at = site.at.0;
    let five = at..at + SPRINGBOARD;
    let own = site.bytes.get(..usize::from(site.own)).unwrap_or_default();
    let mut instructions = DecodeCursor::new(own, at);
    let calls = |i: Instruction| five.contains(&i.ip()) && ControlTransfer::of(&i).comes_back();
    site.landings.iter().any(|landing| five.contains(&landing.0))
        || !on_one_page(at, SPRINGBOARD)
        || std::iter::from_fn(|| instructions.next()).any(calls)
}

/// For each block, the ways by which control arrives at its original address.
fn entered(cfg: &Cfg, edges: &[Edge]) -> IndexVec<BlockId, Entered> {
    let mut entered = IndexVec::filled(Entered::Never, cfg.blocks.len());
    for &Edge { from, to, kind } in edges {
        let EdgeTarget::Block(to) = to else { continue };
        if matches!(kind, EdgeKind::CallReturn | EdgeKind::JumpTable)
            && let Some(known) = entered.get_mut(to)
        {
            *known = if *known == Entered::Never { Entered::Along { from, kind } } else { Entered::Otherwise };
        }
    }
    for (block, known) in cfg.blocks.iter().zip(&mut entered) {
        let along = |reason: WayInReason| {
            matches!(reason, WayInReason::CallReturn | WayInReason::SyscallReturn | WayInReason::JumpTable)
        };
        let mut reasons = cfg.reasons_at(block.range.start).filter(|reason| *reason != WayInReason::Resumed).peekable();
        if reasons.peek().is_some() && (*known == Entered::Never || !reasons.all(along)) {
            *known = Entered::Otherwise;
        }
    }
    entered
}

struct BlockSites<'a> {
    body: &'a DecodedFunction<'a>,
    graph: &'a FlowGraph,
    info: RefCell<InstructionInfoFactory>,
}

impl BlockSites<'_> {
    /// The registers and flags that are free at an address.
    fn free(&self, at: u64) -> FreeRegisters {
        free_at(&mut self.info.borrow_mut(), self.body.image, self.body.function, at)
    }

    /// The site at the first byte of a block, without room for islands. `free` is what is free there, if it is known already.
    fn site(&self, start: u64, free: Option<&FreeRegisters>) -> Result<Site, Refusal> {
        let (image, function) = (self.body.image, self.body.function);
        let offset = function.offset_of(start);
        let at = match start == function.start {
            // Indirect branches must land on an `endbr64`.
            true => entry::first_byte(image, function),
            false => start + if image.elf().begins_with_endbr(start) { 4 } else { 0 },
        };
        let too_short =
            |room: u64| Refusal::TooShort { available: room as u32, next: "the next place where control can arrive" };
        let end = self.body.inside.iter().find(|r| r.contains(&at)).map(|r| r.end).ok_or_else(|| too_short(0))?;
        if image.is_probe(at) {
            return Err(probed(0));
        }
        if self.body.is_within_other(at) {
            return Err(Refusal::NotDisplaceable { offset, why: WITHIN_OTHER });
        }
        let mut until = at;
        let mut ended = false;
        while until < (at + SITE_MAX).min(end) && !ended {
            let Some(index) = self.body.index_of(until) else { break };
            let i = &self.body.code[index];
            if i.next_ip() > at + SITE_MAX {
                break;
            }
            if i.ip() < at + SPRINGBOARD && ControlTransfer::of(i) == ControlTransfer::System {
                // The C library tells by the program counter whether a thread that is cancelled waits in a system call.
                let offset = function.offset_of(i.ip());
                return Err(Refusal::NotDisplaceable { offset, why: "a system call stays in its place" });
            }
            until = i.next_ip();
            ended = !matches!(ControlTransfer::of(i), ControlTransfer::Next | ControlTransfer::Branch(_));
        }
        let own = until - at;
        if own == 0 {
            return Err(Refusal::UnknownInstruction { offset });
        }
        let padding = if ended { entry::dead_padding(image, function, until) } else { 0 };
        let len = (own + padding).min(SITE_MAX);
        let lands = |at: &u64| self.graph.lands(self.body, *at);
        let landings: Vec<Svma> = (at + 1..at + len).filter(lands).map(Svma).collect();
        let room = landings.first().map_or(at + len, |l| l.0) - at;
        if room < SHORT {
            return Err(if image.is_probe(at + room) { probed(room) } else { too_short(room) });
        }
        if !on_one_page(at, SHORT) {
            return Err(Refusal::StraddlesPages);
        }
        if image.in_restartable_sequence(at, len) {
            return Err(Refusal::RestartableSequence);
        }
        let bytes = image.elf().data_at(at, len).unwrap_or_default().to_vec();
        let free = free.filter(|_| at == start).cloned().unwrap_or_else(|| self.free(at));
        let kind = SiteKind::Block { free };
        Ok(Site { own: own as u8, landings, ..Site::new(kind, function.start(), Svma(at), bytes) })
    }
}

/// Adds the room for islands in the functions around a site, if it is too short for a springboard of five bytes.
fn with_neighbours(image: &AnalysedImage, site: Site) -> Site {
    let at = site.at.0;
    let room = site.landings.first().map_or(site.bytes.len() as u64, |landing| landing.0 - at);
    let short = room < SPRINGBOARD || !on_one_page(at, SPRINGBOARD);
    let island_rooms = if short { island_room::around(image, at, None) } else { Vec::new() };
    Site { island_rooms, ..site }
}
