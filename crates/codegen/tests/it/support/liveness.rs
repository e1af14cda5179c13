//! Registers and flags that are dead at the beginning of blocks, found from the instructions alone.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, RflagsBits};
use ingraft_model::{BodyBlock, Edge, EdgeTarget, FreeRegisters, Gpr, Key};

/// One bit for each register, and bit 16 for the flags.
type Live = u32;
const ALL: Live = 0x1ffff;
const FLAGS: Live = 1 << 16;
const STATUS: u32 = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// States for each block what is free there.
pub fn fill(blocks: &mut [BodyBlock], edges: &[Edge]) {
    let mut live = vec![0; blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for n in (0..blocks.len()).rev() {
            let mut out = edges.iter().filter(|edge| edge.from.index() == n).peekable();
            let mut at_end = if out.peek().is_some() { 0 } else { ALL };
            for edge in out {
                at_end |= match edge.to {
                    EdgeTarget::Block(to) => live[to.index()],
                    EdgeTarget::Outside(_) | EdgeTarget::Dynamic => ALL,
                };
            }
            let code = Decoder::with_ip(64, &blocks[n].bytes, blocks[n].block.range.start.0, DecoderOptions::NONE);
            let code: Vec<Instruction> = code.into_iter().collect();
            let before = code.iter().rev().fold(at_end, |after, i| before(i, after));
            changed |= before != live[n];
            live[n] = before;
        }
    }
    for (block, live) in blocks.iter_mut().zip(live) {
        let scratch = (0..16).filter(|r| *r != 4 && live & 1 << r == 0).map(Gpr).collect();
        block.free = FreeRegisters { scratch, flags: live & FLAGS == 0 };
    }
}

/// Live registers and flags before an instruction.
fn before(i: &Instruction, after: Live) -> Live {
    let stays = matches!(
        i.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    if !stays || i.code() == iced_x86::Code::Syscall {
        return ALL;
    }
    let (mut read, mut written) = (0, 0);
    for used in InstructionInfoFactory::new().info(i).used_registers() {
        let register = used.register();
        if !register.is_gpr() {
            continue;
        }
        let bit = 1 << register.full_register().number();
        match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Write if register.is_gpr64() || register.is_gpr32() => written |= bit,
            _ => read |= bit,
        }
    }
    if i.rflags_read() != 0 {
        read |= FLAGS;
    }
    let undefined = i.rflags_undefined() & !RflagsBits::AF;
    if i.rflags_modified() & !undefined & STATUS == STATUS {
        written |= FLAGS;
    }
    after & !written | read
}
