// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Measures the time for registering and unregistering a buffer.

use crate::stats::{ns, Summary};
use anyhow::Result;
use extoll::{rma, Buffer, Device};
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

/// Size of a page and size of a huge page in bytes.
const PAGES: [u64; 2] = [4 << 10, 2 << 20];

#[derive(clap::Args, Debug)]
pub struct RegArgs {
    /// Size of the buffer in bytes. The suffixes k, M and G mean powers of 1,024.
    #[arg(short, long, value_parser = crate::size, default_value = "2M")]
    size: u64,
    /// Number of registrations.
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    iters: u64,
    /// Uses huge pages of 2 MiB. The system must have reserved huge pages (vm.nr_hugepages).
    #[arg(long)]
    huge: bool,
    /// Prints one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Clone, Debug)]
struct Cost {
    bytes: u64,
    page_bytes: u64,
    iterations: u64,
    register_us: Summary,
    unregister_us: Summary,
    /// Mean time for registering and unregistering a page, in nanoseconds.
    ns_per_page: f64,
}

pub fn run(device: &Device, args: &RegArgs) -> Result<()> {
    let port = rma::Port::open(device)?;
    let bytes = usize::try_from(args.size)?;
    let mut buffer = if args.huge {
        Buffer::huge(bytes)?
    } else {
        Buffer::new(bytes)?
    };
    let (mut up, mut down) = (Vec::new(), Vec::new());
    // The first registration is not measured, because it allocates the pages.
    for i in 0..=args.iters {
        let begin = Instant::now();
        let region = port.register(buffer)?;
        let registered = begin.elapsed();
        let begin = Instant::now();
        buffer = region.unregister()?;
        if i > 0 {
            up.push(ns(registered));
            down.push(ns(begin.elapsed()));
        }
    }
    let page_bytes = PAGES[usize::from(args.huge)];
    let pages = args.size.div_ceil(page_bytes).max(1);
    let total: u64 = up.iter().chain(&down).sum();
    let cost = Cost {
        bytes: args.size,
        page_bytes,
        iterations: args.iters,
        register_us: Summary::of(&mut up),
        unregister_us: Summary::of(&mut down),
        ns_per_page: total as f64 / (args.iters * pages) as f64,
    };
    let mut out = std::io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&cost)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{:>12} {:>12} {:>12} {:>16} {:>16} {:>12}",
        "#bytes", "page", "#iterations", "register[us]", "unregister[us]", "per page[ns]"
    )?;
    writeln!(
        out,
        "{:>12} {:>12} {:>12} {:>16.2} {:>16.2} {:>12.1}",
        cost.bytes,
        cost.page_bytes,
        cost.iterations,
        cost.register_us.median,
        cost.unregister_us.median,
        cost.ns_per_page
    )?;
    Ok(())
}
