//! Features that the host gets and sets (NVM Express 1.4, 5.21). Saving is not supported.

use super::command::Status;

/// Feature identifier of the number of queues.
pub(super) const QUEUES: u8 = 0x07;
const POWER: u8 = 0x02;
const VECTOR: u8 = 0x09;

/// Supported features, each with its value after a reset. The features are arbitration, power
/// state, temperature threshold, error recovery, cache, number of queues, interrupt coalescing,
/// interrupt vector, write atomicity, and asynchronous events.
const RESET: [(u8, u32); 10] = [
    (0x01, 0),
    (POWER, 0),
    (0x04, 343),
    (0x05, 0),
    (0x06, 1),
    (QUEUES, 0),
    (0x08, 0),
    (VECTOR, 0),
    (0x0A, 0),
    (0x0B, 0),
];

/// Bit in dword 10 of Set Features: the value survives resets.
const SAVE: u32 = 1 << 31;
/// Bit in the capabilities of a feature: the host can change the feature.
const CHANGEABLE: u32 = 4;

/// Current values of the features.
pub(super) struct Features {
    values: [u32; RESET.len()],
    /// Number of queue pairs minus 1, in both halves of the word.
    queues: u32,
    vectors: u8,
}

impl Features {
    /// Returns the features of a controller with `pairs` pairs of I/O queues.
    pub fn new(pairs: u16, vectors: u8) -> Self {
        let n = u32::from(pairs.saturating_sub(1));
        let queues = n | (n << 16);
        let mut values = RESET.map(|(_, value)| value);
        for (value, (id, _)) in values.iter_mut().zip(RESET) {
            if id == QUEUES {
                *value = queues;
            }
        }
        Self {
            values,
            queues,
            vectors,
        }
    }

    fn place(id: u8) -> Result<usize, Status> {
        let place = RESET.iter().position(|(known, _)| *known == id);
        place.ok_or(Status::FIELD)
    }

    /// Executes Get Features. `which` is dword 10 of the command.
    pub fn get(&self, which: u32) -> Result<u32, Status> {
        let id = which as u8;
        let place = Self::place(id)?;
        match (which >> 8) & 7 {
            0 => Ok(self.values[place]),
            // Returns the default value. The saved value equals the default value.
            1 | 2 if id == QUEUES => Ok(self.queues),
            1 | 2 => Ok(RESET[place].1),
            3 => Ok(CHANGEABLE),
            _ => Err(Status::FIELD),
        }
    }

    /// Executes Set Features. `which` and `value` are dwords 10 and 11. `in_use` is true if I/O
    /// queues exist.
    pub fn set(&mut self, which: u32, value: u32, in_use: bool) -> Result<u32, Status> {
        let id = which as u8;
        let place = Self::place(id)?;
        if which & SAVE != 0 {
            return Err(Status::NOT_SAVEABLE);
        }
        match id {
            QUEUES if value as u16 == u16::MAX || value >> 16 == 0xFFFF => Err(Status::FIELD),
            QUEUES if in_use => Err(Status::SEQUENCE),
            // The number of queues is fixed, so the requested number is ignored.
            QUEUES => Ok(self.queues),
            POWER if value & 0x1F != 0 => Err(Status::FIELD),
            VECTOR if value as u16 >= self.vectors.into() => Err(Status::FIELD),
            _ => {
                self.values[place] = value;
                Ok(0)
            }
        }
    }
}
