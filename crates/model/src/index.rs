//! Indices with a type of their own, and lists that take only theirs: an index of one list cannot be used in another by mistake, and a
//! look-up that may miss says so.

use std::marker::PhantomData;

/// An index of one kind of things.
pub trait Key: Copy {
    /// The index with a number.
    fn new(number: u32) -> Self;

    /// This index as a number.
    fn number(self) -> u32;

    /// This index as a position in a list.
    fn index(self) -> usize {
        self.number() as usize
    }

    /// The index of a position in a list. A position above `u32::MAX` gives `u32::MAX`.
    fn at(position: usize) -> Self {
        Self::new(u32::try_from(position).unwrap_or(u32::MAX))
    }
}

/// Implements [`Key`] and `Display` for types of indices that wrap a `u32`.
#[macro_export]
macro_rules! index_keys {
    ($($key:ident),+) => {$(
        impl $crate::Key for $key {
            fn new(number: u32) -> Self {
                $key(number)
            }

            fn number(self) -> u32 {
                self.0
            }
        }

        impl ::std::fmt::Display for $key {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

/// Number of a module of a program. Only the engine knows the assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// A function of a program. Aliases of one address have equal ids, so that code is never inserted twice into the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Module of the function.
    pub module: ModuleId,
    /// Number of the function in the module.
    pub function: u32,
}

/// A basic block of a function, by its position in [`Cfg::blocks`](crate::Cfg::blocks) and in
/// [`FunctionBody::blocks`](crate::FunctionBody::blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// An edge of a function, by its position in [`Cfg::edges`](crate::Cfg::edges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub u32);

index_keys!(BlockId, EdgeId);

/// A list whose elements have indices of their own type. A look-up by an index outside of the list finds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexVec<K, T> {
    values: Vec<T>,
    key: PhantomData<K>,
}

impl<K: Key, T> IndexVec<K, T> {
    /// Creates a list of `count` equal elements.
    pub fn filled(value: T, count: usize) -> Self
    where
        T: Clone,
    {
        vec![value; count].into()
    }

    /// Makes it a list of `count` equal elements, in the memory that it has already.
    pub fn refill(&mut self, value: T, count: usize)
    where
        T: Clone,
    {
        self.values.clear();
        self.values.resize(count, value);
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the list has no elements.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The element at an index; `None` outside of the list.
    pub fn get(&self, key: K) -> Option<&T> {
        self.values.get(key.index())
    }

    /// The element at an index, to be changed; `None` outside of the list.
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.values.get_mut(key.index())
    }

    /// Sets the element at an index. Nothing happens outside of the list.
    pub fn set(&mut self, key: K, value: T) {
        if let Some(slot) = self.get_mut(key) {
            *slot = value;
        }
    }

    /// Adds an element. Returns its index.
    pub fn push(&mut self, value: T) -> K {
        self.values.push(value);
        K::at(self.values.len() - 1)
    }

    /// The indices, in ascending order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, T> {
        (0..self.values.len()).map(K::at)
    }

    /// The elements.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// The elements, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    /// The elements with their indices, in ascending order.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (K, &T)> + ExactSizeIterator {
        self.values.iter().enumerate().map(|(position, value)| (K::at(position), value))
    }

    /// The elements as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.values
    }

    /// Index of the first element for which `is_in` fails, in a list that begins with the elements for which it holds; the index after the
    /// last one if it holds for all.
    pub fn partition_point(&self, is_in: impl FnMut(&T) -> bool) -> K {
        K::at(self.values.partition_point(is_in))
    }

    /// Index of the element with a value of `by`, in a list that is sorted by it.
    pub fn find_sorted<B: Ord>(&self, value: &B, by: impl FnMut(&T) -> B) -> Option<K> {
        self.values.binary_search_by_key(value, by).ok().map(K::at)
    }
}

impl<K, T> Default for IndexVec<K, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<K, T> From<Vec<T>> for IndexVec<K, T> {
    fn from(values: Vec<T>) -> Self {
        IndexVec { values, key: PhantomData }
    }
}

impl<K, T> FromIterator<T> for IndexVec<K, T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        values.into_iter().collect::<Vec<T>>().into()
    }
}

impl<K, T> IntoIterator for IndexVec<K, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl<'a, K, T> IntoIterator for &'a IndexVec<K, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

impl<'a, K, T> IntoIterator for &'a mut IndexVec<K, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_outside_of_a_list_finds_nothing() {
        let mut list: IndexVec<BlockId, char> = "abc".chars().collect();
        assert_eq!(list.get(BlockId(2)), Some(&'c'));
        assert_eq!(list.get(BlockId(3)), None);
        assert_eq!(list.get_mut(BlockId(u32::MAX)), None);
        list.set(BlockId(3), 'd');
        assert_eq!(list.as_slice(), ['a', 'b', 'c']);
        assert_eq!(list.push('e'), BlockId(3));
        assert_eq!(list.find_sorted(&'e', |letter| *letter), Some(BlockId(3)));
        assert_eq!(list.partition_point(|letter| *letter < 'c'), BlockId(2));
        assert_eq!(list.keys().collect::<Vec<_>>(), [0, 1, 2, 3].map(BlockId));
        assert_eq!(EdgeId::at(usize::MAX), EdgeId(u32::MAX));
    }
}
