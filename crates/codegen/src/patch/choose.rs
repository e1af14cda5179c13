//! Choice of springboards for all points of a request, so that they do not overlap. A point has bytes of its own, or it is woven into the
//! copy of an instruction that another point of its function displaces.

use ingraft_model::{FirstInstruction, PointKind, Refusal, SiteKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::environment::Environment;
use crate::patch::back_branches::Redirect;
use crate::patch::relocate::Displaced;
use crate::patch::springboard::{self, AllowedForms, ChosenSpringboard};
use crate::patch::text_space::TextSpace;
use crate::patch::weave::PointRequest;

/// Decision about a point.
pub(crate) enum Choice {
    /// The point has a springboard in the text.
    Own(Box<ChosenSpringboard>),
    /// Another point displaces the point's instruction; the point is woven into the copy.
    Hosted,
    /// The point cannot be woven.
    Refused(Refusal),
}

impl Choice {
    /// First instruction that stays in place before the springboard.
    pub fn first(&self) -> Option<&FirstInstruction> {
        match self {
            Choice::Own(head) => head.first.as_ref(),
            Choice::Hosted | Choice::Refused(_) => None,
        }
    }
}

/// Chooses a springboard for each request, and takes its bytes of text.
///
/// A point that must begin at one address, an entry or a return address, goes first. Where possible, such a point leaves calls that are
/// points themselves in place, because the processor pairs a call in the text with its return. Springboards of five bytes go before those
/// of two, so that the padding that remains is for islands. Entries leave the first instruction in place, unless only its bytes suffice.
/// Blocks go last and leave such calls in place: a function has many of them, and each stands for itself.
pub(crate) fn choose(env: &Environment, text: &mut TextSpace, requests: &[PointRequest<'_>]) -> Vec<Choice> {
    let point = |r: &PointRequest<'_>| r.site.at.to_avma(r.bias).0.wrapping_add(u64::from(r.site.point));
    let before_call = |r: &PointRequest<'_>| r.site.kind == SiteKind::CallBefore;
    let first = |r: &PointRequest<'_>| r.site.arrival().is_some();
    let block = |r: &PointRequest<'_>| r.site.point_kind() == PointKind::Block;
    let exposable = |r: &PointRequest<'_>| r.site.first_instruction().is_some();
    let exit = |r: &PointRequest<'_>| !first(r) && !before_call(r) && !block(r);
    let calls: FxHashSet<u64> = requests.iter().filter(|r| before_call(r)).map(point).collect();
    let none = FxHashSet::default();
    let held = requests.iter().flat_map(|r| r.beside).flat_map(|woven| &woven.inner).map(|inner| inner.original.0);
    let mut held: FxHashSet<u64> = held.collect();

    let mut choices: Vec<Option<Choice>> =
        requests.iter().map(|r| (r.site.is_within_entry() || r.probe.is_some()).then_some(Choice::Hosted)).collect();
    let mut round = |which: &dyn Fn(&PointRequest<'_>) -> bool, width, keep: &FxHashSet<u64>, host: bool| {
        for (choice, r) in choices.iter_mut().zip(requests).filter(|(_, r)| which(r)) {
            if !matches!(choice, None | Some(Choice::Refused(_))) {
                continue;
            }
            *choice = Some(match springboard::choose(env, text, r, width, keep) {
                Ok(head) => {
                    if first(r) {
                        held.extend(head.behind().iter().map(|d| d.at));
                    }
                    Choice::Own(Box::new(head))
                }
                Err(_) if host && held.contains(&point(r)) => Choice::Hosted,
                Err(refusal) => Choice::Refused(refusal),
            });
        }
    };
    round(&first, AllowedForms::Near, &calls, false);
    round(&exit, AllowedForms::Near, &none, true);
    round(&first, AllowedForms::Any, &calls, false);
    round(&first, AllowedForms::Any, &none, false);
    round(&exposable, AllowedForms::Exposed, &calls, false);
    round(&exposable, AllowedForms::Exposed, &none, false);
    round(&before_call, AllowedForms::Near, &none, true);
    round(&|r| !first(r) && !block(r), AllowedForms::Any, &none, true);
    round(&block, AllowedForms::Near, &calls, false);
    round(&block, AllowedForms::Any, &calls, false);
    let unasked = || Choice::Refused(Refusal::NotYet { kind: "such" });
    choices.into_iter().map(|choice| choice.unwrap_or_else(unasked)).collect()
}

/// Displaced branches: for each address, the function, and the request that displaces the branch (`None` if the point is woven already).
#[derive(Default)]
pub(crate) struct Carried(FxHashMap<u64, (u64, Option<usize>)>);

impl Carried {
    /// Branches that the chosen springboards and the woven points displace.
    pub fn new(choices: &[Choice], requests: &[PointRequest<'_>]) -> Self {
        let mut carried = Carried::default();
        for woven in requests.iter().flat_map(|r| r.beside) {
            carried.0.extend(woven.inner.iter().map(|inner| (inner.original.0, (woven.function.0, None))));
        }
        for (owner, choice) in choices.iter().enumerate() {
            if let Choice::Own(head) = choice {
                carried.add(owner, head, &head.displaced);
                carried.add_redirects(owner, head, head.island_room.as_slice());
            }
        }
        carried
    }

    fn add(&mut self, owner: usize, head: &ChosenSpringboard, displaced: &[Displaced]) {
        let branches = displaced.iter().filter(|d| d.is_branch());
        self.0.extend(branches.map(|d| (d.at, (head.function, Some(owner)))));
    }

    /// Adds branches in ranges that are displaced for a branch back to a point, or to make room for an island.
    pub fn add_redirects(&mut self, owner: usize, head: &ChosenSpringboard, redirects: &[Redirect]) {
        for redirect in redirects {
            if let Redirect::Displace { displaced, .. } = redirect {
                self.add(owner, head, displaced);
            }
        }
    }

    /// Forgets the branches that a point would have displaced, after the point was refused.
    pub fn remove(&mut self, owner: usize, head: &ChosenSpringboard, redirects: &[Redirect]) {
        let displaced = redirects.iter().filter_map(|d| match d {
            Redirect::Displace { displaced, .. } => Some(displaced.as_slice()),
            Redirect::Retarget { .. } | Redirect::Hop { .. } | Redirect::InCopy { .. } => None,
        });
        for displaced in displaced.chain([head.displaced.as_slice()]).flatten() {
            if self.0.get(&displaced.at).is_some_and(|(_, by)| *by == Some(owner)) {
                self.0.remove(&displaced.at);
            }
        }
    }

    /// Whether a point of `function` displaces the branch at `branch`.
    pub fn has(&self, function: u64, branch: u64) -> bool {
        self.0.get(&branch).is_some_and(|(of, _)| *of == function)
    }
}
