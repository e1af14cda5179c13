//! Fields of messages: their conversion in both directions, and macros that convert messages field by field. Received values are checked, and
//! an error names the wrong field.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{MeasurementId, Reason};
use ingraft_model::{
    Aggregate, Avma, EdgeKind, Flavor, Focus, How, Offset, Pid, PointKind, Style, Svma, Tid, UnitsType, WayInReason,
};

use crate::failure::ProtocolFailure;
use crate::v1;

/// Error about a field of a message: it is missing, or its value is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct FieldError {
    /// Path of the field from the request down, e.g. `measure.pairs[3].focus`.
    pub path: String,
    /// Description of the error in one line.
    pub why: String,
    /// Whether the value may be one of a later version.
    later: bool,
}

impl FieldError {
    /// An error of the field at `path`.
    pub fn new(path: impl Into<String>, why: impl fmt::Display) -> Self {
        FieldError { path: path.into(), why: why.to_string(), later: false }
    }

    /// An error about a required field that is not set.
    pub fn missing(path: impl Into<String>) -> Self {
        FieldError::new(path, "is missing")
    }

    /// An error about a value that only a later version can know.
    pub(crate) fn later(value: impl fmt::Display) -> Self {
        let why = format!("the value {value} is not known to this version");
        FieldError { later: true, ..FieldError::new("", why) }
    }

    /// Returns the error with the path from an outer message, whose field `outer` holds the message of this error.
    #[must_use]
    pub fn inside(mut self, outer: impl fmt::Display) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{outer}{dot}{}", self.path);
        self
    }
}

impl From<FieldError> for ProtocolFailure {
    fn from(error: FieldError) -> Self {
        let hint = format!("correct the field `{}` of the request", error.path);
        ProtocolFailure::new(Reason::InvalidField, error.to_string(), hint)
    }
}

/// A value and its form in a field of a message.
pub(crate) trait WireField<W>: Sized {
    /// Converts the value to the form of the field.
    fn to_wire(self) -> W;
    /// Reads the field.
    fn from_wire(wire: W) -> Result<Self, FieldError>;
}

/// Reads a field; an error has its name.
pub(crate) fn read<T: WireField<W>, W>(name: &str, wire: W) -> Result<T, FieldError> {
    T::from_wire(wire).map_err(|e| e.inside(name))
}

/// Reads the messages of a list. Those that only a later version knows are left out.
pub fn known<T: TryFrom<W, Error = FieldError>, W>(messages: Vec<W>) -> Result<Vec<T>, FieldError> {
    let read = messages.into_iter().map(T::try_from);
    read.filter(|read| !read.as_ref().is_err_and(|e| e.later)).collect()
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl WireField<$t> for $t {
            fn to_wire(self) -> $t {
                self
            }
            fn from_wire(wire: $t) -> Result<Self, FieldError> {
                Ok(wire)
            }
        }
    )*};
}
plain!(bool, i32, i64, u32, u64, f64, String, Vec<u8>);

macro_rules! numbers {
    ($($t:ident: $number:ty),*) => {$(
        impl WireField<$number> for $t {
            fn to_wire(self) -> $number {
                self.0
            }
            fn from_wire(wire: $number) -> Result<Self, FieldError> {
                Ok($t(wire))
            }
        }
    )*};
}
numbers!(Svma: u64, Avma: u64, Offset: i64, Pid: i32, Tid: i32, MeasurementId: u64);

/// Nanoseconds, at most the largest number of 64 bits, 584 years.
impl WireField<u64> for Duration {
    fn to_wire(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_wire(ns: u64) -> Result<Self, FieldError> {
        Ok(Duration::from_nanos(ns))
    }
}

/// A number of things, at most the largest number of 32 bits.
impl WireField<u32> for usize {
    fn to_wire(self) -> u32 {
        u32::try_from(self).unwrap_or(u32::MAX)
    }

    fn from_wire(wire: u32) -> Result<Self, FieldError> {
        Ok(usize::try_from(wire).unwrap_or(usize::MAX))
    }
}

impl WireField<String> for Arc<str> {
    fn to_wire(self) -> String {
        self.as_ref().to_owned()
    }

    fn from_wire(wire: String) -> Result<Self, FieldError> {
        Ok(wire.into())
    }
}

/// The empty text stands for no text.
impl WireField<String> for Option<String> {
    fn to_wire(self) -> String {
        self.unwrap_or_default()
    }

    fn from_wire(wire: String) -> Result<Self, FieldError> {
        Ok(Some(wire).filter(|text| !text.is_empty()))
    }
}

impl WireField<String> for Focus {
    fn to_wire(self) -> String {
        self.to_string()
    }

    fn from_wire(wire: String) -> Result<Self, FieldError> {
        Focus::parse(&wire).map_err(|e| FieldError::new("", e))
    }
}

impl WireField<String> for Flavor {
    fn to_wire(self) -> String {
        self.to_string()
    }

    fn from_wire(wire: String) -> Result<Self, FieldError> {
        Flavor::parse(&wire).map_err(|e| FieldError::new("", e))
    }
}

/// A value that only a later version knows is read as none.
impl<T: WireField<W>, W> WireField<Option<W>> for Option<T> {
    fn to_wire(self) -> Option<W> {
        self.map(T::to_wire)
    }

    fn from_wire(wire: Option<W>) -> Result<Self, FieldError> {
        match wire.map(T::from_wire).transpose() {
            Err(e) if e.later => Ok(None),
            other => other,
        }
    }
}

/// Elements that only a later version knows are left out.
impl<T: WireField<W>, W> WireField<Vec<W>> for Vec<T> {
    fn to_wire(self) -> Vec<W> {
        self.into_iter().map(T::to_wire).collect()
    }

    fn from_wire(wire: Vec<W>) -> Result<Self, FieldError> {
        let mut all = Vec::with_capacity(wire.len());
        for (i, element) in wire.into_iter().enumerate() {
            match T::from_wire(element) {
                Err(e) if e.later => {}
                read => all.push(read.map_err(|e| e.inside(format_args!("[{i}]")))?),
            }
        }
        Ok(all)
    }
}

impl<T: WireField<W>, W> WireField<W> for Box<T> {
    fn to_wire(self) -> W {
        (*self).to_wire()
    }

    fn from_wire(wire: W) -> Result<Self, FieldError> {
        T::from_wire(wire).map(Box::new)
    }
}

impl<T: WireField<W> + Clone, W> WireField<W> for Arc<T> {
    fn to_wire(self) -> W {
        Arc::unwrap_or_clone(self).to_wire()
    }

    fn from_wire(wire: W) -> Result<Self, FieldError> {
        T::from_wire(wire).map(Arc::new)
    }
}

/// Result for a value that only a later version knows, or that is not stated: a variant for it, or an error.
macro_rules! otherwise {
    ($error:expr) => {
        Err($error)
    };
    ($error:expr, $value:expr) => {
        Ok($value)
    };
}

/// Converts enums whose variants have the same names on both sides, and no fields. After `later` stands the variant as which values of later
/// versions are read, after `unknown` the one for these and for values that are not stated.
macro_rules! enums {
    ($($name:ident { $($variant:ident),* $(,)? } $([later $later:ident])? $([unknown $unknown:ident])?)*) => {$(
        impl From<$name> for v1::$name {
            fn from(value: $name) -> Self {
                match value {
                    $($name::$variant => v1::$name::$variant,)*
                    $($name::$unknown => v1::$name::Unspecified,)?
                }
            }
        }

        impl $crate::field::WireField<i32> for $name {
            fn to_wire(self) -> i32 {
                v1::$name::from(self).into()
            }

            fn from_wire(wire: i32) -> Result<Self, $crate::field::FieldError> {
                match v1::$name::try_from(wire) {
                    $(Ok(v1::$name::$variant) => Ok($name::$variant),)*
                    Ok(v1::$name::Unspecified) => {
                        otherwise!($crate::field::FieldError::missing("") $(, $name::$unknown)?)
                    }
                    Err(_) => {
                        otherwise!($crate::field::FieldError::later(wire) $(, $name::$later)? $(, $name::$unknown)?)
                    }
                }
            }
        }

        #[cfg(test)]
        impl $crate::any::Any for $name {
            fn any(source: &mut $crate::any::Source<'_>) -> Self {
                source.one_of(&[$($name::$variant),*])
            }
        }
    )*};
}

/// Converts messages field by field: those that have the same name on both sides, then those with two names.
macro_rules! messages {
    ($($api:ident => $wire:ident { $($same:ident),* $(; $($field:ident => $name:ident),*)? })*) => {$(
        impl From<$api> for v1::$wire {
            fn from(value: $api) -> Self {
                let $api { $($same,)* $($($field,)*)? } = value;
                v1::$wire {
                    $($same: $crate::field::WireField::to_wire($same),)*
                    $($($name: $crate::field::WireField::to_wire($field),)*)?
                }
            }
        }

        impl TryFrom<v1::$wire> for $api {
            type Error = $crate::field::FieldError;

            fn try_from(message: v1::$wire) -> Result<Self, $crate::field::FieldError> {
                let v1::$wire { $($same,)* $($($name,)*)? } = message;
                Ok($api {
                    $($same: $crate::field::read(stringify!($same), $same)?,)*
                    $($($field: $crate::field::read(stringify!($name), $name)?,)*)?
                })
            }
        }

        nested! { $api => $wire }

        #[cfg(test)]
        impl $crate::any::Any for $api {
            fn any(source: &mut $crate::any::Source<'_>) -> Self {
                $api { $($same: source.next(),)* $($($field: source.next(),)*)? }
            }
        }
    )*};
}

/// Lets messages that can be converted be elements of lists, and fields of other messages.
macro_rules! nested {
    ($($api:ident => $wire:ident)*) => {$(
        impl $crate::field::WireField<v1::$wire> for $api {
            fn to_wire(self) -> v1::$wire {
                self.into()
            }

            fn from_wire(wire: v1::$wire) -> Result<Self, $crate::field::FieldError> {
                wire.try_into()
            }
        }

        impl $crate::field::WireField<Option<v1::$wire>> for $api {
            fn to_wire(self) -> Option<v1::$wire> {
                Some(self.into())
            }

            fn from_wire(wire: Option<v1::$wire>) -> Result<Self, $crate::field::FieldError> {
                wire.ok_or_else(|| $crate::field::FieldError::missing(""))?.try_into()
            }
        }
    )*};
}

enums! {
    How { InPlace, Relocated, Partly, Refused }
    Aggregate { Sum, Min, Max, Avg } [later Sum]
    Style { EventCounter, SampledFunction } [later EventCounter]
    UnitsType { Normalized, Unnormalized, Sampled } [later Unnormalized]
    EdgeKind { Taken, FallThrough, CallReturn, JumpTable, TailJump, Return }
    WayInReason {
        Entry, BehindEndbr, CallReturn, SyscallReturn, LandingPad, JumpTable, AddressTaken, Named,
        BranchFromElsewhere, Called, Resumed,
    }
}

/// The protocol has one kind for both sides of a call, which is read as the side before it.
impl WireField<i32> for PointKind {
    fn to_wire(self) -> i32 {
        let kind = match self {
            PointKind::Entry => v1::PointKind::Entry,
            PointKind::Exit => v1::PointKind::Exit,
            PointKind::CallBefore | PointKind::CallAfter => v1::PointKind::Call,
            PointKind::Block => v1::PointKind::Block,
            PointKind::Edge => v1::PointKind::Edge,
        };
        kind.into()
    }

    fn from_wire(wire: i32) -> Result<Self, FieldError> {
        match v1::PointKind::try_from(wire) {
            Ok(v1::PointKind::Entry) => Ok(PointKind::Entry),
            Ok(v1::PointKind::Exit) => Ok(PointKind::Exit),
            Ok(v1::PointKind::Call) => Ok(PointKind::CallBefore),
            Ok(v1::PointKind::Block) => Ok(PointKind::Block),
            Ok(v1::PointKind::Edge) => Ok(PointKind::Edge),
            Ok(v1::PointKind::Unspecified) => Err(FieldError::missing("")),
            Err(_) => Err(FieldError::later(wire)),
        }
    }
}

/// Checks that arbitrary values are equal to what is read from their messages.
#[cfg(test)]
pub(crate) fn round_trips<T: crate::any::Any + WireField<W> + Clone + fmt::Debug + PartialEq, W>() {
    crate::any::comes_back(|value: T| T::from_wire(value.to_wire()).map_err(|e| e.to_string()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_name_the_field() {
        let error = read::<Focus, String>("focus", "Code/x".to_owned()).unwrap_err();
        let error = error.inside("pairs[3]").inside("measure");
        assert_eq!(error.to_string(), "measure.pairs[3].focus: `Code/x` is no resource: it must begin with `/`");
        let how = |wire: i32| read::<How, i32>("how", wire).unwrap_err().to_string();
        assert_eq!(how(0), "how: is missing");
        assert_eq!(how(77), "how: the value 77 is not known to this version");
        assert_eq!(FieldError::new("[2]", "no").inside("pairs").path, "pairs[2]");
        let flavors = vec!["pvm".to_owned(), "a b".to_owned()];
        assert_eq!(read::<Vec<Flavor>, _>("flavors", flavors).unwrap_err().path, "flavors[1]");
        assert_eq!(ProtocolFailure::from(FieldError::missing("target")).reason, Reason::InvalidField);
    }

    #[test]
    fn enums_come_back() {
        round_trips::<How, i32>();
        round_trips::<Aggregate, i32>();
        round_trips::<Style, i32>();
        round_trips::<UnitsType, i32>();
        round_trips::<EdgeKind, i32>();
        round_trips::<WayInReason, i32>();
        round_trips::<PointKind, i32>();
    }

    #[test]
    fn plain_fields_come_back() {
        round_trips::<Duration, u64>();
        round_trips::<Focus, String>();
        round_trips::<Option<String>, String>();
        round_trips::<Vec<Option<Svma>>, Vec<Option<u64>>>();
    }

    #[test]
    fn values_of_a_later_version_are_left_out() {
        assert_eq!(Vec::<How>::from_wire(vec![1, 77, 2]), Ok(vec![How::InPlace, How::Relocated]));
        assert_eq!(Option::<How>::from_wire(Some(77)), Ok(None));
        assert!(Vec::<How>::from_wire(vec![1, 0]).is_err());
        assert_eq!(Vec::<Aggregate>::from_wire(vec![2, 77]), Ok(vec![Aggregate::Min, Aggregate::Sum]));
    }

    proptest! {
        #[test]
        fn any_focus_text_is_read_or_refused(text in ".*") {
            let _ = Focus::from_wire(text);
        }

        #[test]
        fn any_number_is_read_or_refused(n in any::<i32>()) {
            let _ = (How::from_wire(n), PointKind::from_wire(n), WayInReason::from_wire(n));
        }
    }
}
