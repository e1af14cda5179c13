//! Random functions, and the facts that an analysis would find about them.

use ingraft_codegen::verify::{VerifyError, verify_weave};
use ingraft_codegen::{Arena, Environment, MiniRequest, PointRequest, TextSpace, Weave, weave_points};
use ingraft_model::point::Padding;
use ingraft_model::{Bias, Gpr, PatchPlan, Site, Snippet, Svma, ThreadIdentity};
use proptest::prelude::*;

use super::WithFacts as _;
use super::image::{HELPER, HELPER_POINTER, SCRATCH, TEXT};
use super::{back_branch, list, padding};

const SLOT: u64 = 128;

/// A random instruction: its kind, and the choice of its operands.
pub type Choice = (u8, u8, u8, u32);

/// End of a function, and dead registers at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Nothing is dead, so everything must be saved.
    Live,
    /// This register and the flags are dead.
    Dead(u8),
    /// Register 0 and the flags are dead. The function is a loop of three rounds back to its first instruction.
    Loop(LoopKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopKind {
    /// `dec ecx; jnz` with an 8-bit displacement; only the branch itself may be displaced.
    Short,
    /// The same branch, where instructions before it may be displaced too.
    ShortWithRange,
    /// `dec ecx; jnz` with a 32-bit displacement.
    Long,
    /// The `loop` instruction.
    Loop,
}

#[derive(Clone, Debug)]
pub struct Function {
    pub style: Style,
    pub endbr: bool,
    pub body: Vec<Choice>,
    /// Random bits for the padding, the address and the loop's target.
    pub gap: u8,
}

/// Number of kinds of instructions.
const KINDS: u8 = 23;

/// Whether an instruction takes a word from the stack that it has pushed before.
pub fn pops((kind, ..): &Choice) -> bool {
    matches!(kind % KINDS, 8 | 21)
}

/// Registers that a body may write. Excluded are rsi, r9, r15, rsp, and rcx, which loops use.
const POOL: [u8; 9] = [2, 3, 5, 7, 8, 10, 12, 13, 14];

struct Instruction {
    bytes: Vec<u8>,
    /// Whether the instruction is a call, so that control can land after it.
    call: bool,
    /// Whether the instruction jumps over the next one. The displacement is the instruction's last field.
    skips: bool,
}

fn rex(r: u8, b: u8) -> u8 {
    0x48 | (r >> 3) << 2 | b >> 3
}

fn modrm(r: u8, b: u8) -> u8 {
    0xc0 | (r & 7) << 3 | (b & 7)
}

/// One instruction at `at`. If `dead` is a register, the instruction reads neither that register nor the flags.
fn instruction((kind, x, y, imm): Choice, at: u64, dead: Option<u8>) -> Instruction {
    let pick = |n: u8| -> u8 {
        let r = POOL[usize::from(n) % POOL.len()];
        if dead == Some(r) { 3 } else { r }
    };
    let (r, b) = (pick(x), pick(y));
    let imm4 = imm.to_le_bytes();
    let rip = |len: u64, target: u64| (target.wrapping_sub(at + len) as u32).to_le_bytes();
    let mut call = false;
    let mut skips = false;
    let flags_live = dead.is_none();
    let bytes = match kind % KINDS {
        0 => vec![rex(r, b), 0x89, modrm(r, b)],
        1 => vec![rex(r, b), [0x01, 0x29, 0x31, 0x09, 0x21][usize::from(imm4[0]) % 5], modrm(r, b)],
        2 if flags_live => vec![rex(r, b), 0x11, modrm(r, b)],
        3 => vec![rex(r, b), 0x8d, 0x40 | (r & 7) << 3 | if b & 7 == 4 { 5 } else { b & 7 }, imm4[0]],
        4 => vec![rex(r, 0), 0x8b, 0x46 | (r & 7) << 3, imm4[0] & 0x78],
        5 => vec![rex(r, 0), 0x89, 0x46 | (r & 7) << 3, imm4[0] & 0x78],
        6 => {
            let [a, b, c, d] = rip(7, SCRATCH + u64::from(imm4[0]));
            vec![rex(r, 0), 0x8b, 0x05 | (r & 7) << 3, a, b, c, d]
        }
        7 => {
            let [a, b, c, d] = rip(8, SCRATCH + u64::from(imm4[0]));
            vec![0x48, 0x83, 0x05, a, b, c, d, imm4[1]]
        }
        8 => {
            let push = if r >= 8 { vec![0x41, 0x50 | (r & 7)] } else { vec![0x50 | r] };
            let pop = if b >= 8 { vec![0x41, 0x58 | (b & 7)] } else { vec![0x58 | b] };
            [push, pop].concat()
        }
        9 if flags_live => vec![0x40 | r >> 3, 0x0f, 0x90 | imm4[0] & 15, 0xc0 | (r & 7)],
        10 if flags_live => {
            skips = true;
            if imm4[1] & 1 == 0 { vec![0x70 | imm4[0] & 15, 0] } else { vec![0x0f, 0x80 | imm4[0] & 15, 0, 0, 0, 0] }
        }
        11 => {
            skips = true;
            vec![0xe3, 0]
        }
        12 => {
            call = true;
            let [a, b, c, d] = rip(5, HELPER);
            vec![0xe8, a, b, c, d]
        }
        13 => {
            call = true;
            vec![0x41, 0xff, 0xd7]
        }
        14 => {
            call = true;
            let [a, b, c, d] = rip(6, HELPER_POINTER);
            vec![0xff, 0x15, a, b, c, d]
        }
        15 => {
            skips = true;
            vec![0xeb, 0]
        }
        16 => vec![rex(0, r), 0xc7, 0xc0 | (r & 7), imm4[0], imm4[1], imm4[2], imm4[3]],
        17 => vec![rex(r, b), 0x0f, 0xaf, modrm(r, b)],
        18 => vec![rex(r, 0), 0x8b, 0x04 | (r & 7) << 3, 0x24],
        19 if flags_live => vec![rex(r, b), 0x0f, 0x40 | imm4[0] & 15, modrm(r, b)],
        20 => vec![0x0f, 0x1f, 0x44, 0x00, 0x00],
        // push rcx; mov eax, getuid; syscall; mov r11d, eax; pop rcx
        21 => vec![0x51, 0xb8, 102, 0, 0, 0, 0x0f, 0x05, 0x41, 0x89, 0xc3, 0x59],
        _ => vec![0x90],
    };
    Instruction { bytes, call, skips }
}

/// Bytes of a function at `function`, and the facts that an analysis would find.
fn build(f: &Function, function: u64) -> (Vec<u8>, Site) {
    let mut bytes = if f.endbr { vec![0xf3, 0x0f, 0x1e, 0xfa] } else { Vec::new() };
    let at = function + bytes.len() as u64;
    let dead = match f.style {
        Style::Live => None,
        Style::Dead(r) => Some(r),
        Style::Loop(_) => Some(0),
    };
    let mut landings = Vec::new();
    let mut skip: Option<usize> = None;
    for choice in &f.body {
        let here = function + bytes.len() as u64;
        if here - at > 60 {
            break;
        }
        let i = instruction(*choice, here, dead);
        if i.bytes.is_empty() {
            continue;
        }
        bytes.extend_from_slice(&i.bytes);
        let end = function + bytes.len() as u64;
        if let Some(displacement) = skip.take() {
            bytes[displacement] = i.bytes.len() as u8;
            landings.push(Svma(end));
        }
        if i.skips {
            let wide = i.bytes.len() == 6;
            skip = Some(bytes.len() - if wide { 4 } else { 1 });
        }
        if i.call {
            landings.push(Svma(end));
        }
    }
    let mut back_branches = Vec::new();
    match f.style {
        Style::Live => {}
        Style::Dead(r) => {
            // The function overwrites the registers that are dead at its entry.
            bytes.extend_from_slice(&[rex(r, 6), 0x8d, 0x46 | (r & 7) << 3, 5][..]);
            let n = bytes.len();
            bytes[n - 4] = rex(r, 0);
            bytes.extend_from_slice(&[0x48, 0x85, 0xf6]);
        }
        Style::Loop(kind) => {
            bytes.extend_from_slice(&[0x8d, 0x46, 0x05]);
            let mut from = function + bytes.len() as u64;
            if kind != LoopKind::Loop {
                bytes.extend_from_slice(&[0xff, 0xc9]);
            }
            let here = function + bytes.len() as u64;
            let target = if f.gap & 1 == 0 { at } else { function };
            let disp8 = |len: u64| (target.wrapping_sub(here + len) as u8).to_le_bytes()[0];
            match kind {
                LoopKind::Short => bytes.extend_from_slice(&[0x75, disp8(2)]),
                LoopKind::ShortWithRange => {
                    bytes.extend_from_slice(&[0x75, disp8(2)]);
                    // The range may include the lea before the branch, unless control can land after the lea.
                    from -= 3;
                    if landings.last().is_some_and(|l| l.0 > from) {
                        from += 3;
                    }
                }
                LoopKind::Long => {
                    bytes.extend_from_slice(&[0x0f, 0x85]);
                    bytes.extend_from_slice(&(target.wrapping_sub(here + 6) as u32).to_le_bytes());
                }
                LoopKind::Loop => bytes.extend_from_slice(&[0xe2, disp8(2)]),
            }
            if kind == LoopKind::Short {
                from = here;
            }
            let until = function + bytes.len() as u64;
            let piece = &bytes[(from - function) as usize..];
            back_branches.push(back_branch(here, from, until, piece));
            bytes.extend_from_slice(&[0x48, 0x85, 0xf6]);
        }
    }
    if let Some(displacement) = skip {
        bytes[displacement] = 0;
        landings.push(Svma(function + bytes.len() as u64));
    }
    bytes.push(0xc3);
    let head = &bytes[(at - function) as usize..];
    let own = head.len().min(64);
    let mut known = head[..own].to_vec();
    let gap = usize::from(f.gap % 8);
    if own == head.len() {
        known.extend(std::iter::repeat_n(0xcc, gap.min(64 - own)));
    }
    landings.sort_unstable();
    let landings = landings.into_iter().filter(|l| l.0 > at && l.0 < at + 64).collect();
    let scratch: Vec<Gpr> = dead.map(Gpr).into_iter().collect();
    let site = Site { function: Svma(function), at: Svma(at), own: own as u8, landings, ..super::site(&known) }
        .free(&scratch, dead.is_some())
        .back(back_branches);
    (bytes, site)
}

/// Lays out functions in an image. Returns its bytes, the sites, and the padding between functions.
pub fn lay_out(functions: &[Function]) -> (Vec<u8>, Vec<Site>, Vec<Padding>) {
    let mut image = vec![0xccu8; functions.len() * SLOT as usize];
    let mut sites = Vec::new();
    let mut paddings = Vec::new();
    for (i, f) in functions.iter().enumerate() {
        // The start is moved by up to three bytes, so that page boundaries divide some entries.
        let start = TEXT + i as u64 * SLOT + u64::from(f.gap >> 4) % 4;
        let (bytes, site) = build(f, start);
        let offset = (start - TEXT) as usize;
        image[offset..offset + bytes.len()].copy_from_slice(&bytes);
        if f.gap & 8 != 0 {
            let end = start + bytes.len() as u64;
            let next = TEXT + (i as u64 + 1) * SLOT;
            paddings.push(padding(end, &vec![0xcc; (next - end) as usize]));
        }
        sites.push(site);
    }
    (image, sites, paddings)
}

/// Weave of these sites, each with one snippet.
pub struct Field {
    pub env: Environment,
    pub arena: Arena,
    pub text: TextSpace,
    pub sites: Vec<Site>,
    pub weave: Weave,
    snippet: Snippet,
    counters: Vec<u32>,
}

impl Field {
    pub fn new(identity: ThreadIdentity, sites: Vec<Site>, paddings: &[Padding]) -> Self {
        Field::with(identity, sites, paddings, super::count())
    }

    /// Weaves `snippet` at every site, each time with another counter.
    pub fn with(identity: ThreadIdentity, sites: Vec<Site>, paddings: &[Padding], snippet: Snippet) -> Self {
        let (mut arena, mut text) = (super::arena(), TextSpace::new());
        text.add_padding(Bias(0), paddings);
        let weave = Weave { plan: PatchPlan::default(), woven: Vec::new() };
        let counters = (0..sites.len() as u32).collect();
        let env = super::environment(identity);
        let mut field = Field { env, arena: arena.clone(), text: text.clone(), sites, weave, snippet, counters };
        field.weave = field
            .with_requests(|requests| weave_points(&env, &mut arena, &mut text, requests))
            .expect("the request makes sense");
        (field.arena, field.text) = (arena, text);
        field.verify(&field.weave).unwrap_or_else(|e| panic!("{e}\n{}", list(&field.weave.plan, &field.weave.woven)));
        field
    }

    fn with_requests<R>(&self, f: impl FnOnce(&[PointRequest<'_>]) -> R) -> R {
        let minis: Vec<_> =
            self.counters.chunks(1).map(|counters| MiniRequest { id: 0, snippet: &self.snippet, counters }).collect();
        let requests: Vec<_> = self
            .sites
            .iter()
            .zip(minis.chunks(1))
            .map(|(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None })
            .collect();
        f(&requests)
    }

    pub fn verify(&self, weave: &Weave) -> Result<(), VerifyError> {
        self.with_requests(|requests| verify_weave(&self.env, &self.arena, &self.text, requests, weave))
    }
}

pub fn functions() -> impl Strategy<Value = Vec<Function>> {
    let style = prop_oneof![
        2 => Just(Style::Live),
        2 => prop_oneof![Just(0u8), Just(11), Just(10), Just(2)].prop_map(Style::Dead),
        2 => prop_oneof![Just(LoopKind::Short), Just(LoopKind::ShortWithRange), Just(LoopKind::Long), Just(LoopKind::Loop)]
            .prop_map(Style::Loop),
    ];
    let body = prop::collection::vec(any::<Choice>(), 0..8);
    let function = (style, any::<bool>(), body, any::<u8>()).prop_map(|(style, endbr, body, gap)| Function {
        style,
        endbr,
        body,
        gap,
    });
    prop::collection::vec(function, 1..100)
}
