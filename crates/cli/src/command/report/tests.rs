use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::Parser;
use ingraft_model::{EdgeKind, Svma};
use ingraft_report::{BlockCount, EdgeCount, EdgeEnd, FunctionProfile, ModuleInfo, UnprofiledFunction};

use super::*;
use crate::args::{Cli, Command};

/// A sink that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the text").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A profile of a loop with this number of iterations.
fn profile(iterations: u64) -> SavedProfile {
    let block = |start: u64, instructions: u32, count: u64| BlockCount {
        start: Svma(start),
        size: 16,
        instructions,
        last: Svma(start + 14),
        count,
    };
    let edge = |from, to, kind, count| EdgeCount { from, to, kind, count: Some(count) };
    let function = FunctionProfile {
        module: 0,
        name: "_ZN4shop4loadEv".to_owned(),
        start: Svma(0x1000),
        size: 48,
        calls: 1,
        blocks: vec![block(0x1000, 3, 1), block(0x1010, 4, iterations), block(0x1020, 2, 1)],
        edges: vec![
            edge(0, EdgeEnd::Block(1), EdgeKind::FallThrough, 1),
            edge(1, EdgeEnd::Block(1), EdgeKind::Taken, iterations - 1),
            edge(1, EdgeEnd::Block(2), EdgeKind::FallThrough, 1),
            edge(2, EdgeEnd::Dynamic, EdgeKind::Return, 1),
        ],
        call_sites: Vec::new(),
        unknown: Vec::new(),
        inexact: None,
        details: None,
    };
    let module = ModuleInfo {
        name: "shop".to_owned(),
        path: "/nowhere/shop".to_owned(),
        build_id: vec![1, 2, 3],
        bias: 0x5000,
        mapped: (0, 0x4000),
    };
    let refused =
        UnprofiledFunction { module: 0, name: "tiny".to_owned(), start: Svma(0x2000), why: "too short".to_owned() };
    SavedProfile {
        pid: 7,
        program: module.path.clone(),
        modules: vec![module],
        functions: vec![function],
        refused: vec![refused],
        ..SavedProfile::default()
    }
}

/// Saves profiles, runs a command with their paths, and returns its output.
fn report(profiles: &[(&str, SavedProfile)], words: &[&str]) -> Result<String, Stop> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    for (name, profile) in profiles {
        std::fs::write(path(name), profile.to_bytes()).expect("write a profile");
    }
    std::fs::write(path("damaged"), b"INGPROF\0\x01").expect("write a file");
    let words =
        words.iter().map(|word| if word.contains('.') || *word == "damaged" { path(word) } else { word.into() });
    let words: Vec<PathBuf> = ["ingraft", "report"].into_iter().map(PathBuf::from).chain(words).collect();
    let cli = Cli::try_parse_from(words).expect("arguments");
    let kept = Kept::default();
    cli.check()?;
    let Command::Report(args) = &cli.command else { panic!("another command") };
    let mut out = Output::to_sink(cli.common.format, Box::new(kept.clone()));
    run(args, cli.common.format, &mut out)?;
    let text = kept.0.lock().expect("the text").clone();
    Ok(String::from_utf8(text).expect("a text"))
}

fn failure(result: Result<String, Stop>) -> Failure {
    match result {
        Err(Stop::Failure(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_show_functions_and_blocks() {
    let text = report(&[("a.profile", profile(100))], &["a.profile"]).expect("a table");
    assert!(text.starts_with("/nowhere/shop, process 7: 405 instructions in 1 function\n"), "{text}");
    assert!(text.contains("not counted: tiny (too short)"), "{text}");
    assert!(text.contains("         405  100 %      1  shop::load()  shop\n"), "{text}");
    assert!(text.contains("         400   99 %         100  shop::load()#0x10\n"), "{text}");
}

#[test]
fn several_profiles_are_added_up() {
    let both = [("a.profile", profile(100)), ("b.profile", profile(11))];
    let text = report(&both, &["a.profile", "b.profile", "--as", "json"]).expect("records");
    assert!(
        text.contains(r#""block":"0x10","size":16,"instructions":4,"header":"0x10","depth":1,"count":111}"#),
        "{text}"
    );
    assert!(text.contains(r#""from":"0x10","to":"0x10","kind":"taken","count":109}"#), "{text}");
}

#[test]
fn differences_are_a_table_or_records() {
    let both = [("old.profile", profile(100)), ("new.profile", profile(90))];
    let text = report(&both, &["new.profile", "--diff", "old.profile"]).expect("a table");
    assert!(text.contains("   -40  405  365  instructions  shop::load()"), "{text}");
    let text = report(&both, &["new.profile", "--diff", "old.profile", "--format", "json"]).expect("records");
    assert!(text.contains(r#""old_instructions":405,"new_instructions":365,"old_calls":1,"new_calls":1}"#), "{text}");
    assert!(text.contains(r#""block":"0x10","old":100,"new":90}"#), "{text}");
    let text = report(&both, &["new.profile", "--diff", "new.profile"]).expect("a text");
    assert_eq!(text, "no count differs\n");
}

#[test]
fn wrong_files_are_refused_with_a_reason() {
    let mut other = profile(5);
    other.modules[0].build_id = vec![4];
    let files = [("a.profile", profile(100)), ("other.profile", other)];
    let wrong = failure(report(&files, &["missing.profile"]));
    assert_eq!(wrong.exit, Exit::Usage);
    let wrong = failure(report(&files, &["damaged"]));
    assert!(wrong.exit == Exit::Failed && wrong.what.ends_with("this is no saved profile"), "{wrong:?}");
    let wrong = failure(report(&files, &["a.profile", "other.profile"]));
    assert!(wrong.what.ends_with("/nowhere/shop has different build-ids in the profiles"), "{wrong:?}");
    let wrong = failure(report(&files, &["a.profile", "--diff", "a.profile", "--as", "html"]));
    assert_eq!(wrong.exit, Exit::Usage);
    let wrong = failure(report(&files, &["a.profile", "-o", "a.profile"]));
    assert!(wrong.what.contains("which the command reads"), "{wrong:?}");
    let wrong = failure(report(&files, &["a.profile", "--module", "libc"]));
    assert_eq!((wrong.exit, wrong.hint.as_str()), (Exit::NotFound, "the profile has shop"));
}
