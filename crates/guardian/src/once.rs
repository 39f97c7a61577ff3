//! One checkpoint of a process tree, on request.
//!
//! Owns: where its image goes.
//! Does not: anything to the subject that the engine does not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::CheckpointOptions;
use model::{ByteCount, PageCount, Pid, Sequence};
use store::{Codec, ImageWriter, WriteOptions};

use crate::ancestry;
use crate::error::{GuardianError, Result};
use crate::guarded::name_guardian_in;
use crate::inspection::{require_features, require_restorable};
use crate::signals;
use crate::streams::Streams;

/// What `checkpoint` is asked.
#[derive(Clone, Debug)]
pub struct CheckpointRequest {
    /// The root of the tree.
    pub pid: Pid,
    /// The directory that becomes the image.
    pub image: PathBuf,
    /// End the tree once the image is committed.
    pub kill: bool,
    /// Accept that connections to outside the tree come back as ended by the peer.
    pub lose_connections: bool,
    /// How its pages are compressed, if they are.
    pub compression: Option<&'static dyn Codec>,
}

/// What `checkpoint` has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpointed {
    /// How long the subject stood still.
    pub pause: Duration,
    /// From the first look to the durable image.
    pub total: Duration,
    /// Pages in the image.
    pub pages: PageCount,
    /// Bytes of the image.
    pub bytes: ByteCount,
}

/// Takes one checkpoint.
///
/// # Errors
///
/// Whatever the engine refuses or the store cannot hold; the tree goes on then.
pub fn checkpoint(request: &CheckpointRequest) -> Result<Checkpointed> {
    require_features()?;
    require_restorable()?;
    signals::outlive_failed_writes()?;
    ancestry::refuse(request.pid)?;
    require_parent(&request.image)?;
    let write = WriteOptions { codec: request.compression, ..WriteOptions::default() };
    let writer = ImageWriter::create(&request.image, write)?;
    let options = CheckpointOptions {
        kill: request.kill,
        lose_connections: request.lose_connections,
        name: String::new(),
        sequence: Sequence(1),
        inherited: Streams::standard()?.identities(),
    };
    let report = engine::checkpoint(request.pid, Box::new(writer), &options).map_err(name_guardian_in)?;
    Ok(Checkpointed {
        pause: report.commit.timings.pause,
        total: report.total,
        pages: report.commit.pages,
        bytes: report.commit.bytes,
    })
}

/// Refuses an image whose parent directory does not exist. A directory is not made: its name may be misspelt, and its
/// owner and mode are the operator's choice.
fn require_parent(image: &Path) -> Result<()> {
    let is_missing = |parent: &&Path| !parent.as_os_str().is_empty() && !parent.exists();
    let missing = image.parent().filter(is_missing).map(Path::to_path_buf);
    missing.map_or(Ok(()), |parent| Err(GuardianError::NoParent { image: image.to_path_buf(), parent }))
}
