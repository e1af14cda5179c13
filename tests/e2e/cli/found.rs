//! `ingraft hot` finds the planted function of twenty programs that are generated from a seed: in the program, in libraries, in other threads,
//! called in various ways, compiled by various flags. Each program measures the share of its planted function by its own clock.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use ingraft_testing::{Mutatee, have, output, source_directory};
use serde_json::Value;

use crate::tool;

/// Seed of the programs.
const SEED: u64 = 0x5eed_0001;
/// Number of samples from which on a share is compared.
const ENOUGH: u64 = 500;

/// A generator of numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, from: u64, to: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + (z ^ (z >> 31)) % (to - from + 1)
    }
}

/// Way to the planted function, or what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A function of the program that is called directly.
    Plain,
    /// A static function.
    Static,
    /// A function of a shared library that the program is linked with.
    Library,
    /// A function of a library that the program loads while it runs.
    Loaded,
    /// It calls itself.
    Recursive,
    /// It is called through a pointer.
    Pointer,
    /// It is a leaf that is called very often.
    Leaf,
    /// All its work is in a function that is inlined into it.
    Inlined,
    /// Three threads run it.
    Threads,
    /// The function's time is in the kernel.
    Kernel,
    /// A virtual method of C++.
    Method,
}

/// The shape of a program, its compiler flags, and whether its symbols are stripped.
const PROGRAMS: [(Shape, &[&str], bool); 20] = [
    (Shape::Plain, &["-O2"], false),
    (Shape::Plain, &["-O0"], false),
    (Shape::Plain, &["-Os", "-fcf-protection=full"], false),
    (Shape::Plain, &["-O2", "-static"], false),
    (Shape::Plain, &["-O2", "-no-pie"], false),
    (Shape::Plain, &["-O3", "-fno-omit-frame-pointer"], false),
    (Shape::Plain, &["-O2", "-rdynamic"], true),
    (Shape::Static, &["-O2"], false),
    (Shape::Static, &["-O0"], false),
    (Shape::Library, &["-O2"], false),
    (Shape::Library, &["-O2"], true),
    (Shape::Loaded, &["-O1"], false),
    (Shape::Recursive, &["-O2"], false),
    (Shape::Recursive, &["-O0"], false),
    (Shape::Pointer, &["-O2"], false),
    (Shape::Leaf, &["-O2"], false),
    (Shape::Inlined, &["-O2"], false),
    (Shape::Threads, &["-O2"], false),
    (Shape::Kernel, &["-O2"], false),
    (Shape::Method, &["-O2", "-std=c++23"], false),
];

/// The source of the planted function. It is to work for `turns` turns.
fn planted(shape: Shape, name: &str) -> String {
    let turn = "x = x * 6364136223846793005u + 1442695040888963407; __asm__ volatile(\"\" : \"+r\"(x));";
    let body = format!("for (long i = 0; i < turns; i++) {{ {turn} }} return x;");
    let signature = format!("uint64_t {name}(uint64_t x, long turns)");
    match shape {
        Shape::Static => format!("static COUNTED {signature} {{ {body} }}\n"),
        Shape::Recursive => format!(
            "COUNTED {signature} {{ if (turns <= 2000) {{ {body} }} x = {name}(x, turns - 2000) + 1; turns = 2000; {body} }}\n"
        ),
        Shape::Inlined => format!(
            "static inline __attribute__((always_inline)) uint64_t inner(uint64_t x, long turns) {{ {body} }}\n\
             COUNTED {signature} {{ return inner(x, turns) + 1; }}\n"
        ),
        Shape::Kernel => format!(
            "COUNTED {signature} {{ for (long i = 0; i < turns / 100; i++) {{ long n = 110; \
             __asm__ volatile(\"syscall\" : \"+a\"(n) : : \"rcx\", \"r11\", \"memory\"); x += n; }} return x; }}\n"
        ),
        Shape::Method => format!(
            "struct Base {{ virtual uint64_t work(uint64_t x, long turns) = 0; virtual ~Base() {{}} }};\n\
             struct Holder : Base {{ COUNTED uint64_t {name}(uint64_t x, long turns) {{ {body} }}\n\
             uint64_t work(uint64_t x, long turns) override {{ return {name}(x, turns) + 1; }} }};\n\
             static Holder holder; static Base *volatile base = &holder;\n"
        ),
        _ => format!("COUNTED {signature} {{ {body} }}\n"),
    }
}

/// The call of the planted function by a lap.
fn call(shape: Shape, name: &str, turns: u64) -> String {
    match shape {
        Shape::Pointer | Shape::Loaded => format!("x = pointer(x, {turns})"),
        Shape::Leaf => format!("for (int n = 0; n < {}; n++) x = {name}(x, 200)", turns / 200),
        Shape::Method => format!("x = base->work(x, {turns})"),
        _ => format!("x = {name}(x, {turns})"),
    }
}

/// The source of a program. `turns` are those of the planted function and of the others in a lap.
fn source(shape: Shape, name: &str, turns: (u64, &[u64])) -> String {
    let mut text = String::from("#include \"mutatee.h\"\n#include <stdint.h>\n#include <time.h>\n#include <dlfcn.h>\n");
    let is_own = !matches!(shape, Shape::Library | Shape::Loaded);
    // Writing to a String never fails.
    if is_own {
        text += &planted(shape, name);
    } else if shape == Shape::Library {
        let _ = writeln!(text, "uint64_t {name}(uint64_t x, long turns);");
    }
    let pointed = if shape == Shape::Pointer { name } else { "NULL" };
    let _ = writeln!(text, "__attribute__((unused)) static uint64_t (*volatile pointer)(uint64_t, long) = {pointed};");
    for (number, _) in turns.1.iter().enumerate() {
        text += &planted(Shape::Plain, &format!("other_{number}"));
    }
    text += "static atomic_int busy; static atomic_llong of_planted, of_all;\n\
             static long long cpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); \
             return t.tv_sec * 1000000000LL + t.tv_nsec; }\n\
             COUNTED void *laps(void *unused) {\n    uint64_t x = 1; long long all = cpu(), own = 0;\n    \
             while (atomic_load(&busy)) {\n        long long begin = cpu();\n";
    let _ = writeln!(text, "        {};\n        own += cpu() - begin;", call(shape, name, turns.0));
    for (number, turns) in turns.1.iter().enumerate() {
        let _ = writeln!(text, "        x = other_{number}(x, {turns});");
    }
    let threads = if shape == Shape::Threads { 3 } else { 1 };
    let _ = write!(
        text,
        "    }}\n    atomic_fetch_add(&of_planted, own); atomic_fetch_add(&of_all, cpu() - all);\n    \
         return x == 42 ? &busy : unused;\n}}\n\
         int main(int count, char **arguments) {{\n    pthread_t threads[{threads}]; (void)count; (void)arguments;\n"
    );
    if shape == Shape::Loaded {
        let _ = write!(
            text,
            "    void *library = dlopen(arguments[1], RTLD_NOW); if (!library) return 4;\n    \
             pointer = (uint64_t (*)(uint64_t, long))dlsym(library, \"{name}\"); if (!pointer) return 5;\n"
        );
    }
    let _ = write!(
        text,
        "    say_ready();\n    for (char *line; (line = next_command());) {{\n        if (!strcmp(line, \"run\")) {{\n            \
         atomic_store(&busy, 1);\n            \
         for (int t = 0; t < {threads}; t++) if (pthread_create(&threads[t], NULL, laps, NULL)) abort();\n        }} else {{\n            \
         atomic_store(&busy, 0);\n            for (int t = 0; t < {threads}; t++) pthread_join(threads[t], NULL);\n        }}\n        \
         say(\"ns planted %lld\", (long long)of_planted); say(\"ns all %lld\", (long long)of_all);\n        say(\"done\");\n    }}\n    \
         return 0;\n}}\n"
    );
    text
}

/// Builds a program and starts it.
fn start(directory: &Path, (shape, flags, strip): (Shape, &[&str], bool), name: &str, turns: (u64, &[u64])) -> Mutatee {
    let (compiler, extension) = if shape == Shape::Method { ("g++", "cpp") } else { ("gcc", "c") };
    let (file, program) = (directory.join(format!("program.{extension}")), directory.join("program"));
    let library = directory.join("libplanted.so");
    std::fs::write(&file, source(shape, name, turns)).expect("write the source");
    let mutatees = source_directory().join("tests/mutatees");
    let mut command = Command::new(compiler);
    command.args(flags).args(["-pthread", "-o"]).arg(&program).arg("-I").arg(&mutatees).arg(&file);
    if matches!(shape, Shape::Library | Shape::Loaded) {
        let file = directory.join("planted.c");
        let text = format!("#include \"mutatee.h\"\n#include <stdint.h>\n{}", planted(shape, name));
        std::fs::write(&file, text).expect("write the source");
        let mut build = Command::new("gcc");
        build
            .args(flags)
            .args(["-shared", "-fPIC", "-pthread", "-o"])
            .arg(&library)
            .arg("-I")
            .arg(&mutatees)
            .arg(&file);
        output(&mut build);
        if shape == Shape::Library {
            command.arg(&library);
        }
    }
    output(&mut command);
    if strip {
        output(Command::new("strip").arg(&program));
    }
    Mutatee::spawn(Command::new(&program).arg(&library))
}

/// Whether the planted function of a program is the first row, with the share that the program measures itself.
fn finds(number: usize) {
    let (shape, flags, strip) = PROGRAMS[number];
    let mut numbers = Numbers(SEED.wrapping_mul(number as u64 + 1));
    let name = format!("planted_{}", numbers.next(100, 999));
    let others: Vec<u64> = (0..numbers.next(2, 12)).map(|_| numbers.next(1000, 20_000)).collect();
    // The planted function is to take between 1.2 and 3 times as long as the longest of the others.
    let longest = others.iter().copied().max().unwrap_or(1000);
    let turns = longest * numbers.next(120, 300) / 100;
    let directory = tempfile::tempdir().expect("a directory");
    let mut target = start(directory.path(), (shape, flags, strip), &name, (turns, &others));
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    while session.wait_for("samples")["base"].as_u64().is_none_or(|base| base < ENOUGH) {}
    let outcome = session.interrupt().assert_code(0);
    let own = target.ask("rest");
    let truth = own.number("ns planted") as f64 / own.number("ns all") as f64;
    // The last table comes before the last sums.
    let ends: Vec<usize> = (0..outcome.objects.len()).filter(|at| outcome.objects[*at]["type"] == "samples").collect();
    let first = &outcome.objects[ends[ends.len() - 2] + 1];
    let about = format!("program {number} of seed {SEED:#x} ({shape:?} {flags:?}, stripped: {strip})");
    let found = first["function"].as_str().unwrap_or_default();
    assert!(found.contains(&name), "{about}: {found} comes first, not {name}: {outcome:#?}");
    let value = |of: &Value| of.as_f64().expect("a number");
    // A leaf that is called very often has callers with a part of its time.
    let share = value(&first["self"]);
    let error = (truth * (1.0 - truth) / value(&outcome.objects[ends[ends.len() - 1]]["base"])).sqrt();
    let slack = if shape == Shape::Leaf { 0.05 } else { 0.0 };
    assert!((share - truth).abs() <= 4.0 * error + slack, "{about}: {share} instead of {truth} ± {error}");
}

fn find_all(of: std::ops::Range<usize>) {
    if !have("gcc") || !have("g++") {
        return println!("skipped: gcc and g++ are not both installed");
    }
    of.for_each(finds);
}

#[test]
fn in_programs_of_various_flags() {
    find_all(0..7);
}

#[test]
fn in_libraries_and_static_functions() {
    find_all(7..12);
}

#[test]
fn however_it_is_called() {
    find_all(12..16);
}

#[test]
fn whatever_it_is_made_of() {
    find_all(16..20);
}
