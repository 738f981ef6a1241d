//! Commands of the admin queue (NVM Express 1.4, chapter 5).

use super::command::{admin, Command, Status};
use super::identify::{self, BYTES, EVENTS};
use super::prp::PAGE;
use super::queues::{Completions, Submission, MOST};
use super::{Action, Data, Nvme, Read, MOST_DATA_LOG2};

/// Namespace ID that selects all namespaces.
pub(super) const ALL: u32 = u32::MAX;
/// Flag of Create I/O Submission Queue and Create I/O Completion Queue: the queue is contiguous.
const CONTIGUOUS: u32 = 1;
/// Flag of Create I/O Completion Queue: the queue raises interrupts.
const INTERRUPTS: u32 = 2;

impl Nvme {
    /// Executes an admin command, or returns the data to transfer for it.
    pub(super) fn admin(&mut self, c: &Command) -> Result<Action, Status> {
        match c.opcode {
            admin::CREATE_CQ => self.create_completions(c),
            admin::CREATE_SQ => self.create_submission(c),
            admin::DELETE_CQ => self.delete_completions(c.dwords[0] as u16),
            admin::DELETE_SQ => self.delete_submission(c.dwords[0] as u16),
            admin::IDENTIFY => self.identify(c),
            admin::GET_LOG_PAGE => self.log_page(c),
            admin::SET_FEATURES => {
                let in_use = self.submissions.iter().skip(1).any(Option::is_some)
                    || self.completions.iter().skip(1).any(Option::is_some);
                let result = self.features.set(c.dwords[0], c.dwords[1], in_use);
                result.map(Action::Done)
            }
            admin::GET_FEATURES => self.features.get(c.dwords[0]).map(Action::Done),
            // Result 1 means that the command was not aborted. Most commands complete before the
            // next command is fetched.
            admin::ABORT => Ok(Action::Done(1)),
            // The request is never answered, because the drive has no events.
            admin::ASYNC_EVENT if self.events < EVENTS => {
                self.events += 1;
                Ok(Action::Never)
            }
            admin::ASYNC_EVENT => Err(Status::EVENT_LIMIT),
            _ => Err(Status::OPCODE),
        }
    }

    /// Checks the parameters that both kinds of new queues have. Returns the number of the queue,
    /// its address and its number of entries.
    fn new_queue(&self, c: &Command, taken: bool, entry: u32) -> Result<(u16, u64, u32), Status> {
        let [first, second, ..] = c.dwords;
        let (number, size) = (first as u16, (first >> 16) + 1);
        if number == 0 || taken || usize::from(number) >= self.submissions.len() {
            return Err(Status::QUEUE);
        }
        if !(2..=MOST).contains(&size) || !self.has_entries(entry) {
            return Err(Status::QUEUE_SIZE);
        }
        if second & CONTIGUOUS == 0 {
            return Err(Status::FIELD);
        }
        if c.prp[0] % PAGE != 0 {
            return Err(Status::PRP_OFFSET);
        }
        Ok((number, c.prp[0], size))
    }

    fn create_completions(&mut self, c: &Command) -> Result<Action, Status> {
        let taken = self.completions(c.dwords[0] as u16).is_some();
        let (number, base, size) = self.new_queue(c, taken, super::command::COMPLETION)?;
        let vector = (c.dwords[1] >> 16) as u16;
        if vector >= self.vectors.into() {
            return Err(Status::VECTOR);
        }
        let interrupts = c.dwords[1] & INTERRUPTS != 0;
        let queue = Completions::new(base, size, interrupts.then_some(vector as u8));
        self.completions[usize::from(number)] = Some(queue);
        Ok(Action::Done(0))
    }

    fn create_submission(&mut self, c: &Command) -> Result<Action, Status> {
        let taken = self.submission(c.dwords[0] as u16).is_some();
        let (number, base, size) = self.new_queue(c, taken, super::command::COMMAND)?;
        let to = (c.dwords[1] >> 16) as u16;
        if to == 0 || self.completions(to).is_none() {
            return Err(Status::COMPLETION_QUEUE);
        }
        self.submissions[usize::from(number)] = Some(Submission::new(base, size, to));
        Ok(Action::Done(0))
    }

    fn delete_completions(&mut self, number: u16) -> Result<Action, Status> {
        if number == 0 || self.completions(number).is_none() {
            return Err(Status::QUEUE);
        }
        let mut users = self.submissions.iter().flatten();
        if users.any(|queue| queue.to == number) {
            return Err(Status::QUEUE_DELETION);
        }
        self.completions[usize::from(number)] = None;
        Ok(Action::Done(0))
    }

    /// Deletes a submission queue. Its pending commands end without a completion.
    fn delete_submission(&mut self, number: u16) -> Result<Action, Status> {
        if number == 0 || self.submission(number).is_none() {
            return Err(Status::QUEUE);
        }
        self.submissions[usize::from(number)] = None;
        self.transfers.retain(|_, t| t.queue != number);
        let left = &self.transfers;
        self.reads.cancel(|what| match what {
            Read::Commands(queue) => *queue == number,
            Read::List(key) | Read::Data(key) => !left.contains_key(key),
        });
        Ok(Action::Done(0))
    }

    fn identify(&self, c: &Command) -> Result<Action, Status> {
        let n = c.namespace;
        let page = match c.dwords[0] as u8 {
            0 if n == 1 => identify::namespace(self.disk.blocks(), self.serial),
            1 => identify::controller(super::VENDOR, self.serial),
            2 if n < ALL - 1 => identify::list(n),
            3 if n == 1 => identify::descriptors(self.serial),
            0 | 2 | 3 => return Err(Status::NAMESPACE),
            _ => return Err(Status::FIELD),
        };
        debug_assert_eq!(page.len(), BYTES);
        Ok(Action::Move(Data::ToHost(page), BYTES as u32))
    }

    fn log_page(&self, c: &Command) -> Result<Action, Status> {
        let [first, second, low, high, ..] = c.dwords;
        let page = identify::log(first as u8, self.commands).ok_or(Status::LOG_PAGE)?;
        let dwords = u64::from(first >> 16) | (u64::from(second & 0xFFFF) << 16);
        let offset = u64::from(low) | (u64::from(high) << 32);
        let len = (dwords + 1) * 4;
        if len > 1 << MOST_DATA_LOG2 || offset % 4 != 0 || offset > page.len() as u64 {
            return Err(Status::FIELD);
        }
        // Bytes behind the end of the page are 0.
        let mut data = page.get(offset as usize..).unwrap_or_default().to_vec();
        data.resize(len as usize, 0);
        Ok(Action::Move(Data::ToHost(data), len as u32))
    }
}
