//! The exits of a function as sites for springboards: its returns, and its jumps to other functions.
//!
//! An exit is often shorter than a springboard, so it is displaced together with instructions in front of it that control only runs
//! straight through, and with dead padding behind it. What the entry's springboard displaces is left to the entry; an exit among that is
//! woven into the entry's copy of it. A stretch that has to reach into what the entry displaces overlaps the entry's springboard, and only
//! one of the two points can be woven.

use std::ops::Range;

use iced_x86::{FlowControl, Mnemonic};
use ingraft_model::{Clearing, PointKind, Refusal, Site, Svma};

use crate::body::Body;
use crate::clearing::{self, Clearings};
use crate::decode;
use crate::entry::{self, PAGE, SITE_MAX, SPRINGBOARD};
use crate::flow::{self, Flow};
use crate::function::Function;
use crate::image::Image;

/// A jump with a distance of one byte, to an island.
const SHORT: u64 = 2;
/// So many clearings of its own, and nobody else's are looked for.
const ENOUGH: usize = 4;
/// The longest instruction.
const INSTRUCTION_MAX: usize = 15;

pub(crate) fn sites(image: &Image, function: &Function) -> Result<Vec<Result<Site, Refusal>>, Refusal> {
    let mut known = known(image, function)?;
    let short = |site: &&mut Site| !site.within && !fits(site.at.0, needed(site).end, SPRINGBOARD);
    if known.sites.iter_mut().flatten().any(|site| short(&site)) {
        let own = known.clearings(image);
        for site in known.sites.iter_mut().flatten().filter(short) {
            site.clearings = own.near(image, site.at.0);
            if site.clearings.len() < ENOUGH {
                let more = clearing::around(image, site.at.0);
                let new = |c: &Clearing| !site.clearings.iter().any(|own| own.at == c.at);
                let more: Vec<_> = more.into_iter().filter(new).collect();
                site.clearings.extend(more);
            }
        }
    }
    Ok(known.sites)
}

/// The ways out of a function, and how control gets there.
pub(crate) struct Known<'a> {
    body: Body<'a>,
    flow: Flow,
    sites: Vec<Result<Site, Refusal>>,
}

/// Finds the ways out of a function, all of them or none.
pub(crate) fn known<'a>(image: &'a Image, function: &'a Function) -> Result<Known<'a>, Refusal> {
    entry::check_kind(function)?;
    if image.elf().is_go() {
        return Err(Refusal::MovingCalls);
    }
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: function.offset_of(at) });
    }
    let body = Body::new(image, function);
    let flow = flow::follow(&body)?;
    let entry = entry::first_byte(image, function);
    let home = entry::displaced_until(image, function);
    let mut exits = Exits { body: &body, flow: &flow, entry, home, floor: 0 };
    let mut sites: Vec<Result<Site, Refusal>> = flow.exits.iter().map(|&exit| exits.site(exit)).collect();
    for &behind in &flow.runs_on {
        let refusal = Refusal::RunsOn { offset: function.offset_of(behind) };
        sites.push(Ok(exits.run_off(behind).ok_or(refusal)?));
    }
    Ok(Known { body, flow, sites })
}

impl Known<'_> {
    /// What may be displaced for islands: nothing that a point of the function needs.
    pub fn clearings(&self, image: &Image) -> Clearings {
        let start = self.body.function.start;
        let entry = entry::first_byte(image, self.body.function);
        let home = entry::displaced_until(image, self.body.function).max(entry + SPRINGBOARD);
        let mut all: Vec<_> = self.sites.iter().flatten().map(needed).chain(std::iter::once(entry..home)).collect();
        // the entry may need what is around branches back to it, and what is on the way there
        for branch in image.back_branches_to(start) {
            all.extend([branch.saturating_sub(20)..branch + 22, entry..entry + SITE_MAX]);
        }
        all.sort_unstable_by_key(|range| range.start);
        Clearings::new(&self.body, &self.flow, &all)
    }
}

/// The bytes that an exit may take.
fn needed(site: &Site) -> Range<u64> {
    site.at.0..site.at.0 + site.bytes.len() as u64
}

/// Whether a springboard of that length fits between two addresses.
fn fits(start: u64, end: u64, len: u64) -> bool {
    end - start >= len && start / PAGE == (start + len - 1) / PAGE
}

struct Exits<'a> {
    body: &'a Body<'a>,
    flow: &'a Flow,
    /// First byte of the entry's springboard.
    entry: u64,
    /// First instruction that the entry's springboard leaves in place.
    home: u64,
    /// First byte that the sites so far have left.
    floor: u64,
}

impl Exits<'_> {
    fn site(&mut self, exit: usize) -> Result<Site, Refusal> {
        let (image, function) = (self.body.image, self.body.function);
        let i = &self.body.code[exit];
        let (point, end) = (i.ip(), i.next_ip());
        let offset = function.offset_of(point);
        if i.flow_control() == FlowControl::Return && i.mnemonic() != Mnemonic::Ret {
            return Err(Refusal::NotDisplaceable { offset, why: "a return to other privileges or another segment" });
        }
        if self.lands_within(point, end) {
            return Err(Refusal::BranchIntoSpringboard { offset });
        }
        let padding = match i.flow_control() {
            FlowControl::ConditionalBranch => 0,
            _ => entry::dead_padding(image, function, end),
        };
        let within = point >= self.entry && end <= self.home && !self.lands_within(self.entry, end);
        let (at, until) = match within {
            true => (point, end),
            false => (self.choose(&self.starts(exit), end + padding)?, end + padding),
        };
        self.floor = end + padding;
        let len = (until - at).min(SITE_MAX);
        if image.in_restartable_sequence(at, len) {
            return Err(Refusal::RestartableSequence);
        }
        let bytes = image.elf().data_at(at, len).unwrap_or_default().to_vec();
        Ok(Site { within, ..self.place(at, point, end, bytes) })
    }

    /// An exit at `point` that ends at `end`, with a stretch of these bytes from `at` on.
    fn place(&self, at: u64, point: u64, end: u64, bytes: Vec<u8>) -> Site {
        Site {
            kind: PointKind::Exit,
            function: self.body.function.start(),
            at: Svma(at),
            point: (point - at) as u8,
            bytes,
            own: (end - at) as u8,
            landings: Vec::new(),
            scratch: Vec::new(),
            flags_dead: false,
            back_branches: Vec::new(),
            least: (end - at) as u8,
            within: false,
            clearings: Vec::new(),
        }
    }

    /// Control that runs off the end of the function into padding and on to the next function leaves where the padding begins.
    fn run_off(&self, behind: u64) -> Option<Site> {
        let image = self.body.image;
        let mut end = behind;
        while end < behind + SPRINGBOARD {
            let i = decode::one(image.elf().data_from(end)?, end)?;
            let alone = |at| image.function_containing(Svma(at)).is_none();
            let landed = (end.max(behind + 1)..i.next_ip()).any(|at| image.arrivals().get(at));
            if !decode::is_nop(&i) || !alone(end) || !alone(i.next_ip() - 1) || landed {
                return None;
            }
            end = i.next_ip();
        }
        let bytes = image.elf().data_at(behind, end - behind)?.to_vec();
        let usable = fits(behind, end, SPRINGBOARD) && !image.in_restartable_sequence(behind, end - behind);
        let site = self.place(behind, behind, end, bytes);
        usable.then_some(site)
    }

    /// Where the stretch of an exit may begin: at the exit itself, and at each instruction in front of it, nearest first, as long as
    /// control only runs straight through.
    fn starts(&self, exit: usize) -> Vec<u64> {
        let code = &self.body.code;
        let end = code[exit].next_ip();
        let (mut index, mut starts) = (exit, vec![code[exit].ip()]);
        while !self.lands(code[index].ip()) {
            let runs_into = |before: &usize| {
                let i = &code[*before];
                i.next_ip() == code[index].ip()
                    && self.flow.reached[*before]
                    && (entry::runs_on(i) || i.is_jcc_short_or_near() && self.flow.exits.binary_search(before).is_err())
                    && !self.lands_within(i.ip(), i.next_ip())
            };
            let Some(before) = (index.saturating_sub(INSTRUCTION_MAX)..index).rev().find(runs_into) else { break };
            let start = code[before].ip();
            if start < self.floor || end - start > SITE_MAX {
                break;
            }
            starts.push(start);
            index = before;
        }
        starts
    }

    /// The start of the shortest stretch that a springboard fits into, else of the longest that holds a jump to an island; `until` is the
    /// end of the padding behind the exit.
    fn choose(&self, starts: &[u64], until: u64) -> Result<u64, Refusal> {
        let fits = |start: u64, len: u64| fits(start, until, len);
        let best = |starts: &[u64]| {
            let near = starts.iter().find(|start| fits(**start, SPRINGBOARD));
            near.or_else(|| starts.iter().rev().find(|start| fits(**start, SHORT))).copied()
        };
        let at_entry = |start: &u64| (self.entry..self.home).contains(start);
        let apart = starts.partition_point(|start| !at_entry(start));
        let longest = until - starts.last().copied().unwrap_or(until);
        best(&starts[..apart]).or_else(|| best(starts)).ok_or(if longest < SHORT {
            Refusal::TooShort { available: longest as u32, next: "the next place where control can arrive" }
        } else {
            Refusal::StraddlesPages
        })
    }

    fn lands(&self, at: u64) -> bool {
        self.flow.lands(self.body, at)
    }

    /// Whether control can arrive behind the first byte of a stretch.
    fn lands_within(&self, start: u64, end: u64) -> bool {
        (start + 1..end).any(|at| self.lands(at))
    }
}
