// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tables for output on terminals.

/// Formats rows as lines. A column has the width of its widest cell. The first row is the heading.
/// A column is right-aligned if one of its cells begins with a digit.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let right: Vec<bool> = (0..columns)
        .map(|c| {
            rows.iter()
                .skip(1)
                .any(|r| r.get(c).is_some_and(|t| number(t)))
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(c, cell)| match right[c] {
                true => format!("{cell:>w$}", w = widths[c]),
                false => format!("{cell:<w$}", w = widths[c]),
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [["name", "n"], ["a", "5"], ["long", "123"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|r| r.map(String::from).to_vec()).collect();
        assert_eq!(super::table(&rows), "name    n\na       5\nlong  123\n");
        assert_eq!(super::table(&[]), "");
    }
}
