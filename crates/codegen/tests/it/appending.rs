//! Appends to the buffers of threads, on the processor.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::support::image::{Outcome, Program, SCRATCH, Step, TELL_TIME, TEXT};
use crate::support::*;
use ingraft_codegen::verify::{Flaw, verify_weave};
use ingraft_codegen::{CodegenError, Environment, MiniRequest, PointRequest, TextSpace, weave_points};
use ingraft_model::buffer::{BufferReader, CLOSED, Capacity, LOST, POSITION, SLACK, TAKEN, TakenBytes, Words};
use ingraft_model::layout::{ROOM_WAIT_NS, header};
use ingraft_model::snippet::Appended;
use ingraft_model::token::Token;
use ingraft_model::{Avma, Bias, Snippet, Stmt, ThreadIdentity, VariableId, WallClock};

/// mov rax,[rdi]; add rax,rsi; ret
const CODE: [u8; 7] = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];
const V: VariableId = VariableId(0);

fn capacity() -> Capacity {
    Capacity::of_bytes(0).expect("the least")
}

fn append(stack: bool, bytes: &[u8]) -> Snippet {
    Snippet {
        stmts: vec![Stmt::Append(V, capacity(), Appended { time: false, stack, bytes: bytes.to_vec(), waits: false })],
    }
}

fn run(identity: ThreadIdentity, snippets: &[Snippet], steps: Vec<Step>) -> (Outcome, Outcome) {
    let w = weave(identity, site(&CODE), &[], snippets);
    let program = |plans| Program {
        env: &w.env,
        text: CODE.to_vec(),
        plans,
        steps: steps.clone(),
        counters: capacity().slots() as usize + snippets.len(),
    };
    (program(vec![]).run(), program(vec![&w.weave.plan]).run())
}

/// Runs a snippet in an environment, and without it.
fn run_in(env: &Environment, snippet: &Snippet, steps: Vec<Step>) -> (Outcome, Outcome) {
    let (site, mut arena, mut text) = (site(&CODE), arena(), TextSpace::new());
    let minis = [MiniRequest { id: 0, snippet, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(env, &arena, &text, &requests, &weave).expect("right");
    let program = |plans| Program {
        env,
        text: CODE.to_vec(),
        plans,
        steps: steps.clone(),
        counters: capacity().slots() as usize,
    };
    (program(vec![]).run(), program(vec![&weave.plan]).run())
}

fn calls(count: usize) -> Vec<Step> {
    // The flags differ from call to call.
    let flags = [0x246, 0xad7, 0x202, 0x897];
    (0..count).map(|n| Step::Call { target: TEXT, registers: vec![], flags: flags[n % flags.len()] }).collect()
}

/// The words of a thread's buffer after a run.
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

fn taken(out: &Outcome) -> (TakenBytes, Memory) {
    let memory = Memory(RefCell::new(out.shards[2].clone()));
    (BufferReader::new(capacity()).take(&memory), memory)
}

#[test]
fn bytes_are_appended_and_nothing_else_changes() {
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        for length in 1..=Appended::BYTES_MAX {
            let bytes: Vec<u8> = (1..).take(length).collect();
            let (plain, out) = run(identity, &[append(false, &bytes)], calls(9));
            assert_eq!(plain.calls, out.calls);
            assert_eq!(plain.scratch, out.scratch);
            assert_eq!(taken(&out).0, TakenBytes { bytes: bytes.repeat(9), gap: false });
        }
    }
}

#[test]
fn the_stack_pointer_is_that_at_the_point() {
    let enter = Token::Enter(3).bytes().expect("small");
    let (plain, out) = run(GLIBC, &[append(true, &enter)], calls(3));
    assert_eq!(plain.calls, out.calls);
    let bytes = taken(&out).0.bytes;
    let mut rest = bytes.as_slice();
    for call in &out.calls {
        // At the entry, the return address is on the stack.
        for expected in [Token::stack(call.registers[4] - 8), Token::Enter(3)] {
            let (token, length) = Token::read(rest).expect("a token").expect("a whole one");
            assert_eq!(token, expected);
            rest = &rest[length..];
        }
    }
    assert_eq!(rest, []);
}

/// The tokens in these bytes.
fn tokens(mut bytes: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let Some((token, length)) = Token::read(bytes).expect("a token") {
        tokens.push(token);
        bytes = &bytes[length..];
    }
    assert_eq!(bytes, []);
    tokens
}

#[test]
fn the_time_is_read_at_the_point() {
    let bytes = Token::Enter(3).bytes().expect("small");
    for wall in [WallClock::Tsc, WallClock::SystemCall, WallClock::Vdso(Avma(TELL_TIME))] {
        for stack in [false, true] {
            let appended = Appended { time: true, stack, bytes: bytes.clone(), waits: false };
            let timed = Snippet { stmts: vec![Stmt::Append(V, capacity(), appended)] };
            let env = Environment { wall, ..environment(GLIBC) };
            let (plain, out) = run_in(&env, &timed, calls(30));
            assert_eq!(plain.calls, out.calls);
            assert_eq!(plain.scratch, out.scratch);
            let all = tokens(&taken(&out).0.bytes);
            let ticks = |token: &Token| if let Token::Time(ticks) = token { Some(*ticks) } else { None };
            let times: Vec<u64> = all.iter().filter_map(ticks).collect();
            assert!(
                times.len() == 30 && times[0] > 0 && times.is_sorted() && times[0] < times[29],
                "{wall:?} {times:?}"
            );
            for call in all.chunks(all.len() / 30) {
                assert_eq!((call.len(), call.last()), (if stack { 3 } else { 2 }, Some(&Token::Enter(3))));
            }
        }
    }
}

#[test]
fn a_full_buffer_is_closed_and_later_bytes_are_counted() {
    let length = Appended::BYTES_MAX + 5;
    let fits = ((capacity().bytes() - SLACK) as usize).div_ceil(length);
    let (plain, out) = run(GLIBC, &[append(true, &[7; Appended::BYTES_MAX])], calls(fits + 60));
    assert_eq!(plain.calls, out.calls);
    let (taken, memory) = taken(&out);
    assert_eq!((taken.bytes.len(), taken.gap), (fits * length, true));
    assert_eq!(out.shards[2][POSITION as usize], (fits * length) as i64);
    assert_eq!(out.shards[2][LOST as usize], 60);
    assert_eq!(out.shards[2][TAKEN as usize], i64::from(CLOSED));
    assert_eq!(memory.load(TAKEN), (fits * length) as u64);
    let rest = memory.0.borrow().iter().skip(16).filter(|word| **word != 0).count();
    assert_eq!(rest, 0, "taken bytes are 0 again");
}

/// An append that waits for room.
fn waiting(bytes: &[u8]) -> Snippet {
    let appended = Appended { time: false, stack: true, bytes: bytes.to_vec(), waits: true };
    Snippet { stmts: vec![Stmt::Append(V, capacity(), appended)] }
}

/// A step that sets the number of times that the engine has emptied the buffers.
fn drained(times: u64) -> Step {
    Step::Store { at: u64::from(environment(GLIBC).data.displacement(header::DRAINS)), value: times }
}

/// A step that stores this number and the word behind it in the scratch memory.
fn copied(to: u64) -> Step {
    Step::Copy { from: u64::from(environment(GLIBC).data.displacement(header::DRAINS)), to: SCRATCH + to }
}

#[test]
fn a_thread_waits_for_room_once_if_nobody_makes_it() {
    let bytes = [7; Appended::BYTES_MAX];
    let length = bytes.len() + 5;
    let fits = ((capacity().bytes() - SLACK) as usize).div_ceil(length);
    let steps = [
        vec![drained(9)],
        calls(fits),
        vec![copied(0)],
        calls(40),
        // The buffer is closed, so no thread waits, although it may again.
        vec![copied(8), drained(11)],
        calls(20),
        vec![copied(16)],
    ];
    let begin = Instant::now();
    let (plain, out) = run(GLIBC, &[waiting(&bytes)], steps.concat());
    assert!(begin.elapsed() >= Duration::from_nanos(u64::from(ROOM_WAIT_NS)));
    assert_eq!(plain.calls, out.calls, "the wait changes registers, flags or the stack");
    let words = [0, 8, 16].map(|at| out.scratch[at]);
    assert_eq!(words, [9, 0, 11]);
    let (taken, _) = taken(&out);
    assert_eq!((taken.bytes.len(), taken.gap), (fits * length, true));
    assert_eq!(out.shards[2][LOST as usize], 60);
}

#[test]
fn no_thread_waits_if_none_may() {
    let fits = ((capacity().bytes() - SLACK) as usize).div_ceil(6);
    let (waits, without) = (waiting(&[3]), append(true, &[3]));
    let steps = [vec![drained(0)], calls(fits + 30)].concat();
    let [waits, without] = [waits, without].map(|snippet| run(GLIBC, &[snippet], steps.clone()).1);
    assert_eq!(waits.calls, without.calls);
    assert_eq!(waits.shards[2], without.shards[2]);
}

#[test]
fn a_thread_without_a_shard_only_counts() {
    for (identity, first) in
        [(ThreadIdentity::Locked, None), (GLIBC, Some(Step::ForeignGs)), (GLIBC, Some(Step::Exhaust))]
    {
        let steps = first.into_iter().chain(calls(5)).collect();
        let (_, out) = run(identity, &[append(true, &[1, 2])], steps);
        assert_eq!(out.shards[0][LOST as usize], 5, "{identity:?}");
        let others = out.shards[0].iter().enumerate().filter(|(n, word)| *n != LOST as usize && **word != 0);
        assert_eq!(others.count(), 0, "{identity:?}");
    }
}

#[test]
fn two_snippets_of_a_point_append_in_their_order() {
    let w = {
        let (first, second) = (append(false, &[1, 2, 3]), append(true, &[9]));
        let site = site(&CODE);
        let env = environment(GLIBC);
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let minis = [
            MiniRequest { id: 0, snippet: &first, counters: &[0] },
            MiniRequest { id: 1, snippet: &second, counters: &[0] },
        ];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
        verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
        let program = Program {
            env: &env,
            text: CODE.to_vec(),
            plans: vec![&weave.plan],
            steps: calls(2),
            counters: capacity().slots() as usize,
        };
        program.run()
    };
    let bytes = taken(&w).0.bytes;
    assert_eq!(bytes.len(), 2 * 9);
    assert_eq!((&bytes[..4], bytes[8], &bytes[9..13]), (&[1, 2, 3, 0xfa][..], 9, &[1, 2, 3, 0xfa][..]));
}

#[test]
fn wrong_appends_are_refused() {
    let site = site(&CODE);
    for bytes in [vec![], vec![1, 0], vec![1; Appended::BYTES_MAX + 1]] {
        let snippet = append(false, &bytes);
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let woven = weave_points(&environment(GLIBC), &mut arena(), &mut TextSpace::new(), &requests);
        assert!(matches!(woven, Err(CodegenError::NoAppend)), "{bytes:?}");
    }
}

#[test]
fn a_byte_outside_of_the_buffer_is_refused() {
    let snippet = append(true, &[1, 2]);
    let w = weave(GLIBC, site(&CODE), &[], std::slice::from_ref(&snippet));
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let proof = |broken: &_| verify_weave(&w.env, &w.arena, &w.text, &requests, broken).map_err(|e| e.flaw);
    // and eax, 0xfff
    let mask = [0x25, 0xff, 0x0f, 0, 0];
    let mut masks = 0;
    for (piece, code) in w.weave.plan.code.iter().enumerate() {
        for at in 0..code.bytes.len() {
            if code.bytes[at..].starts_with(&mask) {
                masks += 1;
                let mut broken = w.weave.clone();
                broken.plan.code[piece].bytes[at + 4] = 1;
                assert_eq!(proof(&broken), Err(Flaw::ForeignWrite), "at {at}");
            }
        }
    }
    assert_eq!(masks, 7);
}
