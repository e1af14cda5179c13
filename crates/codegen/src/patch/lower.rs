//! Code of snippets at a point, for people to read: it is woven into an arena that does not exist, disassembled, and priced.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use ingraft_model::{Arrival, Avma, Bias, FreeRegisters, Gpr, PatchPlan, PointKind, Refusal, Site, SiteKind, Svma};

use crate::code::arena::Arena;
use crate::code::cost::Cost;
use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::WovenPoint;
use crate::patch::text_space::TextSpace;
use crate::patch::weave::{PointRequest, weave_points};
use crate::snippet::mini::MiniRequest;

/// Distance in bytes between the function and the arena, and size of the arena.
const DISTANCE: u64 = 1 << 20;
const ROOM: u64 = 1 << 20;

/// Code of snippets at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// Worst-case cost of the path to the snippets and back to the function.
    pub base: Cost,
    /// Worst-case cost of each snippet, in order.
    pub minis: Vec<Cost>,
    /// Instructions, by address.
    pub code: Vec<Line>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Name of the part of the code that begins here: `slow`, `base`, `slot`, `leave`, `tail`, `snippet 0`, …. A snippet in the slot
    /// replaces the name `slot`.
    pub label: Option<String>,
    /// Address of the instruction.
    pub at: Avma,
    /// Bytes of the instruction.
    pub bytes: Vec<u8>,
    /// Instruction in the syntax of Intel's manuals.
    pub text: String,
}

/// A point in a typical compiled function. Registers and flags are free at its entry; its exit and the addresses after its calls have
/// room; its calls name their callees.
pub fn generic_site(kind: PointKind) -> Site {
    let entry = Svma(0x1000);
    let (kind, at, point, bytes): (SiteKind, u64, u8, &[u8]) = match kind {
        // push rbp; mov rbp, rsp; sub rsp, 0x20
        PointKind::Entry => {
            let free = FreeRegisters { scratch: vec![Gpr(0), Gpr(10), Gpr(11)], flags: true };
            let kind = SiteKind::Entry { arrival: Arrival::default(), free, first: None };
            (kind, entry.0, 0, &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20])
        }
        // call to a function some pages away
        PointKind::CallBefore => (SiteKind::CallBefore, 0x1020, 0, &[0xe8, 0, 0x10, 0, 0]),
        // mov [rbp - 8], rax; mov rdi, [rbp - 16]
        PointKind::CallAfter => {
            let kind = SiteKind::CallAfter { arrival: Arrival::default() };
            (kind, 0x1025, 0, &[0x48, 0x89, 0x45, 0xf8, 0x48, 0x8b, 0x7d, 0xf0])
        }
        // mov rax, [rbp - 8]; add rax, 1
        PointKind::Block | PointKind::Edge => {
            let free = FreeRegisters { scratch: vec![Gpr(0)], flags: true };
            let kind = if kind == PointKind::Edge { SiteKind::Edge { free } } else { SiteKind::Block { free } };
            (kind, 0x1030, 0, &[0x48, 0x8b, 0x45, 0xf8, 0x48, 0x83, 0xc0, 0x01])
        }
        // add rsp, 0x20; pop rbp; ret
        PointKind::Exit => {
            let kind = SiteKind::Exit { within: false, free: FreeRegisters::default() };
            (kind, 0x1040, 5, &[0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3])
        }
    };
    Site { point, ..Site::new(kind, entry, Svma(at), bytes.to_vec()) }
}

/// Weaves snippets at a point in no process, and returns the code.
pub fn lower(
    env: &Environment,
    site: &Site,
    bias: Bias,
    minis: &[MiniRequest<'_>],
) -> Result<Result<Lowered, Refusal>, CodegenError> {
    let (point, plan) = match alone(env, site, bias, minis)? {
        Ok(woven) => woven,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let own = |at: Avma| {
        let ranges = std::iter::once(&point.removal.code)
            .chain(point.minis.iter().filter_map(|m| Some(&m.code.as_ref()?.range)));
        ranges.into_iter().any(|r| r.contains(&at))
    };
    let pieces = plan.code.iter();
    let lines = pieces.flat_map(|piece| disassemble(piece.at, &piece.bytes)).filter(|line| own(line.at));
    let label = |line: Line| Line { label: label(&point, line.at), ..line };
    let mut code: Vec<Line> = lines.map(label).collect();
    code.sort_by_key(|line| line.at);
    Ok(Ok(Lowered { base: point.cost, minis: point.minis.iter().map(|m| m.cost).collect(), code }))
}

/// The worst-case cost of snippets at a point in no process: that of the path to them and back, and of all of them.
pub fn price(
    env: &Environment,
    site: &Site,
    bias: Bias,
    minis: &[MiniRequest<'_>],
) -> Result<Result<Cost, Refusal>, CodegenError> {
    let costs = |(point, _): (WovenPoint, PatchPlan)| point.minis.iter().map(|m| m.cost).chain([point.cost]).sum();
    Ok(alone(env, site, bias, minis)?.map(costs))
}

/// Weaves snippets at a point, in an arena that does not exist.
fn alone(
    env: &Environment,
    site: &Site,
    bias: Bias,
    minis: &[MiniRequest<'_>],
) -> Result<Result<(WovenPoint, PatchPlan), Refusal>, CodegenError> {
    let start = (site.at.to_avma(bias).0 & !0xfff).saturating_add(DISTANCE);
    let mut arena = Arena::new(Avma(start)..Avma(start.saturating_add(ROOM)));
    let request = PointRequest { site, bias, name: "the function", minis, beside: &[], probe: None };
    let weave = weave_points(env, &mut arena, &mut TextSpace::new(), &[request])?;
    let point = weave.woven.into_iter().next().unwrap_or(Err(Refusal::NoSuchPoint));
    Ok(point.map(|point| (*point, weave.plan)))
}

fn label(point: &WovenPoint, at: Avma) -> Option<String> {
    let fixed = [
        (point.tail, "tail"),
        (point.leave, "leave"),
        (point.slot, "slot"),
        (point.base, "base"),
        (point.removal.code.start, "slow"),
    ];
    let fixed = fixed.into_iter().find(|(start, _)| *start == at).map(|(_, name)| name.to_owned());
    let snippet = point.minis.iter().enumerate().find_map(|(i, mini)| {
        let start = mini.code.as_ref().map_or(point.slot, |code| code.start);
        let first = mini.code.as_ref().map(|code| code.range.start);
        match at {
            at if at == start => Some(format!("snippet {i}")),
            at if first == Some(at) => Some(format!("snippet {i} without a shard")),
            _ => None,
        }
    });
    snippet.or(fixed)
}

fn disassemble(at: Avma, bytes: &[u8]) -> Vec<Line> {
    let mut formatter = IntelFormatter::new();
    let decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
    let line = |instruction: iced_x86::Instruction| {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let offset = usize::try_from(instruction.ip().wrapping_sub(at.0)).unwrap_or(usize::MAX);
        let bytes = bytes.get(offset..).and_then(|rest| rest.get(..instruction.len())).unwrap_or_default().to_vec();
        Line { label: None, at: Avma(instruction.ip()), bytes, text }
    };
    decoder.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use ingraft_model::{CpuClock, DataArea, Scale, Snippet, ThreadIdentity, VariableId, WallClock};

    use super::*;

    fn environment() -> Environment {
        let data = DataArea { base: Avma(0x1000_0000), stride: 1 << 20, shards: 64, journal_bytes: 1 << 20 };
        Environment {
            data,
            identity: ThreadIdentity::FsOffset(0x2d0),
            shadow_stack: false,
            ticks: Scale::ONE,
            wall: WallClock::Tsc,
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine: None,
            stacks: false,
            readable: crate::Readable::default(),
        }
    }

    #[test]
    fn a_count_as_text() {
        let count = Snippet::increment(VariableId(0));
        let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
        let lowered = lower(&environment(), &generic_site(PointKind::Entry), Bias(0), &minis);
        let lowered = lowered.expect("a request").expect("a point");
        let mut text = String::new();
        for line in &lowered.code {
            if let Some(label) = &line.label {
                text += &format!("{label}:\n");
            }
            text += &format!("  {}\n", line.text);
        }
        expect_test::expect![[r#"
            slow:
              lea rax,[101232h]
              jmp 0000000000101000h
            base:
              mov eax,fs:[2D0h]
              cmp gs:[10012000h],eax
              jne short 0000000000101214h
            snippet 0:
              inc qword ptr gs:[10012040h]
            tail:
              push rbp
              mov rbp,rsp
              sub rsp,20h
              jmp 0000000000001008h
        "#]]
        .assert_eq(&text);
        assert_eq!((lowered.base.clocks, lowered.base.locked), (0, 0));
        assert_eq!(lowered.minis, [Cost { slots: 6, ..Cost::default() }]);
    }

    #[test]
    fn what_must_be_kept_costs_more_elsewhere_than_at_an_entry() {
        let count = Snippet::increment(VariableId(0));
        let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
        let of = |kind| {
            let lowered = lower(&environment(), &generic_site(kind), Bias(0), &minis);
            lowered.expect("a request").expect("a point").base
        };
        let entry = of(PointKind::Entry);
        for kind in [PointKind::Exit, PointKind::CallBefore, PointKind::CallAfter] {
            assert!(of(kind).slots > entry.slots, "{kind:?}");
        }
    }
}
