//! The trace file. For each event that NICs and network report, it has a line with a JSON object.
//!
//! Records are buffered. They are written when the buffer is full, on demand and at the end. If the
//! disk is full, the trace ends and the emulator continues.

pub mod print;

use crate::env::{self, Accessor, NetPort, TraceEvent};
pub use extoll_emulator_api::trace::{By, Event, Record};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

impl From<Accessor> for By {
    fn from(a: Accessor) -> Self {
        match a {
            Accessor::Host => By::Host,
            Accessor::Remote => By::Remote,
            Accessor::Snq => By::Snq,
            Accessor::Management => By::Management,
        }
    }
}

/// Writer of trace records. Without a file it writes nothing.
#[derive(Default)]
pub struct Tracer {
    out: Option<BufWriter<File>>,
    records: u64,
}

impl Tracer {
    /// Returns a tracer without a file.
    pub fn off() -> Self {
        Self::default()
    }

    /// Starts a trace in a file, which is overwritten if it exists.
    pub fn start(&mut self, path: &Path) -> io::Result<()> {
        self.stop()?;
        self.out = Some(BufWriter::with_capacity(1 << 20, File::create(path)?));
        self.records = 0;
        Ok(())
    }

    /// Ends the trace and closes the file.
    pub fn stop(&mut self) -> io::Result<()> {
        match self.out.take() {
            Some(mut out) => out.flush(),
            None => Ok(()),
        }
    }

    /// Writes buffered records to the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), |out| out.flush())
    }

    /// Returns true while a trace is being written. Callers check this before they build an event.
    pub fn on(&self) -> bool {
        self.out.is_some()
    }

    /// Returns the number of records since the start of the trace.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes one record.
    pub fn record(&mut self, nic: usize, t: u64, event: Event) {
        let Some(out) = &mut self.out else { return };
        let result =
            serde_json::to_writer(&mut *out, &Record { t, nic, event }).map_err(io::Error::from);
        match result.and_then(|()| out.write_all(b"\n")) {
            Ok(()) => self.records += 1,
            Err(e) => {
                tracing::error!(
                    "cannot write the trace, ended after {} records: {e}",
                    self.records
                );
                self.out = None;
            }
        }
    }

    /// Returns a receiver for the trace events of one NIC at time `t` in ns.
    pub fn sink(&mut self, nic: usize, t: u64) -> Sink<'_> {
        Sink {
            tracer: self,
            nic,
            t,
        }
    }
}

/// Receiver of the trace events of one NIC.
pub struct Sink<'a> {
    tracer: &'a mut Tracer,
    nic: usize,
    t: u64,
}

impl env::Trace for Sink<'_> {
    fn enabled(&self) -> bool {
        self.tracer.on()
    }

    fn event(&mut self, event: TraceEvent<'_>) {
        if let TraceEvent::Diagnostic(text) = event {
            // The source of the text limits its rate.
            tracing::warn!(nic = self.nic, "{text}");
        }
        if !self.tracer.on() {
            return;
        }
        let port = |p: NetPort| p as u8;
        let event = match event {
            TraceEvent::RegWrite { by, offset, value } => Event::RegWrite {
                by: by.into(),
                offset,
                value,
            },
            TraceEvent::RegRead { by, offset, value } => Event::RegRead {
                by: by.into(),
                offset,
                value,
            },
            TraceEvent::Descriptor {
                port: p,
                vpid,
                words,
            } => Event::Descriptor {
                port: port(p),
                vpid: vpid.get(),
                words: words.to_vec(),
            },
            TraceEvent::Dma { write, addr, len } => Event::Dma { write, addr, len },
            TraceEvent::Msi { vector } => Event::Msi { vector },
            TraceEvent::Diagnostic(text) => Event::Diagnostic {
                text: text.to_owned(),
            },
        };
        self.tracer.record(self.nic, self.t, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::DropReason;

    #[test]
    fn records_survive_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut t = Tracer::off();
        assert!(!t.on());
        t.start(&path).unwrap();
        let events = [
            Event::RegWrite {
                by: By::Host,
                offset: 0x8050,
                value: u64::MAX,
            },
            Event::Inject {
                id: 1,
                src: 0,
                dst: 63,
                group: true,
                port: 0,
                vpid: 254,
                bytes: 8,
                body: "velo".into(),
            },
            Event::Drop {
                id: 1,
                reason: DropReason::IllegalRouting,
            },
            Event::ConfigWrite {
                offset: 4,
                data: vec![6, 0],
            },
        ];
        for e in &events {
            t.record(3, 7, e.clone());
        }
        t.stop().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let back: Vec<Record> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(
            back.iter().map(|r| &r.event).collect::<Vec<_>>(),
            events.iter().collect::<Vec<_>>()
        );
        assert!(back.iter().all(|r| r.nic == 3 && r.t == 7));
    }

    #[test]
    fn a_full_disk_ends_the_trace_only() {
        let mut t = Tracer {
            out: Some(BufWriter::with_capacity(
                1,
                File::create("/dev/full").unwrap(),
            )),
            records: 0,
        };
        for _ in 0..3 {
            t.record(0, 0, Event::Msi { vector: 0 });
        }
        assert!(!t.on());
    }
}
