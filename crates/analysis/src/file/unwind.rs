//! Facts about functions from the unwind tables: where functions begin and end, which pieces begin with a frame already set up (so they are
//! parts of another function), and where exceptions land.

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Pointer, UnwindSection,
};
use rustc_hash::FxHashMap;

use crate::file::elf::{Elf, u64_at};

/// A range of code that one entry of `.eh_frame` describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameDescription {
    pub start: u64,
    pub end: u64,
    /// Whether the first rule is not that of a function just called, so that the range is a part of another function.
    pub continued: bool,
}

/// All entries, sorted by start, and all landing pads, unsorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnwindTables {
    pub fdes: Vec<FrameDescription>,
    pub landing_pads: Vec<u64>,
}

/// Reads `.eh_frame`, found by its section or through its header, and the language-specific data that it points to.
pub(crate) fn read(image: &Elf) -> UnwindTables {
    let mut out = UnwindTables::default();
    let Some((svma, bytes)) = eh_frame(image) else { return out };
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(svma);
    // Honest entries may share language-specific data; hostile entries share all of it, so a budget bounds the bytes that are read.
    let mut budget = image.bytes().len();
    each_fde(&section, &bases, |fde| {
        let (start, size) = (fde.initial_address(), fde.len());
        let Some(end) = start.checked_add(size).filter(|_| size > 0) else { return };
        let Some(region) = image.text_index(start) else { return };
        let mut continued = false;
        let mut instructions = fde.instructions(&section, &bases);
        while let Ok(Some(instruction)) = instructions.next() {
            match instruction {
                CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::SetLoc { .. } => break,
                CallFrameInstruction::DefCfa { .. }
                | CallFrameInstruction::DefCfaRegister { .. }
                | CallFrameInstruction::DefCfaOffset { .. }
                | CallFrameInstruction::DefCfaExpression { .. } => continued = true,
                _ => {}
            }
        }
        if let Some(Pointer::Direct(lsda)) = fde.lsda() {
            let pads = |site: ThrowSite| {
                let pad = site.pad.filter(|pad| image.text_index(*pad).is_some());
                out.landing_pads.extend(pad);
            };
            throw_sites(image, (lsda, start), &mut budget, pads);
        }
        out.fdes.push(FrameDescription { start, end: end.min(image.text[region].end()), continued });
    });
    out.fdes.sort_by_key(|f| (f.start, f.end));
    out
}

/// Calls `each` for each readable entry, in order. A common information entry that several of them share is parsed once.
pub(crate) fn each_fde<'a>(
    section: &EhFrame<EndianSlice<'a, LittleEndian>>,
    bases: &BaseAddresses,
    mut each: impl FnMut(&FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>),
) {
    let mut cies = FxHashMap::default();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = cies.get(&offset) {
                return Ok(Clone::clone(cie));
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(offset, cie.clone());
            Ok(cie)
        });
        if let Ok(fde) = fde {
            each(&fde);
        }
    }
}

pub(crate) fn eh_frame(image: &Elf) -> Option<(u64, &[u8])> {
    if let Some(section) = image.section(".eh_frame").filter(|s| !s.file.is_empty()) {
        return Some((section.svma, &image.bytes()[section.file.clone()]));
    }
    let header = image.eh_frame_hdr()?;
    let bytes = image.data_at(header.start.0, header.end.0 - header.start.0)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start.0);
    let parsed = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
    let at = parsed.eh_frame_ptr().direct().ok()?;
    // The section ends with a terminator, so its length is not needed.
    Some((at, image.data_from(at)?))
}

/// A range of code in which exceptions may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrowSite {
    pub start: u64,
    pub end: u64,
    /// Address at which such an exception lands in the function.
    pub pad: Option<u64>,
}

/// Calls `each` for the entries of a language-specific data area (Itanium C++ ABI, exception handling, 7.3): a header, then a table of
/// ranges, each with its landing pad. `of` are the addresses of the area and of its function. `budget` bounds the bytes that are read.
pub(crate) fn throw_sites(
    image: &Elf,
    of: (u64, u64),
    budget: &mut usize,
    mut each: impl FnMut(ThrowSite),
) -> Option<()> {
    const OMIT: u8 = 0xff;
    let (lsda, function) = of;
    let mut r = EncodedPointer { bytes: image.data_from(lsda)?, svma: lsda, at: 0 };
    let encoding = r.byte()?;
    let base = if encoding == OMIT { function } else { r.value(encoding)? };
    if r.byte()? != OMIT {
        r.uleb()?;
    }
    let encoding = r.byte()?;
    let size = usize::try_from(r.uleb()?).ok()?;
    let end = r.at.checked_add(size)?;
    while r.at < end {
        let before = r.at;
        let (start, len, pad) = (r.value(encoding)?, r.value(encoding)?, r.value(encoding)?);
        r.uleb()?;
        *budget = budget.checked_sub(r.at - before)?;
        let start = function.wrapping_add(start);
        let pad = Some(base.wrapping_add(pad)).filter(|_| pad != 0);
        each(ThrowSite { start, end: start.wrapping_add(len), pad });
    }
    Some(())
}

struct EncodedPointer<'a> {
    bytes: &'a [u8],
    svma: u64,
    at: usize,
}

impl EncodedPointer<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn sleb(&mut self) -> Option<u64> {
        let start = self.at;
        let value = self.uleb()?;
        let bits = (7 * (self.at - start)).min(64);
        let unused = 64 - bits;
        Some((((value << unused) as i64) >> unused) as u64)
    }

    /// Reads a value in one of the encodings of `DW_EH_PE_*`: absolute, or relative to the address of the value.
    fn value(&mut self, encoding: u8) -> Option<u64> {
        let place = self.svma.wrapping_add(self.at as u64);
        let mut fixed = |size: usize| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(self.bytes.get(self.at..self.at + size)?);
            self.at += size;
            u64_at(&word, 0)
        };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => fixed(8)?,
            0x02 => fixed(2)?,
            0x03 => fixed(4)?,
            0x0a => fixed(2)? as u16 as i16 as u64,
            0x0b => fixed(4)? as u32 as i32 as u64,
            0x01 => self.uleb()?,
            0x09 => self.sleb()?,
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some(value),
            0x10 => Some(place.wrapping_add(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decoded() {
        let mut r = EncodedPointer { bytes: &[0xe5, 0x8e, 0x26, 0x7f, 0xfc, 0xff, 0xff, 0xff], svma: 0x1000, at: 0 };
        assert_eq!(r.uleb(), Some(624_485));
        assert_eq!(r.sleb(), Some(u64::MAX));
        assert_eq!(r.value(0x1b), Some(0x1000));
        assert_eq!(r.value(0x1b), None);
    }
}
