//! The evaluation of a client's request: patterns become functions, and metrics become snippets.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use ingraft_analysis::FunctionKind;
use ingraft_mdl::{Diagnostic, Evaluated, Evaluator, Library, ProgramFacts, codes};
use ingraft_model::{Expr, Focus, FunctionId, Instrumentation, PartName, ResourcePath, Shape, Snippet, Tid};
use ingraft_process::Target;

use crate::api::{EnableRequest, MeasurementId, MetricFocus};
use crate::background::each;
use crate::error::{Error, Reason};
use crate::measure::calls;
use crate::measure::foci;
use crate::measure::source_lines;
use crate::measure::value_names;
use crate::names::some_of;
use crate::program::images::ImageStore;
use crate::program::labels;
use crate::program::modules::{ModuleFile, Modules};
use crate::program::pattern::{Pattern, SourceLine};

/// Number of modules that an error names before it counts the rest.
const NAMED: usize = 12;

/// A pair of a request, with the code that it needs.
#[derive(Clone)]
pub struct WantedPair {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Function that the focus names, if the pair came from the request's `functions` or from a pattern in a focus; otherwise `None`.
    pub function: Option<FunctionId>,
    /// Code that must be woven for the pair.
    pub instrumentation: Instrumentation,
    /// Diagnostics that do not prevent the measurement.
    pub warnings: Vec<Diagnostic>,
    /// The definitions other than metrics with which the pair was evaluated, without the shipped ones ([`Library::helpers`]).
    pub helpers: Arc<str>,
    /// The measurement that has the pair alone; `None` if all measurements with equal definitions share it.
    pub owner: Option<Owner>,
}

/// The measurement to which a pair belongs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The measurement.
    pub measurement: MeasurementId,
    /// The purpose of the pair.
    pub purpose: PairPurpose,
}

/// The purpose of a pair. If all pairs of a measurement would cost too much, those that were asked for come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairPurpose {
    /// The value was asked for.
    Asked,
    /// The code says where values of others belong, and is named to clients.
    Helping,
    /// The pair has no value for clients, so the request is not about it.
    Hidden,
}

impl WantedPair {
    /// Whether the pair has no value for clients.
    pub fn is_hidden(&self) -> bool {
        self.owner.is_some_and(|owner| owner.purpose == PairPurpose::Hidden)
    }

    /// A pair that belongs to one measurement, with code that is not of MDL.
    pub fn owned(owner: Owner, pair: Arc<MetricFocus>, instrumentation: Instrumentation) -> Self {
        WantedPair {
            pair,
            function: None,
            instrumentation,
            warnings: Vec::new(),
            helpers: Arc::default(),
            owner: Some(owner),
        }
    }
}

/// Treatment of names that nothing in the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The request fails.
    Fails,
    /// The names may come with a module that is loaded later.
    MayCome,
    /// The request fails unless the names belong to a module that is not loaded.
    ModulesMayCome,
}

/// The functions that patterns match, each once, in the order of the patterns and of the functions' addresses.
pub fn resolve_patterns(modules: &Modules, patterns: &[String], missing: Missing) -> Result<Vec<FunctionId>, Error> {
    let mut seen = FxHashSet::default();
    let mut out = Vec::new();
    for text in patterns.iter().filter(|text| SourceLine::parse(text).is_none()) {
        let pattern = Pattern::parse(text);
        let mut found = modules.matching(&pattern);
        // A glob matches functions that can be called; resolvers and stubs only if it matches nothing else.
        if !pattern.is_bare_name() {
            let callable = |f: &FunctionId| {
                modules.resolve(*f).is_some_and(|(_, _, function)| function.kind() == FunctionKind::Normal)
            };
            if found.iter().any(callable) {
                found.retain(callable);
            }
        }
        if pattern.is_bare_name() {
            found = prefer_program(modules, text, found)?;
        }
        let fails = match missing {
            Missing::Fails => true,
            Missing::MayCome => false,
            Missing::ModulesMayCome => is_mapped(modules, &pattern),
        };
        if found.is_empty() && fails {
            return Err(no_match(modules, text, &pattern));
        }
        out.extend(found.into_iter().filter(|f| seen.insert(*f)));
    }
    Ok(out)
}

/// Whether a request to a program that has hardly begun waits until its libraries are mapped: if it needs them (`whole`), or if it is about functions of
/// the program's own file alone. None of these runs before, and only then is it known where their jumps to other functions lead.
///
/// A request that names functions of the loader does not wait. Nor does one to a program whose libraries may be mapped already: musl's loader is its C
/// library.
pub fn waits_for_libraries(
    (target, store, modules): (&Target, &ImageStore, &Modules),
    request: &EnableRequest,
    whole: bool,
) -> bool {
    const LOADER: &str = "ld-";
    let is_gnu = |file: &ModuleFile| file.names.iter().any(|name| name.starts_with(LOADER) && !name.contains("musl"));
    let has_line = request.functions.iter().any(|text| SourceLine::parse(text).is_some());
    let by_function = !has_line && request.pairs.is_empty() && !request.functions.is_empty();
    if !modules.mapped().any(is_gnu) || !whole && !by_function {
        return false;
    }
    let mut errors = modules.load_files(target, store, &|file| file.is_program);
    let comes = |name: &String| {
        !name.starts_with(LOADER) && modules.mapped().all(|file| file.names.iter().all(|known| known != name))
    };
    let program = modules.loaded().find(|(_, file, _)| file.is_program);
    let Some((program, _, module)) = program else { return false };
    if !module.image.elf().needed().iter().any(comes) {
        return false;
    }
    errors.extend(modules.load(target, store, &modules_of(request, &[]), &|_| ()));
    if let Some(error) = errors.first() {
        tracing::debug!(%error, "the insertion will tell what cannot be analysed");
    }
    let functions = request.functions.iter().map(|text| Pattern::split_parts(text).0);
    // A glob without a module may match a function of the loader by chance.
    let functions = functions.filter(|text| !whole || Pattern::parse(text).module().is_some());
    let functions: Vec<String> = functions.map(str::to_owned).collect();
    let found = resolve_patterns(modules, &functions, Missing::MayCome);
    found.is_ok_and(|found| (whole || !found.is_empty()) && found.iter().all(|function| function.module == program))
}

/// For a bare name found in several modules, chooses the program's own function; otherwise the name is ambiguous.
fn prefer_program(modules: &Modules, text: &str, found: Vec<FunctionId>) -> Result<Vec<FunctionId>, Error> {
    let mut owners: Vec<_> = found.iter().map(|f| f.module).collect();
    owners.sort();
    owners.dedup();
    if owners.len() < 2 {
        return Ok(found);
    }
    let program = owners.iter().find(|m| modules.module(**m).is_some_and(|(file, _)| file.is_program)).copied();
    if let Some(program) = program {
        return Ok(found.into_iter().filter(|f| f.module == program).collect());
    }
    let names: Vec<String> =
        owners.iter().filter_map(|m| Some(format!("{}:{text}", modules.module(*m)?.0.name))).collect();
    Err(Error::new(
        Reason::AmbiguousFunction,
        format!("`{text}` is in several modules"),
        format!("say which one: {}", names.join(", ")),
    ))
}

/// Whether a module is mapped that may contain matches of a pattern.
fn is_mapped(modules: &Modules, pattern: &Pattern) -> bool {
    modules.mapped().any(|f| pattern.may_match_module(f.names.iter().map(String::as_str)))
}

/// One line about the mapped modules, and the module whose name is most similar to the one in a pattern.
fn loaded_modules(modules: &Modules, pattern: &Pattern) -> String {
    let known: Vec<&str> = modules.mapped().map(|f| f.name.as_str()).collect();
    let near = pattern.module().and_then(|name| modules.nearest_module(name));
    let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`"));
    format!("loaded are {}{near}", some_of(known.iter(), NAMED))
}

/// A part of a request that nothing in the target matches, in a module that may be loaded later.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The pattern or focus, as the request wrote it.
    pub text: String,
    pattern: Pattern,
}

impl Awaited {
    /// Whether a function of the target matches now.
    pub fn has_come(&self, modules: &Modules) -> bool {
        !modules.matching(&self.pattern).is_empty()
    }

    /// One line about the module that is waited for; `None` if the module is mapped.
    pub fn warning(&self, modules: &Modules) -> Option<String> {
        let module = self.pattern.module().filter(|_| !is_mapped(modules, &self.pattern))?;
        Some(format!("waiting for {module}: none of this name is loaded; {}", loaded_modules(modules, &self.pattern)))
    }
}

/// The parts of a request that nothing matches yet, as far as they name a module.
pub fn awaited(modules: &Modules, request: &EnableRequest) -> Vec<Awaited> {
    let functions = request.functions.iter().filter(|text| SourceLine::parse(text).is_none());
    let functions = functions.map(|text| (text.clone(), Pattern::parse(text)));
    let foci = request.pairs.iter().filter_map(|pair| {
        let (part, module) = (pair.focus.part("Code")?, Pattern::of_module(&pair.focus)?);
        let pattern = match (part.names.get(1), module) {
            // a name in a focus may have an offset in braces, which tells the function from others of that name
            (Some(function), Pattern::Names { module, .. }) => {
                let function = function.split('{').next().unwrap_or(function).to_owned();
                Pattern::Names { module, function }
            }
            (_, module) => module,
        };
        Some((part.to_string(), pattern))
    });
    let all = functions.chain(foci).filter(|(_, pattern)| pattern.module().is_some());
    let awaited = all.map(|(text, pattern)| Awaited { text, pattern });
    awaited.filter(|awaited| !awaited.has_come(modules)).collect()
}

fn no_match(modules: &Modules, text: &str, pattern: &Pattern) -> Error {
    if !is_mapped(modules, pattern) {
        let hint = format!("{}; with `--wait` it is waited for", loaded_modules(modules, pattern));
        return Error::new(Reason::NoSuchModule, format!("no module matches `{text}`"), hint);
    }
    if let Some((what, hint)) = labels::no_match(modules, text, pattern) {
        return Error::new(Reason::NoSuchFunction, what, hint);
    }
    let near = match pattern {
        Pattern::Names { function, .. } if !crate::program::pattern::has_wildcard(function) => {
            modules.nearest(function)
        }
        Pattern::Names { .. } | Pattern::Offset { .. } => None,
    };
    let hint = near
        .map(|name| format!("did you mean `{name}`?"))
        .or_else(|| modules.symbols_hint(pattern))
        .unwrap_or_else(|| "`ingraft functions` lists them".to_owned());
    let later = match pattern.module() {
        None => format!("; if a library has it that is loaded later, name the library too: `LIBRARY:{text}`"),
        Some(_) => String::new(),
    };
    let what = format!("no function matches `{text}`");
    Error::new(Reason::NoSuchFunction, what, format!("{hint}{later}"))
}

/// Analyses the modules that a request is about, and evaluates the request by `wanted`. First it loads the modules that the foci and `also`,
/// further patterns, name; if definitions look for functions elsewhere, it loads all modules. Also returns the errors of modules that could
/// not be analysed.
pub fn evaluate(
    (target, store, modules): (&Target, &ImageStore, &Modules),
    (request, also): (&EnableRequest, &[String]),
    progress: &dyn Fn(&str),
    wanted: &mut dyn FnMut() -> Result<Vec<WantedPair>, Error>,
) -> (Vec<Error>, Result<Vec<WantedPair>, Error>) {
    if request.beside_uprobes {
        modules.expect_uprobes();
    }
    let mut errors = modules.load(target, store, &modules_of(request, also), progress);
    modules.were_wanting();
    let mut evaluated = wanted();
    if modules.were_wanting() {
        errors.extend(modules.load(target, store, &[], progress));
        evaluated = wanted();
    }
    let keyed = |w: &WantedPair| w.instrumentation.variables.iter().any(|v| matches!(v.shape, Shape::Table(_)));
    if evaluated.as_ref().is_ok_and(|wanted| wanted.iter().any(keyed)) {
        // keys may be addresses of the program's variables
        errors.extend(modules.load_files(target, store, &|file| file.is_program));
    }
    if evaluated.as_ref().is_ok_and(|wanted| wanted.iter().any(asks_callers)) {
        // Callers may be in any module, also in those that are not there any more when the values are read.
        errors.extend(modules.load_files(target, store, &|file| file.is_mapped));
    }
    let evaluated = evaluated.and_then(|mut wanted| {
        calls::place((target, store, modules), &mut wanted, request.allow_calls, progress)?;
        Ok(wanted)
    });
    (errors, evaluated)
}

/// A pair, and the function that it is about if a pattern named the function.
type ChosenPair = (Arc<MetricFocus>, Option<FunctionId>);

/// The pairs of the functions, parts of functions and source lines that a request names, each with its function.
fn chosen(modules: &Modules, request: &EnableRequest, missing: Missing) -> Result<Vec<ChosenPair>, Error> {
    let (lines, functions): (Vec<&String>, Vec<&String>) =
        request.functions.iter().partition(|text| SourceLine::parse(text).is_some());
    let (parts, whole): (Vec<String>, Vec<String>) =
        functions.into_iter().cloned().partition(|text| Pattern::split_parts(text).1.is_some());
    let named = |f: FunctionId, part: Option<PartName>| {
        let (module, name) = modules.focus_name(f)?;
        let path = [module, name].into_iter().chain(part.map(|part| part.to_string()));
        let focus = Focus::new([ResourcePath::new("Code", path)]).ok()?;
        Some((focus, f, part))
    };
    let mut chosen: Vec<_> =
        resolve_patterns(modules, &whole, missing)?.into_iter().filter_map(|f| named(f, None)).collect();
    for text in &parts {
        let Some(pattern) = Pattern::split_parts(text).1 else { continue };
        let functions = resolve_patterns(modules, std::slice::from_ref(text), missing)?;
        refuse_large(modules, &functions, text)?;
        let before = chosen.len();
        for f in &functions {
            chosen.extend(modules.parts(*f, pattern).into_iter().filter_map(|part| named(*f, Some(part))));
        }
        if chosen.len() == before && !functions.is_empty() && missing != Missing::MayCome {
            let what = format!("no function that matches `{text}` has {}", pattern.words());
            let hint = "count the function itself, or name other functions";
            return Err(Error::new(Reason::NoSuchPart, what, hint));
        }
    }
    for text in lines {
        let of_line = source_lines::blocks(modules, text, missing)?;
        chosen.extend(of_line.iter().filter_map(|(function, block)| named(*function, Some(*block))));
    }
    let metrics = &request.function_metrics;
    let pair = |metric: &str, focus: &Focus, part: Option<PartName>| {
        let metric = match (part, metric) {
            (Some(PartName::Block(_) | PartName::Edge { .. }), CALLS) => EXECUTIONS,
            (Some(PartName::Loop(_)), CALLS) => ITERATIONS,
            (_, metric) => metric,
        };
        Arc::new(MetricFocus { metric: metric.to_owned(), focus: focus.clone() })
    };
    let of_metric = |metric: &String| -> Vec<ChosenPair> {
        chosen.iter().map(|(focus, f, part)| (pair(metric, focus, *part), Some(*f))).collect()
    };
    Ok(metrics.iter().flat_map(of_metric).collect())
}

/// Evaluates every pair of a request for metrics. Collects all errors of all pairs.
pub fn of_metrics(
    library: &Library,
    modules: &Modules,
    request: &EnableRequest,
    missing: Missing,
) -> Result<Vec<WantedPair>, Error> {
    let helpers: Arc<str> = library.helpers().into();
    let chosen = chosen(modules, request, missing)?;
    let mut pairs = Vec::with_capacity(request.pairs.len());
    for pair in &request.pairs {
        pairs.extend(foci::expand(modules, Arc::clone(pair), missing)?);
    }
    let nothing_asked = request.pairs.is_empty() && request.functions.is_empty();
    pairs.extend(chosen);
    if nothing_asked {
        return Err(Error::new(
            Reason::NothingAsked,
            "nothing to measure was named",
            "name functions, or metrics as METRIC@FOCUS",
        ));
    }
    refuse_many(pairs.len(), request)?;
    let evaluator = Evaluator::new(library, modules, &request.flavors);
    let evaluated = each(&pairs, |(pair, _): &(Arc<MetricFocus>, _)| evaluator.evaluate(&pair.metric, &pair.focus));
    let mut wanted = Vec::with_capacity(pairs.len());
    let mut known = Vec::with_capacity(ALIKE);
    let mut diagnostics = Vec::new();
    for ((pair, function), evaluated) in pairs.into_iter().zip(evaluated) {
        match evaluated {
            Ok(Evaluated { mut instrumentation, warnings }) => {
                instrumentation.insertions.iter_mut().for_each(|i| share(&mut known, &mut i.snippet));
                let helpers = Arc::clone(&helpers);
                wanted.push(WantedPair { pair, function, instrumentation, warnings, helpers, owner: None });
            }
            // a library that is not loaded, or no longer loaded, may come
            Err(errors)
                if may_come(modules, &pair.focus, missing) && errors.iter().all(|d| d.code == codes::NOT_FOUND) => {}
            Err(errors) => {
                diagnostics.extend(errors.into_iter().filter(|d| !diagnostics.contains(d)).collect::<Vec<_>>())
            }
        }
    }
    if diagnostics.is_empty() {
        value_names::name_registers(modules, &mut wanted);
        return Ok(wanted);
    }
    let mut error = Error::mdl(diagnostics);
    if error.diagnostics.iter().all(|d| NOT_FOUND.contains(&d.code)) {
        let unknown_metric = error.diagnostics.iter().any(|d| d.code == codes::NO_METRIC);
        error.reason = if unknown_metric { Reason::NoSuchMetric } else { Reason::NoSuchResource };
    }
    Err(error)
}

/// Fails if a request has more pairs than are allowed.
pub fn refuse_many(pairs: usize, request: &EnableRequest) -> Result<(), Error> {
    let Some(max) = request.max_pairs.filter(|max| pairs > *max) else { return Ok(()) };
    let what = format!("the request is for {pairs} metric-focus pairs, and {max} are allowed");
    let mut error = Error::new(Reason::TooManyPairs, what, "ask for fewer functions");
    error.pairs = Some(pairs);
    Err(error)
}

/// Largest size, in bytes, of the functions of which one request counts all blocks or edges. All of them may have to be copied: for the
/// 28 MB of node, plans took 6 GB and more than 90 s of a processor.
const CODE_MAX: u64 = 12 << 20;

/// Fails if the code of functions is too large to count all of its blocks or edges at once.
pub fn refuse_large(modules: &Modules, functions: &[FunctionId], text: &str) -> Result<(), Error> {
    let size = |f: &FunctionId| modules.resolve(*f).map_or(0, |(_, _, function)| function.size());
    let bytes = functions.iter().map(size).sum();
    too_large(functions.len(), bytes, text).map_or(Ok(()), Err)
}

/// The error for functions whose code is too large; `None` if it is not.
fn too_large(functions: usize, bytes: u64, text: &str) -> Option<Error> {
    const MIB: u64 = 1 << 20;
    (bytes > CODE_MAX).then(|| {
        let (have, most) = (bytes.div_ceil(MIB), CODE_MAX / MIB);
        let what = format!(
            "`{text}` names {functions} functions with {have} MiB of code; blocks and edges can be counted in {most} MiB at once"
        );
        let hint = "name a part of them; calls, times and coverage have no such limit";
        Error::new(Reason::TooMuchCode, what, hint)
    })
}

/// Refuses source lines that no loaded module has code of.
pub fn refuse_absent_lines(modules: &Modules, request: &EnableRequest) -> Result<(), Error> {
    let mut lines = request.functions.iter().filter(|text| SourceLine::parse(text).is_some());
    lines.try_for_each(|text| source_lines::blocks(modules, text, Missing::Fails).map(drop))
}

/// Whether the names of a focus that nothing matches may come with a module that is loaded later.
fn may_come(modules: &Modules, focus: &Focus, missing: Missing) -> bool {
    match missing {
        Missing::Fails => false,
        Missing::MayCome => true,
        Missing::ModulesMayCome => Pattern::of_module(focus).is_some_and(|module| !is_mapped(modules, &module)),
    }
}

/// The metric of functions that are counted, and those of blocks, edges and loops that take its place.
const CALLS: &str = "calls";
const EXECUTIONS: &str = "executions";
const ITERATIONS: &str = "iterations";

/// Number of different snippets with which each snippet is compared; a metric has only a few.
const ALIKE: usize = 16;

/// Merges equal snippets: pairs of one metric have equal snippets, and one copy in memory is read faster than a thousand.
fn share(known: &mut Vec<Arc<Snippet>>, snippet: &mut Arc<Snippet>) {
    match known.iter().find(|known| *known == snippet) {
        Some(same) => *snippet = Arc::clone(same),
        None if known.len() < ALIKE => known.push(Arc::clone(snippet)),
        None => {}
    }
}

/// Codes of diagnostics about names that do not exist, in contrast to syntax errors.
const NOT_FOUND: [&str; 3] = [codes::NO_METRIC, codes::NO_CONSTRAINT, codes::NOT_FOUND];

/// Refuses pairs whose value could only be 0: metrics that have code only for a focus, and threads that do not exist.
pub fn refuse_empty(target: &Target, wanted: &[WantedPair]) -> Result<(), Error> {
    for w in wanted {
        let without_code = |d: &&Diagnostic| w.instrumentation.insertions.is_empty() && d.code == codes::NO_CONSTRAINT;
        if let Some(why) = w.warnings.iter().find(without_code) {
            let what = format!("`{}` measures nothing without a focus", w.pair.metric);
            return Err(Error::new(Reason::NeedsFocus, what, why.help.clone().unwrap_or_default()));
        }
    }
    refuse_strange_threads(target, wanted.iter().filter_map(|w| w.instrumentation.thread))
}

fn refuse_strange_threads(target: &Target, named: impl Iterator<Item = Tid>) -> Result<(), Error> {
    let mut named = named.peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    let pid = target.pid();
    let threads = target.threads().map_err(|e| Error::process(pid, e))?;
    named.find(|tid| !threads.contains(tid)).map_or(Ok(()), |tid| {
        let what = format!("process {pid} has no thread {tid}");
        let hint = format!("`ls /proc/{pid}/task` lists its threads");
        Err(Error::new(Reason::NoSuchThread, what, hint).about(pid))
    })
}

/// Refuses functions that a loaded module does not have, because no library that is loaded later can add them to it.
pub fn refuse_absent(modules: &Modules, request: &EnableRequest) -> Result<(), Error> {
    for pair in &request.pairs {
        let Some(part) = pair.focus.part("Code") else { continue };
        let [module, function, ..] = part.names.as_slice() else { continue };
        if foci::has_pattern(modules, module, function) {
            resolve_patterns(modules, &[format!("{module}:{function}")], Missing::ModulesMayCome)?;
            continue;
        }
        if modules.modules_named(module).is_empty() || !modules.function(module, function).is_empty() {
            continue;
        }
        let what = format!("the program has no function `{function}` in `{module}`, which `{part}` names");
        let near = modules.nearest(function);
        let hint = near.map_or_else(|| "`ingraft functions` lists them".to_owned(), |n| format!("did you mean `{n}`?"));
        return Err(Error::new(Reason::NoSuchResource, what, hint));
    }
    Ok(())
}

/// The modules that the foci of a request and these patterns can be about, as patterns over the modules to analyse. Empty for all modules.
fn modules_of(request: &EnableRequest, also: &[String]) -> Vec<Pattern> {
    if request.functions.iter().any(|text| SourceLine::parse(text).is_some()) {
        // Any module may have code of the file.
        return Vec::new();
    }
    let mut out: Vec<Pattern> = request.functions.iter().chain(also).map(|f| Pattern::parse(f)).collect();
    for pair in &request.pairs {
        match Pattern::of_module(&pair.focus) {
            // consecutive foci are usually about the same module
            Some(module) if out.last() != Some(&module) => out.push(module),
            Some(_) => {}
            // A list of functions may name any module.
            None => return Vec::new(),
        }
    }
    out
}

/// Whether the code of a pair reads return addresses.
fn asks_callers(wanted: &WantedPair) -> bool {
    wanted.instrumentation.insertions.iter().any(|insertion| {
        let mut found = false;
        insertion.snippet.each_expr(&mut |e| found |= *e == Expr::ReturnAddress);
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_too_large_from_twelve_mebibytes_on() {
        assert!(too_large(1, CODE_MAX, "a:*").is_none());
        let error = too_large(90_000, CODE_MAX + 1, "node:*").expect("too large");
        assert_eq!(error.reason, Reason::TooMuchCode);
        assert!(error.what.contains("`node:*` names 90000 functions with 13 MiB of code"), "{}", error.what);
    }
}
