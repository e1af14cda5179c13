//! Where a value is when a function begins: in registers of arguments, or in memory to which such a register leads.
//!
//! The calling convention of some languages is not specified. There, the location of an argument at the first instruction, which the
//! debugging information may tell, is the only proof of where the argument is.

use gimli::constants as dw;
use gimli::{AttributeValue, Expression, Operation, Register};
use ingraft_model::{DataWord, Float, Scalar, Svma, WordOrigin};

use crate::data::debug_info::{DebugInfo, DwarfEntry, DwarfSlice, EntryLocation};
use crate::data::types::STEPS_MAX;

/// Numbers by which DWARF names the registers of integer arguments, in their order.
const ARGUMENTS: [u16; 6] = [5, 4, 1, 2, 8, 9];
/// Number by which DWARF names the first vector register.
const FIRST_VECTOR: u16 = 17;
/// Size of a register in bytes.
const REGISTER_BYTES: u64 = 8;
/// Largest number of parts of a value.
const PIECES_MAX: usize = 8;

/// DataLocation of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DataLocation {
    /// Memory: each offset is added to the value before it, and all sums but the last one are addresses of pointers.
    Memory { origin: WordOrigin, pointers: Vec<i64>, offset: i64 },
    /// Registers with parts of a larger value, and the offset of this value in it.
    Registers { pieces: Vec<DataPiece>, offset: u64 },
}

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataPiece {
    /// Offset in the value, in bytes.
    from: u64,
    /// Size in bytes.
    bytes: u64,
    /// The register; `None` if the part is nowhere.
    origin: Option<WordOrigin>,
}

/// DataLocation of an argument.
pub(super) enum Located {
    /// In registers of integers, or in memory.
    At(DataLocation),
    /// In the vector register with this number.
    Float(u8),
}

impl DataLocation {
    /// A register.
    pub(super) fn register(origin: WordOrigin) -> DataLocation {
        DataLocation::Registers {
            pieces: vec![DataPiece { from: 0, bytes: REGISTER_BYTES, origin: Some(origin) }],
            offset: 0,
        }
    }

    /// The memory to which a register leads.
    pub(super) const fn memory(origin: WordOrigin) -> DataLocation {
        DataLocation::Memory { origin, pointers: Vec::new(), offset: 0 }
    }

    /// The number of the argument whose register holds the whole value.
    pub(super) fn whole_argument(&self) -> Option<u8> {
        match self {
            DataLocation::Registers { pieces, offset: 0 } => match pieces.as_slice() {
                [DataPiece { from: 0, origin: Some(WordOrigin::Argument(number)), .. }] => Some(*number),
                _ => None,
            },
            _ => None,
        }
    }

    /// The offsets of the pointers, and that of the value behind the last one, if the value is in memory.
    pub(super) fn in_memory(self) -> Option<(Vec<i64>, i64)> {
        match self {
            DataLocation::Memory { pointers, offset, .. } => Some((pointers, offset)),
            DataLocation::Registers { .. } => None,
        }
    }

    /// The location of a part of the value, at an offset in bytes.
    pub(super) fn moved(&self, by: i64) -> Option<DataLocation> {
        match self {
            DataLocation::Memory { origin, pointers, offset } => {
                let (pointers, offset) = (pointers.clone(), offset.wrapping_add(by));
                Some(DataLocation::Memory { origin: *origin, pointers, offset })
            }
            DataLocation::Registers { pieces, offset } => {
                Some(DataLocation::Registers { pieces: pieces.clone(), offset: offset.checked_add_signed(by)? })
            }
        }
    }

    /// The integer at the beginning of the value; `None` if it is in no register, or not in one alone.
    pub(super) fn word(&self, scalar: Scalar) -> Option<DataWord> {
        match self {
            DataLocation::Memory { origin, pointers, offset } => {
                let offsets = pointers.iter().copied().chain([*offset]).collect();
                Some(DataWord { origin: *origin, shift: 0, offsets, scalar })
            }
            DataLocation::Registers { pieces, offset } => {
                let end = offset.checked_add(scalar.width.bytes().into())?;
                let holds = |piece: &&DataPiece| piece.from <= *offset && end <= piece.from.saturating_add(piece.bytes);
                let piece = pieces.iter().find(holds)?;
                let shift = u8::try_from((offset - piece.from).checked_mul(8)?).ok()?;
                Some(DataWord { origin: piece.origin?, shift, offsets: Vec::new(), scalar })
            }
        }
    }

    /// The memory to which the pointer at the beginning of the value leads.
    pub(super) fn behind(&self) -> Option<DataLocation> {
        let DataWord { origin, offsets, .. } = self.word(Scalar::POINTER)?;
        (offsets.len() <= STEPS_MAX as usize).then_some(DataLocation::Memory { origin, pointers: offsets, offset: 0 })
    }
}

impl<'a> DebugInfo<'a> {
    /// The location of an argument at an address; `None` if it is not told, or is not one that code can use.
    pub(super) fn location_at(&self, place: EntryLocation, entry: &DwarfEntry<'a>, at: Svma) -> Option<Located> {
        let unit = self.unit(place.unit)?;
        let expression = match entry.attr_value(dw::DW_AT_location)? {
            AttributeValue::Exprloc(expression) => expression,
            list => {
                let mut list = unit.attr_locations(list).ok()??;
                loop {
                    self.spend()?;
                    let one = list.next().ok()??;
                    if one.range.begin <= at.0 && at.0 < one.range.end {
                        break one.data;
                    }
                }
            }
        };
        located(expression, unit.encoding())
    }
}

/// The location that an expression describes.
fn located(expression: Expression<DwarfSlice<'_>>, encoding: gimli::Encoding) -> Option<Located> {
    let mut operations = expression.operations(encoding);
    let (mut pieces, mut register, mut from) = (Vec::new(), None, 0u64);
    while let Some(operation) = operations.next().ok()? {
        match operation {
            Operation::Register { register: number } if register.is_none() => register = Some(number),
            Operation::Piece { size_in_bits, bit_offset: None } if size_in_bits.is_multiple_of(8) => {
                let bytes = size_in_bits / 8;
                let origin = register.take().and_then(argument);
                pieces.push(DataPiece { from, bytes, origin: origin.filter(|_| bytes <= REGISTER_BYTES) });
                from = from.checked_add(bytes)?;
            }
            // the value is in memory, at a distance from a pointer
            Operation::RegisterOffset { register: number, offset, .. } if pieces.is_empty() && register.is_none() => {
                let origin = argument(number)?;
                let end = operations.next().ok()?;
                let at = DataLocation::Memory { origin, pointers: Vec::new(), offset };
                return end.is_none().then_some(Located::At(at));
            }
            _ => return None,
        }
        if pieces.len() > PIECES_MAX {
            return None;
        }
    }
    match register {
        Some(number) if pieces.is_empty() => match argument(number) {
            Some(origin) => Some(Located::At(DataLocation::register(origin))),
            None => {
                let vector = u8::try_from(number.0.checked_sub(FIRST_VECTOR)?).ok()?;
                (vector < Float::ARGS_MAX).then_some(Located::Float(vector))
            }
        },
        None if !pieces.is_empty() => Some(Located::At(DataLocation::Registers { pieces, offset: 0 })),
        _ => None,
    }
}

/// The argument that a register holds when a function begins.
fn argument(register: Register) -> Option<WordOrigin> {
    let number = ARGUMENTS.iter().position(|number| *number == register.0)?;
    u8::try_from(number).ok().map(WordOrigin::Argument)
}

#[cfg(test)]
mod tests {
    use gimli::{EndianSlice, Format, LittleEndian};
    use ingraft_model::IntegerWidth;

    use super::*;

    fn of(bytes: &[u8]) -> Option<Located> {
        let encoding = gimli::Encoding { address_size: 8, format: Format::Dwarf32, version: 5 };
        located(Expression(EndianSlice::new(bytes, LittleEndian)), encoding)
    }

    fn at(bytes: &[u8]) -> Option<DataLocation> {
        match of(bytes)? {
            Located::At(at) => Some(at),
            Located::Float(register) => panic!("in vector register {register}"),
        }
    }

    fn word(origin: u8, shift: u8, offsets: &[i64], scalar: Scalar) -> Option<DataWord> {
        Some(DataWord { origin: WordOrigin::Argument(origin), shift, offsets: offsets.to_vec(), scalar })
    }

    const PIECE: u8 = 0x93;
    const SHORT: Scalar = Scalar { width: IntegerWidth::Two, signed: false };

    #[test]
    fn locations_in_registers_of_arguments_are_known() {
        let rdi = at(&[0x55]).expect("rdi");
        assert_eq!((rdi.whole_argument(), rdi.word(Scalar::POINTER)), (Some(0), word(0, 0, &[], Scalar::POINTER)));
        assert_eq!(at(&[0x59]).and_then(|r9| r9.whole_argument()), Some(5));
        // rbx is no register of an argument
        assert!(at(&[0x53]).is_none());
        let pair = at(&[0x55, PIECE, 8, 0x54, PIECE, 8]).expect("rdi and rsi");
        assert_eq!(pair.whole_argument(), None);
        assert_eq!(pair.moved(8).and_then(|at| at.word(Scalar::POINTER)), word(1, 0, &[], Scalar::POINTER));
        assert_eq!(pair.moved(10).and_then(|at| at.word(SHORT)), word(1, 16, &[], SHORT));
        // parts that lie in two registers, and in none
        assert_eq!(pair.moved(4).and_then(|at| at.word(Scalar::POINTER)), None);
        assert_eq!(pair.moved(16).and_then(|at| at.word(SHORT)), None);
        let half = at(&[PIECE, 8, 0x54, PIECE, 8]).expect("rsi");
        assert_eq!(half.word(Scalar::POINTER), None);
        assert_eq!(half.moved(8).and_then(|at| at.word(Scalar::POINTER)), word(1, 0, &[], Scalar::POINTER));
        assert!(matches!(of(&[0x61]), Some(Located::Float(0))), "xmm0");
        assert!(matches!(of(&[0x62]), Some(Located::Float(1))), "xmm1");
    }

    #[test]
    fn locations_in_memory_lead_through_pointers() {
        // rsi + 16
        let memory = at(&[0x74, 16]).expect("memory");
        assert_eq!(memory.word(SHORT), word(1, 0, &[16], SHORT));
        let behind = memory.moved(8).and_then(|at| at.behind()).and_then(|at| at.moved(-4)).expect("memory");
        assert_eq!(behind.word(SHORT), word(1, 0, &[24, -4], SHORT));
        assert_eq!(behind.in_memory(), Some((vec![24], -4)));
        assert_eq!(at(&[0x55]).and_then(|at| at.behind()?.word(SHORT)), word(0, 0, &[0], SHORT));
        // a frame offset, a computed value, and damaged expressions
        let none: [&[u8]; 7] = [&[0x91, 8], &[0x74, 16, 0x9f], &[0x55, 0x54], &[0x55, PIECE], &[PIECE], &[0x74], &[]];
        for none in none {
            assert!(of(none).is_none(), "{none:x?}");
        }
    }
}
