//! Exits, and records of calls from entry to exit, on the processor.

use crate::support::image::{self, HELPER, Outcome, Program, SCRATCH, Step, TEXT};
use crate::support::*;
use ingraft_codegen::verify::{verify_added, verify_removal, verify_removed, verify_weave};
use ingraft_codegen::{
    Environment, MiniRequest, PointRequest, TextSpace, add_mini, remove_mini, remove_points, weave_points,
};
use ingraft_model::histogram::{HEAD, SQUARE_BITS, SQUARES, VALUE_BITS, squares};
use ingraft_model::layout::{COUNTERS, TOP, header, record};
use ingraft_model::{
    Avma, Bias, BinaryOp, CallRecord, Clock, CpuClock, Expr, Float, FloatFormat, KeptValue, KeyField, PatchPlan,
    Places, PointKind, Resolution, Restore, Shape, Site, Snippet, Stmt, TableKey, TableShape, ThreadIdentity, TimeUnit,
    VariableId, WallClock, Whose,
};

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];

/// Index of the first bucket among the counters of a histogram.
const BUCKETS: usize = HEAD as usize;

fn v(n: u32) -> VariableId {
    VariableId(n)
}

fn snippet(stmts: Vec<Stmt>) -> Snippet {
    Snippet { stmts }
}

/// A function with one exit: its code, the offset of the site's bytes, the distance from there to the exit, and the length of the padding.
struct End {
    text: Vec<u8>,
    from: usize,
    point: usize,
    padding: usize,
}

/// Returns functions with different exits: `ret` in all forms, and tail jumps that are near, through memory and conditional.
fn shapes() -> Vec<End> {
    let jump = |opcode: &[u8], at: u64| {
        let end = TEXT + at + opcode.len() as u64 + 4;
        [opcode, &(HELPER.wrapping_sub(end) as u32).to_le_bytes()].concat()
    };
    let shape = |parts: &[&[u8]], padding: usize, first: usize| {
        let lengths: Vec<usize> = parts.iter().map(|p| p.len()).collect();
        let from = lengths[..first].iter().sum();
        let point = lengths[first..lengths.len() - 1].iter().sum();
        let mut text = parts.concat();
        text.extend(vec![0x90; padding]);
        End { text, from, point, padding }
    };
    let lea: &[u8] = &[0x48, 0x8d, 0x04, 0x37];
    let conditional = |condition: u8| jump(&[0x0f, 0x80 | condition], 7);
    vec![
        // lea rax,[rdi+rsi]; push rbx; add rax,rdx; pop rbx; ret
        shape(&[lea, &[0x53], &[0x48, 0x01, 0xd0], &[0x5b], &[0xc3]], 0, 2),
        // the same with the `ret` alone before padding
        shape(&[lea, &[0x48, 0x01, 0xd0], &[0xc3]], 8, 2),
        // sub rsp,24; mov [rsp],rdi; add rsp,24; ret 0
        shape(&[&[0x48, 0x83, 0xec, 0x18], &[0x48, 0x89, 0x3c, 0x24], &[0x48, 0x83, 0xc4, 0x18], &[0xc2, 0, 0]], 0, 2),
        // lea rax; jmp helper
        shape(&[lea, &jump(&[0xe9], 4)], 0, 1),
        // lea rax; jmp [HELPER_POINTER]
        shape(&[lea, &[0xff, 0x24, 0x25, 0xf8, 0x07, 0x70, 0x00]], 0, 1),
        // lea rax; cmp rdi,rsi; ja helper; mov eax,7; ret: taken and not taken
        shape(&[lea, &[0x48, 0x39, 0xf7], &conditional(7)], 0, 2),
        shape(&[lea, &[0x48, 0x39, 0xf7], &conditional(6)], 0, 2),
    ]
    .into_iter()
    .map(|mut s| {
        if s.text[s.from + s.point] == 0x0f {
            s.text.extend([0xb8, 7, 0, 0, 0, 0xc3]);
        }
        s
    })
    .collect()
}

impl End {
    fn site(&self) -> Site {
        let conditional = self.text[self.from + self.point] == 0x0f;
        let end = if conditional { self.from + self.point + 6 } else { self.text.len() - self.padding };
        let (bytes, padding) = (&self.text[self.from..end], if conditional { &[][..] } else { &self.text[end..] });
        exit_site(TEXT, TEXT + self.from as u64, self.point, bytes, padding)
    }

    fn run(&self, env: &Environment, plans: Vec<&PatchPlan>, steps: Vec<Step>) -> Outcome {
        Program { env, text: self.text.clone(), plans, steps, counters: 4 }.run()
    }
}

#[test]
fn exits_of_every_shape_are_counted_and_change_nothing() {
    let returned = snippet(vec![Stmt::Set(v(0), Expr::Return)]);
    for identity in IDENTITIES {
        for (n, shape) in shapes().iter().enumerate() {
            let mut w = weave(identity, shape.site(), &[], &[count(), returned.clone()]);
            let steps: Vec<_> = [0x246, 0xad7, 0x202, 0x897]
                .map(|flags| Step::Call { target: TEXT, registers: vec![], flags })
                .to_vec();
            let plain = shape.run(&w.env, vec![], steps.clone());
            let out = shape.run(&w.env, vec![&w.weave.plan], steps.clone());
            assert_eq!(plain.calls, out.calls, "{identity:?} {n}");
            // The scratch memory must be the same, except below the stack pointer.
            assert_eq!(plain.scratch, out.scratch);
            let own = &out.shards[if identity == ThreadIdentity::Locked { 0 } else { 2 }];
            let passes = if n == 6 { 0 } else { 4 };
            let result =
                if passes == 0 { 0 } else { SCRATCH as i64 * 2 + 0x300 + if n < 2 { initial_rdx() } else { 0 } };
            let result = if n == 2 { image_rax() } else { result };
            assert_eq!(own[..2], [passes, result], "{identity:?} {n}");

            // Add another snippet after these, then remove all.
            let mut point = w.point().clone();
            let request = MiniRequest { id: 9, snippet: &count(), counters: &[3] };
            let added = add_mini(&w.env, &mut w.arena, &mut point, &request, 9).expect("there is room");
            verify_added(&w.env, &w.arena, &added, &point, &request).expect("right");
            assert_eq!(point.minis.last().map(|m| m.id), Some(9));
            let out = shape.run(&w.env, vec![&w.weave.plan, &added], steps.clone());
            assert_eq!(plain.calls, out.calls);
            let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
            assert_eq!(out.shards[own][3], passes);
            let before = point.clone();
            let removed = remove_mini(&w.arena, &mut point, 0).expect("it is there");
            verify_removed(&w.arena, &removed, &before, &point).expect("right");
            let gone = remove_points([&point]);
            verify_removal(&gone, &[point]).expect("right");
            let out = shape.run(&w.env, vec![&w.weave.plan, &added, &removed, &gone], steps);
            assert_eq!((plain.calls, [0; 4].as_slice()), (out.calls, out.shards[own].as_slice()));
        }
    }
}

fn initial_rdx() -> i64 {
    image::initial(2).cast_signed()
}

fn image_rax() -> i64 {
    image::initial(0).cast_signed()
}

/// Three functions: `outer` calls `middle`, which calls `inner`. If rbx is not 0, `inner` leaves both calls and returns from `outer`;
/// otherwise it returns to `middle`.
struct Nest {
    text: Vec<u8>,
    outer: u64,
    middle: (u64, Site),
    inner: (u64, Site),
}

fn nest() -> Nest {
    nest_where(false)
}

/// Builds the functions. If `jumps`, `middle` ends by a jump to `inner` instead of a call.
fn nest_where(jumps: bool) -> Nest {
    use iced_x86::IcedError;
    use iced_x86::code_asm::*;
    let build = || -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let at = |a: &mut CodeAssembler, offset: usize| -> Result<(), IcedError> {
            let now = a.assemble(TEXT)?.len();
            a.db(&vec![0x90; offset - now])
        };
        // `outer` keeps its stack pointer in rbp and calls `middle`.
        a.push(rbp)?;
        a.mov(rbp, rsp)?;
        a.call(TEXT + 0x40)?;
        a.pop(rbp)?;
        a.ret()?;
        at(&mut a, 0x40)?;
        // `middle` calls `inner` or jumps to it.
        a.nop_1(dword_ptr(rax))?;
        a.sub(rsp, 24)?;
        if jumps {
            a.add(rsp, 24)?;
            a.jmp(TEXT + 0x80)?;
        } else {
            a.call(TEXT + 0x80)?;
            a.add(rsp, 24)?;
            a.ret()?;
        }
        at(&mut a, 0x80)?;
        // `inner` returns to the caller of `outer` if rbx is not 0, otherwise to its own caller.
        let mut stays = a.create_label();
        a.test(rbx, rbx)?;
        a.nop_1(dword_ptr(rax))?;
        a.je(stays)?;
        a.mov(rsp, rbp)?;
        a.pop(rbp)?;
        a.ret()?;
        a.set_label(&mut stays)?;
        a.lea(rax, qword_ptr(rdi + 5))?;
        a.ret()?;
        at(&mut a, 0xc0)?;
        a.assemble(TEXT)
    };
    let text = build().expect("it assembles");
    let place = |bytes: &[u8]| text.windows(bytes.len()).position(|w| w == bytes).expect("there");
    let (add, lea) = (place(&[0x48, 0x83, 0xc4, 0x18]), place(&[0x48, 0x8d, 0x47, 0x05, 0xc3]));
    let exit = |function: u64, at: usize| {
        let end = at
            + 4
            + if text[at + 4] == 0xc3 { 1 } else { text[at + 4..].iter().position(|b| *b == 0x90).expect("padding") };
        exit_site(function, TEXT + at as u64, 4, &text[at..end], &[])
    };
    let (middle, inner) = (TEXT + 0x40, TEXT + 0x80);
    Nest { outer: TEXT, middle: (middle, exit(middle, add)), inner: (inner, exit(inner, lea)), text }
}

/// First counter of each of four variables. The last variable may have any shape.
const PLACES: [u32; 4] = [4, 8, 12, 20];

impl Nest {
    fn entry(&self, function: u64) -> Site {
        let offset = (function - TEXT) as usize;
        let bytes = &self.text[offset..offset + 7];
        entry_at(function, bytes).free(&[], true)
    }

    /// Weaves entry and exit snippets for `middle` and `inner`, and calls `outer` with these values of rbx.
    fn run(&self, identity: ThreadIdentity, middle: [&Snippet; 2], inner: [&Snippet; 2], rbx: &[u64]) -> Outcome {
        let steps = rbx.iter().map(|&rbx| self.call(rbx)).collect();
        self.run_in(&environment(identity), middle, inner, steps)
    }

    fn call(&self, rbx: u64) -> Step {
        Step::Call { target: self.outer, registers: vec![(3, rbx)], flags: 0x246 }
    }

    fn run_in(&self, env: &Environment, middle: [&Snippet; 2], inner: [&Snippet; 2], steps: Vec<Step>) -> Outcome {
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let sites = [self.entry(self.middle.0), self.middle.1.clone(), self.entry(self.inner.0), self.inner.1.clone()];
        let snippets = [middle[0], middle[1], inner[0], inner[1]];
        let prune = snippet(vec![Stmt::Prune]);
        let mini = |id, snippet| MiniRequest { id, snippet, counters: &PLACES };
        let minis: Vec<_> = snippets.map(|s| [mini(1, &prune), mini(2, s)]).into();
        let requests: Vec<_> = sites
            .iter()
            .zip(&minis)
            .map(|(site, minis)| {
                // Only entries search for calls that have ended without an exit.
                let minis = if site.point_kind() == PointKind::Entry { &minis[..] } else { &minis[1..] };
                PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None }
            })
            .collect();
        let weave = weave_points(env, &mut arena, &mut text, &requests).expect("the request makes sense");
        if let Err(e) = verify_weave(env, &arena, &text, &requests, &weave) {
            panic!("{e}\n{}", list(&weave.plan, &weave.woven));
        }
        assert!(weave.woven.iter().all(Result::is_ok), "{:?}", weave.woven);
        let counters = 20 + TableShape::SUMS.slots().max(Shape::Histogram(Resolution::Fine).slots()) as usize;
        let program = |plans| Program { env, text: self.text.clone(), plans, steps: steps.clone(), counters };
        let (plain, out) = (program(vec![]).run(), program(vec![&weave.plan]).run());
        assert_eq!(plain.calls, out.calls);
        out
    }
}

/// Each reading of a clock counts for one of two sums: what passes in `inner`, and what passes in `middle` without that.
#[test]
fn the_present_time_divides_what_passes() {
    let nest = nest();
    let rseq = CpuClock::Rseq { slot: image::SLOT, signature: 0 };
    let clocks = WALLS.map(|wall| (Clock::Wall, wall, CpuClock::None)).into_iter();
    let clocks = clocks.chain([rseq, CpuClock::SystemCall].map(|cpu| (Clock::Cpu, WallClock::Tsc, cpu)));
    for (clock, wall, cpu) in clocks {
        let env = Environment { wall, cpu, ..environment(GLIBC) };
        let since = |last| Expr::Since(v(last), Box::new(Expr::Now(clock)));
        let part = |sum: u32| snippet(vec![Stmt::Add(v(sum), since(2)), Stmt::Set(v(3), Expr::Now(clock))]);
        let [of_inner, of_middle] = [part(0), part(1)];
        let out = nest.run_in(&env, [&of_middle, &of_middle], [&of_middle, &of_inner], vec![nest.call(0); 20]);
        let sums = [out.shards[2][PLACES[0] as usize], out.shards[2][PLACES[1] as usize]];
        let [last, now] = [2, 3].map(|n| out.shards[2][PLACES[n] as usize]);
        assert!(sums.iter().all(|sum| *sum > 0) && sums[0] + sums[1] <= last, "{clock:?} {wall:?} {cpu:?}: {sums:?}");
        assert!(last <= now, "{clock:?}: {last} {now}");
    }
}

fn record(activations: u32) -> CallRecord {
    CallRecord { activations: v(activations), kept: vec![], restore: None }
}

/// Clocks of wall time.
const WALLS: [WallClock; 3] = [WallClock::Tsc, WallClock::SystemCall, WallClock::Vdso(Avma(image::TELL_TIME))];

#[test]
fn a_histogram_of_times_is_exact() {
    for wall in WALLS {
        times_are_exact(&Environment { wall, ..environment(GLIBC) });
    }
}

fn times_are_exact(env: &Environment) {
    let nest = nest();
    // Counters: activations of `middle`, activations of `inner`, a counter, the histogram.
    let timed = |n| CallRecord { kept: vec![KeptValue::Time(Clock::Wall)], ..record(n) };
    let open = |n| snippet(vec![Stmt::Open(timed(n), vec![])]);
    let close = |n| {
        snippet(vec![Stmt::Close(
            timed(n),
            vec![Stmt::Observe(v(3), Resolution::Fine, Expr::Elapsed(Clock::Wall, TimeUnit::Ticks), None)],
        )])
    };
    let out = nest.run_in(env, [&open(0), &close(0)], [&open(1), &close(1)], vec![nest.call(0); 50]);
    let own = &out.shards[2];
    let histogram = &own[20..];
    assert_eq!((histogram[3], histogram[BUCKETS..].iter().sum::<i64>()), (0, 100));
    assert_eq!((&own[4..7], &own[8..11]), (&[0; 3][..], &[0; 3][..]));
    let halves = [histogram[SQUARES as usize], histogram[SQUARES as usize + 1]].map(i64::cast_unsigned);
    let (sum, max, min) = (histogram[0] as u64, histogram[1] as u64, !(histogram[2] as u64));
    assert!(min > 0 && min <= max && sum >= 50 * min && sum <= 100 * max, "{sum} {min} {max}");
    let squares = squares(halves, 100, sum, max).expect("small values");
    let mean_square = u128::from(sum) * u128::from(sum) / 100;
    assert!((mean_square..=100 * u128::from(max) * u128::from(max)).contains(&squares), "{squares}");
    let used: Vec<u32> = (0..Resolution::Fine.buckets()).filter(|b| histogram[BUCKETS + *b as usize] != 0).collect();
    assert_eq!(
        (used.first(), used.last()),
        (Some(&Resolution::Fine.bucket_of(min)), Some(&Resolution::Fine.bucket_of(max)))
    );
}

#[test]
fn own_times_add_up_to_the_time_of_the_outermost_calls() {
    let env = environment(GLIBC);
    let nest = nest();
    // Both functions have the histogram 3; `middle` calls `inner`.
    let timed = |n| CallRecord { kept: vec![KeptValue::Time(Clock::Wall), KeptValue::Spent(Clock::Wall)], ..record(n) };
    let elapsed = || Expr::Elapsed(Clock::Wall, TimeUnit::Ticks);
    let open = |n| snippet(vec![Stmt::Open(timed(n), vec![])]);
    let close = |n, more: Vec<Stmt>| {
        let observe = Stmt::Observe(v(3), Resolution::Fine, elapsed(), Some(Clock::Wall));
        snippet(vec![Stmt::Close(timed(n), [more, vec![observe]].concat())])
    };
    // The counter 2 has the times of `middle` alone.
    let outer = close(0, vec![Stmt::Add(v(2), elapsed())]);
    let out = nest.run_in(&env, [&open(0), &outer], [&open(1), &close(1, vec![])], vec![nest.call(0); 50]);
    let shard = &out.shards[2];
    let (outermost, sum, own) = (shard[PLACES[2] as usize], shard[20], shard[23] - 100);
    assert!(outermost > 0 && sum > outermost && own > 0, "{outermost} {sum} {own}");
    // The own time of `middle` is its time without that of `inner`, so nothing counts twice.
    assert_eq!(own, outermost);
}

/// Indices of the words in [`Outcome::cpu`].
const OFFSET: usize = 0;
const LAST: usize = 1;
const DESCRIPTOR: usize = 2;
const AT: usize = 3;
const RENEWALS: usize = 4;

#[test]
fn processor_time_is_renewed_when_the_kernel_has_switched_the_thread() {
    let nest = nest();
    let timed = |n| CallRecord { kept: vec![KeptValue::Time(Clock::Cpu)], ..record(n) };
    let open = |n| snippet(vec![Stmt::Open(timed(n), vec![])]);
    let close = |n| {
        snippet(vec![Stmt::Close(
            timed(n),
            vec![Stmt::Observe(v(3), Resolution::Fine, Expr::Elapsed(Clock::Cpu, TimeUnit::Ticks), None)],
        )])
    };
    let rseq = CpuClock::Rseq { slot: image::SLOT, signature: 0 };
    let run = |cpu, steps| {
        let env = Environment { cpu, ..environment(GLIBC) };
        let out = nest.run_in(&env, [&open(0), &close(0)], [&open(1), &close(1)], steps);
        let (own, calls) = (&out.shards[2], 2 * out.calls.len() as i64);
        assert_eq!((&own[4..7], &own[8..11]), (&[0; 3][..], &[0; 3][..]));
        assert_eq!(own[20 + BUCKETS..].iter().sum::<i64>(), calls);
        // All calls together take less processor time than the program.
        assert!(own[20] > 0 && (own[20] as u64) < out.cpu[LAST], "{:?}", &own[20..23]);
        (out.cpu, out.slot)
    };
    let descriptor = u64::from(environment(GLIBC).data.displacement(header::DESCRIPTOR));
    let calls = || vec![nest.call(0); 50];
    let before = |step: Step| calls().into_iter().flat_map(|call| [step.clone(), call]).collect::<Vec<_>>();

    let (cpu, slot) = run(rseq, calls());
    assert_eq!((cpu[RENEWALS], cpu[DESCRIPTOR], slot), (1, descriptor, descriptor));
    assert_eq!(cpu[AT], image::TLS + image::SLOT as u64);
    assert!(cpu[OFFSET] != 0);
    // The kernel switches the thread before each call, or the pointer leads to an old sequence of the program.
    for left in [0, 0x1234_5678] {
        assert_eq!(run(rseq, before(Step::Slot(left))).0[RENEWALS], 50);
    }
    // The pointer already leads to the descriptor, although this thread has not computed its offset yet.
    assert_eq!(run(rseq, [vec![Step::Slot(descriptor)], calls()].concat()).0[RENEWALS], 1);
    // The rseq area is not registered, or the code uses system calls: then it writes no pointer.
    let (cpu, slot) = run(rseq, [vec![Step::Processor(-1)], calls()].concat());
    assert_eq!((cpu[RENEWALS], cpu[DESCRIPTOR], cpu[AT], slot), (200, 0, 0, 0));
    let (cpu, slot) = run(CpuClock::SystemCall, calls());
    assert_eq!((cpu[RENEWALS], cpu[DESCRIPTOR], cpu[AT], slot), (200, 0, 0, 0));
}

#[test]
fn values_fall_into_their_buckets() {
    let nest = nest();
    let nothing = snippet(vec![]);
    for value in [0, 1, 31, 32, 33, 1000, 12345678, (1 << 44) - 1, 1 << 44, i64::MAX, -5] {
        let observe = snippet(vec![Stmt::Observe(v(3), Resolution::Fine, Expr::Const(value), None)]);
        let out = nest.run(GLIBC, [&nothing, &nothing], [&observe, &nothing], &[0, 0]);
        let histogram = &out.shards[2][20..];
        let value = value.max(0) as u64;
        assert_eq!(histogram[0] as u64, value.wrapping_mul(2));
        assert_eq!((histogram[1] as u64, !histogram[2] as u64), (value, value));
        // The square of a value with more bits than a bucket can hold is that of the largest such value.
        let square = u128::from(value.min((1 << VALUE_BITS) - 1)).pow(2);
        let halves = [histogram[SQUARES as usize], histogram[SQUARES as usize + 1]].map(i64::cast_unsigned);
        assert_eq!(halves, [(2 * square) as u64, (2 * (square >> SQUARE_BITS)) as u64], "{value}");
        let sum = squares(halves, 2, value.saturating_mul(2), value);
        assert_eq!(sum, (value >> 43 == 0).then_some(2 * square), "{value}");
        let bucket = Resolution::Fine.bucket_of(value) as usize;
        assert!(histogram[BUCKETS..].iter().enumerate().all(|(i, n)| *n == if i == bucket { 2 } else { 0 }), "{value}");
    }
}

#[test]
fn values_of_keys_add_up_until_no_place_is_in_reach() {
    use ingraft_model::table::{KeyTable, MULTIPLIER, PROBES};
    let nest = nest();
    let add = |key: Expr, amount: Expr| Stmt::AddAt(v(3), TableShape::SUMS, vec![KeyField::Number(key)], amount);
    let c = |n: u64| Expr::Const(n.cast_signed());
    // The search for these keys begins at the last place and continues at the first.
    let hash = |key: &u64| key.wrapping_mul(MULTIPLIER) >> (64 - Places::FEW.bits());
    let same: Vec<u64> =
        (1..).filter(|key| hash(key) == u64::from(Places::FEW.count()) - 1).take(PROBES as usize + 2).collect();
    let mut stmts: Vec<Stmt> = same.iter().map(|key| add(c(*key), c(key + 1))).collect();
    stmts.extend([
        add(c(0), c(7)),
        add(c(u64::MAX), Expr::Return),
        add(c(1 << 63), c((-9_i64).cast_unsigned())),
        add(Expr::Binary(BinaryOp::Add, Box::new(Expr::Return), Box::new(c(1 << 40))), c(1 << 41)),
    ]);
    let large = (1..).find(|key| hash(key) == 0).expect("a key");
    let asked = [same[0], same[PROBES as usize - 1], same[PROBES as usize], 0, u64::MAX, 1 << 63, large];
    let weighed = (1..).zip(asked).map(|(weight, key)| {
        let value = Expr::ValueAt(v(3), Places::FEW, Box::new(c(key)));
        Expr::Binary(BinaryOp::Multiply, Box::new(value), Box::new(c(weight)))
    });
    let sum = |a, b| Expr::Binary(BinaryOp::Add, Box::new(a), Box::new(b));
    stmts.push(Stmt::Set(v(2), weighed.reduce(sum).expect("some")));
    let (keyed, nothing) = (snippet(stmts), snippet(vec![]));
    let calls = 3;
    let out = nest.run(GLIBC, [&nothing, &nothing], [&nothing, &keyed], &vec![0; calls as usize]);
    let table = KeyTable::from_slots(TableShape::SUMS, |n| out.shards[2][20 + n as usize]);
    let returned = out.calls[0].registers[0].cast_signed();
    let mut expected: Vec<(u64, i64)> =
        same.iter().take(PROBES as usize).map(|key| (*key, calls * (key + 1).cast_signed())).collect();
    expected.extend([(0, calls * 7), (u64::MAX, calls * returned), (1 << 63, calls * -9)]);
    expected.push(((returned + (1 << 40)).cast_unsigned(), calls << 41));
    expected.sort_unstable();
    let known = |key: &u64| table.values.get(&TableKey::Number(*key)).copied().unwrap_or(0);
    let weighed: i64 = (1..).zip(&asked).map(|(weight, key): (i64, _)| known(key) * weight).sum();
    assert_eq!(out.shards[2][12], weighed, "what code reads: 0 of what found no place");
    let found: Vec<_> = table.values.iter().map(|(key, value)| (key.number().expect("a number"), *value)).collect();
    assert_eq!(found, expected);
    let beyond: i64 = same.iter().skip(PROBES as usize).map(|key| calls * (key + 1).cast_signed()).sum();
    assert_eq!(table.others, beyond);
}

#[test]
fn values_by_index_fall_into_their_granules() {
    use ingraft_model::{Ranges, vector};
    let nest = nest();
    let numbers = [-11, -10, -1, 0, 9, 10, 14, 15, 16, 63, 64, 1 << 40, i64::MIN, i64::MAX];
    let returned = |n: i64| {
        // The compiler cannot fold this zero: the result of a function minus itself.
        let zero = Expr::Binary(BinaryOp::Subtract, Box::new(Expr::Return), Box::new(Expr::Return));
        Expr::Binary(BinaryOp::Add, Box::new(zero), Box::new(Expr::Const(n)))
    };
    for ranges in [
        Ranges::new(-10, 25, 10),
        Ranges::new(0, 64, 16),
        Ranges::new(0, 3, 1),
        Ranges::new(1 << 40, 1 << 35, 1 << 33),
        Ranges::new(i64::MIN, i64::MAX, i64::MAX / 5),
    ] {
        let ranges = ranges.expect("granules");
        let (calls, nothing) = (3, snippet(vec![]));
        let each = |n: &i64| {
            let amounts = [Expr::Const(2), Expr::Return];
            let known = Stmt::AddIn(v(3), ranges, Expr::Const(*n), Expr::Const(5));
            amounts.map(|amount| Stmt::AddIn(v(3), ranges, returned(*n), amount)).into_iter().chain([known])
        };
        let read = |n: Expr| Expr::ValueIn(v(3), ranges, Box::new(n));
        let twice = |n: &i64| [read(returned(*n)), read(Expr::Const(*n))];
        let sum = |a, b| Expr::Binary(BinaryOp::Add, Box::new(a), Box::new(b));
        let all = Stmt::Set(v(2), numbers.iter().flat_map(twice).reduce(sum).expect("some"));
        let code = snippet(numbers.iter().flat_map(each).chain([all]).collect());
        let out = nest.run(GLIBC, [&nothing, &nothing], [&nothing, &code], &vec![0; calls as usize]);
        let table = vector::from_slots(ranges.count(), |n| out.shards[2][20 + n as usize]);
        let one = calls * (7 + out.calls[0].registers[0].cast_signed());
        let mut expected = std::collections::BTreeMap::new();
        let mut outside = 0;
        for n in numbers {
            match ranges.index(n) {
                Some(index) => *expected.entry(u64::from(index)).or_insert(0) += one,
                None => outside += one,
            }
        }
        let inside = numbers.iter().filter_map(|n| expected.get(&u64::from(ranges.index(*n)?)));
        assert_eq!(out.shards[2][12], 2 * inside.sum::<i64>(), "{ranges:?}");
        let expected = expected.into_iter().map(|(key, value): (u64, i64)| (TableKey::Number(key), value)).collect();
        assert_eq!((table.values, table.others), (expected, outside), "{ranges:?}");
        let additions = 3 * calls * numbers.len() as i64;
        assert_eq!(out.shards[2][20 + vector::USED as usize], additions, "all of them are counted");
    }
}

#[test]
fn the_last_mark_of_an_object_tells_its_state() {
    use ingraft_model::{KeyTable, ObjectKind, ObjectState};
    let nest = nest();
    let state = |kind, retired| ObjectState { kind, retired };
    let mark = |key: i64, kind, retired| Stmt::Mark(v(3), Expr::Const(key), state(kind, retired));
    let enter = snippet(vec![
        mark(0x10, ObjectKind::Mutex, false),
        mark(0x20, ObjectKind::Barrier, true),
        mark(0, ObjectKind::SpinLock, true),
    ]);
    let leave = snippet(vec![
        mark(0x10, ObjectKind::Mutex, true),
        mark(0x20, ObjectKind::Barrier, false),
        Stmt::Mark(v(3), Expr::Return, state(ObjectKind::Semaphore, false)),
    ]);
    let nothing = snippet(vec![]);
    let out = nest.run(GLIBC, [&nothing, &nothing], [&enter, &leave], &[0; 3]);
    let table = KeyTable::from_slots(TableShape::OBJECTS, |n| out.shards[2][20 + n as usize]);
    let returned = out.calls[0].registers[0];
    let mut expected = vec![
        (0, state(ObjectKind::SpinLock, true)),
        (0x10, state(ObjectKind::Mutex, true)),
        (0x20, state(ObjectKind::Barrier, false)),
        (returned, state(ObjectKind::Semaphore, false)),
    ];
    expected.sort_unstable();
    assert_eq!(table.states().collect::<Vec<_>>(), expected);
    // A later mark has a later time.
    let mark = |key: u64| table.values[&TableKey::Number(key)];
    assert!(mark(0) < mark(0x10) && mark(0x10) <= mark(0x20));
    assert_eq!((table.total(), table.others), (2, 0));
}

#[test]
fn calls_that_are_left_otherwise_are_found_and_undone() {
    let nest = nest();
    // `middle` has a timer, `inner` a flag; two of five calls do not pass the exits.
    for (clock, wall) in [Clock::Wall, Clock::Cpu].into_iter().flat_map(|clock| WALLS.map(|wall| (clock, wall))) {
        left_otherwise(&nest, clock, wall);
    }
}

fn left_otherwise(nest: &Nest, clock: Clock, wall: WallClock) {
    let env = Environment { wall, cpu: CpuClock::Rseq { slot: image::SLOT, signature: 0 }, ..environment(GLIBC) };
    let run = |middle, inner, rbx: &[u64]| {
        nest.run_in(&env, middle, inner, rbx.iter().flat_map(|rbx| [Step::Slot(0), nest.call(*rbx)]).collect())
    };
    let timer = CallRecord { restore: Some(Restore::Timer(v(2), clock)), ..record(0) };
    let flag = CallRecord { restore: Some(Restore::Value(v(3))), ..record(1) };
    let start = snippet(vec![Stmt::Open(timer.clone(), vec![Stmt::Start(v(2), clock)])]);
    let stop = snippet(vec![Stmt::Close(timer, vec![Stmt::Stop(v(2), clock)])]);
    let up = snippet(vec![Stmt::Open(flag.clone(), vec![Stmt::Add(v(3), Expr::Const(1))])]);
    let down = snippet(vec![Stmt::Close(flag, vec![Stmt::Add(v(3), Expr::Const(-1))])]);
    let out = run([&start, &stop], [&up, &down], &[0, 1, 0, 1, 0]);
    let own = &out.shards[2];
    assert_eq!((&own[4..7], &own[8..11]), (&[2, 0, 0][..], &[2, 0, 0][..]));
    assert_eq!((own[12], own[20]), (0, 0), "the timer stands, the flag is down");
    assert!(own[13] > 0);
    // A timer of a call that is still open keeps running.
    let out = run([&start, &stop], [&up, &down], &[0, 1]);
    assert_eq!((out.shards[2][12], out.shards[2][20]), (1, 1));
    assert!(out.shards[2][13] < 0, "it runs");
}

#[test]
fn an_exit_without_its_entry_does_nothing() {
    let nest = nest();
    let nothing = snippet(vec![]);
    let close = snippet(vec![Stmt::Close(record(0), vec![Stmt::Add(v(2), Expr::Const(1))])]);
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let out = nest.run(identity, [&nothing, &close], [&nothing, &nothing], &[0, 0, 0]);
        assert_eq!((&out.shards[2][4..7], out.shards[2][12]), (&[0, 3, 0][..], 0));
    }
}

#[test]
fn arguments_and_results_meet_at_the_exit() {
    let nest = nest();
    let arguments = [0, 3, 2].map(KeptValue::Argument);
    let kept = CallRecord { kept: arguments.to_vec(), ..record(0) };
    let sum = |a, b| Expr::Binary(BinaryOp::Add, Box::new(a), Box::new(b));
    let open = snippet(vec![Stmt::Open(kept.clone(), vec![])]);
    let close = snippet(vec![Stmt::Close(
        kept,
        vec![
            Stmt::Add(v(2), arguments.map(Expr::Saved).into_iter().reduce(sum).expect("three")),
            Stmt::Set(v(3), Expr::Return),
        ],
    )]);
    let nothing = snippet(vec![]);
    let out = nest.run(GLIBC, [&open, &close], [&nothing, &nothing], &[0]);
    let argument = |r: u8| image::initial(r).cast_signed();
    assert_eq!(out.shards[2][12], argument(7).wrapping_add(argument(1)).wrapping_add(argument(2)));
    assert_eq!(out.shards[2][20], argument(7) + 5);
}

#[test]
fn one_record_keeps_two_clocks_and_numbers_of_both_kinds() {
    let nest = nest();
    let env = Environment { cpu: CpuClock::Rseq { slot: image::SLOT, signature: 0 }, ..environment(GLIBC) };
    let format = FloatFormat::Single;
    let float = Float { register: 3, format };
    let kept = [
        KeptValue::Time(Clock::Wall),
        KeptValue::Time(Clock::Cpu),
        KeptValue::Argument(1),
        KeptValue::Float(float),
        KeptValue::Argument(8),
    ];
    let kept = CallRecord { kept: kept.to_vec(), ..record(0) };
    let open = snippet(vec![Stmt::Open(kept.clone(), vec![Stmt::Add(v(2), Expr::Float(float))])]);
    let elapsed = |clock| Expr::Elapsed(clock, TimeUnit::Ticks);
    let positive = |e| Expr::Binary(BinaryOp::Greater, Box::new(e), Box::new(Expr::Const(0)));
    let both = Expr::Binary(
        BinaryOp::Add,
        Box::new(positive(elapsed(Clock::Wall))),
        Box::new(Expr::Binary(BinaryOp::Multiply, Box::new(positive(elapsed(Clock::Cpu))), Box::new(Expr::Const(100)))),
    );
    let saved = Expr::Binary(
        BinaryOp::Subtract,
        Box::new(Expr::Saved(KeptValue::Float(float))),
        Box::new(Expr::Saved(KeptValue::Argument(1))),
    );
    let close = snippet(vec![Stmt::Close(kept, vec![Stmt::Add(v(3), saved), Stmt::Add(v(1), both)])]);
    let nothing = snippet(vec![]);
    let out = nest.run_in(&env, [&open, &close], [&nothing, &nothing], vec![Step::Slot(0), nest.call(0)]);
    let (float, argument) = (out.shards[2][12], image::initial(6).cast_signed());
    assert_eq!(out.shards[2][20], float.wrapping_sub(argument));
    assert_eq!((&out.shards[2][4..7], out.shards[2][8]), (&[0, 0, 0][..], 101));
    // A value that no record has kept is refused.
    let wrong = snippet(vec![Stmt::Close(record(0), vec![Stmt::Add(v(3), elapsed(Clock::Wall))])]);
    let minis = [MiniRequest { id: 0, snippet: &wrong, counters: &[4, 8, 12, 20] }];
    let request =
        PointRequest { site: &nest.middle.1, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None };
    assert!(weave_points(&env, &mut arena(), &mut TextSpace::new(), &[request]).is_err());
}

#[test]
fn without_a_shard_of_its_own_a_call_is_only_noted() {
    let nest = nest();
    let timed = CallRecord {
        kept: vec![KeptValue::Time(Clock::Wall)],
        restore: Some(Restore::Timer(v(2), Clock::Wall)),
        ..record(0)
    };
    let open = snippet(vec![Stmt::Open(timed.clone(), vec![Stmt::Start(v(2), Clock::Wall)])]);
    let close = snippet(vec![Stmt::Close(timed, vec![Stmt::Stop(v(2), Clock::Wall)])]);
    let nothing = snippet(vec![]);
    let out = nest.run(ThreadIdentity::Locked, [&open, &close], [&nothing, &nothing], &[0, 0]);
    assert_eq!((&out.shards[0][4..7], &out.shards[0][12..15]), (&[0, 0, 2][..], &[0, 0, 0][..]));
}

#[test]
fn a_call_that_jumps_on_ends_where_that_function_returns() {
    let nest = nest_where(true);
    let flag = CallRecord { restore: Some(Restore::Value(v(3))), ..record(0) };
    let up = snippet(vec![Stmt::Open(flag.clone(), vec![Stmt::Add(v(3), Expr::Const(1))])]);
    let hand = snippet(vec![Stmt::HandOver(flag.clone(), Whose::Own, vec![])]);
    let down = vec![Stmt::Add(v(3), Expr::Const(-1)), Stmt::Add(v(2), Expr::Return)];
    let close = snippet(vec![Stmt::CloseHanded(flag, down)]);
    let nothing = snippet(vec![]);
    let result = image::initial(7).cast_signed() + 5;
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        // The third call does not return. A direct call of `inner` has no record.
        let inner = Step::Call { target: nest.inner.0, registers: vec![(3, 0)], flags: 0x246 };
        let steps = [nest.call(0), inner.clone(), nest.call(0), nest.call(1), nest.call(0), inner].to_vec();
        let out = nest.run_in(&environment(identity), [&up, &hand], [&nothing, &close], steps);
        let own = &out.shards[2];
        assert_eq!((&own[4..8], own[20]), (&[1, 0, 0, 0][..], 0), "the flag is down");
        assert_eq!(own[12], result.wrapping_mul(3));
    }
}

#[test]
fn what_was_handed_over_is_told_from_what_was_left() {
    let nest = nest_where(true);
    let open = snippet(vec![Stmt::Open(record(0), vec![])]);
    let hand = snippet(vec![Stmt::HandOver(record(0), Whose::Own, vec![])]);
    let both = snippet(vec![Stmt::Open(record(1), vec![])]);
    let ends = |n: u32| vec![Stmt::Add(v(n), Expr::Const(1))];
    // Close the record of `middle` first, although the record of `inner` was opened later and lies above it.
    let close = snippet(vec![Stmt::CloseHanded(record(0), ends(2)), Stmt::Close(record(1), ends(3))]);
    let out = nest.run(GLIBC, [&open, &hand], [&both, &close], &[0, 1, 1, 0, 0]);
    let own = &out.shards[2];
    assert_eq!((own[12], own[20]), (3, 3));
    assert_eq!((&own[4..8], &own[8..12]), (&[2, 0, 0, 0][..], &[2, 0, 0, 0][..]));
}

#[test]
fn a_call_that_jumps_where_nobody_looks_is_given_up() {
    let nest = nest_where(true);
    let flag = CallRecord { restore: Some(Restore::Value(v(3))), ..record(0) };
    let up = snippet(vec![Stmt::Open(flag.clone(), vec![Stmt::Add(v(3), Expr::Const(1))])]);
    let give_up = snippet(vec![Stmt::GiveUp(flag.clone(), Whose::Own, vec![])]);
    let earlier = snippet(vec![Stmt::GiveUp(flag, Whose::Earlier, vec![])]);
    let nothing = snippet(vec![]);
    let out = nest.run(GLIBC, [&up, &give_up], [&nothing, &earlier], &[0, 0, 0]);
    assert_eq!((&out.shards[2][4..8], out.shards[2][20]), (&[0, 0, 0, 3][..], 0));
    // If no record is open, a jump of a call of `middle` counts as unseen. A jump at which an earlier function's call would go on does not.
    let out = nest.run(GLIBC, [&nothing, &give_up], [&nothing, &earlier], &[0, 0]);
    assert_eq!(&out.shards[2][4..8], &[0, 2, 0, 0]);
}

#[test]
fn the_layout_has_room() {
    let data = environment(GLIBC).data;
    assert!(TOP + 8 <= COUNTERS && COUNTERS + 8 * data.counters() <= data.records() - record::SIZE);
    assert_eq!(u64::from(data.records() + record::ROOM), data.stride);
}

#[test]
fn records_of_one_call_may_close_in_any_order() {
    let nest = nest();
    let flag = |n: u32, v: u32| CallRecord { restore: Some(Restore::Value(self::v(v))), ..record(n) };
    let (one, two) = (flag(0, 2), flag(1, 3));
    let up = |r: &CallRecord, body| Stmt::Open(r.clone(), body);
    let step = |n, by| Stmt::Add(v(n), Expr::Const(by));
    let open = snippet(vec![up(&one, vec![step(2, 1), up(&two, vec![step(3, 1)])])]);
    let close = snippet(vec![Stmt::Close(one, vec![step(2, 9)]), Stmt::Close(two, vec![step(3, 19)])]);
    let nothing = snippet(vec![]);
    let out = nest.run(GLIBC, [&open, &close], [&nothing, &nothing], &[0, 1, 0, 0]);
    let own = &out.shards[2];
    // The second call passes no exit, so both of its records stay. Their removal restores the values from before that call.
    assert_eq!((&own[4..7], &own[8..11]), (&[1, 0, 0][..], &[1, 0, 0][..]));
    assert_eq!((own[12], own[20]), (30, 60));
}

/// `middle` and `inner` stand for two calls of one function, of which the outer one has no record.
#[test]
fn only_a_call_inside_of_another_one_of_its_function_has_a_record() {
    let nest = nest();
    let one = CallRecord { restore: Some(Restore::Outermost(v(3))), ..record(0) };
    let begin = |value| {
        let begin = Stmt::Open(one.clone(), vec![Stmt::Set(v(3), Expr::Const(-1))]);
        snippet(vec![begin, Stmt::Set(v(3), Expr::Const(value))])
    };
    let end = snippet(vec![Stmt::Add(v(2), Expr::Variable(v(3))), Stmt::Close(one.clone(), vec![])]);
    let run = |steps: &[u64]| {
        let out = nest.run(GLIBC, [&begin(100), &end], [&begin(1), &end], steps);
        let own = &out.shards[2];
        ((own[4], own[5], own[6]), own[12], (own[20], own[21] != 0))
    };
    assert_eq!(run(&[0, 0, 0]), ((0, 0, 0), 303, (0, false)));
    // The second call passes no exit, and its value stays. The third one finds that both calls were left.
    assert_eq!(run(&[0, 1]), ((0, 0, 0), 101, (1, true)));
    assert_eq!(run(&[0, 1, 0, 0]), ((2, 0, 0), 303, (100, false)));
    // Calls that had begun before have neither.
    let out = nest.run(GLIBC, [&snippet(vec![]), &end], [&begin(1), &end], &[0, 0]);
    assert_eq!((out.shards[2][5], out.shards[2][12], out.shards[2][20]), (2, 2, 0));
}
