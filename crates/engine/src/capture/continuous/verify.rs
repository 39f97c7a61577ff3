//! Compares a checkpoint with the stopped subject, page by page. The compared image is read back from the
//! store.
//!
//! Owns: the comparison.
//! Invariants: the pages of the subject are found in the same way as for a single checkpoint, without trackers.
//! Does not: compare records, or report differences in the rseq structure of a thread (rseq(2)). The kernel
//! may write to this structure between the copy and the comparison.

use std::collections::HashMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use image::{Extent, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid, RangeSet, Tid};
use store::ImageReader;
use sys::ptrace;
use tracee::procfs::{Backing, Mapping, Protection};
use tracee::{ProcessMemory, StoppedProcess, StoppedTree};

use super::super::before::Before;
use super::super::copier::read_padded;
use super::super::pages;
use crate::error::{EngineError, Result};
use crate::records::object_space;

/// The state letter in `/proc/PID/stat` of a thread that its tracer has stopped.
const TRACED: char = 't';
/// Number of threads that compare at the same time. `ImageReader::load` starts additional threads, which wait
/// for the device.
const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");
/// Maximum number of differences that are reported with their address.
const REPORTED_MAX: usize = 8;
/// Number of zero bytes that are compared at once.
const ZEROS: ByteCount = ByteCount(64 * PAGE_BYTES);

/// The result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// Number of compared pages.
    pub pages: PageCount,
    /// Number of pages that differ.
    pub differences: PageCount,
    /// The first differences, sorted by process and address.
    pub first: Vec<Difference>,
}

/// A page or guard region that differs between the image and the subject.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Difference {
    /// The process; `None` for a shared object.
    pub pid: Option<Pid>,
    /// The address in the process, or the offset in the shared object.
    pub address: Address,
    /// The mapping that contains the address, similar to a line of `/proc/PID/maps`, and the reason if it or its file cannot be
    /// read. Empty if the mapping is unknown.
    pub mapping: String,
    /// What the image contains for the page: `stored`, `zero`, `absent` or `guard region`.
    pub image: &'static str,
}

/// The values of [`Difference::image`].
const STORED: &str = "stored";
const ZERO: &str = "zero";
const ABSENT: &str = "absent";
const GUARD: &str = "guard region";

/// The source from which the content of an address space or of a shared object is read.
enum Source<'a> {
    Process(ProcessSource<'a>),
    Object(&'a File),
}

struct ProcessSource<'a> {
    pid: Pid,
    memory: &'a ProcessMemory,
    mappings: &'a [Mapping],
    /// The rseq structures of the threads of the process.
    rseqs: Vec<AddressRange>,
}

struct Comparing<'a> {
    sources: HashMap<SpaceId, Source<'a>>,
    pages: AtomicU64,
    found: Mutex<Vec<Difference>>,
}

pub(super) fn compare(before: &mut Before, tree: &StoppedTree, image: &ImageReader) -> Result<Comparison> {
    // The records contain the guard regions that the tracker knows. `pages::scan` replaces these guard
    // regions, so they are saved here, and put back after the scan.
    let known: HashMap<Pid, Vec<AddressRange>> =
        before.processes.living.iter().map(|(pid, process)| (*pid, process.space.guards.clone())).collect();
    let plan = pages::scan(before)?;
    let mut comparing =
        Comparing { sources: HashMap::new(), pages: AtomicU64::new(0), found: Mutex::default() };
    for (pid, guards) in known {
        if let Some(process) = before.processes.living.get_mut(&pid) {
            let found = std::mem::replace(&mut process.space.guards, guards);
            comparing.note_guards(pid, &process.space.guards, &found);
        }
    }
    for stopped in &tree.processes {
        let Some(process) = before.processes.living.get(&stopped.pid) else { continue };
        let source = ProcessSource {
            pid: stopped.pid,
            memory: &process.space.memory,
            mappings: &process.space.mappings,
            rseqs: stopped.threads.iter().filter_map(|thread| rseq_of(thread.tid())).collect(),
        };
        comparing.sources.insert(process.space.id, Source::Process(source));
    }
    for (id, file) in before.objects.saved() {
        comparing.sources.insert(object_space(id), Source::Object(file));
    }
    image.load::<EngineError>(image.index().extents(), THREADS, |run| {
        for (extent, bytes) in run.iter() {
            comparing.compare(extent.space, extent.start, bytes, STORED);
        }
        Ok(())
    })?;
    for extent in image.index().extents().iter().filter(|extent| extent.stored().is_none()) {
        comparing.compare_zeros(extent.space, extent.range(), ZERO);
    }
    for (space, range) in plan.ranges() {
        let extents = image.index().of_space(space);
        let first = extents.partition_point(|extent| extent.range().end <= range.start);
        for missing in pages::without(range, extents[first..].iter().map(Extent::range)) {
            comparing.compare_missing(space, missing);
        }
    }
    let comparison = comparing.finish();
    // If a process was killed during the comparison, its memory no longer exists, so differences mean
    // nothing.
    match tree.processes.iter().find(|stopped| !is_stopped(stopped)) {
        Some(gone) if comparison.differences > PageCount(0) => Err(EngineError::NoProcess(gone.pid)),
        _ => Ok(comparison),
    }
}

/// Reports whether all threads of a process are still stopped by the tracer.
fn is_stopped(process: &StoppedProcess) -> bool {
    process.threads.iter().all(|thread| {
        tracee::procfs::thread_stat(process.pid, thread.tid()).is_ok_and(|stat| stat.state == TRACED)
    })
}

impl Comparing<'_> {
    fn compare(&self, space: SpaceId, start: Address, expected: &[u8], image: &'static str) {
        let mut actual = vec![0; expected.len()];
        // If a part of the range cannot be read, `is_same` reads each page separately.
        self.read(space, start, &mut actual);
        let page = PAGE_BYTES as usize;
        for (number, (one, other)) in expected.chunks(page).zip(actual.chunks(page)).enumerate() {
            self.pages.fetch_add(1, Ordering::Relaxed);
            let at = Address(start.get() + number as u64 * PAGE_BYTES);
            if one != other && !self.is_same(space, at, one) {
                self.differs(space, at, image);
            }
        }
    }

    /// Compares pages that are in no extent of the image. A restore gives these pages the content of the
    /// mapped file, or zeros.
    fn compare_missing(&self, space: SpaceId, range: AddressRange) {
        let Some(Source::Process(process)) = self.sources.get(&space) else {
            return self.compare_zeros(space, range, ABSENT);
        };
        let mut bytes = [0; PAGE_BYTES as usize];
        for page in range.pieces(ByteCount(PAGE_BYTES)) {
            bytes.fill(0);
            match process.read_file(page.start, &mut bytes) {
                Ok(()) => self.compare(space, page.start, &bytes, ABSENT),
                Err(error) => {
                    let mapping = format!("{}: cannot read its file: {error}", process.describe(page.start));
                    self.note(Difference {
                        pid: Some(process.pid),
                        address: page.start,
                        mapping,
                        image: ABSENT,
                    });
                }
            }
        }
    }

    fn compare_zeros(&self, space: SpaceId, range: AddressRange, image: &'static str) {
        let zeros = vec![0; ZEROS.get() as usize];
        for piece in range.pieces(ZEROS) {
            self.compare(space, piece.start, &zeros[..piece.len().get() as usize], image);
        }
    }

    fn is_same(&self, space: SpaceId, at: Address, expected: &[u8]) -> bool {
        let mut actual = vec![0; expected.len()];
        if !self.read(space, at, &mut actual) {
            return false;
        }
        let rseqs = match self.sources.get(&space) {
            Some(Source::Process(process)) => process.rseqs.as_slice(),
            _ => &[],
        };
        let is_kernels = |number: usize| {
            let address = Address(at.get() + number as u64);
            rseqs.iter().any(|range| range.contains(address))
        };
        expected
            .iter()
            .zip(&actual)
            .enumerate()
            .all(|(number, (one, other))| one == other || is_kernels(number))
    }

    fn read(&self, space: SpaceId, start: Address, bytes: &mut [u8]) -> bool {
        match self.sources.get(&space) {
            Some(Source::Process(process)) => process.memory.read(start, bytes).is_ok(),
            // Bytes after the end of the file, within its last page, read as zeros.
            Some(Source::Object(file)) => read_padded(file, start, bytes).is_ok(),
            None => false,
        }
    }

    /// Notes the first guard region that only the scan has found, and the first guard region that only the
    /// tracker knows.
    fn note_guards(&self, pid: Pid, known: &[AddressRange], found: &[AddressRange]) {
        let is_within = |all: &[AddressRange], range: &AddressRange| {
            RangeSet::from(all.to_vec()).gaps(*range).next().is_none()
        };
        let first = found.iter().find(|range| !is_within(known, range));
        let other = known.iter().find(|range| !is_within(found, range));
        for range in first.into_iter().chain(other) {
            let mapping = String::new();
            self.note(Difference { pid: Some(pid), address: range.start, mapping, image: GUARD });
        }
    }

    fn differs(&self, space: SpaceId, address: Address, image: &'static str) {
        let (pid, mapping) = match self.sources.get(&space) {
            Some(Source::Process(process)) => {
                let unread = process.memory.read(address, &mut [0; PAGE_BYTES as usize]).err();
                let why = unread.map(|error| format!(": {error}")).unwrap_or_default();
                (Some(process.pid), process.describe(address) + &why)
            }
            _ => (None, String::new()),
        };
        self.note(Difference { pid, address, mapping, image });
    }

    fn note(&self, found: Difference) {
        self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(found);
    }

    fn finish(self) -> Comparison {
        let mut first = self.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let differences = PageCount(first.len() as u64);
        first.sort_unstable();
        first.truncate(REPORTED_MAX);
        Comparison { pages: PageCount(self.pages.into_inner()), differences, first }
    }
}

impl ProcessSource<'_> {
    fn mapping(&self, at: Address) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| mapping.range.contains(at))
    }

    fn describe(&self, at: Address) -> String {
        let Some(mapping) = self.mapping(at) else { return "in no mapping".to_owned() };
        let Protection { read, write, execute, shared } = mapping.protection;
        let letter = |is_set: bool, letter: char| if is_set { letter } else { '-' };
        let rights =
            [letter(read, 'r'), letter(write, 'w'), letter(execute, 'x'), if shared { 's' } else { 'p' }];
        let name = if mapping.name.is_empty() { "anonymous" } else { &mapping.name };
        format!("{}-{} {} {name}", mapping.range.start, mapping.range.end, rights.iter().collect::<String>())
    }

    /// Reads a page of the file that is mapped at an address. Leaves `bytes` unchanged if the mapping has no
    /// file. Fails if there is no mapping, or if the file cannot be read.
    fn read_file(&self, at: Address, bytes: &mut [u8]) -> std::io::Result<()> {
        let mapping = self.mapping(at).ok_or(std::io::ErrorKind::NotFound)?;
        if !matches!(mapping.backing, Backing::File { .. }) {
            return Ok(());
        }
        let AddressRange { start, end } = mapping.range;
        let link = format!("/proc/{}/map_files/{:x}-{:x}", self.pid, start.get(), end.get());
        let offset = mapping.offset + (at - start).get();
        // Bytes after the end of the file keep the zeros of the caller.
        File::open(link)?.read_at(bytes, offset).map(drop)
    }
}

fn rseq_of(tid: Tid) -> Option<AddressRange> {
    let found = ptrace::rseq_configuration(tid).ok()?;
    let start = Address(found.address);
    Some(AddressRange { start, end: Address(found.address + u64::from(found.length)) })
}
