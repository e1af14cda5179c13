//! `metric` and `constraint`.

use ingraft_model::{Aggregate, Style, UnitsType};

use super::{Parsed, Parser, closest};
use crate::ast::{
    Accumulator, BaseMetric, ConstraintBody, ConstraintDefinition, DefinitionKind, FieldKind, Ident, MetricDefinition,
    MetricField, ResourcePattern, VectorIndex,
};
use crate::diagnostic::codes;
use crate::source::SourceSpan;

const FIELDS: [&str; 12] = [
    "name",
    "units",
    "aggregateOperator",
    "style",
    "mode",
    "unitsType",
    "flavor",
    "constraint",
    "counter",
    "vector",
    "base",
    "foldOperator",
];

const AGGREGATES: [(&str, Aggregate); 4] =
    [("sum", Aggregate::Sum), ("min", Aggregate::Min), ("max", Aggregate::Max), ("avg", Aggregate::Avg)];
const STYLES: [(&str, Style); 2] = [("EventCounter", Style::EventCounter), ("SampledFunction", Style::SampledFunction)];
const MODES: [(&str, bool); 2] = [("developer", true), ("normal", false)];
const UNITS_TYPES: [(&str, UnitsType); 3] =
    [("normalized", UnitsType::Normalized), ("unnormalized", UnitsType::Unnormalized), ("sampled", UnitsType::Sampled)];

impl Parser<'_, '_> {
    pub(super) fn metric(&mut self) -> Parsed<DefinitionKind> {
        self.bump();
        let ident = self.name("the metric's identifier")?;
        let fields = self.block(Self::field)?.into_iter().flatten().collect();
        let metric = MetricDefinition { ident, fields };
        self.missing(&metric);
        Ok(DefinitionKind::Metric(metric))
    }

    /// Reports missing required fields. If some field could not be read, reports none, because that field may be the missing one.
    fn missing(&mut self, metric: &MetricDefinition) {
        let required = [
            ("name", metric.name().is_some()),
            ("units", metric.units().is_some()),
            ("aggregateOperator", metric.aggregate().is_some()),
            ("style", metric.style().is_some()),
            ("base", metric.base().is_some()),
        ];
        let absent: Vec<String> = required.iter().filter(|(_, p)| !p).map(|(f, _)| format!("`{f}`")).collect();
        if absent.is_empty() || self.broken {
            return;
        }
        let message = format!("the metric `{}` lacks {}", metric.ident.name, absent.join(", "));
        self.error(codes::MISSING, metric.ident.span, message).help =
            Some("a metric needs name, units, aggregateOperator, style and base".to_owned());
    }

    /// Reads a field; `None` for an old field without meaning.
    fn field(&mut self) -> Parsed<Option<MetricField>> {
        let (start, span) = (self.at, self.span());
        let Some(word) = self.word() else {
            return self.expected_help("a field of a metric", format!("one of: {}", FIELDS[..11].join(", ")));
        };
        let kind = match word {
            "name" => FieldKind::Name(self.after_keyword(|p| p.text("the metric's name in quotes"))?),
            "units" => FieldKind::Units(self.after_keyword(|p| p.any_word("a unit"))?),
            "aggregateOperator" | "aggregate" => {
                let operator = self.after_keyword(|p| p.choice("an aggregate operator", &AGGREGATES))?;
                if operator == Aggregate::Avg {
                    self.old(self.before(), "`avg` is an older operator", "values are averaged when they are shown");
                }
                FieldKind::Aggregate(operator)
            }
            "style" => FieldKind::Style(self.after_keyword(|p| p.choice("a style", &STYLES))?),
            "mode" => FieldKind::Developer(self.after_keyword(|p| p.choice("a mode", &MODES))?),
            "unitsType" => FieldKind::UnitsType(self.after_keyword(|p| p.choice("a type of units", &UNITS_TYPES))?),
            "flavor" => FieldKind::Flavor(self.flavor()?),
            "counter" => FieldKind::Scratch(self.after_keyword(|p| p.name("a counter's name"))?),
            "vector" => FieldKind::Vector(self.after_keyword(Self::vector)?),
            "constraint" => {
                self.bump();
                let name = self.name("a constraint's name")?;
                if self.at_mark(";") {
                    FieldKind::Use(name)
                } else {
                    let constraint = self.constraint(name, true)?;
                    return Ok(Some(MetricField {
                        kind: FieldKind::Constraint(constraint),
                        span: self.span_from(start),
                    }));
                }
            }
            "base" => {
                self.bump();
                let base = self.base()?;
                return Ok(Some(MetricField { kind: FieldKind::Base(base), span: self.span_from(start) }));
            }
            "foldOperator" => {
                self.bump();
                self.any_word("an operator")?;
                self.semicolon()?;
                self.old(span, "`foldOperator` is an older field", "remove it; it has no effect");
                return Ok(None);
            }
            other => {
                let help = closest(other, &FIELDS)
                    .map_or_else(|| format!("one of: {}", FIELDS[..11].join(", ")), |w| format!("did you mean `{w}`?"));
                self.error(codes::FIELD, span, format!("a metric has no field `{other}`")).help = Some(help);
                return Err(super::ErrorReported);
            }
        };
        self.semicolon()?;
        Ok(Some(MetricField { kind, span: self.span_from(start) }))
    }

    fn after_keyword<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.bump();
        read(self)
    }

    /// Reads the indices of a vector: `over list NAME`, `over map "f", SLOTS`, `over table BASE, LENGTH, GRANULE`, `over keys` or `over
    /// objects`.
    fn vector(&mut self) -> Parsed<VectorIndex> {
        self.need_word("over")?;
        match self.word() {
            Some("list") => {
                self.bump();
                Ok(VectorIndex::List(self.name("a list")?))
            }
            Some("map") => {
                self.bump();
                let function = self.text("the name of a function")?;
                self.need_mark(",")?;
                Ok(VectorIndex::Map(function, self.integer()?))
            }
            Some("table") => {
                self.bump();
                let base = self.integer()?;
                self.need_mark(",")?;
                let length = self.integer()?;
                self.need_mark(",")?;
                Ok(VectorIndex::Table(base, length, self.integer()?))
            }
            Some("keys") => {
                self.bump();
                Ok(VectorIndex::Keys)
            }
            Some("objects") => {
                self.bump();
                Ok(VectorIndex::Objects)
            }
            _ => self.expected_help(
                "what the vector is indexed by",
                "one of: list NAME, map \"f\", SLOTS, table BASE, LENGTH, GRANULE, keys, objects",
            ),
        }
    }

    fn base(&mut self) -> Parsed<BaseMetric> {
        self.need_word("is")?;
        let kind = self.choice("what is accumulated", &Accumulator::ALL)?;
        let mut event = None;
        if matches!(kind, Accumulator::HwTimer | Accumulator::HwCounter) {
            if !self.at_mark("(") {
                let help = format!("write `base is {}(\"instructions\") {{ … }}`", kind.keyword());
                return self.expected_help("`(` and an event", help);
            }
            self.bump();
            event = Some(self.text("the name of an event")?);
            self.need_mark(")")?;
        }
        Ok(BaseMetric { kind, event, body: self.meta_block()? })
    }

    pub(super) fn global_constraint(&mut self) -> Parsed<DefinitionKind> {
        self.bump();
        let name = self.name("the constraint's name")?;
        Ok(DefinitionKind::Constraint(self.constraint(name, false)?))
    }

    /// Reads a constraint from its path on. Replacements stand only inside of metrics, and flags only outside.
    fn constraint(&mut self, name: Ident, in_metric: bool) -> Parsed<ConstraintDefinition> {
        let path = self.path()?;
        self.need_word("is")?;
        let span = self.span();
        let body = match self.word() {
            Some("replace") if in_metric => {
                self.bump();
                let kind = self.choice("what is accumulated", &Accumulator::ALL)?;
                ConstraintBody::Replace(kind, self.meta_block()?)
            }
            Some("replace") => {
                self.error(codes::EXPECTED, span, "a replacement outside of a metric").help =
                    Some("put it into the metric whose code it replaces".to_owned());
                return Err(super::ErrorReported);
            }
            Some("counter" | "default") if in_metric => {
                self.error(codes::EXPECTED, span, "a flag or default constraint inside a metric").help = Some(
                    "define it outside and name it here: `constraint NAME;`; inside are only `is replace …`".to_owned(),
                );
                return Err(super::ErrorReported);
            }
            Some("counter") => {
                self.bump();
                ConstraintBody::Flag(self.meta_block()?)
            }
            Some("default") => {
                self.bump();
                let kinds = if self.at_mark("{") { self.items("{", "}", true)? } else { Vec::new() };
                // As everywhere, the `;` after a closing brace may be missing.
                if kinds.is_empty() || self.at_mark(";") {
                    self.semicolon()?;
                }
                ConstraintBody::Default(kinds)
            }
            Some(word @ ("inclusive" | "exclusive")) => {
                self.bump();
                self.semicolon()?;
                if word == "inclusive" { ConstraintBody::Inclusive } else { ConstraintBody::Exclusive }
            }
            _ => {
                let help = if in_metric {
                    "write `is replace counter { … }`, `is inclusive;` or `is exclusive;`"
                } else {
                    "write `is counter { … }`, `is inclusive;`, `is exclusive;` or `is default;`"
                };
                return self.expected_help("how the constraint restricts", help);
            }
        };
        Ok(ConstraintDefinition { name, path, body })
    }

    fn path(&mut self) -> Parsed<ResourcePattern> {
        let (start, here) = (self.at, self.span());
        let mut parts = Vec::new();
        while self.eat_mark("/") {
            if self.at_mark("*") {
                parts.push(Ident { name: "*".to_owned(), span: self.bump() });
                continue;
            }
            let mut part = self.any_word("a name or `*`")?;
            let renamed = match part.name.as_str() {
                "Procedure" => "Code",
                "MsgTag" => "Message",
                _ => "",
            };
            if !renamed.is_empty() {
                self.old(part.span, format!("`{}` is an older name", part.name), format!("write `{renamed}`"));
                part.name = renamed.to_owned();
            }
            parts.push(part);
        }
        let span =
            if self.at > start { self.span_from(start) } else { SourceSpan { start: here.start, end: here.start } };
        Ok(ResourcePattern { parts, span })
    }
}
