//! The calls in the records that threads have made, and the limit on their number.

use ingraft_model::records::TakenRecord;
use ingraft_model::{ColumnContent, RecordColumn, RecordField};

use crate::api::{CallNumbers, PrintedValue};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A limit on the number of calls in a second.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    /// Calls in a second; `None` for no limit.
    limit: Option<u32>,
    /// Nanoseconds for which calls are permitted. Each call takes its part of a second. There is never more than for one call, or for a tenth
    /// of a second.
    credit: u64,
    latest_ns: u64,
}

impl Limiter {
    /// A limit of so many calls in a second.
    pub fn new(limit: Option<u32>) -> Self {
        Limiter { limit, credit: SECOND, latest_ns: 0 }
    }

    /// Whether a call at this time is permitted, by a clock that is never set.
    pub fn permits(&mut self, time_ns: u64) -> bool {
        let Some(limit) = self.limit else { return true };
        let price = SECOND.checked_div(limit.into()).unwrap_or(u64::MAX).max(1);
        if self.latest_ns != 0 {
            let passed = time_ns.saturating_sub(self.latest_ns);
            self.credit = self.credit.saturating_add(passed);
        }
        self.credit = self.credit.min(price.max(SECOND / 10));
        self.latest_ns = self.latest_ns.max(time_ns);
        let permitted = self.credit >= price;
        self.credit -= if permitted { price } else { 0 };
        permitted
    }
}

/// A record with its first word apart: the time in ticks, and the values. `None` if it lacks values.
pub fn call(record: &TakenRecord, columns: &[RecordColumn]) -> Option<(u64, Vec<PrintedValue>)> {
    let (ticks, mut words) = record.words.split_first()?;
    let mut values = Vec::with_capacity(columns.len());
    for column in columns {
        let (value, rest) = value(column.content, words)?;
        values.push(value);
        words = rest;
    }
    Some((*ticks, values))
}

/// The value at the beginning of these words, and the words behind it. A caller has no place yet.
fn value(content: ColumnContent, words: &[u64]) -> Option<(PrintedValue, &[u64])> {
    match content {
        ColumnContent::Number | ColumnContent::Return | ColumnContent::Elapsed => {
            let (number, rest) = words.split_first()?;
            Some((PrintedValue::Number(number.cast_signed()), rest))
        }
        ColumnContent::Caller => {
            let (address, rest) = words.split_first()?;
            Some((PrintedValue::Caller(*address, None), rest))
        }
        ColumnContent::Text => {
            let (bytes, rest) = text(words)?;
            let end = bytes.iter().position(|byte| *byte == 0);
            let cut = end.is_none() && bytes.len() == RecordField::TEXT_BYTES as usize;
            Some((shown(&bytes, end.unwrap_or(bytes.len()), cut), rest))
        }
        ColumnContent::BoundedText => {
            let (bytes, rest) = text(words)?;
            let (length, rest) = rest.split_first()?;
            let length = usize::try_from(length.cast_signed()).unwrap_or(0);
            if length == 0 {
                return Some((PrintedValue::Text { bytes: Vec::new(), cut: false }, rest));
            }
            Some((shown(&bytes, length.min(bytes.len()), length > bytes.len()), rest))
        }
    }
}

fn text(words: &[u64]) -> Option<(Vec<u8>, &[u64])> {
    let (read, words) = words.split_first()?;
    let (text, rest) = words.split_at_checked(RecordField::TEXT_BYTES as usize / 8)?;
    let mut bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(*read).unwrap_or(0));
    Some((bytes, rest))
}

fn shown(read: &[u8], length: usize, cut: bool) -> PrintedValue {
    match read.get(..length) {
        Some(bytes) if !read.is_empty() => PrintedValue::Text { bytes: bytes.to_vec(), cut },
        _ => PrintedValue::Unreadable,
    }
}

/// Numbers from the counters of threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Calls that began.
    pub calls: u64,
    /// Calls that came to the statement that prints, or to its condition.
    pub passed: u64,
    /// Calls that met the condition and the threads' part of the limit.
    pub made: u64,
    /// Calls that met the condition, but not the threads' part of the limit.
    pub skipped: u64,
    /// Calls whose record had no room.
    pub lost: u64,
    /// Calls that could not be followed to their end: their thread had no room for an activation record, or no shard.
    pub unfollowed: u64,
    /// Calls whose records were taken and are printed.
    pub printed: u64,
    /// Calls whose records were taken, but not printed because of the limit.
    pub limited: u64,
}

impl Counted {
    /// Numbers of calls. At the end, records that were made and not taken are lost, whatever the reason; before, they may still come.
    pub fn counts(self, at_end: bool) -> CallNumbers {
        let Counted { calls, passed, made, skipped, lost, unfollowed, printed, limited } = self;
        let left = calls.saturating_sub(passed);
        let unfollowed = unfollowed.min(left);
        let taken = printed.saturating_add(limited);
        CallNumbers {
            calls,
            printed,
            unmet: passed.saturating_sub(made.saturating_add(skipped)),
            skipped: skipped.saturating_add(limited),
            lost: unfollowed + if at_end { made.saturating_sub(taken) } else { lost },
            left: left - unfollowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_in_every_second() {
        let mut limiter = Limiter::new(Some(100));
        let start = 5_000 * SECOND;
        let permitted: Vec<u64> =
            (0..10_000).map(|n| start + n * SECOND / 1000).filter(|t| limiter.permits(*t)).collect();
        let later: Vec<u64> = permitted.iter().map(|t| (t - start) / SECOND).collect();
        // The first calls may come at once.
        assert!((99..=110).contains(&later.iter().filter(|s| **s == 0).count()));
        assert!((1..10).all(|second| (99..=101).contains(&later.iter().filter(|s| **s == second).count())));
        let mut slow = Limiter::new(Some(1));
        let permitted: Vec<u64> = (0..40).filter(|n| slow.permits(start + n * SECOND / 10)).collect();
        assert_eq!(permitted, [0, 10, 20, 30]);
        let mut none = Limiter::new(None);
        assert!((0..1_000_000).all(|_| none.permits(start)));
    }

    fn column(content: ColumnContent) -> RecordColumn {
        RecordColumn { name: String::new(), content }
    }

    fn words(text: &[u8], read: u64) -> Vec<u64> {
        let mut bytes = text.to_vec();
        bytes.resize(64, 0);
        std::iter::once(read).chain(bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight")))).collect()
    }

    fn one(content: ColumnContent, words: Vec<u64>) -> Option<PrintedValue> {
        let record = TakenRecord { number: 0, words: std::iter::once(9).chain(words).collect() };
        call(&record, &[column(content)]).map(|(ticks, values)| {
            assert_eq!(ticks, 9);
            values.into_iter().next().expect("one")
        })
    }

    fn shown(bytes: &[u8], cut: bool) -> Option<PrintedValue> {
        Some(PrintedValue::Text { bytes: bytes.to_vec(), cut })
    }

    #[test]
    fn texts_end_where_they_do() {
        let long = [b'x'; 64];
        assert_eq!(one(ColumnContent::Text, words(b"GET\0rest", 64)), shown(b"GET", false));
        assert_eq!(one(ColumnContent::Text, words(b"\0", 64)), shown(b"", false));
        assert_eq!(one(ColumnContent::Text, words(&long, 64)), shown(&long, true));
        assert_eq!(one(ColumnContent::Text, words(b"abc", 3)), shown(b"abc", false), "memory ends there");
        assert_eq!(one(ColumnContent::Text, words(b"", 0)), Some(PrintedValue::Unreadable));
        let bounded = |text: &[u8], read, length: i64| {
            let words = [words(text, read), vec![length.cast_unsigned()]].concat();
            one(ColumnContent::BoundedText, words)
        };
        assert_eq!(bounded(b"ab\0cd", 64, 5), shown(b"ab\0cd", false));
        assert_eq!(bounded(&long, 64, 65), shown(&long, true));
        assert_eq!(bounded(b"", 0, 5), Some(PrintedValue::Unreadable));
        assert_eq!(bounded(b"", 0, 0), shown(b"", false));
        assert_eq!(bounded(b"abc", 64, -1), shown(b"", false));
    }

    #[test]
    fn a_record_without_its_values_is_none() {
        assert_eq!(one(ColumnContent::Number, vec![7]), Some(PrintedValue::Number(7)));
        assert_eq!(one(ColumnContent::Caller, vec![7]), Some(PrintedValue::Caller(7, None)));
        assert_eq!(one(ColumnContent::Number, vec![]), None);
        assert_eq!(one(ColumnContent::Text, vec![3, 4]), None);
        assert!(call(&TakenRecord { number: 0, words: vec![] }, &[]).is_none());
    }

    #[test]
    fn the_numbers_add_up() {
        let counted = Counted {
            calls: 1000,
            passed: 990,
            made: 500,
            skipped: 90,
            lost: 20,
            unfollowed: 4,
            printed: 400,
            limited: 75,
        };
        let CallNumbers { calls, printed, unmet, skipped, lost, left } = counted.counts(true);
        assert_eq!((printed, unmet, skipped, lost, left), (400, 400, 165, 29, 6));
        assert_eq!(printed + unmet + skipped + lost + left, calls);
        assert_eq!(counted.counts(false).lost, 24);
    }
}
