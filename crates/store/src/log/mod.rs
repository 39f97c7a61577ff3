//! Logs: the checkpoints of one subject, stored as a sequence of changes. A log consists of segments: files that are
//! written in blocks of 4096 bytes.
//!
//! Owns: writing, compacting, opening and reading logs; see docs/design/0007-continuous-store.md.
//! Invariants: a block is written once. One sync commits a checkpoint. Opening a checkpoint needs a bounded number of
//! index parts. Unneeded segments are removed.
//! Does not: interpret records, or know to which process a page belongs.

mod active_segment;
mod background_writer;
mod clean;
mod commit;
mod compression;
mod delta;
pub(crate) mod here;
mod layout;
mod load;
mod open;
mod options;
mod queue;
pub(crate) mod read;
mod records;
mod room;
mod segments;
pub(crate) mod space;
pub(crate) mod squash;
mod state;
pub(crate) mod table;
mod ticket;
mod worker_thread;
mod writer;
mod writer_task;
mod writer_thread;

pub use here::{Completer, Ticket};
pub(crate) use layout::LOG_DIRECTORY;
pub use options::{LogOptions, LogThreads, RetentionPolicy, SegmentCompression, SizeLimit};
pub use queue::EPOCHS_IN_FLIGHT_MAX;
pub use squash::Squashed;
pub use ticket::{Completion, LogCommitted, LogStatus};
pub use writer::LogWriter;
