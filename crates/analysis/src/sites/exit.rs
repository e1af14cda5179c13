//! The exits of a function as sites for springboards: its returns, and its jumps to other functions.
//!
//! An exit is often shorter than a springboard, so it is displaced together with instructions before it and with dead padding after it
//! ([`DisplaceableRanges`]). Control must fall straight through these instructions or branch away from them. An exit that the entry's springboard
//! displaces is woven into the entry's copy of it.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, UsedRegister};
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{Callee, FreeRegisters, IslandRoom, Refusal, Site, SiteKind, Svma};

use crate::flow::FlowGraph;
use crate::flow::body::DecodedFunction;
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::sites::displaceable::DisplaceableRanges;
use crate::sites::entry;
use crate::sites::island_room::{self, IslandRooms};
use crate::sites::springboard::{SITE_MAX, on_one_page};
use crate::text::decode;

/// Number of ranges of the own function from which on no other function is searched for ranges.
const ENOUGH: usize = 4;

pub(crate) fn sites(image: &AnalysedImage, function: &Function) -> Result<Vec<Result<Site, Refusal>>, Refusal> {
    let mut known = known(image, function)?;
    let short = |site: &&mut Site| !site.is_within_entry() && !fits(site.at.0, needed(site).end, SPRINGBOARD);
    if known.sites.iter_mut().flatten().any(|site| short(&site)) {
        let own = known.island_rooms(image, &[]);
        known.sites.iter_mut().flatten().filter(short).for_each(|site| offer(image, &own, site));
    }
    Ok(known.sites)
}

/// Number of instructions before a jump through a register that are searched for the load of the register.
const LOOKED_BACK: usize = 16;

/// The target of an exit that is a jump to another function; `None` at a return. If the register of a jump was just loaded from memory at a
/// fixed address, the jump counts as one through that memory.
pub(crate) fn tail_jump(image: &AnalysedImage, function: &Function, site: &Site) -> Option<Callee> {
    let bytes = site.bytes.get(usize::from(site.point)..usize::from(site.own))?;
    let i = decode::one(bytes, site.at.0 + u64::from(site.point))?;
    match i.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            Some(Callee::Direct(Svma(i.near_branch_target())))
        }
        FlowControl::IndirectBranch if i.is_ip_rel_memory_operand() => {
            Some(Callee::Slot(Svma(i.ip_rel_memory_address())))
        }
        FlowControl::IndirectBranch => Some(filled_from(image, function, &i).map_or(Callee::Computed, Callee::Slot)),
        _ => None,
    }
}

/// Address of the memory from which the register of a jump was loaded, if control runs straight from that load to the jump.
fn filled_from(image: &AnalysedImage, function: &Function, jump: &Instruction) -> Option<Svma> {
    let register = Some(jump.op0_register()).filter(|_| jump.op0_kind() == OpKind::Register)?;
    let body = DecodedFunction::new(image, function);
    let at = body.code.iter().position(|i| i.ip() == jump.ip())?;
    let mut info = InstructionInfoFactory::new();
    let mut later = jump;
    for i in body.code.get(..at)?.iter().rev().take(LOOKED_BACK) {
        let straight = i.next_ip() == later.ip() && !image.arrivals().get(later.ip());
        if !straight || !matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
            return None;
        }
        let changes = |used: &UsedRegister| {
            used.register().full_register() == register
                && !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead)
        };
        if info.info(i).used_registers().iter().any(changes) {
            let loads = i.code() == Code::Mov_r64_rm64 && i.is_ip_rel_memory_operand();
            return (loads && i.op0_register() == register).then(|| Svma(i.ip_rel_memory_address()));
        }
        later = i;
    }
    None
}

/// Offers ranges for islands to a short site: those of its own function and, if these are few, those of functions around it.
pub(crate) fn offer(image: &AnalysedImage, own: &IslandRooms, site: &mut Site) {
    site.island_rooms = own.near(image, site.at.0);
    if site.island_rooms.len() < ENOUGH {
        let more = island_room::around(image, site.at.0, Some(site.function.0));
        let new = |c: &IslandRoom| !site.island_rooms.iter().any(|own| own.at == c.at);
        let more: Vec<_> = more.into_iter().filter(new).collect();
        site.island_rooms.extend(more);
    }
}

/// The exits of a function, with its code and control flow.
pub(crate) struct KnownExits<'a> {
    body: DecodedFunction<'a>,
    flow: FlowGraph,
    sites: Vec<Result<Site, Refusal>>,
}

/// Finds the exits of a function. An error if it is not certain that these are all.
pub(crate) fn known<'a>(image: &'a AnalysedImage, function: &'a Function) -> Result<KnownExits<'a>, Refusal> {
    entry::check(image, function)?;
    if image.elf().is_go() && (image.goroutines().is_none() || !image.has_stack_room(function)) {
        return Err(Refusal::MovingCalls);
    }
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: function.offset_of(at) });
    }
    let body = DecodedFunction::new(image, function);
    let flow = FlowGraph::complete(&body)?;
    // The engine looks for suspended goroutines in the stop of the insertion. Later, none can be suspended in displaced code.
    let mut ranges = DisplaceableRanges::new(&body, &flow);
    ranges.resumed = false;
    let mut sites: Vec<Result<Site, Refusal>> = flow.found.exits.iter().map(|&exit| site(&mut ranges, exit)).collect();
    for &after in &flow.found.runs_on {
        let refusal = Refusal::RunsOn { offset: function.offset_of(after) };
        sites.push(Ok(run_off(image, function, after).ok_or(refusal)?));
    }
    Ok(KnownExits { body, flow, sites })
}

impl KnownExits<'_> {
    /// Ranges that may be displaced for islands. They avoid the bytes that an entry or exit of the function needs, and those in
    /// `else_needed`.
    pub fn island_rooms(&self, image: &AnalysedImage, else_needed: &[Range<u64>]) -> IslandRooms {
        let start = self.body.function.start;
        let entry = entry::first_byte(image, self.body.function);
        let home =
            entry::displaced_until(image, self.body.function).max(entry::springboard_end(image, self.body.function));
        let mut all: Vec<_> = self.sites.iter().flatten().map(needed).chain(std::iter::once(entry..home)).collect();
        all.extend_from_slice(else_needed);
        // the entry may need the bytes around branches back to it, and those that a site at the entry describes
        for branch in image.back_branches_to(start) {
            all.extend([branch.saturating_sub(20)..branch + 22, entry..entry + SITE_MAX]);
        }
        all.sort_unstable_by_key(|range| range.start);
        IslandRooms::new(&self.body, &self.flow, &all)
    }
}

/// The bytes that an exit may take.
fn needed(site: &Site) -> Range<u64> {
    site.at.0..site.at.0 + site.bytes.len() as u64
}

/// Whether a springboard of `len` bytes fits between two addresses, on one page.
fn fits(start: u64, end: u64, len: u64) -> bool {
    end - start >= len && on_one_page(start, len)
}

fn site(ranges: &mut DisplaceableRanges<'_>, exit: usize) -> Result<Site, Refusal> {
    let (image, function) = (ranges.body.image, ranges.body.function);
    let i = &ranges.body.code[exit];
    let (point, end) = (i.ip(), i.next_ip());
    let offset = function.offset_of(point);
    if i.flow_control() == FlowControl::Return && i.mnemonic() != Mnemonic::Ret {
        return Err(Refusal::NotDisplaceable { offset, why: "a return to other privileges or another segment" });
    }
    if ranges.lands_within(point, end) {
        return Err(Refusal::BranchIntoSpringboard { offset });
    }
    let padding = match i.flow_control() {
        FlowControl::ConditionalBranch => 0,
        _ => entry::dead_padding(image, function, end),
    };
    let within = ranges.goes_with_entry(point, end);
    let (at, until) = match within {
        true => (point, end),
        false => (ranges.choose(&ranges.starts(exit, true), &[end + padding])?, end + padding),
    };
    ranges.floor = end + padding;
    // A signal may suspend a goroutine in an island, where the runtime takes it for one in the function.
    if image.elf().is_go() && !within && !fits(at, until, SPRINGBOARD) {
        return Err(Refusal::TooShort {
            available: (until - at) as u32,
            next: "code at which a goroutine may be suspended",
        });
    }
    let len = (until - at).min(SITE_MAX);
    if image.in_restartable_sequence(at, len) {
        return Err(Refusal::RestartableSequence);
    }
    let bytes = image.elf().data_at(at, len).unwrap_or_default().to_vec();
    Ok(Site { moving: image.elf().is_go(), ..exit_at(within, function, at, point, end, bytes) })
}

/// The exit of a function whose control runs off its end, through padding, into the next function: the exit is where the padding begins.
fn run_off(image: &AnalysedImage, function: &Function, after: u64) -> Option<Site> {
    let mut end = after;
    while end < after + SPRINGBOARD {
        let i = decode::one(image.elf().data_from(end)?, end)?;
        let alone = |at| image.function_containing(Svma(at)).is_none();
        let landed = (end.max(after + 1)..i.next_ip()).any(|at| image.arrivals().get(at)) || image.is_probe(end);
        if !decode::is_nop(&i) || !alone(end) || !alone(i.next_ip() - 1) || landed {
            return None;
        }
        end = i.next_ip();
    }
    let bytes = image.elf().data_at(after, end - after)?.to_vec();
    let usable = fits(after, end, SPRINGBOARD) && !image.in_restartable_sequence(after, end - after);
    usable.then(|| exit_at(false, function, after, after, end, bytes))
}

/// The site of an exit whose instruction begins at `point` and ends at `end`; its range has these bytes, from `at` on.
fn exit_at(within: bool, function: &Function, at: u64, point: u64, end: u64, bytes: Vec<u8>) -> Site {
    let (point, own) = ((point - at) as u8, (end - at) as u8);
    Site {
        point,
        own,
        ..Site::new(SiteKind::Exit { within, free: FreeRegisters::default() }, function.start(), Svma(at), bytes)
    }
}
