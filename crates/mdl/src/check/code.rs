//! Checks the types of the code language: numbers, variables, and the calls that the language itself defines.

use ingraft_model::{KeyParts, ObjectKind, table};

use super::meta::DefinitionCheck;
use super::types::{MetaType, PointType};
use crate::ast::{
    Accumulator, AssignOp, CalledName, Clock, CodeKind, CodeStatement, ExprKind, SyntaxExpr, VectorIndex,
};
use crate::diagnostic::{Severity, codes};
use crate::source::SourceSpan;

/// Calls that act on an accumulator: the call's name, the kind of the accumulator, and the number of arguments.
const REQUESTS: [(&str, Accumulator, usize); 9] = [
    ("startWallTimer", Accumulator::WallTimer, 1),
    ("stopWallTimer", Accumulator::WallTimer, 1),
    ("startProcessTimer", Accumulator::ProcessTimer, 1),
    ("stopProcessTimer", Accumulator::ProcessTimer, 1),
    ("destroyProcessTimer", Accumulator::ProcessTimer, 1),
    ("startHwTimer", Accumulator::HwTimer, 1),
    ("stopHwTimer", Accumulator::HwTimer, 1),
    ("sampleHwCounter", Accumulator::HwCounter, 1),
    ("observe", Accumulator::Histogram, 2),
];

/// Calls that act on a list of objects. Their arguments are the metric, an address and a kind of object.
const MARKS: [&str; 2] = ["discover", "retire"];

/// Whether a call is the statement `print`.
fn is_print(callee: &CalledName) -> bool {
    callee.name == "print" && !callee.quoted
}

impl DefinitionCheck<'_, '_> {
    pub(super) fn code(&mut self, code: &CodeStatement) {
        match &code.kind {
            CodeKind::Block(inner) => inner.iter().for_each(|c| self.code(c)),
            CodeKind::If(condition, then, otherwise) => {
                self.value(condition);
                self.code(then);
                if let Some(otherwise) = otherwise {
                    self.code(otherwise);
                }
            }
            CodeKind::Expr(expr) => self.effect(expr),
        }
    }

    /// Checks an expression that stands as a statement.
    fn effect(&mut self, expr: &SyntaxExpr) {
        match &expr.bare().kind {
            ExprKind::Assign(target, op, value) => {
                self.target(target);
                if let ExprKind::Index(name, _) = &target.bare().kind
                    && *op == AssignOp::Set
                    && self.is_vector(&name.name)
                    && self.vector != Some(VectorIndex::Objects)
                {
                    let message = format!("the values of `{}` add up, none can be set", name.name);
                    self.error(codes::TARGET, target.span, message).help = Some("write `+=` or `-=`".to_owned());
                }
                self.value(value);
            }
            ExprKind::Step(target, _) => self.target(target),
            ExprKind::Call(callee, args) if is_print(callee) => self.printed(args),
            ExprKind::Call(..) => self.value(expr),
            _ => {
                self.value(expr);
                self.report(codes::IGNORED, Severity::Warning, expr.span, "this value is not used");
            }
        }
    }

    /// Checks the values that `print` records. `str` reads a text there.
    fn printed(&mut self, args: &[SyntaxExpr]) {
        for arg in args {
            match &arg.bare().kind {
                ExprKind::Call(callee, parts) if callee.name == "args" && !callee.quoted && parts.is_empty() => {}
                _ => drop(self.value_or_text(arg)),
            }
        }
    }

    /// Checks a value where it may be `str(…)`, which reads a text. Returns whether it is one.
    fn value_or_text(&mut self, expr: &SyntaxExpr) -> bool {
        let Some(parts) = expr.text_read() else {
            self.value(expr);
            return false;
        };
        parts.iter().for_each(|part| self.value(part));
        if !(1..=2).contains(&parts.len()) {
            self.error(codes::TYPE, expr.span, "`str` takes an address, and perhaps a length").help =
                Some("write `str($arg[1])` or `str($arg[1], $arg[2])`".to_owned());
        }
        true
    }

    /// Checks the target of an assignment.
    fn target(&mut self, target: &SyntaxExpr) {
        if target.is_memory() {
            return self.value(target);
        }
        let (name, span) = match &target.bare().kind {
            ExprKind::Name(name) if !self.is_vector(name) => (name, target.span),
            ExprKind::Name(name) => return self.whole_vector(codes::TARGET, target.span, name),
            ExprKind::Index(name, index) => {
                self.index(index);
                if self.is_vector(&name.name) {
                    if self.vector == Some(VectorIndex::Objects) {
                        let message = format!("`{}` is a list of objects, which only its own calls change", name.name);
                        self.error(codes::TARGET, target.span, message).help =
                            Some(format!("its calls are {}", MARKS.join(", ")));
                    }
                    return;
                }
                let message = format!("an element of `{}` cannot be assigned to", name.name);
                self.error(codes::TARGET, target.span, message).help =
                    Some("only vectors have slots: give the metric a `vector over …;`".to_owned());
                return;
            }
            // The parser has reported any other target.
            _ => return,
        };
        match self.name(name, span) {
            MetaType::Data(Accumulator::Counter | Accumulator::Void) | MetaType::Unknown => {}
            MetaType::Data(kind) => {
                let message = format!("`{name}` is a {}, which only its own calls change", kind.keyword());
                let calls: Vec<&str> = REQUESTS.iter().filter(|r| r.1 == kind).map(|r| r.0).collect();
                self.error(codes::TARGET, span, message).help = Some(format!("its calls are {}", calls.join(", ")));
            }
            found => {
                let message = format!("`{name}` is {}, not a variable", found.words());
                self.error(codes::TARGET, span, message).help =
                    Some("only variables can be assigned to: the metric, its counters, a flag".to_owned());
            }
        }
    }

    /// Checks an expression whose value the code uses.
    fn value(&mut self, expr: &SyntaxExpr) {
        match &expr.kind {
            ExprKind::Int(_) | ExprKind::Text(_) | ExprKind::GlobalId => {}
            ExprKind::NamedArg(name) => {
                self.kept.insert(format!("$arg.{name}"));
            }
            ExprKind::Arg(index) => {
                self.value(index);
                if let ExprKind::Int(index) = index.bare().kind {
                    self.kept.insert(format!("$arg[{index}]"));
                }
            }
            ExprKind::Paren(inner) | ExprKind::Unary(_, inner) => self.value(inner),
            ExprKind::Binary(_, a, b) => {
                self.value(a);
                self.value(b);
            }
            ExprKind::Caller | ExprKind::Return | ExprKind::Own => self.value_of_place(expr),
            ExprKind::Elapsed(clock) => self.time(expr, *clock),
            // It is measured by the wall clock.
            ExprKind::SelfTime => self.time(expr, Clock::Wall),
            ExprKind::Name(name) if self.is_vector(name) => self.whole_vector(codes::KIND, expr.span, name),
            ExprKind::Name(name) => {
                let found = self.name(name, expr.span);
                self.number(expr.span, &found);
            }
            ExprKind::Row(_) => self.several(expr),
            ExprKind::Index(name, index) if self.is_vector(&name.name) => {
                self.index(index);
                self.one_number(index);
                if self.vector == Some(VectorIndex::Objects) {
                    let message = format!("`{}` is a list of objects, which have no values", name.name);
                    self.error(codes::KIND, expr.span, message);
                }
            }
            ExprKind::Index(name, index) => {
                self.value(index);
                let found = self.indexed(name, index);
                self.number(expr.span, &found);
            }
            ExprKind::Call(callee, _) if is_print(callee) => {
                self.error(codes::PLACE, expr.span, "`print` has no value").help =
                    Some("write it as a statement: `print($arg[0]);`".to_owned());
            }
            ExprKind::Call(callee, args) => {
                let request = REQUESTS.iter().find(|r| r.0 == callee.name && !callee.quoted);
                if self.vector == Some(VectorIndex::Objects) && MARKS.contains(&callee.name.as_str()) && !callee.quoted
                {
                    return self.mark(expr.span, &callee.name, args);
                }
                match request {
                    Some((name, kind, count)) => self.request(expr.span, name, *kind, *count, args),
                    None => self.call(expr.span, &callee.name, args),
                }
            }
            ExprKind::Address(_) => {
                self.error(codes::PLACE, expr.span, "an address can only be given to a called function");
            }
            ExprKind::Field(of, field) if of.is_data() => {
                if let ExprKind::Arg(index) = &of.bare().kind
                    && let ExprKind::Int(index) = index.bare().kind
                {
                    // A floating-point argument is another value than the integer argument of the same number. A member is read through
                    // the integer argument.
                    let float = ["double", "float"].contains(&field.name.as_str());
                    self.kept.insert(format!("$arg[{index}]{}", if float { &field.name } else { "" }));
                }
                self.data(of);
            }
            ExprKind::Field(of, field) => {
                let found = self.expr(expr);
                if !matches!(found, MetaType::Int | MetaType::Text | MetaType::Unknown) {
                    let message = format!("`.{}` of {} is no number", field.name, self.words_of(of));
                    self.error(codes::TYPE, expr.span, message);
                }
            }
            ExprKind::Assign(target, ..) | ExprKind::Step(target, ..) => self.changed(expr, target),
        }
    }

    /// Reports several values where one belongs.
    fn several(&mut self, expr: &SyntaxExpr) {
        self.error(codes::TYPE, expr.span, "several values where one belongs").help =
            Some("only the keys of a `vector over keys` have several parts".to_owned());
    }

    /// Checks an assignment whose value the code uses.
    fn changed(&mut self, expr: &SyntaxExpr, target: &SyntaxExpr) {
        self.effect(expr);
        if let ExprKind::Index(name, index) = &target.bare().kind
            && self.is_vector(&name.name)
        {
            self.one_number(index);
        }
    }

    /// Reports a key whose value cannot be read.
    fn one_number(&mut self, key: &SyntaxExpr) {
        if matches!(key.bare().kind, ExprKind::Row(_)) || key.text_read().is_some() {
            self.error(codes::TYPE, key.span, "the value of such a key can be added to, not read").help =
                Some("only the value of a key that is one number can be read".to_owned());
        }
    }

    /// Checks a value that exists only at some points.
    fn value_of_place(&mut self, expr: &SyntaxExpr) {
        let (known, message, help) = match &expr.kind {
            ExprKind::Caller => (
                matches!(self.place, Some((Some(PointType::Entry | PointType::Return) | None, _)) | None),
                "`$caller` is only known at entries and returns",
                "use it in code at `.entry`",
            ),
            ExprKind::Return => (
                matches!(self.place, Some((Some(PointType::Return), _) | (Some(PointType::Call), true) | (None, _))),
                "`$return` is only known at returns and behind calls",
                "use it in code at `.return`",
            ),
            _ => (
                false,
                "`$own` is only known as the last argument of `observe`",
                "write `observe(m, $elapsed, $own)`, or use `$self`",
            ),
        };
        if !known {
            self.error(codes::PLACE, expr.span, message).help = Some(help.to_owned());
        }
    }

    /// Checks an expression whose member is data of the program.
    fn data(&mut self, expr: &SyntaxExpr) {
        match &expr.bare().kind {
            ExprKind::Field(of, _) => self.data(of),
            ExprKind::Arg(index) => self.value(index),
            _ => self.value(expr),
        }
    }

    fn words_of(&mut self, expr: &SyntaxExpr) -> String {
        if let ExprKind::Name(name) = &expr.bare().kind { format!("`{name}`") } else { "this".to_owned() }
    }

    fn number(&mut self, span: SourceSpan, found: &MetaType) {
        match found {
            MetaType::Int
            | MetaType::Text
            | MetaType::Unknown
            | MetaType::Data(Accumulator::Counter | Accumulator::Void) => {}
            MetaType::Data(kind) => {
                let message = format!("a {} has no value while the program runs", kind.keyword());
                self.error(codes::KIND, span, message).help = Some("keep what you need in a `counter`".to_owned());
            }
            found => {
                let message = format!("{} is no number", found.words());
                self.error(codes::TYPE, span, message);
            }
        }
    }

    /// Checks the time of a call.
    fn time(&mut self, expr: &SyntaxExpr, clock: Clock) {
        if !matches!(self.place, Some((Some(PointType::Return) | None, _))) {
            let message = "the time of a call is only known at its return";
            self.error(codes::PLACE, expr.span, message).help = Some("use it in code at `.return`".to_owned());
        }
        self.kept.insert(format!("{clock:?}"));
    }

    /// Checks a call that acts on an accumulator.
    fn request(&mut self, span: SourceSpan, name: &str, kind: Accumulator, count: usize, args: &[SyntaxExpr]) {
        let (args, own) = match args {
            [first @ .., last] if kind == Accumulator::Histogram && matches!(last.bare().kind, ExprKind::Own) => {
                (first, Some(last))
            }
            all => (all, None),
        };
        if let (Some(own), [_, value]) = (own, args) {
            match value.bare().kind {
                ExprKind::Elapsed(clock) => {
                    self.kept.insert(format!("{clock:?} own"));
                }
                _ => {
                    let message = "`$own` is the own part of a time";
                    self.error(codes::TYPE, own.span, message).help =
                        Some("let the second argument be `$elapsed` or `$cpu` alone".to_owned());
                }
            }
        }
        if args.len() != count {
            let message = format!("`{name}` takes {count} argument{}", if count == 1 { "" } else { "s" });
            self.error(codes::TYPE, span, message);
            return;
        }
        for arg in args.iter().skip(1) {
            self.value(arg);
            if kind == Accumulator::Histogram {
                self.observed_value(arg);
            }
        }
        let Some(first) = args.first().map(SyntaxExpr::bare) else { return };
        let found = match &first.kind {
            ExprKind::Name(name) => self.name(name, first.span),
            _ => MetaType::Int,
        };
        if found != MetaType::Data(kind) && found != MetaType::Unknown {
            let message = format!("`{name}` acts on a {}, this is {}", kind.keyword(), found.words());
            self.error(codes::KIND, first.span, message).help =
                Some(format!("give it the metric's own name, and let its base be `{}`", kind.keyword()));
        }
    }

    /// Checks the value of `observe`. A histogram records either times as they are measured, or other values, not both.
    fn observed_value(&mut self, value: &SyntaxExpr) {
        let time = matches!(value.bare().kind, ExprKind::Elapsed(_));
        if *self.observed.get_or_insert(time) != time {
            let message = "a histogram observes a time alone and other values";
            self.error(codes::TYPE, value.span, message).help =
                Some("it holds one or the other: observe `$elapsed` or `$cpu` alone everywhere, or nowhere".to_owned());
        }
    }

    fn whole_vector(&mut self, code: &'static str, span: SourceSpan, name: &str) {
        self.error(code, span, format!("`{name}` is a vector")).help = Some(format!("say which slot: `{name}[…]`"));
    }

    /// Checks the index between the brackets of a vector.
    fn index(&mut self, index: &SyntaxExpr) {
        if self.vector == Some(VectorIndex::Keys) {
            self.key(index);
        } else if !self.is_item(index) {
            self.value(index);
        }
    }

    /// Checks a key: one value or several, each of which may be a text. All keys of a metric have the same parts.
    fn key(&mut self, key: &SyntaxExpr) {
        let parts = if let ExprKind::Row(parts) = &key.bare().kind { parts } else { std::slice::from_ref(key) };
        let texts: Vec<bool> = parts.iter().map(|part| self.value_or_text(part)).collect();
        let Some(parts) = KeyParts::of(texts) else {
            let help = format!(
                "a key has at most {} parts and {} words: a number takes 1, a text {}",
                KeyParts::MAX,
                table::WORDS_MAX,
                table::TEXT_WORDS
            );
            self.error(codes::TOO_LARGE, key.span, "a key of too many parts").help = Some(help);
            return;
        };
        if *self.key_parts.get_or_insert(parts) != parts {
            self.error(codes::TYPE, key.span, "another key of this metric has other parts").help =
                Some("all keys of a metric have as many numbers and texts, in the same order".to_owned());
        }
    }

    fn is_vector(&self, name: &str) -> bool {
        self.vector.is_some() && self.names.first().is_some_and(|(metric, _)| metric == name)
    }

    /// Whether an index is a variable that may stand for an item of the list that the metric is indexed by.
    fn is_item(&mut self, index: &SyntaxExpr) -> bool {
        let Some(VectorIndex::List(list)) = &self.vector else { return false };
        let ExprKind::Name(name) = &index.bare().kind else { return false };
        let local = self.names.iter().rev().find(|(known, _)| known == name).map(|(_, found)| found);
        match (self.scope.global(&list.name), local) {
            (Some(MetaType::List(item)), Some(found)) => *item == *found,
            _ => false,
        }
    }

    /// Checks `discover` or `retire`, which record the kind and the state of an object.
    fn mark(&mut self, span: SourceSpan, name: &str, args: &[SyntaxExpr]) {
        let [list, address, kind] = args else {
            self.error(codes::TYPE, span, format!("`{name}` takes three arguments")).help =
                Some(format!("write `{name}(METRIC, ADDRESS, \"KIND\")`"));
            return;
        };
        if !matches!(&list.bare().kind, ExprKind::Name(name) if self.is_vector(name)) {
            self.error(codes::KIND, list.span, format!("`{name}` acts on the metric itself"));
        }
        self.value(address);
        if !matches!(&kind.bare().kind, ExprKind::Text(kind) if ObjectKind::named(kind).is_some()) {
            self.error(codes::TYPE, kind.span, "this is no kind of object").help =
                Some(format!("there are {}", ObjectKind::ALL.map(ObjectKind::name).join(", ")));
        }
    }

    /// Checks a call of a function of the program, of `readSymbol` or of `readAddress`.
    fn call(&mut self, span: SourceSpan, name: &str, args: &[SyntaxExpr]) {
        match (name, args) {
            ("readSymbol", [SyntaxExpr { kind: ExprKind::Text(_), .. }]) => {}
            ("readSymbol", _) => {
                self.error(codes::TYPE, span, "`readSymbol` takes the name of a variable in quotes").help =
                    Some("write `readSymbol(\"name\")`, of a static `readSymbol(\"file.c:name\")`".to_owned());
            }
            ("readAddress", [address]) => self.value(address),
            ("readAddress", _) => {
                self.error(codes::TYPE, span, "`readAddress` takes one address");
            }
            (_, args) => {
                for arg in args {
                    match &arg.bare().kind {
                        ExprKind::Address(inner) => self.address(inner),
                        _ => self.value(arg),
                    }
                }
            }
        }
    }

    /// Checks `&x` as an argument of a call.
    fn address(&mut self, inner: &SyntaxExpr) {
        match &inner.bare().kind {
            ExprKind::Name(name) => match self.name(name, inner.span) {
                MetaType::Data(_) | MetaType::Unknown => {}
                found => {
                    let message = format!("only variables have addresses, `{name}` is {}", found.words());
                    self.error(codes::TYPE, inner.span, message);
                }
            },
            _ => {
                self.error(codes::TYPE, inner.span, "only variables have addresses");
            }
        }
    }
}
