//! Options of a checkpoint.
//!
//! Owns: the options.
//! Does not: act on them.

use model::{Inode, Sequence};

/// What a checkpoint is told.
#[derive(Clone, Debug, Default)]
pub struct CheckpointOptions {
    /// End the subject once the image is committed.
    pub kill: bool,
    /// Accept that connections to outside the tree come back as ended by the peer.
    pub lose_connections: bool,
    /// The subject's name in the commit record; empty for one without a name.
    pub name: String,
    /// The checkpoint's number.
    pub sequence: Sequence,
    /// Files that the restorer will hold itself (its standard streams): device and inode.
    pub inherited: Vec<(u64, Inode)>,
}
