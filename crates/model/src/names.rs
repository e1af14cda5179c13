//! Names of C++ as people write them: without the arguments of templates of the standard library that every program leaves out.

/// Namespaces inside of `std` that no source names.
const INLINE: [&str; 2] = ["std::__cxx11::", "std::__1::"];

/// Templates that are the last arguments of others by default.
const DEFAULTS: [&str; 6] =
    ["std::allocator<", "std::char_traits<", "std::less<", "std::hash<", "std::equal_to<", "std::default_delete<"];

/// Arguments in angle brackets.
struct Arguments {
    /// Place behind the bracket that opens them.
    start: usize,
    /// Places of the commas between them.
    commas: Vec<usize>,
    /// Whether the template is one of the standard library.
    is_std: bool,
}

/// A demangled name with `std::string` for `std::__cxx11::basic_string<char, …>`, `std::vector<int>` for `std::vector<int,
/// std::allocator<int> >`, and likewise the other defaults of the standard library. The text may have other words around the name. `None` if
/// there is nothing to shorten, or if the brackets of the text do not match.
pub fn abbreviated(name: &str) -> Option<String> {
    if !name.contains("std::") {
        return None;
    }
    let text = INLINE.iter().fold(name.to_owned(), |text, inline| text.replace(inline, "std::"));
    let (mut out, mut open) = (String::with_capacity(text.len()), Vec::new());
    for c in text.chars() {
        match c {
            '<' if !is_operator(&out) && begins_arguments(&out) => {
                let is_std = template(&out).starts_with("std::");
                out.push(c);
                open.push(Some(Arguments { start: out.len(), commas: Vec::new(), is_std }));
            }
            '(' | '[' | '{' => {
                out.push(c);
                open.push(None);
            }
            ')' | ']' | '}' => {
                open.pop()?.is_none().then_some(())?;
                out.push(c);
            }
            ',' => {
                if let Some(Some(arguments)) = open.last_mut() {
                    arguments.commas.push(out.len());
                }
                out.push(c);
            }
            '>' if !is_operator(&out) && !out.ends_with('-') && !open.is_empty() => {
                close(&mut out, open.pop()??);
            }
            _ => out.push(c),
        }
    }
    (open.is_empty() && out != name).then_some(out)
}

/// Ends a list of arguments, without the defaults at its end.
fn close(out: &mut String, arguments: Arguments) {
    for comma in arguments.commas.iter().rev().filter(|_| arguments.is_std) {
        let last = out.get(comma + 1..).unwrap_or_default().trim();
        if !last.ends_with('>') || !DEFAULTS.iter().any(|default| last.starts_with(default)) {
            break;
        }
        out.truncate(*comma);
    }
    out.truncate(out.trim_end().len());
    out.push('>');
    // std::basic_string<char>, std::basic_ostream<char>, std::basic_string_view<char> and their like have names of their own.
    if out.get(arguments.start..) == Some("char>") {
        let start = arguments.start - 1 - template(out.get(..arguments.start - 1).unwrap_or_default()).len();
        if let Some(rest) = out.get(start..arguments.start - 1).and_then(|of| of.strip_prefix("std::basic_")) {
            let short = format!("std::{rest}");
            out.truncate(start);
            out.push_str(&short);
        }
    }
}

/// The name, with its namespaces, at the end of a text.
fn template(text: &str) -> &str {
    let start = text.char_indices().rev().take_while(|(_, c)| is_of_name(*c)).last();
    start.map_or("", |(at, _)| text.get(at..).unwrap_or_default())
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | ':' | '~')
}

/// Whether a bracket behind this text begins arguments. It does not in `a < b`.
fn begins_arguments(text: &str) -> bool {
    text.ends_with(is_of_name) || text.ends_with("operator< ") || text.ends_with("operator<< ")
}

/// Whether a bracket behind this text belongs to the name of an operator, such as `operator<<`.
fn is_operator(text: &str) -> bool {
    ["operator", "operator<", "operator>", "operator-", "operator<="].iter().any(|end| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

    #[test]
    fn defaults_of_the_standard_library_are_left_out() {
        for (long, short) in [
            (format!("f({STRING} const&)"), "f(std::string const&)"),
            (
                format!("std::vector<{STRING}, std::allocator<{STRING} > >::push_back({STRING}&&)"),
                "std::vector<std::string>::push_back(std::string&&)",
            ),
            (
                format!(
                    "std::map<{STRING}, int, std::less<{STRING} >, std::allocator<std::pair<{STRING} const, int> > >::at"
                ),
                "std::map<std::string, int>::at",
            ),
            (
                "std::basic_ostream<char, std::char_traits<char> >& std::operator<< <std::char_traits<char> >(std::basic_ostream<char, std::char_traits<char> >&, char)".to_owned(),
                "std::ostream& std::operator<< <std::char_traits<char>>(std::ostream&, char)",
            ),
            ("std::__1::vector<int, std::__1::allocator<int>>::end()".to_owned(), "std::vector<int>::end()"),
            (
                format!("main::{{lambda({STRING}&)#1}}::operator()({STRING}&) const"),
                "main::{lambda(std::string&)#1}::operator()(std::string&) const",
            ),
            (
                "std::function<int (std::allocator<int>)>::operator->(int) [f]".to_owned() + STRING,
                "std::function<int (std::allocator<int>)>::operator->(int) [f]std::string",
            ),
        ] {
            assert_eq!(abbreviated(&long).as_deref(), Some(short), "{long}");
        }
    }

    #[test]
    fn other_names_and_texts_stay() {
        for name in [
            "main",
            "std::sort",
            "mine<int, std::allocator<int>>",
            "std::allocator_traits<std::allocator<int>>",
            "alloc::vec::Vec<T>::push",
            "std::a<b",
            "std::a>b)",
            "std::io::Write::write < 0.1 %",
            "bool operator< <std::less<int>>",
        ] {
            assert_eq!(abbreviated(name), None, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_becomes_shorter_or_stays(parts in proptest::collection::vec(0..PARTS.len(), 0..24)) {
            let text: String = parts.iter().filter_map(|part| PARTS.get(*part)).copied().collect();
            if let Some(short) = abbreviated(&text) {
                proptest::prop_assert!(short.len() < text.len() && abbreviated(&short).is_none_or(|s| s.len() < short.len()));
            }
        }
    }

    const PARTS: [&str; 18] = [
        "std::",
        "std::__1::",
        "std::basic_",
        "string",
        "<char",
        "<",
        ">",
        " >",
        ", ",
        ",",
        "(",
        ")",
        "operator",
        "é",
        "-",
        "std::allocator<int>",
        ", std::char_traits<char>",
        "a",
    ];
}
