//! Instrumentation: variables, and the code at points of functions that changes them. Metrics in MDL are one producer of it.

use std::sync::Arc;

use crate::addr::Tid;
use crate::metric::MetricInfo;
use crate::point::{Offset, PointKind};
#[cfg(doc)]
use crate::snippet::VariableId;
use crate::snippet::{Shape, Snippet};
use crate::vector::IndexNames;

/// A module of a program: a number that only the engine understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleRef(pub u32);

/// A function of a program. Equal for aliases of one address, so that code is never put twice into the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionRef {
    /// Module of the function.
    pub module: ModuleRef,
    /// Number of the function in the module.
    pub function: u32,
}

/// Instrumentation that measures a metric at a focus: variables, and the code that changes them at points of functions.
#[derive(Clone, Debug)]
pub struct Instrumentation {
    /// The metric.
    pub metric: Arc<MetricInfo>,
    /// Variables of the instrumentation; a [`VariableId`] is an index into them. The first is the metric's own.
    pub variables: Arc<[Variable]>,
    /// Code for points, in the order of the definition's text; code that shares an activation record comes together.
    pub insertions: Vec<Insertion>,
    /// The event of the processor that its code reads, as `perf list` has it: what the variable of [`Shape::Event`] stands for.
    pub event: Option<Arc<str>>,
    /// The only thread that counts, if the focus names one.
    pub thread: Option<Tid>,
    /// The address of the synchronisation object that the focus names.
    pub object: Option<u64>,
    /// Names of the values of a vector over indices; `None` for other shapes.
    pub index_names: Option<IndexNames>,
}

/// One value per thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name in the text.
    pub name: String,
    /// Purpose of the variable.
    pub kind: VariableKind,
    /// Shape of its value.
    pub shape: Shape,
    /// Unit in which its values are recorded.
    pub unit: ValueUnit,
    /// Whether it is shown: the metric's own value, and what became of the calls that it measures.
    pub sampled: bool,
}

/// Unit in which values are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ValueUnit {
    /// In the unit of the metric.
    #[default]
    Plain,
    /// Ticks of the processor's time stamp counter, to be shown as nanoseconds.
    Ticks,
}

/// Purpose of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VariableKind {
    /// The metric's own value.
    Counter,
    /// A value that the metric's code remembers.
    Scratch,
    /// Whether this thread is inside what the focus selects.
    Flag,
    /// Outcomes of the calls that the code follows from their entry to their exit.
    Activations,
    /// Outcomes in a second record of these calls: each is in the innermost record's already.
    OuterActivations,
}

/// When code runs among the code of one point: flags go up, metrics look at them, flags go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Raises a flag.
    FlagSet,
    /// Belongs to a metric.
    Metric,
    /// Lowers a flag.
    FlagClear,
}

impl Role {
    /// The role at the other end of a call: what began first ends last.
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
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
}

impl Order {
    /// The order at the other end of a call: what began first ends last.
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
    /// The function.
    pub function: FunctionRef,
    /// Kind of its points.
    pub point: PointKind,
    /// The one block that the code is for, by its offset in the function; `None` for all points of the kind.
    pub block: Option<Offset>,
    /// Position among the code of its role.
    pub order: Order,
    /// Turn among the code of the point.
    pub role: Role,
    /// Code that runs there; shared by points that do the same.
    pub snippet: Arc<Snippet>,
    /// The code of one definition, the metric's (0) or a constraint's, has one number. What a group has in one function is woven all or not at
    /// all: an exit undoes what the entry did.
    pub group: u32,
    /// At calls: functions that the request measures through its lists. Call sites that name one of them as their target stay without this
    /// code, so that the callee's time is its caller's (paradyn.md A.9).
    pub except: Arc<[FunctionRef]>,
}
