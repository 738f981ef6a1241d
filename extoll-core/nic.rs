// SPDX-License-Identifier: GPL-2.0-only

//! A NIC, composed of its units.
//!
//! A [`Nic`] may outlive the binding of its device, but its register mappings do not. The end of
//! the binding revokes them and waits for all users. Later accesses fail with `Down`. Set-up and
//! shutdown are in [`crate::setup`]. The accessors work in any context. The constructor may sleep.

use crate::{
    atu::{self, Atu},
    backdoor::Backdoors,
    dma::DmaWords,
    events::Events,
    links::{Link, Links, LINKS},
    monitor::{Monitor, Units},
    quarantine::Quarantine,
    reclaim::Reclaimer,
    rma::Rma,
    rra::Rra,
    smfu::Smfu,
    snq::{Handlers, MessageClient, MessageSubscription, Snq},
    velo::Velo,
    vpid::Table,
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::{atomic::Atomic, Arc},
};
use protocol::nic::nla::size_code;
use wire::ids::Unit;

pub use crate::{
    context::{Context, NetworkState, Status},
    monitor::{StatusClient, Subscription},
    params::Params,
};

impl Deref for Nic {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.ctx
    }
}

/// Units that react to changes of the status.
struct StatusUnits {
    ctx: Arc<Context>,
    tables: [Arc<Table>; 2],
}

impl Units for StatusUnits {
    fn node_changed(&self) {
        let [velo, _] = &self.tables;
        velo.for_each(|port| {
            if let Some(hw) = self.ctx.alive_access() {
                crate::velo::stamp(&hw, port.vpid);
            }
        });
    }

    fn down(&self) {
        self.tables.iter().for_each(|table| table.down());
    }
}

/// NIC with its units.
pub struct Nic {
    ctx: Arc<Context>,
    monitor: Arc<Monitor>,
    links: Arc<Links>,
    events: Arc<Events>,
    snq: Arc<Snq>,
    /// VPID tables of VELO and RMA.
    tables: [Arc<Table>; 2],
    reclaim: Arc<Reclaimer>,
    quarantine: Arc<Quarantine>,
    velo: Arc<Velo>,
    rma: Arc<Rma>,
    atu: Arc<Atu>,
    smfu: Arc<Smfu>,
    rra: Arc<Rra>,
    backdoors: Arc<Backdoors>,
    /// Number of handles that modules above hold.
    handles: Atomic<u64>,
}

impl Nic {
    /// Makes the units. `ring` is the memory from [`crate::snq::allocate`]. May sleep.
    pub(crate) fn new(
        ctx: Arc<Context>,
        ring: DmaWords,
        params: Params,
        window_bytes: u64,
    ) -> Result<Arc<Self>> {
        let tables = [Table::new(Unit::Velo)?, Table::new(Unit::Rma)?];
        let [velo_table, rma_table] = tables.clone();
        let smfu = Smfu::new(ctx.clone(), window_bytes, params.smfu_target_kib)?;
        let units = StatusUnits {
            ctx: ctx.clone(),
            tables: tables.clone(),
        };
        let units = Arc::new(units, GFP_KERNEL)?;
        let monitor = Monitor::new(ctx.clone(), units, params.log_interval_ms)?;
        let links = Links::new(ctx.clone(), monitor.clone())?;
        let vendor = params.vendor_events;
        let events = Events::new(ctx.clone(), links.clone(), smfu.clone(), vendor)?;
        let handlers = Handlers {
            events: events.clone(),
            smfu: smfu.clone(),
            monitor: monitor.clone(),
            tables: tables.clone(),
        };
        let snq = Snq::new(ctx.clone(), ring, handlers, params.message_interrupts)?;
        let settings = atu::Settings {
            gats: params.atu_gats,
            largest: size_code(params.atu_page_kib.into()).ok_or(EINVAL)?,
            spare_tables: params.tables_per_user,
        };
        let atu = Atu::new(ctx.clone(), settings)?;
        let reclaim = Reclaimer::new(ctx.clone())?;
        let kib = params.quarantine_kib;
        let quarantine = Quarantine::new(ctx.clone(), rma_table.clone(), kib)?;
        let velo = Velo::new(
            ctx.clone(),
            velo_table,
            reclaim.clone(),
            params.velo_slots_64,
        )?;
        let rma = Rma::new(
            ctx.clone(),
            rma_table,
            reclaim.clone(),
            quarantine.clone(),
            atu.clone(),
        )?;
        let rra = Rra::new(ctx.clone(), smfu.clone(), rma.clone(), quarantine.clone())?;
        let backdoors = Backdoors::new(ctx.clone(), rra.clone())?;
        let nic = Self {
            ctx,
            monitor,
            links,
            events,
            snq,
            tables,
            reclaim,
            quarantine,
            velo,
            rma,
            atu,
            smfu,
            rra,
            backdoors,
            handles: Atomic::new(0),
        };
        Ok(Arc::new(nic, GFP_KERNEL)?)
    }

    /// Returns the VELO unit, which sends and receives small messages.
    pub fn velo(&self) -> &Arc<Velo> {
        &self.velo
    }

    /// Returns the RMA unit, for access to memory of other nodes, notifications and locks.
    pub fn rma(&self) -> &Arc<Rma> {
        &self.rma
    }

    /// Returns the address translation unit, which registers memory.
    pub fn atu(&self) -> &Arc<Atu> {
        &self.atu
    }

    /// Returns the quarantine, which keeps memory that the NIC may still access after its owner has
    /// finished.
    pub fn quarantine(&self) -> &Arc<Quarantine> {
        &self.quarantine
    }

    /// Returns the SMFU, for loads and stores to memory of other nodes.
    pub fn smfu(&self) -> &Arc<Smfu> {
        &self.smfu
    }

    /// Returns the unit for access to registers of all nodes.
    pub fn rra(&self) -> &Arc<Rra> {
        &self.rra
    }

    /// Returns the PCIe backdoors of other nodes.
    pub fn backdoors(&self) -> &Arc<Backdoors> {
        &self.backdoors
    }

    /// Returns the context that all units use.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// Returns the list of closed ports whose VPIDs are being reclaimed.
    pub(crate) fn reclaim(&self) -> &Arc<Reclaimer> {
        &self.reclaim
    }

    pub(crate) fn monitor(&self) -> &Arc<Monitor> {
        &self.monitor
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    pub(crate) fn snq(&self) -> &Arc<Snq> {
        &self.snq
    }

    pub(crate) fn link_monitor(&self) -> &Arc<Links> {
        &self.links
    }

    /// Returns the VPID tables of VELO and RMA.
    pub(crate) fn tables(&self) -> &[Arc<Table>; 2] {
        &self.tables
    }

    pub(crate) fn table(&self, unit: Unit) -> &Arc<Table> {
        let [velo, rma] = &self.tables;
        match unit {
            Unit::Velo => velo,
            Unit::Rma => rma,
        }
    }

    /// Returns the number of handles that modules above hold.
    pub(crate) fn handles(&self) -> &Atomic<u64> {
        &self.handles
    }

    /// Returns the state of the links that was read last. No register access; any context.
    pub fn links(&self) -> [Link; LINKS] {
        self.links.get()
    }

    /// Returns whether other nodes can be reached, i.e. whether the network ran and a link was up
    /// when they were read last. No register access; any context.
    pub fn is_connected(&self) -> bool {
        self.status().is_up() && self.links.any_up()
    }

    /// Subscribes to changes of the status and of links. The caller reads [`Context::status`] and
    /// [`Nic::links`] afterwards. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn subscribe(&self, client: Arc<dyn StatusClient>) -> Result<Subscription> {
        self.monitor.subscribe(client)
    }

    /// Subscribes `client` to interrupts that other nodes raise ([`MessageClient`]), until the
    /// subscription is dropped. The client is called at most `per_second` times per second; 0 sets
    /// no limit. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` for the 65th subscription; `ENOMEM`.
    pub fn subscribe_messages(
        &self,
        client: Arc<dyn MessageClient>,
        per_second: u32,
    ) -> Result<MessageSubscription> {
        self.snq.subscribe_messages(client, per_second)
    }
}
