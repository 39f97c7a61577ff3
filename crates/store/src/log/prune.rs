//! Taking checkpoints out of a log that nobody writes.
//!
//! Owns: committing the newest checkpoint once more, with fewer older ones beside it.
//! Invariants: what is to stay stays readable, whenever the power goes.
//! Does not: touch a log that has a writer; its own policy rules there.

use std::path::Path;
use std::sync::Arc;

use model::{PageCount, Sequence};

use super::open::{self, Opened};
use super::options::{LogOptions, LogThreads};
use super::queue::Shared;
use crate::error::Result;
use crate::medium::Medium;

/// Leaves the newest `keep` checkpoints, at least one, and gives the numbers of those that went.
pub(crate) fn prune(medium: &Arc<dyn Medium>, directory: &Path, keep: usize) -> Result<Vec<Sequence>> {
    let options = LogOptions {
        buffers: std::num::NonZeroUsize::MIN,
        buffer_pages: PageCount(1),
        threads: LogThreads::Caller,
        ..LogOptions::default()
    };
    let shared = Arc::new(Shared::new(1, options.buffer_pages)?);
    let Opened { mut scribe, lock: _lock, newest } = open::open(medium, directory, &options, shared)?;
    let Some(newest) = newest else { return Ok(Vec::new()) };
    let gone = scribe.retention.shorten(keep.max(1));
    if !gone.is_empty() {
        let mut root = newest.root;
        root.kept.retain(|kept| !gone.contains(&kept.sequence));
        // The same checkpoint with another root.
        scribe.retention.pop();
        scribe.publish(&root)?;
        scribe.settle()?;
    }
    scribe.tail.finish();
    Ok(gone)
}
