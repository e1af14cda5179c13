//! Accepted forms of the routines for the records of goroutines. The routines follow lists, and exchange the head of the list of unused
//! records with other threads. Abstract execution could not find out that every number in these lists is that of a record.

use ingraft_model::ThreadIdentity;
use ingraft_model::layout::goroutine::{
    FREE, MULTIPLIER, PLACE, PLACE_BITS, PLACES, PROBES, RECORDS, RECORDS_MAX, SHARD, STACK, USED,
};
use ingraft_model::layout::{TOP, record};

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
    let Some(pointer) = env.goroutine.filter(|_| env.identity != ThreadIdentity::Locked) else {
        return fail(at, Flaw::Forbidden);
    };
    let mut listing = FormBuilder::of(env, pointer);
    if routine == Routine::Park {
        listing.park();
    } else if routine == Routine::Fetch {
        listing.fetch();
    } else {
        listing.prune();
    }
    form::prove(interpreter, &listing.form, at).map(drop)
}

const BEGIN: &str = "push r8; push r9; push r10; push rbx; mov rbx,rax; push rdx; push rsi; push rdi";
const END: &str = "pop rdi; pop rsi; pop rdx; mov rax,rbx; pop rbx; pop r10; pop r9; pop r8; jmp rax";
/// Fields of the record at r9.
const KEY: &str = "qword ptr [r9]";
const NAME: &str = "dword ptr [r9+0x8]";
const RESTORE: &str = "dword ptr [r9+0xc]";
const NEXT: &str = "qword ptr [r9+0x10]";
const _: () = assert!(record::SP == 0 && record::NAME == 8 && record::RESTORE == 12 && record::SAVED == 16);
const _: () = assert!(record::SIZE == 1 << 6 && record::HANDED == 4 && STACK == 0 && PLACE == 1 << 4);

/// Form under construction, and the addresses that occur in its operands.
struct FormBuilder {
    form: Vec<Right>,
    pointer: u64,
    alive: u32,
    base: u32,
    records: u32,
    top: String,
    lists: u64,
}

impl FormBuilder {
    fn of(env: &Environment, pointer: i32) -> Self {
        let data = &env.data;
        FormBuilder {
            form: Vec::new(),
            pointer: i64::from(pointer).cast_unsigned(),
            alive: data.alive(),
            base: data.displacement(0),
            records: data.displacement(data.records()),
            top: format!("qword ptr gs:[{:#x}]", data.displacement(TOP)),
            lists: data.base.0 + u64::from(SHARD) * data.stride,
        }
    }

    fn put(&mut self, text: &str) {
        put(&mut self.form, text.split("; "));
    }

    fn jump(&mut self, mnemonic: &'static str, to: &'static str) {
        self.form.push(Right::Jump(mnemonic, to));
    }

    fn label(&mut self, name: &'static str) {
        self.form.push(Right::Label(name));
    }

    /// The top of the thread's records in rcx; creates the first record.
    fn load_top(&mut self) {
        let (top, records) = (self.top.clone(), self.records);
        self.put(&format!("mov rcx,{top}; test ecx,ecx"));
        self.jump("jne", "used");
        self.put(&format!("mov qword ptr gs:[{records:#x}],0xffffffffffffffff"));
        self.put(&format!("mov qword ptr gs:[{:#x}],0x0; mov {top},0x40; mov ecx,0x40", records + record::NAME));
        self.label("used");
    }

    /// The place of the goroutine in r8, the shard with the lists in r10, the key of the call in rdx.
    fn goroutine(&mut self, none: &'static str) {
        self.put(&format!("cmp dword ptr [{:#x}],0x0", self.alive));
        self.jump("je", none);
        self.put("rdfsbase rax; test rax,rax");
        self.jump("je", none);
        self.put(&format!("mov rax,qword ptr fs:[{:#x}]; test rax,rax", self.pointer));
        self.jump("je", none);
        // The call is on the goroutine's stack.
        self.put("mov r9,qword ptr [rax+0x8]; cmp rdx,r9");
        self.jump("jae", none);
        self.put("cmp rdx,qword ptr [rax]");
        self.jump("jb", none);
        self.put(&format!("sub rdx,r9; mov r10,{:#x}; mov r9,{MULTIPLIER:#x}; imul r9,rax", self.lists));
        self.put(&format!("shr r9,{:#x}; shl r9,0x4; lea r8,[r10+r9+{PLACES:#x}]", u64::BITS - PLACE_BITS));
        self.put(&format!("mov esi,{PROBES:#x}"));
        self.label("probe");
        self.put("cmp qword ptr [r8],rax");
        self.jump("je", "found");
        self.put("cmp qword ptr [r8],0x0");
        self.jump("jne", "next");
        self.put("mov r9,rax; xor eax,eax; lock cmpxchg qword ptr [r8],r9; mov rax,r9");
        self.jump("je", "found");
        self.label("next");
        self.put("add r8,0x10; dec esi");
        self.jump("jne", "probe");
        self.jump("jmp", none);
        self.label("found");
    }

    /// The address of record rsi in r9.
    fn locate(&mut self) {
        self.put(&format!("mov r9,rsi; shl r9,0x6; lea r9,[r10+r9+{RECORDS:#x}]"));
    }

    fn last_of_goroutine(&mut self, none: &'static str) {
        self.put("mov esi,dword ptr [r8+0x8]; test esi,esi");
        self.jump("je", none);
        self.locate();
    }

    /// Record rsi, at r9, becomes the first unused one.
    fn give_back(&mut self, again: &'static str) {
        self.put(&format!("mov rax,qword ptr [r10+{FREE:#x}]"));
        self.label(again);
        self.put(&format!("mov edi,eax; mov {NEXT},rdi"));
        self.put("mov rdi,rax; shr rdi,0x20; inc edi; shl rdi,0x20; or rdi,rsi");
        self.put(&format!("lock cmpxchg qword ptr [r10+{FREE:#x}],rdi"));
        self.jump("jne", again);
    }

    /// The first unused record, or one that was never used: number in rsi, address in r9.
    fn take(&mut self, none: &'static str) {
        self.put(&format!("mov rax,qword ptr [r10+{FREE:#x}]"));
        self.label("again");
        self.put("mov esi,eax; test esi,esi");
        self.jump("je", "fresh");
        self.locate();
        self.put(&format!("mov rdi,rax; shr rdi,0x20; inc edi; shl rdi,0x20; or rdi,{NEXT}"));
        self.put(&format!("lock cmpxchg qword ptr [r10+{FREE:#x}],rdi"));
        self.jump("jne", "again");
        self.jump("jmp", "taken");
        self.label("fresh");
        self.put(&format!("cmp dword ptr [r10+{USED:#x}],{RECORDS_MAX:#x}"));
        self.jump("jae", none);
        self.put(&format!("mov esi,0x1; lock xadd dword ptr [r10+{USED:#x}],esi; inc esi; cmp esi,{RECORDS_MAX:#x}"));
        self.jump("ja", none);
        self.locate();
        self.label("taken");
    }

    /// Counts the call of the goroutine's last record as left, and removes the record.
    fn drop_stale(&mut self, again: &'static str) {
        self.put(&format!("mov eax,{NAME}; test eax,eax"));
        self.jump("je", "counted");
        self.put(&format!("inc qword ptr gs:[rax+{:#x}]", self.base));
        self.label("counted");
        self.put(&format!("mov rax,{NEXT}; mov qword ptr [r8+0x8],rax"));
        self.give_back(again);
    }

    /// The words of a record other than its key and its link: of the thread's record with `shift` bytes from the top, and of that at r9.
    fn words(&self, shift: u32) -> Vec<(String, String)> {
        let kept = (0..record::KEPT_MAX).map(|n| record::KEPT + 8 * n);
        let fields = std::iter::once(record::NAME).chain(kept);
        let own = |field| format!("qword ptr gs:[rcx+{:#x}]", self.records + field - shift);
        fields.map(|field| (own(field), format!("qword ptr [r9+{field:#x}]"))).collect()
    }

    fn prune(&mut self) {
        self.put(BEGIN);
        self.load_top();
        self.goroutine("done");
        self.label("look");
        self.last_of_goroutine("done");
        self.put(&format!("cmp {KEY},rdx"));
        self.jump("ja", "done");
        self.jump("je", "own");
        self.label("left");
        self.drop_stale("again");
        self.jump("jmp", "look");
        self.label("own");
        self.put(&format!("test {RESTORE},0x4"));
        self.jump("je", "left");
        self.label("unmark");
        self.put(&format!("and {RESTORE},0xfffffffb; mov rsi,{NEXT}; test rsi,rsi"));
        self.jump("je", "done");
        self.locate();
        self.put(&format!("cmp {KEY},rdx"));
        self.jump("jne", "done");
        self.put(&format!("test {RESTORE},0x4"));
        self.jump("jne", "unmark");
        self.label("done");
        self.put(&format!("mov rcx,{}", self.top));
        self.put(END);
    }

    fn park(&mut self) {
        self.put(BEGIN);
        self.goroutine("none");
        self.take("none");
        self.put(&format!("mov rcx,{}; mov {KEY},rdx", self.top));
        for (own, parked) in self.words(record::SIZE) {
            self.put(&format!("mov rax,{own}; mov {parked},rax"));
        }
        self.put(&format!("mov rax,qword ptr [r8+0x8]; mov {NEXT},rax; mov qword ptr [r8+0x8],rsi"));
        self.jump("jmp", "done");
        self.label("none");
        self.put(&format!("mov rcx,{}", self.top));
        self.put(&format!("mov eax,dword ptr gs:[rcx+{:#x}]", self.records + record::NAME - record::SIZE));
        self.put(&format!("inc qword ptr gs:[rax+{:#x}]", self.base + 16));
        self.label("done");
        self.put(&format!("sub {top},0x40; mov rcx,{top}", top = self.top));
        self.put(END);
    }

    fn fetch(&mut self) {
        self.put(BEGIN);
        self.put("push rcx");
        self.load_top();
        self.put(&format!("cmp ecx,{:#x}", record::ROOM));
        self.jump("jae", "none");
        self.goroutine("none");
        self.label("look");
        self.last_of_goroutine("none");
        self.put(&format!("cmp {KEY},rdx"));
        self.jump("jae", "level");
        self.drop_stale("again");
        self.jump("jmp", "look");
        self.label("level");
        self.put("lea rdi,[r8+0x8]");
        self.label("walk");
        self.put(&format!("cmp {KEY},rdx"));
        self.jump("jne", "none");
        self.put(&format!("mov eax,{NAME}; cmp rax,qword ptr [rsp]"));
        self.jump("je", "hit");
        self.put("lea rdi,[r9+0x10]; mov rsi,qword ptr [rdi]; test rsi,rsi");
        self.jump("je", "none");
        self.locate();
        self.jump("jmp", "walk");
        self.label("hit");
        self.put(&format!("mov rax,{NEXT}; mov qword ptr [rdi],rax; mov rcx,{}", self.top));
        let unused = format!("mov qword ptr gs:[rcx+{:#x}],0xffffffffffffffff", self.records);
        self.put(&format!("{unused}; add {},0x40; {unused}", self.top));
        for (own, parked) in self.words(0) {
            self.put(&format!("mov rax,{parked}; mov {own},rax"));
        }
        self.give_back("back");
        self.put(&format!("mov rcx,{}", self.top));
        self.jump("jmp", "done");
        self.label("none");
        self.put("xor ecx,ecx");
        self.label("done");
        self.put("pop rdi");
        self.put(END);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};
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

    fn environment(identity: ThreadIdentity, goroutine: Option<i32>) -> Environment {
        Environment {
            data: DataArea { base: Avma(0x1000_0000), stride: 1 << 24, shards: 64, journal_bytes: 1 << 20 },
            identity,
            shadow_stack: false,
            wall: WallClock::Tsc,
            ticks: Scale { mult: 1, shift: 0 },
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine,
            readable: Readable::default(),
        }
    }

    fn is_right(env: &Environment, routine: Routine, bytes: &[u8]) -> bool {
        let code = [ArenaCode { at: AT, bytes: bytes.to_vec() }];
        let range = AT..AT.offset(0x1000);
        let (arena, memory) = (Arena::new(range.clone()), Memory::new(&code, &range).unwrap());
        let facts = PlanFacts::new(env, &arena, &memory, std::iter::empty());
        prove(&mut Interpreter::new(&facts), env, routine, AT.0).is_ok()
    }

    fn text(bytes: &[u8]) -> Vec<(u64, String)> {
        let decoder = Decoder::with_ip(64, bytes, AT.0, DecoderOptions::NONE);
        decoder.into_iter().map(|i| (i.ip(), i.to_string())).collect()
    }

    #[test]
    fn only_the_one_form_is_accepted() {
        let env = environment(ThreadIdentity::FsBase, Some(-8));
        let other = environment(ThreadIdentity::FsBase, Some(-16));
        let locked = environment(ThreadIdentity::Locked, Some(-8));
        for routine in [Routine::PruneGoroutine, Routine::Park, Routine::Fetch] {
            let bytes = assemble(&env, routine).unwrap();
            assert!(is_right(&env, routine, &bytes), "{routine:?}");
            assert!(!is_right(&other, routine, &bytes) && !is_right(&locked, routine, &bytes));
            assert!(!is_right(&environment(ThreadIdentity::FsBase, None), routine, &bytes));
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[at] ^= 1 << bit;
                    // Some bits of prefixes have no meaning.
                    let same = text(&changed) == text(&bytes);
                    assert!(same || !is_right(&env, routine, &changed), "{routine:?}: bit {bit} of byte {at}");
                }
            }
        }
    }
}
