//! The exits of a function as sites for springboards: its returns, and its jumps to other functions.
//!
//! An exit is often shorter than a springboard, so it is displaced together with instructions in front of it that control only runs
//! straight through, and with dead padding behind it. What the entry's springboard displaces is left to the entry; an exit among that is
//! woven into the entry's copy of it. A stretch that has to reach into what the entry displaces overlaps the entry's springboard, and only
//! one of the two points can be woven.

use iced_x86::{FlowControl, Mnemonic};
use ingraft_model::{PointKind, Refusal, Site, Svma};

use crate::body::Body;
use crate::clearing::Clearings;
use crate::entry::{self, PAGE, SITE_MAX, SPRINGBOARD};
use crate::flow::{self, Flow};
use crate::function::Function;
use crate::image::Image;

/// A jump with a distance of one byte, to an island.
const SHORT: u64 = 2;
/// The longest instruction.
const INSTRUCTION_MAX: usize = 15;

pub(crate) fn sites(image: &Image, function: &Function) -> Result<Vec<Result<Site, Refusal>>, Refusal> {
    entry::check_kind(function)?;
    if image.elf().is_go() {
        return Err(Refusal::MovingCalls);
    }
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: function.offset_of(at) });
    }
    let body = Body::new(image, function);
    let flow = flow::follow(&body)?;
    if let Some(behind) = flow.runs_on {
        return Err(Refusal::RunsOn { offset: function.offset_of(behind) });
    }
    let first = entry::first_byte(image, function);
    let home = entry::displaced_until(image, function);
    let mut exits = Exits { body: &body, flow: &flow, entry: first, home, floor: 0 };
    let mut sites: Vec<Result<Site, Refusal>> = flow.exits.iter().map(|&exit| exits.site(exit)).collect();
    let needed = |site: &Site| site.at.0..site.at.0 + site.bytes.len() as u64;
    let short = |site: &&mut Site| !site.within && !fits(site.at.0, needed(site).end, SPRINGBOARD);
    if sites.iter_mut().flatten().any(|site| short(&site)) {
        let mut all: Vec<_> =
            sites.iter().flatten().map(needed).chain([first..home.max(first + SPRINGBOARD)]).collect();
        // the entry may need what is around branches back to it, and what is on the way there
        for branch in image.back_branches_to(function.start) {
            all.extend([branch.saturating_sub(20)..branch + 22, first..first + SITE_MAX]);
        }
        all.sort_unstable_by_key(|range| range.start);
        let clearings = Clearings::new(&body, &flow, &all);
        sites.iter_mut().flatten().filter(short).for_each(|site| site.clearings = clearings.near(site.at.0));
    }
    Ok(sites)
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
        Ok(Site {
            kind: PointKind::Exit,
            function: function.start(),
            at: Svma(at),
            point: (point - at) as u8,
            bytes: image.elf().data_at(at, len).unwrap_or_default().to_vec(),
            own: (end - at) as u8,
            landings: Vec::new(),
            scratch: Vec::new(),
            flags_dead: false,
            back_branches: Vec::new(),
            least: (end - at) as u8,
            within,
            clearings: Vec::new(),
        })
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
