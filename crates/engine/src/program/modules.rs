//! The modules of one target: mapped files with their images, their names, and their load addresses. Implements the queries of MDL about a
//! program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ingraft_analysis::{
    AnalysedImage, AsyncUnwinder, AsyncUnwinding, Elf, FrameTable, Function, FunctionKind, GoroutineLayout, Linkage,
    Segment, TypeError,
};
use ingraft_mdl::{
    DescribedData, IntegerPath, NamedArgument, Parameter, ProgramFacts, ProgramVariable, Unresolved, WithNames,
};
use ingraft_model::machine::{ENDBR_LEN, PAGE};
use ingraft_model::{
    Avma, AvmaRange, Bias, Block, DataShape, EdgeKind, Focus, FunctionId, LoopEdges, ModuleId, Offset, PartName, Pid,
    PointId, Svma, SvmaRange, ThreadIdentity,
};
use ingraft_process::{AT_BASE, AT_ENTRY, MappedFile, Mapping, ProcessError, Target};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::program::file_id::FileId;
use crate::program::gs_search::sets_gs;
use crate::program::images::{ImageStore, bytes_of, debug_elf};
use crate::program::libc_search::ThreadArea;
use crate::program::pattern::{PartPattern, Pattern, SourceLine, glob_match, has_wildcard};
use crate::program::variables;
use crate::undertaking;

/// Offset of `r_state` in `struct r_debug` (link.h).
const R_STATE: i64 = 24;

/// A mapped file, analysed on demand.
#[derive(Debug)]
pub struct ModuleFile {
    /// The name that is shown.
    pub name: String,
    /// All names of the module, `name` included.
    pub names: Vec<String>,
    /// Mappings of the file.
    pub file: MappedFile,
    /// Whether the file is the program itself.
    pub is_program: bool,
    /// Whether the file is mapped now.
    pub is_mapped: bool,
    loaded: OnceLock<Option<Module>>,
    /// The image of the previous mapping, so that the file is not analysed again when it is mapped again.
    last_image: Option<Arc<AnalysedImage>>,
    frames: OnceLock<Option<(Bias, Arc<FrameTable>)>>,
    debug: OnceLock<Option<Elf>>,
    /// Whether the code has the instruction that sets the gs base; used if the code is not analysed.
    sets_gs: OnceLock<bool>,
    /// Answer of the file about unwinders that begin at an instruction that is no call, and the names by which it is linked with others;
    /// `None` if the file cannot be read.
    unwinding: OnceLock<Option<(AsyncUnwinding, Linkage)>>,
    /// Offset of this library's thread-local data from the thread pointer, once the loader has decided it.
    own_data: OnceLock<i64>,
}

/// Changes since the previous look.
#[derive(Debug, Default)]
pub struct News {
    /// Whether there are modules, or parts of modules, that were not mapped before.
    pub more: bool,
    /// Modules that are not mapped any more.
    pub gone: Vec<ModuleId>,
}

/// A module that was analysed.
#[derive(Debug)]
pub struct Module {
    /// Image of the module.
    pub image: Arc<AnalysedImage>,
    /// Difference between addresses in memory and in the file.
    pub bias: Bias,
    /// Whether the image was read from memory, because its file could not be opened.
    pub from_memory: bool,
    index: OnceLock<FxHashMap<Box<str>, Vec<u32>>>,
    /// The answers about source lines: each library that comes asks again.
    pub lines: Mutex<FxHashMap<SourceLine, LineRanges>>,
}

/// The ranges of code of a source line, or the reason why they are not known.
pub type LineRanges = Result<Arc<[SvmaRange]>, TypeError>;

/// All modules of a target.
#[derive(Debug)]
pub struct Modules {
    pub(super) pid: Pid,
    machine: String,
    flavors: Vec<String>,
    files: Vec<ModuleFile>,
    /// Whether a query was about modules that are not analysed yet.
    wanting: AtomicBool,
    /// The strictest reason why unwinders may begin at instructions that are no calls, and the name of the module that gives it.
    unwinder: Option<(AsyncUnwinder, String)>,
    /// Name of a signal handler that may end its thread; `None` if none is known.
    departing_handler: Option<String>,
    /// Whether other tools may set uprobes in the process at any time.
    are_uprobes_expected: AtomicBool,
    /// Modules that are not mapped but whose image is kept, in the order in which they were unmapped.
    waiting: Vec<ModuleId>,
}

/// Largest number of images of unloaded modules that are kept: programs reload only few modules.
const WAITING_MAX: usize = 16;

impl ModuleFile {
    /// Identity of the mapped file.
    pub fn id(&self) -> FileId {
        FileId { device: self.file.device, inode: self.file.inode }
    }

    /// The address range from the first to the last executable mapping.
    pub fn text(&self) -> AvmaRange {
        let start = self.file.code().map(|m| m.range.start).min().unwrap_or_default();
        start..self.file.code().map(|m| m.range.end).max().unwrap_or(start)
    }

    /// Whether the code is mapped shared, so that a write would change it for other processes.
    pub fn is_shared(&self) -> bool {
        self.file.code().any(|m| m.shared)
    }

    /// Whether the program may write the code at any time, without a system call before.
    pub fn is_writable(&self) -> bool {
        self.file.code().any(|m| m.write)
    }
}

impl Module {
    /// Functions with this name, which may be mangled, demangled, without parameters, or with a version.
    pub fn named(&self, name: &str) -> &[u32] {
        let index = self.index.get_or_init(|| {
            let mut index: FxHashMap<Box<str>, Vec<u32>> = FxHashMap::default();
            for (i, function) in (0..).zip(self.image.functions()) {
                for name in function.spellings() {
                    let list = index.entry(name.into()).or_default();
                    if list.last() != Some(&i) {
                        list.push(i);
                    }
                }
            }
            index
        });
        index.get(name).map_or(&[], Vec::as_slice)
    }

    /// The number of the function that contains an address.
    fn number_containing(&self, at: Svma) -> Option<u32> {
        let start = self.image.function_containing(at)?.start();
        let number = self.image.functions().binary_search_by_key(&start, Function::start).ok()?;
        u32::try_from(number).ok()
    }

    /// The number of the function that begins at an address, or that begins with an `endbr64` right before it.
    pub fn number_at(&self, at: Svma) -> Option<u32> {
        let number = self.number_containing(at)?;
        let offset = at.0 - self.function(number)?.start().0;
        (offset == 0 || offset == ENDBR_LEN).then_some(number)
    }

    /// A function by its number.
    pub fn function(&self, number: u32) -> Option<&Function> {
        self.image.functions().get(number as usize)
    }
}

impl Modules {
    /// Lists the modules of a target; none is analysed yet.
    pub fn of(target: &Target) -> Result<Self, Error> {
        let mut modules = Modules {
            pid: target.pid(),
            machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            flavors: vec!["linux".to_owned(), "unix".to_owned()],
            files: Vec::new(),
            wanting: AtomicBool::new(false),
            unwinder: None,
            departing_handler: None,
            are_uprobes_expected: AtomicBool::new(false),
            waiting: Vec::new(),
        };
        modules.refresh(target, &|_| false)?;
        Ok(modules)
    }

    /// Updates the modules to the present mappings. A module that was unloaded keeps its number, also if its file is mapped again
    /// elsewhere. A file may have lost its mappings although its code is still there, because the program has moved the code to memory
    /// without a file. `is_woven` tells that.
    pub fn refresh(&mut self, target: &Target, is_woven: &dyn Fn(ModuleId) -> bool) -> Result<News, Error> {
        let entry = target.aux(AT_ENTRY).map(Avma);
        let files = target.files().map_err(|e| Error::process(target.pid(), e))?;
        if files.is_empty() {
            if self.files.is_empty() && !has_code(target)? {
                // The process has left one program, and the next one is not mapped yet.
                return Err(Error::process(target.pid(), ProcessError::Replaced(target.pid())));
            }
            // The process is ending and has no memory any more. No module was unloaded before, so what was measured keeps its names.
            return Ok(News::default());
        }
        let same = |k: &ModuleFile, file: &MappedFile| {
            (k.file.base, k.file.inode, k.file.device) == (file.base, file.inode, file.device)
        };
        let mut news = News::default();
        let mut kept = Vec::new();
        for number in 0..self.files.len() {
            let known = &self.files[number];
            if known.is_mapped && !files.iter().any(|file| same(known, file)) {
                if is_woven(ModuleId(number as u32)) {
                    kept.push((known.file.inode, known.file.device));
                    continue;
                }
                news.gone.push(ModuleId(number as u32));
                self.files[number].is_mapped = false;
                self.renew(ModuleId(number as u32));
                if self.files[number].last_image.is_some() {
                    self.waiting.push(ModuleId(number as u32));
                }
            }
        }
        for file in files {
            if let Some(known) = self.files.iter_mut().find(|k| k.is_mapped && same(k, &file)) {
                // an earlier look during the loader's work has seen only a part of the file
                if matches!(known.loaded.get(), Some(None)) && known.file.mappings != file.mappings {
                    known.loaded = OnceLock::new();
                    known.sets_gs = OnceLock::new();
                    known.unwinding = OnceLock::new();
                    news.more = true;
                }
                // the program may have moved parts of the file to memory without a file
                known.file = file;
                continue;
            }
            if kept.contains(&(file.inode, file.device)) {
                continue; // a remaining mapping of a moved module
            }
            news.more = true;
            let back = |k: &ModuleFile| !k.is_mapped && (k.file.inode, k.file.device) == (file.inode, file.device);
            if let Some(number) = self.files.iter().position(back) {
                self.waiting.retain(|m| m.0 as usize != number);
                let known = &mut self.files[number];
                known.is_mapped = true;
                known.file = file;
                continue;
            }
            let is_program = entry.is_some_and(|e| file.code().any(|m| m.range.contains(&e)));
            let names = names_of(target, &file, is_program);
            self.files.push(ModuleFile {
                name: names[0].clone(),
                names,
                file,
                is_program,
                is_mapped: true,
                loaded: OnceLock::new(),
                last_image: None,
                frames: OnceLock::new(),
                debug: OnceLock::new(),
                sets_gs: OnceLock::new(),
                unwinding: OnceLock::new(),
                own_data: OnceLock::new(),
            });
        }
        while self.waiting.len() > WAITING_MAX {
            let longest = self.waiting.remove(0);
            self.files[longest.0 as usize].last_image = None;
        }
        let reasons = self.mapped().filter_map(|file| Some((file.unwinding(target).begins?, file)));
        let strictest = reasons.max_by_key(|(why, _)| *why);
        // Where no frame has a landing pad, a cancelled thread loses nothing: it runs other cleanup handlers without an unwinder.
        let matters = |why| why == AsyncUnwinder::Fault || self.mapped().any(|file| file.unwinding(target).cleans_up);
        self.unwinder = strictest.filter(|(why, _)| matters(*why)).map(|(why, file)| (why, file.name.clone()));
        Ok(news)
    }

    /// The strictest reason why unwinders may begin in the process at instructions that are no calls, or pass them, and the module or signal
    /// handler that gives it.
    pub fn unwinder(&self) -> Option<(AsyncUnwinder, &str)> {
        let of_handler = || Some((AsyncUnwinder::Handler, self.departing_handler.as_deref()?));
        self.unwinder.as_ref().map(|(why, name)| (*why, name.as_str())).or_else(of_handler)
    }

    /// Sets the name of the signal handler that may end its thread.
    pub fn set_departing_handler(&mut self, name: Option<String>) {
        self.departing_handler = name;
    }

    /// Notes that other tools may set uprobes in the process at any time.
    pub fn expect_uprobes(&self) {
        self.are_uprobes_expected.store(true, Ordering::Relaxed);
    }

    /// Whether other tools may set uprobes in the process at any time.
    pub fn are_uprobes_expected(&self) -> bool {
        self.are_uprobes_expected.load(Ordering::Relaxed)
    }

    /// Whether code of the process may leave a signal handler for another place than the interrupted one.
    pub fn leaves_handlers(&self, target: &Target) -> bool {
        self.unwinder.as_ref().is_some_and(|(why, _)| *why == AsyncUnwinder::Fault)
            || self.mapped().any(|file| file.unwinding(target).leaves_handlers)
    }

    /// Forgets the analysis of a module, because its file may have other bytes at the next mapping.
    pub fn renew(&mut self, module: ModuleId) {
        if let Some(known) = self.files.get_mut(module.0 as usize) {
            known.last_image = known.loaded.take().flatten().map(|m| m.image).or(known.last_image.take());
            known.frames = OnceLock::new();
            known.debug = OnceLock::new();
            known.sets_gs = OnceLock::new();
            known.unwinding = OnceLock::new();
            known.own_data = OnceLock::new();
        }
    }

    /// Device and inode of the program's file.
    pub fn executable(&self) -> (u64, u64) {
        let program = self.files.iter().find(|f| f.is_program);
        program.map_or((0, 0), |f| (u64::from(f.file.device.0) << 32 | u64::from(f.file.device.1), f.file.inode))
    }

    /// Size in bytes of the program's own code.
    pub fn text_bytes(&self) -> u64 {
        let program = self.files.iter().find(|f| f.is_program).map(ModuleFile::text);
        program.map_or(0, |text| text.end.0.saturating_sub(text.start.0))
    }

    /// A module that sets the gs base itself, so that the engine must not use it. Modules that were not analysed are searched for the
    /// instruction only.
    pub fn user_of_gs(&self, target: &Target) -> Option<&ModuleFile> {
        self.mapped().find(|file| match file.loaded.get() {
            Some(Some(module)) => module.image.uses_gs(),
            _ => *file.sets_gs.get_or_init(|| {
                file.file
                    .code()
                    .any(|m| sets_gs(m.range.start, m.len(), |at, bytes| target.read_some(at, bytes).unwrap_or(0)))
            }),
        })
    }

    /// The identity by which generated code will tell threads apart in a program whose libc has not begun yet, and offset and signature of
    /// the pointer in a thread's rseq area. Both are found in the code of the loader, which sets the first thread pointer, or of a static
    /// program.
    pub fn expected_identity(&self, target: &Target) -> Option<(ThreadIdentity, Option<(i32, u32)>)> {
        let loader = self.loader(target).and_then(|module| self.file(module));
        let file = loader.or_else(|| self.mapped().find(|f| f.is_program))?;
        let mut area = ThreadArea::default();
        for mapping in file.file.code() {
            let mut code = vec![0; usize::try_from(mapping.len()).ok()?];
            let n = target.read_some(mapping.range.start, &mut code).ok()?;
            let found = ThreadArea::of(code.get(..n)?);
            area = ThreadArea { id: area.id.or(found.id), rseq: area.rseq.or(found.rseq) };
        }
        let is_go = || match file.loaded.get() {
            Some(Some(module)) => module.image.elf().is_go(),
            _ => bytes_of(target, &file.file).is_ok_and(|(bytes, _)| Elf::parse(bytes).is_ok_and(|elf| elf.is_go())),
        };
        match area.id {
            Some(offset) => Some((ThreadIdentity::FsOffset(offset), area.rseq)),
            // Go's runtime gives every thread a pointer of its own
            None if loader.is_none() && is_go() => Some((ThreadIdentity::FsBase, None)),
            None => None,
        }
    }

    /// Places by which the goroutines of the program are found, and the bias of the addresses; `None` if it is no Go program, or not analysed yet.
    fn goroutines(&self) -> Option<(Bias, &GoroutineLayout)> {
        let mut loaded = self.loaded().filter(|(_, file, _)| file.is_program);
        loaded.find_map(|(_, _, module)| Some((module.bias, module.image.goroutines()?)))
    }

    /// Offset from fs of the pointer to the goroutine that a thread executes, if it is known.
    pub fn goroutine_pointer(&self) -> Option<i32> {
        self.goroutines().map(|(_, found)| found.pointer)
    }

    /// The places in memory by which goroutines are found that a signal has suspended.
    pub fn goroutine_places(&self) -> Option<ingraft_process::GoroutinePlaces> {
        let (bias, found) = self.goroutines()?;
        let suspended = found.suspended.start.to_avma(bias)..found.suspended.end.to_avma(bias);
        Some(ingraft_process::GoroutinePlaces { all: found.all.to_avma(bias), suspended })
    }

    /// Address of the first byte that differs from the file, in the pages of the target's text around these places. Breakpoints of other
    /// programs do not count.
    pub fn differs_from_memory(&self, target: &Target, places: impl Iterator<Item = (ModuleId, Avma)>) -> Option<Avma> {
        /// `int3`
        const BREAKPOINT: u8 = 0xcc;
        let mut pages: Vec<(ModuleId, u64)> = places.map(|(module, at)| (module, at.0 & !(PAGE - 1))).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.into_iter().find_map(|(module, page)| {
            let (_, loaded) = self.module(module)?;
            // The first and last page of a segment may extend beyond the file's code; then there is no original to compare with.
            let original = loaded.image.bytes_at(Avma(page).to_svma(loaded.bias), PAGE as usize)?;
            let mut now = [0; PAGE as usize];
            // The text of a module that was unloaded cannot be read.
            target.read(Avma(page), &mut now).ok()?;
            let differs = now.iter().zip(original.iter()).position(|(now, file)| now != file && *now != BREAKPOINT);
            differs.map(|at| Avma(page + at as u64))
        })
    }

    /// Address in a second mapping of a file's code of a copy of one of these places; `None` if there is no such mapping.
    pub fn again(&self, module: ModuleId, places: impl Iterator<Item = Avma>) -> Option<Avma> {
        let file = &self.file(module)?.file;
        if file.again.is_empty() {
            return None;
        }
        let mut places = places.filter_map(|at| {
            let mapping = file.mappings.iter().find(|m| m.range.contains(&at))?;
            let offset = at.0 - mapping.range.start.0 + mapping.offset;
            file.again.iter().find(|m| offset.checked_sub(m.offset).is_some_and(|into| into < m.len()))
        });
        places.next().map(|m| m.range.start)
    }

    /// Module and function at an address, and the distance from the function's first byte.
    pub fn name_at(&self, at: Avma) -> Option<String> {
        let (_, file, loaded) = self.loaded().find(|(_, file, _)| file.text().contains(&at))?;
        let svma = at.to_svma(loaded.bias);
        let function = loaded.image.function_containing(svma)?;
        let offset = svma.0 - function.start().0;
        let offset = if offset == 0 { String::new() } else { format!("+{offset:#x}") };
        Some(format!("{}:{}{offset}", file.name, function.display_name()))
    }

    /// The files that are mapped.
    pub fn mapped(&self) -> impl DoubleEndedIterator<Item = &ModuleFile> {
        self.files.iter().filter(|f| f.is_mapped)
    }

    /// A file, mapped or not.
    pub fn file(&self, module: ModuleId) -> Option<&ModuleFile> {
        self.files.get(module.0 as usize)
    }

    /// Analyses every module that may match one of the patterns (all without a pattern). A bare name selects the program's own function
    /// first, so other modules are analysed only for names that the program does not have. Returns the errors of modules that cannot be
    /// analysed.
    pub fn load(
        &self,
        target: &Target,
        store: &ImageStore,
        patterns: &[Pattern],
        progress: &dyn Fn(&str),
    ) -> Vec<Error> {
        let mut errors = Vec::new();
        let mut load = |file: &ModuleFile| {
            // Nobody waits for the result of an insertion that was given up.
            if !undertaking::is_given_up() {
                errors.extend(file.load(target, store, progress).err());
            }
        };
        let program = self.files.iter().find(|f| f.is_program);
        if patterns.iter().any(Pattern::is_bare_name)
            && let Some(program) = program
        {
            load(program);
        }
        let own = |name: &str| {
            let module = program.and_then(|p| p.loaded.get()?.as_ref());
            module.is_some_and(|m| !m.named(name).is_empty())
        };
        let open: Vec<&Pattern> = patterns.iter().filter(|p| p.bare_name().is_none_or(|name| !own(name))).collect();
        for file in &self.files {
            let names = || file.names.iter().map(String::as_str);
            if patterns.is_empty() || open.iter().any(|p| p.may_match_module(names())) {
                load(file);
            }
        }
        errors
    }

    /// Whether a definition has asked about modules that were not analysed since the last call. If so, its results may be incomplete.
    pub fn were_wanting(&self) -> bool {
        self.wanting.swap(false, Ordering::Relaxed)
    }

    /// Notes a query about these modules; an unanalysed one makes the query incomplete.
    pub(crate) fn look_into(&self, mut asked: impl FnMut(&ModuleFile) -> bool) {
        if self.files.iter().any(|file| file.loaded.get().is_none() && asked(file)) {
            self.wanting.store(true, Ordering::Relaxed);
        }
    }

    /// Analyses the modules for which `wanted` holds; returns the errors of those that cannot be analysed.
    pub fn load_files(&self, target: &Target, store: &ImageStore, wanted: &dyn Fn(&ModuleFile) -> bool) -> Vec<Error> {
        let files = self.files.iter().filter(|file| wanted(file));
        files.filter_map(|file| file.load(target, store, &|_| ()).err()).collect()
    }

    /// A function of the loader, if the target has one that can be analysed.
    pub fn loader_function(&self, target: &Target, store: &ImageStore, name: &str) -> Option<FunctionId> {
        let module = self.loader(target)?;
        self.files[module.0 as usize].load(target, store, &|_| ()).ok()?;
        let functions = self.module(module)?.1.named(name);
        functions.first().map(|&function| FunctionId { module, function })
    }

    /// The loader, if the program has one.
    pub fn loader(&self, target: &Target) -> Option<ModuleId> {
        let base = Avma(target.aux(AT_BASE).filter(|&base| base != 0)?);
        self.files.iter().position(|f| f.is_mapped && f.file.base == base).map(|number| ModuleId(number as u32))
    }

    /// Address of the loader's announcement of its next step (`r_state` of link.h), if the loader was analysed. glibc has a variable with
    /// that structure, and musl a pointer to it.
    pub fn loader_state(&self, target: &Target) -> Option<Avma> {
        let (_, module) = self.module(self.loader(target)?)?;
        let variable = |name| Some(module.image.variable(name)?.to_avma(module.bias));
        let debug = variable("_r_debug").or_else(|| {
            let at = target.read_u64(variable("_dl_debug_addr")?).ok()?;
            own_data(module.image.segments(), module.bias, at)
        })?;
        Some(debug.offset(R_STATE))
    }

    /// A module, if it was analysed.
    pub fn module(&self, module: ModuleId) -> Option<(&ModuleFile, &Module)> {
        let file = self.files.get(module.0 as usize)?;
        Some((file, file.loaded.get()?.as_ref()?))
    }

    /// The modules that were analysed.
    pub fn loaded(&self) -> impl Iterator<Item = (ModuleId, &ModuleFile, &Module)> {
        (0..).map(ModuleId).zip(&self.files).filter_map(|(r, file)| Some((r, file, file.loaded.get()?.as_ref()?)))
    }

    /// A function with its module, if the module was analysed.
    pub fn resolve(&self, function: FunctionId) -> Option<(&ModuleFile, &Module, &Function)> {
        let (file, module) = self.module(function.module)?;
        Some((file, module, module.function(function.function)?))
    }

    /// The function that begins at an address, if its module was analysed and it is no stub of the linker.
    pub fn function_at(&self, at: Avma) -> Option<FunctionId> {
        let (module, _, loaded) = self.loaded().find(|(_, file, _)| file.text().contains(&at))?;
        let function = loaded.number_at(at.to_svma(loaded.bias))?;
        (loaded.function(function)?.kind() == FunctionKind::Normal).then_some(FunctionId { module, function })
    }

    /// The functions with this name in the analysed modules, without stubs of the linker.
    pub fn functions_named_exactly(&self, name: &str) -> Vec<FunctionId> {
        let normal = |m: &Module, n: &u32| m.function(*n).is_some_and(|f| f.kind() == FunctionKind::Normal);
        let of = |(module, _, m): (ModuleId, _, &'_ Module)| -> Vec<FunctionId> {
            m.named(name).iter().filter(|n| normal(m, n)).map(|&function| FunctionId { module, function }).collect()
        };
        self.loaded().flat_map(of).collect()
    }

    /// The functions of the analysed modules that a pattern matches.
    pub fn matching(&self, pattern: &Pattern) -> Vec<FunctionId> {
        let mut found = Vec::new();
        for (module, file, loaded) in self.loaded() {
            if !pattern.may_match_module(file.names.iter().map(String::as_str)) {
                continue;
            }
            match pattern {
                Pattern::Offset { offset, .. } => {
                    found.extend(loaded.number_containing(*offset).map(|function| FunctionId { module, function }));
                }
                Pattern::Names { function: glob, .. } if !has_wildcard(glob) => {
                    found.extend(loaded.named(glob).iter().map(|&function| FunctionId { module, function }));
                }
                Pattern::Names { function: glob, .. } => {
                    for (i, function) in (0..).zip(loaded.image.functions()) {
                        if glob == "*" || function.spellings().any(|name| glob_match(glob, &name)) {
                            found.push(FunctionId { module, function: i });
                        }
                    }
                }
            }
        }
        found
    }

    /// The name by which a focus names a function, with the offset if other functions share the name.
    pub fn focus_name(&self, function: FunctionId) -> Option<(String, String)> {
        let (file, module, f) = self.resolve(function)?;
        let name = f.display_name().into_owned();
        let name = if module.named(&name).len() > 1 { format!("{name}{{{:#x}}}", f.start().0) } else { name };
        Some((file.name.clone(), name))
    }

    /// The parts of a function that a pattern names, sorted, each once.
    pub fn parts(&self, function: FunctionId, pattern: PartPattern) -> Vec<PartName> {
        let Some((_, module, f)) = self.resolve(function) else { return Vec::new() };
        match pattern {
            PartPattern::One(name) => vec![name],
            PartPattern::AllBlocks => module.image.blocks(f).iter().map(|block| Modules::name_of(f, block)).collect(),
            PartPattern::AllEdges => {
                let mut names: Vec<PartName> = module.image.edges(f).iter().filter_map(PointId::name).collect();
                names.sort_unstable();
                names.dedup();
                names
            }
            PartPattern::AllLoops => module.image.loops(f).iter().map(|one| PartName::Loop(one.header)).collect(),
        }
    }

    /// The name of a function's basic block.
    pub fn name_of(function: &Function, block: &Block) -> PartName {
        PartName::Block(Offset::between(function.start().0, block.range.start.0))
    }

    /// The kinds of the edges that a focus names, each once; empty if the focus names no edge of this function.
    pub fn edge_kinds(&self, function: FunctionId, focus: &Focus) -> Vec<EdgeKind> {
        let Some(PartName::Edge { from, to }) = PartName::of(focus) else { return Vec::new() };
        let kind = |point: &PointId| match point {
            PointId::Edge { kind, .. } => Some(*kind),
            PointId::Entry | PointId::Exit(_) | PointId::CallBefore(_) | PointId::CallAfter(_) | PointId::Block(_) => {
                None
            }
        };
        self.edges(function, from, to).map_or_else(|_| Vec::new(), |edges| edges.iter().filter_map(kind).collect())
    }

    /// The number of a function of a loaded module.
    pub fn number_of(&self, module: ModuleId, function: &Function) -> Option<FunctionId> {
        let (_, loaded) = self.module(module)?;
        let functions = loaded.image.functions();
        let number = functions.binary_search_by_key(&function.start(), Function::start).ok()?;
        Some(FunctionId { module, function: u32::try_from(number).ok()? })
    }
}

impl ModuleFile {
    fn load(&self, target: &Target, store: &ImageStore, progress: &dyn Fn(&str)) -> Result<(), Error> {
        if self.loaded.get().is_some() || !self.is_mapped {
            self.look_for_own_data(target);
            return Ok(());
        }
        progress(&format!("analysing {}", self.name));
        let result = store.load(target, &self.file);
        let (module, result) = match result {
            Ok(loaded) => (
                bias_of(&self.file, loaded.image.segments()).map(|bias| Module {
                    image: loaded.image,
                    bias,
                    from_memory: loaded.from_memory,
                    index: OnceLock::new(),
                    lines: Mutex::default(),
                }),
                Ok(()),
            ),
            Err(e) => (None, Err(e)),
        };
        // Another thread may have set the value first; both values are the same.
        let _ = self.loaded.set(module);
        self.look_for_own_data(target);
        result
    }

    /// Answer of the file about unwinders that begin at an instruction that is no call.
    pub(super) fn unwinding(&self, target: &Target) -> AsyncUnwinding {
        self.unwinding_and_linkage(target).map(|(unwinding, _)| *unwinding).unwrap_or_default()
    }

    /// The names by which the file is linked with others; `None` if the file cannot be read.
    pub(super) fn linkage(&self, target: &Target) -> Option<&Linkage> {
        self.unwinding_and_linkage(target).map(|(_, linkage)| linkage)
    }

    fn unwinding_and_linkage(&self, target: &Target) -> Option<&(AsyncUnwinding, Linkage)> {
        let of = |elf: &Elf| (elf.unwinding(), elf.linkage());
        let read = || match self.loaded.get() {
            Some(Some(module)) => Some(of(module.image.elf())),
            _ => Some(of(&Elf::parse(bytes_of(target, &self.file).ok()?.0).ok()?)),
        };
        self.unwinding.get_or_init(read).as_ref()
    }

    /// Determines the place of the module's thread-local data from the word that the loader sets when it relocates the module.
    fn look_for_own_data(&self, target: &Target) {
        let Some(Some(module)) = self.loaded.get() else { return };
        if self.is_program || self.own_data.get().is_some() {
            return;
        }
        let Some((note, offset)) = module.image.elf().own_data_note() else { return };
        let place = target.read_u64(note.to_avma(module.bias)).map_or(0, u64::cast_signed);
        // the offset is negative; it is 0 before the relocation
        if let (true, Some(start)) = (place < 0, place.checked_sub_unsigned(offset)) {
            // Another thread may have set the value first; both values are the same.
            let _ = self.own_data.set(start);
        }
    }

    /// Offset from the thread pointer of a part of a library's thread-local data, if the offset is the same in all threads. `at` is the
    /// offset of the part in that data.
    pub fn own_data_at(&self, at: Svma, bytes: u64) -> Option<i64> {
        self.loaded.get()?.as_ref()?.image.elf().own_data_from(*self.own_data.get()?, at, bytes)
    }

    /// The separate debug file of the module, if there is one.
    pub fn debug(&self, pid: Pid, elf: &Elf) -> Option<&Elf> {
        self.debug.get_or_init(|| debug_elf(pid, &self.file, elf)).as_ref()
    }

    /// Bias and unwind table of the module; `None` if it cannot be read.
    pub fn frames(&self, target: &Target) -> Option<(Bias, Arc<FrameTable>)> {
        let read = || match self.loaded.get() {
            Some(Some(module)) => Some((module.bias, Arc::new(FrameTable::read(module.image.elf())))),
            _ => {
                let elf = Elf::parse(bytes_of(target, &self.file).ok()?.0).ok()?;
                Some((bias_of(&self.file, elf.segments())?, Arc::new(FrameTable::read(&elf))))
            }
        };
        self.frames.get_or_init(read).clone()
    }
}

/// Whether any code of the process is mapped, besides that of the kernel for old programs.
fn has_code(target: &Target) -> Result<bool, Error> {
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    Ok(maps.iter().any(|mapping| mapping.exec && mapping.path != Path::new("[vsyscall]")))
}

/// Bias of a file. An executable mapping determines it, whatever the first segment looks like, and also if the whole file was mapped by
/// hand.
///
/// If the program has moved all its code to memory without a file, the mapping of another segment determines the bias. The first mapping
/// counts: a page that two segments share belongs to the later segment in the mappings that follow.
fn bias_of(file: &MappedFile, segments: &[Segment]) -> Option<Bias> {
    let bias = |mapping: &Mapping, segment: &Segment| {
        let first = (segment.file_offset & !(PAGE - 1)).max(mapping.offset);
        let end = segment.file_offset.checked_add(segment.file_size)?;
        let in_both = first < end && first - mapping.offset < mapping.len();
        let svma = segment.svma.0.wrapping_sub(segment.file_offset).wrapping_add(first);
        let avma = mapping.range.start.0.wrapping_add(first - mapping.offset);
        in_both.then(|| Bias(avma.wrapping_sub(svma)))
    };
    let code = segments.iter().filter(|s| s.flags.execute);
    let by_code = file.mappings.iter().filter(|m| m.exec).find_map(|m| code.clone().find_map(|s| bias(m, s)));
    by_code.or_else(|| file.mappings.iter().find_map(|m| segments.iter().find_map(|s| bias(m, s))))
}

/// Address that a pointer to a module's own data leads to. Before the module has relocated itself, the pointer has the linker's value.
fn own_data(segments: &[Segment], bias: Bias, pointer: u64) -> Option<Avma> {
    let holds = |at: Svma| {
        let mut data = segments.iter().filter(|s| s.flags.write);
        data.any(|s| at.0.checked_sub(s.svma.0).is_some_and(|offset| offset < s.mem_size))
    };
    let relocated = Avma(pointer);
    if holds(relocated.to_svma(bias)) {
        return Some(relocated);
    }
    holds(Svma(pointer)).then(|| Svma(pointer).to_avma(bias))
}

/// The names of a mapped file; the first is shown.
fn names_of(target: &Target, file: &MappedFile, is_program: bool) -> Vec<String> {
    let base = base_name(&file.path);
    let mut names = Vec::new();
    if is_program {
        // The name by which the program was started counts if it still leads to the same file: Debian's redis-server is a link to
        // redis-check-rdb.
        let folder = file.path.parent().map(Path::to_owned).unwrap_or_default();
        let argv0 = target
            .command()
            .first()
            .and_then(|a| a.split_whitespace().next().map(|w| base_name(Path::new(w))))
            .unwrap_or_default();
        for started_by in [argv0, target.name()] {
            let started_by = started_by.trim_start_matches('-').trim_end_matches(':').to_owned();
            if !started_by.is_empty() && same_file(target, &folder.join(&started_by), file) {
                names.push(started_by);
            }
        }
    }
    if let Some((stem, _)) =
        base.split_once(".so").filter(|(stem, rest)| !stem.is_empty() && (rest.is_empty() || rest.starts_with('.')))
    {
        names.push(base.clone());
        names.push(stem.to_owned());
        // Python's modules have the interpreter's version after their names (PEP 3149, PEP 384)
        names.extend(stem.split_once(".cpython-").map(|(name, _)| name.to_owned()));
        names.extend(stem.strip_suffix(".abi3").map(str::to_owned));
    } else {
        names.push(base);
    }
    // `:FUNCTION` is a function of the program's own module.
    names.extend(is_program.then(String::new));
    let mut seen = Vec::new();
    names.retain(|name| {
        let new = !seen.contains(name);
        seen.push(name.clone());
        new
    });
    names
}

fn same_file(target: &Target, path: &Path, file: &MappedFile) -> bool {
    use std::os::unix::fs::MetadataExt;
    let path = PathBuf::from(format!("/proc/{}/root", target.pid())).join(path.strip_prefix("/").unwrap_or(path));
    std::fs::metadata(path).is_ok_and(|m| m.ino() == file.inode)
}

fn base_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// Number of blocks or edges that an error names.
const NEAR: usize = 5;

impl ProgramFacts for Modules {
    fn machine(&self) -> &str {
        &self.machine
    }

    fn flavors(&self) -> &[String] {
        &self.flavors
    }

    fn pid(&self) -> Pid {
        self.pid
    }

    fn modules(&self) -> Vec<ModuleId> {
        self.look_into(|_| true);
        self.loaded().map(|(r, _, _)| r).collect()
    }

    fn modules_named(&self, name: &str) -> Vec<ModuleId> {
        self.look_into(|file| file.names.iter().any(|n| n == name));
        self.loaded().filter(|(_, file, _)| file.names.iter().any(|n| n == name)).map(|(r, _, _)| r).collect()
    }

    fn functions_of(&self, module: ModuleId) -> Vec<FunctionId> {
        let count = self.module(module).map_or(0, |(_, m)| m.image.functions().len());
        (0..count as u32).map(|function| FunctionId { module, function }).collect()
    }

    fn functions_named(&self, name: &str) -> Vec<FunctionId> {
        self.look_into(|_| true);
        let of = |(module, _, m): (ModuleId, _, &'_ Module)| -> Vec<FunctionId> {
            m.named(name).iter().map(|&function| FunctionId { module, function }).collect()
        };
        let found: Vec<FunctionId> = self.loaded().flat_map(of).collect();
        if found.is_empty() && has_wildcard(name) { matching(self, None, name) } else { found }
    }

    fn function(&self, module: &str, function: &str) -> Vec<FunctionId> {
        let (name, offset) = match function.rsplit_once('{') {
            Some((name, rest)) => {
                match rest.strip_suffix('}').and_then(|r| u64::from_str_radix(r.strip_prefix("0x")?, 16).ok()) {
                    Some(offset) => (name, Some(Svma(offset))),
                    None => (function, None),
                }
            }
            None => (function, None),
        };
        let mut found = Vec::new();
        for module in self.modules_named(module) {
            let Some((_, m)) = self.module(module) else { continue };
            let fits = |i: u32| offset.is_none_or(|o| m.function(i).is_some_and(|f| f.start() == o));
            found.extend(m.named(name).iter().filter(|&&i| fits(i)).map(|&function| FunctionId { module, function }));
        }
        found
    }

    fn block(&self, function: FunctionId, offset: Offset) -> Result<(), Unresolved> {
        let Some((_, module, f)) = self.resolve(function) else { return Ok(()) };
        let blocks = module.image.blocks(f);
        let at = f.start().0.wrapping_add_signed(offset.0);
        if blocks.binary_search_by_key(&at, |block| block.range.start.0).is_ok() {
            return Ok(());
        }
        let mut near: Vec<u64> = blocks.iter().map(|block| block.range.start.0).collect();
        near.sort_by_key(|start| start.abs_diff(at));
        near.truncate(NEAR);
        near.sort_unstable();
        let names: Vec<String> =
            near.into_iter().map(|start| PartName::Block(Offset::between(f.start().0, start)).to_string()).collect();
        Err(Unresolved::NotFound {
            what: format!("no block begins at {}", PartName::Block(offset)),
            help: Some(format!("blocks begin at {}", names.join(", "))),
        })
    }

    fn edges(&self, function: FunctionId, from: Offset, to: Offset) -> Result<Arc<[PointId]>, Unresolved> {
        self.block(function, from)?;
        self.block(function, to)?;
        let Some((_, module, f)) = self.resolve(function) else { return Ok([].into()) };
        let all = module.image.edges(f);
        let wanted = PartName::Edge { from, to };
        let found: Arc<[PointId]> = all.iter().filter(|edge| edge.name() == Some(wanted)).copied().collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let leaves = |name: &PartName| matches!(name, PartName::Edge { from: own, .. } if *own == from);
        let own = all.iter().filter_map(PointId::name).filter(leaves);
        let mut names: Vec<String> = own.map(|name| name.to_string()).collect();
        names.dedup();
        let rest = if names.len() > NEAR { ", …" } else { "" };
        names.truncate(NEAR);
        Err(Unresolved::NotFound {
            what: format!("{wanted} is no edge of the function"),
            help: Some(match names.is_empty() {
                true => format!("no edge leads from {} to another block", PartName::Block(from)),
                false => format!("from {} lead {}{rest}", PartName::Block(from), names.join(", ")),
            }),
        })
    }

    fn loops(&self, function: FunctionId) -> Result<Arc<[LoopEdges]>, Unresolved> {
        Ok(self.resolve(function).map_or_else(|| [].into(), |(_, module, f)| module.image.loops(f)))
    }

    fn functions_matching(&self, module: &str, function: &str) -> Vec<FunctionId> {
        let found = self.function(module, function);
        if !found.is_empty() || !(has_wildcard(module) || has_wildcard(function)) {
            return found;
        }
        self.look_into(|file| file.names.iter().any(|name| glob_match(module, name)));
        matching(self, Some(module), function)
    }

    fn module_name(&self, module: ModuleId) -> &str {
        self.files.get(module.0 as usize).map_or("", |f| &f.name)
    }

    fn function_name(&self, function: FunctionId) -> &str {
        self.resolve(function)
            .and_then(|(_, _, f)| f.names().first())
            .map_or("", ingraft_analysis::FunctionName::display)
    }

    fn variable(&self, name: &str, members: &[&str]) -> Result<ProgramVariable, Unresolved> {
        variables::variable(self, name, members)
    }

    fn address(&self, name: &str) -> Result<Avma, Unresolved> {
        variables::address(self, name)
    }

    fn callees(&self, function: FunctionId) -> Result<Vec<FunctionId>, Unresolved> {
        variables::callees(self, function)
    }

    fn arguments(&self, function: FunctionId) -> Result<Vec<(String, DataShape)>, Unresolved> {
        variables::arguments(self, function)
    }

    fn argument(&self, function: FunctionId, name: &str) -> Result<WithNames<NamedArgument>, Unresolved> {
        variables::argument(self, function, name)
    }

    fn member(&self, f: FunctionId, of: Parameter, members: &[&str]) -> Result<WithNames<IntegerPath>, Unresolved> {
        variables::member(self, f, of, members)
    }

    fn shown(
        &self,
        function: FunctionId,
        of: DescribedData<'_>,
        members: &[&str],
        follow: bool,
    ) -> Result<DataShape, Unresolved> {
        variables::shown(self, function, of, members, follow)
    }
}

/// The functions that a pattern of an MDL item matches, in all modules or in those with a name.
fn matching(modules: &Modules, module: Option<&str>, function: &str) -> Vec<FunctionId> {
    let pattern = Pattern::Names { module: module.map(str::to_owned), function: function.to_owned() };
    let mut found = modules.matching(&pattern);
    found.retain(|f| modules.resolve(*f).is_some_and(|(_, _, f)| f.kind() == FunctionKind::Normal));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_analysis::SegmentFlags;

    #[test]
    fn a_pointer_leads_to_the_same_before_and_after_relocation() {
        let flags = SegmentFlags { read: true, write: true, execute: false };
        let data = Segment { svma: Svma(0xabb20), file_offset: 0xaab20, file_size: 0x8f4, mem_size: 0x3440, flags };
        let text = Segment {
            svma: Svma(0),
            file_size: 0x14618,
            flags: SegmentFlags { read: true, write: false, execute: true },
            ..data.clone()
        };
        let (segments, bias) = ([text, data], Bias(0x7f00_0000_0000));
        let debug = Some(Avma(0x7f00_000a_e780));
        assert_eq!(own_data(&segments, bias, 0xae780), debug);
        assert_eq!(own_data(&segments, bias, 0x7f00_000a_e780), debug);
        for elsewhere in [0, 0x1000, 0x7f00_0000_1000, u64::MAX] {
            assert_eq!(own_data(&segments, bias, elsewhere), None, "{elsewhere:#x}");
        }
    }
}
