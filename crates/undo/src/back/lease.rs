//! The check of leases before a rollback.
//!
//! A *lease* (fcntl(2), F_SETLEASE) makes the kernel delay each open(2) by another program until the holder has agreed,
//! or until `fs.lease-break-time` has passed (45 s). The owner of a file can take a lease on it. A rollback that waited
//! for every lease would keep the subject dead for 45 s per file.
//!
//! Owns: the search for leases on the files whose content a rollback writes, and the limit of the wait for their holders.
//! Invariants: the check changes no file. All holders are asked before the first wait.
//! Does not: prevent a lease that is taken after the check.

use std::path::PathBuf;
use std::time::Duration;

use sys::clock::Deadline;

use super::files::FileSystem;
use super::survey::{Survey, has_other_content};
use crate::error::Result;
use crate::log::target::Target;

/// Maximum time for which a rollback waits for the holders of leases. A file server answers within milliseconds.
const WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the files on which another program still holds a lease after [`WAIT`].
pub(crate) fn held<Files: FileSystem>(
    files: &Files,
    target: &Target,
    survey: &Survey,
) -> Result<Vec<PathBuf>> {
    let mut leased = Vec::new();
    for index in &survey.changed {
        let inode = &target.inodes[*index];
        let has_content = survey.now[*index].as_ref().is_some_and(|now| has_other_content(inode, now));
        if has_content
            && let Some(node) = files.find(&inode.key, &inode.path)?
            && files.is_leased(&node)?
        {
            leased.push((inode.path.clone(), node));
        }
    }
    let deadline = Deadline::after(WAIT);
    while !leased.is_empty() && !deadline.has_passed() {
        std::thread::sleep(PAUSE);
        let mut left = Vec::new();
        for (path, node) in leased {
            if files.is_leased(&node)? {
                left.push((path, node));
            }
        }
        leased = left;
    }
    Ok(leased.into_iter().map(|(path, _)| path).collect())
}
