//! Answers questions of a descriptor kind about the whole subject during a checkpoint.
//!
//! To save one description, a kind may need facts about other descriptions or about mappings. For example, the kind
//! needs the peer of a socket, or must know whether the subject maps a file. Without an index, each of these queries
//! would search all descriptions.
//!
//! Owns: queries over all descriptions and mappings, and the indexes for these queries.
//! Invariants: each index is built at its first use. A scope does not change after its creation.
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

/// The descriptions, descriptors and mappings of the whole subject, for the kinds.
#[derive(Debug)]
pub struct CaptureScope<'a> {
    /// Processes of the subject.
    pub pids: &'a [Pid],
    /// All descriptions of the subject, by id.
    pub descriptions: &'a [Arc<Known>],
    /// Duplicates of all descriptions, in the order of `descriptions`. Empty while the subject runs.
    pub open: &'a [Description],
    /// Device and inode of each file that the restoring process inherits and passes to the subject, for example as
    /// its standard streams.
    pub inherited: &'a [(u64, Inode)],
    /// Every descriptor of every process: pid, fd and description. The rows of a process are consecutive and sorted
    /// by fd.
    pub table: &'a [(Pid, Fd, DescriptionId)],
    /// Set when the subject is killed after the checkpoint. The restored subject can then take over TCP connections.
    pub kills: bool,
    /// Set when connections to processes outside the subject are restored as connections that the peer has closed.
    pub loses_connections: bool,
    /// State that all sockets of the subject share.
    pub sockets: &'a Sockets,
    /// The mappings of every process. Inside the pause, these mappings were read in this pause. Before the pause, the
    /// subject may have changed its mappings since they were read.
    pub mappings: Vec<(Pid, Cow<'a, [Mapping]>)>,
    /// Indexes over the fields of this scope.
    pub index: ScopeIndex,
}

impl CaptureScope<'_> {
    /// Reports whether the restoring process inherits the file and passes it to the subject.
    #[must_use]
    pub fn is_inherited(&self, stat: &Stat) -> bool {
        self.inherited.contains(&(stat.st_dev, Inode(stat.st_ino)))
    }

    /// Reports whether the subject maps the file of a description. If so, the memory kinds (code that saves mappings)
    /// save the content of the file. The file of a mapping is compared by inode number and name, because two file
    /// systems can use the same inode number. The suffix ` (deleted)` of a name is ignored.
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

    /// Reports whether the subject can write to the file of a description through a shared mapping. If so, the memory
    /// kinds save the content of the file, even if the file has a name. A mapping whose flags are unknown counts as
    /// writable. The flags are unknown if the mapping was found in the pause for the first time.
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

    /// Calls `use_it` with a duplicate of a description. Inside the pause, the duplicate is taken from `open`. Before
    /// the pause, the duplicate exists only during the call. Returns `None` if the description no longer exists.
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

    /// Returns a process and an fd that refer to a description. If `open` contains a duplicate, returns this process
    /// and the fd of the duplicate. If not, returns a process of the subject. The subject is then running, and may
    /// have reused the fd for another description.
    pub(crate) fn place_of(&self, known: &Known) -> (Pid, Fd) {
        let open = self.open.get(known.id.get() as usize);
        let own = open.map(|open| (Pid(std::process::id() as i32), Fd(open.duplicate.as_raw_fd())));
        own.unwrap_or((known.pid, known.fd))
    }
}

/// The indexes of one scope. The first query that needs an index builds this index.
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

    /// Returns the description of the socket with this inode, if the socket belongs to the subject.
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

    /// Reports whether any process of the subject has a descriptor of a description. A description that is in flight
    /// in a socket may have no descriptor.
    #[must_use]
    pub fn is_held(&self, id: DescriptionId) -> bool {
        self.index.held.get_or_init(|| self.table.iter().map(|row| row.2).collect()).contains(&id)
    }

    /// Returns the description to which the descriptor `fd` of a process refers.
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
