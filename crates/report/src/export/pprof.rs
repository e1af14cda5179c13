//! The format of pprof (<https://github.com/google/pprof/blob/main/proto/profile.proto>), which `go tool pprof`, Pyroscope and Parca read. It is
//! not compressed; readers recognise that.
//!
//! A context with a value is a sample. The innermost function is at its first byte. A caller is at its call, if the return address is
//! in the function itself: between a function and its caller in the tree there may be others whose calls are not told apart.

use ingraft_model::Svma;
use prost::Message;
use rustc_hash::FxHashMap;

use super::Exporter;
use super::stacks::{Stacks, name, positive};
use crate::contexts::{ContextFunction, ContextProfile, ContextUnit, ContextValue, ReturnSite};
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "pprof",
    reader: "go tool pprof",
    kinds: &[ProfileKind::Contexts],
    of_one_module: false,
    why_empty: None,
    write: |program, options| program.contexts().map(|tree| pprof(program, tree, options.value)).unwrap_or_default(),
};

/// A profile. Texts are indexes of the table of strings.
#[derive(Clone, PartialEq, Message)]
struct ProfileMessage {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueTypeMessage>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<SampleMessage>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<MappingMessage>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<LocationMessage>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<FunctionMessage>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueTypeMessage {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// A stack, from the innermost location on, with the values of all types.
#[derive(Clone, PartialEq, Message)]
struct SampleMessage {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct MappingMessage {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

/// A code address, with the functions that are inlined there, the innermost one first.
#[derive(Clone, PartialEq, Message)]
struct LocationMessage {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<LineMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct LineMessage {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionMessage {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

fn pprof(program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) -> Vec<u8> {
    let stacks = Stacks::of(tree);
    // A tree of samples knows no calls.
    let has_calls = tree.metrics.is_empty() || tree.contexts.iter().any(|context| context.calls > 0);
    let calls = has_calls.then_some(ContextValue::Calls);
    let types: Vec<_> = calls.into_iter().chain((0..tree.metrics.len()).map(ContextValue::Metric)).collect();
    let mut writer = PprofWriter::new(program, tree);
    for value in &types {
        let (name, unit) = value_type(tree.value_name(*value));
        let r#type = writer.string(name);
        let unit = writer.string(unit);
        writer.message.sample_type.push(ValueTypeMessage { r#type, unit });
    }
    writer.message.default_sample_type = writer.string(value_type(tree.value_name(of)).0);
    let mut values: Vec<Vec<u64>> = types.iter().map(|value| positive(tree, *value)).collect();
    values.iter_mut().for_each(|values| stacks.lift(values));
    for index in &stacks.order {
        let value = |values: &Vec<u64>| i64::try_from(values.get(*index).copied().unwrap_or(0)).unwrap_or(i64::MAX);
        let value: Vec<i64> = values.iter().map(value).collect();
        if value.iter().all(|value| *value == 0) {
            continue;
        }
        let mut called_at: Option<ReturnSite> = None;
        let mut location_id = Vec::new();
        for context in stacks.upwards(*index).filter_map(|at| tree.contexts.get(at)) {
            location_id.push(writer.location(context.function, called_at));
            called_at = Some(context.site);
        }
        writer.message.sample.push(SampleMessage { location_id, value });
    }
    writer.message.encode_to_vec()
}

/// Name and unit of a value as pprof has them.
fn value_type(name: &str) -> (&str, &'static str) {
    match ContextUnit::of(name) {
        ContextUnit::Nanoseconds => (name.strip_suffix("_ns").unwrap_or(name), "nanoseconds"),
        ContextUnit::Bytes => (name.strip_suffix("_bytes").unwrap_or(name), "bytes"),
        ContextUnit::Count => (name, "count"),
    }
}

struct PprofWriter<'a> {
    program: &'a ProfiledProgram<'a>,
    tree: &'a ContextProfile,
    message: ProfileMessage,
    strings: FxHashMap<String, i64>,
    /// Identifiers of locations by function and address in its file.
    locations: FxHashMap<(usize, Svma), u64>,
    /// Identifiers of functions by module, linker's name and source file.
    functions: FxHashMap<(usize, String, String), u64>,
}

impl<'a> PprofWriter<'a> {
    fn new(program: &'a ProfiledProgram<'a>, tree: &'a ContextProfile) -> Self {
        let profile = program.profile();
        let nanoseconds = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let message = ProfileMessage {
            // By definition, the first string is empty.
            string_table: vec![String::new()],
            time_nanos: nanoseconds(profile.began_ns),
            duration_nanos: nanoseconds(profile.ended_ns.saturating_sub(profile.began_ns)),
            ..ProfileMessage::default()
        };
        let strings = std::iter::once((String::new(), 0)).collect();
        let (locations, functions) = Default::default();
        let mut writer = PprofWriter { program, tree, message, strings, locations, functions };
        for (number, module) in profile.modules.iter().enumerate() {
            let build_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            let has_lines = tree
                .functions
                .iter()
                .filter(|function| function.module == number)
                .any(|function| program.code(number).is_some_and(|code| code.line(function.start).is_some()));
            let mapping = MappingMessage {
                id: number as u64 + 1,
                memory_start: module.mapped.0.wrapping_add(module.bias),
                memory_limit: module.mapped.1.wrapping_add(module.bias),
                filename: writer.string(&module.path),
                build_id: writer.string(&build_id),
                // Readers need not look for symbols.
                has_functions: true,
                has_filenames: has_lines,
                has_line_numbers: has_lines,
                has_inline_frames: has_lines,
            };
            writer.message.mapping.push(mapping);
        }
        writer
    }

    /// Index of a string in the table.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let index = self.message.string_table.len() as i64;
        self.message.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// Identifier of the location of a function on a stack: at its first byte, or at the call that returns to `called_at`.
    fn location(&mut self, function: usize, called_at: Option<ReturnSite>) -> u64 {
        let Some(tracked) = self.tree.functions.get(function) else { return 0 };
        // The byte before a return address belongs to the call.
        let call = called_at.filter(|site| site.module == Some(tracked.module)).map(|site| site.at.0.wrapping_sub(1));
        let call = call.filter(|at| at.checked_sub(tracked.start.0).is_some_and(|offset| offset < tracked.size));
        let at = Svma(call.unwrap_or(tracked.start.0));
        if let Some(known) = self.locations.get(&(function, at)) {
            return *known;
        }
        let id = self.message.location.len() as u64 + 1;
        self.locations.insert((function, at), id);
        let line = self.lines(tracked, at, call.is_some());
        let bias = self.program.profile().modules.get(tracked.module).map_or(0, |module| module.bias);
        let (mapping_id, address) = (tracked.module as u64 + 1, at.0.wrapping_add(bias));
        self.message.location.push(LocationMessage { id, mapping_id, address, line });
        id
    }

    /// Source lines of an address of a tracked function, with functions that are inlined there if it is a call.
    fn lines(&mut self, tracked: &ContextFunction, at: Svma, is_call: bool) -> Vec<LineMessage> {
        let mut frames = self.program.code(tracked.module).map(|code| code.frames(at)).unwrap_or_default();
        let own = frames.pop().unwrap_or_default();
        // At the first byte there may be the code of an inlined function, but the context is that of the tracked function.
        let inlined = if is_call { frames } else { Vec::new() };
        let mut lines = Vec::with_capacity(inlined.len() + 1);
        for frame in &inlined {
            let shown = crate::demangle(&frame.function).map_or_else(|| frame.function.to_string(), String::from);
            let function_id = self.function(tracked.module, [&shown, &frame.function, &frame.file], frame.declared);
            lines.push(LineMessage { function_id, line: frame.line.into() });
        }
        let shown = name(self.program, tracked);
        let function_id = self.function(tracked.module, [&shown, &tracked.name, &own.file], own.declared);
        lines.push(LineMessage { function_id, line: own.line.into() });
        lines
    }

    /// Identifier of a function, by its module, name, linker's name and source file.
    fn function(&mut self, module: usize, [name, system_name, file]: [&str; 3], declared: u32) -> u64 {
        // Functions without a symbol have their address in their name.
        let key = (module, if system_name.is_empty() { name } else { system_name }.to_owned(), file.to_owned());
        if let Some(known) = self.functions.get(&key) {
            return *known;
        }
        let id = self.message.function.len() as u64 + 1;
        self.functions.insert(key, id);
        let (name, system_name, filename) = (self.string(name), self.string(system_name), self.string(file));
        self.message.function.push(FunctionMessage { id, name, system_name, filename, start_line: declared.into() });
        id
    }
}
