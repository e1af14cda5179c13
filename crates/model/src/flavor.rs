//! Flavors: names of the kinds of program that definitions are written for, such as `unix`, `mpi` and `pvm`.

use std::fmt;

/// Name of a kind of program. A definition with flavors exists for a program that has one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flavor(String);

/// The largest number of flavors that a request may state.
pub const FLAVORS_MAX: usize = 16;

/// Error for a text that is no flavor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no flavor: a flavor has 1 to {} letters, digits, `_` and `-`", Flavor::BYTES_MAX)]
pub struct FlavorError;

impl Flavor {
    /// The largest length of a flavor in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Reads a flavor: 1 to [`Flavor::BYTES_MAX`] ASCII letters, digits, `_` and `-`.
    pub fn parse(text: &str) -> Result<Self, FlavorError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let fits = (1..=Self::BYTES_MAX).contains(&text.len());
        if fits && text.bytes().all(allowed) { Ok(Flavor(text.to_owned())) } else { Err(FlavorError) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flavor_is_a_short_name() {
        for good in ["pvm", "cm5", "my_own-kind", &"x".repeat(Flavor::BYTES_MAX)] {
            assert_eq!(Flavor::parse(good).as_ref().map(Flavor::as_str), Ok(good));
        }
        for bad in ["", " ", "a b", "pvm,mpi", "é", "a\0", &"x".repeat(Flavor::BYTES_MAX + 1)] {
            assert_eq!(Flavor::parse(bad), Err(FlavorError), "{bad:?}");
        }
    }
}
