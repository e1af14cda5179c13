//! Data of a target by name: symbols give the places of variables, and debugging information their types.

use ingraft_analysis::{ArgumentPlace, DataSymbol, DebugInfo, DescribedValue, Function, MemberPath, TypeError};
use ingraft_mdl::{
    DescribedData, IntegerPath, NamedArgument, Parameter, ProgramFacts, ProgramVariable, Unresolved, VariableLocation,
    WithNames,
};
use ingraft_model::{Avma, CallSite, DataShape, Float, FunctionId, IntegerWidth, ModuleId, Refusal, Scalar, Svma};

use crate::program::callees::named;
use crate::program::debug_files;
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::program::pattern::edit_distance;

/// Marks that compilers add to the names of functions whose arguments they have changed.
const CHANGED: [&str; 3] = [".isra.", ".constprop.", ".part."];
/// Largest number of members that are listed when the requested one does not exist.
const LISTED: usize = 12;

/// A variable with its module.
struct FoundVariable<'a> {
    file: &'a ModuleFile,
    module: &'a Module,
    symbol: DataSymbol,
}

/// See [`ingraft_mdl::ProgramFacts::variable`].
pub fn variable(modules: &Modules, name: &str, members: &[&str]) -> Result<ProgramVariable, Unresolved> {
    let found = find(modules, name)?;
    let (symbol, elf) = (&found.symbol, found.module.image.elf());
    let ask = |info: &DebugInfo<'_>| info.reach_in_variable(symbol.at, symbol.per_thread, members);
    let reached = debug_files::ask(modules.pid(), found.file, elf, ask);
    let described = reached.is_ok();
    let (access, names) = match reached {
        Ok(reach) => access(reach),
        // without a description, the size of the symbol suffices
        Err(why) if members.is_empty() && why.is_missing() => {
            let width = IntegerWidth::of(found.symbol.size).ok_or_else(|| {
                let size = found.symbol.size;
                Unresolved::Unreadable(format!("`{name}` takes {size} bytes, which is no integer of 1, 2, 4 or 8"))
            })?;
            (IntegerPath { pointers: Vec::new(), offset: 0, scalar: Scalar { width, signed: true } }, None)
        }
        Err(why) => return Err(told(name, why)),
    };
    if found.symbol.per_thread {
        return Ok(ProgramVariable { at: in_threads(modules, name, &found)?, access, described, names });
    }
    let at = found.symbol.at.to_avma(found.module.bias);
    let readable = data_of(modules);
    let (first, bytes) = match access.pointers.first() {
        Some(first) => (*first, Scalar::POINTER.width.bytes()),
        None => (access.offset, access.scalar.width.bytes()),
    };
    let first = Avma(at.0.wrapping_add_signed(first));
    let lasts = readable.start <= first && first.0.checked_add(bytes.into()).is_some_and(|end| end <= readable.end.0);
    let at = if lasts { VariableLocation::Lasting(at) } else { VariableLocation::Fleeting(at) };
    Ok(ProgramVariable { at, access, described, names })
}

/// Location of a thread-local variable. Its library must stay loaded, because a library loaded later could have other data at that place.
fn in_threads(modules: &Modules, name: &str, found: &FoundVariable<'_>) -> Result<VariableLocation, Unresolved> {
    let refuse = |why| Unresolved::Unreadable(format!("`{name}`: every thread has its own, {why}"));
    let (at, bytes) = (found.symbol.at, found.symbol.size);
    if found.file.is_program {
        let own = found.module.image.elf().own_data_at(at, bytes);
        return own.map(VariableLocation::PerThread).ok_or_else(|| refuse("at a place that linkers do not agree on"));
    }
    modules.look_into(|file| file.is_program);
    let soname = found.module.image.elf().soname();
    let mut program = modules.loaded().filter(|(_, file, _)| file.is_program);
    if !program.any(|(_, _, module)| module.image.elf().needed().iter().any(|needed| Some(&**needed) == soname)) {
        return Err(refuse("in a library that may be unloaded: the program does not need it"));
    }
    let own = found.file.own_data_at(at, bytes);
    own.map(VariableLocation::PerThreadOfLibrary)
        .ok_or_else(|| refuse("in a library that does not have it at one distance from their pointers"))
}

/// See [`ingraft_mdl::ProgramFacts::address`].
pub fn address(modules: &Modules, name: &str) -> Result<Avma, Unresolved> {
    let found = find(modules, name)?;
    if found.symbol.per_thread {
        return Err(Unresolved::Unreadable(format!("`{name}`: every thread has its own")));
    }
    Ok(found.symbol.at.to_avma(found.module.bias))
}

/// See [`ingraft_mdl::ProgramFacts::callees`].
pub fn callees(modules: &Modules, caller: FunctionId) -> Result<Vec<FunctionId>, Unresolved> {
    let unknown = || Unresolved::Unreadable("the function is not known any more".to_owned());
    let (_, module, f) = modules.resolve(caller).ok_or_else(unknown)?;
    let name = f.display_name();
    let unclear = |why: Refusal| Unresolved::Unreadable(format!("the calls of `{name}`: {why}"));
    let calls = module.image.call_sites(f).map_err(unclear)?;
    let callee = |call: &CallSite| {
        named(module, caller, call).flatten().ok_or_else(|| {
            let offset = call.at.0.wrapping_sub(f.start().0);
            Unresolved::Unreadable(format!("the call at `{name}+{offset:#x}` does not name whom it calls"))
        })
    };
    calls.iter().map(callee).collect()
}

/// See [`ingraft_mdl::ProgramFacts::member`].
pub fn member(
    modules: &Modules,
    function: FunctionId,
    of: Parameter,
    members: &[&str],
) -> Result<WithNames<IntegerPath>, Unresolved> {
    of_function(modules, function, |info, start| match of {
        Parameter::Argument(n) => info.reach_in_argument(start, n, members),
        Parameter::Result => info.reach_in_result(start, members),
    })
    .map(access)
}

/// See [`ingraft_mdl::ProgramFacts::arguments`].
pub fn arguments(modules: &Modules, function: FunctionId) -> Result<Vec<(String, DataShape)>, Unresolved> {
    of_function(modules, function, |info, start| info.arguments(start))
}

/// See [`ingraft_mdl::ProgramFacts::shown`].
pub fn shown(
    modules: &Modules,
    function: FunctionId,
    of: DescribedData<'_>,
    members: &[&str],
    follow: bool,
) -> Result<DataShape, Unresolved> {
    let of = match of {
        DescribedData::Named(name) => DescribedValue::Named(name),
        DescribedData::Parameter(Parameter::Argument(number)) => DescribedValue::Argument(number),
        DescribedData::Parameter(Parameter::Result) => DescribedValue::Result,
    };
    of_function(modules, function, |info, start| info.shown(start, of, members, follow))
}

/// See [`ingraft_mdl::ProgramFacts::argument`].
pub fn argument(modules: &Modules, function: FunctionId, name: &str) -> Result<WithNames<NamedArgument>, Unresolved> {
    let (place, names) = of_function(modules, function, |info, start| info.argument_named(start, name))?;
    let argument = match place {
        ArgumentPlace::Integer(number, scalar) => NamedArgument::Integer { number, scalar },
        ArgumentPlace::Float(register, format) => NamedArgument::Float(Float { register, format }),
    };
    Ok((argument, names))
}

/// Whether a function certainly has no result.
pub fn returns_nothing(modules: &Modules, function: FunctionId) -> bool {
    of_function(modules, function, |info, start| Ok(info.returns_nothing(start))).unwrap_or_default()
}

/// An answer of the debugging information about a function, which is asked by its first address.
fn of_function<T>(
    modules: &Modules,
    function: FunctionId,
    ask: impl Fn(&DebugInfo<'_>, Svma) -> Result<T, TypeError>,
) -> Result<T, Unresolved> {
    let unknown = || Unresolved::Unreadable("the function is not known any more".to_owned());
    let (file, module, f) = modules.resolve(function).ok_or_else(unknown)?;
    let name = f.display_name();
    if changed(f) {
        return Err(Unresolved::Unreadable(format!("`{name}`: the compiler has changed its arguments")));
    }
    let answer = debug_files::ask(modules.pid(), file, module.image.elf(), |info| ask(info, f.start()));
    answer.map_err(|why| told(&name, why))
}

/// The writable data of the program's own file, as the largest writable segment. Empty as long as the program is not analysed.
pub fn data_of(modules: &Modules) -> std::ops::Range<Avma> {
    let program = modules.loaded().find(|(_, file, _)| file.is_program);
    let segment = program.and_then(|(_, _, module)| {
        let segments = module.image.segments().iter().filter(|s| s.flags.write && s.flags.read);
        segments.max_by_key(|s| s.mem_size).map(|s| (s, module.bias))
    });
    segment.map_or(Avma(0)..Avma(0), |(s, bias)| {
        s.svma.to_avma(bias)..Svma(s.svma.0.saturating_add(s.mem_size)).to_avma(bias)
    })
}

fn changed(f: &Function) -> bool {
    f.names().iter().all(|name| CHANGED.iter().any(|mark| name.mangled().contains(mark))) && !f.names().is_empty()
}

fn access(reach: MemberPath) -> WithNames<IntegerPath> {
    let MemberPath { pointers, offset, scalar, names } = reach;
    (IntegerPath { pointers, offset, scalar }, names)
}

fn told(name: &str, why: TypeError) -> Unresolved {
    match why {
        TypeError::NoMember { ref member, ref has, .. } => {
            let near = nearest(member, has.iter().map(String::as_str));
            let listed = has.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its members are {listed}{}", if has.len() > LISTED { ", …" } else { "" }),
            };
            Unresolved::NotFound { what: why.to_string(), help: (!has.is_empty()).then_some(help) }
        }
        TypeError::NoArgument { name: ref wanted, ref has } => {
            let help = match nearest(wanted, has.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its arguments are {}", has.join(", ")),
            };
            Unresolved::NotFound { what: format!("`{name}`: {why}"), help: (!has.is_empty()).then_some(help) }
        }
        why @ (TypeError::NoDebugInfo
        | TypeError::Compressed
        | TypeError::OtherFile { .. }
        | TypeError::NotDescribed { .. }
        | TypeError::NoStructure { .. }
        | TypeError::BitField { .. }
        | TypeError::NoInteger { .. }
        | TypeError::Misplaced { .. }) => Unresolved::Unreadable(format!("`{name}`: {why}")),
    }
}

/// The variable with a name: the program's own first, because its libraries use that one too; then one that exactly one library exports.
fn find<'a>(modules: &'a Modules, text: &str) -> Result<FoundVariable<'a>, Unresolved> {
    let (prefix, name) = match text.split_once(':') {
        Some((prefix, name)) if !name.starts_with(':') => (Some(prefix), name),
        _ => (None, text),
    };
    let is_module = |file: &ModuleFile| prefix.is_some_and(|prefix| file.names.iter().any(|n| n == prefix));
    let of_module = modules.mapped().any(is_module);
    let source = prefix.filter(|_| !of_module);
    let wanted = |file: &ModuleFile| if of_module { is_module(file) } else { true };
    let own = |file: &ModuleFile| file.is_program && wanted(file);
    modules.look_into(|file| own(file) || of_module && is_module(file));
    let in_module = |(_, file, module): (ModuleId, &'a ModuleFile, &'a Module)| -> Vec<FoundVariable<'a>> {
        let elf = module.image.elf();
        let symbols = DataSymbol::named(elf, file.debug(modules.pid(), elf), name);
        let fits = |symbol: &DataSymbol| match source {
            Some(source) => symbol.file.as_deref().is_some_and(|f| f == source || f.ends_with(&format!("/{source}"))),
            None => true,
        };
        symbols.into_iter().filter(fits).map(|symbol| FoundVariable { file, module, symbol }).collect()
    };
    let loaded = || modules.loaded().filter(|(_, file, _)| file.is_mapped && wanted(file));
    let mut found: Vec<FoundVariable<'a>> =
        loaded().filter(|(_, file, _)| file.is_program).flat_map(in_module).collect();
    if found.is_empty() {
        modules.look_into(|file| wanted(file));
        found = loaded().filter(|(_, file, _)| !file.is_program).flat_map(in_module).collect();
        // a bare name does not select a static variable of a library
        if prefix.is_none() {
            found.retain(|f| !f.symbol.local);
        }
    }
    if found.iter().any(|f| !f.symbol.local) {
        found.retain(|f| !f.symbol.local);
    }
    match found.as_slice() {
        [] => Err(missing(modules, text, name)),
        [_] => found.pop().map(|f| interposed(modules, f, name)).ok_or_else(|| missing(modules, text, name)),
        several => {
            let place = |f: &FoundVariable<'_>| {
                let of = f.symbol.file.as_deref().filter(|_| source.is_none()).unwrap_or(&f.file.name);
                format!("{of}:{name}")
            };
            let places: Vec<String> = several.iter().map(place).collect();
            let help = Some(format!("say which one: {}", places.join(", ")));
            Err(Unresolved::NotFound { what: format!("several variables have the name `{text}`"), help })
        }
    }
}

/// The program's own variable of that name, or its copy of the library's variable, if there is one: every module then uses that one.
fn interposed<'a>(modules: &'a Modules, found: FoundVariable<'a>, name: &str) -> FoundVariable<'a> {
    if found.file.is_program || found.symbol.local {
        return found;
    }
    let program = modules.loaded().find(|(_, file, _)| file.is_program);
    let copy = program.and_then(|(_, file, module)| {
        let symbol = DataSymbol::exported(module.image.elf(), name)?;
        Some(FoundVariable { file, module, symbol })
    });
    copy.unwrap_or(found)
}

fn missing(modules: &Modules, text: &str, name: &str) -> Unresolved {
    let pid = modules.pid();
    let names = |own: bool| {
        let loaded = modules.loaded().filter(move |(_, file, _)| file.is_program == own);
        loaded.flat_map(|(_, file, module)| {
            let elf = module.image.elf();
            DataSymbol::names(elf, file.debug(pid, elf))
        })
    };
    let near = |own| nearest(name, names(own).collect::<Vec<_>>().iter().map(String::as_str));
    let help = near(true).or_else(|| near(false)).map(|near| format!("did you mean `{near}`?"));
    Unresolved::NotFound { what: format!("the program has no variable `{text}`"), help }
}

fn nearest<'n>(name: &str, all: impl Iterator<Item = &'n str>) -> Option<String> {
    let limit = (name.len() / 3).clamp(1, 3);
    let close = all.filter_map(|other| Some((edit_distance(name, other, limit)?, other)));
    close.min_by_key(|(distance, other)| (*distance, other.len())).map(|(_, other)| other.to_owned())
}
