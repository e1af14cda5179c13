//! The routine that reads a hardware event.

use ingraft_model::layout::{EVENT_PAGES, EVENT_WORDS, EVENT_WORDS_BYTES, EVENTS_MAX, event, header};
use ingraft_model::{DataArea, ThreadIdentity};

use super::machine::{CODE, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI};
use super::{Area, add, environment, machine, same};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::routines::assemble;
use iced_x86::Mnemonic;

const OWN: u64 = 4;
const THREAD: u64 = 0x7100_0000;
const LAST: u64 = 0x1234_5678;
const FD: u64 = 9;

/// Answers of the kernel, and contents of the page.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    opens: bool,
    maps: bool,
    /// Fields of the page: capabilities, hardware counter plus 1, width.
    may: u32,
    index: u32,
    width: u32,
    offset: u64,
    /// Number of readings during which the page changes.
    changes: u64,
    counter: u64,
}

const FINE: Kernel =
    Kernel { opens: true, maps: true, may: 0x1f, index: 3, width: 48, offset: 1000, changes: 0, counter: 77 };

fn check(data: DataArea, n: u32, state: u32, kernel: Kernel) {
    let env = Environment { data, identity: ThreadIdentity::FsOffset(0x2d0), ..environment() };
    let area = Area(data);
    let (words, page) = (EVENT_WORDS + EVENT_WORDS_BYTES * (n % EVENTS_MAX), EVENT_PAGES + 4096 * (n % EVENTS_MAX));
    let (words, page) = (area.at(OWN, words), area.at(OWN, page));
    let mut m = machine(&env, Routine::Event);
    (m.gs, m.fs) = (OWN * data.stride, THREAD);
    m.mapped.push(THREAD..THREAD + 0x1000);
    m.write(THREAD + 0x2d0, 4, 77);
    m.registers[RDX] = u64::from(n);
    m.write(words, 4, u64::from(state));
    m.write(words + 8, 8, LAST);
    m.write(page + 12, 4, u64::from(kernel.index));
    m.write(page + 16, 8, kernel.offset);
    m.write(page + 40, 8, u64::from(kernel.may));
    m.write(page + 48, 2, u64::from(kernel.width));

    let (mut calls, mut readings) = (Vec::new(), 0);
    let mut found = m.clone();
    let code = CODE..CODE + assemble(&env, Routine::Event).expect("assembles").len() as u64;
    found.run(code, &mut |m, i| match i.mnemonic() {
        Mnemonic::Syscall => {
            assert_eq!(m.read(words, 4), u64::from(event::REFUSED), "a signal handler finds no counter");
            let args = [RDI, RSI, RDX, R10, R8, R9].map(|r| m.registers[r]);
            calls.push((m.registers[RAX], args));
            m.registers[RAX] = match m.registers[RAX] {
                298 if kernel.opens => FD,
                9 if kernel.maps => args[0],
                3 => 0,
                _ => (-13i64).cast_unsigned(),
            };
            // The kernel overwrites rcx and r11.
            (m.registers[RCX], m.registers[R11]) = (m.rip, 0x246);
        }
        Mnemonic::Rdpmc => {
            assert_eq!(m.registers[RCX], u64::from(kernel.index) - 1);
            assert!(kernel.may & 4 != 0, "the page does not permit it");
            (m.registers[RAX], m.registers[RDX]) = (kernel.counter & 0xffff_ffff, kernel.counter >> 32);
            if readings < kernel.changes {
                add(m, page + 8, 4, 1);
            }
            readings += 1;
        }
        _ => panic!("{i}"),
    });

    // The calls of the kernel: open the event for this thread, map its page, close the descriptor.
    let mut wanted = m;
    let mut expected = Vec::new();
    let mut is_open = state == event::OPEN;
    if state == event::NONE {
        let attributes = area.at(0, header::EVENTS) + 128 * u64::from(n % EVENTS_MAX);
        expected.push((298, [attributes, 77, u64::MAX, u64::MAX, 8, words - area.at(OWN, EVENT_WORDS)]));
        if kernel.opens {
            expected.push((9, [page, 4096, 1, 0x11, FD, 0]));
            expected.push((3, [FD, 4096, 1, 4096 * u64::from(n % EVENTS_MAX), FD, words - area.at(OWN, EVENT_WORDS)]));
        }
        is_open = kernel.opens && kernel.maps;
        wanted.write(words, 4, u64::from(if is_open { event::OPEN } else { event::REFUSED }));
    }
    assert_eq!(calls, expected, "{kernel:?}");

    let reads = is_open && kernel.may & 4 != 0 && kernel.index != 0;
    assert_eq!(readings, if reads { (kernel.changes + 1).min(8) } else { 0 }, "{kernel:?}");
    add(&mut wanted, page + 8, 4, kernel.changes.min(readings).cast_signed());
    wanted.registers[RCX] = if reads && kernel.changes < 8 {
        let unused = 64 - kernel.width;
        let counter = (kernel.counter << unused).cast_signed() >> unused;
        kernel.offset.wrapping_add_signed(counter)
    } else {
        add(&mut wanted, area.at(0, header::EVENTS_UNREAD), 4, 1);
        LAST
    };
    let value = wanted.registers[RCX];
    wanted.write(words + 8, 8, value);
    same(&found, &wanted, &format!("{kernel:?}"));
}

#[test]
fn every_event_state_and_kernel() {
    for data in super::areas() {
        for n in 0..2 * EVENTS_MAX {
            for state in [event::NONE, event::OPEN, event::REFUSED] {
                for (opens, maps) in [(true, true), (true, false), (false, false)] {
                    check(data, n, state, Kernel { opens, maps, ..FINE });
                }
            }
        }
    }
}

#[test]
fn every_page() {
    for data in super::areas() {
        for changes in 0..=9 {
            check(data, 1, event::OPEN, Kernel { changes, ..FINE });
        }
        for may in [0, 1, 2, 4, 8, 0x1b, 0x1f, u32::MAX] {
            for index in [0, 1, 2, 0x4000_0001, u32::MAX] {
                check(data, 2, event::OPEN, Kernel { may, index, ..FINE });
            }
        }
        for width in 1..=64 {
            for counter in [0, 1, 1 << (width - 1), (1 << (width - 1)) - 1, u64::MAX >> (64 - width)] {
                check(data, 3, event::OPEN, Kernel { width, counter, offset: u64::MAX - 3, ..FINE });
            }
        }
    }
}
