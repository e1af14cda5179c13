//! The entry of a function as a site for a springboard.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{Arrival, BackBranch, Refusal, Site, SiteKind, Svma};

use crate::flow::body::DecodedFunction;
use crate::functions::explore;
use crate::functions::function::{Function, FunctionKind};
use crate::image::AnalysedImage;
use crate::sites::first::{first_instruction, free_at};
use crate::sites::island_room;
use crate::sites::springboard::{SHORT, SITE_MAX, on_one_page, probed};
use crate::text::decode::{self, DecodeCursor};

/// Largest distance in bytes over which instruction boundaries before an address are searched.
const BOUNDARY_SEARCH: u64 = 4096;

/// Largest number of branches back to one entry; only hostile code has more.
const BACK_BRANCHES_MAX: usize = 256;

pub(crate) fn site(image: &AnalysedImage, function: &Function) -> Result<Site, Refusal> {
    let elf = image.elf();
    let start = function.start;
    check(image, function)?;
    let offset_of = |at| function.offset_of(at);
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: offset_of(at) });
    }
    // Bytes that are no instruction may be data between code. If control reaches them, no decoded instruction can be trusted.
    if function.facts.invalid.is_some()
        && let Some(at) = explore::reach(elf, image.pointers(), start, start + function.size).invalid
    {
        return Err(Refusal::UnknownInstruction { offset: offset_of(at) });
    }
    let at = first_byte(image, function);
    let end = start + function.size;
    let too_short = Refusal::TooShort { available: 0, next: "the end of the function" };
    let room = end.checked_sub(at).filter(|n| *n > 0).ok_or(too_short)?;
    let own = valid_len(image, at, room.min(SITE_MAX));
    if own < room.min(SPRINGBOARD) {
        return Err(Refusal::UnknownInstruction { offset: offset_of(at + own) });
    }
    let padding = if own == room { image.padding_behind(end) } else { 0 };
    let len = (own + padding).min(SITE_MAX);
    if image.in_restartable_sequence(at, len) {
        return Err(Refusal::RestartableSequence);
    }
    let bytes = elf.data_at(at, len).unwrap_or_default().to_vec();
    let window = image.arrivals().window(at);
    let suspensions = image.suspensions(&(start..at + len));
    let resumed = |i: u64| suspensions.at(at + i);
    let stays = |i: &u64| window >> i & 1 != 0 || image.is_probe(at + i);
    let mut landing: u64 = (1..len).filter(stays).fold(0, |all, i| all | 1 << i);
    let mut cursor = DecodeCursor::new(&bytes[..own as usize], at);
    let mut moved = false;
    while let Some(i) = cursor.next() {
        let offset = i.ip() - at;
        // If a fault occurs outside of Go's code, Go takes the word at the stack pointer for the return address (runtime/panic.go,
        // `shouldPushSigpanic`). So an instruction that may fault stays in place once the stack pointer has moved.
        if offset > 0 && (resumed(offset) || elf.is_go() && moved && may_fault(&i)) {
            landing |= 1 << offset;
        }
        moved |= i.stack_pointer_increment() != 0 || i.op0_register() == Register::RSP;
    }
    let landings: Vec<Svma> = (1..len).filter(|i| landing >> i & 1 != 0).map(|i| Svma(at + i)).collect();

    let free = landings.first().map_or(len, |landing| landing.0 - at);
    if free < SHORT && image.is_returned_into(function) {
        return Err(Refusal::EnteredInside { offset: offset_of(at + free) });
    }
    if free < SHORT && image.is_probe(at + free) {
        return Err(probed(free));
    }
    if free < SHORT && resumed(free) && window >> free & 1 == 0 {
        return Err(Refusal::PreemptionPoint { offset: offset_of(at + free) });
    }
    let first = first_instruction(image, function);
    if first.is_none() && image.is_probe(at) {
        return Err(Refusal::ExposedToUprobes);
    }
    let narrow = |offset: u64| free < offset + SPRINGBOARD || !on_one_page(at + offset, SPRINGBOARD);
    let short = narrow(0) || first.as_ref().is_some_and(|first| narrow(first.len.into()));

    if let Some(branch) = image.back_branches_to(start).nth(BACK_BRANCHES_MAX) {
        return Err(Refusal::OwnBranchToEntry { offset: offset_of(branch) });
    }
    let back_branches = image.back_branches_to(start).filter_map(|b| back_branch(image, function, at, b)).collect();
    Ok(Site {
        kind: SiteKind::Entry {
            arrival: Arrival { back_branches, least: (displaced_until(image, function) - at) as u8 },
            free: free_at(&mut InstructionInfoFactory::new(), image, function, at),
            first,
        },
        point: 0,
        function: Svma(start),
        at: Svma(at),
        bytes,
        own: own as u8,
        landings,
        island_rooms: if short { island_room::around(image, at, None) } else { Vec::new() },
        moving: elf.is_go(),
    })
}

/// End of a springboard of five bytes at the entry, which lies after the first instruction if it can.
pub(crate) fn springboard_end(image: &AnalysedImage, function: &Function) -> u64 {
    let stays = first_instruction(image, function).map_or(0, |first| u64::from(first.len));
    first_byte(image, function) + stays + SPRINGBOARD
}

/// Address of the first byte that a springboard at the entry leaves in place. If control runs straight to an exit that would have no room
/// of its own after that springboard, the exit is displaced too.
pub(crate) fn displaced_until(image: &AnalysedImage, function: &Function) -> u64 {
    let entry = first_byte(image, function);
    let own = (function.start + function.size).saturating_sub(entry).min(SITE_MAX);
    let end_of_springboard = springboard_end(image, function);
    let suspensions = image.suspensions(&(function.start..entry + own));
    let mut cursor = DecodeCursor::new(image.elf().data_at(entry, own).unwrap_or_default(), entry);
    let mut at = entry;
    let mut home = None;
    loop {
        if at >= end_of_springboard {
            home = home.or(Some(at));
        }
        let stop = home.unwrap_or(at);
        let landed = at > entry && (image.arrivals().get(at) || suspensions.at(at) || image.is_probe(at));
        let Some(i) = cursor.next().filter(|_| !landed) else { return stop };
        let end = i.next_ip();
        if end > entry + own || image.arrivals().first(at + 1, end).is_some() {
            return stop;
        }
        match i.flow_control() {
            FlowControl::Next if runs_on(&i) => {}
            FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => {}
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                let room = |home| end + dead_padding(image, function, end) - home;
                return home.filter(|home| room(*home) >= SPRINGBOARD).unwrap_or(end);
            }
            _ => return stop,
        }
        at = end;
    }
}

/// Whether an instruction only falls through to the next one, and may be displaced together with it. An `endbr64` may not, because indirect
/// branches must land on it.
pub(crate) fn runs_on(i: &Instruction) -> bool {
    i.flow_control() == FlowControl::Next && !matches!(i.code(), Code::Hlt | Code::Endbr64)
}

/// Whether a goroutine's code must stay in its place because of an instruction. If a fault occurs outside of Go's code, Go looks for the
/// return address at the stack pointer, where a function with a frame has none (runtime/panic.go, `shouldPushSigpanic`).
pub(crate) fn stays_in_go(image: &AnalysedImage, i: &Instruction) -> bool {
    image.elf().is_go() && may_fault(i)
}

/// Whether an instruction may fault at a memory access: at any access but those relative to the stack pointer or the program counter.
fn may_fault(i: &Instruction) -> bool {
    let touches = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) && i.mnemonic() != Mnemonic::Lea;
    touches && i.memory_base() != Register::RSP && !i.is_ip_rel_memory_operand() && !decode::is_nop(i)
}

/// Refuses functions that callers do not reach: resolvers and stubs of the linker. Refuses functions whose instructions must stay where
/// they are, because other code knows by the program counter how far a thread has come.
pub(crate) fn check(image: &AnalysedImage, function: &Function) -> Result<(), Refusal> {
    match function.kind {
        FunctionKind::Normal if image.is_compared(function) => Err(Refusal::ComparedAddress),
        FunctionKind::Normal => Ok(()),
        FunctionKind::IfuncResolver => Err(Refusal::IfuncResolver),
        FunctionKind::Stub => Err(Refusal::LinkerStub),
    }
}

/// The first byte that may be overwritten. An `endbr64` stays in place, because indirect branches must land on it.
pub(crate) fn first_byte(image: &AnalysedImage, function: &Function) -> u64 {
    function.start + if image.elf().begins_with_endbr(function.start) { 4 } else { 0 }
}

/// Number of the first `len` bytes that are known instructions. If a site ends inside the last instruction, that part of it counts too.
fn valid_len(image: &AnalysedImage, at: u64, len: u64) -> u64 {
    let mut cursor = DecodeCursor::new(image.elf().data_from(at).unwrap_or_default(), at);
    let mut valid = 0;
    while valid < len {
        let Some(i) = cursor.next() else { return valid };
        let next = valid + i.len() as u64;
        if next > len && len < SITE_MAX {
            return valid;
        }
        valid = next;
    }
    len
}

/// The range of whole instructions around a branch to `entry`. Control arrives nowhere else in the range than at its start.
pub(crate) fn back_branch(image: &AnalysedImage, function: &Function, entry: u64, branch: u64) -> Option<BackBranch> {
    let elf = image.elf();
    let i = decode::one(elf.data_from(branch)?, branch)?;
    let mut until = i.next_ip();
    if i.flow_control() == FlowControl::UnconditionalBranch {
        until += dead_padding(image, function, until);
    }
    let mut from = branch;
    if until - from < SPRINGBOARD {
        let boundaries = boundaries_before(image, function, branch);
        let suspensions = image.suspensions(&(from.saturating_sub(SITE_MAX)..until));
        for &at in boundaries.iter().rev() {
            // Control may also arrive inside of the instruction, behind its prefix.
            let landed = image.arrivals().first(at + 1, from + 1).is_some() || suspensions.at(from);
            if until - from >= SPRINGBOARD || (at..until).contains(&entry) || landed || image.is_probe(at) {
                break;
            }
            from = at;
        }
        if from < branch && DecodedFunction::new(image, function).is_within_other(from) {
            from = branch;
        }
    }
    let bytes = elf.data_at(from, until - from)?.to_vec();
    Some(BackBranch { at: Svma(branch), from: Svma(from), until: Svma(until), bytes })
}

/// Number of padding bytes after an unconditional branch at which control cannot arrive.
pub(crate) fn dead_padding(image: &AnalysedImage, function: &Function, at: u64) -> u64 {
    let Some(end) = [function.range()].iter().chain(function.parts()).find(|r| r.contains(&Svma(at))).map(|r| r.end.0)
    else {
        return image.padding_behind(at).min(16);
    };
    let end = end.min(at + 16);
    let end = image.arrivals().first(at, end).unwrap_or(end);
    let end = image.probes_in(&(Svma(at)..Svma(end))).next().map_or(end, |probe| probe.0);
    decode::padding(image.elf().data_at(at, end - at).unwrap_or_default(), false) as u64
}

/// Starts of the instructions that fall through to `until`, in order; empty if they are not certain.
fn boundaries_before(image: &AnalysedImage, function: &Function, until: u64) -> Vec<u64> {
    let ranges = [function.range()];
    let Some(range) = ranges.iter().chain(function.parts()).find(|r| r.contains(&Svma(until))) else {
        return Vec::new();
    };
    let near = until.saturating_sub(64).max(range.start.0);
    // Control arrives at instruction boundaries only. If no arrival is near, decoding starts at the beginning of the range.
    let from = match image.arrivals().first(near, until) {
        Some(arrival) => arrival,
        None if until - range.start.0 <= BOUNDARY_SEARCH => range.start.0,
        None => return Vec::new(),
    };
    let bytes = image.elf().data_at(from, until - from).unwrap_or_default();
    let mut out = Vec::new();
    let mut at = from;
    while at < until {
        let Some(i) = decode::one(&bytes[(at - from) as usize..], at) else { return Vec::new() };
        let ends = !matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        if ends {
            out.clear();
        } else {
            out.push(at);
        }
        at = i.next_ip();
    }
    if at == until { out } else { Vec::new() }
}
