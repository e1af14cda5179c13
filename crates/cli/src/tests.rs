use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn wrong_usage_is_two_lines() {
    let what_and_hint = |line: &str| {
        let words = words(line);
        let failure = usage_failure(&Cli::try_parse_from(&words).unwrap_err(), &words);
        assert_eq!(failure.kind, exit::Kind::Usage);
        assert!(!failure.what.contains('\n') && !failure.hint.contains('\n'));
        format!("{} / {}", failure.what, failure.hint)
    };
    assert_eq!(
        what_and_hint("ingraft cuont"),
        "unrecognized subcommand 'cuont' / did you mean `count`? `ingraft --help` shows all"
    );
    assert_eq!(
        what_and_hint("ingraft count -p 0 f"),
        "invalid value '0' for '--pid <PID>': 0 is not in 1..=2147483647 / `ingraft count --help` shows what it takes"
    );
    assert_eq!(
        what_and_hint("ingraft count -p 1 f --intervall 1s"),
        "unexpected argument '--intervall' found / did you mean `--interval`? `ingraft count --help` shows all"
    );
    assert_eq!(
        what_and_hint("ingraft check"),
        "the following required arguments were not provided: <FILE>... / `ingraft check --help` shows what it takes"
    );
}

#[test]
fn the_format_is_seen_in_wrong_arguments() {
    assert_eq!(asked_format(&words("ingraft count --format json -p x")), Format::Json);
    assert_eq!(asked_format(&words("ingraft count --format=json -p x")), Format::Json);
    assert_eq!(asked_format(&words("ingraft count -p x")), Format::Table);
    assert_eq!(asked_format(&words("ingraft count x -- ls --format json")), Format::Table);
}
