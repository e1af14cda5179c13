//! The shared vocabulary of ingraft as types: addresses, points, snippets, resources, foci, metrics, the data area in the target, and patch
//! plans. The types are plain values: no code of this crate reads a file, a clock or a process.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

pub mod activations;
pub mod addr;
pub mod body;
pub mod buffer;
pub mod call;
pub mod cfg;
pub mod contexts;
pub mod dominators;
pub mod flavor;
pub mod glob;
pub mod histogram;
pub mod history;
mod hold;
pub mod index;
pub mod instrumentation;
pub mod layout;
pub mod listed;
pub mod lists;
pub mod loops;
pub mod machine;
pub mod metric;
mod moving;
pub mod names;
pub mod object;
pub mod outermost;
pub mod part;
pub mod patch;
pub mod point;
pub mod point_id;
pub mod records;
mod refusal;
pub mod resource;
pub mod shown;
pub mod snippet;
pub mod table;
pub mod token;
pub mod vector;

pub use activations::Activations;
pub use addr::{Avma, AvmaRange, Bias, Offset, Pid, Svma, SvmaRange, Tid};
pub use body::{BodyBlock, BodyExit, Entered, FunctionBody};
pub use buffer::Capacity;
pub use call::{Called, ProgramCall, VectorState};
pub use cfg::{Block, BlockEvents, Cfg, EVENT_NAMES, Edge, EdgeKind, EdgeTarget, WayIn, WayInReason};
pub use contexts::{ContextShape, ContextTree, CountedValue, TreeContext};
pub use dominators::Dominators;
pub use flavor::{FLAVORS_MAX, Flavor, FlavorError};
pub use histogram::{Bucket, Distribution, Resolution, Scale};
pub use history::{Bin, Course, History};
pub use hold::HoldTime;
pub use index::{BlockId, EdgeId, FunctionId, IndexVec, Key, ModuleId};
pub use instrumentation::{
    ColumnContent, Insertion, Instrumentation, Order, Placing, RecordColumn, RecordContent, RecordVariant, Role,
    ValueUnit, Variable, VariableKind,
};
pub use layout::{CpuClock, DataArea, ThreadIdentity, WallClock};
pub use listed::{KeyListing, ListedKeys};
pub use lists::{Lists, Successors};
pub use loops::{Loop, LoopSearch, Loops};
pub use metric::{Aggregate, MetricInfo, Style, UnitsType};
pub use object::{ObjectKind, ObjectState};
pub use part::{LoopEdges, PartName, Parts};
pub use patch::{PatchPlan, PcMove, TextWrite};
pub use point::{
    Arrival, BackBranch, BlockPoint, CallPoint, CallSite, Callee, FirstEffect, FirstInstruction, FreeRegisters, Gpr,
    How, IslandRoom, PointKind, Site, SiteKind,
};
pub use point_id::{FunctionPoint, PointId};
pub use refusal::Refusal;
pub use resource::{Focus, FocusError, ResourcePath};
pub use shown::{DataShape, DataVariant, DataWord, Enumerator, Enumerators, ValueNames, WordOrigin};
pub use snippet::{
    BinaryOp, CallRecord, Clock, Expr, Float, FloatFormat, IntegerWidth, KeptValue, KeyField, NotesStmt, RecordField,
    Recorded, Restore, Scalar, Shape, Snippet, StackSwitch, Stmt, TimeUnit, UnaryOp, Usage, VariableId, Whose,
};
pub use table::{Fold, KeyPart, KeyParts, KeyTable, Places, TableKey, TableShape};
pub use vector::{IndexNames, Ranges};
