//! Checks that sentences of the documents are short.
//!
//! A sentence ends at `.`, `!`, `?` or `:` before a blank or at the end of a line, and with its paragraph, heading or list item. A word is
//! a run of characters between blanks that has a letter or digit; code in backquotes is one word, and a link is its text. Blocks of code
//! and tables are left out.

/// Number of words that a sentence may have.
const WORDS_MAX: usize = 40;

/// Documents that people read.
fn documents() -> Vec<(String, String)> {
    let root = crate::root();
    let mut names = vec!["README.md".to_owned(), "CHANGELOG.md".to_owned()];
    for entry in std::fs::read_dir(root.join("docs")).expect("docs") {
        let path = entry.expect("a document").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            names.push(format!("docs/{}", path.file_name().expect("a name").to_string_lossy()));
        }
    }
    names.sort();
    let read = |name: String| {
        let text = std::fs::read_to_string(root.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// Returns the sentences of a document, each with the number of the line on which its paragraph begins.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut paragraph, mut begin) = (Vec::new(), String::new(), 1);
    let mut code = false;
    for (number, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim();
        let fence = line.starts_with("```");
        code ^= fence;
        let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(|| {
            let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
            if rest.len() < line.len() { rest.strip_prefix(". ") } else { None }
        });
        let apart = fence || code || line.is_empty() || line.starts_with(['#', '|', '<']);
        if (apart || item.is_some()) && !paragraph.is_empty() {
            found.extend(split(&paragraph).into_iter().map(|sentence| (begin, sentence)));
            paragraph.clear();
        }
        if !apart {
            if paragraph.is_empty() {
                begin = number + 1;
            }
            paragraph.push_str(item.unwrap_or(line));
            paragraph.push(' ');
        }
    }
    found
}

/// Returns the sentences of a paragraph.
fn split(paragraph: &str) -> Vec<String> {
    let (mut found, mut sentence, mut code) = (Vec::new(), String::new(), false);
    let mut characters = paragraph.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '`' => {
                code = !code;
                sentence.push('x');
            }
            _ if code => {}
            // The address of a link is no text.
            ']' if characters.peek() == Some(&'(') => while characters.next().is_some_and(|c| c != ')') {},
            '.' | '!' | '?' | ':' if characters.peek().is_none_or(|next| *next == ' ') => {
                found.push(std::mem::take(&mut sentence));
            }
            other => sentence.push(other),
        }
    }
    found.push(sentence);
    found
}

/// Returns the number of words of a sentence.
fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(|c: char| c.is_alphanumeric())).count()
}

#[test]
fn sentences_are_short() {
    let mut long = Vec::new();
    for (name, text) in documents() {
        for (line, sentence) in sentences(&text) {
            let words = words(&sentence);
            if words > WORDS_MAX {
                long.push(format!("{name}:{line}: {words} words: {}", sentence.trim()));
            }
        }
    }
    assert!(long.is_empty(), "{} sentences have more than {WORDS_MAX} words:\n{}", long.len(), long.join("\n"));
}

#[test]
fn sentences_are_counted_as_said() {
    let text = "# A title\n\nOne two `three three`. Four\n[five](x.md) six: seven?\n- eight, 9\n- ten\n\n```text\nnone here\n```\n\n| no | row |\n";
    let counts: Vec<(usize, usize)> =
        sentences(text).into_iter().map(|(line, sentence)| (line, words(&sentence))).filter(|(_, n)| *n > 0).collect();
    assert_eq!(counts, [(3, 3), (3, 3), (3, 1), (5, 2), (6, 1)]);
}
