// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notifications as text.

use wire::rma::{Command, LockResult, NotificationWord};

/// Returns the contents of a notification without its sender, as text. The text depends on the
/// command (HW §10.4). Any words are accepted.
pub fn content(words: [u64; 2]) -> String {
    let (word0, word1) = (words[0], NotificationWord(words[1]));
    match Command::from_code(word1.command()) {
        Some(Command::NotificationPut) => {
            format!("class {} value {word0:#x}", word1.size() as u8)
        }
        Some(Command::Lock | Command::LockResponse) => {
            let lock = LockResult(word0);
            format!(
                "lock {} value {} result {}",
                lock.number(),
                lock.value(),
                lock.result()
            )
        }
        _ => format!("address {word0:#x} size {}", word1.size() + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_depends_on_the_command() {
        let text = |word0, command: Command, size| {
            let word1 = NotificationWord(0).with_command(command.code());
            content([word0, word1.with_size(size).raw()])
        };
        assert_eq!(
            text(0x21F0, Command::BytePut, 99),
            "address 0x21f0 size 100"
        );
        assert_eq!(
            text(0x21F0, Command::NotificationPut, 7),
            "class 7 value 0x21f0"
        );
        let lock = (5 << 32) | (1 << 24) | 12;
        for command in [Command::Lock, Command::LockResponse] {
            assert_eq!(text(lock, command, 0), "lock 12 value 5 result 1");
        }
        let unknown = NotificationWord(0).with_command(9).raw();
        assert_eq!(content([1, unknown]), "address 0x1 size 1");
    }
}
