//! Indexes of a scope, so that no kind searches all descriptions for each description.
//!
//! Owns: descriptions by file, descriptions that some process holds, the first row of each process.
//! Invariants: each index is built at its first use, from a scope that does not change.
//! Does not: know kinds.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};

use super::{CaptureScope, Known};

/// The indexes of one scope; `default()` has none yet.
#[derive(Debug, Default)]
pub struct ScopeIndex {
    by_file: OnceCell<HashMap<(u64, Inode), Vec<usize>>>,
    sockets: OnceCell<HashMap<Inode, usize>>,
    held: OnceCell<HashSet<DescriptionId>>,
    first_rows: OnceCell<HashMap<Pid, usize>>,
}

impl<'a> CaptureScope<'a> {
    /// The descriptions of one file (device and inode), by rising number.
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

    /// The description of the subject that is the socket with this inode.
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

    /// Whether some process has a descriptor of a description; one in flight in a socket may have none.
    #[must_use]
    pub fn is_held(&self, id: DescriptionId) -> bool {
        self.index.held.get_or_init(|| self.table.iter().map(|row| row.2).collect()).contains(&id)
    }

    /// The description behind a descriptor of a process.
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
