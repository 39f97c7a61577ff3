//! Buffers for pages that are copied in the pause and just before it.
//!
//! Owns: buffers taken in advance, copied pages that were not handed on yet, the estimate of the number of pages.
//! Invariants: while the subject is stopped, the sink is not called, up to `STANDING_MAX`: no lock, no wait, no
//! wake-up. Copies and removals reach the sink in their order. Unused buffers are returned.
//! Does not: copy.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use image::SpaceId;
use model::{AddressRange, PageCount};
use store::{PageBatch, PageSink, Result};

/// Pages that a pause keeps back at most; beyond that, it hands on its pages and waits for buffers like other
/// callers. Copying so many takes 10 to 40 ms (0.3 to 1.2 microseconds each, scattered), beside which a wait no longer
/// makes the pause what it is; and they are 128 MiB.
const STANDING_MAX: PageCount = PageCount(32_768);

/// Pages that last stops which follow each other keep back; then they are handed on, since the subject runs then.
pub(super) const HANDED_ON_FROM: PageCount = PageCount(STANDING_MAX.get() / 2);

/// Reserves are of so many buffers, or twice as many, and so on: memory that is given back and asked for again by the
/// next checkpoint has to be cleared each time.
const RESERVE_STEP: usize = 4;

/// Pauses that are remembered: at 100 Hz a tenth of a second, which a subject with bursts comes back to.
const RECENT: usize = 10;

/// How many pages the next checkpoint may copy, in its pause or before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    recent: [PageCount; RECENT],
    next: usize,
}

impl Expected {
    /// As many as the most that one of the last few did.
    pub(super) fn pages(&self) -> PageCount {
        self.recent.iter().copied().max().unwrap_or_default()
    }

    /// As many as the last few did on average: changes slowly.
    pub(super) fn average(&self) -> PageCount {
        let sum: u64 = self.recent.iter().map(|pages| pages.get()).sum();
        PageCount(sum / RECENT as u64)
    }

    /// One has copied so many.
    pub(super) fn note(&mut self, pages: PageCount) {
        self.recent[self.next] = pages;
        self.next = (self.next + 1) % RECENT;
    }
}

/// What happened to a checkpoint's pages, to be told later.
enum Held {
    Pages(PageBatch),
    Discard(SpaceId, AddressRange),
}

/// A sink between copiers and the one behind it, that passes on what comes while the subject runs, and keeps back what
/// comes while it stands. A buffer that has room left is filled further by the next copier: most rounds copy little,
/// and a log lends only so many.
pub(super) struct Reserve<'a> {
    sink: &'a dyn PageSink,
    free: RefCell<Vec<PageBatch>>,
    /// The one that is filled further.
    open: RefCell<Option<PageBatch>>,
    held: RefCell<Vec<Held>>,
    /// Free ones that are kept for the pause: as many as it was begun with, or more for a series of last stops.
    for_pause: Cell<usize>,
    begun_with: usize,
    /// Buffers by which the reserve was extended.
    extended: Cell<usize>,
    held_buffers: Cell<usize>,
    /// Buffers made for slices, beyond the pool.
    spares: Cell<usize>,
    is_standing: Cell<bool>,
}

impl<'a> Reserve<'a> {
    /// Waits until there are buffers for so many pages before the pause, and in it.
    ///
    /// Pre-copy that waits for a store is of no use: the subject dirties as much meanwhile as is copied. It waits here,
    /// before it has copied anything.
    pub(super) fn new(sink: &'a dyn PageSink, before: PageCount, inside: PageCount) -> Result<Self> {
        let before = (before.min(STANDING_MAX).get() / sink.buffer_pages().get().max(1)) as usize;
        let count = (buffers_for(sink, inside) + before).next_multiple_of(RESERVE_STEP);
        let begun_with = count - before;
        let (for_pause, extended) = (Cell::new(begun_with), Cell::new(0));
        let free = RefCell::new(sink.reserve(count)?);
        let (open, held) = (RefCell::default(), RefCell::default());
        let (held_buffers, spares, is_standing) = (Cell::new(0), Cell::new(0), Cell::new(false));
        Ok(Self {
            sink,
            free,
            open,
            held,
            for_pause,
            begun_with,
            extended,
            held_buffers,
            spares,
            is_standing,
        })
    }

    /// The subject is about to stand still, and so many pages are to be copied then: takes what is missing for them,
    /// without waiting.
    pub(super) fn stand(&self, expected: PageCount) -> Result<()> {
        let count = buffers_for(self.sink, expected);
        let mut free = self.free.borrow_mut();
        while free.len() < count {
            let extends = (self.extended.get() as u64 * self.buffer_pages().get()) < STANDING_MAX.get();
            self.extended.set(self.extended.get() + usize::from(extends));
            let batch = if extends { Some(self.sink.extend_reserve()?) } else { self.sink.free_buffer()? };
            free.push(batch.map_or_else(|| self.sink.spare(), Ok)?);
        }
        // Slices that come between leave them for the next last stop.
        self.for_pause.set(self.for_pause.get().max(count));
        // So that keeping back does not ask for memory.
        self.held.borrow_mut().reserve(count);
        self.is_standing.set(true);
        Ok(())
    }

    /// Whether so much is kept back that it should be handed on before another stop.
    pub(super) fn is_half_full(&self) -> bool {
        self.held_buffers.get() as u64 * self.buffer_pages().get() >= HANDED_ON_FROM.get()
    }

    /// Hands on what was kept back: the subject runs, and will be stopped once more for this checkpoint.
    pub(super) fn run_on(&self) -> Result<()> {
        self.held_buffers.set(0);
        self.hand_on()
    }

    /// Hands on everything; the subject goes on, or may stand still for it.
    pub(super) fn end(self) -> Result<()> {
        self.hand_on()?;
        let begun = self.open.borrow_mut().take_if(|batch| !batch.is_empty());
        begun.map_or(Ok(()), |batch| self.sink.append(batch))
    }

    /// A free buffer that is not kept for the pause.
    fn spared(&self) -> Option<PageBatch> {
        let mut free = self.free.borrow_mut();
        if free.len() > self.for_pause.get() { free.pop() } else { None }
    }

    /// A free buffer of the sink, or one made beyond its pool, up to `STANDING_MAX` pages.
    fn extra(&self) -> Result<Option<PageBatch>> {
        let here = self.sink.free_buffer()?;
        if here.is_some() || (self.spares.get() as u64 * self.buffer_pages().get()) >= STANDING_MAX.get() {
            return Ok(here);
        }
        self.spares.set(self.spares.get() + 1);
        self.sink.spare().map(Some)
    }

    /// Hands on what was kept back, and keeps back nothing any more.
    fn hand_on(&self) -> Result<()> {
        self.is_standing.set(false);
        for held in self.held.take() {
            match held {
                Held::Pages(batch) => self.sink.append(batch)?,
                Held::Discard(space, range) => self.sink.discard(space, range)?,
            }
        }
        Ok(())
    }
}

impl PageSink for Reserve<'_> {
    fn buffer(&self) -> Result<PageBatch> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        if !self.is_standing.get() {
            if let Some(here) = self.sink.free_buffer()?.or_else(|| self.spared()) {
                return Ok(here);
            }
            // The pool may have no other buffers, so that a wait for one would not end.
            self.for_pause.set(self.begun_with);
            return self.spared().map_or_else(|| self.sink.buffer(), Ok);
        }
        if let Some(free) = self.free.borrow_mut().pop() {
            return Ok(free);
        }
        if self.held_buffers.get() as u64 * self.sink.buffer_pages().get() < STANDING_MAX.get() {
            return self.sink.spare();
        }
        self.hand_on()?;
        self.sink.buffer()
    }

    /// Makes a buffer where none is free, up to `STANDING_MAX` pages: a store that does not keep up must not decide how
    /// long the subject is throttled.
    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        if self.is_standing.get() {
            return self.buffer().map(Some);
        }
        match self.open.take().or_else(|| self.spared()) {
            Some(here) => Ok(Some(here)),
            None => Ok(self.sink.free_buffer()?),
        }
    }

    fn has_to_make(&self) -> bool {
        self.is_standing.get() && self.free.borrow().is_empty()
    }

    fn prepare(&self, pages: PageCount) -> Result<()> {
        let count = self.for_pause.get() + buffers_for(self.sink, pages);
        while self.free.borrow().len() < count
            && let Some(batch) = self.extra()?
        {
            self.free.borrow_mut().push(batch);
        }
        Ok(())
    }

    fn append(&self, batch: PageBatch) -> Result<()> {
        if !self.is_standing.get() {
            return self.sink.append(batch);
        }
        self.held_buffers.set(self.held_buffers.get() + 1);
        self.held.borrow_mut().push(Held::Pages(batch));
        Ok(())
    }

    fn keep(&self, batch: PageBatch) -> Result<()> {
        if batch.room() == PageCount(0) {
            return self.append(batch);
        }
        match self.open.replace(Some(batch)) {
            // Copiers take turns, so that there is only one.
            Some(earlier) => self.append(earlier),
            None => Ok(()),
        }
    }

    fn put_back(&self, batch: PageBatch) {
        self.sink.put_back(batch);
    }

    fn buffer_pages(&self) -> PageCount {
        self.sink.buffer_pages()
    }

    fn limit_waits(&self, wait_max: Option<Duration>) {
        self.sink.limit_waits(wait_max);
    }

    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        // What is in it was copied before.
        let begun = self.open.borrow_mut().take_if(|batch| !batch.is_empty());
        begun.map_or(Ok(()), |batch| self.append(batch))?;
        if !self.is_standing.get() {
            return self.sink.discard(space, range);
        }
        self.held.borrow_mut().push(Held::Discard(space, range));
        Ok(())
    }
}

impl Drop for Reserve<'_> {
    fn drop(&mut self) {
        let held = self.held.take().into_iter().filter_map(|held| match held {
            Held::Pages(batch) => Some(batch),
            Held::Discard(..) => None,
        });
        held.chain(self.open.take()).chain(self.free.take()).for_each(|batch| self.sink.put_back(batch));
    }
}

/// Buffers that so many pages need, whatever is in them: at least one, which is touched already when the pause begins.
fn buffers_for(sink: &dyn PageSink, pages: PageCount) -> usize {
    let pages = pages.min(STANDING_MAX);
    pages.get().div_ceil(sink.buffer_pages().get().max(1)).max(1) as usize
}

#[cfg(test)]
mod tests {
    use model::{Address, Pid};
    use sys::page_buffer::PageBuffer;

    use super::super::copier::Copier;
    use super::*;

    const SPACE: SpaceId = SpaceId(1);
    const BUFFER: PageCount = PageCount(4);

    /// Tells what it was asked and told.
    #[derive(Default)]
    struct Witness {
        told: RefCell<Vec<String>>,
        out: Cell<isize>,
    }

    impl Witness {
        fn tell(&self, what: impl Into<String>) {
            self.told.borrow_mut().push(what.into());
        }

        fn take_told(&self) -> Vec<String> {
            self.told.take()
        }
    }

    impl PageSink for Witness {
        fn buffer(&self) -> Result<PageBatch> {
            self.tell("buffer");
            self.spare()
        }

        fn append(&self, batch: PageBatch) -> Result<()> {
            let pages: Vec<String> =
                batch.pieces().iter().map(|piece| (piece.start.get() >> 12).to_string()).collect();
            self.tell(pages.join(" "));
            self.out.set(self.out.get() - 1);
            Ok(())
        }

        fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
            self.tell(format!("reserve {count}"));
            (0..count).map(|_| self.spare()).collect()
        }

        fn spare(&self) -> Result<PageBatch> {
            self.out.set(self.out.get() + 1);
            Ok(PageBatch::over(PageBuffer::new(BUFFER.bytes())?))
        }

        fn put_back(&self, _: PageBatch) {
            self.out.set(self.out.get() - 1);
        }

        fn buffer_pages(&self) -> PageCount {
            BUFFER
        }

        fn discard(&self, _: SpaceId, range: AddressRange) -> Result<()> {
            self.tell(format!("-{}", range.start.get() >> 12));
            Ok(())
        }
    }

    fn page(number: u64) -> AddressRange {
        AddressRange::new(Address(number << 12), Address((number + 1) << 12))
    }

    fn copy(sink: &dyn PageSink, pages: &[u64]) {
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
    fn nothing_is_asked_or_told_while_the_subject_stands_and_the_order_stays() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(5)).unwrap();
        copy(&reserve, &[1, 2]);
        copy(&reserve, &[3]);
        assert_eq!(witness.take_told(), ["reserve 4", "buffer"], "a buffer with room is filled further");
        reserve.stand(PageCount(9)).unwrap();
        copy(&reserve, &[4, 5, 1]);
        reserve.discard(SPACE, page(2)).unwrap();
        copy(&reserve, &[2, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        reserve.discard(SPACE, page(9)).unwrap();
        assert!(witness.take_told().is_empty());
        reserve.end().unwrap();
        assert_eq!(witness.take_told(), ["1 2 3 4", "5 1", "-2", "2 6 7 8", "9 10 11 12", "13 14", "-9"]);
        assert_eq!(witness.out.get(), 0, "buffers are lost");
    }

    #[test]
    fn pre_copy_takes_what_is_reserved_for_it_and_leaves_the_rest_to_the_pause() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(9), PageCount(5)).unwrap();
        copy(&reserve, &(0..12).collect::<Vec<u64>>());
        let told = witness.take_told();
        assert_eq!(
            told,
            ["reserve 4", "0 1 2 3", "buffer", "4 5 6 7", "8 9 10 11"],
            "two of four are for the pause"
        );
        reserve.stand(PageCount(5)).unwrap();
        copy(&reserve, &[1, 2, 3, 4, 5]);
        reserve.end().unwrap();
        assert_eq!(witness.take_told(), ["1 2 3 4", "5"]);
        assert_eq!(witness.out.get(), 0);
    }

    #[test]
    fn a_page_that_is_taken_out_does_not_come_back_with_a_buffer_that_was_begun_before() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        copy(&reserve, &[1, 2]);
        let mut copier = Copier::tolerant(&reserve as &dyn PageSink, reserve.buffer().unwrap());
        copier.discard(Pid(1), SPACE, page(2)).unwrap();
        copier.finish().unwrap();
        reserve.end().unwrap();
        assert_eq!(witness.take_told()[2..], ["buffer", "1 2", "-2"]);
        assert_eq!(witness.out.get(), 0);
    }

    #[test]
    fn what_no_memory_is_kept_for_flows_as_while_the_subject_runs() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(0)).unwrap();
        reserve.stand(PageCount(u64::MAX)).unwrap();
        let all: Vec<u64> = (0..STANDING_MAX.get()).collect();
        copy(&reserve, &all);
        assert_eq!(witness.take_told(), ["reserve 4"]);
        copy(&reserve, &[1, 2, 3, 4, 5]);
        let told = witness.take_told();
        assert_eq!(told.len() as u64, STANDING_MAX.get() / BUFFER.get() + 3);
        assert_eq!(told[told.len() - 3..], ["buffer", "buffer", "1 2 3 4"]);
        drop(reserve);
        assert_eq!(witness.out.get(), 0, "what a failed checkpoint held goes back");
    }

    #[test]
    fn buffers_are_prepared_up_to_a_limit_and_none_is_made_when_one_is_taken() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        reserve.prepare(PageCount(9)).unwrap();
        let made = witness.out.get();
        let taken: Vec<PageBatch> = std::iter::from_fn(|| reserve.free_buffer().unwrap()).collect();
        assert_eq!((taken.len(), witness.out.get()), (3, made), "three hold nine pages");
        for _ in 0..2 {
            reserve.prepare(PageCount(u64::MAX)).unwrap();
            while reserve.free_buffer().unwrap().is_some() {}
        }
        let most = (STANDING_MAX.get() / BUFFER.get()) as isize;
        assert!(witness.out.get() <= most + made, "{} of {most}", witness.out.get());
    }

    #[test]
    fn slices_leave_the_buffers_of_the_next_last_stop_alone() {
        let witness = Witness::default();
        let reserve = Reserve::new(&witness, PageCount(0), PageCount(1)).unwrap();
        reserve.stand(PageCount(40)).unwrap();
        assert!(!reserve.has_to_make());
        reserve.run_on().unwrap();
        assert!(reserve.free_buffer().unwrap().is_none(), "all ten are kept");
        let made = witness.out.get();
        reserve.stand(PageCount(40)).unwrap();
        let taken: Vec<PageBatch> = (0..10).map(|_| reserve.free_buffer().unwrap().unwrap()).collect();
        assert!(witness.out.get() == made && reserve.has_to_make(), "{} taken", taken.len());
        taken.into_iter().for_each(|batch| reserve.free.borrow_mut().push(batch));
        reserve.run_on().unwrap();
        witness.take_told();
        let taken: Vec<PageBatch> = (0..6).map(|_| reserve.buffer().unwrap()).collect();
        assert!(witness.take_told().is_empty(), "the sink was not asked for any of {}", taken.len());
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
