//! Regular files that the subject may write: their state at a checkpoint, and the comparison at a restore.
//!
//! Owns: the records of files and of their directories, judging a change, truncating a file that only grew.
//! Invariants: a restore reads the content of a file only after its device, inode and type were compared. No file is
//! changed before every file was accepted.
//! Does not: restore the content of larger files. A file that was changed in place refuses the restore.
//!
//! A checkpoint restores memory. A program whose memory is older than its files can destroy them. A database
//! overwrites new pages with old ones, or a log gets lines twice. So the image records the state of each regular file
//! that a process has open for writing or maps shared and writable. The restore compares it.
//!
//! A small file that is written through mappings alone (performance counters of a Java virtual machine) is recorded
//! with its content, which is restored with the memory.
//!
//! Files whose content is part of the image (files without a name, memory files) are not recorded. Neither are files
//! of pseudo file systems such as proc(5).

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
