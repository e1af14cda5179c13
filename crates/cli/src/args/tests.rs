use clap::CommandFactory;
use expect_test::expect_file;

use super::*;

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn durations() {
    for (text, expected) in [
        ("10s", Ok(Duration::from_secs(10))),
        ("500ms", Ok(Duration::from_millis(500))),
        ("0.5s", Ok(Duration::from_millis(500))),
        ("1min 30s", Ok(Duration::from_secs(90))),
        ("0s", Err("must be longer than nothing")),
        ("2years", Err("longer than a year")),
        ("10", Ok(Duration::from_secs(10))),
        ("0.25", Ok(Duration::from_millis(250))),
        ("0", Err("must be longer than nothing")),
        ("99999999999999999999999", Err("longer than a year")),
        ("soon", Err(values::NO_DURATION)),
        ("1e3", Err(values::NO_DURATION)),
        ("--format", Err(values::NO_DURATION)),
        ("-1s", Err("a duration is not negative")),
        ("-1", Err("a duration is not negative")),
    ] {
        assert_eq!(duration(text), expected.map_err(str::to_owned), "{text}");
    }
    assert_eq!(interval("1us"), Err("shorter than 1ms".to_owned()));
    assert_eq!(interval("2h"), Err("longer than an hour".to_owned()));
    assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
}

/// Every flag with a duration reads it in the same way, also one that begins like a flag.
#[test]
fn flags_with_a_duration() {
    let flags = [
        ("count f -p 1", "--for"),
        ("count f -p 1", "--interval"),
        ("count f -p 1", "--max-hold"),
        ("count f -p 1", "--wait"),
        ("watch calls -p 1", "--phases"),
        ("inspect f -p 1", "--for"),
        ("demo", "--for"),
    ];
    for (command, flag) in flags {
        let parse = |value: &str| {
            let words = format!("ingraft {command} {flag} {value}");
            Cli::try_parse_from(words.split(' ')).map_err(|error| error.to_string())
        };
        assert!(parse("10").is_ok(), "{command} {flag}");
        let error = parse("-1s").expect_err("a negative duration");
        assert!(error.contains(flag) && error.contains("a duration is not negative"), "{error}");
    }
}

#[test]
fn percentages() {
    assert_eq!(percent("5"), Ok(5.0));
    assert_eq!(percent("0.5%"), Ok(0.5));
    assert!(percent("0").is_err() && percent("NaN").is_err() && percent("much").is_err());
}

#[test]
fn pairs() {
    let text = |p: PairArg| format!("{} at {}", p.metric, p.focus);
    assert_eq!(pair("calls").map(text), Ok("calls at ".to_owned()));
    assert_eq!(pair("calls@/Code/m/f").map(text), Ok("calls at /Code/m/f".to_owned()));
    // A symbol version has an @ too, so only the first @ splits.
    assert_eq!(pair("calls@/Code/m/f@@V1").map(text), Ok("calls at /Code/m/f@@V1".to_owned()));
    for part in ["#0x1a", "#0x1a->0x40", "#-0x8->0x40", "#loop@0x1a"] {
        let written = format!("executions@/Code/m/f/{part},/Process/7");
        assert_eq!(pair(&written).map(text), Ok(format!("executions at /Code/m/f/{part},/Process/7")));
    }
    assert_eq!(pair("@/Code/m").map(text), Err("no metric before the `@`".to_owned()));
    assert!(pair("calls@Code/m").is_err());
}

#[test]
fn a_command_and_its_own_flags_are_left_alone() {
    let words = ["ingraft", "count", "malloc", "--until-exit", "--", "ls", "-l", "--format", "json"];
    let cli = Cli::try_parse_from(words).unwrap();
    assert_eq!(cli.common.format, Format::Table);
    let Command::Count(args) = cli.command else { panic!("another command") };
    assert_eq!(args.functions, ["malloc"]);
    assert_eq!(args.target.command, ["ls", "-l", "--format", "json"]);
}

#[test]
fn flags_of_all_commands_stand_on_either_side() {
    let before = ["ingraft", "--daemon", "unix:/a", "--format", "json", "status"];
    let after = ["ingraft", "status", "--daemon", "unix:/a", "--format", "json"];
    for words in [before, after] {
        let cli = Cli::try_parse_from(words).unwrap();
        assert_eq!((cli.common.daemons, cli.common.format), (vec!["unix:/a".to_owned()], Format::Json));
    }
    let two = ["ingraft", "status", "--daemon", "unix:/a", "--daemon", "unix:/b"];
    assert_eq!(Cli::try_parse_from(two).unwrap().common.daemons, ["unix:/a", "unix:/b"]);
}

#[test]
fn what_is_missing_is_said() {
    let check = |words: &str| {
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        cli.check().map_err(|failure| failure.what)
    };
    assert_eq!(check("ingraft count f"), Err("no target".to_owned()));
    assert_eq!(check("ingraft detach"), Err("no target".to_owned()));
    assert_eq!(check("ingraft detach --all"), Ok(()));
    assert_eq!(check("ingraft count f -- ls"), Ok(()));
    assert_eq!(check("ingraft functions -n x"), Ok(()));
    let kept = check("ingraft watch calls -p 1 --no-remove");
    assert_eq!(kept, Err("--no-remove needs a daemon that keeps the measurement".to_owned()));
    assert_eq!(check("ingraft watch calls -p 1 --no-remove --daemon unix:/a"), Ok(()));
}

/// Compares the text of every `--help`, so that a change of the interface is seen. UPDATE_EXPECT=1 writes the expected text anew.
#[test]
fn help() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = command.render_help().to_string();
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        let name = sub.get_name().to_owned();
        text += &format!("\n==== {name}\n\n{}", sub.render_help());
    }
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    expect_file!["help.txt"].assert_eq(&text);
}
