//! Woven code on the real processor. The test writes a small static program to a file, runs it, and reads its output. The program maps a
//! data area as the engine would, calls functions with known registers, and prints the registers and memory afterwards.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ingraft_codegen::Environment;
use ingraft_model::layout::{COUNTERS, CPU_OFFSET, CPU_RENEWALS, header};
use ingraft_model::{CpuClock, PatchPlan};

pub const TEXT: u64 = 0x401000;
pub const TEXT_LEN: usize = 0x40000;
pub const ARENA: u64 = 0x500000;
/// Address of readable and writable memory with known contents. Registers rsi, rdi and r9 point into it.
pub const SCRATCH: u64 = 0x700000;
const SCRATCH_LEN: usize = 0x10000;
const OUT: u64 = 0x710000;
const OUT_LEN: usize = 0x80000;
const DRIVER: u64 = 0x800000;
pub const TLS: u64 = SCRATCH + 0x8000;
/// Top of the stack. The words above it are known.
pub const STACK: u64 = SCRATCH + 0xf000;
/// Address of a function `lea rbx, [rbx + rdi + 1]; ret` that every program has. r15 and a word of the scratch memory hold the address.
pub const HELPER: u64 = TEXT + 0x3f000;
pub const HELPER_POINTER: u64 = SCRATCH + 0x7f8;
/// Address of a function that every program has. Like the vDSO's function, it reads the time, here by a system call, and overwrites the
/// registers that it may overwrite. The function faults if the stack is not aligned.
pub const TELL_TIME: u64 = HELPER + 0x40;
/// Thread id above all ids that the kernel assigns, so that no thread has it.
pub const TID: u32 = 5_000_000;
/// Offset from fs of the thread's pointer to a critical section. The kernel does not know the area, and never clears the pointer.
pub const SLOT: i32 = 0x40;

/// Registers (rsp included) and flags after one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    pub registers: [u64; 16],
    pub flags: u64,
}

/// Result of a run.
pub struct Outcome {
    pub calls: Vec<After>,
    pub scratch: Vec<u8>,
    /// Header fields `EXHAUSTED` and `CHILDREN_COUNT`, and the first child.
    pub exhausted: u32,
    pub children: u32,
    pub child: u32,
    /// Header fields `CALLS_OPEN`, `CALLS_LEFT` and `CALLS_MISSED`.
    pub called: [u32; 3],
    /// Header field `EVENTS_UNREAD`.
    pub unread: u32,
    /// Words for processor time of shard 2, from `CPU_OFFSET` to `CPU_RENEWALS`.
    pub cpu: Vec<u64>,
    /// The thread's pointer to a critical section, at [`SLOT`].
    pub slot: u64,
    /// Counters of shards 0 to 3.
    pub shards: [Vec<i64>; 4],
}

/// A program to run.
pub struct Program<'a> {
    pub env: &'a Environment,
    /// Bytes at `TEXT`.
    pub text: Vec<u8>,
    /// Plans to apply, in order.
    pub plans: Vec<&'a PatchPlan>,
    /// Actions of the driver, in order.
    pub steps: Vec<Step>,
    pub counters: usize,
}

/// Action of the driver.
#[derive(Clone, Debug)]
pub enum Step {
    /// Calls a function and saves the registers and flags afterwards.
    Call { target: u64, registers: Vec<(u8, u64)>, flags: u32 },
    /// Calls a function in a fork child with this thread id, and waits for the child.
    ForkCall { target: u64, tid: u32, times: u32 },
    /// Occupies all claims.
    Exhaust,
    /// Sets the pointer to a critical section. The kernel sets it to 0 at a switch.
    Slot(u64),
    /// Sets the number of the processor in the thread's rseq area; -1 stands for an area that is not registered.
    Processor(i32),
    /// Stores 8 bytes.
    Store { at: u64, value: u64 },
    /// Copies 8 bytes.
    Copy { from: u64, to: u64 },
    /// Makes a system call and saves its result.
    Syscall { number: u64, args: Vec<u64>, to: u64 },
    /// Installs a handler that answers faults at RDPMC by [`pmc`], as if there were a counter.
    EmulateRdpmc { lock: u64 },
    /// Sets the gs base to a value of the program's own.
    ForeignGs,
}

/// Words of the emulated RDPMC.
pub mod pmc {
    use super::SCRATCH;

    /// Number of emulated readings.
    pub const COUNT: u64 = SCRATCH + 0x600;
    /// Value of the counter.
    pub const VALUE: u64 = SCRATCH + 0x608;
    /// Number of further readings during which the kernel takes the counter away. Each changes the number on the page.
    pub const LOST: u64 = SCRATCH + 0x610;
    /// Index of the counter in the last reading.
    pub const INDEX: u64 = SCRATCH + 0x618;
    /// Place for a struct sigaction of the kernel.
    pub const ACTION: u64 = SCRATCH + 0x620;
}

/// Value of a register at a call, unless a step states another one: rsi, rdi and r9 point into the scratch memory, rcx is small.
pub fn initial(r: u8) -> u64 {
    match r {
        1 => 3,
        6 => SCRATCH + 0x100,
        7 => SCRATCH + 0x200,
        9 => SCRATCH + 0x300,
        15 => HELPER,
        r => 0x1111_1111_1111_1111u64.wrapping_mul(u64::from(r) + 1) ^ 0x0123_4567_89ab_cdef,
    }
}

const REGISTERS: [AsmRegister64; 16] = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];

fn syscall(a: &mut CodeAssembler, number: u64, args: &[u64]) -> Result<(), IcedError> {
    for (r, value) in [rdi, rsi, rdx, r10, r8, r9].into_iter().zip(args) {
        a.mov(r, *value)?;
    }
    a.mov(rax, number)?;
    a.syscall()
}

/// Installs a handler for SIGSEGV that emulates RDPMC.
fn emulate_rdpmc(a: &mut CodeAssembler, lock: u64) -> Result<(), IcedError> {
    // Offsets of the thread's registers in the handler's third argument (struct ucontext).
    const RDX: u64 = 136;
    const RAX: u64 = 144;
    const RCX: u64 = 152;
    const RIP: u64 = 168;
    // SA_SIGINFO | SA_RESTORER
    const FLAGS: u64 = 0x0400_0004;
    let [mut handler, mut other, mut restorer, mut done] = std::array::from_fn(|_| a.create_label());
    a.lea(rax, ptr(handler))?;
    a.mov(qword_ptr(pmc::ACTION), rax)?;
    a.mov(rax, FLAGS)?;
    a.mov(qword_ptr(pmc::ACTION + 8), rax)?;
    a.lea(rax, ptr(restorer))?;
    a.mov(qword_ptr(pmc::ACTION + 16), rax)?;
    a.mov(qword_ptr(pmc::ACTION + 24), 0)?;
    syscall(a, 13, &[11, pmc::ACTION, 0, 8])?;
    a.jmp(done)?;
    a.set_label(&mut handler)?;
    a.mov(rax, qword_ptr(rdx + RIP))?;
    a.cmp(word_ptr(rax), 0x330f)?;
    a.jne(other)?;
    a.add(qword_ptr(rdx + RIP), 2)?;
    a.inc(qword_ptr(pmc::COUNT))?;
    a.mov(rax, qword_ptr(rdx + RCX))?;
    a.mov(qword_ptr(pmc::INDEX), rax)?;
    a.mov(rax, qword_ptr(pmc::VALUE))?;
    a.mov(ecx, eax)?;
    a.mov(qword_ptr(rdx + RAX), rcx)?;
    a.shr(rax, 32)?;
    a.mov(qword_ptr(rdx + RDX), rax)?;
    a.cmp(qword_ptr(pmc::LOST), 0)?;
    let mut kept = a.create_label();
    a.je(kept)?;
    a.dec(qword_ptr(pmc::LOST))?;
    a.add(dword_ptr(lock), 2)?;
    a.add(qword_ptr(pmc::VALUE), 1000)?;
    a.set_label(&mut kept)?;
    a.ret()?;
    a.set_label(&mut other)?;
    a.ud2()?;
    a.set_label(&mut restorer)?;
    a.mov(eax, 15)?;
    a.syscall()?;
    a.set_label(&mut done)?;
    a.zero_bytes()
}

impl Program<'_> {
    fn driver(&self) -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        a.mov(rsp, STACK)?;
        let data = &self.env.data;
        let base = data.base.0;
        // All shards are shared; then shard 1 is replaced by private memory that is wiped on fork.
        syscall(&mut a, 9, &[base, data.stride * u64::from(data.shards), 3, 0x31, u64::MAX, 0])?;
        syscall(&mut a, 9, &[base + data.stride, data.stride, 3, 0x32, u64::MAX, 0])?;
        syscall(&mut a, 28, &[base + data.stride, data.stride, 18])?;
        a.mov(dword_ptr(u64::from(data.alive())), 1)?;
        if self.env.cpu != CpuClock::None {
            a.mov(rax, self.env.ticks.inverse())?;
            a.mov(qword_ptr(base + u64::from(header::CPU_RATE)), rax)?;
        }
        syscall(&mut a, 158, &[0x1002, TLS])?;
        let mut out = OUT;
        for step in &self.steps {
            match step {
                Step::Call { target, registers, flags } => {
                    a.push(*flags as i32)?;
                    a.popfq()?;
                    for (n, r) in REGISTERS.iter().enumerate().filter(|(n, _)| *n != 4) {
                        let given = registers.iter().find(|(g, _)| usize::from(*g) == n).map(|g| g.1);
                        a.mov(*r, given.unwrap_or_else(|| initial(n as u8)))?;
                    }
                    a.call(*target)?;
                    for (n, r) in REGISTERS.iter().enumerate() {
                        a.mov(qword_ptr(out + 8 * n as u64), *r)?;
                    }
                    a.pushfq()?;
                    a.pop(rax)?;
                    a.mov(qword_ptr(out + 128), rax)?;
                    a.cld()?;
                    out += 136;
                }
                Step::ForkCall { target, tid, times } => {
                    let mut parent = a.create_label();
                    syscall(&mut a, 57, &[])?;
                    a.test(rax, rax)?;
                    a.jne(parent)?;
                    a.mov(dword_ptr(TLS + 0x2d0), *tid)?;
                    for _ in 0..*times {
                        a.mov(rsi, SCRATCH + 0x100)?;
                        a.mov(rdi, SCRATCH + 0x200)?;
                        a.call(*target)?;
                    }
                    syscall(&mut a, 231, &[0])?;
                    a.set_label(&mut parent)?;
                    syscall(&mut a, 61, &[u64::MAX, 0, 0, 0])?;
                }
                Step::Exhaust => {
                    let mut again = a.create_label();
                    a.mov(rcx, u64::from(data.shards))?;
                    a.set_label(&mut again)?;
                    a.mov(qword_ptr(rcx * 8 + (base + u64::from(ingraft_model::layout::CLAIMS) - 8)), 99)?;
                    a.dec(rcx)?;
                    a.jne(again)?;
                }
                Step::Slot(value) => {
                    a.mov(rax, *value)?;
                    a.mov(qword_ptr(TLS + SLOT as u64), rax)?;
                }
                Step::Processor(number) => a.mov(dword_ptr(TLS + SLOT as u64 - 4), *number)?,
                Step::Store { at, value } => {
                    a.mov(rax, *value)?;
                    a.mov(qword_ptr(*at), rax)?;
                }
                Step::Copy { from, to } => {
                    a.mov(rax, qword_ptr(*from))?;
                    a.mov(qword_ptr(*to), rax)?;
                }
                Step::Syscall { number, args, to } => {
                    syscall(&mut a, *number, args)?;
                    a.mov(qword_ptr(*to), rax)?;
                }
                Step::EmulateRdpmc { lock } => emulate_rdpmc(&mut a, *lock)?,
                Step::ForeignGs => {
                    // The address gs:[owner] lies in the scratch memory.
                    let owner = u64::from(data.displacement(ingraft_model::layout::OWNER));
                    a.mov(rax, (SCRATCH + 0x9000).wrapping_sub(owner))?;
                    a.wrgsbase(rax)?;
                }
            }
        }
        let shard = base + u64::from(COUNTERS);
        let len = 8 * self.counters as u64;
        syscall(&mut a, 1, &[1, OUT, out - OUT])?;
        syscall(&mut a, 1, &[1, SCRATCH, 0x800])?;
        syscall(&mut a, 1, &[1, base + u64::from(header::EXHAUSTED), 4])?;
        syscall(&mut a, 1, &[1, base + u64::from(header::CHILDREN_COUNT), 8])?;
        syscall(&mut a, 1, &[1, base + u64::from(header::CALLS_OPEN), 12])?;
        syscall(&mut a, 1, &[1, base + u64::from(header::EVENTS_UNREAD), 4])?;
        let words = base + 2 * data.stride + u64::from(CPU_OFFSET);
        syscall(&mut a, 1, &[1, words, u64::from(CPU_RENEWALS - CPU_OFFSET) + 8])?;
        syscall(&mut a, 1, &[1, TLS + SLOT as u64, 8])?;
        for k in 0..4 {
            syscall(&mut a, 1, &[1, shard + k * data.stride, len])?;
        }
        syscall(&mut a, 231, &[0])?;
        a.assemble(DRIVER)
    }

    /// Writes the program, runs it and reads what it prints.
    pub fn run(&self) -> Outcome {
        let driver = self.driver().expect("the driver assembles");
        let mut text = self.text.clone();
        text.resize(TEXT_LEN, 0xcc);
        let helper = (HELPER - TEXT) as usize;
        text[helper..helper + 6].copy_from_slice(&[0x48, 0x8d, 0x5c, 0x3b, 0x01, 0xc3]);
        let teller = tell_time().expect("it assembles");
        text[helper + 0x40..helper + 0x40 + teller.len()].copy_from_slice(&teller);
        let mut arena = vec![0xcc; 0x100000];
        for plan in &self.plans {
            for c in &plan.code {
                let offset = (c.at.0 - ARENA) as usize;
                arena[offset..offset + c.bytes.len()].copy_from_slice(&c.bytes);
            }
            for w in &plan.text {
                let (memory, start) = if w.at.0 >= ARENA { (&mut arena, ARENA) } else { (&mut text, TEXT) };
                let offset = (w.at.0 - start) as usize;
                let place = &mut memory[offset..offset + usize::from(w.len)];
                assert_eq!(place, w.old_bytes(), "the old bytes at {:#x}", w.at.0);
                place.copy_from_slice(w.new_bytes());
            }
        }
        let mut scratch: Vec<u8> = (0..SCRATCH_LEN).map(|i| (i * 37 + 11) as u8).collect();
        let tls = (TLS - SCRATCH) as usize;
        scratch[tls + 0x2d0..tls + 0x2d4].copy_from_slice(&TID.to_le_bytes());
        scratch[tls + 0x10..tls + 0x18].copy_from_slice(&TLS.to_le_bytes());
        scratch[tls + SLOT as usize - 4..tls + SLOT as usize + 8].fill(0);
        let pointer = (HELPER_POINTER - SCRATCH) as usize;
        scratch[pointer..pointer + 8].copy_from_slice(&HELPER.to_le_bytes());
        let segments: [(u64, Vec<u8>, u32); 5] = [
            (TEXT, text, 5),
            (ARENA, arena, 5),
            (SCRATCH, scratch, 6),
            (OUT, vec![0; OUT_LEN], 6),
            (DRIVER, driver, 5),
        ];
        let file = elf(&segments, DRIVER);
        let output = execute(&file);
        let calls = self.steps.iter().filter(|s| matches!(s, Step::Call { .. })).count();
        let mut at = 0;
        let mut take = |n: usize| {
            let piece = output.get(at..at + n).unwrap_or_else(|| panic!("only {} bytes of output", output.len()));
            at += n;
            piece
        };
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes"));
        let calls = (0..calls)
            .map(|_| {
                let b = take(136);
                After { registers: std::array::from_fn(|n| word(&b[8 * n..8 * n + 8])), flags: word(&b[128..]) & 0xcd5 }
            })
            .collect();
        let scratch = take(0x800).to_vec();
        let int = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("4 bytes"));
        let exhausted = int(take(4));
        let (children, child) = (int(take(4)), int(take(4)));
        let called = std::array::from_fn(|_| int(take(4)));
        let unread = int(take(4));
        let cpu = take((CPU_RENEWALS - CPU_OFFSET) as usize + 8).chunks(8).map(word).collect();
        let slot = word(take(8));
        let shards =
            std::array::from_fn(|_| take(8 * self.counters).chunks(8).map(|b| word(b).cast_signed()).collect());
        Outcome { calls, scratch, exhausted, children, child, called, unread, cpu, slot, shards }
    }
}

/// A static executable with these segments.
fn elf(segments: &[(u64, Vec<u8>, u32)], entry: u64) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let put16 = |f: &mut Vec<u8>, v: u16| f.extend_from_slice(&v.to_le_bytes());
    let put32 = |f: &mut Vec<u8>, v: u32| f.extend_from_slice(&v.to_le_bytes());
    let put64 = |f: &mut Vec<u8>, v: u64| f.extend_from_slice(&v.to_le_bytes());
    put16(&mut file, 2);
    put16(&mut file, 62);
    put32(&mut file, 1);
    put64(&mut file, entry);
    put64(&mut file, 64);
    put64(&mut file, 0);
    put32(&mut file, 0);
    for v in [64, 56, segments.len() as u16, 64, 0, 0] {
        put16(&mut file, v);
    }
    let mut offset = 0x1000u64;
    for (at, bytes, flags) in segments {
        put32(&mut file, 1);
        put32(&mut file, *flags);
        for v in [offset, *at, *at, bytes.len() as u64, bytes.len() as u64, 0x1000] {
            put64(&mut file, v);
        }
        offset += (bytes.len() as u64).next_multiple_of(0x1000);
    }
    for (_, bytes, _) in segments {
        file.resize(file.len().next_multiple_of(0x1000), 0);
        file.extend_from_slice(bytes);
    }
    file
}

fn execute(file: &[u8]) -> Vec<u8> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("ingraft-codegen-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    {
        let mut f = std::fs::File::create(&path).expect("a temporary file");
        f.write_all(file).expect("written");
        f.set_permissions(std::fs::Permissions::from_mode(0o700)).expect("made executable");
    }
    let output = loop {
        // A fork by another test thread may hold the file open for writing for a moment.
        match Command::new(&path).output() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            other => break other,
        }
    };
    if std::env::var_os("KEEP_IMAGES").is_none() {
        let _ = std::fs::remove_file(&path);
    }
    let output = output.expect("it runs");
    assert!(output.status.success(), "{path:?}: {:?}", output.status);
    output.stdout
}

fn tell_time() -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.sub(rsp, 24)?;
    a.movaps(xmmword_ptr(rsp), xmm0)?;
    a.add(rsp, 24)?;
    a.mov(eax, 228)?;
    a.syscall()?;
    for r in [rcx, rdx, rsi, rdi, r8, r9, r10, r11] {
        a.mov(r, -1i64)?;
    }
    a.ret()?;
    a.assemble(TELL_TIME)
}
