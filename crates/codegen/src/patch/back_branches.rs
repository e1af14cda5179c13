//! Back branches: branches of a function to its own entry or to one of its return addresses. Such a branch makes no call: it is a loop, or
//! a jump past a call. So it must not run the snippets, and is redirected to the relocated code after them.

use ingraft_model::point::BackBranch;
use ingraft_model::{Avma, AvmaRange, Offset, PointKind, Refusal};

use crate::code::block::{USER_END, straddles};
use crate::code::environment::Environment;
use crate::code::woven::DisplacedCopy;
use crate::patch::choose::Carried;
use crate::patch::relocate::{Displaced, decode};
use crate::patch::springboard::{ChosenSpringboard, LocatedSite};
use crate::patch::text_space::{Island, TextSpace};
use crate::patch::weave::PointRequest;

/// Change that redirects one back branch past the springboard.
#[derive(Clone, Debug)]
pub(crate) enum Redirect {
    /// Rewrites the branch's 32-bit displacement, which lies at `field`.
    Retarget { field: u64, old: [u8; 4] },
    /// Displaces a range of instructions and writes a springboard of five bytes at its beginning. The range ends with the branch unless
    /// `makes_room` is set: then it only makes room for an island.
    Displace { displaced: Vec<Displaced>, old: [u8; 5], makes_room: bool },
    /// Rewrites the branch's 8-bit displacement, which lies at `field`, to lead to an island.
    Hop { field: u64, old: u8, island: Island },
    /// Rewrites the displacement in the copy of the branch at this address, because another point displaces the branch.
    InCopy { branch: u64 },
}

impl Redirect {
    /// Address of the first instruction in a displaced range.
    pub fn first(&self) -> Option<u64> {
        match self {
            Redirect::Displace { displaced, .. } => displaced.first().map(|d| d.at),
            Redirect::Retarget { .. } | Redirect::Hop { .. } | Redirect::InCopy { .. } => None,
        }
    }

    /// Whether the change only makes room for an island.
    pub fn makes_room(&self) -> bool {
        matches!(self, Redirect::Displace { makes_room: true, .. })
    }

    /// Ranges of text that the change overwrites or leaves dead.
    pub fn taken(&self) -> Vec<(u64, u64)> {
        match self {
            Redirect::Retarget { field, .. } => vec![(*field, field + 4)],
            Redirect::Displace { displaced, .. } => displaced.first().map(|d| (d.at, d.at + 5)).into_iter().collect(),
            Redirect::Hop { field, island, .. } => vec![(*field, field + 1), (island.at, island.at + 5)],
            Redirect::InCopy { .. } => Vec::new(),
        }
    }
}

/// Finds a change for every back branch, except those that the springboard displaces itself. Refuses the point if one branch can neither be
/// rewritten nor displaced. The code of the point will be in `arena`; the copy of a branch may be in another arena.
pub(crate) fn redirects(
    env: &Environment,
    text: &mut TextSpace,
    head: &ChosenSpringboard,
    request: &PointRequest<'_>,
    carried: &Carried,
    arena: &AvmaRange,
) -> Result<Vec<Redirect>, Refusal> {
    let mut out: Vec<Redirect> = Vec::new();
    for b in request.site.back_branches() {
        let at = b.at.to_avma(request.bias).0;
        if at >= head.start() && at < head.home() {
            continue;
        }
        let found = if carried.has(head.function, at) {
            let copy = request.beside.iter().flat_map(|p| &p.inner).find(|inner| inner.original.0 == at);
            let reaches = |copy: &DisplacedCopy| [arena.start, arena.end].iter().all(|to| copy.leading(to.0).is_some());
            let redirected = copy.is_none_or(reaches).then(|| vec![Redirect::InCopy { branch: at }]);
            redirected.ok_or(Refusal::NoRoomNearby)
        } else {
            redirect(env, text, head, b, request).ok_or_else(|| cannot_tell(head, request, at))
        };
        match found {
            Ok(found) => out.extend(found),
            Err(refusal) => {
                for (start, end) in out.iter().flat_map(Redirect::taken) {
                    text.release(&(Avma(start)..Avma(end)));
                }
                return Err(refusal);
            }
        }
    }
    Ok(out)
}

/// Returns the refusal of a point that the back branch at the address `branch` leads to.
pub(crate) fn cannot_tell(head: &ChosenSpringboard, request: &PointRequest<'_>, branch: u64) -> Refusal {
    let offset = Offset::between(head.function, branch);
    match request.site.point_kind() {
        PointKind::Entry => Refusal::OwnBranchToEntry { offset },
        PointKind::Exit | PointKind::CallBefore | PointKind::CallAfter | PointKind::Block | PointKind::Edge => {
            Refusal::OwnBranchToReturn { offset }
        }
    }
}

fn redirect(
    env: &Environment,
    text: &mut TextSpace,
    head: &ChosenSpringboard,
    b: &BackBranch,
    request: &PointRequest<'_>,
) -> Option<Vec<Redirect>> {
    let (bias, name) = (request.bias, request.name);
    let from = b.from.to_avma(bias).0;
    let at = b.at.to_avma(bias).0;
    if from >= USER_END || at >= USER_END {
        return None;
    }
    let all = decode_all(env, &b.bytes, from, head.function, at);
    let branch = *all.as_ref().and_then(|all| all.last())?;
    let target = branch.branch_target()?;
    if branch.at != at || !head.begins(request.site.point_kind(), target) {
        return None;
    }
    if branch.is_long_branch() {
        let field = branch.next() - 4;
        let old = branch.bytes().last_chunk::<4>().copied()?;
        if !straddles(field, 4) && text.take(field, field + 4, name).is_ok() {
            return Some(vec![Redirect::Retarget { field, old }]);
        }
    }
    let end = b.until.to_avma(bias).0.min(from + b.bytes.len() as u64);
    // Padding after a branch is dead only if control never continues after the branch.
    let end = if branch.ends { end } else { branch.next() };
    for (i, first) in all.as_deref().unwrap_or_default().iter().enumerate().rev() {
        let start = first.at;
        let apart = start >= head.home() || branch.next().max(start + 5) <= head.start();
        let fits = apart && start + 5 <= end && !straddles(start, 5);
        let displaced = &all.as_deref().unwrap_or_default()[i..];
        let middle_ends = displaced.split_last().is_some_and(|(_, before)| before.iter().any(|d| d.ends));
        if fits && !middle_ends && text.take(start, branch.next().max(start + 5), name).is_ok() {
            let offset = usize::try_from(start - from).ok()?;
            let old = b.bytes.get(offset..)?.first_chunk::<5>().copied()?;
            return Some(vec![Redirect::Displace { displaced: displaced.to_vec(), old, makes_room: false }]);
        }
    }
    if branch.is_long_branch() {
        return None;
    }
    let field = branch.next() - 1;
    let old = *branch.bytes().last()?;
    text.take(field, field + 1, name).ok()?;
    if let Some(island) = text.take_island(branch.next().saturating_sub(128), branch.next() + 127, name) {
        return Some(vec![Redirect::Hop { field, old, island }]);
    }
    let place = LocatedSite::new(request);
    if let Some((island, room)) = place.make_room(env, text, branch.next(), name) {
        return Some(vec![room, Redirect::Hop { field, old, island }]);
    }
    text.release(&(Avma(field)..Avma(field + 1)));
    None
}

/// Decodes the instructions from `from` to the branch at `branch`. If an instruction before the branch cannot be displaced, the result is
/// the branch alone.
fn decode_all(env: &Environment, bytes: &[u8], from: u64, function: u64, branch: u64) -> Option<Vec<Displaced>> {
    let mut all = Vec::new();
    let mut at = from;
    while at <= branch {
        let offset = usize::try_from(at - from).ok()?;
        match decode(bytes.get(offset..)?, at, function, env.shadow_stack) {
            Ok(d) => {
                at = d.next();
                all.push(d);
            }
            Err(_) => {
                let offset = usize::try_from(branch.checked_sub(from)?).ok()?;
                return decode(bytes.get(offset..)?, branch, function, env.shadow_stack).ok().map(|d| vec![d]);
            }
        }
    }
    Some(all)
}
