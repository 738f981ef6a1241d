//! The interface as the kernel's network stack sees it.

use crate::cluster::{Lab, Spec, PATIENCE};
use crate::scenarios::{
    guest,
    node::{node, same, Node},
    on_pair,
};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("stack::vlan_full_frames", vlan_full_frames).gate(),
        on_pair("stack::mtu_of_others", mtu_of_others),
        on_pair("stack::rate_limits", rate_limits),
        on_pair("stack::containers", containers),
        on_pair("stack::bridged", bridged),
        on_pair("stack::napi_instances", napi_instances),
        on_pair("stack::counters", counters),
        on_pair("stack::order", order),
        on_pair("stack::flow_order", flow_order),
        Scenario::new("stack::busy_poll", ONE_PROCESSOR, busy_poll),
        Scenario::new("stack::netpoll", ONE_PROCESSOR, netpoll),
        on_pair("stack::netconsole", netconsole),
    ]
}

/// Both nodes have one CPU, so that no other CPU can poll the interface.
const ONE_PROCESSOR: Spec = Spec::pair().cpus(1);

/// VLAN tags do not count for the MTU: full frames pass with one tag and with two.
fn vlan_full_frames(lab: &Lab) -> Result<()> {
    let nodes = [node(lab, 0), node(lab, 1)];
    let result = (|| {
        for (n, node) in nodes.iter().enumerate() {
            for (below, id, network) in [("exn0", 7, 77), ("exn0.7", 9, 79)] {
                let name = format!("{below}.{id}");
                node.ok(&format!(
                    "ip link add link {below} name {name} type vlan id {id} \
                     && ip addr add 10.{network}.0.{}/24 dev {name} && ip link set {name} up",
                    n + 1
                ))?;
            }
        }
        vlan_traffic(lab, "exn0.7", "10.77.0.2")?;
        vlan_traffic(lab, "exn0.7.9", "10.79.0.2")
    })();
    for node in nodes {
        node.ok("ip link del exn0.7 2>/dev/null; rm -f /tmp/sent /tmp/got")?;
    }
    result
}

/// Sends full frames to node 1 through a VLAN.
fn vlan_traffic(lab: &Lab, name: &str, target: &str) -> Result<()> {
    let nodes = [node(lab, 0), node(lab, 1)];
    let mtu = nodes[0].ok(&format!("cat /sys/class/net/{name}/mtu"))?;
    ensure!(mtu.trim() == "65520", "{mtu}");
    let before = nodes[0].ethtool("tx_long")?;
    // The sizes leave space for the IPv4 header of 20 bytes and the ICMP header of 8 bytes.
    for bytes in [56, 1472, 65_492] {
        let options = format!("-i 0.05 -s {bytes} -M do");
        nodes[0].pings_to(target, 5, &options)?;
    }
    // The size leaves space for the IPv6 header of 40 bytes and the ICMP header of 8 bytes.
    let own = nodes[1].ok(&format!(
        "ip -6 -o addr show dev {name} scope link | awk '{{sub(\"/.*\", \"\", $4); print $4}}'"
    ))?;
    let options = "-6 -i 0.05 -s 65472 -M do";
    nodes[0].pings_to(&format!("{}%{name}", own.trim()), 5, options)?;
    nodes[0].ok("head -c 6000000 /dev/urandom >/tmp/sent")?;
    nodes[1].ok(
        "rm -f /tmp/got; timeout 60 socat -u TCP-LISTEN:7200,reuseaddr CREATE:/tmp/got \
         >/dev/null 2>&1 </dev/null &",
    )?;
    nodes[1].until("socat listens", "ss -ltn | grep -q :7200")?;
    nodes[0].ok(&format!(
        "timeout 60 socat -u OPEN:/tmp/sent TCP:{target}:7200"
    ))?;
    nodes[1].until("all bytes arrived", "[ $(stat -c %s /tmp/got) = 6000000 ]")?;
    let sums = [
        nodes[0].ok("sha256sum </tmp/sent")?,
        nodes[1].ok("sha256sum </tmp/got")?,
    ];
    same(&sums[0], &sums[1])?;
    ensure!(
        nodes[0].ethtool("tx_long")? == before,
        "frames were too long"
    );
    Ok(())
}

/// Interfaces built on exn0 get its MTU: a bridge with it as a port, a veth pair, VXLAN. Full
/// packets pass, and the kernel logs no warning.
fn mtu_of_others(lab: &Lab) -> Result<()> {
    let nodes = [node(lab, 0), node(lab, 1)];
    let mark = lab.log_mark(0)?;
    let result = (|| {
        let mtu = |name: &str| nodes[0].ok(&format!("cat /sys/class/net/{name}/mtu"));
        let own = mtu("exn0")?;
        nodes[0].ok(&format!(
            "ip link add v7 mtu {} type veth peer name w7",
            own.trim()
        ))?;
        same(&own, &mtu("v7")?)?;
        for (n, node) in nodes.iter().enumerate() {
            node.ok(&format!(
                "modprobe vxlan; ip link add x7 type vxlan id 7 dev exn0 remote 10.2.0.{} dstport 4789 \
                 && ip addr add 10.87.0.{}/24 dev x7 && ip link set x7 up",
                2 - n,
                n + 1
            ))?;
        }
        // VXLAN adds 50 bytes to the inner frame, whose own headers have 28 bytes.
        ensure!(mtu("x7")?.trim() == "65470", "{}", mtu("x7")?);
        nodes[0].pings_to("10.87.0.2", 5, "-i 0.05 -s 65442 -M do")?;
        nodes[0]
            .ok("modprobe bridge; ip link add br7 type bridge && ip link set exn0 master br7")?;
        same(&own, &mtu("br7")?)
    })();
    for node in nodes {
        node.ok("for i in br7 v7 x7; do ip link del $i 2>/dev/null; done; true")?;
    }
    result?;
    let log = lab.log_since(&mark)?;
    ensure!(!log.contains("mtu greater than"), "{log}");
    nodes[0].pings(3, "-i 0.1")
}

/// Sends packets from a namespace of `from` in three ways: as messages, as announced frames, and as
/// frames of maximum length.
fn foreign_traffic(from: Node<'_>, target: &str) -> Result<()> {
    for options in [
        "-i 0.1 -c 5",
        "-i 0.1 -c 5 -s 8000",
        "-i 0.1 -c 5 -s 65492 -M do",
    ] {
        let out = from.ok(&format!(
            "ip netns exec c8 ping -q -W 20 {options} {target}"
        ))?;
        ensure!(out.contains(" 5 received"), "{options} {target}: {out}");
    }
    Ok(())
}

/// Containers with their own MAC addresses (macvlan) reach nodes and each other, and nodes reach
/// them.
fn containers(lab: &Lab) -> Result<()> {
    let nodes = [node(lab, 0), node(lab, 1)];
    let result = (|| {
        for (n, node) in nodes.iter().enumerate() {
            node.ok(&format!(
                "ip netns add c8 && ip link add m8 link exn0 type macvlan mode bridge \
                 && ip link set m8 netns c8 && ip -n c8 addr add 10.2.0.{}/24 dev m8 \
                 && ip -n c8 link set m8 up",
                109 + n
            ))?;
        }
        foreign_traffic(nodes[0], "10.2.0.2")?;
        foreign_traffic(nodes[0], "10.2.0.110")?;
        nodes[1].pings_to("10.2.0.109", 5, "-i 0.1")?;
        ensure!(nodes[1].ethtool("foreign_macs")? >= 1, "nothing is learned");
        // exn forgets the address; the kernel's neighbour table still has it.
        let mac = nodes[0].ok("ip -n c8 -br link show m8 | awk '{print $3}'")?;
        let mac = mac.trim();
        nodes[1].ok(&format!(
            "ip link set exn0 down && ip link set exn0 up \
             && ip neigh replace 10.2.0.109 lladdr {mac} nud permanent dev exn0"
        ))?;
        nodes[1].pings_to("10.2.0.109", 5, "-i 0.1")?;
        ensure!(
            nodes[1].ethtool("tx_flooded_frames")? >= 1,
            "it was not forgotten"
        );
        nodes[1].pings_to("10.2.0.109", 5, "-i 0.1 -s 8000")?;
        nodes[1].ok("ip neigh del 10.2.0.109 dev exn0")?;
        // A container that moves to another node announces itself.
        nodes[0].ok("ip -n c8 link del m8")?;
        nodes[1].ok(&format!(
            "ip -n c8 link set m8 down && ip -n c8 link set m8 address {} && ip -n c8 link set m8 up \
             && ip -n c8 addr add 10.2.0.109/24 dev m8",
            mac
        ))?;
        nodes[1].ok("ip netns exec c8 arping -q -c 2 -U -I m8 10.2.0.109")?;
        nodes[0].pings_to("10.2.0.109", 5, "-i 0.1")
    })();
    for node in nodes {
        node.ok("ip netns del c8 2>/dev/null; true")?;
    }
    result
}

/// With exn0 as a port of a bridge, hosts behind the bridge reach other nodes and are reached.
fn bridged(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let result = from
        .ok("ip netns add c8 && ip link add br8 type bridge && ip link set exn0 master br8 \
             && ip link add v8 mtu 65520 type veth peer name w8 mtu 65520 && ip link set v8 master br8 \
             && ip link set w8 netns c8 && ip -n c8 addr add 10.2.0.109/24 dev w8 \
             && ip -n c8 link set w8 up && ip link set v8 up && ip link set br8 up")
        .and_then(|_| foreign_traffic(from, "10.2.0.2"))
        .and_then(|()| to.pings_to("10.2.0.109", 5, "-i 0.1"));
    from.ok("ip link del br8 2>/dev/null; ip link del v8 2>/dev/null; ip netns del c8 2>/dev/null; true")?;
    result?;
    from.pings(3, "-i 0.1")
}

/// Rate limits with the sizes that docs/exn.md recommends let data through.
fn rate_limits(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    const POLICE: &str = "tc qdisc add dev exn0 handle ffff: ingress && tc filter add dev exn0 \
         parent ffff: matchall action police rate 400mbit burst 64kb mtu 64kb drop";
    for (n, limit) in [
        (
            0,
            "tc qdisc replace dev exn0 root tbf rate 400mbit burst 64kb latency 50ms",
        ),
        (1, POLICE),
    ] {
        from.ok("head -c 3000000 /dev/urandom >/tmp/sent")?;
        to.ok(
            "rm -f /tmp/got; timeout 100 socat -u TCP-LISTEN:7210,reuseaddr CREATE:/tmp/got \
             >/dev/null 2>&1 </dev/null &",
        )?;
        to.until("socat listens", "ss -ltn | grep -q :7210")?;
        let result = node(lab, n).ok(limit).and_then(|_| {
            from.ok("timeout 90 socat -u OPEN:/tmp/sent TCP:10.2.0.2:7210")?;
            to.until("all bytes arrived", "[ $(stat -c %s /tmp/got) = 3000000 ]")
        });
        node(lab, n).ok("tc qdisc del dev exn0 root 2>/dev/null; tc qdisc del dev exn0 ingress 2>/dev/null; true")?;
        result.with_context(|| limit.to_owned())?;
    }
    from.ok("rm -f /tmp/sent")?;
    to.ok("rm -f /tmp/got")?;
    Ok(())
}

/// Prints the IDs of all NAPI instances of an interface, requested by generic netlink like `ynl
/// --family netdev --dump napi-get`.
const NAPI_GET: &str = r#"python3 - <<'END'
import socket, struct
def message(kind, flags, command, attributes):
    body = struct.pack('BBH', command, 1, 0) + attributes
    return struct.pack('IHHII', 16 + len(body), kind, flags, 1, 0) + body
def attribute(kind, data):
    return struct.pack('HH', 4 + len(data), kind) + data + bytes(-len(data) % 4)
def attributes(data):
    while len(data) >= 4:
        size, kind = struct.unpack('HH', data[:4])
        yield kind, data[4:size]
        data = data[(size + 3) & ~3:]
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
s.settimeout(10)
s.bind((0, 0))
def ask(kind, flags, command, data):
    s.send(message(kind, flags, command, data))
    while True:
        packet = s.recv(65536)
        while packet:
            size, kind = struct.unpack('IH', packet[:6])
            if kind == 3:
                return
            if kind == 2:
                raise SystemExit('error %d' % struct.unpack('i', packet[16:20]))
            yield dict(attributes(packet[20:size]))
            packet = packet[(size + 3) & ~3:]
            if not flags & 0x300:
                return
family = next(ask(16, 1, 3, attribute(2, b'netdev\0')))
number = struct.unpack('H', family[1])[0]
index = socket.if_nametoindex('exn0')
for napi in ask(number, 0x301, 11, attribute(1, struct.pack('I', index))):
    print(struct.unpack('I', napi[2])[0])
END"#;

/// The kernel lists all NAPI instances of the interface, which are those that get threads in
/// threaded mode.
fn napi_instances(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    for round in 0..2 {
        let ids = node
            .ok(NAPI_GET)?
            .lines()
            .map(|l| Ok(l.trim().parse()?))
            .collect::<Result<Vec<u32>>>()?;
        node.ok("echo 1 >/sys/class/net/exn0/threaded")?;
        let threads = node.ok("ps -eo comm | sed -n 's,^napi/exn0-,,p' | sort -rn")?;
        node.ok("echo 0 >/sys/class/net/exn0/threaded")?;
        let threads = threads
            .lines()
            .map(|l| Ok(l.trim().parse()?))
            .collect::<Result<Vec<u32>>>()?;
        ensure!(
            !ids.is_empty() && ids == threads,
            "round {round}: {ids:?} are listed, {threads:?} have threads"
        );
        // Setting the interface down and up creates new instances.
        node.ok("ip link set exn0 down && ip link set exn0 up")?;
        node.address_back()?;
        node.back()?;
    }
    Ok(())
}

/// Broadcast frames are not counted as multicast.
fn counters(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let count = || -> Result<[u64; 3]> {
        Ok([
            to.net("multicast")?,
            to.ethtool("rx_multicast_frames")?,
            to.ethtool("rx_broadcast_frames")?,
        ])
    };
    let before = count()?;
    from.ok("arping -q -c 8 -w 20 -I exn0 -b 10.2.0.2")?;
    let arps = count()?;
    ensure!(arps[2] >= before[2] + 8, "{before:?} -> {arps:?}");
    // The kernel sends some multicast frames itself when an interface comes up.
    ensure!(
        arps[0] < before[0] + 8 && arps[1] < before[1] + 8,
        "{before:?} -> {arps:?}"
    );
    let before = arps;
    from.ok("for i in 1 2 3; do ping -q -c 1 -W 1 -I exn0 ff02::1 >/dev/null; done; true")?;
    lab.until("multicasts are counted", PATIENCE, |_| {
        let now = count()?;
        Ok(now[0] >= before[0] + 3 && now[0] - before[0] == now[1] - before[1])
    })?;
    Ok(())
}

/// Number of datagrams that node 0 sends, alternating between two sizes.
const DATAGRAMS: u64 = 2000;

/// Result of one round, with the changes of counters during it.
#[derive(Debug)]
struct Arrived {
    number: u64,
    out_of_order: u64,
    /// Frames that node 1 held back until earlier frames arrived (`held`), and frames that it
    /// delivered although earlier frames were missing (`unordered`).
    held: u64,
    unordered: u64,
    /// Short frames that node 0 announced instead of sending them as messages.
    short: u64,
    /// Frames that node 0 did not send, because node 1 did not fetch for a while.
    refused: u64,
}

impl Arrived {
    /// Returns true if node 1 delivered no frame before an earlier frame. Frames that were not sent
    /// leave no gap in the order.
    fn is_whole(&self) -> bool {
        self.unordered == 0
    }
}

fn by_turns(lab: &Lab, flows: u32) -> Result<Arrived> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let counters = || -> Result<[u64; 4]> {
        Ok([
            to.ethtool("rx_held_frames")?,
            to.ethtool("rx_unordered")?,
            from.ethtool("tx_rdv_short")?,
            from.ethtool("tx_peer_bound")?,
        ])
    };
    let before = counters()?;
    to.ok("rm -f /tmp/order")?;
    let listener = lab.spawn(1, "exec python3 /tmp/guest/order.py listen 7300 /tmp/order")?;
    to.until("the listener is ready", "grep -qx ready /tmp/order")?;
    from.ok(&format!(
        "python3 /tmp/guest/order.py send 10.2.0.2 7300 {DATAGRAMS} {flows}"
    ))?;
    let out = listener.wait(PATIENCE)?;
    ensure!(out.status == 0, "{out:?}");
    let text = to.ok("cat /tmp/order")?;
    let numbers = text.split_whitespace().map(str::parse);
    let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
    ensure!(numbers.len() == 3, "{text:?}");
    let after = counters()?;
    let arrived = Arrived {
        number: numbers[0],
        out_of_order: numbers[1],
        held: after[0] - before[0],
        unordered: after[1] - before[1],
        short: after[2] - before[2],
        refused: after[3] - before[3],
    };
    let sent = DATAGRAMS - arrived.refused;
    ensure!(arrived.number >= sent * 9 / 10, "{arrived:?}");
    Ok(arrived)
}

/// Repeats rounds until no frame was delivered before an earlier frame. On a host that stalls, a
/// GET may take longer than the receiver waits.
fn in_order(lab: &Lab, flows: u32) -> Result<Arrived> {
    const ROUNDS: usize = 6;
    guest::install(lab, 0)?;
    guest::install(lab, 1)?;
    // Resolves the address, because other frames could overtake frames that wait for the address.
    node(lab, 0).pings(2, "-i 0.1")?;
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let arrived = by_turns(lab, flows)?;
        if arrived.is_whole() {
            ensure!(arrived.out_of_order == 0, "out of order: {arrived:?}");
            return Ok(arrived);
        }
        seen.push(arrived);
    }
    bail!("frames were not waited for each time: {seen:#?}")
}

/// Short frames in messages don't overtake earlier announced frames of the same source, whatever
/// their flow. Frames thus arrive in order even from a sender that chooses the path by length
/// alone.
fn order(lab: &Lab) -> Result<()> {
    // The default queueing discipline alternates between flows.
    node(lab, 0).ok("tc qdisc replace dev exn0 root pfifo limit 4000")?;
    let arrived = in_order(lab, 2);
    node(lab, 0).ok("tc qdisc del dev exn0 root")?;
    let arrived = arrived?;
    ensure!(arrived.held > 0, "nothing had to wait: {arrived:?}");
    Ok(())
}

/// The sender keeps each flow in order by itself, for receivers that deliver frames as they arrive.
/// Hardly any frame has to wait at the receiver.
fn flow_order(lab: &Lab) -> Result<()> {
    let arrived = in_order(lab, 1)?;
    ensure!(
        arrived.short > DATAGRAMS / 20,
        "nothing had to be announced: {arrived:?}"
    );
    ensure!(
        arrived.held <= DATAGRAMS / 100,
        "it was for the receiver to order them: {arrived:?}"
    );
    Ok(())
}

/// While a process polls the interface, the NIC does not interrupt. The process sends no answers,
/// because sending causes work that interrupts the polling.
fn busy_poll(lab: &Lab) -> Result<()> {
    const DATAGRAMS: u64 = 400;
    for n in 0..2 {
        guest::install(lab, n)?;
    }
    let (from, to) = (node(lab, 0), node(lab, 1));
    let program = guest::program("net");
    let interrupts = || -> Result<u64> {
        let before = to.interrupts()?;
        from.ok(&format!("{program} pace 10.2.0.2 7401 {DATAGRAMS}"))?;
        Ok(to.interrupts()? - before)
    };
    to.ok("rm -f /tmp/busy")?;
    let listener = lab.spawn(1, &format!("exec {program} busy 7400 /tmp/busy 12"))?;
    to.until("the socket is bound", "ss -lun | grep -q :7401")?;
    let usual = interrupts()?;
    ensure!(
        usual >= DATAGRAMS / 4,
        "{usual} interrupts for {DATAGRAMS} datagrams"
    );
    from.ok(&format!("{program} pace 10.2.0.2 7400 1"))?;
    to.until("it polls", "grep -qx ready /tmp/busy")?;
    let busy = interrupts();
    listener.stop();
    let busy = busy?;
    ensure!(
        busy <= usual / 2,
        "{busy} interrupts for {DATAGRAMS} datagrams in a busy loop, {usual} without"
    );
    Ok(())
}

/// Frames that node 0 sent in a round by netpoll, and their outcome.
#[derive(Debug, Default)]
struct Polled {
    arrived: u64,
    /// Frames that exn counted as lost.
    lost: u64,
    /// Lost frames that node 0 did not send, because node 1 did not fetch for a while.
    refused: u64,
}

impl Polled {
    /// Returns true if each sent frame arrived or is counted as lost. At most a tenth of the frames
    /// may be lost.
    fn are_all(&self, frames: u64) -> bool {
        self.arrived + self.lost >= frames
            && (self.refused > 0 || self.arrived >= frames - frames / 10)
    }
}

/// Repeats `f` with increasing numbers until node 0 has sent every frame, because on a busy host a
/// node may stall for longer than its peer waits. Then repeats `f` with a NIC of node 0 that drops
/// every 50th command and all later commands until the driver restarts it (HW §8). The driver must
/// recover the dropped commands.
fn also_with_drops(lab: &Lab, f: impl Fn(u32) -> Result<Polled>) -> Result<()> {
    const ROUNDS: u32 = 6;
    let node = node(lab, 0);
    let whole = |first: u32| {
        let mut seen = Vec::new();
        for round in first..first + ROUNDS {
            lab.until("node1 has fetched all", PATIENCE, |_| {
                Ok(node.ethtool("tx_rdv_in_flight")? == 0)
            })?;
            let polled = f(round)?;
            if polled.refused == 0 {
                return Ok(());
            }
            seen.push(polled);
        }
        bail!("frames were refused each time: {seen:#?}")
    };
    whole(0)?;
    let before = node.port_counter("replayed")?;
    lab.fault(&["retry", "0", "--every", "50"])?;
    let result = whole(ROUNDS);
    lab.fault(&["retry", "0", "--every", "0"])?;
    result.context("with drops")?;
    ensure!(
        node.port_counter("replayed")? > before,
        "nothing was dropped"
    );
    Ok(())
}

/// Returns the number of frames that node 0 counted as not sent.
fn unsent(lab: &Lab) -> Result<u64> {
    let node = node(lab, 0);
    Ok(node.net("tx_dropped")? + node.net("tx_errors")?)
}

/// Netpoll sends more frames than may be in flight, with interrupts disabled on the only CPU.
/// Netpoll itself must restart the stopped queue. Frames that arrive during that time are delivered
/// afterwards.
fn netpoll(lab: &Lab) -> Result<()> {
    also_with_drops(lab, |_| burst(lab))
}

fn burst(lab: &Lab) -> Result<Polled> {
    const FRAMES: u64 = 600;
    let (from, to) = (node(lab, 0), node(lab, 1));
    // The network stack of node 1 drops and counts the frames.
    let counts = || {
        Ok::<_, anyhow::Error>([
            to.net("rx_dropped")?,
            unsent(lab)?,
            from.ethtool("tx_peer_bound")?,
        ])
    };
    let before = counts()?;
    // The ping makes node 0 receive frames during the burst. Node 1 does not send all of them,
    // because node 0 does not fetch for a while.
    let load = lab.spawn(1, "ping -q -i 0.01 -s 1400 -c 200 -W 20 node0")?;
    let loaded = from.ok(&format!("modprobe netpoll_burst frames={FRAMES}"));
    let sent = from.ok("cat /sys/module/netpoll_burst/parameters/sent; rmmod netpoll_burst");
    loaded?;
    let sent: u64 = sent?.trim().parse().context("no number")?;
    ensure!(sent == FRAMES, "{sent} of {FRAMES} frames were sent");
    let out = load.wait(PATIENCE)?;
    ensure!(!out.stdout.contains(" 0 received"), "{out:?}");
    // The clock jumps when interrupts are enabled again. Frames that have not arrived by then may
    // count as lost, because their time-out has passed.
    let mut polled = Polled::default();
    let all = lab.until("all frames arrive", PATIENCE, |_| {
        let now = counts()?;
        polled = Polled {
            arrived: now[0] - before[0],
            lost: now[1] - before[1],
            refused: now[2] - before[2],
        };
        Ok(polled.are_all(FRAMES))
    });
    all.with_context(|| format!("{polled:?}; {}", from.losses()))?;
    from.pings(20, "-i 0.02 -s 3000")?;
    Ok(polled)
}

/// The network console delivers more lines at once than frames may be in flight.
fn netconsole(lab: &Lab) -> Result<()> {
    let (from, to) = (node(lab, 0), node(lab, 1));
    let before = from.ethtool("tx_watchdog")?;
    guest::install(lab, 1)?;
    to.ok("rm -f /tmp/lines")?;
    let program = guest::program("lines");
    let listener = lab.spawn(1, &format!("exec {program} 6666 /tmp/lines"))?;
    to.until_file("/tmp/lines")?;
    // The module parameters name the receiver's MAC address, because netpoll does not resolve it.
    let result = from
        .ok("modprobe netconsole \
             netconsole=6665@10.2.0.1/exn0,6666@10.2.0.2/2e:87:04:07:00:01")
        .and_then(|_| also_with_drops(lab, |round| lines(lab, round)));
    from.ok("modprobe -r netconsole; rm -f /tmp/lines")?;
    listener.stop();
    result?;
    ensure!(from.ethtool("tx_watchdog")? == before, "the queue stalled");
    from.pings(20, "-i 0.02 -s 3000")
}

fn lines(lab: &Lab, round: u32) -> Result<Polled> {
    const LINES: u64 = 600;
    let (from, to) = (node(lab, 0), node(lab, 1));
    // The console first sends the kernel log so far. The log is a ring buffer that a thread
    // empties. It holds all lines of a round.
    lab.until("the log so far is sent", PATIENCE, |_| {
        from.ok(&format!("echo '<4>so far {round}' >/dev/kmsg"))?;
        to.is_so(&format!("grep -q 'so far {round}' /tmp/lines"))
    })?;
    let counts = || {
        let mut lost = unsent(lab)?;
        for name in ["rx_dropped", "rx_errors", "rx_missed_errors"] {
            lost += to.net(name)?;
        }
        Ok::<_, anyhow::Error>([lost, from.ethtool("tx_peer_bound")?])
    };
    let overflows = to.snmp("Udp", "RcvbufErrors")?;
    let before = counts()?;
    from.ok(&format!(
        "line=$(head -c 100 /dev/zero | tr '\\0' x); \
         for i in $(seq {LINES}); do echo \"<4>line {round}-$i $line\"; done >/tmp/lines; \
         while read -r line; do echo \"$line\" >/dev/kmsg; done </tmp/lines"
    ))?;
    let mut polled = Polled::default();
    let all = lab.until("all lines arrive", PATIENCE, |_| {
        let text = to.ok(&format!(
            "grep -o 'line {round}-[0-9]* x' /tmp/lines | sort -u | wc -l"
        ))?;
        let now = counts()?;
        polled = Polled {
            arrived: text.trim().parse().context("no number")?,
            lost: now[0] - before[0],
            refused: now[1] - before[1],
        };
        Ok(polled.are_all(LINES))
    });
    all.with_context(|| {
        let (a, b) = (from.losses(), to.losses());
        format!("{polled:?}; node0: {a}; node1: {b}")
    })?;
    ensure!(
        to.snmp("Udp", "RcvbufErrors")? == overflows,
        "the socket overflowed"
    );
    Ok(polled)
}
