//! Comparison of a routine with the one form that is accepted, instruction by instruction. The comparison serves routines whose
//! correctness abstract execution could not prove.

use iced_x86::{Formatter, Instruction, IntelFormatter};

use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};

/// Element of an accepted form.
#[derive(Debug)]
pub(super) enum Right {
    /// One instruction, other than a jump inside the routine.
    Text(String),
    /// Jump with this mnemonic to a label.
    Jump(&'static str, &'static str),
    /// Target of jumps.
    Label(&'static str),
}

/// Adds instructions to a form.
pub(super) fn put(form: &mut Vec<Right>, lines: impl IntoIterator<Item = impl Into<String>>) {
    form.extend(lines.into_iter().map(|line| Right::Text(line.into())));
}

/// Proves that the routine at `at` has this form. Returns the end of the routine.
pub(super) fn prove(interpreter: &mut Interpreter<'_>, form: &[Right], at: u64) -> Result<u64, VerifyError> {
    let mut labels: Vec<(&str, u64)> = Vec::new();
    let mut instructions: Vec<(Instruction, &Right)> = Vec::with_capacity(form.len());
    let mut next = at;
    for right in form {
        if let Right::Label(name) = right {
            labels.push((name, next));
            continue;
        }
        let i = interpreter.memory().decode(next)?;
        next = i.next_ip();
        interpreter.mark(&i)?;
        instructions.push((i, right));
    }
    for (i, right) in instructions {
        let jumps = i.is_jcc_short_or_near() || i.is_jmp_short_or_near();
        let is_right = match right {
            Right::Text(right) => !jumps && words(&i) == *right,
            Right::Jump(mnemonic, to) => {
                let target = labels.iter().find(|(name, _)| name == to).map(|(_, at)| *at);
                jumps && words(&i).split(' ').next() == Some(mnemonic) && Some(i.near_branch_target()) == target
            }
            Right::Label(_) => false,
        };
        if !is_right {
            return fail(i.ip(), Flaw::Forbidden);
        }
    }
    Ok(next)
}

/// Text of an instruction, with the sizes of its memory operands.
fn words(i: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_signed_immediate_operands(false);
    options.set_memory_size_options(iced_x86::MemorySizeOptions::Always);
    let mut text = String::new();
    formatter.format(i, &mut text);
    text
}
