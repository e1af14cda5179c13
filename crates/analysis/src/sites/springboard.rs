//! Sizes of springboards, and of the bytes that a site describes.

use ingraft_model::Refusal;
use ingraft_model::machine::PAGE;

/// Largest number of bytes that a site describes.
pub(crate) const SITE_MAX: u64 = 64;
/// Length in bytes of a jump with a displacement of one byte, which leads to an island.
pub(crate) const SHORT: u64 = 2;

/// The reason why no springboard begins inside of an instruction, behind its prefix.
pub(crate) const WITHIN_OTHER: &str =
    "it begins inside of another instruction, behind a prefix that control may jump over";

/// Whether bytes lie on one page.
pub(crate) fn on_one_page(start: u64, len: u64) -> bool {
    start / PAGE == (start + len.max(1) - 1) / PAGE
}

/// Refusal of a springboard that would cover a static probe, which lies after this number of bytes.
pub(crate) fn probed(available: u64) -> Refusal {
    Refusal::TooShort {
        available: available as u32,
        next: "a static probe (USDT), on which other tools set breakpoints",
    }
}
