//! Facts about x86-64 processors, and about Linux on them, each of which has its only definition here.

/// Size of a page in bytes. The kernel maps all bytes of a page or none. If the writer is killed in the middle of a write, the write may be
/// complete on one page and missing on the next.
pub const PAGE: u64 = 4096;

/// The instruction `endbr64`, with which functions of programs with control-flow protection begin.
pub const ENDBR: [u8; ENDBR_LEN as usize] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Length of `endbr64` in bytes.
pub const ENDBR_LEN: u64 = 4;

/// First byte of a `jmp rel32`.
pub const JUMP: u8 = 0xe9;
/// First byte of a `jmp rel8`.
pub const SHORT_JUMP: u8 = 0xeb;
/// Length in bytes of a `jmp rel32`, which is the longest springboard.
pub const SPRINGBOARD: u64 = 5;
