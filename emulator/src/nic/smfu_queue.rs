//! Accesses to the SMFU window that are in flight to the SMFU. MODEL: the sources specify neither
//! their delay nor their order relative to register writes that change an interval (G35).

use super::smfu::Sink;
use super::Nic;
use crate::env::Env;
use std::collections::VecDeque;

/// An access whose target has not been determined.
enum Access {
    Store {
        addr: u64,
        remote_rf: bool,
        data: Vec<u8>,
    },
    Load {
        addr: u64,
        remote_rf: bool,
        len: u32,
        sink: Sink,
    },
}

/// Accesses in order, each with the time in ns at which it reaches the SMFU.
#[derive(Default)]
pub(super) struct Queue(VecDeque<(u64, Access)>);

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.0.front().map(|(at, _)| *at)
    }
}

impl Nic {
    /// Processes a store to the window by the host or by the device behind the root port.
    pub(super) fn smfu_store(
        &mut self,
        addr: u64,
        remote_rf: bool,
        data: &[u8],
        env: &mut Env<'_>,
    ) {
        let late = self.cfg.smfu_store_ns;
        if late == 0 && self.smfu.queue.0.is_empty() {
            return self.smfu_store_now(addr, remote_rf, data, false, env);
        }
        // Buffer space is checked now, because accesses in flight need buffer space, too. An
        // accepted store is not dropped later.
        if !self.smfu_room(env) {
            return self.smfu_congested(addr, env);
        }
        let access = Access::Store {
            addr,
            remote_rf,
            data: data.to_vec(),
        };
        let at = env.host.now_ns().saturating_add(late);
        self.smfu.queue.0.push_back((at, access));
    }

    /// Queues a load from the window behind all earlier stores. Returns `sink` if the request
    /// failed.
    pub(super) fn smfu_request(
        &mut self,
        addr: u64,
        remote_rf: bool,
        len: u32,
        sink: Sink,
        env: &mut Env<'_>,
    ) -> Option<Sink> {
        let Some((at, _)) = self.smfu.queue.0.back() else {
            return self.smfu_request_now(addr, remote_rf, len, sink, env);
        };
        let access = Access::Load {
            addr,
            remote_rf,
            len,
            sink,
        };
        let behind = (*at, access);
        self.smfu.queue.0.push_back(behind);
        None
    }

    /// Executes the accesses that are due.
    pub(super) fn run_smfu_queue(&mut self, now_ns: u64, env: &mut Env<'_>) {
        while self.smfu.queue.next_due().is_some_and(|at| at <= now_ns) {
            match self.smfu.queue.0.pop_front() {
                Some((
                    _,
                    Access::Store {
                        addr,
                        remote_rf,
                        data,
                    },
                )) => {
                    self.smfu_store_now(addr, remote_rf, &data, true, env);
                }
                Some((
                    _,
                    Access::Load {
                        addr,
                        remote_rf,
                        len,
                        sink,
                    },
                )) => {
                    if let Some(sink) = self.smfu_request_now(addr, remote_rf, len, sink, env) {
                        self.smfu_give(sink, len, None);
                    }
                }
                None => return,
            }
        }
    }
}
