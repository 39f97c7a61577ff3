//! Regular files that the subject may write: their state at a checkpoint, and the comparison at a restore.
//!
//! Owns: the records of files and of their directories, the verdict on a change, and truncating a file that only grew.
//! Invariants: a restore reads the content of a file only after device, inode and type were compared. No file is
//! changed before every file was accepted.
//! Does not: restore a file that was changed in place, except a small mapped file. Such a change of another file
//! prevents the restore.
//!
//! A restore sets memory back to the checkpoint. A program whose memory is older than its files can destroy the files.
//! For example, a database overwrites new pages with old pages, or a program appends lines to a log twice. The image
//! therefore records the state of each regular file that a process has open for writing or maps shared and writable.
//! The restore compares the file with the record.
//!
//! A small file that is written only through mappings (performance counters of a Java virtual machine) is recorded
//! with its content. The content is restored together with the memory.
//!
//! Files whose content is part of the image (files without a name, memory files) are not recorded. Files of pseudo
//! file systems such as proc(5) are not recorded either.

mod capture;
mod compare;
pub(crate) mod covered;
mod cut;
mod directory;
mod record;
mod sample;
mod times;

pub use capture::{FileStates, MappedForWriting, is_changeable, is_memory_file};
pub use compare::{ChangedFile, Moment, changed_beside, compare};
pub use covered::Covered;
pub use cut::{Cut, MoveAside};
pub use directory::{Directories, DirectoryRecord};
pub use record::{Effect, FileRecord, of_program};

#[cfg(test)]
mod tests;
