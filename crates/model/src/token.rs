//! Tokens of a block trace: the bytes that generated code appends to a thread's buffer, and that the replay of a trace reads.
//!
//! | first byte | bytes | token |
//! | --- | --- | --- |
//! | 0x00 | | no token: memory that no thread has written |
//! | 0x01 to 0xdf | 1 | [`Token::Passage`] of a place up to 222 |
//! | 0xe0 to 0xef | 2 | [`Token::Passage`] of a later place |
//! | 0xf0 to 0xf7 | 2 | [`Token::Enter`] of a function up to 2,039 |
//! | 0xf8 | 3 | [`Token::Enter`] of any function |
//! | 0xf9 | 3 | [`Token::Resume`] |
//! | 0xfa, then 0x80 to 0xff | 5 | [`Token::Stack`] |
//! | 0xfa, then 0x01 | 11 | [`Token::Time`] |
//! | 0xfa, then 0x02 | 2 | [`Token::Condition`] |
//! | 0xfb | 1 | [`Token::Leaving`] |
//! | 0xfc | 1 | [`Token::Unwound`] |
//! | 0xfd | 1 | [`Token::Switched`] |
//! | 0xfe | 1 | [`Token::Continuing`] |
//! | 0xff | 1 | [`Token::Gap`] |
//!
//! No byte of a token is 0. So a reader of a buffer, in which unwritten bytes are 0, sees whether a token is complete. The first two bytes
//! tell the length, so a reader that does not know the function of a passage finds the next token.

/// Number of places of a function whose passage takes one byte.
pub const SHORT_PLACES: u32 = 0xdf;
/// Largest number of places of a function.
pub const PLACES_MAX: u32 = SHORT_PLACES + 16 * DIGITS;
/// Largest number of functions of a trace.
pub const FUNCTIONS_MAX: u32 = DIGITS * DIGITS;
/// Number of bytes of [`Token::Stack`].
pub const STACK_BYTES: u32 = 5;
/// First byte of [`Token::Stack`], [`Token::Time`] and [`Token::Condition`]. The bytes of the number each have seven of its bits, the lowest ones first, and their
/// highest bit is 1.
pub const STACK: u8 = 0xfa;
/// Second byte of [`Token::Time`]. The second byte of [`Token::Stack`] is above.
pub const TIME: u8 = 0x01;
/// Second byte of [`Token::Condition`].
const CONDITION: u8 = 0x02;
/// Number of bytes of the number in [`Token::Time`].
pub const TIME_DIGITS: u32 = 9;
/// Number of bytes of [`Token::Time`].
pub const TIME_BYTES: u32 = 2 + TIME_DIGITS;
/// Number of bits that [`Token::Stack`] keeps of a stack pointer.
pub const STACK_BITS: u32 = 28;

/// Number of values of a byte that is not 0.
const DIGITS: u32 = 255;
/// Number of functions whose entry takes two bytes.
const SHORT_FUNCTIONS: u32 = 8 * DIGITS;

const LONG_PASSAGE: u8 = 0xe0;
const SHORT_ENTER: u8 = 0xf0;
const LONG_ENTER: u8 = 0xf8;
const RESUME: u8 = 0xf9;
const LEAVING: u8 = 0xfb;
const UNWOUND: u8 = 0xfc;
const SWITCHED: u8 = 0xfd;
const CONTINUING: u8 = 0xfe;
const GAP: u8 = 0xff;

/// A token of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    /// An activation of a function begins. The operand is the function's number in the trace.
    Enter(u32),
    /// Control passes a place of the function whose activation is the innermost one. The operand is the number of the place.
    Passage(u32),
    /// The next token is a passage in this function, at which control may arrive from any activation: at the landing pad of an exception,
    /// or from a call that returns twice.
    Resume(u32),
    /// Stack pointer at the next token, which is an entry, a resume or an unwound: bits 3 to 30.
    Stack(u32),
    /// Time at the next entry, in ticks of the clock of timers: its lowest 63 bits.
    Time(u64),
    /// The condition of the trace holds.
    Condition,
    /// The thread is about to leave activations by an exception or a longjmp. A resume or an unwound tells which ones.
    Leaving,
    /// The same, for an exception that goes on after a cleanup.
    Continuing,
    /// The thread has left the activations whose stack pointer at their entry is not above the one of the stack token before.
    Unwound,
    /// The thread continues on another stack, in other activations.
    Switched,
    /// Tokens are missing. Threads never write this token; the reader of a buffer adds it.
    Gap,
}

/// A byte that does not belong to the token that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a byte of a trace belongs to no token: {0:#04x}")]
pub struct NoToken(pub u8);

impl Token {
    /// The token for a stack pointer.
    pub fn stack(sp: u64) -> Self {
        Token::Stack((sp >> 3) as u32 & ((1 << STACK_BITS) - 1))
    }

    /// The bytes of the token; `None` if the number of a place or function is too large.
    pub fn bytes(self) -> Option<Vec<u8>> {
        Some(match self {
            Token::Passage(place) if place < SHORT_PLACES => vec![place as u8 + 1],
            Token::Passage(place) if place < PLACES_MAX => {
                let rest = place - SHORT_PLACES;
                vec![LONG_PASSAGE + (rest / DIGITS) as u8, digit(rest)]
            }
            Token::Enter(function) if function < SHORT_FUNCTIONS => {
                vec![SHORT_ENTER + (function / DIGITS) as u8, digit(function)]
            }
            Token::Enter(function) if function < FUNCTIONS_MAX => {
                vec![LONG_ENTER, digit(function), digit(function / DIGITS)]
            }
            Token::Resume(function) if function < FUNCTIONS_MAX => {
                vec![RESUME, digit(function), digit(function / DIGITS)]
            }
            Token::Stack(sp) if sp >> STACK_BITS == 0 => {
                let part = |shift: u32| 0x80 | (sp >> shift) as u8;
                vec![STACK, part(0), part(7), part(14), part(21)]
            }
            Token::Time(ticks) if ticks >> (7 * TIME_DIGITS) == 0 => {
                let digits = (0..TIME_DIGITS).map(|n| 0x80 | (ticks >> (7 * n)) as u8);
                [STACK, TIME].into_iter().chain(digits).collect()
            }
            Token::Condition => vec![STACK, CONDITION],
            Token::Leaving => vec![LEAVING],
            Token::Continuing => vec![CONTINUING],
            Token::Unwound => vec![UNWOUND],
            Token::Switched => vec![SWITCHED],
            Token::Gap => vec![GAP],
            Token::Passage(_) | Token::Enter(_) | Token::Resume(_) | Token::Stack(_) | Token::Time(_) => return None,
        })
    }

    /// Reads the token at the beginning of the bytes. Returns the token and its length; `None` if the token is not complete, because a byte
    /// is missing or 0.
    pub fn read(bytes: &[u8]) -> Result<Option<(Token, usize)>, NoToken> {
        let at = |n: usize| bytes.get(n).copied().filter(|byte| *byte != 0);
        let Some(first) = at(0) else { return Ok(None) };
        let value = |n: usize| at(n).map(|byte| u32::from(byte) - 1);
        let number = || Some(value(1)? + DIGITS * value(2)?);
        let token = match first {
            0x00..LONG_PASSAGE => Some((Token::Passage(u32::from(first) - 1), 1)),
            LONG_PASSAGE..SHORT_ENTER => {
                let high = u32::from(first - LONG_PASSAGE) * DIGITS;
                value(1).map(|low| (Token::Passage(SHORT_PLACES + high + low), 2))
            }
            SHORT_ENTER..LONG_ENTER => {
                let high = u32::from(first - SHORT_ENTER) * DIGITS;
                value(1).map(|low| (Token::Enter(high + low), 2))
            }
            LONG_ENTER => number().map(|function| (Token::Enter(function), 3)),
            RESUME => number().map(|function| (Token::Resume(function), 3)),
            STACK if at(1) == Some(TIME) => {
                digits(bytes.get(2..), TIME_DIGITS)?.map(|ticks| (Token::Time(ticks), TIME_BYTES as usize))
            }
            STACK if at(1) == Some(CONDITION) => Some((Token::Condition, 2)),
            STACK => digits(bytes.get(1..), STACK_BYTES - 1)?.map(|sp| (Token::Stack(sp as u32), STACK_BYTES as usize)),
            LEAVING => Some((Token::Leaving, 1)),
            UNWOUND => Some((Token::Unwound, 1)),
            SWITCHED => Some((Token::Switched, 1)),
            CONTINUING => Some((Token::Continuing, 1)),
            GAP => Some((Token::Gap, 1)),
        };
        Ok(token)
    }
}

/// The number that this many bytes hold, seven bits each; `None` if one of them is missing or 0.
fn digits(bytes: Option<&[u8]>, count: u32) -> Result<Option<u64>, NoToken> {
    let mut number = 0;
    for n in 0..count {
        match bytes.and_then(|bytes| bytes.get(n as usize)) {
            None | Some(0) => return Ok(None),
            Some(byte) if byte & 0x80 == 0 => return Err(NoToken(*byte)),
            Some(byte) => number |= u64::from(byte & 0x7f) << (7 * n),
        }
    }
    Ok(Some(number))
}

/// A byte for the lowest digit of a number.
fn digit(number: u32) -> u8 {
    (number % DIGITS) as u8 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let numbers = (0..300).chain([2039, 2040, 4302, FUNCTIONS_MAX - 1]);
        let tokens = numbers.flat_map(|n| [Token::Enter(n), Token::Passage(n % PLACES_MAX), Token::Resume(n)]);
        let stacks = [0, 8, 0x7ffc_1234_5678, u64::MAX].map(Token::stack);
        let conditions = [Token::Condition];
        let times = [0, 1, 0x7f, 1 << 62, (1 << 63) - 1].map(Token::Time);
        for token in tokens.chain(stacks).chain(times).chain(conditions).chain([
            Token::Leaving,
            Token::Continuing,
            Token::Unwound,
            Token::Switched,
            Token::Gap,
        ]) {
            let bytes = token.bytes().expect("a small number");
            assert!(bytes.len() <= TIME_BYTES as usize && !bytes.contains(&0), "{token:?} {bytes:x?}");
            assert_eq!(Token::read(&bytes), Ok(Some((token, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(Token::read(&bytes[..cut]), Ok(None), "{token:?}");
                let mut unwritten = bytes.clone();
                unwritten[cut..].fill(0);
                assert_eq!(Token::read(&unwritten), Ok(None), "{token:?}");
            }
        }
    }

    #[test]
    fn numbers_that_do_not_fit_have_no_bytes() {
        for token in [
            Token::Passage(PLACES_MAX),
            Token::Enter(FUNCTIONS_MAX),
            Token::Resume(FUNCTIONS_MAX),
            Token::Stack(1 << 28),
            Token::Time(1 << 63),
        ] {
            assert_eq!(token.bytes(), None, "{token:?}");
        }
    }

    #[test]
    fn other_bytes_are_no_tokens() {
        assert_eq!(Token::read(&[0xfa, 0x80, 0x7f]), Err(NoToken(0x7f)));
        assert_eq!(Token::read(&[0xfa, 0x03]), Err(NoToken(0x03)));
        assert_eq!(Token::read(&[0xfa, 0x01, 0x80, 0x01]), Err(NoToken(0x01)));
    }
}
