//! The fingerprint of a file's content. A file that was installed again has another inode and other times, and the same
//! fingerprint.
//!
//! Owns: the fingerprint in a record: the build ID of a program or library, else a checksum of the whole content.
//! Invariants: a file is read only after the caller has found it to be a regular file.
//! Does not: prove that two files with one build ID are equal byte for byte. The linker computes the build ID from the
//! content, and the caller compares the sizes, too. A tool that edits a linked file in place, keeps its size and keeps
//! its build ID is not noticed.

use std::fmt;
use std::os::fd::BorrowedFd;

use image::Checksum;
use prost::Message;
use rustix::io::{pread, retry_on_intr};

/// The maximum size in bytes of a file without a build ID that gets a checksum. The checksum takes about 5 ms.
const SUM_BYTES_MAX: u64 = 16 << 20;
const CHUNK_BYTES: usize = 256 << 10;
/// Limits for the parts of an ELF file that are read.
const PROGRAM_HEADERS_MAX: usize = 64;
const NOTES_BYTES_MAX: usize = 4096;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_NOTE: u64 = 4;
const NT_GNU_BUILD_ID: u64 = 3;

/// The fingerprint of a file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Fingerprint {
    /// The build ID in the notes of an ELF file; empty for a file without one.
    #[prost(bytes = "vec", tag = "1")]
    build_id: Vec<u8>,
    /// The CRC-32C of the whole content; `None` for a file with a build ID.
    #[prost(uint32, optional, tag = "2")]
    sum: Option<u32>,
}

impl Fingerprint {
    /// Returns the fingerprint of a readable file of `size` bytes. Returns `None` if the file has no build ID and is
    /// larger than [`SUM_BYTES_MAX`], or if the file cannot be read.
    pub(crate) fn of(file: BorrowedFd<'_>, size: u64) -> Option<Self> {
        if let Some(build_id) = build_id(file) {
            return Some(Self { build_id, sum: None });
        }
        let sum = if size <= SUM_BYTES_MAX { Some(sum(file, size)?) } else { None };
        sum.map(|sum| Self { build_id: Vec::new(), sum: Some(sum) })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sum {
            Some(sum) => write!(f, "CRC-32C {sum:08x}"),
            None => {
                write!(f, "build ID ")?;
                self.build_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

fn sum(file: BorrowedFd<'_>, size: u64) -> Option<u32> {
    let mut buffer = vec![0; CHUNK_BYTES.min(size as usize)];
    let (mut sum, mut at) = (Checksum::default(), 0);
    while at < size {
        let length = (size - at).min(CHUNK_BYTES as u64) as usize;
        read(file, &mut buffer[..length], at)?;
        sum = sum.extend(&buffer[..length]);
        at += length as u64;
    }
    Some(sum.get())
}

/// Reads the build ID of a 64-bit little-endian ELF file; see elf(5).
fn build_id(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut header = [0; HEADER_BYTES];
    read(file, &mut header, 0)?;
    if header[..6] != *b"\x7fELF\x02\x01" || number(&header, 54, 2)? != PROGRAM_HEADER_BYTES as u64 {
        return None;
    }
    let count = (number(&header, 56, 2)? as usize).min(PROGRAM_HEADERS_MAX);
    let mut table = vec![0; count * PROGRAM_HEADER_BYTES];
    read(file, &mut table, number(&header, 32, 8)?)?;
    let notes = table.chunks_exact(PROGRAM_HEADER_BYTES).filter(|row| number(row, 0, 4) == Some(PT_NOTE));
    notes.filter_map(|row| notes_of(file, row)).find_map(|notes| build_id_in(&notes))
}

fn notes_of(file: BorrowedFd<'_>, row: &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(number(row, 32, 8)?).ok()?.min(NOTES_BYTES_MAX);
    let mut notes = vec![0; length];
    read(file, &mut notes, number(row, 8, 8)?)?;
    Some(notes)
}

/// A note consists of the lengths of name and content, a type, the name and the content. Name and content are padded
/// to 4 bytes.
fn build_id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    const NAME_AT: usize = 12;
    loop {
        let name = number(notes, 0, 4)? as usize;
        let content = number(notes, 4, 4)? as usize;
        let at = NAME_AT.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = at.checked_add(content)?;
        let is_it = number(notes, 8, 4)? == NT_GNU_BUILD_ID && notes.get(NAME_AT..NAME_AT + 4)? == b"GNU\0";
        if is_it {
            return notes.get(at..end).filter(|id| !id.is_empty()).map(<[u8]>::to_vec);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..length].copy_from_slice(bytes.get(at..at + length)?);
    Some(u64::from_le_bytes(word))
}

fn read(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Option<()> {
    let mut done = 0;
    while done < buffer.len() {
        let at = offset.checked_add(done as u64)?;
        match retry_on_intr(|| pread(file, &mut buffer[done..], at)).ok()? {
            0 => return None,
            count => done += count,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn of(content: &[u8]) -> Option<Fingerprint> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(content, 0).unwrap();
        Fingerprint::of(file.as_fd(), content.len() as u64)
    }

    #[test]
    fn equal_content_has_equal_fingerprints() {
        let long = vec![7; CHUNK_BYTES + 5];
        assert!(of(b"").is_some() && of(&long).is_some());
        assert_eq!(of(&long), of(&long));
        assert_ne!(of(b"one"), of(b"two"));
        assert_eq!(of(b"123456789").unwrap().to_string(), "CRC-32C e3069283");
    }

    #[test]
    fn the_build_id_of_a_library_is_read() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library =
            maps.lines().find(|line| line.contains("/libc.so")).and_then(|line| line.split(' ').next_back());
        let Some(file) = library.and_then(|path| File::open(path).ok()) else {
            return println!("unsupported: a C library as a file");
        };
        let found = Fingerprint::of(file.as_fd(), file.metadata().unwrap().len()).unwrap();
        if found.sum.is_some() {
            return println!("unsupported: a C library with a build ID");
        }
        assert!(found.to_string().len() > "build ID ".len() + 8, "{found}");
    }

    #[test]
    fn damaged_notes_have_no_build_id() {
        let note = |name: u32, content: u32, kind: u32| [name, content, kind].map(u32::to_le_bytes).concat();
        let whole = [note(4, 3, 3), b"GNU\0abc\0".to_vec()].concat();
        assert_eq!(build_id_in(&whole), Some(b"abc".to_vec()));
        assert_eq!(
            build_id_in(&[note(4, 2, 1), b"GNU\0ab\0\0".to_vec(), whole.clone()].concat()),
            Some(b"abc".to_vec())
        );
        for cut in 0..whole.len() - 1 {
            assert_eq!(build_id_in(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(build_id_in(&[note(u32::MAX, u32::MAX, 3), b"GNU\0".to_vec()].concat()), None);
    }
}
