//! The files of an image in its directory.
//!
//! Owns: the names of the files that every image has, and the options of writing one.
//! Does not: write.

use std::num::NonZeroUsize;
use std::path::Path;

use model::PageCount;

use crate::codec::Codec;

/// The commit record's name.
pub(crate) const COMMIT_FILE: &str = "commit";
pub(crate) const RECORDS_FILE: &str = "records";
pub(crate) const INDEX_FILE: &str = "index";

/// How an image is written.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Buffers in circulation at most.
    pub buffers: NonZeroUsize,
    /// Pages that a buffer holds.
    pub buffer_pages: PageCount,
    /// What compresses the pages; none, and they are stored as they are.
    pub codec: Option<&'static dyn Codec>,
}

impl Default for WriteOptions {
    /// 8 buffers of 2 MiB: a huge page each, which the device reads fastest, and enough to keep it busy while
    /// some are filled and one is hashed; measured with `examples/throughput.rs`.
    fn default() -> Self {
        const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");
        Self { buffers: BUFFERS, buffer_pages: PageCount(512), codec: None }
    }
}

/// The directory that holds a path's last component.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
