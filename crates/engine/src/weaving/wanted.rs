//! Requests for snippets at points: the keys of points, and the points that a request needs.

use std::sync::Arc;

use ingraft_model::{FunctionId, FunctionPoint, Parts, Placing, PointId, PointKind, Refusal, Role, Site, Snippet};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::weaving::bodies::Copies;
use crate::weaving::cost::Meter;
use crate::weaving::exits::Exits;
use crate::weaving::plan::PRUNE;
use crate::weaving::sites::FoundPoint;

/// Snippets for all points of one kind of a function.
pub struct WantedPoints<'a> {
    /// The function.
    pub function: FunctionId,
    /// Kind of the points.
    pub kind: PointKind,
    /// The snippets, in order.
    pub minis: Vec<NewMini<'a>>,
}

/// A snippet for a kind of points of a function.
pub struct NewMini<'a> {
    /// Id of the snippet, unique in the session except for [`PRUNE`].
    pub id: u64,
    /// Index of the pair in the request. All snippets of a pair in one function are woven, or none.
    pub pair: usize,
    /// Position among the snippets of a point; `None` for the first position.
    pub role: Option<Role>,
    /// The code.
    pub snippet: &'a Arc<Snippet>,
    /// First counter of each of the snippet's variables.
    pub counters: Arc<[u32]>,
    /// Counter of the snippet's runs; `None` if they are not counted.
    pub meter: Option<Meter>,
    /// Functions whose calls do not get the snippet.
    pub except: &'a [FunctionId],
    /// The points of the kind that the snippet is for.
    pub parts: Parts,
    /// The exits that the snippet is for.
    pub exits: Exits,
    /// Where it stands.
    pub placing: Placing,
}

impl<'a> NewMini<'a> {
    /// A snippet without variables for all points of its kind.
    pub fn plain(id: u64, pair: usize, snippet: &'a Arc<Snippet>) -> Self {
        let (parts, exits) = (Parts::All, Exits::All);
        let placing = Placing::Anywhere;
        NewMini {
            id,
            pair,
            role: None,
            snippet,
            counters: Arc::default(),
            meter: None,
            except: &[],
            parts,
            exits,
            placing,
        }
    }
}

/// A point that is to be woven.
pub(super) struct NewPoint<'a> {
    pub point: FunctionPoint,
    pub site: &'a Site,
    /// The snippets, in the order in which they run.
    pub minis: Vec<&'a NewMini<'a>>,
    /// Whether the point is woven into the copy of its function, and not into the text.
    pub in_copy: bool,
}

/// The pairs that have snippets at edges of a function. Edges are points of copies only, so all points of such a pair are in the copy, or
/// none is woven.
pub(super) fn with_edges(wanted: &[WantedPoints<'_>]) -> FxHashSet<(FunctionId, usize)> {
    let has_edges = |mini: &&NewMini<'_>| match &mini.parts {
        Parts::One(point) => point.kind() == PointKind::Edge,
        Parts::These(points) => !points.is_empty(),
        Parts::All | Parts::Missing(_) => false,
    };
    let edges = wanted.iter().filter(|w| w.kind == PointKind::Edge);
    edges.flat_map(|w| w.minis.iter().filter(has_edges).map(|mini| (w.function, mini.pair))).collect()
}

impl WantedPoints<'_> {
    /// Whether some snippet is for a point.
    pub(super) fn wanted_points(&self) -> impl Fn(&PointId) -> bool {
        let all = self.minis.iter().any(|mini| mini.parts == Parts::All);
        let parts = self.minis.iter().flat_map(|mini| match &mini.parts {
            Parts::One(point) => std::slice::from_ref(point),
            Parts::These(points) => points,
            Parts::All | Parts::Missing(_) => &[],
        });
        let points: FxHashSet<PointId> = parts.copied().collect();
        move |point| all || points.contains(point)
    }

    /// Notes for each point the snippets that are for it, by their indices.
    pub fn assign(&self, sites: &mut Result<Vec<FoundPoint>, Refusal>) {
        let mut for_all = Vec::new();
        let mut by_point: FxHashMap<PointId, Vec<usize>> = FxHashMap::default();
        for (index, mini) in self.minis.iter().enumerate() {
            match &mini.parts {
                Parts::All => for_all.push(index),
                Parts::One(point) => by_point.entry(*point).or_default().push(index),
                Parts::These(points) => points.iter().for_each(|point| by_point.entry(*point).or_default().push(index)),
                Parts::Missing(_) => {}
            }
        }
        for found in sites.iter_mut().flatten() {
            let own = found.point.and_then(|point| by_point.get(&point));
            let mut its: Vec<usize> = for_all.iter().chain(own.into_iter().flatten()).copied().collect();
            its.retain(|index| self.minis.get(*index).is_some_and(|mini| found.is_for(mini)));
            its.sort_unstable();
            found.its = its;
        }
    }

    /// The snippets that are for a point.
    pub(super) fn minis_for<'s>(&'s self, found: &'s FoundPoint) -> impl Iterator<Item = &'s NewMini<'s>> {
        found.its.iter().filter_map(|index| self.minis.get(*index))
    }

    /// The points for the wanted snippets at these sites, without refused pairs.
    pub(super) fn points<'s>(
        &'s self,
        sites: &'s Result<Vec<FoundPoint>, Refusal>,
        refused: &FxHashMap<(FunctionId, usize), Refusal>,
        copies: &Copies,
    ) -> Vec<NewPoint<'s>> {
        let sites = sites.as_ref().map_or(&[][..], Vec::as_slice);
        let mut points = Vec::with_capacity(sites.len());
        for found in sites {
            let (Some(point), Ok((site, in_copy))) = (found.point, copies.site(self.function, found)) else { continue };
            let is_for = |m: &&NewMini<'_>| {
                !refused.contains_key(&(self.function, m.pair)) && m.exits.contains(site.at, refused)
            };
            let mut minis = Vec::with_capacity(found.its.len());
            minis.extend(self.minis_for(found).filter(is_for));
            minis.sort_by_key(|m| m.role);
            if minis.iter().any(|m| m.id != PRUNE) {
                let point = FunctionPoint { function: self.function, point };
                points.push(NewPoint { point, site, minis, in_copy });
            }
        }
        points
    }

    /// The pairs that are refused in the function, with the reasons: if a point is missing, a value from the others would not be exact.
    /// `records` says whether the target has activation records of goroutines.
    pub fn refused(
        &self,
        sites: &Result<Vec<FoundPoint>, Refusal>,
        copies: &Copies,
        records: bool,
    ) -> Vec<((FunctionId, usize), Refusal)> {
        let pair =
            |m: &NewMini<'_>, refusal: &Refusal| (m.id != PRUNE).then(|| ((self.function, m.pair), refusal.clone()));
        let missing = |m: &NewMini<'_>| match &m.parts {
            Parts::Missing(why) => Some(((self.function, m.pair), Refusal::clone(why))),
            Parts::All | Parts::One(_) | Parts::These(_) => None,
        };
        // The state of a thread, and records if there are none of goroutines, do not follow calls that move between threads.
        // Nor has the stack of a goroutine room for large records.
        let cannot_move = |m: &&NewMini<'_>| {
            m.snippet.is_bound_to_thread() || !records && m.snippet.has_records() || m.snippet.makes_large_records()
        };
        let moving = |f: &FoundPoint| f.site.as_ref().is_ok_and(|site| site.moving);
        match sites {
            Err(refusal) => self.minis.iter().filter_map(|m| pair(m, refusal)).collect(),
            Ok(sites) => sites
                .iter()
                .filter_map(|f| Some((f, copies.site(self.function, f).err()?)))
                .flat_map(|(f, r)| self.minis_for(f).filter_map(move |m| pair(m, &r)))
                .chain(sites.iter().filter(|f| f.site.is_ok()).flat_map(|f| {
                    let moves = moving(f);
                    let why = move |m: &NewMini<'_>| match moves {
                        true if cannot_move(&m) => Some(Refusal::MovingCalls),
                        true => m.snippet.reads_arguments().then_some(Refusal::OtherArguments),
                        false => m.snippet.is_bound_to_moving_call().then_some(Refusal::StayingCalls),
                    };
                    self.minis_for(f).filter_map(move |m| pair(m, &why(m)?))
                }))
                .chain(self.minis.iter().filter_map(missing))
                .collect(),
        }
    }
}

/// Snippets in the order in which [`place_among`] must add them to a point so that they run there in their own order.
pub(super) fn to_add<M: Copy>(minis: &[M], kind: PointKind) -> Vec<M> {
    let mut minis = minis.to_vec();
    if kind.opens() {
        minis.reverse();
    }
    minis
}

/// Where a snippet is added among others, by their roles in the order in which they run: before those of its role at points where a call begins,
/// otherwise after them. So the pair that begins first ends last.
pub(super) fn place_among(known: impl Iterator<Item = Option<Role>>, kind: PointKind, role: Option<Role>) -> usize {
    let before = |known: &Option<Role>| match kind.opens() {
        true => *known < role,
        false => *known <= role,
    };
    known.take_while(before).count()
}
