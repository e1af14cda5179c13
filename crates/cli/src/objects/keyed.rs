//! Records of values by key, of callers, and of distributions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ingraft_api::{KeyValue, NamedPart};
use ingraft_model::KeyPart;
use serde::{Serialize, Serializer};

use super::stacks::StackFrame;
use super::{Quantiles, RecordedFunction};

/// A key, or a part of one, as what it is: the name of the variable or function to which it points, a number, or a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyText {
    /// The name of what lies at the address.
    Name(String),
    /// The number.
    Number(i64),
    /// The number of an enumerator, and its name.
    Enumerator(i64, String),
    /// The bytes of a text, and whether there may be more.
    Text(Arc<[u8]>, bool),
    /// A text that could not be read.
    Unreadable,
}

/// A name, a number, a text whose bytes that are no UTF-8 are replaced, or null.
impl Serialize for KeyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            KeyText::Name(name) => serializer.serialize_str(name),
            KeyText::Number(number) | KeyText::Enumerator(number, _) => serializer.serialize_i64(*number),
            KeyText::Text(bytes, _) => serializer.serialize_str(&String::from_utf8_lossy(bytes)),
            KeyText::Unreadable => serializer.serialize_none(),
        }
    }
}

impl KeyText {
    /// The parts of a key.
    pub(crate) fn parts(key: &KeyValue) -> Vec<KeyText> {
        if key.parts.is_empty() {
            return vec![KeyText::number(key.key, key.name.as_deref(), key.enumerator.as_deref())];
        }
        let part = |NamedPart { part, name, enumerator, .. }: &NamedPart| match part {
            KeyPart::Number(number) => KeyText::number(*number, name.as_deref(), enumerator.as_deref()),
            KeyPart::Text { bytes, cut } => KeyText::Text(Arc::clone(bytes), *cut),
            KeyPart::Unreadable => KeyText::Unreadable,
        };
        key.parts.iter().map(part).collect()
    }

    fn number(number: u64, name: Option<&str>, enumerator: Option<&str>) -> Self {
        match (name, enumerator) {
            (Some(name), _) => KeyText::Name(name.to_owned()),
            (None, Some(enumerator)) => KeyText::Enumerator(number.cast_signed(), enumerator.to_owned()),
            (None, None) => KeyText::Number(number.cast_signed()),
        }
    }

    /// Name of the enumerator that the key is.
    pub(crate) fn enumerator(&self) -> Option<&str> {
        if let KeyText::Enumerator(_, name) = self { Some(name) } else { None }
    }

    /// Whether the key is a text that is not whole.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self, KeyText::Text(_, true))
    }
}

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The first number that is written in hexadecimal, because it is rather an address or a set of bits.
        const LARGE: u64 = 1 << 32;
        match self {
            KeyText::Name(name) | KeyText::Enumerator(_, name) => f.write_str(name),
            KeyText::Number(number) if number.unsigned_abs() < LARGE => number.fmt(f),
            KeyText::Number(number) => write!(f, "{number:#x}"),
            KeyText::Text(bytes, cut) => {
                let more = if *cut { "…" } else { "" };
                write!(f, "\"{}\"{more}", String::from_utf8_lossy(bytes).escape_debug())
            }
            KeyText::Unreadable => f.write_str("unreadable"),
        }
    }
}

/// The value of one key, or of all others together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyedObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Condition of the calls; left out if all are measured.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// The parts of the key by their expressions; empty if there are no keys, and for the others.
    pub(crate) keys: BTreeMap<String, KeyText>,
    /// Names of the enumerators that parts of the key are, by their expressions; left out if no part is one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) names: BTreeMap<String, String>,
    /// Expressions whose texts go on behind the bytes that were read; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cut: Vec<String>,
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
