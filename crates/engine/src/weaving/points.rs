//! The woven points of one target, by function. Versions of the generated code share the points of the functions that do not change between
//! them, so that a change of one function copies little, however many functions are woven.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ingraft_codegen::{Chain, InlinePoint, WovenPoint};
use ingraft_model::{FunctionId, FunctionPoint, ModuleId, Role, Snippet};

use crate::recovery::journal::PointChain;
use crate::weaving::cost::Meter;

/// A woven point, with what the engine keeps of it.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub woven: Box<WovenPoint>,
    /// Index of the arena that holds the point's code.
    pub arena: usize,
    /// Data of the snippets, in the order of `woven.minis`.
    pub minis: Vec<Mini>,
    /// The point, for its code in a counting copy.
    pub inline: InlinePoint,
}

/// Data of a snippet at a point besides its code.
#[derive(Clone, Debug)]
pub(super) struct Mini {
    pub role: Option<Role>,
    /// The code, and the first counter of each of its variables: what another point needs to take over the snippet.
    pub snippet: Arc<Snippet>,
    pub counters: Arc<[u32]>,
    /// Counter of the snippet's runs; `None` if they are not counted.
    pub meter: Option<Meter>,
    /// Owner of the snippet in the journal.
    pub owner: u32,
}

impl Point {
    /// Snippets of the point, for the journal.
    pub(super) fn chain(&self) -> PointChain {
        let mut chain = Chain::of(&self.woven);
        for ((name, _), mini) in chain.snippets.iter_mut().zip(&self.minis) {
            *name = mini.owner.into();
        }
        PointChain { key: self.woven.removal.key(), chain }
    }
}

/// The points of one function.
type FunctionPoints = Vec<(FunctionPoint, Arc<Point>)>;

/// Woven points, in the order of their keys, so that the points of a function are adjacent.
#[derive(Clone, Debug, Default)]
pub(super) struct PointsByFunction {
    /// The points of each function, sorted by key. No function has none.
    functions: BTreeMap<FunctionId, Arc<FunctionPoints>>,
    len: usize,
}

impl PointsByFunction {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The points of a function.
    pub fn of(&self, function: FunctionId) -> &[(FunctionPoint, Arc<Point>)] {
        self.functions.get(&function).map_or(&[], |points| points.as_slice())
    }

    /// The points of a module.
    pub fn of_module(&self, module: ModuleId) -> impl Iterator<Item = &(FunctionPoint, Arc<Point>)> {
        self.functions.range(functions_of(module)).flat_map(|(_, points)| points.iter())
    }

    /// The first module from `module` on that has points.
    pub fn next_module(&self, module: ModuleId) -> Option<ModuleId> {
        self.functions.range(functions_of(module).start..).next().map(|(function, _)| function.module)
    }

    /// All points.
    pub fn iter(&self) -> impl Iterator<Item = &(FunctionPoint, Arc<Point>)> + Clone {
        self.functions.values().flat_map(|points| points.iter())
    }

    /// All points, without their keys.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Point>> {
        self.iter().map(|(_, point)| point)
    }

    /// The points of each function.
    pub fn by_function(&self) -> impl Iterator<Item = &[(FunctionPoint, Arc<Point>)]> {
        self.functions.values().map(|points| points.as_slice())
    }

    /// A point by its key.
    pub fn get(&self, place: &FunctionPoint) -> Option<&Arc<Point>> {
        let points = self.of(place.function);
        let index = points.binary_search_by_key(place, |(known, _)| *known).ok()?;
        points.get(index).map(|(_, point)| point)
    }

    /// A point by its key, to be changed.
    pub fn get_mut(&mut self, place: &FunctionPoint) -> Option<&mut Arc<Point>> {
        let points = self.functions.get_mut(&place.function)?;
        let index = points.binary_search_by_key(place, |(known, _)| *known).ok()?;
        Arc::make_mut(points).get_mut(index).map(|(_, point)| point)
    }

    /// Adds a point, or replaces the one with its key.
    pub fn insert(&mut self, place: FunctionPoint, point: Arc<Point>) {
        let points = Arc::make_mut(self.functions.entry(place.function).or_default());
        match points.binary_search_by_key(&place, |(known, _)| *known) {
            Ok(index) => {
                if let Some((_, known)) = points.get_mut(index) {
                    *known = point;
                }
            }
            Err(index) => {
                points.insert(index, (place, point));
                self.len += 1;
            }
        }
    }

    /// Takes the points of a function out.
    pub fn take(&mut self, function: FunctionId) -> Vec<(FunctionPoint, Arc<Point>)> {
        let gone = self.functions.remove(&function).map(Arc::unwrap_or_clone).unwrap_or_default();
        self.len -= gone.len();
        gone
    }

    /// Takes the points of a function out that are not to be kept.
    pub fn retain(&mut self, function: FunctionId, keep: impl Fn(&FunctionPoint) -> bool) {
        let mut points = self.take(function);
        points.retain(|(place, _)| keep(place));
        if !points.is_empty() {
            self.len += points.len();
            self.functions.insert(function, Arc::new(points));
        }
    }

    /// Takes a point out.
    pub fn remove(&mut self, place: &FunctionPoint) -> Option<Arc<Point>> {
        let points = self.functions.get_mut(&place.function)?;
        let index = points.binary_search_by_key(place, |(known, _)| *known).ok()?;
        let points = Arc::make_mut(points);
        let (_, gone) = points.remove(index);
        if points.is_empty() {
            self.functions.remove(&place.function);
        }
        self.len -= 1;
        Some(gone)
    }
}

/// The functions of a module, in maps by function.
pub(super) fn functions_of(module: ModuleId) -> Range<FunctionId> {
    let first = |module| FunctionId { module, function: 0 };
    first(module)..first(ModuleId(module.0.saturating_add(1)))
}
