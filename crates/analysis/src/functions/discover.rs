//! Finds the functions of an image. Symbols and unwind tables come first; then call targets in the gaps between functions; last, padding,
//! which no code reaches. A piece that begins in the middle of a frame becomes a part of the function that jumps to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use ingraft_model::Svma;
use ingraft_model::machine::ENDBR;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::file::elf::{Elf, u64_at};
use crate::file::go::GoFunctions;
use crate::file::name::{FunctionName, SymbolBinding};
use crate::file::relocs::{self, CodePointerWords};
use crate::file::symbol::{CodeSymbols, UntypedLabel};
use crate::file::unwind::{FrameDescription, UnwindTables};
use crate::functions::discovered::{Discovered, SideEntry};
use crate::functions::explore;
use crate::functions::facts::CodeFacts;
use crate::functions::function::{Function, FunctionKind};
use crate::functions::stray::StrayJumps;
use crate::functions::sweep::{PartJump, Sweep, SweepBuffers, SweepUnit, Swept};
use crate::text::bits::TextBits;
use crate::text::decode;

/// A function as far as the tables know it.
#[derive(Debug, Default)]
struct FunctionDraft {
    size: u64,
    names: Vec<FunctionName>,
    /// Whether a symbol says that the code is a function, and not only that it is a resolver.
    ordinary: bool,
    part: MaybePart,
}

/// Statement of the tables about whether a piece of code is a function or a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MaybePart {
    #[default]
    No,
    /// The piece has no name. If only jumps of one function reach it, conditional ones among them, it is a part of that function.
    Nameless,
    /// The frame of the piece is already set up, or the only name of the piece is like `foo.cold`.
    Likely,
}

type FunctionDrafts = BTreeMap<u64, FunctionDraft>;

/// Runs the whole pass, in parallel in the caller's pool. Adds to `done` the number of bytes of text that were decoded.
pub(crate) fn discover(
    image: &Elf,
    mut symbols: CodeSymbols,
    unwind: &UnwindTables,
    pointers: &CodePointerWords,
    go: &GoFunctions,
    done: &AtomicU64,
) -> Discovered {
    let arch_prctl = symbols.functions.iter().find(|s| s.name.mangled() == "arch_prctl").map(|s| s.svma);
    let mut uses_gs = symbols.imports_arch_prctl;
    let (arrivals, addressed) = (TextBits::new(image), TextBits::new(image));
    symbols.labelled.iter().chain(&unwind.landing_pads).for_each(|at| arrivals.set(*at));
    for at in go.top_frames(image) {
        arrivals.set(at);
        addressed.set(at);
    }
    for (_, target) in &pointers.entries {
        arrivals.set(*target);
        addressed.set(*target);
    }
    let named = std::mem::take(&mut symbols.labelled);
    let labels = distinct(std::mem::take(&mut symbols.labels));
    let mut drafts = drafts(image, symbols, unwind, pointers);
    add_called_labels(&mut drafts, image, &labels);
    name_by_labels(&mut drafts, &labels);
    drafts.keys().for_each(|start| arrivals.set(*start));
    let mut units = units(image, &mut drafts);
    let parts =
        drafts.iter().filter(|(_, d)| d.part != MaybePart::No).map(|(start, d)| (*start, start + d.size.max(1)));
    let parts = parts.collect();
    let (calls, branched, compared) = (TextBits::new(image), TextBits::new(image), TextBits::new(image));
    for at in relocs::exception_table(image) {
        arrivals.set(at);
        addressed.set(at);
        compared.set(at);
    }
    let sweep = Sweep { image, pointers, arrivals, calls, addressed, branched, compared, parts, arch_prctl };

    let mut swept = sweep_all(&sweep, &units, done);
    let found = explore_gaps(&sweep, &units, &drafts);
    for (start, end) in &found {
        drafts.entry(*start).or_default().size = end - start;
    }
    name_by_labels(&mut drafts, &labels);
    let more: Vec<SweepUnit> =
        found.into_iter().map(|(start, end)| SweepUnit { start, end, functions: vec![(start, end)] }).collect();
    swept.extend(sweep_all(&sweep, &more, done));
    units.extend(more);

    let mut extents: Vec<(u64, u64)> = units.iter().map(|u| (u.start, u.end)).collect();
    extents.sort_unstable();
    let gaps = gaps(image, &extents);
    let gap_sweeps: Vec<Swept> = gaps
        .par_iter()
        .map_init(SweepBuffers::new, |scratch, &(from, until)| {
            let from = from + u64::from(padding_at(image, &sweep.arrivals, &extents, from, until));
            if from < until { sweep.gap(from, until, scratch) } else { Swept::default() }
        })
        .collect();
    let padding_of = |&(from, until): &(u64, u64)| {
        let len = padding_at(image, &sweep.arrivals, &extents, from, until);
        (len > 0).then_some((from, len))
    };
    let padding = gaps.iter().filter_map(padding_of).collect();

    uses_gs |= gap_sweeps.iter().any(|s| s.sets_gs) || swept.iter().any(|s| s.sets_gs || s.uses_gs);
    let (functions, back_branches) = assemble(&sweep, drafts, &units, &swept);
    let more_labels: Vec<u64> = labels.iter().map(|label| label.at.0).collect();
    let labels = labels.into_iter().filter(|label| !names_a_function(&functions, label)).collect();
    let jumps = swept.iter().chain(&gap_sweeps).flat_map(|s| s.around_parts.iter().chain(&s.others).copied());
    let jumps: Vec<(u64, u64)> = jumps.collect();
    let mut entries: Vec<u64> = functions.iter().map(|f| f.start).chain(jumps.iter().map(|jump| jump.1)).collect();
    entries.extend(unwind.landing_pads.iter().chain(&named).chain(more_labels.iter()));
    entries.sort_unstable();
    entries.dedup();
    let mut regions = [extents, gaps].concat();
    regions.sort_unstable();
    branches_between_functions(StrayJumps::new(&sweep, regions, entries), &functions, &jumps);
    let side_entries = side_entries(&sweep, &functions, named);
    let mut tables: Vec<u64> = swept.iter().flat_map(|s| s.tables.iter().copied()).collect();
    tables.sort_unstable();
    tables.dedup();
    Discovered { functions, labels, arrivals: sweep.arrivals, side_entries, tables, padding, back_branches, uses_gs }
}

/// Notes the targets of those jumps that lead from one function to another, and not to a part of its own.
fn branches_between_functions(mut stray: StrayJumps<'_>, functions: &[Function], jumps: &[(u64, u64)]) {
    let numbered = functions.iter().enumerate();
    let mut parts: Vec<_> = numbered.flat_map(|(n, f)| f.parts.iter().map(move |p| (p.start.0, p.end.0, n))).collect();
    parts.sort_unstable();
    let owner = |at: u64| {
        let part = parts[..parts.partition_point(|p| p.0 <= at)].last().filter(|p| at < p.1).map(|p| p.2);
        let head = functions.partition_point(|f| f.start <= at).checked_sub(1);
        part.or(head.filter(|n| functions[*n].range().contains(&Svma(at))))
    };
    for &(from, target) in jumps {
        let (a, b) = (owner(from), owner(target));
        if (a.is_none() || a != b) && !b.is_some_and(|b| stray.is_stray(from, &functions[b], target)) {
            stray.sweep.branched.set(target);
        }
    }
}

/// All places at which control may arrive from elsewhere, other than the starts of functions.
fn side_entries(sweep: &Sweep<'_>, functions: &[Function], named: Vec<u64>) -> Vec<SideEntry> {
    let mut side_entries: Vec<SideEntry> =
        named.into_iter().map(|at| SideEntry { at, why: SideEntry::NAMED }).collect();
    let sets = [
        (&sweep.addressed, SideEntry::ADDRESSED),
        (&sweep.calls, SideEntry::CALLED),
        (&sweep.branched, SideEntry::BRANCHED),
        (&sweep.compared, SideEntry::COMPARED),
    ];
    for (set, why) in sets {
        let mut rest = functions.iter().map(|f| f.start).peekable();
        set.each(|at| {
            while rest.next_if(|start| *start < at).is_some() {}
            if rest.peek() != Some(&at) {
                side_entries.push(SideEntry { at, why });
            }
        });
    }
    side_entries.retain(|entry| sweep.image.text_index(entry.at).is_some());
    side_entries.sort_unstable();
    side_entries.dedup_by(|later, first| {
        let same = later.at == first.at;
        first.why |= if same { later.why } else { 0 };
        same
    });
    side_entries
}

/// Labels by address and name, each once: the dynamic table repeats labels of the other symbol table.
fn distinct(mut labels: Vec<UntypedLabel>) -> Vec<UntypedLabel> {
    labels.sort_by(|a, b| (a.at, a.name.mangled()).cmp(&(b.at, b.name.mangled())));
    labels.dedup_by(|b, a| (b.at, b.name.mangled()) == (a.at, a.name.mangled()));
    labels
}

/// Names functions after the symbols without a type at their starts. Such a symbol alone is no proof of a function: the start must be known
/// from an unwind table, a call, the header or a pointer to what looks like a function. A function that has a typed symbol keeps its names.
fn name_by_labels(drafts: &mut FunctionDrafts, labels: &[UntypedLabel]) {
    for labels in labels.chunk_by(|a, b| a.at == b.at) {
        let Some(draft) = labels.first().and_then(|l| drafts.get_mut(&l.at.0)).filter(|d| d.names.is_empty()) else {
            continue;
        };
        draft.names = labels.iter().map(|label| label.name.clone()).collect();
        draft.names.sort_by(|a, b| a.rank().cmp(&b.rank()));
        draft.ordinary = true;
        // Other files may call the piece, so it is no part of the function that jumps to it.
        if labels.iter().any(|label| label.name.binding() != SymbolBinding::Local) {
            draft.part = MaybePart::No;
        }
    }
}

/// Adds the functions that symbols without a type name, if the file calls them by these names.
fn add_called_labels(drafts: &mut FunctionDrafts, image: &Elf, labels: &[UntypedLabel]) {
    let called = relocs::called_names(image);
    let is_called =
        |label: &&UntypedLabel| label.name.binding() != SymbolBinding::Local && called.contains(label.name.mangled());
    for UntypedLabel { at, .. } in labels.iter().filter(is_called) {
        let before = drafts.range(..=at.0).next_back();
        let is_inside = before.is_some_and(|(start, draft)| at.0 < start + draft.size.max(1));
        if !is_inside && image.text_index(at.0).is_some() {
            drafts.insert(at.0, FunctionDraft { ordinary: true, ..FunctionDraft::default() });
        }
    }
}

fn names_a_function(functions: &[Function], label: &UntypedLabel) -> bool {
    let found = functions.binary_search_by_key(&label.at.0, |f| f.start).ok().and_then(|i| functions.get(i));
    found.is_some_and(|f| f.names.iter().any(|name| name.mangled() == label.name.mangled()))
}

/// Merges the symbols and the unwind table into one draft per function.
fn drafts(image: &Elf, symbols: CodeSymbols, unwind: &UnwindTables, pointers: &CodePointerWords) -> FunctionDrafts {
    let mut drafts = FunctionDrafts::new();
    let mut sized: Vec<(u64, u64)> = Vec::new();
    for symbol in symbols.functions {
        let draft = drafts.entry(symbol.svma).or_default();
        draft.size = draft.size.max(symbol.size);
        draft.ordinary |= !symbol.ifunc;
        if symbol.size > 0 {
            sized.push((symbol.svma, symbol.svma.saturating_add(symbol.size)));
        }
        // The dynamic table comes first and has versions; the other tables repeat its names without versions.
        if !draft.names.iter().any(|n| {
            n.mangled() == symbol.name.mangled() && (symbol.name.version().is_none() || n.same_symbol(&symbol.name))
        }) {
            draft.names.push(symbol.name.with_ifunc(symbol.ifunc));
        }
    }
    for draft in drafts.values_mut() {
        draft.names.sort_by(|a, b| a.rank().cmp(&b.rank()));
        if !draft.names.is_empty() && draft.names.iter().all(|n| cold_of(n.mangled()).is_some()) {
            draft.part = MaybePart::Likely;
        }
    }
    sized.sort_unstable();
    let sized = merge(sized);
    for fde in unwind.fdes.iter().map(|fde| behind_filler(image, *fde)) {
        let nameless = !drafts.contains_key(&fde.start);
        if nameless {
            let inside =
                sized.partition_point(|s| s.0 < fde.start).checked_sub(1).is_some_and(|i| fde.start < sized[i].1);
            // The entry of a signal trampoline begins one byte early, for unwinders that look at the byte before a return address.
            let trampoline = drafts.contains_key(&(fde.start + 1)) && image.data_at(fde.start, 1) == Some(&[0x90]);
            if inside || trampoline {
                continue;
            }
        }
        let draft = drafts.entry(fde.start).or_default();
        draft.size = draft.size.max(fde.end - fde.start);
        if nameless {
            draft.part = if fde.continued { MaybePart::Likely } else { MaybePart::Nameless };
        }
    }
    let d = &image.dynamic;
    let arrays = [d.init_array, d.fini_array].into_iter().flatten();
    let listed = arrays.flat_map(|(at, size)| {
        let words = image.data_at(at, size).unwrap_or_default().chunks_exact(8);
        words.enumerate().filter_map(move |(i, word)| pointers.get(at + 8 * i as u64).or_else(|| u64_at(word, 0)))
    });
    for start in [Some(image.entry().0), d.init, d.fini].into_iter().flatten().chain(listed) {
        if image.text_index(start).is_some() {
            drafts.entry(start).or_default().part = MaybePart::No;
        }
    }
    drafts
}

/// The entry of the unwind tables for what signal handlers return to begins one byte early, for unwinders that look at the byte before a return
/// address: without that byte.
fn behind_filler(image: &Elf, fde: FrameDescription) -> FrameDescription {
    const RT_SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    let early = image.data_at(fde.start + 1, RT_SIGRETURN.len() as u64) == Some(&RT_SIGRETURN);
    FrameDescription { start: fde.start + u64::from(early), ..fde }
}

/// The name of the function that a name like `foo.cold` or `foo.cold.12` belongs to.
fn cold_of(name: &str) -> Option<&str> {
    let (base, rest) = name.rsplit_once(".cold")?;
    let number = rest.strip_prefix('.').unwrap_or(rest);
    (!base.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(base)
}

fn merge(sorted: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
    for (start, end) in sorted {
        match out.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// Groups functions of known size into units of overlapping functions. A function of unknown size inside another ends where that one ends.
fn units(image: &Elf, drafts: &mut FunctionDrafts) -> Vec<SweepUnit> {
    let mut units: Vec<SweepUnit> = Vec::new();
    let mut limit = 0;
    for (&start, draft) in drafts.iter_mut() {
        match units.last_mut() {
            Some(unit) if start < unit.end => {
                if draft.size == 0 {
                    draft.size = unit.end - start;
                }
                draft.size = draft.size.min(limit - start);
                unit.end = unit.end.max(start + draft.size);
                unit.functions.push((start, start + draft.size));
            }
            _ if draft.size > 0 => {
                let Some(region) = image.text_index(start) else { continue };
                limit = image.text[region].end();
                draft.size = draft.size.min(limit - start);
                let end = start + draft.size;
                units.push(SweepUnit { start, end, functions: vec![(start, end)] });
            }
            _ => {}
        }
    }
    units
}

fn sweep_all(sweep: &Sweep<'_>, units: &[SweepUnit], done: &AtomicU64) -> Vec<Swept> {
    let sweep_one = |scratch: &mut SweepBuffers, unit: &SweepUnit| {
        let swept = sweep.unit(unit, scratch);
        done.fetch_add(unit.end - unit.start, Ordering::Relaxed);
        swept
    };
    units.par_iter().with_min_len(32).map_init(SweepBuffers::new, sweep_one).collect()
}

/// Finds functions that no table lists, as (start, end): starts of unknown size, call targets in the gaps, and the functions that these
/// call.
fn explore_gaps(sweep: &Sweep<'_>, units: &[SweepUnit], drafts: &FunctionDrafts) -> Vec<(u64, u64)> {
    let image = sweep.image;
    let tabled: Vec<(u64, u64)> = units.iter().map(|u| (u.start, u.end)).collect();
    let mut starts: BTreeSet<u64> = drafts.iter().filter(|(_, d)| d.size == 0).map(|(s, _)| *s).collect();
    for (from, until) in gaps(image, &tabled) {
        let mut at = from;
        while let Some(called) = sweep.calls.first(at, until) {
            starts.insert(called);
            at = called + 1;
        }
        // An address that only a pointer holds may be data, so the bytes there must look like a function.
        let mut at = from;
        while let Some(addressed) = sweep.addressed.first(at, until) {
            if explore::looks_like_function(image, addressed) {
                starts.insert(addressed);
            }
            at = addressed + 1;
        }
    }
    starts.extend(explore::main_function(image));
    let mut work: Vec<u64> = starts.iter().rev().copied().collect();
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    // The budget bounds the work for hostile code, which calls into its own middle again and again.
    let mut budget = 4 * image.text.iter().map(|r| r.file.len() as u64).sum::<u64>();
    while let Some(start) = work.pop() {
        let Some(region) = image.text_index(start) else { continue };
        let after = tabled.partition_point(|t| t.0 <= start);
        let in_table = after.checked_sub(1).is_some_and(|i| start < tabled[i].1);
        if in_table || found.contains_key(&start) {
            continue;
        }
        let next_tabled = tabled.get(after).map_or(u64::MAX, |t| t.0);
        let next_start = starts.range(start + 1..).next().copied().unwrap_or(u64::MAX);
        let limit = next_tabled.min(next_start).min(image.text[region].end());
        let reached = explore::reach(image, sweep.pointers, start, limit);
        let Some(left) = budget.checked_sub(1 + reached.decoded as u64) else { break };
        budget = left;
        if reached.end == start {
            continue;
        }
        if let Some((_, end)) = found.range_mut(..start).next_back() {
            *end = start.min(*end);
        }
        found.insert(start, reached.end);
        for called in reached.leads_to {
            if starts.insert(called) {
                work.push(called);
            }
        }
    }
    found.into_iter().collect()
}

/// The ranges between sorted extents, region by region, without the linker's stubs.
fn gaps(image: &Elf, extents: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for region in image.text.iter().filter(|r| !r.stubs) {
        let mut at = region.svma;
        let first = extents.partition_point(|e| e.0 < region.svma);
        for &(start, end) in extents[first..].iter().take_while(|e| e.0 < region.end()) {
            if start > at {
                out.push((at, start));
            }
            at = at.max(end);
        }
        if at < region.end() {
            out.push((at, region.end()));
        }
    }
    out
}

/// Length of the padding at the start of a gap. Padding is certain only right after code. If padding fills the whole gap, all of it counts,
/// zeros included. Otherwise only compilers' filling bytes count, and only if they end at a multiple of 16.
fn padding_at(image: &Elf, arrivals: &TextBits, extents: &[(u64, u64)], from: u64, until: u64) -> u32 {
    let behind_code = extents.partition_point(|e| e.0 < from).checked_sub(1).is_some_and(|i| extents[i].1 == from);
    let end = arrivals.first(from, until).unwrap_or(until);
    let bytes = image.data_at(from, end - from).unwrap_or_default();
    if !behind_code || bytes.is_empty() {
        return 0;
    }
    let all = decode::padding(bytes, true);
    if all == bytes.len() && end == until {
        return u32::try_from(all).unwrap_or(u32::MAX);
    }
    let sure = decode::padding(bytes, false);
    let aligned = (from + sure as u64).is_multiple_of(16);
    if aligned { u32::try_from(sure).unwrap_or(u32::MAX) } else { 0 }
}

/// Joins drafts with facts, and parts with their functions. Returns the functions, and the branches of each back to its own entry.
fn assemble(
    sweep: &Sweep<'_>,
    drafts: FunctionDrafts,
    units: &[SweepUnit],
    swept: &[Swept],
) -> (Vec<Function>, Vec<(u64, u64)>) {
    let mut facts: FxHashMap<u64, CodeFacts> = FxHashMap::default();
    for (unit, swept) in units.iter().zip(swept) {
        facts.extend(unit.functions.iter().map(|f| f.0).zip(swept.facts.iter().copied()));
    }
    let mut pieces = Vec::with_capacity(drafts.len());
    let mut candidates = Vec::new();
    // A size of 0 remains if nothing could be decoded at a start that a table names.
    for (start, draft) in drafts.into_iter().filter(|d| d.1.size > 0) {
        let kind = kind(sweep.image, start, &draft);
        let called = sweep.calls.first(start, start + draft.size).is_some();
        // Only a jump table of the same function holds an address in the middle of a frame, so an address in data does not rule out a
        // likely part.
        let addressed = draft.part == MaybePart::Nameless && sweep.addressed.get(start);
        if draft.part != MaybePart::No && kind == FunctionKind::Normal && !called && !addressed {
            candidates.push((pieces.len(), draft.part));
        }
        pieces.push(Function {
            start,
            size: draft.size,
            kind,
            names: draft.names,
            parts: Vec::new(),
            facts: facts.get(&start).copied().unwrap_or_default(),
        });
    }
    let mut jumps: Vec<PartJump> = swept.iter().flat_map(|s| s.to_parts.iter().copied()).collect();
    jumps.sort_unstable();
    let owners = owners(&pieces, &candidates, &jumps);

    let mut back_branches: Vec<(u64, u64)> = swept.iter().flat_map(|s| s.back_branches.iter().copied()).collect();
    let mut leaving: FxHashMap<u64, &[(u64, u64)]> = FxHashMap::default();
    leaving.extend(
        units
            .iter()
            .zip(swept)
            .filter(|(_, s)| !s.around_parts.is_empty())
            .map(|(u, s)| (u.start, &s.around_parts[..])),
    );
    for (&part, &owner) in &owners {
        let (range, facts) = (pieces[part].range(), pieces[part].facts);
        let owner = &mut pieces[owner];
        for &(at, target) in leaving.get(&range.start.0).copied().unwrap_or_default() {
            let behind_endbr = target == owner.start + 4 && sweep.image.begins_with_endbr(owner.start);
            if target == owner.start || behind_endbr {
                back_branches.push((owner.start, at));
            }
        }
        owner.facts.writes |= facts.writes;
        owner.facts.calls_out |= facts.calls_out;
        owner.facts.unresolved = owner.facts.unresolved.or(facts.unresolved);
        owner.parts.push(range);
    }
    let mut index = 0..;
    pieces.retain(|_| index.next().is_some_and(|i| !owners.contains_key(&i)));
    back_branches.sort_unstable();
    back_branches.dedup();
    (pieces, back_branches)
}

/// The function that each candidate is a part of, as indices of pieces. A part may be reached from another part only, so there are rounds.
fn owners(pieces: &[Function], candidates: &[(usize, MaybePart)], jumps: &[PartJump]) -> BTreeMap<usize, usize> {
    let mut owners: BTreeMap<usize, usize> = BTreeMap::new();
    let mut open: Vec<(usize, MaybePart)> = candidates.to_vec();
    for _ in 0..8 {
        let undecided: FxHashSet<usize> = open.iter().map(|c| c.0).collect();
        let before = open.len();
        open.retain(|&(index, likely)| {
            let part = &pieces[index];
            let first = jumps.partition_point(|j| j.part < part.start);
            let jumps = jumps[first..].iter().take_while(|j| j.part == part.start);
            let from = jumps.clone().map(|j| {
                let piece = pieces.partition_point(|f| f.start <= j.from).checked_sub(1)?;
                let inside = pieces[piece].range().contains(&Svma(j.from));
                let piece = owners.get(&piece).copied().unwrap_or(piece);
                (inside && !undecided.contains(&piece)).then_some(piece)
            });
            let owner = if likely == MaybePart::Likely {
                likely_owner(pieces, part, from.zip(jumps.clone()).filter_map(|(f, j)| Some((f?, j.conditional))))
            } else {
                let mut from = from;
                let first = from.next().flatten();
                first.filter(|f| from.all(|other| other == Some(*f)) && jumps.clone().any(|j| j.conditional))
            };
            owner.is_none_or(|owner| {
                owners.insert(index, owner);
                false
            })
        });
        if open.len() == before {
            // The nameless pieces that remain are functions; the owners of their own parts may still be undecided.
            open.retain(|c| c.1 == MaybePart::Likely);
            if open.len() == before {
                break;
            }
        }
    }
    owners
}

/// The owner of a part among the functions that jump to it; each comes with whether its jump is conditional. A function whose name fits
/// ranks highest, then a conditional jump, then the first. An unconditional jump may only follow a call that never returns, and so lead to
/// the end of another part.
fn likely_owner(pieces: &[Function], part: &Function, from: impl Iterator<Item = (usize, bool)>) -> Option<usize> {
    let bases: FxHashSet<&str> = part.names.iter().filter_map(|n| cold_of(n.mangled())).collect();
    let named = |index: usize| pieces[index].names.iter().any(|n| bases.contains(n.mangled()));
    // Of the functions with the highest rank, the first wins.
    let rank = |&(n, (index, conditional)): &(usize, (usize, bool))| (named(index), conditional, Reverse(n));
    from.enumerate().max_by_key(rank).map(|(_, (index, _))| index)
}

fn kind(image: &Elf, start: u64, draft: &FunctionDraft) -> FunctionKind {
    if image.text_index(start).is_some_and(|i| image.text[i].stubs) {
        return FunctionKind::Stub;
    }
    if !draft.ordinary && !draft.names.is_empty() {
        return FunctionKind::IfuncResolver;
    }
    let bytes = image.data_from(start).unwrap_or_default();
    let bytes = bytes.strip_prefix(&ENDBR).unwrap_or(bytes);
    let bytes = bytes.strip_prefix(&[0xf2]).unwrap_or(bytes);
    // A stub begins with `jmp [rip+…]`, and the code before the stubs with `push [rip+…]`. Both get here only in files without section
    // headers.
    if draft.names.is_empty() && (bytes.starts_with(&[0xff, 0x25]) || bytes.starts_with(&[0xff, 0x35])) {
        return FunctionKind::Stub;
    }
    FunctionKind::Normal
}
