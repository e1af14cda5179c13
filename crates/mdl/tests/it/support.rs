//! A program as a table, for tests of the request stage.

use std::sync::Arc;

use ingraft_mdl::{
    DescribedData, IntegerPath, Library, Parameter, ParseOptions, ProgramFacts, ProgramVariable, Unresolved,
    VariableLocation, WithNames, evaluate,
};
use ingraft_model::{
    Avma, DataShape, DataVariant, DataWord, EdgeKind, Enumerators, Focus, FunctionId, IntegerWidth, LoopEdges,
    ModuleId, Offset, PartName, Parts, Pid, PointId, PointKind, Refusal, Scalar, WordOrigin,
};

/// Returns a library with these texts, which must have no error.
pub fn library(texts: &[&str]) -> Library {
    let mut library = Library::new(ParseOptions::default());
    for (i, text) in texts.iter().enumerate() {
        let findings = library.load(&format!("{i}.mdl"), text);
        assert!(!findings.iter().any(ingraft_mdl::Diagnostic::is_error), "{findings:#?}");
    }
    library
}

/// Returns one line per insertion, or the findings. At other points than entries, the line names the point.
pub fn show(library: &Library, metric: &str, focus: &str) -> String {
    let program = Table::server();
    let focus = Focus::parse(focus).expect("focus");
    match evaluate(library, metric, &focus, &program) {
        Err(findings) => findings.iter().map(|d| format!("{d}\n")).collect(),
        Ok(done) => {
            let done = done.instrumentation;
            let mut out: String = done.thread.map(|t| format!("thread {t}\n")).unwrap_or_default();
            for insertion in &done.insertions {
                let point = match insertion.point {
                    PointKind::Entry => "",
                    PointKind::Exit => ".return",
                    PointKind::CallBefore => ".calls",
                    PointKind::CallAfter => ".calls after",
                    PointKind::Block => ".blocks",
                    PointKind::Edge => ".edges",
                };
                let point = match &insertion.parts {
                    Parts::All => point.to_owned(),
                    Parts::One(point) => part(point),
                    Parts::These(points) => points.iter().map(part).collect::<Vec<_>>().join(" "),
                    Parts::Missing(why) => format!(" ({why})"),
                };
                out += &format!(
                    "{}{point} {:?} {:?}: {}\n",
                    program.function_name(insertion.function),
                    insertion.role,
                    insertion.order,
                    insertion.snippet
                );
            }
            out
        }
    }
}

/// Modules with the names of their functions.
pub struct Table {
    pub modules: Vec<(String, Vec<String>)>,
    pub flavors: Vec<String>,
}

impl Table {
    pub fn new(modules: &[(&str, &[&str])]) -> Self {
        let modules =
            modules.iter().map(|(m, fs)| ((*m).to_owned(), fs.iter().map(|f| (*f).to_owned()).collect())).collect();
        Table { modules, flavors: vec!["linux".to_owned(), "unix".to_owned()] }
    }

    /// A server with the functions that the shipped metrics look for.
    pub fn server() -> Self {
        Table::new(&[
            ("server", &["main", "call", "processCommand", "queue_put", "queue_get"]),
            (
                "libc.so.6",
                &["malloc", "calloc", "realloc", "free", "write", "read", "pwrite64", "pthread_mutex_lock", "_exit"],
            ),
        ])
    }

    fn refs(&self, keep: impl Fn(&str, &str) -> bool) -> Vec<FunctionId> {
        let mut found = Vec::new();
        for (m, (module, functions)) in self.modules.iter().enumerate() {
            for (f, function) in functions.iter().enumerate() {
                if keep(module, function) {
                    found.push(FunctionId { module: ModuleId(m as u32), function: f as u32 });
                }
            }
        }
        found
    }
}

impl ProgramFacts for Table {
    fn machine(&self) -> &str {
        "node17"
    }
    fn flavors(&self) -> &[String] {
        &self.flavors
    }
    fn pid(&self) -> Pid {
        Pid(4711)
    }
    fn modules(&self) -> Vec<ModuleId> {
        (0..self.modules.len() as u32).map(ModuleId).collect()
    }
    fn modules_named(&self, name: &str) -> Vec<ModuleId> {
        self.modules().into_iter().filter(|m| self.module_name(*m) == name).collect()
    }
    fn functions_of(&self, module: ModuleId) -> Vec<FunctionId> {
        (0..self.modules[module.0 as usize].1.len() as u32).map(|function| FunctionId { module, function }).collect()
    }
    fn functions_named(&self, name: &str) -> Vec<FunctionId> {
        self.refs(|_, f| f == name)
    }
    fn function(&self, module: &str, function: &str) -> Vec<FunctionId> {
        self.refs(|m, f| m == module && f == function)
    }
    /// Every function has two blocks.
    fn block(&self, _: FunctionId, offset: Offset) -> Result<(), Unresolved> {
        match offset.0 {
            0 | 0x1a => Ok(()),
            _ => Err(Unresolved::NotFound {
                what: format!("no block begins at {offset}"),
                help: Some("blocks begin at #0x0, #0x1a".to_owned()),
            }),
        }
    }
    /// Every function has a block that leads to a loop of one block, and that one leads to a third one. Two ways lead from the loop to its
    /// beginning.
    fn edges(&self, _: FunctionId, from: Offset, to: Offset) -> Result<Arc<[PointId]>, Unresolved> {
        let wanted = Some(PartName::Edge { from, to });
        let found: Vec<PointId> = edges().into_iter().filter(|edge| edge.name() == wanted).collect();
        if found.is_empty() {
            let what = format!("no edge {}", PartName::Edge { from, to });
            return Err(Unresolved::NotFound { what, help: None });
        }
        Ok(found.into())
    }
    /// Control enters the loop of `queue_put` along no edge, and leaves it so.
    fn loops(&self, function: FunctionId) -> Result<Arc<[LoopEdges]>, Unresolved> {
        let [enter, again, other, exit] = edges();
        let (enter, exit) = match self.function_name(function) {
            "queue_put" => {
                let offset = Offset(0x1a);
                (Err(Refusal::EntersLoop { offset }), Err(Refusal::LeavesLoop { offset }))
            }
            _ => (Ok([enter].into()), Ok([exit].into())),
        };
        Ok([LoopEdges { header: Offset(0x1a), enter, exit, again: [again, other].into() }].into())
    }
    fn variable(&self, name: &str, members: &[&str]) -> Result<ProgramVariable, Unresolved> {
        let at = match name {
            "level" | "server.c:level" => VariableLocation::Lasting(Avma(0x5000)),
            "shared" => VariableLocation::Fleeting(Avma(0x7000_0000)),
            "mine" => VariableLocation::PerThread(-16),
            "own" => return Err(Unresolved::Unreadable("`own`: every thread has its own".to_owned())),
            name => {
                let help = Some("did you mean `level`?".to_owned());
                return Err(Unresolved::NotFound { what: format!("the program has no variable `{name}`"), help });
            }
        };
        Ok(ProgramVariable { at, access: through(members.len()), described: true, names: None })
    }
    fn address(&self, name: &str) -> Result<Avma, Unresolved> {
        self.variable(name, &[]).map(|global| match global.at {
            VariableLocation::Lasting(at) | VariableLocation::Fleeting(at) => at,
            VariableLocation::PerThread(_) | VariableLocation::PerThreadOfLibrary(_) => panic!("not asked for here"),
        })
    }
    /// Only the callees of `call` are known: it calls `main`.
    fn callees(&self, function: FunctionId) -> Result<Vec<FunctionId>, Unresolved> {
        let unknown = || Unresolved::Unreadable("a call of something that is computed".to_owned());
        (self.function_name(function) == "call").then(|| self.functions_named("main")).ok_or_else(unknown)
    }
    /// `call` has an `int` and a text, and then more arguments than a call keeps.
    fn arguments(&self, function: FunctionId) -> Result<Vec<(String, DataShape)>, Unresolved> {
        if self.function_name(function) != "call" {
            return Err(Unresolved::Unreadable("no debugging information".to_owned()));
        }
        let of = |(number, name): (u8, &str)| {
            let at = |scalar| argument(number, &[], scalar);
            let shape = match number {
                0 => DataShape::Number(at(Scalar::INT), None),
                1 => DataShape::Characters(at(Scalar::POINTER)),
                _ => DataShape::Number(at(Scalar::POINTER), None),
            };
            (name.to_owned(), shape)
        };
        Ok((0..).zip(["id", "name", "a", "b", "c", "d"]).map(of).collect())
    }
    /// The member `state` is an enumeration.
    fn member(&self, _: FunctionId, _: Parameter, members: &[&str]) -> Result<WithNames<IntegerPath>, Unresolved> {
        Ok((through(members.len()), members.ends_with(&["state"]).then(states)))
    }
    /// Only the first argument of `queue_put` is a string, and that of `queue_get` has members of several types.
    fn shown(
        &self,
        function: FunctionId,
        of: DescribedData<'_>,
        members: &[&str],
        follow: bool,
    ) -> Result<DataShape, Unresolved> {
        let first = DescribedData::Parameter(Parameter::Argument(0));
        let word = |offset| argument(0, &[offset], Scalar::POINTER);
        let text = |offset| DataShape::Text { bytes: word(offset), length: word(offset + 8) };
        match (self.function_name(function), members) {
            ("queue_put", []) if of == first && follow => Ok(text(0)),
            ("queue_get", ["name"]) => Ok(text(16)),
            ("queue_get", ["state"]) => Ok(DataShape::Number(argument(0, &[4], Scalar::INT), Some(states()))),
            ("queue_get", ["list"]) => {
                Ok(DataShape::List { elements: Some((word(64), Scalar::INT)), length: word(72) })
            }
            ("queue_get", ["option"]) => {
                let variant = |value, name: &str, data: Option<DataShape>| DataVariant {
                    value,
                    name: name.to_owned(),
                    data: data.map(Box::new),
                };
                let variants = vec![
                    variant(Some(0), "None", None),
                    variant(Some(1), "One", Some(text(96))),
                    variant(Some(2), "Two", Some(text(96))),
                    variant(Some(3), "More", Some(text(96))),
                    variant(None, "Rest", Some(DataShape::Number(argument(1, &[], Scalar::INT), None))),
                ];
                Ok(DataShape::Variants { selector: Some(word(88)), variants })
            }
            _ => Err(Unresolved::Unreadable("it is nothing that is shown".to_owned())),
        }
    }
    fn module_name(&self, module: ModuleId) -> &str {
        &self.modules[module.0 as usize].0
    }
    fn function_name(&self, function: FunctionId) -> &str {
        &self.modules[function.module.0 as usize].1[function.function as usize]
    }
}

/// An integer in a register, or to which a register leads.
fn argument(number: u8, offsets: &[i64], scalar: Scalar) -> DataWord {
    DataWord { origin: WordOrigin::Argument(number), shift: 0, offsets: offsets.to_vec(), scalar }
}

/// The names of an enumeration.
pub fn states() -> Enumerators {
    Enumerators::new(Scalar::INT, [(0, "IDLE".to_owned()), (1, "READY".to_owned())]).expect("names")
}

/// The name of a block or an edge, with the kind of the edge.
fn part(point: &PointId) -> String {
    let name = point.name().expect("a name").to_string();
    if let PointId::Edge { kind, .. } = point { format!("{name} {kind:?}") } else { name }
}

/// The edges of every function.
fn edges() -> [PointId; 4] {
    let edge = |from, to, kind| PointId::Edge { from: Offset(from), to: Offset(to), kind };
    [
        edge(0, 0x1a, EdgeKind::FallThrough),
        edge(0x1a, 0x1a, EdgeKind::Taken),
        edge(0x1a, 0x1a, EdgeKind::JumpTable),
        edge(0x1a, 0x2c, EdgeKind::FallThrough),
    ]
}

/// Path through members: each member but the last is a pointer at offset 0, and the last one is an integer at offset 8.
fn through(members: usize) -> IntegerPath {
    let scalar = Scalar { width: IntegerWidth::Two, signed: false };
    IntegerPath { pointers: vec![0; members.saturating_sub(1)], offset: if members == 0 { 0 } else { 8 }, scalar }
}

/// A table with an index by function name, as an engine has one.
pub struct Indexed {
    table: Table,
    index: std::collections::HashMap<String, Vec<FunctionId>>,
}

impl Indexed {
    pub fn new(table: Table) -> Self {
        let mut index: std::collections::HashMap<String, Vec<FunctionId>> = std::collections::HashMap::new();
        for function in table.refs(|_, _| true) {
            index.entry(table.function_name(function).to_owned()).or_default().push(function);
        }
        Indexed { table, index }
    }
}

impl ProgramFacts for Indexed {
    fn machine(&self) -> &str {
        self.table.machine()
    }
    fn flavors(&self) -> &[String] {
        self.table.flavors()
    }
    fn pid(&self) -> Pid {
        self.table.pid()
    }
    fn modules(&self) -> Vec<ModuleId> {
        self.table.modules()
    }
    fn modules_named(&self, name: &str) -> Vec<ModuleId> {
        self.table.modules_named(name)
    }
    fn functions_of(&self, module: ModuleId) -> Vec<FunctionId> {
        self.table.functions_of(module)
    }
    fn functions_named(&self, name: &str) -> Vec<FunctionId> {
        self.index.get(name).cloned().unwrap_or_default()
    }
    fn function(&self, module: &str, function: &str) -> Vec<FunctionId> {
        let mut found = self.functions_named(function);
        found.retain(|f| self.module_name(f.module) == module);
        found
    }
    fn module_name(&self, module: ModuleId) -> &str {
        self.table.module_name(module)
    }
    fn function_name(&self, function: FunctionId) -> &str {
        self.table.function_name(function)
    }
}
