//! Options of a checkpoint.
//!
//! Owns: the type of the options.
//! Does not: implement the options.

use model::{Inode, Sequence};

/// The options of one checkpoint.
#[derive(Clone, Debug, Default)]
pub struct CheckpointOptions {
    /// Kill the subject after the image is committed.
    pub kill: bool,
    /// Accept the loss of connections to processes outside the tree. A restore shows such a connection as
    /// closed by the peer.
    pub lose_connections: bool,
    /// Keep duplicates of all outside connections, and not only of idle connections. The subject must not run after
    /// the checkpoint.
    pub keep_connections: bool,
    /// The name of the subject in the commit record; empty for a subject without a name.
    pub name: String,
    /// The sequence number of the checkpoint.
    pub sequence: Sequence,
    /// Device and inode of files that the restoring process will have open itself (its standard streams).
    pub inherited: Vec<(u64, Inode)>,
}
