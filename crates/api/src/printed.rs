//! Printed calls: one record of values for each call.

use ingraft_model::ColumnContent;

use crate::{ModulePlace, NamedFunction};

/// Calls that were printed since the last reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrintedCalls {
    /// The functions, with the columns of their calls. [`PrintedCall::site`] is an index into them.
    pub sites: Vec<PrintedSite>,
    /// The calls, in the order of their times.
    pub calls: Vec<PrintedCall>,
    /// Numbers of calls since the measurement began. In the answer to the removal they are final; before, calls may be on their way.
    pub counts: CallNumbers,
}

/// A function whose calls are printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrintedSite {
    /// The function.
    pub function: NamedFunction,
    /// Columns of its calls.
    pub columns: Vec<PrintedColumn>,
    /// Whether its calls inside of slow calls are not told, because it is called too often for the limit of the cost.
    pub left_out: bool,
}

/// A column of printed calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintedColumn {
    /// The expression, as the definition writes it.
    pub name: String,
    /// Kind of the values.
    pub content: ColumnContent,
}

/// A call that was printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrintedCall {
    /// Index of the function.
    pub site: u32,
    /// Thread that made the call.
    pub tid: u32,
    /// Unix time in nanoseconds at which the record was made.
    pub time_ns: u64,
    /// A value for each column.
    pub values: Vec<PrintedValue>,
    /// Calls that the call has made, if it is told because it was slow.
    pub tree: Option<CallTree>,
}

/// A call with the calls that it has made. Own times and times of calls inside add up to the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallTree {
    /// Time of the call, in nanoseconds.
    pub elapsed_ns: u64,
    /// The same without the calls inside that are told.
    pub self_ns: u64,
    /// Number of calls inside that are not told because the buffer was full.
    pub lost: u64,
    /// Number of the goroutine that made the call, as the Go runtime names it; 0 if there is none, or if its number is not known.
    pub goroutine: u64,
    /// The calls inside, in the order in which they began. The caller of each is the last one before it that is less deep by one.
    pub calls: Vec<InnerCall>,
}

/// A call inside of another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InnerCall {
    /// Index of the function among [`PrintedCalls::sites`].
    pub site: u32,
    /// Number of calls that are told around it, without the outermost one.
    pub depth: u32,
    /// Time from the beginning of the outermost call to that of this one, in nanoseconds.
    pub at_ns: u64,
    /// Time of the call, in nanoseconds.
    pub elapsed_ns: u64,
    /// The same without the calls inside that are told.
    pub self_ns: u64,
    /// A value for each column of the function.
    pub values: Vec<PrintedValue>,
}

/// A value of a printed call.
#[derive(Clone, Debug, PartialEq)]
pub enum PrintedValue {
    /// A number.
    Number(i64),
    /// Bytes of a text, without its end.
    Text {
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether the text goes on behind these bytes.
        cut: bool,
    },
    /// A text that could not be read.
    Unreadable,
    /// The address to which the call returns, and the place of the call if it is known.
    Caller(u64, Option<Box<ModulePlace>>),
    /// A number, and the name of the enumerator that it is.
    Enumerator(i64, String),
    /// A list: the number of elements, and the first ones that were read. None are if they are no integers.
    List(u64, Vec<i64>),
    /// A variant.
    Variant {
        /// The name.
        name: String,
        /// The data; `None` if the variant has none, or if it is not shown.
        value: Option<Box<PrintedValue>>,
        /// Whether the variant has data that is not shown.
        hidden: bool,
    },
}

/// Numbers of calls. `calls` is the sum of the others once the measurement has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallNumbers {
    /// Calls that began.
    pub calls: u64,
    /// Calls that were printed.
    pub printed: u64,
    /// Calls for which the condition did not hold.
    pub unmet: u64,
    /// Calls that were not printed because of the limit.
    pub skipped: u64,
    /// Calls that were not printed because a buffer was full, or because their thread had none.
    pub lost: u64,
    /// Calls that are printed at their end, and that ended otherwise (by an exception, longjmp, or with their thread) or had not ended when
    /// the measurement did.
    pub left: u64,
}
