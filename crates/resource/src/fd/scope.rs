//! Queries of a descriptor kind about the other open file descriptions and the mappings of the subject, during a
//! capture.
//!
//! Owns: queries over all descriptions and mappings, and the indexes for them. Without an index, a kind would search
//! all descriptions for each description.
//! Invariants: each index is built at its first use, from a scope that does not change.
//! Does not: depend on descriptor kinds.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::Stat;
use tracee::procfs::{Backing, Mapping};

use super::description::{Description, GONE, Known, path_of};
use super::sockets::Sockets;

/// The whole subject, as the kinds see it during a capture.
#[derive(Debug)]
pub struct CaptureScope<'a> {
    /// Processes of the subject.
    pub pids: &'a [Pid],
    /// All descriptions of the subject, by id.
    pub descriptions: &'a [Arc<Known>],
    /// Duplicates of all descriptions, in the same order, while the subject is stopped; empty while the subject runs.
    pub open: &'a [Description],
    /// Device and inode of the files that the restoring process will have open itself (its standard streams).
    pub inherited: &'a [(u64, Inode)],
    /// Every descriptor of every process: pid, fd and description. The rows of a process are consecutive and sorted
    /// by fd.
    pub table: &'a [(Pid, Fd, DescriptionId)],
    /// Set when the checkpoint kills the subject, so that its TCP connections may be taken over.
    pub kills: bool,
    /// Set when connections to processes outside the subject are restored as closed by the peer.
    pub loses_connections: bool,
    /// Capture state that all sockets of the subject share.
    pub sockets: &'a Sockets,
    /// The mappings of every process. Inside the pause: the mappings of this pause. Before the pause: the last known
    /// mappings.
    pub mappings: Vec<(Pid, Cow<'a, [Mapping]>)>,
    /// Indexes over all descriptions.
    pub index: ScopeIndex,
}

impl CaptureScope<'_> {
    /// Reports whether the restoring process will have this file open itself.
    #[must_use]
    pub fn is_inherited(&self, stat: &Stat) -> bool {
        self.inherited.contains(&(stat.st_dev, Inode(stat.st_ino)))
    }

    /// Reports whether the subject maps the file of a description, so that the memory kinds (code that saves
    /// mappings) save the content of the file. Two file systems can use the same inode number, so the names are
    /// compared too. The suffix of removed names is ignored.
    #[must_use]
    pub fn maps(&self, description: &Known) -> bool {
        let name = path_of(description);
        let is_shown = |mapping: &Mapping| match &mapping.backing {
            Backing::File { inode, path, .. } if *inode == description.inode() => {
                path == &description.info.target
                    || path.to_str().is_some_and(|path| Path::new(path.trim_end_matches(GONE)) == name)
            }
            _ => false,
        };
        self.mappings.iter().any(|(_, mappings)| mappings.iter().any(is_shown))
    }

    /// Reports whether the subject can write to the file of a description through a shared mapping. The memory kinds
    /// then save the content of the file, even if the file has a name. The flags of a mapping that is first seen in
    /// the pause are unknown; such a mapping counts as writable.
    #[must_use]
    pub(crate) fn saves_shared(&self, description: &Known) -> bool {
        let name = path_of(description);
        let saves = |mapping: &Mapping| match &mapping.backing {
            Backing::File { inode, path, .. } if *inode == description.inode() && *path == name => {
                mapping.protection.shared && (mapping.flags.has("mw") || mapping.flags.is_empty())
            }
            _ => false,
        };
        self.mappings.iter().any(|(_, mappings)| mappings.iter().any(saves))
    }

    /// Calls `use_it` with a duplicate of a description. Inside the pause, uses the duplicate of this pause,
    /// otherwise a temporary duplicate. Returns `None` if the description no longer exists.
    pub(crate) fn with_duplicate<T>(
        &self,
        known: &Arc<Known>,
        use_it: impl FnOnce(&Description) -> T,
    ) -> Option<T> {
        if let Some(open) = self.open.get(known.id.get() as usize) {
            return Some(use_it(open));
        }
        let handle = sys::pidfd::open(known.pid).ok()?;
        Description::beside(known, handle.as_fd()).ok()?.map(|description| use_it(&description))
    }

    /// Returns a process and an fd that refer to a description. If there is a duplicate, returns this process and the
    /// fd of the duplicate. The fd of a running subject may already refer to another description.
    pub(crate) fn place_of(&self, known: &Known) -> (Pid, Fd) {
        let open = self.open.get(known.id.get() as usize);
        let own = open.map(|open| (Pid(std::process::id() as i32), Fd(open.duplicate.as_raw_fd())));
        own.unwrap_or((known.pid, known.fd))
    }
}

/// The indexes of one scope. All indexes are empty at first.
#[derive(Debug, Default)]
pub struct ScopeIndex {
    by_file: OnceCell<HashMap<(u64, Inode), Vec<usize>>>,
    sockets: OnceCell<HashMap<Inode, usize>>,
    held: OnceCell<HashSet<DescriptionId>>,
    first_rows: OnceCell<HashMap<Pid, usize>>,
}

impl<'a> CaptureScope<'a> {
    /// Returns the descriptions of one file (device and inode), sorted by id.
    pub fn of_file(&self, file: (u64, Inode)) -> impl Iterator<Item = &'a Arc<Known>> + use<'a, '_> {
        let by_file = self.index.by_file.get_or_init(|| {
            let mut found: HashMap<_, Vec<usize>> = HashMap::new();
            for (index, known) in self.descriptions.iter().enumerate() {
                found.entry(known.file()).or_default().push(index);
            }
            found
        });
        let descriptions = self.descriptions;
        by_file.get(&file).into_iter().flatten().map(move |index| &descriptions[*index])
    }

    /// Returns the description of the subject that is the socket with this inode.
    #[must_use]
    pub fn socket(&self, inode: Inode) -> Option<&'a Arc<Known>> {
        let sockets = self.index.sockets.get_or_init(|| {
            let mut found = HashMap::new();
            for (index, known) in self.descriptions.iter().enumerate() {
                if known.target().starts_with("socket:") {
                    found.entry(known.inode()).or_insert(index);
                }
            }
            found
        });
        sockets.get(&inode).map(|index| &self.descriptions[*index])
    }

    /// Reports whether any process has a descriptor of a description. A description that is in flight in a socket may
    /// have no descriptor.
    #[must_use]
    pub fn is_held(&self, id: DescriptionId) -> bool {
        self.index.held.get_or_init(|| self.table.iter().map(|row| row.2).collect()).contains(&id)
    }

    /// Returns the description to which a descriptor of a process refers.
    #[must_use]
    pub fn description_of(&self, pid: Pid, fd: Fd) -> Option<DescriptionId> {
        let first_rows = self.index.first_rows.get_or_init(|| {
            let mut found = HashMap::new();
            for (index, row) in self.table.iter().enumerate() {
                found.entry(row.0).or_insert(index);
            }
            found
        });
        let rows = &self.table[*first_rows.get(&pid)?..];
        let place = rows.partition_point(|row| row.0 == pid && row.1 < fd);
        rows.get(place).filter(|row| (row.0, row.1) == (pid, fd)).map(|row| row.2)
    }
}
