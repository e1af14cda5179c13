use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn wrong_usage_is_two_lines() {
    let what_and_hint = |line: &str| {
        let words = words(line);
        let failure = usage_failure(&Cli::try_parse_from(&words).unwrap_err(), &words);
        assert_eq!(failure.exit, exit::Exit::Usage);
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

/// The words of each `ingraft` command in a line of a shell. Handles the parts of the shell that documents use: quotes, comments, pipes,
/// lists, redirections and jobs.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for character in line.chars().chain(['\n']) {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\n' | '|' | ';' | '&' | '>') => {
                words.extend(word.take());
                if !matches!(character, ' ' | '\n') {
                    all.push(std::mem::take(&mut words));
                }
            }
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    all.push(words);
    all.retain(|words: &Vec<String>| words.first().is_some_and(|first| first == "ingraft"));
    all
}

#[test]
fn the_commands_in_documents_are_understood() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("a document").path());
    let mut seen = 0;
    for path in docs.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut fence = "";
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(kind) = line.strip_prefix("```") {
                fence = kind;
            }
            let Some(line) = line.strip_prefix("$ ").filter(|_| fence == "console") else { continue };
            for words in commands(line) {
                let at = format!("{}:{number}: {words:?}", path.display());
                let cli = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{at}: {error}"));
                cli.check().unwrap_or_else(|failure| panic!("{at}: {failure}"));
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "only {seen} commands were found");
    let quoted = commands("cd x && ingraft count -p 1 'a b*' > f & # ingraft no");
    assert_eq!(quoted, [["ingraft", "count", "-p", "1", "a b*"]]);
}
