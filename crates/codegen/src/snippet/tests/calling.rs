//! The routine that calls functions of the program.

use iced_x86::Mnemonic;
use ingraft_model::VectorState;
use ingraft_model::layout::{CALL_SP, CALLING, header};

use super::machine::{CODE, DF, Machine, R8, R9, RAX, RBX, RCX, RDI, RDX, RSI, RSP, STACK};
use super::{Area, add, areas, environment, machine, same};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::routines::assemble;
use crate::snippet::words::WORDS;

const OWN: u64 = 3;
const FUNCTION: u64 = 0x44_4444;
const RESULT: u64 = 0x5555_6666_7777_8888;
const FLAGS: u64 = 0xed7;
/// Flags that every routine may change.
const ARITHMETIC: u64 = 0x8d5;

/// Effect of the function besides overwriting all registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CalleeEffect {
    Returns,
    /// It has forked, and this is the child.
    Forks,
    /// It returns on another thread.
    Moves,
}

fn run(env: &Environment, vectors: VectorState, function: CalleeEffect, misaligned: u64) {
    let env = Environment { vectors: Some(vectors), ..*env };
    let area = Area(env.data);
    let mut m = machine(&env, Routine::Call);
    m.gs = OWN * env.data.stride;
    m.flags = FLAGS;
    m.registers[RSP] = STACK - misaligned - 8 * u64::from(WORDS.unsigned_abs());
    let words: Vec<u64> =
        (0..WORDS.unsigned_abs().into()).map(|n: u64| if n == 0 { FUNCTION } else { 0x100 + n }).collect();
    for (at, word) in (m.registers[RSP]..).step_by(8).zip(&words) {
        m.write(at, 8, *word);
    }
    m.write(area.at(0, header::CALLS_OPEN), 4, 5);

    let alive = u64::from(env.data.alive());
    let mut area_at = 0;
    let mut steps = Vec::new();
    let mut found = m.clone();
    let code = CODE..CODE + assemble(&env, Routine::Call).expect("assembles").len() as u64;
    found.run(code, &mut |m, i| {
        steps.push(i.mnemonic());
        let sp = m.registers[RSP];
        let components = m.registers[RDX] << 32 | m.registers[RAX];
        match i.mnemonic() {
            Mnemonic::Xsave64 => {
                area_at = sp;
                assert_eq!((sp % 64, components), (0, vectors.components));
                assert!((512..576).step_by(8).all(|offset| m.read(sp + offset, 8) == 0), "the header is not 0");
                // Everything that the processor writes has room below the saved registers.
                (0..vectors.bytes).step_by(4).for_each(|offset| m.write(sp + u64::from(offset), 4, 0xeeee_eeee));
            }
            Mnemonic::Fninit => assert_eq!(sp, area_at),
            Mnemonic::Fldcw => assert_eq!((m.registers[RSP], i.memory_displacement64()), (area_at, 0)),
            Mnemonic::Xrstor64 => assert_eq!((sp, components), (area_at, vectors.components)),
            Mnemonic::Call => {
                assert_eq!(m.registers[RBX], FUNCTION);
                assert_eq!([RDI, RSI, RDX, RCX, R8, R9].map(|r| m.registers[r]), words[1..7]);
                assert_eq!((m.registers[RAX], m.flags & DF, sp % 16), (0, 0, 0));
                assert_eq!(m.gs, OWN * env.data.stride + u64::from(CALLING));
                assert_eq!(m.read(area.at(OWN, CALL_SP), 8), sp);
                assert_eq!(m.read(area.at(0, header::CALLS_OPEN), 4), 6);
                assert!((0..u64::from(vectors.bytes)).step_by(4).all(|n| m.read(sp + n, 4) == 0xeeee_eeee));
                // The function overwrites what lies below the stack pointer.
                (1..64).for_each(|n| m.write(sp - 8 * n, 8, 0xdddd));
                for r in (0..16).filter(|r| *r != RSP) {
                    m.registers[r] = 0xdead_0000 + r as u64;
                }
                m.registers[RAX] = RESULT;
                m.flags = 0x246;
                match function {
                    CalleeEffect::Returns => {}
                    CalleeEffect::Forks => m.write(alive, 4, 0),
                    CalleeEffect::Moves => m.gs -= env.data.stride,
                }
            }
            _ => panic!("{i}"),
        }
    });

    let all = [Mnemonic::Xsave64, Mnemonic::Fninit, Mnemonic::Fldcw, Mnemonic::Call, Mnemonic::Xrstor64];
    assert_eq!(steps, all);
    let mut wanted = m;
    wanted.registers[RSP] += 8 * u64::from(WORDS.unsigned_abs());
    wanted.registers[RCX] = RESULT;
    wanted.write(area.at(OWN, CALL_SP), 8, area_at);
    match function {
        CalleeEffect::Returns => {}
        CalleeEffect::Forks => {
            wanted.write(alive, 4, 0);
            add(&mut wanted, area.at(0, header::CALLS_OPEN), 4, 1);
        }
        CalleeEffect::Moves => wanted.gs -= env.data.stride,
    }
    same(&found, &wanted, &format!("{function:?} {misaligned}"));
    assert_eq!(found.flags & !ARITHMETIC, FLAGS & !ARITHMETIC, "flags that are not dead");
}

#[test]
fn every_function_and_stack() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        for (components, bytes) in [(3, 576), (7, 832), (0xe7, 2696), (1 << 19 | 0xff, 4096), (3, 577), (3, 641)] {
            for misaligned in (0..64).step_by(8) {
                for function in [CalleeEffect::Returns, CalleeEffect::Forks, CalleeEffect::Moves] {
                    run(&env, VectorState { components, bytes }, function, misaligned);
                }
            }
        }
    }
}

#[test]
fn a_fork_child_calls_nothing() {
    for data in areas() {
        let env = Environment { data, ..environment() };
        let mut m = machine(&env, Routine::Call);
        m.gs = OWN * data.stride;
        m.write(u64::from(data.alive()), 4, 0);
        m.registers[RSP] -= 8 * u64::from(WORDS.unsigned_abs());
        let model = |m: &mut Machine| {
            m.registers[RCX] = 0;
            m.registers[RSP] = STACK;
        };
        super::compare(&env, Routine::Call, &m, model, "a fork child");
    }
}
