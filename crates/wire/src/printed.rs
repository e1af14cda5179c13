//! Printed calls. They are split into messages, and put together again.

use ingraft_api::{
    CallNumbers, CallTree, InnerCall, PrintedCall, PrintedCalls, PrintedColumn, PrintedSite, PrintedValue,
};
use ingraft_model::ColumnContent;
use v1::printed_value::Value as Wire;

use crate::MessageParts;
use crate::field::{FieldError, WireField, read};
use crate::v1;

enums! {
    ColumnContent { Number, Text, BoundedText, Caller, Return, Elapsed, List, Variant }
}

messages! {
    CallNumbers => CallNumbers { calls, printed, unmet, skipped, lost, left }
    PrintedColumn => PrintedColumn { name, content }
    PrintedSite => PrintedSite { function, columns, left_out }
    PrintedCall => PrintedCall { tid, time_ns, values, site, tree }
    CallTree => CallTree { elapsed_ns, self_ns, lost, goroutine, calls }
    InnerCall => InnerCall { site, depth, at_ns, elapsed_ns, self_ns, values }
}

nested! {
    PrintedValue => PrintedValue
}

impl From<PrintedValue> for v1::PrintedValue {
    fn from(value: PrintedValue) -> Self {
        let value = match value {
            PrintedValue::Number(number) => Wire::Number(number),
            PrintedValue::Text { bytes, cut } => Wire::Text(v1::PrintedText { bytes, cut }),
            PrintedValue::Unreadable => Wire::Unreadable(true),
            PrintedValue::Caller(address, place) => {
                Wire::Caller(v1::PrintedCaller { address, place: place.map(|place| (*place).into()) })
            }
            PrintedValue::Enumerator(number, name) => Wire::Enumerator(v1::PrintedEnumerator { number, name }),
            PrintedValue::List(length, elements) => Wire::List(v1::PrintedList { length, elements }),
            PrintedValue::Variant { name, value, hidden } => {
                let value = value.map(|value| Box::new((*value).into()));
                Wire::Variant(Box::new(v1::PrintedVariant { name, value, hidden }))
            }
        };
        v1::PrintedValue { value: Some(value) }
    }
}

impl TryFrom<v1::PrintedValue> for PrintedValue {
    type Error = FieldError;

    fn try_from(value: v1::PrintedValue) -> Result<Self, FieldError> {
        Ok(match value.value.ok_or_else(|| FieldError::missing("value"))? {
            Wire::Number(number) => PrintedValue::Number(number),
            Wire::Text(v1::PrintedText { bytes, cut }) => PrintedValue::Text { bytes, cut },
            Wire::Unreadable(_) => PrintedValue::Unreadable,
            Wire::Caller(v1::PrintedCaller { address, place }) => PrintedValue::Caller(address, read("place", place)?),
            Wire::Enumerator(v1::PrintedEnumerator { number, name }) => PrintedValue::Enumerator(number, name),
            Wire::List(v1::PrintedList { length, elements }) => PrintedValue::List(length, elements),
            Wire::Variant(variant) => {
                let v1::PrintedVariant { name, value, hidden } = *variant;
                let value = value.map(|value| (*value).try_into().map(Box::new)).transpose();
                PrintedValue::Variant { name, value: value.map_err(|e: FieldError| e.inside("value"))?, hidden }
            }
        })
    }
}

/// Splits printed calls into messages.
pub fn messages(printed: PrintedCalls) -> impl Iterator<Item = v1::PrintedCalls> + Send {
    let PrintedCalls { sites, calls, counts } = printed;
    let first = v1::PrintedCalls { sites: sites.to_wire(), calls: Vec::new(), counts: Some(counts.into()) };
    let parts = MessageParts::new(calls.into_iter().map(v1::PrintedCall::from));
    std::iter::once(first).chain(parts.map(|calls| v1::PrintedCalls { calls, ..v1::PrintedCalls::default() }))
}

/// Adds a part to printed calls.
pub fn add(printed: &mut PrintedCalls, part: v1::PrintedCalls) -> Result<(), FieldError> {
    let v1::PrintedCalls { sites, calls, counts } = part;
    printed.sites.extend(read::<Vec<PrintedSite>, _>("sites", sites)?);
    printed.calls.extend(read::<Vec<PrintedCall>, _>("calls", calls)?);
    if let Some(counts) = counts {
        printed.counts = counts.try_into().map_err(|e: FieldError| e.inside("counts"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for PrintedValue {
        fn any(s: &mut Source<'_>) -> Self {
            match s.one_of(&[0, 1, 2, 3, 4, 5, 6]) {
                0 => PrintedValue::Number(s.next()),
                1 => PrintedValue::Text { bytes: s.next(), cut: s.next() },
                2 => PrintedValue::Unreadable,
                3 => PrintedValue::Enumerator(s.next(), s.next()),
                4 => PrintedValue::List(s.next(), s.next()),
                5 => {
                    let value = PrintedValue::List(s.next(), s.next());
                    PrintedValue::Variant { name: s.next(), value: Some(Box::new(value)), hidden: s.next() }
                }
                _ => PrintedValue::Caller(s.next(), s.next()),
            }
        }
    }

    impl Any for PrintedCalls {
        fn any(s: &mut Source<'_>) -> Self {
            PrintedCalls { sites: s.next(), calls: s.next(), counts: s.next() }
        }
    }

    #[test]
    fn printed_calls_come_back() {
        comes_back(|printed: PrintedCalls| {
            let mut back = PrintedCalls::default();
            messages(printed).try_for_each(|part| add(&mut back, part)).map_err(|e| e.to_string())?;
            Ok(back)
        });
    }
}
