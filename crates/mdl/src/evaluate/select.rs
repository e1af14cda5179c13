//! Selection by a focus: the constraints of a metric that match the focus, and the process and thread that the focus names.

use ingraft_model::{Focus, FunctionId, PartName, Parts, PointId, PointKind, ResourcePath, Tid};

use super::meta::{DefinitionBody, Evaluation, FlagCode, FlagScope, FlagWord, FocusFlag, MetaValue};
use crate::ast::{ConstraintBody, ConstraintDefinition, FieldKind};
use crate::check::path::SYNC;
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::number::parse_number;
use crate::program::Unresolved;
use crate::source::SourceSpan;

/// The hierarchies that constraints restrict, in the order in which their flags are tested.
pub(super) const HIERARCHIES: [&str; 2] = ["Code", "SyncObject"];

/// Constraints of a metric that a focus selects.
pub(super) struct Selection<'a> {
    /// Code of the constraint that replaces the metric's own code; `None` if no constraint does.
    pub(super) replacement: Option<DefinitionBody<'a>>,
    /// Flags under which constrained code runs, in the order in which the code tests them. All flags cost the same to test.
    pub(super) flags: Vec<FocusFlag<'a>>,
}

/// Whether a constraint's path matches a resource. A path with `k` names after the root matches resources `k + 1` levels below the root:
/// `/Code` matches a module, `/Code/*` a function. A name in place of `*` must equal the name at its level; below `/Code` it never matches.
fn matches(constraint: &ConstraintDefinition, part: &ResourcePath) -> bool {
    let Some((root, patterns)) = constraint.path.parts.split_first() else { return false };
    if root.name != part.root || patterns.len() + 1 != part.names.len() {
        return false;
    }
    let shift = usize::from(part.root == "Code");
    let last = patterns.len().wrapping_sub(1);
    patterns.iter().enumerate().all(|(i, pattern)| {
        let level = if shift == 0 && i > 0 && i == last { i + 1 } else { i };
        pattern.name == "*" || (shift == 0 && part.names.get(level).is_some_and(|n| *n == pattern.name))
    }) && match &constraint.body {
        ConstraintBody::Default(kinds) if !kinds.is_empty() => {
            part.names.first().is_some_and(|of| kinds.iter().any(|kind| kind.value == *of))
        }
        ConstraintBody::Flag(_)
        | ConstraintBody::Default(_)
        | ConstraintBody::Inclusive
        | ConstraintBody::Exclusive
        | ConstraintBody::Replace(..) => true,
    }
}

impl<'a> Evaluation<'a> {
    /// Selects the constraints of the metric that match the focus. If none matches a part of the focus, reports an error.
    pub(super) fn select(&mut self, focus: &Focus) -> Selection<'a> {
        let mut selection = Selection { replacement: None, flags: Vec::new() };
        for root in HIERARCHIES {
            let Some(part) = focus.part(root) else { continue };
            if let Some(kind) = part.names.first().filter(|k| root == "SyncObject" && !SYNC.contains(&k.as_str())) {
                let message = format!("/SyncObject has no `{kind}`, which `{part}` names");
                let help = format!("one of: {}", SYNC.join(", "));
                // The kinds are fixed: no library that is loaded later adds one.
                self.diagnostics.push(Diagnostic::request(codes::NO_CONSTRAINT, message).help(help));
                continue;
            }
            let mut matched = false;
            for field in &self.metric.node.fields {
                let (constraint, source) = match &field.kind {
                    FieldKind::Constraint(constraint) => (constraint, self.metric.source),
                    FieldKind::Use(name) => match self.library.constraints.get(&name.name) {
                        Some(entry) => (&entry.node, entry.source),
                        None => continue,
                    },
                    _ => continue,
                };
                if matches(constraint, part) {
                    matched = true;
                    self.take(&mut selection, constraint, source, part);
                }
            }
            if !matched {
                self.no_constraint(root, part);
            }
        }
        selection
    }

    fn take(
        &mut self,
        selection: &mut Selection<'a>,
        constraint: &'a ConstraintDefinition,
        source: usize,
        part: &ResourcePath,
    ) {
        if matches!(constraint.body, ConstraintBody::Default(_)) {
            return;
        }
        let (name, span) = (&constraint.name.name, constraint.name.span);
        let chain = self.constraint_values(constraint, source, part);
        let code = match &constraint.body {
            ConstraintBody::Default(_) => return,
            ConstraintBody::Flag(body) => FlagCode::Written(DefinitionBody { statements: body, source, chain }),
            ConstraintBody::Inclusive => self.word(FlagWord::Inclusive, chain, source, span),
            ConstraintBody::Exclusive => self.word(FlagWord::Exclusive, chain, source, span),
            ConstraintBody::Replace(_, body) => {
                return self.replace(selection, DefinitionBody { statements: body, source, chain }, span);
            }
        };
        selection.flags.push(FocusFlag { name, code });
    }

    /// Returns the code of a flag that a word maintains for what the focus names below /Code.
    fn word(&mut self, word: FlagWord, chain: Vec<MetaValue<'a>>, source: usize, span: SourceSpan) -> FlagCode<'a> {
        let within = match (chain.into_iter().next(), word) {
            (Some(MetaValue::Functions(functions)), _) => FlagScope::Functions(functions),
            (Some(MetaValue::Module(module)), _) => FlagScope::Functions(self.included_functions(module)),
            (Some(MetaValue::Loop(loops)), FlagWord::Inclusive) => FlagScope::Loop(loops),
            (Some(MetaValue::Loop(_)), FlagWord::Exclusive) => {
                self.error(codes::TYPE, span, "`exclusive` is said of functions and modules".to_owned(), "");
                FlagScope::Functions(Vec::new())
            }
            (Some(MetaValue::Part(..)), _) => {
                let message = "`inclusive` and `exclusive` are said of modules, functions and loops".to_owned();
                self.error(codes::TYPE, span, message, "control does not stay in a block or an edge");
                FlagScope::Functions(Vec::new())
            }
            // The reason has been reported.
            (_, FlagWord::Inclusive | FlagWord::Exclusive) => FlagScope::Functions(Vec::new()),
        };
        FlagCode::Word(word, within, source, span)
    }

    fn replace(&mut self, selection: &mut Selection<'a>, body: DefinitionBody<'a>, span: SourceSpan) {
        if selection.replacement.is_some() {
            self.source = body.source;
            let message = format!("two replacements of `{}` match the focus", self.metric.info.name);
            self.error(codes::TWO_REPLACEMENTS, span, message, "request one hierarchy at a time");
        }
        selection.replacement = Some(body);
    }

    pub(super) fn no_constraint(&mut self, root: &str, part: &ResourcePath) {
        let info = &self.metric.info;
        let levels = match (root, part.names.len()) {
            ("Code", 1) => "a module",
            ("Code", 2) => "a function",
            ("Code", _) => part.names.last().and_then(|name| PartName::parse(name)).map_or("a part", PartName::words),
            (_, 1) => "this kind",
            _ => "this synchronisation object",
        };
        let message =
            format!("the metric `{}` has no constraint for {levels} of /{root}, as `{part}` needs", info.name);
        let help = if info.constraints.is_empty() {
            "it can only be measured for the whole program, a process or a thread".to_owned()
        } else {
            format!("it has constraints for: {}", info.constraints.join(", "))
        };
        self.source = self.metric.source;
        self.error(codes::NO_CONSTRAINT, self.metric.node.ident.span, message, help);
    }

    /// Returns the values of `$constraint[0]`, `$constraint[1]`, …: the resources of the path from the leaf upward.
    fn constraint_values(
        &mut self,
        constraint: &ConstraintDefinition,
        source: usize,
        part: &ResourcePath,
    ) -> Vec<MetaValue<'a>> {
        self.source = source;
        let span = constraint.path.span;
        let mut chain = match (part.root.as_str(), part.names.as_slice()) {
            ("Code", [module]) => vec![self.focus_module(part, module)],
            ("Code", [module, function]) => {
                vec![self.focus_functions(part, module, function), self.focus_module(part, module)]
            }
            ("Code", [module, function, part_of]) => {
                let functions = self.focus_functions(part, module, function);
                let inner = match (PartName::parse(part_of), &functions) {
                    (Some(name), MetaValue::Functions(all)) => self.focus_part(part, all, name),
                    (Some(_), _) => MetaValue::Refused,
                    (None, _) => {
                        let message = format!("`{part_of}`, which `{part}` names, is no part of a function");
                        let help = "#0x1a is a block, #0x1a->0x40 an edge, #loop@0x1a a loop";
                        // No library that is loaded later gives such a name a meaning.
                        self.diagnostics.push(Diagnostic::request(codes::NO_CONSTRAINT, message).help(help.to_owned()));
                        MetaValue::Refused
                    }
                };
                vec![inner, functions, self.focus_module(part, module)]
            }
            (_, names) => {
                let text = |name: &String| MetaValue::Text(name.clone().into());
                match names {
                    [of, group] if of == "Message" => vec![self.group(group, span), text(of)],
                    [of, group, tag] if of == "Message" => {
                        vec![self.tag(tag, span), self.group(group, span), text(of)]
                    }
                    [of, upper @ .., leaf] if of != "Window" => {
                        let leaf = self.object(leaf, span);
                        [leaf].into_iter().chain(upper.iter().rev().map(text)).chain([text(of)]).collect()
                    }
                    names => names.iter().rev().map(text).collect(),
                }
            }
        };
        chain.push(MetaValue::Text(part.root.clone().into()));
        chain
    }

    /// Returns the tag of messages that the focus names, as a number.
    fn tag(&mut self, leaf: &str, span: SourceSpan) -> MetaValue<'a> {
        if let Some(value) = parse_number(leaf) {
            return MetaValue::Int(value);
        }
        self.error(codes::VALUE, span, format!("`{leaf}` in the focus is no number"), "tags are numbers");
        MetaValue::Refused
    }

    /// Returns the group of messages that the focus names: a number, the address of a variable of the program if it is written as `&NAME`,
    /// otherwise a name.
    fn group(&mut self, name: &str, span: SourceSpan) -> MetaValue<'a> {
        match (parse_number(name), name.strip_prefix('&')) {
            (Some(number), _) => MetaValue::Int(number),
            (None, Some(variable)) => self.object_at(variable, span),
            (None, None) => MetaValue::Text(name.to_owned().into()),
        }
    }

    /// Returns the address of the synchronisation object that the focus names.
    fn object(&mut self, leaf: &str, span: SourceSpan) -> MetaValue<'a> {
        let value = self.object_at(leaf, span);
        if let MetaValue::Int(at) = value {
            self.object = Some(at.cast_unsigned());
        }
        value
    }

    /// Returns the address that a text names: a number, or a variable of the program, with or without an offset.
    fn object_at(&mut self, leaf: &str, span: SourceSpan) -> MetaValue<'a> {
        if let Some(value) = parse_number(leaf) {
            return MetaValue::Int(value);
        }
        let offset = |text: &str| parse_number(text).filter(|n| *n >= 0);
        let (name, offset) = leaf.rsplit_once('+').and_then(|(name, n)| Some((name, offset(n)?))).unwrap_or((leaf, 0));
        match self.beyond().address(name) {
            Ok(at) => MetaValue::Int(at.0.cast_signed().wrapping_add(offset)),
            Err(Unresolved::NotFound { what, help }) => {
                let otherwise = "name the object by its address, e.g. 0x7f0000001000, or its variable";
                self.error(codes::NOT_FOUND, span, what, help.as_deref().unwrap_or(otherwise));
                MetaValue::Refused
            }
            Err(Unresolved::Unreadable(why)) => {
                self.error(codes::NOT_FOUND, span, why, "");
                MetaValue::Refused
            }
        }
    }

    fn focus_module(&mut self, part: &ResourcePath, module: &str) -> MetaValue<'a> {
        match self.program.modules_named(module).as_slice() {
            [] => {
                let message = format!("the program has no module `{module}`, which `{part}` names");
                self.diagnostics.push(Diagnostic::request(codes::NOT_FOUND, message));
                MetaValue::Refused
            }
            [module, ..] => MetaValue::Module(*module),
        }
    }

    fn focus_functions(&mut self, part: &ResourcePath, module: &str, function: &str) -> MetaValue<'a> {
        if self.program.modules_named(module).is_empty() {
            // The diagnostic about the module covers its functions.
            return MetaValue::Refused;
        }
        let functions = self.program.function(module, function);
        if functions.is_empty() {
            let message = format!("the program has no function `{function}` in `{module}`, which `{part}` names");
            self.diagnostics.push(Diagnostic::request(codes::NOT_FOUND, message));
            return MetaValue::Refused;
        }
        MetaValue::Functions(functions)
    }

    /// Returns the block, the edges or the loop of a name, in each of the functions.
    fn focus_part(&mut self, part: &ResourcePath, functions: &[FunctionId], name: PartName) -> MetaValue<'a> {
        let program = self.program;
        let found = match name {
            PartName::Block(offset) => {
                let block =
                    |f: &FunctionId| program.block(*f, offset).map(|()| (*f, Parts::One(PointId::Block(offset))));
                let found: Result<Vec<_>, _> = functions.iter().map(block).collect();
                found.map(|blocks| MetaValue::Part(PointKind::Block, blocks))
            }
            PartName::Edge { from, to } => {
                let edges = |f: &FunctionId| Ok((*f, Parts::These(program.edges(*f, from, to)?)));
                let found: Result<Vec<_>, _> = functions.iter().map(edges).collect();
                found.map(|edges| MetaValue::Part(PointKind::Edge, edges))
            }
            PartName::Loop(header) => {
                let one = |f: &FunctionId| Ok((*f, program.loop_at(*f, header)?));
                let found: Result<Vec<_>, _> = functions.iter().map(one).collect();
                found.map(MetaValue::Loop)
            }
        };
        found.unwrap_or_else(|why| {
            let mut diagnostic = Diagnostic::request(codes::NOT_FOUND, format!("`{part}`: {why}"));
            if let Unresolved::NotFound { help: Some(help), .. } = why {
                diagnostic = diagnostic.help(help);
            }
            self.diagnostics.push(diagnostic);
            MetaValue::Refused
        })
    }

    /// Checks the parts of the focus that say which machine, process and thread; returns the thread.
    pub(super) fn thread(&mut self, focus: &Focus) -> Option<Tid> {
        let machine = focus.part("Machine").map_or(&[][..], |p| p.names.as_slice());
        let process = focus.part("Process").map_or(&[][..], |p| p.names.as_slice());
        if let Some(name) = machine.first().filter(|name| *name != self.program.machine()) {
            let message = format!("the program runs on `{}`, not on `{name}`", self.program.machine());
            self.diagnostics.push(Diagnostic::request(codes::FOCUS, message));
        }
        for name in machine.get(1).into_iter().chain(process.first()) {
            if id_in(name) != Some(self.program.pid().0) {
                let message = format!("the focus names the process `{name}`, the program is {}", self.program.pid());
                self.diagnostics.push(Diagnostic::request(codes::FOCUS, message));
            }
        }
        let mut thread = None;
        for name in machine.get(2).into_iter().chain(process.get(1)) {
            match id_in(name).map(Tid) {
                Some(tid) if thread.is_none_or(|t| t == tid) => thread = Some(tid),
                Some(tid) => {
                    let message = format!("the focus names two threads: `{name}` is not {}", thread.unwrap_or(tid));
                    self.diagnostics.push(Diagnostic::request(codes::FOCUS, message));
                }
                None => {
                    let message = format!("`{name}` in the focus is no thread id");
                    self.diagnostics.push(Diagnostic::request(codes::FOCUS, message));
                }
            }
        }
        thread
    }

    /// Reports an error at a place of the current source, once per place.
    pub(super) fn error(&mut self, code: &'static str, span: SourceSpan, message: String, help: impl Into<String>) {
        let source = &self.library.sources[self.source];
        let name = format!("`{}`", self.metric.info.name);
        let message = if message.contains(&name) { message } else { format!("the metric {name}: {message}") };
        let known =
            |d: &Diagnostic| d.code == code && d.span == span && d.file == source.name() && d.message == message;
        if !self.diagnostics.iter().any(known) {
            let mut diagnostic = Diagnostic::at(code, Severity::Error, source, span, message);
            diagnostic.help = Some(help.into()).filter(|h| !h.is_empty());
            self.diagnostics.push(diagnostic);
        }
    }
}

/// Returns the process or thread id in a name of the form `4711`, `a.out{4711}` or `thr_4711{worker}`.
fn id_in(name: &str) -> Option<i32> {
    let braced = name.split_once('{').map(|(head, inner)| (head, inner.trim_end_matches('}')));
    let (head, inner) = braced.unwrap_or((name, ""));
    head.trim_start_matches("thr_").parse().ok().or_else(|| inner.parse().ok())
}
