//! The routine that cuts texts.

use ingraft_model::table::TEXT_BYTES;

use super::machine::{RCX, RDX, RSP, STACK};
use super::{compare, environment, machine};
use crate::code::routine::Routine;
use crate::snippet::cut::AT_ZERO;

const BYTES: u64 = TEXT_BYTES as u64;

/// The number of bytes that stay, and the answer.
fn model(text: &[u8], read: u64, length: i64) -> (u64, u64) {
    let ends_at_zero = length == AT_ZERO;
    let zero = text.iter().take(read as usize).position(|byte| *byte == 0).map(|at| at as u64);
    let length = if ends_at_zero { zero.unwrap_or(u64::MAX) } else { length.max(0) as u64 };
    if length > 0 && read == 0 {
        return (0, 0);
    }
    match length.min(read) {
        BYTES if length > BYTES => (BYTES, BYTES + 2),
        stays => (stays, stays + 1),
    }
}

#[test]
fn every_length_and_end() {
    let env = environment();
    let lengths = (0..=BYTES.cast_signed() + 2).chain([i64::MAX, -1, AT_ZERO, AT_ZERO + 1]);
    for length in lengths {
        for read in 0..=BYTES {
            // Without a zero, and with zeros from each place on, before and behind what was read.
            let zeros = if length == AT_ZERO { (0..=BYTES).collect() } else { vec![5, BYTES] };
            for zero in zeros {
                let mut m = machine(&env, Routine::Cut);
                let sp = STACK - 0x100;
                m.registers[RSP] = sp;
                (m.registers[RCX], m.registers[RDX]) = (read, length.cast_unsigned());
                let text: Vec<u8> = (0..BYTES).map(|n| if n == zero { 0 } else { 0x80 + n as u8 }).collect();
                for (at, byte) in (sp..).zip(&text) {
                    m.write(at, 1, u64::from(*byte));
                }
                // The word behind the text.
                m.write(sp + BYTES, 8, u64::MAX);
                let (stays, answer) = model(&text, read, length);
                compare(
                    &env,
                    Routine::Cut,
                    &m,
                    |wanted| {
                        wanted.registers[RCX] = answer;
                        (stays..BYTES).for_each(|at| wanted.write(sp + at, 1, 0));
                    },
                    &format!("length {length}, {read} read, zero at {zero}"),
                );
            }
        }
    }
}
