//! Targets of the indirect jumps of one function. They depend on the ways by which control reaches each jump.

use iced_x86::{OpKind, Register};

use crate::file::elf::ImageKind;
use crate::flow::body::DecodedFunction;
use crate::flow::returns::{callee, never_returns};
use crate::flow::traversal::{FoundTransfers, REACHED, Traversal};
use crate::functions::discovered::SideEntry;
use crate::functions::jump_table::{JumpResolver, Predecessors, ResolvedJump};

/// Largest number of rounds in which all jumps are resolved again. The code at a target may contain more indirect jumps, and may lead to
/// the code that reads another table.
const ROUNDS: usize = 8;

/// An indirect jump that is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndirectJump {
    /// Index of the jump instruction.
    pub index: usize,
    /// Destination.
    pub leads: Leads,
}

/// Destination of an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// The jump leads to one of these addresses, through a table. Some may lie in other functions.
    To(Vec<u64>),
    /// The jump leads to another function.
    Out,
    /// The jump leads to another function, or to one of these addresses in the function: all that are taken as a value.
    Anywhere(Vec<u64>),
    /// The jump leads to one of these addresses in the function: all that are taken as a value.
    Labels(Vec<u64>),
    /// The destination is not known.
    Unknown,
}

/// Follows control from the addresses in `work`, and through indirect jumps, until no more instructions are reached.
pub(crate) fn settle(traversal: &mut Traversal<'_>) {
    traversal.run();
    for round in 0.. {
        if traversal.jumps.is_empty() || traversal.settled == traversal.reached {
            return;
        }
        let resolved = resolve(traversal);
        let stable = traversal.jumps == resolved;
        traversal.jumps = resolved;
        let open = traversal.jumps.iter().any(|jump| jump.leads == Leads::Unknown);
        if stable && !(open && (note_last_calls(traversal) || std::mem::take(&mut traversal.exact_tables))) {
            traversal.settled = traversal.reached;
            return;
        }
        if round == ROUNDS {
            traversal.jumps.iter_mut().for_each(|jump| jump.leads = Leads::Unknown);
            return;
        }
        for jump in &traversal.jumps {
            if let Leads::To(places) | Leads::Anywhere(places) | Leads::Labels(places) = &jump.leads {
                traversal.work.extend(places.iter().filter(|place| traversal.body.contains(**place)));
            }
        }
        traversal.run();
    }
}

/// Finds the calls that never return. No control comes from such a call, so it does not hide the value of a register at a later jump.
/// Returns whether the set of these calls has changed.
fn note_last_calls(traversal: &mut Traversal<'_>) -> bool {
    if traversal.trusts_calls {
        return false;
    }
    let (body, marks) = (traversal.body, &traversal.marks);
    let calls = (0..body.code.len()).filter(|index| marks[*index] & REACHED != 0);
    let last = |index: &usize| callee(&body.code[*index]).is_some_and(|callee| never_returns(body.image, callee));
    let found: Vec<usize> = calls.filter(last).collect();
    let new = found != traversal.last_calls;
    traversal.last_calls = found;
    new
}

/// Resolves all indirect jumps that are reached so far, by the ways to them that are known so far.
fn resolve(traversal: &Traversal<'_>) -> Vec<IndirectJump> {
    let (body, image) = (traversal.body, traversal.body.image);
    let reached: Vec<bool> = traversal.marks.iter().map(|mark| mark & REACHED != 0).collect();
    let (mut named, mut addressed) = (vec![body.function.start], Vec::new());
    let mut taken = Vec::new();
    for range in &body.inside {
        named.extend(image.landing_pads_in(range));
        named.extend(image.starts_in(range));
        for entry in image.side_entries_in(range) {
            if entry.why == SideEntry::ADDRESSED {
                addressed.push(entry.at)
            } else {
                named.push(entry.at)
            }
            if entry.why & SideEntry::ADDRESSED != 0 && body.index_of(entry.at).is_some() {
                taken.push(entry.at);
            }
        }
    }
    addressed.sort_unstable();
    taken.sort_unstable();
    let mut before = Predecessors::new(&body.code, [&named[..], &addressed].concat(), reached.clone());
    let known = traversal.jumps.iter().filter_map(|jump| match &jump.leads {
        Leads::To(places) | Leads::Labels(places) => Some((jump.index, places)),
        _ => None,
    });
    before.add_tables(known.clone());
    before.last_calls.clone_from(&traversal.last_calls);
    if image.elf().kind() == ImageKind::Executable {
        before.doubtful = addressed;
    }
    let (pointers, tables, memory) = (image.pointers(), image.tables(), &traversal.memory);
    let (code, inside) = (&body.code[..], &body.inside[..]);
    let resolver = JumpResolver { image: image.elf(), pointers, code, inside, before: &before, tables, memory };
    let mut budget = body.budget();
    let mut leads = |jump: &IndirectJump| {
        let i = &body.code[jump.index];
        if !matches!(i.op0_kind(), OpKind::Register | OpKind::Memory) {
            return Leads::Unknown;
        }
        match resolver.resolve(jump.index, &mut budget) {
            ResolvedJump::Table(targets) if targets.bounded && (targets.exact || !traversal.exact_tables) => {
                Leads::To(targets.places)
            }
            // In this phase, targets that may not exist would hide the bounds and addresses of other tables.
            ResolvedJump::Table(_) | ResolvedJump::Pointer if traversal.exact_tables => Leads::Unknown,
            ResolvedJump::Table(targets) if !targets.absolute => Leads::Unknown,
            ResolvedJump::Distances(_) => Leads::Unknown,
            // Without a label whose address is taken, a pointer can only lead to another function, unless the frame is certainly open.
            ResolvedJump::Pointer | ResolvedJump::Table(_) if taken.is_empty() => {
                let of_frame = i.op0_kind() == OpKind::Memory && i.memory_base() == Register::RSP;
                let is_open = || resolver.keeps_frame(body.function.start, &[jump.index], &[]);
                if of_frame || is_open() { Leads::Unknown } else { Leads::Out }
            }
            ResolvedJump::Pointer | ResolvedJump::Table(_) => Leads::Anywhere(taken.clone()),
        }
    };
    let leads = traversal.jumps.iter().map(|jump| IndirectJump { index: jump.index, leads: leads(jump) });
    let mut jumps: Vec<IndirectJump> = leads.collect();
    let anywhere = |jump: &&IndirectJump| matches!(jump.leads, Leads::Anywhere(_));
    let through_pointers: Vec<usize> = jumps.iter().filter(anywhere).map(|jump| jump.index).collect();
    if through_pointers.is_empty() {
        return jumps;
    }
    if resolver.keeps_frame(body.function.start, &through_pointers, &taken) {
        // None of them can be a call of another function.
        for jump in &mut jumps {
            jump.leads = match std::mem::replace(&mut jump.leads, Leads::Unknown) {
                Leads::Anywhere(places) => Leads::Labels(places),
                other => other,
            };
        }
        return jumps;
    }
    let mut assumed = Predecessors::new(code, named, reached);
    assumed.add_tables(known.chain(through_pointers.iter().map(|jump| (*jump, &taken))));
    assumed.last_calls.clone_from(&before.last_calls);
    let resolver = JumpResolver { before: &assumed, ..resolver };
    if let Some(places) = by_own_tables(&resolver, &through_pointers, &taken, &mut budget) {
        let through_pointers = jumps.iter_mut().filter(|jump| matches!(jump.leads, Leads::Anywhere(_)));
        through_pointers.zip(places).for_each(|(jump, places)| jump.leads = Leads::To(places));
    }
    jumps
}

/// The targets of jumps through tables of labels whose addresses the function keeps in registers; `None` if they are not all such jumps.
///
/// `resolver` assumes that control comes to the sorted `labels` from these jumps alone. If then each of them reads its target from a table,
/// and these tables are the only words that hold the labels, the assumption holds as long as the function alone reads its tables: the first
/// jump that leads elsewhere would have to come from one of them.
fn by_own_tables(
    resolver: &JumpResolver<'_>,
    jumps: &[usize],
    labels: &[u64],
    budget: &mut usize,
) -> Option<Vec<Vec<u64>>> {
    if !resolver.labels_are_data(labels) {
        return None;
    }
    let (mut all, mut tables) = (Vec::new(), Vec::new());
    for jump in jumps {
        let ResolvedJump::Table(targets) = resolver.resolve(*jump, budget) else { return None };
        if !targets.bounded || !targets.places.iter().all(|place| labels.binary_search(place).is_ok()) {
            return None;
        }
        tables.extend(targets.tables);
        all.push(targets.places);
    }
    tables.sort_unstable();
    tables.dedup();
    resolver.labels_are_in(labels, &tables).then_some(all)
}

/// Whether a table holds functions, the one that jumps among them: its targets are outside, or its first instruction. Then the jump is a call at the
/// end of the function, of whichever of them.
fn holds_functions(body: &DecodedFunction<'_>, places: &[u64]) -> bool {
    let itself = |at: &&u64| **at == body.function.start;
    let is_function = |at: &u64| body.image.functions().binary_search_by_key(at, |function| function.start).is_ok();
    places.iter().any(|at| itself(&at))
        && places.iter().filter(|at| !itself(at)).all(|at| !body.contains(*at) && is_function(at))
        && places.len() > 1
}

/// Adds the indirect jumps to the results. The first `first` jumps are reached from the entry or a landing pad, and go to `found`; the
/// others go to the results of `traversal`.
pub(crate) fn conclude(traversal: &mut Traversal<'_>, found: &mut FoundTransfers, first: usize) {
    let jumps = std::mem::take(&mut traversal.jumps);
    for (number, jump) in jumps.into_iter().enumerate() {
        let refusal = traversal.unresolved(jump.index);
        let out = if number < first { &mut *found } else { &mut traversal.found };
        match jump.leads {
            Leads::To(places) if holds_functions(traversal.body, &places) => {
                out.exits.push(jump.index);
                out.dynamic.push(jump.index);
            }
            Leads::To(places) => {
                let inside = |at: &u64| traversal.body.contains(*at);
                if !places.iter().any(inside) {
                    out.exits.push(jump.index);
                }
                // If some targets are inside and some outside, the jump is an exit only at some of its executions.
                if places.iter().any(inside) && !places.iter().all(inside) {
                    traversal.doubts.ways_out.get_or_insert(refusal);
                }
                out.unstated.extend(places.iter().copied().filter(|at| traversal.body.contains(*at)));
                out.tables.push((jump.index, places));
            }
            Leads::Out => {
                out.exits.push(jump.index);
                out.dynamic.push(jump.index);
            }
            // All of these addresses are ways in.
            Leads::Anywhere(places) => {
                traversal.doubts.ways_out.get_or_insert(refusal);
                out.dynamic.push(jump.index);
                out.unstated.extend(&places);
                out.tables.push((jump.index, places));
            }
            Leads::Labels(places) => {
                out.gotos.push(jump.index);
                out.unstated.extend(&places);
                out.tables.push((jump.index, places));
            }
            Leads::Unknown => {
                out.unresolved.push(jump.index);
                traversal.doubts.both(refusal);
            }
        }
    }
}
