//! The meta language: statements and expressions that the tool executes.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ingraft_model::{
    Clock, Enumerators, Flavor, Focus, FunctionId, IndexNames, Insertion, LoopEdges, ModuleId, Parts, PointId,
    PointKind, RecordColumn, Refusal, Resolution, ResourcePath, Shape, Snippet, Stmt, ValueNames, ValueUnit, Variable,
    VariableId, VariableKind,
};

use super::events::{EventReadMethod, EventTimer};
use super::flavor;
use super::frame::KnownRecord;
use super::insert::InsertionDraft;
use super::select::{HIERARCHIES, Selection};
use super::vector::Indexed;
use super::walk::observes_times_alone;
use crate::ast::{
    Accumulator, BinaryOp, ElementKind, ExprKind, ListDefinition, MetaKind, MetaStatement, SyntaxExpr, UnaryOp,
};
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::library::{Library, MetricEntry};
use crate::number::parse_number;
use crate::program::ProgramFacts;
use crate::source::SourceSpan;

/// Largest number of rounds of foreach in one request: ten times the functions of the largest programs.
const MAX_ROUNDS: u32 = 5_000_000;

/// A value of the meta language.
#[derive(Clone, Debug)]
pub(super) enum MetaValue<'a> {
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A procedure: all functions that its name means.
    Functions(Vec<FunctionId>),
    Module(ModuleId),
    /// Functions, each a procedure of its own.
    FunctionList(Vec<FunctionId>),
    ModuleList(Vec<ModuleId>),
    /// A `resourceList` of the text.
    List(&'a ListDefinition),
    /// The points of this kind in these functions, in each of them those of the parts.
    Points(PointKind, Vec<(FunctionId, Parts)>),
    /// A block or an edge of these functions, and the points there.
    Part(PointKind, Vec<(FunctionId, Parts)>),
    /// A loop of each of these functions.
    Loop(Vec<LoopOf>),
    /// Loops, each a value of its own.
    LoopList(Vec<LoopOf>),
    /// A value that was reported as an error or as not woven yet. A use of it is not reported again.
    Refused,
}

/// A loop and its function.
pub(super) type LoopOf = (FunctionId, LoopEdges);

/// Statements of one definition.
#[derive(Clone, Debug)]
pub(super) struct DefinitionBody<'a> {
    pub(super) statements: &'a [MetaStatement],
    pub(super) source: usize,
    /// Values of `$constraint[0]`, `$constraint[1]`, …
    pub(super) chain: Vec<MetaValue<'a>>,
}

/// A flag that the focus needs.
pub(super) struct FocusFlag<'a> {
    pub(super) name: &'a str,
    pub(super) code: FlagCode<'a>,
}

/// Method by which a flag is maintained.
pub(super) enum FlagCode<'a> {
    /// These statements maintain the flag.
    Written(DefinitionBody<'a>),
    /// The word `inclusive` or `exclusive` maintains the flag. The word stands at this span of this source.
    Word(FlagWord, FlagScope, usize, SourceSpan),
}

/// Code while whose execution a flag is set.
pub(super) enum FlagScope {
    /// These functions.
    Functions(Vec<FunctionId>),
    /// A loop of each of these functions.
    Loop(Vec<LoopOf>),
}

/// Flags that need no code of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagWord {
    Inclusive,
    Exclusive,
}

/// Meaning of a name of the text.
#[derive(Clone, Debug)]
pub(super) enum NameBinding<'a> {
    Variable(VariableId),
    Value(MetaValue<'a>),
    /// An item of a list, with its position there.
    Item(MetaValue<'a>, &'a ListDefinition, u32),
}

/// One request being evaluated.
pub(super) struct Evaluation<'a> {
    pub(super) library: &'a Library,
    pub(super) metric: &'a MetricEntry,
    /// The program, for questions about what the focus names; [`Evaluation::beyond`] is for all other questions.
    pub(super) program: &'a dyn ProgramFacts,
    /// The flavors that the client states; the program has them besides its own.
    pub(super) stated: &'a [Flavor],
    pub(super) looked_beyond: Cell<bool>,
    /// Index of the source to which spans refer.
    pub(super) source: usize,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) variables: Vec<Variable>,
    pub(super) insertions: Vec<Insertion>,
    /// Names in scope, from the outermost to the innermost.
    pub(super) names: Vec<(&'a str, NameBinding<'a>)>,
    pub(super) chain: Vec<MetaValue<'a>>,
    /// The address of the object that the focus names.
    pub(super) object: Option<u64>,
    /// Index of the metric's vector, and the names of its values.
    pub(super) indexed: Option<Indexed<'a>>,
    pub(super) index_names: Option<IndexNames>,
    /// The flags that constrained code tests, outermost first.
    pub(super) flags: Vec<VariableId>,
    /// The functions that the request measures through its lists.
    pub(super) measured: Arc<[FunctionId]>,
    /// Rounds of all foreach so far.
    rounds: u32,
    /// Whether the metric's code replaces the base for a kind of object, and whether evaluation has reached a statement that inserts code.
    of_kind: bool,
    reached: bool,
    /// All snippets of the request, so that equal snippets are shared.
    pub(super) snippets: HashSet<Arc<Snippet>>,
    /// Scratch variables of values that code computes once (conditions with an else, addresses, indices, old values), by source and
    /// position.
    pub(super) decisions: HashMap<(usize, SourceSpan), VariableId>,
    /// Unit in which the histogram observes its values; `None` before the first one.
    pub(super) observed: Option<ValueUnit>,
    /// Whether the text observes only times alone.
    pub(super) observes_times: bool,
    // The following fields, up to `callees`, describe the definition whose code is being evaluated, except `looks`.
    /// Name and number of the definition.
    pub(super) definition: &'a str,
    pub(super) group: u32,
    /// Whether the definition is a flag that is not 0 while its functions themselves execute.
    pub(super) exclusive: bool,
    /// Flag of the definition, if it is a constraint.
    pub(super) flag: Option<VariableId>,
    /// Kind of point where the current code will run; `None` after a finding.
    pub(super) point_kind: Option<PointKind>,
    /// The functions in which the current code will run.
    pub(super) functions_here: Vec<FunctionId>,
    /// Number of functions of whose arguments and results the whole request has taken members.
    pub(super) looks: u32,
    /// Names of the values of the data that was lowered last, if they are those of an enumeration.
    pub(super) value_names: Option<Enumerators>,
    /// Names of the values of each part of the keys of the metric's vector: `None` before a key is lowered, and none if several keys have
    /// different names.
    pub(super) key_names: Option<Vec<ValueNames>>,
    pub(super) drafts: Vec<InsertionDraft>,
    /// Drafts that run last at entries.
    pub(super) late: Vec<InsertionDraft>,
    pub(super) records: Vec<KnownRecord>,
    /// Variable with the time in instrumented callees, for `$self`.
    pub(super) callees: Option<VariableId>,
    /// Method by which code at points reads the metric's event, the variable of an event that a processor counter counts, and the event's
    /// timer.
    pub(super) metered: Option<EventReadMethod>,
    pub(super) event: Option<VariableId>,
    /// Assignments inside expressions of the current statement, which run before it.
    pub(super) before: Vec<Stmt>,
    pub(super) event_timer: Option<EventTimer>,
    /// The `print` statements, by source and position, with the columns of their records.
    pub(super) recorded: Vec<((usize, SourceSpan), Vec<RecordColumn>)>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(
        library: &'a Library,
        metric: &'a MetricEntry,
        (program, flavors): (&'a dyn ProgramFacts, &'a [Flavor]),
    ) -> Self {
        Evaluation {
            library,
            metric,
            program,
            stated: flavors,
            looked_beyond: Cell::new(false),
            source: metric.source,
            diagnostics: Vec::new(),
            variables: Vec::new(),
            insertions: Vec::new(),
            names: Vec::new(),
            chain: Vec::new(),
            object: None,
            indexed: None,
            index_names: None,
            flags: Vec::new(),
            measured: Arc::from([]),
            rounds: 0,
            of_kind: false,
            reached: false,
            snippets: HashSet::new(),
            decisions: HashMap::new(),
            observed: None,
            observes_times: false,
            definition: &metric.node.ident.name,
            group: 0,
            exclusive: false,
            flag: None,
            functions_here: Vec::new(),
            looks: 0,
            value_names: None,
            key_names: None,
            point_kind: None,
            drafts: Vec::new(),
            late: Vec::new(),
            records: Vec::new(),
            callees: None,
            metered: None,
            before: Vec::new(),
            event: None,
            event_timer: None,
            recorded: Vec::new(),
        }
    }

    /// Returns the program, for questions about what the focus does not name, or about a function itself. The answer may be another one
    /// for another function, so the result is not reused.
    pub(super) fn beyond(&self) -> &'a dyn ProgramFacts {
        self.looked_beyond.set(true);
        self.program
    }

    pub(super) fn run(&mut self, focus: &Focus) {
        let node = &self.metric.node;
        if !self.in_flavor(node.flavors()) {
            let message = format!("the metric `{}` {}", self.metric.info.name, flavor::only_for(node.flavors()));
            self.error(codes::FLAVOR, node.ident.span, message, self.flavor_help(node.flavors()));
            return;
        }
        let Some(base) = node.base() else { return };
        let kind = base.kind;
        let restricted = HIERARCHIES.iter().any(|root| focus.part(root).is_some());
        let without_code = node.event().is_some() && !restricted;
        if matches!(kind, Accumulator::HwTimer | Accumulator::HwCounter) && !without_code {
            let span =
                node.fields.iter().rev().find(|f| matches!(&f.kind, crate::ast::FieldKind::Base(_))).map(|f| f.span);
            let head = span.map_or(node.ident.span, |s| SourceSpan { start: s.start, end: s.start + 4 });
            let event = base.event.as_ref().map_or("", |event| event.value.as_str());
            let metered = EventReadMethod::named(event);
            self.metered = Some(metered);
            let why = match (kind, metered) {
                (Accumulator::HwCounter, EventReadMethod::ProcessorTime) => {
                    Some(format!("`{event}` is a time: use `hwTimer` or `processTimer`"))
                }
                (Accumulator::HwCounter, _) if base.body.is_empty() => Some(format!(
                    "without code, `hwCounter` counts `{event}` in whole threads, not in a part of the code"
                )),
                _ => None,
            };
            if let Some(why) = why {
                self.not_woven(head, why);
            }
        }
        let vector = node.vector().and_then(|vector| self.vector(vector, node.ident.span));
        let Selection { replacement, flags } = self.select(focus);
        let shape = vector.unwrap_or_else(|| self.shape(kind));
        self.declare(&node.ident.name, VariableKind::Counter, shape);
        self.variables[0].sampled = kind != Accumulator::Void;
        if self.metered == Some(EventReadMethod::Counter) {
            self.event = Some(self.variable("event", VariableKind::Scratch, Shape::Event));
        }
        for scratch in node.scratch() {
            self.declare(&scratch.name, VariableKind::Scratch, Shape::Counter);
        }
        for flag in &flags {
            let id = self.variable(flag.name, VariableKind::Flag, Shape::Counter);
            self.flags.push(id);
        }
        let base_body = DefinitionBody { statements: &base.body, source: self.metric.source, chain: Vec::new() };
        let body = replacement.unwrap_or(base_body);
        // If the code depends on the kind of object in the focus but has nothing for this kind, it does not restrict the metric to the
        // kind.
        self.of_kind =
            matches!(body.chain.as_slice(), [MetaValue::Text(_), MetaValue::Text(root)] if *root == "SyncObject");
        let empty = body.statements.is_empty();
        self.measured = self.all_listed(&body, &flags);
        // The whole text counts, not only the code that has points now: a library may be loaded and add points after values were read.
        let written =
            flags.iter().filter_map(|f| if let FlagCode::Written(b) = &f.code { Some(b.statements) } else { None });
        self.observes_times = observes_times_alone(std::iter::once(body.statements).chain(written));
        if matches!(shape, Shape::Histogram(_)) && self.observes_times {
            self.variables[0].unit = ValueUnit::Ticks;
        }
        self.body(body);
        self.place_drafts();
        if let Some(part) =
            focus.part("SyncObject").filter(|part| part.names.len() == 1 && self.of_kind && !self.reached)
        {
            self.no_constraint("SyncObject", part);
        }
        if self.insertions.is_empty() && !without_code && !self.diagnostics.iter().any(Diagnostic::is_error) {
            self.counts_nothing(empty);
        }
        let ids = std::mem::take(&mut self.flags);
        for (flag, id) in flags.into_iter().zip(ids) {
            self.maintain(flag, id);
        }
    }

    fn all_listed(&self, body: &DefinitionBody<'a>, flags: &[FocusFlag<'a>]) -> Arc<[FunctionId]> {
        let mut found = Vec::new();
        self.listed(body.statements, &mut found);
        for flag in flags {
            if let FlagCode::Written(body) = &flag.code {
                self.listed(body.statements, &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        found.into()
    }

    /// Evaluates the code of a flag.
    fn maintain(&mut self, flag: FocusFlag<'a>, id: VariableId) {
        self.definition = flag.name;
        self.group += 1;
        self.flag = Some(id);
        self.records.clear();
        self.callees = None;
        self.exclusive = matches!(flag.code, FlagCode::Word(FlagWord::Exclusive, ..));
        match flag.code {
            FlagCode::Written(body) => {
                self.names.push((flag.name, NameBinding::Variable(id)));
                self.body(body);
                self.names.pop();
            }
            FlagCode::Word(word, FlagScope::Functions(functions), source, span) => {
                self.source = source;
                self.worded(word, id, &functions, span);
            }
            FlagCode::Word(_, FlagScope::Loop(loops), source, span) => {
                self.source = source;
                self.inside_loop(id, &loops, span);
            }
        }
        self.place_drafts();
    }

    /// Warns that the metric counts nothing: this is legal, but hardly what the author wanted.
    fn counts_nothing(&mut self, empty: bool) {
        let info = &self.metric.info;
        let source = &self.library.sources[self.metric.source];
        let code = if empty && !info.constraints.is_empty() { codes::NO_CONSTRAINT } else { codes::NOT_FOUND };
        let (message, help) = if empty {
            let help = format!("choose one of: {}", info.constraints.join(", "));
            (format!("the metric `{}` has no code for this focus and stays at 0", info.name), help)
        } else {
            let message = format!("the program has nothing that the metric `{}` looks for; it stays at 0", info.name);
            (message, "it is looked for again when a library is loaded".to_owned())
        };
        let span = self.metric.node.ident.span;
        self.diagnostics.push(Diagnostic::at(code, Severity::Warning, source, span, message).help(help));
    }

    /// Shape of the values of an accumulator.
    fn shape(&self, kind: Accumulator) -> Shape {
        match kind {
            Accumulator::Counter | Accumulator::HwCounter | Accumulator::Void => Shape::Counter,
            Accumulator::WallTimer => Shape::Timer(Clock::Wall),
            Accumulator::HwTimer if self.metered != Some(EventReadMethod::ProcessorTime) => Shape::Counter,
            Accumulator::ProcessTimer | Accumulator::HwTimer => Shape::Timer(Clock::Cpu),
            Accumulator::Histogram => Shape::Histogram(Resolution::Fine),
        }
    }

    fn declare(&mut self, name: &'a str, kind: VariableKind, shape: Shape) {
        let id = self.variable(name, kind, shape);
        self.names.push((name, NameBinding::Variable(id)));
    }

    pub(super) fn variable(&mut self, name: &str, kind: VariableKind, shape: Shape) -> VariableId {
        let id = VariableId(self.variables.len() as u32);
        let unit = if matches!(shape, Shape::Timer(_)) { ValueUnit::Ticks } else { ValueUnit::Plain };
        self.variables.push(Variable { name: name.to_owned(), kind, shape, unit, sampled: false });
        id
    }

    fn body(&mut self, body: DefinitionBody<'a>) {
        self.source = body.source;
        self.chain = body.chain;
        for statement in body.statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &'a MetaStatement) {
        self.reached |= matches!(statement.kind, MetaKind::Foreach(..) | MetaKind::Insert(_));
        match &statement.kind {
            MetaKind::Block(inner) => inner.iter().for_each(|s| self.statement(s)),
            MetaKind::If(condition, then, otherwise) => {
                let value = self.expr(condition);
                match (self.truth(condition, value), otherwise) {
                    (Some(true), _) => self.statement(then),
                    (Some(false), Some(otherwise)) => self.statement(otherwise),
                    (Some(false), None) => {}
                    (None, otherwise) => {
                        // The condition is not known, so both branches are evaluated to find more errors.
                        self.statement(then);
                        if let Some(otherwise) = otherwise {
                            self.statement(otherwise);
                        }
                    }
                }
            }
            MetaKind::Foreach(variable, list, body) => {
                let list_value = self.expr(list);
                self.foreach(&variable.name, list, list_value, body);
            }
            MetaKind::Insert(insert) => self.insert(insert),
        }
    }

    fn foreach(&mut self, name: &'a str, expr: &SyntaxExpr, list: MetaValue<'a>, body: &'a MetaStatement) {
        let values: Vec<NameBinding<'a>> = match list {
            MetaValue::FunctionList(functions) => {
                for function in functions {
                    if !self.iterate(name, expr, NameBinding::Value(MetaValue::Functions(vec![function])), body) {
                        return;
                    }
                }
                return;
            }
            MetaValue::ModuleList(modules) => {
                modules.into_iter().map(|m| NameBinding::Value(MetaValue::Module(m))).collect()
            }
            MetaValue::List(list) => {
                let items = self.elements(list).into_iter();
                items.map(|(position, value)| NameBinding::Item(value, list, position)).collect()
            }
            MetaValue::LoopList(loops) => {
                loops.into_iter().map(|one| NameBinding::Value(MetaValue::Loop(vec![one]))).collect()
            }
            // All points get the same code, so one round is enough.
            MetaValue::Points(..) | MetaValue::Part(..) | MetaValue::Refused => vec![NameBinding::Value(list)],
            _ => return self.wrong(expr, "a list"),
        };
        for value in values {
            if !self.iterate(name, expr, value, body) {
                return;
            }
        }
    }

    /// Runs one round of a foreach; returns false after too many rounds in the request.
    fn iterate(&mut self, name: &'a str, list: &SyntaxExpr, value: NameBinding<'a>, body: &'a MetaStatement) -> bool {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            let message = format!("more than {MAX_ROUNDS} rounds of foreach in one request");
            self.error(codes::TOO_LARGE, list.span, message, "go through one list at a time");
            return false;
        }
        self.names.push((name, value));
        self.statement(body);
        self.names.pop();
        true
    }

    /// Returns the functions of a list of procedures; empty if the expression is not the name of a list.
    pub(super) fn functions_of_list(&self, expr: &SyntaxExpr) -> Vec<FunctionId> {
        let ExprKind::Name(name) = &expr.bare().kind else { return Vec::new() };
        let Some(list) = self.library.lists.get(name) else { return Vec::new() };
        let functions = |value| if let MetaValue::Functions(functions) = value { functions } else { Vec::new() };
        self.elements(&list.node).into_iter().flat_map(|(_, value)| functions(value)).collect()
    }

    /// Returns the items of a list in this program, with their positions. Skips functions that the program does not have, and takes each
    /// function once.
    fn elements(&self, list: &'a ListDefinition) -> Vec<(u32, MetaValue<'a>)> {
        let mut seen: Vec<FunctionId> = Vec::new();
        let mut values = Vec::with_capacity(list.items.len());
        for (position, item) in (0..).zip(&list.items) {
            match list.element {
                ElementKind::Procedure => {
                    let mut functions = match ResourcePath::parse(&item.value).ok().as_ref().map(|p| p.names.as_slice())
                    {
                        Some([module, function]) => self.beyond().functions_matching(module, function),
                        _ => self.beyond().functions_named(&item.value),
                    };
                    functions.retain(|f| !seen.contains(f));
                    seen.extend(&functions);
                    if !functions.is_empty() {
                        values.push((position, MetaValue::Functions(functions)));
                    }
                }
                ElementKind::Module => {
                    let modules = self.beyond().modules_named(&item.value);
                    values.extend(modules.into_iter().map(|m| (position, MetaValue::Module(m))));
                }
                ElementKind::String => values.push((position, MetaValue::Text(Cow::Borrowed(&item.value)))),
                ElementKind::Int => values.extend(parse_number(&item.value).map(|n| (position, MetaValue::Int(n)))),
                ElementKind::Float => values.extend(item.value.parse().ok().map(|n| (position, MetaValue::Float(n)))),
            }
        }
        values
    }

    /// Evaluates an expression of the meta language.
    pub(super) fn expr(&mut self, expr: &'a SyntaxExpr) -> MetaValue<'a> {
        match &expr.kind {
            ExprKind::Int(value) => MetaValue::Int(*value),
            ExprKind::Text(text) => MetaValue::Text(Cow::Borrowed(text)),
            ExprKind::Paren(inner) => self.expr(inner),
            ExprKind::Name(name) => self.name(expr.span, name),
            ExprKind::Index(name, index) => {
                let index = self.expr(index);
                self.indexed(expr.span, name, &index)
            }
            ExprKind::Field(of, field) => {
                let value = self.expr(of);
                self.field(expr, value, &field.name)
            }
            ExprKind::Unary(op, operand) => match (op, self.expr(operand)) {
                (_, MetaValue::Refused) => MetaValue::Refused,
                (op, MetaValue::Int(value)) => MetaValue::Int(unary(*op, value)),
                (UnaryOp::Negate, MetaValue::Float(value)) => MetaValue::Float(-value),
                _ => self.wrong_value(operand, "a number"),
            },
            ExprKind::Binary(op, a, b) => {
                let (left, right) = (self.expr(a), self.expr(b));
                match (left, right) {
                    (MetaValue::Refused, _) | (_, MetaValue::Refused) => MetaValue::Refused,
                    (MetaValue::Int(left), MetaValue::Int(right)) => MetaValue::Int(binary(*op, left, right)),
                    (MetaValue::Text(left), MetaValue::Text(right)) => compare(*op, &left, &right).map_or_else(
                        || self.wrong_value(expr, "a comparison of strings"),
                        |t| MetaValue::Int(t.into()),
                    ),
                    (MetaValue::Float(left), MetaValue::Float(right)) => compare(*op, &left, &right).map_or_else(
                        || self.wrong_value(expr, "a comparison of numbers"),
                        |t| MetaValue::Int(t.into()),
                    ),
                    _ => self.wrong_value(expr, "two values of one type"),
                }
            }
            // `libraryTag(f.tag)` of 1995 returns its argument: the tag is already the answer.
            ExprKind::Call(callee, args) if callee.name == "libraryTag" && args.len() == 1 => self.expr(&args[0]),
            _ => self.wrong_value(expr, "a value that is known when the request arrives"),
        }
    }

    pub(super) fn name(&mut self, span: SourceSpan, name: &'a str) -> MetaValue<'a> {
        if let Some((_, binding)) = self.names.iter().rev().find(|(n, _)| *n == name) {
            return match binding {
                NameBinding::Value(value) | NameBinding::Item(value, ..) => value.clone(),
                NameBinding::Variable(_) => MetaValue::Refused,
            };
        }
        match name {
            "$procedures" => {
                let modules = self.included_modules();
                let all = modules.into_iter().flat_map(|m| self.included_functions(m)).collect();
                MetaValue::FunctionList(all)
            }
            "$modules" => MetaValue::ModuleList(self.included_modules()),
            "$start" => self.named_functions(&["main", "start_thread"]),
            // `start_thread` itself does not return. A thread of the GNU C library runs `__libc_thread_freeres` after its routine has
            // returned.
            "$exit" => self.named_functions(&["_exit", "pthread_exit", "thr_exit", "__libc_thread_freeres"]),
            "$machine" => MetaValue::Text(Cow::Borrowed(self.program.machine())),
            "$cmin" | "$cmax" => MetaValue::Int(0),
            name => match self.library.lists.get(name) {
                Some(entry) if self.in_flavor(&entry.node.flavors) => MetaValue::List(&entry.node),
                Some(entry) => {
                    let flavors = &entry.node.flavors;
                    let message = format!("the list `{name}` {}", flavor::only_for(flavors));
                    self.error(codes::FLAVOR, span, message, self.flavor_help(flavors));
                    MetaValue::Refused
                }
                None => {
                    self.error(codes::UNKNOWN_NAME, span, format!("nothing defines `{name}`"), "");
                    MetaValue::Refused
                }
            },
        }
    }

    fn named_functions(&self, names: &[&str]) -> MetaValue<'a> {
        let mut all: Vec<FunctionId> = names.iter().flat_map(|n| self.beyond().functions_named(n)).collect();
        all.sort_unstable();
        all.dedup();
        MetaValue::Functions(all)
    }

    pub(super) fn indexed(
        &mut self,
        span: SourceSpan,
        name: &'a crate::ast::Ident,
        index: &MetaValue<'a>,
    ) -> MetaValue<'a> {
        let MetaValue::Int(index) = *index else {
            if !matches!(index, MetaValue::Refused) {
                self.error(codes::VALUE, span, "the index must be known when the request arrives".to_owned(), "");
            }
            return MetaValue::Refused;
        };
        let position = usize::try_from(index).ok();
        let value = if name.name == "$constraint" {
            position.and_then(|i| self.chain.get(i)).cloned()
        } else {
            match self.name(name.span, &name.name) {
                MetaValue::List(list) => {
                    position.and_then(|i| self.elements(list).into_iter().nth(i)).map(|(_, value)| value)
                }
                MetaValue::FunctionList(all) => {
                    position.and_then(|i| all.get(i)).map(|f| MetaValue::Functions(vec![*f]))
                }
                MetaValue::ModuleList(all) => position.and_then(|i| all.get(i)).map(|m| MetaValue::Module(*m)),
                _ => return MetaValue::Refused,
            }
        };
        if let Some(value) = value {
            return value;
        }
        self.error(codes::VALUE, span, format!("`{}` has no element {index}", name.name), "");
        MetaValue::Refused
    }

    fn field(&mut self, expr: &SyntaxExpr, of: MetaValue<'a>, field: &str) -> MetaValue<'a> {
        match (of, field) {
            (MetaValue::Refused, _) => MetaValue::Refused,
            (MetaValue::Functions(functions), "entry") => points(PointKind::Entry, functions),
            (MetaValue::Functions(functions), "return") => points(PointKind::Exit, functions),
            (MetaValue::Functions(functions), "calls") => points(PointKind::CallBefore, functions),
            (MetaValue::Functions(functions), "name") => {
                let name = functions.first().map_or("", |f| self.beyond().function_name(*f));
                MetaValue::Text(Cow::Borrowed(name))
            }
            (MetaValue::Functions(functions), "tag") => {
                let tagged = functions.iter().any(|f| self.is_library(self.beyond().function_name(*f)));
                MetaValue::Int(tagged.into())
            }
            (MetaValue::Functions(functions), "blocks") => points(PointKind::Block, functions),
            (MetaValue::Functions(functions), "edges") => points(PointKind::Edge, functions),
            (MetaValue::Functions(functions), "loops") => self.loops(expr.span, &functions),
            (MetaValue::Part(kind, functions), "enter") => MetaValue::Points(kind, functions),
            (MetaValue::Part(..), "exit" | "start_iter" | "end_iter") => self.wrong_value(expr, "a loop"),
            (MetaValue::Loop(loops), "enter") => at_edges(loops, |one| one.enter),
            (MetaValue::Loop(loops), "exit") => at_edges(loops, |one| one.exit),
            (MetaValue::Loop(loops), "end_iter") => at_edges(loops, |one| Ok(one.again)),
            (MetaValue::Loop(loops), "start_iter") => {
                let headers =
                    loops.into_iter().map(|(function, one)| (function, Parts::One(PointId::Block(one.header))));
                MetaValue::Points(PointKind::Block, headers.collect())
            }
            (MetaValue::Module(module), "funcs") => MetaValue::FunctionList(self.included_functions(module)),
            (MetaValue::Module(module), "name") => MetaValue::Text(Cow::Borrowed(self.beyond().module_name(module))),
            _ => self.wrong_value(expr, "a value with this field"),
        }
    }

    /// Returns all loops of functions, each a value of its own.
    fn loops(&mut self, span: SourceSpan, functions: &[FunctionId]) -> MetaValue<'a> {
        let mut found = Vec::new();
        for &function in functions {
            match self.beyond().loops(function) {
                Ok(loops) => found.extend(loops.iter().map(|one| (function, one.clone()))),
                Err(why) => {
                    self.not_woven(span, why.to_string());
                    return MetaValue::Refused;
                }
            }
        }
        MetaValue::LoopList(found)
    }

    /// Whether a list with `library true` names the function.
    fn is_library(&self, name: &str) -> bool {
        let path =
            |item: &str| item.strip_prefix("/Code/").and_then(|p| p.split_once('/')).is_some_and(|(_, f)| f == name);
        let lists = self.library.lists.values().filter(|l| l.node.library && l.node.element == ElementKind::Procedure);
        lists.flat_map(|l| &l.node.items).any(|item| item.value == name || path(&item.value))
    }

    fn included_modules(&self) -> Vec<ModuleId> {
        let mut modules = self.beyond().modules();
        modules.retain(|m| !self.library.exclusions.iter().any(|e| e.matches_module(self.beyond().module_name(*m))));
        modules
    }

    pub(super) fn included_functions(&self, module: ModuleId) -> Vec<FunctionId> {
        let mut functions = self.beyond().functions_of(module);
        let exclusions = &self.library.exclusions;
        if !exclusions.is_empty() {
            let name = self.beyond().module_name(module);
            functions.retain(|f| !exclusions.iter().any(|e| e.matches_function(name, self.beyond().function_name(*f))));
        }
        functions
    }

    fn truth(&mut self, condition: &SyntaxExpr, value: MetaValue<'a>) -> Option<bool> {
        match value {
            MetaValue::Int(value) => Some(value != 0),
            MetaValue::Refused => None,
            _ => {
                self.wrong(condition, "a number");
                None
            }
        }
    }

    pub(super) fn wrong(&mut self, expr: &SyntaxExpr, wanted: &str) {
        self.error(codes::TYPE, expr.span, format!("this is not {wanted}"), "");
    }

    fn wrong_value(&mut self, expr: &SyntaxExpr, wanted: &str) -> MetaValue<'a> {
        self.wrong(expr, wanted);
        MetaValue::Refused
    }

    /// Records one reason why the metric cannot be enabled yet.
    pub(super) fn not_woven(&mut self, span: SourceSpan, what: String) {
        let message = format!("the metric `{}` cannot be enabled: {what}", self.metric.info.name);
        self.error(codes::NOT_WOVEN, span, message, "");
    }
}

/// All points of a kind in functions.
fn points<'a>(kind: PointKind, functions: Vec<FunctionId>) -> MetaValue<'a> {
    MetaValue::Points(kind, functions.into_iter().map(|function| (function, Parts::All)).collect())
}

/// The points at edges of loops. If a loop does not have these edges, its code is refused in the function.
fn at_edges<'a>(loops: Vec<LoopOf>, edges: impl Fn(LoopEdges) -> Result<Arc<[PointId]>, Refusal>) -> MetaValue<'a> {
    let parts = loops.into_iter().map(|(function, one)| (function, Parts::of_points(edges(one))));
    MetaValue::Points(PointKind::Edge, parts.collect())
}

pub(super) fn unary(op: UnaryOp, value: i64) -> i64 {
    match op {
        UnaryOp::Negate => value.wrapping_neg(),
        UnaryOp::Not => i64::from(value == 0),
        UnaryOp::Complement => !value,
    }
}

/// Computes as the woven code does: results wrap, division by 0 gives 0, shifts use the lower six bits.
pub(super) fn binary(op: BinaryOp, a: i64, b: i64) -> i64 {
    match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Subtract => a.wrapping_sub(b),
        BinaryOp::Multiply => a.wrapping_mul(b),
        BinaryOp::Divide => a.checked_div(b).unwrap_or(if b == 0 { 0 } else { a }),
        BinaryOp::Remainder => a.checked_rem(b).unwrap_or(0),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::ShiftLeft => a.wrapping_shl(b as u32),
        BinaryOp::ShiftRight => a.wrapping_shr(b as u32),
        BinaryOp::LogicalAnd => i64::from(a != 0 && b != 0),
        BinaryOp::LogicalOr => i64::from(a != 0 || b != 0),
        op => compare(op, &a, &b).map_or(0, i64::from),
    }
}

fn compare<T: PartialOrd + ?Sized>(op: BinaryOp, a: &T, b: &T) -> Option<bool> {
    Some(match op {
        BinaryOp::Equal => a == b,
        BinaryOp::NotEqual => a != b,
        BinaryOp::Less => a < b,
        BinaryOp::LessOrEqual => a <= b,
        BinaryOp::Greater => a > b,
        BinaryOp::GreaterOrEqual => a >= b,
        _ => return None,
    })
}
