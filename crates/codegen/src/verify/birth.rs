//! Accepted forms of the routines that run before and after a fork. The routines copy words between shards by computed addresses, up to
//! limits in memory. Abstract execution could not find out that they write only to the child's own shard.

use ingraft_model::ThreadIdentity;
use ingraft_model::layout::{CHILD_SHARD, CLAIMS, COUNTERS, FIRST_SHARD, HEIRS, OWNER, TOP, birth, header, record};

use super::form::{self, Right, put};
use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

/// Proves the routine at `at`.
pub(super) fn prove(
    interpreter: &mut Interpreter<'_>,
    env: &Environment,
    routine: Routine,
    at: u64,
) -> Result<(), VerifyError> {
    let form = match (routine, env.identity) {
        (_, ThreadIdentity::Locked) => return fail(at, Flaw::Forbidden),
        (Routine::Fork, _) => before(env),
        _ => after(env),
    };
    form::prove(interpreter, &form, at).map(drop)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split("; ")
}

/// Addresses and numbers of the data area that occur in operands.
struct AreaOperands {
    base: u32,
    records: u32,
    rules: u64,
    heirs: u64,
    shards: u32,
    log: u32,
}

impl AreaOperands {
    fn of(env: &Environment) -> Self {
        let data = &env.data;
        AreaOperands {
            base: data.displacement(0),
            records: data.displacement(data.records()),
            rules: data.base.0 + u64::from(birth::RULES) * data.stride,
            heirs: data.base.0 + u64::from(CHILD_SHARD) * data.stride + u64::from(HEIRS),
            shards: data.shards,
            log: data.stride.trailing_zeros(),
        }
    }

    fn at(&self, offset: u32) -> String {
        format!("[{:#x}]", self.base + offset)
    }

    fn own(&self, offset: u32) -> String {
        format!("qword ptr gs:{}", self.at(offset))
    }

    fn claim(&self, shard: &str) -> String {
        format!("qword ptr [{shard}*8+{:#x}]", self.base + CLAIMS)
    }
}

const BEGIN: &str = "push r8; push r9; push r10; push rbx; mov rbx,rax; push rcx; push rdx; push rdi";
const END: &str = "pop rdi; pop rdx; pop rcx; mov rax,rbx; pop rbx; pop r10; pop r9; pop r8; jmp rax";

fn before(env: &Environment) -> Vec<Right> {
    let p = AreaOperands::of(env);
    let (claim, hint, shards) = (p.claim("rcx"), p.at(header::CLAIM_HINT), p.shards);
    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(f, words(BEGIN));
    put(f, [format!("mov rdx,{}", p.own(OWNER)), "bts rdx,0x3f".to_owned()]);
    // Search for a free claim: from the hint on, then from the first shard on.
    put(f, ["mov ecx,0x1".to_owned(), format!("lock xadd dword ptr {hint},ecx"), format!("cmp ecx,{shards:#x}")]);
    f.push(Right::Jump("jae", "reset"));
    put(f, [format!("cmp ecx,{FIRST_SHARD:#x}")]);
    f.push(Right::Jump("jae", "start"));
    f.push(Right::Label("reset"));
    put(f, [format!("mov ecx,{FIRST_SHARD:#x}"), format!("mov dword ptr {hint},{:#x}", FIRST_SHARD + 1)]);
    f.push(Right::Label("start"));
    put(f, [format!("mov edi,{:#x}", shards.saturating_sub(FIRST_SHARD))]);
    f.push(Right::Label("probe"));
    put(f, [format!("cmp {claim},0x0")]);
    f.push(Right::Jump("jne", "occupied"));
    put(f, ["xor eax,eax".to_owned(), format!("lock cmpxchg {claim},rdx")]);
    f.push(Right::Jump("je", "won"));
    f.push(Right::Label("occupied"));
    put(f, ["inc ecx".to_owned(), format!("cmp ecx,{shards:#x}")]);
    f.push(Right::Jump("jb", "more"));
    put(f, [format!("mov ecx,{FIRST_SHARD:#x}")]);
    f.push(Right::Label("more"));
    put(f, ["dec edi"]);
    f.push(Right::Jump("jne", "probe"));
    put(f, [format!("lock inc dword ptr {}", p.at(header::BIRTHS_MISSED))]);
    f.push(Right::Jump("jmp", "done"));

    // Copy the counters up to the end that the rules state, then the records in use.
    f.push(Right::Label("won"));
    put(f, ["mov rdx,rcx".to_owned(), "mov r9,rcx".to_owned(), format!("shl r9,{:#x}", p.log)]);
    put(f, [format!("mov r10,{:#x}", p.rules), format!("mov rdi,qword ptr [r10+{TOP:#x}]")]);
    put(f, [format!("mov ecx,{COUNTERS:#x}")]);
    let mut copy = |from: u32, label: &'static str, end: &'static str| {
        f.push(Right::Label(label));
        put(f, ["cmp rcx,rdi"]);
        f.push(Right::Jump("jae", end));
        put(f, [format!("mov rax,qword ptr gs:[rcx+{from:#x}]"), format!("mov qword ptr [r9+rcx+{from:#x}],rax")]);
        put(f, ["add rcx,0x8"]);
        f.push(Right::Jump("jmp", label));
        f.push(Right::Label(end));
        if label == "counters" {
            put(f, [format!("mov rdi,{}", p.own(TOP)), format!("cmp rdi,{:#x}", record::ROOM)]);
            f.push(Right::Jump("jbe", "right"));
            put(f, ["xor edi,edi"]);
            f.push(Right::Label("right"));
            put(f, [format!("mov qword ptr [r9+{:#x}],rdi", p.base + TOP)]);
            put(f, ["xor ecx,ecx"]);
        }
    };
    copy(p.base, "counters", "copied");
    copy(p.records, "records", "whole");
    put(f, [format!("mov qword ptr [r9+{:#x}],0x0", p.base + env.data.readings_open())]);
    put(f, ["rdgsbase r8".to_owned(), format!("shr r8,{:#x}", p.log - 4), "rdfsbase rax".to_owned()]);
    put(f, [format!("mov qword ptr [r8+{:#x}],rax", p.heirs), format!("mov qword ptr [r8+{:#x}],rdx", p.heirs + 8)]);
    f.push(Right::Label("done"));
    put(f, words(END));
    form
}

fn after(env: &Environment) -> Vec<Right> {
    let p = AreaOperands::of(env);
    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(f, words(BEGIN));
    put(f, ["rdgsbase r9".to_owned(), format!("shr r9,{:#x}", p.log)]);
    put(f, words("mov rdi,r9; shl rdi,0x4"));
    put(f, [format!("mov eax,dword ptr [rdi+{:#x}]", p.heirs + 8), "test eax,eax".to_owned()]);
    f.push(Right::Jump("je", "child"));
    put(f, [format!("mov qword ptr [rdi+{:#x}],0x0", p.heirs + 8), "test ecx,ecx".to_owned()]);
    f.push(Right::Jump("jns", "done"));
    put(f, words("mov ecx,0x1; shl rcx,0x3e"));
    put(f, [format!("mov {},rcx", p.claim("rax"))]);
    f.push(Right::Jump("jmp", "done"));

    f.push(Right::Label("child"));
    put(f, [format!("bt {},0x3f", p.claim("r9"))]);
    f.push(Right::Jump("jae", "done"));
    put(f, [format!("mov r10,{:#x}", p.rules), format!("mov rdi,qword ptr [r10+{TOP:#x}]")]);
    put(f, [format!("mov ecx,{COUNTERS:#x}")]);
    f.push(Right::Label("counters"));
    put(f, ["cmp rcx,rdi"]);
    f.push(Right::Jump("jae", "records"));
    put(f, words("mov rax,qword ptr [r10+rcx]; cmp rax,0x1"));
    f.push(Right::Jump("je", "next"));
    put(f, words("xor r8d,r8d; cmp rax,0x2"));
    f.push(Right::Jump("jb", "store"));
    put(f, ["cmp rax,0x3"]);
    f.push(Right::Jump("ja", "store"));
    put(f, [format!("cmp qword ptr gs:[rcx+{:#x}],0x0", p.base - 8)]);
    f.push(Right::Jump("jle", "store"));
    put(f, words("mov r8,0xffffffffffffffff; cmp rax,0x3"));
    f.push(Right::Jump("je", "store"));
    put(f, words("mov r8,rdx; neg r8"));
    f.push(Right::Label("store"));
    put(f, [format!("mov qword ptr gs:[rcx+{:#x}],r8", p.base)]);
    f.push(Right::Label("next"));
    put(f, ["add rcx,0x8"]);
    f.push(Right::Jump("jmp", "counters"));

    // Change all records except the first one, which belongs to no call.
    f.push(Right::Label("records"));
    put(f, [format!("mov rcx,{}", p.own(TOP))]);
    f.push(Right::Label("each"));
    put(f, words("sub rcx,0x40; cmp rcx,0x40"));
    f.push(Right::Jump("jl", "finish"));
    put(f, [format!("mov eax,dword ptr gs:[rcx+{:#x}]", p.records + record::NAME)]);
    put(f, ["mov rax,qword ptr [r10+rax]"]);
    let labels = [("wall 0", "cpu 0"), ("wall 1", "cpu 1"), ("wall 2", "cpu 2"), ("wall 3", "cpu 3")];
    const { assert!(birth::KEPT_TIMES == 4) };
    for (n, (wall, cpu)) in (0..).zip(labels) {
        let kept = format!("qword ptr gs:[rcx+{:#x}]", p.records + record::KEPT + 8 * n);
        put(f, [format!("bt eax,{:#x}", birth::KEPT_WALL + n)]);
        f.push(Right::Jump("jae", wall));
        put(f, [format!("mov {kept},rdx")]);
        f.push(Right::Label(wall));
        put(f, [format!("bt eax,{:#x}", birth::KEPT_CPU + n)]);
        f.push(Right::Jump("jae", cpu));
        put(f, [format!("mov {kept},0x0")]);
        f.push(Right::Label(cpu));
    }
    put(f, [format!("bt eax,{:#x}", birth::SAVED_TIME)]);
    f.push(Right::Jump("jae", "each"));
    put(f, [format!("mov qword ptr gs:[rcx+{:#x}],0x0", p.records + record::SAVED)]);
    f.push(Right::Jump("jmp", "each"));
    f.push(Right::Label("finish"));
    put(f, [format!("mov qword ptr gs:[{:#x}],0x1", p.records + birth::BORN)]);
    put(f, [record::SPENT, record::SPENT + 8].map(|at| format!("mov qword ptr gs:[{:#x}],0x0", p.records + at)));
    put(f, [format!("mov rax,{}", p.own(OWNER)), format!("mov {},rax", p.claim("r9"))]);
    f.push(Right::Label("done"));
    put(f, words(END));
    form
}

#[cfg(test)]
mod tests {
    use ingraft_model::histogram::Scale;
    use ingraft_model::patch::ArenaCode;
    use ingraft_model::{Avma, CpuClock, DataArea, WallClock};

    use super::*;
    use crate::code::arena::Arena;
    use crate::code::environment::Readable;
    use crate::snippet::routines::assemble;
    use crate::verify::interpreter::PlanFacts;
    use crate::verify::memory::Memory;

    const AT: Avma = Avma(0x80_0000);

    fn is_right(env: &Environment, routine: Routine, bytes: &[u8]) -> bool {
        let arena = Arena::new(AT..AT.offset(0x1000));
        let code = [ArenaCode { at: AT, bytes: bytes.to_vec() }];
        let memory = Memory::new(&code, &arena.range()).expect("one piece");
        let facts = PlanFacts::new(env, &arena, &memory, std::iter::empty());
        Interpreter::new(&facts).routine(AT.0, routine).is_ok()
    }

    #[test]
    fn both_routines_are_right_and_no_other_bits_are() {
        let data = DataArea { base: Avma(0x1000_0000), stride: 1 << 20, shards: 4096, journal_bytes: 1 << 20 };
        let env = Environment {
            data,
            identity: ThreadIdentity::FsOffset(0x2d0),
            shadow_stack: false,
            wall: WallClock::Tsc,
            ticks: Scale { mult: 1, shift: 0 },
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine: None,
            readable: Readable::default(),
        };
        let listing = |bytes: &[u8]| -> Vec<String> {
            let decoder = iced_x86::Decoder::with_ip(64, bytes, AT.0, iced_x86::DecoderOptions::NONE);
            decoder.into_iter().map(|i| i.to_string()).collect()
        };
        for routine in [Routine::Fork, Routine::Forked] {
            let bytes = assemble(&env, routine).expect("assembles");
            let right = listing(&bytes);
            assert!(is_right(&env, routine, &bytes), "{routine:?}\n{}", right.join("\n"));
            for bit in 0..8 * bytes.len() {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_right(&env, routine, &other) || listing(&other) == right, "{routine:?}, bit {bit}");
            }
        }
    }
}
