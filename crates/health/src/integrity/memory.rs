//! The known content of executable pages.
//!
//! Owns: the checksums of the pages of files, and the content of pages that differed from their file in the first pass.
//! Invariants: the checksums of a file are kept for the next incarnation. Damage in the page cache is therefore also
//! found then. All other knowledge is removed when an incarnation ends.
//! Does not: read pages.

use std::collections::{HashMap, HashSet};

use model::{Address, ProcessKey};

use super::process::{FileId, Mapping};

/// Maximum number of pages whose content is stored: 4 MiB. For further pages, only the checksum is stored. The number
/// of changed bits is then not known.
const CONTENTS_MAX: usize = 1024;

/// The known content of the pages of a process tree.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The checksum of each page of each file, by the number of the page in the file.
    files: HashMap<FileId, HashMap<u64, u32>>,
    /// Pages of processes whose content differs from the file and is accepted.
    learnt: HashMap<(ProcessKey, Address), Learnt>,
    contents: usize,
    /// Reported changes of the page cache: for each page, the checksum of the changed content.
    reported: HashMap<(FileId, u64), u32>,
    /// The loaded files that the previous pass has compared.
    known: HashSet<Loaded>,
}

/// A file in a process, identified by the address of the first byte of the file. Mappings that mprotect(2) has split
/// share this address.
type Loaded = (ProcessKey, FileId, u64);

/// The accepted content of a page.
#[derive(Debug)]
pub(super) enum Learnt {
    Content(Box<[u8]>),
    Sum(u32),
}

impl Memory {
    /// Removes all knowledge of the processes of the previous incarnation, and keeps the checksums of files.
    pub(super) fn begin_incarnation(&mut self) {
        let files = std::mem::take(&mut self.files);
        *self = Self { files, ..Self::default() };
    }

    /// Ends a pass over `mappings`: removes all knowledge of files and processes that are not in `mappings`.
    pub(super) fn end_pass(&mut self, mappings: &[Mapping]) {
        self.known = mappings.iter().map(loaded).collect();
        let files: HashSet<FileId> = mappings.iter().map(|mapping| mapping.file).collect();
        let processes: HashSet<ProcessKey> = mappings.iter().map(|mapping| mapping.process).collect();
        // After the tree has ended, the files of its last pass are kept for the next incarnation.
        if !files.is_empty() {
            self.files.retain(|file, _| files.contains(file));
        }
        self.reported.retain(|(file, _), _| files.contains(file));
        self.learnt.retain(|(process, _), _| processes.contains(process));
        self.contents = self.learnt.values().filter(|one| matches!(one, Learnt::Content(_))).count();
    }

    /// Reports whether no pass has yet compared the file of `mapping` in its process.
    pub(super) fn is_new(&self, mapping: &Mapping) -> bool {
        !self.known.contains(&loaded(mapping))
    }

    pub(super) fn sum_of_file(&self, file: FileId, page: u64) -> Option<u32> {
        self.files.get(&file)?.get(&page).copied()
    }

    pub(super) fn set_sum_of_file(&mut self, file: FileId, page: u64, sum: u32) {
        self.files.entry(file).or_default().insert(page, sum);
    }

    pub(super) fn learnt(&self, process: ProcessKey, at: Address) -> Option<&Learnt> {
        self.learnt.get(&(process, at))
    }

    /// Accepts the current content of a page.
    pub(super) fn learn(&mut self, process: ProcessKey, at: Address, content: &[u8]) {
        self.forget(process, at);
        let learnt = if self.contents < CONTENTS_MAX {
            self.contents += 1;
            Learnt::Content(content.into())
        } else {
            Learnt::Sum(crc_fast::crc32_iscsi(content))
        };
        self.learnt.insert((process, at), learnt);
    }

    /// Removes the accepted content of a page, which is equal to its file again.
    pub(super) fn forget(&mut self, process: ProcessKey, at: Address) {
        let was_content = matches!(self.learnt.remove(&(process, at)), Some(Learnt::Content(_)));
        self.contents -= usize::from(was_content);
    }

    pub(super) fn reported(&self, file: FileId, page: u64) -> Option<u32> {
        self.reported.get(&(file, page)).copied()
    }

    pub(super) fn report(&mut self, file: FileId, page: u64, sum: u32) {
        self.reported.insert((file, page), sum);
    }
}

impl Learnt {
    pub(super) fn is(&self, content: &[u8]) -> bool {
        match self {
            Self::Content(known) => **known == *content,
            Self::Sum(sum) => *sum == crc_fast::crc32_iscsi(content),
        }
    }

    pub(super) fn content(&self) -> Option<&[u8]> {
        match self {
            Self::Content(known) => Some(known),
            Self::Sum(_) => None,
        }
    }
}

fn loaded(mapping: &Mapping) -> Loaded {
    (mapping.process, mapping.file, mapping.range.start.get().wrapping_sub(mapping.offset))
}
