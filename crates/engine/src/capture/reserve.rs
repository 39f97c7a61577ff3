//! Buffers for the pages that are copied in the pause and directly before the pause.
//!
//! Owns: buffers that are taken in advance; copied pages that are held, and later passed to the sink; the
//! estimate of the number of pages.
//! Invariants: while the subject is stopped, no call of the sink takes a lock, waits or wakes a thread, until
//! `held_max` pages are held. Copies and removals reach the sink in order. Unused buffers are returned.
//! Does not: copy.

use std::cell::{Cell, RefCell};

use model::{PAGE_BYTES, PageCount};
use store::{PageBatch, PageChange, PagePool, PageSink, Result};

/// Returns the maximum number of pages that slices or a pause hold, unless `hold_more` has allowed more.
fn held_pages_max() -> PageCount {
    PageCount(store::held_memory_max().get() / PAGE_BYTES)
}

/// The number of buffers of a reserve is rounded up to a multiple of this constant, so that successive
/// checkpoints reserve equal numbers. Otherwise a checkpoint would free memory that the next checkpoint
/// allocates again, and the kernel clears newly allocated memory.
const RESERVE_STEP: usize = 4;

/// The number of pauses in the estimate. At 100 checkpoints a second, 10 pauses span 0.1 s. A subject with
/// bursts of writes repeats a burst within this time.
const RECENT: usize = 10;

/// The estimate of the number of pages that the next checkpoint copies in the pause, or before the pause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    recent: [PageCount; RECENT],
    next: usize,
}

impl Expected {
    /// Returns the maximum number of pages that one of the last `RECENT` pauses has copied.
    pub(super) fn pages(&self) -> PageCount {
        self.recent.iter().copied().max().unwrap_or_default()
    }

    /// Returns the average number of pages of the last `RECENT` pauses. The average changes slowly.
    pub(super) fn average(&self) -> PageCount {
        let sum: u64 = self.recent.iter().map(|pages| pages.get()).sum();
        PageCount(sum / RECENT as u64)
    }

    /// Records the number of pages that one pause has copied.
    pub(super) fn note(&mut self, pages: PageCount) {
        self.recent[self.next] = pages;
        self.next = (self.next + 1) % RECENT;
    }
}

/// The estimates of one subject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedPages {
    /// Pages that pre-copy copies, without the urgent rounds. An urgent round is a pre-copy round with raised priority,
    /// directly before the pause.
    pub(super) before: Expected,
    /// Pages that the pause and its urgent rounds copy.
    pub(super) inside: Expected,
}

/// A sink between the copiers and the sink of the checkpoint. While the subject runs, operations are passed
/// on. While the subject is stopped, operations are held. Most rounds copy few pages, and a log has few
/// buffers, so the next copier continues to fill a buffer that has room.
pub(super) struct Reserve<'a> {
    sink: &'a dyn PageSink,
    free: RefCell<Vec<PageBatch>>,
    /// The buffer that the next copier continues to fill.
    open: RefCell<Option<PageBatch>>,
    held: RefCell<Vec<PageChange>>,
    /// The number of free buffers that are kept for the pause. Initially `begun_with`; a series of last stops
    /// may increase the number.
    for_pause: Cell<usize>,
    begun_with: usize,
    /// The number of buffers that were added to the reserve.
    extended: Cell<usize>,
    held_buffers: Cell<usize>,
    /// The maximum number of pages that slices or a pause hold.
    held_max: Cell<PageCount>,
    /// The number of buffers that were allocated for slices, beyond the pool of the sink.
    spares: Cell<usize>,
    is_stopped: Cell<bool>,
}

impl<'a> Reserve<'a> {
    /// Waits until there are buffers for `before` pages before the pause and `inside` pages inside the pause.
    ///
    /// If pre-copy waited for the store, the subject would dirty as many pages during the wait as were
    /// copied. Therefore this function waits before any page is copied.
    pub(super) fn new(sink: &'a dyn PageSink, before: PageCount, inside: PageCount) -> Result<Self> {
        let before = (before.min(held_pages_max()).get() / sink.pool().buffer_pages().get().max(1)) as usize;
        let inside = buffers_for(sink, inside.min(held_pages_max()));
        let count = (inside + before).next_multiple_of(RESERVE_STEP);
        let begun_with = count - before;
        let mut reserve = Self::passing(sink);
        *reserve.free.get_mut() = sink.pool().reserve(count)?;
        (reserve.for_pause, reserve.begun_with) = (Cell::new(begun_with), begun_with);
        Ok(reserve)
    }

    /// Returns a reserve without buffers, which passes all operations on.
    pub(super) fn passing(sink: &'a dyn PageSink) -> Self {
        Self {
            sink,
            free: RefCell::default(),
            open: RefCell::default(),
            held: RefCell::default(),
            for_pause: Cell::new(0),
            begun_with: 0,
            extended: Cell::new(0),
            held_buffers: Cell::new(0),
            held_max: Cell::new(held_pages_max()),
            spares: Cell::new(0),
            is_stopped: Cell::new(false),
        }
    }

    /// Prepares for a stop in which about `expected` pages are copied. Gets the missing buffers without
    /// waiting.
    pub(super) fn begin_stop(&self, expected: PageCount) -> Result<()> {
        let count = buffers_for(self.sink, expected.min(self.held_max.get()));
        let mut free = self.free.borrow_mut();
        while free.len() < count {
            let extends =
                (self.extended.get() as u64 * self.pool().buffer_pages().get()) < held_pages_max().get();
            self.extended.set(self.extended.get() + usize::from(extends));
            let batch =
                if extends { Some(self.pool().extend_reserve()?) } else { self.pool().free_buffer()? };
            free.push(batch.map_or_else(|| self.pool().spare(), Ok)?);
        }
        // Slices do not use these buffers, so that the next last stop has enough buffers.
        self.for_pause.set(self.for_pause.get().max(count));
        // With this capacity, the list grows in the pause without an allocation.
        self.held.borrow_mut().reserve(count);
        self.is_stopped.set(true);
        Ok(())
    }

    /// Reports whether the held pages should be passed on before the next last stop. Then a stop can hold at least half as
    /// many pages as usual.
    pub(super) fn is_half_full(&self) -> bool {
        self.held_pages() + held_pages_max().get() / 2 >= self.held_max.get().get()
    }

    /// Allows the following stops to hold this many pages, if memory for them is free, and allocates buffers. Called when the
    /// subject runs, and no pages are held.
    pub(super) fn hold_more(&self, pages: PageCount) -> Result<()> {
        let most = PageCount(store::held_memory_most().get() / PAGE_BYTES);
        // A last stop ends a series early by half of the usual number.
        let wanted = pages + PageCount(held_pages_max().get() / 2);
        if wanted > self.held_max.get() {
            self.held_max.set(self.held_max.get().max(wanted.min(most)));
            self.prepare(pages)?;
        }
        Ok(())
    }

    /// Passes all held operations to the sink, and waits until the sink has written most of them. Called when the subject
    /// runs, and another stop of this checkpoint will follow.
    pub(super) fn end_stop(&self) -> Result<()> {
        self.held_buffers.set(0);
        self.flush()?;
        // The open buffer is one more.
        self.pool().settle(self.free.borrow().len() + 1)?;
        // The sink has returned the buffers.
        self.spares.set(0);
        Ok(())
    }

    /// Passes all operations and the open buffer to the sink. Called when the subject runs, or when the
    /// subject may stay stopped during the call.
    pub(super) fn end(self) -> Result<()> {
        self.pool().limit_waits(None);
        self.flush()?;
        let begun = self.open.borrow_mut().take_if(|batch| !batch.is_empty());
        begun.map_or(Ok(()), |batch| self.sink.append(batch))
    }

    /// Returns a free buffer that is not kept for the pause.
    fn spared(&self) -> Option<PageBatch> {
        let mut free = self.free.borrow_mut();
        if free.len() > self.for_pause.get() { free.pop() } else { None }
    }

    fn held_pages(&self) -> u64 {
        self.held_buffers.get() as u64 * self.pool().buffer_pages().get()
    }

    /// Returns a free buffer of the sink, or allocates a buffer beyond the pool of the sink, up to
    /// `held_max` pages.
    fn extra(&self) -> Result<Option<PageBatch>> {
        let here = self.pool().free_buffer()?;
        let spares = self.spares.get() as u64 * self.pool().buffer_pages().get();
        if here.is_some() || spares >= self.held_max.get().get() {
            return Ok(here);
        }
        self.spares.set(self.spares.get() + 1);
        self.pool().spare().map(Some)
    }

    /// Passes all held operations to the sink. After this call, operations are passed on immediately.
    fn flush(&self) -> Result<()> {
        self.is_stopped.set(false);
        self.held.take().into_iter().try_for_each(|held| self.sink.apply(held))
    }
}

impl Reserve<'_> {
    /// Returns a buffer. While the subject runs, waits until a buffer is free.
    pub(super) fn buffer(&self) -> Result<PageBatch> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        if !self.is_stopped.get() {
            if let Some(here) = self.pool().free_buffer()?.or_else(|| self.spared()) {
                return Ok(here);
            }
            // If this reserve holds all buffers of the pool, a wait for a buffer of the pool would not end.
            self.for_pause.set(self.begun_with);
            return self.spared().map_or_else(|| self.pool().buffer(), Ok);
        }
        if let Some(free) = self.free.borrow_mut().pop() {
            return Ok(free);
        }
        if self.held_pages() < self.held_max.get().get() {
            return self.pool().spare();
        }
        self.flush()?;
        self.pool().buffer()
    }

    /// Returns a buffer without waiting for the store. Exception: while the subject is stopped and
    /// `held_max` pages are held, waits. A slow store must not determine how long the subject is
    /// throttled. While the subject runs, this function allocates no buffer; `prepare` does.
    pub(super) fn free_buffer(&self) -> Result<Option<PageBatch>> {
        if self.is_stopped.get() {
            return self.buffer().map(Some);
        }
        match self.open.take().or_else(|| self.spared()) {
            Some(here) => Ok(Some(here)),
            None => Ok(self.pool().free_buffer()?),
        }
    }

    /// Reports whether `free_buffer` would have to allocate a buffer now. An allocation is slow, because the kernel clears
    /// the memory.
    pub(super) fn has_to_make(&self) -> bool {
        self.is_stopped.get() && self.free.borrow().is_empty()
    }

    /// Allocates buffers for this number of pages before a stop, up to `held_max` pages. In a pause, one allocation would
    /// take as long as copying hundreds of pages.
    pub(super) fn prepare(&self, pages: PageCount) -> Result<()> {
        let count = self.for_pause.get() + buffers_for(self.sink, pages.min(self.held_max.get()));
        while self.free.borrow().len() < count
            && let Some(batch) = self.extra()?
        {
            self.free.borrow_mut().push(batch);
        }
        Ok(())
    }

    /// Receives a buffer. The next copier continues to fill the buffer, if it has room.
    pub(super) fn keep(&self, batch: PageBatch) -> Result<()> {
        if batch.room() == PageCount(0) {
            return self.append(batch);
        }
        match self.open.replace(Some(batch)) {
            // Only one copier is active at a time, so there is at most one open buffer.
            Some(earlier) => self.append(earlier),
            None => Ok(()),
        }
    }
}

impl PageSink for Reserve<'_> {
    /// Copiers take the buffers of the reserve instead.
    fn pool(&self) -> &PagePool {
        self.sink.pool()
    }

    fn apply(&self, change: PageChange) -> Result<()> {
        match &change {
            PageChange::Pages(_) => {
                let held = self.held_buffers.get() + usize::from(self.is_stopped.get());
                self.held_buffers.set(held);
            }
            // The pages in the open buffer were copied before the removal, so they are appended before the
            // removal.
            PageChange::Discard(..) => {
                let begun = self.open.borrow_mut().take_if(|batch| !batch.is_empty());
                begun.map_or(Ok(()), |batch| self.append(batch))?;
            }
        }
        if !self.is_stopped.get() {
            return self.sink.apply(change);
        }
        self.held.borrow_mut().push(change);
        Ok(())
    }
}

impl Drop for Reserve<'_> {
    fn drop(&mut self) {
        let held = self.held.take().into_iter().filter_map(|held| match held {
            PageChange::Pages(batch) => Some(batch),
            PageChange::Discard(..) => None,
        });
        held.chain(self.open.take()).chain(self.free.take()).for_each(|batch| self.pool().put_back(batch));
    }
}

/// Returns the number of buffers for this number of pages, at least one. One resident buffer is always ready
/// when the pause begins.
fn buffers_for(sink: &dyn PageSink, pages: PageCount) -> usize {
    pages.get().div_ceil(sink.pool().buffer_pages().get().max(1)).max(1) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use image::SpaceId;
    use model::{Address, AddressRange, Pid};
    use store::{BufferStock, Waits};

    use super::super::copier::Copier;
    use super::*;

    const SPACE: SpaceId = SpaceId(1);
    const BUFFER: PageCount = PageCount(4);

    /// A sink that records the changes. Its pool lends two buffers beside the reserve.
    struct Witness {
        changes: RefCell<Vec<String>>,
        pool: PagePool,
    }

    impl Default for Witness {
        fn default() -> Self {
            let pool = PagePool::new(2, BufferStock::new(BUFFER), Waits::Limited);
            // A wait would never end.
            pool.limit_waits(Some(Duration::ZERO));
            Self { changes: RefCell::default(), pool }
        }
    }

    impl Witness {
        fn take_changes(&self) -> Vec<String> {
            self.changes.take()
        }

        /// Returns the number of buffers that the pool has lent.
        fn lent(&self) -> u64 {
            self.pool.in_use().get() / BUFFER.bytes().get()
        }
    }

    impl PageSink for Witness {
        fn pool(&self) -> &PagePool {
            &self.pool
        }

        fn apply(&self, change: PageChange) -> Result<()> {
            let text = match change {
                PageChange::Pages(batch) => {
                    let pages = batch.pieces().iter().map(|piece| (piece.start.get() >> 12).to_string());
                    let pages = pages.collect::<Vec<String>>().join(" ");
                    self.pool.put_back(batch);
                    pages
                }
                PageChange::Discard(_, range) => format!("-{}", range.start.get() >> 12),
            };
            self.changes.borrow_mut().push(text);
            Ok(())
        }
    }

    fn page(number: u64) -> AddressRange {
        AddressRange::new(Address(number << 12), Address((number + 1) << 12))
    }

    fn copy(sink: &Reserve<'_>, pages: &[u64]) {
        let mut copier = Copier::tolerant(sink, sink.buffer().unwrap());
        for number in pages {
            let fill = |_, bytes: &mut [u8]| {
                bytes.fill(7);
                Ok(())
            };
            copier.add_with(SPACE, page(*number), fill).unwrap();
        }
        copier.finish().unwrap();
    }

    #[test]
    fn the_sink_is_not_called_while_the_subject_is_stopped_and_the_order_stays() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(5)).unwrap();
        copy(&reserve, &[1, 2]);
        copy(&reserve, &[3]);
        assert_eq!(
            (witness.take_changes().len(), witness.lent()),
            (0, 5),
            "a buffer with room is filled further"
        );
        reserve.begin_stop(PageCount(9)).unwrap();
        copy(&reserve, &[4, 5, 1]);
        reserve.discard(SPACE, page(2)).unwrap();
        copy(&reserve, &[2, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        reserve.discard(SPACE, page(9)).unwrap();
        assert!(witness.take_changes().is_empty());
        reserve.end().unwrap();
        assert_eq!(witness.take_changes(), ["1 2 3 4", "5 1", "-2", "2 6 7 8", "9 10 11 12", "13 14", "-9"]);
        assert_eq!(witness.lent(), 0, "buffers are lost");
    }

    #[test]
    fn the_sink_writes_the_pages_of_one_stop_before_the_next_one_allocates() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(5)).unwrap();
        reserve.begin_stop(PageCount(9)).unwrap();
        copy(&reserve, &[1, 2, 3, 4, 5]);
        reserve.end_stop().unwrap();
        // Four buffers were reserved. One is full, one is open, and two are free.
        assert_eq!((witness.take_changes(), witness.lent()), (vec!["1 2 3 4".to_owned()], 3));
        reserve.end().unwrap();
        assert_eq!(witness.take_changes(), ["5"]);
        assert_eq!(witness.lent(), 0);
    }

    #[test]
    fn pre_copy_takes_what_is_reserved_for_it_and_leaves_the_rest_to_the_pause() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(9), PageCount(5)).unwrap();
        copy(&reserve, &(0..12).collect::<Vec<u64>>());
        let changes = witness.take_changes();
        assert_eq!(changes, ["0 1 2 3", "4 5 6 7", "8 9 10 11"]);
        assert!(reserve.free.borrow().len() >= 2, "two of four are for the pause");
        reserve.begin_stop(PageCount(5)).unwrap();
        copy(&reserve, &[1, 2, 3, 4, 5]);
        reserve.end().unwrap();
        assert_eq!(witness.take_changes(), ["1 2 3 4", "5"]);
        assert_eq!(witness.lent(), 0);
    }

    #[test]
    fn a_page_that_is_taken_out_does_not_come_back_with_a_buffer_that_was_begun_before() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        copy(&reserve, &[1, 2]);
        let mut copier = Copier::tolerant(&reserve, reserve.buffer().unwrap());
        copier.discard(Pid(1), SPACE, page(2)).unwrap();
        copier.finish().unwrap();
        reserve.end().unwrap();
        assert_eq!(witness.take_changes(), ["1 2", "-2"]);
        assert_eq!(witness.lent(), 0);
    }

    #[test]
    fn what_no_memory_is_kept_for_flows_as_while_the_subject_runs() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(0)).unwrap();
        reserve.begin_stop(PageCount(u64::MAX)).unwrap();
        let all: Vec<u64> = (0..held_pages_max().get()).collect();
        copy(&reserve, &all);
        assert!(witness.take_changes().is_empty());
        copy(&reserve, &[1, 2, 3, 4, 5]);
        let changes = witness.take_changes();
        assert_eq!(changes.len() as u64, held_pages_max().get() / BUFFER.get() + 1);
        assert_eq!(changes[changes.len() - 1], "1 2 3 4");
        drop(reserve);
        assert_eq!(witness.lent(), 0, "what a failed checkpoint held goes back");
    }

    #[test]
    fn buffers_are_prepared_up_to_a_limit_and_none_is_made_when_one_is_taken() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        reserve.prepare(PageCount(9)).unwrap();
        let made = witness.lent();
        let taken: Vec<PageBatch> = std::iter::from_fn(|| reserve.free_buffer().unwrap()).collect();
        assert_eq!((taken.len(), witness.lent()), (3, made), "three hold nine pages");
        for _ in 0..2 {
            reserve.prepare(PageCount(u64::MAX)).unwrap();
            while reserve.free_buffer().unwrap().is_some() {}
        }
        let most = held_pages_max().get() / BUFFER.get();
        assert!(witness.lent() <= most + made, "{} of {most}", witness.lent());
    }

    #[test]
    fn more_pages_are_held_if_the_subject_rewrites_them_too_fast() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        reserve.hold_more(PageCount(1)).unwrap();
        assert_eq!(reserve.held_max.get(), held_pages_max());
        let more = held_pages_max() + PageCount(40 * BUFFER.get());
        reserve.hold_more(more).unwrap();
        let made = witness.lent();
        assert!(made >= more.get() / BUFFER.get());
        reserve.begin_stop(PageCount(1)).unwrap();
        let all: Vec<u64> = (0..more.get() - BUFFER.get()).collect();
        copy(&reserve, &all);
        assert!(!reserve.is_half_full());
        assert_eq!((witness.take_changes().len(), witness.lent()), (0, made), "the sink was not called");
        reserve.end_stop().unwrap();
        assert_eq!(witness.take_changes().len() as u64, all.len() as u64 / BUFFER.get());
    }

    #[test]
    fn slices_leave_the_buffers_of_the_next_last_stop_alone() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        reserve.begin_stop(PageCount(40)).unwrap();
        assert!(!reserve.has_to_make());
        reserve.end_stop().unwrap();
        assert!(reserve.free_buffer().unwrap().is_none(), "all ten are kept");
        let made = witness.lent();
        reserve.begin_stop(PageCount(40)).unwrap();
        let taken: Vec<PageBatch> = (0..10).map(|_| reserve.free_buffer().unwrap().unwrap()).collect();
        assert!(witness.lent() == made && reserve.has_to_make(), "{} taken", taken.len());
        taken.into_iter().for_each(|batch| reserve.free.borrow_mut().push(batch));
        reserve.end_stop().unwrap();
        witness.take_changes();
        let taken: Vec<PageBatch> = (0..6).map(|_| reserve.buffer().unwrap()).collect();
        assert!(witness.take_changes().is_empty(), "the sink was not asked for any of {}", taken.len());
    }

    #[test]
    fn as_much_is_expected_as_one_of_the_last_few_pauses_copied() {
        let mut expected = Expected::default();
        assert_eq!(expected.pages(), PageCount(0));
        expected.note(PageCount(900));
        (1..RECENT as u64).for_each(|pages| expected.note(PageCount(pages)));
        assert_eq!(expected.pages(), PageCount(900));
        assert_eq!(expected.average(), PageCount((900 + 45) / 10));
        expected.note(PageCount(3));
        assert_eq!(expected.pages(), PageCount(RECENT as u64 - 1), "a burst is forgotten");
    }
}
