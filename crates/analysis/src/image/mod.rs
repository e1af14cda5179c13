//! An analysed image with the results of the pass, and look-ups in them. It uses `file`, `text` and `functions`.

mod analysed;
mod control;
mod goroutines;
mod lookup;
mod memo;
mod parse;

pub use self::analysed::AnalysedImage;
pub use self::goroutines::GoroutineLayout;
