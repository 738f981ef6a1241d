//! Tables of aligned text.

/// Formats a table with a line below the headings. The first column is aligned left, the others
/// right.
pub fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns = rows
        .iter()
        .map(Vec::len)
        .chain([head.len()])
        .max()
        .unwrap_or(0);
    let cell = |row: &[String], i: usize| row.get(i).cloned().unwrap_or_default();
    let head: Vec<String> = head.iter().map(|s| (*s).to_string()).collect();
    let width: Vec<usize> = (0..columns)
        .map(|i| {
            rows.iter()
                .chain([&head])
                .map(|r| cell(r, i).chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |row: &[String]| {
        let mut text = String::new();
        for (i, w) in width.iter().enumerate() {
            let c = cell(row, i);
            let gap = " ".repeat(w - c.chars().count());
            match i {
                0 => text.push_str(&format!("{c}{gap}")),
                _ => text.push_str(&format!("  {gap}{c}")),
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    };
    let total = width.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
    let mut out = line(&head);
    out.push_str(&"-".repeat(total));
    out.push('\n');
    rows.iter().for_each(|r| out.push_str(&line(r)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![
            vec!["TCP".into(), "1.00 (0.5–2)".into(), "3".into()],
            vec!["a longer name".into(), "-".into()],
        ];
        let text = render(&["test", "exn/virtio", "n"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "test             exn/virtio  n");
        assert_eq!(lines[1], "------------------------------");
        assert_eq!(lines[2], "TCP            1.00 (0.5–2)  3");
        assert_eq!(lines[3], "a longer name             -");
        assert_eq!(render(&[], &[]), "\n\n");
    }
}
