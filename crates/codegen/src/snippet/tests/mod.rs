//! Proof of the fixed routines: golden listings, and their execution in every class of state. Each test compares all registers and all
//! memory with a model.

mod birth;
mod calling;
mod contexts;
mod cut;
mod event;
mod goroutine;
pub(crate) mod machine;
mod moving;
mod notes;
mod slow;
mod stacks;
mod time;
mod timed;

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use ingraft_model::histogram::Scale;
use ingraft_model::layout::{CLAIMS, FIRST_SHARD, header};
use ingraft_model::{Avma, CpuClock, DataArea, Gpr, ThreadIdentity, VectorState, WallClock};

use crate::code::environment::{Environment, Readable};
use crate::code::routine::Routine;
use crate::snippet::routines::{assemble, holes, listing};
use machine::{BACK, CODE, Machine, RAX, none};

pub(crate) const GLIBC: ThreadIdentity = ThreadIdentity::FsOffset(0x2d0);

/// Routines that are listings.
pub(crate) const FIXED: [Routine; 26] = [
    Routine::PruneGoroutine,
    Routine::Park,
    Routine::Fetch,
    Routine::Call,
    Routine::Event,
    Routine::Cut,
    Routine::Time,
    Routine::Enter,
    Routine::EnterMoving,
    Routine::LeaveMoving,
    Routine::Descriptor,
    Routine::KeepsNotes,
    Routine::BeginNotes,
    Routine::AddNote,
    Routine::TellNotes,
    Routine::EndNotes,
    Routine::Fork,
    Routine::Forked,
    Routine::LeaveStack,
    Routine::EnterStack,
    Routine::OpenTimed,
    Routine::CloseTimed,
    Routine::CloseTimedOwn,
    Routine::ObserveCoarse,
    Routine::ObserveMedium,
    Routine::ObserveFine,
];

/// Environment in which every fixed routine is possible.
pub(crate) fn environment() -> Environment {
    Environment {
        data: DataArea { base: Avma(0x1000_0000), stride: 1 << 24, shards: 64, journal_bytes: 1 << 20 },
        identity: GLIBC,
        shadow_stack: false,
        wall: WallClock::Vdso(Avma(0x7fff_1234_5678)),
        ticks: Scale { mult: 1, shift: 0 },
        cpu: CpuClock::None,
        vectors: Some(VectorState { components: 0xe7, bytes: 2696 }),
        loader: None,
        goroutine: Some(-8),
        stacks: true,
        readable: Readable { process: Some(1), ..Readable::default() },
    }
}

/// A small area, and a larger one elsewhere.
fn areas() -> [DataArea; 2] {
    [(0x1000_0000, 1 << 20, 5), (0x2345_6000, 1 << 22, 6)].map(|(base, stride, shards)| DataArea {
        base: Avma(base),
        stride,
        shards,
        journal_bytes: 0,
    })
}

/// Words of a data area in a machine.
#[derive(Clone, Copy)]
struct Area(DataArea);

impl Area {
    /// Address of an offset in a shard.
    fn at(self, shard: u64, offset: u32) -> u64 {
        self.0.base.0 + shard * self.0.stride + u64::from(offset)
    }

    fn claim(self, shard: u64) -> u64 {
        self.at(0, CLAIMS) + 8 * shard
    }

    /// Makes the area exist, alive.
    fn map(self, m: &mut Machine) {
        m.mapped.push(self.0.base.0..self.0.base.0 + self.0.stride * u64::from(self.0.shards));
        m.write(u64::from(self.0.alive()), 4, 1);
    }

    /// Model of the search for a free shard: from the hint on, then from the first shard on.
    fn search(self, m: &mut Machine, claim: u64) -> Option<u64> {
        let (hint, shards) = (self.at(0, header::CLAIM_HINT), self.0.shards);
        let mut start = m.read(hint, 4) as u32;
        m.write(hint, 4, u64::from(start.wrapping_add(1)));
        if !(FIRST_SHARD..shards).contains(&start) {
            start = FIRST_SHARD;
            m.write(hint, 4, u64::from(FIRST_SHARD + 1));
        }
        let k = (start..shards).chain(FIRST_SHARD..start).map(u64::from).find(|k| m.read(self.claim(*k), 8) == 0)?;
        m.write(self.claim(k), 8, claim);
        Some(k)
    }

    /// Claims and hints to search with: every subset of the shards, and a hint at every place and beyond.
    fn searches(self) -> impl Iterator<Item = (u64, u64)> {
        let free = self.0.shards - FIRST_SHARD;
        (0..1u64 << free).flat_map(move |taken| {
            let hints = (0..u64::from(self.0.shards) + 2).chain([u64::from(u32::MAX)]);
            hints.map(move |hint| (taken, hint))
        })
    }

    /// Takes the shards of a subset, and sets the hint.
    fn prepare(self, m: &mut Machine, (taken, hint): (u64, u64)) {
        for k in u64::from(FIRST_SHARD)..u64::from(self.0.shards) {
            let owner = if taken >> (k - u64::from(FIRST_SHARD)) & 1 != 0 { 0x1000 + k } else { 0 };
            m.write(self.claim(k), 8, owner);
        }
        m.write(self.at(0, header::CLAIM_HINT), 4, hint);
    }
}

/// Changes a word by a number.
fn add(m: &mut Machine, at: u64, bytes: usize, change: i64) {
    let value = m.read(at, bytes);
    m.write(at, bytes, value.wrapping_add_signed(change));
}

/// Executes a shared routine that knows all its instructions, and compares the result with what the model makes of the same state. The
/// model gets rax with the resume address, as the routine does.
fn compare(env: &Environment, routine: Routine, state: &Machine, model: impl FnOnce(&mut Machine), what: &str) {
    let mut found = state.clone();
    let end = CODE + assemble(env, routine).expect("assembles").len() as u64;
    found.run(CODE..end, &mut none);
    let mut wanted = state.clone();
    wanted.race = None;
    model(&mut wanted);
    same(&found, &wanted, what);
}

/// Compares the state after a shared routine with the wanted one.
fn same(found: &Machine, wanted: &Machine, what: &str) {
    assert_eq!(found.rip, BACK, "{what}: where control goes on");
    assert_eq!(found.registers[RAX], BACK, "{what}");
    assert_eq!(found.registers, wanted.registers, "{what}: registers");
    assert_eq!((found.gs, found.fs), (wanted.gs, wanted.fs), "{what}: segments");
    assert_eq!(found.changes(wanted), [], "{what}: memory");
}

/// Machine with a routine, on the way into it.
fn machine(env: &Environment, routine: Routine) -> Machine {
    let mut m = Machine::new(&assemble(env, routine).expect("assembles"));
    Area(env.data).map(&mut m);
    m
}

/// Lists code with offsets from its start.
fn disassembly(code: &[u8]) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    let mut text = String::new();
    for i in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        text += &format!("{:4x}  ", i.ip());
        formatter.format(&i, &mut text);
        text.push('\n');
    }
    text
}

#[test]
fn listings_are_golden() {
    let env = environment();
    let golden = |name: &str, code: &[u8]| {
        let file = format!("{}/../../tests/golden/codegen/listing_{name}.txt", env!("CARGO_MANIFEST_DIR"));
        expect_test::expect_file![file].assert_eq(&disassembly(code));
    };
    for (routine, name) in FIXED.into_iter().zip([
        "prune_goroutine",
        "park",
        "fetch",
        "call",
        "event",
        "cut",
        "time",
        "enter",
        "enter_moving",
        "leave_moving",
        "descriptor",
        "keeps_notes",
        "begin_notes",
        "add_note",
        "tell_notes",
        "end_notes",
        "fork",
        "forked",
        "leave_stack",
        "enter_stack",
        "open_timed",
        "close_timed",
        "close_timed_own",
        "observe_coarse",
        "observe_medium",
        "observe_fine",
    ]) {
        let filled = listing(routine, &holes(&env)).expect("a listing").expect("assembles");
        golden(name, &filled.bytes);
    }
    for (r, name) in [(0, "slow_rax"), (11, "slow_r11")] {
        let filled = crate::snippet::slow::assemble(&env, Gpr(r)).expect("assembles");
        golden(name, &filled.bytes);
    }
}
