//! The set-up step, which programs the fabric through the register files of the NICs, as management
//! software does.
//!
//! It writes node ID, routing tables and multicast tables of every NIC, makes the links exchange
//! identities, and sets the network state. A NIC is programmed again after each reset.

use crate::config::SetupConfig;
use crate::network::routes::{Request, RouteError, Routes};
use crate::network::topology::Topology;
use crate::network::XBAR_PORTS;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use wire::ids::Vpid;
use wire::regs::xbar::inp;
use wire::regs::{info, lp, np, rma};

/// Value of the network state "running" (HW §4.3).
pub const RUNNING: u64 = 1;
/// Value of the network state "stopped" (HW §4.3).
pub const STOPPED: u64 = 2;

/// Value of register `ids` that sends GUID, node ID and port to the neighbour.
const SEND_BOTH: u64 = 3;
/// Number of VPIDs per unit, as in the reset value of the node register (G2).
const VPIDS: u16 = 256;

/// State of the set-up step.
pub struct Setup {
    auto: bool,
    delay_ns: u64,
    to_sender: bool,
    groups: BTreeMap<u8, Vec<usize>>,
    /// Node ID of each NIC.
    pub(crate) ids: Vec<u16>,
    /// Network state that the set-up step writes to each NIC.
    pub(crate) states: Vec<u64>,
    routes: Routes,
    due: BTreeSet<(u64, usize)>,
}

impl Setup {
    /// Computes the routes. Fails as [`Routes::compute`] does.
    pub fn new(cfg: &SetupConfig, topology: &Topology) -> Result<Self, RouteError> {
        let ids = cfg
            .node_ids
            .clone()
            .unwrap_or_else(|| (0..topology.nodes as u16).collect());
        let groups = cfg.group_map().map_err(|e| RouteError(e.to_string()))?;
        let to_sender = cfg.multicast_to_sender;
        let routes = Routes::compute(
            topology,
            &Request {
                ids: &ids,
                dead: &[],
                groups: &groups,
                to_sender,
            },
        )?;
        Ok(Self {
            auto: cfg.auto,
            delay_ns: cfg.delay_ms * 1_000_000,
            to_sender,
            groups,
            states: vec![RUNNING; ids.len()],
            ids,
            routes,
            due: BTreeSet::new(),
        })
    }

    /// Returns the time at which the next NIC is programmed.
    pub fn next_deadline(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop_due(&mut self, now: u64) -> Option<usize> {
        if self.due.first().is_some_and(|(at, _)| *at <= now) {
            self.due.pop_first().map(|(_, nic)| nic)
        } else {
            None
        }
    }
}

impl World {
    /// Programs a NIC that was reset, at once or after the configured delay.
    pub(crate) fn nic_came_back(&mut self, nic: usize) {
        if !self.setup.auto {
            return;
        }
        if self.setup.delay_ns == 0 {
            self.set_up(nic);
        } else {
            let at = self.now().saturating_add(self.setup.delay_ns);
            self.setup.due.retain(|(_, n)| *n != nic);
            self.setup.due.insert((at, nic));
        }
    }

    /// Programs one NIC: identity, tables, identity exchange with the neighbours, and network
    /// state. For a NIC without a host, also enables the network ports and the VPID for remote
    /// register access. Does nothing if the NIC is off.
    pub fn set_up(&mut self, nic: usize) {
        if !self.is_on(nic) {
            return;
        }
        self.write_identity(nic);
        self.write_tables(nic);
        self.exchange_ids(nic);
        if self.is_accelerator(nic) {
            // A NIC without a host has no driver. Without these ports, its registers would be
            // unreachable.
            for port in [np::RMA_COMPLETER, np::RMA_RESPONDER, np::SMFU] {
                self.poke(nic, np::general(port).get(), np::GENERAL_INIT);
            }
            // With some options, only VPIDs that accept other requests accept register requests
            // (G19).
            let smallest = rma::Config::for_pcie(128, 128);
            self.poke(nic, rma::CONFIG.get(), smallest.raw());
            let port = rma::vpid_table(Vpid::RRA);
            self.poke(nic, port.get(), rma::VPID_ENABLED);
        }
        self.poke(nic, info::NW_STATE.get(), self.setup.states[nic]);
        self.settle();
    }

    /// Programs every NIC. With `avoid_dead`, the routes avoid cables that carry no packets now;
    /// otherwise, the routes use all cables.
    pub fn set_up_all(&mut self, avoid_dead: bool) -> Result<(), RouteError> {
        let dead = if avoid_dead {
            self.network.dead_cables()
        } else {
            Vec::new()
        };
        let s = &self.setup;
        let request = Request {
            ids: &s.ids,
            dead: &dead,
            groups: &s.groups,
            to_sender: s.to_sender,
        };
        self.setup.routes = Routes::compute(&self.topology, &request)?;
        (0..self.nic_count()).for_each(|nic| self.set_up(nic));
        Ok(())
    }

    fn write_identity(&mut self, nic: usize) {
        let guid = self.guid(nic);
        let node = info::Node::default()
            .with_guid(guid)
            .with_id(self.setup.ids[nic])
            .with_vpids(VPIDS);
        self.poke(nic, info::NODE.get(), node.raw());
    }

    fn write_tables(&mut self, nic: usize) {
        let tables = self.setup.routes.tables(nic);
        let word =
            |table: &BTreeMap<u16, u64>, i: u32| table.get(&(i as u16)).copied().unwrap_or(0);
        for port in 0..XBAR_PORTS as u32 {
            let mcast = &tables.mcast[port as usize];
            let lrt = (0..inp::LRT_ENTRIES).map(|i| (inp::lrt(port, i), word(&tables.lrt, i)));
            let grt = (0..inp::GRT_ENTRIES).map(|i| (inp::grt(port, i), word(&tables.grt, i)));
            let mcast = (0..inp::MCAST_ENTRIES).map(|i| (inp::mcast(port, i), word(mcast, i)));
            for (at, value) in lrt.chain(grt).chain(mcast) {
                // Words with the right value are skipped, so that a trace shows only changes.
                if self.network.register(nic, at.get()) != Some(value) {
                    self.poke(nic, at.get(), value);
                }
            }
        }
    }

    /// Makes both ends of all links of this NIC exchange their identities.
    fn exchange_ids(&mut self, nic: usize) {
        for (mine, far) in self.network.link_ends(nic) {
            self.poke(nic, lp::ids(mine.into()).get(), SEND_BOTH);
            self.poke(far.nic, lp::ids(far.port.into()).get(), SEND_BOTH);
        }
    }

    /// Sets the network state of one NIC (1 running, 2 stopped, 0 unconfigured). The set-up step
    /// after a reset sets this state, too.
    pub fn set_state(&mut self, nic: usize, state: u64) {
        self.setup.states[nic] = state;
        self.poke(nic, info::NW_STATE.get(), state);
        self.settle();
    }

    /// Changes the node ID of a NIC in a running fabric: stops the NIC, writes its ID and all
    /// tables, and restores its state. If [`Routes::compute`] fails, returns its error and changes
    /// nothing.
    pub fn set_node_id(&mut self, nic: usize, id: u16) -> Result<(), RouteError> {
        let old = std::mem::replace(&mut self.setup.ids[nic], id);
        let s = &self.setup;
        let request = Request {
            ids: &s.ids,
            dead: &[],
            groups: &s.groups,
            to_sender: s.to_sender,
        };
        match Routes::compute(&self.topology, &request) {
            Ok(routes) => self.setup.routes = routes,
            Err(e) => {
                self.setup.ids[nic] = old;
                return Err(e);
            }
        }
        let state = info::NW_STATE.get();
        self.poke(nic, state, STOPPED);
        self.settle();
        for other in (0..self.nic_count())
            .filter(|&o| o != nic && self.is_on(o))
            .collect::<Vec<_>>()
        {
            self.write_tables(other);
        }
        self.set_up(nic);
        Ok(())
    }
}
