//! The routines for notes of goroutines.

use ingraft_model::buffer::{Capacity, FIRST, LOST, POSITION, TAKEN};
use ingraft_model::layout::goroutine::{
    DESCRIPTOR, FIRST_NOTE, LAST_NOTE, NOTE_NUMBER, NOTE_WORDS, NOTED, NOTED_MAX, NOTES_KEY, NOTES_MADE, NOTES_MAX,
    RECORDS_MAX, USED,
};
use ingraft_model::layout::{COUNTERS, record};
use ingraft_model::records;

use super::goroutine::{GoroutineLists, HIGH, KEY, LOW, NAME, OTHER, OWN, Record, environments, thread};
use super::machine::{Machine, RCX, RSP};
use super::{Area, add, compare};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

/// First counter of the buffer.
const BUFFER: u32 = 100;
/// Number of words of a record.
const WORDS: u32 = 1 + NOTE_WORDS;
const ALL: [Routine; 6] = [
    Routine::Descriptor,
    Routine::KeepsNotes,
    Routine::BeginNotes,
    Routine::AddNote,
    Routine::TellNotes,
    Routine::EndNotes,
];
/// Keys of the call that keeps notes: none, this call, one further out, and one that has ended.
const KEYS: [u64; 4] = [0, KEY, KEY + 16, KEY - 16];

impl GoroutineLists {
    fn word(self, place: u64, field: u32) -> u64 {
        place + u64::from(field)
    }

    /// Lets the call with this key keep notes of so many calls. Their records have the numbers from 20 on.
    pub(super) fn note(self, m: &mut Machine, key: u64, notes: u64) {
        let place = self.place(0);
        m.write(self.word(place, NOTES_KEY), 4, key);
        m.write(self.word(place, NOTES_MADE), 4, notes);
        for n in 20..20 + notes {
            let last = m.read(self.word(place, LAST_NOTE), 4);
            let link = if last == 0 { self.word(place, FIRST_NOTE) } else { self.record(last, record::SAVED) };
            m.write(link, 4, n);
            m.write(self.word(place, LAST_NOTE), 4, n);
            m.write(self.record(n, record::SP), 8, records::header(n as u16, WORDS).into());
            m.write(self.record(n, NOTE_NUMBER), 4, n - 19);
            add(m, self.at(u64::from(NOTED)), 4, 1);
            for word in 0..NOTE_WORDS {
                m.write(self.record(n, record::KEPT + 8 * word), 8, n << 8 | u64::from(word));
            }
        }
    }

    /// Model: adds the notes to the unused records.
    pub(super) fn forget_notes(self, m: &mut Machine, place: u64) {
        let [first, last] = [FIRST_NOTE, LAST_NOTE].map(|field| m.read(self.word(place, field), 4));
        [NOTES_KEY, NOTES_MADE, FIRST_NOTE, LAST_NOTE].iter().for_each(|f| m.write(self.word(place, *f), 4, 0));
        if first != 0 && [first, last].iter().all(|n| *n <= RECORDS_MAX.into()) {
            let kept = m.read(self.record(last, NOTE_NUMBER), 4);
            add(m, self.at(u64::from(NOTED)), 4, -kept.cast_signed());
            self.give_back(m, last);
            self.change_first(m, first);
        }
    }

    /// Makes another record the first unused one, without a further change.
    fn change_first(self, m: &mut Machine, first: u64) {
        m.write(self.at(u64::from(ingraft_model::layout::goroutine::FREE)), 4, first);
    }

    fn model(self, env: &Environment, routine: Routine, m: &mut Machine) {
        let found = self.goroutine(env, m);
        let kept = |m: &Machine, place: u64| m.read(self.word(place, NOTES_KEY), 4);
        match (routine, found) {
            (Routine::Descriptor, found) => {
                let at = m.registers[RCX];
                let place = found.filter(|_| at <= u64::from(DESCRIPTOR - 8));
                m.registers[RCX] = place.map_or(0, |(place, _)| m.read(m.read(place, 8) + at, 8));
            }
            (Routine::KeepsNotes, None) => m.registers[RCX] = 0,
            (Routine::KeepsNotes, Some((place, key))) => {
                let (of, key) = (kept(m, place), u64::from(key as u32));
                m.registers[RCX] = if of == 0 || of < key { 0 } else { 1 + u64::from(of == key) };
            }
            (Routine::BeginNotes, Some((place, key))) => {
                let last = m.read(place + 8, 4);
                let is_own = last != 0
                    && m.read(self.record(last, record::SP), 8) == key
                    && m.read(self.record(last, record::NAME), 4) == m.registers[RCX];
                let of = kept(m, place);
                let mut around =
                    if of > u64::from(key as u32) { m.read(self.record(last, record::SAVED), 8) } else { 0 };
                while around != 0 && m.read(self.record(around, record::SP), 4) != of {
                    around = m.read(self.record(around, record::SAVED), 8);
                }
                if is_own && around == 0 {
                    self.forget_notes(m, place);
                    m.write(self.word(place, NOTES_KEY), 4, key);
                }
            }
            (Routine::AddNote, Some((place, _))) if kept(m, place) != 0 => self.add_note(m, place),
            (Routine::TellNotes, Some((place, _))) => self.tell_notes(m, place),
            (Routine::EndNotes, Some((place, _))) => self.forget_notes(m, place),
            _ => {}
        }
    }

    fn add_note(self, m: &mut Machine, place: u64) {
        add(m, self.word(place, NOTES_MADE), 4, 1);
        let last = m.read(self.word(place, LAST_NOTE), 4);
        if last > RECORDS_MAX.into() {
            return;
        }
        let number = if last == 0 { 0 } else { m.read(self.record(last, NOTE_NUMBER), 4) };
        if number >= NOTES_MAX.into() || m.read(self.at(u64::from(NOTED)), 4) >= NOTED_MAX.into() {
            return;
        }
        let Some(n) = self.take(m) else { return };
        add(m, self.at(u64::from(NOTED)), 4, 1);
        m.write(self.record(n, record::SP), 8, m.registers[RCX]);
        m.write(self.record(n, record::NAME), 4, 0);
        m.write(self.record(n, NOTE_NUMBER), 4, number + 1);
        m.write(self.record(n, record::SAVED), 8, 0);
        for word in 0..NOTE_WORDS {
            let value = m.read(m.registers[RSP] + 8 * u64::from(word), 8);
            m.write(self.record(n, record::KEPT + 8 * word), 8, value);
        }
        match last {
            0 => m.write(self.word(place, FIRST_NOTE), 4, n),
            last => m.write(self.record(last, record::SAVED), 8, n),
        }
        m.write(self.word(place, LAST_NOTE), 4, n);
    }

    fn tell_notes(self, m: &mut Machine, place: u64) {
        let (first, log) = (m.registers[RCX] as u32, m.registers[RCX] >> 32);
        let sizes = u64::from(Capacity::LEAST.trailing_zeros())..=u64::from(Capacity::MOST.trailing_zeros());
        if !sizes.contains(&log) {
            return;
        }
        let capacity = Capacity::of_bytes(1 << log).expect("a size");
        let end = u64::from(first) + 8 * u64::from(FIRST) + u64::from(capacity.bytes());
        if first < COUNTERS || end > self.0.0.records().into() {
            return;
        }
        let at = |n: u32| self.0.at(OWN, first) + 8 * u64::from(n);
        let mut lost = m.read(self.word(place, NOTES_MADE), 4);
        let mut n = m.read(self.word(place, FIRST_NOTE), 4);
        while n != 0 && n <= RECORDS_MAX.into() && lost != 0 {
            let position = m.read(at(POSITION), 8);
            if position.wrapping_sub(m.read(at(TAKEN), 8)) >= records::room(capacity, true).into() {
                break;
            }
            for word in 0..WORDS {
                let from = if word == 0 { record::SP } else { record::KEPT + 8 * (word - 1) };
                let place = (position + 8 * u64::from(word)) & u64::from(capacity.bytes() - 8);
                let value = m.read(self.record(n, from), 8);
                m.write(at(FIRST) + place, 8, value);
            }
            add(m, at(POSITION), 8, 8 * i64::from(WORDS));
            n = m.read(self.record(n, record::SAVED), 4);
            lost -= 1;
        }
        add(m, at(LOST), 8, lost.cast_signed());
    }
}

/// Thread in a call of the goroutine, whose record is its last one, on the way to a routine.
fn call(env: &Environment, routine: Routine) -> Machine {
    let list = [Record { below: 0, name: NAME, handed: false }, Record { below: 16, name: NAME, handed: false }];
    let mut m = thread(env, routine, &list);
    m.write(m.registers[RSP], 8, 0x1111);
    m.write(m.registers[RSP] + 8, 8, 0x2222);
    m.registers[RCX] = match routine {
        Routine::TellNotes => buffer(Capacity::LEAST),
        Routine::Descriptor => 0x98,
        Routine::BeginNotes => NAME.into(),
        _ => records::header(7, WORDS).into(),
    };
    m
}

/// The register that tells where the buffer is.
fn buffer(bytes: u32) -> u64 {
    u64::from(bytes.trailing_zeros()) << 32 | u64::from(COUNTERS + 8 * BUFFER)
}

fn check(env: &Environment, routine: Routine, m: &Machine, what: &str) {
    let lists = GoroutineLists(Area(env.data));
    compare(env, routine, m, |m| lists.model(env, routine, m), &format!("{routine:?}, {what}"));
}

#[test]
fn every_number_of_notes() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        for routine in ALL {
            for key in KEYS {
                for notes in 0..4 {
                    let mut m = call(&env, routine);
                    lists.note(&mut m, key, notes);
                    check(&env, routine, &m, &format!("{notes} notes of {key:#x}"));
                }
            }
        }
    }
}

#[test]
fn every_thread() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        for routine in ALL {
            let noted = || {
                let mut m = call(&env, routine);
                lists.note(&mut m, KEY, 2);
                m
            };
            for sp in [LOW - 8, LOW, LOW + 8, HIGH - 8, HIGH, 0, u64::MAX] {
                let mut m = noted();
                m.registers[super::machine::RDX] = sp;
                check(&env, routine, &m, &format!("sp {sp:#x}"));
            }
            let mut m = noted();
            m.write(u64::from(env.data.alive()), 4, 0);
            check(&env, routine, &m, "a fork child");
            let mut m = noted();
            m.fs = 0;
            check(&env, routine, &m, "no thread pointer");
        }
    }
}

#[test]
fn every_word_of_a_descriptor() {
    for env in environments() {
        for at in (0..=u64::from(DESCRIPTOR)).step_by(8).chain([u64::MAX - 7]) {
            let mut m = call(&env, Routine::Descriptor);
            m.registers[RCX] = at;
            let descriptor = m.read(GoroutineLists(Area(env.data)).place(0), 8);
            if (16..u64::from(DESCRIPTOR)).contains(&at) {
                m.write(descriptor + at, 8, 0x1000 + at);
            }
            check(&env, Routine::Descriptor, &m, &format!("offset {at:#x}"));
        }
    }
}

#[test]
fn notes_begin_with_the_record_of_the_call() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        let call = |below, name| Record { below, name, handed: false };
        // Of a call further out that keeps notes, there is a record or none.
        let others: [&[Record]; 4] = [&[], &[call(8, NAME)], &[call(16, NAME)], &[call(8, OTHER), call(16, OTHER)]];
        for own in [call(-16, NAME), call(0, NAME), call(0, OTHER), call(16, NAME)] {
            for others in others {
                for key in KEYS {
                    let mut m = thread(&env, Routine::BeginNotes, &[&[own], others].concat());
                    lists.note(&mut m, key, 2);
                    check(&env, Routine::BeginNotes, &m, &format!("{own:?}, {others:?}, notes of {key:#x}"));
                }
            }
        }
        check(&env, Routine::BeginNotes, &thread(&env, Routine::BeginNotes, &[]), "no record");
    }
}

#[test]
fn notes_without_room_are_counted() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        let last = lists.record(21, NOTE_NUMBER);
        let noted = lists.at(u64::from(NOTED));
        let used = lists.at(u64::from(USED));
        let words = [(last, NOTES_MAX), (noted, NOTED_MAX), (used, RECORDS_MAX)];
        for (at, most) in words {
            for value in [most - 1, most, most + 1] {
                let mut m = call(&env, Routine::AddNote);
                lists.note(&mut m, KEY, 2);
                m.write(at, 4, value.into());
                check(&env, Routine::AddNote, &m, &format!("{value} at {at:#x}"));
            }
        }
    }
}

/// The program has overwritten numbers of records.
#[test]
fn no_number_leads_out_of_the_records() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        for routine in ALL {
            for field in [FIRST_NOTE, LAST_NOTE] {
                for number in [RECORDS_MAX + 1, u32::MAX] {
                    let mut m = call(&env, routine);
                    lists.note(&mut m, KEY, 2);
                    m.write(lists.place(0) + u64::from(field), 4, number.into());
                    check(&env, routine, &m, &format!("{number:#x} at {field:#x}"));
                }
            }
        }
    }
}

#[test]
fn every_buffer() {
    for env in environments() {
        let lists = GoroutineLists(Area(env.data));
        let noted = || {
            let mut m = call(&env, Routine::TellNotes);
            lists.note(&mut m, KEY, 3);
            m
        };
        let at = |n: u32| lists.0.at(OWN, COUNTERS + 8 * (BUFFER + n));
        for bytes in [Capacity::LEAST, 1 << 15, 1 << 18] {
            let capacity = Capacity::of_bytes(bytes).expect("a size");
            let room = u64::from(records::room(capacity, true));
            for (taken, used) in
                [(0, 0), (0, room - 24), (0, room - 8), (0, room), (u64::from(bytes) - 16, 0), (64, room)]
            {
                let mut m = noted();
                m.registers[RCX] = buffer(bytes);
                m.write(at(TAKEN), 8, taken);
                m.write(at(POSITION), 8, taken + used);
                m.write(at(LOST), 8, 5);
                check(&env, Routine::TellNotes, &m, &format!("{used} of {bytes} bytes from {taken} on"));
            }
        }
        // No buffer is there.
        let offsets = [COUNTERS - 8, env.data.records() - 8, u32::MAX];
        let logs = [0, Capacity::LEAST.trailing_zeros() - 1, Capacity::MOST.trailing_zeros() + 1, u32::MAX];
        let least = Capacity::LEAST.trailing_zeros();
        let wrong = offsets.map(|at| (least, at)).into_iter().chain(logs.map(|log| (log, COUNTERS)));
        for (log, first) in wrong {
            let mut m = noted();
            m.registers[RCX] = u64::from(log) << 32 | u64::from(first);
            check(&env, Routine::TellNotes, &m, &format!("a buffer of 2^{log} bytes at {first:#x}"));
        }
        // Fewer notes were made than there are, because the program has overwritten the number.
        let mut m = noted();
        m.write(lists.place(0) + u64::from(NOTES_MADE), 4, 1);
        check(&env, Routine::TellNotes, &m, "one note too many");
    }
}
