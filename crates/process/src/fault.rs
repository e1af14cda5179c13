//! Guards for mappings of memory that other processes share. The kernel may be unable to provide a page of it (a memory limit, a hardware
//! error, a file that was truncated), and then raises SIGBUS in the thread that touches it. In a mapping of [`GuardedMapping`], an empty page
//! replaces that page, and the mapping is marked as broken. The earlier handler treats any other fault.

use std::io;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ingraft_model::machine::PAGE;
use memmap2::MmapRaw;

/// Maximum number of guarded mappings at a time: one for each target, and some that are only inspected.
const REGIONS: usize = 8192;
const PAGE_BYTES: usize = PAGE as usize;

/// An entry of the table that the handler reads. If `start` is 0, the entry is free. If `end` is 0, it is being filled or cleared.
struct GuardEntry {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

static TABLE: [GuardEntry; REGIONS] =
    [const { GuardEntry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), broken: AtomicBool::new(false) } };
        REGIONS];
/// Number of entries, from the beginning of the table, that have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Action for SIGBUS before the handler of this file was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping whose faults do not end this process.
#[derive(Debug)]
pub(crate) struct GuardedMapping {
    map: MmapRaw,
    place: usize,
}

impl GuardedMapping {
    /// Enters a mapping in the table.
    pub(crate) fn new(map: MmapRaw) -> io::Result<Self> {
        install()?;
        let start = map.as_ptr() as usize;
        let free =
            |region: &GuardEntry| region.start.compare_exchange(0, start, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let place = TABLE.iter().position(free).ok_or_else(|| io::Error::other("too many data areas at a time"))?;
        let region = &TABLE[place];
        region.broken.store(false, Ordering::SeqCst);
        region.end.store(start + map.len(), Ordering::SeqCst);
        USED.fetch_max(place + 1, Ordering::SeqCst);
        Ok(GuardedMapping { map, place })
    }

    /// Whether the kernel could not provide a page of the mapping. Reads of that page return 0 or what this process has written there; the
    /// target does not see these writes.
    pub(crate) fn is_broken(&self) -> bool {
        TABLE[self.place].broken.load(Ordering::SeqCst)
    }
}

impl Deref for GuardedMapping {
    type Target = MmapRaw;

    fn deref(&self) -> &MmapRaw {
        &self.map
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        // Clear the entry before the memory is unmapped: another mapping may get these addresses.
        TABLE[self.place].end.store(0, Ordering::SeqCst);
        TABLE[self.place].start.store(0, Ordering::SeqCst);
    }
}

fn install() -> io::Result<()> {
    static RESULT: OnceLock<Result<(), i32>> = OnceLock::new();
    let set = || {
        let failed = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // SAFETY: integers and null pointers only: all zero is a value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one sigaction.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } == -1 {
            return Err(failed());
        }
        // Store the earlier handler before the new one can run.
        let _ = BEFORE.set(before);
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = on_fault as *const () as usize;
        // Run the handler on the alternate stack, as the handler of the standard library: the fault may be the end of a stack.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler does only what is safe in a signal handler.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } == -1 {
            Err(failed())
        } else {
            Ok(())
        }
    };
    RESULT.get_or_init(set).map_err(io::Error::from_raw_os_error)
}

/// Maps an empty page at the address of the fault, if that is in a guarded mapping. Returns whether it did.
fn mend(at: usize) -> bool {
    let inside = |r: &&GuardEntry| (r.start.load(Ordering::SeqCst)..r.end.load(Ordering::SeqCst)).contains(&at);
    let Some(region) = TABLE[..USED.load(Ordering::SeqCst)].iter().find(inside) else { return false };
    region.broken.store(true, Ordering::SeqCst);
    let page = (at & !(PAGE_BYTES - 1)) as *mut libc::c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page lies in a mapping that its owner keeps while it is in the table, and accesses only as words that anybody may change.
    unsafe { libc::mmap(page, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) == page }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t.
    let info_ref = unsafe { &*info };
    // SAFETY: of a fault, it holds the address; else some other word, which is not used.
    let (code, at) = (info_ref.si_code, unsafe { info_ref.si_addr() } as usize);
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the same.
    let kept = unsafe { *errno };
    let is_fault = code > 0; // The kernel raised it; no process sent it.
    if is_fault && mend(at) {
        // SAFETY: the same.
        unsafe { *errno = kept };
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // Restore the default action, which ends the process. After a fault, the instruction runs again and faults again; otherwise the
            // signal is raised anew.
            // SAFETY: as in `install`.
            let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
            default.sa_sigaction = libc::SIG_DFL;
            // SAFETY: as in `install`.
            unsafe { libc::sigaction(libc::SIGBUS, &raw const default, std::ptr::null_mut()) };
            if !is_fault {
                // SAFETY: the request takes an integer only.
                unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler that was installed without SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_down_reads_as_zeros() {
        let file = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, 4 * PAGE).expect("grow");
        let map = memmap2::MmapOptions::new().len(4 * PAGE_BYTES).map_raw(&file).expect("map");
        let guarded = GuardedMapping::new(map).expect("guard");
        let word = |at: usize| {
            // SAFETY: an aligned word of a mapping that lives.
            unsafe { std::sync::atomic::AtomicU64::from_ptr(guarded.as_mut_ptr().wrapping_add(at).cast()) }
        };
        word(8).store(1, Ordering::SeqCst);
        word(2 * PAGE_BYTES).store(2, Ordering::SeqCst);
        rustix::fs::ftruncate(&file, PAGE).expect("cut");
        assert!(!guarded.is_broken());
        assert_eq!((word(2 * PAGE_BYTES).load(Ordering::SeqCst), word(8).load(Ordering::SeqCst)), (0, 1));
        assert!(guarded.is_broken());
        word(3 * PAGE_BYTES).store(3, Ordering::SeqCst);
        assert_eq!(word(3 * PAGE_BYTES).load(Ordering::SeqCst), 3);
        drop(guarded);
        assert!(!mend(1));
    }
}
