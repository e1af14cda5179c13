//! Weaving of whole functions: a copy of all blocks in an arena, to which springboards lead from every place where control arrives.
//!
//! Calls, system calls and instructions that fault on purpose stay in the text: the copy jumps to them. So every return address is in the
//! text, and the kernel restarts system calls there. The text stays a correct program, whichever of the springboards are written, because no
//! springboard covers an address at which control can arrive other than its own first byte.
//!
//! Where a block is too short for a springboard because it soon calls, the block runs in the text, and the displacement of its call leads to
//! the copy, which has the block's probes there and goes on to the callee. The copy of the block leads to the same call, so every arrival at
//! the block passes these probes once.

use std::sync::Arc;

use ingraft_model::patch::ArenaCode;
use ingraft_model::{
    Avma, Bias, BlockId, BodyBlock, Edge, EdgeKind, EdgeTarget, Entered, FunctionBody, IndexVec, Key, Offset,
    PatchPlan, PcMove, PointId, Refusal, Svma, TextWrite,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::arena::Arena;
use crate::code::block::{Back, CodeBuffer, EmitError, jmp_bytes, straddles, text_write};
use crate::code::body::{CountingCopy, Held, PROBE, PROBE_NOP, Probe, Way, WovenBody};
use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::{RemovalRecord, WovenPoint};
use crate::patch::back_branches::Redirect;
use crate::patch::counting;
use crate::patch::relocate::{self, Displaced};
use crate::patch::springboard::{self, AllowedForms, ChosenSpringboard, DISPLACEMENT, SpringboardForm};
use crate::patch::text_space::TextSpace;
use crate::patch::weave::PointRequest;
use crate::patch::with_copy::{self, PointsWithCopy, WithCopy};
use crate::snippet::inline::{BoundSnippet, InlineCode, InlinePoint};

/// Alignment in bytes of the copy of a function.
pub(super) const ALIGNMENT: u64 = 16;
/// Number of bytes of a block for which [`ROOM_OF_PIECE`] is estimated.
const PIECE: u64 = 32;
/// Estimated room in bytes for the copies of that many bytes of a block, with probes and counts.
const ROOM_OF_PIECE: u64 = 192;

/// Estimated room in bytes for the code of a point that is woven together with the copy.
const ROOM_OF_POINT: u64 = 56;

/// Number of blocks before another one that are examined for an instruction that overlaps it.
const OVERLAPPING: usize = 16;

/// A function to copy.
#[derive(Clone, Copy, Debug)]
pub struct BodyRequest<'a> {
    /// The function.
    pub body: &'a FunctionBody,
    /// Load address of the module, as a bias.
    pub bias: Bias,
    /// Name of the function, for refusals of points that need the same bytes.
    pub name: &'a str,
    /// The points that are woven into the copy together with it. If some of them have code there, the function gets a counting copy too, see
    /// [`CountingCopy`](crate::CountingCopy). Empty if further points will follow.
    pub points: &'a [BodyPoint],
}

impl BodyRequest<'_> {
    /// Estimated room for the copy in bytes, with the counting copy. Few copies need more.
    pub fn room(&self) -> u64 {
        let pieces = self.body.blocks.iter().map(|block| 1 + block.bytes.len() as u64 / PIECE).sum::<u64>();
        let codes = self
            .points
            .iter()
            .map(|point| point.code.room() + point.with_copy.map_or(0, |_| ROOM_OF_POINT))
            .sum::<u64>();
        pieces.saturating_mul(ROOM_OF_PIECE).saturating_add(codes)
    }

    /// The blocks of the function in the text, by their first address and their end.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let range = |block: &BodyBlock| (block.block.range.start, block.block.range.end);
        let (blocks, bias) = (self.body.blocks.iter().map(range), self.bias);
        blocks.map(move |(start, end)| (start.to_avma(bias).0, end.to_avma(bias).0))
    }
}

/// A point that is woven into the copy of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPoint {
    /// The point.
    pub point: PointId,
    /// The code of the point in the counting copy.
    pub code: BodyCode,
    /// Data for the weaving of the point together with the copy, if that can be. `None` for a point that is woven later, or is woven already.
    pub with_copy: Option<WithCopy>,
}

/// Code of a point in the counting copy of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyCode {
    /// The increment of the counter with this index. The arithmetic flags are free.
    Count(u32),
    /// Other code.
    Inline(Arc<InlineCode>),
    /// None: threads leave the counting copy there.
    Elsewhere,
}

impl BodyCode {
    /// The code of snippets that run one after the other at a point.
    pub fn of<'s>(
        env: &Environment,
        point: InlinePoint,
        snippets: impl Iterator<Item = BoundSnippet<'s>> + Clone,
    ) -> BodyCode {
        let mut some = snippets.clone();
        if let (Some((only, counters)), None) = (some.next(), some.next())
            && point.flags()
            && let Some(counter) = only.as_increment().and_then(|v| counters.get(v.0 as usize))
        {
            return BodyCode::Count(*counter);
        }
        InlineCode::of(env, point, snippets).map_or(BodyCode::Elsewhere, |code| BodyCode::Inline(Arc::new(code)))
    }

    /// Number of bytes that it takes more than a count.
    fn room(&self) -> u64 {
        match self {
            BodyCode::Inline(code) => code.room(),
            BodyCode::Count(_) | BodyCode::Elsewhere => 0,
        }
    }
}

/// Result of a request for the copy of a function.
#[derive(Clone, Debug)]
pub struct BodyWeave {
    /// Plan that inserts the copy.
    pub plan: PatchPlan,
    /// The copy.
    pub body: WovenBody,
    /// The points that were woven together with the copy, sorted by point. The others of the request are woven later, at their probes.
    pub points: Vec<Box<WovenPoint>>,
}

/// An instruction of a block.
pub(super) enum BlockInstruction {
    /// The copy does the same.
    Copied(Displaced),
    /// The copy jumps to the instruction at this address in the text.
    Kept { at: u64, is_call: bool },
}

impl BlockInstruction {
    pub(super) fn at(&self) -> u64 {
        match self {
            BlockInstruction::Copied(d) => d.at,
            BlockInstruction::Kept { at, .. } => *at,
        }
    }
}

/// A block with its decoded instructions.
pub(super) struct CodeBlock {
    /// Address of its first byte in the text.
    pub(super) start: u64,
    /// Address of its end in the text.
    pub(super) end: u64,
    pub(super) parts: Vec<BlockInstruction>,
}

/// The decoded blocks of a function.
#[derive(Default)]
pub(super) struct DecodedBlocks {
    pub(super) blocks: IndexVec<BlockId, CodeBlock>,
    /// Addresses of the instructions that stay in the text.
    kept: FxHashSet<u64>,
    /// Addresses of the copied instructions.
    copied: FxHashSet<u64>,
    /// Addresses to which system calls return.
    behind_system_calls: FxHashSet<u64>,
}

impl DecodedBlocks {
    pub(super) fn of(env: &Environment, request: &BodyRequest<'_>) -> Result<Self, Refusal> {
        let function = request.body.function.to_avma(request.bias).0;
        let mut code = DecodedBlocks::default();
        for BodyBlock { block, bytes, .. } in &request.body.blocks {
            let [start, end] = [block.range.start, block.range.end].map(|at| at.to_avma(request.bias).0);
            let (mut at, mut rest) = (start, bytes.as_slice());
            let mut parts = Vec::new();
            while !rest.is_empty() {
                let len = match relocate::stays(rest, at, function)? {
                    Some(kept) => {
                        code.kept.insert(at);
                        if kept.is_system_call {
                            code.behind_system_calls.insert(at + kept.len as u64);
                        }
                        parts.push(BlockInstruction::Kept { at, is_call: kept.is_call });
                        kept.len
                    }
                    None => {
                        let d = relocate::decode(rest, at, function, env.shadow_stack)?;
                        code.copied.insert(at);
                        parts.push(BlockInstruction::Copied(d));
                        d.bytes().len()
                    }
                };
                at += len as u64;
                rest = rest.get(len..).unwrap_or_default();
            }
            code.blocks.push(CodeBlock { start, end, parts });
        }
        Ok(code)
    }

    /// A block of the function.
    pub(super) fn block(&self, block: BlockId) -> Result<&CodeBlock, CodegenError> {
        self.blocks.get(block).ok_or(CodegenError::NoSuchBlock(block))
    }
}

/// Springboards into the copy.
pub(super) struct Doors {
    /// For each, the block to which it leads, and the original bytes at it.
    pub(super) heads: Vec<(BlockId, ChosenSpringboard, Vec<u8>)>,
    /// Calls that lead to the copy, sorted by block.
    calls: Vec<Calling>,
    /// Blocks that may run in the text.
    exposed: Vec<BlockId>,
    /// Reason why a block runs in the text; `None` if there is no such block.
    why: Option<Refusal>,
}

/// A call at the end of a block without a springboard, whose displacement leads to the copy.
pub(super) struct Calling {
    /// The block.
    block: BlockId,
    /// The call.
    call: Displaced,
    /// First byte of the callee.
    callee: u64,
}

impl Calling {
    /// Form of the changed call.
    fn form(&self) -> SpringboardForm {
        SpringboardForm::Call { len: self.call.bytes().len() as u8, direct: true }
    }

    /// First byte of the displacement.
    fn field(&self) -> u64 {
        self.call.next() - DISPLACEMENT
    }

    /// Takes the bytes of the displacement of a call as [`Calling::of`] finds it.
    fn choose(text: &mut TextSpace, request: &BodyRequest<'_>, code: &DecodedBlocks, id: BlockId) -> Option<Self> {
        let calling = Calling::of(request, code, id)?;
        let field = calling.field();
        text.take(field, field + DISPLACEMENT, request.name).ok()?;
        Some(calling)
    }

    /// The call at the end of a block that runs in the text up to this call. `None` if the block does not end in a direct call, or if something
    /// else prevents that the call leads to the copy.
    pub(super) fn of(request: &BodyRequest<'_>, code: &DecodedBlocks, id: BlockId) -> Option<Self> {
        let (body, bias) = (request.body, request.bias);
        let block = body.blocks.get(id)?;
        let (start, end) = (block.block.range.start, block.block.range.end);
        let BlockInstruction::Kept { at, is_call: true } = *code.blocks.get(id)?.parts.last()? else { return None };
        let offset = usize::try_from(at.checked_sub(start.to_avma(bias).0)?).ok()?;
        let call = relocate::decode_call(block.bytes.get(offset..)?, at, body.function.to_avma(bias).0).ok()?;
        let callee = call.callee()?;
        let next = body.blocks.as_slice().get(id.index() + 1);
        let overlaps = before(body, id).iter().any(|other| other.block.range.end > start)
            || next.is_some_and(|next| next.block.range.start < end);
        let calling = Calling { block: id, call, callee };
        let field = calling.field();
        let fits = !overlaps && body.edges_from(id).iter().all(|edge| edge.kind == EdgeKind::CallReturn);
        (fits && !straddles(field, DISPLACEMENT)).then_some(calling)
    }
}

impl Doors {
    /// Chooses a springboard for each block at which control arrives in the text. If none fits at a block, the block runs in the text. Then its
    /// call leads to the copy, or every block to which it leads gets a springboard too, or runs in the text as well.
    pub(super) fn choose(
        env: &Environment,
        text: &mut TextSpace,
        request: &BodyRequest<'_>,
        code: &DecodedBlocks,
    ) -> Self {
        let blocks = &request.body.blocks;
        let mut doors = Doors { heads: Vec::new(), calls: Vec::new(), exposed: Vec::new(), why: None };
        let mut missing = Vec::new();
        let entered = |(_, block): &(BlockId, &BodyBlock)| block.entered != Entered::Never;
        for (index, _) in blocks.entries().filter(entered) {
            match door(env, text, request, code, index, AllowedForms::Near) {
                Ok((head, bytes)) => doors.heads.push((index, head, bytes)),
                Err(_) => missing.push(index),
            }
        }
        let mut known: FxHashSet<BlockId> = doors.heads.iter().map(|(index, ..)| *index).collect();
        while let Some(index) = missing.pop() {
            let Some(block) = blocks.get(index).filter(|_| known.insert(index)) else { continue };
            match door(env, text, request, code, index, AllowedForms::Any) {
                Ok((head, bytes)) => doors.heads.push((index, head, bytes)),
                // The springboard of a range that makes room for an island leads to the copy, too.
                Err(_) if doors.makes_room(block.block.range.start.to_avma(request.bias).0) => {}
                Err(refusal) => match Calling::choose(text, request, code, index) {
                    Some(calling) => doors.calls.push(calling),
                    None => {
                        doors.why.get_or_insert(refusal);
                        doors.exposed.push(index);
                        missing.extend(successors(request.body, index));
                    }
                },
            }
        }
        doors.calls.sort_unstable_by_key(|calling| calling.block);
        doors.exposed.sort_unstable();
        doors
    }

    /// Whether a range that makes room for an island begins at an address.
    fn makes_room(&self, at: u64) -> bool {
        self.heads.iter().any(|(_, head, _)| head.island_room.as_ref().and_then(Redirect::first) == Some(at))
    }

    /// The reason against the copy of a function all of which runs in the text; `None` if the copy is of use.
    pub(super) fn refused(&self, body: &FunctionBody) -> Option<Refusal> {
        let leads = !self.heads.is_empty() || !self.calls.is_empty();
        let of_use = self.exposed.len() < body.blocks.len() && leads;
        if of_use { None } else { Some(self.why.clone().unwrap_or(Refusal::NoSuchFunction)) }
    }

    /// Releases the bytes of text.
    pub(super) fn release(&self, text: &mut TextSpace) {
        for (_, head, _) in &self.heads {
            let island = match head.form {
                SpringboardForm::Short(island) => Some(island.at),
                SpringboardForm::Near | SpringboardForm::Call { .. } => None,
            };
            let room = head.island_room.as_ref().and_then(Redirect::first);
            for at in [Some(head.at), island, room].into_iter().flatten() {
                text.release(&(Avma(at)..Avma(at)));
            }
        }
        for at in self.calls.iter().map(|calling| Avma(calling.field())) {
            text.release(&(at..at));
        }
    }
}

/// The blocks before another one that may overlap it.
fn before(body: &FunctionBody, block: BlockId) -> &[BodyBlock] {
    let (all, end) = (body.blocks.as_slice(), block.index().min(body.blocks.len()));
    &all[end.saturating_sub(OVERLAPPING)..end]
}

fn successors(body: &FunctionBody, block: BlockId) -> impl Iterator<Item = BlockId> {
    body.edges_from(block).iter().filter_map(target)
}

/// The blocks to which blocks lead that may run in the text. For each, whether only the marker before it does so, see [`Copy::mixed`].
fn mixed(body: &FunctionBody, exposed: &[BlockId]) -> FxHashMap<BlockId, bool> {
    let marker = body.block_at(body.function).filter(|first| body.entry.is_some_and(|entry| entry != *first));
    let mut mixed = FxHashMap::default();
    for block in exposed {
        for to in successors(body, *block) {
            let only = mixed.entry(to).or_insert(true);
            *only &= Some(*block) == marker;
        }
    }
    if marker.is_some_and(|marker| mixed.contains_key(&marker)) {
        // Control also comes to the marker from within the function.
        mixed.values_mut().for_each(|only| *only = false);
    }
    mixed
}

pub(super) fn target(edge: &Edge) -> Option<BlockId> {
    match edge.to {
        EdgeTarget::Block(to) => Some(to),
        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    }
}

/// Chooses the springboard at a block, and takes its bytes of text. Returns it with the original bytes there.
fn door(
    env: &Environment,
    text: &mut TextSpace,
    request: &BodyRequest<'_>,
    code: &DecodedBlocks,
    index: BlockId,
    width: AllowedForms,
) -> Result<(ChosenSpringboard, Vec<u8>), Refusal> {
    let blocks = &request.body.blocks;
    let block = blocks.get(index).ok_or(Refusal::NoSuchPoint)?;
    let mut site = block.room.clone()?;
    if before(request.body, index).iter().any(|other| other.block.range.end > block.block.range.start) {
        // An instruction of the other block, which may run in the text, holds this address: a branch leads behind its prefix.
        return Err(Refusal::TooShort { available: 0, next: "an instruction that overlaps" });
    }
    if site.at != block.block.range.start && request.body.block_at(site.at).is_some() {
        // The springboard would lead arrivals at another block astray.
        return Err(Refusal::TooShort { available: 0, next: "the next place where control can arrive" });
    }
    // Only ranges of this function have a copy to which they can lead.
    site.island_rooms.retain(|room| code.copied.contains(&room.at.to_avma(request.bias).0));
    let point =
        PointRequest { site: &site, bias: request.bias, name: request.name, minis: &[], beside: &[], probe: None };
    let head = springboard::choose(env, text, &point, width, &code.kept)?;
    Ok((head, site.bytes))
}

/// A displacement in the copy that is written once all addresses are known.
pub(super) struct Fixup {
    /// Address of the displacement, the last four bytes of its instruction.
    pub(super) field: u64,
    /// Block to which the instruction leads.
    pub(super) block: BlockId,
}

/// A probe whose ways within the copy are not known yet.
struct PlacedProbe {
    probe: Probe,
    /// Block to which the probe's jump leads, in whose copy the jump ends.
    to: Option<BlockId>,
}

/// The copy of a function under construction.
pub(super) struct Copy<'a> {
    pub(super) request: &'a BodyRequest<'a>,
    pub(super) code: &'a DecodedBlocks,
    /// First byte of the function in the text.
    function: u64,
    /// Blocks to which blocks lead that may run in the text. For each, whether only the marker does so: the block of the
    /// `endbr64` before the block to which callers come.
    mixed: FxHashMap<BlockId, bool>,
    pub(super) out: CodeBuffer,
    /// Address of each block's copy, as far as blocks are copied.
    pub(super) labels: IndexVec<BlockId, u64>,
    /// For each block, the address of the copy of each of its instructions, behind the probes before it.
    pub(super) parts: IndexVec<BlockId, Vec<u64>>,
    /// Address in the copy to which the springboard of each block leads; `None` before it is known.
    arrivals: IndexVec<BlockId, Option<u64>>,
    /// Calls that lead to the copy.
    calls: &'a [Calling],
    /// Address in the copy to which each of them leads.
    called: Vec<u64>,
    fixups: Vec<Fixup>,
    probes: Vec<PlacedProbe>,
    /// Addresses of the original instructions, with the equivalent ones in the copy.
    moves: Vec<PcMove>,
    /// The points that are woven together with the copy.
    own: &'a PointsWithCopy,
    /// Taken branches whose points are among these: their code comes after the blocks.
    branch_points: Vec<BranchPoint>,
}

/// Code that a taken branch runs through on its way to a block.
struct BranchPoint {
    /// Displacement of the branch.
    field: u64,
    point: PointId,
    to: BlockId,
}

impl Copy<'_> {
    /// Address of a block in the text.
    pub(super) fn start(&self, block: BlockId) -> Result<u64, CodegenError> {
        self.code.block(block).map(|block| block.start)
    }

    /// Address of a block's copy.
    pub(super) fn label(&self, block: BlockId) -> Result<u64, CodegenError> {
        self.labels.get(block).copied().ok_or(CodegenError::NoSuchBlock(block))
    }

    /// Address in the copy to which the springboard of a block leads.
    pub(super) fn arrival(&self, block: BlockId) -> Result<u64, CodegenError> {
        self.arrivals.get(block).copied().flatten().ok_or(CodegenError::NoSuchBlock(block))
    }

    /// Offset of an address in the text from the first byte of the function.
    pub(super) fn offset(&self, at: u64) -> Offset {
        Offset::between(self.function, at)
    }

    /// Fills up with nops until `len` bytes lie on one page.
    fn on_one_page(&mut self, len: u64, back: Back) {
        while straddles(self.out.here(), len) {
            self.out.put(&[0x90], back);
        }
    }

    /// Fills up with nops until a point may stand here.
    fn make_fit(&mut self, point: &PointId, back: Back) {
        while !self.own.fits(point, self.out.here()) {
            self.out.put(&[0x90], back);
        }
    }

    /// Adds the code of a point that is woven together with the copy, or else a nop that a point may replace.
    fn probe(&mut self, point: PointId, original: u64) -> Result<(), EmitError> {
        self.make_fit(&point, Back::To(original));
        let copy = self.out.here();
        match self.own.emit(&mut self.out, &point, original)? {
            Some(holds) => self.held(point, (copy, original), holds, None),
            None => self.replaceable(point, original, Held::Nop),
        }
        Ok(())
    }

    fn replaceable(&mut self, point: PointId, original: u64, holds: Held) {
        let back = Back::To(original);
        self.on_one_page(PROBE as u64, back);
        let copy = Avma(self.out.here());
        self.out.put(&PROBE_NOP, back);
        let probe = Probe { point, original: Avma(original), copy, bytes: PROBE_NOP, holds };
        self.probes.push(PlacedProbe { probe, to: None });
    }

    /// Adds the nops of the points at which control arrives that comes from the text. Returns whether there are such points.
    fn arrive(&mut self, block: BlockId) -> Result<bool, EmitError> {
        let points = self.arrivals_of(block)?;
        let start = self.start(block)?;
        for point in points.iter().flatten() {
            self.make_fit(point, Back::To(start));
            if self.arrivals.get(block) == Some(&None) {
                self.arrivals.set(block, Some(self.out.here()));
            }
            self.probe(*point, start)?;
        }
        Ok(points.iter().any(Option::is_some))
    }

    /// The point at an edge.
    pub(super) fn edge(&self, from: BlockId, to: BlockId, kind: EdgeKind) -> Result<PointId, CodegenError> {
        let (from, to) = (self.offset(self.start(from)?), self.offset(self.start(to)?));
        Ok(PointId::Edge { from, to, kind })
    }

    /// The points at which control arrives that comes to a block's original address: the entry; or the return from a call, and the edge along
    /// which alone control arrives.
    pub(super) fn arrivals_of(&self, block: BlockId) -> Result<[Option<PointId>; 3], CodegenError> {
        if self.is_called(block) {
            return Ok([None; 3]);
        }
        let only_marker = self.mixed.get(&block);
        let entry = self.request.body.entry == Some(block) && only_marker.is_none_or(|only| *only);
        let along = self.along(block);
        let returns = along.is_some_and(|(from, kind)| kind == EdgeKind::CallReturn && self.ends_in_call(from));
        let at = self.offset(self.start(block)?);
        let edge = along.map(|(from, kind)| self.edge(from, block, kind)).transpose()?;
        Ok([entry.then_some(PointId::Entry), returns.then_some(PointId::CallAfter(at)), edge])
    }

    /// The edge along which alone control arrives that comes to a block's original address: the block that it leaves, and its kind.
    fn along(&self, block: BlockId) -> Option<(BlockId, EdgeKind)> {
        match self.request.body.blocks.get(block)?.entered {
            Entered::Along { from, kind } => (!self.mixed.contains_key(&block)).then_some((from, kind)),
            Entered::Never | Entered::Otherwise => None,
        }
    }

    /// Whether the last instruction of a block is a call. After other blocks, a system call returns.
    fn ends_in_call(&self, block: BlockId) -> bool {
        let last = self.code.blocks.get(block).and_then(|block| block.parts.last());
        matches!(last, Some(BlockInstruction::Kept { is_call: true, .. }))
    }

    /// Whether a block runs in the text up to its call.
    pub(super) fn is_called(&self, block: BlockId) -> bool {
        self.calls.binary_search_by_key(&block, |calling| calling.block).is_ok()
    }

    /// Adds the probes of blocks that run in the text up to their calls, to which these calls lead.
    fn calls(&mut self) -> Result<(), EmitError> {
        for Calling { block, call, callee } in self.calls {
            let its = |edge: &&Edge| target(edge) == Some(*block);
            let only = self.along(*block).filter(|_| self.request.body.edges.iter().filter(its).count() == 1);
            let edge = only.map(|(from, kind)| self.edge(from, *block, kind)).transpose()?;
            let at = self.offset(self.start(*block)?);
            let points = [PointId::Block(at), PointId::CallBefore(self.offset(call.at))];
            self.on_one_page(PROBE as u64, Back::To(*callee));
            self.called.push(self.out.here());
            for point in edge.into_iter().chain(points) {
                self.replaceable(point, *callee, Held::Called);
            }
            self.out.jmp(*callee, Back::To(*callee))?;
        }
        Ok(())
    }

    /// Copies a block. `falls` says whether the copy before it runs on into this one.
    fn block(&mut self, index: BlockId, block: &CodeBlock, falls: bool) -> Result<bool, EmitError> {
        let start = block.start;
        let arrives = match falls {
            true => self.arrivals_of(index)?.iter().any(Option::is_some),
            false => self.arrive(index)?,
        };
        let own = PointId::Block(self.offset(start));
        self.make_fit(&own, Back::To(start));
        let label = self.out.here();
        self.labels.push(label);
        if !arrives {
            self.arrivals.set(index, Some(label));
        }
        let called = self.is_called(index);
        if !called {
            self.probe(own, start)?;
        }
        self.moves.push(PcMove { from: Avma(start), to: Avma(label) });
        for part in &block.parts {
            if part.at() != start && matches!(part, BlockInstruction::Copied(_)) {
                self.moves.push(PcMove { from: Avma(part.at()), to: Avma(self.out.here()) });
            }
            match part {
                // A thread at the instruction itself stays in the text, where the instruction is.
                BlockInstruction::Kept { at, is_call } => {
                    if *is_call && !called {
                        self.on_one_page(PROBE as u64, Back::To(*at));
                        let home = Way { copy: Avma(*at), original: Avma(*at) };
                        let point = PointId::CallBefore(self.offset(*at));
                        self.held(point, (self.out.here(), *at), Held::Jump(home), None);
                    }
                    self.note_part(index);
                    self.out.jmp(*at, Back::To(*at))?;
                    return Ok(false);
                }
                BlockInstruction::Copied(d) => {
                    if self.instruction(index, d)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Notes that the copy of the next instruction of a block begins here.
    fn note_part(&mut self, block: BlockId) {
        let here = self.out.here();
        if let Some(parts) = self.parts.get_mut(block) {
            parts.push(here);
        }
    }

    /// Notes the jump at an address of the copy, with its equivalent in the text, as a probe.
    fn held(&mut self, point: PointId, (copy, original): (u64, u64), holds: Held, to: Option<BlockId>) {
        let (copy, original) = (Avma(copy), Avma(original));
        let probe = Probe { point, original, copy, bytes: [0; PROBE], holds };
        self.probes.push(PlacedProbe { probe, to });
    }

    /// Whether control leaves the function at the end of a block, if that is a return or a jump to an address that is not fixed.
    pub(super) fn leaves(&self, block: BlockId) -> bool {
        successors(self.request.body, block).next().is_none()
    }

    /// Copies an instruction of a block. Returns whether control never continues after it.
    fn instruction(&mut self, from: BlockId, d: &Displaced) -> Result<bool, EmitError> {
        let Some(original) = d.branch_target() else {
            if d.ends && self.leaves(from) {
                self.probe(PointId::Exit(self.offset(d.at)), d.at)?;
            }
            self.note_part(from);
            relocate::emit(d, |target| target, &mut self.out)?;
            return Ok(d.ends);
        };
        let inner = self.block_at(original);
        if let Some(to) = inner
            && let point = self.edge(from, to, EdgeKind::Taken)?
            && self.own.has(&point)
        {
            return self.branch_through(from, d, (point, to, original)).map(|()| d.ends);
        }
        let back = Back::To(d.at);
        // The jump is the last instruction of what replaces the original, and lies on one page.
        self.on_one_page(d.copy_len(), back);
        let begin = self.out.here();
        self.note_part(from);
        // The displacement within the copy is written later.
        relocate::emit(d, |target| if inner.is_some() { begin } else { target }, &mut self.out)?;
        let end = self.out.here();
        self.fixups.extend(inner.map(|block| Fixup { field: end - 4, block }));
        let jump = end - if d.condition().is_some() { 6 } else { 5 };
        let way = |copy: u64, original: u64| Way { copy: Avma(copy), original: Avma(original) };
        // In the copy, the jump ends at a label that may not be known yet.
        let taken = way(original, original);
        let holds = match d.condition() {
            Some(_) => Held::Branch(taken, way(end, d.next())),
            None => Held::Jump(taken),
        };
        // A thread at the jump that follows `loop` has decided to take it.
        let before = if jump == begin { d.at } else { original };
        let point = match inner {
            Some(to) => self.edge(from, to, EdgeKind::Taken)?,
            None => PointId::Exit(self.offset(d.at)),
        };
        self.held(point, (jump, before), holds, inner);
        Ok(d.ends)
    }

    /// Copies a branch to a block, whose point is woven together with the copy. A thread in its code has taken the branch.
    fn branch_through(
        &mut self,
        from: BlockId,
        d: &Displaced,
        (point, to, target): (PointId, BlockId, u64),
    ) -> Result<(), EmitError> {
        if d.ends && d.condition().is_none() {
            self.make_fit(&point, Back::To(d.at));
            self.note_part(from);
            self.probe(point, target)?;
            return self.jump(to, target);
        }
        self.note_part(from);
        let begin = self.out.here();
        // The displacement is written later.
        relocate::emit(d, |_| begin, &mut self.out)?;
        self.branch_points.push(BranchPoint { field: self.out.here() - 4, point, to });
        Ok(())
    }

    /// Adds the code of points that taken branches run through.
    fn branch_points(&mut self) -> Result<(), EmitError> {
        for BranchPoint { field, point, to } in std::mem::take(&mut self.branch_points) {
            let target = self.start(to)?;
            self.make_fit(&point, Back::To(target));
            let here = self.out.here();
            self.out.patch_relative(field, here)?;
            self.probe(point, target)?;
            self.jump(to, target)?;
        }
        Ok(())
    }

    pub(super) fn block_at(&self, at: u64) -> Option<BlockId> {
        self.request.body.block_at(Svma(at.wrapping_sub(self.request.bias.0)))
    }

    /// Leads control from the end of a block to the block there. Returns whether the copy runs on into what follows it.
    fn run_on(&mut self, from: BlockId, end: u64) -> Result<bool, EmitError> {
        let Some(to) = self.block_at(end) else {
            self.probe(PointId::Exit(self.offset(end)), end)?;
            self.out.jmp(end, Back::To(end))?;
            return Ok(false);
        };
        self.probe(self.edge(from, to, EdgeKind::FallThrough)?, end)?;
        if to.index() == from.index() + 1 {
            return Ok(true);
        }
        self.jump(to, end)?;
        Ok(false)
    }

    /// Adds a jump to the copy of a block.
    fn jump(&mut self, to: BlockId, original: u64) -> Result<(), EmitError> {
        let here = self.out.here();
        self.out.jmp(here, Back::To(original))?;
        self.fixups.push(Fixup { field: here + 1, block: to });
        Ok(())
    }

    /// Adds the arrivals of blocks into which the code before them runs.
    fn arrivals(&mut self) -> Result<(), EmitError> {
        for block in self.labels.keys() {
            if self.arrivals.get(block) == Some(&None) && self.arrive(block)? {
                self.jump(block, self.start(block)?)?;
            }
        }
        Ok(())
    }

    /// Writes the displacements, and returns the probes, and the points that have no probe because they have several.
    fn finish(&mut self) -> Result<(Vec<Probe>, Vec<PointId>), EmitError> {
        for Fixup { field, block } in std::mem::take(&mut self.fixups) {
            self.out.patch_relative(field, self.label(block)?)?;
        }
        let mut probes = Vec::with_capacity(self.probes.len());
        for PlacedProbe { mut probe, to } in std::mem::take(&mut self.probes) {
            if let (Some(to), Held::Jump(taken) | Held::Branch(taken, _)) = (to, &mut probe.holds) {
                taken.copy = Avma(self.label(to)?);
            }
            let at = probe.copy.0;
            probe.bytes = *self.out.between(at, at + PROBE as u64).first_chunk().ok_or(EmitError::OutOfReach)?;
            probes.push(probe);
        }
        probes.sort_unstable_by_key(|probe| probe.point);
        // An instruction in two blocks has two copies, so that one probe would miss some of its executions.
        let twice: Vec<PointId> =
            probes.windows(2).filter(|pair| pair[0].point == pair[1].point).map(|pair| pair[0].point).collect();
        probes.retain(|probe| twice.binary_search(&probe.point).is_err());
        Ok((probes, twice))
    }
}

/// Writes the ordinary copy of all blocks at an address, with the points that are woven together with it. `calls` are those that lead to the
/// copy, sorted by block, and `exposed` the blocks that may run in the text.
pub(super) fn ordinary<'a>(
    request: &'a BodyRequest<'a>,
    code: &'a DecodedBlocks,
    own: &'a PointsWithCopy,
    (calls, exposed): (&'a [Calling], &[BlockId]),
    at: u64,
) -> Result<(Copy<'a>, Vec<Probe>, Vec<PointId>), EmitError> {
    let count = code.blocks.len();
    let mixed = mixed(request.body, exposed);
    let mut out = CodeBuffer::default();
    out.restart(at);
    let mut copy = Copy {
        request,
        code,
        function: request.body.function.to_avma(request.bias).0,
        mixed,
        out,
        labels: IndexVec::default(),
        parts: IndexVec::filled(Vec::new(), count),
        arrivals: IndexVec::filled(None, count),
        calls,
        called: Vec::new(),
        fixups: Vec::new(),
        probes: Vec::new(),
        moves: Vec::new(),
        own,
        branch_points: Vec::new(),
    };
    let mut falls = false;
    for (index, block) in code.blocks.entries() {
        falls = copy.block(index, block, falls)? && copy.run_on(index, block.end)?;
    }
    copy.arrivals()?;
    copy.branch_points()?;
    copy.calls()?;
    let (probes, twice) = copy.finish()?;
    Ok((copy, probes, twice))
}

/// Both copies of a function at an address.
struct WrittenCopies<'a> {
    copy: Copy<'a>,
    probes: Vec<Probe>,
    counting: Option<CountingCopy>,
    /// The points without a probe, because they have several.
    twice: Vec<PointId>,
}

/// Writes the ordinary copy and the counting copy at an address.
fn copy<'a>(
    env: &Environment,
    request: &'a BodyRequest<'a>,
    (code, doors, own): (&'a DecodedBlocks, &'a Doors, &'a PointsWithCopy),
    at: u64,
) -> Result<WrittenCopies<'a>, EmitError> {
    let (mut copy, probes, twice) = ordinary(request, code, own, (&doors.calls, &doors.exposed), at)?;
    let springboards = doors.heads.iter().map(|(block, ..)| *block).collect();
    let counting = counting::emit(env, &mut copy, &probes, &springboards)?;
    Ok(WrittenCopies { copy, probes, counting, twice })
}

/// Writes the copy into the arena, and the springboards that lead to it.
pub(super) fn emit(
    env: &Environment,
    arena: &mut Arena,
    request: &BodyRequest<'_>,
    code: &DecodedBlocks,
    doors: &Doors,
) -> Result<BodyWeave, EmitError> {
    let aligned = |a: u64| a.next_multiple_of(ALIGNMENT);
    let place = |room: u64| Some((arena.place(room, aligned)?, room));
    let (mut at, mut room) = place(request.room()).or_else(|| place(0)).ok_or(EmitError::ArenaFull)?;
    let mut own = PointsWithCopy::of(env, arena, request, &doors.exposed);
    // The length depends on the address, because probes lie on one page. The room only grows, so that the search ends.
    let WrittenCopies { copy, probes, counting, .. } = loop {
        let written = copy(env, request, (code, doors, &own), at)?;
        if written.twice.iter().any(|point| own.has(point)) {
            // A count in one of the places would miss what passes the other one.
            let twice = written.twice;
            own.leave_out(&twice);
            continue;
        }
        let len = written.copy.out.bytes.len() as u64;
        if len <= room {
            break written;
        }
        room = len;
        let place = arena.place(room, aligned).ok_or(EmitError::ArenaFull)?;
        if place == at {
            break written;
        }
        at = place;
    };
    let mut plan = PatchPlan::default();
    let (mut moves, step_out) = copy.out.exits(at, copy.out.here());
    let mut copies: FxHashMap<u64, u64> = copy.moves.iter().rev().map(|m| (m.from.0, m.to.0)).collect();
    let arrivals = code.blocks.iter().zip(&copy.arrivals);
    copies.extend(arrivals.filter_map(|(block, to)| Some((block.start, (*to)?))));
    for (block, head, old) in &doors.heads {
        let gate = counting.as_ref().and_then(|counting| counting.gate(*block));
        let to = gate.map_or_else(|| copy.arrival(*block), |gate| Ok(gate.at.0))?;
        springboards(head, old, to, &copies, &mut plan.text, &mut moves)?;
    }
    for (calling, to) in doors.calls.iter().zip(&copy.called) {
        let (offset, bytes) = calling.form().write(calling.call.at, *to).ok_or(EmitError::OutOfReach)?;
        let old = calling.call.bytes().get(offset as usize..).unwrap_or_default();
        plan.text.push(text_write(calling.field(), old, &bytes));
    }
    plan.text.sort_unstable_by_key(|w| w.at);
    let len = copy.out.bytes.len() as u64;
    let removal = RemovalRecord {
        text: plan.text.iter().map(TextWrite::inverse).collect(),
        moves,
        step_out,
        code: Avma(at)..Avma(at + len),
    };
    let blocks = code.blocks.iter().zip(&copy.labels);
    let called = |calling: &Calling| copy.start(calling.block).map(|at| Avma(at)..Avma(calling.call.next()));
    let body = WovenBody {
        function: request.body.function.to_avma(request.bias),
        blocks: blocks.map(|(block, label)| Way { copy: Avma(*label), original: Avma(block.start) }).collect(),
        entry: request.body.entry,
        probes,
        exposed: doors.exposed.clone(),
        called: doors.calls.iter().map(called).collect::<Result<_, CodegenError>>()?,
        why_exposed: doors.why.clone(),
        counting,
        removal,
    };
    // A thread at a springboard takes it.
    let taken = |(block, head, _): &(BlockId, ChosenSpringboard, Vec<u8>)| {
        let room = head.island_room.as_ref().and_then(Redirect::first);
        [copy.start(*block).ok(), Some(head.at), room]
    };
    let taken: FxHashSet<u64> = doors.heads.iter().flat_map(taken).flatten().collect();
    // The kernel restarts a system call right before the address at which the thread stands, which must stay in the text.
    let stays = |m: &&PcMove| taken.contains(&m.from.0) || code.behind_system_calls.contains(&m.from.0);
    plan.moves = copy.moves.iter().filter(|m| !stays(m)).copied().collect();
    plan.moves.sort_unstable();
    plan.moves.dedup();
    arena.take(at, len);
    let points = with_copy::woven(arena, request, &own, (&body, &copy.out));
    plan.code.push(ArenaCode { at: Avma(at), bytes: copy.out.bytes });
    Ok(BodyWeave { plan, body, points })
}

/// Adds the writes of one springboard, which leads to `to`, with its island.
fn springboards(
    head: &ChosenSpringboard,
    old: &[u8],
    to: u64,
    copies: &FxHashMap<u64, u64>,
    writes: &mut Vec<TextWrite>,
    moves: &mut Vec<PcMove>,
) -> Result<(), EmitError> {
    let reach = |bytes: Option<[u8; 5]>| bytes.ok_or(EmitError::OutOfReach);
    let (_, bytes) = head.form.write(head.at, to).ok_or(EmitError::OutOfReach)?;
    writes.push(text_write(head.at, old, &bytes));
    if let SpringboardForm::Short(island) = head.form {
        writes.push(text_write(island.at, &island.old, &reach(jmp_bytes(island.at, to))?));
        moves.push(PcMove { from: Avma(island.at), to: Avma(head.at) });
    }
    if let Some(Redirect::Displace { displaced, old, .. }) = &head.island_room
        && let Some(first) = displaced.first()
    {
        let copy = copies.get(&first.at).ok_or(EmitError::OutOfReach)?;
        writes.push(text_write(first.at, old, &reach(jmp_bytes(first.at, *copy))?));
    }
    Ok(())
}
