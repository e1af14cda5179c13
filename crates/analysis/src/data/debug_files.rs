//! The bytes of debugging information: those of a file, and those of other files that it names.
//!
//! Compilers can put the larger part of the information into a file for each unit (`.dwo`). A packager joins the files of a program
//! (`.dwp`). Another tool moves the parts that several programs have in common into one file (`dwz -m`). The sources are DWARF 5,
//! section 7.3, and gdb's manual, "Debugging Information in Separate Files".

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use gimli::{DwoId, EndianSlice, LittleEndian, Section, SectionId};
use object::elf;
use object::read::{CompressedData, CompressionFormat};

use crate::data::debug_info::{DwarfSlice, DwarfUnit};
use crate::data::error::TypeError;
use crate::file::elf::Elf;

/// Largest number of bytes to which the sections of one file and of those that it names are decompressed.
const DECOMPRESSED_MAX: u64 = 2 << 30;
/// Largest ratio of the sizes of a section after and before decompression that is believed.
const EXPANSION_MAX: u64 = 2000;

/// A file to which debugging information refers. The reader checks that the file belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugFileName<'n> {
    /// The information of one unit (`.dwo`): the directory of the compilation, and the name that the compiler has noted.
    Unit {
        /// The directory.
        directory: &'n str,
        /// The name, with or without a directory.
        name: &'n str,
    },
    /// The information of all units of the program (`.dwp`), whose name is that of the program and `.dwp`.
    Package,
    /// The file with information that several files share (`dwz -m`).
    Shared {
        /// The name, with or without a directory.
        name: &'n str,
        /// The build-id of the file.
        build_id: &'n [u8],
    },
}

/// Returns the bytes of a named file; `None` if there is no such file.
pub type FindDebugFile<'f> = dyn Fn(DebugFileName<'_>) -> Option<Arc<[u8]>> + 'f;

/// Finds no file.
pub fn no_debug_files(_: DebugFileName<'_>) -> Option<Arc<[u8]>> {
    None
}

/// The debugging information of a file as bytes: those of the file, or decompressed ones, and those of files that it names.
pub struct DebugSections<'a> {
    own: FileSections<'a>,
    shared: Option<FileSections<'a>>,
    package: OnceCell<Option<FileSections<'a>>>,
    /// Files of units, by the number of the unit.
    units: Vec<OnceCell<Option<FileSections<'a>>>>,
    find: &'a FindDebugFile<'a>,
    /// Number of bytes to which further sections may be decompressed.
    room: Cell<u64>,
}

impl std::fmt::Debug for DebugSections<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DebugSections").field("units", &self.units.len()).finish_non_exhaustive()
    }
}

impl<'a> DebugSections<'a> {
    /// Decompresses the debugging information of an image or a separate debug file, as far as it is compressed. `find` is asked for the
    /// files that it names, for most of them only when they are needed.
    pub fn of(elf: &'a Elf, find: &'a FindDebugFile<'a>) -> Result<Self, TypeError> {
        let room = Cell::new(DECOMPRESSED_MAX);
        let own = FileSections::of(Cow::Borrowed(elf), &room).ok_or(TypeError::Compressed)?;
        let shared = shared_file(elf, find).and_then(|shared| FileSections::of(Cow::Owned(shared), &room));
        let units = own.dwarf(false).map_or(0, |dwarf| headers(&dwarf));
        let units = std::iter::repeat_with(OnceCell::new).take(units).collect();
        Ok(DebugSections { own, shared, package: OnceCell::new(), units, find, room })
    }

    /// The information of the file itself, with what it shares with others.
    pub(super) fn dwarf(&self) -> Result<gimli::Dwarf<DwarfSlice<'_>>, TypeError> {
        let mut dwarf = self.own.dwarf(false)?;
        if let Some(shared) = &self.shared {
            dwarf.load_sup(|id| Ok::<_, TypeError>(shared.slice(id.name())))?;
        }
        Ok(dwarf)
    }

    /// The information of the unit with this number that another file has, and its size in bytes. `outline` is the unit as the file itself
    /// describes it. `None` if that is all, or if the other file is not found.
    pub(super) fn split<'s>(
        &'s self,
        number: usize,
        own: &gimli::Dwarf<DwarfSlice<'s>>,
        outline: &DwarfUnit<'s>,
    ) -> Option<(SplitUnit<'s>, usize)> {
        let id = outline.dwo_id?;
        let of = |dwarf: gimli::Dwarf<DwarfSlice<'s>>| {
            let mut headers = dwarf.units();
            while let Ok(Some(header)) = headers.next() {
                let Ok(mut unit) = dwarf.unit(header) else { continue };
                if unit.dwo_id == Some(id) {
                    unit.copy_relocated_attributes(outline);
                    let bytes = dwarf.debug_info.reader().len();
                    return Some((SplitUnit { dwarf, unit }, bytes));
                }
            }
            None
        };
        if let Some(found) = self.packaged(own, id).and_then(of) {
            return Some(found);
        }
        let read = || {
            let (directory, name) = split_name(own, outline)?;
            self.read(DebugFileName::Unit { directory: &directory, name: &name })
        };
        let mut dwarf = self.units.get(number)?.get_or_init(read).as_ref()?.dwarf(true).ok()?;
        dwarf.make_dwo(own);
        of(dwarf)
    }

    /// The information of a unit in the package.
    fn packaged<'s>(&'s self, own: &gimli::Dwarf<DwarfSlice<'s>>, id: DwoId) -> Option<gimli::Dwarf<DwarfSlice<'s>>> {
        let file = self.package.get_or_init(|| self.read(DebugFileName::Package)).as_ref()?;
        let section = |id: SectionId| Ok::<_, gimli::Error>(file.slice(id.dwo_name().unwrap_or_default()));
        let package = gimli::DwarfPackage::load(section, EndianSlice::new(&[], LittleEndian)).ok()?;
        package.find_cu(id, own).ok()?
    }

    fn read(&self, name: DebugFileName<'_>) -> Option<FileSections<'a>> {
        let elf = Elf::parse_debug((self.find)(name)?).ok()?;
        FileSections::of(Cow::Owned(elf), &self.room)
    }
}

/// A unit that another file describes.
#[derive(Debug)]
pub(super) struct SplitUnit<'a> {
    pub(super) dwarf: gimli::Dwarf<DwarfSlice<'a>>,
    pub(super) unit: DwarfUnit<'a>,
}

/// Directory of the compilation of a unit, and the name of the file that describes it.
pub(super) fn split_name<'a>(dwarf: &gimli::Dwarf<DwarfSlice<'a>>, unit: &DwarfUnit<'a>) -> Option<(String, String)> {
    let name = dwarf.attr_string(unit, unit.dwo_name().ok()??).ok()?;
    let text = |slice: DwarfSlice<'a>| std::str::from_utf8(slice.slice()).ok().map(str::to_owned);
    Some((unit.comp_dir.and_then(text).unwrap_or_default(), text(name)?))
}

/// The number of units in the information of a file.
fn headers(dwarf: &gimli::Dwarf<DwarfSlice<'_>>) -> usize {
    let (mut headers, mut count) = (dwarf.units(), 0);
    while let Ok(Some(_)) = headers.next() {
        count += 1;
    }
    count
}

/// The file with what several files share, if this one names any.
fn shared_file(elf: &Elf, find: &FindDebugFile<'_>) -> Option<Elf> {
    let link = elf.bytes().get(elf.section(".gnu_debugaltlink")?.file.clone())?;
    let end = link.iter().position(|byte| *byte == 0)?;
    let (name, build_id) = (std::str::from_utf8(link.get(..end)?).ok()?, link.get(end + 1..)?);
    let found = Elf::parse_debug(find(DebugFileName::Shared { name, build_id })?).ok()?;
    (found.build_id() == Some(build_id)).then_some(found)
}

/// The sections of one file.
#[derive(Debug)]
struct FileSections<'a> {
    elf: Cow<'a, Elf>,
    /// Decompressed sections, by name.
    decompressed: Vec<(String, Vec<u8>)>,
}

impl<'a> FileSections<'a> {
    /// Decompresses sections to at most `room` bytes, which it reduces. `None` if that does not suffice, or if a section is damaged.
    fn of(elf: Cow<'a, Elf>, room: &Cell<u64>) -> Option<Self> {
        let mut decompressed = Vec::new();
        for section in elf.sections.iter().filter(|s| s.compressed && s.name.starts_with(".debug_")) {
            let bytes = elf.bytes().get(section.file.clone()).unwrap_or_default();
            let bytes = decompress(bytes, room.get())?;
            room.set(room.get().saturating_sub(bytes.len() as u64));
            decompressed.push((section.name.clone(), bytes));
        }
        Some(FileSections { elf, decompressed })
    }

    fn slice(&self, name: &str) -> DwarfSlice<'_> {
        let bytes = match self.decompressed.iter().find(|(of, _)| of == name) {
            Some((_, bytes)) => bytes,
            None => self.elf.section(name).and_then(|s| self.elf.bytes().get(s.file.clone())).unwrap_or_default(),
        };
        EndianSlice::new(bytes, LittleEndian)
    }

    /// The information of the file; with `split`, that of a unit of another file.
    fn dwarf(&self, split: bool) -> Result<gimli::Dwarf<DwarfSlice<'_>>, TypeError> {
        gimli::Dwarf::load(|id| {
            let name = if split { id.dwo_name().unwrap_or_default() } else { id.name() };
            Ok(self.slice(name))
        })
    }
}

/// Decompresses a section that begins with the header of a compressed section (gABI, `Elf64_Chdr`), to at most `room` bytes.
fn decompress(section: &[u8], room: u64) -> Option<Vec<u8>> {
    let (header, data) = section.split_at_checked(24)?;
    let kind = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
    let uncompressed_size = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
    let format = match kind {
        kind if kind == elf::ELFCOMPRESS_ZLIB.0 => CompressionFormat::Zlib,
        kind if kind == elf::ELFCOMPRESS_ZSTD.0 => CompressionFormat::Zstandard,
        _ => return None,
    };
    // The file may lie about the size, which is memory to reserve.
    if uncompressed_size > room.min((data.len() as u64).saturating_mul(EXPANSION_MAX)) {
        return None;
    }
    CompressedData { format, data, uncompressed_size }.decompress().ok().map(|bytes| bytes.into_owned())
}
