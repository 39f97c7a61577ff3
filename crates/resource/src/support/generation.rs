//! The generation of a program: a memory file by which a program notices that it was restored.
//!
//! A program opts in: it creates a memory file (memfd_create(2)) with the name [`NAME`], and reads or maps it. Each
//! restore changes the first bytes of the file. The idea is that of vmgenid, the generation of a virtual machine.
//!
//! Owns: the name of the file and the layout of its bytes. Bytes 0 to 7 are a counter in the byte order of the machine,
//! which each restore increments. Bytes 8 to 23 are random, and new after each restore.
//! Invariants: no byte beyond the length of the file is written, so a shorter file has only a part of the layout.
//! Does not: create such a file.

use std::os::fd::AsFd;

use rustix::rand::{GetRandomFlags, getrandom};
use sys::Error;

use crate::error::Result;

/// The name of the memory file.
pub(crate) const NAME: &str = "undying-generation";
const COUNTER_BYTES: usize = 8;
const RANDOM_BYTES: usize = 16;

/// Changes the generation in a memory file whose content was restored. Does nothing for a file of another name.
pub(crate) fn advance(name: &[u8], file: impl AsFd) -> Result<()> {
    if name != NAME.as_bytes() {
        return Ok(());
    }
    let failed = |errno| Error::new("change the generation", errno);
    let length = rustix::fs::fstat(&file).map_err(failed)?.st_size as usize;
    let mut bytes = [0; COUNTER_BYTES + RANDOM_BYTES];
    let (counter, random) = bytes.split_at_mut(COUNTER_BYTES);
    rustix::io::pread(&file, &mut *counter, 0).map_err(failed)?;
    let before = u64::from_ne_bytes(counter.try_into().expect("the slice has the length of a counter"));
    counter.copy_from_slice(&before.wrapping_add(1).to_ne_bytes());
    getrandom(random, GetRandomFlags::empty()).map_err(failed)?;
    rustix::io::pwrite(&file, &bytes[..length.min(bytes.len())], 0).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn after(content: &[u8], name: &[u8]) -> Vec<u8> {
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        advance(name, &file).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn only_the_counter_and_the_random_bytes_change() {
        let mut content = vec![7; 32];
        content[..8].copy_from_slice(&41_u64.to_ne_bytes());
        let (one, other) = (after(&content, NAME.as_bytes()), after(&content, NAME.as_bytes()));
        assert_eq!((&one[..8], &one[24..]), (&42_u64.to_ne_bytes()[..], &content[24..]));
        assert_ne!(one[8..24], other[8..24], "two restores of one image differ");
        assert_eq!(after(&content, b"other"), content);
        assert_eq!(after(&[], NAME.as_bytes()), [] as [u8; 0]);
        assert_eq!(after(&8_u64.to_ne_bytes(), NAME.as_bytes()), 9_u64.to_ne_bytes());
    }
}
