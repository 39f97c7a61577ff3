//! Regular files that the subject may write: their state at a checkpoint, and the comparison at a restore.
//!
//! Owns: the records of files and of their directories, how a change is judged, how a file that only grew is cut back.
//! Invariants: a restore reads nothing of a file before its device, inode and type were compared; no file is changed
//! before every file was accepted.
//! Does not: bring the content of larger files back. A file that was changed in place refuses the restore.
//!
//! A checkpoint restores memory. A program whose memory is older than its files can destroy them: a database that
//! writes old pages over new ones, a log whose lines are written twice. So the image records the state of each
//! regular file that a process has open for writing or maps shared and writable, and the restore compares.
//!
//! The content of a small file that is written through mappings alone (performance counters of a Java virtual machine)
//! is recorded, too, and goes back with the memory.
//!
//! Files whose content is part of the image (no name left, memory files) are not recorded, and neither are files of
//! file systems that make up their content, such as proc(5).

mod capture;
mod compare;
pub(crate) mod covered;
mod cut;
mod directory;
mod record;
mod sample;
mod times;

pub use capture::{FileStates, MappedForWriting, is_changeable, is_memory_file};
pub use compare::{ChangedFile, compare};
pub use covered::Covered;
pub use cut::{Cut, MoveAside};
pub use directory::{Directories, DirectoryRecord};
pub use record::{Effect, FileRecord};

#[cfg(test)]
mod tests;
