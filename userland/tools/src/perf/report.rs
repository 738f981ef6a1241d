// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Output of the results.

use super::link::Hello;
use super::{Line, Test};
use anyhow::Result;
use std::io::Write;

fn heading(latency: bool) -> Vec<String> {
    let columns: &[&str] = if latency {
        &[
            "#bytes",
            "#iterations",
            "t_min[us]",
            "t_max[us]",
            "t_typical[us]",
            "t_avg[us]",
            "t_stdev[us]",
            "99%[us]",
            "99.9%[us]",
        ]
    } else {
        &["#bytes", "#iterations", "BW[MiB/s]", "MsgRate[Mpps]"]
    };
    columns
        .iter()
        .chain(&["rd/msg", "wr/msg", "irq/msg"])
        .map(|c| c.to_string())
        .collect()
}

fn row(line: &Line) -> Vec<String> {
    let us = |x: f64| format!("{x:.2}");
    let mut cells = vec![line.bytes.to_string(), line.iterations.to_string()];
    match &line.latency_us {
        Some(s) => {
            cells.extend([s.min, s.max, s.median, s.mean, s.deviation, s.p99, s.p999].map(us));
        }
        None => {
            cells.push(format!("{:.2}", line.bytes_per_second / f64::from(1 << 20)));
            cells.push(format!("{:.6}", line.messages_per_second / 1e6));
        }
    }
    let per = &line.per_message;
    cells.push(format!("{:.3}", per.device_reads));
    // The CPU makes at least one store to the NIC per packet, and one store per update of the read
    // pointer.
    cells.push(format!("{:.3}", per.packets + per.device_writes));
    cells.push(per.interrupts.map_or("-".into(), |x| format!("{x:.3}")));
    cells
}

/// Prints the last line. Before the first line, prints the heading. Columns have the width of the
/// heading, so that each line can be printed while the next test runs.
pub fn print(out: &mut impl Write, test: Test, lines: &[Line]) -> Result<()> {
    let heading = heading(test.is_latency());
    let Some(last) = lines.last() else {
        return Ok(());
    };
    let wide = |cells: &[String]| -> String {
        let cells: Vec<String> = cells
            .iter()
            .zip(&heading)
            .map(|(c, h)| format!("{c:>w$}", w = h.len().max(11)))
            .collect();
        cells.join(" ")
    };
    if lines.len() == 1 {
        writeln!(out, "{}", wide(&heading))?;
    }
    writeln!(out, "{}", wide(&row(last)))?;
    Ok(())
}

/// Prints all results as one JSON object.
pub fn json(test: Test, here: &Hello, there: &Hello, lines: &[Line]) -> Result<()> {
    let all = serde_json::json!({
        "test": test,
        "client": here.node,
        "server": there.node,
        "results": lines,
    });
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&all)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::PerMessage;
    use crate::stats::Summary;

    #[test]
    fn rows_have_the_columns_of_the_heading() {
        let mut line = Line {
            bytes: 8,
            iterations: 3,
            latency_us: None,
            bytes_per_second: f64::from(3 << 20),
            messages_per_second: 2e6,
            per_message: PerMessage::default(),
        };
        assert_eq!(row(&line).len(), heading(false).len());
        assert_eq!(row(&line)[2..4], ["3.00", "2.000000"]);
        line.latency_us = Some(Summary::of(&mut [1500]));
        assert_eq!(row(&line).len(), heading(true).len());
        assert_eq!(row(&line)[2], "1.50");
    }
}
