//! The store: the directory that contains the checkpoints of all subjects.
//!
//! For the writer of a log, an *epoch* is a checkpoint in progress, and a *ticket* is the future result of an epoch.
//! The *root* describes a checkpoint, and a *slot* is the block that publishes a root.
//!
//! Owns: writing, publishing, finding, reading, verifying and pruning images; the registry of backends. An image is one
//! complete checkpoint; a backend stores files.
//! Invariants: an image is committed and complete, or it does not exist. Only the owner of an image can read the image.
//! The checksum of a page is verified before any byte of the page is returned.
//! Does not: interpret records, or know to which process a page belongs.
#![forbid(unsafe_code)]

mod backend;
mod batch;
mod codec;
mod common;
mod copy;
mod error;
mod extents;
mod known_pages;
mod layout;
mod load;
mod lock;
mod log;
mod medium;
mod meta;
mod name;
mod opening;
mod packer;
mod pages;
mod pool;
mod reader;
mod reuse;
mod scheduler;
mod segment;
mod service;
mod sink;
mod staging;
mod stock;
mod store;
mod threads;
mod tidy;
pub mod trust;
mod writer;

pub use backend::directory::Directory;
pub use backend::{BACKENDS, Backend};
pub use batch::{PageBatch, PageChange, Piece};
pub use codec::{CODECS, Codec, Compressor, codec};
pub use common::CommonPages;
pub use error::{Error, Result};
pub use layout::WriteOptions;
pub use load::{LoadedRun, VerifyReport};
pub use log::{
    Completer, Completion, EPOCHS_IN_FLIGHT_MAX, LogCommitted, LogOptions, LogStatus, LogThreads, LogWriter,
    RetentionPolicy, SegmentCompression, SizeLimit, Squashed, Ticket,
};
pub use medium::{Entry, Kind, Lock, Medium, NewFile, PageFile, PageSource, Writes};
pub use meta::{CommitMeta, WriteTimings};
pub use name::SubjectName;
pub use pool::{PagePool, Waits};
pub use reader::ImageReader;
pub use scheduler::{Urgency, Urgent};
pub use service::StorageService;
pub use sink::{Base, CheckpointSink, OpenCheckpoint, PageSink};
pub use staging::is_staging_name;
pub use stock::{BufferStock, held_memory_max, held_memory_most};
pub use store::{Store, StoreEntry};
pub use tidy::Garbage;
pub use writer::ImageWriter;
