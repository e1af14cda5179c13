//! Mutatees for the live tests. The helpers compile and start them, and end them by their process id.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ingraft_model::{Avma, AvmaRange, PatchPlan, Pid, TextWrite};
use ingraft_process::Target;

/// A program under test.
pub struct Mutatee {
    pub child: Child,
    pub out: Option<BufReader<ChildStdout>>,
    pub ready: String,
}

fn scratch() -> PathBuf {
    option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

pub fn compile(name: &str) -> PathBuf {
    build(&scratch(), "cc", name, &["-mavx2"])
}

/// Compiles a mutatee with another compiler, or more flags.
pub fn compile_with(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    build(&scratch(), compiler, name, flags)
}

fn build(dir: &Path, compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mutatees").join(format!("{name}.c"));
    let program = dir.join(format!("{name}-{compiler}{}", flags.concat()));
    let temporary = dir.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let status = Command::new(compiler)
        .args(["-O2", "-g", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&temporary)
        .arg(&source)
        .args(flags)
        .status()
        .expect(compiler);
    assert!(status.success(), "{compiler} {}", source.display());
    std::fs::rename(&temporary, &program).expect("rename");
    program
}

/// Writes a word of a process's memory.
pub fn poke(pid: Pid, at: Avma, word: u64) {
    use std::os::unix::fs::FileExt;
    let mem = std::fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).expect("mem");
    mem.write_all_at(&word.to_le_bytes(), at.0).expect("write");
}

pub fn kill(pid: Pid, signal: i32) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status();
    assert!(status.expect("kill").success());
}

impl Mutatee {
    pub fn start(name: &str, args: &[&str]) -> Self {
        Self::start_program(&compile(name), args)
    }

    pub fn start_program(program: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn().expect("start");
        let mut out = BufReader::new(child.stdout.take().expect("stdout"));
        let mut ready = String::new();
        out.read_line(&mut ready).expect("ready");
        assert!(ready.starts_with("ready"), "{ready}");
        Mutatee { child, out: Some(out), ready }
    }

    /// Returns a channel of the lines that the program prints from now on.
    pub fn listen(&mut self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel();
        let out = self.out.take().expect("output");
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        receiver
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    pub fn target(&self) -> Target {
        Target::open(self.pid()).expect("open")
    }

    /// The address that the mutatee printed after this word.
    pub fn address(&self, word: &str) -> Avma {
        let mut words = self.ready.split_ascii_whitespace().skip_while(|w| *w != word);
        let hex = words.nth(1).expect("address");
        Avma(u64::from_str_radix(hex.trim_start_matches("0x"), 16).expect("hex"))
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Ends the mutatee with SIGTERM and returns its output. Fails if the mutatee reports an error.
    pub fn finish(mut self) -> String {
        self.signal(15);
        let mut rest = String::new();
        let mut out = self.out.take().expect("output");
        std::io::Read::read_to_string(&mut out, &mut rest).expect("output");
        let status = self.child.wait().expect("wait");
        assert!(status.success() && !rest.contains("wrong"), "{status}: {rest}");
        rest
    }
}

impl Drop for Mutatee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test, and fails if it takes longer than `time`.
pub fn within(time: Duration, test: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match finished.recv_timeout(time) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not finished in {time:?}"),
        _ => {
            if let Err(e) = thread.join() {
                std::panic::resume_unwind(e);
            }
        }
    }
}

/// Waits until a condition holds, for at most 30 seconds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A patch of `counted` in proc_worker: after its endbr64 a jump to code that counts with `lock`, executes the displaced instructions and
/// jumps back.
pub struct HandPatch {
    pub insert: PatchPlan,
    pub remove: PatchPlan,
    pub code: AvmaRange,
}

pub const COUNTED_BYTES: [u8; 13] = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x47, 0x11, 0x48, 0x6b, 0xc0, 0x03, 0xc3];

pub fn hand_patch(function: Avma, arena: Avma, counter: u32) -> HandPatch {
    let mut displaced = [0; 8];
    displaced.copy_from_slice(&COUNTED_BYTES[4..12]);
    hand_patch_of(function, displaced, arena, counter)
}

/// A patch of a function that has other instructions after the endbr64 than the function of [`hand_patch`]. Its first instruction has 4
/// bytes.
pub fn hand_patch_of(function: Avma, displaced: [u8; 8], arena: Avma, counter: u32) -> HandPatch {
    use ingraft_model::PcMove;
    use ingraft_model::patch::ArenaCode;
    let at = function.offset(4);
    let mut code = vec![0xf0, 0x48, 0xff, 0x04, 0x25]; // lock inc qword [counter]
    code.extend_from_slice(&counter.to_le_bytes());
    let behind_count = arena.offset(code.len() as i64);
    code.extend_from_slice(&displaced);
    let back = at.0 as i64 + 8 - (arena.0 as i64 + code.len() as i64 + 5);
    code.push(0xe9);
    code.extend_from_slice(&(back as i32).to_le_bytes());
    let end = arena.offset(code.len() as i64);

    let old = displaced;
    let mut new = [0; 8];
    new[0] = 0xe9;
    new[1..5].copy_from_slice(&((arena.0 as i64 - (at.0 as i64 + 5)) as i32).to_le_bytes());
    new[5..].copy_from_slice(&[0xcc; 3]);
    let write = TextWrite { at, len: 8, old, new };
    let insert = PatchPlan {
        code: vec![ArenaCode { at: arena, bytes: code }],
        text: vec![write],
        moves: vec![PcMove { from: at.offset(4), to: behind_count.offset(4) }],
        ..PatchPlan::default()
    };
    let remove = PatchPlan {
        text: vec![write.inverse()],
        moves: vec![
            PcMove { from: arena, to: at },
            PcMove { from: behind_count, to: at },
            PcMove { from: behind_count.offset(4), to: at.offset(4) },
            PcMove { from: behind_count.offset(8), to: at.offset(8) },
        ],
        retired: vec![arena..end],
        ..PatchPlan::default()
    };
    HandPatch { insert, remove, code: arena..end }
}
