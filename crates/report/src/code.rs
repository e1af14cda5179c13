//! Facts about the code of a module, from the bytes of its file: instructions, source lines with inlined functions, and symbols.
//!
//! The debugging information is read by `addr2line`. Two facts that it leaves out are read here: discriminators, which tell apart the
//! blocks of one source line, and the lines at which functions are declared.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use addr2line::{Context, FunctionName};
use gimli::{AttributeValue, Dwarf, EndianArcSlice, LittleEndian, SectionId, Unit, UnitOffset, UnitRef, constants};
use iced_x86::{Decoder, DecoderOptions};
use ingraft_analysis::{DisassembledLine, disassemble};
use ingraft_model::Svma;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::saved::BlockCount;

type DwarfBytes = EndianArcSlice<LittleEndian>;

/// Largest number of inlined functions around an instruction.
const FRAMES_MAX: usize = 256;

/// Source position of an instruction, or of the call that was inlined there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Name of the function as the linker has it; empty if it is not known.
    pub function: Rc<str>,
    /// Path of the source file; empty if it is not known.
    pub file: Rc<str>,
    /// Line in the source file, from 1; 0 if it is not known.
    pub line: u32,
    /// Line at which the function is declared; 0 if it is not known.
    pub declared: u32,
    /// Number that tells apart the blocks of the line; 0 if there is one block.
    pub discriminator: u64,
}

/// A symbol of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Address of its first byte, as in the file.
    pub start: Svma,
    /// Length in bytes.
    pub size: u64,
    /// Name as in the symbol table.
    pub name: String,
    /// Place of the symbol among the local symbols of this name in the order of addresses, from 1; `None` for a global symbol.
    pub local: Option<u32>,
}

/// One instruction, or a whole block whose instructions are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeStep {
    /// Address of the first byte, as in the file.
    pub at: Svma,
    /// Number of instructions.
    pub instructions: u64,
}

/// The code of a module. The default value knows nothing.
#[derive(Default)]
pub struct ModuleCode {
    /// Build-id; empty if the file has none.
    build_id: Vec<u8>,
    /// Ranges of the file that are mapped as code: address of the first byte, and the bytes.
    text: Vec<(u64, Vec<u8>)>,
    /// Lowest address that the file maps.
    base: u64,
    symbols: Vec<Symbol>,
    debug: Option<ModuleDebugInfo>,
}

/// The debugging information of a module.
struct ModuleDebugInfo {
    context: Context<DwarfBytes>,
    dwarf: Dwarf<DwarfBytes>,
    discriminators: OnceCell<Vec<(u64, u64, u64)>>,
    /// All units, sorted by offset; read when an entry refers to another unit.
    units: OnceCell<Vec<Unit<DwarfBytes>>>,
    names: NameMemo,
}

impl ModuleCode {
    /// Reads the file of a module and, if its debugging information is in another file, that file. Parts that cannot be read are left out.
    pub fn parse(file: &[u8], debug: Option<&[u8]>) -> Self {
        let Ok(elf) = object::File::parse(file) else { return ModuleCode::default() };
        let other = debug.and_then(|debug| object::File::parse(debug).ok());
        let code = |segment: &object::Segment<'_, '_>| match segment.flags() {
            object::SegmentFlags::Elf { p_flags, .. } => p_flags.0 & object::elf::PF_X.0 != 0,
            _ => false,
        };
        let text = elf.segments().filter(code).filter_map(|s| Some((s.address(), s.data().ok()?.to_vec())));
        let mut symbols = symbols(&elf);
        if symbols.is_empty() {
            symbols = other.as_ref().map(self::symbols).unwrap_or_default();
        }
        ModuleCode {
            build_id: elf.build_id().ok().flatten().unwrap_or_default().to_vec(),
            text: text.collect(),
            base: elf.segments().map(|segment| segment.address()).min().unwrap_or(0),
            symbols,
            debug: ModuleDebugInfo::of(&elf).or_else(|| ModuleDebugInfo::of(other.as_ref()?)),
        }
    }

    /// The build-id that the file states; empty if it states none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Lowest address that the file maps.
    pub fn base(&self) -> Svma {
        Svma(self.base)
    }

    /// The bytes of a block; `None` if the file does not have all of them.
    fn bytes(&self, block: &BlockCount) -> Option<&[u8]> {
        self.text.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(block.start.0.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(block.size as usize)?)
        })
    }

    /// The instructions of a block; empty if the file does not have them.
    pub fn disassembly(&self, block: &BlockCount) -> Vec<DisassembledLine> {
        self.bytes(block).map(|bytes| disassemble(block.start.0, bytes)).unwrap_or_default()
    }

    /// The instructions of a block, one by one if the file has exactly the number that the profile states.
    pub fn steps(&self, block: &BlockCount) -> Vec<CodeStep> {
        let mut steps = Vec::new();
        if let Some(bytes) = self.bytes(block) {
            let decoder = Decoder::with_ip(64, bytes, block.start.0, DecoderOptions::NONE);
            steps.extend(decoder.into_iter().map(|decoded| CodeStep { at: Svma(decoded.ip()), instructions: 1 }));
        }
        if steps.len() != block.instructions as usize {
            steps = vec![CodeStep { at: block.start, instructions: block.instructions.into() }];
        }
        steps
    }

    /// Source positions of an instruction, the innermost inlined function first. Empty if there is no debugging information for it.
    pub fn frames(&self, at: Svma) -> Vec<SourceFrame> {
        self.debug.as_ref().and_then(|debug| debug.frames(at.0)).unwrap_or_default()
    }

    /// Source position of an instruction in the innermost function; `None` if it is not known.
    pub fn line(&self, at: Svma) -> Option<(&str, u32)> {
        let location = self.debug.as_ref()?.context.find_location(at.0).ok()??;
        Some((location.file?, location.line.filter(|line| *line > 0)?))
    }

    /// The symbol of a function that an address belongs to; the longest name first in the order of the alphabet if there are several.
    pub fn symbol(&self, at: Svma) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= at);
        let start = self.symbols.get(after.checked_sub(1)?)?.start;
        let first = self.symbols.partition_point(|symbol| symbol.start < start);
        let same = self.symbols.get(first..after)?;
        same.iter().find(|symbol| at.0 - symbol.start.0 < symbol.size.max(1))
    }
}

/// The functions of a symbol table, sorted by address and, at one address, global ones first.
fn symbols(elf: &object::File<'_>) -> Vec<Symbol> {
    let mut found: Vec<_> = elf
        .symbols()
        .filter(|symbol| symbol.is_definition() && !matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section))
        .filter_map(|symbol| Some((symbol.address(), symbol.is_local(), symbol.name().ok()?.to_owned(), symbol)))
        .collect();
    found.sort_by(|a, b| (a.0, a.1, &a.2).cmp(&(b.0, b.1, &b.2)));
    let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
    let mut symbols = Vec::new();
    for (start, is_local, name, symbol) in found {
        let local = is_local.then(|| {
            let number = numbers.entry(name.clone()).or_default();
            *number = number.saturating_add(1);
            *number
        });
        if symbol.kind() == SymbolKind::Text {
            symbols.push(Symbol { start: Svma(start), size: symbol.size(), name, local });
        }
    }
    symbols
}

impl ModuleDebugInfo {
    /// The debugging information of a file; `None` if it has none.
    fn of(elf: &object::File<'_>) -> Option<Self> {
        elf.section_by_name(".debug_info")?;
        let section = |id: SectionId| {
            let data = elf.section_by_name(id.name()).and_then(|section| section.uncompressed_data().ok());
            Ok::<_, gimli::Error>(EndianArcSlice::new(data.unwrap_or_default().into(), LittleEndian))
        };
        let dwarf = Dwarf::load(section).ok()?;
        let context = Context::from_dwarf(Dwarf::load(section).ok()?).ok()?;
        Some(ModuleDebugInfo {
            context,
            dwarf,
            discriminators: OnceCell::new(),
            units: OnceCell::new(),
            names: NameMemo::default(),
        })
    }

    fn frames(&self, at: u64) -> Option<Vec<SourceFrame>> {
        let mut found = self.context.find_frames(at).skip_all_loads().ok()?;
        let mut unit = None;
        let mut discriminator = self.discriminator(at);
        let mut frames: Vec<SourceFrame> = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            if frames.len() == FRAMES_MAX {
                return None;
            }
            let (file, line) = frame.location.as_ref().map_or((None, None), |location| (location.file, location.line));
            let facts = match frame.dw_die_offset {
                Some(entry) => {
                    let unit = unit.get_or_insert_with(|| self.context.find_dwarf_and_unit(at).skip_all_loads());
                    unit.map(|unit| self.names.facts(self, unit, entry, frame.function.as_ref()))
                }
                None => None,
            };
            let facts = facts.unwrap_or_default();
            frames.push(SourceFrame {
                function: facts.name,
                file: file.map(|file| self.names.file(file)).unwrap_or_default(),
                line: line.unwrap_or(0),
                declared: facts.line,
                discriminator,
            });
            // The entry of an inlined function has the discriminator of its call, which is in the next frame.
            discriminator = facts.call_discriminator;
        }
        Some(frames)
    }

    /// Line of the declaration of a function.
    fn declared<'a>(&'a self, mut unit: UnitRef<'a, DwarfBytes>, mut at: UnitOffset) -> Option<u32> {
        // An inlined function stands for an abstract one, which may complete a declaration.
        for _ in 0..4 {
            let entry = unit.entry(at).ok()?;
            if let Some(line) = entry.attr_value(constants::DW_AT_decl_line) {
                return u32::try_from(line.udata_value()?).ok();
            }
            let origin = entry.attr_value(constants::DW_AT_abstract_origin);
            match origin.or_else(|| entry.attr_value(constants::DW_AT_specification))? {
                AttributeValue::UnitRef(next) => at = next,
                // Optimisation at link time refers to entries of other units.
                AttributeValue::DebugInfoRef(offset) => {
                    let units = self.units.get_or_init(|| units(&self.dwarf));
                    let start = |unit: &Unit<DwarfBytes>| unit.header.debug_info_offset().map_or(0, |start| start.0);
                    let after = units.partition_point(|unit| start(unit) <= offset.0);
                    let other = units.get(after.checked_sub(1)?)?;
                    at = offset.to_unit_offset(&other.header)?;
                    unit = other.unit_ref(&self.dwarf);
                }
                _ => return None,
            }
        }
        None
    }

    /// Discriminator of the row of the line table that has an address.
    fn discriminator(&self, at: u64) -> u64 {
        let rows = self.discriminators.get_or_init(|| discriminators(&self.dwarf));
        let after = rows.partition_point(|(start, ..)| *start <= at);
        let row = after.checked_sub(1).and_then(|row| rows.get(row));
        row.filter(|(_, end, _)| at < *end).map_or(0, |(.., discriminator)| *discriminator)
    }
}

/// The units of the debugging information that can be read.
fn units(dwarf: &Dwarf<DwarfBytes>) -> Vec<Unit<DwarfBytes>> {
    let mut found = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        found.extend(dwarf.unit(header).ok());
    }
    found
}

/// Rows of the line tables with a discriminator: first address, first address after them, discriminator. Sorted by address.
fn discriminators(dwarf: &Dwarf<DwarfBytes>) -> Vec<(u64, u64, u64)> {
    let mut found = Vec::new();
    for unit in units(dwarf) {
        let Some(program) = unit.line_program.clone() else { continue };
        let mut rows = program.rows();
        let mut before: Option<(u64, u64)> = None;
        while let Ok(Some((_, row))) = rows.next_row() {
            let (at, discriminator) = (row.address(), row.discriminator());
            if let Some((start, discriminator)) = before.filter(|(start, _)| *start < at) {
                found.push((start, at, discriminator));
            }
            before = (!row.end_sequence() && discriminator > 0).then_some((at, discriminator));
        }
    }
    found.sort_unstable();
    found
}

/// Facts about functions and files that were read before. Most instructions ask for the same ones as their neighbours.
#[derive(Default)]
struct NameMemo {
    /// Facts by the offsets of the unit and of the entry in it.
    facts: RefCell<FxHashMap<(usize, usize), DwarfFunction>>,
    /// Paths by the address of their text in memory.
    files: RefCell<FxHashMap<usize, Rc<str>>>,
    /// All paths, each once.
    paths: RefCell<FxHashSet<Rc<str>>>,
}

/// Facts of the entry of a function.
#[derive(Clone, Debug, Default)]
struct DwarfFunction {
    /// Name as the linker has it; empty if it is not known.
    name: Rc<str>,
    /// Line of the declaration; 0 if it is not known.
    line: u32,
    /// Discriminator of the call that was inlined; 0 if there is none.
    call_discriminator: u64,
}

impl NameMemo {
    /// A path that is shared with all other frames of the file.
    fn file(&self, path: &str) -> Rc<str> {
        let mut files = self.files.borrow_mut();
        let file = files.entry(path.as_ptr().addr()).or_insert_with(|| {
            let mut paths = self.paths.borrow_mut();
            let known = paths.get(path).cloned();
            known.unwrap_or_else(|| {
                let new: Rc<str> = path.into();
                paths.insert(Rc::clone(&new));
                new
            })
        });
        Rc::clone(file)
    }

    fn facts(
        &self,
        debug: &ModuleDebugInfo,
        unit: UnitRef<'_, DwarfBytes>,
        at: UnitOffset,
        name: Option<&FunctionName<DwarfBytes>>,
    ) -> DwarfFunction {
        let key = (unit.header.debug_info_offset().map_or(0, |offset| offset.0), at.0);
        let mut facts = self.facts.borrow_mut();
        facts.entry(key).or_insert_with(|| DwarfFunction::read(debug, unit, at, name)).clone()
    }
}

impl DwarfFunction {
    fn read(
        debug: &ModuleDebugInfo,
        unit: UnitRef<'_, DwarfBytes>,
        at: UnitOffset,
        name: Option<&FunctionName<DwarfBytes>>,
    ) -> Self {
        let entry = unit.entry(at).ok();
        let discriminator = entry.and_then(|entry| entry.attr_value(constants::DW_AT_GNU_discriminator)?.udata_value());
        let name = name.and_then(|name| name.raw_name().ok());
        DwarfFunction {
            name: name.map(|name| Rc::from(&*name)).unwrap_or_default(),
            line: debug.declared(unit, at).unwrap_or(0),
            call_discriminator: discriminator.unwrap_or(0),
        }
    }
}
