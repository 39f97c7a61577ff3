//! The files in the directory of an image.
//!
//! Owns: the names of the files that every image contains; the options for writing an image.
//! Does not: write files.

use std::num::NonZeroUsize;
use std::path::Path;

use model::PageCount;

use crate::codec::Codec;

/// The file name of the commit record.
pub(crate) const COMMIT_FILE: &str = "commit";
pub(crate) const RECORDS_FILE: &str = "records";
pub(crate) const INDEX_FILE: &str = "index";

/// Options for writing an image.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// The maximum number of page buffers in use.
    pub buffers: NonZeroUsize,
    /// The number of pages in a buffer.
    pub buffer_pages: PageCount,
    /// The codec that compresses the pages; `None` stores the pages uncompressed.
    pub codec: Option<&'static dyn Codec>,
}

impl Default for WriteOptions {
    /// Returns options with 8 buffers of 2 MiB, without compression. Each buffer is one huge page, because the device
    /// reads such buffers fastest. With eight buffers, the device is busy while some buffers are filled and hashed. The
    /// values were measured with `examples/throughput.rs`.
    fn default() -> Self {
        const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");
        Self { buffers: BUFFERS, buffer_pages: PageCount(512), codec: None }
    }
}

/// Returns the parent directory of `path`; `.` if the path has only one component.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
