//! Vectors: the meaning of an index, and the names of the values.

use ingraft_model::{Called, Expr as Out, Fold, IndexNames, ProgramCall, Ranges, Shape, Stmt, ValueNames, VariableId};

use super::meta::{Evaluation, MetaValue, NameBinding};
use crate::ast::{ExprKind, ListDefinition, SyntaxExpr, VectorIndex};
use crate::diagnostic::codes;
use crate::source::SourceSpan;

/// The vector of the metric that is evaluated.
#[derive(Clone, Copy)]
pub(super) struct Indexed<'a> {
    ranges: Ranges,
    by: IndexMeaning<'a>,
}

/// Meaning of the index between the brackets.
#[derive(Clone, Copy)]
enum IndexMeaning<'a> {
    /// An item of a list, or its position.
    Item(&'a ListDefinition),
    /// An argument that a function of the program turns into an index.
    Argument(&'a str),
    Number,
}

/// A value of a vector: the value of a key, or with ranges the value of the granule in which the number lies.
#[derive(Clone)]
pub(super) struct VectorSlot {
    vector: VariableId,
    of: Option<Ranges>,
    pub number: Out,
}

impl VectorSlot {
    pub(super) fn value(self) -> Out {
        let number = Box::new(self.number);
        match self.of {
            Some(ranges) => Out::ValueIn(self.vector, ranges, number),
            None => Out::ValueAt(self.vector, number),
        }
    }

    pub(super) fn add(self, amount: Out) -> Stmt {
        match self.of {
            Some(ranges) => Stmt::AddIn(self.vector, ranges, self.number, amount),
            None => Stmt::AddAt(self.vector, self.number, amount),
        }
    }
}

impl<'a> Evaluation<'a> {
    /// Shape of the values of a vectorised metric.
    pub(super) fn vector(&mut self, vector: &'a VectorIndex, span: SourceSpan) -> Option<Shape> {
        let (ranges, by, names) = match vector {
            VectorIndex::Keys => return Some(Shape::Table(Fold::Sum)),
            VectorIndex::Objects => return Some(Shape::Table(Fold::Last)),
            VectorIndex::List(name) => {
                let list = self.list_named(name.span, &name.name)?;
                let items: Vec<String> = list.items.iter().map(|item| item.value.clone()).collect();
                let count = u32::try_from(items.len()).ok();
                (count.and_then(Ranges::numbers), IndexMeaning::Item(list), IndexNames::Items(items.into()))
            }
            VectorIndex::Map(function, slots) => {
                let ranges = u32::try_from(*slots).ok().and_then(Ranges::numbers);
                (ranges, IndexMeaning::Argument(&function.value), IndexNames::Numbers)
            }
            VectorIndex::Table(base, length, granule) => {
                let ranges = Ranges::new(*base, *length, *granule);
                (ranges, IndexMeaning::Number, ranges.map_or(IndexNames::Numbers, IndexNames::Ranges))
            }
        };
        let Some(ranges) = ranges else {
            self.error(codes::VALUE, span, "this vector has no value, or too many".to_owned(), "");
            return None;
        };
        self.indexed = Some(Indexed { ranges, by });
        self.index_names = Some(names);
        Some(Shape::Vector(ranges.count()))
    }

    fn list_named(&mut self, span: SourceSpan, name: &'a str) -> Option<&'a ListDefinition> {
        if let MetaValue::List(list) = self.name(span, name) { Some(list) } else { None }
    }

    /// Returns the value that `m[x]` means. `None` if `m` is no vector, `Some(None)` if the index has an error, which is reported.
    pub(super) fn slot(&mut self, name: &str, index: &'a SyntaxExpr) -> Option<Option<VectorSlot>> {
        let vector = self.variable_named(name)?;
        match self.shape_of(vector) {
            Shape::Table(Fold::Sum) => Some(self.key(index).map(|key| VectorSlot { vector, of: None, number: key })),
            Shape::Vector(_) => {
                Some(self.number(index).map(|(ranges, number)| VectorSlot { vector, of: Some(ranges), number }))
            }
            Shape::Counter
            | Shape::Timer(_)
            | Shape::Histogram(_)
            | Shape::Activations
            | Shape::Table(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Records(..)
            | Shape::Event
            | Shape::Alias(_) => None,
        }
    }

    /// Lowers a key of the metric's vector, and notes the names of its values.
    fn key(&mut self, index: &'a SyntaxExpr) -> Option<Out> {
        let (key, names) = self.named_value(index)?;
        match &self.key_names {
            Some(known) if *known != names => self.key_names = Some(ValueNames::None),
            Some(_) => {}
            None => self.key_names = Some(names),
        }
        Some(key)
    }

    /// Returns the number that an index means in the vector of the metric that is evaluated.
    fn number(&mut self, index: &'a SyntaxExpr) -> Option<(Ranges, Out)> {
        let Indexed { ranges, by } = self.indexed?;
        let number = match by {
            IndexMeaning::Number => self.value(index),
            IndexMeaning::Item(list) => match self.position(list, index) {
                Some(position) => Some(Out::Const(position.into())),
                None => self.value(index),
            },
            IndexMeaning::Argument(function) => self.value(index).map(|argument| {
                Out::Call(Box::new(ProgramCall { callee: Called::Named(function.to_owned()), args: vec![argument] }))
            }),
        };
        number.map(|number| (ranges, number))
    }

    /// The position in a list of the item that a variable of a foreach stands for.
    fn position(&self, list: &ListDefinition, index: &SyntaxExpr) -> Option<u32> {
        let ExprKind::Name(name) = &index.bare().kind else { return None };
        match self.names.iter().rev().find(|(known, _)| known == name)?.1 {
            NameBinding::Item(_, of, position) if std::ptr::eq(of, list) => Some(position),
            NameBinding::Variable(_) | NameBinding::Value(_) | NameBinding::Item(..) => None,
        }
    }
}
