//! The scan of a stopped process by worker threads, while the tracer does other work.
//!
//! Owns: the pieces of the scan, the worker of each piece, and the results until a scan reports them.
//! Invariants: all pages in a result are protected and are reported by the next scan, whichever that is. A piece
//! without a worker is scanned by the thread that needs its result.
//! Does not: judge results.
//!
//! Only the short query is made ahead (see `query::REARM`): the other queries depend on the content of a page at one
//! moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use model::{Address, AddressRange, ByteCount, PAGE_BYTES};
use sys::Error;
use sys::pagemap::{PageRegions, Pagemap};
use sys::scratch::HUGE_PAGE_BYTES;
use tracee::{Work, WorkerPool};

use crate::class::Class;
use crate::query;
use crate::runs::Run;

/// Less than this is not worth waking a worker for: some 40 microseconds of scanning.
pub const AHEAD_MIN: ByteCount = ByteCount(128 << 20);
/// Pieces that a scan is cut into at most. A piece is what the tracer may have to wait for.
const PIECES_MAX: usize = 48;
/// Pieces have at least this share of what is worth it: smaller ones cost as much to hand out as to ask about.
const SHARE_MIN: u64 = 8;

/// What was asked about ahead.
#[derive(Debug)]
pub(crate) struct Ahead {
    board: Arc<Board>,
    worker_pool: Option<Arc<WorkerPool>>,
    /// The first piece whose answer was not taken yet.
    next: usize,
}

#[derive(Debug)]
struct Board {
    map: Arc<Pagemap>,
    pieces: Vec<Mutex<Piece>>,
    /// How many of them there are this time.
    count: AtomicUsize,
    claimed: AtomicUsize,
}

#[derive(Debug)]
struct Piece {
    range: AddressRange,
    answer: Answer,
    regions: PageRegions,
}

/// What is known of a piece.
#[derive(Debug)]
enum Answer {
    /// It was not scanned.
    Open,
    /// Where to go on.
    Given(Result<Address, Error>),
    /// It was reported. It must not be scanned again before the next scan: pages that are protected then would not be
    /// reported.
    Taken,
}

impl Ahead {
    pub(crate) fn new(map: &Arc<Pagemap>) -> Self {
        Self { board: Arc::new(Board::of(map)), worker_pool: None, next: 0 }
    }

    /// Makes room for answers, if it will be needed: that takes longer than to ask.
    pub(crate) fn prepare(&mut self, runs: &[Run], least: ByteCount) {
        if total(runs) >= least {
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        if self.board.pieces.is_empty() {
            let pieces = (0..PIECES_MAX).map(|_| Mutex::new(Piece::new())).collect();
            self.board = Arc::new(Board { pieces, ..Board::of(&self.board.map) });
        }
    }

    /// Has a worker pool ask about all parts of which only writes are of interest, if there is at least so much of them.
    pub(crate) fn begin(&mut self, runs: &[Run], worker_pool: &Arc<WorkerPool>, least: ByteCount) {
        let total = total(runs);
        // Answers of a scan that was given up have to be reported first.
        if total < least || !self.is_empty() {
            return;
        }
        self.make_room();
        let size_min = ByteCount((least.get() / SHARE_MIN).next_multiple_of(PAGE_BYTES));
        let size = ByteCount(total.get().div_ceil(PIECES_MAX as u64 / 2).next_multiple_of(HUGE_PAGE_BYTES));
        let worth = parts(runs).filter(|part| part.len() >= size_min);
        let count = self.board.fill(worth, size.max(size_min));
        self.next = 0;
        self.board.claimed.store(0, Ordering::SeqCst);
        self.board.count.store(count, Ordering::SeqCst);
        self.worker_pool = Some(Arc::clone(worker_pool));
        worker_pool.post(Arc::clone(&self.board) as Arc<dyn Work>);
    }

    /// Whether there is no answer that was not taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.board.count.load(Ordering::SeqCst)
    }

    /// Does the pieces that were not begun.
    pub(crate) fn join(&self) {
        while self.board.step() {}
    }

    /// The answer for the piece at the beginning of a range, in place of a request; where the request ended.
    pub(crate) fn take(
        &mut self,
        range: AddressRange,
        regions: &mut PageRegions,
    ) -> Option<Result<Address, Error>> {
        if self.is_empty() || self.piece().range.start != range.start {
            return None;
        }
        Some(self.take_next(regions))
    }

    /// The part of a range that lies before the next piece, if that lies in it.
    pub(crate) fn before(&self, range: AddressRange) -> AddressRange {
        if self.is_empty() {
            return range;
        }
        let start = self.piece().range.start;
        let end = if range.start < start { range.end.min(start) } else { range.end };
        AddressRange::new(range.start, end)
    }

    /// Whether there is a next piece, and it begins before an address.
    pub(crate) fn begins_before(&self, end: Address) -> bool {
        !self.is_empty() && self.piece().range.start < end
    }

    /// The answer for the next piece, wherever that is.
    pub(crate) fn take_next(&mut self, regions: &mut PageRegions) -> Result<Address, Error> {
        let mut piece = self.piece();
        piece.ask(&self.board.map);
        std::mem::swap(&mut piece.regions, regions);
        let answer = match std::mem::replace(&mut piece.answer, Answer::Taken) {
            Answer::Given(answer) => answer,
            // Each is taken once.
            Answer::Open | Answer::Taken => Ok(piece.range.start),
        };
        drop(piece);
        self.next += 1;
        answer
    }

    /// The next piece; waits for who is asking about it.
    fn piece(&self) -> MutexGuard<'_, Piece> {
        let piece = &self.board.pieces[self.next];
        match piece.try_lock() {
            Ok(piece) => piece,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if let Some(worker_pool) = &self.worker_pool {
                    worker_pool.hurry();
                }
                piece.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

fn can_be_asked_ahead(run: &Run) -> bool {
    run.watched && !run.lost && !run.new && run.class != Class::PrivateFile
}

/// Parts of which only writes are of interest.
fn parts(runs: &[Run]) -> impl Iterator<Item = &AddressRange> {
    runs.iter().filter(|run| can_be_asked_ahead(run)).flat_map(|run| run.spans.parts())
}

fn total(runs: &[Run]) -> ByteCount {
    parts(runs).fold(ByteCount(0), |sum, part| sum + part.len())
}

impl Board {
    fn of(map: &Arc<Pagemap>) -> Self {
        let (count, claimed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { map: Arc::clone(map), pieces: Vec::new(), count, claimed }
    }

    /// Cuts parts into pieces; how many. What there is no piece for is left to the scan.
    fn fill<'a>(&self, parts: impl Iterator<Item = &'a AddressRange>, size: ByteCount) -> usize {
        let mut count = 0;
        for part in parts {
            let mut start = part.start;
            while start < part.end {
                let Some(piece) = self.pieces.get(count) else { return count };
                let end = if part.end - start <= size { part.end } else { start + size };
                let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
                (piece.range, piece.answer) = (AddressRange::new(start, end), Answer::Open);
                count += 1;
                start = end;
            }
        }
        count
    }
}

impl Work for Board {
    fn step(&self) -> bool {
        let mine = self.claimed.fetch_add(1, Ordering::SeqCst);
        let has_one = mine < self.count.load(Ordering::SeqCst);
        if has_one {
            self.pieces[mine].lock().unwrap_or_else(PoisonError::into_inner).ask(&self.map);
        }
        has_one
    }
}

impl Piece {
    fn new() -> Self {
        let range = AddressRange { start: Address(0), end: Address(0) };
        Self { range, answer: Answer::Taken, regions: PageRegions::new() }
    }

    fn ask(&mut self, map: &Pagemap) {
        if matches!(self.answer, Answer::Open) {
            self.answer = Answer::Given(map.select(&query::REARM, self.range, &mut self.regions));
        }
    }
}
