//! Accepted form of the slow routine. The routine assigns shards to threads, and walks along the snippets of any point by addresses that
//! it computes. Abstract execution could prove neither.

use iced_x86::Register;
use ingraft_model::ThreadIdentity;
use ingraft_model::layout::{CALL_SP, CALLING, CHILD_SHARD, CLAIMS, FIRST_SHARD, HEIRS, OWNER, header};

use super::form::{self, Right, put};
use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};
use crate::code::arena::SlowRoutine;
use crate::code::environment::Environment;
use crate::snippet::slot::{LEN, NOP, OPCODE};
use crate::snippet::slow::{COUNT, MARKER};

/// Proves the routine for the register with the number `r`.
pub(super) fn prove(
    interpreter: &mut Interpreter<'_>,
    env: &Environment,
    r: u8,
    routine: &SlowRoutine,
) -> Result<(), VerifyError> {
    let r = Register::RAX + u32::from(r);
    let own = RegisterNames::of(r);
    if form::prove(interpreter, &claim(env, &own), routine.range.start.0)? != routine.walk.0 {
        return fail(routine.walk.0, Flaw::Astray);
    }
    form::prove(interpreter, &chain(r), routine.walk.0).map(drop)
}

/// Names of the registers that a routine uses.
struct RegisterNames {
    /// Register with the slot's address on entry, and with the resume address at the end.
    r: String,
    /// Register with a shard's number or offset.
    k: [String; 2],
    /// Register with the thread's identity.
    id: [String; 2],
    n: [String; 2],
    /// Register with the slot's address in between, because `cmpxchg` needs rax.
    slot: String,
    /// Saved registers, in the order of the pushes.
    saved: [String; 4],
}

fn name(r: Register) -> String {
    format!("{r:?}").to_lowercase()
}

impl RegisterNames {
    fn of(r: Register) -> Self {
        let all = [Register::RCX, Register::RDX, Register::RSI, Register::RDI];
        let mut spare = all.into_iter().filter(|s| *s != r);
        let mut next = || spare.next().map_or_else(Default::default, |r| [name(r), name(r.full_register32())]);
        let (k, id, n) = (next(), next(), next());
        let slot = if r == Register::RAX { next()[0].clone() } else { name(r) };
        let first = if r == Register::RAX { slot.clone() } else { name(Register::RAX) };
        let saved = [first, k[0].clone(), id[0].clone(), n[0].clone()];
        RegisterNames { r: name(r), k, id, n, slot, saved }
    }

    /// Restores all registers.
    fn restore(&self, f: &mut Vec<Right>) {
        if self.r == "rax" {
            put(f, [format!("mov rax,{}", self.slot)]);
        }
        put(f, self.saved.iter().rev().map(|saved| format!("pop {saved}")));
    }

    fn leave(&self, f: &mut Vec<Right>) {
        self.restore(f);
        put(f, [format!("jmp {}", self.r)]);
    }
}

/// First part of the routine: a thread without a shard claims one. If that is impossible, control continues along the chain, or after it.
#[expect(clippy::too_many_lines, reason = "a listing of assembly code")]
fn claim(env: &Environment, own: &RegisterNames) -> Vec<Right> {
    let data = &env.data;
    let RegisterNames { r, k: [k, k_half], id: [id, id_half], n: [n, n_half], slot, saved } = own;
    let (shards, last) = (data.shards, data.stride - 1);
    let all = data.stride * u64::from(data.shards);
    let place = |word: u32| format!("[{:#x}]", data.displacement(word));
    let (hint, alive) = (place(header::CLAIM_HINT), format!("[{:#x}]", data.alive()));
    let child = u64::from(data.displacement(OWNER)) + u64::from(CHILD_SHARD) * data.stride;
    let claim = format!("qword ptr [{k}*8+{:#x}]", data.displacement(CLAIMS));

    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(f, saved.iter().map(|saved| format!("push {saved}")));
    if r == "rax" {
        put(f, [format!("mov {slot},rax")]);
    }
    // The gs base is not that of a shard: it is not a multiple of the stride, or it lies beyond the last shard.
    put(f, [format!("rdgsbase {k}"), format!("test {k_half},{last:#x}")]);
    f.push(Right::Jump("jne", "foreign"));
    put(f, [format!("mov {n},{all:#x}"), format!("cmp {k},{n}")]);
    f.push(Right::Jump("jae", "foreign"));
    put(
        f,
        [match env.identity {
            ThreadIdentity::FsOffset(offset) => format!("mov {id_half},dword ptr fs:[{offset:#x}]"),
            ThreadIdentity::FsBase | ThreadIdentity::Locked => format!("rdfsbase {id}"),
        }],
    );
    put(f, [format!("cmp dword ptr {alive},0x0")]);
    f.push(Right::Jump("je", "child"));
    put(f, [format!("test {id},{id}")]);
    f.push(Right::Jump("je", "locked"));

    // The shard that the forking thread has prepared for its child.
    let heirs = data.base.0 + u64::from(CHILD_SHARD) * data.stride + u64::from(HEIRS);
    put(f, [format!("mov {n},{k}"), format!("shr {n},{:#x}", data.stride.trailing_zeros().saturating_sub(4))]);
    put(f, [format!("cmp dword ptr [{n}+{:#x}],0x0", heirs + 8)]);
    f.push(Right::Jump("je", "fresh"));
    put(f, [format!("rdfsbase {k}"), format!("cmp {k},qword ptr [{n}+{heirs:#x}]")]);
    f.push(Right::Jump("jne", "fresh"));
    put(f, [format!("mov {k_half},dword ptr [{n}+{:#x}]", heirs + 8)]);
    put(f, [format!("mov qword ptr [{n}+{:#x}],0x0", heirs + 8), format!("mov {n},{id}")]);
    put(f, [format!("bts {n},0x3f"), format!("mov {claim},{n}")]);
    f.push(Right::Jump("jmp", "won"));
    f.push(Right::Label("fresh"));

    // Search for a free claim: from the hint on, then from the first shard on.
    put(
        f,
        [
            format!("mov {k_half},0x1"),
            format!("lock xadd dword ptr {hint},{k_half}"),
            format!("cmp {k_half},{shards:#x}"),
        ],
    );
    f.push(Right::Jump("jae", "reset"));
    put(f, [format!("cmp {k_half},{FIRST_SHARD:#x}")]);
    f.push(Right::Jump("jae", "start"));
    f.push(Right::Label("reset"));
    put(f, [format!("mov {k_half},{FIRST_SHARD:#x}"), format!("mov dword ptr {hint},{:#x}", FIRST_SHARD + 1)]);
    f.push(Right::Label("start"));
    put(f, [format!("mov {n_half},{:#x}", shards.saturating_sub(FIRST_SHARD))]);
    f.push(Right::Label("probe"));
    put(f, [format!("cmp {claim},0x0")]);
    f.push(Right::Jump("jne", "occupied"));
    put(f, ["xor eax,eax".to_owned(), format!("lock cmpxchg {claim},{id}")]);
    f.push(Right::Jump("je", "won"));
    f.push(Right::Label("occupied"));
    put(f, [format!("inc {k_half}"), format!("cmp {k_half},{shards:#x}")]);
    f.push(Right::Jump("jb", "more"));
    put(f, [format!("mov {k_half},{FIRST_SHARD:#x}")]);
    f.push(Right::Label("more"));
    put(f, [format!("dec {n_half}")]);
    f.push(Right::Jump("jne", "probe"));
    put(f, [format!("lock inc dword ptr {}", place(header::EXHAUSTED))]);
    f.push(Right::Jump("jmp", "locked"));

    f.push(Right::Label("won"));
    put(f, [format!("shl {k},{:#x}", data.stride.trailing_zeros())]);
    put(f, [format!("mov qword ptr [{k}+{:#x}],{id}", data.displacement(OWNER)), format!("wrgsbase {k}")]);
    f.push(Right::Label("resume"));
    own.leave(f);

    f.push(Right::Label("foreign"));
    put(f, [format!("cmp dword ptr {alive},0x0")]);
    f.push(Right::Jump("je", "skip"));
    // The thread is inside a call that a snippet has made, unless the stack pointer shows that the thread has left the call.
    put(f, [format!("mov {n_half},{k_half}"), format!("and {n_half},{last:#x}"), format!("cmp {n_half},{CALLING:#x}")]);
    f.push(Right::Jump("jne", "locked"));
    put(f, [format!("mov {n},{all:#x}"), format!("cmp {k},{n}")]);
    f.push(Right::Jump("jae", "locked"));
    put(f, [format!("cmp rsp,qword ptr [{k}+{:#x}]", data.displacement(CALL_SP - CALLING))]);
    f.push(Right::Jump("jb", "skip"));
    put(f, [format!("lock inc dword ptr {}", place(header::CALLS_LEFT))]);
    put(f, [format!("sub {k},{CALLING:#x}"), format!("wrgsbase {k}")]);
    f.push(Right::Jump("jmp", "resume"));
    // Continue after the slot; if the slot is no count, continue after its snippets.
    f.push(Right::Label("skip"));
    put(f, [format!("cmp dword ptr [{slot}],{:#x}", first_word(&COUNT))]);
    f.push(Right::Jump("je", "bare"));
    put(f, [format!("movsxd {n},dword ptr [{slot}+{OPCODE:#x}]"), format!("add {slot},{n}")]);
    f.push(Right::Label("bare"));
    put(f, [format!("add {slot},{LEN:#x}")]);
    f.push(Right::Jump("jmp", "resume"));

    f.push(Right::Label("child"));
    put(f, [format!("cmp qword ptr [{child:#x}],0x0")]);
    f.push(Right::Jump("jne", "known"));
    put(f, [format!("mov {k_half},0x1"), format!("lock xadd dword ptr {},{k_half}", place(header::CHILDREN_COUNT))]);
    put(f, [format!("cmp {k_half},{:#x}", header::CHILDREN_MAX)]);
    f.push(Right::Jump("jae", "full"));
    let entry = format!("dword ptr [{k}*4+{:#x}]", data.displacement(header::CHILDREN));
    put(
        f,
        [match env.identity {
            ThreadIdentity::FsOffset(_) => format!("mov {entry},{id_half}"),
            ThreadIdentity::FsBase | ThreadIdentity::Locked => format!("mov {entry},0x0"),
        }],
    );
    f.push(Right::Label("full"));
    put(f, [format!("mov qword ptr [{child:#x}],{id}")]);
    f.push(Right::Label("known"));
    put(f, [format!("mov {k_half},{:#x}", u64::from(CHILD_SHARD) * data.stride), format!("wrgsbase {k}")]);
    f.push(Right::Jump("jmp", "resume"));

    f.push(Right::Label("locked"));
    own.restore(f);
    form
}

/// Second part of the routine, from the slot or link at `r` on: it counts in shard 0, enters the twin of a compiled snippet, and otherwise
/// continues at the next address.
fn chain(r: Register) -> Vec<Right> {
    let w = if r == Register::R11 { Register::R10 } else { Register::R11 };
    let (r, half, w) = (name(r), name(w.full_register32()), name(w));
    let is_count = format!("cmp dword ptr [{r}],{:#x}", first_word(&COUNT));
    let counts = [format!("mov {half},dword ptr [{r}+0x5]"), format!("lock inc qword ptr [{w}]")];

    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(f, [format!("push {w}"), is_count.clone()]);
    f.push(Right::Jump("je", "only"));
    f.push(Right::Label("follow"));
    put(f, [format!("cmp byte ptr [{r}],0xe9")]);
    f.push(Right::Jump("jne", "past"));
    put(f, [format!("movsxd {w},dword ptr [{r}+0x1]"), format!("lea {r},[{r}+{w}+0x5]")]);
    f.push(Right::Jump("jmp", "arrived"));
    // A nop of five bytes or of nine.
    f.push(Right::Label("past"));
    put(f, [format!("cmp byte ptr [{r}],{:#x}", NOP[0]), format!("lea {r},[{r}+0x5]")]);
    f.push(Right::Jump("jne", "arrived"));
    put(f, [format!("add {r},0x4")]);
    f.push(Right::Label("arrived"));
    put(f, [is_count]);
    f.push(Right::Jump("jne", "other"));
    put(f, counts.clone());
    put(f, [format!("add {r},0x9")]);
    f.push(Right::Jump("jmp", "follow"));
    f.push(Right::Label("other"));
    put(f, [format!("cmp dword ptr [{r}],{:#x}", first_word(&MARKER))]);
    f.push(Right::Jump("jne", "done"));
    put(f, [format!("movsxd {w},dword ptr [{r}+0x4]"), format!("lea {r},[{r}+{w}+0x8]")]);
    f.push(Right::Label("done"));
    put(f, [format!("pop {w}"), format!("jmp {r}")]);
    f.push(Right::Label("only"));
    put(f, counts);
    put(f, [format!("add {r},0x9")]);
    f.push(Right::Jump("jmp", "done"));
    form
}

fn first_word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use ingraft_model::histogram::Scale;
    use ingraft_model::patch::ArenaCode;
    use ingraft_model::{Avma, CpuClock, DataArea, Gpr, WallClock};

    use super::*;
    use crate::code::arena::Arena;
    use crate::code::environment::Readable;
    use crate::snippet::slow::assemble;
    use crate::verify::interpreter::PlanFacts;
    use crate::verify::memory::Memory;

    const AT: Avma = Avma(0x80_0000);

    fn environment(identity: ThreadIdentity, shards: u32) -> Environment {
        let data = DataArea { base: Avma(0x1000_0000), stride: 1 << 20, shards, journal_bytes: 1 << 20 };
        Environment {
            data,
            identity,
            shadow_stack: false,
            wall: WallClock::Tsc,
            ticks: Scale { mult: 1, shift: 0 },
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine: None,
            readable: Readable::default(),
        }
    }

    /// Whether the bytes are an accepted routine for `r` with its second entry at `second`.
    fn is_right(env: &Environment, r: u8, bytes: &[u8], second: Avma) -> bool {
        let arena = Arena::new(AT..AT.offset(0x1000));
        let code = [ArenaCode { at: AT, bytes: bytes.to_vec() }];
        let memory = Memory::new(&code, &arena.range()).expect("one piece");
        let facts = PlanFacts::new(env, &arena, &memory, std::iter::empty());
        let routine = SlowRoutine { range: AT..AT.offset(bytes.len() as i64), walk: second };
        Interpreter::new(&facts).slow_routine(r, &routine).is_ok()
    }

    #[test]
    fn every_register_has_its_routine() {
        for identity in [ThreadIdentity::FsOffset(0x2d0), ThreadIdentity::FsBase] {
            for (r, shards) in (0..16).filter(|r| *r != 4).flat_map(|r| [64, 4096].map(|shards| (r, shards))) {
                let env = environment(identity, shards);
                let code = assemble(&env, Gpr(r)).expect("assembles");
                let second = AT.offset(code.second as i64);
                assert!(is_right(&env, r, &code.bytes, second), "{identity:?} {r} {shards}");
                assert!(!is_right(&env, r, &code.bytes, second.offset(1)), "{identity:?} {r} {shards}");
                assert!(!is_right(&env, (r + 5) % 16, &code.bytes, second), "{identity:?} {r} {shards}");
            }
        }
    }

    #[test]
    fn no_other_bits_are_right() {
        for r in [0, 2, 11] {
            let env = environment(ThreadIdentity::FsOffset(0x2d0), 4096);
            let code = assemble(&env, Gpr(r)).expect("assembles");
            let right = listing(&code.bytes);
            for bit in 0..8 * code.bytes.len() {
                let mut bytes = code.bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                // Some bits of an encoding have no effect.
                let found = !is_right(&env, r, &bytes, AT.offset(code.second as i64));
                assert!(found || listing(&bytes) == right, "r{r}, bit {bit}");
            }
        }
    }

    fn listing(bytes: &[u8]) -> Vec<String> {
        let decoder = iced_x86::Decoder::with_ip(64, bytes, AT.0, iced_x86::DecoderOptions::NONE);
        decoder.into_iter().map(|i| i.to_string()).collect()
    }
}
