//! Checks that comments begin with their subject, so that a reader who sees one comment alone knows its subject.

/// Words with which no comment may begin: they stand for a subject, or ask for it.
const WITHOUT_SUBJECT: &[&str] = &["What", "Who", "Whose", "Whom", "How", "Its", "Which"];

/// Returns the first words of comments that have no subject, each with the number of its line. A comment begins after a line that is no
/// comment, and after an empty line of a comment.
fn without_subject(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut begins = true;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let comment = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark));
        let words = comment.map(str::trim_start);
        if let Some(first) = words.filter(|_| begins).and_then(|words| words.split(' ').next())
            && WITHOUT_SUBJECT.contains(&first)
        {
            found.push((number + 1, first));
        }
        begins = words.is_none_or(str::is_empty);
    }
    found
}

/// Directories whose comments are checked.
const HELD: &[&str] = &["crates", "tests"];

#[test]
fn comments_begin_with_their_subject() {
    let root = crate::root();
    let mut wrong = String::new();
    for directory in HELD {
        for (path, text) in crate::files::sources(&root.join(directory)) {
            for (line, word) in without_subject(&text) {
                let path = path.strip_prefix(&root).expect("a path below the root").display();
                wrong += &format!("{path}:{line}: a comment begins with `{word}`\n");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn first_words_are_found() {
    let text = "//! Its text.\n\n/// What it is.\n/// How it is.\nfn f() {} // Who knows\n    // A name.\n    //\n    // Which of them.\n";
    assert_eq!(without_subject(text), [(1, "Its"), (3, "What"), (8, "Which")]);
}
