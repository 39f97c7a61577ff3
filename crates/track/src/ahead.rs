//! Lets worker threads scan a stopped process, while the tracer does other work.
//!
//! The watched memory is cut into *pieces*. A worker claims an unclaimed piece, scans the piece, and stores
//! the result in the piece. When the tracker scans the process, it *takes* the results and reports them.
//!
//! Owns: the pieces of the scan, the assignment of pieces to workers, and the results that the tracker has
//! not taken yet.
//! Invariants: all pages in a result are already protected. The next scan of the tracker reports the pages,
//! whether the process is stopped or runs. If no worker has scanned a piece, the thread that takes the result
//! scans the piece.
//! Does not: determine the content of pages.
//!
//! Workers make only the query `query::REARM`, which finds written pages and protects them again. The results
//! of all other queries depend on the content of a page at the time of the scan.

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

/// Minimum amount of watched memory for which a scan by workers is useful. Scanning this amount takes about
/// 40 microseconds.
pub const AHEAD_MIN: ByteCount = ByteCount(128 << 20);
/// Maximum number of pieces of a scan. The tracer may have to wait while a worker scans one piece, so pieces
/// must be small.
const PIECES_MAX: usize = 48;
/// A piece has at least an eighth of the minimum amount of memory. For a smaller piece, the assignment to a
/// worker would take as long as the scan.
const SHARE_MIN: u64 = 8;

/// Maximum number of regions in the result of one piece. The tracer scans the rest of a piece itself.
const REGIONS_MAX: usize = 4096;

/// The scan by workers, and its results.
#[derive(Debug)]
pub(crate) struct Ahead {
    board: Arc<Board>,
    worker_pool: Option<Arc<WorkerPool>>,
    /// Index of the first piece whose result was not taken yet.
    next: usize,
}

#[derive(Debug)]
struct Board {
    map: Arc<Pagemap>,
    pieces: Vec<Mutex<Piece>>,
    /// Number of pieces of the present scan.
    count: AtomicUsize,
    claimed: AtomicUsize,
}

#[derive(Debug)]
struct Piece {
    range: AddressRange,
    state: PieceState,
    regions: PageRegions,
}

#[derive(Debug)]
enum PieceState {
    /// The piece was not scanned.
    Unscanned,
    /// The piece was scanned. Contains the address where the request ended, or the error of the request.
    Scanned(Result<Address, Error>),
    /// The result was taken. The piece must not be scanned before it has a new range: the request would
    /// protect written pages that no scan reports.
    Taken,
}

impl Ahead {
    pub(crate) fn new(map: &Arc<Pagemap>) -> Self {
        Self { board: Arc::new(Board::of(map)), worker_pool: None, next: 0 }
    }

    /// Allocates memory for the results if workers can scan at least `min_bytes`. The allocation takes longer
    /// than the scan, so it must not happen inside a pause.
    pub(crate) fn prepare(&mut self, runs: &[Run], min_bytes: ByteCount) {
        if total(runs) >= min_bytes {
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        if self.board.pieces.is_empty() {
            let pieces = (0..PIECES_MAX).map(|_| Mutex::new(Piece::new())).collect();
            self.board = Arc::new(Board { pieces, ..Board::of(&self.board.map) });
        }
    }

    /// Hands the scan of all parts that need only the query [`query::REARM`] to a worker pool. Does nothing
    /// if these parts have less than `min_bytes`.
    pub(crate) fn begin(&mut self, runs: &[Run], worker_pool: &Arc<WorkerPool>, min_bytes: ByteCount) {
        let total = total(runs);
        // Results of an aborted scan must be reported before the pieces are used again.
        if total < min_bytes || !self.is_empty() {
            return;
        }
        self.make_room();
        let size_min = ByteCount((min_bytes.get() / SHARE_MIN).next_multiple_of(PAGE_BYTES));
        let size = ByteCount(total.get().div_ceil(PIECES_MAX as u64 / 2).next_multiple_of(HUGE_PAGE_BYTES));
        let worth = parts(runs).filter(|part| part.len() >= size_min);
        let count = self.board.fill(worth, size.max(size_min));
        self.next = 0;
        self.board.claimed.store(0, Ordering::SeqCst);
        self.board.count.store(count, Ordering::SeqCst);
        self.worker_pool = Some(Arc::clone(worker_pool));
        worker_pool.post(Arc::clone(&self.board) as Arc<dyn Work>);
    }

    /// Reports whether all results were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.board.count.load(Ordering::SeqCst)
    }

    /// Scans the pieces that no worker has claimed.
    pub(crate) fn join(&self) {
        while self.board.step() {}
    }

    /// Returns the result of the next piece if this piece starts where `range` starts. The caller needs no
    /// request for this range: the result contains the regions and the address where the worker's request
    /// ended.
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

    /// Clips a range to the part before the next piece. If the next piece does not start inside the range,
    /// the range is returned unchanged.
    pub(crate) fn before(&self, range: AddressRange) -> AddressRange {
        if self.is_empty() {
            return range;
        }
        let start = self.piece().range.start;
        let end = if range.start < start { range.end.min(start) } else { range.end };
        AddressRange::new(range.start, end)
    }

    /// Reports whether there is a next piece that starts before an address.
    pub(crate) fn begins_before(&self, end: Address) -> bool {
        !self.is_empty() && self.piece().range.start < end
    }

    pub(crate) fn take_next(&mut self, regions: &mut PageRegions) -> Result<Address, Error> {
        let mut piece = self.piece();
        piece.scan(&self.board.map);
        std::mem::swap(&mut piece.regions, regions);
        let result = match std::mem::replace(&mut piece.state, PieceState::Taken) {
            PieceState::Scanned(result) => result,
            // This case does not occur: each result is taken only once.
            PieceState::Unscanned | PieceState::Taken => Ok(piece.range.start),
        };
        drop(piece);
        self.next += 1;
        result
    }

    /// Locks the next piece. If a worker is scanning the piece, the function raises the priority of the
    /// workers and waits.
    fn piece(&self) -> MutexGuard<'_, Piece> {
        let piece = &self.board.pieces[self.next];
        match piece.try_lock() {
            Ok(piece) => piece,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if let Some(worker_pool) = &self.worker_pool {
                    worker_pool.raise_priority();
                }
                piece.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

fn is_scannable_ahead(run: &Run) -> bool {
    run.watched && !run.lost && !run.new && run.class != Class::PrivateFile
}

/// Returns the parts that need only the query [`query::REARM`].
fn parts(runs: &[Run]) -> impl Iterator<Item = &AddressRange> {
    runs.iter().filter(|run| is_scannable_ahead(run)).flat_map(|run| run.spans.parts.as_slice())
}

fn total(runs: &[Run]) -> ByteCount {
    parts(runs).fold(ByteCount(0), |sum, part| sum + part.len())
}

impl Board {
    fn of(map: &Arc<Pagemap>) -> Self {
        let (count, claimed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { map: Arc::clone(map), pieces: Vec::new(), count, claimed }
    }

    /// Cuts parts into pieces, and returns the number of pieces. If there are too few pieces, the tracker
    /// scans the remaining memory without workers.
    fn fill<'a>(&self, parts: impl Iterator<Item = &'a AddressRange>, size: ByteCount) -> usize {
        let mut count = 0;
        for part in parts {
            let mut start = part.start;
            while start < part.end {
                let Some(piece) = self.pieces.get(count) else { return count };
                let end = if part.end - start <= size { part.end } else { start + size };
                let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
                (piece.range, piece.state) = (AddressRange::new(start, end), PieceState::Unscanned);
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
            self.pieces[mine].lock().unwrap_or_else(PoisonError::into_inner).scan(&self.map);
        }
        has_one
    }
}

impl Piece {
    fn new() -> Self {
        let range = AddressRange { start: Address(0), end: Address(0) };
        Self { range, state: PieceState::Taken, regions: PageRegions::with_room(REGIONS_MAX) }
    }

    fn scan(&mut self, map: &Pagemap) {
        if matches!(self.state, PieceState::Unscanned) {
            self.state = PieceState::Scanned(map.select(&query::REARM, self.range, &mut self.regions));
        }
    }
}
