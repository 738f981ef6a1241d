// SPDX-License-Identifier: GPL-2.0-only

//! Output of a command as `key value` lines.

use kernel::{fmt, prelude::*, str::CString};

/// Text of the output.
pub(crate) struct Report<'a>(pub(crate) &'a mut KVec<u8>);

impl Report<'_> {
    /// Appends a line.
    pub(crate) fn line(&mut self, args: fmt::Arguments<'_>) -> Result {
        let text = CString::try_from_fmt(args)?;
        self.0.extend_from_slice(text.to_bytes(), GFP_KERNEL)?;
        Ok(self.0.push(b'\n', GFP_KERNEL)?)
    }

    /// Appends a line with `key` and a number.
    pub(crate) fn number(&mut self, key: &str, value: u64) -> Result {
        self.line(fmt!("{key} {value}"))
    }

    /// Appends an error line with the reason of a failure, and returns `error`.
    pub(crate) fn fail<T>(&mut self, error: Error, args: fmt::Arguments<'_>) -> Result<T> {
        // Without memory for the text, only the error number is returned.
        let _ = self.line(fmt!("error {args}"));
        Err(error)
    }
}
