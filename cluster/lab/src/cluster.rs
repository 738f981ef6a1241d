//! A running lab and its nodes.

use crate::exec::{Command, Output};
use crate::initrd::{self, Kernel};
use crate::insns::{self, Instructions};
use crate::spec::Spec;
use crate::state::{now, tail, token, LabDir, Paths, Record};
use crate::ui::Progress;
use crate::{emu, logscan, proc, qemu};
use anyhow::{anyhow, bail, ensure, Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Number of console lines shown when a node fails.
const TAIL: usize = 25;
/// Name of the file that marks the directory of a lab that is being ended.
const ENDING: &str = "ending";
/// Maximum time for a short command in a node.
const PING: Duration = Duration::from_secs(5);

/// State of a node, as far as a quick check shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// QEMU does not run.
    Off,
    /// QEMU runs, but the agent did not answer in time.
    Silent,
    /// The agent answers, but the bring-up has not finished.
    Booting,
    /// The bring-up has succeeded.
    Ready,
    /// The node's bring-up failed.
    Failed,
}

/// A node of a lab.
#[derive(Clone, Debug)]
pub struct Node {
    index: usize,
    dir: PathBuf,
}

impl Node {
    /// Returns the node's name, which is also in its `/etc/hosts`.
    pub fn name(&self) -> String {
        format!("node{}", self.index)
    }

    /// Returns the node's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the node's directory on the host.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the console log: all kernel output since the lab was started, one boot
    /// after the other.
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Returns the number of instructions that the node has executed since it was switched on.
    ///
    /// # Errors
    /// When the lab does not count them ([`Spec::count_instructions`]).
    pub fn instructions(&self) -> Result<Instructions> {
        insns::read(&self.dir).with_context(|| self.name())
    }

    /// Runs a program to its end, for up to a minute. [`Command`] has more options.
    ///
    /// # Errors
    /// When the node does not answer or the time runs out. A non-zero exit status is not an error.
    pub fn exec<S: AsRef<std::ffi::OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Output> {
        Command::new(argv)
            .timeout(Duration::from_secs(60))
            .run(self)
    }

    /// Runs a shell script that must succeed within a minute. Returns its standard output.
    ///
    /// # Errors
    /// When the script fails or the node does not answer.
    pub fn sh(&self, script: &str) -> Result<String> {
        let out = Command::sh(script)
            .timeout(Duration::from_secs(60))
            .run(self)?;
        Ok(out
            .ok()
            .with_context(|| format!("{}: {script}", self.name()))?
            .text())
    }

    /// Waits until the node's bring-up has finished. The agent may take all of `patience` to
    /// appear.
    ///
    /// # Errors
    /// When the bring-up does not succeed in time. The error contains the reason and the end of the
    /// console.
    pub fn wait_ready(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        // The command polls inside the node. Connecting to its agent may take most of the time.
        let result = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match ready(left).run(self) {
                Ok(out) if out.text().trim() == "ok" => return Ok(()),
                Ok(out) => {
                    break Err(anyhow!(
                        "its bring-up failed: {}{}",
                        out.text().trim(),
                        out.error_text().trim()
                    ))
                }
                // A reboot in progress may interrupt the first attempt.
                Err(e) if format!("{e:#}").contains("restarted") && Instant::now() < deadline => {}
                Err(e) => break Err(e),
            }
        };
        result.map_err(|e: anyhow::Error| anyhow!(self.failure(&format!("{e:#}"))))
    }

    /// Returns the first defect that the current kernel reported, else the end of the console.
    pub fn last_words(&self) -> String {
        let log = self.log_since(0);
        // The console log contains all boots. Only the last boot counts.
        let boot = log.rfind("] Linux version ").map_or("", |at| &log[at..]);
        match logscan::first_defect(boot, &[]) {
            Some(report) => report,
            None => tail(&self.console(), TAIL),
        }
    }

    /// Returns a report of the failed node. Its first line is a summary, because some callers show
    /// only that line.
    fn failure(&self, why: &str) -> String {
        let qemu = tail(&self.dir.join("qemu.log"), 5);
        let console = self.last_words();
        let last = console.lines().rfind(|l| !l.trim().is_empty());
        let mut text = format!(
            "{} did not come up: {why}; the last line of its console: {:?}",
            self.name(),
            last.unwrap_or_default().trim()
        );
        let processors = crate::qemu::processors(&self.dir);
        if !processors.is_empty() {
            text += &format!("\n-- {processors}");
        }
        if !qemu.is_empty() {
            text += &format!("\n-- QEMU says:\n{qemu}");
        }
        if !console.is_empty() {
            text += &format!("\n-- end of its console:\n{console}\n--");
        }
        text
    }

    /// Returns the current size of the console log in bytes, for [`Node::log_since`].
    pub fn log_mark(&self) -> u64 {
        std::fs::metadata(self.console()).map_or(0, |m| m.len())
    }

    /// Returns the console log from byte offset `mark` on.
    pub fn log_since(&self, mark: u64) -> String {
        let all = std::fs::read(self.console()).unwrap_or_default();
        let from = usize::try_from(mark).unwrap_or(usize::MAX).min(all.len());
        String::from_utf8_lossy(&all[from..]).replace('\r', "")
    }

    /// Fails if the kernel reported a defect after byte offset `mark` of the log (0: since the lab
    /// was started).
    ///
    /// # Errors
    /// The error contains the report and some lines around it.
    pub fn assert_clean_log_since(&self, mark: u64) -> Result<()> {
        match logscan::first_defect(&self.log_since(mark), &[]) {
            None => Ok(()),
            Some(report) => bail!("the kernel log of {} is not clean:\n{report}", self.name()),
        }
    }
}

/// State of a lab as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// The lab is up.
    Up,
    /// `lab up` still runs, or was killed before it finished.
    Starting,
    /// The emulator has ended unexpectedly. Its NICs are lost, and nodes that used them may have
    /// ended, too.
    EmulatorDied,
    /// No process of the lab runs.
    Dead,
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Starting => "starting or interrupted",
            Self::EmulatorDied => "emulator died",
            Self::Dead => "dead",
        })
    }
}

/// Interval at which a boot checks that all processes of the lab are running.
const LOOK: Duration = Duration::from_millis(300);

/// A running lab, or the files of one that has ended.
#[derive(Clone, Debug)]
pub struct Cluster {
    paths: Paths,
    dir: LabDir,
    record: Record,
}

impl Cluster {
    /// Starts a lab and waits until every node is ready. Removes the remains of a killed lab of the
    /// same name first.
    ///
    /// # Errors
    /// When a lab of this name is up, a file or program is missing, or a node does not come up. All
    /// processes are then ended; the logs stay.
    pub fn up(paths: &Paths, spec: Spec, progress: &mut dyn Progress) -> Result<Self> {
        let spec = spec.settle()?;
        let dir = LabDir::new(paths, &spec.name)?;
        let _lock = dir.lock()?;
        if let Ok(Some(old)) = dir.record() {
            let old = Self {
                paths: paths.clone(),
                dir: dir.clone(),
                record: old,
            };
            match old.health() {
                Health::Up => bail!(
                    "lab '{0}' is already up ({1} nodes); ./lab down --name {0} ends it",
                    spec.name,
                    old.spec().nodes
                ),
                Health::EmulatorDied => bail!("{}", old.emulator_report()),
                Health::Starting | Health::Dead => {}
            }
        }
        let ended = dir.wipe()?;
        if ended > 0 {
            progress.news(&format!(
                "ended {ended} processes that an interrupted lab left behind"
            ));
        }
        let kernel = Kernel::find(paths, &spec.kernel)?;
        let initrd = initrd::make(paths, &kernel, spec.bring_up)?;
        std::fs::create_dir_all(&dir.path)
            .with_context(|| format!("cannot create {}", dir.path.display()))?;
        let record = Record {
            spec,
            token: token(),
            started: now(),
            ready: false,
        };
        // The record is saved before the first process starts, because processes are found by its
        // token.
        dir.save(&record)?;
        let mut cluster = Self {
            paths: paths.clone(),
            dir,
            record,
        };
        match cluster.boot(&kernel, &initrd, progress) {
            Ok(()) => {
                cluster.record.ready = true;
                cluster.dir.save(&cluster.record)?;
                Ok(cluster)
            }
            Err(e) => {
                let kept = cluster.end_processes();
                let logs = format!(
                    "lab '{}' did not come up; its logs are in {}",
                    cluster.dir.name,
                    cluster.dir.path.display()
                );
                kept.and(Err(e)).context(logs)
            }
        }
    }

    /// Returns the lab with this name, which may have died.
    ///
    /// # Errors
    /// When no lab has this name.
    pub fn attach(paths: &Paths, name: &str) -> Result<Self> {
        let dir = LabDir::new(paths, name)?;
        let record = dir.record()?.with_context(|| {
            format!("there is no lab '{name}'; ./lab up --name {name} starts one")
        })?;
        Ok(Self {
            paths: paths.clone(),
            dir,
            record,
        })
    }

    /// Ends a lab and starts it again with the same description.
    ///
    /// # Errors
    /// When no lab has this name, or for the reasons of [`Cluster::up`].
    pub fn restart(paths: &Paths, name: &str, progress: &mut dyn Progress) -> Result<Self> {
        let spec = Self::attach(paths, name)?.record.spec;
        Self::down(paths, name)?;
        Self::up(paths, spec, progress)
    }

    /// Returns the state of the lab.
    pub fn health(&self) -> Health {
        let running = self.processes();
        match (running.is_empty(), self.record.ready) {
            (true, _) => Health::Dead,
            (false, false) => Health::Starting,
            (false, true) if self.emulator_is_gone(&running) => Health::EmulatorDied,
            (false, true) => Health::Up,
        }
    }

    fn emulator_is_gone(&self, running: &[proc::Process]) -> bool {
        self.record.spec.nics > 0 && !running.iter().any(|p| p.role == "emu")
    }

    /// Returns the message for a lab whose emulator has ended unexpectedly, perhaps with all other
    /// processes.
    pub fn emulator_report(&self) -> String {
        let name = &self.dir.name;
        let mut text = format!(
            "the emulator of lab '{name}' has died. Its NICs are lost, and QEMU aborts when it waits for one; \
             ./lab restart --name {name} starts the lab again"
        );
        let qemu = |n: &Node| {
            let says = tail(&n.dir.join("qemu.log"), 3);
            (!says.is_empty()).then(|| format!("\n-- QEMU of {} says:\n{says}", n.name()))
        };
        text.extend(self.nodes().iter().filter_map(qemu));
        let log = tail(&emu::log(&self.dir), 10);
        if !log.is_empty() {
            text += &format!("\n-- end of the emulator's log:\n{log}\n--");
        }
        text
    }

    /// Returns the message for a lab that has never been up.
    pub fn unborn_report(&self) -> String {
        format!(
            "lab '{0}' did not come up, and none of its processes runs; ./lab up --name {0} starts it again, logs of the attempt are in {1}",
            self.dir.name,
            self.dir.path.display()
        )
    }

    /// Fails if the emulator or the QEMU of one of `nodes` has ended.
    fn check_processes(&self, nodes: &[Node]) -> Result<()> {
        let running = self.processes();
        if self.emulator_is_gone(&running) {
            bail!("{}", self.emulator_report());
        }
        for node in nodes {
            ensure!(
                running.iter().any(|p| p.role == node.name()),
                "{}",
                node.failure("QEMU has ended")
            );
        }
        Ok(())
    }

    /// Ends a lab and removes its files. Returns true if the lab existed.
    ///
    /// # Errors
    /// When a process does not end.
    pub fn down(paths: &Paths, name: &str) -> Result<bool> {
        let dir = LabDir::new(paths, name)?;
        let _lock = dir.lock()?;
        let existed = dir.path.exists();
        if existed {
            // Tells concurrent commands why their node goes off. A failure only makes their error
            // messages less specific.
            let _ = std::fs::write(dir.path.join(ENDING), "");
        }
        dir.wipe()?;
        Ok(existed)
    }

    /// Returns true if another command has ended the lab, or is ending it, since
    /// [`Cluster::attach`].
    pub fn was_ended(&self) -> bool {
        let same = |r: Record| r.token == self.record.token;
        self.dir.path.join(ENDING).exists() || !self.dir.record().ok().flatten().is_some_and(same)
    }

    /// Returns the description of the lab.
    pub fn spec(&self) -> &Spec {
        &self.record.spec
    }

    /// Returns the record of the lab on disk.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the lab's directory.
    pub fn dir(&self) -> &LabDir {
        &self.dir
    }

    /// Returns a node.
    ///
    /// # Errors
    /// When the lab has no node with this number.
    pub fn node(&self, index: usize) -> Result<Node> {
        ensure!(
            index < self.record.spec.nodes,
            "lab '{}' has nodes 0 to {}, no node {index}",
            self.dir.name,
            self.record.spec.nodes - 1
        );
        Ok(Node {
            index,
            dir: self.dir.node(index),
        })
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> Vec<Node> {
        (0..self.record.spec.nodes)
            .map(|index| Node {
                index,
                dir: self.dir.node(index),
            })
            .collect()
    }

    fn end_processes(&self) -> Result<()> {
        proc::end(&self.record.token, true, |p| p.role != "emu")?;
        proc::end(&self.record.token, false, |_| true)?;
        Ok(())
    }

    fn boot(&self, kernel: &Kernel, initrd: &Path, progress: &mut dyn Progress) -> Result<()> {
        let spec = &self.record.spec;
        if spec.nics > 0 {
            progress.phase("fabric", Duration::from_secs(1));
            emu::start(&self.paths, &self.dir, &self.record)?;
            let topology = spec.topology.as_deref().unwrap_or("");
            progress.done(&format!(
                "fabric: {} NICs, topology {topology}",
                spec.all_nics()
            ));
        }
        progress.phase(
            &format!("booting {} nodes", spec.nodes),
            Duration::from_secs(5 + 3 * spec.nodes as u64),
        );
        for index in 0..spec.nodes {
            self.start_node(index, kernel, initrd)?;
        }
        self.await_nodes(&self.nodes(), progress)?;
        progress.done(&format!("{} nodes ready", spec.nodes));
        Ok(())
    }

    fn await_nodes(&self, nodes: &[Node], progress: &mut dyn Progress) -> Result<()> {
        let patience = self.record.spec.boot_timeout();
        let start = Instant::now();
        let (sender, receiver) = mpsc::channel();
        for node in nodes.iter().cloned() {
            let sender = sender.clone();
            // The thread is not joined on failure. The caller then ends the nodes, and the deadline
            // ends the thread.
            std::thread::spawn(move || {
                let result = node.wait_ready(patience);
                // The receiver is dropped when another node has failed.
                let _ = sender.send((node, result));
            });
        }
        let mut count = 0;
        let mut doubt = false;
        while count < nodes.len() {
            let (node, result) = match receiver.recv_timeout(LOOK) {
                Ok(news) => news,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("a waiting thread ended unexpectedly")
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    proc::interrupted()?;
                    // Fails only after two failed checks in a row, because a process that is just
                    // starting may be missed.
                    match self.check_processes(nodes) {
                        Err(e) if doubt => return Err(e),
                        missing => doubt = missing.is_err(),
                    }
                    continue;
                }
            };
            if let Err(e) = result {
                // The node may have failed because its emulator has ended.
                return match self.check_processes(&[]) {
                    Ok(()) => Err(e),
                    Err(emulator) => Err(e.context(emulator)),
                };
            }
            count += 1;
            progress.news(&format!(
                "{} ready after {:.1} s ({count} of {})",
                node.name(),
                start.elapsed().as_secs_f64(),
                nodes.len()
            ));
        }
        Ok(())
    }

    fn start_node(&self, index: usize, kernel: &Kernel, initrd: &Path) -> Result<()> {
        let spec = &self.record.spec;
        let dir = self.dir.node(index);
        std::fs::create_dir_all(&dir)?;
        // Sockets of a killed QEMU would look usable until the new QEMU listens on them.
        for i in 0..lab_proto::PORTS {
            let _ = std::fs::remove_file(crate::channel::port_socket(&dir, i));
        }
        crate::devices::make_drives(&spec.devices, index, &dir)?;
        let nics: Vec<_> = (0..spec.nics)
            .map(|k| emu::nic_socket(&self.dir, index * spec.nics + k))
            .collect();
        let node = qemu::Node {
            spec,
            index,
            dir: &dir,
            kernel,
            initrd,
            nics: &nics,
        };
        proc::spawn(
            &self.record.token,
            &format!("node{index}"),
            &qemu::command(&self.paths, &node),
            &dir.join("qemu.log"),
        )
        .map(drop)
    }

    /// Returns advice for a user whose node is off.
    pub fn switch_on(&self, index: usize) -> String {
        let name = &self.dir.name;
        format!(
            "./lab log --name {name} {index} shows its console, ./lab fault --name {name} power-on {index} boots it again"
        )
    }

    /// Returns a node after a quick check that it is on. While the lab is still starting, a node
    /// without sockets counts as on, because `up` waits for them.
    ///
    /// # Errors
    /// When the lab has no node with this number, or the node is off.
    pub fn running_node(&self, index: usize) -> Result<Node> {
        let node = self.node(index)?;
        let off = self.record.ready
            && !crate::channel::port_socket(&node.dir, 0).exists()
            && !self.is_on(index);
        ensure!(!off, "{} is off; {}", node.name(), self.switch_on(index));
        Ok(node)
    }

    /// Returns true if the node's QEMU runs.
    pub fn is_on(&self, index: usize) -> bool {
        let role = format!("node{index}");
        proc::find(&self.record.token)
            .iter()
            .any(|p| p.role == role)
    }

    /// Switches a node off: kills its QEMU without a shutdown and switches its NICs off.
    ///
    /// # Errors
    /// When QEMU survives the kill, or the emulator does not answer.
    pub fn power_off(&self, index: usize) -> Result<()> {
        let node = self.node(index)?;
        let _lock = self.dir.lock()?;
        let role = node.name();
        proc::end(&self.record.token, true, |p| p.role == role)?;
        self.power_nics(index, false)
    }

    /// Switches the power of a node's NICs. Without power they lose all state that software wrote.
    fn power_nics(&self, node: usize, on: bool) -> Result<()> {
        let nics = self.record.spec.nics;
        if nics > 0 {
            let mut client = emu::connect(&self.dir)?;
            for nic in node * nics..(node + 1) * nics {
                client.set_power(nic, on)?;
            }
        }
        Ok(())
    }

    /// Starts a node that is off and waits until it is ready.
    ///
    /// # Errors
    /// When the node is on or does not come up.
    pub fn power_on(&self, index: usize, progress: &mut dyn Progress) -> Result<()> {
        let node = self.node(index)?;
        let _lock = self.dir.lock()?;
        ensure!(!self.is_on(index), "{} is already on", node.name());
        let kernel = Kernel::find(&self.paths, &self.record.spec.kernel)?;
        let initrd = initrd::make(&self.paths, &kernel, self.record.spec.bring_up)?;
        self.power_nics(index, true)?;
        progress.phase(&format!("booting {}", node.name()), Duration::from_secs(8));
        self.start_node(index, &kernel, &initrd)?;
        self.await_nodes(&[node], progress)?;
        progress.done(&format!("node{index} ready"));
        Ok(())
    }

    /// Restarts a node's kernel in the same QEMU and waits until it is ready. With `hard` QEMU
    /// resets the machine, otherwise the node reboots itself.
    ///
    /// # Errors
    /// When the node is off or does not come back.
    pub fn reboot(&self, index: usize, hard: bool, progress: &mut dyn Progress) -> Result<()> {
        let node = self.node(index)?;
        let _lock = self.dir.lock()?;
        ensure!(
            self.is_on(index),
            "{} is off; {}",
            node.name(),
            self.switch_on(index)
        );
        let boot_id = |n: &Node| {
            Command::new(["cat", "/proc/sys/kernel/random/boot_id"])
                .timeout(PING)
                .run(n)
                .map(|o| o.text())
        };
        // A hung node cannot report its boot ID, and a hard reset is meant for such nodes.
        let before = boot_id(&node).or_else(|e| if hard { Ok(String::new()) } else { Err(e) })?;
        progress.phase(
            &format!("rebooting {}", node.name()),
            Duration::from_secs(8),
        );
        if hard {
            qemu::control(&node.dir, "system_reset", serde_json::json!({}))?;
        } else {
            // The command ends with the node, so its result has no meaning.
            let _ = Command::new(["busybox", "reboot", "-f"])
                .timeout(PING)
                .run(&node);
        }
        let deadline = Instant::now() + self.record.spec.boot_timeout();
        while boot_id(&node).map_or(true, |id| id == before || id.is_empty()) {
            ensure!(
                self.is_on(index),
                "{} went off instead of rebooting",
                node.name()
            );
            ensure!(
                Instant::now() < deadline,
                "{}",
                node.failure("it did not reboot in time")
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        self.await_nodes(&[node], progress)?;
        progress.done(&format!("node{index} ready"));
        Ok(())
    }

    /// Returns the state of every node. Asks all agents in parallel.
    pub fn states(&self) -> Vec<NodeState> {
        let running = proc::find(&self.record.token);
        let threads: Vec<_> = self
            .nodes()
            .into_iter()
            .map(|node| {
                let on = running.iter().any(|p| p.role == node.name());
                std::thread::spawn(move || if on { ask(&node) } else { NodeState::Off })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or(NodeState::Silent))
            .collect()
    }

    /// Returns the processes of the lab.
    pub fn processes(&self) -> Vec<proc::Process> {
        proc::find(&self.record.token)
    }

    /// Fails if the kernel of any node has reported a defect since the lab was started.
    ///
    /// # Errors
    /// The error contains the first report.
    pub fn assert_clean_log(&self) -> Result<()> {
        self.nodes()
            .iter()
            .try_for_each(|n| n.assert_clean_log_since(0))
    }
}

/// Returns the command that ends when a node is ready. The agent may take all of `patience` to
/// appear.
pub(crate) fn ready(patience: Duration) -> Command {
    Command::new(["lab-agent", "wait"])
        .timeout(patience)
        .connect_timeout(patience)
}

fn ask(node: &Node) -> NodeState {
    match Command::new(["cat", "/run/lab/bringup"])
        .timeout(PING)
        .run(node)
    {
        Ok(out) if out.text().trim() == "ok" => NodeState::Ready,
        Ok(out) if out.status.success() => NodeState::Failed,
        Ok(_) => NodeState::Booting,
        Err(_) => NodeState::Silent,
    }
}
