//! The types of the meta language, and the fields of their values.

use crate::ast::{Accumulator, ElementKind, ResourcePattern};

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetaType {
    Int,
    Float,
    Text,
    Points(PointType),
    Procedure,
    Module,
    Loop,
    /// A resource of /Memory, which only the oldest files have.
    Memory,
    /// A variable of the metric or a flag.
    Data(Accumulator),
    List(Box<MetaType>),
    /// Type of a value whose definition has an error. The error is reported at the definition.
    Unknown,
}

/// The kinds of point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointType {
    Entry,
    Return,
    Call,
    Loop,
    Block,
    Edge,
}

/// Type that has a field, the field's name, and the field's type.
type FieldType = (&'static str, &'static str, fn() -> MetaType);

/// Fields of procedures, modules, loops and memory.
const FIELDS: &[FieldType] = &[
    ("procedure", "entry", || MetaType::Points(PointType::Entry)),
    ("procedure", "return", || MetaType::Points(PointType::Return)),
    ("procedure", "calls", || list(MetaType::Points(PointType::Call))),
    ("procedure", "blocks", || list(MetaType::Points(PointType::Block))),
    ("procedure", "edges", || list(MetaType::Points(PointType::Edge))),
    ("procedure", "loops", || list(MetaType::Loop)),
    ("procedure", "name", || MetaType::Text),
    ("procedure", "tag", || MetaType::Int),
    ("module", "funcs", || list(MetaType::Procedure)),
    ("module", "name", || MetaType::Text),
    ("loop", "enter", || MetaType::Points(PointType::Loop)),
    ("loop", "exit", || MetaType::Points(PointType::Loop)),
    ("loop", "start_iter", || MetaType::Points(PointType::Loop)),
    ("loop", "end_iter", || MetaType::Points(PointType::Loop)),
    ("memory", "lower", || MetaType::Int),
    ("memory", "upper", || MetaType::Int),
];

pub(crate) fn list(of: MetaType) -> MetaType {
    MetaType::List(Box::new(of))
}

impl MetaType {
    pub(crate) fn of_items(element: ElementKind) -> MetaType {
        match element {
            ElementKind::Procedure => MetaType::Procedure,
            ElementKind::Module => MetaType::Module,
            ElementKind::String => MetaType::Text,
            ElementKind::Int => MetaType::Int,
            ElementKind::Float => MetaType::Float,
        }
    }

    /// The type in words, as errors name it.
    pub(crate) fn words(&self) -> String {
        match self {
            MetaType::Int => "a number".to_owned(),
            MetaType::Float => "a floating-point number".to_owned(),
            MetaType::Text => "a string".to_owned(),
            MetaType::Points(PointType::Entry) => "an entry point".to_owned(),
            MetaType::Points(PointType::Return) => "return points".to_owned(),
            MetaType::Points(PointType::Call) => "a call site".to_owned(),
            MetaType::Points(PointType::Loop) => "points of a loop".to_owned(),
            MetaType::Points(PointType::Block) => "a block".to_owned(),
            MetaType::Points(PointType::Edge) => "an edge".to_owned(),
            MetaType::Procedure => "a procedure".to_owned(),
            MetaType::Module => "a module".to_owned(),
            MetaType::Loop => "a loop".to_owned(),
            MetaType::Memory => "a range of memory".to_owned(),
            MetaType::Data(kind) => format!("a {}", kind.keyword()),
            MetaType::List(of) => format!("a list (each is {})", of.words()),
            MetaType::Unknown => "unknown".to_owned(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            MetaType::Procedure => "procedure",
            MetaType::Module => "module",
            MetaType::Loop => "loop",
            MetaType::Memory => "memory",
            _ => "",
        }
    }

    /// The type of a field.
    pub(crate) fn field(&self, name: &str) -> Option<MetaType> {
        let kind = self.kind();
        FIELDS.iter().find(|(of, field, _)| *of == kind && *field == name).map(|(_, _, make)| make())
    }

    /// All fields of values of this type.
    pub(crate) fn fields(&self) -> Vec<&'static str> {
        let kind = self.kind();
        FIELDS.iter().filter(|(of, ..)| *of == kind).map(|(_, field, _)| *field).collect()
    }

    /// Kind of the points that a value of this type means, alone or as items of a list; `None` if the type has no points.
    pub(crate) fn point(&self) -> Option<PointType> {
        match self {
            MetaType::Points(point) => Some(*point),
            MetaType::List(of) => of.point(),
            _ => None,
        }
    }
}

/// The types of `$constraint[0]`, `$constraint[1]`, …: from the selected resource up to the root.
pub(crate) fn chain(path: &ResourcePattern) -> Vec<MetaType> {
    let Some((root, names)) = path.parts.split_first() else { return Vec::new() };
    let mut chain = match (root.name.as_str(), names.len()) {
        ("Code", 0) => vec![MetaType::Module],
        ("Code", 1) => vec![MetaType::Procedure, MetaType::Module],
        ("Code", _) => vec![MetaType::Loop, MetaType::Procedure, MetaType::Module],
        ("SyncObject", levels) => {
            let kind = names.first().map_or("", |n| n.name.as_str());
            let leaf = match (kind, levels) {
                (_, 0) | ("Window", _) | ("Message", 1) => MetaType::Text,
                _ => MetaType::Int,
            };
            let mut chain = vec![leaf];
            chain.resize(levels + 1, MetaType::Text);
            chain
        }
        ("Memory", levels) => vec![MetaType::Memory; levels + 1],
        (_, levels) => vec![MetaType::Text; levels + 1],
    };
    chain.push(MetaType::Text);
    chain
}
