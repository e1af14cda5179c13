//! Indices of vertices and edges, and values for each of them.

use std::marker::PhantomData;

use ingraft_model::{BlockId, EdgeId, Key, index_keys};

/// A vertex of a [`ProfileGraph`](crate::ProfileGraph): a block by its index, ENTRY, EXIT or a joint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vertex(pub u32);

/// An edge of a [`ProfileGraph`](crate::ProfileGraph), by its index. The index of an edge of a control-flow graph is an
/// [`EdgeId`](ingraft_model::EdgeId).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArcId(pub u32);

index_keys!(Vertex, ArcId);

impl From<BlockId> for Vertex {
    /// The vertex of a block. It has the block's index.
    fn from(block: BlockId) -> Self {
        Vertex(block.0)
    }
}

impl From<EdgeId> for ArcId {
    /// The edge of an edge of the control-flow graph in a graph of [`GraphBuilder::of`](crate::GraphBuilder::of). It has the same index.
    fn from(edge: EdgeId) -> Self {
        ArcId(edge.0)
    }
}

/// A value for each vertex or each edge of one graph. An index outside of the graph has the default value, and cannot be
/// given another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map<K, T> {
    values: Vec<T>,
    key: PhantomData<K>,
}

/// A value for each edge.
pub type PerEdge<T> = Map<ArcId, T>;
/// A value for each vertex.
pub type PerVertex<T> = Map<Vertex, T>;

impl<K: Key, T: Copy + Default> Map<K, T> {
    /// Creates a map of `count` default values.
    pub fn new(count: usize) -> Self {
        Map { values: vec![T::default(); count], key: PhantomData }
    }

    /// The value at an index.
    pub fn get(&self, key: K) -> T {
        self.values.get(key.index()).copied().unwrap_or_default()
    }

    /// Sets the value at an index. Nothing happens if the index is outside of the graph.
    pub fn set(&mut self, key: K, value: T) {
        if let Some(slot) = self.values.get_mut(key.index()) {
            *slot = value;
        }
    }

    /// Replaces the value at an index by a function of it, and returns the new value.
    pub fn update(&mut self, key: K, change: impl FnOnce(T) -> T) -> T {
        let value = change(self.get(key));
        self.set(key, value);
        value
    }

    /// All indices with their values, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, T)> + ExactSizeIterator {
        self.values.iter().enumerate().map(|(index, value)| (K::at(index), *value))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the map has no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}
