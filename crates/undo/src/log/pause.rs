//! The log during a pause of the subject (docs/design/0056).
//!
//! Owns: the begin and the end of the time in which records are held back.
//! Does not: write held records; `writes` does.

use std::sync::Arc;

use super::UndoLog;
use super::writes::{Prepared, Writes};
#[cfg(test)]
use crate::error::Result;

impl UndoLog {
    /// Holds records back until `end_hold`, because the subject is stopped. They are written by [`Writes::make`], or
    /// before the next record.
    pub fn hold(&self) {
        self.storage.hold();
    }

    /// Ends [`Self::hold`].
    pub fn end_hold(&self) {
        self.storage.end_hold();
    }

    /// Returns what is to be written after a pause. The caller needs no access to the log to write it.
    #[must_use]
    pub fn writes(&self) -> Writes {
        let next = self.spare.is_none().then(|| self.present().ordinal + 1);
        Writes { storage: Arc::clone(&self.storage), next }
    }

    /// Does what follows a pause.
    #[cfg(test)]
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.writes().make()?;
        let prepared = self.writes().prepare()?;
        prepared.into_iter().for_each(|prepared| self.prepared(prepared));
        Ok(())
    }

    /// Takes the file of the next epoch, which was created in advance.
    pub fn prepared(&mut self, next: Prepared) {
        if next.ordinal == self.present().ordinal + 1 && self.spare.is_none() {
            self.spare = Some(next.file);
        }
    }
}
