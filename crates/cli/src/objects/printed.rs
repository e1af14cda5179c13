//! Records of printed calls.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Host;

/// A value of a printed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum CallValue {
    /// A number.
    Number(i64),
    /// A text. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// A list.
    List {
        /// Number of elements.
        length: u64,
        /// The first elements that were read; left out if they are no integers.
        #[serde(skip_serializing_if = "Option::is_none")]
        elements: Option<Vec<i64>>,
    },
    /// A variant.
    Variant {
        /// The name.
        variant: String,
        /// The data; left out if there is none, or if it is not shown.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<CallValue>>,
    },
    /// An enumerator inside of a variant.
    Enumerator {
        /// The number.
        number: i64,
        /// The name.
        name: String,
    },
    /// A value that could not be read.
    Unreadable,
}

/// Values of a call that was printed, or was slow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallValues {
    /// The values by their expressions.
    pub(crate) values: BTreeMap<String, CallValue>,
    /// The names of values that are enumerators, by their expressions; that of the result is `$return`. Left out if there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) names: BTreeMap<String, String>,
    /// Result of the call; null with `--entry`, and if the function is known to return nothing.
    #[serde(rename = "return")]
    pub(crate) result: Option<i64>,
    /// Place of the call as `FUNCTION+0xOFFSET`, or the return address if the place is not known.
    pub(crate) caller: Option<String>,
    /// Expressions whose texts go on behind what was read; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cut: Vec<String>,
}

/// Values of a call inside of a slow one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ToldObject {
    /// The values by their expressions.
    pub(crate) values: BTreeMap<String, CallValue>,
    /// The names of values that are enumerators, by their expressions; left out if there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) names: BTreeMap<String, String>,
    /// Expressions whose texts go on behind what was read; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cut: Vec<String>,
}

/// A printed call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Thread that made the call.
    pub(crate) tid: u32,
    /// Unix time at which the call ended, or with `--entry` began.
    pub(crate) time_ns: u64,
    pub(crate) module: String,
    pub(crate) function: String,
    /// Time of the call; null with `--entry`.
    pub(crate) elapsed_ns: Option<i64>,
    #[serde(flatten)]
    pub(crate) of_call: CallValues,
}

/// Numbers of calls of a measurement that prints calls.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallsObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Calls that began; the sum of the other numbers.
    pub(crate) calls: u64,
    /// Calls that were printed.
    pub(crate) printed: u64,
    /// Calls for which the condition did not hold.
    pub(crate) unmet: u64,
    /// Calls that the limit skipped.
    pub(crate) skipped: u64,
    /// Calls whose lines came faster than they were read.
    pub(crate) lost: u64,
    /// Calls that did not return, or had not returned at the end.
    pub(crate) left: u64,
    /// Functions that were called too often for `--max-overhead`, so that their calls inside of slow calls are missing, as `MODULE:FUNCTION`.
    /// Left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_out: Vec<String>,
}
