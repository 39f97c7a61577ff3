//! Going back: from the files as they are to those of a checkpoint.
//!
//! Owns: which checkpoints can be reached, the steps, their journal, files that are moved aside, conflicts.
//! Invariants: the steps are derived from the present state and a target, so that they can be repeated after a crash;
//! no step follows a symbolic link; what the subject has made is moved aside and never removed.
//! Does not: watch.

use std::path::{Path, PathBuf};

use model::{ByteCount, Sequence};

use crate::error::Result;

/// What happens when a file was changed after the subject had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conflicts {
    /// Nothing is changed; the error names all of them.
    #[default]
    Refuse,
    /// They go back as all others.
    Force,
}

/// What going back has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WentBack {
    /// Files, directories and links that were changed, made again or moved.
    pub changed: usize,
    /// What was moved aside.
    pub aside: Vec<MovedAside>,
    /// Files that can have changed without a trace since the checkpoint: device and inode. The restore compares them.
    pub uncovered: Vec<(u64, u64)>,
}

/// Something that was moved aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedAside {
    /// Where it was.
    pub path: PathBuf,
    /// Where it is.
    pub to: PathBuf,
    /// Its length.
    pub bytes: ByteCount,
}

/// Checkpoints that the log in `directory` leads back to, in rising order, and why no earlier ones.
pub fn reachable(_directory: &Path) -> Result<(Vec<Sequence>, Option<String>)> {
    Ok((Vec::new(), None))
}

/// Takes all files back to a checkpoint, but for those of `leave` (device and inode). Goes on with an earlier call that
/// was interrupted.
///
/// # Errors
///
/// When the log does not lead there, or files are in conflict: nothing was changed. When a step fails (a full disk, an
/// immutable file), the journal says what is left, and the next call goes on.
pub fn go_back(
    _directory: &Path,
    _to: Sequence,
    _conflicts: Conflicts,
    _leave: &[(u64, u64)],
) -> Result<WentBack> {
    Ok(WentBack::default())
}

/// Removes the log in `directory` with the links and copies that it keeps on other file systems. What was moved aside
/// stays. A directory that does not exist is none to remove.
pub fn remove(_directory: &Path) -> Result<()> {
    Ok(())
}

/// What earlier calls have moved aside and what is still there.
pub fn list_aside(_directory: &Path) -> Result<Vec<MovedAside>> {
    Ok(Vec::new())
}
