//! Checks the rules that every instrumentation keeps and on which code generation relies.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_mdl::{ParseOptions, evaluate, shipped};
use ingraft_model::{
    CallRecord, Expr, Float, Focus, Insertion, Instrumentation, KeptValue, KeyField, KeyParts, Order, PointKind,
    Restore, Shape, Stmt, TableShape, VariableId,
};
use proptest::prelude::*;

use crate::support::{Table, library};

/// Checks the rules for one instrumentation.
#[track_caller]
pub fn assert_sound(done: &Instrumentation) {
    let check = Check { done };
    let mut points: BTreeMap<_, Vec<&Insertion>> = BTreeMap::new();
    for insertion in &done.insertions {
        check.stmts(&insertion.snippet.stmts, insertion, None);
        let chain = points.entry((insertion.function, insertion.point)).or_default();
        match insertion.order {
            Order::Append => chain.push(insertion),
            Order::Prepend => chain.insert(0, insertion),
        }
    }
    points.values_mut().for_each(|chain| chain.sort_by_key(|i| i.role));
    let records = |place, open| points.get(&place).map_or_else(Vec::new, |chain| named(chain, open));
    let mut all: Vec<CallRecord> = Vec::new();
    for function in done.insertions.iter().map(|i| i.function).collect::<BTreeSet<_>>() {
        for (begin, end) in [(PointKind::Entry, PointKind::Exit), (PointKind::CallBefore, PointKind::CallAfter)] {
            let mut opened = records((function, begin), true);
            all.extend(opened.iter().cloned());
            opened.reverse();
            assert_eq!(records((function, end), false), opened, "they close like brackets");
        }
    }
    for a in &all {
        assert!(all.iter().all(|b| a == b || a.activations != b.activations), "two records have one name");
    }
}

fn is_end(insertion: &Insertion) -> bool {
    matches!(insertion.point, PointKind::Exit | PointKind::CallAfter)
}

/// Returns the records that code opens or closes, in the order of execution.
fn named(chain: &[&Insertion], open: bool) -> Vec<CallRecord> {
    fn collect(stmts: &[Stmt], open: bool, out: &mut Vec<CallRecord>) {
        for stmt in stmts {
            match stmt {
                Stmt::Open(record, inner) if open => {
                    out.push(record.clone());
                    collect(inner, open, out);
                }
                Stmt::Close(record, inner) if !open => {
                    collect(inner, open, out);
                    out.push(record.clone());
                }
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    chain.iter().for_each(|i| collect(&i.snippet.stmts, open, &mut out));
    out
}

struct Check<'a> {
    done: &'a Instrumentation,
}

impl Check<'_> {
    fn shape(&self, v: VariableId) -> Shape {
        self.done.variables[v.0 as usize].shape
    }

    fn stmts(&self, stmts: &[Stmt], at: &Insertion, closed: Option<&CallRecord>) {
        for stmt in stmts {
            match stmt {
                Stmt::Add(v, e) | Stmt::Set(v, e) => {
                    assert_eq!(self.shape(*v), Shape::Counter);
                    self.expr(e, at, closed);
                }
                Stmt::AddAt(v, table, key, e) => {
                    assert_eq!(self.shape(*v), Shape::Table(*table));
                    assert_eq!(KeyParts::of(key.iter().map(KeyField::is_text)), Some(table.parts));
                    key.iter().flat_map(KeyField::operands).for_each(|part| self.expr(part, at, closed));
                    self.expr(e, at, closed);
                }
                Stmt::AddIn(v, ranges, number, e) => {
                    assert_eq!(self.shape(*v), Shape::Vector(ranges.count()));
                    self.expr(number, at, closed);
                    self.expr(e, at, closed);
                }
                Stmt::AddListed(..) => panic!("the engine alone makes code that pairs share"),
                Stmt::Record(v, capacity, recorded) => {
                    assert_eq!(self.shape(*v), Shape::Records(*capacity, false));
                    recorded.fields.iter().for_each(|field| self.expr(field.operand(), at, closed));
                }
                Stmt::Append(..) => panic!("the engine alone makes code that appends to buffers"),
                Stmt::BeginGroup(_) | Stmt::KeepGroup(_) | Stmt::Notes(_) => {
                    panic!("the engine alone makes groups of records")
                }
                Stmt::Enter(..)
                | Stmt::EnterMoving(..)
                | Stmt::LeaveMoving(..)
                | Stmt::CountBelow(..)
                | Stmt::EnterValue(..)
                | Stmt::LeaveValue(..)
                | Stmt::AddContext(..) => {
                    panic!("the engine alone makes code for contexts")
                }
                Stmt::Mark(v, key, _) => {
                    assert_eq!(self.shape(*v), Shape::Table(TableShape::OBJECTS));
                    self.expr(key, at, closed);
                }
                Stmt::Observe(v, resolution, e, _) => {
                    assert_eq!(self.shape(*v), Shape::Histogram(*resolution));
                    self.expr(e, at, closed);
                }
                Stmt::Start(v, clock) | Stmt::Stop(v, clock) => assert_eq!(self.shape(*v), Shape::Timer(*clock)),
                Stmt::If(condition, inner) => {
                    self.expr(condition, at, closed);
                    self.stmts(inner, at, closed);
                }
                Stmt::Store(_, _, e) => self.expr(e, at, closed),
                Stmt::Write(address, _, e) => {
                    self.expr(address, at, closed);
                    self.expr(e, at, closed);
                }
                Stmt::Call(call) => call.args.iter().for_each(|e| self.expr(e, at, closed)),
                Stmt::Prune
                | Stmt::Await
                | Stmt::Fork
                | Stmt::Switch(_)
                | Stmt::Forked
                | Stmt::HandOver(..)
                | Stmt::GiveUp(..)
                | Stmt::CloseHanded(..) => {
                    panic!(
                        "who puts the code of several requests together prunes once, and the engine alone waits and knows of jumps"
                    )
                }
                Stmt::Open(record, inner) => {
                    assert!(!is_end(at));
                    self.record(record);
                    self.stmts(inner, at, None);
                }
                Stmt::Close(record, inner) => {
                    assert!(is_end(at) && closed.is_none());
                    self.record(record);
                    self.stmts(inner, at, Some(record));
                }
            }
        }
    }

    fn record(&self, record: &CallRecord) {
        assert_eq!(self.shape(record.activations), Shape::Activations);
        assert!(record.kept.len() <= CallRecord::KEPT_MAX && record.kept.is_sorted());
        match record.restore {
            Some(Restore::Timer(v, clock)) => assert_eq!(self.shape(v), Shape::Timer(clock)),
            Some(Restore::Value(v) | Restore::Flag(v)) => assert_eq!(self.shape(v), Shape::Counter),
            Some(Restore::Outermost(_)) => panic!("the engine alone has calls whose outermost ones need no record"),
            None => {}
        }
    }

    fn expr(&self, expr: &Expr, at: &Insertion, closed: Option<&CallRecord>) {
        match expr {
            Expr::Const(_) => {}
            Expr::Arg(_) => assert!(!is_end(at)),
            Expr::Return => assert!(is_end(at)),
            Expr::ReturnAddress => assert!(matches!(at.point, PointKind::Entry | PointKind::Exit)),
            Expr::Saved(kept) => assert!(closed.is_some_and(|r| r.kept.contains(kept))),
            Expr::Elapsed(clock, _) => assert!(closed.is_some_and(|r| r.kept.contains(&KeptValue::Time(*clock)))),
            Expr::Restored => assert!(closed.is_some_and(|r| matches!(r.restore, Some(Restore::Value(_))))),
            Expr::Variable(v) => assert_eq!(self.shape(*v), Shape::Counter),
            Expr::Lost(_) | Expr::Notes | Expr::OfGoroutine(_) | Expr::Now(_) | Expr::Since(..) => {
                panic!("the engine alone makes groups of records, and differences")
            }
            Expr::Number(v) => assert!((v.0 as usize) < self.done.variables.len()),
            Expr::Load(..) | Expr::ThreadPointer | Expr::Usage(_) | Expr::Event(_) | Expr::Text(_) => {}
            Expr::Address(v) => assert_eq!(self.shape(*v), Shape::Counter),
            Expr::Float(float) => assert!(float.register < Float::ARGS_MAX && (!is_end(at) || float.register == 0)),
            Expr::Read(e, _) => self.expr(e, at, closed),
            Expr::ValueAt(v, places, key) => {
                assert_eq!(self.shape(*v), Shape::Table(TableShape { places: *places, ..TableShape::SUMS }));
                self.expr(key, at, closed);
            }
            Expr::ValueIn(v, ranges, number) => {
                assert_eq!(self.shape(*v), Shape::Vector(ranges.count()));
                self.expr(number, at, closed);
            }
            Expr::Unary(_, e) => self.expr(e, at, closed),
            Expr::Call(call) => call.args.iter().for_each(|e| self.expr(e, at, closed)),
            Expr::Binary(_, a, b) => {
                self.expr(a, at, closed);
                self.expr(b, at, closed);
            }
        }
    }
}

#[test]
fn shipped_metrics_at_all_kinds_of_focus() {
    let library = shipped::library(ParseOptions::default());
    let mut sound = 0;
    for metric in library.metrics() {
        for focus in
            ["", "/Code/server", "/Code/server/call", "/SyncObject/Mutex", "/SyncObject/Mutex/7,/Code/libc.so.6/malloc"]
        {
            let focus = Focus::parse(focus).expect("focus");
            if let Ok(done) = evaluate(&library, &metric.name, &focus, &Table::server()) {
                assert_sound(&done.instrumentation);
                sound += 1;
            }
        }
    }
    assert!(sound > 100, "{sound}");
}

/// Statements about a counter V and a scratch variable T. They are for any point, only for returns, or only for a V that is a timer.
const ANYWHERE: [&str; 8] = [
    "V++;",
    "V -= 1;",
    "V = 0;",
    "T = $arg[1];",
    "if ($arg[0] > T) V++; else V--;",
    "if (T) { T = $arg[2]; V = 1; }",
    "V += $arg[3] * $arg[4];",
    "T -= 1;",
];
const AT_RETURNS: [&str; 4] =
    ["T = $self;", "V += $elapsed - $cpu;", "if ($return > $arg[5].double) V += $elapsed - $self;", "V += $return;"];
const TIMER: [&str; 3] = ["startWallTimer(V);", "if ($arg[0]) stopWallTimer(V);", "T = $arg[1];"];

/// Generates a few insertions at the points of a function F.
fn body(timer: bool) -> impl Strategy<Value = String> {
    let points = prop::sample::select(&["preInsn F.entry", "preInsn F.return", "preInsn F.calls", "postInsn F.calls"]);
    let code = (prop::sample::select(&ANYWHERE), prop::sample::select(&AT_RETURNS), prop::sample::select(&TIMER));
    let insertion = (any::<(bool, bool, bool)>(), points, code).prop_map(
        move |((prepend, constrained, at_return), point, (anywhere, returns, time))| {
            let order = if prepend { "prepend" } else { "append" };
            let guard = if constrained { "constrained" } else { "" };
            let code = match (timer, at_return && point.ends_with("return")) {
                (true, _) => time,
                (false, true) => returns,
                (false, false) => anywhere,
            };
            format!("{order} {point} {guard} (* {code} *)\n")
        },
    );
    prop::collection::vec(insertion, 0..7).prop_map(|insertions| insertions.concat())
}

/// Returns the body with these names for the counter, the scratch variable and the function.
fn filled(body: &str, counter: &str, scratch: &str, function: &str) -> String {
    let words = body.replace('V', counter).replace('F', function);
    words.replace('T', scratch).replace(&format!("Wall{scratch}imer"), "WallTimer")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn code_at_any_points_is_sound(
        (timer, counter, one, two) in (body(true), body(false), body(false), body(false)),
        word in prop::sample::select(&["inclusive", "exclusive"]),
    ) {
        let flag = |name: &str, body: &str| {
            format!("constraint {name} /Code/* is counter {{ {} }}\n", filled(body, name, name, "$constraint[0]"))
        };
        let metric = |name: &str, style: &str, kind: &str, body: &str| {
            format!(
                "metric {name} {{ name \"{name}\"; units u; aggregateOperator sum; style {style}; counter tmp;\n\
                 constraint one; constraint worded; constraint two;\n\
                 base is {kind} {{ foreach f in $procedures {{ {} }} }} }}\n",
                filled(body, name, "tmp", "f")
            )
        };
        let text = flag("one", &one)
            + &flag("two", &two)
            + &format!("constraint worded /Code/* is {word};\n")
            + &metric("timed", "EventCounter", "wallTimer", &timer)
            + &metric("counted", "EventCounter", "counter", &counter)
            + &metric("level", "SampledFunction", "counter", &counter);
        let library = library(&[&text]);
        for name in ["timed", "counted", "level"] {
            for focus in ["", "/Code/server/call"] {
                match evaluate(&library, name, &Focus::parse(focus).expect("focus"), &Table::server()) {
                    Ok(done) => assert_sound(&done.instrumentation),
                    // The code uses more arguments than a record keeps.
                    Err(findings) => prop_assert!(findings.iter().all(|f| f.code == "MDL005"), "{findings:#?}"),
                }
            }
        }
    }
}
