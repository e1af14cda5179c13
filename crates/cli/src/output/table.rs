//! Aligned columns. A column without text in any row is omitted (a host, if there is only one). If the screen is too narrow, columns that
//! may shrink do so; if that is not enough, optional columns are omitted.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{HEADING, abbreviated};

/// Number of blanks between two columns.
const GAP: usize = 2;
/// Smallest width to which a column shrinks.
const LEAST: usize = 8;
/// Part of a screen's width that a kept column leaves to other columns.
const OTHERS: usize = 20;
/// Largest width to which a column of words is padded if no screen limits the width. A longer text moves only the rest of its own line.
const PADDED: usize = 60;

/// Side on which a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Left,
    Right,
}

/// A column.
#[derive(Clone, Debug)]
struct Column {
    title: String,
    flush: Flush,
    shrinks: bool,
}

/// A cell: text without control characters, and its style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with this style.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        // Names come from other processes, so control characters, which could move the cursor, become `?`.
        let text = text.into();
        let text = abbreviated(&text).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Cell { text, style }
    }
}

impl<S: Into<String>> From<S> for Cell {
    fn from(text: S) -> Self {
        Cell::styled(text, Style::new())
    }
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextTable {
    columns: Vec<Column>,
    /// Titles of the optional columns; the first one is omitted first.
    optional: Vec<&'static str>,
    /// Title of the column that is cut last, and the width up to which optional columns are omitted for it.
    kept: Option<(&'static str, usize)>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// A table without columns.
    pub(crate) fn new() -> Self {
        TextTable::default()
    }

    /// Adds a column of words.
    pub(crate) fn left(self, title: &str) -> Self {
        self.column(title, Flush::Left, false)
    }

    /// Adds a column of numbers.
    pub(crate) fn right(self, title: &str) -> Self {
        self.column(title, Flush::Right, false)
    }

    /// Adds a column of words that may be cut.
    pub(crate) fn shrinking(self, title: &str) -> Self {
        self.column(title, Flush::Left, true)
    }

    /// Names the columns that may be omitted on a narrow screen, the least important first.
    pub(crate) fn optional(self, titles: &[&'static str]) -> Self {
        TextTable { optional: titles.to_vec(), ..self }
    }

    /// Names the column that is cut last: optional columns are omitted before it is cut below this width.
    pub(crate) fn kept(self, title: &'static str, width: usize) -> Self {
        TextTable { kept: Some((title, width)), ..self }
    }

    fn column(mut self, title: &str, flush: Flush, shrinks: bool) -> Self {
        self.columns.push(Column { title: title.to_owned(), flush, shrinks });
        self
    }

    /// Adds a row: one cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Renders the table, with a heading if there are rows; lines are at most `width` columns wide if that is possible.
    pub(crate) fn render(&self, width: Option<usize>) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut shown: Vec<usize> = (0..self.columns.len())
            .filter(|&c| self.rows.iter().any(|r| r.get(c).is_some_and(|cell| !cell.text.is_empty())))
            .collect();
        let widths = self.widths(&mut shown, width);
        let titles: Vec<Cell> = self.columns.iter().map(|c| Cell::styled(c.title.as_str(), HEADING)).collect();
        let lines = std::iter::once(&titles).chain(&self.rows);
        lines.map(|row| self.line(row, &shown, &widths, width.is_some())).collect()
    }

    /// Width of each shown column. Removes optional columns from `shown` if shrinking is not enough. The widest of the shrinking columns
    /// shrinks first, but the kept column only if no other one can.
    fn widths(&self, shown: &mut Vec<usize>, width: Option<usize>) -> Vec<usize> {
        let natural = |c: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.text.width());
            cells.max().unwrap_or(0).max(self.columns[c].title.width())
        };
        let natural: Vec<usize> = (0..self.columns.len()).map(natural).collect();
        let shrinks = |c: usize| self.columns[c].shrinks;
        let Some(limit) = width else {
            return shown.iter().map(|&c| if shrinks(c) { natural[c].min(PADDED) } else { natural[c] }).collect();
        };
        let gaps = |columns: usize| GAP * columns.saturating_sub(1);
        // A few other columns stay, however long the names are.
        let kept = |c: usize| self.kept.filter(|(title, _)| *title == self.columns[c].title);
        let keeps = |c: usize| kept(c).map_or(LEAST, |(_, width)| width.min(limit.saturating_sub(OTHERS)).max(LEAST));
        let least = |c: usize| if shrinks(c) { natural[c].min(keeps(c)) } else { natural[c] };
        for title in &self.optional {
            if shown.iter().map(|&c| least(c)).sum::<usize>() + gaps(shown.len()) <= limit {
                break;
            }
            shown.retain(|&c| self.columns[c].title != *title);
        }
        let mut widths: Vec<usize> = shown.iter().map(|&c| natural[c]).collect();
        while widths.iter().sum::<usize>() + gaps(shown.len()) > limit {
            let widest = |floor: &dyn Fn(usize) -> usize| {
                let candidates = shown.iter().enumerate().filter(|&(i, &c)| shrinks(c) && widths[i] > floor(c));
                candidates.max_by_key(|&(i, _)| widths[i]).map(|(i, _)| i)
            };
            let Some(widest) = widest(&keeps).or_else(|| widest(&|_| LEAST)) else { break };
            widths[widest] -= 1;
        }
        widths
    }

    fn line(&self, row: &[Cell], shown: &[usize], widths: &[usize], cuts: bool) -> String {
        let mut line = String::new();
        let mut blanks = 0;
        for (i, (&c, &width)) in shown.iter().zip(widths).enumerate() {
            if i > 0 {
                blanks += GAP;
            }
            let Some(cell) = row.get(c) else { continue };
            let text = if cuts { cut(&cell.text, width) } else { cell.text.clone() };
            let room = width.saturating_sub(text.width());
            let before = if self.columns[c].flush == Flush::Right { room } else { 0 };
            // Blanks are written only before the next text, so that no line ends in them.
            if text.is_empty() {
                blanks += width;
                continue;
            }
            line.extend(std::iter::repeat_n(' ', blanks + before));
            line += &format!("{}{text}{:#}", cell.style, cell.style);
            blanks = room - before;
        }
        line.push('\n');
        line
    }
}

/// Cuts a text to a width, with `…` for the middle part, because both ends of a long name tell it apart.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let tail_room = width.saturating_sub(1) / 2;
    let head_room = width.saturating_sub(1) - tail_room;
    let head = take_width(text.chars(), head_room);
    let tail: String = take_width(text.chars().rev(), tail_room).chars().rev().collect();
    format!("{head}…{tail}")
}

fn take_width(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn example() -> TextTable {
        let mut t = TextTable::new().left("HOST").shrinking("FUNCTION").left("MODULE").right("CALLS");
        t.row(vec!["".into(), "processCommand".into(), "redis-server".into(), "100,000".into()]);
        t.row(vec!["".into(), "std::map<int, std::string>::operator[](int const&)".into(), "".into(), "7".into()]);
        t
    }

    fn check(width: Option<usize>, expected: Expect) {
        expected.assert_eq(&anstream::adapter::strip_str(&example().render(width)).to_string());
    }

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        check(
            None,
            expect![[r#"
                FUNCTION                                            MODULE          CALLS
                processCommand                                      redis-server  100,000
                std::map<int, std::string>::operator[](int const&)                      7
            "#]],
        );
    }

    #[test]
    fn long_names_give_way_on_a_narrow_screen() {
        check(
            Some(50),
            expect![[r#"
                FUNCTION                     MODULE          CALLS
                processCommand               redis-server  100,000
                std::map<int,…](int const&)                      7
            "#]],
        );
    }

    #[test]
    fn an_impossible_width_is_exceeded_rather_than_cut_to_nothing() {
        assert!(example().render(Some(3)).lines().count() == 3);
    }

    #[test]
    fn a_very_long_name_moves_only_its_own_line() {
        let mut t = TextTable::new().shrinking("FUNCTION").left("MODULE");
        t.row(vec!["call".into(), "server".into()]);
        t.row(vec!["x".repeat(815).into(), "server".into()]);
        let text = anstream::adapter::strip_str(&t.render(None)).to_string();
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths, [PADDED + 2 + 6, PADDED + 2 + 6, 815 + 2 + 6]);
    }

    #[test]
    fn optional_columns_are_left_out_in_their_order() {
        let mut t = TextTable::new()
            .shrinking("FUNCTION")
            .left("MODULE")
            .right("P90")
            .right("MAX")
            .optional(&["P90", "MODULE"]);
        t.row(vec!["processCommand".into(), "redis-server".into(), "1.25 ms".into(), "1.5 ms".into()]);
        let titles = |width| {
            let text = anstream::adapter::strip_str(&t.render(Some(width))).to_string();
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
            text.lines().next().unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(titles(80), ["FUNCTION", "MODULE", "P90", "MAX"]);
        assert_eq!(titles(32), ["FUNCTION", "MODULE", "MAX"]);
        assert_eq!(titles(20), ["FUNCTION", "MAX"]);
    }

    #[test]
    fn a_kept_column_is_cut_last() {
        let mut t = TextTable::new().shrinking("FUNCTION").right("SIZE").left("MODULE").shrinking("WHY NOT");
        t = t.optional(&["SIZE", "MODULE"]).kept("FUNCTION", usize::MAX);
        t.row(vec![
            "a_function_with_a_name".into(),
            "2,412".into(),
            "redis-server".into(),
            "too short to patch".into(),
        ]);
        let lines = |width| {
            let text = anstream::adapter::strip_str(&t.render(Some(width))).to_string();
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
            text.lines().last().unwrap_or_default().to_owned()
        };
        for (width, others) in [(60, ["2,412", "redis-server"]), (48, ["", "redis-server"]), (44, ["", "too short"])] {
            let line = lines(width);
            assert!(line.starts_with("a_function_with_a_name "), "{line}");
            assert!(others.iter().all(|other| line.contains(other)), "{line}");
        }
        assert!(!lines(30).contains("a_function_with_a_name"), "{}", lines(30));
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(Cell::from("a\x1b[2Jb\n").text, "a?[2Jb?");
    }

    #[test]
    fn no_rows_no_heading() {
        assert_eq!(TextTable::new().left("A").render(None), "");
    }
}
