//! The slow routine, for every register, identity, state of the thread, state of the claims and chain of snippets.

use ingraft_model::layout::birth::UNBORN;
use ingraft_model::layout::{CALL_SP, CALLING, CHILD_SHARD, HEIR_BYTES, HEIRS, OWNER, header};
use ingraft_model::{DataArea, Gpr, ThreadIdentity};

use super::machine::{CODE, Machine, RSP, STACK, none};
use super::{Area, GLIBC, add, areas, environment};
use crate::code::environment::Environment;
use crate::code::listing::Filled;
use crate::snippet::slot::NOP;
use crate::snippet::slow::{COUNT, MARKER, assemble};

const SLOT: u64 = 0x60_0000;
const THREAD: u64 = 0x7100_0000;
const IDENTITIES: [ThreadIdentity; 2] = [GLIBC, ThreadIdentity::FsBase];

/// Registers that hold the slot: all but rsp.
fn registers() -> impl Iterator<Item = u8> {
    (0..16).filter(|r| *r != 4)
}

/// Slot of a point and the snippets to which it leads.
#[derive(Clone)]
struct SnippetChain {
    code: Vec<(u64, Vec<u8>)>,
    /// Numbers of counters in the chain.
    counters: Vec<u32>,
    /// Address at which the walk through the chain ends.
    end: u64,
    /// Address at which all snippets are skipped.
    skip: u64,
}

fn jump(from: u64, to: u64) -> Vec<u8> {
    let offset = to.wrapping_sub(from + 5) as u32;
    [&[0xe9], offset.to_le_bytes().as_slice()].concat()
}

impl SnippetChain {
    /// A slot that is a count.
    fn bare(data: &DataArea) -> Self {
        let code = [COUNT.as_slice(), &data.counter(9).to_le_bytes()].concat();
        SnippetChain { code: vec![(SLOT, code)], counters: vec![9], end: SLOT + 9, skip: SLOT + 9 }
    }

    /// A slot that leads to so many counts, and then to the end of the snippets or to a compiled snippet. Bit n of `far` says whether the
    /// n-th link is a jump or a nop.
    fn linked(data: &DataArea, counts: u32, far: u32, is_compiled: bool) -> Self {
        // Jumps lead forwards and backwards.
        const PLACES: [u64; 5] = [0x900, 0x500, 0xd00, 0x300, 0xb00];
        let mut code = Vec::new();
        let mut link = |n: u32, at: u64, nop: &[u8], rest: &[u8]| {
            if far >> n & 1 == 0 {
                code.push((at, [nop, rest].concat()));
                return at + (nop.len() + rest.len()) as u64;
            }
            let to = SLOT + PLACES[n as usize];
            code.push((at, [jump(at, to).as_slice(), rest].concat()));
            to
        };
        let skip = 0x140u32;
        let mut at = link(0, SLOT, &NOP, &skip.to_le_bytes());
        let mut counted = Vec::new();
        for n in 0..counts {
            counted.push((at, [COUNT.as_slice(), &data.counter(n).to_le_bytes()].concat()));
            at = link(n + 1, at + 9, &[0x0f, 0x1f, 0x44, 0, 0], &[]);
        }
        code.extend(counted);
        let end = if is_compiled {
            code.push((at, [MARKER.as_slice(), &0x99u32.to_le_bytes()].concat()));
            at + 8 + 0x99
        } else {
            code.push((at, vec![0x90; 8]));
            at
        };
        SnippetChain { code, counters: (0..counts).collect(), end, skip: SLOT + 9 + u64::from(skip) }
    }
}

/// Thread on its way into the routine for `r`.
struct Case<'a> {
    env: &'a Environment,
    routine: &'a Filled,
    r: u8,
    chain: &'a SnippetChain,
}

impl Case<'_> {
    fn machine(&self) -> Machine {
        let mut m = Machine::new(&self.routine.bytes);
        Area(self.env.data).map(&mut m);
        for (at, code) in &self.chain.code {
            m.load(*at, code);
        }
        m.mapped.push(THREAD..THREAD + 0x1000);
        m.registers[usize::from(self.r)] = SLOT;
        m.fs = THREAD;
        m.write(THREAD + 0x2d0, 4, 77);
        m
    }

    fn identity(&self, m: &Machine) -> u64 {
        match self.env.identity {
            ThreadIdentity::FsOffset(at) => m.read(m.fs + u64::from(at), 4),
            _ => m.fs,
        }
    }

    /// Executes the routine from its first or second entry, and compares.
    fn check(&self, state: &Machine, second: bool) {
        let mut found = state.clone();
        found.rip = if second { CODE + self.routine.second } else { CODE };
        found.run(CODE..CODE + self.routine.bytes.len() as u64, &mut none);
        let mut wanted = state.clone();
        let target = if second { self.walk(&mut wanted) } else { self.model(&mut wanted) };
        wanted.registers[usize::from(self.r)] = target;
        let what = format!("r{} {:?}, gs {:#x}", self.r, self.env.identity, state.gs);
        assert_eq!(found.rip, target, "{what}: where control goes on");
        assert_eq!(found.registers, wanted.registers, "{what}: registers");
        assert_eq!(found.changes(&wanted), [], "{what}: memory");
        assert_eq!((found.gs, found.fs), (wanted.gs, wanted.fs), "{what}: segments");
        assert!(found.lowest >= STACK - 32, "{what}: the stack");
    }

    /// Model of the second entry: counts in shard 0 along the chain.
    fn walk(&self, m: &mut Machine) -> u64 {
        for counter in &self.chain.counters {
            add(m, u64::from(self.env.data.counter(*counter)), 8, 1);
        }
        self.chain.end
    }

    /// Model of the first entry. Returns the address at which the thread goes on.
    fn model(&self, m: &mut Machine) -> u64 {
        let (area, stride) = (Area(self.env.data), self.env.data.stride);
        let (shards, id) = (u64::from(self.env.data.shards), self.identity(m));
        let (shard, within) = (m.gs / stride, m.gs % stride);
        let alive = m.read(u64::from(self.env.data.alive()), 4) != 0;
        if shard >= shards || within != 0 {
            if !alive {
                return self.chain.skip;
            }
            if shard >= shards || within != u64::from(CALLING) {
                return self.walk(m);
            }
            // The routine has pushed four words when it compares.
            if m.registers[RSP] - 32 < m.read(area.at(shard, CALL_SP), 8) {
                return self.chain.skip;
            }
            add(m, area.at(0, header::CALLS_LEFT), 4, 1);
            m.gs -= within;
            return SLOT;
        }
        if !alive {
            let owner = area.at(u64::from(CHILD_SHARD), OWNER);
            if m.read(owner, 8) == 0 {
                let n = m.read(area.at(0, header::CHILDREN_COUNT), 4);
                add(m, area.at(0, header::CHILDREN_COUNT), 4, 1);
                if n < u64::from(header::CHILDREN_MAX) {
                    let named = if self.env.identity == GLIBC { id } else { 0 };
                    m.write(area.at(0, header::CHILDREN) + 4 * n, 4, named);
                }
                m.write(owner, 8, id);
            }
            m.gs = u64::from(CHILD_SHARD) * stride;
            return SLOT;
        }
        if id == 0 {
            return self.walk(m);
        }
        let heir = area.at(u64::from(CHILD_SHARD), HEIRS) + u64::from(HEIR_BYTES) * shard;
        let prepared = m.read(heir + 8, 4);
        let k = if prepared != 0 && m.read(heir, 8) == m.fs {
            m.write(heir + 8, 8, 0);
            m.write(area.claim(prepared), 8, id | 1 << UNBORN);
            Some(prepared)
        } else {
            area.search(m, id)
        };
        let Some(k) = k else {
            add(m, area.at(0, header::EXHAUSTED), 4, 1);
            return self.walk(m);
        };
        m.write(area.at(k, OWNER), 8, id);
        m.gs = k * stride;
        SLOT
    }
}

fn each(mut check: impl FnMut(&Environment, u8, &Filled)) {
    for identity in IDENTITIES {
        for data in areas() {
            let env = Environment { identity, data, ..environment() };
            for r in registers() {
                check(&env, r, &assemble(&env, Gpr(r)).expect("assembles"));
            }
        }
    }
}

#[test]
fn every_state_of_a_thread() {
    each(|env, r, routine| {
        let (data, area) = (env.data, Area(env.data));
        let shards = u64::from(data.shards);
        let within = [0, 8, u64::from(CALLING), u64::from(CALLING) + 1, data.stride - 8];
        let bases = (0..shards + 2).flat_map(|shard| within.map(|within| shard * data.stride + within));
        let bases: Vec<u64> = bases.chain([THREAD, u64::MAX, 1 << 63]).collect();
        for chain in [SnippetChain::bare(&data), SnippetChain::linked(&data, 1, 0b11, false)] {
            let case = Case { env, routine, r, chain: &chain };
            for (gs, alive, has_id) in bases
                .iter()
                .flat_map(|gs| [(*gs, true, true), (*gs, true, false), (*gs, false, true), (*gs, false, false)])
            {
                let mut m = case.machine();
                m.gs = gs;
                m.write(u64::from(data.alive()), 4, u64::from(alive));
                if !has_id {
                    m.write(THREAD + 0x2d0, 4, 0);
                    m.fs = if env.identity == GLIBC { THREAD } else { 0 };
                }
                case.check(&m, false);
                if alive && gs % data.stride == u64::from(CALLING) && gs < data.stride * shards {
                    // The stack pointer at the call is above, at, and below that of the thread.
                    for call in [STACK - 0x1000, STACK - 40, STACK - 32, STACK - 24, STACK + 0x800] {
                        m.write(area.at(gs / data.stride, CALL_SP), 8, call);
                        case.check(&m, false);
                    }
                }
            }
        }
    });
}

#[test]
fn every_fork_child() {
    each(|env, r, routine| {
        let (data, area) = (env.data, Area(env.data));
        let chain = SnippetChain::bare(&data);
        let case = Case { env, routine, r, chain: &chain };
        let most = u64::from(header::CHILDREN_MAX);
        for owner in [0, 77] {
            for children in [0, 1, most - 1, most, most + 1, u64::from(u32::MAX)] {
                let mut m = case.machine();
                m.gs = 3 * data.stride;
                m.write(u64::from(data.alive()), 4, 0);
                m.write(area.at(u64::from(CHILD_SHARD), OWNER), 8, owner);
                m.write(area.at(0, header::CHILDREN_COUNT), 4, children);
                case.check(&m, false);
            }
        }
        // A shard that the forking thread has prepared: for this child, or for another one.
        for (gs, pointer) in (0..u64::from(data.shards)).flat_map(|gs| [(gs, THREAD), (gs, THREAD + 8), (gs, 0)]) {
            for prepared in 0..u64::from(data.shards) {
                let mut m = case.machine();
                m.gs = gs * data.stride;
                let heir = area.at(u64::from(CHILD_SHARD), HEIRS) + 16 * gs;
                m.write(heir, 8, pointer);
                m.write(heir + 8, 8, prepared);
                case.check(&m, false);
            }
        }
    });
}

#[test]
fn every_search_for_a_shard() {
    for (identity, data) in IDENTITIES.into_iter().flat_map(|identity| areas().map(|data| (identity, data))) {
        let env = Environment { identity, data, ..environment() };
        let area = Area(data);
        let chain = SnippetChain::linked(&data, 2, 0b10, true);
        for r in [0, 1, 2, 3, 6, 7, 11] {
            let routine = assemble(&env, Gpr(r)).expect("assembles");
            let case = Case { env: &env, routine: &routine, r, chain: &chain };
            for search in area.searches() {
                let mut m = case.machine();
                area.prepare(&mut m, search);
                case.check(&m, false);
            }
        }
    }
}

#[test]
fn a_claim_that_another_thread_wins_is_passed_over() {
    each(|env, r, routine| {
        let (data, area) = (env.data, Area(env.data));
        let chain = SnippetChain::bare(&data);
        let case = Case { env, routine, r, chain: &chain };
        for search in area.searches() {
            let mut m = case.machine();
            area.prepare(&mut m, search);
            let Some(k) = area.search(&mut m.clone(), 1) else { continue };
            let mut raced = m.clone();
            raced.race = Some((area.claim(k), 0x5555));
            m.write(area.claim(k), 8, 0x5555);
            // The result is the same as if the shard had been taken before.
            let mut wanted = m;
            let target = case.model(&mut wanted);
            raced.run(CODE..CODE + routine.bytes.len() as u64, &mut none);
            assert_eq!((raced.rip, raced.gs), (target, wanted.gs), "r{r} {search:?}");
            assert_eq!(raced.changes(&wanted), [], "r{r} {search:?}");
        }
    });
}

#[test]
fn every_chain() {
    each(|env, r, routine| {
        let data = env.data;
        let linked = (0..4u32).flat_map(|counts| (0..2 << counts).map(move |far| (counts, far)));
        let linked =
            linked.flat_map(|(counts, far)| [false, true].map(|end| SnippetChain::linked(&data, counts, far, end)));
        for chain in linked.chain([SnippetChain::bare(&data)]) {
            let case = Case { env, routine, r, chain: &chain };
            let mut m = case.machine();
            case.check(&m, true);
            m.gs = THREAD;
            case.check(&m, false);
            m.write(u64::from(data.alive()), 4, 0);
            case.check(&m, false);
        }
    });
}
