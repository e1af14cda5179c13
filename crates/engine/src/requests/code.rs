//! Answers about the code of a target: functions in detail, and what lies at an address.

use std::sync::Arc;

use ingraft_analysis::{DisassembledLine, Function, disassemble};
use ingraft_codegen::RemovalRecord;
use ingraft_model::{Avma, AvmaRange, Cfg, FunctionId, Offset, PartName, Pid, PointKind, Svma, SvmaRange};
use ingraft_process::Target;

use super::{Engine, lock, open, resolve};
use crate::api::*;
use crate::error::{Error, Reason};
use crate::kinds;
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::code_places::{self, place_at, source_at, source_lines};
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::program::pattern::Pattern;
use crate::recovery::journal::{Contents, KeptMeasurement};
use crate::recovery::leftover;
use crate::recovery::signature::{SIGNATURE, is_arena};
use crate::session::replaced::Before;
use crate::weaving::parts::{Generated, GeneratedPoint};
use crate::weaving::sites::Text;
use crate::weaving::trial;

/// Length in bytes of the code that is read for one instruction.
const INSTRUCTION_MAX: usize = 15;

impl Engine {
    /// The functions that a pattern matches, in detail: points, control flow, and if asked for, original and woven instructions.
    pub fn inspect(
        &self,
        request: &InspectRequest,
        caller: Caller,
        progress: &dyn Fn(&str),
    ) -> Result<Inspection, Error> {
        let pid = resolve(&request.target, caller)?;
        let before = Before::of(pid, caller);
        self.inspect_one(pid, request, caller, progress).map_err(|e| before.explain(e))
    }

    fn inspect_one(
        &self,
        pid: Pid,
        request: &InspectRequest,
        caller: Caller,
        progress: &dyn Fn(&str),
    ) -> Result<Inspection, Error> {
        let target = Arc::new(open(pid, caller)?);
        let modules = Modules::of(&target)?;
        let pattern = Pattern::parse(&request.pattern);
        modules.load(&target, &self.inner.context.images, std::slice::from_ref(&pattern), progress);
        let found = resolve_patterns(&modules, std::slice::from_ref(&request.pattern), Missing::Fails)?;
        if found.len() > INSPECTED_MAX {
            let what = format!("`{}` matches {} functions", request.pattern, found.len());
            let hint = format!("name at most {INSPECTED_MAX}; `ingraft functions` lists them");
            return Err(Error::new(Reason::TooManyFunctions, what, hint));
        }
        progress("looking at the points");
        let generated = self.generated(&target)?;
        let originals = RemovalRecord {
            text: generated.iter().flat_map(|g| &g.points).flat_map(|p| &p.text).copied().collect(),
            ..RemovalRecord::default()
        };
        let text = Text::new(&target, std::iter::once(&originals));
        let one = |function: &FunctionId| describe(&text, &modules, *function, &generated, request.instructions);
        let mut functions: Vec<InspectedFunction> = found.iter().filter_map(one).collect();
        if let Some(choice) = request.path {
            let path = chosen_path(&modules, &found, choice).map_err(|e| e.about(pid))?;
            functions.iter_mut().for_each(|function| function.path = Some(path.clone()));
        }
        target.check(caller.rights()).map_err(|e| Error::process(pid, e))?;
        Ok(Inspection { pid, functions })
    }

    /// Finds out what lies at an address of a process.
    pub fn locate(&self, target: &TargetSpec, address: Avma, caller: Caller) -> Result<Location, Error> {
        let pid = resolve(target, caller)?;
        let target = Arc::new(open(pid, caller)?);
        let modules = Modules::of(&target)?;
        let maps = target.maps().map_err(|e| Error::process(pid, e))?;
        let mapping = maps.iter().find(|m| m.range.contains(&address));
        let mut location = Location {
            pid,
            address,
            mapping: mapping.map(|m| m.path.to_string_lossy().into_owned()),
            place: None,
            generated: None,
            note: String::new(),
        };
        let generated = self.generated(&target)?;
        location.generated = generated.iter().find_map(|generated| place_in(&target, generated, address));
        let original = location.generated.as_ref().and_then(|place| place.original.or(place.point));
        let at = if location.generated.is_some() { original } else { Some(address) };
        if let Some(at) = at {
            (location.place, location.note) = self.place_of(&target, &modules, at);
        }
        let unknown = generated.iter().filter(|_| location.generated.is_some()).find_map(|g| g.unknown.clone());
        if let Some(unknown) = unknown {
            location.note = unknown;
        } else if mapping.is_none() {
            "nothing is mapped at this address".clone_into(&mut location.note);
        }
        target.check(caller.rights()).map_err(|e| Error::process(pid, e))?;
        Ok(location)
    }

    /// The place of an address in a module, and one sentence if it is not known.
    fn place_of(&self, target: &Target, modules: &Modules, at: Avma) -> (Option<ModulePlace>, String) {
        let holds = |file: &ModuleFile| code_places::holds(file, at);
        let errors = modules.load_files(target, &self.inner.context.images, &holds);
        let Some((_, file, module)) = modules.loaded().find(|(_, file, _)| holds(file)) else {
            let why = errors.first().map_or_else(String::new, |e| format!("the file cannot be analysed: {}", e.what));
            return (None, why);
        };
        let mut place = place_at(file, module, at.to_svma(module.bias));
        let (mut sources, mut inlined) = source_at(target, file, module, &[place.at]);
        place.source = sources.pop().map(|line| (line.file, line.line));
        place.inlined = inlined.remove(&place.at).unwrap_or_default();
        (Some(place), String::new())
    }

    /// The generated code in a target: that of this engine, and that of other engines as far as their journals tell.
    pub(super) fn generated(&self, target: &Arc<Target>) -> Result<Vec<Generated>, Error> {
        let session = lock(&self.inner.sessions).get(&target.pid()).cloned();
        let own = session.filter(|session| session.target().identity() == target.identity());
        let (own, more) = own.and_then(|session| session.generated()).map_or((None, true), |(g, more)| (Some(g), more));
        let mut found: Vec<Generated> = own.into_iter().collect();
        if !more {
            return Ok(found);
        }
        for range in target.find_areas().map_err(|e| Error::process(target.pid(), e))? {
            let mut left = self.left_in(target, &range);
            for own in &found {
                left.points.retain(|left| own.points.iter().all(|own| own.text != left.text));
                left.areas.retain(|range| !own.areas.contains(range));
            }
            found.push(left);
        }
        Ok(found)
    }

    /// The generated code whose data area is at `range`, as far as a journal tells.
    fn left_in(&self, target: &Arc<Target>, range: &AvmaRange) -> Generated {
        let mut left = Generated { areas: vec![range.clone()], arenas: signed(target), ..Generated::default() };
        let journal = match leftover::open_area(&self.inner.context.state, target, range) {
            Ok(found) => {
                let holder = found.area.holder().ok();
                let state = if holder.is_some_and(|holder| holder.is_alive()) { "" } else { " (dead)" };
                let process = holder.map_or_else(String::new, |holder| format!("process {}", holder.pid));
                let name = found.journal.as_ref().map_or(process, |journal| journal.head.holder.clone());
                left.holder = format!("{name}{state}");
                found.journal
            }
            Err(e) => {
                left.unknown = Some(format!("memory of ingraft that this version cannot read: {}", e.what));
                return left;
            }
        };
        let Some(Contents { points, kept, chains, arenas, .. }) = journal else {
            left.unknown = Some("memory of ingraft, whose journal this command cannot read".to_owned());
            return left;
        };
        left.arenas.extend(arenas);
        let point = |point: &crate::recovery::journal::PointRecord| {
            let chain = chains.get(&point.removal.key()).map(|known| &known.chain);
            GeneratedPoint::recorded(&point.removal, chain, |owner| pair_of(&kept, owner))
        };
        left.points = points.iter().filter_map(point).collect();
        left
    }
}

/// The pair of a kept measurement whose first counter is `owner`.
fn pair_of(kept: &[KeptMeasurement], owner: u64) -> Option<String> {
    let mut pairs = kept.iter().flat_map(|kept| &kept.pairs);
    let pair = pairs.find(|pair| u64::from(pair.value.first) == owner || pair.owner.map(u64::from) == Some(owner))?;
    Some(if pair.focus.is_empty() { pair.metric.clone() } else { format!("{}@{}", pair.metric, pair.focus) })
}

/// Executable memory of a target that begins with the signature of an arena.
fn signed(target: &Target) -> Vec<AvmaRange> {
    let Ok(maps) = target.maps() else { return Vec::new() };
    maps.into_iter().filter(|m| is_arena(target, m)).map(|m| m.range).collect()
}

pub(super) fn named(file: &ModuleFile, function: &Function) -> NamedFunction {
    NamedFunction {
        module: file.name.clone(),
        function: function.display_name().into_owned(),
        offset: function.start(),
    }
}

/// The path of the only function that was found.
fn chosen_path(modules: &Modules, found: &[FunctionId], choice: PathChoice) -> Result<InspectedPath, Error> {
    let [function] = *found else {
        let what = format!("a path is one of a single function, and {} functions match", found.len());
        return Err(Error::new(Reason::OneFunction, what, "name one as MODULE:FUNCTION or MODULE+0xOFFSET"));
    };
    let name = modules.resolve(function).map_or_else(String::new, |(_, _, f)| f.display_name().into_owned());
    match kinds::path_of(modules, function, choice) {
        Ok((_, Some(path))) => Ok(path),
        Ok((possible, None)) => {
            let what = format!(
                "`{name}` has {possible} paths, with numbers from 0 on, and none has the number {}",
                choice.number
            );
            let hint = "`ingraft profile paths --format json` tells the numbers; use the same --truncate as there";
            Err(Error::new(Reason::NoSuchPart, what, hint))
        }
        Err(why) => {
            let what = format!("the paths of `{name}` cannot be told: {why}");
            Err(Error::new(Reason::AllRefused, what, "show the function without --path"))
        }
    }
}

/// A function in detail.
fn describe(
    text: &Text<'_>,
    modules: &Modules,
    function: FunctionId,
    generated: &[Generated],
    instructions: bool,
) -> Option<InspectedFunction> {
    let (file, module, f) = modules.resolve(function)?;
    let address = f.start().to_avma(module.bias);
    let cfg = module.image.cfg(f);
    let mut points = trial::points(text, modules, function);
    let theirs = generated.iter().flat_map(|g| g.points.iter().map(move |p| (g, p)));
    let theirs: Vec<_> = theirs.filter(|(_, point)| is_of(point, f, module)).collect();
    // The first instruction of a function may stay in place before the springboard.
    let behind_first = module.image.entry_site(f).ok().map(|site| {
        let first = site.first_instruction().map_or(0, |first| i64::from(first.len));
        site.at.to_avma(module.bias).offset(first)
    });
    for point in &mut points {
        let at = Avma(address.0.wrapping_add_signed(point.at.0));
        let springboard = behind_first.filter(|_| point.kind == PointKind::Entry).unwrap_or(at);
        let is_it = |woven: &GeneratedPoint| match woven.kind {
            Some(kind) => kind == point.kind && woven.point == at,
            None => woven.point == at || woven.point == springboard,
        };
        point.woven = theirs.iter().any(|(_, woven)| is_it(woven));
    }
    let mut described = InspectedFunction {
        size: f.size() + f.parts().iter().map(|part| part.end.0 - part.start.0).sum::<u64>(),
        address,
        points,
        holder: theirs.first().map(|(generated, _)| generated.holder.clone()),
        ..InspectedFunction::new(named(file, f), &cfg, |at| outside_name(file, module, at))
    };
    if instructions {
        described.instructions = original(text.target(), file, module, (f.start(), &cfg));
        add_woven(text.target(), &mut described, &cfg, generated);
    }
    Some(described)
}

/// Whether a point belongs to a function.
fn is_of(point: &GeneratedPoint, function: &Function, module: &Module) -> bool {
    match point.function {
        Some(first) => first == function.start().to_avma(module.bias),
        None => function.contains(point.point.to_svma(module.bias)),
    }
}

/// The name of a place outside of a function, as `FUNCTION+0x12`, or as an address.
fn outside_name(file: &ModuleFile, module: &Module, at: Svma) -> String {
    let import = module.image.stub_slot(at).and_then(|slot| module.image.import_at(slot));
    if let Some(import) = import {
        return format!("{import}@plt");
    }
    match module.image.function_around_address(at) {
        Some(function) => {
            let offset = Offset::between(function.start().0, at.0);
            let offset = if offset.0 == 0 { String::new() } else { offset.to_string() };
            format!("{}{offset}", function.display_name())
        }
        None => format!("{}+{:#x}", file.name, at.0),
    }
}

/// The instructions of a function's blocks as the file has them, with their source lines.
fn original(target: &Target, file: &ModuleFile, module: &Module, (start, cfg): (Svma, &Cfg)) -> Vec<CodeInstruction> {
    let ranges: Vec<SvmaRange> = cfg.blocks.iter().map(|block| block.range.clone()).collect();
    let known = source_lines(target, file, module, &ranges);
    let source = |at: u64| {
        let after = known.partition_point(|line| line.range.start.0 <= at);
        let line = known[..after].iter().rev().find(|line| at < line.range.end.0)?;
        Some((Arc::clone(&line.file), line.line))
    };
    let target_name = |at: Svma| match cfg.block_at(at) {
        Some(_) => PartName::Block(Offset::between(start.0, at.0)).to_string(),
        None => outside_name(file, module, at),
    };
    let instruction = |one: DisassembledLine| CodeInstruction {
        source: source(one.at),
        at: Offset::between(start.0, one.at),
        bytes: one.bytes,
        text: match one.target {
            Some(target) => format!("{} <{}>", one.text, target_name(Svma(target))),
            None => one.text,
        },
    };
    let code = |range: &SvmaRange| {
        let len = usize::try_from(range.end.0.saturating_sub(range.start.0)).unwrap_or(0);
        let bytes = module.image.elf().bytes_at(range.start, len).unwrap_or_default();
        disassemble(range.start.0, bytes)
    };
    ranges.iter().flat_map(code).map(instruction).collect()
}

/// Adds the woven code of a function: for each point the springboard, and the parts of its code in the order of addresses.
fn add_woven(target: &Target, function: &mut InspectedFunction, cfg: &Cfg, generated: &[Generated]) {
    let first = function.address;
    let inside = |at: Avma| {
        let at = Svma(function.function.offset.0.wrapping_add(at.0.wrapping_sub(first.0)));
        cfg.blocks.iter().any(|block| block.range.contains(&at))
    };
    let mut woven = Vec::new();
    for point in generated.iter().flat_map(|generated| &generated.points) {
        let is_its = point.function.map_or_else(|| inside(point.point), |its| its == first);
        if !is_its {
            continue;
        }
        for part in &point.parts {
            let len = usize::try_from(part.range.end.0.saturating_sub(part.range.start.0)).unwrap_or(0);
            let mut bytes = vec![0; len];
            if target.read(part.range.start, &mut bytes).is_err() {
                continue;
            }
            woven.extend(disassemble(part.range.start.0, &bytes).into_iter().map(|line| {
                let original = point.resume_at(Avma(line.at));
                WovenInstruction {
                    kind: point.kind,
                    point: Offset::between(first.0, point.point.0),
                    part: part.part,
                    pair: part.pair.clone(),
                    at: Avma(line.at),
                    bytes: line.bytes,
                    text: line.text,
                    original: original.map(|at| Offset::between(first.0, at.0)),
                }
            }));
        }
    }
    // Control comes from the springboard, whose address may be above or below that of the arena.
    woven.sort_by_key(|line| (line.point, line.kind, line.part > CodePart::Island, line.at));
    function.woven = woven;
}

/// The place of an address in generated code; `None` if the address is in none of it.
fn place_in(target: &Target, generated: &Generated, at: Avma) -> Option<GeneratedPlace> {
    let place = |part, point: Option<&GeneratedPoint>| GeneratedPlace {
        holder: generated.holder.clone(),
        part,
        kind: point.and_then(|point| point.kind),
        point: point.map(|point| point.point),
        pair: None,
        original: None,
    };
    let found = generated.points.iter().find_map(|point| Some((point, point.part_at(at)?)));
    if let Some((point, part)) = found {
        let pair = part.pair.clone();
        return Some(GeneratedPlace { pair, original: point.resume_at(at), ..place(part.part, Some(point)) });
    }
    if generated.areas.iter().any(|area| area.contains(&at)) {
        return Some(place(CodePart::Data, None));
    }
    let arena = generated.arenas.iter().find(|arena| arena.contains(&at))?;
    if at < arena.start.offset(SIGNATURE.len() as i64) {
        return Some(place(CodePart::Signature, None));
    }
    if generated.points.iter().any(|point| point.step_out.iter().any(|routine| routine.contains(&at))) {
        return Some(place(CodePart::Routine, None));
    }
    // Room that no code was written to is zero.
    let mut bytes = [0; INSTRUCTION_MAX];
    let read = target.read_some(at, &mut bytes).unwrap_or(0);
    let empty = bytes[..read].iter().all(|byte| *byte == 0);
    let part = if empty || generated.unknown.is_none() { CodePart::Free } else { CodePart::Point };
    Some(place(part, None))
}
