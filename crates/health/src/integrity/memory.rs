//! What pages were before.
//!
//! Owns: the checksums of the pages of files, and the contents of pages that differed in their first pass.
//! Invariants: the checksums of a file outlive an incarnation, so that damage of the page cache is found in the next one
//! as well. What was learnt of a process does not outlive it.
//! Does not: read pages.

use std::collections::{HashMap, HashSet};

use model::{Address, ProcessKey};

use super::process::{FileId, Mapping};

/// Pages whose whole content is kept: 4 MiB. Of further ones the checksum is kept, and not how many bits differ.
const CONTENTS_MAX: usize = 1024;

/// What is known of the pages of a tree.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The checksum of each page of each file.
    files: HashMap<FileId, HashMap<u64, u32>>,
    /// Pages that are not those of their file.
    learnt: HashMap<(ProcessKey, Address), Learnt>,
    contents: usize,
    /// Changes of the page cache that were reported: the checksum that the page has since.
    reported: HashMap<(FileId, u64), u32>,
    /// The loaded files that the pass before has compared.
    known: HashSet<Loaded>,
}

/// A file in a process, by where its first byte would be. Mappings that mprotect(2) has split have it in common.
type Loaded = (ProcessKey, FileId, u64);

/// What a page was when it was learnt.
#[derive(Debug)]
pub(super) enum Learnt {
    Content(Box<[u8]>),
    Sum(u32),
}

impl Memory {
    /// Forgets the processes of an incarnation.
    pub(super) fn begin_incarnation(&mut self) {
        let files = std::mem::take(&mut self.files);
        *self = Self { files, ..Self::default() };
    }

    /// A pass over these mappings has ended: forgets what belongs to others.
    pub(super) fn end_pass(&mut self, mappings: &[Mapping]) {
        self.known = mappings.iter().map(loaded).collect();
        let files: HashSet<FileId> = mappings.iter().map(|mapping| mapping.file).collect();
        let processes: HashSet<ProcessKey> = mappings.iter().map(|mapping| mapping.process).collect();
        // A tree that has ended leaves the files of its last pass for the next incarnation.
        if !files.is_empty() {
            self.files.retain(|file, _| files.contains(file));
        }
        self.reported.retain(|(file, _), _| files.contains(file));
        self.learnt.retain(|(process, _), _| processes.contains(process));
        self.contents = self.learnt.values().filter(|one| matches!(one, Learnt::Content(_))).count();
    }

    /// Whether no pass has compared the file of a mapping, as it is loaded there, yet.
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

    /// Takes a page for right as it is.
    pub(super) fn learn(&mut self, process: ProcessKey, at: Address, content: &[u8]) {
        self.forget(process, at);
        let learnt = if self.contents < CONTENTS_MAX {
            self.contents += 1;
            Learnt::Content(content.into())
        } else {
            Learnt::Sum(crc32c::crc32c(content))
        };
        self.learnt.insert((process, at), learnt);
    }

    /// The page is that of its file again.
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
            Self::Sum(sum) => *sum == crc32c::crc32c(content),
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
