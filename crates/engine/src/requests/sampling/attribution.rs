//! Functions of addresses that samples have: by the mapped files and, for generated code, by the original function.

use std::sync::Arc;

use ingraft_model::{Avma, FunctionId, Svma};
use ingraft_process::{Mapping, Target};
use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::CallTally;
use super::compiled::{CompiledFunctions, compiled};
use super::stacks::{NAMES_MAX, StackTally};
use super::taking::Taken;
use super::tally::{FramePlace, SampleTally, SiteKey, call_name, most_first};
use crate::api::{ModulePlace, NamedFunction, NamedSamples, SampledCall, SampledFunction, SampledSite, StackSamples};
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::code_places::frame_places;
use crate::program::images::ImageStore;
use crate::program::modules::{ModuleFile, Modules};
use crate::program::wall::is_vdso;
use crate::requests::code::named;
use crate::weaving::parts::Generated;

/// Number of addresses that are remembered with their places.
const KNOWN_MAX: usize = 1 << 20;
/// Largest number of calls of callers' frames that are remembered: each has names.
const CALLS_MAX: usize = 1 << 14;

/// The places of addresses in a target.
pub(super) struct Attribution {
    modules: Modules,
    generated: Arc<Vec<Generated>>,
    /// Mappings that belong to no file; read at most once for a reading.
    maps: Option<Vec<Mapping>>,
    known: FxHashMap<Avma, FramePlace>,
    compiled: CompiledFunctions,
    /// Whether the names of compiled functions were read for this reading.
    has_compiled: bool,
    /// The calls of callers' frames, by the address of the last byte of the call.
    calls: FxHashMap<Avma, ModulePlace>,
    patterns: Vec<String>,
    /// Whether the instruction before an address is a system call.
    after_calls: FxHashMap<Avma, bool>,
}

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl Attribution {
    /// Places by these modules. Only functions that the patterns match are in the answers; without patterns, all.
    pub fn new(modules: Modules, patterns: Vec<String>) -> Self {
        Attribution {
            modules,
            generated: Arc::default(),
            maps: None,
            known: FxHashMap::default(),
            compiled: CompiledFunctions::default(),
            has_compiled: false,
            calls: FxHashMap::default(),
            patterns,
            after_calls: FxHashMap::default(),
        }
    }

    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Forgets what holds for one reading only.
    pub fn begin_reading(&mut self) {
        (self.maps, self.has_compiled) = (None, false);
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        self.known.retain(|_, place| matches!(place, FramePlace::Function(_)));
    }

    /// Whether any of the innermost addresses is in no file that is known.
    pub fn meets_unknown(&self, target: &Target, store: &ImageStore, taken: &Taken) -> bool {
        let innermost = taken.stacks.iter().filter_map(|stack| taken.frames(stack).first());
        let distinct: FxHashSet<Avma> = innermost.copied().filter(|at| !self.known.contains_key(at)).collect();
        distinct.iter().any(|at| self.function_at(target, store, *at).is_none())
    }

    /// Sets the generated code that is in the target now.
    pub fn set_generated(&mut self, generated: Arc<Vec<Generated>>) {
        self.known.clear();
        self.calls.clear();
        self.generated = generated;
    }

    /// Makes the memory of the target unknown, because it may be that of another program now.
    pub fn forget_target(&mut self) {
        (self.maps, self.has_compiled) = (Some(Vec::new()), true);
    }

    /// Updates the modules; returns whether any has come or gone.
    pub fn refresh(&mut self, target: &Target) -> bool {
        // A target that has ended keeps the modules that it had.
        let Ok(news) = self.modules.refresh(target, &|_| false) else { return false };
        let changed = news.more || !news.gone.is_empty();
        if changed {
            self.known.clear();
            self.calls.clear();
        }
        changed
    }

    /// The place of a frame. The address of an innermost frame is that of the next instruction; that of an outer frame is in the call.
    pub fn place(&mut self, target: &Target, store: &ImageStore, at: Avma, innermost: bool) -> FramePlace {
        if let Some(place) = self.known.get(&at) {
            return place.clone();
        }
        let original = if innermost { self.original(at) } else { None };
        let function = self.function_at(target, store, original.unwrap_or(at));
        let place = function.map_or_else(|| self.without_function(target, at), FramePlace::Function);
        self.known.insert(at, place.clone());
        place
    }

    /// Whether a thread in the kernel with this program counter makes a system call. If not, a page fault or an interrupt has brought it there.
    /// Memory that cannot be read counts as a system call.
    pub fn is_after_call(&mut self, target: &Target, at: Avma) -> bool {
        if self.after_calls.len() > KNOWN_MAX {
            self.after_calls.clear();
        }
        *self.after_calls.entry(at).or_insert_with(|| {
            let mut before = [0; SYSCALL.len()];
            let begin = Avma(at.0.wrapping_sub(SYSCALL.len() as u64));
            target.read(begin, &mut before).map_or(true, |()| before == SYSCALL)
        })
    }

    /// The sites of a tally, those with the most samples first.
    pub fn sites(&self, tally: &SampleTally) -> Vec<SampledSite> {
        let name = |id: &FunctionId| {
            let (file, _, function) = self.modules.resolve(*id)?;
            Some(named(file, function))
        };
        let mut sites: Vec<_> = tally.sites.iter().collect();
        sites.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| (a.tid, a.call).cmp(&(b.tid, b.call))));
        // Names are as long as the program's symbols; sites with few samples lack them if there are too many.
        let mut bytes = 0;
        let site = |(key, samples): (&SiteKey, &u64)| {
            let functions: Vec<NamedFunction> =
                if bytes < NAMES_MAX { key.functions.iter().filter_map(name).collect() } else { Vec::new() };
            bytes += functions.iter().map(|function| function.module.len() + function.function.len()).sum::<usize>();
            SampledSite {
                tid: key.tid,
                mode: key.mode,
                call: key.call.map(call_name).unwrap_or_default(),
                object: key.object.clone(),
                functions,
                innermost: key.innermost,
                samples: *samples,
            }
        };
        sites.into_iter().map(site).collect()
    }

    /// For an address in generated code, the address in the original function.
    fn original(&self, at: Avma) -> Option<Avma> {
        let generated = self.generated.iter().find(|generated| generated.arenas.iter().any(|a| a.contains(&at)))?;
        let point = generated.points.iter().find(|point| point.part_at(at).is_some())?;
        point.resume_at(at).or(point.function).or(Some(point.point))
    }

    fn function_at(&self, target: &Target, store: &ImageStore, at: Avma) -> Option<FunctionId> {
        let holds = |file: &ModuleFile| {
            file.is_mapped && file.file.mappings.iter().chain(&file.file.moved).any(|m| m.range.contains(&at))
        };
        self.modules.load_files(target, store, &holds);
        let (id, _, module) = self.modules.loaded().find(|(_, file, _)| holds(file))?;
        let function = module.image.function_around_address(at.to_svma(module.bias))?;
        self.modules.number_of(id, function)
    }

    /// The place of an address in no known function: a compiled function with a name, or memory.
    fn without_function(&mut self, target: &Target, at: Avma) -> FramePlace {
        let (memory, may_be_compiled) = self.memory(target, at);
        if !may_be_compiled {
            return FramePlace::Elsewhere(memory);
        }
        if !std::mem::replace(&mut self.has_compiled, true) {
            self.compiled.refresh(target);
        }
        self.compiled.at(at).map_or(FramePlace::Elsewhere(memory), FramePlace::Compiled)
    }

    /// Name of the memory at an address, and whether a just-in-time compiler may have made code there.
    fn memory(&mut self, target: &Target, at: Avma) -> (Arc<str>, bool) {
        if self.generated.iter().flat_map(|g| g.arenas.iter().chain(&g.areas)).any(|range| range.contains(&at)) {
            return ("code of ingraft".into(), false);
        }
        let maps = self.maps.get_or_insert_with(|| target.maps().unwrap_or_default());
        let Some(mapping) = maps.iter().find(|m| m.range.contains(&at)) else {
            return ("nothing is mapped".into(), false);
        };
        if mapping.path.as_os_str().is_empty() {
            return ("memory without a file".into(), true);
        }
        let name = if mapping.is_file() { mapping.path.file_name() } else { None };
        // Named memory such as `[anon:…]` and `[heap]`, and files of compilers such as `/memfd:doublemapper`, may have compiled code.
        (name.unwrap_or(mapping.path.as_os_str()).to_string_lossy().into(), !is_vdso(mapping))
    }

    /// The functions that the patterns match; `None` without patterns.
    pub fn wanted(&self) -> Option<FxHashSet<FunctionId>> {
        // The modules of the patterns were analysed when the sampling began; a pattern that matches nothing any more is no error.
        let found = || resolve_patterns(&self.modules, &self.patterns, Missing::MayCome).unwrap_or_default();
        (!self.patterns.is_empty()).then(|| found().into_iter().collect())
    }

    /// The stacks below functions, with the places of their calls; the functions with the most samples first. A frame outside of known code has
    /// the name of its memory as its module.
    pub fn stacks(&mut self, target: &Target, store: &ImageStore, tally: StackTally) -> Vec<StackSamples> {
        if self.calls.len() > CALLS_MAX {
            self.calls.clear();
        }
        let unknown: Vec<Avma> = tally.addresses().filter(|at| !self.calls.contains_key(at)).collect();
        for (at, place) in unknown.iter().zip(frame_places(target, &self.modules, store, &unknown)) {
            let place = place.unwrap_or_else(|| {
                let place = ModulePlace { at: Svma(at.0), ..ModulePlace::default() };
                match self.without_function(target, *at) {
                    FramePlace::Compiled(name) => {
                        let function = compiled(&name);
                        ModulePlace { module: function.module.clone(), function: Some(function), ..place }
                    }
                    FramePlace::Elsewhere(memory) => ModulePlace { module: memory.to_string(), ..place },
                    FramePlace::Function(_) => place,
                }
            });
            self.calls.insert(*at, place);
        }
        let calls = &self.calls;
        tally.stacks(
            |function| self.modules.resolve(function).map(|(file, _, f)| named(file, f)),
            |at| calls.get(&at).cloned().unwrap_or_default(),
        )
    }

    /// The calls on the stacks, with their names.
    pub fn call_tree(&self, tally: CallTally) -> Vec<SampledCall> {
        tally.calls(|function| self.modules.resolve(function).map(|(file, _, f)| named(file, f)))
    }

    /// The functions of a tally that the patterns match, those with the most samples first.
    pub fn functions(&self, tally: &SampleTally) -> Vec<SampledFunction> {
        let wanted = self.wanted();
        let wanted = |id: &FunctionId| wanted.as_ref().is_none_or(|wanted| wanted.contains(id));
        let mut functions: Vec<SampledFunction> = tally
            .functions
            .iter()
            .filter_map(|(place, tally)| {
                let function = match place {
                    FramePlace::Function(id) if wanted(id) => {
                        self.modules.resolve(*id).map(|(file, _, function)| named(file, function))
                    }
                    FramePlace::Compiled(name) if self.patterns.is_empty() => Some(compiled(name)),
                    FramePlace::Function(_) | FramePlace::Compiled(_) | FramePlace::Elsewhere(_) => None,
                }?;
                let waits = tally.waits.iter().map(|(call, samples)| (call_name(*call), *samples));
                let waits: Vec<NamedSamples> = most_first(waits);
                let (own, total, kernel) = (tally.own, tally.total, tally.kernel);
                Some(SampledFunction { function, own, total, kernel, waits })
            })
            .collect();
        functions.sort_by(|a, b| {
            let key = |f: &SampledFunction| (std::cmp::Reverse(f.own), std::cmp::Reverse(f.total));
            key(a)
                .cmp(&key(b))
                .then_with(|| (&a.function.module, a.function.offset).cmp(&(&b.function.module, b.function.offset)))
        });
        functions
    }
}
