//! Functions in which a thread ends that was cancelled before: the cancellation points of pthreads(7), and those of glibc and the C standard
//! library that it does not list.

/// Names of the functions without the additions of C libraries, sorted.
const CANCELLATION_POINTS: [&str; 148] = [
    "accept",
    "accept4",
    "aio_suspend",
    "clock_nanosleep",
    "close",
    "cnd_timedwait",
    "cnd_wait",
    "connect",
    "copy_file_range",
    "creat",
    "dprintf",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fallocate",
    "fclose",
    "fcntl",
    "fdatasync",
    "fflush",
    "fgetc",
    "fgetpos",
    "fgets",
    "fgetwc",
    "fgetws",
    "fopen",
    "fprintf",
    "fputc",
    "fputs",
    "fputwc",
    "fputws",
    "fread",
    "freopen",
    "fscanf",
    "fseek",
    "fseeko",
    "fsetpos",
    "fsync",
    "ftell",
    "ftello",
    "fwprintf",
    "fwrite",
    "fwscanf",
    "getaddrinfo",
    "getc",
    "getchar",
    "getdelim",
    "getentropy",
    "gethostbyaddr",
    "gethostbyname",
    "getline",
    "getnameinfo",
    "getrandom",
    "gets",
    "getw",
    "getwc",
    "getwchar",
    "lockf",
    "mq_receive",
    "mq_send",
    "mq_timedreceive",
    "mq_timedsend",
    "msgrcv",
    "msgsnd",
    "msync",
    "nanosleep",
    "open",
    "open_by_handle_at",
    "openat",
    "pause",
    "pclose",
    "perror",
    "poll",
    "popen",
    "posix_fallocate",
    "ppoll",
    "pread",
    "preadv",
    "preadv2",
    "preadv64v2",
    "printf",
    "pselect",
    "pthread_clockjoin_np",
    "pthread_cond_clockwait",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_testcancel",
    "pthread_timedjoin_np",
    "putc",
    "putchar",
    "puts",
    "putw",
    "putwc",
    "putwchar",
    "pwrite",
    "pwritev",
    "pwritev2",
    "pwritev64v2",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "rewind",
    "scanf",
    "select",
    "sem_clockwait",
    "sem_timedwait",
    "sem_wait",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "sigpause",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "splice",
    "sync_file_range",
    "syslog",
    "system",
    "tcdrain",
    "tee",
    "thrd_join",
    "thrd_sleep",
    "tmpfile",
    "usleep",
    "vdprintf",
    "vfprintf",
    "vfscanf",
    "vfwprintf",
    "vmsplice",
    "vprintf",
    "vscanf",
    "vsyslog",
    "vwprintf",
    "wait",
    "wait3",
    "wait4",
    "waitid",
    "waitpid",
    "wprintf",
    "write",
    "writev",
    "wscanf",
];
/// Names that are no other name with additions: those behind macros of C libraries, and that of the standard for `sigpause`.
const INNER: [&str; 4] = ["__overflow", "__uflow", "__underflow", "__xpg_sigpause"];
/// Beginnings that C libraries put before names.
const BEGINNINGS: [&str; 6] = ["__isoc99_", "__isoc23_", "__libc_", "_IO_", "__", ""];
/// Ends that C libraries put behind names: of checks (`_FORTIFY_SOURCE`), of large files, and of streams without a lock.
const ENDS: [&str; 7] = ["_chk", "64_chk", "_2", "64_2", "64", "_unlocked", "_unlocked_chk"];

/// Whether a function of a C library is a cancellation point.
pub fn is_point(name: &str) -> bool {
    let name = BEGINNINGS.iter().find_map(|beginning| name.strip_prefix(beginning)).filter(|_| !INNER.contains(&name));
    name.is_none_or(|name| {
        let plain = std::iter::once(name).chain(ENDS.iter().filter_map(|end| name.strip_suffix(end)));
        plain.into_iter().any(|name| CANCELLATION_POINTS.binary_search(&name).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_points_are_known_by_all_their_names() {
        assert!(CANCELLATION_POINTS.is_sorted());
        let points = "read __read __libc_read __read_chk __pread64_chk pread64 __recvfrom_chk __ppoll_chk __vfprintf_chk __syslog_chk \
                      fcntl64 openat64 __open64_2 __openat_2 lockf64 fopen64 fseeko64 __isoc99_fscanf __isoc23_scanf _IO_putc wait3 waitid \
                      sigtimedwait system preadv2 pwritev64 mq_timedsend recvmmsg pthread_cond_clockwait aio_suspend64 pthread_testcancel \
                      fwrite_unlocked __fread_unlocked_chk __overflow __xpg_sigpause preadv64v2";
        for name in points.split_whitespace() {
            assert!(is_point(name), "{name}");
        }
        let others = "memcpy __memcpy_chk sprintf __snprintf_chk _exit sem_post pthread_kill raise sigaction overflow reader read_config 64 _chk";
        for name in others.split_whitespace() {
            assert!(!is_point(name), "{name}");
        }
        assert!(!is_point(""));
    }
}
