//! Division of large answers into parts.

use prost::Message;

use crate::PART_BYTES;

/// Splits a sequence of messages into lists whose encoding is at most [`PART_BYTES`]. A larger message gets a list of its own.
pub struct MessageParts<I: Iterator> {
    items: std::iter::Peekable<I>,
    limit: usize,
}

impl<T: Message, I: Iterator<Item = T>> MessageParts<I> {
    /// Splits `items` by the default limit.
    pub fn new(items: impl IntoIterator<Item = T, IntoIter = I>) -> Self {
        MessageParts::with_limit(items, PART_BYTES)
    }

    /// Splits `items` by another limit in bytes.
    pub(crate) fn with_limit(items: impl IntoIterator<Item = T, IntoIter = I>, limit: usize) -> Self {
        MessageParts { items: items.into_iter().peekable(), limit }
    }
}

impl<T: Message, I: Iterator<Item = T>> Iterator for MessageParts<I> {
    type Item = Vec<T>;

    fn next(&mut self) -> Option<Vec<T>> {
        let first = self.items.next()?;
        let mut used = in_list(&first);
        let mut part = vec![first];
        while let Some(item) = self.items.peek() {
            used += in_list(item);
            if used > self.limit {
                break;
            }
            part.extend(self.items.next());
        }
        Some(part)
    }
}

/// Size in bytes of a message as an element of a repeated field: the message, its length and a key of at most two bytes.
pub(crate) fn in_list(message: &impl Message) -> usize {
    let len = message.encoded_len();
    len + prost::length_delimiter_len(len) + 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::v1;

    fn progress(len: usize) -> v1::Progress {
        v1::Progress { text: "x".repeat(len), ..Default::default() }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_is_too_large(sizes in proptest::collection::vec(0_usize..60, 0..80)) {
            let items: Vec<_> = sizes.iter().map(|s| progress(*s)).collect();
            let parts: Vec<_> = MessageParts::with_limit(items.clone(), 100).collect();
            prop_assert_eq!(parts.concat(), items);
            for part in parts {
                prop_assert!(!part.is_empty());
                prop_assert!(part.iter().map(in_list).sum::<usize>() <= 100);
            }
        }
    }

    #[test]
    fn one_that_is_too_large_stands_alone() {
        let parts: Vec<_> = MessageParts::with_limit([progress(10), progress(500), progress(10)], 100).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    }
}
