//! Tables: aligned columns, no wider than the screen. The same on a pipe, but whole and without colours.

use super::terminal::{Look, one_line};

/// The least that a column is cut to.
const NARROWEST: usize = 8;
/// What stands between two columns.
const GAP: &str = "  ";

/// A table that is filled row by row.
#[derive(Debug)]
pub(super) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// The column that gives way when the screen is too narrow.
    yielding: usize,
}

/// One field.
#[derive(Debug)]
pub(super) struct Cell {
    text: String,
    look: Look,
}

impl Cell {
    /// A field in a look. What is not safe to show is replaced.
    pub(super) fn new(text: &str, look: Look) -> Self {
        Self { text: one_line(text), look }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::new(text, Look::Plain)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(&text, Look::Plain)
    }
}

impl Table {
    /// A table with these heads; the column `yielding` may be cut.
    pub(super) fn new(heads: &[&'static str], yielding: usize) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new(), yielding }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text, each row ended.
    pub(super) fn render(&self, width: Option<usize>, colours: bool) -> String {
        let widths = self.widths(width);
        let heads: Vec<Cell> = self.heads.iter().map(|head| Cell::new(head, Look::Bold)).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            text.push_str(&render_row(row, &widths, colours));
            text.push('\n');
        }
        text
    }

    fn widths(&self, screen: Option<usize>) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(&cell.text));
            cells.fold(columns(self.heads[column]), usize::max)
        };
        let mut widths: Vec<usize> = (0..self.heads.len()).map(widest).collect();
        let Some(screen) = screen else { return widths };
        let total = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        if let Some(width) = widths.get_mut(self.yielding) {
            let least = NARROWEST.min(*width);
            *width = width.saturating_sub(total.saturating_sub(screen)).max(least);
        }
        widths
    }
}

fn render_row(row: &[Cell], widths: &[usize], colours: bool) -> String {
    let mut line = String::new();
    for (at, (cell, &width)) in row.iter().zip(widths).enumerate() {
        let text = truncate(&cell.text, width);
        line.push_str(&cell.look.paint(&text, colours));
        if at + 1 < row.len() {
            line.push_str(&" ".repeat(width.saturating_sub(columns(&text))));
            line.push_str(GAP);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The text in at most so many columns, with `…` where something was cut.
pub(super) fn truncate(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += char_columns(c);
        if used + 1 > width {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept
}

/// The columns that a text takes on a screen.
pub(super) fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

/// Two for East Asian wide characters and emoji, none for marks that join the character before. An approximation of
/// Unicode's tables: where it errs, a table is out of line by a column.
fn char_columns(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200d | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f680..=0x1f6ff
        | 0x1f900..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", "TITLE", "AGE"], 1);
        table.row(["ses_1".into(), "Fix the failing test in the parser".into(), "3m ago".into()]);
        table.row([Cell::new("ses_22", Look::Green), "你好".into(), "now".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_whole_where_there_is_no_screen() {
        insta::assert_snapshot!(table().render(None, false), @"
        ID      TITLE                               AGE
        ses_1   Fix the failing test in the parser  3m ago
        ses_22  你好                                now
        ");
    }

    #[test]
    fn a_yielding_column_is_cut_so_that_each_row_fits_the_screen() {
        let text = table().render(Some(32), false);
        insta::assert_snapshot!(text, @"
        ID      TITLE             AGE
        ses_1   Fix the failing…  3m ago
        ses_22  你好              now
        ");
        assert!(text.lines().all(|line| columns(line) <= 32));
        assert!(
            table().render(Some(4), false).contains("ses_22  你好      now"),
            "never below the narrowest"
        );
    }

    #[test]
    fn colours_do_not_count_as_columns() {
        let plain = table().render(None, false);
        let painted =
            table().render(None, true).replace("\x1b[32m", "").replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(painted, plain);
    }

    #[test]
    fn a_field_stays_on_its_line_and_cannot_command_the_terminal() {
        let mut table = Table::new(&["T"], 0);
        table.row(["a\nses_9  \x1b[1A".into()]);
        assert_eq!(table.render(None, false), "T\na ses_9 �[1A\n");
    }

    #[test]
    fn wide_characters_are_not_cut_in_half() {
        assert_eq!(truncate("你好吗", 6), "你好吗");
        assert_eq!(truncate("你好吗", 5), "你好…");
        assert_eq!(truncate("你好吗", 4), "你…");
    }
}
