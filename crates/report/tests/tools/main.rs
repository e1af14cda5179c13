//! Gives exported profiles to the tools that they are made for, and compares what the tools read with the counts of a single-stepped run.
//! A test says what it skips if its tool is not installed.

mod contexts;
mod stepped;

use std::path::{Path, PathBuf};
use std::process::Command;

use ingraft_model::EdgeKind;
use ingraft_report::{ExportOptions, Exporter, ProfiledProgram};
use ingraft_testing::{have, output, skip};
use stepped::Stepped;
use tempfile::TempDir;

/// A profile in the format with this name.
fn exported(program: &ProfiledProgram<'_>, name: &str) -> String {
    let exporter = Exporter::named(name).expect("a format");
    String::from_utf8((exporter.write)(program, &ExportOptions::new(program, &|_| None))).expect("text")
}

/// Compiles the program of these tests.
fn compiled(compiler: &str, flags: &[&str]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/program.c");
    output(
        Command::new(compiler).args(["-O1", "-g", "-Wl,--build-id"]).args(flags).arg("-o").arg(&program).arg(source),
    );
    (directory, program)
}

fn write(directory: &TempDir, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).expect("write a file");
    path
}

#[test]
fn callgrind_annotate_reads_costs_of_functions_and_lines() {
    let (directory, program) = compiled("cc", &[]);
    let stepped = Stepped::run(&program);
    // The single steps are the oracle: the numbers of the program are known.
    assert_eq!((stepped.function("kind").calls, stepped.function("length").calls), (39, 39));
    assert_eq!((stepped.function("never").calls, stepped.function("compare").calls > 10), (0, true));
    // fibonacci(n) makes 2 * fibonacci(n + 1) - 1 calls.
    assert_eq!(stepped.function("fibonacci").calls, 2 * 55 - 1);
    if !have("callgrind_annotate") {
        skip!("callgrind_annotate is not installed");
    }
    let text = exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "callgrind");
    let file = write(&directory, "callgrind.out", text);
    let read = output(
        Command::new("callgrind_annotate").args(["--show-percs=no", "--threshold=100", "--auto=yes"]).arg(&file),
    );
    let numbers = |name: &str| {
        let line = read.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}:\n{read}"));
        let number = line.split_whitespace().next().expect("a number");
        number.replace(',', "").parse::<u64>().expect("a number")
    };
    for name in ["step", "length", "kind", "fibonacci", "compare", "main"] {
        assert_eq!(numbers(&format!("program.c:{name} ")), stepped.function(name).executed(), "{name}");
    }
    let total: u64 = stepped.profile.functions.iter().map(|function| function.executed()).sum();
    assert_eq!(numbers("PROGRAM TOTALS"), total);
    // Two instructions: lea and ret.
    let odd = stepped.function("step").edges.iter().find(|edge| edge.kind == EdgeKind::Taken).expect("a branch");
    assert_eq!(numbers("return 3 * x + 1;"), 2 * odd.count.expect("a count"));
    let read = output(Command::new("callgrind_annotate").args(["--show-percs=no", "--inclusive=yes"]).arg(&file));
    let of_length = stepped.function("length").executed() + stepped.function("step").executed();
    let line = read.lines().find(|line| line.contains("program.c:length ")).expect("a line");
    assert!(line.replace(',', "").contains(&of_length.to_string()), "{line}");
}

#[test]
fn genhtml_reads_the_same_lines_as_executed() {
    if !have("genhtml") {
        skip!("genhtml is not installed");
    }
    let (directory, program) = compiled("cc", &[]);
    let stepped = Stepped::run(&program);
    let text = exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "lcov");
    let file = write(&directory, "coverage.info", &text);
    let pages = directory.path().join("pages");
    let read = output(Command::new("genhtml").arg("--branch-coverage").arg("-o").arg(&pages).arg(&file));
    let data: Vec<&str> = text.lines().filter(|line| line.starts_with("DA:")).collect();
    let (lines, functions) = (data.len(), text.matches("\nFN:").count());
    // `never` and its call.
    let never = data.iter().filter(|line| line.ends_with(",0")).count();
    assert_eq!(never, 5);
    assert!(read.contains(&format!("({} of {lines} lines)", lines - never)), "{read}");
    assert!(read.contains(&format!("({} of {functions} functions)", functions - 1)), "{read}");
    assert!(text.contains("DA:49,39\n") && text.contains("FNDA:0,never\n"), "{text}");
}

/// Functions of the program as BOLT names them.
const BOLTED: [&str; 8] =
    ["step/1", "length/1", "kind", "fibonacci", "never", "compare/1", "main", "__do_global_dtors_aux/1"];

/// Lines of a profile of BOLT about these functions, sorted. Calls of library functions have no known target in the profiles of these
/// tests.
fn known(text: &str) -> Vec<String> {
    let has = |line: &&str| line.split_whitespace().any(|word| BOLTED.contains(&word));
    let of_library = |line: &&str| line.contains("@PLT") || line.contains(" 0 [unknown]");
    let mut found: Vec<String> = text.lines().filter(has).filter(|l| !of_library(l)).map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn bolt_counts_the_same_branches_itself() {
    let library = "/usr/lib/llvm-19/lib/libbolt_rt_instr.a";
    if !have("llvm-bolt-19") || !Path::new(library).exists() {
        skip!("llvm-bolt-19 or its runtime library is not installed");
    }
    let (directory, program) = compiled("cc", &["-Wl,--emit-relocs"]);
    let (instrumented, counted) = (directory.path().join("instrumented"), directory.path().join("counted.fdata"));
    let mut bolt = Command::new("llvm-bolt-19");
    bolt.arg(&program).arg("-instrument").arg("-o").arg(&instrumented);
    bolt.arg("--runtime-instrumentation-lib=llvm-19/lib/libbolt_rt_instr.a");
    output(bolt.arg(format!("--instrumentation-file={}", counted.display())));
    output(&mut Command::new(&instrumented));
    let stepped = Stepped::run(&program);
    let ours = exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "fdata");
    let own = std::fs::read_to_string(&counted).expect("BOLT's profile");
    assert!(known(&ours).len() > 30, "{ours}");
    assert_eq!(known(&ours), known(&own));
}

#[test]
fn bolt_reads_both_forms_alike_and_rewrites_the_program() {
    if !have("llvm-bolt-19") {
        skip!("llvm-bolt-19 is not installed");
    }
    for flags in [&["-Wl,--emit-relocs"][..], &["-Wl,--emit-relocs", "-no-pie"]] {
        let (directory, program) = compiled("cc", flags);
        let stepped = Stepped::run(&program);
        let code = ProfiledProgram::new(&stepped.profile, stepped.code());
        let fdata = exported(&code, "fdata");
        let addresses = write(&directory, "addresses", exported(&code, "bolt"));
        let read = directory.path().join("read.fdata");
        let mut bolt = Command::new("llvm-bolt-19");
        bolt.arg(&program).args(["-aggregate-only", "-pa", "-p"]).arg(&addresses).arg("-o").arg(&read);
        output(&mut bolt);
        assert_eq!(known(&std::fs::read_to_string(&read).expect("a profile")), known(&fdata));
        let (symbols, rewritten) = (write(&directory, "fdata", &fdata), directory.path().join("rewritten"));
        let mut bolt = Command::new("llvm-bolt-19");
        bolt.arg(&program).arg("-data").arg(&symbols).arg("-o").arg(&rewritten);
        let output_of_bolt = bolt.args(["-reorder-blocks=ext-tsp", "-reorder-functions=hfsort"]).output().expect("run");
        let said = String::from_utf8_lossy(&output_of_bolt.stderr).into_owned()
            + &String::from_utf8_lossy(&output_of_bolt.stdout);
        assert!(output_of_bolt.status.success() && said.contains("have non-empty execution profile"), "{said}");
        assert!(!said.contains("invalid (possibly stale) profile"), "{said}");
        assert_eq!(output(&mut Command::new(&rewritten)), output(&mut Command::new(&program)));
    }
}

#[test]
fn llvm_reads_samples_and_clang_uses_them() {
    let Some(profdata) = ["llvm-profdata-19", "llvm-profdata"].into_iter().find(|name| have(name)) else {
        skip!("llvm-profdata is not installed");
    };
    let clang = ["clang-19", "clang"].into_iter().find(|name| have(name));
    let flags: &[&str] = if clang.is_some() { &["-O2", "-fdebug-info-for-profiling"] } else { &[] };
    let (directory, program) = compiled(clang.unwrap_or("cc"), flags);
    let stepped = Stepped::run(&program);
    let file =
        write(&directory, "samples", exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "llvm-sample"));
    let read = output(Command::new(profdata).args(["show", "--sample"]).arg(&file));
    assert!(read.contains(&format!(", {}, ", stepped.function("length").calls)), "{read}");
    let steps = stepped.function("step").calls;
    assert!(read.contains(&format!("calls: step:{steps}")), "{read}");
    let Some(clang) = clang else { skip!("clang is not installed") };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/program.c");
    let mut command = Command::new(clang);
    command.args(["-O2", "-g", "-Rpass-analysis=sample-profile", "-mllvm", "-sample-profile-check-record-coverage=75"]);
    command.arg(format!("-fprofile-sample-use={}", file.display())).arg("-fprofile-sample-accurate");
    let said = command.arg("-o").arg(directory.path().join("again")).arg(source).output().expect("run clang");
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains(&format!("Applied {steps} samples")), "{said}");
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn lines_of_programs_that_were_optimised_at_link_time_are_known() {
    let (_directory, program) = compiled("gcc", &["-flto", "-O2"]);
    let stepped = Stepped::run(&program);
    let samples = exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "llvm-sample");
    assert!(samples.contains("fibonacci:") && samples.contains("\nkind:"), "{samples}");
}

#[test]
fn gcov_counts_the_same_lines() {
    if !have("gcov") || !have("gcc") {
        skip!("gcov or gcc is not installed");
    }
    let (_plain, program) = compiled("gcc", &["-O0"]);
    let stepped = Stepped::run(&program);
    let ours = exported(&ProfiledProgram::new(&stepped.profile, stepped.code()), "lcov");
    let counted = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/program.c");
    let mut compile = Command::new("gcc");
    output(compile.current_dir(&counted).args(["-O0", "--coverage", "-o", "counted"]).arg(source));
    output(Command::new(counted.path().join("counted")).current_dir(&counted));
    let read = output(Command::new("gcov").current_dir(&counted).args(["--stdout", "counted-program.gcda"]));
    let mut common = 0;
    for line in read.lines() {
        let mut fields = line.splitn(3, ':').map(str::trim);
        let (Some(count), Some(number)) = (fields.next(), fields.next()) else { continue };
        let count = if count.starts_with('#') { "0" } else { count.trim_end_matches('*') };
        // gcov lists no closing braces, and the profile of this test has no blocks after an indirect jump that is not resolved.
        let same = format!("\nDA:{number},{count}\n");
        if count.parse::<u64>().is_ok() && ours.contains(&format!("\nDA:{number},")) {
            assert!(ours.contains(&same), "{same}{ours}{read}");
            common += 1;
        }
    }
    assert!(common > 30, "{common}\n{read}");
}
