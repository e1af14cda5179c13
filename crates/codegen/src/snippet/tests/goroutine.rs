//! The routines for records of goroutines.

use ingraft_model::DataArea;
use ingraft_model::layout::goroutine::{
    FREE, INSIDE, MULTIPLIER, NOTES_KEY, PLACE, PLACE_BITS, PLACES, PROBES, RECORDS, RECORDS_MAX, SHARD, USED,
};
use ingraft_model::layout::{COUNTERS, TOP, record};

use super::machine::{Machine, RCX, RDX};
use super::{Area, add, compare, environment, machine};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

pub(super) const OWN: u64 = 5;
const THREAD: u64 = 0x7100_1000;
/// Descriptor of the goroutine, and its stack.
const GOROUTINE: u64 = 0xc000_0400_0000;
pub(super) const LOW: u64 = 0xc000_1000_0000;
pub(super) const HIGH: u64 = LOW + 0x8000;
/// Depth of the call in its stack, and its key.
pub(super) const DEPTH: u64 = 0x1000;
pub(super) const KEY: u64 = DEPTH.wrapping_neg();
/// Names of records: offsets of counters.
pub(super) const NAME: u32 = COUNTERS + 0x40;
pub(super) const OTHER: u32 = COUNTERS + 0x80;

pub(super) fn environments() -> [Environment; 2] {
    let data = environment().data;
    let other = DataArea { base: ingraft_model::Avma(0x2000_3000), stride: 1 << 25, ..data };
    [(data, -8), (other, 0x70)].map(|(data, pointer)| Environment { data, goroutine: Some(pointer), ..environment() })
}

/// Lists of goroutines in a machine.
#[derive(Clone, Copy)]
pub(super) struct GoroutineLists(pub(super) Area);

impl GoroutineLists {
    pub(super) fn at(self, offset: u64) -> u64 {
        self.0.at(u64::from(SHARD), 0) + offset
    }

    /// Address of the n-th place that may belong to the goroutine.
    pub(super) fn place(self, n: u64) -> u64 {
        let hash = GOROUTINE.wrapping_mul(MULTIPLIER) >> (u64::BITS - PLACE_BITS);
        self.at(u64::from(PLACES) + u64::from(PLACE) * (hash + n))
    }

    pub(super) fn record(self, n: u64, field: u32) -> u64 {
        self.at(u64::from(RECORDS) + u64::from(record::SIZE) * n + u64::from(field))
    }

    pub(super) fn own(self, place: u64, field: u32) -> u64 {
        self.0.at(OWN, self.0.0.records() + field) + place
    }

    pub(super) fn top(self) -> u64 {
        self.0.at(OWN, TOP)
    }

    /// Model: the place of the goroutine that the thread executes, with the call's key, if the call can have records.
    pub(super) fn goroutine(self, env: &Environment, m: &mut Machine) -> Option<(u64, u64)> {
        let sp = m.registers[RDX];
        if m.read(u64::from(env.data.alive()), 4) == 0 || m.fs == 0 {
            return None;
        }
        let g = m.read(m.fs.wrapping_add_signed(i64::from(env.goroutine?)), 8);
        if g == 0 || sp >= m.read(g + 8, 8) || sp < m.read(g, 8) {
            return None;
        }
        let place = (0..u64::from(PROBES)).map(|n| self.place(n)).find(|at| [0, g].contains(&m.read(*at, 8)))?;
        m.write(place, 8, g);
        Some((place, sp.wrapping_sub(m.read(g + 8, 8))))
    }

    /// Model: creates the thread's first record, if it has none. Returns the top.
    fn load_top(self, m: &mut Machine) -> u64 {
        if m.read(self.top(), 4) == 0 {
            m.write(self.own(0, record::SP), 8, u64::MAX);
            m.write(self.own(0, record::NAME), 8, 0);
            m.write(self.top(), 8, u64::from(record::SIZE));
        }
        m.read(self.top(), 8)
    }

    pub(super) fn change_free(self, m: &mut Machine, first: u64) {
        let changes = (m.read(self.at(u64::from(FREE)), 8) >> 32) as u32;
        m.write(self.at(u64::from(FREE)), 8, u64::from(changes.wrapping_add(1)) << 32 | first);
    }

    pub(super) fn give_back(self, m: &mut Machine, n: u64) {
        let first = m.read(self.at(u64::from(FREE)), 4);
        m.write(self.record(n, record::SAVED), 8, first);
        self.change_free(m, n);
    }

    pub(super) fn take(self, m: &mut Machine) -> Option<u64> {
        let n = m.read(self.at(u64::from(FREE)), 4);
        if n != 0 {
            let next = m.read(self.record(n, record::SAVED), 8);
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

    /// Model: ends the goroutine's last record, whose call has not ended.
    fn drop_stale(self, m: &mut Machine, place: u64) {
        let n = m.read(place + 8, 4);
        let notes = m.read(place + u64::from(NOTES_KEY), 4);
        if notes == 0 || notes == m.read(self.record(n, record::SP), 4) {
            self.forget_notes(m, place);
        }
        let name = m.read(self.record(n, record::NAME), 4) as u32;
        if name != 0 {
            add(m, self.0.at(OWN, name), 8, 1);
        }
        let next = m.read(self.record(n, record::SAVED), 8);
        m.write(place + 8, 8, next);
        let tree = |m: &Machine, n: u64| m.read(self.record(n, record::RESTORE), 4) & !u64::from(record::HANDED);
        let mut caller = if tree(m, n) == 0 { 0 } else { next };
        while caller != 0 && tree(m, caller) != tree(m, n) {
            caller = m.read(self.record(caller, record::SAVED), 8);
        }
        if caller != 0 {
            let inside = m.read(self.record(n, INSIDE), 8);
            add(m, self.record(caller, INSIDE), 8, inside.cast_signed());
        }
        self.give_back(m, n);
    }

    fn prune(self, env: &Environment, m: &mut Machine) {
        self.load_top(m);
        if let Some((place, key)) = self.goroutine(env, m) {
            let handed = |m: &Machine, n: u64| m.read(self.record(n, record::RESTORE), 4) & u64::from(record::HANDED);
            loop {
                let n = m.read(place + 8, 4);
                let own = m.read(self.record(n, record::SP), 8);
                if n == 0 || own > key {
                    break;
                }
                if own < key || handed(m, n) == 0 {
                    self.drop_stale(m, place);
                    continue;
                }
                // All records of this frame that were handed over lose the mark.
                let mut n = n;
                while n != 0 && m.read(self.record(n, record::SP), 8) == key && handed(m, n) != 0 {
                    add(m, self.record(n, record::RESTORE), 4, -i64::from(record::HANDED));
                    n = m.read(self.record(n, record::SAVED), 8);
                }
                break;
            }
        }
        m.registers[RCX] = m.read(self.top(), 8);
    }

    fn park(self, env: &Environment, m: &mut Machine) {
        let last = m.read(self.top(), 8) - u64::from(record::SIZE);
        let found = self.goroutine(env, m).and_then(|(place, key)| Some((place, key, self.take(m)?)));
        if let Some((place, key, n)) = found {
            for field in (0..record::SIZE).step_by(8) {
                let word = match field {
                    record::SP => key,
                    record::SAVED => m.read(place + 8, 8),
                    _ => m.read(self.own(last, field), 8),
                };
                m.write(self.record(n, field), 8, word);
            }
            m.write(place + 8, 8, n);
        } else {
            let name = m.read(self.own(last, record::NAME), 4) as u32;
            add(m, self.0.at(OWN, name + 16), 8, 1);
        }
        m.write(self.top(), 8, last);
        m.registers[RCX] = last;
    }

    fn fetch(self, env: &Environment, m: &mut Machine) {
        let name = m.registers[RCX];
        let fetched = self.take_own(env, m, name).is_some();
        m.registers[RCX] = if fetched { m.read(self.top(), 8) } else { 0 };
    }

    fn take_own(self, env: &Environment, m: &mut Machine, name: u64) -> Option<()> {
        let top = self.load_top(m);
        if top >= u64::from(record::ROOM) {
            return None;
        }
        let (place, key) = self.goroutine(env, m)?;
        let mut link = place + 8;
        let mut n = m.read(link, 4);
        while n != 0 && m.read(self.record(n, record::SP), 8) < key {
            self.drop_stale(m, place);
            n = m.read(link, 4);
        }
        while n != 0 && m.read(self.record(n, record::SP), 8) == key {
            if m.read(self.record(n, record::NAME), 4) == name {
                let next = m.read(self.record(n, record::SAVED), 8);
                m.write(link, 8, next);
                for field in (0..record::SIZE).step_by(8).filter(|field| *field != record::SAVED) {
                    let word = if field == record::SP { u64::MAX } else { m.read(self.record(n, field), 8) };
                    m.write(self.own(top, field), 8, word);
                }
                m.write(self.top(), 8, top + u64::from(record::SIZE));
                self.give_back(m, n);
                return Some(());
            }
            link = self.record(n, record::SAVED);
            n = m.read(link, 8);
        }
        None
    }
}

/// Record in the list of the goroutine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Difference of its key from the key of the call.
    pub(super) below: i64,
    pub(super) name: u32,
    pub(super) handed: bool,
}

/// Thread that executes the goroutine, in a call of it.
pub(super) fn thread(env: &Environment, routine: Routine, list: &[Record]) -> Machine {
    let lists = GoroutineLists(Area(env.data));
    let mut m = machine(env, routine);
    (m.gs, m.fs) = (OWN * env.data.stride, THREAD);
    m.mapped.push(THREAD - 0x1000..THREAD + 0x1000);
    m.mapped.push(GOROUTINE..GOROUTINE + 0x100);
    m.write(THREAD.wrapping_add_signed(i64::from(env.goroutine.expect("a pointer"))), 8, GOROUTINE);
    m.write(GOROUTINE, 8, LOW);
    m.write(GOROUTINE + 8, 8, HIGH);
    (m.registers[RDX], m.registers[RCX]) = (HIGH - DEPTH, u64::from(NAME));
    let mut link = lists.place(0) + 8;
    if !list.is_empty() {
        m.write(lists.place(0), 8, GOROUTINE);
    }
    for (n, each) in (1..).zip(list) {
        m.write(link, 8, n);
        for field in (0..record::SIZE).step_by(8) {
            m.write(lists.record(n, field), 8, n << 32 | u64::from(field));
        }
        m.write(lists.record(n, record::SP), 8, KEY.wrapping_add_signed(each.below));
        m.write(lists.record(n, record::NAME), 4, u64::from(each.name));
        m.write(
            lists.record(n, record::RESTORE),
            4,
            if each.name == OTHER { 0x9000 } else { 0x9800 * u64::from(each.name != 0) }
                | if each.handed { u64::from(record::HANDED) } else { 0 },
        );
        link = lists.record(n, record::SAVED);
        m.write(link, 8, 0);
    }
    m.write(lists.at(u64::from(USED)), 4, list.len() as u64);
    m.write(lists.top(), 8, 128);
    for field in (0..128).step_by(8) {
        m.write(lists.own(0, field), 8, 0xaaaa_0000 | u64::from(field));
    }
    m.write(lists.own(64, record::NAME), 4, u64::from(NAME));
    m
}

fn check(env: &Environment, routine: Routine, m: &Machine, what: &str) {
    let lists = GoroutineLists(Area(env.data));
    let model = |m: &mut Machine| match routine {
        Routine::Park => lists.park(env, m),
        Routine::Fetch => lists.fetch(env, m),
        _ => lists.prune(env, m),
    };
    compare(env, routine, m, model, &format!("{routine:?}, {what}"));
}

const ALL: [Routine; 3] = [Routine::PruneGoroutine, Routine::Park, Routine::Fetch];

/// All lists of up to three records, the deepest calls first.
fn every_list() -> Vec<Vec<Record>> {
    let each: Vec<Record> = [-16, 0, 16]
        .into_iter()
        .flat_map(|below| [0, NAME, OTHER].map(|name| (below, name)))
        .flat_map(|(below, name)| [false, true].map(|handed| Record { below, name, handed }))
        .collect();
    let mut lists = vec![Vec::new()];
    let mut last = lists.clone();
    for _ in 0..3 {
        let longer = last.iter().flat_map(|list: &Vec<Record>| {
            let from = list.last().map_or(i64::MIN, |record| record.below);
            each.iter().filter(move |record| record.below >= from).map(|record| [list.as_slice(), &[*record]].concat())
        });
        last = longer.collect();
        lists.extend(last.iter().cloned());
    }
    lists
}

#[test]
fn every_list_of_records() {
    for env in environments() {
        for list in every_list() {
            for routine in ALL {
                check(&env, routine, &thread(&env, routine, &list), &format!("{list:?}"));
            }
        }
    }
}

#[test]
fn notes_end_with_their_call() {
    for env in environments() {
        for list in every_list() {
            for routine in ALL {
                for key in [0, KEY, KEY - 16, KEY + 16] {
                    let mut m = thread(&env, routine, &list);
                    GoroutineLists(Area(env.data)).note(&mut m, key, 2);
                    check(&env, routine, &m, &format!("{list:?}, notes of {key:#x}"));
                }
            }
        }
    }
}

#[test]
fn every_thread() {
    let list = [Record { below: -16, name: NAME, handed: false }, Record { below: 0, name: NAME, handed: true }];
    for env in environments() {
        let area = Area(env.data);
        for routine in ALL {
            for sp in [LOW - 8, LOW, LOW + 8, HIGH - DEPTH, HIGH - 8, HIGH, HIGH + 8, 0, u64::MAX] {
                let mut m = thread(&env, routine, &list);
                m.registers[RDX] = sp;
                check(&env, routine, &m, &format!("sp {sp:#x}"));
            }
            let mut m = thread(&env, routine, &list);
            m.write(u64::from(env.data.alive()), 4, 0);
            check(&env, routine, &m, "a fork child");
            let mut m = thread(&env, routine, &list);
            m.fs = 0;
            check(&env, routine, &m, "no thread pointer");
            let mut m = thread(&env, routine, &list);
            m.write(m.fs.wrapping_add_signed(i64::from(env.goroutine.unwrap())), 8, 0);
            check(&env, routine, &m, "no goroutine");
            let room = u64::from(record::ROOM);
            for top in [0, 64, room - 64, room].into_iter().filter(|top| routine != Routine::Park || *top != 0) {
                let mut m = thread(&env, routine, &list);
                m.mapped.push(area.at(OWN + 1, 0)..area.at(OWN + 1, 0) + 64);
                m.write(GoroutineLists(area).top(), 8, top);
                if top != 0 {
                    m.write(GoroutineLists(area).own(top - 64, record::NAME), 4, u64::from(OTHER));
                }
                check(&env, routine, &m, &format!("top {top:#x}"));
            }
        }
    }
}

#[test]
fn every_place_of_the_goroutine() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        for routine in ALL {
            for taken in 0..=u64::from(PROBES) {
                for known in [false, true] {
                    let mut m = thread(&env, routine, &[]);
                    (0..taken).for_each(|n| m.write(lists.place(n), 8, GOROUTINE + 8 * (n + 1)));
                    if known {
                        m.write(lists.place(taken), 8, GOROUTINE);
                    }
                    check(&env, routine, &m, &format!("{taken} places belong to others"));
                }
            }
            // Another goroutine takes the place meanwhile.
            let mut m = thread(&env, routine, &[]);
            m.race = Some((lists.place(0), GOROUTINE + 8));
            let model = |m: &mut Machine| {
                m.write(lists.place(0), 8, GOROUTINE + 8);
                match routine {
                    Routine::Park => lists.park(&env, m),
                    Routine::Fetch => lists.fetch(&env, m),
                    _ => lists.prune(&env, m),
                }
            };
            compare(&env, routine, &m, model, "a lost place");
        }
    }
}

#[test]
fn every_state_of_the_unused_records() {
    let stale = [Record { below: -16, name: NAME, handed: false }, Record { below: 0, name: NAME, handed: false }];
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        let free = lists.at(u64::from(FREE));
        for routine in ALL {
            for changes in [0, 1, u64::from(u32::MAX)] {
                for first in [0, 7] {
                    for used in [8, u64::from(RECORDS_MAX) - 1, u64::from(RECORDS_MAX)] {
                        let mut m = thread(&env, routine, &stale);
                        m.write(free, 8, changes << 32 | first);
                        m.write(lists.record(7, record::SAVED), 8, 5);
                        m.write(lists.at(u64::from(USED)), 4, used);
                        let what = format!("{changes} {first} {used}");
                        check(&env, routine, &m, &what);
                        // Another thread takes the first record meanwhile, and later code sees record 5 first.
                        let now = u64::from((changes as u32).wrapping_add(1)) << 32 | 5;
                        m.race = Some((free, now));
                        let raced = |m: &mut Machine| {
                            m.write(free, 8, now);
                            match routine {
                                Routine::Park => lists.park(&env, m),
                                Routine::Fetch => lists.fetch(&env, m),
                                _ => lists.prune(&env, m),
                            }
                        };
                        // If the list is empty, the routine that takes a record does not exchange its head.
                        if routine != Routine::Park || first != 0 {
                            compare(&env, routine, &m, raced, &format!("{what}, raced"));
                        }
                    }
                }
            }
        }
    }
}
