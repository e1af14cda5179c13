//! The routine that enters contexts of calls that move between threads.

use ingraft_model::ContextShape;
use ingraft_model::contexts::{
    CALLS, FIRST, FULL, KEY, OUTSIDE, PARENT, PARENT_BIAS, PLACE, PROBES, TAKEN, TARGET, function_of, key,
};
use ingraft_model::layout::goroutine::{
    CONTEXT, MULTIPLIER, PLACE as LIST, PLACE_BITS, PLACES, RECORDS, RETURN, SHARD,
};
use ingraft_model::layout::{COUNTERS, TOP, record};

use super::machine::{Machine, RAX, RBX, RCX, RDX};
use super::{Area, add, compare, environment, machine};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::routines::assemble;

const THREAD: u64 = 0x7100_1000;
/// Descriptors of goroutines, and the ends of their stacks.
const GOROUTINES: [(u64, u64); 2] = [(0xc000_0400_0000, 0xc000_1000_8000), (0xc000_0400_0200, 0xc000_2000_8000)];
const STACK: u64 = 0x8000;
/// Shards of the threads that execute them.
const SHARDS: [u64; 2] = [5, 6];

/// Goroutines that execute calls, and a tree whose contexts they enter.
struct MovingCalls {
    env: Environment,
    shape: ContextShape,
    first: u32,
    /// Number of the next record in the lists.
    next: u64,
}

/// An open call.
#[derive(Clone, Copy)]
struct GoroutineCall {
    goroutine: usize,
    sp: u64,
}

impl MovingCalls {
    fn new(bits: u8, full: bool) -> (Self, Machine) {
        let env = environment();
        let shape = ContextShape::of_bits(bits, true, full).expect("a size");
        let mut m = machine(&env, Routine::EnterMoving);
        m.fs = THREAD;
        m.mapped.push(THREAD - 0x1000..THREAD + 0x1000);
        for (descriptor, high) in GOROUTINES {
            m.mapped.extend([descriptor..descriptor + 0x100, high - STACK..high]);
            m.write(descriptor, 8, high - STACK);
            m.write(descriptor + 8, 8, high);
        }
        (MovingCalls { env, shape, first: 100, next: 1 }, m)
    }

    fn area(&self) -> Area {
        Area(self.env.data)
    }

    /// Address of a counter of the tree in a shard.
    fn at(&self, shard: u64, n: u32) -> u64 {
        self.area().at(shard, COUNTERS + 8 * (self.first + n))
    }

    fn word(&self, m: &Machine, n: u32) -> u64 {
        m.read(self.at(0, n), 8)
    }

    /// Address of the word with the last record of a goroutine.
    fn list(&self, goroutine: usize) -> u64 {
        let (descriptor, _) = GOROUTINES[goroutine];
        let hash = descriptor.wrapping_mul(MULTIPLIER) >> (u64::BITS - PLACE_BITS);
        self.area().at(u64::from(SHARD), PLACES) + u64::from(LIST) * hash + 8
    }

    fn record(&self, n: u64, field: u32) -> u64 {
        self.area().at(u64::from(SHARD), RECORDS) + u64::from(record::SIZE) * n + u64::from(field)
    }

    fn tree(&self) -> u64 {
        u64::from(COUNTERS + 8 * self.first)
    }

    /// Puts a record into the list of a goroutine.
    fn park(&mut self, m: &mut Machine, call: GoroutineCall, restore: u64) -> u64 {
        let (n, list) = (self.next, self.list(call.goroutine));
        let (descriptor, high) = GOROUTINES[call.goroutine];
        self.next += 1;
        m.write(list - 8, 8, descriptor);
        m.write(self.record(n, record::SP), 8, call.sp.wrapping_sub(high));
        m.write(self.record(n, record::NAME), 4, u64::from(COUNTERS));
        m.write(self.record(n, record::RESTORE), 4, restore);
        m.write(self.record(n, record::SAVED), 8, m.read(list, 8));
        m.write(list, 8, n);
        n
    }

    /// Removes the last record of a goroutine.
    fn pop(&self, m: &mut Machine, goroutine: usize) {
        let n = m.read(self.list(goroutine), 8);
        m.write(self.list(goroutine), 8, m.read(self.record(n, record::SAVED), 8));
    }

    /// Prepares a thread for a call of a goroutine.
    fn execute(&self, m: &mut Machine, routine: Routine, (call, shard): (GoroutineCall, u64), function: u32) {
        m.load(super::CODE, &assemble(&self.env, routine).expect("assembles"));
        m.gs = shard * self.env.data.stride;
        let pointer = self.env.goroutine.expect("goroutines");
        m.write(THREAD.wrapping_add_signed(i64::from(pointer)), 8, GOROUTINES[call.goroutine].0);
        m.rip = super::CODE;
        m.registers[RAX] = super::BACK;
        m.registers[RBX] ^= u64::from(function);
        m.registers[RDX] = call.sp;
        let how = u64::from(self.shape.shift()) | u64::from(self.shape.full()) << 6 | u64::from(function) << 7;
        m.registers[RCX] = self.tree() | how << 32;
    }

    /// Enters a context by the routine, and compares with the model.
    fn enter(&self, m: &mut Machine, (call, shard): (GoroutineCall, u64), function: u32, what: &str) {
        self.execute(m, Routine::EnterMoving, (call, shard), function);
        let enters = |wanted: &mut Machine| self.model(wanted, (call, shard), function);
        compare(&self.env, Routine::EnterMoving, m, enters, what);
        self.model(m, (call, shard), function);
    }

    fn model(&self, m: &mut Machine, (call, shard): (GoroutineCall, u64), function: u32) {
        let own = m.read(self.list(call.goroutine), 8);
        let caller = self.caller(m, call, m.read(self.record(own, record::SAVED), 8));
        let parent = caller.map_or(PARENT_BIAS, |n| m.read(self.record(n, CONTEXT), 8));
        let returns = m.read(call.sp, 8);
        m.write(self.record(own, RETURN), 8, returns);
        let call = key(function, returns);
        let first = self.shape.place(parent - PARENT_BIAS, call);
        let places = (0..PROBES).map(|n| FIRST + ((first + PLACE * n) & self.shape.mask()));
        let found = places.into_iter().find(|place| {
            let known = self.word(m, place + KEY);
            known == 0 || known == call && self.word(m, place + PARENT) == parent
        });
        let Some(place) = found else {
            let full = m.read(self.at(shard, FULL), 8);
            m.write(self.at(shard, FULL), 8, full + 1);
            return m.write(self.record(own, CONTEXT), 8, parent);
        };
        if self.word(m, place + KEY) == 0 {
            let mut target = u64::from(place - FIRST) + 1;
            let mut above = parent - PARENT_BIAS;
            while above != 0 && !self.shape.full() {
                let place = FIRST + (above as u32 & self.shape.mask());
                if function_of(self.word(m, place + KEY)) == function {
                    target = above;
                    break;
                }
                above = self.word(m, place + PARENT) - PARENT_BIAS;
            }
            let taken = self.word(m, TAKEN);
            m.write(self.at(0, TAKEN), 8, taken + 1);
            m.write(self.at(0, place + KEY), 8, call);
            m.write(self.at(0, place + PARENT), 8, parent);
            m.write(self.at(0, place + TARGET), 8, target);
        }
        let calls = m.read(self.at(shard, place + CALLS), 8);
        m.write(self.at(shard, place + CALLS), 8, calls + 1);
        m.write(self.record(own, CONTEXT), 8, self.word(m, place + TARGET) + PARENT_BIAS);
    }

    /// The first record of a caller with a context, from the n-th one on.
    fn caller(&self, m: &Machine, call: GoroutineCall, mut n: u64) -> Option<u64> {
        while n != 0 {
            let restore = m.read(self.record(n, record::RESTORE), 4) & !u64::from(record::HANDED);
            let sp = m.read(self.record(n, record::SP), 8).wrapping_add(GOROUTINES[call.goroutine].1);
            let is_open = sp >= call.sp && m.read(sp, 8) == m.read(self.record(n, RETURN), 8);
            let has_context = restore == self.tree() && m.read(self.record(n, CONTEXT), 8) != 0;
            if m.read(self.record(n, record::NAME), 4) != 0 && has_context && is_open {
                return Some(n);
            }
            n = m.read(self.record(n, record::SAVED), 8);
        }
        None
    }

    /// Address of a field of the last record of a thread.
    fn last(&self, shard: u64, field: u32) -> u64 {
        self.area().at(shard, self.env.data.records() + record::SIZE + field)
    }

    /// Leaves a context by the routine: with the record of the call, and the metric to which its own time is added. Compares with the model.
    fn leave(&self, m: &mut Machine, (call, shard): (GoroutineCall, u64), kept: [u64; 3], metric: u32, what: &str) {
        self.execute(m, Routine::LeaveMoving, (call, shard), 0);
        m.registers[RCX] = self.tree() | u64::from(self.shape.shift() | metric << 6) << 32;
        m.write(self.area().at(shard, TOP), 8, 2 * u64::from(record::SIZE));
        let [context, time, inside] = kept;
        m.write(self.last(shard, CONTEXT), 8, context);
        m.write(self.last(shard, record::KEPT), 8, time);
        m.write(self.last(shard, record::KEPT + 8), 8, inside);
        let left = |m: &mut Machine| {
            if context == 0 {
                return;
            }
            if let Some(caller) = self.caller(m, call, m.read(self.list(call.goroutine), 8)) {
                add(m, self.record(caller, record::KEPT + 8), 8, time.cast_signed());
            }
            let counter = match context - PARENT_BIAS {
                0 => OUTSIDE + metric,
                of => self.shape.values() + (of as u32 & self.shape.mask()) + metric,
            };
            add(m, self.at(shard, counter), 8, time.saturating_sub(inside).cast_signed());
        };
        compare(&self.env, Routine::LeaveMoving, m, left, what);
        left(m);
    }

    /// Number of calls in the whole tree, those without a place included.
    fn calls(&self, m: &Machine) -> u64 {
        let of = |n: u32| SHARDS.into_iter().map(|shard| m.read(self.at(shard, n), 8)).sum::<u64>();
        (0..self.shape.places()).map(|place| of(FIRST + PLACE * place + CALLS)).sum::<u64>() + of(FULL)
    }
}

/// Two goroutines call and return on two threads, beside records of other measurements and of one that was removed, until the tree is full.
#[test]
fn contexts_follow_goroutines() {
    for (bits, full) in [(2, false), (2, true), (4, false), (10, true)] {
        let (mut moving, mut m) = MovingCalls::new(bits, full);
        let mut open: [Vec<(u64, u32)>; 2] = Default::default();
        let (mut state, mut entered) = (11u64, 0);
        for step in 0..300 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            let (goroutine, shard) = ((random % 2) as usize, SHARDS[(random >> 1) as usize % 2]);
            if random.is_multiple_of(3) {
                if let Some((sp, records)) = open[goroutine].pop() {
                    let own = m.read(moving.list(goroutine), 8);
                    let context = m.read(moving.record(own, CONTEXT), 8);
                    moving.pop(&mut m, goroutine);
                    let (call, what) =
                        ((GoroutineCall { goroutine, sp }, shard), format!("{bits} bits, {full}, step {step}"));
                    for context in [0, PARENT_BIAS, context] {
                        let kept = [context, random % 1000, (random >> 10) % 1000];
                        moving.leave(&mut m, call, kept, (random >> 5) as u32 % 4, &what);
                    }
                    (1..records).for_each(|_| moving.pop(&mut m, goroutine));
                }
                continue;
            }
            let sp = open[goroutine].last().map_or(GOROUTINES[goroutine].1 - 8, |(sp, _)| sp - 16);
            let call = GoroutineCall { goroutine, sp };
            let mut records = 1;
            for (other, removed) in [(0, false), (moving.tree() + 8, false), (moving.tree(), true)] {
                if (random >> (20 + records)) & 1 != 0 {
                    let n = moving.park(&mut m, call, other);
                    m.write(moving.record(n, CONTEXT), 8, random);
                    if removed {
                        m.write(moving.record(n, record::NAME), 4, 0);
                    }
                    records += 1;
                }
            }
            moving.park(&mut m, call, moving.tree());
            m.write(sp, 8, 0x7fff_0000_1000 + (random >> 8) % 3);
            let function = (random >> 12) as u32 % 3 + 1;
            moving.enter(&mut m, (call, shard), function, &format!("{bits} bits, {full}, step {step}"));
            entered += 1;
            assert_eq!(moving.calls(&m), entered);
            if random.is_multiple_of(7) {
                m.write(sp, 8, 0x7fff_0000_5000);
            }
            if random.is_multiple_of(5) {
                let n = m.read(moving.list(goroutine), 8);
                m.write(moving.record(n, record::RESTORE), 4, moving.tree() | u64::from(record::HANDED));
            }
            open[goroutine].push((sp, records));
        }
    }
}

/// Another thread takes the place that the routine has found free, for the same call or for another one.
#[test]
fn a_place_that_another_thread_takes_is_looked_at_again() {
    for taken in [key(3, 0x40_1234), key(4, 0x40_1234)] {
        let (mut moving, mut m) = MovingCalls::new(4, false);
        let call = GoroutineCall { goroutine: 0, sp: GOROUTINES[0].1 - 64 };
        moving.park(&mut m, call, moving.tree());
        m.write(call.sp, 8, 0x40_1234);
        moving.execute(&mut m, Routine::EnterMoving, (call, SHARDS[0]), 3);
        let place = moving.at(0, FIRST + moving.shape.place(0, key(3, 0x40_1234)) + KEY);
        m.race = Some((place, taken));
        let model = |wanted: &mut Machine| {
            wanted.write(place, 8, taken);
            moving.model(wanted, (call, SHARDS[0]), 3);
        };
        compare(&moving.env, Routine::EnterMoving, &m, model, &format!("{taken:#x}"));
    }
}

/// A call without a record of its own counts nothing, nor does one in a tree that is not there.
#[test]
fn other_calls_change_nothing() {
    let call = GoroutineCall { goroutine: 0, sp: GOROUTINES[0].1 - 64 };
    type Change = fn(&MovingCalls, &mut Machine);
    let changes: [Change; 9] = [
        |moving, m| moving.pop(m, 0),
        |moving, m| m.write(moving.record(1, record::SP), 8, 64),
        |moving, m| m.write(moving.record(1, record::RESTORE), 4, moving.tree() + 8),
        |moving, m| m.write(moving.record(1, record::RESTORE), 4, moving.tree() | u64::from(record::HANDED)),
        |moving, m| m.write(moving.record(1, CONTEXT), 8, 3),
        |moving, m| m.write(u64::from(moving.env.data.alive()), 4, 0),
        |_, m| m.fs = 0,
        |_, m| m.registers[RDX] += 64,
        |moving, m| {
            let outside = u64::from(moving.env.data.records()) - 8;
            m.registers[RCX] += outside - moving.tree();
            m.write(moving.record(1, record::RESTORE), 4, outside);
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let (mut moving, mut m) = MovingCalls::new(4, false);
        moving.park(&mut m, call, moving.tree());
        moving.execute(&mut m, Routine::EnterMoving, (call, SHARDS[0]), 3);
        change(&moving, &mut m);
        compare(&moving.env, Routine::EnterMoving, &m, |_| {}, &format!("change {n}"));
    }
}
