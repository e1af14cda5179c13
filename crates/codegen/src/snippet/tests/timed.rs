//! The routines for records of timed calls and for histograms of times.

use iced_x86::{Code, Instruction};
use ingraft_model::histogram::{HEAD, SQUARE_BITS, SQUARES, VALUE_BITS};
use ingraft_model::layout::{COUNTERS, TOP, record};
use ingraft_model::{DataArea, WallClock};

use super::machine::{BACK, CODE, Machine, R8, RAX, RCX, RDX, RSP, STACK};
use super::{Area, add, areas, environment};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::routines::assemble;

const OWN: u64 = 3;
/// Offset of a counter.
const NAME: u32 = COUNTERS + 8 * 7;
/// Stack pointer of the call.
const SP: u64 = STACK + 0x40;

/// A thread that has called a routine, with so many bytes of records.
fn called(data: DataArea, routine: Routine, top: u64) -> Machine {
    let env = environment_of(data);
    let mut m = Machine::new(&assemble(&env, routine).expect("assembles"));
    Area(data).map(&mut m);
    m.gs = OWN * data.stride;
    m.registers[RSP] = STACK - 8;
    m.write(STACK - 8, 8, BACK);
    m.registers[RAX] = 0xaaaa;
    m.registers[RCX] = u64::from(NAME);
    m.registers[RDX] = SP;
    m.write(at(data, TOP), 8, top);
    m
}

fn environment_of(data: DataArea) -> Environment {
    Environment { data, wall: WallClock::Tsc, ..environment() }
}

/// Address of an offset in the thread's shard.
fn at(data: DataArea, offset: u32) -> u64 {
    Area(data).at(OWN, offset)
}

/// Address of a field of the record that ends at `top`.
fn field(data: DataArea, top: u64, field: u32) -> u64 {
    at(data, data.records()) + top - u64::from(record::SIZE) + u64::from(field)
}

/// Executes the routine, with this time, up to its return.
fn run(m: &Machine, (data, routine, time): (DataArea, Routine, u64)) -> Machine {
    let mut found = m.clone();
    let code = CODE..CODE + assemble(&environment_of(data), routine).expect("assembles").len() as u64;
    let mut execute = |m: &mut Machine, i: &Instruction| match i.code() {
        Code::Rdtsc => {
            m.registers[RAX] = u64::from(time as u32);
            m.registers[RDX] = time >> 32;
        }
        Code::Lfence => {}
        Code::Retnq => m.rip = m.pop(),
        Code::Mul_rm64 => {
            let product = u128::from(m.registers[RAX]) * u128::from(m.registers[RAX]);
            (m.registers[RAX], m.registers[RDX]) = (product as u64, (product >> 64) as u64);
        }
        Code::Shrd_rm64_r64_imm8 => {
            let both = u128::from(m.registers[RDX]) << 64 | u128::from(m.registers[RAX]);
            m.registers[RAX] = (both >> i.immediate8()) as u64;
        }
        Code::Bsr_r64_rm64 => m.registers[RCX] = u64::from(m.registers[RCX].ilog2()),
        Code::Not_rm64 => m.registers[RDX] = !m.registers[RDX],
        _ => panic!("{i} at {:#x}", i.ip()),
    };
    found.run(code, &mut execute);
    assert_eq!((found.rip, found.registers[RSP]), (BACK, STACK), "where control goes on");
    assert!(found.lowest >= STACK - 16, "the stack");
    found
}

/// Compares registers and memory. Those registers that the routine overwrites have the values given, if any.
fn same(found: &Machine, wanted: &mut Machine, overwritten: &[(usize, Option<u64>)], what: &str) {
    for (r, value) in overwritten {
        wanted.registers[*r] = value.unwrap_or(found.registers[*r]);
    }
    wanted.registers[RSP] = STACK;
    assert_eq!(found.registers, wanted.registers, "{what}: registers");
    assert_eq!((found.gs, found.fs), (wanted.gs, wanted.fs), "{what}: segments");
    assert_eq!(found.changes(wanted), [], "{what}: memory");
    assert_ne!(found.registers[R8], 0);
}

#[test]
fn records_are_opened_where_there_is_room() {
    let (size, room) = (u64::from(record::SIZE), u64::from(record::ROOM));
    for data in areas() {
        for top in [0, 8, size - 1, size, 2 * size, 5 * size, room - 2 * size, room - size, room, room + size] {
            for time in [1, 0x1_2345_6789, u64::MAX] {
                let m = called(data, Routine::OpenTimed, top);
                let mut wanted = m.clone();
                let has_room = (size..room).contains(&top);
                if has_room {
                    let end = top + size;
                    wanted.write(at(data, TOP), 8, end);
                    wanted.write(field(data, end, record::SP), 8, SP);
                    wanted.write(field(data, end, record::NAME), 4, u64::from(NAME));
                    wanted.write(field(data, end, record::RESTORE), 4, 0);
                    wanted.write(field(data, end, record::KEPT), 8, time);
                } else {
                    add(&mut wanted, at(data, NAME + 16), 8, 1);
                }
                let found = run(&m, (data, Routine::OpenTimed, time));
                let registers = match has_room {
                    true => [(RAX, Some(time)), (RCX, Some(top)), (RDX, None)],
                    false => [(RAX, Some(0xaaaa)), (RCX, Some(0)), (RDX, Some(SP))],
                };
                same(&found, &mut wanted, &registers, &format!("top {top:#x}, time {time:#x}"));
            }
        }
    }
}

#[test]
fn only_the_record_of_the_call_is_closed() {
    let size = u64::from(record::SIZE);
    let others = [(SP, NAME), (SP, NAME + 8), (SP - 8, NAME), (SP + 8, NAME), (u64::MAX, NAME), (0, 0)];
    for (data, routine) in areas()
        .into_iter()
        .flat_map(|data| [Routine::CloseTimed, Routine::CloseTimedOwn].map(|routine| (data, routine)))
    {
        for (top, (sp, name)) in [0, size, 3 * size].into_iter().flat_map(|top| others.map(|other| (top, other))) {
            // Began, the present time, the sum of ended calls at the beginning and now.
            for (began, time, before, now) in
                [(100, 350, 40, 90), (100, 100, 0, 0), (500, 400, 7, 9), (0, 1 << 40, 5, 5), (100, 110, 10, 60)]
            {
                let mut m = called(data, routine, top);
                m.write(field(data, top, record::SP), 8, sp);
                m.write(field(data, top, record::NAME), 4, u64::from(name));
                m.write(field(data, top, record::RESTORE), 4, 0x4321);
                m.write(field(data, top, record::KEPT), 8, began);
                m.write(field(data, top, record::KEPT + 8), 8, before);
                m.write(at(data, data.records() + record::SPENT), 8, now);
                // In the first record, both are the same word.
                let before = m.read(field(data, top, record::KEPT + 8), 8);
                let mut wanted = m.clone();
                let is_its = (sp, name) == (SP, NAME);
                let elapsed = u64::saturating_sub(time, began);
                if is_its {
                    wanted.write(field(data, top, record::KEPT), 8, elapsed);
                    if routine == Routine::CloseTimedOwn {
                        let inside = now - before;
                        wanted.write(at(data, data.records() + record::SPENT), 8, before + elapsed);
                        wanted.write(field(data, top, record::KEPT + 8), 8, elapsed.saturating_sub(inside));
                    }
                }
                let found = run(&m, (data, routine, time));
                let registers = match is_its {
                    true => [(RAX, Some(elapsed)), (RCX, Some(top)), (RDX, None)],
                    false => [(RAX, Some(0xaaaa)), (RCX, Some(0)), (RDX, Some(SP))],
                };
                same(&found, &mut wanted, &registers, &format!("{routine:?}, top {top:#x}, {sp:#x} {name:#x}, {time}"));
            }
        }
    }
}

#[test]
fn every_time_is_observed() {
    let near = |bit: u32| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1];
    let values: Vec<u64> = (0..64).flat_map(near).chain([u64::MAX, 12_345_678]).collect();
    let routines = [Routine::ObserveCoarse, Routine::ObserveMedium, Routine::ObserveFine];
    for (data, routine) in areas().into_iter().flat_map(|data| routines.map(|routine| (data, routine))) {
        let resolution = routine.observed().expect("a resolution");
        let slot = |n: u32| at(data, NAME + 8 * n);
        for value in values.iter().copied() {
            for (largest, smallest) in [(0, 0), (1000, !1000), (u64::MAX, u64::MAX)] {
                let mut m = called(data, routine, 0);
                m.registers[RAX] = value;
                m.write(slot(0), 8, 77);
                m.write(slot(1), 8, largest);
                m.write(slot(2), 8, smallest);
                let mut wanted = m.clone();
                wanted.write(slot(0), 8, value.wrapping_add(77));
                wanted.write(slot(1), 8, largest.max(value));
                wanted.write(slot(2), 8, smallest.max(!value));
                let square = u128::from(value.min((1 << VALUE_BITS) - 1)).pow(2);
                wanted.write(slot(SQUARES), 8, square as u64);
                wanted.write(slot(SQUARES + 1), 8, (square >> SQUARE_BITS) as u64);
                let bucket = resolution.bucket_of(value);
                wanted.write(slot(HEAD + bucket), 8, 1);
                let found = run(&m, (data, routine, 0));
                same(&found, &mut wanted, &[(RAX, None), (RCX, None), (RDX, None)], &format!("{value:#x}"));
            }
        }
    }
}
