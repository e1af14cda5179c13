//! Lists of names in messages. There may be thousands of names.

use std::fmt::Display;

/// The first `most` of the names, and the number of the others: `a, b and 3 more`.
pub fn some_of(names: impl ExactSizeIterator<Item: Display>, most: usize) -> String {
    let others = names.len().saturating_sub(most);
    let shown: Vec<String> = names.take(most).map(|name| name.to_string()).collect();
    let shown = shown.join(", ");
    if others == 0 { shown } else { format!("{shown} and {others} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_counted() {
        let names = ["a", "b", "c"];
        let of = |most| some_of(names.iter(), most);
        assert_eq!([of(1), of(2), of(3), of(4)], ["a and 2 more", "a, b and 1 more", "a, b, c", "a, b, c"]);
    }
}
