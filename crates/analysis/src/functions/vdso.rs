//! Functions of the library that the kernel maps into every process (vdso(7)). Generated code may call one without saving more than the
//! general purpose registers if that is proven instruction by instruction.

use iced_x86::{CpuidFeature, FlowControl, Instruction, Mnemonic};
use ingraft_model::Svma;
use rustc_hash::FxHashSet;

use crate::file::elf::Elf;
use crate::file::go::GoFunctions;
use crate::file::symbols;
use crate::text::decode;

/// Largest number of instructions that are examined; no such function has more.
const INSTRUCTIONS_MAX: usize = 4096;
/// Length of the longest instruction, in bytes.
const LENGTH_MAX: u64 = 15;

/// Address of the named function if the function and all that it calls can be decoded wholly and use neither vector nor x87 registers.
pub fn plain_function(library: &Elf, name: &str) -> Option<Svma> {
    let functions = symbols::read(library, None, &GoFunctions::Absent).functions;
    let begin = functions.iter().find(|f| !f.ifunc && f.name.mangled() == name)?.svma;
    is_plain(library, begin).then_some(Svma(begin))
}

fn is_plain(library: &Elf, begin: u64) -> bool {
    let (mut todo, mut seen) = (vec![begin], FxHashSet::default());
    while let Some(at) = todo.pop() {
        if !seen.insert(at) {
            continue;
        }
        let bytes = (1..=LENGTH_MAX).rev().find_map(|len| library.data_at(at, len));
        let Some(i) = bytes.and_then(|bytes| decode::one(bytes, at)).filter(touches_general_registers_only) else {
            return false;
        };
        match i.flow_control() {
            FlowControl::Next => todo.push(i.next_ip()),
            FlowControl::Call if i.mnemonic() == Mnemonic::Syscall => todo.push(i.next_ip()),
            FlowControl::Call | FlowControl::ConditionalBranch if i.near_branch_target() != 0 => {
                todo.extend([i.near_branch_target(), i.next_ip()]);
            }
            FlowControl::UnconditionalBranch if i.near_branch_target() != 0 => todo.push(i.near_branch_target()),
            FlowControl::Return => {}
            _ => return false,
        }
        if seen.len() > INSTRUCTIONS_MAX {
            return false;
        }
    }
    true
}

/// Whether an instruction belongs to parts of the instruction set that have general purpose registers only.
fn touches_general_registers_only(i: &Instruction) -> bool {
    use CpuidFeature as F;
    let general = |feature: &F| {
        [F::INTEL8086, F::INTEL186, F::INTEL286, F::INTEL386, F::INTEL486, F::X64, F::CMOV, F::MULTIBYTENOP]
            .iter()
            .chain(&[F::TSC, F::RDTSCP, F::RDPID, F::SYSCALL, F::PAUSE, F::CET_IBT, F::MOVBE, F::BMI1, F::BMI2])
            .any(|known| known == feature)
    };
    let fence = matches!(i.mnemonic(), Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence);
    fence || i.cpuid_features().iter().all(general)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_the_vector_and_x87_units_are_told_apart() {
        let plain = |bytes: &[u8]| touches_general_registers_only(&decode::one(bytes, 0).expect("an instruction"));
        // rdtscp; lfence; pause; endbr64; mul rdx; xchg ax,ax; cmovne rax,rdx
        let general: [&[u8]; 7] = [
            &[0x0f, 0x01, 0xf9],
            &[0x0f, 0xae, 0xe8],
            &[0xf3, 0x90],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x48, 0xf7, 0xe2],
            &[0x66, 0x90],
            &[0x48, 0x0f, 0x45, 0xc2],
        ];
        assert!(general.iter().all(|bytes| plain(bytes)));
        // movq xmm0,rax; fld1; emms; vzeroupper; movaps [rsp],xmm0; fninit
        let others: [&[u8]; 6] = [
            &[0x66, 0x48, 0x0f, 0x6e, 0xc0],
            &[0xd9, 0xe8],
            &[0x0f, 0x77],
            &[0xc5, 0xf8, 0x77],
            &[0x0f, 0x29, 0x04, 0x24],
            &[0xdb, 0xe3],
        ];
        assert!(!others.iter().any(|bytes| plain(bytes)));
    }
}
