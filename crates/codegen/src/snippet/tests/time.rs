//! The routine that asks the vDSO for the time.

use iced_x86::Mnemonic;
use ingraft_model::{Avma, WallClock};

use super::machine::{CODE, R8, R9, R10, R11, RAX, RBX, RCX, RDI, RDX, RSI, RSP, STACK};
use super::{Area, areas, environment, machine, same};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::routines::assemble;

const OWN: u64 = 3;
const LAST: u64 = 0x1111;

#[test]
fn every_answer_and_stack() {
    for (data, function) in areas().into_iter().flat_map(|data| [(data, 0x7fff_1234_5678), (data, 0x1234)]) {
        let env = Environment { data, wall: WallClock::Vdso(Avma(function)), ..environment() };
        let area = Area(data);
        let (open, last) = (area.at(OWN, data.readings_open()), area.at(OWN, data.readings_open() - 8));
        for misaligned in (0..32).step_by(8) {
            for (answer, readings) in [(0, 0), (0, 1), (u64::MAX, 0), (0xffff_fff2, 2), (1 << 32, 0)] {
                for (seconds, ns) in [(0, 0), (1, 2), (12_345, 999_999_999), (1 << 33, 7)] {
                    let mut m = machine(&env, Routine::Time);
                    m.gs = OWN * data.stride;
                    m.registers[RSP] = STACK - misaligned;
                    m.write(open, 8, readings);
                    m.write(last, 8, LAST);
                    let mut called = 0;
                    let mut found = m.clone();
                    let code = CODE..CODE + assemble(&env, Routine::Time).expect("assembles").len() as u64;
                    found.run(code, &mut |m, i| {
                        assert_eq!(i.mnemonic(), Mnemonic::Call, "{i}");
                        let sp = m.registers[RSP];
                        assert_eq!(
                            (m.registers[RAX], m.registers[RDI], m.registers[RSI], sp % 16),
                            (function, 1, sp, 0)
                        );
                        assert_eq!(m.read(open, 8), readings + 1, "a return address is on the stack");
                        (1..32).for_each(|n| m.write(sp - 8 * n, 8, 0xdddd));
                        m.write(sp, 8, seconds);
                        m.write(sp + 8, 8, ns);
                        for r in [RCX, RDX, RSI, RDI, R8, R9, R10, R11] {
                            m.registers[r] = 0xdead_0000 + r as u64;
                        }
                        assert_ne!(m.registers[RBX], 0);
                        m.registers[RAX] = answer;
                        called += 1;
                    });
                    assert_eq!(called, 1);
                    let mut wanted = m;
                    let time = if answer as u32 == 0 { seconds * 1_000_000_000 + ns } else { LAST };
                    wanted.registers[RDX] = time;
                    wanted.write(last, 8, time);
                    same(&found, &wanted, &format!("{answer:#x} {readings} {seconds}"));
                }
            }
        }
    }
}
