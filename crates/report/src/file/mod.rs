//! The file format of a saved profile.
//!
//! A file has a header of 24 bytes and a body. The integers of the header are in little-endian order:
//!
//! | offset | length | content |
//! | --- | --- | --- |
//! | 0 | 8 | `INGPROF` and a byte of 0 |
//! | 8 | 4 | version of the format |
//! | 12 | 4 | CRC-32 (IEEE) of the body |
//! | 16 | 8 | length of the body in bytes |
//!
//! A profile of counts has version 1, a coverage has version 2, and a profile of calling contexts has version 3, because programs that know an
//! earlier version only would take it for counts.
//!
//! The body is the message `Profile` of `proto/ingraft/v1/counts.proto`, which daemons send too. A later version can add fields, which this
//! one skips. Addresses of blocks are distances, in packed lists, because most of them fit into one byte.
//!
//! *Invariant: any bytes give a profile whose indexes are valid, or an error.* Property tests and the fuzz target `profile` check this.

pub(crate) mod checked;
mod contexts;
pub(crate) mod convert;
mod paths;

use prost::Message;

use crate::message::Profile;
use crate::{ProfileKind, SavedProfile};

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"INGPROF\0";
/// Latest version of the format.
const VERSION: u32 = 3;
/// Length of the header in bytes.
const HEADER: usize = 24;

/// Reason why bytes are not read as a saved profile or a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The bytes do not begin as a saved profile does. The user has named another file.
    #[error("this is no saved profile")]
    NotAProfile,
    /// Another version of the program has written the file.
    #[error("the file has version {found} of the format, and this program reads versions up to {VERSION}")]
    Version {
        /// Version that the file states.
        found: u32,
    },
    /// The bytes do not begin as a trace does. The user has named another file.
    #[error("this is no trace")]
    NotATrace,
    /// Another version of the program has written the trace.
    #[error("the trace has another version of the format, {found}, than this program reads")]
    TraceVersion {
        /// Version that the file states.
        found: u32,
    },
    /// The file does not have the length that its header states.
    #[error("the file has {found} bytes of content instead of {stated}")]
    Length {
        /// Length of the body that the header states, in bytes.
        stated: u64,
        /// Length of the body, in bytes.
        found: u64,
    },
    /// The content has changed since it was written.
    #[error("the content does not have the checksum that the file states")]
    Checksum,
    /// The content is no message of this format.
    #[error("the content cannot be decoded")]
    Message(#[from] prost::DecodeError),
    /// Two parts of the content contradict each other.
    #[error("the content contradicts itself: {what}")]
    Contradiction {
        /// Description of the contradiction.
        what: &'static str,
    },
}

impl SavedProfile {
    /// The content of a file that holds this profile.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = Profile::from(self).encode_to_vec();
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend(MAGIC);
        bytes.extend(version_of(self.kind).to_le_bytes());
        bytes.extend(crc32fast::hash(&body).to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// The profile that the content of a file holds. Fails if the bytes are not complete, unchanged and free of contradictions.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FileError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(FileError::NotAProfile)?;
        let (version, rest) = rest.split_first_chunk().ok_or(FileError::NotAProfile)?;
        let found = u32::from_le_bytes(*version);
        if !(1..=VERSION).contains(&found) {
            return Err(FileError::Version { found });
        }
        let stated_version = found;
        let (checksum, rest) = rest.split_first_chunk().ok_or(FileError::NotAProfile)?;
        let (length, body) = rest.split_first_chunk().ok_or(FileError::NotAProfile)?;
        let (stated, found) = (u64::from_le_bytes(*length), body.len() as u64);
        if stated != found {
            return Err(FileError::Length { stated, found });
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
            return Err(FileError::Checksum);
        }
        let profile: SavedProfile = Profile::decode(body)?.try_into()?;
        if version_of(profile.kind) != stated_version {
            return Err(FileError::Contradiction { what: "the version is not that of the kind of the profile" });
        }
        Ok(profile)
    }
}

/// Version of the format in which a kind of profiles is written.
fn version_of(kind: ProfileKind) -> u32 {
    match kind {
        ProfileKind::Counts => 1,
        ProfileKind::Coverage => 2,
        ProfileKind::Contexts => VERSION,
    }
}

#[cfg(test)]
mod tests;
