//! Samples of where the threads of a process run. For each thread, the kernel writes its registers and the top of its stack into a ring at
//! every period of the thread's processor time (perf_event_open(2), PERF_COUNT_SW_CPU_CLOCK). The engine maps the rings; the target is
//! neither stopped nor changed.
//!
//! Each thread has an event and a ring of its own. An inherited event would need one event for each thread and processor, because the kernel
//! maps no ring for an inherited event that follows a thread over all processors. So a new thread has samples from when the engine finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, Tid};
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::resource::{Resource, getrlimit};
use perf_event::Builder;

use super::name::PerfEvent;
use super::open::{EventError, KernelRefusal};
use crate::sys;
use crate::target::Target;
use crate::thread_waits::WaitDetails;

/// The event, by its name.
const EVENT: &str = "cpu-clock";
/// PERF_SAMPLE_IP, _TID, _REGS_USER and _STACK_USER, in the order of their fields in a sample.
const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 12 | 1 << 13;
/// The registers of a sample, as bits of enum perf_event_x86_regs: ax to ip, and r8 to r15.
const REGISTERS: u64 = 0xff_01ff;
/// Number of these registers.
const REGISTER_COUNT: usize = REGISTERS.count_ones() as usize;
/// Place of each register of DWARF's order (rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15) among the registers of a sample.
const DWARF_ORDER: [usize; 16] = [0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16];
/// Place of rip among the registers of a sample.
const RIP: usize = 8;
/// PERF_SAMPLE_REGS_ABI_64.
const ABI_64: u64 = 2;
/// PERF_RECORD_LOST, _THROTTLE and _SAMPLE.
const LOST: u32 = 2;
const THROTTLE: u32 = 5;
const SAMPLE: u32 = 9;
/// Mask of the processor mode in a record's header (PERF_RECORD_MISC_CPUMODE_MASK), and the mode of the kernel.
const MODE: u16 = 7;
const MODE_KERNEL: u16 = 1;
/// Length of a record's header in bytes.
const HEADER: usize = 8;
/// Offsets in the first page of a ring (struct perf_event_mmap_page): the end of the written records, and the end of the read ones.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Memory for the rings of all threads, in bytes.
const RINGS: usize = 16 << 20;
/// Smallest and largest length of a ring's data in bytes.
const RING_MIN: usize = 32 << 10;
const RING_MAX: usize = 512 << 10;
/// Smallest number of samples for which a ring has room.
const SAMPLES_MIN: usize = 16;
/// Largest number of threads that are sampled; with the smallest rings, they take twice the memory for rings.
const THREADS_MAX: usize = 1024;
/// Divisor of the number of files that this process may open: at most this part is events of one sampler.
const FILES_SHARE: u64 = 32;
/// Divisor of the number of files that this process may open: at most this part is events of all samplers.
const ALL_FILES_SHARE: u64 = 2;
/// Largest number of threads that all samplers together sample.
const ALL_THREADS_MAX: usize = 16 * THREADS_MAX;
/// Memory for the rings of all samplers in bytes. If it is used up, further rings have the smallest length.
const ALL_RINGS: usize = 16 * RINGS;
/// Largest length in bytes of the stack in a sample.
const STACK_MAX: usize = 16 << 10;

/// A sample of a thread.
#[derive(Debug)]
pub struct ThreadSample<'a> {
    /// The thread.
    pub tid: Tid,
    /// Whether the thread was in the kernel.
    pub kernel: bool,
    /// The registers that the thread has in the program; `None` if the kernel did not give them, as for a thread that ends.
    pub registers: Option<SampledRegisters>,
    /// The top of the thread's stack, from the stack pointer on.
    pub stack: &'a [u8],
    /// The system call in which the thread waits, or -1 if it waits outside of one; `None` for a thread that runs.
    pub call: Option<i64>,
    /// Details of the wait; `None` for a thread that runs, and if it was not asked for.
    pub wait: Option<WaitDetails>,
}

/// The registers of a thread when it was in the program, or before it entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRegisters {
    /// The program counter.
    pub pc: Avma,
    /// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 … r15, in the order of the DWARF register numbers; `None` for a register whose value is
    /// not known.
    pub general: [Option<u64>; 16],
}

/// The event of a thread, and its ring. The kernel stops the samples when the file is closed.
#[derive(Debug)]
struct ThreadRing {
    _event: File,
    ring: SampleRing,
    _share: RingShare,
}

/// Number of rings of all samplers, and their length in bytes.
static OPEN_RINGS: AtomicUsize = AtomicUsize::new(0);
static OPEN_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A ring in the sums of all samplers.
#[derive(Debug)]
struct RingShare {
    bytes: usize,
}

impl RingShare {
    /// Takes a ring of this length, or of the smallest one if all others have used up the memory.
    fn take(bytes: usize) -> Self {
        OPEN_RINGS.fetch_add(1, Ordering::Relaxed);
        if OPEN_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes <= ALL_RINGS || bytes <= RING_MIN {
            return RingShare { bytes };
        }
        OPEN_BYTES.fetch_sub(bytes - RING_MIN, Ordering::Relaxed);
        RingShare { bytes: RING_MIN }
    }

    /// Whether the samplers together may have a further ring.
    fn is_free() -> bool {
        let most = usize::try_from(files_max() / ALL_FILES_SHARE).unwrap_or(usize::MAX).clamp(1, ALL_THREADS_MAX);
        OPEN_RINGS.load(Ordering::Relaxed) < most
    }
}

impl Drop for RingShare {
    fn drop(&mut self) {
        OPEN_RINGS.fetch_sub(1, Ordering::Relaxed);
        OPEN_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Sampling of the threads of a process. It ends when the value is dropped.
#[derive(Debug)]
pub struct ThreadSampler {
    threads: BTreeMap<Tid, ThreadRing>,
    /// Rings of threads that have ended, until their last samples are taken.
    ended: Vec<ThreadRing>,
    /// Threads of the last listing for which no event could be opened.
    unsampled: BTreeSet<Tid>,
    only: BTreeSet<Tid>,
    period_ns: u64,
    kernel: bool,
    /// Number of samples that the kernel has dropped because a ring was full.
    lost: u64,
    /// Number of times that the kernel has paused the samples of a thread because they took too much time.
    throttled: u64,
    record: Vec<u8>,
}

impl ThreadSampler {
    /// Begins to sample the threads of a process, or only those of `only` if it is not empty. Each thread is sampled once in `period_ns`
    /// nanoseconds of its processor time. If the kernel permits it, the time in the kernel counts as well.
    pub fn begin(target: &Target, period_ns: u64, only: &[Tid]) -> Result<Self, EventError> {
        let mut sampler = ThreadSampler {
            threads: BTreeMap::new(),
            ended: Vec::new(),
            unsampled: BTreeSet::new(),
            only: only.iter().copied().collect(),
            period_ns: period_ns.max(1),
            kernel: true,
            lost: 0,
            throttled: 0,
            record: Vec::new(),
        };
        let threads = target.threads()?;
        if let Some(missing) = only.iter().find(|tid| !threads.contains(tid)) {
            return Err(EventError::NoThread(*missing));
        }
        let mut refused = sampler.follow_found(&threads);
        let is_forbidden =
            |e: &EventError| matches!(e, EventError::Refused { refusal: KernelRefusal::Forbidden { .. }, .. });
        if sampler.threads.is_empty() && refused.as_ref().is_some_and(is_forbidden) {
            sampler.kernel = false;
            sampler.unsampled.clear();
            refused = sampler.follow_found(&threads);
        }
        match refused {
            Some(e) if sampler.threads.is_empty() => Err(e),
            _ => Ok(sampler),
        }
    }

    /// Looks for threads that have begun or ended.
    pub fn follow(&mut self, target: &Target) {
        // A thread for which no event could be opened stays without samples; `unsampled` counts it.
        if let Ok(threads) = target.threads() {
            drop(self.follow_found(&threads));
        }
    }

    /// Opens events for the threads that have none, and closes those of ended ones. Returns the first error.
    fn follow_found(&mut self, threads: &[Tid]) -> Option<EventError> {
        let wanted: BTreeSet<Tid> =
            threads.iter().copied().filter(|tid| self.only.is_empty() || self.only.contains(tid)).collect();
        let ended: Vec<Tid> = self.threads.keys().filter(|tid| !wanted.contains(tid)).copied().collect();
        self.ended.extend(ended.into_iter().filter_map(|tid| self.threads.remove(&tid)));
        self.unsampled.retain(|tid| wanted.contains(tid));
        let bytes = ring_bytes(wanted.len());
        let most = threads_max();
        let mut first = None;
        for tid in wanted {
            if self.threads.contains_key(&tid) || self.unsampled.contains(&tid) {
                continue;
            }
            if self.threads.len() >= most || !RingShare::is_free() {
                self.unsampled.insert(tid);
                continue;
            }
            match ThreadRing::open(tid, self.period_ns, self.kernel, bytes) {
                Ok(Some(thread)) => drop(self.threads.insert(tid, thread)),
                Ok(None) => {}
                Err(e) => {
                    self.unsampled.insert(tid);
                    first.get_or_insert(e);
                }
            }
        }
        first
    }

    /// Takes all samples that the kernel has written, and calls `each` for every one.
    pub fn drain(&mut self, each: &mut dyn FnMut(&ThreadSample<'_>)) {
        let ended = std::mem::take(&mut self.ended);
        for thread in self.threads.values().chain(&ended) {
            while thread.ring.next(&mut self.record) {
                match record(&self.record) {
                    Some(RingRecord::Sample(kernel, fields)) => {
                        if let Some(sample) = sample(kernel, fields) {
                            each(&sample);
                        }
                    }
                    Some(RingRecord::Lost(n)) => self.lost = self.lost.saturating_add(n),
                    Some(RingRecord::Throttled) => self.throttled += 1,
                    None => {}
                }
            }
        }
    }

    /// Processor time between two samples of a thread, in nanoseconds.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Whether the time in the kernel is sampled.
    pub fn samples_kernel(&self) -> bool {
        self.kernel
    }

    /// Number of samples so far that were lost because a ring was full.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of pauses so far that the kernel has made because the samples of a thread took too much time.
    pub fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Number of present threads that are sampled.
    pub fn sampled_threads(&self) -> usize {
        self.threads.len()
    }

    /// Number of present threads without samples, because the kernel refuses an event or a ring for them.
    pub fn unsampled_threads(&self) -> usize {
        self.unsampled.len()
    }
}

/// Largest number of threads that this process can sample: each takes an open file.
fn threads_max() -> usize {
    usize::try_from(files_max() / FILES_SHARE).unwrap_or(usize::MAX).clamp(1, THREADS_MAX)
}

/// Number of files that this process may open.
fn files_max() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Length in bytes of the data of each ring if there are this many threads: a power of two, so that all rings together stay in a bound.
fn ring_bytes(threads: usize) -> usize {
    let share = (RINGS / threads.max(1)).clamp(RING_MIN, RING_MAX);
    1 << share.ilog2()
}

/// Length in bytes of the stack in a sample, for a ring of this length.
fn stack_bytes(ring: usize) -> usize {
    (ring / SAMPLES_MIN).min(STACK_MAX) & !7
}

impl ThreadRing {
    /// Opens the event of a thread; `None` if there is no such thread.
    fn open(tid: Tid, period_ns: u64, kernel: bool, bytes: usize) -> Result<Option<Self>, EventError> {
        let event = PerfEvent::parse(EVENT)?;
        let share = RingShare::take(bytes);
        let bytes = share.bytes;
        let refused = |e: &io::Error| EventError::Refused {
            event: event.name().to_owned(),
            refusal: KernelRefusal::of(&event, e),
        };
        let mut builder = Builder::new();
        builder.enabled(true).exclude_kernel(!kernel).exclude_hv(!kernel).remove_on_exec(true);
        let attributes = builder.attrs_mut();
        attributes.type_ = event.kind;
        attributes.config = event.config[0];
        attributes.__bindgen_anon_1.sample_period = period_ns;
        attributes.sample_type = SAMPLE_TYPE;
        attributes.sample_regs_user = REGISTERS;
        attributes.sample_stack_user = u32::try_from(stack_bytes(bytes)).unwrap_or(0);
        let file = match sys::perf_event_open(&builder, tid) {
            Ok(file) => file,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(e) => return Err(refused(&e)),
        };
        match SampleRing::map(&file, bytes) {
            Ok(ring) => Ok(Some(ThreadRing { _event: file, ring, _share: share })),
            // The memory of rings is limited for each user (kernel.perf_event_mlock_kb, RLIMIT_MEMLOCK).
            Err(_) if bytes > RING_MIN => {
                drop((file, share));
                ThreadRing::open(tid, period_ns, kernel, RING_MIN)
            }
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                Err(EventError::Refused { event: event.name().to_owned(), refusal: KernelRefusal::NoRing })
            }
            Err(e) => Err(refused(&e)),
        }
    }
}

/// The ring into which the kernel writes the records of one event.
#[derive(Debug)]
struct SampleRing {
    /// A page with the ends of the records, and the data after it.
    mapping: MmapRaw,
    /// Length of the data in bytes, a power of two.
    bytes: usize,
}

impl SampleRing {
    fn map(event: &File, bytes: usize) -> io::Result<Self> {
        let mapping = MmapOptions::new().len(PAGE as usize + bytes).map_raw(event)?;
        Ok(SampleRing { mapping, bytes })
    }

    /// A word of the first page, which the kernel and this process change at the same time.
    fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.mapping.as_mut_ptr().wrapping_add(at).cast::<u64>();
        // SAFETY: `at` is one of two aligned offsets in the first page, which is mapped for writing as long as `self` lives. The kernel
        // and this process access the word by whole, aligned loads and stores only.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies the next record, with its header, into `record`, and frees its place in the ring. Returns false if there is none.
    fn next(&self, record: &mut Vec<u8>) -> bool {
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let written = head.wrapping_sub(tail);
        // The kernel never writes more than there is room; if it says so, the ring is begun anew.
        if written < HEADER as u64 || written > self.bytes as u64 {
            self.word(DATA_TAIL).store(head, Ordering::Release);
            return false;
        }
        record.clear();
        self.copy(tail, HEADER, record);
        let len = record.get(6..8).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes);
        if usize::from(len) < HEADER || u64::from(len) > written {
            self.word(DATA_TAIL).store(head, Ordering::Release);
            return false;
        }
        self.copy(tail.wrapping_add(HEADER as u64), usize::from(len) - HEADER, record);
        self.word(DATA_TAIL).store(tail.wrapping_add(u64::from(len)), Ordering::Release);
        true
    }

    /// Appends `len` bytes of the ring's data to `to`, beginning at a position that counts on over the ring's end. `len` is at most the
    /// length of the data.
    fn copy(&self, position: u64, len: usize, to: &mut Vec<u8>) {
        let len = len.min(self.bytes);
        let begin = (position % self.bytes as u64) as usize;
        let first = len.min(self.bytes - begin);
        for (at, len) in [(begin, first), (0, len - first)] {
            let from = self.mapping.as_ptr().wrapping_add(PAGE as usize + at);
            let old = to.len();
            to.resize(old + len, 0);
            // SAFETY: `at + len` is at most `self.bytes`, so the source is in the mapping. The kernel does not write there before the
            // tail passes these bytes. The destination is the part of the vector that was just added.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().wrapping_add(old), len) };
        }
    }
}

/// A record of a ring.
#[derive(Debug)]
enum RingRecord<'a> {
    /// A sample: whether the thread was in the kernel, and the fields.
    Sample(bool, &'a [u8]),
    /// Number of records that had no room.
    Lost(u64),
    Throttled,
}

/// Parses a record with its header; `None` for a record that says nothing here, or that is too short.
fn record(bytes: &[u8]) -> Option<RingRecord<'_>> {
    let (header, mut rest) = bytes.split_at_checked(HEADER)?;
    let kind = u32::from_ne_bytes(header.get(..4)?.try_into().ok()?);
    let misc = u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?);
    match kind {
        LOST => {
            let (_id, lost) = (word(&mut rest)?, word(&mut rest)?);
            Some(RingRecord::Lost(lost))
        }
        THROTTLE => Some(RingRecord::Throttled),
        SAMPLE => Some(RingRecord::Sample(misc & MODE == MODE_KERNEL, rest)),
        _ => None,
    }
}

fn sample(kernel: bool, mut rest: &[u8]) -> Option<ThreadSample<'_>> {
    let _ip = word(&mut rest)?;
    let ids = word(&mut rest)?;
    // The process id is in the lower half, the thread id in the upper one.
    let tid = Tid(i32::try_from(ids >> 32).ok()?);
    let abi = word(&mut rest)?;
    let mut values = [0; REGISTER_COUNT];
    if abi != 0 {
        for value in &mut values {
            *value = word(&mut rest)?;
        }
    }
    let registers = (abi == ABI_64)
        .then(|| SampledRegisters { pc: Avma(values[RIP]), general: DWARF_ORDER.map(|place| Some(values[place])) });
    let room = usize::try_from(word(&mut rest)?).ok()?;
    let (stack, mut rest) = rest.split_at_checked(room)?;
    // Of the room for the stack, the kernel tells how much it has filled.
    let filled = if room == 0 { 0 } else { usize::try_from(word(&mut rest)?).ok()? };
    Some(ThreadSample { tid, kernel, registers, stack: stack.get(..filled).unwrap_or(stack), call: None, wait: None })
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    let (word, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    fn bytes(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let len = (HEADER + 8 * words.len()) as u16;
        let mut bytes = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &len.to_ne_bytes()].concat();
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    fn sample_of(bytes: &[u8]) -> Option<ThreadSample<'_>> {
        match record(bytes)? {
            RingRecord::Sample(kernel, fields) => sample(kernel, fields),
            RingRecord::Lost(_) | RingRecord::Throttled => None,
        }
    }

    #[test]
    fn a_sample_has_its_registers_in_the_order_of_dwarf() {
        let mut words = vec![0xffff_ffff_8000_0000, 9 << 32 | 7, ABI_64];
        words.extend(100..100 + REGISTER_COUNT as u64);
        words.extend([16, 1, 2, 8]);
        let record_bytes = bytes(SAMPLE, 1, &words);
        let sample = sample_of(&record_bytes).expect("a sample");
        assert_eq!((sample.tid, sample.kernel, sample.stack), (Tid(9), true, &1_u64.to_ne_bytes()[..]));
        let registers = sample.registers.expect("registers");
        assert_eq!(registers.pc, Avma(108));
        let expected = [100, 103, 102, 101, 104, 105, 106, 107, 109, 110, 111, 112, 113, 114, 115, 116];
        assert_eq!(registers.general, expected.map(Some));
    }

    #[test]
    fn rings_of_all_samplers_stay_in_a_bound() {
        let shares: Vec<RingShare> = (0..=ALL_RINGS / RING_MAX).map(|_| RingShare::take(RING_MAX)).collect();
        assert_eq!(shares.last().map(|share| share.bytes), Some(RING_MIN));
        assert!(OPEN_BYTES.load(Ordering::Relaxed) >= shares.iter().map(|share| share.bytes).sum());
        assert_eq!(RingShare::take(RING_MIN).bytes, RING_MIN, "the smallest ring is granted always");
        drop(shares);
        assert_eq!(RingShare::take(RING_MAX).bytes, RING_MAX);
    }

    #[test]
    fn a_sample_without_registers_has_no_stack() {
        let record_bytes = bytes(SAMPLE, 2, &[1, 9 << 32, 0, 0]);
        let sample = sample_of(&record_bytes).expect("a sample");
        assert!(!sample.kernel && sample.registers.is_none() && sample.stack.is_empty());
    }

    #[test]
    fn records_that_are_cut_off_say_nothing() {
        let mut words = vec![1, 9 << 32, ABI_64];
        words.extend(0..REGISTER_COUNT as u64);
        words.extend([8, 1, 8]);
        let whole = bytes(SAMPLE, 2, &words);
        for len in 0..whole.len() {
            assert!(sample_of(&whole[..len]).is_none(), "{len}");
        }
        let huge = bytes(SAMPLE, 2, &[1, 9 << 32, 0, u64::MAX]);
        assert!(sample_of(&huge).is_none());
        assert!(matches!(record(&bytes(LOST, 0, &[5, 12])), Some(RingRecord::Lost(12))));
        assert!(matches!(record(&bytes(THROTTLE, 0, &[1, 2, 3])), Some(RingRecord::Throttled)));
        assert!(record(&bytes(77, 0, &[1])).is_none());
    }

    #[test]
    fn rings_of_many_threads_stay_in_their_bound() {
        assert_eq!((ring_bytes(0), ring_bytes(1)), (RING_MAX, RING_MAX));
        assert_eq!((ring_bytes(100), ring_bytes(1000)), (128 << 10, RING_MIN));
        assert_eq!((stack_bytes(RING_MAX), stack_bytes(RING_MIN)), (STACK_MAX, 2 << 10));
    }

    /// Runs until it is told to stop; the samples of its thread must be here.
    #[inline(never)]
    fn spin(stop: &AtomicBool) -> u64 {
        let mut n = 1_u64;
        while !stop.load(Ordering::Relaxed) {
            n = std::hint::black_box(n.wrapping_mul(7));
        }
        n
    }

    #[test]
    fn a_busy_thread_is_sampled_with_its_registers_and_stack() {
        let stop = Arc::new(AtomicBool::new(false));
        let (send, told) = std::sync::mpsc::channel();
        let busy = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mark = std::hint::black_box(0x1234_5678_9abc_def0_u64);
                send.send((sys::own_tid(), std::ptr::from_ref(&mark) as u64)).expect("the test");
                spin(&stop) ^ mark
            })
        };
        let (tid, mark) = told.recv().expect("its id");
        let target = Target::open_unchecked(sys::own_pid()).expect("this process");
        let mut sampler = ThreadSampler::begin(&target, 1_000_000, &[tid]).expect("software events");
        assert_eq!((sampler.period_ns(), sampler.sampled_threads()), (1_000_000, 1));
        let (mut samples, mut marked) = (0, 0);
        let limit = Instant::now() + Duration::from_secs(60);
        while samples < 20 {
            assert!(Instant::now() < limit, "{samples} samples");
            std::thread::sleep(Duration::from_millis(5));
            sampler.drain(&mut |sample| {
                assert_eq!(sample.tid, tid);
                let Some(registers) = sample.registers else { return };
                samples += 1;
                let at = mark.wrapping_sub(registers.general[7].expect("the stack pointer"));
                let word = usize::try_from(at).ok().and_then(|at| sample.stack.get(at..at.checked_add(8)?));
                marked += u64::from(word == Some(&0x1234_5678_9abc_def0_u64.to_ne_bytes()));
            });
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("the thread");
        assert!(marked > 0, "the stack of {samples} samples has no local variable of the thread");
        let nobody = ThreadSampler::begin(&target, 1_000_000, &[Tid(1 << 30)]);
        assert!(matches!(nobody, Err(EventError::NoThread(_))));
    }

    #[test]
    fn a_child_that_runs_is_sampled_and_its_end_is_no_error() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let pid = ingraft_model::Pid(i32::try_from(child.id()).expect("an id"));
        let target = Target::open_unchecked(pid).expect("the child");
        let mut sampler = ThreadSampler::begin(&target, 1_000_000, &[]).expect("software events");
        let (mut samples, limit) = (0, Instant::now() + Duration::from_secs(60));
        while samples < 10 {
            assert!(Instant::now() < limit, "{samples} samples");
            std::thread::sleep(Duration::from_millis(5));
            sampler.drain(&mut |sample| samples += u64::from(sample.tid.0 == pid.0));
            sampler.follow(&target);
        }
        child.kill().expect("its end");
        child.wait().expect("its end");
        sampler.drain(&mut |_| ());
        sampler.follow(&target);
        sampler.drain(&mut |_| ());
    }
}
