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

/// Console lines shown when a node fails.
const TAIL: usize = 25;
/// File in the directory of a lab that is being ended.
const ENDING: &str = "ending";
/// How long a quick question to the agent may take.
const PING: Duration = Duration::from_secs(5);

/// What is known about a node without asking it much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// No QEMU runs.
    Off,
    /// QEMU runs, the agent did not answer in time.
    Silent,
    /// The agent answers, the node still prepares itself.
    Booting,
    /// Ready.
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
    /// Its name, as in the node's own `/etc/hosts`.
    pub fn name(&self) -> String {
        format!("node{}", self.index)
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its directory on the host.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// File with everything the kernel printed since the lab was started, boots one after the other.
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Instructions that it has executed since its power was switched on.
    ///
    /// # Errors
    /// When the lab does not count them ([`Spec::count_instructions`]).
    pub fn instructions(&self) -> Result<Instructions> {
        insns::read(&self.dir).with_context(|| self.name())
    }

    /// Runs a program to its end, for at most a minute; see [`Command`] for more choice.
    ///
    /// # Errors
    /// When the node does not answer or the time is over; a failing command is no error.
    pub fn exec<S: AsRef<std::ffi::OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Output> {
        Command::new(argv)
            .timeout(Duration::from_secs(60))
            .run(self)
    }

    /// Runs a shell script that has to succeed, for at most a minute; returns its standard output.
    ///
    /// # Errors
    /// When it fails.
    pub fn sh(&self, script: &str) -> Result<String> {
        let out = Command::sh(script)
            .timeout(Duration::from_secs(60))
            .run(self)?;
        Ok(out
            .ok()
            .with_context(|| format!("{}: {script}", self.name()))?
            .text())
    }

    /// Waits until the node has prepared itself. All of `patience` may pass before its agent appears.
    ///
    /// # Errors
    /// When it did not get through; the message has the reason and the end of the console.
    pub fn wait_ready(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        // The agent takes its time to appear; the command itself polls inside the node.
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
                // A reboot under way cuts the first attempt.
                Err(e) if format!("{e:#}").contains("restarted") && Instant::now() < deadline => {}
                Err(e) => break Err(e),
            }
        };
        result.map_err(|e: anyhow::Error| anyhow!(self.failure(&format!("{e:#}"))))
    }

    /// The first defect that its present kernel reported, else the end of its console.
    pub fn last_words(&self) -> String {
        let log = self.log_since(0);
        // The console has all boots one after the other.
        let boot = log.rfind("] Linux version ").map_or("", |at| &log[at..]);
        match logscan::first_defect(boot, &[]) {
            Some(report) => report,
            None => tail(&self.console(), TAIL),
        }
    }

    /// The first line says what is known in short, for those who see no more of it.
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

    /// How many bytes the console log has now; a mark for [`Node::log_since`].
    pub fn log_mark(&self) -> u64 {
        std::fs::metadata(self.console()).map_or(0, |m| m.len())
    }

    /// The console log from a mark on.
    pub fn log_since(&self, mark: u64) -> String {
        let all = std::fs::read(self.console()).unwrap_or_default();
        let from = usize::try_from(mark).unwrap_or(usize::MAX).min(all.len());
        String::from_utf8_lossy(&all[from..]).replace('\r', "")
    }

    /// Fails when the kernel reported a defect since the mark (0: since the lab was started).
    ///
    /// # Errors
    /// With the report and some lines around it.
    pub fn assert_clean_log_since(&self, mark: u64) -> Result<()> {
        match logscan::first_defect(&self.log_since(mark), &[]) {
            None => Ok(()),
            Some(report) => bail!("the kernel log of {} is not clean:\n{report}", self.name()),
        }
    }
}

/// Whether a lab can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// It is up.
    Up,
    /// `up` is at work, or was killed.
    Starting,
    /// Its emulator has ended by itself: the NICs are gone for good, and nodes that used them may have gone with them.
    EmulatorDied,
    /// Nothing of it runs.
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

/// How often a boot looks after the processes.
const LOOK: Duration = Duration::from_millis(300);

/// A lab that runs (or whose remains are on disk).
#[derive(Clone, Debug)]
pub struct Cluster {
    paths: Paths,
    dir: LabDir,
    record: Record,
}

impl Cluster {
    /// Starts a lab and waits until every node is ready. What a killed lab of this name left is removed first.
    ///
    /// # Errors
    /// When a lab of this name is up, something needed is missing, or a node does not come up; then everything is ended
    /// again, except for the logs.
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
                    "lab '{0}' is up already ({1} nodes); ./lab down --name {0} ends it",
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
                "removed what an interrupted lab left: {ended} processes"
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
        // Before any process exists: the token is how they are found again.
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

    /// Finds a lab that is up.
    ///
    /// # Errors
    /// When there is none of this name.
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

    /// Ends a lab and starts it again as it was described.
    ///
    /// # Errors
    /// When there is none of this name, or as [`Cluster::up`].
    pub fn restart(paths: &Paths, name: &str, progress: &mut dyn Progress) -> Result<Self> {
        let spec = Self::attach(paths, name)?.record.spec;
        Self::down(paths, name)?;
        Self::up(paths, spec, progress)
    }

    /// Whether it can be used.
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

    /// What to tell when the emulator has ended by itself, perhaps with everything else.
    pub fn emulator_report(&self) -> String {
        let name = &self.dir.name;
        let mut text = format!(
            "the emulator of lab '{name}' has died: its NICs are gone for good, and QEMU aborts when it waits for one; \
             ./lab restart --name {name} starts the lab again as it was"
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

    /// What to tell of a lab that never was up.
    pub fn unborn_report(&self) -> String {
        format!(
            "lab '{0}' did not come up, and nothing of it runs; ./lab up --name {0} starts it anew, logs of the attempt are in {1}",
            self.dir.name,
            self.dir.path.display()
        )
    }

    /// Fails when a process that these nodes need has ended.
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

    /// Ends a lab and removes all traces; returns whether there was anything.
    ///
    /// # Errors
    /// When a process does not end.
    pub fn down(paths: &Paths, name: &str) -> Result<bool> {
        let dir = LabDir::new(paths, name)?;
        let _lock = dir.lock()?;
        let existed = dir.path.exists();
        if existed {
            // For commands whose nodes go off under them; without it they would only know less.
            let _ = std::fs::write(dir.path.join(ENDING), "");
        }
        dir.wipe()?;
        Ok(existed)
    }

    /// Whether somebody has ended it, or is about to, since it was found.
    pub fn was_ended(&self) -> bool {
        let same = |r: Record| r.token == self.record.token;
        self.dir.path.join(ENDING).exists() || !self.dir.record().ok().flatten().is_some_and(same)
    }

    /// Its description.
    pub fn spec(&self) -> &Spec {
        &self.record.spec
    }

    /// What is remembered about it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Its directory.
    pub fn dir(&self) -> &LabDir {
        &self.dir
    }

    /// A node.
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

    /// All nodes.
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
            // Not joined on failure: its deadline ends it, and the caller ends the nodes.
            std::thread::spawn(move || {
                let result = node.wait_ready(patience);
                // The receiver is gone when another node has failed.
                let _ = sender.send((node, result));
            });
        }
        let mut count = 0;
        let mut doubt = false;
        while count < nodes.len() {
            let (node, result) = match receiver.recv_timeout(LOOK) {
                Ok(news) => news,
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("a waiting thread died"),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    proc::interrupted()?;
                    // Twice in a row, since a process that is just being started may be overlooked.
                    match self.check_processes(nodes) {
                        Err(e) if doubt => return Err(e),
                        missing => doubt = missing.is_err(),
                    }
                    continue;
                }
            };
            if let Err(e) = result {
                // A node whose emulator dies goes down with it.
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
        // Sockets of a QEMU that was killed would look alive until it listens again.
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

    /// What to tell those who meet a node that is off.
    pub fn switch_on(&self, index: usize) -> String {
        let name = &self.dir.name;
        format!(
            "./lab log --name {name} {index} has its last words, ./lab fault --name {name} power-on {index} boots it again"
        )
    }

    /// A node that runs, as far as a quick look tells: QEMU removes its sockets when it ends by itself, and waiting for them is for those
    /// who start it.
    ///
    /// # Errors
    /// When the lab has no node with this number, or it is off.
    pub fn running_node(&self, index: usize) -> Result<Node> {
        let node = self.node(index)?;
        let off = self.record.ready
            && !crate::channel::port_socket(&node.dir, 0).exists()
            && !self.is_on(index);
        ensure!(!off, "{} is off; {}", node.name(), self.switch_on(index));
        Ok(node)
    }

    /// Whether a node's QEMU runs.
    pub fn is_on(&self, index: usize) -> bool {
        let role = format!("node{index}");
        proc::find(&self.record.token)
            .iter()
            .any(|p| p.role == role)
    }

    /// Takes the power from a node: its QEMU is killed in whatever it was doing.
    ///
    /// # Errors
    /// When it does not end.
    pub fn power_off(&self, index: usize) -> Result<()> {
        let node = self.node(index)?;
        let _lock = self.dir.lock()?;
        let role = node.name();
        proc::end(&self.record.token, true, |p| p.role == role)?;
        self.power_nics(index, false)
    }

    /// The NICs of a node share its power; they lose everything that software wrote.
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
    /// When it is on or does not come up.
    pub fn power_on(&self, index: usize, progress: &mut dyn Progress) -> Result<()> {
        let node = self.node(index)?;
        let _lock = self.dir.lock()?;
        ensure!(!self.is_on(index), "{} is on", node.name());
        let kernel = Kernel::find(&self.paths, &self.record.spec.kernel)?;
        let initrd = initrd::make(&self.paths, &kernel, self.record.spec.bring_up)?;
        self.power_nics(index, true)?;
        progress.phase(&format!("booting {}", node.name()), Duration::from_secs(8));
        self.start_node(index, &kernel, &initrd)?;
        self.await_nodes(&[node], progress)?;
        progress.done(&format!("node{index} ready"));
        Ok(())
    }

    /// Restarts a node's kernel in the same QEMU and waits until it is ready; `hard` is a reset line, else the node does it itself.
    ///
    /// # Errors
    /// When it is off or does not come back.
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
        // A hung node, which is what a reset is for, can't tell.
        let before = boot_id(&node).or_else(|e| if hard { Ok(String::new()) } else { Err(e) })?;
        progress.phase(
            &format!("rebooting {}", node.name()),
            Duration::from_secs(8),
        );
        if hard {
            qemu::control(&node.dir, "system_reset", serde_json::json!({}))?;
        } else {
            // It dies with the node, so how it ends tells nothing.
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

    /// State of every node; asks the agents, all at once.
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

    /// Processes of the lab.
    pub fn processes(&self) -> Vec<proc::Process> {
        proc::find(&self.record.token)
    }

    /// Fails when the kernel of any node reported a defect since the lab was started.
    ///
    /// # Errors
    /// With the first report.
    pub fn assert_clean_log(&self) -> Result<()> {
        self.nodes()
            .iter()
            .try_for_each(|n| n.assert_clean_log_since(0))
    }
}

/// The command that ends when a node is ready, whose agent may take all that time to appear.
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
