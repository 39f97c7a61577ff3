//! Fuzz targets: functions that must return for any input, without a panic and without memory beyond all measure.
//!
//! Owns: the targets, the repair of checksums in front of them, the mutations of the test that stands in for a fuzzer.
//! Invariants: a target opens no path, and changes nothing outside its own process. [`create_all`] does, and is none.
//! Does not: search; `cargo fuzz` does with the targets of `fuzz/libfuzzer`, and `fuzz/tests/corpus.rs` tries a fixed number of
//! mutations of each seed.
#![forbid(unsafe_code)]

mod descriptors;
mod memory;
mod mutation;
mod payloads;
mod repair;

use std::path::Path;

use image::{ChunkTable, Commit, LogHeader, LogPart, LogRoot, LogSlot, PageIndex, RecordSet};
use store::{ImageReader, Medium};

pub use descriptors::create_all;
pub use memory::{Memory, pack};
pub use mutation::mutate;
pub use payloads::{kinds, of_kind};
pub use repair::{repair, repair_records};

/// Pages of one extent that a target reads at most.
const READ_PAGES_MAX: u64 = 256;

/// A function that takes any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder below `fuzz/corpus`.
    pub name: &'static str,
    /// The function; whether it accepts the bytes.
    pub run: fn(&[u8]) -> bool,
}

/// Every target.
pub const TARGETS: [Target; 6] = [
    Target { name: "parts", run: parts },
    Target { name: "plan", run: plan },
    Target { name: "payloads", run: payloads::check },
    Target { name: "descriptors", run: descriptors::create },
    Target { name: "image", run: whole_image },
    Target { name: "log", run: log },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Decodes any part of an image or a log, as it is and with good checksums.
fn parts(input: &[u8]) -> bool {
    let mut is_accepted = false;
    for bytes in [input, &repair(input)] {
        is_accepted |= LogHeader::decode(bytes).is_ok()
            | LogSlot::decode(bytes).is_ok()
            | LogRoot::decode(bytes).is_ok()
            | Commit::decode(bytes).is_ok()
            | ChunkTable::decode(bytes).is_ok()
            | RecordSet::decode(bytes).is_ok();
        if let Ok(index) = PageIndex::decode(bytes) {
            is_accepted = true;
            let _ = (index.pages(), index.stored_pages());
            for extent in index.extents() {
                assert!(
                    !extent.range().is_empty() && extent.stored().is_none_or(|(_, bytes)| !bytes.is_empty())
                );
            }
        }
        if let Ok(part) = LogPart::decode(bytes) {
            is_accepted = true;
            let pages: usize = part.runs().map(|(_, checksums)| checksums.len()).sum();
            assert!(pages <= bytes.len(), "more checksums than bytes");
        }
    }
    is_accepted
}

/// Decodes and checks the records of an image as a restore does before it makes anything.
fn plan(input: &[u8]) -> bool {
    let records = RecordSet::decode(&repair_records(input));
    records.is_ok_and(|records| engine::check_records(records).is_ok())
}

/// Opens and reads a whole image: files that `pack` has joined, their checksums made good.
fn whole_image(input: &[u8]) -> bool {
    let medium = Memory::unpack(Path::new("/store/job/1"), input);
    read(&medium, Path::new("/store/job/1"))
}

/// Opens and reads the checkpoints of a log: segments that `pack` has joined.
fn log(input: &[u8]) -> bool {
    let medium = Memory::unpack(Path::new("/store/job/log"), input);
    let opened = (0..9).filter(|sequence| read(&medium, Path::new(&format!("/store/job/{sequence}"))));
    opened.count() > 0
}

fn read(medium: &dyn Medium, path: &Path) -> bool {
    let Ok(image) = ImageReader::open_on(medium, path) else { return false };
    let mut buffer = Vec::new();
    for extent in image.index().extents().iter().filter(|extent| extent.pages.get() <= READ_PAGES_MAX) {
        buffer.resize(extent.pages.bytes().get() as usize, 0);
        let _ = image.read_extent(extent, &mut buffer);
    }
    true
}
