//! Debugging information in other files: `.dwo` and `.dwp` of several compilers and packagers, and what `dwz -m` has moved.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ingraft_analysis::{
    AnalysedImage, DataSymbol, DebugFileName, DebugInfo, DebugSections, DescribedValue, Elf, FindDebugFile,
    no_debug_files,
};
use proptest::prelude::*;

/// Two units: the first one knows `struct far` by its name only.
const UNITS: [(&str, &str); 2] = [
    (
        "near.c",
        r#"
enum mood { CALM = 1, ANGRY = 7 };
struct far;
struct near { long first; struct far *far; enum mood mood; const char *name; };
__attribute__((noinline)) int look(struct near *n, enum mood mood) { return (int)n->first + mood; }
static inline __attribute__((always_inline)) long inlined(struct near *n) { return n->first * 3 + n->mood; }
__attribute__((noinline)) long calls(struct near *n) { return inlined(n) + look(n, CALM); }
extern struct near *shared_one;
int main(void) { return (int)calls(shared_one); }
"#,
    ),
    (
        "far.c",
        r#"
struct far { short skipped, level; };
struct near { long first; struct far *far; int mood; const char *name; };
struct far the_far = { 1, 2 };
struct near the_near = { 1, &the_far, 7, "n" };
struct near *shared_one = &the_near;
__attribute__((noinline, used)) int other(struct far *f) { return f->level; }
"#,
    ),
];

/// Compiles the units in a folder; `None` if a tool does not work here.
fn compiled(folder: &Path, compiler: &str, arguments: &[&str]) -> Option<PathBuf> {
    for (name, source) in UNITS {
        std::fs::write(folder.join(name), source).unwrap();
    }
    for (name, _) in UNITS {
        run(folder, compiler, &[arguments, &["-O1", "-c", name]].concat())?;
    }
    run(folder, compiler, &["near.o", "far.o", "-o", "program"])?;
    Some(folder.join("program"))
}

/// Runs a tool in a folder.
fn run(folder: &Path, tool: &str, arguments: &[&str]) -> Option<()> {
    let done = Command::new(tool).args(arguments).current_dir(folder).output();
    let works = done.is_ok_and(|done| done.status.success());
    if !works {
        eprintln!("skipped: {tool} {arguments:?} does not work here");
    }
    works.then_some(())
}

/// Answers to all kinds of questions about the program, as text.
fn answers(program: &Path, find: &FindDebugFile<'_>) -> Vec<String> {
    let image = AnalysedImage::parse(std::fs::read(program).unwrap().into()).unwrap();
    let sections = DebugSections::of(image.elf(), find).unwrap();
    let info = DebugInfo::of(&sections).unwrap();
    let start = |name: &str| image.functions().iter().find(|f| f.spellings().any(|own| own == name)).unwrap().start();
    let (look, other, calls) = (start("look"), start("other"), start("calls"));
    let code: Vec<_> = (0..64).map(|by| ingraft_model::Svma(calls.0 + by)).collect();
    let inlined: Vec<_> = info.inlined_at(&code).into_values().flatten().collect();
    let lines = info.lines_in(&[calls..ingraft_model::Svma(calls.0 + 4)]);
    let one = DataSymbol::named(image.elf(), None, "the_near").remove(0);
    vec![
        format!("{:?}", info.reach_in_argument(look, 0, &["first"])),
        format!("{:?}", info.reach_in_argument(look, 0, &["far", "level"])),
        format!("{:?}", info.reach_in_argument(look, 0, &["mood"])),
        format!("{:?}", info.shown(look, DescribedValue::Named("mood"), &[], false)),
        format!("{:?}", info.arguments(look)),
        format!("{:?}", info.reach_in_argument(other, 0, &["level"])),
        format!("{:?}", info.reach_in_variable(one.at, false, &["far", "level"])),
        format!("{:?}", info.reach_in_argument(look, 0, &["none"])),
        format!("inlined: {}", inlined.iter().all(|name| name == "inlined") && !inlined.is_empty()),
        format!("{:?}", lines.first().map(|line| (line.line, line.file.rsplit('/').next().map(str::to_owned)))),
    ]
}

/// Finds files where the names say, and those beside the program.
fn beside(folder: &Path) -> impl Fn(DebugFileName<'_>) -> Option<Arc<[u8]>> {
    move |name| {
        let path = match name {
            DebugFileName::Unit { directory, name } => Path::new(directory).join(name),
            DebugFileName::Package => folder.join("program.dwp"),
            DebugFileName::Shared { name, .. } => folder.join(name),
        };
        std::fs::read(path).ok().map(Arc::from)
    }
}

#[test]
fn units_in_files_of_their_own_are_read_as_whole_programs_are() {
    // The packagers do not end, or crash, with version 5 of gcc.
    let tools = [
        ("gcc", "-gdwarf-5", None),
        ("gcc", "-gdwarf-4", Some("dwp")),
        ("clang-19", "-gdwarf-4", Some("dwp")),
        ("clang-19", "-gdwarf-5", Some("llvm-dwp-19")),
    ];
    for (compiler, version, packager) in tools {
        let (whole, split) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let Some(expected) = compiled(whole.path(), compiler, &[version]) else { continue };
        let expected = answers(&expected, &no_debug_files);
        assert!(expected.iter().take(7).all(|answer| answer.starts_with("Ok(")), "{expected:#?}");
        let program = compiled(split.path(), compiler, &[version, "-gsplit-dwarf"]).expect("the compiler works");
        assert!(split.path().join("near.dwo").exists());
        assert_eq!(answers(&program, &beside(split.path())), expected, "{compiler} {version}");

        // files that are missing are named, and those of another program are not believed
        let lacking = answers(&program, &no_debug_files);
        assert!(lacking[0].contains("OtherFile { file: \"near.dwo\" }"), "{compiler} {version}: {lacking:#?}");
        assert_eq!(lacking[9], expected[9], "the lines are in the program");
        let foreign = |_: DebugFileName<'_>| std::fs::read(split.path().join("far.dwo")).ok().map(Arc::from);
        let other = answers(&program, &foreign);
        assert!(other[0].contains("OtherFile"), "{other:#?}");
        assert_eq!(other[5], expected[5], "the unit to which the file belongs");

        if let Some(packager) = packager
            && run(split.path(), packager, &["-e", "program", "-o", "program.dwp"]).is_some()
        {
            for (unit, _) in UNITS {
                std::fs::remove_file(split.path().join(unit).with_extension("dwo")).unwrap();
            }
            assert_eq!(answers(&program, &beside(split.path())), expected, "{packager} {version}");
        }
    }
}

#[test]
fn what_programs_share_is_read_from_the_file_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "gcc", &["-gdwarf-4"]) else { return };
    let expected = answers(&program, &no_debug_files);
    std::fs::copy(&program, folder.path().join("second")).unwrap();
    let dwz = ["-m", "shared.debug", "-M", "shared.debug", "program", "second"];
    if run(folder.path(), "dwz", &dwz).is_none() {
        return;
    }
    let asked = RefCell::new(0);
    let find = |name: DebugFileName<'_>| {
        *asked.borrow_mut() += 1;
        beside(folder.path())(name)
    };
    assert_eq!(answers(&program, &find), expected);
    assert_ne!(*asked.borrow(), 0, "the file names the shared one");
    // another file of this name has another build-id
    let foreign = |_: DebugFileName<'_>| std::fs::read("/proc/self/exe").ok().map(Arc::from);
    assert_ne!(answers(&program, &foreign), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_of_units_are_answers_or_errors(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        static SEED: std::sync::OnceLock<Option<[Vec<u8>; 3]>> = std::sync::OnceLock::new();
        let seed = SEED.get_or_init(|| {
            let folder = tempfile::tempdir().ok()?;
            let program = compiled(folder.path(), "clang-19", &["-gdwarf-5", "-gsplit-dwarf"])?;
            run(folder.path(), "llvm-dwp-19", &["-e", "program", "-o", "program.dwp"])?;
            let read = |path: PathBuf| std::fs::read(path).ok();
            Some([read(program.clone())?, read(program.with_extension("dwp"))?, read(folder.path().join("near.dwo"))?])
        });
        let Some([program, package, unit]) = seed else { return Ok(()) };
        let [mut package, mut unit] = [package.clone(), unit.clone()];
        for (place, byte) in &changes {
            let (at, of_unit) = (place.index(package.len()), place.index(unit.len()));
            package[at] = *byte;
            unit[of_unit] = *byte;
        }
        for packaged in [true, false] {
            let find = |name: DebugFileName<'_>| match name {
                DebugFileName::Package => packaged.then(|| Arc::from(package.clone())),
                DebugFileName::Unit { .. } => Some(Arc::from(unit.clone())),
                DebugFileName::Shared { .. } => None,
            };
            let elf = Elf::parse(program.clone().into()).unwrap();
            let Ok(sections) = DebugSections::of(&elf, &find) else { continue };
            let Ok(info) = DebugInfo::of(&sections) else { continue };
            for name in DataSymbol::names(&elf, None) {
                for symbol in DataSymbol::named(&elf, None, &name) {
                    let _ = info.reach_in_variable(symbol.at, symbol.per_thread, &["far", "level"]);
                }
            }
            for at in (0x1000..0x1400).step_by(16).map(ingraft_model::Svma) {
                let _ = info.arguments(at);
                let _ = info.reach_in_argument(at, 0, &["far", "level"]);
            }
        }
    }
}
