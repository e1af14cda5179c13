//! Lowers `print(…)`: a record of values for each time that control passes the statement.

use ingraft_model::{Capacity, Column, ColumnContent, Field, Recorded, Shape, Stmt, VariableId, VariableKind};

use super::meta::Evaluation;
use crate::ast::{Clock, ExprKind, SyntaxExpr};
use crate::diagnostic::codes;

/// Name of the buffer of a definition that prints.
const BUFFER: &str = "records";

impl<'a> Evaluation<'a> {
    /// Lowers a `print` statement.
    pub(super) fn printed(&mut self, statement: &'a SyntaxExpr, args: &'a [SyntaxExpr], out: &mut Vec<Stmt>) {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for arg in args {
            let Some((content, values)) = self.column(arg) else { return };
            fields.extend(values);
            let name = self.library.sources[self.source].slice(arg.span).trim().to_owned();
            columns.push(Column { name, content });
        }
        let recorded = Recorded { number: self.record_number(statement, columns), time: true, fields, limit: None };
        if recorded.words() > Recorded::WORDS_MAX {
            let message = format!("a record of {} words is too long", recorded.words());
            let help = format!("a number takes 1 word, a text 9, and there is room for {}", Recorded::WORDS_MAX - 2);
            return self.error(codes::TOO_LARGE, statement.span, message, help);
        }
        let Some(capacity) = Capacity::of_bytes(0) else { return };
        let buffer = self.record_buffer(capacity);
        out.push(Stmt::Record(buffer, capacity, recorded));
    }

    /// Lowers a value of a record; `None` after a finding.
    fn column(&mut self, arg: &'a SyntaxExpr) -> Option<(ColumnContent, Vec<Field>)> {
        if let ExprKind::Call(callee, parts) = &arg.bare().kind
            && callee.name == "str"
            && !callee.quoted
        {
            return match parts.as_slice() {
                [address] => Some((ColumnContent::Text, vec![Field::Text(self.value(address)?)])),
                [address, length] => {
                    let (address, length) = (self.value(address), self.value(length));
                    Some((ColumnContent::BoundedText, vec![Field::Text(address?), Field::Number(length?)]))
                }
                // The checker has reported others.
                _ => None,
            };
        }
        let content = match &arg.bare().kind {
            ExprKind::Caller => ColumnContent::Caller,
            ExprKind::Return => ColumnContent::Return,
            ExprKind::Elapsed(Clock::Wall) => ColumnContent::Elapsed,
            _ => ColumnContent::Number,
        };
        Some((content, vec![Field::Number(self.value(arg)?)]))
    }

    /// The number of the records that a statement makes. The code in all functions shares it.
    fn record_number(&mut self, statement: &SyntaxExpr, columns: Vec<Column>) -> u16 {
        let key = (self.source, statement.span);
        let known = self.recorded.iter().position(|(known, _)| *known == key);
        let number = known.unwrap_or_else(|| {
            self.recorded.push((key, columns));
            self.recorded.len() - 1
        });
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    fn record_buffer(&mut self, capacity: Capacity) -> VariableId {
        let known = (0..).zip(&self.variables).find(|(_, variable)| variable.shape == Shape::Buffer(capacity));
        match known {
            Some((number, _)) => VariableId(number),
            None => self.variable(BUFFER, VariableKind::Scratch, Shape::Buffer(capacity)),
        }
    }
}
