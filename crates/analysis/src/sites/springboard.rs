//! Sizes of springboards and of what a site describes.

/// Bytes that a site describes.
pub(crate) const SITE_MAX: u64 = 64;
/// The longest springboard that is written at once.
pub(crate) const SPRINGBOARD: u64 = 5;
/// Springboards lie on one page.
pub(crate) const PAGE: u64 = 4096;
/// A jump with a distance of one byte, to an island.
pub(crate) const SHORT: u64 = 2;

/// Whether bytes lie on one page.
pub(crate) fn on_one_page(start: u64, len: u64) -> bool {
    start / PAGE == (start + len.max(1) - 1) / PAGE
}
