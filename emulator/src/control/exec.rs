//! Execution of the requests that arrive on the control socket.

use super::{Counters, LinkSelect, LoopStats, NicCounters, NicStatus, Request, Status};
use crate::network::topology::End;
use crate::network::{Flap, LinkKnobs, Network};
use crate::nic::{ResetKind, RF_SIZE};
use crate::world::World;
use anyhow::{bail, Context, Result};
use serde_json::{json, Value};
use std::path::Path;

const MS: u64 = 1_000_000;
/// Maximum duration in ms of each phase of a flap: one day.
const MAX_MS: u64 = 86_400_000;

fn nic(world: &World, nic: usize) -> Result<usize> {
    if nic >= world.nic_count() {
        bail!(
            "there is no NIC {nic}; NICs are 0…{}",
            world.nic_count() - 1
        );
    }
    Ok(nic)
}

fn register(offset: u32) -> Result<u32> {
    if offset % 8 != 0 || offset >= RF_SIZE {
        bail!("{offset:#x} is not the offset of a register");
    }
    Ok(offset)
}

fn cables(world: &World, select: &LinkSelect) -> Result<Vec<usize>> {
    let net = world.network();
    let ends = |i: usize| net.cable_ends(i);
    let all = 0..net.cable_count();
    let found: Vec<usize> = match select {
        LinkSelect::All => all.collect(),
        LinkSelect::End(text) => {
            let end: End = text.parse()?;
            net.cable_at(end).into_iter().collect()
        }
        LinkSelect::Nic(n) => all.filter(|&i| ends(i).iter().any(|e| e.nic == *n)).collect(),
        LinkSelect::Between(a, b) => {
            all.filter(|&i| matches!(ends(i).map(|e| e.nic), [x, y] if (x, y) == (*a, *b) || (x, y) == (*b, *a))).collect()
        }
    };
    if found.is_empty() {
        bail!("there is no cable {select}");
    }
    Ok(found)
}

/// Executes one request. [`Request::Shutdown`] does nothing here, because the server handles it.
pub(super) fn execute(world: &mut World, stats: &LoopStats, request: Request) -> Result<Value> {
    match request {
        Request::Status => return Ok(status(world, stats).value()?),
        Request::Counters { nic: only } => {
            let nics: Vec<usize> = match only {
                Some(n) => vec![nic(world, n)?],
                None => (0..world.nic_count()).collect(),
            };
            let nics = nics
                .into_iter()
                .map(|i| counters(world, i))
                .collect::<Result<_>>()?;
            let c = Counters {
                uptime_ns: world.now(),
                nics,
                links: world.network().links(),
            };
            return Ok(c.value()?);
        }
        Request::Peek { nic: n, offset } => {
            let (n, offset) = (nic(world, n)?, register(offset)?);
            return Ok(json!(world.peek(n, offset)));
        }
        Request::Poke {
            nic: n,
            offset,
            value,
        } => {
            let (n, offset) = (nic(world, n)?, register(offset)?);
            world.poke(n, offset, value);
            world.settle();
        }
        Request::Link { link, up, policy } => {
            let cables = cables(world, &link)?;
            world.change_network(|net, trace| {
                cables
                    .iter()
                    .for_each(|&c| net.set_link(c, up, policy, trace))
            });
        }
        Request::Flap {
            link,
            down_ms,
            up_ms,
            count,
            policy,
        } => {
            let cables = cables(world, &link)?;
            if count == 0 || down_ms > MAX_MS || up_ms > MAX_MS {
                bail!("a flap needs a count of at least 1 and times of up to one day");
            }
            let flap = Flap {
                down_ns: down_ms * MS,
                up_ns: up_ms * MS,
                left: count,
            };
            world.change_network(|net, trace| {
                cables
                    .iter()
                    .for_each(|&c| net.start_flap(c, flap, policy, trace))
            });
        }
        Request::Knobs {
            link,
            latency_ns,
            bytes_per_second,
            corrupt_rate,
            loss_rate,
        } => {
            let cables = cables(world, &link)?;
            let merged = |net: &Network, c| {
                let old = net.knobs(c);
                LinkKnobs {
                    latency_ns: latency_ns.unwrap_or(old.latency_ns),
                    bytes_per_second: bytes_per_second.unwrap_or(old.bytes_per_second),
                    corrupt_rate: corrupt_rate.unwrap_or(old.corrupt_rate),
                    loss_rate: loss_rate.unwrap_or(old.loss_rate),
                    ..old
                }
            };
            for &c in &cables {
                merged(world.network(), c)
                    .validate()
                    .map_err(anyhow::Error::msg)?;
            }
            world.change_network(|net, _| {
                for c in cables {
                    let knobs = merged(net, c);
                    net.set_knobs(c, knobs);
                }
            });
        }
        Request::Freeze { nic: n, on } => {
            let n = nic(world, n)?;
            world.set_frozen(n, on);
        }
        Request::Power { nic: n, on } => {
            let n = nic(world, n)?;
            world.set_power(n, on);
        }
        Request::Reset { nic: n } => {
            let n = nic(world, n)?;
            world.reset(n, ResetKind::PowerOn);
        }
        Request::Faults { nic: n, faults } => {
            let n = nic(world, n)?;
            world.set_faults(n, faults)?;
        }
        Request::EndFaults => world.end_faults(),
        Request::Pci { nic: n, fields } => {
            let n = nic(world, n)?;
            let pci = world.pci(n).with(fields)?;
            pci.validate().map_err(anyhow::Error::msg)?;
            world.set_pci(n, pci);
        }
        Request::Panic { nic: n } => {
            let n = nic(world, n)?;
            world.inject_panic(n);
        }
        Request::Forge { nic: n, packet } => {
            let n = nic(world, n)?;
            world.forge(n, &packet)?;
        }
        Request::Event {
            nic: n,
            event,
            registers,
        } => {
            let n = nic(world, n)?;
            for (offset, _) in &registers {
                register(*offset)?;
            }
            world.report(n, event, &registers)?;
        }
        Request::Seed { seed } => world.reseed(seed),
        Request::Setup { avoid_dead } => world.set_up_all(avoid_dead)?,
        Request::NetworkState { nic: n, state } => {
            if state > 2 {
                bail!("network states are 0 (unconfigured), 1 (running), 2 (stopped)");
            }
            let nics = match n {
                Some(n) => vec![nic(world, n)?],
                None => (0..world.nic_count()).collect(),
            };
            nics.into_iter().for_each(|n| world.set_state(n, state));
        }
        Request::NodeId { nic: n, id } => {
            let n = nic(world, n)?;
            world.set_node_id(n, id)?;
        }
        Request::TraceStart { path } => {
            world
                .tracer
                .start(Path::new(&path))
                .with_context(|| format!("cannot write {path}"))?;
        }
        Request::TraceFlush => {
            world.tracer.flush().context("trace file")?;
            return Ok(json!(world.tracer.records()));
        }
        Request::TraceStop => world.tracer.stop().context("trace file")?,
        Request::Shutdown => {}
    }
    Ok(Value::Null)
}

fn status(world: &World, stats: &LoopStats) -> Status {
    Status {
        pid: std::process::id(),
        topology: world.topology_name().to_owned(),
        seed: world.network().config().seed,
        timing: world.timing(),
        variant: world.variant().to_owned(),
        uptime_ns: world.now(),
        tracing: world.tracer.on(),
        nics: (0..world.nic_count())
            .map(|i| world.nic_status(i))
            .collect(),
        links: world.network().links(),
        event_loop: stats.clone(),
        deadlocks: world.network().deadlocks().to_vec(),
    }
}

fn counters(world: &World, i: usize) -> Result<NicCounters> {
    let (network, in_flight, waiting) = world.network().node_stats(i);
    Ok(NicCounters {
        nic: i,
        chip: serde_json::to_value(world.chip_counters(i))?,
        host: world.host_stats(i).clone(),
        timing: world.timing_stats(i),
        network: network.clone(),
        in_flight_bytes: in_flight,
        waiting_bytes: waiting,
    })
}

impl World {
    fn nic_status(&self, i: usize) -> NicStatus {
        let slot = &self.slots[i];
        NicStatus {
            nic: i,
            host: i / self.nics_per_node(),
            socket: match slot.spec.accelerator {
                None => slot.spec.socket.display().to_string(),
                Some(_) => String::new(),
            },
            accelerator: self.is_accelerator(i),
            connected: slot.connected,
            power: slot.power,
            frozen: self.network.is_frozen(i),
            node_id: slot.nic.node_id().0,
            network_state: slot.nic.network_state(),
            guid: slot.nic.config().guid(),
            bus_master: slot.machine.config.bus_master(),
            msi_vectors: slot.machine.config.msi_enabled(),
            dma_maps: slot.machine.memory.totals(),
            faults: slot.nic.config().faults.clone(),
        }
    }
}
