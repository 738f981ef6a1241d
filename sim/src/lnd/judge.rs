//! Checks of the invariants.

use super::{Event, Report, Rig, BUSY, IDLE, MS};
use anyhow::{ensure, Context, Result};
use protocol::lnd::{Cause, Outcome};
use rand::Rng;

impl Rig {
    /// Processes and checks the reports of a node.
    pub(super) fn collect(&mut self, node: usize) -> Result<()> {
        for report in std::mem::take(&mut self.nodes[node].reports) {
            self.record_trace(|| match &report {
                Report::Received(id, _, Some(got)) => {
                    let (all, wanted) = (got.data.len(), got.wanted);
                    format!("node {node}: {id} received, {all} bytes of {wanted}")
                }
                other => format!("node {node}: {other:?}"),
            });
            self.judge(node, report)?;
        }
        Ok(())
    }

    fn judge(&mut self, node: usize, report: Report) -> Result<()> {
        let now = self.fabric.now();
        let most = self.plan.revoke + 4 * IDLE;
        match report {
            Report::Sent(id, outcome) => {
                let letter = self.letter(id)?;
                ensure!(letter.from == node, "{id} ends on another node");
                ensure!(letter.outcome.is_none(), "{id} ends twice");
                letter.outcome = Some(outcome);
                let late = now.saturating_sub(letter.deadline + most);
                ensure!(late == 0, "{id} ends {} ms late", late / MS);
                let there = letter.there;
                if !there {
                    letter.released = true;
                }
                // After a failure the sender tries again, which reuses memory that is free now.
                let unknown = matches!(outcome, Outcome::Unknown(_)) && there;
                if unknown && now < BUSY && self.rng.random_bool(0.5) {
                    for _ in 0..3 {
                        let later = self.rng.random_range(0..MS);
                        self.at(now + later, Event::Send(node));
                    }
                }
                let s = &mut self.summary;
                let count = match outcome {
                    Outcome::Delivered => &mut s.delivered,
                    Outcome::NotDelivered(_) => &mut s.not_delivered,
                    Outcome::Failed => &mut s.failed,
                    Outcome::Unknown(_) => &mut s.unknown,
                };
                *count += 1;
            }
            Report::Released(id) => {
                let letter = self.letter(id)?;
                ensure!(
                    letter.outcome.is_some() && !letter.released,
                    "the address of {id} is released twice, or too early"
                );
                letter.released = true;
            }
            // Messages that a hostile node provokes are not checked.
            Report::Offered(..) | Report::Received(..) if self.hostile == Some(node) => {}
            // Forged messages have unknown names.
            Report::Offered(id, from, _) | Report::Received(id, from, _)
                if self.hostile == Some(from.0.into()) || id >= self.letters.len() as u64 =>
            {
                let hostile = self.hostile == Some(from.0.into());
                ensure!(hostile, "a message that was never sent comes from {from}");
            }
            Report::Offered(id, from, wish) => {
                let letter = self.letter(id)?;
                ensure!(
                    (letter.from, letter.to) == (from.0.into(), node),
                    "{id} wrongly comes from {from} to {node}"
                );
                ensure!(letter.wish.is_none(), "{id} is offered twice");
                letter.wish = Some(wish);
                if !wish.taken {
                    letter.got = Some(None);
                }
            }
            Report::Received(id, _, got) => {
                let letter = self.letter(id)?;
                let wish = letter
                    .wish
                    .with_context(|| format!("{id} is received before it is offered"))?;
                ensure!(letter.got.is_none(), "{id} is received twice");
                if let Some(got) = &got {
                    // LNet may have no buffer for data to be fetched.
                    let none = letter.there && got.wanted == 0;
                    ensure!(
                        got.wanted == wish.wanted || none,
                        "{} bytes are wanted of {id}, not {}",
                        got.wanted,
                        wish.wanted
                    );
                    ensure!(
                        letter.data.starts_with(&got.data),
                        "what is received of {id} is not what was sent"
                    );
                    ensure!(
                        got.data.len() == got.wanted as usize,
                        "what is received of {id} is not all of it"
                    );
                }
                letter.got = Some(got.map(|got| got.data));
            }
        }
        Ok(())
    }

    fn letter(&mut self, id: u64) -> Result<&mut super::Letter> {
        let letter = self.letters.get_mut(id as usize);
        letter.with_context(|| format!("there is no letter {id}"))
    }

    /// Checks that no letter of a node is overdue.
    pub(super) fn check_deadlines(&self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        let most = self.plan.revoke + 4 * IDLE;
        let late = self.letters.iter().enumerate().find(|(_, l)| {
            l.from == node && l.outcome.is_none() && !l.excused && now > l.deadline + most
        });
        if let Some((id, letter)) = late {
            anyhow::bail!("{id} is {} ms overdue", (now - letter.deadline) / MS);
        }
        Ok(())
    }

    fn check_letter(&self, id: usize) -> Result<()> {
        let letter = &self.letters[id];
        let hostile = [letter.from, letter.to]
            .iter()
            .any(|n| self.hostile == Some(*n));
        let taken = letter.wish.is_some_and(|wish| wish.taken);
        let got = letter.got.as_ref();
        if !letter.excused {
            ensure!(letter.outcome.is_some(), "{id} has not ended");
            ensure!(letter.released, "the address of {id} was not released");
            ensure!(
                got.is_some() || letter.wish.is_none() || hostile,
                "LNet never got the result of {id}"
            );
        }
        let Some(outcome) = letter.outcome else {
            return Ok(());
        };
        if !hostile {
            match outcome {
                Outcome::Delivered => {
                    ensure!(taken, "{id} is said to be delivered");
                    let data = got.is_some_and(Option::is_some);
                    ensure!(data || letter.excused, "{id} is said to be all there");
                }
                Outcome::NotDelivered(Cause::Refused) => {
                    ensure!(
                        letter.wish.is_some() && !taken,
                        "{id} is said to be refused"
                    );
                }
                Outcome::NotDelivered(_) => {
                    ensure!(letter.wish.is_none(), "{id} is said not to be delivered");
                }
                Outcome::Failed => {
                    // The peer's LNet has no data, unless it got them after the sender gave up.
                    let has = got.is_some_and(|got| got.as_ref().is_some_and(|d| !d.is_empty()));
                    ensure!(
                        taken && !(has && letter.there),
                        "{id} is said to have failed"
                    );
                }
                Outcome::Unknown(_) => {}
            }
        }
        if letter.demanded {
            // Only LNet itself may prevent the delivery.
            let wish = letter.wish.context("not even offered")?;
            let fine = match outcome {
                Outcome::Delivered => true,
                Outcome::NotDelivered(Cause::Refused) => !wish.taken,
                _ => false,
            };
            ensure!(fine, "{id} between healthy nodes ends with {outcome:?}");
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            self.collect(node)?;
        }
        for id in 0..self.letters.len() {
            self.check_letter(id)
                .with_context(|| format!("letter {id}"))?;
        }
        for i in 0..self.nodes.len() {
            let look = self.nodes[i].look();
            self.record_trace(|| format!("node {i}:\n{look}"));
        }
        for node in &self.nodes {
            node.check_end(&self.fabric)?;
            let c = node.lnd.counters();
            let s = &mut self.summary;
            s.fetched += c.fetched;
            s.gets_again += c.gets_again;
            s.holes += node.holes;
            s.again += c.again;
            s.busy += c.busy;
            s.odd += c.odd + c.strays + c.nonsense;
            s.sessions += c.sessions;
        }
        Ok(())
    }
}
