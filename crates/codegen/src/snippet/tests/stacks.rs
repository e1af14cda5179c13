//! The routines that set the records of a stack aside, and fetch them.

use ingraft_model::DataArea;
use ingraft_model::layout::stacks::{
    FREE, NEXT, OUTERMOST, OWNER, PLACE, PLACE_BITS, PLACES, PROBES, RECORD, RECORDS, RECORDS_MAX, SHARD, SPENT, USED,
};
use ingraft_model::layout::{self, COUNTERS, TOP, record};
use ingraft_model::table::MULTIPLIER;

use super::machine::{Machine, RDX};
use super::{Area, add, compare, environment, machine};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

const OWN: u64 = 5;
const THREAD: u64 = 0x1234;
/// Stack pointer at the entry of a function that switches, and the key of the stack.
const SP: u64 = 0x7fff_1000_0ff8;
const KEY: u64 = SP + 8;
/// Names of records, and variables that they restore: offsets in a shard.
const NAME: u32 = COUNTERS + 0x40;
const OTHER: u32 = COUNTERS + 0x80;
const VARIABLE: u32 = COUNTERS + 0x100;
const VARIABLES: [u32; 3] = [VARIABLE, VARIABLE + 8, VARIABLE + 16];

fn environments() -> [Environment; 2] {
    let data = environment().data;
    let other = DataArea { base: ingraft_model::Avma(0x2000_3000), stride: 1 << 23, ..data };
    [data, other].map(|data| Environment { data, ..environment() })
}

/// Records of stacks in a machine.
#[derive(Clone, Copy)]
struct StackRecords(Area);

impl StackRecords {
    fn at(self, offset: u64) -> u64 {
        self.0.at(u64::from(SHARD), 0) + offset
    }

    /// Address of the n-th place that may belong to the stack with this key.
    fn place(self, key: u64, n: u64) -> u64 {
        let hash = key.wrapping_mul(MULTIPLIER) >> (u64::BITS - PLACE_BITS);
        self.at(u64::from(PLACES) + u64::from(PLACE) * (hash + n))
    }

    fn places(self, key: u64) -> impl Iterator<Item = u64> {
        (0..u64::from(PROBES)).map(move |n| self.place(key, n))
    }

    fn aside(self, n: u64, field: u32) -> u64 {
        self.at(u64::from(RECORDS) + u64::from(RECORD) * n + u64::from(field))
    }

    /// Address of a field of the thread's record at an offset.
    fn own(self, offset: u64, field: u32) -> u64 {
        self.0.at(OWN, self.0.0.records() + field) + offset
    }

    fn top(self) -> u64 {
        self.0.at(OWN, TOP)
    }

    fn word(self, offset: u32) -> u64 {
        self.0.at(OWN, offset)
    }

    fn change_free(self, m: &mut Machine, first: u64) {
        let changes = (m.read(self.at(u64::from(FREE)), 8) >> 32) as u32;
        m.write(self.at(u64::from(FREE)), 8, u64::from(changes.wrapping_add(1)) << 32 | first);
    }

    fn give_back(self, m: &mut Machine, n: u64) {
        let first = m.read(self.at(u64::from(FREE)), 4);
        m.write(self.aside(n, NEXT), 8, first);
        self.change_free(m, n);
    }

    fn take(self, m: &mut Machine) -> Option<u64> {
        let n = m.read(self.at(u64::from(FREE)), 4);
        if n != 0 {
            let next = m.read(self.aside(n, NEXT), 8);
            self.change_free(m, next);
            return Some(n);
        }
        let used = m.read(self.at(u64::from(USED)), 4);
        if used >= u64::from(RECORDS_MAX) {
            return None;
        }
        add(m, self.at(u64::from(USED)), 4, 1);
        Some(used + 1)
    }

    fn count_left(self, m: &mut Machine, name: u64) {
        if name != 0 {
            add(m, self.word(name as u32), 8, 1);
        }
    }

    /// Model: drops the records at a place, and frees it.
    fn drop_stack(self, m: &mut Machine, place: u64) {
        loop {
            let n = m.read(place + u64::from(OUTERMOST), 4);
            if n == 0 {
                break;
            }
            let name = m.read(self.aside(n, record::NAME), 4);
            self.count_left(m, name);
            let next = m.read(self.aside(n, NEXT), 8);
            m.write(place + u64::from(OUTERMOST), 8, next);
            self.give_back(m, n);
        }
        m.write(place, 8, 0);
    }

    /// Exchanges the value of the variable that a record restores with the record's.
    fn exchange(self, m: &mut Machine, at: impl Fn(u32) -> u64) {
        let word = m.read(at(record::RESTORE), 4) as u32 & !record::HANDED;
        if word == 0 {
            return;
        }
        let (variable, saved) = (m.read(self.word(word), 8), m.read(at(record::SAVED), 8));
        m.write(self.word(word), 8, saved);
        m.write(at(record::SAVED), 8, variable);
    }

    /// Model: sets all records of the thread aside, or drops them.
    fn set_aside(self, m: &mut Machine, place: Option<u64>) {
        let size = u64::from(record::SIZE);
        loop {
            let top = m.read(self.top(), 8);
            if !(2 * size..=u64::from(record::ROOM)).contains(&top) {
                break;
            }
            let last = top - size;
            self.exchange(m, |field| self.own(last, field));
            match place.and_then(|place| Some((place, self.take(m)?))) {
                Some((place, n)) => {
                    for field in (0..record::SIZE).step_by(8) {
                        let word = m.read(self.own(last, field), 8);
                        m.write(self.aside(n, field), 8, word);
                    }
                    let outer = m.read(place + u64::from(OUTERMOST), 8);
                    m.write(self.aside(n, NEXT), 8, outer);
                    m.write(place + u64::from(OUTERMOST), 8, n);
                }
                None => {
                    let name = m.read(self.own(last, record::NAME), 4);
                    self.count_left(m, name);
                }
            }
            m.write(self.top(), 8, last);
        }
    }

    /// Whether a record of the thread would stop or start a timer.
    fn has_timers(self, m: &Machine) -> bool {
        let size = u64::from(record::SIZE);
        let top = m.read(self.top(), 8);
        let is_timer = |at: u64| m.read(self.own(at, record::RESTORE), 4) as u32 & TIMER != 0;
        top <= u64::from(record::ROOM) && (1..top / size).any(|n| is_timer(n * size))
    }

    fn is_alive(self, m: &Machine) -> bool {
        m.read(u64::from(self.0.0.alive()), 4) != 0
    }

    fn leave(self, m: &mut Machine) {
        let key = m.registers[RDX].wrapping_add(15) & !15;
        if !self.is_alive(m) {
            return;
        }
        for place in self.places(key) {
            if m.read(place, 8) == key {
                self.drop_stack(m, place);
            }
        }
        let top = m.read(self.top(), 8);
        if !(2 * u64::from(record::SIZE)..=u64::from(record::ROOM)).contains(&top) {
            return;
        }
        if self.has_timers(m) {
            return;
        }
        let place = self.places(key).find(|place| m.read(*place, 8) == 0);
        if let Some(place) = place {
            m.write(place, 8, key);
            let owner = m.read(self.word(layout::OWNER), 8);
            m.write(place + u64::from(OWNER), 8, owner);
            m.write(place + u64::from(OUTERMOST), 8, 0);
            for word in [0, 8] {
                let spent = m.read(self.own(0, record::SPENT + word), 8);
                m.write(place + u64::from(SPENT + word), 8, spent);
            }
        }
        self.set_aside(m, place);
    }

    fn enter(self, m: &mut Machine) {
        let key = m.registers[RDX].wrapping_add(15) & !15;
        if !self.is_alive(m) {
            return;
        }
        if self.has_timers(m) {
            return;
        }
        let Some(place) = self.places(key).find(|place| m.read(*place, 8) == key) else { return };
        if m.read(place + u64::from(OWNER), 8) != m.read(self.word(layout::OWNER), 8) {
            return self.drop_stack(m, place);
        }
        self.set_aside(m, None);
        for word in [0, 8] {
            let spent = m.read(place + u64::from(SPENT + word), 8);
            m.write(self.own(0, record::SPENT + word), 8, spent);
        }
        loop {
            let n = m.read(place + u64::from(OUTERMOST), 4);
            if n == 0 {
                m.write(place, 8, 0);
                return;
            }
            if m.read(self.top(), 4) == 0 {
                m.write(self.own(0, record::SP), 8, u64::MAX);
                m.write(self.own(0, record::NAME), 8, 0);
                m.write(self.top(), 8, u64::from(record::SIZE));
            }
            let top = m.read(self.top(), 8);
            if top >= u64::from(record::ROOM) {
                return self.drop_stack(m, place);
            }
            for field in (0..record::SIZE).step_by(8) {
                let word = m.read(self.aside(n, field), 8);
                m.write(self.own(top, field), 8, word);
            }
            m.write(self.top(), 8, top + u64::from(record::SIZE));
            self.exchange(m, |field| self.own(top, field));
            let next = m.read(self.aside(n, NEXT), 8);
            m.write(place + u64::from(OUTERMOST), 8, next);
            self.give_back(m, n);
        }
    }
}

/// A record: its name, and the word about what it restores.
type RecordKind = (u32, u32);

/// Bits of the word about what a record restores: it is a timer.
const TIMER: u32 = record::RESTORE_WALL | record::RESTORE_CPU;

/// Kinds of records that are set aside: forgotten ones, those that restore nothing or a variable, and one that was handed over.
const KINDS: [RecordKind; 5] =
    [(0, 0), (NAME, 0), (NAME, VARIABLES[0]), (OTHER, VARIABLES[0] | record::HANDED), (NAME, VARIABLES[2])];

fn lists() -> Vec<Vec<RecordKind>> {
    let one = KINDS.iter().map(|a| vec![*a]);
    let two = KINDS.iter().flat_map(|a| KINDS.map(|b| vec![*a, b]));
    std::iter::once(Vec::new()).chain(one).chain(two).chain([KINDS.to_vec()]).collect()
}

/// A thread with these records, the outermost first.
fn thread(env: &Environment, routine: Routine, records: &[RecordKind]) -> Machine {
    let stacks = StackRecords(Area(env.data));
    let mut m = machine(env, routine);
    m.gs = OWN * env.data.stride;
    m.registers[RDX] = SP;
    m.write(stacks.word(layout::OWNER), 8, THREAD);
    for (n, variable) in (1..).zip(VARIABLES) {
        m.write(stacks.word(variable), 8, 0x1111 * n);
    }
    let size = u64::from(record::SIZE);
    for word in [0, 8] {
        m.write(stacks.own(0, record::SPENT + word), 8, 0x5000 + u64::from(word));
    }
    for (n, (name, restore)) in (1..).zip(records) {
        for field in (0..record::SIZE).step_by(8) {
            m.write(stacks.own(n * size, field), 8, n << 32 | u64::from(field));
        }
        m.write(stacks.own(n * size, record::NAME), 4, u64::from(*name));
        m.write(stacks.own(n * size, record::RESTORE), 4, u64::from(*restore));
    }
    m.write(stacks.top(), 8, size * (1 + records.len() as u64));
    m
}

/// Puts a stack with these records, the outermost first, to a place.
fn aside(env: &Environment, m: &mut Machine, (key, nth, owner): (u64, u64, u64), records: &[RecordKind]) {
    let stacks = StackRecords(Area(env.data));
    let place = stacks.place(key, nth);
    m.write(place, 8, key);
    m.write(place + u64::from(OWNER), 8, owner);
    let mut link = place + u64::from(OUTERMOST);
    for word in [0, 8] {
        m.write(place + u64::from(SPENT + word), 8, 0x7000 + u64::from(word));
    }
    let used = m.read(stacks.at(u64::from(USED)), 4);
    for (n, (name, restore)) in (used + 1..).zip(records) {
        m.write(link, 8, n);
        for field in (0..record::SIZE).step_by(8) {
            m.write(stacks.aside(n, field), 8, n << 40 | u64::from(field));
        }
        m.write(stacks.aside(n, record::NAME), 4, u64::from(*name));
        m.write(stacks.aside(n, record::RESTORE), 4, u64::from(*restore));
        link = stacks.aside(n, NEXT);
    }
    m.write(link, 8, 0);
    m.write(stacks.at(u64::from(USED)), 4, used + records.len() as u64);
}

fn check(env: &Environment, routine: Routine, m: &Machine, what: &str) {
    let stacks = StackRecords(Area(env.data));
    let model = |m: &mut Machine| match routine {
        Routine::LeaveStack => stacks.leave(m),
        _ => stacks.enter(m),
    };
    compare(env, routine, m, model, &format!("{routine:?}, {what}"));
}

const BOTH: [Routine; 2] = [Routine::LeaveStack, Routine::EnterStack];

#[test]
fn every_list_of_records_of_stack_and_thread() {
    for env in environments() {
        for (own, other) in lists().iter().flat_map(|own| lists().into_iter().map(move |other| (own.clone(), other))) {
            for routine in BOTH {
                for owner in [THREAD, THREAD + 1] {
                    let mut m = thread(&env, routine, &own);
                    aside(&env, &mut m, (KEY, 1, owner), &other);
                    check(&env, routine, &m, &format!("{own:?}, aside {other:?} of {owner:#x}"));
                }
            }
        }
    }
}

#[test]
fn every_place_of_a_stack() {
    for env in environments() {
        let stacks = StackRecords(Area(env.data));
        for routine in BOTH {
            for taken in 0..=u64::from(PROBES) {
                for known in 0..=u64::from(PROBES) {
                    let mut m = thread(&env, routine, &KINDS);
                    (0..taken).for_each(|n| m.write(stacks.place(KEY, n), 8, KEY + 16 * (n + 1)));
                    if known < u64::from(PROBES) {
                        aside(&env, &mut m, (KEY, known, THREAD), &KINDS[1..3]);
                    }
                    check(&env, routine, &m, &format!("{taken} places belong to others, the stack has number {known}"));
                }
            }
            // Another thread takes the first place meanwhile.
            let mut m = thread(&env, routine, &KINDS);
            m.race = Some((stacks.place(KEY, 0), KEY + 16));
            let model = |m: &mut Machine| {
                m.write(stacks.place(KEY, 0), 8, KEY + 16);
                stacks.leave(m);
            };
            if routine == Routine::LeaveStack {
                compare(&env, routine, &m, model, "a lost place");
            }
        }
    }
}

#[test]
fn every_thread() {
    for env in environments() {
        let stacks = StackRecords(Area(env.data));
        for routine in BOTH {
            for sp in [SP - 8, SP, SP + 1, SP + 8, SP + 9, 0, u64::MAX] {
                let mut m = thread(&env, routine, &KINDS);
                aside(&env, &mut m, (KEY, 0, THREAD), &KINDS);
                m.registers[RDX] = sp;
                check(&env, routine, &m, &format!("sp {sp:#x}"));
            }
            let mut m = thread(&env, routine, &KINDS);
            aside(&env, &mut m, (KEY, 0, THREAD), &KINDS);
            m.write(u64::from(env.data.alive()), 4, 0);
            check(&env, routine, &m, "a fork child");
            let room = u64::from(record::ROOM);
            for top in [0, 64, 128, room - 64, room, room + 64] {
                let mut m = thread(&env, routine, &[]);
                aside(&env, &mut m, (KEY, 0, THREAD), &KINDS);
                m.mapped.push(stacks.0.at(OWN + 1, 0)..stacks.0.at(OWN + 1, 0) + 64);
                m.write(stacks.top(), 8, top);
                check(&env, routine, &m, &format!("top {top:#x}"));
            }
        }
    }
}

#[test]
fn every_state_of_the_unused_records() {
    for env in environments() {
        let stacks = StackRecords(Area(env.data));
        let free = stacks.at(u64::from(FREE));
        for routine in BOTH {
            for changes in [0, 1, u64::from(u32::MAX)] {
                for first in [0, 7] {
                    for used in [8, u64::from(RECORDS_MAX) - 1, u64::from(RECORDS_MAX)] {
                        let mut m = thread(&env, routine, &KINDS[1..4]);
                        aside(&env, &mut m, (KEY, 0, THREAD), &KINDS[..3]);
                        m.write(free, 8, changes << 32 | first);
                        m.write(stacks.aside(7, NEXT), 8, 0);
                        m.write(stacks.at(u64::from(USED)), 4, used);
                        check(&env, routine, &m, &format!("{changes} {first} {used}"));
                    }
                }
            }
        }
    }
}

#[test]
fn records_of_timers_stay() {
    for env in environments() {
        for routine in BOTH {
            for (at, bit) in (0..3).flat_map(|at| [record::RESTORE_WALL, record::RESTORE_CPU].map(|bit| (at, bit))) {
                let mut records = KINDS[1..4].to_vec();
                records[at] = (NAME, VARIABLES[1] | bit);
                let mut m = thread(&env, routine, &records);
                aside(&env, &mut m, (KEY, 0, THREAD), &KINDS[..3]);
                check(&env, routine, &m, &format!("{records:?}"));
                let mut after = m.clone();
                StackRecords(Area(env.data)).enter(&mut after);
                assert_eq!(m.changes(&after), [], "nothing is fetched");
            }
        }
    }
}

#[test]
fn a_stack_that_is_left_and_entered_again_has_its_records() {
    for env in environments() {
        let stacks = StackRecords(Area(env.data));
        for records in lists() {
            let m = thread(&env, Routine::LeaveStack, &records);
            let mut there = m.clone();
            stacks.leave(&mut there);
            assert!(m.read(stacks.top(), 8) == 64 || there.read(stacks.top(), 8) == 64);
            stacks.enter(&mut there);
            let shard = stacks.0.at(OWN, 0)..stacks.0.at(OWN + 1, 0);
            let differ = |at: &u64| shard.contains(at) && m.read(*at, 8) != there.read(*at, 8);
            let words = (0..8).flat_map(|n| (0..64).step_by(8).map(move |field| stacks.own(64 * n, field)));
            let variables = VARIABLES.map(|variable| stacks.word(variable));
            assert_eq!(words.chain(variables).filter(differ).collect::<Vec<_>>(), [], "{records:?}");
        }
    }
}
