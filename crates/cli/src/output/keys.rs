//! Values by key for people: the largest values, with the names of keys that have one.

use ingraft_api::{KeyValue, Keys};
use ingraft_model::ObjectState;

use super::DIM;
use super::table::{Cell, TextTable};
use crate::objects::keyed::KeyText;

/// Largest number of keys that are shown.
const SHOWN: usize = 10;

/// Renders a row for each of the largest values and one row for the rest; empty if there is nothing. `amount` formats a value. If values of
/// several processes are combined (`together`), a key with a name is shown without its address.
pub(crate) fn render(keys: &Keys, together: bool, amount: impl Fn(i64) -> String, width: Option<usize>) -> String {
    let (shown, beyond) = keys.values.split_at(keys.values.len().min(SHOWN));
    let objects = shown.iter().any(|v| v.object.is_some());
    let mut table = TextTable::new().right("VALUE").shrinking("NAME");
    if objects {
        table = table.left("OBJECT").left("STATE");
    }
    table = table.left("KEY");
    let mut row = |value: i64, name: &str, object: Option<ObjectState>, key: &str| {
        let mut cells: Vec<Cell> = vec![amount(value).into(), name.into()];
        if objects {
            let state = object.map_or("", |object| if object.retired { "retired" } else { "live" });
            cells.extend([object.map_or("", |object| object.kind.name()).into(), state.into()]);
        }
        cells.push(Cell::styled(key, DIM));
        table.row(cells);
    };
    for key @ KeyValue { key: number, name, enumerator, value, object, .. } in shown {
        let text = match key.parts.as_slice() {
            [] if together && name.is_some() => String::new(),
            [] => format!("{number:#x}"),
            _ => KeyText::parts(key).iter().map(KeyText::to_string).collect::<Vec<_>>().join(", "),
        };
        row(*value, name.as_ref().or(enumerator.as_ref()).map_or("", String::as_str), *object, &text);
    }
    let rest = beyond.iter().fold(keys.others, |sum, v| sum.wrapping_add(v.value));
    if rest != 0 {
        row(rest, "", None, "others");
    }
    let mut text = if shown.is_empty() && rest == 0 { String::new() } else { table.render(width) };
    if keys.unlisted != 0 {
        text.push_str("objects may be missing: there were more than a thread's table holds\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use ingraft_model::ObjectKind;

    use super::*;

    #[test]
    fn the_largest_are_shown_and_the_rest_is_one_row() {
        let named = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let one = |key, name: &str, value| KeyValue { key, name: named(name), value, ..KeyValue::default() };
        let mut values = vec![one(0x1000, "lock", 90), one(0x2000, "", 80)];
        values.extend((1..=9).map(|n| one(n, "", 10)));
        let text = render(&Keys { values, others: 5, unlisted: 0 }, false, |v| v.to_string(), None);
        let plain = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["VALUE", "NAME", "KEY"]);
        assert_eq!(lines[1], ["90", "lock", "0x1000"]);
        assert_eq!(lines[2], ["80", "0x2000"]);
        assert_eq!(lines.last().expect("a row"), &["15", "others"]);
        assert_eq!(render(&Keys::default(), false, |v| v.to_string(), None), "");
    }

    #[test]
    fn objects_have_their_kind_and_state() {
        let one = |key, name: &str, value, retired| KeyValue {
            key,
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            value,
            object: Some(ObjectState { kind: ObjectKind::Mutex, retired }),
            ..KeyValue::default()
        };
        let keys = Keys { values: vec![one(0x10, "lock", 1, false), one(0x20, "", 0, true)], others: 0, unlisted: 7 };
        let plain = anstream::adapter::strip_str(&render(&keys, false, |v| v.to_string(), None)).to_string();
        let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["VALUE", "NAME", "OBJECT", "STATE", "KEY"]);
        assert_eq!(lines[1], ["1", "lock", "Mutex", "live", "0x10"]);
        assert_eq!(lines[2], ["0", "Mutex", "retired", "0x20"]);
        assert!(lines[3].join(" ").starts_with("objects may be missing"));
    }
}
