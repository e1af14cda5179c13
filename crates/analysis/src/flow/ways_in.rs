//! Ways into a function from outside: addresses other than its entry and its landing pads at which control may arrive.

use iced_x86::FlowControl;
use ingraft_model::{Refusal, Svma, WayIn, WayInReason};

use crate::flow::jumps;
use crate::flow::traversal::{REACHED, Traversal};
use crate::functions::discovered::SideEntry;

/// Follows control from every way in from outside. Returns these ways in.
pub(crate) fn enter(traversal: &mut Traversal<'_>) -> Vec<WayIn> {
    let body = traversal.body;
    let mut ways = vec![WayIn { at: body.function.start(), reason: WayInReason::Entry }];
    let (mut missed, mut left) = (None, JOIN_MAX);
    for range in &body.inside {
        ways.extend(body.image.landing_pads_in(range).iter().map(|at| way(*at, WayInReason::LandingPad)));
        for entry in body.image.side_entries_in(range) {
            // If no instruction begins at an address that is taken, the value equals an address by chance.
            if body.index_of(entry.at).is_none() {
                missed = missed.or(Some(entry.at).filter(|_| !entry.may_be_a_number()));
                continue;
            }
            ways.extend(reasons(traversal, entry));
            traversal.work.push(entry.at);
        }
        // Another function may begin in the code of this one, or between its parts and lead into it. Its callers then enter this code.
        for start in body.image.starts_in(range).filter(|start| *start != body.function.start) {
            if body.index_of(start).is_some_and(|index| joins(traversal, index, &mut left)) {
                ways.push(way(start, WayInReason::Called));
                traversal.work.push(start);
            }
        }
    }
    jumps::settle(traversal);
    let offset = |at| body.function.offset_of(at);
    if let Some(at) = missed {
        traversal.doubts.ways_in.get_or_insert(Refusal::UnknownInstruction { offset: offset(at) });
    }
    if body.inside.iter().any(|range| body.image.in_restartable_sequence(range.start, range.end - range.start)) {
        traversal.doubts.ways_in.get_or_insert(Refusal::RestartableSequence);
    }
    resumed(traversal, &mut ways);
    ways.sort_unstable();
    ways
}

/// Largest number of instructions of other functions in which branches into this one are searched.
const JOIN_MAX: usize = 1024;

/// Whether the code from an instruction on is reached code, or leads to some of which it is not known that control arrives there from elsewhere.
fn joins(traversal: &Traversal<'_>, index: usize, left: &mut usize) -> bool {
    let body = traversal.body;
    let is_reached = |index: usize| traversal.marks.get(index).is_some_and(|mark| mark & REACHED != 0);
    let mut falls = true;
    for (at, i) in body.code.iter().enumerate().skip(index) {
        if is_reached(at) || *left == 0 {
            return falls && is_reached(at);
        }
        *left -= 1;
        let flow = i.flow_control();
        let branches = matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        let to = i.near_branch_target();
        let is_known = || !body.image.side_entries_in(&(to..to.saturating_add(1))).is_empty();
        if branches && body.index_of(to).is_some_and(is_reached) && !is_known() {
            return true;
        }
        falls = !matches!(
            flow,
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Interrupt
                | FlowControl::Exception
        );
    }
    false
}

fn way(at: u64, reason: WayInReason) -> WayIn {
    WayIn { at: Svma(at), reason }
}

/// The reasons why control may arrive at a side entry.
fn reasons(traversal: &Traversal<'_>, entry: &SideEntry) -> impl Iterator<Item = WayIn> {
    let (body, at) = (traversal.body, entry.at);
    let behind_endbr = at == body.function.start + 4 && body.image.elf().begins_with_endbr(body.function.start);
    let plain = if behind_endbr { WayInReason::BehindEndbr } else { WayInReason::BranchFromElsewhere };
    let why = entry.why;
    [
        (SideEntry::NAMED, WayInReason::Named),
        (SideEntry::ADDRESSED, WayInReason::AddressTaken),
        (SideEntry::CALLED, if behind_endbr { plain } else { WayInReason::Called }),
        (SideEntry::BRANCHED, plain),
    ]
    .into_iter()
    .filter(move |(bit, _)| why & bit != 0)
    .map(move |(_, reason)| way(at, reason))
}

/// The instructions at which the language's runtime may continue a suspended call.
fn resumed(traversal: &Traversal<'_>, ways: &mut Vec<WayIn>) {
    if !traversal.body.is_suspended_somewhere() {
        return;
    }
    let code = traversal.body.code.iter().zip(&traversal.marks);
    let reached = code.filter(|(_, mark)| **mark & REACHED != 0);
    ways.extend(
        reached
            .map(|(i, _)| i.ip())
            .filter(|at| traversal.body.is_resumed(*at))
            .map(|at| way(at, WayInReason::Resumed)),
    );
}
