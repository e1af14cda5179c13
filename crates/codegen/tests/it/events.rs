//! Hardware events that a thread reads itself. The tests check the form of the routine, the kernel's protocol against a page that they
//! write, and real counters where the machine has them.

use crate::support::image::{Outcome, Program, SCRATCH, Step, TEXT, TLS, pmc};
use crate::support::*;
use ingraft_codegen::verify::{VerifyError, verify_weave};
use ingraft_codegen::{
    Arena, CodegenError, Environment, MiniRequest, PointRequest, Readable, TextSpace, Weave, weave_points,
};
use ingraft_model::layout::{EVENT_PAGES, EVENT_WORDS, header};
use ingraft_model::{Avma, Bias, Expr, Site, Snippet, Stmt, Svma, ThreadIdentity, VariableId};

/// Index of the event whose words and page are used.
const EVENT: u32 = 3;
/// Offsets of fields of the page (linux/perf_event.h, struct perf_event_mmap_page).
const LOCK_AND_INDEX: u64 = 8;
const OFFSET: u64 = 16;
const CAPABILITIES: u64 = 40;
const WIDTH: u64 = 48;
const MAY_READ: u64 = 4;

fn read_event() -> Snippet {
    Snippet {
        stmts: vec![Stmt::Set(VariableId(0), Expr::Event(VariableId(1))), Stmt::Add(VariableId(2), Expr::Const(1))],
    }
}

struct Field {
    env: Environment,
    arena: Arena,
    text: TextSpace,
    site: Site,
    weave: Weave,
}

impl Field {
    fn new(env: Environment) -> Result<Field, CodegenError> {
        let here = Svma(TEXT);
        let bytes = vec![0x90; 8];
        let site = Site { own: 8, ..entry_at(here.0, &bytes) };
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = ask(&site, |requests| weave_points(&env, &mut arena, &mut text, requests))?;
        let field = Field { env, arena, text, site, weave };
        if let Err(e) = field.verify(&field.weave) {
            panic!("{e}\n{}", list(&field.weave.plan, &field.weave.woven));
        }
        Ok(field)
    }

    fn verify(&self, weave: &Weave) -> Result<(), VerifyError> {
        ask(&self.site, |requests| verify_weave(&self.env, &self.arena, &self.text, requests, weave))
    }

    /// Index of the piece of the plan that holds the routine, and range of the routine in it: from the first push to the jump back.
    fn routine(&self) -> (usize, std::ops::Range<usize>) {
        let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what);
        let reads = |code: &ingraft_model::patch::ArenaCode| find(&code.bytes, &[0x0f, 0x33]).is_some();
        let piece = self.weave.plan.code.iter().position(reads).expect("the routine");
        let bytes = &self.weave.plan.code[piece].bytes;
        let rdpmc = find(bytes, &[0x0f, 0x33]).expect("the instruction");
        let start = bytes[..rdpmc].windows(4).rposition(|w| w == [0x41, 0x50, 0x41, 0x51]).expect("its beginning");
        let end = rdpmc + find(&bytes[rdpmc..], &[0xff, 0xe0]).expect("its end") + 2;
        (piece, start..end)
    }

    /// Runs the woven function. The registers afterwards must be the same as those of the original.
    fn run(&self, steps: &[Step]) -> Outcome {
        let code = [&[0x90; 8][..], &[0xc3]].concat();
        let run =
            |plans| Program { env: &self.env, text: code.clone(), plans, steps: steps.to_vec(), counters: 4 }.run();
        let (woven, plain) = (run(vec![&self.weave.plan]), run(vec![]));
        assert_eq!(woven.calls, plain.calls);
        woven
    }

    /// Address of a word in the first thread's shard.
    fn own(&self, offset: u32) -> u64 {
        self.env.data.base.0 + 2 * self.env.data.stride + u64::from(offset)
    }

    fn page(&self, field: u64) -> u64 {
        self.own(EVENT_PAGES + 0x1000 * EVENT) + field
    }

    fn words(&self) -> u64 {
        self.own(EVENT_WORDS + 16 * EVENT)
    }

    /// Sets up a counter: hardware counter `index - 1`, which has `width` bits, counts the event, and `offset` is added.
    fn counter(&self, index: u64, offset: i64, width: u64) -> Vec<Step> {
        vec![
            Step::Store { at: self.words(), value: 1 },
            Step::Store { at: self.page(LOCK_AND_INDEX), value: index << 32 | 6 },
            Step::Store { at: self.page(OFFSET), value: offset.cast_unsigned() },
            Step::Store { at: self.page(CAPABILITIES), value: MAY_READ },
            Step::Store { at: self.page(WIDTH), value: width },
            Step::Store { at: pmc::COUNT, value: 0 },
            Step::Store { at: pmc::LOST, value: 0 },
            Step::EmulateRdpmc { lock: self.page(LOCK_AND_INDEX) },
        ]
    }
}

fn ask<T>(site: &Site, f: impl FnOnce(&[PointRequest<'_>]) -> T) -> T {
    let snippet = read_event();
    let minis = [MiniRequest { id: 1, snippet: &snippet, counters: &[0, EVENT, 2] }];
    f(&[PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }])
}

fn call() -> Step {
    Step::Call { target: TEXT, registers: vec![], flags: 0xad7 }
}

fn scratch(out: &Outcome, at: u64) -> u64 {
    let at = (at - SCRATCH) as usize;
    u64::from_le_bytes(out.scratch[at..at + 8].try_into().expect("8 bytes"))
}

#[test]
fn the_routine_is_listed() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    let golden = expect_test::expect_file!["../../../../tests/golden/codegen/event.txt"];
    golden.assert_eq(&list(&field.weave.plan, &field.weave.woven));
}

#[test]
fn every_flipped_bit_of_the_routine_is_found() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    let (piece, range) = field.routine();
    assert!(range.len() > 250, "{range:?}");
    let shown = |weave: &Weave| list(&weave.plan, &weave.woven);
    let original = shown(&field.weave);
    for bit in 8 * range.start..8 * range.end {
        let mut changed = field.weave.clone();
        changed.plan.code[piece].bytes[bit / 8] ^= 1 << (bit % 8);
        // Some bits have no effect.
        assert!(field.verify(&changed).is_err() || shown(&changed) == original, "{bit}: {}", shown(&changed));
    }
}

#[test]
fn a_counter_is_read_as_its_page_says() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    for (value, width, offset, expected) in [
        (5, 48, 100, 105),
        // The kernel starts counters below zero.
        (0xffff_ffff_fffe, 48, 1000, 998),
        (0x8000_0000, 32, 0, -0x8000_0000),
        (0xffff_0000_0000_0001, 48, 7, 8),
        (0x1234_5678_9abc, 64, 0, 0x1234_5678_9abc),
    ] {
        let mut steps = field.counter(0x4000_0002, offset, width);
        steps.extend([Step::Store { at: pmc::VALUE, value }, call()]);
        let out = field.run(&steps);
        assert_eq!((out.shards[2][0], out.shards[2][2], out.unread), (expected, 1, 0), "{value:#x} {width}");
        assert_eq!((scratch(&out, pmc::COUNT), scratch(&out, pmc::INDEX)), (1, 0x4000_0001));
    }
}

#[test]
fn a_reading_begins_anew_when_the_page_changes() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    let lost = |lost: u64| {
        let mut steps = field.counter(1, 0, 48);
        let once = Step::Store { at: pmc::VALUE, value: 10 };
        // A good reading first, then a disturbed one.
        steps.extend([once, call(), Step::Store { at: pmc::LOST, value: lost }, call()]);
        let out = field.run(&steps);
        (out.shards[2][0], scratch(&out, pmc::COUNT), out.unread)
    };
    assert_eq!(lost(0), (10, 2, 0));
    assert_eq!(lost(1), (1010, 3, 0));
    assert_eq!(lost(7), (7010, 9, 0));
    // After the last attempt, the result is the previous reading, and the failure is counted.
    assert_eq!(lost(8), (10, 9, 1));
}

#[test]
fn without_a_counter_the_last_reading_stands_and_is_counted() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    let good = || [field.counter(1, 40, 48), vec![Step::Store { at: pmc::VALUE, value: 2 }, call()]].concat();
    // No hardware counter has the event, or it may not be read, or the kernel has refused it.
    for bad in [
        Step::Store { at: field.page(LOCK_AND_INDEX), value: 6 },
        Step::Store { at: field.page(CAPABILITIES), value: !MAY_READ },
        Step::Store { at: field.words(), value: 2 },
    ] {
        let steps = [good(), vec![bad, call(), call()]].concat();
        let out = field.run(&steps);
        assert_eq!((out.shards[2][0], scratch(&out, pmc::COUNT), out.unread), (42, 1, 2));
    }
    // A thread without a shard has no counter.
    let out = field.run(&[Step::Exhaust, call(), call()]);
    assert_eq!((out.shards[0][0], out.shards[0][2], out.unread), (0, 2, 2));
}

/// Defines an event (type, config) and reads it `times` times.
fn open(field: &Field, event: (u32, u64), times: usize) -> Outcome {
    const PINNED_IN_THE_PROGRAM: u64 = 1 << 2 | 1 << 5 | 1 << 6;
    let attributes = field.env.data.base.0 + u64::from(header::EVENTS + header::EVENT_BYTES * EVENT);
    let mut steps = vec![
        // gettid, stored as the id of the thread that is counted
        Step::Syscall { number: 186, args: vec![], to: TLS + 0x2d0 },
        Step::Store { at: attributes, value: u64::from(event.0) | 72 << 32 },
        Step::Store { at: attributes + 8, value: event.1 },
        Step::Store { at: attributes + 40, value: PINNED_IN_THE_PROGRAM },
    ];
    steps.extend(vec![call(); times]);
    steps.extend([
        Step::Copy { from: field.words(), to: SCRATCH + 0x600 },
        // The kernel has written a number there: the length of the struct.
        Step::Copy { from: field.page(72), to: SCRATCH + 0x608 },
        // dup, which returns the lowest free descriptor
        Step::Syscall { number: 32, args: vec![1], to: SCRATCH + 0x610 },
    ]);
    field.run(&steps)
}

#[test]
fn a_thread_opens_its_counter_once_and_leaves_no_descriptor() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    // Page faults have a page, which says that RDPMC cannot read them.
    let out = open(&field, (1, 2), 3);
    let state = scratch(&out, SCRATCH + 0x600) as u32;
    assert_eq!((scratch(&out, SCRATCH + 0x610), out.unread, out.shards[2][..1].to_vec()), (3, 3, vec![0]));
    if state == 1 {
        assert_ne!(scratch(&out, SCRATCH + 0x608) as u32, 0);
    } else {
        println!("skipped: the page of a counter (the kernel has refused it)");
        assert_eq!(state, 2);
    }
    // The kernel refuses this type of events, which does not exist.
    let out = open(&field, (77, 0), 2);
    assert_eq!((scratch(&out, SCRATCH + 0x600) as u32, scratch(&out, SCRATCH + 0x610), out.unread), (2, 3, 2));
}

#[test]
fn instructions_are_read_where_the_processor_counts_them() {
    let field = Field::new(environment(GLIBC)).expect("it makes sense");
    let out = open(&field, (0, 1), 2);
    if scratch(&out, SCRATCH + 0x600) as u32 == 1 && out.unread == 0 {
        assert!((1..10_000).contains(&out.shards[2][0]), "{:?}", out.shards[2]);
    } else {
        println!("skipped: reading a real counter (there is none that this program may read)");
        assert_eq!((out.shards[2][0], out.unread), (0, 2));
    }
}

#[test]
fn threads_must_have_numbers_and_be_allowed_to_ask() {
    for identity in [ThreadIdentity::FsBase, ThreadIdentity::Locked] {
        assert_eq!(Field::new(environment(identity)).err(), Some(CodegenError::NoEvents));
    }
    let silent =
        Environment { readable: Readable { start: Avma(0), end: Avma(0), process: None }, ..environment(GLIBC) };
    assert_eq!(Field::new(silent).err(), Some(CodegenError::NoEvents));
}
