//! Lowers `print(…)`: a record of values for each time that control passes the statement.

use ingraft_model::{
    CallRecord, Capacity, ColumnContent, Expr as Out, RecordColumn, RecordField, Recorded, Scalar, Shape, Stmt,
    VariableId, VariableKind,
};

use super::data::{extended, reach};
use super::meta::Evaluation;
use crate::ast::{Clock, ExprKind, SyntaxExpr};
use crate::diagnostic::codes;
use crate::program::{NamedParameter, Parameter};

/// Name of the buffer of a definition that prints.
const BUFFER: &str = "records";

/// Whether a value of a record is `args()`, which stands for all arguments.
fn is_arguments(arg: &SyntaxExpr) -> bool {
    matches!(&arg.bare().kind, ExprKind::Call(callee, args) if callee.name == "args" && !callee.quoted && args.is_empty())
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

    /// Adds the arguments that the debugging information of the function names, pointers to characters as texts: as many as a call keeps
    /// until its end besides its time, and as there is room for. Without debugging information, there are none.
    fn arguments(&mut self, fields: &mut Vec<RecordField>, columns: &mut Vec<RecordColumn>, others: usize) {
        let Some(function) = self.functions_here.first().copied() else { return };
        let known = self.beyond().arguments(function).unwrap_or_default();
        let room = Recorded::WORDS_MAX.saturating_sub(2 + others as u32);
        for NamedParameter { name, number, scalar, is_text } in known.into_iter().take(CallRecord::KEPT_MAX - 1) {
            let value = Out::Arg(number);
            let string = if !is_text && scalar == Scalar::POINTER { self.string(number) } else { None };
            let (content, values) = string.unwrap_or_else(|| match is_text {
                true => (ColumnContent::Text, vec![RecordField::Text(value)]),
                false => (ColumnContent::Number, vec![RecordField::Number(extended(value, scalar))]),
            });
            let words = |fields: &[RecordField]| fields.iter().map(RecordField::words).sum::<u32>();
            if words(fields) + words(&values) <= room {
                fields.extend(values);
                columns.push(RecordColumn { name, content });
            }
        }
    }

    /// The text of an argument that leads to a string of the GNU library of C++, by its members; `None` if it leads to something else.
    fn string(&self, argument: u8) -> Option<(ColumnContent, Vec<RecordField>)> {
        let function = self.functions_here.first().copied()?;
        let member = |members: &[&str]| {
            let path = self.beyond().member(function, Parameter::Argument(argument), members).ok()?;
            Some(reach(Out::Arg(argument), &path))
        };
        let (bytes, length) = (member(&["_M_dataplus", "_M_p"])?, member(&["_M_string_length"])?);
        Some((ColumnContent::BoundedText, vec![RecordField::Text(bytes), RecordField::Number(length)]))
    }

    /// Lowers a value of a record; `None` after a finding.
    fn column(&mut self, arg: &'a SyntaxExpr) -> Option<(ColumnContent, Vec<RecordField>)> {
        if let ExprKind::Call(callee, parts) = &arg.bare().kind
            && callee.name == "str"
            && !callee.quoted
        {
            return match parts.as_slice() {
                [address] => {
                    let value = self.value(address)?;
                    if let Out::Arg(number) = value
                        && let Some(string) = self.string(number)
                    {
                        return Some(string);
                    }
                    Some((ColumnContent::Text, vec![RecordField::Text(value)]))
                }
                [address, length] => {
                    let (address, length) = (self.value(address), self.value(length));
                    Some((ColumnContent::BoundedText, vec![RecordField::Text(address?), RecordField::Number(length?)]))
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
        Some((content, vec![RecordField::Number(self.value(arg)?)]))
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
