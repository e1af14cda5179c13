//! Values of types that are more than an integer: the integers of which a text, a list or a variant consists, by the names and types of
//! members. The offsets are those of the debugging information, because the Rust compiler orders members as it likes.

use gimli::AttributeValue;
use gimli::constants as dw;
use ingraft_model::{DataShape, DataVariant, DataWord, Enumerators, IntegerWidth, Scalar};

use crate::data::debug_info::{DebugInfo, DwarfValue, EntryLocation};
use crate::data::error::TypeError;
use crate::data::locations::DataLocation;
use crate::data::types::{DataType, is_structure, offset, scattered};

/// Largest number of structures, pointers and variants that are inside of each other in a value.
const DEPTH_MAX: u32 = 8;
/// Largest number of variants of a value.
const VARIANTS_MAX: usize = 256;
/// Largest number of enumerators of an enumeration.
const ENUMERATORS_MAX: usize = 4096;
/// Types of the standard library of Rust that are a pointer to a text of a known length.
const RUST_TEXTS: [&str; 5] = ["&str", "&mut str", "*const str", "*mut str", "Box<str, alloc::alloc::Global>"];

impl<'a> DebugInfo<'a> {
    /// The names of the values of an enumeration; `None` for other types.
    pub(super) fn names_of(&self, of: &DataType<'a>) -> Option<Enumerators> {
        if of.entry.tag() != dw::DW_TAG_enumeration_type {
            return None;
        }
        let scalar = self.scalar(of).ok()?;
        let enumerators = self.children(of.place).into_iter();
        let enumerators = enumerators.filter(|(_, entry)| entry.tag() == dw::DW_TAG_enumerator);
        let named = enumerators.filter_map(|(place, entry)| {
            let name = self.name(place, &entry)?.to_owned();
            Some((bits(entry.attr_value(dw::DW_AT_const_value)?)?, name))
        });
        Enumerators::new(scalar, named.take(ENUMERATORS_MAX))
    }

    /// The integers that hold a value at a location. `follow` says whether the value of a pointer to a structure is the structure. In Rust it
    /// always is, and that of a reference in C++.
    pub(super) fn shape(
        &self,
        of: DataType<'a>,
        at: &DataLocation,
        follow: bool,
        depth: u32,
    ) -> Result<DataShape, TypeError> {
        if depth > DEPTH_MAX {
            return Err(TypeError::NotDescribed { what: "its type" });
        }
        if is_structure(of.entry.tag()) {
            let of = self.definition(of)?;
            let shape = self.structure(&of, at, follow, depth)?;
            return shape.ok_or_else(|| TypeError::NoInteger { what: self.words(&of) });
        }
        if self.is_pointer(&of) {
            if let Some(behind) = self.behind(&of, at, follow, depth) {
                return Ok(behind);
            }
            let word = at.word(Scalar::POINTER).ok_or_else(scattered)?;
            return Ok(if self.is_text(&of) { DataShape::Characters(word) } else { DataShape::Number(word, None) });
        }
        let word = at.word(self.scalar(&of)?).ok_or_else(scattered)?;
        Ok(DataShape::Number(word, self.names_of(&of)))
    }

    /// The structure to which a pointer leads, if its value is shown in the place of the pointer.
    fn behind(&self, pointer: &DataType<'a>, at: &DataLocation, follow: bool, depth: u32) -> Option<DataShape> {
        let is_value = follow || pointer.entry.tag() != dw::DW_TAG_pointer_type || self.is_rust(pointer.place);
        let target = self.target(pointer).filter(|target| is_value && is_structure(target.entry.tag()))?;
        match self.shape(target, &at.behind()?, follow, depth + 1).ok()? {
            DataShape::Number(..) | DataShape::Characters(_) | DataShape::Hidden => None,
            shape => Some(shape),
        }
    }

    /// The integers that hold a structure; `None` if it is not one that is shown.
    fn structure(
        &self,
        of: &DataType<'a>,
        at: &DataLocation,
        follow: bool,
        depth: u32,
    ) -> Result<Option<DataShape>, TypeError> {
        if !self.is_rust(of.place) {
            return Ok(self.string_of_cpp(of, at));
        }
        let name = self.name(of.place, &of.entry).unwrap_or_default();
        if let Some((data, pointer)) = self.field(of, "data_ptr", at)
            && let Some(length) = self.number(of, "length", at)
        {
            let Some(bytes) = data.word(Scalar::POINTER) else { return Err(scattered()) };
            let element = self.target(&pointer).and_then(|target| self.scalar(&target).ok());
            return Ok(Some(match RUST_TEXTS.contains(&name) {
                true => DataShape::Text { bytes, length },
                false => DataShape::List { elements: element.map(|scalar| (bytes, scalar)), length },
            }));
        }
        if name.starts_with("Vec<") && self.field(of, "buf", at).is_some() {
            return self.vector(of, at).map(Some);
        }
        if name == "String"
            && let Some((at, vector)) = self.field(of, "vec", at)
        {
            let is_bytes = |scalar: Scalar| scalar.width == IntegerWidth::One;
            return Ok(match self.vector(&vector, &at)? {
                DataShape::List { elements: Some((bytes, scalar)), length } if is_bytes(scalar) => {
                    Some(DataShape::Text { bytes, length })
                }
                _ => None,
            });
        }
        let children = self.children(of.place);
        if let Some((part, _)) = children.iter().find(|(_, entry)| entry.tag() == dw::DW_TAG_variant_part) {
            return self.variants(*part, at, follow, depth).map(Some);
        }
        // a type that only wraps another one
        match self.fields(of).as_slice() {
            [(by, inner)] => {
                let at = at.moved(*by).ok_or_else(scattered)?;
                self.shape(inner.clone(), &at, follow, depth + 1).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// A text of the standard library of C++: the members of the GNU library.
    fn string_of_cpp(&self, of: &DataType<'a>, at: &DataLocation) -> Option<DataShape> {
        let ((at, pointer), length) = match self.field(of, "_M_dataplus", at) {
            Some((inside, inner)) => (self.field(&inner, "_M_p", &inside)?, self.number(of, "_M_string_length", at)?),
            // a view of a string
            None => (self.field(of, "_M_str", at)?, self.number(of, "_M_len", at)?),
        };
        let characters = self.is_pointer(&pointer) && self.is_text(&pointer);
        let bytes = at.word(Scalar::POINTER).filter(|_| characters)?;
        Some(DataShape::Text { bytes, length })
    }

    /// A `Vec` of Rust: its length, and the only pointer in its buffer.
    fn vector(&self, of: &DataType<'a>, at: &DataLocation) -> Result<DataShape, TypeError> {
        let missing = || TypeError::NotDescribed { what: "the members of this vector" };
        let length = self.number(of, "len", at).ok_or_else(missing)?;
        let (at, buffer) = self.field(of, "buf", at).ok_or_else(missing)?;
        let mut pointers = Vec::new();
        self.pointers(&buffer, &at, 0, &mut pointers);
        let parameters = self.children(of.place).into_iter();
        let element = parameters
            .filter(|(place, entry)| {
                entry.tag() == dw::DW_TAG_template_type_parameter && self.name(*place, entry) == Some("T")
            })
            .find_map(|(place, entry)| self.plain(self.type_of(place, &entry)?));
        let scalar = element.and_then(|element| self.scalar(&element).ok());
        let elements = match pointers.as_slice() {
            [only] => only.word(Scalar::POINTER).zip(scalar),
            _ => None,
        };
        Ok(DataShape::List { elements, length })
    }

    /// Collects the locations of all pointers in a structure.
    fn pointers(&self, of: &DataType<'a>, at: &DataLocation, depth: u32, found: &mut Vec<DataLocation>) {
        if depth > DEPTH_MAX {
            return;
        }
        for (by, inner) in self.fields(of) {
            let Some(at) = at.moved(by) else { continue };
            if self.is_pointer(&inner) {
                found.push(at);
            } else if is_structure(inner.entry.tag()) {
                self.pointers(&inner, &at, depth + 1, found);
            }
        }
    }

    /// The variants of a value.
    fn variants(
        &self,
        part: EntryLocation,
        at: &DataLocation,
        follow: bool,
        depth: u32,
    ) -> Result<DataShape, TypeError> {
        let missing = || TypeError::NotDescribed { what: "the variants of this type" };
        let entry = self.entry(part).ok_or_else(missing)?;
        let selector = match self.follow(part, entry.attr_value(dw::DW_AT_discr)) {
            None => None,
            Some(place) => {
                let entry = self.entry(place).ok_or_else(missing)?;
                let of = self.type_of(place, &entry).and_then(|t| self.plain(t)).ok_or_else(missing)?;
                let at = at.moved(offset(&entry).ok_or_else(missing)?).ok_or_else(scattered)?;
                Some(at.word(self.scalar(&of)?).ok_or_else(scattered)?)
            }
        };
        let mut variants = Vec::new();
        for (place, entry) in self.children(part).into_iter().filter(|(_, e)| e.tag() == dw::DW_TAG_variant) {
            // a list of values is of other languages
            if entry.attr(dw::DW_AT_discr_list).is_some() || variants.len() >= VARIANTS_MAX {
                return Err(missing());
            }
            let value = match (entry.attr_value(dw::DW_AT_discr_value), &selector) {
                (Some(value), Some(word)) => Some(word.scalar.extend(bits(value).ok_or_else(missing)?)),
                (Some(_), None) => return Err(missing()),
                (None, _) => None,
            };
            let member = self.children(place).into_iter().find(|(_, entry)| entry.tag() == dw::DW_TAG_member);
            let (place, member) = member.ok_or_else(missing)?;
            let name = self.name(place, &member).ok_or_else(missing)?.to_owned();
            let of = self.type_of(place, &member).and_then(|t| self.plain(t)).ok_or_else(missing)?;
            let at = at.moved(offset(&member).ok_or_else(missing)?).ok_or_else(scattered)?;
            let data = match self.fields(&of).as_slice() {
                [] => None,
                [(by, inner)] => {
                    let at = at.moved(*by).ok_or_else(scattered)?;
                    Some(self.shape(inner.clone(), &at, follow, depth + 1).unwrap_or(DataShape::Hidden))
                }
                _ => Some(DataShape::Hidden),
            };
            variants.push(DataVariant { value, name, data: data.map(Box::new) });
        }
        // one variant may have all values that no other one has
        let others = variants.iter().filter(|variant| variant.value.is_none()).count();
        if variants.is_empty() || others > 1 || selector.is_none() && variants.len() > 1 {
            return Err(missing());
        }
        Ok(DataShape::Variants { selector, variants })
    }

    /// The members of a structure that take memory: the offset and the type of each.
    fn fields(&self, of: &DataType<'a>) -> Vec<(i64, DataType<'a>)> {
        let members = self.children(of.place).into_iter().filter(|(_, entry)| {
            // static members are variables
            entry.tag() == dw::DW_TAG_member && entry.attr(dw::DW_AT_external).is_none()
        });
        let members = members.filter_map(|(place, entry)| {
            let inner = self.plain(self.type_of(place, &entry)?)?;
            Some((offset(&entry)?, inner))
        });
        members.filter(|(_, inner)| self.bytes(inner) != Some(0)).collect()
    }

    /// The location and the type of a member.
    fn field(&self, of: &DataType<'a>, name: &str, at: &DataLocation) -> Option<(DataLocation, DataType<'a>)> {
        let (by, inner) = self.member(of, name, &mut Vec::new(), 0).ok()??;
        Some((at.moved(by)?, self.plain(inner)?))
    }

    /// A member that is an integer of 8 bytes.
    fn number(&self, of: &DataType<'a>, name: &str, at: &DataLocation) -> Option<DataWord> {
        let (at, inner) = self.field(of, name, at)?;
        let scalar = self.scalar(&inner).ok().filter(|scalar| scalar.width == IntegerWidth::Eight)?;
        at.word(scalar)
    }

    fn is_rust(&self, place: EntryLocation) -> bool {
        self.language(place) == Some(dw::DW_LANG_Rust)
    }
}

/// The bits of a constant.
fn bits(value: DwarfValue<'_>) -> Option<u64> {
    match value {
        AttributeValue::Sdata(value) => Some(value.cast_unsigned()),
        value => value.udata_value(),
    }
}
