//! The end of the subject in the undo log.
//!
//! A rollback is complete only if the log contains all changes of the subject. The log states this with an end mark: a
//! last record `ended` or `idle`.
//!
//! Owns: writing these records, and cancelling them when the subject runs again.
//! Does not: find out whether the subject has ended.

use super::UndoLog;
use super::reader::End;
use super::record;
use crate::error::Result;
use crate::key::Time;

impl UndoLog {
    /// Records that the subject has ended `now`. Later changes come from other programs. `shared` are files that the subject shared
    /// with its guardian: device, inode number and length in bytes. The next record cancels this record.
    pub fn ended(&mut self, now: impl FnOnce() -> Time, shared: &[(u64, u64, u64)]) -> Result<()> {
        // Removing a link changes the ctime of its inode. A rollback would take a later change for one of another program.
        self.storage.drain()?;
        let time = now();
        let length = |(device, inode, bytes): &(u64, u64, u64)| record::LengthMessage {
            device: *device,
            inode: *inode,
            bytes: *bytes,
        };
        let lengths = shared.iter().map(length).collect();
        self.append(&record::Ended { time, lengths }, &[])?;
        self.end = End::At(time);
        Ok(())
    }

    /// Records that no process of the subject runs, after a rollback. The next record cancels this record.
    pub fn idle(&mut self) -> Result<()> {
        self.append(&record::Idle {}, &[])?;
        self.end = End::Idle;
        Ok(())
    }

    /// Records that processes of the subject run from now on. Writes nothing if the end of the subject is not recorded.
    pub fn running(&mut self) -> Result<()> {
        if self.end == End::Unknown { Ok(()) } else { self.append(&record::Running {}, &[]) }
    }
}
