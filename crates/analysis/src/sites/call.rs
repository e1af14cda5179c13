//! The calls of a function, and the places before and after them as sites for springboards.
//!
//! A call of at least five bytes becomes a call of new code that pushes the same return address. A shorter call is reached from the
//! instructions before it. After a call, the springboard lies at the return address.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, Register};
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{Arrival, BackBranch, CallPoint, CallSite, Callee, PointKind, Refusal, Site, SiteKind, Svma};

use crate::flow::body::DecodedFunction;
use crate::flow::{FlowGraph, never_returns};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::sites::displaceable::DisplaceableRanges;
use crate::sites::entry;
use crate::sites::exit;
use crate::sites::springboard::{SHORT, SITE_MAX, WITHIN_OTHER, on_one_page, probed};

/// Lengths of indirect calls that a direct call can replace, ending at the same address.
const REPLACEABLE: std::ops::RangeInclusive<usize> = 5..=8;
/// Largest number of jumps to one return address; only hostile code has more.
const JUMPS_MAX: usize = 64;
/// Length in bytes of the displacement, which ends a direct call.
const DISPLACEMENT: u64 = 4;

pub(crate) fn sites(image: &AnalysedImage, function: &Function) -> Result<Vec<CallSite>, Refusal> {
    entry::check(image, function)?;
    let body = DecodedFunction::new(image, function);
    let flow = FlowGraph::complete(&body)?;
    Ok(calls(&body, &flow).map(|index| call_site(&body.code[index])).collect())
}

/// The targets of all calls of a function and of its jumps that leave it.
pub(crate) fn callees(image: &AnalysedImage, function: &Function) -> Vec<Callee> {
    let body = DecodedFunction::new(image, function);
    let target = |i: &Instruction| match i.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::IndirectBranch => Some(callee(i)),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            let to = i.near_branch_target();
            (!body.contains(to)).then_some(Callee::Direct(Svma(to)))
        }
        _ => None,
    };
    body.code.iter().filter_map(target).collect()
}

/// The points before or after each call of a function.
pub(crate) fn points(image: &AnalysedImage, function: &Function, after: bool) -> Result<Vec<CallPoint>, Refusal> {
    entry::check(image, function)?;
    if after && image.elf().is_go() {
        return Err(Refusal::MovingCalls);
    }
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: function.offset_of(at) });
    }
    let body = DecodedFunction::new(image, function);
    let flow = FlowGraph::complete(&body)?;
    let ranges = DisplaceableRanges::new(&body, &flow);
    let point = |index| {
        let call = call_site(&body.code[index]);
        let site = match after {
            false => before(&ranges, index).map(Some),
            // if no control returns from the call, there is nothing to weave
            true => behind(&ranges, index)
                .or_else(|refusal| if never_returns(image, call.callee) { Ok(None) } else { Err(refusal) }),
        };
        CallPoint { call, site }
    };
    let mut points: Vec<CallPoint> = calls(&body, &flow).map(point).collect();
    make_room(image, function, &mut points);
    Ok(points)
}

/// Offers displaceable ranges for islands to the sites that may need an island.
fn make_room(image: &AnalysedImage, function: &Function, points: &mut [CallPoint]) {
    let short = |site: &Site| {
        let first = site.landings.first().map_or(u64::MAX, |landing| landing.0 - site.at.0);
        let after = site.point_kind() == PointKind::CallAfter;
        let room = if after { first.min(site.bytes.len() as u64) } else { u64::from(site.own) };
        let hop = |b: &BackBranch| {
            b.bytes.get((b.at.0 - b.from.0) as usize).is_some_and(|opcode| *opcode != 0xe9 && *opcode != 0x0f)
        };
        room < SPRINGBOARD || !on_one_page(site.at.0, SPRINGBOARD) && after || site.back_branches().iter().any(hop)
    };
    let mut sites: Vec<&mut Site> = points.iter_mut().filter_map(|p| p.site.as_mut().ok()?.as_mut()).collect();
    if !sites.iter().any(|site| short(site)) {
        return;
    }
    let Ok(known) = exit::known(image, function) else { return };
    let needed: Vec<_> =
        sites.iter().map(|site| site.at.0..site.at.0 + SPRINGBOARD.min(site.bytes.len() as u64)).collect();
    let own = known.island_rooms(image, &needed);
    sites.iter_mut().filter(|site| short(site)).for_each(|site| exit::offer(image, &own, site));
}

fn calls<'a>(body: &'a DecodedFunction<'_>, flow: &'a FlowGraph) -> impl Iterator<Item = usize> + 'a {
    let reached = |&index: &usize| flow.reaches(index) && body.code[index].mnemonic() == Mnemonic::Call;
    (0..body.code.len()).filter(reached)
}

fn call_site(i: &Instruction) -> CallSite {
    CallSite { at: Svma(i.ip()), len: i.len() as u8, callee: callee(i) }
}

fn callee(i: &Instruction) -> Callee {
    if i.is_call_near() {
        Callee::Direct(Svma(i.near_branch_target()))
    } else if i.is_ip_rel_memory_operand() {
        Callee::Slot(Svma(i.ip_rel_memory_address()))
    } else {
        Callee::Computed
    }
}

/// Whether the target of a call depends on the stack pointer, which differs once the return address is pushed.
fn uses_stack_pointer(i: &Instruction) -> bool {
    i.memory_base() == Register::RSP || i.op0_register() == Register::RSP
}

fn before(ranges: &DisplaceableRanges<'_>, index: usize) -> Result<Site, Refusal> {
    let i = &ranges.body.code[index];
    let (point, end) = (i.ip(), i.next_ip());
    let offset = ranges.body.function.offset_of(point);
    if !matches!(i.code(), Code::Call_rel32_64 | Code::Call_rm64) {
        return Err(Refusal::NotDisplaceable { offset, why: "a call to another segment" });
    }
    if ranges.lands_within(point, end) {
        return Err(Refusal::BranchIntoSpringboard { offset });
    }
    if ranges.body.is_within_other(point) {
        return Err(Refusal::NotDisplaceable { offset, why: WITHIN_OTHER });
    }
    let replaceable = match i.code() {
        Code::Call_rel32_64 => on_one_page(end - DISPLACEMENT, DISPLACEMENT),
        _ => REPLACEABLE.contains(&i.len()) && !uses_stack_pointer(i) && on_one_page(point, i.len() as u64),
    };
    let at = if replaceable {
        point
    } else if uses_stack_pointer(i) {
        ranges.choose(&ranges.starts(index, false), &[point])?
    } else {
        // Prefer a range that ends before the call. The call then stays in place, so the processor predicts its return.
        ranges.choose(&ranges.starts(index, false), &[point, end])?
    };
    let (point, own) = ((point - at) as u8, (end - at) as u8);
    let site = Site { point, own, ..at_call(ranges, SiteKind::CallBefore, at, end - at) };
    allowed(ranges, site)
}

/// The site at the return address of a call; `None` if nothing can return there.
fn behind(ranges: &DisplaceableRanges<'_>, index: usize) -> Result<Option<Site>, Refusal> {
    let (image, function) = (ranges.body.image, ranges.body.function);
    let at = ranges.body.code[index].next_ip();
    let offset = function.offset_of(at);
    let Some(next) = ranges.body.index_of(at) else {
        return if ranges.body.contains(at) { Err(Refusal::UnknownInstruction { offset }) } else { Ok(None) };
    };
    if ends_there(&ranges.body.code[next]) {
        return Ok(None);
    }
    if image.is_probe(at) {
        return Err(probed(0));
    }
    if ranges.body.is_within_other(at) {
        return Err(Refusal::NotDisplaceable { offset, why: WITHIN_OTHER });
    }
    let back_branches = jumps_to(ranges, at).ok_or(Refusal::BranchIntoSpringboard { offset })?;
    let Some(end) = ranges.body.inside.iter().find(|r| r.contains(&at)).map(|r| r.end) else { return Ok(None) };
    let mut until = at;
    let mut home = at;
    let (mut ended, mut leaves) = (false, false);
    while until < (at + SITE_MAX).min(end) && !ended {
        let Some(index) = ranges.body.index_of(until) else { break };
        let i = &ranges.body.code[index];
        if i.next_ip() > at + SITE_MAX {
            break;
        }
        until = i.next_ip();
        if home < at + SPRINGBOARD {
            home = until;
        }
        ended = !matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        leaves = ranges.flow.leaves(index);
    }
    let own = until - at;
    let padding = if ended { entry::dead_padding(image, function, until) } else { 0 };
    let len = (own + padding).min(SITE_MAX);
    let landings: Vec<Svma> = (at + 1..at + len).filter(|at| ranges.lands(*at)).map(Svma).collect();
    let room = landings.first().map_or(at + len, |l| l.0) - at;
    if room < SHORT && image.is_probe(at + room) {
        return Err(probed(room));
    }
    if room < SHORT {
        return Err(Refusal::TooShort { available: room as u32, next: "the next place where control can arrive" });
    }
    if !on_one_page(at, SHORT) {
        return Err(Refusal::StraddlesPages);
    }
    // an exit that would have no room of its own after the springboard is displaced with it
    let least = if leaves && landings.is_empty() && at + len - home < SPRINGBOARD { own as u8 } else { 0 };
    let kind = SiteKind::CallAfter { arrival: Arrival { back_branches, least } };
    let site = Site { own: own as u8, landings, ..at_call(ranges, kind, at, len) };
    allowed(ranges, site).map(Some)
}

/// The function's own jumps to a return address; a thread that arrives by such a jump has not made the call. `None` if there are other ways
/// to arrive, or if a jump cannot be redirected.
fn jumps_to(ranges: &DisplaceableRanges<'_>, at: u64) -> Option<Vec<BackBranch>> {
    let (image, function) = (ranges.body.image, ranges.body.function);
    if image.function_at(Svma(at)).is_some() {
        return None;
    }
    let around = |jump| {
        let b = entry::back_branch(image, function, at, jump)?;
        let rseq = image.in_restartable_sequence(b.from.0, b.bytes.len() as u64);
        (!rseq && !ranges.lands_within(b.from.0, b.until.0)).then_some(b)
    };
    let jumps: Vec<u64> = ranges.flow.jumps_to(at)?.take(JUMPS_MAX + 1).collect();
    if jumps.len() > JUMPS_MAX { None } else { jumps.into_iter().map(around).collect() }
}

/// Whether an instruction only marks a place that control never reaches.
fn ends_there(i: &Instruction) -> bool {
    matches!(i.code(), Code::Int3 | Code::Hlt | Code::Ud2)
}

/// A site with `len` bytes of the file from `at` on.
fn at_call(ranges: &DisplaceableRanges<'_>, kind: SiteKind, at: u64, len: u64) -> Site {
    let bytes = ranges.body.image.elf().data_at(at, len).unwrap_or_default().to_vec();
    Site::new(kind, ranges.body.function.start(), Svma(at), bytes)
}

fn allowed(ranges: &DisplaceableRanges<'_>, site: Site) -> Result<Site, Refusal> {
    let rseq = ranges.body.image.in_restartable_sequence(site.at.0, site.bytes.len() as u64);
    if rseq { Err(Refusal::RestartableSequence) } else { Ok(site) }
}
