//! Sites, environments and listings for tests.

pub mod body;
pub mod image;
pub mod liveness;
pub mod program;
pub mod random;

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{
    Arena, Environment, MiniRequest, PointRequest, Readable, TextSpace, Weave, WovenPoint, weave_points,
};
use ingraft_model::histogram::Scale;
use ingraft_model::point::{BackBranch, Padding};
use ingraft_model::{
    Arrival, Avma, AvmaRange, Bias, CpuClock, DataArea, FreeRegisters, Gpr, PatchPlan, Refusal, Site, SiteKind,
    Snippet, Svma, ThreadIdentity, VariableId, WallClock,
};

/// Returns a configuration with 40 cases for each property, or with as many as `PROPTEST_CASES` says.
pub fn property_config() -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}

/// Returns the reference environment: a data area at 256 MiB, the time stamp counter as the wall clock, no clock of processor time.
pub fn environment(identity: ThreadIdentity) -> Environment {
    let data = DataArea { base: Avma(0x1000_0000), stride: 1 << 20, shards: 64, journal_bytes: 1 << 20 };
    Environment {
        data,
        identity,
        shadow_stack: false,
        ticks: TICKS,
        wall: WallClock::Tsc,
        cpu: CpuClock::None,
        vectors: None,
        readable: READABLE,
        loader: None,
        goroutine: None,
        stacks: false,
    }
}

pub const GLIBC: ThreadIdentity = ThreadIdentity::FsOffset(0x2d0);

/// Scratch memory of the programs that tests run; reads of other memory name a process that does not exist.
pub const READABLE: Readable =
    Readable { start: Avma(image::SCRATCH), end: Avma(image::SCRATCH + 0x8000), process: Some(0x7fff_ffff) };

/// Scale from ticks of 3 GHz to nanoseconds.
pub const TICKS: Scale = Scale { mult: 1_431_655_765, shift: 32 };

/// Returns the site of an entry at 0x401000. All `bytes` belong to the function; rax and the flags are free.
pub fn site(bytes: &[u8]) -> Site {
    let kind = SiteKind::Entry {
        arrival: Arrival::default(),
        free: FreeRegisters { scratch: vec![Gpr(0)], flags: true },
        first: None,
    };
    Site::new(kind, Svma(0x401000), Svma(0x401000), bytes.to_vec())
}

/// Returns the site of an entry at an address, with no register free and the flags live.
pub fn entry_at(at: u64, bytes: &[u8]) -> Site {
    Site { function: Svma(at), at: Svma(at), ..site(bytes) }.free(&[], false)
}

/// Returns the site of an exit. `bytes` lie at `at`; their last instruction, at offset `point`, is the exit; padding follows.
pub fn exit_site(function: u64, at: u64, point: usize, bytes: &[u8], padding: &[u8]) -> Site {
    site_of(SiteKind::Exit { within: false, free: FreeRegisters::default() }, function, at, point, bytes, padding)
}

/// Returns the site before or after a call, with the layout of an exit site.
pub fn call_site(after: bool, function: u64, at: u64, point: usize, bytes: &[u8], padding: &[u8]) -> Site {
    let arrival = Arrival { least: bytes.len() as u8, back_branches: Vec::new() };
    let kind = if after { SiteKind::CallAfter { arrival } } else { SiteKind::CallBefore };
    site_of(kind, function, at, point, bytes, padding)
}

/// Site of a block of a function that begins at `function`. No register and no flag is free.
pub fn block_site(function: u64, at: u64, bytes: &[u8], padding: &[u8]) -> Site {
    site_of(SiteKind::Block { free: FreeRegisters::default() }, function, at, 0, bytes, padding)
}

fn site_of(kind: SiteKind, function: u64, at: u64, point: usize, bytes: &[u8], padding: &[u8]) -> Site {
    let (point, own, all) = (point as u8, bytes.len() as u8, [bytes, padding].concat());
    Site { point, own, ..Site::new(kind, Svma(function), Svma(at), all) }
}

/// Changes of facts about a site.
pub trait WithFacts {
    /// Sets the free registers, and whether the flags are free.
    fn free(self, scratch: &[Gpr], flags: bool) -> Site;
    /// Sets the back branches to the site.
    fn back(self, branches: Vec<BackBranch>) -> Site;
    /// Sets the length in bytes that is better displaced than not.
    fn least(self, least: u8) -> Site;
}

impl WithFacts for Site {
    fn free(mut self, scratch: &[Gpr], flags: bool) -> Site {
        let (SiteKind::Entry { free, .. } | SiteKind::Block { free } | SiteKind::Edge { free }) = &mut self.kind else {
            panic!("only entries and blocks have free registers")
        };
        *free = FreeRegisters { scratch: scratch.to_vec(), flags };
        self
    }

    fn back(mut self, branches: Vec<BackBranch>) -> Site {
        arrival(&mut self).back_branches = branches;
        self
    }

    fn least(mut self, least: u8) -> Site {
        arrival(&mut self).least = least;
        self
    }
}

fn arrival(site: &mut Site) -> &mut Arrival {
    match &mut site.kind {
        SiteKind::Entry { arrival, .. } | SiteKind::CallAfter { arrival } => arrival,
        SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::Block { .. } | SiteKind::Edge { .. } => {
            panic!("only entries and places behind calls are ways in")
        }
    }
}

pub fn back_branch(at: u64, from: u64, until: u64, bytes: &[u8]) -> BackBranch {
    BackBranch { at: Svma(at), from: Svma(from), until: Svma(until), bytes: bytes.to_vec() }
}

pub fn padding(at: u64, bytes: &[u8]) -> Padding {
    Padding { range: Svma(at)..Svma(at + bytes.len() as u64), bytes: bytes.to_vec() }
}

pub fn arena() -> Arena {
    Arena::new(Avma(0x500000)..Avma(0x600000))
}

pub fn count() -> Snippet {
    Snippet::increment(VariableId(0))
}

/// One site that is woven with snippets and proven.
pub struct Woven {
    pub env: Environment,
    pub arena: Arena,
    pub text: TextSpace,
    pub site: Site,
    pub weave: Weave,
}

impl Woven {
    pub fn point(&self) -> &WovenPoint {
        match &self.weave.woven[0] {
            Ok(point) => point,
            Err(refusal) => panic!("refused: {refusal}"),
        }
    }
}

pub fn weave(identity: ThreadIdentity, site: Site, paddings: &[Padding], snippets: &[Snippet]) -> Woven {
    let env = environment(identity);
    let (mut arena, mut text) = (arena(), TextSpace::new());
    text.add_padding(Bias(0), paddings);
    let counters: Vec<u32> = (0..16).collect();
    let minis: Vec<_> = snippets
        .iter()
        .enumerate()
        .map(|(i, s)| MiniRequest { id: i as u64, snippet: s, counters: &counters[i..] })
        .collect();
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    if let Err(e) = verify_weave(&env, &arena, &text, &requests, &weave) {
        panic!("{e}\n{}", list(&weave.plan, &weave.woven));
    }
    Woven { env, arena, text, site, weave }
}

pub fn refusal(site: Site, paddings: &[Padding]) -> String {
    match &weave(GLIBC, site, paddings, &[count()]).weave.woven[0] {
        Ok(_) => "woven".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

/// Formats a plan: refused points, writes with their instructions, code with the names of its parts, and moves of program counters.
pub fn list(plan: &PatchPlan, woven: &[Result<Box<WovenPoint>, Refusal>]) -> String {
    let mut out = String::new();
    for refusal in woven.iter().filter_map(|w| w.as_ref().err()) {
        let _ = writeln!(out, "refused: {refusal}");
    }
    for w in &plan.text {
        let _ = writeln!(
            out,
            "write {:#x}: {:02x?} -> {:02x?}  {}",
            w.at.0,
            w.old_bytes(),
            w.new_bytes(),
            instructions(w.at.0, w.new_bytes())
        );
    }
    let mut names = std::collections::BTreeMap::new();
    for p in woven.iter().flatten() {
        for (at, name) in [(p.base, "base"), (p.slot, "slot"), (p.leave, "leave"), (p.tail, "tail")] {
            names.entry(at.0).or_insert_with(Vec::new).push(name);
        }
        for m in p.minis.iter().filter_map(|m| m.code.as_ref()) {
            names.entry(m.range.start.0).or_insert_with(Vec::new).push(if m.start == m.range.start {
                "mini"
            } else {
                "twin"
            });
            if m.start != m.range.start {
                names.entry(m.start.0).or_insert_with(Vec::new).push("mini");
            }
        }
    }
    for code in &plan.code {
        let _ = writeln!(out, "code {:#x}, {} bytes", code.at.0, code.bytes.len());
        let mut decoder = Decoder::with_ip(64, &code.bytes, code.at.0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            let name = names.get(&i.ip()).map_or(String::new(), |n| n.join(" ") + ":");
            let _ = writeln!(out, "  {name:12} {:#x} {}", i.ip(), text_of(&i));
        }
    }
    for m in &plan.moves {
        let _ = writeln!(out, "move {:#x} -> {:#x}", m.from.0, m.to.0);
    }
    out
}

/// Formats the part of a plan's code that lies in a range.
pub fn list_range(plan: &PatchPlan, woven: &[Result<Box<WovenPoint>, Refusal>], range: &AvmaRange) -> String {
    let inside = |line: &&str| {
        let address = line.split("0x").nth(1).and_then(|l| u64::from_str_radix(l.get(..6)?, 16).ok());
        line.starts_with("  ") && address.is_some_and(|a| range.contains(&Avma(a)))
    };
    list(plan, woven).lines().filter(inside).map(|l| l.to_owned() + "\n").collect()
}

/// Formats the plan of a removal.
pub fn list_removal(plan: &PatchPlan) -> String {
    let mut out = String::new();
    for w in &plan.text {
        let _ = writeln!(out, "write {:#x}: {:02x?}", w.at.0, w.new_bytes());
    }
    for m in &plan.moves {
        let _ = writeln!(out, "move {:#x} -> {:#x}", m.from.0, m.to.0);
    }
    for r in &plan.step_out {
        let _ = writeln!(out, "step out of {:#x}..{:#x}", r.start.0, r.end.0);
    }
    for r in &plan.retired {
        let _ = writeln!(out, "retire {:#x}..{:#x}", r.start.0, r.end.0);
    }
    out
}

fn instructions(at: u64, bytes: &[u8]) -> String {
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let i = decoder.decode();
    if i.is_invalid() { String::new() } else { text_of(&i) }
}

/// Formats an instruction, without bits of the encoding that have no effect.
pub fn text_of(i: &iced_x86::Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.options_mut().set_rip_relative_addresses(false);
    let mut text = String::new();
    formatter.format(i, &mut text);
    text
}
