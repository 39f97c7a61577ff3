//! A medium in memory that holds what the fuzzer gives.
//!
//! Owns: the archive that joins several files into one input; reading from it.
//! Invariants: nothing is written; what is no archive is an empty directory.
//! Does not: imitate a disk; `store` has one in its tests that does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{Checksum, Commit, SealedFile};
use model::ByteCount;
use store::{Entry, Kind, Lock, Medium, NewFile, PageFile, PageSource, Writes};
use sys::direct_io::Rings;
use sys::{Errno, Error, Result};

use crate::repair::{repair, repair_records};

/// Bytes of a block of a log.
const BLOCK_BYTES: usize = 4096;
/// Blocks of a segment that have an envelope: the header and the slots.
const HEAD_BLOCKS: usize = 16;

/// Files of one directory.
#[derive(Debug)]
pub struct Memory {
    directory: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// Joins files: for each the length of its name (1), the name, the length of its content (4), the content.
#[must_use]
pub fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        archive.push(name.len() as u8);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(&(content.len() as u32).to_le_bytes());
        archive.extend_from_slice(content);
    }
    archive
}

impl Memory {
    /// The files of an archive in a directory, with their envelopes repaired; as many as are whole.
    #[must_use]
    pub fn unpack(directory: &Path, mut archive: &[u8]) -> Self {
        let mut files = BTreeMap::new();
        while let Some((name, content, rest)) = next_file(archive) {
            files.insert(directory.join(name), sound(name, content));
            archive = rest;
        }
        let mut memory = Self { directory: directory.to_path_buf(), files };
        memory.name_what_is_there();
        memory
    }

    /// Has the commit record give the lengths and checksums of the files that are there.
    fn name_what_is_there(&mut self) {
        let path = self.directory.join("commit");
        let Some(mut commit) = self.files.get(&path).and_then(|bytes| Commit::decode(bytes).ok()) else {
            return;
        };
        let is_there = |file: &mut SealedFile| {
            if let Some(bytes) = self.files.get(&self.directory.join(&file.name)) {
                (file.length, file.checksum) = (ByteCount(bytes.len() as u64), Checksum::of(bytes));
            }
        };
        is_there(&mut commit.records);
        is_there(&mut commit.index);
        for segment in &mut commit.segments {
            if let Some(packing) = &mut segment.packing {
                is_there(&mut packing.chunks);
            }
            if let Some(bytes) = self.files.get(&self.directory.join(&segment.name)) {
                segment.length = ByteCount(bytes.len() as u64);
            }
        }
        if let Ok(bytes) = commit.encode() {
            self.files.insert(path, bytes);
        }
    }

    fn find(&self, path: &Path) -> Result<&Vec<u8>> {
        self.files.get(path).ok_or_else(|| Error::path("open", path, Errno::ENOENT))
    }
}

fn next_file(archive: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (length, rest) = archive.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (content, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((name, content, rest))
}

/// A file with the envelopes that its name says repaired.
fn sound(name: &str, content: &[u8]) -> Vec<u8> {
    if name == "records" {
        return repair_records(content);
    }
    if name.ends_with(".seg") && !name.starts_with("pages") {
        let mut content = content.to_vec();
        for block in content.chunks_exact_mut(BLOCK_BYTES).take(HEAD_BLOCKS) {
            let repaired = repair(block);
            block.copy_from_slice(&repaired);
        }
        return content;
    }
    repair(content)
}

impl Medium for Memory {
    fn open_pages(&self, path: &Path) -> store::Result<Box<dyn PageSource>> {
        Ok(Box::new(Pages(self.find(path)?.clone())))
    }

    fn read_file(&self, path: &Path, limit: ByteCount) -> store::Result<Vec<u8>> {
        let content = self.find(path)?;
        let length = content.len().min(usize::try_from(limit.get()).unwrap_or(usize::MAX));
        Ok(content[..length].to_vec())
    }

    fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        let inside = self.files.keys().filter(|file| file.parent() == Some(path));
        let name = |file: &PathBuf| file.file_name()?.to_str().map(str::to_owned);
        Ok(inside.filter_map(name).map(|name| Entry { name, is_directory: false }).collect())
    }

    fn kind(&self, path: &Path) -> Result<Option<Kind>> {
        let is_directory = self.directory.starts_with(path);
        let kind = if is_directory { Kind::Directory { mode: 0o700 } } else { Kind::File };
        Ok((is_directory || self.files.contains_key(path)).then_some(kind))
    }

    fn create_directory(&self, path: &Path) -> Result<()> {
        Err(read_only(path))
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>> {
        Err(read_only(path))
    }

    fn create_pages(&self, path: &Path, _: Writes) -> Result<Box<dyn PageFile>> {
        Err(read_only(path))
    }

    fn create_log(&self, path: &Path, _: ByteCount, _: &Rings) -> Result<Box<dyn PageFile>> {
        Err(read_only(path))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        Err(read_only(path))
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        Err(read_only(path))
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<()> {
        Err(read_only(from))
    }

    fn link(&self, from: &Path, _: &Path) -> Result<()> {
        Err(read_only(from))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        Err(read_only(path))
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        Err(read_only(path))
    }

    fn lock(&self, _: &Path) -> Result<Option<Box<dyn Lock>>> {
        Ok(None)
    }
}

fn read_only(path: &Path) -> Error {
    Error::path("change", path, Errno::EPERM)
}

#[derive(Debug)]
struct Pages(Vec<u8>);

impl PageSource for Pages {
    fn length(&self) -> Result<ByteCount> {
        Ok(ByteCount(self.0.len() as u64))
    }

    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()> {
        let start = usize::try_from(offset.get()).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        match self.0.get(start..end) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(Error::new("read pages", Errno::SHORT)),
        }
        Ok(())
    }
}
