//! The calls in the records that threads have made, and the limit on their number.

use ingraft_model::records::TakenRecord;
use ingraft_model::{RecordColumn, RecordContent, RecordField, RecordVariant, Scalar};

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
        let (value, rest) = value(&column.content, words)?;
        values.push(value.unwrap_or(PrintedValue::Unreadable));
        words = rest;
    }
    Some((*ticks, values))
}

/// The value at the beginning of these words, and the words behind it. The value is `None` if it is not shown. A caller has no place yet.
fn value<'w>(content: &RecordContent, words: &'w [u64]) -> Option<(Option<PrintedValue>, &'w [u64])> {
    let (value, rest) = match content {
        RecordContent::Number(names) | RecordContent::Return(names) => {
            let (word, rest) = words.split_first()?;
            let number = word.cast_signed();
            let name = names.name(*word);
            let named = |name: &str| PrintedValue::Enumerator(number, name.to_owned());
            (name.map_or(PrintedValue::Number(number), named), rest)
        }
        RecordContent::Elapsed => {
            let (number, rest) = words.split_first()?;
            (PrintedValue::Number(number.cast_signed()), rest)
        }
        RecordContent::Caller => {
            let (address, rest) = words.split_first()?;
            (PrintedValue::Caller(*address, None), rest)
        }
        RecordContent::Text => {
            let (bytes, rest) = text(words)?;
            let end = bytes.iter().position(|byte| *byte == 0);
            let cut = end.is_none() && bytes.len() == RecordField::TEXT_BYTES as usize;
            (shown(&bytes, end.unwrap_or(bytes.len()), cut), rest)
        }
        RecordContent::BoundedText => {
            let (bytes, rest) = text(words)?;
            let (length, rest) = rest.split_first()?;
            let length = usize::try_from(length.cast_signed()).unwrap_or(0);
            let value = match length {
                0 => PrintedValue::Text { bytes: Vec::new(), cut: false },
                _ => shown(&bytes, length.min(bytes.len()), length > bytes.len()),
            };
            (value, rest)
        }
        RecordContent::List(None) => {
            let (length, rest) = words.split_first()?;
            (PrintedValue::List(*length, Vec::new()), rest)
        }
        RecordContent::List(Some(scalar)) => {
            let (bytes, rest) = text(words)?;
            let (length, rest) = rest.split_first()?;
            (list(&bytes, *length, *scalar), rest)
        }
        RecordContent::Variants(has_selector, variants) => return variant(*has_selector, variants, words),
        RecordContent::NoReturn => return words.split_first().map(|(_, rest)| (None, rest)),
        RecordContent::Hidden => return Some((None, words)),
    };
    Some((Some(value), rest))
}

/// The first elements of a list of integers.
fn list(read: &[u8], length: u64, scalar: Scalar) -> PrintedValue {
    let elements = read.chunks_exact(scalar.width.bytes() as usize).map(|bytes| {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        scalar.extend(u64::from_le_bytes(word))
    });
    let elements: Vec<i64> = elements.take(usize::try_from(length).unwrap_or(usize::MAX)).collect();
    if elements.is_empty() && length > 0 { PrintedValue::Unreadable } else { PrintedValue::List(length, elements) }
}

/// The variant that the first of these words tells, and the words behind the data of all variants.
fn variant<'w>(
    has_selector: bool,
    variants: &[RecordVariant],
    words: &'w [u64],
) -> Option<(Option<PrintedValue>, &'w [u64])> {
    let (selector, mut words) = match has_selector {
        true => words.split_first().map(|(first, rest)| (Some(first.cast_signed()), rest))?,
        false => (None, words),
    };
    let exact = variants.iter().any(|variant| variant.value.is_some() && variant.value == selector);
    let mut found = None;
    for RecordVariant { value: tells, name, data } in variants {
        let data = match data {
            Some(content) => {
                let (data, rest) = value(content, words)?;
                words = rest;
                Some(data)
            }
            None => None,
        };
        if if exact { *tells == selector } else { tells.is_none() } {
            let hidden = matches!(data, Some(None));
            let value = data.flatten().map(Box::new);
            found = Some(PrintedValue::Variant { name: name.clone(), value, hidden });
        }
    }
    // a value of no variant: another thread has changed it meanwhile, or it was not readable
    Some((Some(found.unwrap_or(PrintedValue::Unreadable)), words))
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
    use ingraft_model::{Enumerators, IntegerWidth, ValueNames};

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

    fn column(content: RecordContent) -> RecordColumn {
        RecordColumn { name: String::new(), content }
    }

    fn words(text: &[u8], read: u64) -> Vec<u64> {
        let mut bytes = text.to_vec();
        bytes.resize(64, 0);
        std::iter::once(read).chain(bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight")))).collect()
    }

    fn one(content: RecordContent, words: Vec<u64>) -> Option<PrintedValue> {
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
        assert_eq!(one(RecordContent::Text, words(b"GET\0rest", 64)), shown(b"GET", false));
        assert_eq!(one(RecordContent::Text, words(b"\0", 64)), shown(b"", false));
        assert_eq!(one(RecordContent::Text, words(&long, 64)), shown(&long, true));
        assert_eq!(one(RecordContent::Text, words(b"abc", 3)), shown(b"abc", false), "memory ends there");
        assert_eq!(one(RecordContent::Text, words(b"", 0)), Some(PrintedValue::Unreadable));
        let bounded = |text: &[u8], read, length: i64| {
            let words = [words(text, read), vec![length.cast_unsigned()]].concat();
            one(RecordContent::BoundedText, words)
        };
        assert_eq!(bounded(b"ab\0cd", 64, 5), shown(b"ab\0cd", false));
        assert_eq!(bounded(&long, 64, 65), shown(&long, true));
        assert_eq!(bounded(b"", 0, 5), Some(PrintedValue::Unreadable));
        assert_eq!(bounded(b"", 0, 0), shown(b"", false));
        assert_eq!(bounded(b"abc", 64, -1), shown(b"", false));
    }

    #[test]
    fn enumerators_have_names() {
        let names = Enumerators::new(Scalar::INT, [(0, "IDLE".to_owned()), (u64::MAX, "FAILED".to_owned())]);
        let names = ValueNames::from(names);
        let named = |number, name: &str| Some(PrintedValue::Enumerator(number, name.to_owned()));
        assert_eq!(one(RecordContent::Number(names.clone()), vec![0]), named(0, "IDLE"));
        assert_eq!(one(RecordContent::Number(names.clone()), vec![17]), Some(PrintedValue::Number(17)));
        assert_eq!(one(RecordContent::Return(names), vec![0xffff_ffff]), named(0xffff_ffff, "FAILED"));
    }

    #[test]
    fn lists_have_as_many_elements_as_were_read() {
        let list = |scalar, bytes: &[u8], read, length| {
            one(RecordContent::List(Some(scalar)), [words(bytes, read), vec![length]].concat())
        };
        let short = Scalar { width: IntegerWidth::Two, signed: true };
        let of = |length, elements: &[i64]| Some(PrintedValue::List(length, elements.to_vec()));
        assert_eq!(list(short, &[1, 0, 0xff, 0xff, 7, 0], 64, 3), of(3, &[1, -1, 7]));
        assert_eq!(list(short, &[1, 0, 2, 0, 9], 5, 100), of(100, &[1, 2]), "memory ends there");
        assert_eq!(list(Scalar::POINTER, &[3], 64, u64::MAX), of(u64::MAX, &[3, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(list(short, &[], 0, 0), of(0, &[]));
        assert_eq!(list(short, &[], 0, 2), Some(PrintedValue::Unreadable));
        assert_eq!(one(RecordContent::List(None), vec![12]), of(12, &[]));
    }

    #[test]
    fn variants_are_told_by_their_number_or_by_that_of_no_other() {
        let variant = |value, name: &str, data| RecordVariant { value, name: name.to_owned(), data };
        let told = |name: &str, value: Option<PrintedValue>| {
            Some(PrintedValue::Variant { name: name.to_owned(), value: value.map(Box::new), hidden: false })
        };
        let text = || [words(b"abc", 64), vec![2]].concat();
        let niche = RecordContent::Variants(
            true,
            vec![variant(Some(i64::MIN), "None", None), variant(None, "Some", Some(RecordContent::BoundedText))],
        );
        let bounded = shown(b"ab", false);
        assert_eq!(one(niche.clone(), [vec![1 << 63], text()].concat()), told("None", None));
        assert_eq!(one(niche.clone(), [vec![24], text()].concat()), told("Some", bounded.clone()));
        assert_eq!(one(niche, vec![24]), None);
        let tagged = RecordContent::Variants(
            true,
            vec![
                variant(Some(0), "Number", Some(RecordContent::Number(ValueNames::None))),
                variant(Some(1), "Text", Some(RecordContent::BoundedText)),
                variant(Some(2), "More", Some(RecordContent::Hidden)),
            ],
        );
        let words = |tag: u64| [vec![tag, 5], text()].concat();
        assert_eq!(one(tagged.clone(), words(0)), told("Number", Some(PrintedValue::Number(5))));
        assert_eq!(one(tagged.clone(), words(1)), told("Text", bounded));
        let hidden = PrintedValue::Variant { name: "More".to_owned(), value: None, hidden: true };
        assert_eq!(one(tagged.clone(), words(2)), Some(hidden));
        assert_eq!(one(tagged, words(3)), Some(PrintedValue::Unreadable));
        let only =
            RecordContent::Variants(false, vec![variant(None, "Only", Some(RecordContent::Number(ValueNames::None)))]);
        assert_eq!(one(only, vec![3]), told("Only", Some(PrintedValue::Number(3))));
    }

    #[test]
    fn a_record_without_its_values_is_none() {
        assert_eq!(one(RecordContent::Number(ValueNames::None), vec![7]), Some(PrintedValue::Number(7)));
        assert_eq!(one(RecordContent::Caller, vec![7]), Some(PrintedValue::Caller(7, None)));
        assert_eq!(one(RecordContent::Number(ValueNames::None), vec![]), None);
        assert_eq!(one(RecordContent::List(Some(Scalar::INT)), vec![3, 4]), None);
        assert_eq!(one(RecordContent::Variants(true, Vec::new()), vec![]), None);
        assert_eq!(one(RecordContent::Text, vec![3, 4]), None);
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
