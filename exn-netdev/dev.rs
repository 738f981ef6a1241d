// SPDX-License-Identifier: GPL-2.0-only

//! The net device: registration, `open` and `stop`, carrier, MAC address, statistics and watchdog.
//!
//! Net device operations run under RTNL in process context and may sleep, except `start_xmit`
//! (bottom halves off, under netpoll also interrupts off) and `stats64`. Callbacks of the ports
//! ([`Client`]) run in hard interrupt or process context. They schedule NAPI or work, or switch the
//! carrier off.

use crate::{
    conf,
    debugfs::{self, Files},
    env::{ms, Clock, RxBuffer},
    poll::{Poll, State},
    reason::{Class, Counter, Reason},
    rx_rma::{Outcome, RmaState},
    shared::Shared,
};
use extoll_core::{
    child::Handle,
    links::Link,
    nic::{Status, StatusClient, Subscription},
    quarantine::Quarantined,
    rma, velo,
    vpid::Client,
};
use kernel::{
    device::{self, Bound},
    prelude::*,
    sync::{atomic::Relaxed, Arc},
    time::{delay::fsleep, Delta},
};
use kernel_ext::{
    net::{
        Config, Device, Napi, NetDev, Operations, Registration, Rtnl, SkBuff, Stats64, Transmit,
        TxQueue,
    },
    work::FlushOnDrop,
};
use protocol::Clock as _;
use wire::eth::{MacPrefix, VPID};

/// Driver data of the net device.
pub(crate) struct Exn {
    pub(crate) shared: Arc<Shared>,
    napi: Arc<Napi<Poll>>,
}

/// Callbacks of the VELO port.
struct VeloClient {
    shared: Arc<Shared>,
    napi: Arc<Napi<Poll>>,
}

impl Client for VeloClient {
    fn interrupt(&self) {
        self.shared.velo_fired.store(true, Relaxed);
        self.napi.schedule();
    }

    fn writable(&self) {
        // The poll function sends the pending frame when it runs.
        self.napi.schedule();
    }

    fn down(&self) {
        self.shared.ndev.set_carrier(false);
    }
}

/// Callbacks of the RMA port.
struct RmaClient {
    shared: Arc<Shared>,
    napi: Arc<Napi<Poll>>,
}

impl Client for RmaClient {
    fn interrupt(&self) {
        self.shared.rma_fired.store(true, Relaxed);
        self.napi.schedule();
    }

    fn writable(&self) {
        if self.shared.set_gated(false) {
            // The VPID is enabled, so the work item can switch the carrier on.
            self.shared.ndev.schedule_work();
        }
        // The poll function posts the waiting GETs.
        self.napi.schedule();
    }
}

/// Receiver of changes of node ID, network state and links.
struct StatusWatch(Arc<Shared>);

impl StatusClient for StatusWatch {
    fn changed(&self, _: Status) {
        self.0.update_carrier();
        // Setting the MAC address requires RTNL, which the work item acquires.
        self.0.ndev.schedule_work();
    }

    fn link(&self, _: u8, _: Link) {
        self.0.update_carrier();
    }
}

impl Exn {
    /// Creates the private data of `ndev`. May sleep.
    #[inline(never)] // Keeps the stack frame small, like Shared::new.
    fn new(ndev: &Arc<NetDev>, shared: &Arc<Shared>) -> Result<Self> {
        let poll = Poll {
            shared: shared.clone(),
        };
        let napi = Napi::new(ndev.clone(), poll, State::new()?);
        Ok(Self {
            shared: shared.clone(),
            napi: Arc::pin_init(napi, GFP_KERNEL)?,
        })
    }

    /// Waits up to [`conf::DRAIN_MS`] until no transfer is in flight: neither announced frames that
    /// peers are fetching, nor GETs of this node, whose frames are dropped. Sleeps.
    fn drain(&self, state: &mut RmaState) {
        let sh = &*self.shared;
        let end = Clock.now().after(ms(conf::DRAIN_MS));
        while sh.nic.is_alive() && Clock.now() < end {
            let n = state.run(sh, conf::DRAIN_BATCH, |outcome| match outcome {
                Outcome::Sent(skb) => skb.consume(),
                Outcome::Received(skb, ..) => {
                    drop(skb);
                    sh.counters.reason(Reason::RxFlushed, 1);
                }
                Outcome::Ended(_) => {}
            });
            let sent = sh.tx.lock().is_idle();
            let fetched = sh.rx.lock().is_idle();
            if sent && fetched {
                break;
            }
            if n == 0 {
                fsleep(Delta::from_millis(1));
            }
        }
    }

    /// Ends all pending transfers and moves their memory to the NIC's quarantine. The ports are
    /// closed. Nevertheless, peers may still fetch announced frames, and GETs may still be answered
    /// after the next port is opened. May sleep.
    fn flush(&self) {
        let sh = &*self.shared;
        let Some(mut batch) = sh.batch.lock().take() else {
            return;
        };
        loop {
            let Some((active, mut map)) = sh.tx.lock().flush_one() else {
                break;
            };
            if active {
                sh.counters.reason(Reason::TxFlushed, 1);
            }
            map.orphan();
            batch.push(Quarantined::Tx(map));
        }
        loop {
            let Some((
                expected,
                RxBuffer {
                    map: mut buffer, ..
                },
            )) = sh.rx.lock().flush_one()
            else {
                break;
            };
            if expected {
                sh.counters.reason(Reason::RxFlushed, 1);
            }
            buffer.orphan();
            batch.push(Quarantined::Rx(buffer));
        }
        batch.hold(conf::quarantine_ms());
        sh.set_scratch(None);
    }
}

#[vtable]
impl Operations for Exn {
    type Data = Exn;

    fn open(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) -> Result {
        let exn = dev.data();
        let sh = &exn.shared;
        // Of repeated attempts to reopen the ports only the first is logged.
        let quiet = sh.is_reopening();
        let log = |what: &str, e: Error| {
            if !quiet {
                dev_err!(sh.nic.device(), "exn: {what}: {e:?}\n");
            }
        };
        let (sender, mailbox) = sh
            .nic
            .velo()
            .open(Some(VPID), velo::DEFAULT_MAILBOX_BYTES)
            .inspect_err(|e| log("can't open VELO port 254", *e))?;
        let (requester, notifications) = sh
            .nic
            .rma()
            .open(Some(VPID), rma::DEFAULT_QUEUE_BYTES)
            .inspect_err(|e| log("can't open RMA port 254", *e))?;
        let batch = sh.nic.quarantine().batch(VPID, conf::RECLAIM_MAX)?;
        let velo_client = Arc::new(
            VeloClient {
                shared: sh.clone(),
                napi: exn.napi.clone(),
            },
            GFP_KERNEL,
        )?;
        let rma_client = Arc::new(
            RmaClient {
                shared: sh.clone(),
                napi: exn.napi.clone(),
            },
            GFP_KERNEL,
        )?;
        let scratch = sh
            .scratch_buffer()
            .inspect_err(|e| log("no memory for the scratch buffer", *e))?;
        sh.set_scratch(Some(scratch));
        // The call fails only because of a bug: the NAPI instance is disabled while the interface
        // is down.
        exn.napi.with_state(rtnl, |state| {
            state.velo.mailbox = Some(mailbox);
            state.velo.rx.start(requester.clone());
            state.rma.queue = Some(notifications);
        })?;
        sh.reset();
        let old = sh.batch.lock().replace(batch);
        drop(old);
        sh.set_gated(!requester.is_enabled());
        sh.tx.lock().start(sender.clone());
        // The first poll, which follows this call, arms the interrupts.
        sender.attach(velo_client);
        requester.attach(rma_client);
        rtnl.set_mac(&sh.prefix.mac(sh.nic.node()));
        // The VPID may have been enabled before the client was attached.
        if requester.is_enabled() {
            sh.set_gated(false);
        }
        sh.update_carrier();
        Ok(())
    }

    fn stop(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) {
        let exn = dev.data();
        let sh = &exn.shared;
        dev.set_carrier(false);
        let mut waiting = 0;
        // Cannot fail: the NAPI instance is disabled before `stop` is called.
        let _ = exn.napi.with_state(rtnl, |state| {
            exn.drain(&mut state.rma);
            if let Some(queue) = state.rma.queue.take() {
                queue.close();
            }
            if let Some(requester) = state.velo.rx.requester.take() {
                requester.detach();
                requester.close();
            }
            if let Some(mailbox) = state.velo.mailbox.take() {
                mailbox.close();
            }
            waiting = state.flush(sh);
        });
        sh.counters.reason(Reason::RxFlushed, waiting as u64);
        let (sender, pending) = sh.tx.lock().stop();
        if let Some(sender) = sender {
            sender.detach();
            sender.close();
        }
        if pending.is_some() {
            sh.counters.reason(Reason::TxFlushed, 1);
        }
        drop(pending);
        // The status callback may have switched the carrier on before the ports were removed.
        sh.update_carrier();
        // The ports are closed.
        exn.flush();
    }

    fn start_xmit(dev: &Device<Self>, skb: SkBuff, queue: &TxQueue<'_>) -> Transmit {
        let exn = dev.data();
        if exn.shared.transmit(skb, queue) {
            exn.shared.want_tick(|delay| exn.napi.schedule_in(delay));
        }
        Transmit::Taken
    }

    fn set_mac_address(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>, mac: [u8; 6]) -> Result {
        // The address encodes the node ID. Peers could not send to any other address.
        let sh = &dev.data().shared;
        if mac != sh.prefix.mac(sh.nic.node()) {
            return Err(EADDRNOTAVAIL);
        }
        rtnl.set_mac(&mac);
        Ok(())
    }

    fn stats64(dev: &Device<Self>, stats: &mut Stats64) {
        let c = &dev.data().shared.counters;
        let (length, frame, missed) = (
            c.class(Class::RxLength),
            c.class(Class::RxFrame),
            c.class(Class::RxMissed),
        );
        let (error, aborted) = (c.class(Class::TxError), c.class(Class::TxAborted));
        stats
            .add_rx_dropped(c.class(Class::RxDropped))
            .add_rx_length_errors(length)
            .add_rx_frame_errors(frame)
            .add_rx_missed(missed)
            // Missed frames are not included, because readers of the statistics add them to the
            // errors.
            .add_rx_errors(length.wrapping_add(frame))
            .add_tx_dropped(c.class(Class::TxDropped))
            .add_tx_aborted(aborted)
            .add_tx_errors(error.wrapping_add(aborted))
            .add_multicast(c.get(Counter::RxMulticast));
    }

    fn set_rx_mode(_dev: &Device<Self>) {
        // There is no filter to program: the fabric delivers every multicast frame to every node,
        // and the stack filters the frames.
    }

    fn tx_timeout(dev: &Device<Self>) {
        let exn = dev.data();
        let sh = &exn.shared;
        sh.reject(Reason::TxWatchdog, None, 0);
        // Drops messages that the NIC has not accepted since the queue stalled. The poll function
        // resolves every other cause of a stopped queue.
        sh.tx_reset_port();
        exn.napi.schedule();
        sh.want_tick(|delay| exn.napi.schedule_in(delay));
    }

    fn work(dev: &Device<Self>, rtnl: &Rtnl<'_, Self>) {
        let sh = &dev.data().shared;
        rtnl.set_mac(&sh.prefix.mac(sh.nic.node()));
        if sh.claim_restart() {
            match rtnl.restart() {
                Ok(()) => sh.reopened(),
                Err(e) => sh.reopen_later(e),
            }
        }
        // The status callback may have changed the carrier before the interface was up.
        sh.update_carrier();
    }
}

/// Interface of one NIC, from probe to unbind. Fields are dropped in the order of their
/// declaration.
pub(crate) struct Interface<'bound> {
    _files: Option<Files>,
    _status: Subscription,
    _net: Registration<'bound, Exn>,
    _flush: FlushOnDrop,
}

impl<'bound> Interface<'bound> {
    /// Creates and registers the interface of a NIC. May sleep. Acquires RTNL.
    pub(crate) fn new(nic: Handle, parent: &'bound device::Device<Bound>) -> Result<Self> {
        let flush = FlushOnDrop;
        let config = Config {
            name: c"exn%d",
            min_mtu: conf::MIN_MTU,
            max_mtu: conf::MAX_MTU,
            mtu: conf::MAX_MTU,
            tx_queue_len: 1000,
            watchdog_ms: conf::WATCHDOG_MS,
            tx_csum: conf::skip_tx_checksum(),
            rx_csum: conf::verify_rx_checksum() != conf::Verify::All,
            multicast: true,
        };
        let ndev = NetDev::alloc(&config, parent)?;
        let shared = Shared::new(ndev.clone(), nic.clone())?;
        let mac = MacPrefix(conf::mac_prefix()).mac(nic.node());
        let data = Exn::new(&ndev, &shared)?;
        let net = Registration::<Exn>::new(ndev, parent, &mac, Ok::<_, Error>(data))?;
        // The interface works without debugfs files.
        let files = debugfs::files(&shared)
            .inspect_err(|e| dev_warn!(shared.nic.device(), "exn: no debugfs files: {e:?}\n"))
            .ok();
        let watch = Arc::new(StatusWatch(shared.clone()), GFP_KERNEL)?;
        let status = nic.subscribe(watch)?;
        // The work item handles changes that happened before the subscription.
        shared.ndev.schedule_work();
        Ok(Self {
            _files: files,
            _status: status,
            _net: net,
            _flush: flush,
        })
    }
}
