//! Values of types: the integers of which a value of the program consists, and the names of an enumeration's values.

use std::sync::Arc;

use crate::snippet::Scalar;

/// A value of an enumeration with its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enumerator {
    /// The value, as the enumeration's integer type extends it to 64 bits.
    pub value: i64,
    /// The name.
    pub name: String,
}

/// The names of an enumeration's values, by value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enumerators {
    scalar: Scalar,
    names: Arc<[Enumerator]>,
}

impl Enumerators {
    /// Creates the names of an enumeration of this integer type from its values, of which only the bytes of the type count. Of several names
    /// of one value, the first one stays. `None` without names.
    pub fn new(scalar: Scalar, values: impl IntoIterator<Item = (u64, String)>) -> Option<Self> {
        let named = values.into_iter().map(|(value, name)| Enumerator { value: scalar.extend(value), name });
        let mut names: Vec<Enumerator> = named.collect();
        // stable, so that the first of several names comes first
        names.sort_by_key(|one| one.value);
        names.dedup_by_key(|one| one.value);
        (!names.is_empty()).then(|| Enumerators { scalar, names: names.into() })
    }

    /// Returns the name of the value in the lowest bytes of a word; `None` if no enumerator has it.
    pub fn name(&self, word: u64) -> Option<&str> {
        let value = self.scalar.extend(word);
        let at = self.names.binary_search_by_key(&value, |one| one.value).ok()?;
        self.names.get(at).map(|one| one.name.as_str())
    }
}

/// Register that holds the first word on the way to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordOrigin {
    /// The register of the n-th integer argument ([`crate::Expr::Arg`]).
    Argument(u8),
    /// The register of the result ([`crate::Expr::Return`]).
    Result,
}

/// Names of the values of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValueNames {
    /// No value has a name.
    #[default]
    None,
    /// The values are those of an enumeration.
    Of(Enumerators),
    /// The values are those of a register, whose type in the function where the code runs tells the names.
    OfRegister(WordOrigin),
}

impl ValueNames {
    /// The name of a value; `None` if the value has no name, or if the type of the register is not known.
    pub fn name(&self, word: u64) -> Option<&str> {
        match self {
            ValueNames::Of(names) => names.name(word),
            ValueNames::None | ValueNames::OfRegister(_) => None,
        }
    }
}

impl From<Option<Enumerators>> for ValueNames {
    fn from(names: Option<Enumerators>) -> Self {
        names.map_or(ValueNames::None, ValueNames::Of)
    }
}

/// The way to an integer: from a register, or from memory to which a register leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataWord {
    /// The register.
    pub origin: WordOrigin,
    /// Number of the lowest bit of the integer in the register. 0 if the register is a pointer.
    pub shift: u8,
    /// Offsets in bytes: each one is added to what was read before, and the sum is an address. A pointer is read at each address but the
    /// last one, and the integer at the last one. Empty if the integer is in the register.
    pub offsets: Vec<i64>,
    /// Width and sign of the integer.
    pub scalar: Scalar,
}

/// The integers that hold a value of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataShape {
    /// An integer or a pointer. If it is an enumeration, its values have names.
    Number(DataWord, Option<Enumerators>),
    /// A pointer to characters that end with a zero byte.
    Characters(DataWord),
    /// A text: the address of its bytes, and their number.
    Text {
        /// Address of the first byte.
        bytes: DataWord,
        /// Number of bytes.
        length: DataWord,
    },
    /// A sequence of elements.
    List {
        /// Address of the first element, and the type of all; `None` if the elements are no integers.
        elements: Option<(DataWord, Scalar)>,
        /// Number of elements.
        length: DataWord,
    },
    /// One of several variants.
    Variants {
        /// The integer that tells which one; `None` if there is one variant.
        selector: Option<DataWord>,
        /// The variants.
        variants: Vec<DataVariant>,
    },
    /// A value of a type that is not shown.
    Hidden,
}

/// A variant of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataVariant {
    /// Value of the selector; `None` if the variant has all values that no other one has.
    pub value: Option<i64>,
    /// The name.
    pub name: String,
    /// The data; `None` if the variant has none.
    pub data: Option<Box<DataShape>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snippet::IntegerWidth;

    #[test]
    fn values_have_names_by_the_bytes_of_their_type() {
        let of = |width, signed, values: &[(u64, &str)]| {
            let values = values.iter().map(|(value, name)| (*value, (*name).to_owned()));
            Enumerators::new(Scalar { width, signed }, values)
        };
        let state = of(IntegerWidth::Four, false, &[(7, "DONE"), (0, "IDLE"), (7, "LAST"), (u64::MAX, "NONE")]);
        let state = state.expect("names");
        assert_eq!(
            [0, 7, 1, 0xffff_ffff].map(|word| state.name(word)),
            [Some("IDLE"), Some("DONE"), None, Some("NONE")]
        );
        assert_eq!(state.name(0xdead_0000_0000), Some("IDLE"), "only the bytes of the type count");
        let small = of(IntegerWidth::One, true, &[(0xff, "LESS"), (1, "MORE")]).expect("names");
        assert_eq!(
            [u64::MAX, 0x1ff, 1, 0x101].map(|word| small.name(word)),
            [Some("LESS"), Some("LESS"), Some("MORE"), Some("MORE")]
        );
        assert_eq!(of(IntegerWidth::Eight, true, &[]), None);
    }
}
