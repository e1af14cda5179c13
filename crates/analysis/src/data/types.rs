//! The way from a variable, an argument or a result to an integer in it: the members on the way, and the width of the integer.

use gimli::AttributeValue;
use gimli::constants as dw;
use ingraft_model::{Float, FloatFormat, IntegerWidth, Scalar, Svma};

use crate::data::debug_info::{DebugInfo, DwarfEntry, DwarfValue, EntryLocation};
use crate::data::error::TypeError;

/// Largest number of typedefs, qualifiers, pointers and anonymous members that are followed from one type.
const STEPS_MAX: u32 = 32;
/// Number of integer arguments that are passed in registers.
const REGISTERS: u8 = 6;
/// Size in bytes of the largest floating-point number that is passed in a vector register.
const FLOAT_MAX: u64 = 8;

/// The way to an integer from an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPath {
    /// Offset of each pointer on the way, in bytes from the address that the pointer before it holds.
    pub pointers: Vec<i64>,
    /// Offset of the integer, in bytes from the address that the last pointer holds.
    pub offset: i64,
    /// Width and sign of the integer.
    pub scalar: Scalar,
}

/// Place of an argument by the System V calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentPlace {
    /// The argument with this number among the integers and pointers, and its type.
    Integer(u8, Scalar),
    /// The argument with this number among the floating-point numbers, and its format.
    Float(u8, FloatFormat),
}

/// An argument of a function by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedArgument {
    /// Name of the argument.
    pub name: String,
    /// Number of the argument among the integers and pointers, at most the fifth.
    pub number: u8,
    /// Type of the argument.
    pub scalar: Scalar,
    /// Whether it is a pointer to characters.
    pub is_text: bool,
}

/// A type without its names and qualifiers.
struct DataType<'a> {
    place: EntryLocation,
    entry: DwarfEntry<'a>,
}

impl<'a> DebugInfo<'a> {
    /// The way from the address of a variable to the integer that the variable is, or that members lead to in it. For a thread-local
    /// variable, `at` is the value of its symbol.
    pub fn reach_in_variable(&self, at: Svma, per_thread: bool, members: &[&str]) -> Result<MemberPath, TypeError> {
        let missing = TypeError::NotDescribed { what: "this variable" };
        let place = self.variable_at(at, per_thread).ok_or(missing.clone())?;
        let entry = self.entry(place).ok_or(missing.clone())?;
        self.reach(self.type_of(place, &entry).ok_or(missing)?, members)
    }

    /// The way from a pointer, which is argument `argument` of a function, to the integer that members lead to. Arguments are counted as
    /// the calling convention counts integers.
    pub fn reach_in_argument(&self, function: Svma, argument: u8, members: &[&str]) -> Result<MemberPath, TypeError> {
        let found = self.each_argument(function, &argument.to_string(), |_, place, of| match place {
            ArgumentPlace::Integer(n, _) if n == argument => Some(of),
            _ => None,
        })?;
        let of = found.ok_or(TypeError::NotDescribed { what: "an argument of this number" })?;
        self.reach_through(of, members)
    }

    /// The place of an argument of a function by its name.
    pub fn argument_named(&self, function: Svma, name: &str) -> Result<ArgumentPlace, TypeError> {
        let mut has = Vec::new();
        let found = self.each_argument(function, &format!("`{name}`"), |known, place, _| {
            has.extend(known.map(str::to_owned));
            (known == Some(name)).then_some(place)
        })?;
        found.ok_or(TypeError::NoArgument { name: name.to_owned(), has })
    }

    /// The arguments of a function that have names and are integers or pointers in registers, in their order. An argument that does not
    /// follow the convention, and what comes behind it, is left out.
    pub fn arguments(&self, function: Svma) -> Result<Vec<DescribedArgument>, TypeError> {
        let mut known = Vec::new();
        let end = self.each_argument(function, "the first one", |name, place, of| {
            if let (Some(name), ArgumentPlace::Integer(number @ 0..REGISTERS, scalar)) = (name, place) {
                known.push(DescribedArgument { name: name.to_owned(), number, scalar, is_text: self.is_text(&of) });
            }
            None::<()>
        });
        match end {
            Err(why) if known.is_empty() => Err(why),
            _ => Ok(known),
        }
    }

    /// Whether a type is a pointer to characters.
    fn is_text(&self, of: &DataType<'a>) -> bool {
        let target = || self.plain(self.type_of(of.place, &of.entry)?);
        of.entry.tag() == dw::DW_TAG_pointer_type
            && target().is_some_and(|target| {
                let encoding = encoding(&target.entry);
                target.entry.tag() == dw::DW_TAG_base_type
                    && self.bytes(&target) == Some(1)
                    && self.name(target.place, &target.entry) == Some("char")
                    && matches!(encoding, Some(dw::DW_ATE_signed_char | dw::DW_ATE_unsigned_char))
            })
    }

    /// Visits the arguments of a function in order, with their names and places, until `visit` returns something. `wanted` is the
    /// argument in messages.
    fn each_argument<T>(
        &self,
        function: Svma,
        wanted: &str,
        mut visit: impl FnMut(Option<&str>, ArgumentPlace, DataType<'a>) -> Option<T>,
    ) -> Result<Option<T>, TypeError> {
        let missing = TypeError::NotDescribed { what: "this function" };
        let place = self.function_at(function).ok_or(missing.clone())?;
        let entry = self.entry(place).ok_or(missing)?;
        let misplaced = |why| TypeError::Misplaced { argument: wanted.to_owned(), why };
        // only C, C++ and languages compatible with them follow the System V calling convention
        let foreign = [dw::DW_LANG_Go, dw::DW_LANG_Rust, dw::DW_LANG_Swift, dw::DW_LANG_Haskell, dw::DW_LANG_OCaml];
        if self.language(place).is_none_or(|language| foreign.contains(&language)) {
            return Err(misplaced("its language has a calling convention of its own"));
        }
        // a compiler that has removed arguments marks the function as one with a calling convention of its own
        if self.attribute(place, &entry, dw::DW_AT_calling_convention).is_some_and(|(_, v)| !is_normal(&v)) {
            return Err(misplaced("the function has a calling convention of its own"));
        }
        if let Some(result) = self.type_of(place, &entry)
            && self.plain(result).is_none_or(|t| is_structure(t.entry.tag()))
        {
            return Err(misplaced("the function returns a structure"));
        }
        let (mut integers, mut floats) = (0u8, 0u8);
        for (place, parameter) in self.children(place) {
            match parameter.tag() {
                dw::DW_TAG_formal_parameter => {}
                dw::DW_TAG_unspecified_parameters => break,
                _ => continue,
            }
            let of = self.type_of(place, &parameter).and_then(|t| self.plain(t));
            let of = of.ok_or(TypeError::NotDescribed { what: "this argument" })?;
            let at = if self.is_float(&of) {
                let number = floats;
                floats = floats.saturating_add(1);
                match self.bytes(&of) {
                    Some(8) => ArgumentPlace::Float(number, FloatFormat::Double),
                    Some(4) => ArgumentPlace::Float(number, FloatFormat::Single),
                    // It takes a register, and has a format that code cannot read.
                    _ => continue,
                }
            } else if let Ok(scalar) = self.scalar(&of) {
                integers = integers.saturating_add(1);
                ArgumentPlace::Integer(integers - 1, scalar)
            } else {
                return Err(misplaced("it follows one that is no integer, pointer or floating-point number"));
            };
            let in_memory = match at {
                ArgumentPlace::Integer(n, _) => n >= REGISTERS && floats > 0,
                ArgumentPlace::Float(n, _) => n >= Float::ARGS_MAX,
            };
            let found = visit(self.name(place, &parameter), at, of);
            if found.is_some() {
                return if in_memory { Err(misplaced("floating-point arguments lie before it")) } else { Ok(found) };
            }
        }
        Ok(None)
    }

    /// The way from a pointer that a function returns to the integer that members lead to.
    pub fn reach_in_result(&self, function: Svma, members: &[&str]) -> Result<MemberPath, TypeError> {
        let missing = TypeError::NotDescribed { what: "what this function returns" };
        let place = self.function_at(function).ok_or(missing.clone())?;
        let entry = self.entry(place).ok_or(missing.clone())?;
        let of = self.type_of(place, &entry).and_then(|t| self.plain(t)).ok_or(missing)?;
        self.reach_through(of, members)
    }

    /// The way from the value of a pointer to the integer that members lead to.
    fn reach_through(&self, pointer: DataType<'a>, members: &[&str]) -> Result<MemberPath, TypeError> {
        if !self.is_pointer(&pointer) {
            let member = members.first().map_or_else(String::new, |m| (*m).to_owned());
            return Err(TypeError::NoStructure { member, of: self.words(&pointer) });
        }
        let target = self.type_of(pointer.place, &pointer.entry);
        self.reach(target.ok_or(TypeError::NotDescribed { what: "what the pointer leads to" })?, members)
    }

    fn reach(&self, of: EntryLocation, members: &[&str]) -> Result<MemberPath, TypeError> {
        let unknown = TypeError::NotDescribed { what: "its type" };
        let (mut pointers, mut offset) = (Vec::new(), 0i64);
        let mut of = self.plain(of).ok_or(unknown.clone())?;
        for member in members {
            while self.is_pointer(&of) {
                if pointers.len() >= STEPS_MAX as usize {
                    return Err(unknown);
                }
                pointers.push(std::mem::take(&mut offset));
                let target = self.type_of(of.place, &of.entry).and_then(|t| self.plain(t));
                of = target.ok_or(TypeError::NotDescribed { what: "what the pointer leads to" })?;
            }
            if !is_structure(of.entry.tag()) {
                return Err(TypeError::NoStructure { member: (*member).to_owned(), of: self.words(&of) });
            }
            let of_structure = self.definition(of)?;
            let mut has = Vec::new();
            let Some((at, inner)) = self.member(&of_structure, member, &mut has, 0)? else {
                let (member, of) = ((*member).to_owned(), self.words(&of_structure));
                return Err(TypeError::NoMember { member, of, has });
            };
            offset = offset.wrapping_add(at);
            of = self.plain(inner).ok_or(unknown.clone())?;
        }
        Ok(MemberPath { pointers, offset, scalar: self.scalar(&of)? })
    }

    /// A type without typedefs and qualifiers.
    fn plain(&self, mut place: EntryLocation) -> Option<DataType<'a>> {
        for _ in 0..STEPS_MAX {
            let entry = self.entry(place)?;
            match entry.tag() {
                dw::DW_TAG_typedef
                | dw::DW_TAG_const_type
                | dw::DW_TAG_volatile_type
                | dw::DW_TAG_restrict_type
                | dw::DW_TAG_atomic_type => place = self.type_of(place, &entry)?,
                _ => return Some(DataType { place, entry }),
            }
        }
        None
    }

    /// The definition of a structure that one unit only declares.
    fn definition(&self, of: DataType<'a>) -> Result<DataType<'a>, TypeError> {
        if of.entry.attr(dw::DW_AT_declaration).is_none() {
            return Ok(of);
        }
        let missing = TypeError::NotDescribed { what: "the members of this structure" };
        let name = self.name(of.place, &of.entry).ok_or(missing.clone())?;
        let mut found: Option<DataType<'a>> = None;
        let size = |entry: &DwarfEntry<'a>| entry.attr_value(dw::DW_AT_byte_size).and_then(|v| v.udata_value());
        let contradiction = self.find(|place, entry| {
            let named = entry.tag() == of.entry.tag()
                && entry.attr(dw::DW_AT_declaration).is_none()
                && self.name(place, entry) == Some(name);
            if !named {
                return None;
            }
            match &found {
                // two different structures have this name
                Some(known) if size(&known.entry) != size(entry) => return Some(()),
                Some(_) => {}
                None => found = Some(DataType { place, entry: entry.clone() }),
            }
            None
        });
        found.filter(|_| contradiction.is_none()).ok_or(missing)
    }

    /// A member of a structure, of its bases or of its anonymous members: the offset in bytes from the beginning of the structure, and the
    /// type.
    fn member(
        &self,
        of: &DataType<'a>,
        wanted: &str,
        has: &mut Vec<String>,
        depth: u32,
    ) -> Result<Option<(i64, EntryLocation)>, TypeError> {
        if depth > STEPS_MAX {
            return Ok(None);
        }
        for (place, entry) in self.children(of.place) {
            // static members are variables
            let is_member = entry.tag() == dw::DW_TAG_member && entry.attr(dw::DW_AT_external).is_none();
            let is_base = entry.tag() == dw::DW_TAG_inheritance && entry.attr(dw::DW_AT_virtuality).is_none();
            if !is_member && !is_base {
                continue;
            }
            let name = self.name(place, &entry);
            has.extend(name.map(str::to_owned));
            let Some(inner) = self.type_of(place, &entry) else { continue };
            if let Some(name) = name {
                if name != wanted {
                    continue;
                }
                let bits = [dw::DW_AT_bit_size, dw::DW_AT_data_bit_offset, dw::DW_AT_bit_offset];
                if bits.iter().any(|bit| entry.attr(*bit).is_some()) {
                    return Err(TypeError::BitField { member: wanted.to_owned() });
                }
                let at = offset(&entry).ok_or(TypeError::NotDescribed { what: "where this member lies" })?;
                return Ok(Some((at, inner)));
            }
            let (Some(at), Some(inner)) = (offset(&entry), self.plain(inner)) else { continue };
            if is_structure(inner.entry.tag())
                && let Some((further, found)) = self.member(&inner, wanted, has, depth + 1)?
            {
                return Ok(Some((at.wrapping_add(further), found)));
            }
        }
        Ok(None)
    }

    fn is_pointer(&self, of: &DataType<'a>) -> bool {
        matches!(of.entry.tag(), dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type)
    }

    fn is_float(&self, of: &DataType<'a>) -> bool {
        of.entry.tag() == dw::DW_TAG_base_type
            && encoding(&of.entry) == Some(dw::DW_ATE_float)
            && self.bytes(of).is_some_and(|bytes| bytes <= FLOAT_MAX)
    }

    fn bytes(&self, of: &DataType<'a>) -> Option<u64> {
        of.entry.attr_value(dw::DW_AT_byte_size).and_then(|v| v.udata_value())
    }

    /// The integer type that `of` denotes; an error if `of` is no integer.
    fn scalar(&self, of: &DataType<'a>) -> Result<Scalar, TypeError> {
        let no_integer = || TypeError::NoInteger { what: self.words(of) };
        if self.is_pointer(of) {
            return Ok(Scalar::POINTER);
        }
        let encoding = match of.entry.tag() {
            dw::DW_TAG_base_type => encoding(&of.entry),
            // an enumeration without a stated type is unsigned, as compilers make enumerations without negative values
            dw::DW_TAG_enumeration_type => {
                let underlying = self.type_of(of.place, &of.entry).and_then(|t| self.plain(t));
                underlying.and_then(|t| encoding_of(&t)).or(encoding(&of.entry)).or(Some(dw::DW_ATE_unsigned))
            }
            _ => None,
        };
        let signed = match encoding.ok_or_else(no_integer)? {
            dw::DW_ATE_signed | dw::DW_ATE_signed_char => true,
            dw::DW_ATE_unsigned | dw::DW_ATE_unsigned_char | dw::DW_ATE_boolean | dw::DW_ATE_UTF => false,
            _ => return Err(no_integer()),
        };
        let odd = [dw::DW_AT_bit_size, dw::DW_AT_endianity].iter().any(|a| of.entry.attr(*a).is_some());
        let width = self.bytes(of).and_then(IntegerWidth::of).filter(|_| !odd).ok_or_else(no_integer)?;
        Ok(Scalar { width, signed })
    }

    /// A type in words.
    fn words(&self, of: &DataType<'a>) -> String {
        let name = self.name(of.place, &of.entry);
        match (of.entry.tag(), name) {
            (dw::DW_TAG_array_type, _) => "an array".to_owned(),
            (dw::DW_TAG_structure_type, Some(name)) => format!("struct {name}"),
            (dw::DW_TAG_union_type, Some(name)) => format!("union {name}"),
            (dw::DW_TAG_structure_type | dw::DW_TAG_class_type, None) => "a structure".to_owned(),
            (dw::DW_TAG_union_type, None) => "a union".to_owned(),
            (_, Some(name)) => name.to_owned(),
            (_, None) if self.is_pointer(of) => "a pointer".to_owned(),
            (..) => "something else".to_owned(),
        }
    }
}

fn is_normal(convention: &DwarfValue<'_>) -> bool {
    matches!(convention, AttributeValue::CallingConvention(dw::DW_CC_normal))
}

fn encoding_of(of: &DataType<'_>) -> Option<dw::DwAte> {
    encoding(&of.entry)
}

fn encoding(entry: &DwarfEntry<'_>) -> Option<dw::DwAte> {
    match entry.attr_value(dw::DW_AT_encoding)? {
        AttributeValue::Encoding(encoding) => Some(encoding),
        _ => None,
    }
}

fn is_structure(tag: dw::DwTag) -> bool {
    matches!(tag, dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type)
}

/// Offset of a member from the beginning of its structure, in bytes. Members of unions have no such attribute.
fn offset(entry: &DwarfEntry<'_>) -> Option<i64> {
    match entry.attr_value(dw::DW_AT_data_member_location) {
        None => Some(0),
        Some(value) => value.udata_value().and_then(|at| i64::try_from(at).ok()),
    }
}
