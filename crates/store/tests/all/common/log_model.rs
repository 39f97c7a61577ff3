//! A model of a subject. The model knows the expected content of every checkpoint, and tests compare a log or another
//! sink with the model.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use image::{Owner, Record, RecordSet, SpaceId, Timings};
use model::{Address, AddressRange, PAGE_BYTES, PageCount, Pid, Sequence};
use store::{
    Base, CheckpointSink, CommitMeta, ImageReader, PageSink, Result, Store, SubjectName, Ticket, Urgency,
};

use undying_store as store;

/// Fills a page with content that the number `tag` determines. The tag 0 gives a zero page.
pub(crate) fn fill(bytes: &mut [u8], tag: u64) {
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = tag.wrapping_mul(place as u64 * 2 + 1).to_le_bytes();
    }
}

/// The content of a checkpoint: a tag for each page, by address space and page number, and the payloads of the records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    pub(crate) pages: BTreeMap<(u32, u64), u64>,
    pub(crate) records: Vec<Vec<u8>>,
}

/// A simulated subject, with its current state and its state at each checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) random: Rng,
    pub(crate) now: State,
    pub(crate) history: BTreeMap<Sequence, State>,
    pub(crate) next: Sequence,
    pub(crate) span: u64,
    pub(crate) dirty: u64,
}

/// The result of an attempt to take a checkpoint.
pub(crate) enum Attempt {
    /// The sink has too many unfinished checkpoints.
    Behind,
    Aborted,
    Taken(Ticket),
}

impl Subject {
    /// Creates a subject whose page numbers are below `span`. At most `dirty` pages change in one step.
    pub(crate) fn new(seed: u64, span: u64, dirty: u64) -> Self {
        let (now, history) = (State::default(), BTreeMap::new());
        Self { random: Rng::with_seed(seed), now, history, next: Sequence(1), span, dirty }
    }

    /// Sets the state to that of the restored checkpoint.
    pub(crate) fn restored(&mut self, from: Option<Sequence>) {
        self.now = from.map_or_else(State::default, |from| self.history[&from].clone());
        // Checkpoints that were not committed do not exist.
        let keep = from.map_or(Sequence(0), |from| from);
        self.history.retain(|sequence, _| *sequence <= keep);
        self.next = Sequence(self.next.0.max(keep.0 + 1));
    }

    /// Takes one checkpoint with random changes.
    pub(crate) fn epoch(&mut self, sink: &dyn CheckpointSink) -> Result<Option<Ticket>> {
        let full = self.history.is_empty() || self.random.u64(..40) == 0;
        let is_completed = full || self.random.u64(..12) > 0;
        match self.checkpoint(sink, full, || is_completed)? {
            Attempt::Taken(ticket) => Ok(Some(ticket)),
            Attempt::Behind | Attempt::Aborted => Ok(None),
        }
    }

    /// Takes one checkpoint with random changes. `pause` is called after the last change, and returns whether the
    /// checkpoint is committed. The expected state is recorded when `commit` is called, because the checkpoint may
    /// become durable from then on.
    pub(crate) fn checkpoint(
        &mut self,
        sink: &dyn CheckpointSink,
        full: bool,
        pause: impl FnOnce() -> bool,
    ) -> Result<Attempt> {
        let sequence = self.next;
        let base = if full { Base::Nothing } else { Base::Newest };
        let Some(epoch) = sink.begin(sequence, base, Urgency::Precopy)? else { return Ok(Attempt::Behind) };
        self.next = Sequence(sequence.0 + 1);
        let before = self.now.clone();
        if full {
            self.now.pages.clear();
        }
        let changed = self.change(&*epoch, full);
        if changed.is_err() || !pause() {
            drop(epoch);
            self.now = before;
            return changed.map(|()| Attempt::Aborted);
        }
        self.history.insert(sequence, self.now.clone());
        epoch.commit(self.records(), meta(sequence)).map(Attempt::Taken)
    }

    fn change(&mut self, epoch: &dyn PageSink, full: bool) -> Result<()> {
        let rounds = if full { 4 } else { 1 + self.random.u64(..3) };
        for _ in 0..rounds {
            if self.random.u64(..4) == 0 {
                let (space, start) = (self.random.u32(..2), self.random.u64(..self.span));
                let pages = 1 + self.random.u64(..self.span / 8);
                let range = AddressRange::new(address(start), address(start + pages));
                epoch.discard(SpaceId(space), range)?;
                self.now.pages.retain(|(of, page), _| *of != space || !(start..start + pages).contains(page));
            }
            let count = 1 + self.random.u64(..self.dirty);
            self.write(epoch, count)?;
        }
        if self.random.u64(..3) == 0 {
            let place = self.random.usize(..4);
            let payload = vec![self.random.u8(..); self.random.usize(1..=900)];
            match self.now.records.get_mut(place) {
                Some(_) if self.random.u64(..5) == 0 => drop(self.now.records.pop()),
                Some(record) => *record = payload,
                None => self.now.records.push(payload),
            }
        }
        Ok(())
    }

    /// Appends `count` pages, in batches of short runs.
    fn write(&mut self, epoch: &dyn PageSink, mut count: u64) -> Result<()> {
        while count > 0 {
            let mut batch = epoch.pool().buffer()?;
            while batch.room() > PageCount(0) && count > 0 {
                let (space, start) = (self.random.u32(..2), self.random.u64(..self.span));
                let pages = 1 + self.random.u64(..batch.room().0.min(count).min(4));
                let bytes = batch.push(SpaceId(space), address(start), PageCount(pages)).unwrap();
                for (number, bytes) in bytes.chunks_mut(PAGE_BYTES as usize).enumerate() {
                    let tag = if self.random.u64(..5) == 0 { 0 } else { self.random.u64(..) };
                    fill(bytes, tag);
                    self.now.pages.insert((space, start + number as u64), tag);
                }
                count -= pages;
            }
            epoch.append(batch)?;
        }
        Ok(())
    }

    fn records(&self) -> RecordSet {
        let record = |(number, payload): (usize, &Vec<u8>)| {
            Record::new(["a", "b"][number % 2], 1, Owner::Object(number as u64 / 3), payload.clone())
        };
        self.now.records.iter().enumerate().map(record).collect()
    }

    /// Compares the pages and records of an image with the expected state.
    pub(crate) fn compare(&self, sequence: Sequence, image: &ImageReader) -> std::result::Result<(), String> {
        let expected = self.history.get(&sequence).ok_or(format!("{sequence} never was"))?;
        let mut left = expected.pages.clone();
        let mut content = vec![0; PAGE_BYTES as usize];
        for extent in image.index().extents() {
            let mut bytes = vec![0; extent.pages.bytes().0 as usize];
            image.read_extent(extent, &mut bytes).map_err(|error| format!("{sequence}: {error}"))?;
            for (number, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
                let key = (extent.space.0, extent.start.0 / PAGE_BYTES + number as u64);
                let tag = left.remove(&key).ok_or(format!("{sequence}: page {key:?} is too much"))?;
                fill(&mut content, tag);
                if page != content {
                    return Err(format!("{sequence}: page {key:?} has other bytes"));
                }
            }
        }
        if let Some((key, _)) = left.first_key_value() {
            return Err(format!("{sequence}: page {key:?} is missing"));
        }
        let mut records: Vec<_> = image.records().iter().map(|record| &record.payload[..]).collect();
        let mut wanted: Vec<&Vec<u8>> = expected.records.iter().collect();
        records.sort_unstable();
        wanted.sort_unstable();
        if records != wanted {
            return Err(format!("{sequence}: other records"));
        }
        Ok(())
    }

    /// Compares all checkpoints that the store lists, and returns their sequence numbers.
    pub(crate) fn compare_all(
        &self,
        store: &Store,
        name: &SubjectName,
    ) -> std::result::Result<Vec<Sequence>, String> {
        let entries = store.entries(name).map_err(|error| error.to_string())?;
        let mut whole = Vec::new();
        for entry in entries {
            entry.commit.map_err(|error| format!("{}: {error}", entry.sequence))?;
            let image = store.read(&entry.path).map_err(|error| format!("{}: {error}", entry.sequence))?;
            self.compare(entry.sequence, &image)?;
            whole.push(entry.sequence);
        }
        Ok(whole)
    }
}

pub(crate) fn address(page: u64) -> Address {
    Address(page * PAGE_BYTES)
}

pub(crate) fn meta(sequence: Sequence) -> CommitMeta {
    CommitMeta {
        sequence,
        time: UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + sequence.0 * 10),
        subject: "subject".into(),
        pids: vec![Pid(7)],
        kernel_release: "6.12.0".into(),
        tool_version: "0.1.0".into(),
        timings: Timings::default(),
    }
}
