//! Makes a file equal to another file, and writes only what differs.
//!
//! Owns: the comparison of the two files.
//! Does not: set the length of the file.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;

use crate::descriptor::read_at;

const PAGE: usize = 4096;
const BLOCK: usize = 256 * PAGE;

/// Writes the pages of `source` that differ from `present` to `file`. `present` and `file` are the same file. The file
/// has at least the length of `source`.
pub(super) fn update(source: &File, present: &File, file: &File) -> Result<()> {
    let (mut wanted, mut found) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    loop {
        let length = read_at(source, &mut wanted, at)?;
        if length == 0 {
            return Ok(());
        }
        let present = read_at(present, &mut found[..length], at)?;
        let found = found[..present].chunks(PAGE).chain(std::iter::repeat(&[][..]));
        for (index, (wanted, found)) in wanted[..length].chunks(PAGE).zip(found).enumerate() {
            if wanted != found {
                file.write_all_at(wanted, at + (index * PAGE) as u64)?;
            }
        }
        at += length as u64;
    }
}
