//! Definitions from several texts. A later definition of a name takes the place of an earlier one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ingraft_model::MetricInfo;

use crate::ast::{
    Accumulator, ConfigBlock, ConfigKind, ConfigValue, ConstraintDefinition, DefinitionKind, FieldKind, ListDefinition,
    MdlFile, MetricDefinition,
};
use crate::check::{NameScope, check_definition};
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::parse::{MAX_FINDINGS, ParseOptions, parse};
use crate::pattern::Exclusion;
use crate::source::SourceText;

/// A definition and the text that it comes from.
#[derive(Debug)]
pub(crate) struct LibraryEntry<T> {
    /// Index into the library's sources.
    pub(crate) source: usize,
    pub(crate) node: T,
}

/// A metric that can be requested.
#[derive(Debug)]
pub(crate) struct MetricEntry {
    pub(crate) source: usize,
    pub(crate) node: MetricDefinition,
    pub(crate) info: Arc<MetricInfo>,
}

/// A program that a `process` definition names.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProcessDefinition {
    /// Name of the definition.
    pub name: String,
    /// Path and arguments, separated by blanks.
    pub command: String,
    /// The machine to start it on.
    pub host: Option<String>,
    /// The user to start it as.
    pub user: Option<String>,
    /// The directory to start it in.
    pub dir: Option<String>,
    /// The daemon definition to use.
    pub daemon: Option<String>,
    /// Whether the program is started without a request for it.
    pub auto_start: bool,
}

/// All definitions that are known.
#[derive(Debug, Default)]
pub struct Library {
    options: ParseOptions,
    pub(crate) sources: Vec<SourceText>,
    pub(crate) lists: HashMap<String, LibraryEntry<ListDefinition>>,
    pub(crate) constraints: HashMap<String, LibraryEntry<ConstraintDefinition>>,
    /// Metrics by public name.
    pub(crate) metrics: HashMap<String, MetricEntry>,
    /// Public names of metrics by identifier.
    names: HashMap<String, String>,
    pub(crate) exclusions: Vec<Exclusion>,
    configs: Vec<LibraryEntry<ConfigBlock>>,
    /// Positions of named blocks in `configs`.
    named_configs: HashMap<(ConfigKind, String), usize>,
    /// Names of definitions with errors. A reference to such a definition is not reported as another error.
    broken: HashSet<String>,
    /// Public names and identifiers of metrics whose last definition has an error.
    broken_metrics: HashSet<String>,
    /// The texts of constraints, by name.
    texts: HashMap<String, String>,
    /// The texts of all definitions except metrics that are not shipped, in their order.
    helpers: String,
}

impl Library {
    /// Returns a library without any definition.
    pub fn new(options: ParseOptions) -> Self {
        Library { options, ..Library::default() }
    }

    /// Reads and checks a text, and adds every definition without an error. Returns all findings: an error in one definition does not hide
    /// those in another.
    pub fn load(&mut self, name: &str, text: &str) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        let source = SourceText::new(name, text);
        let is_shipped = crate::shipped::FILES.contains(&(name, text));
        if text.len() > SourceText::MAX_BYTES {
            let message = format!("the text is longer than {} MiB", SourceText::MAX_BYTES >> 20);
            diagnostics.push(Diagnostic::at(codes::TOO_LARGE, Severity::Error, &source, Default::default(), message));
        }
        let file = parse(&source, self.options, &mut diagnostics);
        let good = self.check(&source, &file, &mut diagnostics);
        diagnostics.sort_by_key(|d| d.span.start);
        let index = self.sources.len();
        // Metrics come last: a metric's facts include its constraints, which may stand after it in the text.
        let (metrics, others): (Vec<_>, Vec<_>) = (file.definitions.into_iter().zip(good))
            .partition(|(definition, _)| matches!(definition.kind, DefinitionKind::Metric(_)));
        for (definition, good) in others.into_iter().chain(metrics) {
            if good {
                if !is_shipped && !matches!(definition.kind, DefinitionKind::Metric(_)) {
                    self.helpers.push_str(source.slice(definition.span));
                    self.helpers.push('\n');
                }
                self.insert(index, definition.kind, definition.doc, source.slice(definition.span));
            } else {
                self.broken.extend(name_of(&definition.kind).map(str::to_owned));
                if let DefinitionKind::Metric(metric) = &definition.kind {
                    self.broken_metrics.insert(metric.ident.name.clone());
                    self.broken_metrics.extend(metric.name().map(|name| name.value.clone()));
                }
            }
        }
        self.sources.push(source);
        diagnostics
    }

    /// Tells for each definition whether it has no error.
    fn check(&self, source: &SourceText, file: &MdlFile, diagnostics: &mut Vec<Diagnostic>) -> Vec<bool> {
        let scope = NameScope::new(self, file);
        let mut good = Vec::with_capacity(file.definitions.len());
        for definition in &file.definitions {
            let before = diagnostics.len();
            if before <= MAX_FINDINGS {
                check_definition(&scope, source, definition, diagnostics);
            }
            let complete = diagnostics.len() <= MAX_FINDINGS;
            good.push(complete && !definition.broken && !diagnostics[before..].iter().any(Diagnostic::is_error));
        }
        good
    }

    fn insert(&mut self, source: usize, kind: DefinitionKind, doc: String, text: &str) {
        match kind {
            DefinitionKind::List(node) => {
                self.broken.remove(&node.name.name);
                self.lists.insert(node.name.name.clone(), LibraryEntry { source, node });
            }
            DefinitionKind::Constraint(node) => {
                self.broken.remove(&node.name.name);
                self.texts.insert(node.name.name.clone(), text.to_owned());
                self.constraints.insert(node.name.name.clone(), LibraryEntry { source, node });
            }
            DefinitionKind::Metric(node) => {
                // A new definition replaces the one of the same identifier. Requests use the public name.
                let info = Arc::new(self.info(&node, doc, text));
                self.broken_metrics.remove(&node.ident.name);
                self.broken_metrics.remove(&info.name);
                if let Some(before) = self.names.insert(node.ident.name.clone(), info.name.clone()) {
                    self.metrics.remove(&before);
                }
                self.metrics.insert(info.name.clone(), MetricEntry { source, node, info });
            }
            // The check has reported an invalid pattern.
            DefinitionKind::Exclude(node) => self.exclusions.extend(Exclusion::new(&node)),
            DefinitionKind::Config(node) => {
                let key = node.name.as_ref().map(|n| (node.kind, n.name.clone()));
                match key.clone().and_then(|k| self.named_configs.get(&k).copied()) {
                    Some(index) => self.configs[index] = LibraryEntry { source, node },
                    None => {
                        self.named_configs.extend(key.map(|k| (k, self.configs.len())));
                        self.configs.push(LibraryEntry { source, node });
                    }
                }
            }
            DefinitionKind::Statement(_) => {}
        }
    }

    fn info(&self, metric: &MetricDefinition, doc: String, text: &str) -> MetricInfo {
        let constraints = metric.fields.iter().filter_map(|f| match &f.kind {
            FieldKind::Constraint(c) => Some(c.path.to_string()),
            FieldKind::Use(name) => self.constraints.get(&name.name).map(|c| c.node.path.to_string()),
            _ => None,
        });
        let mut unique: Vec<String> = Vec::new();
        for path in constraints {
            if !unique.contains(&path) {
                unique.push(path);
            }
        }
        MetricInfo {
            name: metric.name().map_or_else(String::new, |n| n.value.clone()),
            unit: metric.units().map_or_else(String::new, |u| u.name.clone()),
            aggregate: metric.aggregate().unwrap_or_default(),
            style: metric.style().unwrap_or_default(),
            units_type: metric.units_type(),
            histogram: metric.base().is_some_and(|base| base.kind == Accumulator::Histogram),
            constraints: unique,
            flavors: metric.flavors().iter().map(|flavor| flavor.name.clone()).collect(),
            developer: metric.developer(),
            doc,
            text: text.into(),
        }
    }

    /// Returns the texts of all definitions except metrics that are not shipped. Two evaluations of one metric with the same texts give
    /// the same.
    pub fn helpers(&self) -> &str {
        &self.helpers
    }

    /// All metrics, sorted by name.
    pub fn metrics(&self) -> Vec<Arc<MetricInfo>> {
        let mut all: Vec<_> = self.metrics.values().map(|m| Arc::clone(&m.info)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// One metric by its public name.
    pub fn metric(&self, name: &str) -> Option<&Arc<MetricInfo>> {
        self.metrics.get(name).map(|m| &m.info)
    }

    /// The event of a metric whose whole value the kernel counts: `base is hwCounter("EVENT") { }` without code.
    pub fn event(&self, name: &str) -> Option<&str> {
        self.metrics.get(name)?.node.event().map(|event| event.value.as_str())
    }

    /// Returns the text to which a diagnostic refers: the latest one of that name.
    pub fn source(&self, name: &str) -> Option<&SourceText> {
        self.sources.iter().rev().find(|s| s.name() == name)
    }

    /// The programs that `process` definitions name.
    pub fn processes(&self) -> Vec<ProcessDefinition> {
        let blocks = self.configs.iter().map(|c| &c.node).filter(|c| c.kind == ConfigKind::Process);
        blocks.map(process_definition).collect()
    }

    /// All configuration blocks in the order of their definition.
    pub fn configs(&self) -> impl Iterator<Item = &ConfigBlock> {
        self.configs.iter().map(|c| &c.node)
    }

    /// The exclusions, in order.
    pub fn exclusions(&self) -> &[Exclusion] {
        &self.exclusions
    }

    /// Whether a metric needs, or may need, a definition with an error: its own, or one that the metric or a constraint of it names.
    pub fn concerned(&self, metric: &str) -> bool {
        let Some(entry) = self.metrics.get(metric).filter(|_| !self.broken_metrics.contains(metric)) else {
            return true;
        };
        if self.broken_metrics.contains(&entry.node.ident.name) {
            return true;
        }
        let used = entry.node.fields.iter().filter_map(|f| match &f.kind {
            FieldKind::Use(name) => self.texts.get(&name.name).map(String::as_str),
            _ => None,
        });
        let names =
            |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| self.broken.contains(w));
        !self.broken.is_empty() && used.chain([&*entry.info.text]).any(names)
    }

    pub(crate) fn is_broken(&self, name: &str) -> bool {
        self.broken.contains(name)
    }
}

/// The name under which other definitions refer to this one.
pub(crate) fn name_of(kind: &DefinitionKind) -> Option<&str> {
    match kind {
        DefinitionKind::List(list) => Some(&list.name.name),
        DefinitionKind::Constraint(constraint) => Some(&constraint.name.name),
        DefinitionKind::Metric(_)
        | DefinitionKind::Exclude(_)
        | DefinitionKind::Config(_)
        | DefinitionKind::Statement(_) => None,
    }
}

fn process_definition(config: &ConfigBlock) -> ProcessDefinition {
    let mut process = ProcessDefinition { auto_start: true, ..ProcessDefinition::default() };
    process.name = config.name.as_ref().map_or_else(String::new, |n| n.name.clone());
    for item in &config.items {
        match (item.key.name.as_str(), &item.value) {
            ("command", ConfigValue::Text(value)) => process.command.clone_from(value),
            ("host", ConfigValue::Text(value)) => process.host = Some(value.clone()),
            ("dir", ConfigValue::Text(value)) => process.dir = Some(value.clone()),
            ("user", ConfigValue::Word(value)) => process.user = Some(value.clone()),
            ("daemon", ConfigValue::Word(value)) => process.daemon = Some(value.clone()),
            ("autoStart", ConfigValue::Bool(value)) => process.auto_start = *value,
            ("args", ConfigValue::Texts(values)) => {
                for value in values {
                    process.command.push(' ');
                    process.command.push_str(value);
                }
            }
            _ => {}
        }
    }
    process
}
