//! The BPF program of the tracker.
//!
//! Owns: the instructions of the program, and the layout of the region of a file.
//! Invariants: the program has no loop. A folio that does not fit into the region of its file is reported as lost.
//! Does not: load or attach the program.
//!
//! Man page: the kernel's documentation of the BPF instruction set; bpf-helpers(7)
//! Since: as in the module `dirty_tracker`
//! Probe: as in the module `dirty_tracker`
//! Fallback: as in the module `dirty_tracker`

use std::os::fd::AsFd;

use crate::bpf::Map;
use crate::bpf::assembler::{
    ADD, ADD_CONSTANT, AND_CONSTANT, Assembler, EIGHTH, FIRST, FRAME, IF_ABOVE, IF_EQUAL, Instruction,
    LOAD_LONG, Label, MAP_LOOKUP, MOVE, MOVE_CONSTANT, NINTH, RESULT, SECOND, SEVENTH, SHIFT_LEFT_BY,
    SHIFT_RIGHT, SIXTH, STORE_CONSTANT, STORE_WORD, UNLESS_EQUAL,
};
use crate::bpf::types::KernelTypes;
use crate::bpf::words::Words;
use crate::error::{Errno, Error, Result};

/// A key: the device in the kernel's encoding, and the inode number.
pub(super) const KEY_BYTES: usize = 16;
/// A value: the index of the first word of the region of the file, and the number of pages of the region.
pub(super) const VALUE_BYTES: usize = 16;
/// The first word of a region is not 0 if a report is lost. Each bit of the other words is a page.
pub(super) const PAGES_AT: usize = 1;
/// Number of pages of a word.
pub(super) const WORD_PAGES: u64 = 64;
/// Maximum number of words of a large folio: MAX_PAGECACHE_ORDER is at most 11.
const FOLIO_WORDS_MAX: i32 = 32;

/// Places on the stack, relative to the frame pointer.
const SCRATCH_AT: i16 = -8;
const KEY_AT: i16 = -24;
const INDEX_AT: i16 = -32;
const COUNT_AT: i16 = -40;
const WORD_AT: i16 = -48;

/// Offsets of the fields that the program reads.
#[derive(Debug)]
pub(super) struct Offsets {
    host: usize,
    inode: usize,
    file_system: usize,
    device: usize,
    index: usize,
    flags: usize,
    count: usize,
    /// The bit of the flags of a folio that has several pages (PG_head).
    large: u32,
}

impl Offsets {
    pub(super) fn of(types: &KernelTypes) -> Result<Self> {
        let at = |structure: &str, field: &str, length: usize| {
            let found = types.find(structure, field)?;
            if found.pointers.is_empty() && found.length == length {
                Ok(found.offset)
            } else {
                Err(Error::new(format!("find {field} with {length} bytes"), Errno::EINVAL))
            }
        };
        Ok(Self {
            host: at("address_space", "host", 8)?,
            inode: at("inode", "i_ino", 8)?,
            file_system: at("inode", "i_sb", 8)?,
            device: at("super_block", "s_dev", 4)?,
            index: at("folio", "index", 8)?,
            flags: at("folio", "flags", 8)?,
            // The name until Linux 6.14.
            count: at("folio", "_nr_pages", 4).or_else(|_| at("folio", "_folio_nr_pages", 4))?,
            large: types.constant("pageflags", "PG_head")?,
        })
    }
}

/// Returns the program that marks the pages of a folio. Its context is `struct folio *` and `struct address_space *`.
pub(super) fn mark(
    offsets: &Offsets,
    files: &Map<KEY_BYTES, VALUE_BYTES>,
    words: &Words,
) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (large, lost, out) = (code.label(), code.label(), code.label());
    let [index, region, pages] = [SEVENTH, EIGHTH, NINTH];
    let count = SIXTH;
    code.push(LOAD_LONG, SEVENTH, FIRST, 0, 0);
    code.push(LOAD_LONG, EIGHTH, FIRST, 8, 0);
    find_region(&mut code, offsets, files, out);
    code.push(LOAD_LONG, region, RESULT, 0, 0);
    code.push(LOAD_LONG, pages, RESULT, 8, 0);
    read_extent(&mut code, offsets);
    code.push(LOAD_LONG, index, FRAME, INDEX_AT, 0);
    code.push(LOAD_LONG, count, FRAME, COUNT_AT, 0);
    code.push(MOVE, FIRST, index, 0, 0);
    code.push(ADD, FIRST, count, 0, 0);
    code.jump_if_above(FIRST, pages, lost);
    // The index of a folio is a multiple of its number of pages, which is a power of two.
    code.jump(IF_ABOVE, count, WORD_PAGES as i32 / 2, large);
    let bits = NINTH;
    code.push(MOVE_CONSTANT, bits, 0, 0, 1);
    code.push(SHIFT_LEFT_BY, bits, count, 0, 0);
    code.push(ADD_CONSTANT, bits, 0, 0, -1);
    code.push(MOVE, SECOND, index, 0, 0);
    code.push(AND_CONSTANT, SECOND, 0, 0, WORD_PAGES as i32 - 1);
    code.push(SHIFT_LEFT_BY, bits, SECOND, 0, 0);
    find_word(&mut code, words, (index, region), 0, out);
    code.set_bits(RESULT, bits);
    code.jump_always(out);
    code.place(large);
    for word in 0..FOLIO_WORDS_MAX {
        find_word(&mut code, words, (index, region), word, out);
        code.push(STORE_CONSTANT, RESULT, 0, 0, -1);
        let more = code.label();
        code.jump(IF_ABOVE, count, (word + 1) * WORD_PAGES as i32, more);
        code.jump_always(out);
        code.place(more);
    }
    code.place(lost);
    code.push(STORE_WORD, FRAME, region, WORD_AT, 0);
    look_up(&mut code, words, out);
    code.push(STORE_CONSTANT, RESULT, 0, 0, 1);
    code.place(out);
    code.exit(0);
    code.finish()
}

/// Sets `RESULT` to the value of the file of the mapping in `EIGHTH`. Jumps to `out` if the file is not tracked.
fn find_region(code: &mut Assembler, offsets: &Offsets, files: &Map<KEY_BYTES, VALUE_BYTES>, out: Label) {
    code.read(SCRATCH_AT, 8, (EIGHTH, offsets.host));
    code.push(LOAD_LONG, NINTH, FRAME, SCRATCH_AT, 0);
    code.read(KEY_AT + 8, 8, (NINTH, offsets.inode));
    code.read(SCRATCH_AT, 8, (NINTH, offsets.file_system));
    code.push(LOAD_LONG, NINTH, FRAME, SCRATCH_AT, 0);
    code.push(STORE_CONSTANT, FRAME, 0, KEY_AT, 0);
    code.read(KEY_AT, 4, (NINTH, offsets.device));
    code.load_map(FIRST, files.as_fd());
    code.address(SECOND, KEY_AT);
    code.call(MAP_LOOKUP);
    code.jump(IF_EQUAL, RESULT, 0, out);
}

/// Writes index and number of pages of the folio in `SEVENTH` to the stack.
fn read_extent(code: &mut Assembler, offsets: &Offsets) {
    let (is_large, done) = (code.label(), code.label());
    code.read(INDEX_AT, 8, (SEVENTH, offsets.index));
    code.read(SCRATCH_AT, 8, (SEVENTH, offsets.flags));
    code.push(LOAD_LONG, FIRST, FRAME, SCRATCH_AT, 0);
    code.push(SHIFT_RIGHT, FIRST, 0, 0, offsets.large as i32);
    code.push(AND_CONSTANT, FIRST, 0, 0, 1);
    code.push(STORE_CONSTANT, FRAME, 0, COUNT_AT, 1);
    code.jump(UNLESS_EQUAL, FIRST, 0, is_large);
    code.jump_always(done);
    code.place(is_large);
    code.push(STORE_CONSTANT, FRAME, 0, COUNT_AT, 0);
    code.read(COUNT_AT, 4, (SEVENTH, offsets.count));
    code.place(done);
}

/// Sets `RESULT` to the address of the word of a page, plus `further` words.
fn find_word(code: &mut Assembler, words: &Words, (index, region): (u8, u8), further: i32, out: Label) {
    code.push(MOVE, FIRST, index, 0, 0);
    code.push(SHIFT_RIGHT, FIRST, 0, 0, WORD_PAGES.trailing_zeros() as i32);
    code.push(ADD, FIRST, region, 0, 0);
    code.push(ADD_CONSTANT, FIRST, 0, 0, PAGES_AT as i32 + further);
    code.push(STORE_WORD, FRAME, FIRST, WORD_AT, 0);
    look_up(code, words, out);
}

fn look_up(code: &mut Assembler, words: &Words, out: Label) {
    code.load_map(FIRST, words.as_fd());
    code.address(SECOND, WORD_AT);
    code.call(MAP_LOOKUP);
    code.jump(IF_EQUAL, RESULT, 0, out);
}
