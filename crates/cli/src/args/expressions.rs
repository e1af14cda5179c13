//! Expressions on the command line.

use ingraft_api::{ContextSum, ToldValue};

/// The words with which values begin.
const VALUES: [&str; 5] = ["$", "str(", "readSymbol", "readAddress", "Call("];

/// The function and the expression of a text. The expression begins after the last colon before its first value. `None` without a value.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    let value = VALUES.iter().filter_map(|word| text.find(word)).min()?;
    let colon = text.get(..value)?.rfind(':')?;
    Some((text.get(..colon)?, text.get(colon + 1..)?.trim()))
}

/// An expression with `$arg.NAME` in the place of each bare `NAME`: an expression at a call has no variables but the call's arguments.
pub(crate) fn with_names(expr: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let (mut out, mut rest) = (String::new(), expr);
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => string_length(rest),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (word, after) = rest.split_at(len);
        let before = out.trim_end();
        let is_member = before.ends_with('.') || before.ends_with("->");
        let is_name = (first.is_ascii_alphabetic() || first == '_')
            && !is_member
            && !after.trim_start().starts_with('(')
            && !["true", "false"].contains(&word.to_ascii_lowercase().as_str());
        if is_name {
            out.push_str("$arg.");
        }
        out.push_str(word);
        rest = after;
    }
    out
}

/// Length in bytes of the string in quotation marks at the beginning of a text; of the whole text if the string has no end.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The function and the expression of `FUNCTION:EXPR`, which may consist of names of arguments alone. `None` if one of them is missing.
fn parts(text: &str) -> Option<(&str, &str)> {
    let last = || text.rsplit_once(':').filter(|(head, _)| !head.ends_with(':'));
    let parts = split(text).or_else(last);
    parts.filter(|(function, expression)| !function.trim().is_empty() && !expression.trim().is_empty())
}

/// Reads `FUNCTION:EXPR`.
pub(super) fn told(text: &str) -> Result<ToldValue, String> {
    let (function, expression) = parts(text).ok_or("not FUNCTION:EXPR, such as 'run_query:str($arg[1])'")?;
    Ok(ToldValue { function: function.to_owned(), expression: with_names(expression) })
}

/// Reads `[NAME=]FUNCTION:EXPR`. Without a name, the sum has that of the function.
pub(super) fn sum(text: &str) -> Result<ContextSum, String> {
    let (head, expression) = parts(text).ok_or("not FUNCTION:EXPR, such as 'libc:write:$return'")?;
    // A name is followed by one `=`, unlike the beginning of `operator==`.
    let named = head.split_once('=').filter(|(name, rest)| ContextSum::is_name(name) && !rest.starts_with('='));
    let named = named.filter(|(name, _)| *name != "operator");
    let (name, function) = named.unwrap_or_else(|| (head.rsplit(':').next().unwrap_or_default(), head));
    if !ContextSum::is_name(name) {
        return Err(format!("`{name}` is no name of a sum: write NAME=FUNCTION:EXPR"));
    }
    Ok(ContextSum { name: name.into(), function: function.to_owned(), expression: with_names(expression) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_a_name_a_function_and_an_expression() {
        for (text, name, function, expression) in [
            ("write:$return", "write", "write", "$return"),
            ("libc:write: $arg[2]", "write", "libc:write", "$arg[2]"),
            ("sent_bytes=libc:write:$arg[2]", "sent_bytes", "libc:write", "$arg[2]"),
            ("cost=ns::priced(int):$arg[0] * ($arg[1] == 3)", "cost", "ns::priced(int)", "$arg[0] * ($arg[1] == 3)"),
            ("parse:length * 2", "parse", "parse", "$arg.length * 2"),
            ("n=operator==:$arg[0]", "n", "operator==", "$arg[0]"),
            ("n=shop:*:readSymbol(\"file.c:level\")", "n", "shop:*", "readSymbol(\"file.c:level\")"),
        ] {
            let found = sum(text).expect("a sum");
            let parts = (&*found.name, found.function.as_str(), found.expression.as_str());
            assert_eq!(parts, (name, function, expression), "{text}");
        }
        for text in ["write", "$return", "shop:*:$arg[0]", "operator==:$arg[0]", "looks=f:$return", "calls:$return"] {
            assert!(sum(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_of_a_function() {
        for (text, function, expression) in [
            ("shop:load:str($arg[1])", "shop:load", "str($arg[1])"),
            ("load:str(sql)", "load", "str($arg.sql)"),
            ("ns::load:size", "ns::load", "$arg.size"),
            ("load:$return", "load", "$return"),
        ] {
            let ToldValue { function: of, expression: value } = told(text).expect("a value");
            assert_eq!((of.as_str(), value.as_str()), (function, expression), "{text}");
        }
        for text in ["load", "load:", ":$return", "ns::load"] {
            assert!(told(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bare_names_are_arguments() {
        let of = [
            ("req->method & 0xff", "$arg.req->method & 0xff"),
            ("$arg[0].size + n", "$arg[0].size + $arg.n"),
            ("readSymbol(\"a b\") == size || TRUE", "readSymbol(\"a b\") == $arg.size || TRUE"),
            ("f(\"a\\\"b\", c)", "f(\"a\\\"b\", $arg.c)"),
            ("$return", "$return"),
            ("\"open", "\"open"),
            ("(x)", "($arg.x)"),
        ];
        for (expr, expected) in of {
            assert_eq!(with_names(expr), expected);
        }
    }
}
