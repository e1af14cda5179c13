//! Transfer of control at an instruction: the classification that all walks over code share.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

/// Transfer of control at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// Control continues at the next instruction.
    Next,
    /// Control goes to this address if a condition holds, else to the next instruction.
    Branch(u64),
    /// Control goes to the next instruction, and to this address if the transaction that begins here aborts.
    Transaction(u64),
    /// Control always goes to this address.
    Jump(u64),
    /// Control goes to an address in a register or in memory.
    Indirect,
    /// A call of this address. The return address is that of the next instruction.
    Call(u64),
    /// A call of an address in a register or in memory. The return address is that of the next instruction.
    IndirectCall,
    /// Control enters the kernel and comes back to the next instruction.
    System,
    /// Control goes to the return address on the stack.
    Return,
    /// Control goes nowhere: the instruction faults or traps.
    Stop,
}

impl Transfer {
    /// The transfer of an instruction.
    pub fn of(i: &Instruction) -> Transfer {
        let target = || Some(i.near_branch_target()).filter(|_| i.op0_kind() == OpKind::NearBranch64);
        match i.flow_control() {
            FlowControl::Next if i.code() == Code::Hlt => Transfer::Stop,
            FlowControl::Next => Transfer::Next,
            FlowControl::ConditionalBranch => target().map_or(Transfer::Indirect, Transfer::Branch),
            FlowControl::UnconditionalBranch => target().map_or(Transfer::Indirect, Transfer::Jump),
            FlowControl::XbeginXabortXend => target().map_or(Transfer::Next, Transfer::Transaction),
            FlowControl::IndirectBranch => Transfer::Indirect,
            FlowControl::Call if i.mnemonic() == Mnemonic::Call => {
                target().map_or(Transfer::IndirectCall, Transfer::Call)
            }
            FlowControl::IndirectCall => Transfer::IndirectCall,
            FlowControl::Call => Transfer::System,
            FlowControl::Interrupt if i.code() == Code::Int3 => Transfer::Stop,
            FlowControl::Interrupt => Transfer::System,
            FlowControl::Return => Transfer::Return,
            FlowControl::Exception => Transfer::Stop,
        }
    }

    /// The address to which the instruction itself may branch; `None` at calls.
    pub fn branch_target(self) -> Option<u64> {
        match self {
            Transfer::Branch(to) | Transfer::Transaction(to) | Transfer::Jump(to) => Some(to),
            _ => None,
        }
    }

    /// Whether control can go on at the next instruction without having left the code in between.
    pub fn runs_on(self) -> bool {
        matches!(self, Transfer::Next | Transfer::Branch(_) | Transfer::Transaction(_))
    }

    /// Whether control comes back to the next instruction from elsewhere.
    pub fn comes_back(self) -> bool {
        matches!(self, Transfer::Call(_) | Transfer::IndirectCall | Transfer::System)
    }
}
