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
use super::scribe::Scribe;
use super::space::Kept;
use crate::error::{Error, Result};
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
    let surplus = scribe.kept.len().saturating_sub(keep.max(1));
    let gone: Vec<Sequence> = scribe.kept.drain(..surplus).map(|kept| kept.entry.sequence).collect();
    if !gone.is_empty() {
        let mut root = newest.root;
        root.kept.retain(|kept| !gone.contains(&kept.sequence));
        scribe.commit_again(&root)?;
    }
    scribe.tail.finish();
    Ok(gone)
}

impl Scribe {
    /// Commits the newest checkpoint again, with another root.
    fn commit_again(&mut self, root: &image::LogRoot) -> Result<()> {
        let compressed = self.may_be_compressed();
        let bytes = root.encode(compressed).map_err(|error| Error::encoding(self.tail.directory(), error))?;
        let place = self.tail.blob(&bytes)?;
        self.tail.flush()?;
        if let Some(newest) = self.kept.last_mut() {
            let entry = image::LogKept { root: place.clone(), ..newest.entry.clone() };
            *newest = Kept::new(entry, root.segments.iter().copied());
        }
        self.slot(root.commit.sequence, place)?;
        self.settle()
    }
}
