//! The version of the protocol, and its comparison by the two sides.

use ingraft_api::Reason;

use crate::failure::ProtocolFailure;

/// Version of the protocol in this build. It is raised only for a change that an older reader would misinterpret.
pub const PROTOCOL: u32 = 1;

/// Metadata key with which a client sends its version as a decimal number.
pub const PROTOCOL_HEADER: &str = "ingraft-protocol";

/// Compares the version of the other side with this one. `None` means a generic client, which is accepted.
pub fn check(theirs: Option<&str>) -> Result<(), ProtocolFailure> {
    let Some(text) = theirs else { return Ok(()) };
    match text.parse::<u32>() {
        Ok(PROTOCOL) => Ok(()),
        Ok(other) => Err(mismatch(other)),
        Err(_) => Err(ProtocolFailure::new(
            Reason::InvalidField,
            format!("the metadata `{PROTOCOL_HEADER}` is no number: `{}`", text.escape_debug()),
            format!("send `{PROTOCOL_HEADER}: {PROTOCOL}` or leave it out"),
        )),
    }
}

/// Returns the failure for sides with the versions `theirs` and [`PROTOCOL`].
pub fn mismatch(theirs: u32) -> ProtocolFailure {
    let older = if theirs < PROTOCOL { "the other side" } else { "this side" };
    ProtocolFailure::new(
        Reason::VersionMismatch,
        format!("protocol version {theirs} was asked for, version {PROTOCOL} is spoken here"),
        format!("install the same version of ingraft on both sides; {older} is the older one"),
    )
}

#[cfg(test)]
mod tests {
    use ingraft_api::ErrorClass;

    use super::*;

    #[test]
    fn versions_are_compared() {
        assert!(check(None).is_ok());
        assert!(check(Some("1")).is_ok());
        assert_eq!(check(Some("2")).unwrap_err().reason, "version_mismatch");
        assert_eq!(check(Some("2")).unwrap_err().class, ErrorClass::Version);
        assert_eq!(check(Some("one")).unwrap_err().reason, "invalid_field");
        assert_eq!(check(Some("99999999999")).unwrap_err().class, ErrorClass::Usage);
    }
}
