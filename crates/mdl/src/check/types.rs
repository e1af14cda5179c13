//! The types of the meta language, and the fields of their values.

use crate::ast::{Accumulator, Element, Path};

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Int,
    Float,
    Text,
    Points(Point),
    Procedure,
    Module,
    Loop,
    /// A resource of /Memory, which only the oldest files have.
    Memory,
    /// A variable of the metric or a flag.
    Data(Accumulator),
    List(Box<Type>),
    /// Type of a value whose definition has an error. The error is reported at the definition.
    Unknown,
}

/// The kinds of point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Entry,
    Return,
    Call,
    Loop,
    Block,
    Edge,
}

/// Type that has a field, the field's name, and the field's type.
type Field = (&'static str, &'static str, fn() -> Type);

/// Fields of procedures, modules, loops and memory.
const FIELDS: &[Field] = &[
    ("procedure", "entry", || Type::Points(Point::Entry)),
    ("procedure", "return", || Type::Points(Point::Return)),
    ("procedure", "calls", || list(Type::Points(Point::Call))),
    ("procedure", "blocks", || list(Type::Points(Point::Block))),
    ("procedure", "edges", || list(Type::Points(Point::Edge))),
    ("procedure", "loops", || list(Type::Loop)),
    ("procedure", "name", || Type::Text),
    ("procedure", "tag", || Type::Int),
    ("module", "funcs", || list(Type::Procedure)),
    ("module", "name", || Type::Text),
    ("loop", "enter", || Type::Points(Point::Loop)),
    ("loop", "exit", || Type::Points(Point::Loop)),
    ("loop", "start_iter", || Type::Points(Point::Loop)),
    ("loop", "end_iter", || Type::Points(Point::Loop)),
    ("memory", "lower", || Type::Int),
    ("memory", "upper", || Type::Int),
];

pub(crate) fn list(of: Type) -> Type {
    Type::List(Box::new(of))
}

impl Type {
    pub(crate) fn of_items(element: Element) -> Type {
        match element {
            Element::Procedure => Type::Procedure,
            Element::Module => Type::Module,
            Element::String => Type::Text,
            Element::Int => Type::Int,
            Element::Float => Type::Float,
        }
    }

    /// The type in words, as errors name it.
    pub(crate) fn words(&self) -> String {
        match self {
            Type::Int => "a number".to_owned(),
            Type::Float => "a floating-point number".to_owned(),
            Type::Text => "a string".to_owned(),
            Type::Points(Point::Entry) => "an entry point".to_owned(),
            Type::Points(Point::Return) => "return points".to_owned(),
            Type::Points(Point::Call) => "a call site".to_owned(),
            Type::Points(Point::Loop) => "points of a loop".to_owned(),
            Type::Points(Point::Block) => "a block".to_owned(),
            Type::Points(Point::Edge) => "an edge".to_owned(),
            Type::Procedure => "a procedure".to_owned(),
            Type::Module => "a module".to_owned(),
            Type::Loop => "a loop".to_owned(),
            Type::Memory => "a range of memory".to_owned(),
            Type::Data(kind) => format!("a {}", kind.keyword()),
            Type::List(of) => format!("a list (each is {})", of.words()),
            Type::Unknown => "unknown".to_owned(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Type::Procedure => "procedure",
            Type::Module => "module",
            Type::Loop => "loop",
            Type::Memory => "memory",
            _ => "",
        }
    }

    /// The type of a field.
    pub(crate) fn field(&self, name: &str) -> Option<Type> {
        let kind = self.kind();
        FIELDS.iter().find(|(of, field, _)| *of == kind && *field == name).map(|(_, _, make)| make())
    }

    /// All fields of values of this type.
    pub(crate) fn fields(&self) -> Vec<&'static str> {
        let kind = self.kind();
        FIELDS.iter().filter(|(of, ..)| *of == kind).map(|(_, field, _)| *field).collect()
    }

    /// Kind of the points that a value of this type means, alone or as items of a list; `None` if the type has no points.
    pub(crate) fn point(&self) -> Option<Point> {
        match self {
            Type::Points(point) => Some(*point),
            Type::List(of) => of.point(),
            _ => None,
        }
    }
}

/// The types of `$constraint[0]`, `$constraint[1]`, …: from the selected resource up to the root.
pub(crate) fn chain(path: &Path) -> Vec<Type> {
    let Some((root, names)) = path.parts.split_first() else { return Vec::new() };
    let mut chain = match (root.name.as_str(), names.len()) {
        ("Code", 0) => vec![Type::Module],
        ("Code", 1) => vec![Type::Procedure, Type::Module],
        ("Code", _) => vec![Type::Loop, Type::Procedure, Type::Module],
        ("SyncObject", levels) => {
            let kind = names.first().map_or("", |n| n.name.as_str());
            let leaf = match (kind, levels) {
                (_, 0) | ("Window", _) | ("Message", 1) => Type::Text,
                _ => Type::Int,
            };
            let mut chain = vec![leaf];
            chain.resize(levels + 1, Type::Text);
            chain
        }
        ("Memory", levels) => vec![Type::Memory; levels + 1],
        (_, levels) => vec![Type::Text; levels + 1],
    };
    chain.push(Type::Text);
    chain
}
