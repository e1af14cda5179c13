//! The routines before and after a fork.

use ingraft_model::layout::birth::{
    BORN, CPU, FAILED, KEEP, KEPT_CPU, KEPT_TIMES, KEPT_WALL, NOTHING, RULES, SAVED_TIME, UNBORN, WALL,
};
use ingraft_model::layout::{CHILD_SHARD, COUNTERS, HEIR_BYTES, HEIRS, OWNER, TOP, header, record};

use super::machine::{Machine, RCX, RDX};
use super::{Area, add, areas, compare, environment, machine};
use crate::code::environment::Environment;
use crate::code::routine::Routine;

const TIME: u64 = 0x0123_4567_89ab;
/// Shard of the thread that executes the routine.
const OWN: u64 = 3;

fn heir(area: Area, shard: u64) -> u64 {
    area.at(u64::from(CHILD_SHARD), HEIRS) + u64::from(HEIR_BYTES) * shard
}

/// Thread in its shard, with counters and records that all differ, and rules for so many bytes of counters.
fn thread(env: &Environment, routine: Routine, counters: u32, top: u64) -> Machine {
    let area = Area(env.data);
    let mut m = machine(env, routine);
    (m.gs, m.fs) = (OWN * env.data.stride, 0x7100_0000);
    (m.registers[RDX], m.registers[RCX]) = (TIME, 0);
    m.write(area.claim(OWN), 8, 77);
    m.write(area.at(OWN, OWNER), 8, 77);
    m.write(area.at(OWN, TOP), 8, top);
    m.write(area.at(u64::from(RULES), TOP), 8, u64::from(counters));
    for offset in (COUNTERS..COUNTERS + 0x100).step_by(8) {
        m.write(area.at(OWN, offset), 8, 0x1_0000 + u64::from(offset));
    }
    for offset in (0..0x100).step_by(8) {
        m.write(area.at(OWN, env.data.records() + offset), 8, 0x2_0000 + u64::from(offset));
    }
    m
}

/// Model of the routine before a fork.
fn fork(env: &Environment, m: &mut Machine) {
    let area = Area(env.data);
    let claim = m.read(area.at(OWN, OWNER), 8) | 1 << UNBORN;
    let Some(k) = area.search(m, claim) else { return add(m, area.at(0, header::BIRTHS_MISSED), 4, 1) };
    let copy = |m: &mut Machine, offset: u32| {
        let word = m.read(area.at(OWN, offset), 8);
        m.write(area.at(k, offset), 8, word);
    };
    let end = m.read(area.at(u64::from(RULES), TOP), 8) as u32;
    (COUNTERS..end).step_by(8).for_each(|offset| copy(m, offset));
    let top = m.read(area.at(OWN, TOP), 8);
    let top = if top > u64::from(record::ROOM) { 0 } else { top as u32 };
    m.write(area.at(k, TOP), 8, u64::from(top));
    (0..top).step_by(8).for_each(|offset| copy(m, env.data.records() + offset));
    m.write(area.at(k, env.data.readings_open()), 8, 0);
    m.write(heir(area, OWN), 8, m.fs);
    m.write(heir(area, OWN) + 8, 8, k);
}

/// Model of the routine after a fork.
fn forked(env: &Environment, m: &mut Machine) {
    let area = Area(env.data);
    let (result, time) = (m.registers[RCX] as u32 as i32, m.registers[RDX]);
    let prepared = m.read(heir(area, OWN) + 8, 4);
    if prepared != 0 {
        m.write(heir(area, OWN) + 8, 8, 0);
        if result < 0 {
            m.write(area.claim(prepared), 8, 1 << FAILED);
        }
        return;
    }
    if m.read(area.claim(OWN), 8) >> UNBORN & 1 == 0 {
        return;
    }
    let rules = u64::from(RULES);
    for offset in (COUNTERS..m.read(area.at(rules, TOP), 8) as u32).step_by(8) {
        let runs = m.read(area.at(OWN, offset - 8), 8).cast_signed() > 0;
        let value = match m.read(area.at(rules, offset), 8) {
            KEEP => continue,
            WALL if runs => time.wrapping_neg(),
            CPU if runs => u64::MAX,
            _ => 0,
        };
        m.write(area.at(OWN, offset), 8, value);
    }
    let records = env.data.records();
    let top = m.read(area.at(OWN, TOP), 8) as u32;
    for place in (record::SIZE..top).step_by(record::SIZE as usize).rev() {
        let field = |field: u32| area.at(OWN, records + place + field);
        let rule = m.read(area.at(rules, m.read(field(record::NAME), 4) as u32), 8);
        for n in 0..KEPT_TIMES {
            if rule >> (KEPT_CPU + n) & 1 != 0 {
                m.write(field(record::KEPT + 8 * n), 8, 0);
            } else if rule >> (KEPT_WALL + n) & 1 != 0 {
                m.write(field(record::KEPT + 8 * n), 8, time);
            }
        }
        if rule >> SAVED_TIME & 1 != 0 {
            m.write(field(record::SAVED), 8, 0);
        }
    }
    m.write(area.at(OWN, records + BORN), 8, 1);
    m.write(area.at(OWN, records + record::SPENT), 8, 0);
    m.write(area.at(OWN, records + record::SPENT + 8), 8, 0);
    let owner = m.read(area.at(OWN, OWNER), 8);
    m.write(area.claim(OWN), 8, owner);
}

#[test]
fn every_search_for_the_childs_shard() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        let area = Area(data);
        for search in area.searches() {
            let mut m = thread(&env, Routine::Fork, COUNTERS + 24, 128);
            area.prepare(&mut m, search);
            compare(&env, Routine::Fork, &m, |m| fork(&env, m), &format!("{search:?}"));
            let Some(k) = area.search(&mut m.clone(), 1) else { continue };
            // Another thread wins the claim.
            m.race = Some((area.claim(k), 0x5555));
            let lost = |m: &mut Machine| {
                m.write(area.claim(k), 8, 0x5555);
                fork(&env, m);
            };
            compare(&env, Routine::Fork, &m, lost, &format!("{search:?}, and shard {k} is lost"));
        }
    }
}

#[test]
fn the_child_gets_all_counters_and_records() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        let room = u64::from(record::ROOM);
        for counters in [0, COUNTERS, COUNTERS + 8, COUNTERS + 0x100] {
            for top in [0, 64, 128, room, room + 64, 64u64.wrapping_neg(), u64::MAX] {
                let m = thread(&env, Routine::Fork, counters, top);
                compare(&env, Routine::Fork, &m, |m| fork(&env, m), &format!("{counters:#x} {top:#x}"));
            }
        }
    }
}

#[test]
fn the_parent_forgets_the_childs_shard() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        let area = Area(data);
        for (prepared, result) in (1..u64::from(data.shards)).flat_map(|k| [0, 1, 4711, -1, -11].map(|r| (k, r))) {
            let mut m = thread(&env, Routine::Forked, COUNTERS + 24, 128);
            m.registers[RCX] = i64::from(result).cast_unsigned();
            m.write(heir(area, OWN), 8, m.fs);
            m.write(heir(area, OWN) + 8, 8, prepared);
            m.write(area.claim(prepared), 8, 77 | 1 << UNBORN);
            compare(&env, Routine::Forked, &m, |m| forked(&env, m), &format!("{prepared} {result}"));
        }
        // The thread has no heir, and was not born: nothing changes.
        let m = thread(&env, Routine::Forked, COUNTERS + 24, 128);
        compare(&env, Routine::Forked, &m, |_| (), "no child");
    }
}

#[test]
fn the_child_begins_by_every_rule() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        let area = Area(data);
        let mut m = thread(&env, Routine::Forked, 0, 0);
        m.write(area.claim(OWN), 8, 77 | 1 << UNBORN);
        // Each rule with a level before it that is negative, 0 and positive, kept or not.
        let mut offset = COUNTERS;
        for rule in [NOTHING, KEEP, WALL, CPU, CPU + 1, u64::MAX, 1 << 63] {
            for (level, kept) in [-1, 0, 1, i64::MIN, i64::MAX].into_iter().flat_map(|l| [(l, KEEP), (l, NOTHING)]) {
                m.write(area.at(OWN, offset), 8, level.cast_unsigned());
                m.write(area.at(u64::from(RULES), offset), 8, kept);
                m.write(area.at(OWN, offset + 8), 8, 0x1111);
                m.write(area.at(u64::from(RULES), offset + 8), 8, rule);
                offset += 16;
            }
        }
        m.write(area.at(u64::from(RULES), TOP), 8, u64::from(offset));
        for ends in [COUNTERS, COUNTERS + 8, offset] {
            m.write(area.at(u64::from(RULES), TOP), 8, u64::from(ends));
            compare(&env, Routine::Forked, &m, |m| forked(&env, m), "counters");
        }

        // A record for each set of words that are times.
        let sets = 1u32 << (2 * KEPT_TIMES + 1);
        for set in 0..sets {
            let (wall, cpu, saved) = (set & 15, set >> KEPT_TIMES & 15, set >> (2 * KEPT_TIMES));
            let rule = wall << KEPT_WALL | cpu << KEPT_CPU | saved << SAVED_TIME;
            let (name, place) = (offset + 8 * set, data.records() + record::SIZE * (set + 1));
            m.write(area.at(u64::from(RULES), name), 8, u64::from(rule) | 0xff << 32);
            for word in (0..record::SIZE).step_by(8) {
                m.write(area.at(OWN, place + word), 8, 0x7777);
            }
            m.write(area.at(OWN, place + record::NAME), 4, u64::from(name));
        }
        for top in [0, 64, 128, 192, u64::from(record::SIZE * (sets + 1))] {
            m.write(area.at(OWN, TOP), 8, top);
            compare(&env, Routine::Forked, &m, |m| forked(&env, m), &format!("top {top:#x}"));
        }
    }
}
