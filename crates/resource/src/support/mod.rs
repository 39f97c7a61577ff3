//! Helpers that several kinds share: paths, reopening, content of files and pipes, processes that use a file.
//!
//! Owns: the list of helpers. Each module describes itself.
//! Does not: depend on kinds.

pub(crate) mod content;
pub(crate) mod file_system;
pub(crate) mod finding;
pub(crate) mod fingerprint;
pub(crate) mod generation;
pub(crate) mod identity;
pub(crate) mod inherited;
pub(crate) mod interface;
pub(crate) mod label;
pub(crate) mod lock_line;
pub(crate) mod made_queues;
pub(crate) mod making;
pub(crate) mod marked;
pub(crate) mod nameless;
pub(crate) mod opening;
pub(crate) mod outside;
pub(crate) mod ownership;
pub(crate) mod path;
pub(crate) mod pipe_queue;
pub(crate) mod tmpfs;

#[cfg(test)]
pub(crate) mod kernel_headers;
#[cfg(test)]
pub(crate) mod testing;
