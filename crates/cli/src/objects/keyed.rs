//! Records of values by key, of callers, and of distributions.

use std::collections::BTreeMap;
use std::fmt;

use ingraft_api::KeyValue;
use serde::Serialize;

use super::stacks::StackFrame;
use super::{Quantiles, RecordedFunction};

/// A key as what it is: the name of the variable or function to which it points, or a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum KeyText {
    /// The name of what lies at the address.
    Name(String),
    /// The number.
    Number(i64),
}

impl From<&KeyValue> for KeyText {
    fn from(key: &KeyValue) -> Self {
        key.name.clone().map_or_else(|| KeyText::Number(key.key.cast_signed()), KeyText::Name)
    }
}

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The first number that is written in hexadecimal, because it is rather an address or a set of bits.
        const LARGE: u64 = 1 << 32;
        match self {
            KeyText::Name(name) => f.write_str(name),
            KeyText::Number(number) if number.unsigned_abs() < LARGE => number.fmt(f),
            KeyText::Number(number) => write!(f, "{number:#x}"),
        }
    }
}

/// A key for people: the name of an enumerator, or the key as what it is.
pub(crate) fn key_for_people(key: &KeyValue) -> String {
    key.enumerator.clone().unwrap_or_else(|| KeyText::from(key).to_string())
}

/// The value of one key, or of all others together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyedObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Condition of the calls; left out if all are measured.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// The key by its expression; empty if there are no keys, and for the others.
    pub(crate) keys: BTreeMap<String, KeyText>,
    /// Name of the enumerator that the key is, by its expression; left out if the key is none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) names: BTreeMap<String, String>,
    /// The number of calls, or the sum.
    pub(crate) value: i64,
    /// Whether the value is that of all keys that have no record.
    pub(crate) others: bool,
    /// Number of calls, if the value is a sum of times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<i64>,
}

/// The calls of a function from one place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallerObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Condition of the calls; left out if all are measured.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// Module of the caller; null if it is not known.
    pub(crate) caller_module: Option<String>,
    /// Name of the calling function; null if it is not known, and for all callers without a record.
    pub(crate) caller: Option<String>,
    /// Offset of the call in the calling function, or in the module if the function is not known.
    pub(crate) call_site: Option<String>,
    /// Inlined functions in whose code the call is, innermost first; the last is inlined into `caller`.
    pub(crate) inlined: Vec<String>,
    /// Source line of the call as `FILE:LINE`; null if it is not known.
    pub(crate) source: Option<String>,
    /// Return address in the process; null for all callers without a record.
    pub(crate) return_address: Option<String>,
    /// Number of calls.
    pub(crate) calls: i64,
    /// Whether the number is that of all callers without a record.
    pub(crate) others: bool,
    /// The stack below the call on which most time passed, innermost call first; null without `--stacks`, and if no sample has met the call.
    pub(crate) stack: Option<Vec<StackFrame>>,
    /// Number of calls from the place to the nearest function that the command names, 1 for a direct caller; left out without
    /// `--until-roots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<u64>,
}

/// The distribution of the values of an expression at the calls of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HistObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Condition of the calls; left out if all are measured.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// The expression.
    pub(crate) expr: String,
    /// Number of the calls whose values are in the distribution.
    pub(crate) calls: u64,
    #[serde(flatten)]
    pub(crate) quantiles: Quantiles,
}
