//! System calls of functions that are to be copied. Such an instruction stays in the text, like a call: the kernel finds it where it was,
//! restarts it there, and comes back to the instruction after it, where a springboard leads to the copy.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use ingraft_model::{Block, BlockId, Cfg, EdgeKind, EdgeTarget, IndexVec, Refusal, WayInReason};

use crate::flow::body::DecodedFunction;
use crate::flow::cancellation;
use crate::text::transfer::ControlTransfer;

/// Numbers on x86-64 of the system calls after which a copy cannot go on, because the stack or the process is another one: munmap,
/// rt_sigreturn, clone, fork, vfork and clone3.
const LEFT_ALONE: [u32; 6] = [11, 15, 56, 57, 58, 435];

/// First number of the system calls with another ABI (x32).
const OTHER_ABI: u32 = 0x4000_0000;

/// Fails if a function has a system call that keeps it from being copied, or may run while asynchronous cancellation is on.
///
/// C libraries tell by the program counter whether a thread that is cancelled is about to wait in a system call: in a copy, the thread would
/// be elsewhere. The functions in question make any system call, so they are those that do not name the number.
pub(crate) fn check(body: &DecodedFunction<'_>, cfg: &Cfg) -> Result<(), Refusal> {
    let refuse = |i: &Instruction, why| Err(Refusal::NotDisplaceable { offset: body.function.offset_of(i.ip()), why });
    let is_some_made = cfg.blocks.iter().any(|block| makes_system_call(body, block));
    if let Some(i) = cancellation::changed(body, is_some_made) {
        return refuse(i, "a thread that is cancelled asynchronously there must find unwind tables");
    }
    if !is_some_made {
        return Ok(());
    }
    let numbers = numbers(body, cfg);
    for (block, number) in cfg.blocks.iter().zip(numbers).filter(|(block, _)| makes_system_call(body, block)) {
        let Some(i) = last(body, block) else { continue };
        match number {
            _ if i.code() != Code::Syscall => return refuse(i, "it enters the kernel in an unusual way"),
            // The kernel uses the lower half of the register.
            Some(number) if number as u32 >= OTHER_ABI => return refuse(i, "it enters the kernel in an unusual way"),
            None => return refuse(i, "a system call whose number is not a constant stays in its place"),
            Some(number) if LEFT_ALONE.contains(&(number as u32)) => {
                return refuse(i, "a system call that changes stacks or processes stays in its place");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn makes_system_call(body: &DecodedFunction<'_>, block: &Block) -> bool {
    last(body, block).is_some_and(|i| ControlTransfer::of(i) == ControlTransfer::System)
}

fn last<'b>(body: &'b DecodedFunction<'_>, block: &Block) -> Option<&'b Instruction> {
    let index = body.code.partition_point(|i| i.ip() < block.range.end.0).checked_sub(1)?;
    body.code.get(index)
}

/// Constants in the general registers, by their numbers; `None` where no constant is known.
type Constants = [Option<i64>; 16];

/// Registers that a call keeps: rbx, rsp, rbp, r12 to r15. A bit of each is set.
const KEPT_BY_CALLS: u16 = 0xf038;

/// Registers that a system call keeps: all but rax, rcx and r11.
const KEPT_BY_THE_KERNEL: u16 = !(1 << 0 | 1 << 1 | 1 << 11);

/// The constant in rax before the last instruction of each block; `None` where it is not known.
fn numbers(body: &DecodedFunction<'_>, cfg: &Cfg) -> IndexVec<BlockId, Option<i64>> {
    let mut info = InstructionInfoFactory::new();
    // The constants before and after the last instruction of a block.
    let mut through = |block: &Block, constants: Constants| {
        let first = body.index_of(block.range.start.0).unwrap_or(body.code.len());
        let inside = |i: &&Instruction| i.ip() < block.range.end.0;
        let code = body.code.get(first..).unwrap_or_default().iter().take_while(inside);
        code.fold((constants, constants), |(_, known), i| (known, after(i, known, &mut info)))
    };
    // At the beginning of each block; `None` until control is found to come there.
    let mut before: IndexVec<BlockId, Option<Constants>> = IndexVec::filled(None, cfg.blocks.len());
    let mut numbers = IndexVec::filled(None, cfg.blocks.len());
    let returns = |reason| matches!(reason, WayInReason::CallReturn | WayInReason::SyscallReturn);
    let entered = |block: &Block| cfg.reasons_at(block.range.start).any(|reason| !returns(reason));
    let roots = cfg.blocks.entries().filter(|(_, block)| entered(block));
    let mut waiting: Vec<BlockId> = roots.map(|(block, _)| block).collect();
    for entry in &waiting {
        before.set(*entry, Some([None; 16]));
    }
    while let Some(from) = waiting.pop() {
        let Some((block, constants)) = cfg.blocks.get(from).zip(before.get(from).copied().flatten()) else { continue };
        let (last, mut behind) = through(block, constants);
        numbers.set(from, last[0]);
        let system = makes_system_call(body, block);
        let kept = if system { KEPT_BY_THE_KERNEL } else { KEPT_BY_CALLS };
        for (_, edge) in cfg.edges_from(from) {
            let EdgeTarget::Block(to) = edge.to else { continue };
            if edge.kind == EdgeKind::CallReturn {
                keep(&mut behind, |register| kept >> register & 1 != 0);
            }
            let Some(known) = before.get_mut(to) else { continue };
            let mut joined = known.unwrap_or(behind);
            keep(&mut joined, |register| known.is_none_or(|known| known[register] == behind[register]));
            if *known != Some(joined) {
                *known = Some(joined);
                waiting.push(to);
            }
        }
    }
    numbers
}

/// Forgets the constants in all registers but some.
fn keep(constants: &mut Constants, kept: impl Fn(usize) -> bool) {
    for (register, constant) in constants.iter_mut().enumerate() {
        *constant = constant.filter(|_| kept(register));
    }
}

/// The constants after an instruction.
fn after(i: &Instruction, before: Constants, info: &mut InstructionInfoFactory) -> Constants {
    let mut after = before;
    let writes = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    for used in info.info(i).used_registers().iter().filter(|used| writes(used.access())) {
        if used.register().is_gpr() {
            after[used.register().full_register().number()] = None;
        }
    }
    let to = i.op0_register();
    let whole = |register: Register| register.is_gpr32() || register.is_gpr64();
    if i.op_count() == 2 && i.op0_kind() == OpKind::Register && whole(to) {
        let same = i.op1_kind() == OpKind::Register && whole(i.op1_register());
        let constant = match i.mnemonic() {
            Mnemonic::Mov if same => before[i.op1_register().number()],
            Mnemonic::Mov => i.try_immediate(1).ok().map(|value| value as i64),
            Mnemonic::Xor if same && i.op1_register() == to => Some(0),
            _ => return after,
        };
        after[to.number()] = constant;
    }
    after
}
