//! QEMU: its command line and its control socket.

use crate::channel::port_socket;
use crate::devices;
use crate::initrd::{rootfs, Kernel};
use crate::insns;
use crate::spec::Spec;
use crate::state::Paths;
use anyhow::{bail, ensure, Context, Result};
use lab_proto::{port_name, PORTS};
use serde_json::{json, Value};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time for QEMU's answer to a control command.
const QMP_PATIENCE: Duration = Duration::from_secs(20);
/// Timeout of a guest's access to the NIC, in ms. A shorter timeout would desynchronise QEMU and
/// the emulator permanently while the machine is busy.
const NIC_TIMEOUT_MS: u64 = 86_400_000;

/// Parameters of one node's QEMU.
pub struct Node<'a> {
    /// Description of the lab.
    pub spec: &'a Spec,
    /// Number of the node.
    pub index: usize,
    /// Directory of the node.
    pub dir: &'a Path,
    /// Kernel to boot.
    pub kernel: &'a Kernel,
    /// Initramfs, from [`crate::initrd::make`].
    pub initrd: &'a Path,
    /// Sockets of the node's NICs.
    pub nics: &'a [PathBuf],
}

/// CPU model: everything that QEMU emulates except fast `rep movsb` and `rep stosb`, which TCG
/// executes byte by byte. Without these flags the kernel copies eight bytes at a time, which halves
/// the CPU time of TCP over EXN.
const PROCESSOR: &str = "max,-erms,-fsrm";

/// Returns QEMU's accelerators. KVM is among them only if the CPU supports it, because `/dev/kvm`
/// may exist without CPU support.
fn accelerator() -> &'static str {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = cpu
        .lines()
        .filter(|l| l.starts_with("flags"))
        .any(|l| l.split_whitespace().any(|f| f == "vmx" || f == "svm"));
    // QEMU uses the second accelerator if the first does not work.
    if able
        && std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
    {
        "kvm:tcg"
    } else {
        "tcg"
    }
}

/// Returns the command line of a node's QEMU.
pub fn command(paths: &Paths, node: &Node<'_>) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut arg = |a: &str| args.push(a.into());
    let Node { spec, dir, .. } = node;
    let file = |name: &str| dir.join(name).display().to_string();
    let mem = spec.memory_mib;
    arg("qemu-system-x86_64");
    for a in [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-name",
    ] {
        arg(a);
    }
    arg(&format!("{}-node{}", spec.name, node.index));
    arg("-machine");
    arg(&format!(
        "q35,accel={},vmport=off{}",
        // Only TCG can count instructions.
        if spec.count_instructions {
            "tcg"
        } else {
            accelerator()
        },
        if spec.numa { "" } else { ",memory-backend=mem" }
    ));
    for a in ["-cpu", PROCESSOR, "-smp"] {
        arg(a);
    }
    // The kernel warns if NUMA nodes share a socket.
    let sockets = if spec.numa { ",sockets=2" } else { "" };
    arg(&format!("{}{sockets}", spec.cpus));
    arg("-m");
    arg(&format!("{mem}M"));
    // The emulator reads and writes the node's memory through this file.
    let backend = |id, size| format!("memory-backend-memfd,id={id},size={size}M,share=on");
    if spec.numa {
        let (half, cpus) = (spec.cpus / 2, spec.cpus);
        for (n, size, first, last) in [
            (0, mem / 2, 0, half - 1),
            (1, mem - mem / 2, half, cpus - 1),
        ] {
            arg("-object");
            arg(&backend(format!("mem{n}"), size));
            arg("-numa");
            arg(&format!(
                "node,nodeid={n},memdev=mem{n},cpus={first}-{last}"
            ));
        }
    } else {
        arg("-object");
        arg(&backend("mem".to_owned(), mem));
    }
    arg("-kernel");
    arg(&node.kernel.image.display().to_string());
    arg("-initrd");
    arg(&node.initrd.display().to_string());
    arg("-append");
    arg(&kernel_parameters(node));
    arg("-chardev");
    arg(&format!(
        "file,id=console,path={},append=on",
        file("console.log")
    ));
    arg("-serial");
    arg("chardev:console");
    arg("-qmp");
    arg(&format!("unix:{},server=on,wait=off", file("qmp.sock")));
    if spec.has_iommu(node.index) {
        // The IOMMU precedes the devices that it translates for. In caching mode the guest reports
        // every mapping to QEMU, which forwards it to the emulator.
        arg("-device");
        arg("intel-iommu,caching-mode=on,intremap=off");
    }
    // A kernel panic ends QEMU, so that all clients of the node notice it immediately.
    for a in ["-device", "pvpanic-pci", "-action", "panic=exit-failure"] {
        arg(a);
    }
    for (id, path) in [
        ("rootfs", rootfs(paths)),
        ("modules", node.kernel.modules.clone()),
    ] {
        arg("-drive");
        arg(&format!(
            "if=none,id={id},format=raw,readonly=on,file.locking=off,file={}",
            path.display()
        ));
        arg("-device");
        arg(&format!("virtio-blk-pci,drive={id},serial={id}"));
    }
    arg("-device");
    arg(&format!("virtio-serial-pci,max_ports={}", PORTS + 1));
    for i in 0..PORTS {
        arg("-chardev");
        arg(&format!(
            "socket,id=p{i},server=on,wait=off,path={}",
            port_socket(dir, i).display()
        ));
        arg("-device");
        arg(&format!(
            "virtserialport,chardev=p{i},nr={},name={}",
            i + 1,
            port_name(i)
        ));
    }
    let bus = if spec.numa && !node.nics.is_empty() {
        arg("-device");
        arg(&format!(
            "pxb-pcie,id=far,bus=pcie.0,bus_nr={FAR_BUS},numa_node=1"
        ));
        "far"
    } else {
        "pcie.0"
    };
    for (k, socket) in node.nics.iter().enumerate() {
        arg("-device");
        arg(&format!(
            "pcie-root-port,id=rp{k},bus={bus},chassis={0},slot={0}",
            k + 1
        ));
        arg("-device");
        // The socket is an object, which only the JSON form of `-device` can express.
        let device = json!({
            "driver": "vfio-user-pci", "id": format!("nic{k}"), "bus": format!("rp{k}"), "x-msg-timeout": NIC_TIMEOUT_MS,
            "socket": {"type": "unix", "path": socket},
        });
        arg(&device.to_string());
    }
    devices::arguments(&spec.devices, node.index, dir)
        .iter()
        .for_each(|a| arg(a));
    if spec.bench_nics && node.index < 2 {
        for (kind, model) in [("vio", "virtio-net-pci"), ("e1k", "e1000e")] {
            let socket = dir.with_file_name(format!("{kind}.sock"));
            let role = if node.index == 0 {
                "server=on"
            } else {
                "server=off,reconnect-ms=200"
            };
            arg("-netdev");
            arg(&format!(
                "stream,id={kind},{role},addr.type=unix,addr.path={}",
                socket.display()
            ));
            arg("-device");
            arg(&format!(
                "{model},netdev={kind},romfile=,mac=52:54:00:00:{:02x}:{:02x}",
                if kind == "vio" { 3 } else { 4 },
                node.index + 1
            ));
        }
    }
    if spec.count_instructions {
        // The node's clock advances by 8 ns per instruction, and with the host's clock while the
        // node is idle. Ticks per instruction are therefore equal on all machines.
        arg("-icount");
        arg("shift=3");
        arg("-plugin");
        let plugin = paths.bin.join(insns::PLUGIN);
        arg(&format!(
            "{},socket={}",
            plugin.display(),
            insns::socket(dir).display()
        ));
    }
    spec.qemu_args.iter().for_each(|a| arg(a));
    args
}

fn kernel_parameters(node: &Node<'_>) -> String {
    let spec = node.spec;
    let mut words = vec![
        "console=ttyS0".to_owned(),
        // The console log contains all messages, because tests scan it even if the node is dead.
        "ignore_loglevel".into(),
        "printk.devkmsg=on".into(),
        // Mitigations have no use under emulation and are slow.
        "mitigations=off".into(),
        "nokaslr".into(),
        // A busy machine stops an emulated CPU for seconds, which is not a defect of the guest.
        "watchdog_thresh=60".into(),
        "rcupdate.rcu_cpu_stall_timeout=120".into(),
        // While the kernel still uses jiffies, its check of the TSC may wait for a CPU that waits
        // for the checking CPU in stop_machine(). The check's time limit is in jiffies, which do
        // not advance then (watchdog_check_skew() of Linux 7.3). Slow nodes with two CPUs hung for
        // this reason.
        "tsc=nowatchdog".into(),
        // A timer without an interrupt within ten ticks means a busy host, but the kernel would
        // panic.
        "no_timer_check".into(),
        format!("extoll.slow={}", spec.slow()),
        format!("lab.node={}", node.index),
        format!("lab.nodes={}", spec.nodes),
        format!("lab.nics={}", spec.nics),
        format!("lab.bringup={}", spec.bring_up.word()),
        format!("lab.sshd={}", u8::from(spec.sshd)),
        format!("lab.bench={}", u8::from(spec.bench_nics)),
    ];
    if spec.has_iommu(node.index) {
        words.extend(["intel_iommu=on", "iommu.passthrough=0", "iommu.strict=1"].map(Into::into));
    }
    words.extend(spec.append.iter().cloned());
    words.join(" ")
}

/// First bus of the second NUMA node, above the buses of the first node's root ports.
const FAR_BUS: u32 = 64;

/// Runs a command on a node's QEMU control socket.
///
/// # Errors
/// When QEMU has ended, does not answer, or refuses the command.
pub fn control(dir: &Path, command: &str, arguments: Value) -> Result<Value> {
    let path = dir.join("qmp.sock");
    let socket = UnixStream::connect(&path)
        .with_context(|| format!("cannot connect to {}", path.display()))?;
    socket.set_read_timeout(Some(QMP_PATIENCE))?;
    socket.set_write_timeout(Some(QMP_PATIENCE))?;
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let mut next = || -> Result<Value> {
        let line = lines
            .next()
            .context("QEMU closed its control socket")?
            .context("no answer on QEMU's control socket")?;
        Ok(serde_json::from_str(&line)?)
    };
    ensure!(
        next()?.get("QMP").is_some(),
        "{} is not a QEMU control socket",
        path.display()
    );
    for request in [
        json!({"execute": "qmp_capabilities"}),
        json!({"execute": command, "arguments": arguments}),
    ] {
        (&socket).write_all(format!("{request}\n").as_bytes())?;
        loop {
            let answer = next()?;
            if let Some(error) = answer.get("error") {
                bail!(
                    "QEMU refused {command}: {}",
                    error["desc"].as_str().unwrap_or("no reason given")
                );
            }
            // Skips events that arrive before the answer.
            if let Some(value) = answer.get("return") {
                if request["execute"] == command {
                    return Ok(value.clone());
                }
                break;
            }
        }
    }
    bail!("no answer to {command}")
}

/// Returns one line with three samples of the instruction pointer of each of the node's CPUs, or an
/// empty string if QEMU does not answer. Nodes boot with `nokaslr`, so kernel addresses are those
/// in `/proc/kallsyms` of any node with the same kernel.
pub fn processors(dir: &Path) -> String {
    let registers = || -> Result<Vec<String>> {
        let command = json!({"command-line": "info registers -a"});
        let answer = control(dir, "human-monitor-command", command)?;
        Ok(instruction_pointers(answer.as_str().unwrap_or_default()))
    };
    let mut seen: Vec<Vec<String>> = Vec::new();
    for _ in 0..3 {
        match registers() {
            Ok(now) if !now.is_empty() => seen.push(now),
            _ => break,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let count = seen.iter().map(Vec::len).min().unwrap_or(0);
    let of = |cpu: usize| {
        let places: Vec<_> = seen.iter().map(|now| now[cpu].as_str()).collect();
        format!("CPU {cpu} at {}", places.join(", "))
    };
    (0..count).map(of).collect::<Vec<_>>().join("; ")
}

fn instruction_pointers(registers: &str) -> Vec<String> {
    let after = registers.split("RIP=").skip(1);
    after
        .filter_map(|text| text.split_whitespace().next())
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_pointers_are_found() {
        let text = "\r\nCPU#0\r\nRAX=01 RBX=02\r\nRIP=ffffffff81000123 RFL=00000246 [---Z-P-]\r\n\r\nCPU#1\r\nRIP=0000000000401000 RFL=2\r\n";
        assert_eq!(
            instruction_pointers(text),
            ["ffffffff81000123", "0000000000401000"]
        );
        assert!(instruction_pointers("nothing").is_empty());
        assert_eq!(processors(Path::new("/nowhere")), "");
    }

    #[test]
    fn the_command_line_has_one_root_port_per_nic() {
        let spec = Spec {
            nics: 2,
            bench_nics: true,
            iommu: true,
            ..Spec::default()
        };
        let kernel_dir = std::env::temp_dir().join(format!("lab-kernel-{}", std::process::id()));
        std::fs::create_dir_all(kernel_dir.join("k")).unwrap();
        std::fs::write(kernel_dir.join("k/abi"), "7.3\n").unwrap();
        let paths = Paths {
            guest: kernel_dir.clone(),
            ..Paths::default()
        };
        let kernel = Kernel::find(&paths, "k").unwrap();
        assert_eq!(kernel.abi, "7.3");
        let nics = ["/x/nic2.sock".into(), "/x/nic3.sock".into()];
        let node = Node {
            spec: &spec,
            index: 1,
            dir: Path::new("/x/node1"),
            kernel: &kernel,
            initrd: Path::new("/i"),
            nics: &nics,
        };
        let all: Vec<String> = command(&paths, &node)
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        assert_eq!(
            all.iter()
                .filter(|a| a.starts_with("pcie-root-port"))
                .count(),
            2
        );
        let device: Value =
            serde_json::from_str(all.iter().find(|a| a.starts_with('{')).unwrap()).unwrap();
        assert_eq!(device["socket"]["path"], "/x/nic2.sock");
        assert_eq!(device["x-msg-timeout"], 86_400_000);
        assert!(all
            .iter()
            .any(|a| a.contains("lab.node=1") && a.contains("lab.bringup=net")));
        let position = |start: &str| all.iter().position(|a| a.starts_with(start));
        assert!(position("intel-iommu").is_some_and(|at| Some(at) < position("virtio-blk-pci")));
        assert!(all.iter().any(|a| a.contains("iommu.strict=1")));
        let other = Spec {
            iommu_nodes: vec![0],
            ..spec.clone()
        };
        assert_eq!([0, 1].map(|n| other.has_iommu(n)), [true, false]);
        let node = Node {
            spec: &other,
            ..node
        };
        let without = command(&paths, &node);
        assert!(!without
            .iter()
            .any(|a| a.to_string_lossy().contains("iommu")));
        assert!(all.iter().any(|a| a
            == "stream,id=vio,server=off,reconnect-ms=200,addr.type=unix,addr.path=/x/vio.sock"));
        assert!(all.iter().any(|a| a.contains(",memory-backend=mem")));
        assert!(!all.iter().any(|a| a == "-plugin"));
        let spec = Spec {
            numa: true,
            count_instructions: true,
            cpus: 4,
            memory_mib: 1025,
            ..spec.clone()
        };
        let node = Node {
            spec: &spec,
            ..node
        };
        let all: Vec<String> = command(&paths, &node)
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        for want in [
            "4,sockets=2",
            "memory-backend-memfd,id=mem0,size=512M,share=on",
            "node,nodeid=0,memdev=mem0,cpus=0-1",
            "memory-backend-memfd,id=mem1,size=513M,share=on",
            "node,nodeid=1,memdev=mem1,cpus=2-3",
            "pxb-pcie,id=far,bus=pcie.0,bus_nr=64,numa_node=1",
            "pcie-root-port,id=rp1,bus=far,chassis=2,slot=2",
        ] {
            assert!(all.iter().any(|a| a == want), "no {want} in {all:#?}");
        }
        assert!(!all.iter().any(|a| a.contains("memory-backend=mem,")));
        let plugin = all.iter().position(|a| a == "-plugin").unwrap();
        assert!(all[plugin + 1].ends_with("/libextoll_insns.so,socket=/x/node1/insns.sock"));
        assert!(all.iter().any(|a| a == "q35,accel=tcg,vmport=off"));
        std::fs::remove_dir_all(kernel_dir).unwrap();
    }
}
