//! Short lists under numbered positions, one after the other in one vector: what a graph has at each of its nodes, without an allocation for each.

use crate::index::{IndexVec, Key};

/// A list of values for each of a number of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lists<T> {
    /// Index of the first value of each list, and the end of the last list.
    begin: Vec<u32>,
    values: Vec<T>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Lists { begin: vec![0], values: Vec::new() }
    }
}

impl<T: Copy> Lists<T> {
    /// Creates `count` lists of values with their positions. Values of one list stay in their order. Values for other positions are left out.
    pub fn new(count: usize, values: impl Iterator<Item = (usize, T)> + Clone) -> Self {
        let mut lists = Lists::default();
        lists.fill(count, values);
        lists
    }

    /// Replaces all lists, in the memory that they have already.
    pub fn fill(&mut self, count: usize, values: impl Iterator<Item = (usize, T)> + Clone) {
        // Number of values of each list, two positions behind its own.
        self.begin.clear();
        self.begin.resize(count + 2, 0);
        let mut first = None;
        for (position, value) in values.clone().filter(|(position, _)| *position < count) {
            self.begin[position + 2] += 1;
            first = first.or(Some(value));
        }
        let mut sum = 0;
        for begin in &mut self.begin {
            sum += *begin;
            *begin = sum;
        }
        self.values.clear();
        if let Some(first) = first {
            self.values.resize(sum as usize, first);
        }
        // Each value moves the beginning of the next list, until it is where that list begins.
        for (position, value) in values.filter(|(position, _)| *position < count) {
            let next = &mut self.begin[position + 1];
            self.values[*next as usize] = value;
            *next += 1;
        }
        self.begin.truncate(count + 1);
    }

    /// Number of lists.
    pub fn len(&self) -> usize {
        self.begin.len() - 1
    }

    /// Whether there is no list.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of a list among all values; an empty one for a position without a list.
    pub fn range(&self, position: usize) -> std::ops::Range<usize> {
        match self.begin.get(position..position.saturating_add(2)) {
            Some([begin, end]) => *begin as usize..*end as usize,
            _ => 0..0,
        }
    }

    /// The list at a position; an empty one for a position without a list.
    pub fn get(&self, position: usize) -> &[T] {
        &self.values[self.range(position)]
    }

    /// The list at a position, to be changed.
    pub fn get_mut(&mut self, position: usize) -> &mut [T] {
        let range = self.range(position);
        &mut self.values[range]
    }

    /// The values of all lists, in the order of the lists.
    pub fn values(&self) -> &[T] {
        &self.values
    }
}

/// A graph, by the nodes to which each node leads.
pub trait Successors<N> {
    /// Number of nodes.
    fn nodes(&self) -> usize;

    /// The nodes to which a node leads; none for a node that does not exist.
    fn successors(&self, node: N) -> &[N];
}

impl<N: Key> Successors<N> for IndexVec<N, Vec<N>> {
    fn nodes(&self) -> usize {
        self.len()
    }

    fn successors(&self, node: N) -> &[N] {
        self.get(node).map_or(&[], Vec::as_slice)
    }
}

impl<N: Key> Successors<N> for Lists<N> {
    fn nodes(&self) -> usize {
        self.len()
    }

    fn successors(&self, node: N) -> &[N] {
        self.get(node.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_in_their_lists_in_their_order() {
        let values = [(2, 'a'), (0, 'b'), (2, 'c'), (4, 'x'), (0, 'd'), (3, 'e')];
        let mut lists = Lists::new(4, values.into_iter());
        assert_eq!((0..5).map(|at| lists.get(at).iter().collect()).collect::<Vec<String>>(), ["bd", "", "ac", "e", ""]);
        assert_eq!((lists.len(), lists.range(2), lists.values().len()), (4, 2..4, 5));
        lists.get_mut(2)[0] = 'z';
        assert_eq!(lists.get(2), ['z', 'c']);
        lists.fill(1, [(0, 'f')].into_iter());
        assert_eq!((lists.len(), lists.get(0), lists.get(2)), (1, &['f'][..], &[][..]));
        assert!(Lists::<char>::default().is_empty() && lists.range(usize::MAX).is_empty());
    }
}
