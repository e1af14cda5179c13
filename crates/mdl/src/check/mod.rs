//! The static stage: checks everything about a definition that does not depend on a program.

mod code;
mod meta;
pub(crate) mod path;
mod types;

use std::collections::HashMap;

use ingraft_model::vector::GRANULES_MAX;
use ingraft_model::{Aggregate, Ranges, Style};

use self::meta::DefinitionCheck;
use self::types::{MetaType, chain, list};
use crate::ast::{
    Accumulator, ConstraintBody, ConstraintDefinition, Definition, DefinitionKind, ElementKind, FieldKind,
    ListDefinition, MdlFile, MetricDefinition, ResourcePattern, VectorIndex,
};
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::library::Library;
use crate::parse::closest;
use crate::pattern::Exclusion;
use crate::source::{SourceSpan, SourceText};

/// Names that the language itself defines.
const PREDEFINED: [&str; 7] = ["$procedures", "$modules", "$start", "$exit", "$machine", "$cmin", "$cmax"];

/// Names to which the definitions of a file can refer: those of the file, in any order, and those of the library.
pub(crate) struct NameScope<'a> {
    library: &'a Library,
    lists: HashMap<&'a str, (&'a ListDefinition, bool)>,
    constraints: HashMap<&'a str, (&'a ConstraintDefinition, bool)>,
    /// The first metric of each public name.
    metrics: HashMap<&'a str, &'a MetricDefinition>,
}

impl<'a> NameScope<'a> {
    pub(crate) fn new(library: &'a Library, file: &'a MdlFile) -> Self {
        let mut scope =
            NameScope { library, lists: HashMap::new(), constraints: HashMap::new(), metrics: HashMap::new() };
        for definition in &file.definitions {
            match &definition.kind {
                DefinitionKind::List(list) => {
                    scope.lists.insert(&list.name.name, (list, definition.broken));
                }
                DefinitionKind::Constraint(constraint) => {
                    scope.constraints.insert(&constraint.name.name, (constraint, definition.broken));
                }
                DefinitionKind::Metric(metric) => {
                    if let Some(name) = metric.name() {
                        scope.metrics.entry(&name.value).or_insert(metric);
                    }
                }
                DefinitionKind::Exclude(_) | DefinitionKind::Config(_) | DefinitionKind::Statement(_) => {}
            }
        }
        scope
    }

    /// The type of a predefined name or a list; `None` if nothing defines it.
    fn global(&self, name: &str) -> Option<MetaType> {
        match name {
            "$procedures" => return Some(list(MetaType::Procedure)),
            "$modules" => return Some(list(MetaType::Module)),
            "$start" | "$exit" => return Some(MetaType::Procedure),
            "$machine" => return Some(MetaType::Text),
            "$cmin" | "$cmax" => return Some(MetaType::Int),
            _ => {}
        }
        let own = self.lists.get(name).copied();
        let found = own.or_else(|| self.library.lists.get(name).map(|entry| (&entry.node, false)));
        match found {
            Some((_, true)) => Some(MetaType::Unknown),
            Some((found, false)) => Some(list(MetaType::of_items(found.element))),
            None => self.library.is_broken(name).then_some(MetaType::Unknown),
        }
    }

    fn list_names(&self) -> Vec<&str> {
        let mut names = PREDEFINED.to_vec();
        names.extend(self.lists.keys().copied());
        names.extend(self.library.lists.keys().map(String::as_str));
        names
    }

    fn has_constraint(&self, name: &str) -> bool {
        self.constraints.contains_key(name)
            || self.library.constraints.contains_key(name)
            || self.library.is_broken(name)
    }
}

/// Checks one definition.
pub(crate) fn check_definition(
    scope: &NameScope<'_>,
    source: &SourceText,
    definition: &Definition,
    out: &mut Vec<Diagnostic>,
) {
    let mut context = DefinitionCheck::new(scope, source, out);
    match &definition.kind {
        DefinitionKind::List(list) => context.list(list),
        DefinitionKind::Constraint(constraint) => context.constraint(constraint),
        DefinitionKind::Metric(metric) => context.metric(metric),
        DefinitionKind::Exclude(exclude) => {
            if let Err(message) = Exclusion::new(exclude) {
                context.error(codes::PATTERN, exclude.pattern.span, message);
            }
        }
        DefinitionKind::Config(_) => {}
        DefinitionKind::Statement(statement) => {
            context.statement(statement);
            let message = "a statement outside of metrics and constraints has no effect";
            context.report(codes::IGNORED, Severity::Warning, definition.span, message);
        }
    }
}

impl DefinitionCheck<'_, '_> {
    fn list(&mut self, list: &ListDefinition) {
        for item in &list.items {
            let good = match list.element {
                ElementKind::Int => crate::number::parse_number(&item.value).is_some(),
                ElementKind::Float => item.value.parse::<f64>().is_ok(),
                ElementKind::Procedure | ElementKind::Module | ElementKind::String => !item.value.is_empty(),
            };
            if !good {
                let message = format!("`{}` is no item of a list of type `{}`", item.value, list.element.keyword());
                self.error(codes::TYPE, item.span, message);
            }
        }
    }

    fn constraint(&mut self, constraint: &ConstraintDefinition) {
        self.path(constraint);
        match &constraint.body {
            ConstraintBody::Flag(body) => {
                self.names.push((constraint.name.name.clone(), MetaType::Data(Accumulator::Counter)));
                self.body(body, &constraint.path);
                self.names.pop();
                self.lint_flag(constraint, body);
            }
            ConstraintBody::Replace(_, body) => {
                self.observed = None;
                self.body(body, &constraint.path);
            }
            ConstraintBody::Default(kinds) => self.kinds(&constraint.path, kinds),
            ConstraintBody::Inclusive | ConstraintBody::Exclusive => {
                if constraint.path.parts.first().is_none_or(|root| root.name != "Code") {
                    let message = "inclusive and exclusive are said of /Code";
                    self.error(codes::PATH, constraint.path.span, message).help =
                        Some("write the flag's code by hand: `is counter { … }`".to_owned());
                }
            }
        }
    }

    fn body(&mut self, body: &[crate::ast::MetaStatement], path: &ResourcePattern) {
        self.chain = Some(chain(path));
        for statement in body {
            self.statement(statement);
        }
        self.chain = None;
    }

    fn metric(&mut self, metric: &MetricDefinition) {
        let kind = metric.base().map_or(Accumulator::Counter, |b| b.kind);
        self.vector = metric.vector().cloned();
        self.names.push((metric.ident.name.clone(), MetaType::Data(kind)));
        self.names.extend(metric.scratch().map(|s| (s.name.clone(), MetaType::Data(Accumulator::Counter))));
        self.repeated(metric);
        let mut replacements: Vec<&ConstraintDefinition> = Vec::new();
        for field in &metric.fields {
            match &field.kind {
                FieldKind::Use(name) if !self.scope.has_constraint(&name.name) => {
                    let mut known: Vec<&str> = self.scope.constraints.keys().copied().collect();
                    known.extend(self.scope.library.constraints.keys().map(String::as_str));
                    let help = closest(&name.name, &known).map(|near| format!("did you mean `{near}`?"));
                    let message = format!("no constraint has the name `{}`", name.name);
                    self.error(codes::UNKNOWN_NAME, name.span, message).help = help;
                }
                FieldKind::Constraint(constraint) => {
                    if let ConstraintBody::Replace(own, _) = constraint.body {
                        self.replacement(metric, kind, own, constraint, &replacements);
                        replacements.push(constraint);
                    }
                    self.constraint(constraint);
                }
                FieldKind::Base(base) => {
                    self.observed = None;
                    for statement in &base.body {
                        self.statement(statement);
                    }
                }
                FieldKind::Vector(vector) => self.vector(vector, metric, field.span),
                _ => {}
            }
        }
    }

    /// Warns about a field that is given twice, of which the last one is used, and about two metrics of one public name.
    fn repeated(&mut self, metric: &MetricDefinition) {
        let several =
            |kind: &FieldKind| matches!(kind, FieldKind::Use(_) | FieldKind::Constraint(_) | FieldKind::Scratch(_));
        let mut seen = Vec::new();
        for field in metric.fields.iter().filter(|f| !several(&f.kind)) {
            let kind = std::mem::discriminant(&field.kind);
            if seen.contains(&kind) {
                let message = "given before in this metric; the last one counts";
                self.report(codes::REPEATED, Severity::Warning, field.span, message);
            } else {
                seen.push(kind);
            }
        }
        let Some(name) = metric.name() else { return };
        if let Some(twin) = self.scope.metrics.get(name.value.as_str()).filter(|m| m.ident.name != metric.ident.name) {
            let message = format!("the metric `{}` has the same name; this one takes its place", twin.ident.name);
            self.report(codes::REPEATED, Severity::Warning, name.span, message);
        }
    }

    fn replacement(
        &mut self,
        metric: &MetricDefinition,
        base: Accumulator,
        own: Accumulator,
        new: &ConstraintDefinition,
        before: &[&ConstraintDefinition],
    ) {
        if base != own && metric.base().is_some() {
            let message = format!("this replaces a `{}` by a `{}`", base.keyword(), own.keyword());
            self.error(codes::KIND, new.name.span, message).help =
                Some(format!("a replacement accumulates what the base does: `is replace {}`", base.keyword()));
        }
        if let Some(other) = before.iter().find(|other| path::overlap(&other.path, &new.path)) {
            let message =
                format!("`{}` and `{}` both replace the code of the same foci", other.name.name, new.name.name);
            self.error(codes::TWO_REPLACEMENTS, new.path.span, message).help = Some("keep one of them".to_owned());
        }
    }

    fn vector(&mut self, vector: &VectorIndex, metric: &MetricDefinition, span: SourceSpan) {
        let kind = metric.base().map_or(Accumulator::Counter, |b| b.kind);
        if kind != Accumulator::Counter {
            let message = format!("a vector of `{}`; only counters can be indexed", kind.keyword());
            self.error(codes::KIND, span, message);
        }
        match vector {
            VectorIndex::List(name)
                if self.scope.global(&name.name).is_none() || PREDEFINED.contains(&name.name.as_str()) =>
            {
                let message = format!("no list has the name `{}`", name.name);
                self.error(codes::UNKNOWN_NAME, name.span, message);
            }
            VectorIndex::Map(_, slots) if !u32::try_from(*slots).is_ok_and(|n| Ranges::numbers(n).is_some()) => {
                self.error(codes::VALUE, span, format!("a vector has between 1 and {GRANULES_MAX} slots"));
            }
            VectorIndex::Table(base, length, granule) if Ranges::new(*base, *length, *granule).is_none() => {
                let message = format!("length divided by granule must be between 1 and {GRANULES_MAX}");
                self.error(codes::VALUE, span, message);
            }
            _ if metric.aggregate().is_some_and(|a| a != Aggregate::Sum) => {
                self.error(codes::VALUE, span, "the values of several threads and processes add up").help =
                    Some("write `aggregateOperator sum;`".to_owned());
            }
            VectorIndex::Objects if metric.style() == Some(Style::EventCounter) => {
                self.error(codes::VALUE, span, "how many objects there are is a level, no event").help =
                    Some("write `style SampledFunction;`".to_owned());
            }
            VectorIndex::List(_)
            | VectorIndex::Map(..)
            | VectorIndex::Table(..)
            | VectorIndex::Keys
            | VectorIndex::Objects => {}
        }
    }
}
