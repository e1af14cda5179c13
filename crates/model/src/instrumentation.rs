//! Instrumentation: variables, and the code at points of functions that changes them. MDL metrics are lowered to it.

use std::sync::Arc;

use crate::addr::Tid;
use crate::index::FunctionId;
use crate::metric::MetricInfo;
use crate::part::Parts;
use crate::point::PointKind;
use crate::shown::ValueNames;
#[cfg(doc)]
use crate::snippet::VariableId;
use crate::snippet::{Scalar, Shape, Snippet};
use crate::vector::IndexNames;

/// Instrumentation that measures a metric at a focus: variables, and the code that changes them at points of functions.
#[derive(Clone, Debug)]
pub struct Instrumentation {
    /// The metric.
    pub metric: Arc<MetricInfo>,
    /// Variables of the instrumentation; a [`VariableId`] is an index into them. The first one holds the metric's value.
    pub variables: Arc<[Variable]>,
    /// Code for points, in the order of the definition's text. Insertions that share an activation record are adjacent.
    pub insertions: Vec<Insertion>,
    /// Name, as in `perf list`, of the processor event that the code reads. The variable of [`Shape::Event`] stands for this event.
    pub event: Option<Arc<str>>,
    /// The thread to which the focus restricts the measurement; `None` for all threads.
    pub thread: Option<Tid>,
    /// Address of the synchronisation object to which the focus restricts the measurement; `None` for all objects.
    pub object: Option<u64>,
    /// Names of the values of a vector over indices; `None` for other shapes.
    pub index_names: Option<IndexNames>,
    /// Names of the values of each part of the keys of a vector over keys.
    pub key_names: Vec<ValueNames>,
    /// Whether each insertion is woven, or refused, by itself; each increments a variable of its own. Otherwise all insertions in one function
    /// are woven together, or none is.
    pub apart: bool,
    /// Where the code of points stands.
    pub placing: Placing,
    /// Columns of the records that the code makes, by the number of the record ([`crate::snippet::Recorded::number`]).
    pub records: Arc<[Vec<RecordColumn>]>,
}

/// Places for the code of the points of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// In the text, if all of it has room there. Otherwise the function is copied.
    #[default]
    Anywhere,
    /// In the text. An insertion without room there is refused.
    InText,
    /// In a copy of the function, if it can be copied: most of the code can stand right at its points there.
    InCopy,
    /// In a copy, unless it is known that the function is called seldom. A uprobe that is set on a copied function harms it, so a function is copied
    /// only where that saves time.
    InCopyIfBusy,
}

/// A value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordColumn {
    /// The expression, as the definition writes it.
    pub name: String,
    /// Meaning of the value, and the fields of the record that hold it.
    pub content: RecordContent,
}

/// Meaning of a value of a record, and the fields of the record that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordContent {
    /// A number, whose values may have names.
    Number(ValueNames),
    /// A text that ends with a zero byte, or at the end of what was read.
    Text,
    /// A text whose length in bytes is the next field.
    BoundedText,
    /// The address to which the call returns.
    Caller,
    /// The call's result, with names as those of a number.
    Return(ValueNames),
    /// A field that holds no result, because the function returns nothing.
    NoReturn,
    /// The call's time in nanoseconds.
    Elapsed,
    /// The first bytes of a list of integers of this type, and the number of elements. Without a type, only the number.
    List(Option<Scalar>),
    /// One of several variants: a number that tells which one, if the first is true, and then the data of all variants, one after the other.
    Variants(bool, Vec<RecordVariant>),
    /// Data that is not shown; it takes no fields.
    Hidden,
}

/// A variant of a value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordVariant {
    /// Number that tells the variant; `None` if the variant has all numbers that no other one has.
    pub value: Option<i64>,
    /// The name.
    pub name: String,
    /// The data; `None` if the variant has none.
    pub data: Option<RecordContent>,
}

impl RecordContent {
    /// The kind of the values.
    pub const fn kind(&self) -> ColumnContent {
        match self {
            RecordContent::Number(_) | RecordContent::Hidden => ColumnContent::Number,
            RecordContent::Text => ColumnContent::Text,
            RecordContent::BoundedText => ColumnContent::BoundedText,
            RecordContent::Caller => ColumnContent::Caller,
            RecordContent::Return(_) | RecordContent::NoReturn => ColumnContent::Return,
            RecordContent::Elapsed => ColumnContent::Elapsed,
            RecordContent::List(_) => ColumnContent::List,
            RecordContent::Variants(..) => ColumnContent::Variant,
        }
    }
}

/// Kind of the values of a column, for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnContent {
    /// Numbers.
    Number,
    /// Texts that end with a zero byte, or at the end of what was read.
    Text,
    /// Texts of a known length.
    BoundedText,
    /// Addresses to which calls return.
    Caller,
    /// Results of calls.
    Return,
    /// Times of calls in nanoseconds.
    Elapsed,
    /// Lists of numbers.
    List,
    /// Variants, with their data.
    Variant,
}

impl Instrumentation {
    /// The same without variables and code.
    pub fn without_code(&self) -> Self {
        Instrumentation {
            metric: Arc::clone(&self.metric),
            variables: [].into(),
            insertions: Vec::new(),
            event: self.event.clone(),
            thread: self.thread,
            object: self.object,
            index_names: self.index_names.clone(),
            key_names: self.key_names.clone(),
            apart: self.apart,
            placing: self.placing,
            records: [].into(),
        }
    }
}

/// A variable of the instrumentation, with one value for each thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name of the variable in the definition's text.
    pub name: String,
    /// Purpose of the variable.
    pub kind: VariableKind,
    /// Shape of the variable's value.
    pub shape: Shape,
    /// Unit in which code records the values.
    pub unit: ValueUnit,
    /// Whether readings of the pair contain the variable: the metric's own value, and the outcomes of the calls that it measures.
    pub sampled: bool,
}

/// Unit in which values are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ValueUnit {
    /// In the unit of the metric.
    #[default]
    Plain,
    /// Ticks of the processor's time stamp counter, to be converted to nanoseconds for display.
    Ticks,
}

/// Purpose of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VariableKind {
    /// The metric's own value.
    Counter,
    /// A value that the metric's code keeps for itself.
    Scratch,
    /// Whether the thread is inside of what the focus selects.
    Flag,
    /// Outcomes of the calls that the code follows from their entry to their exit.
    Activations,
    /// Outcomes in an outer record of the same calls. The innermost record counts each of these outcomes too.
    OuterActivations,
    /// The sum of the values on the present path of a call. It is no state of calls that began before the measurement: their paths have begun
    /// with values that nobody has added.
    PathSum,
}

/// Phase in which code runs at a point: first the code that sets flags, then the code of metrics, which reads them, then the code that
/// clears flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The code sets a flag.
    FlagSet,
    /// The code belongs to a metric.
    Metric,
    /// The code clears a flag.
    FlagClear,
}

impl Role {
    /// Returns the role of the matching code at the other end of a call, where code runs in the reverse order.
    pub fn mirrored(self) -> Role {
        match self {
            Role::FlagSet => Role::FlagClear,
            Role::Metric => Role::Metric,
            Role::FlagClear => Role::FlagSet,
        }
    }
}

/// Position of code among the code of its role at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// After the code that was inserted earlier.
    Append,
    /// Before the code that was inserted earlier.
    Prepend,
}

impl Order {
    /// Returns the order of the matching code at the other end of a call, where code runs in the reverse order.
    pub fn mirrored(self) -> Order {
        match self {
            Order::Append => Order::Prepend,
            Order::Prepend => Order::Append,
        }
    }
}

/// Code for one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    /// Function whose points get the code.
    pub function: FunctionId,
    /// Kind of the points.
    pub point: PointKind,
    /// The points of the kind that get the code.
    pub parts: Parts,
    /// Position among the code of the same role at the point.
    pub order: Order,
    /// Phase in which the code runs at the point.
    pub role: Role,
    /// Code to run at the point. Points with equal code share it.
    pub snippet: Arc<Snippet>,
    /// Number of the definition that the code belongs to: the metric (0) or one of its constraints. The insertions of a group in one
    /// function are woven all or not at all, because code at an exit undoes what code at the entry has done.
    pub group: u32,
    /// At calls: functions that the request measures through its lists. A call site with one of them as its target does not get this code,
    /// so that the callee's time counts as its caller's.
    pub except: Arc<[FunctionId]>,
}
