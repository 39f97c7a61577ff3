//! Encodes and decodes log parts. A *part* contains the changes between two checkpoints: dropped pages, new pages, and
//! records.
//!
//! Owns: `LogPartEncoder`, `LogPart`, and the compact encoding of runs.
//! Invariants: dropped ranges are sorted by space and start, and do not overlap each other. Runs are also sorted, and
//! do not overlap each other. A reader drops all dropped ranges of a part, and then adds the runs.
//! Does not: apply a part; the store does.
//!
//! Encoding: the section *Deltas* of `docs/format.md`.

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};

use crate::checksum::PageChecksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES, u32_at};
use crate::log_place::{LogPlace, LogSegment};
use crate::page_index::SpaceId;
use crate::record::{Owner, Record};

const FIXED_BYTES: usize = 12;
const BARE: u64 = 0;
const STORED: u64 = 1;
const SPACE: u64 = 2;

/// The maximum number of pages of one run: 16 TiB, more than the resident memory of any address space.
const RUN_PAGES_MAX: u64 = u32::MAX as u64;

/// The key that identifies a record within one checkpoint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordKey {
    /// The kind of the record.
    pub kind: String,
    /// The object whose state the record describes.
    pub owner: Owner,
    /// The index of the record among the records of this kind and owner, from 0.
    pub ordinal: u32,
}

/// Consecutive pages that a part adds or changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRun {
    /// The address space or shared memory object.
    pub space: SpaceId,
    /// The first page's address.
    pub start: Address,
    /// The number of pages.
    pub pages: PageCount,
    /// The place where the first page is stored; the other pages follow directly. `None` for zero pages.
    pub place: Option<LogPlace>,
    first_checksum: usize,
}

/// A verified and decoded part.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogPart {
    /// Whether the part contains the complete state, so that a reader ignores all parts before this part.
    pub full: bool,
    /// Pages that are no longer in the image.
    pub dropped: Vec<(SpaceId, AddressRange)>,
    /// Records that are no longer in the image.
    pub removed: Vec<RecordKey>,
    /// Records that are new or have changed, with their ordinals.
    pub records: Vec<(u32, Record)>,
    runs: Vec<LogRun>,
    checksums: Vec<PageChecksum>,
}

/// Builds a part in memory, and holds only the encoded bytes.
#[derive(Clone, Debug)]
pub struct LogPartEncoder {
    full: bool,
    dropped: RunWriter,
    runs: RunWriter,
    run_count: u32,
    removed: (u64, Vec<u8>),
    records: (u64, Vec<u8>),
}

#[derive(Clone, Debug, Default)]
struct RunWriter {
    bytes: Vec<u8>,
    cursor: Cursor,
}

/// The end of the previous entry, and the segment of the previous run of stored pages.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    space: u32,
    page: u64,
    segment: u32,
}

impl LogPart {
    /// Returns the runs, each with the checksums of its pages. A run of zero pages has no checksums.
    pub fn runs(&self) -> impl Iterator<Item = (&LogRun, &[PageChecksum])> {
        self.runs.iter().map(|run| {
            let stored = if run.place.is_some() { run.pages.0 as usize } else { 0 };
            (run, &self.checksums[run.first_checksum..run.first_checksum + stored])
        })
    }

    /// Verifies the bytes of a part, then decodes the part.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check, with the offset.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body = frame::open(Part::LogPart, bytes)?;
        let Some(fixed) = body.bytes.get(..FIXED_BYTES) else {
            return Err(malformed(0, "a part without its lengths"));
        };
        let full = match u32_at(fixed, 0) {
            0 => false,
            1 => true,
            _ => return Err(malformed(0, "neither full nor a delta")),
        };
        let dropped_end = FIXED_BYTES.saturating_add(u32_at(fixed, 4) as usize);
        let runs_end = dropped_end.saturating_add(u32_at(fixed, 8) as usize);
        if runs_end > body.bytes.len() {
            return Err(malformed(4, "runs longer than the part"));
        }
        let mut part = Self { full, ..Self::default() };
        part.decode_dropped(&body.bytes[..dropped_end])?;
        part.decode_runs(&body.bytes[..runs_end], dropped_end)?;
        part.decode_records(body.bytes, runs_end)?;
        Ok(part)
    }

    fn decode_dropped(&mut self, bytes: &[u8]) -> Result<()> {
        let mut reader = RunReader::new(bytes, FIXED_BYTES);
        while let Some((kind, space, start, pages)) = reader.next_run()? {
            if kind != BARE {
                return Err(malformed(reader.offset, "a dropped range with content"));
            }
            let end = Address(start.0 + pages.bytes().0);
            self.dropped.push((space, AddressRange::new(start, end)));
        }
        Ok(())
    }

    fn decode_runs(&mut self, bytes: &[u8], offset: usize) -> Result<()> {
        let mut reader = RunReader::new(bytes, offset);
        while let Some((kind, space, start, pages)) = reader.next_run()? {
            let first_checksum = self.checksums.len();
            let place = match kind {
                STORED => Some(reader.place(pages, &mut self.checksums)?),
                _ => None,
            };
            self.runs.push(LogRun { space, start, pages, place, first_checksum });
        }
        Ok(())
    }

    fn decode_records(&mut self, bytes: &[u8], offset: usize) -> Result<()> {
        let mut reader = RunReader::new(bytes, offset);
        for _ in 0..reader.number()? {
            let (ordinal, record) = reader.record()?;
            self.removed.push(RecordKey { kind: record.kind, owner: record.owner, ordinal });
        }
        for _ in 0..reader.number()? {
            let record = reader.record()?;
            self.records.push(record);
        }
        if reader.offset != bytes.len() {
            return Err(malformed(reader.offset, "bytes behind the last record"));
        }
        Ok(())
    }
}

impl LogPartEncoder {
    /// Returns an encoder without content.
    #[must_use]
    pub fn new(full: bool) -> Self {
        let empty = RunWriter::default;
        let (removed, records) = ((0, Vec::new()), (0, Vec::new()));
        Self { full, dropped: empty(), runs: empty(), run_count: 0, removed, records }
    }

    /// Adds a range of pages that are no longer in the image. Calls must be in rising order of space and address.
    pub fn dropped(&mut self, space: SpaceId, range: AddressRange) {
        let mut start = range.start;
        while start < range.end {
            // An address space can have more pages than one entry, so a long range becomes several entries.
            let pages = PageCount((range.end - start).get() / PAGE_BYTES).min(PageCount(RUN_PAGES_MAX));
            self.dropped.run(BARE, space, start, pages);
            start = start + pages.bytes();
        }
    }

    /// Adds zero pages. The pages must be behind all runs that were added before.
    pub fn zero(&mut self, space: SpaceId, start: Address, pages: PageCount) {
        self.runs.run(BARE, space, start, pages);
        self.run_count = self.run_count.saturating_add(1);
    }

    /// Adds pages that are stored consecutively at `place`. The pages must be behind all runs that were added before.
    pub fn stored(&mut self, space: SpaceId, start: Address, place: LogPlace, checksums: &[PageChecksum]) {
        self.runs.run(STORED, space, start, PageCount(checksums.len() as u64));
        let RunWriter { bytes, cursor } = &mut self.runs;
        put(bytes, zigzag(i64::from(place.segment.0) - i64::from(cursor.segment)));
        put(bytes, u64::from(place.block));
        cursor.segment = place.segment.0;
        checksums.iter().for_each(|checksum| bytes.extend_from_slice(&checksum.0.to_le_bytes()));
        self.run_count = self.run_count.saturating_add(1);
    }

    /// Adds the key of a record that is no longer in the image.
    pub fn removed(&mut self, key: &RecordKey) {
        let record = Record::new(key.kind.clone(), 0, key.owner, Vec::new());
        put_record(&mut self.removed, key.ordinal, &record.to_bytes());
    }

    /// Adds a new or changed record, encoded by `Record::to_bytes`.
    pub fn record(&mut self, ordinal: u32, bytes: &[u8]) {
        put_record(&mut self.records, ordinal, bytes);
    }

    /// Returns the encoded part.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` when the dropped ranges or the runs need 4 GiB or more.
    pub fn finish(self) -> Result<Vec<u8>> {
        let section = |bytes: &[u8]| {
            let what = "the number of runs";
            u32::try_from(bytes.len()).map_err(|_| Error::TooLarge { part: Part::LogPart, what })
        };
        let (dropped, runs) = (section(&self.dropped.bytes)?, section(&self.runs.bytes)?);
        let length = self.dropped.bytes.len() + self.runs.bytes.len();
        let mut file = frame::begin(FIXED_BYTES + length + self.removed.1.len() + self.records.1.len() + 20);
        file.extend_from_slice(&u32::from(self.full).to_le_bytes());
        file.extend_from_slice(&dropped.to_le_bytes());
        file.extend_from_slice(&runs.to_le_bytes());
        file.extend_from_slice(&self.dropped.bytes);
        file.extend_from_slice(&self.runs.bytes);
        for (count, bytes) in [&self.removed, &self.records] {
            put(&mut file, *count);
            file.extend_from_slice(bytes);
        }
        Ok(frame::seal(Part::LogPart, self.run_count, file))
    }
}

impl RunWriter {
    fn run(&mut self, kind: u64, space: SpaceId, start: Address, pages: PageCount) {
        if space.0 != self.cursor.space {
            put(&mut self.bytes, u64::from(space.0.wrapping_sub(self.cursor.space)) << 2 | SPACE);
            self.cursor = Cursor { space: space.0, page: 0, segment: self.cursor.segment };
        }
        let page = start.0 / PAGE_BYTES;
        debug_assert!(page >= self.cursor.page, "runs come in rising order");
        put(&mut self.bytes, pages.0 << 2 | kind);
        put(&mut self.bytes, page.wrapping_sub(self.cursor.page));
        self.cursor.page = page + pages.0;
    }
}

struct RunReader<'a> {
    bytes: &'a [u8],
    offset: usize,
    cursor: Cursor,
}

impl<'a> RunReader<'a> {
    fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset, cursor: Cursor::default() }
    }

    /// Returns kind, space, start and length of the next run; `None` at the end.
    fn next_run(&mut self) -> Result<Option<(u64, SpaceId, Address, PageCount)>> {
        while self.offset < self.bytes.len() {
            let begun = self.offset;
            let head = self.number()?;
            let (value, kind) = (head >> 2, head & 3);
            if kind == SPACE {
                let space = u32::try_from(value).ok().and_then(|value| self.cursor.space.checked_add(value));
                let space = space.filter(|_| value > 0);
                let space = space.ok_or_else(|| malformed(begun, "spaces out of order"))?;
                self.cursor = Cursor { space, page: 0, segment: self.cursor.segment };
                continue;
            }
            let skipped = self.number()?;
            let start = self.cursor.page.checked_add(skipped);
            let end = start.and_then(|start| start.checked_add(value));
            let end = end.filter(|end| end.checked_mul(PAGE_BYTES).is_some());
            let (Some(start), Some(end)) = (start, end) else {
                return Err(malformed(begun, "a run outside any address space"));
            };
            if kind > STORED || value == 0 || value > RUN_PAGES_MAX {
                return Err(malformed(begun, "a run of no kind or length"));
            }
            self.cursor.page = end;
            let start = Address(start * PAGE_BYTES);
            return Ok(Some((kind, SpaceId(self.cursor.space), start, PageCount(value))));
        }
        Ok(None)
    }

    /// Reads the place of a stored run, and appends the checksums of its pages to `checksums`.
    fn place(&mut self, pages: PageCount, checksums: &mut Vec<PageChecksum>) -> Result<LogPlace> {
        let begun = self.offset;
        let wrong = |what| malformed(begun, what);
        let segment = i64::from(self.cursor.segment).checked_add(unzigzag(self.number()?));
        let segment = segment.and_then(|segment| u32::try_from(segment).ok());
        let segment = segment.ok_or_else(|| wrong("a run outside any segment"))?;
        let block = self.number()?;
        let last = block.checked_add(pages.0).and_then(|end| u32::try_from(end).ok());
        let (Ok(block), Some(_)) = (u32::try_from(block), last) else {
            return Err(wrong("a run outside any segment"));
        };
        self.cursor.segment = segment;
        let length = usize::try_from(pages.0 * 4).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(self.offset..).and_then(|rest| rest.get(..length));
        let bytes = bytes.ok_or_else(|| wrong("a run longer than the part"))?;
        let (words, _) = bytes.as_chunks::<4>();
        checksums.extend(words.iter().map(|word| PageChecksum(u32::from_le_bytes(*word))));
        self.offset += length;
        Ok(LogPlace { segment: LogSegment(segment), block })
    }

    fn record(&mut self) -> Result<(u32, Record)> {
        let begun = self.offset;
        let ordinal = u32::try_from(self.number()?).map_err(|_| malformed(begun, "too large an ordinal"))?;
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(self.offset..).and_then(|rest| rest.get(..length));
        let bytes = bytes.ok_or_else(|| malformed(begun, "a record longer than the part"))?;
        let record = Record::try_from(bytes).map_err(|what| malformed(begun, what))?;
        self.offset += length;
        Ok((ordinal, record))
    }

    fn number(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.bytes.get(self.offset) else { break };
            self.offset += 1;
            let low = u64::from(byte & 0x7f);
            if low << shift >> shift != low {
                break;
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed(self.offset, "a number that does not end"))
    }
}

fn put_record((count, bytes): &mut (u64, Vec<u8>), ordinal: u32, record: &[u8]) {
    *count += 1;
    put(bytes, u64::from(ordinal));
    put(bytes, record.len() as u64);
    bytes.extend_from_slice(record);
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

fn malformed(body_offset: usize, what: &'static str) -> Error {
    Error::Malformed { part: Part::LogPart, offset: ByteCount((HEADER_BYTES + body_offset) as u64), what }
}
