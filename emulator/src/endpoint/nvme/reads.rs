//! Reads of the host's memory. A read is a job of any size, which sends one or more requests. The
//! answers to the requests arrive later, or never.

use crate::endpoint::{chunks, Gather, Gathered, Link, PciePacket};
use std::collections::BTreeMap;
use wire::tlp::{Bdf, Kind, Span};

/// Maximum number of requests in flight. Requests of ended jobs do not count.
const WINDOW: usize = 16;

struct Job<T> {
    what: T,
    pieces: Vec<(u64, u32)>,
    /// Position of the next request: index of the chunk, and offset in bytes in the chunk.
    next: (usize, u32),
    /// Number of bytes requested so far.
    asked: usize,
    data: Vec<u8>,
    /// Number of bytes that have not arrived.
    missing: usize,
}

struct Asked {
    /// Number of the job, which may have ended.
    job: u64,
    at: usize,
    gather: Gather,
    deadline: u64,
}

/// Purpose of a job, and its data. The data is `None` if any of it can't be read.
pub(super) type Outcome<T> = (T, Option<Vec<u8>>);

/// All jobs in the order of their start.
pub(super) struct Reads<T> {
    jobs: BTreeMap<u64, Job<T>>,
    last: u64,
    /// Requests in flight by tag. A tag is reused only after its answer has arrived or the request
    /// has timed out.
    asked: BTreeMap<u8, Asked>,
    tag: u8,
    timeout_ns: u64,
}

impl<T> Reads<T> {
    pub fn new(timeout_ns: u64) -> Self {
        Self {
            jobs: BTreeMap::new(),
            last: 0,
            asked: BTreeMap::new(),
            tag: 0,
            timeout_ns,
        }
    }

    /// Begins a job that reads several chunks of memory, one after the other.
    pub fn start(&mut self, what: T, pieces: Vec<(u64, u32)>) {
        let len = pieces.iter().map(|p| p.1 as usize).sum();
        self.last += 1;
        let job = Job {
            what,
            pieces,
            next: (0, 0),
            asked: 0,
            data: vec![0; len],
            missing: len,
        };
        self.jobs.insert(self.last, job);
    }

    /// Ends the jobs for which `of` returns true, without a result. Answers to their requests are
    /// ignored.
    pub fn cancel(&mut self, of: impl Fn(&T) -> bool) {
        self.jobs.retain(|_, job| !of(&job.what));
    }

    /// Ends all jobs without a result. Drops all requests, because their answers can no longer
    /// arrive.
    pub fn forget(&mut self) {
        self.jobs.clear();
        self.asked.clear();
    }

    /// Returns the time at which the caller must call [`expire`](Self::expire).
    pub fn deadline(&self) -> Option<u64> {
        self.asked.values().map(|a| a.deadline).min()
    }

    /// Sends requests while credit and window allow. Returns true if credit is missing.
    pub fn run(&mut self, id: Bdf, most: u32, link: &mut Link<'_>) -> bool {
        let of_jobs = |a: &&Asked| self.jobs.contains_key(&a.job);
        let mut under_way = self.asked.values().filter(of_jobs).count();
        for (&number, job) in &mut self.jobs {
            while let Some(&(addr, len)) = job.pieces.get(job.next.0) {
                let done = job.next.1;
                let at = addr.wrapping_add(done.into());
                let chunk = chunks(at, len - done, most).next();
                let Some((_, n)) = chunk else {
                    job.next = (job.next.0 + 1, 0);
                    continue;
                };
                let free = (0..=u8::MAX).map(|k| self.tag.wrapping_add(k));
                let tag = free.into_iter().find(|t| !self.asked.contains_key(t));
                let (Some(tag), Some(span)) = (tag, Span::bytes(at, n)) else {
                    return false;
                };
                if under_way >= WINDOW {
                    return false;
                }
                if link.credits == 0 {
                    return true;
                }
                self.tag = tag.wrapping_add(1);
                under_way += 1;
                let asked = Asked {
                    job: number,
                    at: job.asked,
                    gather: Gather::new(span),
                    deadline: link.now_ns.saturating_add(self.timeout_ns),
                };
                self.asked.insert(tag, asked);
                link.send(PciePacket::bare(Kind::MemRead {
                    requester: id,
                    tag,
                    span,
                }));
                job.next.1 += n;
                job.asked += n as usize;
            }
        }
        false
    }

    /// Processes an answer. Returns the result of its job if the job has ended.
    pub fn complete(&mut self, tag: u8, packet: &PciePacket) -> Option<Outcome<T>> {
        let asked = self.asked.get_mut(&tag)?;
        let data = match asked.gather.add(packet) {
            Gathered::More => return None,
            Gathered::Done(data) => Some(data),
            Gathered::Failed => None,
        };
        let asked = self.asked.remove(&tag)?;
        let Some(data) = data else {
            return self.fail(asked.job);
        };
        let job = self.jobs.get_mut(&asked.job)?;
        job.data
            .get_mut(asked.at..asked.at + data.len())?
            .copy_from_slice(&data);
        job.missing -= data.len();
        if job.missing > 0 {
            return None;
        }
        let job = self.jobs.remove(&asked.job)?;
        Some((job.what, Some(job.data)))
    }

    fn fail(&mut self, job: u64) -> Option<Outcome<T>> {
        self.jobs.remove(&job).map(|job| (job.what, None))
    }

    /// Fails the jobs of requests that were not answered in time.
    pub fn expire(&mut self, now_ns: u64) -> Vec<Outcome<T>> {
        let late = |a: &Asked| a.deadline <= now_ns;
        let late: Vec<u8> = self
            .asked
            .iter()
            .filter(|(_, a)| late(a))
            .map(|(&tag, _)| tag)
            .collect();
        let jobs: Vec<u64> = late
            .iter()
            .filter_map(|tag| self.asked.remove(tag))
            .map(|a| a.job)
            .collect();
        jobs.into_iter().filter_map(|job| self.fail(job)).collect()
    }
}
