//! Reception: messages, announcements, ends of GETs.

use super::glue::{Fetcher, Locked};
use super::{Node, Report};
use crate::eth::setup::{Mutation, MAX_FRAME};
use crate::fabric::Fabric;
use crate::port::{self, Port};
use anyhow::{Context, Result};
use protocol::eth::rendezvous::{Announced, Buffer, Ended, Fetched};
use protocol::Time;
use wire::eth::{Announcement, Completion, Message, Side};
use wire::ids::NodeId;

impl Node {
    pub(super) fn take_notifications(
        &mut self,
        fabric: &mut Fabric,
        port: &mut Port,
        budget: usize,
    ) -> Result<usize> {
        let mut work = 0;
        while work < budget {
            let Some(notification) = port.notification(fabric)? else {
                break;
            };
            work += 1;
            self.notifications += 1;
            if let Ok(completion) = Completion::from_notification(&notification) {
                self.notified(fabric, completion)?;
            }
        }
        Ok(work)
    }

    pub(super) fn message(&mut self, fabric: &Fabric, message: &port::Message) {
        let from = message.status.source.node;
        let now = Time(fabric.now());
        match Message::parse(&message.status, &message.data) {
            Ok(Message::Announcement(a)) => self.announced(now, from, a),
            Ok(Message::Dropped { address }) => {
                self.sender.dropped(&now, from, address, |_| {});
            }
            Ok(Message::Eager {
                last: true, data, ..
            }) => self.reports.push(Report::Delivered {
                from: from.0,
                data: data.to_vec(),
            }),
            Ok(Message::Eager { .. }) | Err(_) => {}
        }
    }

    pub(super) fn announced(&mut self, now: Time, from: NodeId, a: Announcement) {
        let (len, discard) = match a.frame_len(MAX_FRAME) {
            Ok(len) => (len, false),
            Err(_) if (1..=u64::from(MAX_FRAME)).contains(&a.len) => (a.len as u32, true),
            Err(_) => return,
        };
        let announced = Announced {
            node: from,
            announcement: a,
            len,
            discard,
            ticket: None,
        };
        if self.mutation == Some(Mutation::NoAge) {
            self.waiting.age_bound().emptied(now);
        }
        if self
            .waiting
            .push(&now, announced, &self.fetch_limits)
            .is_err()
        {
            self.reports.push(Report::Refused { from: from.0 });
        }
        self.full.waiting |= self.waiting.room() == 0;
    }

    pub(super) fn pump(&mut self, fabric: &mut Fabric, port: &mut Port) {
        let now = Time(fabric.now());
        let mut refused = Vec::new();
        let mut fetcher = Fetcher {
            fabric,
            port,
            pool: &self.pool,
            targets: &mut self.targets,
            reports: &mut self.reports,
            short_of_memory: self.short_of_memory,
            twice: self.mutation == Some(Mutation::FetchTwice),
        };
        self.waiting.pump(
            &Locked(&self.fetches),
            &now,
            &mut fetcher,
            &self.fetch_limits,
            |a, _| refused.push(Report::Refused { from: a.node.0 }),
        );
        self.reports.append(&mut refused);
    }

    pub(super) fn notified(&mut self, fabric: &Fabric, mut c: Completion) -> Result<()> {
        if self.mutation == Some(Mutation::DeafToNotifications) && self.notifications % 3 == 0 {
            return Ok(());
        }
        let now = Time(fabric.now());
        if c.side == Side::Sent {
            let mut ended = self.sender.notified(&now, &self.limits, &c);
            if self.mutation == Some(Mutation::AnyPeer) {
                for node in 0..8 {
                    if matches!(ended, Ended::Unmatched) {
                        c.peer = NodeId(node);
                        ended = self.sender.notified(&now, &self.limits, &c);
                    }
                }
            }
            self.ended(ended);
            return Ok(());
        }
        let ended = self.fetches.borrow_mut().notified(&now, &c);
        let found = self.targets.iter().find(|t| t.is(c.key)).copied();
        if let (false, Some(t)) = (matches!(ended, Fetched::Unmatched), found) {
            self.reports.push(Report::Got { local: t.local });
        }
        match ended {
            Fetched::Frame(block, from, _) => {
                let address = block.address();
                let target = self.targets.iter().find(|t| t.local == address);
                let target = target.context("a frame without a GET")?;
                let (data, lost) = target.load(fabric, self.nic)?;
                self.holes += u64::from(lost);
                self.reports.push(match lost {
                    true if self.mutation != Some(Mutation::NoMarks) => {
                        Report::Refused { from: from.0 }
                    }
                    _ => Report::Delivered { from: from.0, data },
                });
            }
            Fetched::Discarded(_) => self.reports.push(Report::Refused { from: c.peer.0 }),
            Fetched::Failed(..) | Fetched::Late(_) | Fetched::Unmatched => {}
        }
        Ok(())
    }
}
