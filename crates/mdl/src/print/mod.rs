//! Prints definitions as a person would write them. The printed text reads as the same tree, and prints the same again. Comments and
//! single
//! blank lines stay where they were.

mod expr;

use std::fmt;

use ingraft_model::{Style, UnitsType};

use self::expr::{expression, number, quoted};
use crate::ast::{
    CodeKind, CodeStatement, ConfigBlock, ConfigItem, ConfigKind, ConfigValue, ConstraintBody, ConstraintDefinition,
    Definition, DefinitionKind, ExcludeDefinition, ExprKind, FieldKind, InsertStatement, ListDefinition, MdlFile,
    MetaKind, MetaStatement, MetricField, ResourcePattern, TextLiteral, VectorIndex,
};
use crate::diagnostic::Diagnostic;
use crate::lex;
use crate::parse::{ParseOptions, parse, reserved};
use crate::source::{SourceSpan, SourceText};

/// Columns that a line of code should not exceed.
const WIDTH: usize = 110;

/// Formats a text. A text with errors is not formatted, as parts of it would be lost.
pub fn format(name: &str, text: &str, options: ParseOptions) -> Result<String, Vec<Diagnostic>> {
    let source = SourceText::new(name, text);
    let mut diagnostics = Vec::new();
    let file = parse(&source, options, &mut diagnostics);
    diagnostics.retain(Diagnostic::is_error);
    if diagnostics.is_empty() { Ok(print(&source, &file)) } else { Err(diagnostics) }
}

/// Prints a tree that was read from `source` without errors.
pub fn print(source: &SourceText, file: &MdlFile) -> String {
    let mut printer = Printer { source, comments: &file.comments, out: String::new(), indent: 0, last: 0, fresh: true };
    let mut was_block = false;
    for definition in &file.definitions {
        let block = is_block(&definition.kind);
        if (was_block || block) && !printer.out.is_empty() {
            printer.blank_line();
        }
        printer.start(definition.span.start);
        printer.definition(definition);
        printer.end(definition.span.end);
        was_block = block;
    }
    printer.comments_before(u32::MAX);
    printer.out
}

/// Whether a definition takes several lines, and therefore an empty line before and after it.
fn is_block(kind: &DefinitionKind) -> bool {
    match kind {
        DefinitionKind::Constraint(c) => matches!(c.body, ConstraintBody::Flag(_) | ConstraintBody::Replace(..)),
        DefinitionKind::Exclude(_) => false,
        DefinitionKind::Config(config) => config.kind != ConfigKind::Tunables || config.items.len() > 1,
        DefinitionKind::List(list) => is_name(&list.name.name) && !list.flavors.is_empty(),
        DefinitionKind::Metric(_) | DefinitionKind::Statement(_) => true,
    }
}

/// Whether a list's name can stand without quotes.
fn is_name(name: &str) -> bool {
    lex::is_word(name) && !reserved(name)
}

struct Printer<'s> {
    source: &'s SourceText,
    /// Comments that are not printed yet.
    comments: &'s [SourceSpan],
    out: String,
    indent: usize,
    /// Offset in the source after the part that was printed last.
    last: u32,
    /// Whether the printer is at the beginning of a block, where no blank line belongs.
    fresh: bool,
}

impl<'s> Printer<'s> {
    fn blank_line(&mut self) {
        if !self.fresh && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    /// Prints a blank line if the author left one directly before `start`.
    fn gap(&mut self, start: u32) {
        let between = self.source.slice(SourceSpan { start: self.last, end: start.max(self.last) });
        if between[between.trim_end().len()..].matches('\n').count() > 1 {
            self.blank_line();
        }
        self.fresh = false;
    }

    fn margin(&mut self) {
        self.out.extend(std::iter::repeat_n("    ", self.indent));
    }

    /// Prints the comments that begin before `offset`, each on lines of its own.
    fn comments_before(&mut self, offset: u32) {
        while let Some((comment, rest)) = self.comments.split_first().filter(|(c, _)| c.start < offset) {
            self.comments = rest;
            self.gap(comment.start);
            self.margin();
            self.out.push_str(self.source.slice(*comment).trim_end());
            self.out.push('\n');
            self.last = self.last.max(comment.end);
        }
    }

    /// Begins the line of the part that begins at `start` in the source.
    fn start(&mut self, start: u32) {
        self.comments_before(start);
        self.gap(start);
        self.margin();
    }

    /// Ends the line of the part that ends at `end` in the source, with the comment that follows on the same line.
    fn end(&mut self, end: u32) {
        self.last = end;
        if let Some((comment, rest)) = self.comments.split_first() {
            let between = self.source.slice(SourceSpan { start: end, end: comment.start.max(end) });
            if comment.start >= end && between.trim_matches([' ', '\t', ';']).is_empty() {
                self.comments = rest;
                self.out.push(' ');
                self.out.push_str(self.source.slice(*comment).trim_end());
                self.last = comment.end;
            }
        }
        self.out.push('\n');
    }

    /// Prints the opening bracket, the items, and the closing bracket of a block that ends with `span`.
    fn items<T>(
        &mut self,
        open: &str,
        span: SourceSpan,
        items: &[T],
        place: impl Fn(&T) -> SourceSpan,
        item: impl Fn(&mut Self, &T),
    ) {
        self.open(open, span.start.saturating_sub(1), items.first().map_or(span.end, |i| place(i).start));
        for one in items {
            self.start(place(one).start);
            item(self, one);
            self.end(place(one).end);
        }
        self.close(if open == "(*" { "*)" } else { "}" }, span.end);
    }

    /// Opens a block, with the comment that follows on the same line.
    fn open(&mut self, bracket: &str, from: u32, until: u32) {
        self.out.push_str(bracket);
        self.indent += 1;
        self.fresh = true;
        if let Some((comment, rest)) = self.comments.split_first().filter(|(c, _)| c.start > from && c.start < until) {
            let before = self.source.slice(SourceSpan { start: from, end: comment.start });
            if before.trim_end_matches([' ', '\t']).ends_with(bracket.trim()) {
                self.comments = rest;
                self.out.push(' ');
                self.out.push_str(self.source.slice(*comment).trim_end());
                self.last = comment.end;
            }
        }
        self.out.push('\n');
    }

    fn close(&mut self, bracket: &str, until: u32) {
        self.comments_before(until);
        self.indent -= 1;
        self.fresh = false;
        self.margin();
        self.out.push_str(bracket);
    }

    fn definition(&mut self, definition: &Definition) {
        let span = definition.span;
        match &definition.kind {
            DefinitionKind::List(list) => self.list(list, span),
            DefinitionKind::Constraint(constraint) => self.constraint(constraint, span),
            DefinitionKind::Metric(metric) => {
                self.out.push_str(&format!("metric {}", metric.ident.name));
                self.items(" {", span, &metric.fields, |f| f.span, Self::field);
            }
            DefinitionKind::Exclude(exclude) => self.out.push_str(&exclude_text(exclude)),
            DefinitionKind::Config(config) => self.config(config, span),
            DefinitionKind::Statement(statement) => self.meta(statement),
        }
    }

    fn list(&mut self, list: &ListDefinition, span: SourceSpan) {
        let items = texts(list.items.iter().map(|t: &TextLiteral| t.value.as_str()));
        let (name, keyword) = (&list.name.name, list.element.keyword());
        match list.flavors.as_slice() {
            [] if is_name(name) => self.out.push_str(&format!("list {name} {{ {items} }}")),
            [] => self.out.push_str(&format!("list {} {{ {items} }}", quoted(name))),
            [flavor] if !is_name(name) => {
                let (name, library) = (quoted(name), list.library);
                self.out
                    .push_str(&format!("resourceList ({keyword}, {name} {{ {items} }}, {library}, {});", flavor.name));
            }
            flavors => {
                self.out.push_str(&format!("resourceList {name} is {keyword} {{\n"));
                self.indent += 1;
                let mut lines = vec![format!("items {{ {items} }};"), flavor_text(flavors)];
                if list.library {
                    lines.push("library true;".to_owned());
                }
                for line in lines {
                    self.margin();
                    self.out.push_str(&line);
                    self.out.push('\n');
                }
                // Comments inside the list are printed after the lines, without a blank line between.
                self.fresh = true;
                self.close("}", span.end);
            }
        }
    }

    fn constraint(&mut self, constraint: &ConstraintDefinition, span: SourceSpan) {
        let (name, path) = (&constraint.name.name, constraint.path.to_string());
        let space = if path.is_empty() { "" } else { " " };
        self.out.push_str(&format!("constraint {name}{space}{path} is "));
        match &constraint.body {
            ConstraintBody::Default(kinds) if kinds.is_empty() => self.out.push_str("default;"),
            ConstraintBody::Default(kinds) => {
                let kinds: Vec<String> = kinds.iter().map(|k| quoted(&k.value)).collect();
                self.out.push_str(&format!("default {{ {} }};", kinds.join(", ")));
            }
            ConstraintBody::Inclusive => self.out.push_str("inclusive;"),
            ConstraintBody::Exclusive => self.out.push_str("exclusive;"),
            ConstraintBody::Flag(body) => {
                self.out.push_str("counter");
                self.items(" {", span, body, |m| m.span, Self::meta);
            }
            ConstraintBody::Replace(kind, body) => {
                self.out.push_str("replace ");
                self.out.push_str(kind.keyword());
                self.items(" {", span, body, |m| m.span, Self::meta);
            }
        }
    }

    fn field(&mut self, field: &MetricField) {
        let text = match &field.kind {
            FieldKind::Name(name) => format!("name {};", quoted(&name.value)),
            FieldKind::Units(unit) => format!("units {};", unit.name),
            FieldKind::Aggregate(aggregate) => format!("aggregateOperator {};", aggregate.keyword()),
            FieldKind::Style(Style::EventCounter) => "style EventCounter;".to_owned(),
            FieldKind::Style(Style::SampledFunction) => "style SampledFunction;".to_owned(),
            FieldKind::Developer(true) => "mode developer;".to_owned(),
            FieldKind::Developer(false) => "mode normal;".to_owned(),
            FieldKind::UnitsType(UnitsType::Normalized) => "unitsType normalized;".to_owned(),
            FieldKind::UnitsType(UnitsType::Unnormalized) => "unitsType unnormalized;".to_owned(),
            FieldKind::UnitsType(UnitsType::Sampled) => "unitsType sampled;".to_owned(),
            FieldKind::Flavor(flavors) => flavor_text(flavors),
            FieldKind::Use(name) => format!("constraint {};", name.name),
            FieldKind::Scratch(name) => format!("counter {};", name.name),
            FieldKind::Vector(VectorIndex::Keys) => "vector over keys;".to_owned(),
            FieldKind::Vector(VectorIndex::Objects) => "vector over objects;".to_owned(),
            FieldKind::Vector(VectorIndex::List(name)) => format!("vector over list {};", name.name),
            FieldKind::Vector(VectorIndex::Map(function, slots)) => {
                format!("vector over map {}, {};", quoted(&function.value), number(*slots))
            }
            FieldKind::Vector(VectorIndex::Table(base, length, granule)) => {
                format!("vector over table {}, {}, {};", number(*base), number(*length), number(*granule))
            }
            FieldKind::Constraint(constraint) => return self.constraint(constraint, field.span),
            FieldKind::Base(base) => {
                self.out.push_str("base is ");
                self.out.push_str(base.kind.keyword());
                if let Some(event) = &base.event {
                    self.out.push_str(&format!("({})", quoted(&event.value)));
                }
                return self.items(" {", field.span, &base.body, |m| m.span, Self::meta);
            }
        };
        self.out.push_str(&text);
    }

    fn config(&mut self, config: &ConfigBlock, span: SourceSpan) {
        self.out.push_str(config.kind.keyword());
        if let ([item], ConfigKind::Tunables) = (config.items.as_slice(), config.kind) {
            self.out.push(' ');
            self.out.push_str(&config_text(item, ConfigKind::Tunables));
            return;
        }
        // In the oldest files, the name of the block is one of its items.
        let named = config.name.as_ref().filter(|n| config.items.iter().all(|i| i.span != n.span));
        if let Some(name) = named {
            self.out.push(' ');
            self.out.push_str(&name.name);
        }
        let item_span = |i: &ConfigItem| i.key.span.to(i.span);
        self.items(" {", span, &config.items, item_span, |p, i| p.out.push_str(&config_text(i, config.kind)));
    }

    fn meta(&mut self, meta: &MetaStatement) {
        match &meta.kind {
            MetaKind::Block(inner) => self.items("{", meta.span, inner, |m| m.span, Self::meta),
            MetaKind::Foreach(variable, list, body) => {
                self.out.push_str(&format!("foreach {} in {}", variable.name, expression(self.source, list)));
                self.branch(body);
            }
            MetaKind::If(condition, then, otherwise) => {
                let paren = matches!(condition.kind, ExprKind::Paren(_));
                let text = expression(self.source, condition);
                self.out.push_str(&if paren { format!("if {text}") } else { format!("if ({text})") });
                self.branch(then);
                if let Some(otherwise) = otherwise {
                    self.out.push('\n');
                    self.margin();
                    self.out.push_str("else");
                    self.branch(otherwise);
                }
            }
            MetaKind::Insert(insert) => self.insert(insert),
        }
    }

    /// Prints the statement of a foreach or an if: a block on the same line, anything else on the next line.
    fn branch(&mut self, body: &MetaStatement) {
        if let MetaKind::Block(inner) = &body.kind {
            self.items(" {", body.span, inner, |m| m.span, Self::meta);
            return;
        }
        self.out.push('\n');
        self.indent += 1;
        self.fresh = true;
        self.start(body.span.start);
        self.meta(body);
        self.last = body.span.end;
        self.indent -= 1;
    }

    fn insert(&mut self, insert: &InsertStatement) {
        let order = if insert.prepend { "prepend" } else { "append" };
        let place = if insert.after { "postInsn" } else { "preInsn" };
        let constrained = if insert.constrained { " constrained" } else { "" };
        self.out.push_str(&format!("{order} {place} {}{constrained} (*", expression(self.source, &insert.points)));
        let commented = self.has_comment(insert.code_span);
        let short = match insert.code.as_slice() {
            [] => Some(String::new()),
            [one] => one_line(self.source, one).map(|text| format!(" {text}")),
            _ => None,
        };
        let column = self.out.len() - self.out.rfind('\n').map_or(0, |i| i + 1);
        match short.filter(|text| !commented && column + text.len() + 3 <= WIDTH) {
            Some(text) => self.out.push_str(&format!("{text} *)")),
            None => {
                self.out.truncate(self.out.len() - 2);
                self.items("(*", insert.code_span, &insert.code, |c| c.span, Self::code);
            }
        }
    }

    /// Whether a comment that is not printed yet lies inside the span.
    fn has_comment(&self, span: SourceSpan) -> bool {
        self.comments.iter().take_while(|c| c.start < span.end).any(|c| span.contains(*c))
    }

    fn code(&mut self, code: &CodeStatement) {
        let commented = self.has_comment(code.span);
        if let Some(text) = one_line(self.source, code).filter(|_| !commented) {
            self.out.push_str(&text);
            return;
        }
        match &code.kind {
            CodeKind::Expr(expr) => self.out.push_str(&format!("{};", expression(self.source, expr))),
            CodeKind::Block(inner) => self.items("{", code.span, inner, |c| c.span, Self::code),
            CodeKind::If(condition, then, otherwise) => {
                self.out.push_str(&format!("if {}", expression(self.source, condition)));
                self.code_branch(then);
                if let Some(otherwise) = otherwise {
                    self.out.push('\n');
                    self.margin();
                    self.out.push_str("else");
                    self.code_branch(otherwise);
                }
            }
        }
    }

    fn code_branch(&mut self, body: &CodeStatement) {
        if let CodeKind::Block(inner) = &body.kind {
            return self.items(" {", body.span, inner, |c| c.span, Self::code);
        }
        self.out.push('\n');
        self.indent += 1;
        self.fresh = true;
        self.start(body.span.start);
        self.code(body);
        self.last = body.span.end;
        self.indent -= 1;
    }
}

/// Returns a statement on one line, if its form is short: an expression, or an `if` with one expression and no else.
fn one_line(source: &SourceText, code: &CodeStatement) -> Option<String> {
    match &code.kind {
        CodeKind::Expr(expr) => Some(format!("{};", expression(source, expr))),
        CodeKind::If(condition, then, None) => match &then.kind {
            CodeKind::Expr(expr) => Some(format!("if {} {};", expression(source, condition), expression(source, expr))),
            CodeKind::Block(_) | CodeKind::If(..) => None,
        },
        CodeKind::Block(_) | CodeKind::If(..) => None,
    }
}

fn texts<'t>(items: impl Iterator<Item = &'t str>) -> String {
    items.map(quoted).collect::<Vec<_>>().join(", ")
}

fn flavor_text(flavors: &[crate::ast::Ident]) -> String {
    let names: Vec<&str> = flavors.iter().map(|f| f.name.as_str()).collect();
    format!("flavor {{ {} }};", names.join(", "))
}

fn exclude_text(exclude: &ExcludeDefinition) -> String {
    let no_case = if exclude.no_case { "noCase " } else { "" };
    let regex = if exclude.regex { "regex " } else { "" };
    format!("exclude {no_case}{regex}{};", quoted(&exclude.pattern.value))
}

fn config_text(item: &ConfigItem, kind: ConfigKind) -> String {
    let key = if kind == ConfigKind::Tunables { quoted(&item.key.name) } else { item.key.name.clone() };
    let value = match &item.value {
        ConfigValue::Text(text) => quoted(text),
        ConfigValue::Word(word) => word.clone(),
        ConfigValue::Int(value) => number(*value),
        ConfigValue::Fixed(value) if value.fract() == 0.0 => format!("{value:.1}"),
        ConfigValue::Fixed(value) => value.to_string(),
        ConfigValue::Bool(value) => value.to_string(),
        ConfigValue::Texts(values) => format!("{{ {} }}", texts(values.iter().map(String::as_str))),
    };
    format!("{key} {value};")
}

impl fmt::Display for ResourcePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|p| write!(f, "/{}", p.name))
    }
}
