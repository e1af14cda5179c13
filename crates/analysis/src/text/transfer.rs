//! Transfer of control at an instruction: the classification that all walks over code share.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

/// Transfer of control at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlTransfer {
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

impl ControlTransfer {
    /// The transfer of an instruction.
    pub fn of(i: &Instruction) -> ControlTransfer {
        let target = || Some(i.near_branch_target()).filter(|_| i.op0_kind() == OpKind::NearBranch64);
        match i.flow_control() {
            FlowControl::Next if i.code() == Code::Hlt => ControlTransfer::Stop,
            FlowControl::Next => ControlTransfer::Next,
            FlowControl::ConditionalBranch => target().map_or(ControlTransfer::Indirect, ControlTransfer::Branch),
            FlowControl::UnconditionalBranch => target().map_or(ControlTransfer::Indirect, ControlTransfer::Jump),
            FlowControl::XbeginXabortXend => target().map_or(ControlTransfer::Next, ControlTransfer::Transaction),
            FlowControl::IndirectBranch => ControlTransfer::Indirect,
            FlowControl::Call if i.mnemonic() == Mnemonic::Call => {
                target().map_or(ControlTransfer::IndirectCall, ControlTransfer::Call)
            }
            FlowControl::IndirectCall => ControlTransfer::IndirectCall,
            FlowControl::Call => ControlTransfer::System,
            FlowControl::Interrupt if i.code() == Code::Int3 => ControlTransfer::Stop,
            FlowControl::Interrupt => ControlTransfer::System,
            FlowControl::Return => ControlTransfer::Return,
            FlowControl::Exception => ControlTransfer::Stop,
        }
    }

    /// The address to which the instruction itself may branch; `None` at calls.
    pub fn branch_target(self) -> Option<u64> {
        match self {
            ControlTransfer::Branch(to) | ControlTransfer::Transaction(to) | ControlTransfer::Jump(to) => Some(to),
            _ => None,
        }
    }

    /// Whether control can go on at the next instruction without having left the code in between.
    pub fn runs_on(self) -> bool {
        matches!(self, ControlTransfer::Next | ControlTransfer::Branch(_) | ControlTransfer::Transaction(_))
    }

    /// Whether control comes back to the next instruction from elsewhere.
    pub fn comes_back(self) -> bool {
        matches!(self, ControlTransfer::Call(_) | ControlTransfer::IndirectCall | ControlTransfer::System)
    }
}
