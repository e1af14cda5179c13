use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::Parser;
use ingraft_model::{EdgeKind, Svma};
use ingraft_report::{
    BlockCount, CallingContext, ContextFunction, ContextKind, ContextProfile, EdgeCount, EdgeEnd, FunctionProfile,
    ModuleInfo, ReturnSite, UnprofiledFunction,
};

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
        paths: None,
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

/// Contexts of a program whose `main` calls `load` so often, from one of two places each time.
fn contexts(calls: u64, bytes: i64) -> SavedProfile {
    let function = |name: &str, start| ContextFunction {
        name: name.to_owned(),
        start: Svma(start),
        size: 0x100,
        ..ContextFunction::default()
    };
    let context = |parent, function, at, calls, bytes| CallingContext {
        parent,
        function,
        site: ReturnSite { module: Some(0), at: Svma(at) },
        kind: ContextKind::Call,
        calls,
        metrics: vec![bytes],
    };
    let contexts = ContextProfile {
        functions: vec![function("main", 0x1000), function("_ZN4shop4loadEv", 0x1100)],
        contexts: vec![
            // The caller is in no module, and elsewhere in each process.
            CallingContext { site: ReturnSite { module: None, at: Svma(0x7000 + calls) }, ..context(None, 0, 0, 1, 0) },
            context(Some(0), 1, 0x1010, calls, bytes),
            context(Some(0), 1, 0x1020, 5, 64),
        ],
        metrics: vec!["allocated_bytes".to_owned()],
        outside: vec![0],
        ..ContextProfile::default()
    };
    let SavedProfile { modules, program, .. } = profile(1);
    SavedProfile {
        kind: ProfileKind::Contexts,
        pid: 7,
        modules,
        program,
        contexts: Some(contexts),
        ..Default::default()
    }
}

#[test]
fn contexts_are_a_tree() {
    let files = [("a.contexts", contexts(100, 4096))];
    let text = report(&files, &["a.contexts"]).expect("a tree");
    assert!(text.starts_with("/nowhere/shop, process 7\nCALLS  BYTES SELF  BYTES TOTAL  SHARE  CONTEXT"), "{text}");
    assert!(text.contains("  100       4 KiB        4 KiB   98 %    shop::load()  +0x10  shop\n"), "{text}");
    let text = report(&files, &["a.contexts", "--metric", "calls", "--by", "function", "--stats"]).expect("a tree");
    assert!(text.contains("  105    105   99 %   shop::load()  shop\n"), "{text}");
    assert!(text.contains("1.0 contexts below one that calls"), "{text}");
    let text = report(&files, &["a.contexts", "--as", "json"]).expect("records");
    assert_eq!(text.lines().filter(|line| line.starts_with(r#"{"type":"context","pid":7,"id":"#)).count(), 3, "{text}");
    assert!(text.ends_with("\"outside\":{\"allocated_bytes\":0}}\n"), "{text}");
}

#[test]
fn contexts_add_up_and_differ() {
    let files = [("new.contexts", contexts(100, 4096)), ("old.contexts", contexts(70, 1024))];
    let text = report(&files, &["new.contexts", "old.contexts", "--metric", "calls"]).expect("a tree");
    assert!(text.contains("  170    170   93 %    shop::load()  +0x10  shop\n"), "{text}");
    let text = report(&files, &["new.contexts", "--diff", "old.contexts"]).expect("a table");
    assert!(text.contains("+3 KiB      1 KiB      4 KiB  shop::load()  main       shop\n"), "{text}");
    let by_calls = ["new.contexts", "--diff", "old.contexts", "--metric", "calls", "--by", "function"];
    let text = report(&files, &by_calls).expect("a table");
    assert!(text.contains("   +30         75        105  shop::load()  main       shop\n"), "{text}");
    let text = report(&files, &["new.contexts", "--diff", "old.contexts", "--as", "json"]).expect("records");
    let expected = r#""id":2,"parent":1,"kind":"call","caller_module":"shop","call_site":"0x1010","old_calls":70,"new_calls":100,"old_metrics":{"allocated_bytes":1024},"new_metrics":{"allocated_bytes":4096}}"#;
    assert!(text.contains(expected) && text.lines().count() == 2, "{text}");
    let text = report(&files, &["new.contexts", "--diff", "new.contexts"]).expect("a text");
    assert_eq!(text, "no context differs\n");
}

#[test]
fn contexts_have_flags_of_their_own() {
    let files = [("a.contexts", contexts(100, 4096)), ("a.profile", profile(100))];
    let wrong = |words: &[&str]| {
        let wrong = failure(report(&files, words));
        assert_eq!(wrong.exit, Exit::Usage);
        format!("{}; {}", wrong.what, wrong.hint)
    };
    let time = wrong(&["a.contexts", "--metric", "time"]);
    assert_eq!(time, "the profile does not have the metric time; it has calls, bytes");
    let event = wrong(&["a.contexts", "--metric", "page-faults"]);
    assert_eq!(event, "the profile does not have the metric page-faults; it has calls, bytes");
    assert_eq!(wrong(&["a.profile", "--stats"]), "--stats belongs to contexts; leave out --stats");
    assert_eq!(wrong(&["a.profile", "--metric", "calls"]), "--metric belongs to contexts; leave out --metric");
    let module = wrong(&["a.contexts", "--module", "shop"]);
    assert_eq!(module, "contexts are chains of functions of all modules; leave out --module");
    let diff = wrong(&["a.contexts", "--diff", "a.contexts", "--bottom-up"]);
    assert_eq!(diff, "differences of contexts are a list, not a tree; leave out --bottom-up");
    assert!(
        wrong(&["a.contexts", "--as", "lcov"]).starts_with("the format is not for calling contexts; use --as html")
    );
    let folded = wrong(&["a.profile", "--as", "folded"]);
    assert!(folded.starts_with("the format is for calling contexts, and the profile has none; use --as html"));
}
