//! The interface as the network stack of the kernel sees it.

use super::guest;
use super::node::node;
use super::on_pair;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Result};

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("stack::vlan_full_frames", vlan_full_frames),
        on_pair("stack::napi_instances", napi_instances),
        on_pair("stack::counters", counters),
        on_pair("stack::order", order),
    ]
}

/// A tag does not count for the MTU: full frames pass with it.
fn vlan_full_frames(lab: &Lab) -> Result<()> {
    let nodes = [node(lab, 0), node(lab, 1)];
    let result = (|| {
        for (n, node) in nodes.iter().enumerate() {
            node.ok(&format!(
                "ip link add link exn0 name exn0.7 type vlan id 7 && ip addr add 10.77.0.{}/24 dev exn0.7 && ip link set exn0.7 up",
                n + 1
            ))?;
        }
        let mtu = nodes[0].ok("cat /sys/class/net/exn0.7/mtu")?;
        ensure!(mtu.trim() == "65536", "{mtu}");
        // A header of 20 bytes and one of 8.
        for bytes in [56, 1472, 65_507] {
            let target = if bytes == 65_507 { "-M dont" } else { "-M do" };
            nodes[0].pings_to("10.77.0.2", 5, &format!("-i 0.05 -s {bytes} {target}"))?;
        }
        let before = nodes[0].ethtool("tx_long")?;
        nodes[0].ok("head -c 6000000 /dev/urandom >/tmp/sent")?;
        nodes[1].ok("rm -f /tmp/got; timeout 60 socat -u TCP-LISTEN:7200 CREATE:/tmp/got >/dev/null 2>&1 </dev/null &")?;
        nodes[1].until("socat listens", "ss -ltn | grep -q :7200")?;
        nodes[0].ok("timeout 60 socat -u OPEN:/tmp/sent TCP:10.77.0.2:7200")?;
        nodes[1].until("all of it is there", "[ $(stat -c %s /tmp/got) = 6000000 ]")?;
        let sums = [
            nodes[0].ok("sha256sum </tmp/sent")?,
            nodes[1].ok("sha256sum </tmp/got")?,
        ];
        ensure!(sums[0] == sums[1], "{sums:?}");
        ensure!(
            nodes[0].ethtool("tx_long")? == before,
            "frames were too long"
        );
        Ok(())
    })();
    for node in nodes {
        node.ok("ip link del exn0.7 2>/dev/null; rm -f /tmp/sent /tmp/got")?;
    }
    result
}

/// Asks the kernel for all NAPI instances of an interface by generic netlink, as `ynl --family netdev --dump napi-get` does, and prints their IDs.
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

/// The kernel lists the interface's only NAPI instance.
fn napi_instances(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    for round in 0..2 {
        let ids = node
            .ok(NAPI_GET)?
            .lines()
            .map(|l| Ok(l.trim().parse()?))
            .collect::<Result<Vec<u32>>>()?;
        ensure!(ids.len() == 1, "round {round}: {ids:?}");
        // It gets a new one.
        node.ok("ip link set exn0 down && ip link set exn0 up")?;
        node.address_back()?;
        node.back()?;
    }
    Ok(())
}

/// Broadcasts are no multicasts.
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
    // The kernel sends some of its own, when an interface has come up.
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

/// Datagrams that go in a message don't overtake those before them that are announced.
fn order(lab: &Lab) -> Result<()> {
    const COUNT: u64 = 2000;
    const ROUNDS: usize = 4;
    guest::install(lab, 0)?;
    guest::install(lab, 1)?;
    let (from, to) = (node(lab, 0), node(lab, 1));
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let counters = || -> Result<[u64; 2]> {
            Ok([to.ethtool("rx_held_frames")?, to.ethtool("rx_unordered")?])
        };
        let before = counters()?;
        to.ok("rm -f /tmp/order")?;
        let listener = lab.spawn(1, "exec python3 /tmp/guest/order.py listen 7300 /tmp/order")?;
        to.until("the listener is ready", "grep -qx ready /tmp/order")?;
        from.ok(&format!(
            "python3 /tmp/guest/order.py send 10.2.0.2 7300 {COUNT}"
        ))?;
        let out = listener.wait(PATIENCE)?;
        ensure!(out.status == 0, "{out:?}");
        let text = to.ok("cat /tmp/order")?;
        let numbers = text.split_whitespace().map(str::parse);
        let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
        let after = counters()?;
        let [held, unordered] = [after[0] - before[0], after[1] - before[1]];
        seen.push(format!(
            "{text:?} (number, out of order, distance), held {held}, not waited for {unordered}"
        ));
        ensure!(
            numbers.len() == 3 && numbers[0] >= COUNT * 9 / 10,
            "{seen:#?}"
        );
        // A fetch that took longer than the driver waits, on a machine that stood still.
        if unordered == 0 {
            ensure!(numbers[1] == 0, "out of order: {seen:#?}");
            ensure!(held > 0, "nothing had to wait: {seen:#?}");
            return Ok(());
        }
    }
    bail!("frames were not waited for each time: {seen:#?}")
}
