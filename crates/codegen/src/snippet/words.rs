//! Words that a snippet pushes when it calls a function of the program.

use ingraft_model::ProgramCall;

/// Words that a snippet pushes for a call: the arguments from the last to the first, then the function. The routine pops them.
pub(crate) const WORDS: i32 = ProgramCall::ARGS_MAX as i32 + 1;

/// A text with a zero byte at its end, as words padded with zero bytes.
pub(crate) fn words_of(text: &str) -> Vec<i64> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((text.len() / 8 + 1) * 8, 0);
    bytes.chunks_exact(8).filter_map(|word| Some(i64::from_le_bytes(*word.first_chunk()?))).collect()
}
