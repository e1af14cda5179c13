//! Lowers `print(…)`: a record of values for each time that control passes the statement.

use std::collections::BTreeSet;

use ingraft_model::{
    CallRecord, Capacity, DataShape, DataVariant, Expr as Out, RecordColumn, RecordContent, RecordField, RecordVariant,
    Recorded, Shape, Stmt, VariableId, VariableKind,
};

use super::data::word;
use super::meta::Evaluation;
use crate::ast::{Clock, ExprKind, SyntaxExpr};
use crate::diagnostic::codes;

/// Name of the buffer of a definition that prints.
const BUFFER: &str = "records";
/// Largest number of words for the data of a value's variants. Data beyond it is not shown.
const VARIANTS_WORDS: u32 = 22;

/// Whether a value of a record is `args()`, which stands for all arguments.
fn is_arguments(arg: &SyntaxExpr) -> bool {
    matches!(&arg.bare().kind, ExprKind::Call(callee, args) if callee.name == "args" && !callee.quoted && args.is_empty())
}

/// Number of words of some fields.
fn words(fields: &[RecordField]) -> u32 {
    fields.iter().map(RecordField::words).sum()
}

/// The argument that an expression is.
fn argument(e: &Out) -> Option<u8> {
    if let Out::Arg(number) = e { Some(*number) } else { None }
}

/// Adds the fields for a value of the program; returns their meaning.
fn recorded(shape: DataShape, fields: &mut Vec<RecordField>) -> RecordContent {
    match shape {
        DataShape::Number(at, names) => {
            fields.push(RecordField::Number(word(&at)));
            RecordContent::Number(names.into())
        }
        DataShape::Characters(at) => {
            fields.push(RecordField::Text(word(&at)));
            RecordContent::Text
        }
        DataShape::Text { bytes, length } => {
            fields.extend([RecordField::Text(word(&bytes)), RecordField::Number(word(&length))]);
            RecordContent::BoundedText
        }
        DataShape::List { elements, length } => {
            fields.extend(elements.iter().map(|(first, _)| RecordField::Text(word(first))));
            fields.push(RecordField::Number(word(&length)));
            RecordContent::List(elements.map(|(_, scalar)| scalar))
        }
        DataShape::Variants { selector, variants } => {
            let has_selector = selector.is_some();
            fields.extend(selector.map(|at| RecordField::Number(word(&at))));
            let mut room = VARIANTS_WORDS;
            let mut one = |DataVariant { value, name, data }: DataVariant| {
                let data = data.map(|shape| {
                    let mut own = Vec::new();
                    let content = recorded(*shape, &mut own);
                    match room.checked_sub(words(&own)) {
                        None => RecordContent::Hidden,
                        Some(rest) => {
                            room = rest;
                            fields.extend(own);
                            content
                        }
                    }
                });
                RecordVariant { value, name, data }
            };
            let variants = variants.into_iter().map(&mut one).collect();
            RecordContent::Variants(has_selector, variants)
        }
        DataShape::Hidden => RecordContent::Hidden,
    }
}

impl<'a> Evaluation<'a> {
    /// Lowers a `print` statement.
    pub(super) fn printed(&mut self, statement: &'a SyntaxExpr, args: &'a [SyntaxExpr], out: &mut Vec<Stmt>) {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for arg in args {
            if is_arguments(arg) {
                self.arguments(&mut fields, &mut columns, args.len());
                continue;
            }
            let Some((content, values)) = self.column(arg) else { return };
            fields.extend(values);
            let name = self.library.sources[self.source].slice(arg.span).trim().to_owned();
            columns.push(RecordColumn { name, content });
        }
        let number = self.record_number(statement, columns);
        let recorded = Recorded { number, time: true, fields, limit: None, leaves_room: false };
        if recorded.words() > Recorded::WORDS_MAX {
            let message = format!("a record of {} words is too long", recorded.words());
            let help = format!("a number takes 1 word, a text 9, and there is room for {}", Recorded::WORDS_MAX - 2);
            return self.error(codes::TOO_LARGE, statement.span, message, help);
        }
        let Some(capacity) = Capacity::of_bytes(0) else { return };
        let buffer = self.record_buffer(capacity);
        out.push(Stmt::Record(buffer, capacity, recorded));
    }

    /// Adds the arguments that the debugging information of the function names: as many as a call keeps until its end besides its time, and
    /// as there is room for. Without debugging information, there are none.
    fn arguments(&mut self, fields: &mut Vec<RecordField>, columns: &mut Vec<RecordColumn>, others: usize) {
        let Some(function) = self.functions_here.first().copied() else { return };
        let known = self.beyond().arguments(function).unwrap_or_default();
        let room = Recorded::WORDS_MAX.saturating_sub(2 + others as u32);
        let mut kept = BTreeSet::new();
        for (name, shape) in known {
            let mut values = Vec::new();
            let content = recorded(shape, &mut values);
            let mut registers = kept.clone();
            values.iter().for_each(|field: &RecordField| field.operand().each(&mut |e| registers.extend(argument(e))));
            if registers.len() < CallRecord::KEPT_MAX && words(fields) + words(&values) <= room {
                kept = registers;
                fields.extend(values);
                columns.push(RecordColumn { name, content });
            }
        }
    }

    /// Lowers a value of a record, or a text in a key; `None` after a finding.
    pub(super) fn column(&mut self, arg: &'a SyntaxExpr) -> Option<(RecordContent, Vec<RecordField>)> {
        if let Some(parts) = arg.text_read() {
            return match parts {
                [address] => self.text_at(address),
                [address, length] => {
                    let (address, length) = (self.value(address), self.value(length));
                    Some((RecordContent::BoundedText, vec![RecordField::Text(address?), RecordField::Number(length?)]))
                }
                // The checker has reported others.
                _ => None,
            };
        }
        // a register by its number is a number, whatever it holds
        let is_register = matches!(arg.bare().kind, ExprKind::Arg(_) | ExprKind::Return);
        if !is_register && let Some(shape) = self.shown(arg, false) {
            let mut fields = Vec::new();
            let content = match shape {
                // `str` reads the characters
                DataShape::Characters(at) => recorded(DataShape::Number(at, None), &mut fields),
                shape => recorded(shape, &mut fields),
            };
            return Some((content, fields));
        }
        let (value, names) = self.named_value(arg)?;
        let content = match &arg.bare().kind {
            ExprKind::Caller => RecordContent::Caller,
            ExprKind::Return => RecordContent::Return(names),
            ExprKind::Elapsed(Clock::Wall) => RecordContent::Elapsed,
            _ => RecordContent::Number(names),
        };
        Some((content, vec![RecordField::Number(value)]))
    }

    /// Lowers a text whose end the text itself tells: that of a value that is a string, or the characters at an address.
    fn text_at(&mut self, address: &'a SyntaxExpr) -> Option<(RecordContent, Vec<RecordField>)> {
        let shape = self.shown(address, true);
        if let Some(shape @ (DataShape::Text { .. } | DataShape::Characters(_))) = shape {
            let mut fields = Vec::new();
            return Some((recorded(shape, &mut fields), fields));
        }
        Some((RecordContent::Text, vec![RecordField::Text(self.value(address)?)]))
    }

    /// The number of the records that a statement makes. The code in all functions shares it.
    fn record_number(&mut self, statement: &SyntaxExpr, columns: Vec<RecordColumn>) -> u16 {
        let key = (self.source, statement.span);
        let known = self.recorded.iter().position(|(known, _)| *known == key);
        let number = known.unwrap_or_else(|| {
            self.recorded.push((key, columns));
            self.recorded.len() - 1
        });
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    fn record_buffer(&mut self, capacity: Capacity) -> VariableId {
        let known = (0..).zip(&self.variables).find(|(_, variable)| variable.shape == Shape::Records(capacity, false));
        match known {
            Some((number, _)) => VariableId(number),
            None => self.variable(BUFFER, VariableKind::Scratch, Shape::Records(capacity, false)),
        }
    }
}
