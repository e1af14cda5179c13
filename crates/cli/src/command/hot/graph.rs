//! The calls on the stacks of all samples as one tree, in the formats of other tools: flame graphs and their like.

use std::collections::HashMap;

use ingraft_api::{NamedFunction, SampledCall, SampledState, SamplingReading};
use ingraft_model::Svma;
use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, ExportOptions, Exporter, ModuleInfo, ProfileKind,
    ProfiledProgram, ReturnSite, SavedProfile,
};

/// Largest number of calls. The samples of further ones count as those of their callers.
const CALLS_MAX: usize = 1 << 18;

/// Place of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CallPlace {
    Function(NamedFunction),
    /// Memory without known functions, by its name.
    Memory(String),
    /// Callers that are not known.
    Unknown,
    /// The kernel, on behalf of the caller.
    Kernel,
    /// A wait in the system call with this name.
    Wait(String),
}

impl CallPlace {
    fn of(call: &SampledCall) -> Self {
        match (&call.function, call.memory.as_str()) {
            (Some(function), _) => CallPlace::Function(function.clone()),
            (None, "") => CallPlace::Unknown,
            (None, memory) => CallPlace::Memory(memory.to_owned()),
        }
    }

    fn name(&self) -> String {
        match self {
            CallPlace::Function(function) => function.function.clone(),
            CallPlace::Memory(memory) if memory.starts_with('[') => memory.clone(),
            CallPlace::Memory(name) | CallPlace::Wait(name) => format!("[{name}]"),
            CallPlace::Unknown => "[callers not known]".to_owned(),
            CallPlace::Kernel => "[kernel]".to_owned(),
        }
    }

    fn module(&self) -> &str {
        match self {
            CallPlace::Function(function) => &function.module,
            CallPlace::Memory(_) | CallPlace::Unknown => "[memory]",
            CallPlace::Kernel | CallPlace::Wait(_) => "[kernel]",
        }
    }
}

/// A call with its own samples, and the time that they stand for, in nanoseconds.
#[derive(Debug)]
struct SummedCall {
    caller: Option<usize>,
    place: CallPlace,
    samples: u64,
    time: u64,
}

/// The calls of all readings.
#[derive(Debug, Default)]
pub(super) struct StackGraph {
    /// A caller comes before those that it has called.
    calls: Vec<SummedCall>,
    known: HashMap<(Option<usize>, CallPlace), usize>,
    /// Unix time of the beginning of the first reading, and of the end of the last one, in nanoseconds.
    span: Option<(u64, u64)>,
}

impl StackGraph {
    /// Adds a reading.
    pub(super) fn add(&mut self, reading: &SamplingReading) {
        let ns = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let (began, ended) = (reading.time_ns.saturating_sub(ns(reading.span)), reading.time_ns);
        let (first, last) = self.span.unwrap_or((began, ended));
        self.span = Some((first.min(began), last.max(ended)));
        let period = ns(reading.period);
        // The index of each call in the sum; a caller is always before those that it has called.
        let mut mapped: Vec<usize> = Vec::with_capacity(reading.calls.len());
        for call in &reading.calls {
            let caller = call.caller.and_then(|caller| mapped.get(usize::try_from(caller).ok()?).copied());
            let at = self.call(caller, CallPlace::of(call));
            mapped.push(at);
            let mut own = call.own;
            let waits = call.waits.iter().map(|wait| (CallPlace::Wait(wait.name.clone()), wait.samples));
            for (place, samples) in waits.chain([(CallPlace::Kernel, call.kernel)]) {
                if samples > 0 {
                    let leaf = self.call(Some(at), place);
                    self.count(leaf, samples, period);
                    own = own.saturating_sub(samples);
                }
            }
            self.count(at, own, period);
        }
    }

    /// Whether there is no sample.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Index of a call, which is new if it is not known; that of its caller if there is no room.
    fn call(&mut self, caller: Option<usize>, place: CallPlace) -> usize {
        let calls = &mut self.calls;
        if let (Some(caller), true) = (caller, calls.len() >= CALLS_MAX) {
            return self.known.get(&(Some(caller), place)).copied().unwrap_or(caller);
        }
        *self.known.entry((caller, place.clone())).or_insert_with(|| {
            calls.push(SummedCall { caller, place, samples: 0, time: 0 });
            calls.len() - 1
        })
    }

    fn count(&mut self, at: usize, samples: u64, period: u64) {
        if let Some(call) = self.calls.get_mut(at) {
            call.samples += samples;
            call.time = call.time.saturating_add(period.saturating_mul(samples));
        }
    }

    /// The tree in the format of another tool. `title` names what was sampled.
    pub(super) fn export(&self, exporter: &Exporter, state: SampledState, title: &str) -> Vec<u8> {
        let profile = self.profile(state, title);
        let program = ProfiledProgram::new(&profile, Vec::new());
        let no_source = |_: &str| None;
        (exporter.write)(&program, &ExportOptions::new(&program, &no_source))
    }

    /// The tree as a profile of calling contexts, of which only times and numbers of samples are known.
    fn profile(&self, state: SampledState, title: &str) -> SavedProfile {
        let (mut modules, mut functions) = (Vec::<ModuleInfo>::new(), Vec::<ContextFunction>::new());
        let mut module_numbers: HashMap<&str, usize> = HashMap::new();
        let mut numbers: HashMap<&CallPlace, usize> = HashMap::new();
        let mut contexts = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let module = *module_numbers.entry(call.place.module()).or_insert_with_key(|name| {
                // A library has its version in its name. What else is a file is the program, whose colour differs in flame graphs.
                let is_program = !name.contains(".so") && !name.starts_with('[');
                let path = if is_program { title } else { *name };
                modules.push(ModuleInfo { name: (*name).to_owned(), path: path.to_owned(), ..ModuleInfo::default() });
                modules.len() - 1
            });
            let function = *numbers.entry(&call.place).or_insert_with_key(|place| {
                let start = if let CallPlace::Function(function) = place { function.offset } else { Svma(0) };
                functions.push(ContextFunction { module, name: place.name(), start, ..ContextFunction::default() });
                functions.len() - 1
            });
            let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            contexts.push(CallingContext {
                parent: call.caller,
                function,
                site: ReturnSite::default(),
                kind: ContextKind::Call,
                calls: 0,
                metrics: vec![signed(call.time), signed(call.samples)],
            });
        }
        let time = if state == SampledState::Running { "cpu_ns" } else { "wait_ns" };
        let metrics = vec![time.to_owned(), "samples".to_owned()];
        let tree = ContextProfile { functions, contexts, metrics, outside: vec![0; 2], ..ContextProfile::default() };
        let (began_ns, ended_ns) = self.span.unwrap_or_default();
        SavedProfile {
            kind: ProfileKind::Contexts,
            program: title.to_owned(),
            began_ns,
            ended_ns,
            modules,
            contexts: Some(tree),
            ..SavedProfile::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::expect;
    use ingraft_api::NamedSamples;

    use super::*;

    fn call(caller: Option<u32>, name: &str, own: u64, kernel: u64) -> SampledCall {
        let module = if name.starts_with("lib") { "libx.so.1" } else { "shop" };
        let (module, function, offset) = (module.to_owned(), name.to_owned(), Svma(16));
        let function = NamedFunction { module, function, offset };
        SampledCall { caller, function: Some(function), own, kernel, ..SampledCall::default() }
    }

    fn reading(calls: Vec<SampledCall>) -> SamplingReading {
        let (span, period) = (Duration::from_secs(1), Duration::from_millis(2));
        SamplingReading { time_ns: 3_000_000_000, span, period, calls, ..SamplingReading::default() }
    }

    fn folded(graph: &StackGraph, state: SampledState) -> String {
        let exporter = Exporter::named("folded").expect("a format");
        String::from_utf8(graph.export(exporter, state, "shop")).expect("a text")
    }

    #[test]
    fn readings_are_one_tree() {
        let mut graph = StackGraph::default();
        graph.add(&reading(vec![
            call(None, "main", 1, 0),
            call(Some(0), "price", 10, 4),
            call(Some(1), "lib_read", 2, 0),
        ]));
        let memory = SampledCall { memory: "memory without a file".to_owned(), own: 3, ..SampledCall::default() };
        let unknown = SampledCall::default();
        let below = call(Some(2), "price", 1, 1);
        graph.add(&reading(vec![call(None, "main", 0, 0), call(Some(0), "price", 5, 0), unknown, memory, below]));
        expect![[r#"
            main 2000000
            main;price 22000000
            main;price;[kernel] 8000000
            main;price;lib_read 4000000
            [callers not known];price;[kernel] 2000000
            [memory without a file] 6000000
        "#]]
        .assert_eq(&folded(&graph, SampledState::Running));
        assert_eq!(graph.span, Some((2_000_000_000, 3_000_000_000)));
        let svg = graph.export(Exporter::named("svg").expect("a format"), SampledState::Running, "shop");
        let svg = String::from_utf8(svg).expect("a text");
        assert!(svg.contains("shop: cpu_ns") && svg.contains("lib_read (4,000,000 ns, 9.09 %)"), "{svg}");
    }

    #[test]
    fn waits_are_below_the_functions_that_wait() {
        let mut graph = StackGraph::default();
        let waits = [("futex", 6), ("read", 3)].map(|(name, samples)| NamedSamples { name: name.to_owned(), samples });
        graph.add(&reading(vec![SampledCall { waits: waits.to_vec(), ..call(None, "lib_wait", 10, 0) }]));
        expect![[r#"
            lib_wait 2000000
            lib_wait;[futex] 12000000
            lib_wait;[read] 6000000
        "#]]
        .assert_eq(&folded(&graph, SampledState::Waiting));
    }

    #[test]
    fn callers_that_a_reading_does_not_have_are_none() {
        let mut graph = StackGraph::default();
        graph.add(&reading(vec![call(Some(7), "main", 1, 5)]));
        assert_eq!(folded(&graph, SampledState::Running), "main;[kernel] 10000000\n", "more in the kernel than in all");
        assert_eq!(folded(&StackGraph::default(), SampledState::Running), "");
    }
}
