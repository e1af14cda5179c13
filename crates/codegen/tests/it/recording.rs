//! Records of values in the buffers of threads, on the processor.

use std::cell::RefCell;

use crate::support::image::{Outcome, Program, SCRATCH, Step, TELL_TIME, TEXT, TEXT_LEN, TLS};
use crate::support::*;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{CodegenError, Environment, MiniRequest, PointRequest, Readable, TextSpace, weave_points};
use ingraft_model::buffer::{Capacity, LOST, Words};
use ingraft_model::records::{MADE, PERMITTED, RecordReader, SKIPPED, TakenRecord, room};
use ingraft_model::{
    Avma, Bias, BinaryOp, Expr, RecordField, Recorded, Snippet, Stmt, ThreadIdentity, VariableId, WallClock,
};

/// xor eax,eax; add rax,rsi; nop dword [rax]; ret
const CODE: [u8; 9] = [0x31, 0xc0, 0x48, 0x01, 0xf0, 0x0f, 0x1f, 0x00, 0xc3];
const V: VariableId = VariableId(0);
const GETTID: u64 = 186;

fn capacity() -> Capacity {
    Capacity::of_bytes(0).expect("the least")
}

fn record(fields: Vec<RecordField>) -> Recorded {
    Recorded { number: 7, time: false, fields, limit: None, leaves_room: false }
}

fn snippet(recorded: Recorded) -> Snippet {
    Snippet { stmts: vec![Stmt::Record(V, capacity(), recorded)] }
}

fn number(e: Expr) -> RecordField {
    RecordField::Number(e)
}

fn sum(a: Expr, b: Expr) -> Expr {
    Expr::Binary(BinaryOp::Add, Box::new(a), Box::new(b))
}

/// Runs a snippet in an environment, and the program without it: nothing else may change.
fn run_in(env: &Environment, snippet: &Snippet, steps: Vec<Step>) -> Outcome {
    let (site, mut arena, mut text) = (site(&CODE), arena(), TextSpace::new());
    let minis = [MiniRequest { id: 0, snippet, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(env, &arena, &text, &requests, &weave).expect("right");
    let run = |plans| {
        let counters = capacity().slots() as usize;
        Program { env, text: CODE.to_vec(), plans, steps: steps.clone(), counters }.run()
    };
    let (plain, out) = (run(vec![]), run(vec![&weave.plan]));
    assert_eq!(plain.calls, out.calls);
    assert_eq!(plain.scratch, out.scratch);
    out
}

fn run(recorded: Recorded, steps: Vec<Step>) -> Outcome {
    run_in(&environment(GLIBC), &snippet(recorded), steps)
}

/// Calls with these first arguments.
fn calls(arguments: impl IntoIterator<Item = u64>) -> Vec<Step> {
    let flags = [0x246, 0xad7, 0x202, 0x897];
    let call =
        |(n, argument): (usize, u64)| Step::Call { target: TEXT, registers: vec![(7, argument)], flags: flags[n % 4] };
    arguments.into_iter().enumerate().map(call).collect()
}

struct Memory(RefCell<Vec<i64>>);

impl Words for Memory {
    fn load(&self, word: u32) -> u64 {
        self.0.borrow()[word as usize].cast_unsigned()
    }
    fn store(&self, word: u32, value: u64) {
        self.0.borrow_mut()[word as usize] = value.cast_signed();
    }
    fn and(&self, word: u32, mask: u64) {
        self.store(word, self.load(word) & mask);
    }
    fn replace(&self, word: u32, old: u64, new: u64) -> bool {
        let right = self.load(word) == old;
        if right {
            self.store(word, new);
        }
        right
    }
}

fn taken_from(out: &Outcome, grouped: bool) -> Vec<TakenRecord> {
    let mut reader = RecordReader::new(capacity(), grouped);
    let (records, broken) = reader.take(&Memory(RefCell::new(out.shards[2].clone())), u64::MAX, 0);
    assert!(!broken);
    records
}

fn taken(out: &Outcome) -> Vec<TakenRecord> {
    taken_from(out, false)
}

fn values(out: &Outcome) -> Vec<Vec<u64>> {
    taken(out).into_iter().map(|record| record.words).collect()
}

#[test]
fn values_are_recorded_and_nothing_else_changes() {
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let fields = vec![
            number(Expr::Arg(0)),
            number(Expr::Const(0)),
            number(sum(Expr::Arg(0), sum(Expr::Arg(1), Expr::Const(3)))),
            number(Expr::ReturnAddress),
        ];
        let out = run_in(&environment(identity), &snippet(record(fields)), calls(10..19));
        let records = taken(&out);
        assert_eq!(records.len(), 9);
        for (n, TakenRecord { number, words }) in (10..).zip(records) {
            let [first, zero, sum, back] = words.try_into().expect("four values");
            assert_eq!((number, first, zero), (7, n, 0));
            // The driver calls with rsi in the scratch memory.
            assert!((SCRATCH..SCRATCH + 0x10000).contains(&(sum - n - 3)), "{sum:#x}");
            assert_ne!(back, 0);
        }
        assert_eq!(out.shards[2][MADE as usize], 9);
    }
}

#[test]
fn the_time_is_the_first_value() {
    for wall in [WallClock::Tsc, WallClock::SystemCall, WallClock::Vdso(Avma(TELL_TIME))] {
        let env = Environment { wall, ..environment(GLIBC) };
        let recorded = Recorded { time: true, ..record(vec![number(Expr::Arg(0))]) };
        let values = values(&run_in(&env, &snippet(recorded), calls(0..30)));
        let times: Vec<u64> = values.iter().map(|words| words[0]).collect();
        assert!(times.len() == 30 && times[0] > 0 && times.is_sorted() && times[0] < times[29], "{wall:?} {times:?}");
        assert!(values.iter().map(|words| words[1]).eq(0..30));
    }
}

#[test]
fn records_without_room_are_lost_and_told() {
    let words = 5;
    let fits = (room(capacity(), false) as usize).div_ceil(8 * words);
    let out = run(record(vec![number(Expr::Arg(0)); words - 1]), calls(0..fits as u64 + 60));
    assert_eq!(values(&out).len(), fits);
    assert_eq!(out.shards[2][LOST as usize], 60);
    assert_eq!(out.shards[2][MADE as usize], fits as i64 + 60);
}

/// The statements, if the remainder of the first argument by `by` has this value.
fn if_remainder(by: i64, value: i64, stmts: Vec<Stmt>) -> Stmt {
    let remainder = Expr::Binary(BinaryOp::Remainder, Box::new(Expr::Arg(0)), Box::new(Expr::Const(by)));
    Stmt::If(Expr::Binary(BinaryOp::Equal, Box::new(remainder), Box::new(Expr::Const(value))), stmts)
}

#[test]
fn groups_are_kept_or_forgotten() {
    let recorded = record(vec![number(Expr::Arg(0))]);
    let snippet = Snippet {
        stmts: vec![
            if_remainder(4, 0, vec![Stmt::BeginGroup(V)]),
            Stmt::Record(V, capacity(), recorded),
            // Of two groups, the second one is kept.
            if_remainder(8, 7, vec![Stmt::KeepGroup(V)]),
        ],
    };
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let out = run_in(&environment(identity), &snippet, calls(0..62));
        let words: Vec<u64> = taken_from(&out, true).into_iter().flat_map(|record| record.words).collect();
        assert!(words.into_iter().eq((0..62).filter(|n| n % 8 >= 4 && *n < 56)));
    }
}

#[test]
fn the_last_record_of_a_group_has_room_and_tells_how_many_had_none() {
    let words = 4;
    let fits = u64::from(room(capacity(), true)).div_ceil(8 * words);
    let (inside, lost) = (fits + 25, 25);
    let inner = Recorded { leaves_room: true, ..record(vec![number(Expr::Arg(0)); words as usize - 1]) };
    let last = record(vec![number(Expr::Lost(V)); 40]);
    let count = inside as i64 + 1;
    let end = vec![Stmt::Record(V, capacity(), last), Stmt::KeepGroup(V)];
    let snippet = Snippet {
        stmts: vec![
            if_remainder(count, 0, vec![Stmt::BeginGroup(V)]),
            if_remainder(count, count - 1, end),
            Stmt::Record(V, capacity(), inner),
        ],
    };
    // The first record of the next group has no room, because nobody has taken the group that was kept.
    let out = run_in(&environment(GLIBC), &snippet, calls(0..count as u64 + 1));
    let records = taken_from(&out, true);
    let (last, inner) = records.split_last().expect("records");
    assert_eq!(inner.len() as u64, fits);
    assert_eq!(last.words, [lost; 40]);
    assert!(inner.iter().zip(0..).all(|(record, n)| record.words == [n; 3]));
    assert_eq!(out.shards[2][LOST as usize], 1, "a new group counts anew");
}

#[test]
fn a_thread_makes_as_many_records_as_it_may() {
    let recorded = Recorded { limit: Some(4), ..record(vec![number(Expr::Arg(0))]) };
    let env = environment(GLIBC);
    // The first call claims shard 2.
    let permitted = u64::from(env.data.counter(PERMITTED)) + 2 * env.data.stride;
    let more = Step::Store { at: permitted, value: 4 };
    let steps = [calls(0..10), vec![more], calls(10..20)].concat();
    let out = run_in(&env, &snippet(recorded), steps);
    let seen: Vec<u64> = values(&out).into_iter().map(|words| words[0]).collect();
    assert_eq!(seen, [0, 1, 2, 3, 10, 11, 12, 13]);
    assert_eq!(out.shards[2][SKIPPED as usize], 12);
    assert_eq!(out.shards[2][MADE as usize], 8);
}

#[test]
fn threads_without_a_shard_lose_their_records() {
    let out = run(record(vec![number(Expr::Arg(0))]), [vec![Step::Exhaust], calls(0..5)].concat());
    assert_eq!(out.shards[0][LOST as usize], 5);
    let out = run_in(&environment(ThreadIdentity::Locked), &snippet(record(vec![number(Expr::Arg(0))])), calls(0..5));
    assert_eq!(out.shards[0][LOST as usize], 5);
}

/// The bytes of a text in a record that has one text.
fn text(words: &[u64]) -> Vec<u8> {
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let read = words[0] as usize;
    assert!(bytes[read..].iter().all(|byte| *byte == 0));
    bytes[..read].to_vec()
}

#[test]
fn texts_are_read_as_far_as_memory_goes() {
    // The thread id is that of the process, so the process can read itself.
    let itself = Step::Syscall { number: GETTID, args: vec![], to: TLS + 0x2d0 };
    let end = TEXT + TEXT_LEN as u64;
    let starts =
        [SCRATCH, SCRATCH + 0xfe0, SCRATCH + 0xff8, end - 10, end - 64, end, 0, u64::MAX - 3, 1 << 63, end - 1];
    let out = run(record(vec![RecordField::Text(Expr::Arg(0))]), [vec![itself], calls(starts)].concat());
    let texts: Vec<Vec<u8>> = values(&out).iter().map(|words| text(words)).collect();
    let known = |from: usize| (from..from + 64).map(|i| (i * 37 + 11) as u8).collect::<Vec<u8>>();
    assert_eq!(texts.len(), starts.len());
    for (text, from) in texts.iter().zip([0, 0xfe0, 0xff8]) {
        assert_eq!(*text, known(from), "{from:#x}");
    }
    let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
    assert_eq!(lengths[3..], [10, 64, 0, 0, 0, 0, 1]);
}

#[test]
fn texts_and_numbers_lie_in_their_order() {
    let itself = Step::Syscall { number: GETTID, args: vec![], to: TLS + 0x2d0 };
    let fields = vec![
        number(Expr::Arg(0)),
        RecordField::Text(sum(Expr::Arg(0), Expr::Const(8))),
        number(Expr::Const(5)),
        RecordField::Text(Expr::Arg(0)),
        number(Expr::Const(6)),
    ];
    let recorded = Recorded { time: true, ..record(fields) };
    assert_eq!(recorded.words(), 2 + 3 + 2 * 9);
    let values = values(&run(recorded, [vec![itself], calls([SCRATCH, SCRATCH + 1])].concat()));
    for (words, from) in values.iter().zip([0, 1]) {
        assert_eq!((words[1], words[11], words[21]), (SCRATCH + from as u64, 5, 6));
        let known = |from: usize| (from..from + 64).map(|i| (i * 37 + 11) as u8).collect::<Vec<u8>>();
        assert_eq!((text(&words[2..11]), text(&words[12..21])), (known(from + 8), known(from)));
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let weave = |env: &Environment, recorded: Recorded| {
        let (site, snippet) = (site(&CODE), snippet(recorded));
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        weave_points(env, &mut arena(), &mut TextSpace::new(), &requests).map(|_| ())
    };
    let env = environment(GLIBC);
    let long = |words: usize| record(vec![number(Expr::Const(1)); words]);
    assert_eq!(weave(&env, long(Recorded::WORDS_MAX as usize - 1)), Ok(()));
    assert_eq!(weave(&env, long(Recorded::WORDS_MAX as usize)), Err(CodegenError::NoRecord));
    assert_eq!(weave(&env, Recorded { limit: Some(0), ..long(1) }), Err(CodegenError::NoRecord));
    assert_eq!(weave(&env, Recorded { number: u16::MAX, ..long(1) }), Err(CodegenError::NoRecord));
    let silent = Environment { readable: Readable { process: None, ..READABLE }, ..env };
    assert_eq!(weave(&silent, record(vec![RecordField::Text(Expr::Arg(0))])), Err(CodegenError::NoReads));
}

#[test]
fn every_flipped_bit_of_the_reading_is_found() {
    let (site, env) = (site(&CODE), environment(GLIBC));
    let (mut arena, mut space) = (arena(), TextSpace::new());
    let asked = snippet(record(vec![RecordField::Text(Expr::Arg(0))]));
    let minis = [MiniRequest { id: 0, snippet: &asked, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena, &mut space, &requests).expect("woven");
    let is_call = |code: &ingraft_model::patch::ArenaCode| code.bytes.windows(2).any(|w| w == [0x0f, 0x05]);
    let routine = weave.plan.code.iter().position(is_call).expect("the routine");
    let bytes = &weave.plan.code[routine].bytes;
    let decoded = |bytes: &[u8]| {
        let decoder = iced_x86::Decoder::with_ip(64, bytes, 0, iced_x86::DecoderOptions::NONE);
        decoder.into_iter().collect::<Vec<_>>()
    };
    let shown = |bytes: &[u8]| decoded(bytes).iter().map(ToString::to_string).collect::<Vec<_>>();
    let all = decoded(bytes);
    let call = all.iter().position(|i| i.mnemonic() == iced_x86::Mnemonic::Syscall).expect("the call");
    // From the first push of the places on.
    for bit in 8 * all[call - 15].ip() as usize..8 * all[call].next_ip() as usize {
        let mut changed = weave.clone();
        changed.plan.code[routine].bytes[bit / 8] ^= 1 << (bit % 8);
        let same = shown(&changed.plan.code[routine].bytes) == shown(bytes);
        let proof = verify_weave(&env, &arena, &space, &requests, &changed);
        assert!(proof.is_err() || same, "{bit}: {:#?}", shown(&changed.plan.code[routine].bytes));
    }
    // The words for the text must have been pushed: one push less, and the kernel would write over a register of the program.
    let push = [0x50; 8];
    let snippet = weave.plan.code.iter().position(|code| code.bytes.windows(8).any(|w| w == push)).expect("the pushes");
    for n in 0..8 {
        let mut changed = weave.clone();
        let bytes = &mut changed.plan.code[snippet].bytes;
        let at = bytes.windows(8).position(|w| w == push).expect("the pushes");
        bytes[at + n] = 0x90;
        assert!(verify_weave(&env, &arena, &space, &requests, &changed).is_err());
    }
}
