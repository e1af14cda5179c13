//! Vectors: the meaning of an index, and the names of the values.

use ingraft_model::{
    Called, Expr as Out, Fold, IndexNames, KeyField, KeyParts, ProgramCall, Ranges, RecordContent, RecordField, Shape,
    Stmt, TableShape, ValueNames, VariableId,
};

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

/// A value of a vector.
#[derive(Clone)]
pub(super) enum VectorSlot {
    /// The value of a key.
    Key(VariableId, TableShape, Vec<KeyField>),
    /// The value of the granule in which a number lies.
    Granule(VariableId, Ranges, Out),
}

impl VectorSlot {
    /// The value; `None` for a key of several parts or a text, whose value cannot be read.
    pub(super) fn value(self) -> Option<Out> {
        match self {
            VectorSlot::Granule(vector, ranges, number) => Some(Out::ValueIn(vector, ranges, Box::new(number))),
            VectorSlot::Key(vector, table, key) => match <[KeyField; 1]>::try_from(key) {
                Ok([KeyField::Number(key)]) => Some(Out::ValueAt(vector, table.places, Box::new(key))),
                _ => None,
            },
        }
    }

    pub(super) fn add(self, amount: Out) -> Stmt {
        match self {
            VectorSlot::Granule(vector, ranges, number) => Stmt::AddIn(vector, ranges, number, amount),
            VectorSlot::Key(vector, table, key) => Stmt::AddAt(vector, table, key, amount),
        }
    }

    /// The number that is the index, if the index is one number.
    pub(super) fn number_mut(&mut self) -> Option<&mut Out> {
        match self {
            VectorSlot::Granule(_, _, number) => Some(number),
            VectorSlot::Key(_, _, key) => match key.as_mut_slice() {
                [KeyField::Number(number)] => Some(number),
                _ => None,
            },
        }
    }
}

impl<'a> Evaluation<'a> {
    /// Shape of the values of a vectorised metric.
    pub(super) fn vector(&mut self, vector: &'a VectorIndex, span: SourceSpan) -> Option<Shape> {
        let (ranges, by, names) = match vector {
            VectorIndex::Keys => return Some(Shape::Table(TableShape::SUMS)),
            VectorIndex::Objects => return Some(Shape::Table(TableShape::OBJECTS)),
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
            Shape::Table(TableShape { fold: Fold::Sum, .. }) => Some(self.key(vector, index)),
            Shape::Vector(_) => {
                Some(self.number(index).map(|(ranges, number)| VectorSlot::Granule(vector, ranges, number)))
            }
            Shape::Counter
            | Shape::Timer(_)
            | Shape::Histogram(_)
            | Shape::Activations
            | Shape::Outermost
            | Shape::Table(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Records(..)
            | Shape::Contexts(_)
            | Shape::Event
            | Shape::Alias(_) => None,
        }
    }

    /// Lowers a key, and notes the names of its values. The first one tells which parts the keys of the variable have; the checker has
    /// compared them.
    fn key(&mut self, vector: VariableId, index: &'a SyntaxExpr) -> Option<VectorSlot> {
        let parts = if let ExprKind::Row(parts) = &index.bare().kind { parts } else { std::slice::from_ref(index) };
        let fields = parts.iter().map(|part| self.key_field(part)).collect::<Option<Vec<_>>>()?;
        let (key, names): (Vec<KeyField>, Vec<ValueNames>) = fields.into_iter().unzip();
        let parts = KeyParts::of(key.iter().map(KeyField::is_text))?;
        let table = TableShape { parts, ..TableShape::SUMS };
        if let Some(variable) = self.variables.get_mut(vector.0 as usize) {
            variable.shape = Shape::Table(table);
        }
        match &mut self.key_names {
            Some(known) => {
                known.iter_mut().zip(names).filter(|(known, names)| *known != names).for_each(|(known, _)| {
                    *known = ValueNames::None;
                })
            }
            None => self.key_names = Some(names),
        }
        Some(VectorSlot::Key(vector, table, key))
    }

    /// Lowers a part of a key, with the names of its values; `None` after a finding.
    fn key_field(&mut self, part: &'a SyntaxExpr) -> Option<(KeyField, ValueNames)> {
        if part.text_read().is_none() {
            let (number, names) = self.named_value(part)?;
            return Some((KeyField::Number(number), names));
        }
        let (content, mut fields) = self.column(part)?;
        let text = match (content, fields.pop(), fields.pop()) {
            (RecordContent::BoundedText, Some(RecordField::Number(length)), Some(RecordField::Text(address))) => {
                KeyField::BoundedText(address, length)
            }
            (RecordContent::Text, Some(RecordField::Text(address)), None) => KeyField::Text(address),
            _ => {
                self.refuse(part, "a text of such a value as a part of a key");
                return None;
            }
        };
        Some((text, ValueNames::None))
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
