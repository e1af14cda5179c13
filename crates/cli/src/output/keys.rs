//! Values by key for people: the largest, by name where they have one.

use ingraft_wire::v1::{KeyValue, Keys};

use super::DIM;
use super::table::{Cell, Table};

/// Most keys that are shown.
const SHOWN: usize = 10;

/// A row for each of the largest values and one for the rest; empty if there is nothing. `amount` writes a value.
pub(crate) fn render(keys: &Keys, amount: impl Fn(i64) -> String, width: Option<usize>) -> String {
    let mut table = Table::new().right("VALUE").shrinking("NAME").left("KEY");
    let (shown, beyond) = keys.values.split_at(keys.values.len().min(SHOWN));
    for KeyValue { key, name, value } in shown {
        let at = Cell::styled(format!("{key:#x}"), DIM);
        table.row(vec![amount(*value).into(), name.as_str().into(), at]);
    }
    let rest = beyond.iter().fold(keys.others, |sum, v| sum.wrapping_add(v.value));
    if rest != 0 {
        table.row(vec![amount(rest).into(), "".into(), Cell::styled("others", DIM)]);
    }
    if shown.is_empty() && rest == 0 { String::new() } else { table.render(width) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_shown_and_the_rest_is_one_row() {
        let one = |key, name: &str, value| KeyValue { key, name: name.to_owned(), value };
        let mut values = vec![one(0x1000, "lock", 90), one(0x2000, "", 80)];
        values.extend((1..=9).map(|n| one(n, "", 10)));
        let text = render(&Keys { values, others: 5 }, |v| v.to_string(), None);
        let plain = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["VALUE", "NAME", "KEY"]);
        assert_eq!(lines[1], ["90", "lock", "0x1000"]);
        assert_eq!(lines[2], ["80", "0x2000"]);
        assert_eq!(lines.last().expect("a row"), &["15", "others"]);
        assert_eq!(render(&Keys::default(), |v| v.to_string(), None), "");
    }
}
