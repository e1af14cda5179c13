//! The outline of an ELF file: the mapped segments, and the places of the tables. Reading it is cheap: it reads no symbol, unwind table or
//! instruction. Dynamic tables are found through `PT_DYNAMIC`, as the loader finds them, so files without section headers work alike.
//!
//! Hostile input: every read is bounded by the file, and ranges that overlap or exceed it are dropped.

use std::ops::Range;
use std::sync::Arc;

use ingraft_model::machine::{ENDBR, ENDBR_LEN};
use ingraft_model::{Svma, SvmaRange};
use object::elf;

use crate::file::error::ImageError;

/// Whether and how the loader may move an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// A program linked at a fixed address (`ET_EXEC`).
    Executable,
    /// A position-independent program, static ones included.
    Pie,
    /// A shared object.
    Shared,
}

/// Permissions of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SegmentFlags {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
}

/// A `PT_LOAD` segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte, before the bias.
    pub svma: Svma,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Number of bytes that are mapped from the file.
    pub file_size: u64,
    /// Number of bytes in memory; those from `file_size` on are zero.
    pub mem_size: u64,
    /// Permissions of the mapping.
    pub flags: SegmentFlags,
}

/// A section that has an address, or that is looked up by name.
#[derive(Clone, Debug)]
pub(crate) struct ElfSection {
    pub name: String,
    pub kind: u32,
    pub link: u32,
    pub svma: u64,
    /// Range of the section's bytes in the file; empty for `SHT_NOBITS`.
    pub file: Range<usize>,
    pub alloc: bool,
    pub execute: bool,
    pub compressed: bool,
}

/// A range of file-backed executable bytes, as finely divided as the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextRegion {
    pub svma: u64,
    pub file: Range<usize>,
    /// Whether the region holds stubs of the linker (`.plt`, `.plt.got`, `.plt.sec`).
    pub stubs: bool,
}

impl TextRegion {
    pub fn end(&self) -> u64 {
        self.svma + self.file.len() as u64
    }
}

/// Entries of the dynamic section that the analysis needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DynamicSection {
    pub symtab: Option<u64>,
    pub strtab: Option<u64>,
    pub strtab_size: u64,
    pub hash: Option<u64>,
    pub gnu_hash: Option<u64>,
    pub versym: Option<u64>,
    pub verdef: Option<u64>,
    pub rela: Option<(u64, u64)>,
    pub relr: Option<(u64, u64)>,
    pub plt_rela: Option<(u64, u64)>,
    pub init: Option<u64>,
    pub fini: Option<u64>,
    pub init_array: Option<(u64, u64)>,
    pub fini_array: Option<(u64, u64)>,
    soname: Option<u64>,
    pie: bool,
    text_relocations: bool,
}

/// The outline of an ELF file for x86-64.
#[derive(Clone, Debug)]
pub struct Elf {
    bytes: Arc<[u8]>,
    kind: ImageKind,
    entry: Svma,
    segments: Vec<Segment>,
    interpreter: Option<String>,
    build_id: Option<Range<usize>>,
    debuglink: Option<(String, u32)>,
    soname: Option<String>,
    needed: Vec<String>,
    go: bool,
    eh_frame_hdr: Option<SvmaRange>,
    /// Data that the loader makes read-only once it has applied the relocations.
    relro: Option<SvmaRange>,
    /// Place of this file's thread-local data if the file is the program: the offset of its beginning from the thread pointer (negative),
    /// and its length in bytes.
    own_data: Option<(i64, u64)>,
    pub(crate) sections: Vec<ElfSection>,
    pub(crate) dynamic: DynamicSection,
    pub(crate) text: Vec<TextRegion>,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

/// The bytes up to the next NUL; `None` if the first `limit` bytes contain no NUL.
pub(crate) fn c_string(bytes: &[u8], at: usize, limit: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(limit)];
    Some(&rest[..rest.iter().position(|&b| b == 0)?])
}

fn string(bytes: &[u8], at: usize) -> Option<String> {
    let text = c_string(bytes, at, 4096)?;
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

fn file_range(bytes: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

/// Place of the program's data in variant II of thread-local storage (ELF Handling For Thread-Local Storage, section 3.4.6): the first
/// block below the thread pointer, with the alignment of its segment. `None` if the segment itself is not aligned, because linkers do not
/// agree on the place then.
fn own_data(svma: u64, mem_size: u64, align: u64) -> Option<(i64, u64)> {
    let align = align.max(1);
    let length = mem_size.checked_next_multiple_of(align)?;
    let aligned = align.is_power_of_two() && svma.is_multiple_of(align);
    aligned.then_some((i64::try_from(length).ok()?.checked_neg()?, mem_size))
}

const DAMAGED_HEADER: ImageError = ImageError::Damaged { what: "the file ends inside its header" };

impl Elf {
    /// Reads the outline. A file that is not for x86-64 is an error that names the machine.
    pub fn parse(bytes: Arc<[u8]>) -> Result<Self, ImageError> {
        let this = Self::outline(bytes, false)?;
        if !this.segments.iter().any(|s| s.flags.execute) {
            return Err(ImageError::Damaged { what: "no executable segment" });
        }
        Ok(this)
    }

    /// Reads the outline of a file with debugging information: a separate debug file, whose segments hold nothing, or an object file, which has
    /// no segments.
    pub fn parse_debug(bytes: Arc<[u8]>) -> Result<Self, ImageError> {
        Self::outline(bytes, true)
    }

    fn outline(bytes: Arc<[u8]>, objects: bool) -> Result<Self, ImageError> {
        let kind = check_header(&bytes, objects)?;
        let entry = u64_at(&bytes, 24).ok_or(DAMAGED_HEADER)?;
        let mut this = Elf {
            kind,
            entry: Svma(entry),
            segments: Vec::new(),
            interpreter: None,
            build_id: None,
            debuglink: None,
            soname: None,
            needed: Vec::new(),
            go: false,
            eh_frame_hdr: None,
            relro: None,
            own_data: None,
            sections: Vec::new(),
            dynamic: DynamicSection::default(),
            text: Vec::new(),
            bytes,
        };
        let dynamic = this.read_program_headers()?;
        this.read_sections();
        // A file without segments has its notes in sections.
        if this.build_id.is_none() && this.segments.is_empty() {
            let notes = |section: &ElfSection| (section.kind == elf::SHT_NOTE.0).then(|| section.file.clone());
            let notes: Vec<Range<usize>> = this.sections.iter().filter_map(notes).collect();
            notes.into_iter().for_each(|notes| this.read_notes(notes));
        }
        this.find_text();
        if let Some(range) = dynamic {
            this.read_dynamic(range);
        }
        let program = this.interpreter.is_some() && this.soname.is_none();
        if kind == ImageKind::Shared && (program || this.dynamic.pie) {
            this.kind = ImageKind::Pie;
        }
        Ok(this)
    }

    fn read_program_headers(&mut self) -> Result<Option<Range<usize>>, ImageError> {
        let bytes = Arc::clone(&self.bytes);
        let damaged = ImageError::Damaged { what: "the program headers lie outside of the file" };
        let offset = u64_at(&bytes, 32).ok_or(DAMAGED_HEADER)?;
        let entry_size = usize::from(u16_at(&bytes, 54).ok_or(DAMAGED_HEADER)?);
        let count = usize::from(u16_at(&bytes, 56).ok_or(DAMAGED_HEADER)?);
        if count == 0 {
            return Ok(None);
        }
        if entry_size < 56 {
            return Err(ImageError::Damaged { what: "program headers of a wrong size" });
        }
        let table = file_range(&bytes, offset, (entry_size * count) as u64).ok_or(damaged)?;
        let mut dynamic = None;
        for header in bytes[table].chunks_exact(entry_size) {
            let word = |at| u64_at(header, at).unwrap_or_default();
            let (offset, svma, file_size, mem_size) = (word(8), word(16), word(32), word(40));
            let flags = u32_at(header, 4).unwrap_or_default();
            let file = file_range(&bytes, offset, file_size);
            match elf::ProgramType(u32_at(header, 0).unwrap_or_default()) {
                elf::PT_LOAD => {
                    let flags = SegmentFlags {
                        read: flags & elf::PF_R.0 != 0,
                        write: flags & elf::PF_W.0 != 0,
                        execute: flags & elf::PF_X.0 != 0,
                    };
                    let fits = file.is_some() && file_size <= mem_size && svma.checked_add(mem_size).is_some();
                    if fits && mem_size > 0 {
                        let svma = Svma(svma);
                        self.segments.push(Segment { svma, file_offset: offset, file_size, mem_size, flags });
                    }
                }
                elf::PT_DYNAMIC => dynamic = file,
                elf::PT_INTERP => self.interpreter = file.and_then(|f| string(&bytes[f], 0)),
                elf::PT_NOTE => {
                    if let Some(file) = file {
                        self.read_notes(file);
                    }
                }
                elf::PT_GNU_EH_FRAME => {
                    self.eh_frame_hdr = svma.checked_add(mem_size).map(|end| Svma(svma)..Svma(end));
                }
                elf::PT_GNU_RELRO => self.relro = svma.checked_add(mem_size).map(|end| Svma(svma)..Svma(end)),
                elf::PT_TLS => self.own_data = own_data(svma, mem_size, word(48)),
                _ => {}
            }
        }
        self.segments.sort_by_key(|s| s.svma);
        let mut end = 0;
        self.segments.retain(|s| {
            let keep = s.svma.0 >= end;
            if keep {
                end = s.svma.0 + s.mem_size;
            }
            keep
        });
        Ok(dynamic)
    }

    fn read_notes(&mut self, file: Range<usize>) {
        let bytes = &self.bytes[file.clone()];
        let mut at = 0usize;
        // The header of a note is 12 bytes long, so each round advances and the loop ends.
        while let (Some(name_size), Some(size), Some(kind)) =
            (u32_at(bytes, at), u32_at(bytes, at + 4), u32_at(bytes, at + 8))
        {
            let (name_size, size) = (name_size as usize, size as usize);
            let name_at = at + 12;
            let data_at = name_at + name_size.next_multiple_of(4);
            let (Some(name), Some(_)) = (bytes.get(name_at..name_at + name_size), bytes.get(data_at..data_at + size))
            else {
                return;
            };
            if name == b"GNU\0" && kind == elf::NT_GNU_BUILD_ID.0 && (1..=64).contains(&size) {
                self.build_id = Some(file.start + data_at..file.start + data_at + size);
            }
            self.go |= name == b"Go\0\0";
            at = data_at + size.next_multiple_of(4);
        }
    }

    fn read_sections(&mut self) {
        let bytes = Arc::clone(&self.bytes);
        let offset = u64_at(&bytes, 40).unwrap_or_default();
        let entry_size = u16_at(&bytes, 58).unwrap_or_default();
        let count = u16_at(&bytes, 60).unwrap_or_default();
        let names = u16_at(&bytes, 62).unwrap_or_default();
        if offset == 0 || entry_size < 64 {
            return;
        }
        let Some(table) = file_range(&bytes, offset, u64::from(entry_size) * u64::from(count)) else { return };
        let headers: Vec<&[u8]> = bytes[table].chunks_exact(usize::from(entry_size)).collect();
        let content = |h: &[u8]| file_range(&bytes, u64_at(h, 24)?, u64_at(h, 32)?);
        let names = headers.get(usize::from(names)).and_then(|h| content(h)).map_or(&[][..], |r| &bytes[r]);
        for header in &headers {
            let kind = u32_at(header, 4).unwrap_or_default();
            let flags = u64_at(header, 8).unwrap_or_default();
            let name = c_string(names, u32_at(header, 0).unwrap_or_default() as usize, 256).unwrap_or_default();
            let no_bits = kind == elf::SHT_NOBITS.0;
            let file = if no_bits { Some(0..0) } else { content(header) };
            self.sections.push(ElfSection {
                name: String::from_utf8_lossy(name).into_owned(),
                kind,
                link: u32_at(header, 40).unwrap_or_default(),
                svma: u64_at(header, 16).unwrap_or_default(),
                file: file.unwrap_or(0..0),
                alloc: flags & elf::SHF_ALLOC.0 != 0,
                execute: flags & elf::SHF_EXECINSTR.0 != 0,
                compressed: flags & elf::SHF_COMPRESSED.0 != 0,
            });
        }
        if let Some(file) = self.section(".gnu_debuglink").map(|s| s.file.clone()) {
            let data = &bytes[file];
            self.debuglink = c_string(data, 0, 4096).filter(|name| !name.is_empty()).and_then(|name| {
                let crc = u32_at(data, (name.len() + 1).next_multiple_of(4))?;
                Some((String::from_utf8_lossy(name).into_owned(), crc))
            });
        }
        self.go |= self.section(".gopclntab").is_some();
    }

    /// Fills in the text regions: the executable sections, or whole executable segments if the file has no such sections. No two regions
    /// share an address. Together they have at most as many bytes as the file, so sizes that hostile headers multiply are dropped.
    fn find_text(&mut self) {
        let mut regions: Vec<TextRegion> = Vec::new();
        for section in self.sections.iter().filter(|s| s.alloc && s.execute && !s.file.is_empty()) {
            if self.executable_file_range(section.svma, section.file.len() as u64) == Some(section.file.clone()) {
                let stubs = section.name.starts_with(".plt") || section.name.starts_with(".iplt");
                regions.push(TextRegion { svma: section.svma, file: section.file.clone(), stubs });
            }
        }
        if regions.is_empty() {
            for segment in self.segments.iter().filter(|s| s.flags.execute && s.file_size > 0) {
                if let Some(file) = file_range(&self.bytes, segment.file_offset, segment.file_size) {
                    regions.push(TextRegion { svma: segment.svma.0, file, stubs: false });
                }
            }
        }
        regions.sort_by_key(|r| (r.svma, r.file.len()));
        let (mut end, mut room) = (0, self.bytes.len());
        regions.retain(|r| {
            let keep = r.svma >= end && r.file.len() <= room;
            if keep {
                end = r.end();
                room -= r.file.len();
            }
            keep
        });
        self.text = regions;
    }

    fn executable_file_range(&self, svma: u64, size: u64) -> Option<Range<usize>> {
        self.segment_of(svma).filter(|s| s.flags.execute)?;
        self.file_range_at(svma, size)
    }

    fn segment_of(&self, svma: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|s| s.svma.0 <= svma);
        self.segments.get(after.checked_sub(1)?).filter(|s| svma - s.svma.0 < s.mem_size)
    }

    /// Range in the file of `size` bytes at `svma`; `None` if not all of them are file-backed.
    pub(crate) fn file_range_at(&self, svma: u64, size: u64) -> Option<Range<usize>> {
        let segment = self.segment_of(svma)?;
        let skip = svma - segment.svma.0;
        if size > segment.file_size.checked_sub(skip)? {
            return None;
        }
        file_range(&self.bytes, segment.file_offset + skip, size)
    }

    fn read_dynamic(&mut self, file: Range<usize>) {
        let (mut d, mut needed) = (DynamicSection::default(), Vec::new());
        let (mut rela, mut relr, mut plt, mut init, mut fini) = ((0, 0), (0, 0), (0, 0), (0, 0), (0, 0));
        let bytes = Arc::clone(&self.bytes);
        for entry in bytes[file].chunks_exact(16) {
            let (Some(tag), Some(value)) = (u64_at(entry, 0), u64_at(entry, 8)) else { break };
            match elf::DynamicTag(tag as i64) {
                elf::DT_NULL => break,
                elf::DT_SYMTAB => d.symtab = Some(value),
                elf::DT_STRTAB => d.strtab = Some(value),
                elf::DT_STRSZ => d.strtab_size = value,
                elf::DT_HASH => d.hash = Some(value),
                elf::DT_GNU_HASH => d.gnu_hash = Some(value),
                elf::DT_VERSYM => d.versym = Some(value),
                elf::DT_VERDEF => d.verdef = Some(value),
                elf::DT_RELA => rela.0 = value,
                elf::DT_RELASZ => rela.1 = value,
                elf::DT_RELR => relr.0 = value,
                elf::DT_RELRSZ => relr.1 = value,
                elf::DT_JMPREL => plt.0 = value,
                elf::DT_PLTRELSZ => plt.1 = value,
                elf::DT_INIT => d.init = Some(value),
                elf::DT_FINI => d.fini = Some(value),
                elf::DT_INIT_ARRAY => init.0 = value,
                elf::DT_INIT_ARRAYSZ => init.1 = value,
                elf::DT_FINI_ARRAY => fini.0 = value,
                elf::DT_FINI_ARRAYSZ => fini.1 = value,
                elf::DT_SONAME => d.soname = Some(value),
                elf::DT_NEEDED => needed.push(value),
                elf::DT_TEXTREL => d.text_relocations = true,
                elf::DT_FLAGS => d.text_relocations |= value & elf::DF_TEXTREL.0 != 0,
                elf::DT_FLAGS_1 => d.pie = value & elf::DF_1_PIE.0 != 0,
                _ => {}
            }
        }
        let some = |table: (u64, u64)| (table.1 > 0).then_some(table);
        (d.rela, d.relr, d.plt_rela) = (some(rela), some(relr), some(plt));
        (d.init_array, d.fini_array) = (some(init), some(fini));
        self.dynamic = d;
        let name = |at: u64| string(self.dynamic_strings(), usize::try_from(at).ok()?);
        let (soname, needed) = (d.soname.and_then(name), needed.into_iter().filter_map(name).collect());
        (self.soname, self.needed) = (soname, needed);
    }

    /// A name in the string table of the dynamic symbols.
    pub(crate) fn dynamic_name(&self, offset: u64) -> Option<&str> {
        let bytes = self.dynamic_strings().get(usize::try_from(offset).ok()?..)?;
        let end = bytes.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// The string table of the dynamic symbols.
    pub(crate) fn dynamic_strings(&self) -> &[u8] {
        let d = &self.dynamic;
        d.strtab.and_then(|at| self.data_at(at, d.strtab_size)).unwrap_or_default()
    }

    /// File-backed bytes at an address.
    pub(crate) fn data_at(&self, svma: u64, size: u64) -> Option<&[u8]> {
        self.file_range_at(svma, size).map(|r| &self.bytes[r])
    }

    /// File-backed bytes from an address to the end of the part of its segment that is mapped from the file.
    pub(crate) fn data_from(&self, svma: u64) -> Option<&[u8]> {
        let segment = self.segment_of(svma)?;
        self.data_at(svma, segment.file_size.checked_sub(svma - segment.svma.0)?)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&ElfSection> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Index of the text region that holds an address.
    pub(crate) fn text_index(&self, svma: u64) -> Option<usize> {
        let after = self.text.partition_point(|r| r.svma <= svma);
        let index = after.checked_sub(1)?;
        (svma < self.text[index].end()).then_some(index)
    }

    /// Whether the program may write the data at an address, once the loader has applied the relocations.
    pub(crate) fn is_variable(&self, svma: u64) -> bool {
        let is_relro = self.relro.as_ref().is_some_and(|relro| relro.contains(&Svma(svma)));
        !is_relro && self.segment_of(svma).is_none_or(|segment| segment.flags.write)
    }

    /// Address range of `.eh_frame_hdr`.
    pub(crate) fn eh_frame_hdr(&self) -> Option<&SvmaRange> {
        self.eh_frame_hdr.as_ref()
    }

    /// Number of bytes of text.
    pub fn text_bytes(&self) -> u64 {
        self.text.iter().map(|region| region.end() - region.svma).sum()
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The build id that the linker wrote (`NT_GNU_BUILD_ID`).
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.clone().map(|r| &self.bytes[r])
    }

    /// Name and CRC-32 of the separate debug file.
    pub fn debuglink(&self) -> Option<(String, u32)> {
        self.debuglink.clone()
    }

    /// The name that a shared object gives itself (`DT_SONAME`).
    pub fn soname(&self) -> Option<&str> {
        self.soname.as_deref()
    }

    /// The names of the libraries that the file needs (`DT_NEEDED`).
    pub fn needed(&self) -> &[String] {
        &self.needed
    }

    /// Whether and how the loader may move the image.
    pub fn kind(&self) -> ImageKind {
        self.kind
    }

    /// Address at which a program begins (`e_entry`); 0 in most shared objects.
    pub fn entry(&self) -> Svma {
        self.entry
    }

    /// Offset of a thread-local variable of the program from the thread pointer, in bytes; `at` is the value of the variable's symbol.
    pub fn own_data_at(&self, at: Svma, bytes: u64) -> Option<i64> {
        self.own_data_from(self.own_data?.0, at, bytes)
    }

    /// Offset of a thread-local variable of a library from the thread pointer; the library's data begins at offset `start` in every thread.
    pub fn own_data_from(&self, start: i64, at: Svma, bytes: u64) -> Option<i64> {
        let (_, length) = self.own_data?;
        let inside = at.0.checked_add(bytes).is_some_and(|end| end <= length);
        start.checked_add_unsigned(at.0).filter(|_| inside)
    }

    pub(crate) fn has_own_data(&self) -> bool {
        self.own_data.is_some()
    }

    /// The address of a word in which the loader stores the thread-pointer offset of some byte of a library's thread-local data, and the
    /// offset of that byte in the data. Libraries whose data has the same offset in every thread have such a word (initial-exec, ELF
    /// Handling For Thread-Local Storage, 4.4.6).
    pub fn own_data_note(&self) -> Option<(Svma, u64)> {
        crate::file::relocs::own_data_note(self).map(|(place, offset)| (Svma(place), offset))
    }

    /// The `PT_LOAD` segments, sorted by address, without overlap.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The program interpreter (the dynamic loader).
    pub fn interpreter(&self) -> Option<&str> {
        self.interpreter.as_deref()
    }

    /// Whether the file has a symbol table besides the dynamic one. `strip` removes that table, and with it the names of static functions.
    pub fn has_symbol_table(&self) -> bool {
        self.sections.iter().any(|section| section.kind == elf::SHT_SYMTAB.0)
    }

    /// Whether the Go tool chain made the file; Go's calling convention differs from System V.
    pub fn is_go(&self) -> bool {
        self.go
    }

    /// Whether the loader writes into the text (`DT_TEXTREL`), so that the bytes of the file there are not the bytes that are executed.
    pub fn has_text_relocations(&self) -> bool {
        self.dynamic.text_relocations
    }

    /// Whether an `endbr64` lies at an address.
    pub(crate) fn begins_with_endbr(&self, svma: u64) -> bool {
        self.data_at(svma, ENDBR_LEN) == Some(&ENDBR)
    }

    /// `len` bytes of the file as they are mapped at an address.
    pub fn bytes_at(&self, svma: Svma, len: usize) -> Option<&[u8]> {
        self.data_at(svma.0, len as u64)
    }
}

/// Kind of a file, by its header. With `objects`, object files are let through.
fn check_header(bytes: &[u8], objects: bool) -> Result<ImageKind, ImageError> {
    if bytes.get(..4) != Some(&elf::ELFMAG[..]) {
        return Err(ImageError::NotElf);
    }
    let (Some(&class), Some(&data)) = (bytes.get(4), bytes.get(5)) else { return Err(DAMAGED_HEADER) };
    let read = |at| if data == 2 { u16_at(bytes, at).map(u16::swap_bytes) } else { u16_at(bytes, at) };
    let (Some(kind), Some(machine)) = (read(16), read(18)) else { return Err(DAMAGED_HEADER) };
    let machine = elf::Machine(machine);
    match (machine, class) {
        (elf::EM_X86_64, 2) => {}
        (elf::EM_X86_64, 1) => return Err(ImageError::X32),
        (elf::EM_386, _) => return Err(ImageError::Bits32),
        _ => return Err(ImageError::OtherMachine(machine_name(machine))),
    }
    if data != 1 {
        return Err(ImageError::Unsupported { what: "big-endian" });
    }
    if bytes.len() < 64 {
        return Err(DAMAGED_HEADER);
    }
    match elf::FileType(kind) {
        elf::ET_EXEC => Ok(ImageKind::Executable),
        elf::ET_DYN => Ok(ImageKind::Shared),
        elf::ET_REL if objects => Ok(ImageKind::Shared),
        elf::ET_REL => Err(ImageError::NotLoadable { what: "an object file" }),
        elf::ET_CORE => Err(ImageError::NotLoadable { what: "a core dump" }),
        _ => Err(ImageError::NotLoadable { what: "of an unknown type" }),
    }
}

fn machine_name(machine: elf::Machine) -> String {
    match machine {
        elf::EM_AARCH64 => "AArch64".to_owned(),
        elf::EM_ARM => "32-bit ARM".to_owned(),
        elf::EM_RISCV => "RISC-V".to_owned(),
        elf::EM_PPC64 => "PowerPC 64".to_owned(),
        elf::EM_S390 => "S/390".to_owned(),
        elf::EM_MIPS => "MIPS".to_owned(),
        elf::EM_LOONGARCH => "LoongArch".to_owned(),
        other => format!("machine number {}", other.0),
    }
}
