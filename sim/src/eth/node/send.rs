//! Transmission: the path of each frame, and the ends of announced frames.

use super::glue::Announcer;
use super::{Node, Outgoing, Report};
use crate::eth::setup::{Mutation, PERIODS, THRESHOLD};
use crate::fabric::Fabric;
use crate::memory::Block;
use crate::port::Port;
use protocol::eth::rendezvous::{Admitted, Buffer, Ended, Unsent};
use protocol::{Time, TransportError};
use wire::eth::{self, Path};
use wire::velo::Target;

/// Result of an attempt to send a frame.
enum Fate {
    /// Sent or dropped.
    Done,
    /// The frame must wait for a slot.
    Wait(Outgoing),
}

impl Node {
    pub(super) fn transmit(&mut self, fabric: &mut Fabric) {
        while self.port.is_some() {
            let Some(frame) = self.queue.pop_front() else {
                return;
            };
            if let Fate::Wait(frame) = self.send(fabric, frame) {
                self.queue.push_front(frame);
                return;
            }
        }
    }

    /// Sends a frame. A short frame is announced too if announced frames of its flow are in flight.
    fn send(&mut self, fabric: &mut Fabric, frame: Outgoing) -> Fate {
        let to = Port::node_id(frame.to);
        self.sender.sends(&Time(fabric.now()), to);
        let path = Path::choose(frame.len, Target::Node(to), THRESHOLD);
        let follows = self.mutation != Some(Mutation::PathByLength)
            && self.sender.flow_in_flight(to, frame.flow);
        match path {
            Path::Eager if !follows => self.send_message(fabric, frame),
            _ => self.announce(fabric, frame),
        }
    }

    /// Sends a frame in one message.
    fn send_message(&mut self, fabric: &mut Fabric, frame: Outgoing) -> Fate {
        let Some(port) = self.port.as_mut() else {
            return Fate::Wait(frame);
        };
        let mut data = vec![0; frame.len as usize];
        let fragment = eth::eager_fragments(frame.len)
            .ok()
            .and_then(|mut pieces| pieces.next());
        let target = Target::Node(Port::node_id(frame.to));
        let result = match (frame.block.load(&mut data), fragment) {
            (Ok(()), Some(fragment)) => port.send(fabric, fragment.descriptor(target), &data),
            _ => Err(TransportError::Never),
        };
        let id = frame.id;
        match result {
            Ok(()) => self.reports.push(Report::Sent { id }),
            Err(TransportError::Later) => return Fate::Wait(frame),
            Err(TransportError::Never) => self.reports.push(Report::Dropped { id, peer: false }),
        }
        Fate::Done
    }

    fn announce(&mut self, fabric: &mut Fabric, frame: Outgoing) -> Fate {
        let to = Port::node_id(frame.to);
        let now = Time(fabric.now());
        match self.sender.admit(&now, to, &self.limits) {
            Admitted::Later => return Fate::Wait(frame),
            Admitted::No(_) => {
                let id = frame.id;
                self.reports.push(Report::Dropped { id, peer: true });
                return Fate::Done;
            }
            Admitted::Yes { .. } => {}
        }
        let Some(port) = self.port.as_mut() else {
            return Fate::Wait(frame);
        };
        let Outgoing {
            id,
            len,
            block,
            flow,
            ..
        } = frame;
        let address = block.address();
        let mut port = Announcer { fabric, port };
        match self.sender.announce(&now, &mut port, to, block, len, flow) {
            Ok(()) => {
                self.reports.push(Report::Announced { id, address });
                let set = self
                    .timer
                    .borrow_mut()
                    .schedule_housekeeping(now.after(PERIODS.busy));
                if let Some(at) = set {
                    self.timer_at = Some(at.0);
                }
            }
            Err((block, Unsent::Refused(TransportError::Later))) => {
                let to = frame.to;
                return Fate::Wait(Outgoing {
                    id,
                    to,
                    flow,
                    block,
                    len,
                });
            }
            Err(_) => self.reports.push(Report::Dropped { id, peer: false }),
        }
        Fate::Done
    }

    pub(super) fn ended(&mut self, ended: Ended<Block>) {
        let (block, fetched) = match ended {
            Ended::Fetched(block) | Ended::Late(block) => (block, true),
            Ended::Failed(block, _) => (block, false),
            Ended::Unmatched => return,
        };
        self.reports.push(Report::Ended {
            address: block.address(),
            fetched,
        });
    }
}
