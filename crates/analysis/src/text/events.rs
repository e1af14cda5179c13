//! Events of basic blocks.

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess};
use ingraft_model::{BlockEvents, Svma};

/// Counts the events of a block that begins at an address. Bytes that are no instruction end the block.
pub fn block_events(at: Svma, code: &[u8]) -> BlockEvents {
    let mut events = BlockEvents { last: at, ..BlockEvents::default() };
    let mut factory = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        events.last = Svma(instruction.ip());
        events.instructions += 1;
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => events.calls += 1,
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::ConditionalBranch => {
                events.branches += 1;
            }
            FlowControl::Next
            | FlowControl::Return
            | FlowControl::Interrupt
            | FlowControl::XbeginXabortXend
            | FlowControl::Exception => {}
        }
        for memory in factory.info(&instruction).used_memory() {
            let (reads, writes) = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => (1, 0),
                OpAccess::Write | OpAccess::CondWrite => (0, 1),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (1, 1),
                OpAccess::None | OpAccess::NoMemAccess => (0, 0),
            };
            events.reads += reads;
            events.writes += writes;
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_its_calls_branches_and_accesses() {
        // add [rdi], rax; mov rcx, [rsi]; push rcx; call 0x100e
        let code = [0x48, 0x01, 0x07, 0x48, 0x8b, 0x0e, 0x51, 0xe8, 0x02, 0x00, 0x00, 0x00];
        let events = block_events(Svma(0x1000), &code);
        assert_eq!(
            events,
            BlockEvents { last: Svma(0x1007), instructions: 4, calls: 1, branches: 0, reads: 2, writes: 3 }
        );
        // test eax, eax; jne 0x2000
        let code = [0x85, 0xc0, 0x75, 0xfc];
        let events = block_events(Svma(0x2000), &code);
        assert_eq!(
            events,
            BlockEvents { last: Svma(0x2002), instructions: 2, calls: 0, branches: 1, reads: 0, writes: 0 }
        );
        assert_eq!(block_events(Svma(0x3000), &[]), BlockEvents { last: Svma(0x3000), ..BlockEvents::default() });
    }
}
