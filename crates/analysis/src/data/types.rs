//! The way from a variable, an argument or a result to an integer in it: the members on the way, and the width of the integer.

use gimli::AttributeValue;
use gimli::constants as dw;
use ingraft_model::{DataShape, Enumerators, Float, FloatFormat, IntegerWidth, Scalar, Svma, WordOrigin};

use crate::data::debug_info::{DebugInfo, DwarfEntry, DwarfValue, EntryLocation};
use crate::data::error::TypeError;
use crate::data::locations::{DataLocation, Located};

/// Largest number of typedefs, qualifiers, pointers and anonymous members that are followed from one type.
pub(super) const STEPS_MAX: u32 = 32;
/// Number of integer arguments that are passed in registers.
pub(super) const REGISTERS: u8 = 6;
/// Size in bytes of the largest floating-point number that is passed in a vector register.
const FLOAT_MAX: u64 = 8;
/// Languages of which a function without a type returns nothing.
const TYPED: [dw::DwLang; 13] = [
    dw::DW_LANG_C89,
    dw::DW_LANG_C,
    dw::DW_LANG_C99,
    dw::DW_LANG_C11,
    dw::DW_LANG_C17,
    dw::DW_LANG_C_plus_plus,
    dw::DW_LANG_C_plus_plus_03,
    dw::DW_LANG_C_plus_plus_11,
    dw::DW_LANG_C_plus_plus_14,
    dw::DW_LANG_C_plus_plus_17,
    dw::DW_LANG_C_plus_plus_20,
    dw::DW_LANG_ObjC,
    dw::DW_LANG_Rust,
];

/// The way to an integer from an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPath {
    /// Offset of each pointer on the way, in bytes from the address that the pointer before it holds.
    pub pointers: Vec<i64>,
    /// Offset of the integer, in bytes from the address that the last pointer holds.
    pub offset: i64,
    /// Width and sign of the integer.
    pub scalar: Scalar,
    /// Names of the integer's values, if it is an enumeration.
    pub names: Option<Enumerators>,
}

/// Place of an argument by the System V calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentPlace {
    /// The argument with this number among the integers and pointers, and its type.
    Integer(u8, Scalar),
    /// The argument with this number among the floating-point numbers, and its format.
    Float(u8, FloatFormat),
}

/// Value of a function that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescribedValue<'n> {
    /// The argument with this name.
    Named(&'n str),
    /// The argument with this number among the integers and pointers.
    Argument(u8),
    /// The result.
    Result,
}

/// A type without its names and qualifiers.
#[derive(Clone)]
pub(super) struct DataType<'a> {
    pub(super) place: EntryLocation,
    pub(super) entry: DwarfEntry<'a>,
}

/// An argument of a function.
pub(super) struct FunctionParameter<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) of: DataType<'a>,
    /// DataLocation when the function begins; `None` if it is not known.
    pub(super) at: Option<DataLocation>,
    /// Place by the calling convention, if it is a number.
    pub(super) place: Option<ArgumentPlace>,
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
        let of = self.argument(function, argument)?.of;
        self.reach_through(of, members)
    }

    /// The place of an argument of a function by its name, and the names of its values if it is an enumeration.
    pub fn argument_named(
        &self,
        function: Svma,
        name: &str,
    ) -> Result<(ArgumentPlace, Option<Enumerators>), TypeError> {
        let found = self.parameter_named(function, name)?;
        let no_integer = || TypeError::NoInteger { what: self.words(&found.of) };
        let place = match found.place {
            Some(place) => place,
            None if found.at.is_none() => return Err(nowhere(format!("`{name}`"))),
            None => return Err(no_integer()),
        };
        Ok((place, self.names_of(&found.of)))
    }

    /// The integers that hold an argument or the result of a function, or the value that members lead to. `follow` says whether the value
    /// of a pointer to a structure is the structure, in any language.
    pub fn shown(
        &self,
        function: Svma,
        of: DescribedValue<'_>,
        members: &[&str],
        follow: bool,
    ) -> Result<DataShape, TypeError> {
        let (of, at) = match of {
            DescribedValue::Named(name) => {
                let found = self.parameter_named(function, name)?;
                (found.of, found.at.ok_or_else(|| nowhere(format!("`{name}`")))?)
            }
            DescribedValue::Argument(number) => {
                (self.argument(function, number)?.of, DataLocation::register(WordOrigin::Argument(number)))
            }
            DescribedValue::Result => {
                let of = self.result(function)?;
                // a larger result is in other registers, or in memory
                self.scalar(&of)?;
                (of, DataLocation::register(WordOrigin::Result))
            }
        };
        let (of, at) = self.walk(of, at, members)?;
        self.shape(of, &at, follow, 0)
    }

    /// The arguments of a function that have names and are shown, in their order. An argument that does not follow the convention, and what
    /// comes behind it, is left out. The value of a pointer to a structure is the structure.
    pub fn arguments(&self, function: Svma) -> Result<Vec<(String, DataShape)>, TypeError> {
        let mut known = Vec::new();
        let end = self.each_argument(function, "the first one", |parameter| {
            if let (Some(name), Some(at)) = (parameter.name, &parameter.at)
                && let Ok(shape) = self.shape(parameter.of, at, true, 0)
            {
                known.push((name.to_owned(), shape));
            }
            None::<()>
        });
        match end {
            Err(why) if known.is_empty() => Err(why),
            _ => Ok(known),
        }
    }

    /// The argument of a function with this number among the integers and pointers.
    fn argument(&self, function: Svma, number: u8) -> Result<FunctionParameter<'a>, TypeError> {
        let is_it = |parameter: &FunctionParameter<'a>| matches!(parameter.place, Some(ArgumentPlace::Integer(n, _)) if n == number);
        let found = self.each_argument(function, &number.to_string(), |it| is_it(&it).then_some(it))?;
        found.ok_or(TypeError::NotDescribed { what: "an argument of this number" })
    }

    /// The argument of a function with this name.
    fn parameter_named(&self, function: Svma, name: &str) -> Result<FunctionParameter<'a>, TypeError> {
        let mut has = Vec::new();
        let found = self.each_argument(function, &format!("`{name}`"), |parameter| {
            has.extend(parameter.name.map(str::to_owned));
            (parameter.name == Some(name)).then_some(parameter)
        })?;
        found.ok_or(TypeError::NoArgument { name: name.to_owned(), has })
    }

    /// The function that begins at an address. The error names the file that may describe it, if that file is not found.
    fn described_function(&self, function: Svma) -> Result<EntryLocation, Option<TypeError>> {
        let other = || self.missing_file(function).map(|file| TypeError::OtherFile { file });
        self.function_at(function).ok_or_else(other)
    }

    /// Whether a function certainly has no result.
    pub fn returns_nothing(&self, function: Svma) -> bool {
        let known = self.described_function(function).ok().and_then(|place| Some((place, self.entry(place)?)));
        // Functions of Go return parameters, and those of an assembler's source have no types.
        let tells = |place| self.language(place).is_some_and(|language| TYPED.contains(&language));
        known.is_some_and(|(place, entry)| tells(place) && self.attribute(place, &entry, dw::DW_AT_type).is_none())
    }

    /// The type of a function's result.
    fn result(&self, function: Svma) -> Result<DataType<'a>, TypeError> {
        let missing = TypeError::NotDescribed { what: "what this function returns" };
        let place = self.described_function(function).map_err(|other| other.unwrap_or(missing.clone()))?;
        let entry = self.entry(place).ok_or(missing.clone())?;
        self.type_of(place, &entry).and_then(|t| self.plain(t)).ok_or(missing)
    }

    /// Whether a type is a pointer to characters.
    pub(super) fn is_text(&self, of: &DataType<'a>) -> bool {
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

    /// Visits the arguments of a function in order, until `visit` returns something. `wanted` is the argument in messages.
    fn each_argument<T>(
        &self,
        function: Svma,
        wanted: &str,
        mut visit: impl FnMut(FunctionParameter<'a>) -> Option<T>,
    ) -> Result<Option<T>, TypeError> {
        let missing = TypeError::NotDescribed { what: "this function" };
        let place = self.described_function(function).map_err(|other| other.unwrap_or(missing.clone()))?;
        let entry = self.entry(place).ok_or(missing)?;
        let misplaced = |why| TypeError::Misplaced { argument: wanted.to_owned(), why };
        // only C, C++ and languages compatible with them follow the System V calling convention
        let foreign = [dw::DW_LANG_Go, dw::DW_LANG_Swift, dw::DW_LANG_Haskell, dw::DW_LANG_OCaml];
        match self.language(place) {
            // the convention of Rust is not specified, so the locations alone count
            Some(dw::DW_LANG_Rust) => return Ok(self.located_arguments(function, place).find_map(visit)),
            Some(language) if !foreign.contains(&language) => {}
            _ => return Err(misplaced("its language has a calling convention of its own")),
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
                match self.float_format(&of) {
                    Some(format) => ArgumentPlace::Float(number, format),
                    // It takes a register, and has a format that code cannot read.
                    None => continue,
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
            let location = match at {
                ArgumentPlace::Integer(n, _) => Some(DataLocation::register(WordOrigin::Argument(n))),
                ArgumentPlace::Float(..) => None,
            };
            let name = self.name(place, &parameter);
            let found = visit(FunctionParameter { name, of, at: location, place: Some(at) });
            if found.is_some() {
                return if in_memory { Err(misplaced("floating-point arguments lie before it")) } else { Ok(found) };
            }
        }
        Ok(None)
    }

    /// The arguments of a function at their locations when the function begins. One without a type is left out.
    fn located_arguments(&self, function: Svma, place: EntryLocation) -> impl Iterator<Item = FunctionParameter<'a>> {
        let parameters = self.children(place).into_iter();
        parameters.filter(|(_, entry)| entry.tag() == dw::DW_TAG_formal_parameter).filter_map(move |(place, entry)| {
            let of = self.type_of(place, &entry).and_then(|t| self.plain(t))?;
            let (at, float) = match self.location_at(place, &entry, function) {
                Some(Located::At(at)) => (Some(at), None),
                Some(Located::Float(register)) => (None, Some(register)),
                None => (None, None),
            };
            let integer = || {
                let number = at.as_ref().and_then(DataLocation::whole_argument)?;
                Some(ArgumentPlace::Integer(number, self.scalar(&of).ok()?))
            };
            let float = float.filter(|_| self.is_float(&of));
            let float = || Some(ArgumentPlace::Float(float?, self.float_format(&of)?));
            let number = integer().or_else(float);
            Some(FunctionParameter { name: self.name(place, &entry), of, at, place: number })
        })
    }

    /// The way from a pointer that a function returns to the integer that members lead to.
    pub fn reach_in_result(&self, function: Svma, members: &[&str]) -> Result<MemberPath, TypeError> {
        self.reach_through(self.result(function)?, members)
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
        let of = self.plain(of).ok_or(unknown.clone())?;
        // the origin does not matter: all is in memory
        let (of, at) = self.walk(of, DataLocation::memory(WordOrigin::Result), members)?;
        let scalar = self.scalar(&of)?;
        let (pointers, offset) = at.in_memory().ok_or(unknown)?;
        Ok(MemberPath { pointers, offset, scalar, names: self.names_of(&of) })
    }

    /// The value that members lead to, through pointers, from a value of a type.
    fn walk(
        &self,
        mut of: DataType<'a>,
        mut at: DataLocation,
        members: &[&str],
    ) -> Result<(DataType<'a>, DataLocation), TypeError> {
        let unknown = TypeError::NotDescribed { what: "its type" };
        let mut pointers = 0;
        for member in members {
            while self.is_pointer(&of) {
                pointers += 1;
                if pointers > STEPS_MAX {
                    return Err(unknown);
                }
                at = at.behind().ok_or_else(scattered)?;
                of = self.target(&of).ok_or(TypeError::NotDescribed { what: "what the pointer leads to" })?;
            }
            if !is_structure(of.entry.tag()) {
                return Err(TypeError::NoStructure { member: (*member).to_owned(), of: self.words(&of) });
            }
            let of_structure = self.definition(of)?;
            let mut has = Vec::new();
            let Some((by, inner)) = self.member(&of_structure, member, &mut has, 0)? else {
                let (member, of) = ((*member).to_owned(), self.words(&of_structure));
                return Err(TypeError::NoMember { member, of, has });
            };
            at = at.moved(by).ok_or_else(scattered)?;
            of = self.plain(inner).ok_or(unknown.clone())?;
        }
        Ok((of, at))
    }

    /// The type to which a pointer leads.
    pub(super) fn target(&self, pointer: &DataType<'a>) -> Option<DataType<'a>> {
        self.plain(self.type_of(pointer.place, &pointer.entry)?)
    }

    /// A type without typedefs and qualifiers.
    pub(super) fn plain(&self, mut place: EntryLocation) -> Option<DataType<'a>> {
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
    pub(super) fn definition(&self, of: DataType<'a>) -> Result<DataType<'a>, TypeError> {
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
    pub(super) fn member(
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

    pub(super) fn is_pointer(&self, of: &DataType<'a>) -> bool {
        matches!(of.entry.tag(), dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type)
    }

    pub(super) fn is_float(&self, of: &DataType<'a>) -> bool {
        of.entry.tag() == dw::DW_TAG_base_type
            && encoding(&of.entry) == Some(dw::DW_ATE_float)
            && self.bytes(of).is_some_and(|bytes| bytes <= FLOAT_MAX)
    }

    fn float_format(&self, of: &DataType<'a>) -> Option<FloatFormat> {
        match self.bytes(of) {
            Some(8) => Some(FloatFormat::Double),
            Some(4) => Some(FloatFormat::Single),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, of: &DataType<'a>) -> Option<u64> {
        of.entry.attr_value(dw::DW_AT_byte_size).and_then(|v| v.udata_value())
    }

    /// The integer type that `of` denotes; an error if `of` is no integer.
    pub(super) fn scalar(&self, of: &DataType<'a>) -> Result<Scalar, TypeError> {
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
    pub(super) fn words(&self, of: &DataType<'a>) -> String {
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

/// The error for a value of which a part is not known.
pub(super) fn scattered() -> TypeError {
    TypeError::NotDescribed { what: "where all of it is when the function begins" }
}

/// The error for an argument whose location is not known.
fn nowhere(argument: String) -> TypeError {
    let why = "the debugging information does not say where it is when the function begins";
    TypeError::Misplaced { argument, why }
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

pub(super) fn is_structure(tag: dw::DwTag) -> bool {
    matches!(tag, dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type)
}

/// Offset of a member from the beginning of its structure, in bytes. Members of unions have no such attribute.
pub(super) fn offset(entry: &DwarfEntry<'_>) -> Option<i64> {
    match entry.attr_value(dw::DW_AT_data_member_location) {
        None => Some(0),
        Some(value) => value.udata_value().and_then(|at| i64::try_from(at).ok()),
    }
}
