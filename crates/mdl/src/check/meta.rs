//! Checks the types of the meta language.

use std::collections::BTreeSet;

use ingraft_model::{CallRecord, KeyParts};

use super::types::{MetaType, PointType};
use super::{NameScope, PREDEFINED};
use crate::ast::{BinaryOp, ExprKind, Ident, InsertStatement, MetaKind, MetaStatement, SyntaxExpr, VectorIndex};
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::parse::{MAX_FINDINGS, closest};
use crate::source::{SourceSpan, SourceText};

/// A definition being checked.
pub(super) struct DefinitionCheck<'a, 'd> {
    pub(super) scope: &'a NameScope<'a>,
    source: &'a SourceText,
    out: &'d mut Vec<Diagnostic>,
    /// Receives the details of findings beyond the limit. It is never reported.
    spare: Diagnostic,
    /// Names in scope with their types, from the outermost to the innermost.
    pub(super) names: Vec<(String, MetaType)>,
    /// The types of `$constraint[i]`; `None` outside of a constraint.
    pub(super) chain: Option<Vec<MetaType>>,
    /// Index of the metric's vector.
    pub(super) vector: Option<VectorIndex>,
    /// Point where the code being checked runs, `None` if unknown, and whether the code runs after the instruction. `None` outside of
    /// code.
    pub(super) place: Option<(Option<PointType>, bool)>,
    /// Names of the arguments and clocks that a call's record must keep from its beginning for the code at its end.
    pub(super) kept: BTreeSet<String>,
    /// Whether the histogram observes times alone; `None` before the first `observe`.
    pub(super) observed: Option<bool>,
    /// Parts of the metric's keys; `None` before the first key.
    pub(super) key_parts: Option<KeyParts>,
    /// Number of `if` statements of the meta language that enclose the statement being checked.
    conditions: u32,
}

impl<'a, 'd> DefinitionCheck<'a, 'd> {
    pub(super) fn new(scope: &'a NameScope<'a>, source: &'a SourceText, out: &'d mut Vec<Diagnostic>) -> Self {
        let spare = Diagnostic::request(codes::TOO_LARGE, "");
        DefinitionCheck {
            scope,
            source,
            out,
            spare,
            names: Vec::new(),
            chain: None,
            vector: None,
            place: None,
            kept: BTreeSet::new(),
            observed: None,
            key_parts: None,
            conditions: 0,
        }
    }

    pub(super) fn report(
        &mut self,
        code: &'static str,
        severity: Severity,
        span: SourceSpan,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        if self.out.len() > MAX_FINDINGS {
            return &mut self.spare;
        }
        if self.out.len() == MAX_FINDINGS {
            let message = format!("more than {MAX_FINDINGS} findings; the rest of the text is not checked");
            self.out.push(Diagnostic::at(codes::TOO_LARGE, Severity::Error, self.source, span, message));
            return &mut self.spare;
        }
        self.out.push(Diagnostic::at(code, severity, self.source, span, message));
        let last = self.out.len() - 1;
        &mut self.out[last]
    }

    pub(super) fn error(
        &mut self,
        code: &'static str,
        span: SourceSpan,
        message: impl Into<String>,
    ) -> &mut Diagnostic {
        self.report(code, Severity::Error, span, message)
    }

    pub(super) fn statement(&mut self, statement: &MetaStatement) {
        match &statement.kind {
            MetaKind::Block(inner) => inner.iter().for_each(|s| self.statement(s)),
            MetaKind::If(condition, then, otherwise) => {
                let found = self.expr(condition);
                self.want(condition, &found, &MetaType::Int);
                self.conditions += 1;
                self.statement(then);
                if let Some(otherwise) = otherwise {
                    self.statement(otherwise);
                }
                self.conditions -= 1;
            }
            MetaKind::Foreach(variable, list, body) => {
                let element = match self.expr(list) {
                    MetaType::List(element) => *element,
                    MetaType::Unknown => MetaType::Unknown,
                    found => {
                        let message = format!("foreach needs a list, this is {}", found.words());
                        self.error(codes::TYPE, list.span, message).help = Some(
                            "lists are resource lists, $procedures, $modules, and the fields funcs and calls"
                                .to_owned(),
                        );
                        MetaType::Unknown
                    }
                };
                self.names.push((variable.name.clone(), element));
                self.statement(body);
                self.names.pop();
            }
            MetaKind::Insert(insert) => self.insert(insert),
        }
    }

    fn insert(&mut self, insert: &InsertStatement) {
        let found = self.expr(&insert.points);
        let point = found.point();
        if point.is_none() && found != MetaType::Unknown {
            let message = format!("code goes to points, this is {}", found.words());
            let fields = found.fields();
            self.error(codes::TYPE, insert.points.span, message).help =
                (!fields.is_empty()).then(|| format!("add one of the fields: .{}", fields.join(", .")));
        }
        if point == Some(PointType::Return) && insert.after {
            self.error(codes::PLACE, insert.points.span, "nothing runs behind a return").help =
                Some("write `preInsn`: before the return, where `$return` is known".to_owned());
        }
        self.place = Some((point, insert.after));
        self.kept.clear();
        // If code stands under a condition, it is not known whether a request has it together with other code.
        let around = self.observed;
        if self.conditions > 0 {
            self.observed = None;
        }
        for statement in &insert.code {
            self.code(statement);
        }
        if self.conditions > 0 {
            self.observed = around;
        }
        let at_end = matches!((point, insert.after), (Some(PointType::Return), false) | (Some(PointType::Call), true));
        if at_end && self.kept.len() > CallRecord::KEPT_MAX {
            let message = format!("the code at the end of a call uses {} arguments and clocks", self.kept.len());
            self.error(codes::TOO_LARGE, insert.code_span, message).help =
                Some(format!("at most {} are kept; keep others in counters", CallRecord::KEPT_MAX));
        }
        self.place = None;
    }

    pub(super) fn want(&mut self, expr: &SyntaxExpr, found: &MetaType, wanted: &MetaType) {
        if found != wanted && *found != MetaType::Unknown {
            let message = format!("expected {}, this is {}", wanted.words(), found.words());
            self.error(codes::TYPE, expr.span, message);
        }
    }

    /// The type of a meta expression.
    pub(super) fn expr(&mut self, expr: &SyntaxExpr) -> MetaType {
        match &expr.kind {
            ExprKind::Int(_) => MetaType::Int,
            ExprKind::Text(_) => MetaType::Text,
            ExprKind::Paren(inner) => self.expr(inner),
            ExprKind::Name(name) => self.name(name, expr.span),
            ExprKind::Index(name, index) => {
                let found = self.expr(index);
                self.want(index, &found, &MetaType::Int);
                self.indexed(name, index)
            }
            ExprKind::Field(of, field) => {
                let found = self.expr(of);
                self.field(of, &found, field)
            }
            ExprKind::Unary(_, operand) => {
                let found = self.expr(operand);
                if found != MetaType::Float {
                    self.want(operand, &found, &MetaType::Int);
                }
                found
            }
            ExprKind::Binary(op, a, b) => self.binary(*op, a, b),
            ExprKind::Call(callee, args) if callee.name == "libraryTag" && !callee.quoted => {
                for arg in args {
                    let found = self.expr(arg);
                    self.want(arg, &found, &MetaType::Int);
                }
                if args.len() != 1 {
                    self.error(codes::TYPE, expr.span, "`libraryTag` takes one argument, the tag of a procedure");
                }
                MetaType::Int
            }
            _ => {
                let text = self.source.slice(expr.span).to_owned();
                let message = format!("`{text}` is only known while the program runs");
                self.error(codes::PLACE, expr.span, message).help =
                    Some("it belongs into code, between `(*` and `*)`".to_owned());
                MetaType::Unknown
            }
        }
    }

    fn binary(&mut self, op: BinaryOp, a: &SyntaxExpr, b: &SyntaxExpr) -> MetaType {
        let (left, right) = (self.expr(a), self.expr(b));
        if left == MetaType::Unknown || right == MetaType::Unknown {
            return MetaType::Int;
        }
        let comparison = matches!(
            op,
            BinaryOp::Equal
                | BinaryOp::NotEqual
                | BinaryOp::Less
                | BinaryOp::LessOrEqual
                | BinaryOp::Greater
                | BinaryOp::GreaterOrEqual
        );
        let good = left == right
            && (left == MetaType::Int || (comparison && matches!(left, MetaType::Text | MetaType::Float)));
        if !good {
            let message = format!("`{}` between {} and {}", op.symbol(), left.words(), right.words());
            self.error(codes::TYPE, a.span.to(b.span), message).help =
                Some("numbers can be computed with, two strings compared".to_owned());
        }
        MetaType::Int
    }

    pub(super) fn name(&mut self, name: &str, span: SourceSpan) -> MetaType {
        if let Some((_, found)) = self.names.iter().rev().find(|(n, _)| n == name) {
            return found.clone();
        }
        if let Some(found) = self.scope.global(name) {
            return found;
        }
        let mut known: Vec<&str> = self.names.iter().map(|(n, _)| n.as_str()).collect();
        known.extend(self.scope.list_names());
        known.truncate(1000);
        let help = closest(name, &known).map(|near| format!("did you mean `{near}`?"));
        let message = format!("nothing defines `{name}`");
        let help = help.or_else(|| name.starts_with('$').then(|| format!("predefined are {}", PREDEFINED.join(", "))));
        self.error(codes::UNKNOWN_NAME, span, message).help = help;
        MetaType::Unknown
    }

    /// Returns the type of `name[index]`. The caller has checked the type of the index.
    pub(super) fn indexed(&mut self, name: &Ident, index: &SyntaxExpr) -> MetaType {
        if name.name == "$constraint" {
            let Some(chain) = &self.chain else {
                let message = "`$constraint` means nothing here";
                self.error(codes::UNKNOWN_NAME, name.span, message).help = Some("only constraints have it".to_owned());
                return MetaType::Unknown;
            };
            let ExprKind::Int(position) = index.bare().kind else { return MetaType::Unknown };
            if let Some(found) = usize::try_from(position).ok().and_then(|p| chain.get(p)) {
                return found.clone();
            }
            let message = match chain.len().checked_sub(1) {
                Some(last) => format!("the last element of this constraint's path is `$constraint[{last}]`"),
                None => "this constraint has no path".to_owned(),
            };
            self.error(codes::VALUE, index.span, message);
            return MetaType::Unknown;
        }
        match self.name(&name.name, name.span) {
            MetaType::List(element) => *element,
            MetaType::Unknown => MetaType::Unknown,
            found => {
                let message = format!("only lists have elements, `{}` is {}", name.name, found.words());
                self.error(codes::TYPE, name.span, message);
                MetaType::Unknown
            }
        }
    }

    fn field(&mut self, of: &SyntaxExpr, found: &MetaType, field: &Ident) -> MetaType {
        if *found == MetaType::Unknown {
            return MetaType::Unknown;
        }
        if let Some(result) = found.field(&field.name) {
            return result;
        }
        let fields = found.fields();
        let text = self.source.slice(of.span).to_owned();
        let message = format!("`{text}` is {}, which has no field `{}`", found.words(), field.name);
        let help = match (found, closest(&field.name, &fields)) {
            (MetaType::List(_), _) => Some("go through the list with foreach".to_owned()),
            (_, Some(near)) => Some(format!("did you mean `{near}`?")),
            (_, None) => (!fields.is_empty()).then(|| format!("its fields are {}", fields.join(", "))),
        };
        self.error(codes::UNKNOWN_FIELD, field.span, message).help = help;
        MetaType::Unknown
    }
}
