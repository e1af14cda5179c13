//! The shared slow routine, for a thread whose gs base is not its shard yet, a fork child, and a thread for which no shard is free.
//!
//! The arena has one routine per scratch register `r`. On entry, `r` holds the address of a point's slot. The routine leaves by a jump to
//! `r` and keeps all other registers. The flags are dead, or the point has saved them. No address of the arena is pushed.

use iced_x86::code_asm::{
    AsmRegister32, AsmRegister64, CodeAssembler, byte_ptr, dword_ptr, eax, get_gpr32, get_gpr64, qword_ptr, rax,
};
use iced_x86::code_asm::{r10, r11, rsp};
use iced_x86::{IcedError, Register};
use ingraft_model::layout::birth::UNBORN;
use ingraft_model::layout::{CALL_SP, CALLING, CHILD_SHARD, CLAIMS, FIRST_SHARD, OWNER, header};
use ingraft_model::{Gpr, ThreadIdentity};

use crate::code::block::LINK;
use crate::code::environment::{Assembly, CodegenError, Environment};
use crate::code::listing::{Filled, HoleValues, Listing};
use crate::snippet::routines::holes;
use crate::snippet::slot::{LEN, NOP, OPCODE};

/// First bytes of a plain count: `inc qword gs:[disp32]` without its displacement (the fifth byte is always 0x25).
pub(crate) const COUNT: [u8; 5] = [0x65, 0x48, 0xff, 0x04, 0x25];
/// First bytes of a plain count if all threads share the counters: `lock inc qword [disp32]`.
pub(crate) const LOCKED_COUNT: [u8; 5] = [0xf0, 0x48, 0xff, 0x04, 0x25];
/// First bytes of the marker of a compiled snippet: a long nop with a gs prefix, which no compiler emits. The displacement of the nop
/// leads from its end to the snippet's twin for shard 0.
pub(crate) const MARKER: [u8; 4] = [0x65, 0x0f, 0x1f, 0x80];

/// Distance in bytes from a slot to the code after it.
const BEHIND: i32 = LEN as i32;

#[derive(Clone, Copy)]
struct RegisterPair {
    wide: AsmRegister64,
    half: AsmRegister32,
}

impl RegisterPair {
    fn new(wide: Register) -> Option<Self> {
        Some(RegisterPair { wide: get_gpr64(wide)?, half: get_gpr32(wide.full_register32())? })
    }
}

/// The 64-bit register with the given number.
pub(crate) fn register64(r: Gpr) -> Option<AsmRegister64> {
    get_gpr64(Register::RAX + u32::from(r.0))
}

/// Assembles the routine for `r`. Its second entry walks the chain from the jump at `r` on and counts in shard 0.
pub(crate) fn assemble(env: &Environment, r: Gpr) -> Result<Filled, CodegenError> {
    listing(&holes(env), r).map_err(|Assembly(why)| CodegenError::Assembler { what: "the slow routine", why })
}

/// Fills the listing of the routine for `r`.
#[expect(clippy::too_many_lines, reason = "a listing of assembly code")]
pub(crate) fn listing(holes: &HoleValues, r: Gpr) -> Result<Filled, Assembly> {
    let missing = || Assembly("no such register".to_owned());
    let mut listing = Listing::new(holes)?;
    let abs = |offset: u32| u64::from(holes.at(offset));
    let (stride, alive) = (holes.stride(), u64::from(holes.alive));
    let all = stride.wrapping_mul(u64::from(holes.shards));
    let child_owner = holes.child + u64::from(OWNER);
    let a = &mut listing.a;

    let target = register64(r).ok_or_else(missing)?;
    let mut spare = [Register::RCX, Register::RDX, Register::RSI, Register::RDI]
        .into_iter()
        .filter(|&s| s != Register::RAX + u32::from(r.0))
        .filter_map(RegisterPair::new);
    let mut next = || spare.next().ok_or_else(missing);
    let (k, id, n) = (next()?, next()?, next()?);
    // cmpxchg compares with rax, so the address of the slot must be in another register.
    let slot = if target == rax { next()?.wide } else { target };
    let saved = [if target == rax { slot } else { rax }, k.wide, id.wide, n.wide];

    let count = i32::from_le_bytes([COUNT[0], COUNT[1], COUNT[2], COUNT[3]]);
    let [mut child, mut foreign, mut locked, mut resume, mut won] = std::array::from_fn(|_| a.create_label());
    let [mut start, mut reset, mut probe, mut occupied, mut more] = std::array::from_fn(|_| a.create_label());

    for s in saved {
        a.push(s)?;
    }
    if target == rax {
        a.mov(slot, rax)?;
    }
    a.rdgsbase(k.wide)?;
    a.test(k.half, (stride - 1) as u32 as i32)?;
    a.jne(foreign)?;
    a.mov(n.wide, all)?;
    a.cmp(k.wide, n.wide)?;
    a.jae(foreign)?;
    match holes.identity {
        ThreadIdentity::FsOffset(offset) => a.mov(id.half, dword_ptr(u64::from(offset)).fs())?,
        ThreadIdentity::FsBase | ThreadIdentity::Locked => a.rdfsbase(id.wide)?,
    }
    a.cmp(dword_ptr(alive), 0)?;
    a.je(child)?;
    // A thread whose id the libc has not stored yet would share the claim 0, which means free.
    a.test(id.wide, id.wide)?;
    a.je(locked)?;

    // The parent may have prepared a shard for this fork child. The child has the gs base of the thread that forked, so it is known by the
    // thread pointer of that thread.
    let mut fresh = a.create_label();
    let heirs = holes.heirs();
    a.mov(n.wide, k.wide)?;
    a.shr(n.wide, holes.heir_shift())?;
    a.cmp(dword_ptr(n.wide + (heirs + 8)), 0)?;
    a.je(fresh)?;
    a.rdfsbase(k.wide)?;
    a.cmp(k.wide, qword_ptr(n.wide + heirs))?;
    a.jne(fresh)?;
    a.mov(k.half, dword_ptr(n.wide + (heirs + 8)))?;
    a.mov(qword_ptr(n.wide + (heirs + 8)), 0)?;
    a.mov(n.wide, id.wide)?;
    a.bts(n.wide, UNBORN)?;
    a.mov(qword_ptr(k.wide * 8 + abs(CLAIMS)), n.wide)?;
    a.jmp(won)?;

    a.set_label(&mut fresh)?;
    a.mov(k.half, 1)?;
    a.lock().xadd(dword_ptr(abs(header::CLAIM_HINT)), k.half)?;
    a.cmp(k.half, holes.shards as i32)?;
    a.jae(reset)?;
    a.cmp(k.half, FIRST_SHARD as i32)?;
    a.jae(start)?;
    a.set_label(&mut reset)?;
    a.mov(k.half, FIRST_SHARD)?;
    a.mov(dword_ptr(abs(header::CLAIM_HINT)), FIRST_SHARD + 1)?;
    a.set_label(&mut start)?;
    a.mov(n.half, holes.shards.saturating_sub(FIRST_SHARD))?;
    a.set_label(&mut probe)?;
    let claim = || qword_ptr(k.wide * 8 + abs(CLAIMS));
    a.cmp(claim(), 0)?;
    a.jne(occupied)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(claim(), id.wide)?;
    a.je(won)?;
    a.set_label(&mut occupied)?;
    a.inc(k.half)?;
    a.cmp(k.half, holes.shards as i32)?;
    a.jb(more)?;
    a.mov(k.half, FIRST_SHARD)?;
    a.set_label(&mut more)?;
    a.dec(n.half)?;
    a.jne(probe)?;
    a.lock().inc(dword_ptr(abs(header::EXHAUSTED)))?;
    a.jmp(locked)?;

    a.set_label(&mut won)?;
    a.shl(k.wide, holes.log)?;
    a.mov(qword_ptr(k.wide + abs(OWNER)), id.wide)?;
    a.wrgsbase(k.wide)?;

    a.set_label(&mut resume)?;
    restore(a, target, slot, saved)?;
    a.jmp(target)?;

    // The routine never changes a gs base that belongs to the program. Such a thread counts in shard 0. If it is in a fork child, it skips
    // all snippets instead.
    a.set_label(&mut foreign)?;
    let mut skip = a.create_label();
    a.cmp(dword_ptr(alive), 0)?;
    a.je(skip)?;
    // In a function that a snippet has called, a thread skips the snippets, unless its stack pointer shows that it has left the function
    // without a return.
    a.mov(n.half, k.half)?;
    a.and(n.half, (stride - 1) as u32 as i32)?;
    a.cmp(n.half, CALLING as i32)?;
    a.jne(locked)?;
    a.mov(n.wide, all)?;
    a.cmp(k.wide, n.wide)?;
    a.jae(locked)?;
    a.cmp(rsp, qword_ptr(k.wide + abs(CALL_SP - CALLING)))?;
    a.jb(skip)?;
    a.lock().inc(dword_ptr(abs(header::CALLS_LEFT)))?;
    a.sub(k.wide, CALLING as i32)?;
    a.wrgsbase(k.wide)?;
    a.jmp(resume)?;
    a.set_label(&mut skip)?;
    let mut bare = a.create_label();
    a.cmp(dword_ptr(slot), count)?;
    a.je(bare)?;
    a.movsxd(n.wide, dword_ptr(slot + OPCODE as i32))?;
    a.add(slot, n.wide)?;
    a.set_label(&mut bare)?;
    a.add(slot, BEHIND)?;
    a.jmp(resume)?;

    // A fork child tells the engine its id once. Then it counts in the shard that is wiped on fork.
    a.set_label(&mut child)?;
    let mut known = a.create_label();
    let mut full = a.create_label();
    a.cmp(qword_ptr(child_owner), 0)?;
    a.jne(known)?;
    a.mov(k.half, 1)?;
    a.lock().xadd(dword_ptr(abs(header::CHILDREN_COUNT)), k.half)?;
    a.cmp(k.half, header::CHILDREN_MAX as i32)?;
    a.jae(full)?;
    let entry = || dword_ptr(k.wide * 4 + abs(header::CHILDREN));
    match holes.identity {
        ThreadIdentity::FsOffset(_) => a.mov(entry(), id.half)?,
        ThreadIdentity::FsBase | ThreadIdentity::Locked => a.mov(entry(), 0)?,
    }
    a.set_label(&mut full)?;
    a.mov(qword_ptr(child_owner), id.wide)?;
    a.set_label(&mut known)?;
    a.mov(k.half, (u64::from(CHILD_SHARD) * stride) as u32)?;
    a.wrgsbase(k.wide)?;
    a.jmp(resume)?;

    a.set_label(&mut locked)?;
    restore(a, target, slot, saved)?;
    let mut walk = a.create_label();
    let mut follow = a.create_label();
    let [mut past, mut arrived, mut other, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(&mut walk)?;
    let w = if target == r11 { r10 } else { r11 };
    let half = get_gpr32(Register::from(w).full_register32()).ok_or_else(missing)?;
    let mut only = a.create_label();
    a.push(w)?;
    // If the slot itself is a count, the displaced instructions come right after it.
    a.cmp(dword_ptr(target), count)?;
    a.je(only)?;
    a.set_label(&mut follow)?;
    a.cmp(byte_ptr(target), 0xe9)?;
    a.jne(past)?;
    a.movsxd(w, dword_ptr(target + 1))?;
    a.lea(target, qword_ptr(target + w + 5))?;
    a.jmp(arrived)?;
    // A nop: of a slot, or of a link.
    a.set_label(&mut past)?;
    a.cmp(byte_ptr(target), i32::from(NOP[0]))?;
    a.lea(target, qword_ptr(target + LINK as i32))?;
    a.jne(arrived)?;
    a.add(target, BEHIND - LINK as i32)?;
    a.set_label(&mut arrived)?;
    a.cmp(dword_ptr(target), count)?;
    a.jne(other)?;
    a.mov(half, dword_ptr(target + 5))?;
    a.lock().inc(qword_ptr(w))?;
    a.add(target, 9)?;
    a.jmp(follow)?;
    a.set_label(&mut other)?;
    a.cmp(dword_ptr(target), i32::from_le_bytes(MARKER))?;
    a.jne(done)?;
    a.movsxd(w, dword_ptr(target + 4))?;
    a.lea(target, qword_ptr(target + w + 8))?;
    a.set_label(&mut done)?;
    a.pop(w)?;
    a.jmp(target)?;
    a.set_label(&mut only)?;
    a.mov(half, dword_ptr(target + 5))?;
    a.lock().inc(qword_ptr(w))?;
    a.add(target, BEHIND)?;
    a.jmp(done)?;

    listing.fill(Some(walk))
}

fn restore(
    a: &mut CodeAssembler,
    target: AsmRegister64,
    slot: AsmRegister64,
    saved: [AsmRegister64; 4],
) -> Result<(), IcedError> {
    if target == rax {
        a.mov(rax, slot)?;
    }
    for s in saved.into_iter().rev() {
        a.pop(s)?;
    }
    Ok(())
}
