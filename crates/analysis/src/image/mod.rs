//! An analysed image with the results of the pass, and look-ups in them. It uses `file`, `text` and `functions`.

mod analysed;
pub(crate) mod memo;

pub use self::analysed::Image;
