//! The routine that enters contexts.

use ingraft_model::ContextShape;
use ingraft_model::contexts::{
    CALLS, CURRENT, FIRST, FULL, KEY, PARENT, PARENT_BIAS, PLACE, PROBES, TAKEN, TARGET, function_of, key,
};
use ingraft_model::layout::COUNTERS;

use super::machine::{Machine, RAX, RBX, RCX, RDX};
use super::{Area, areas, compare, environment, machine};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

/// Bit of the argument: the context of the thread stays.
const STAY: u64 = 1 << 63;

/// A tree in shard 3 of an area.
struct Tree {
    env: Environment,
    shape: ContextShape,
    first: u32,
}

impl Tree {
    fn at(&self, n: u32) -> u64 {
        Area(self.env.data).at(3, COUNTERS + 8 * (self.first + n))
    }

    fn word(&self, m: &Machine, n: u32) -> u64 {
        m.read(self.at(n), 8)
    }

    fn machine(&self, current: u64) -> Machine {
        let mut m = machine(&self.env, Routine::Enter);
        Area(self.env.data).map(&mut m);
        m.gs = 3 * self.env.data.stride;
        m.write(self.at(CURRENT), 8, current);
        m
    }

    fn argument(&self) -> u64 {
        let how = self.shape.shift() | u32::from(self.shape.full()) << 6;
        u64::from(COUNTERS + 8 * self.first) | u64::from(how) << 32
    }

    /// Enters a context by the routine, and compares with the model.
    fn enter(&self, m: &mut Machine, call: u64, what: &str) {
        self.run(m, (self.argument(), call), what);
    }

    /// Counts a call below the context of the thread by the routine, and compares with the model.
    fn count_below(&self, m: &mut Machine, call: u64, what: &str) {
        self.run(m, (self.argument() | 1 << 38 | STAY, call), what);
    }

    fn run(&self, m: &mut Machine, (argument, call): (u64, u64), what: &str) {
        m.registers[RAX] = super::BACK;
        m.rip = super::CODE;
        (m.registers[RCX], m.registers[RDX]) = (argument, call);
        m.registers[RBX] ^= call;
        let stays = argument & STAY != 0;
        compare(&self.env, Routine::Enter, m, |wanted| self.model_of(wanted, call, stays), what);
        self.model_of(m, call, stays);
    }

    fn model(&self, m: &mut Machine, call: u64) {
        self.model_of(m, call, false);
    }

    fn model_of(&self, m: &mut Machine, call: u64, stays: bool) {
        let current = self.word(m, CURRENT);
        let first = self.shape.place(current, call);
        let places = (0..PROBES).map(|n| (first + PLACE * n) & self.shape.mask());
        let found = places.map(|place| FIRST + place).find(|place| {
            let known = self.word(m, place + KEY);
            known == 0 || known == call && self.word(m, place + PARENT) == current + PARENT_BIAS
        });
        let Some(place) = found else {
            let full = self.word(m, FULL);
            return m.write(self.at(FULL), 8, full + 1);
        };
        if self.word(m, place + KEY) == 0 {
            let mut target = u64::from(place - FIRST) + 1;
            let mut above = current;
            while above != 0 && !self.shape.full() && !stays {
                let place = FIRST + (above as u32 & self.shape.mask());
                if function_of(self.word(m, place + KEY)) == function_of(call) {
                    target = above;
                    break;
                }
                above = self.word(m, place + PARENT) - PARENT_BIAS;
            }
            let taken = self.word(m, TAKEN);
            m.write(self.at(TAKEN), 8, taken + 1);
            m.write(self.at(place + KEY), 8, call);
            m.write(self.at(place + PARENT), 8, current + PARENT_BIAS);
            m.write(self.at(place + TARGET), 8, target);
        }
        let calls = self.word(m, place + CALLS);
        m.write(self.at(place + CALLS), 8, calls + 1);
        let target = if stays { current } else { self.word(m, place + TARGET) };
        m.write(self.at(CURRENT), 8, target);
    }
}

fn trees() -> impl Iterator<Item = Tree> {
    areas().into_iter().flat_map(|data| {
        [(2, false), (2, true), (4, false), (10, true)].into_iter().map(move |(bits, full)| Tree {
            env: Environment { data, ..environment() },
            shape: ContextShape::of_bits(bits, true, full).expect("a size"),
            first: 100 + u32::from(bits),
        })
    })
}

/// A walk through calls and returns, with many functions and with few, until the tree is full.
#[test]
fn contexts_are_found_made_and_left_out() {
    for tree in trees() {
        for functions in [1, 2, 5] {
            let mut m = tree.machine(0);
            let mut open = Vec::new();
            let mut state = 11u64;
            for n in 0..200 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = state >> 33;
                if random.is_multiple_of(3)
                    && let Some(before) = open.pop()
                {
                    m.write(tree.at(CURRENT), 8, before);
                    continue;
                }
                if random.is_multiple_of(5) {
                    tree.count_below(&mut m, key(9, random % 7), &format!("{:?}, step {n}, below", tree.shape));
                    continue;
                }
                open.push(tree.word(&m, CURRENT));
                let call = key((random % functions) as u32 + 1, 0x7fff_0000_1000 + (random >> 8) % 3);
                tree.enter(&mut m, call, &format!("{:?}, {functions} functions, step {n}", tree.shape));
            }
            assert!(tree.word(&m, TAKEN) > 1);
        }
    }
}

/// A handler takes the place that the routine has found free, for the same call or for another one.
#[test]
fn a_place_that_a_handler_takes_is_looked_at_again() {
    for tree in trees() {
        let call = key(3, 0x40_1234);
        for taken in [call, key(4, 0x40_1234)] {
            let mut m = tree.machine(0);
            (m.registers[RCX], m.registers[RDX]) = (tree.argument(), call);
            let place = FIRST + tree.shape.place(0, call);
            m.race = Some((tree.at(place + KEY), taken));
            let model = |wanted: &mut Machine| {
                wanted.write(tree.at(place + KEY), 8, taken);
                tree.model(wanted, call);
            };
            compare(&tree.env, Routine::Enter, &m, model, &format!("{:?} {taken:#x}", tree.shape));
        }
    }
}

#[test]
fn a_tree_outside_of_the_counters_is_left_alone() {
    for tree in trees() {
        let records = u64::from(tree.env.data.records());
        let size = 8 * u64::from(FIRST + PLACE * tree.shape.places());
        let shift = |shift: u64| shift << 32;
        let of = tree.argument();
        let at = of as u32 as u64;
        let others = [
            of - at + u64::from(COUNTERS) - 1,
            of - at + records - size + 1,
            of - at + 0xffff_ffff,
            at,
            at | shift(30),
        ];
        for other in others {
            let mut m = tree.machine(0);
            (m.registers[RCX], m.registers[RDX]) = (other, key(1, 2));
            compare(&tree.env, Routine::Enter, &m, |_| {}, &format!("{:?} {other:#x}", tree.shape));
        }
        let last = Tree { first: ((records - size - u64::from(COUNTERS)) / 8) as u32, ..tree };
        let mut m = last.machine(0);
        last.enter(&mut m, key(1, 2), "the last tree");
        assert_eq!(last.word(&m, TAKEN), 1);
    }
}
