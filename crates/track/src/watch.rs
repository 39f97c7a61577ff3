//! Finds written pages through the asynchronous write protection of userfaultfd(2).
//!
//! A mapping is *watched* while it is registered with a userfaultfd. A scan finds the pages that are not
//! protected, reports them as written, and protects them again. A write to a protected page removes the
//! protection. A *run* is a sequence of adjacent mappings that is scanned as one range. The *bare* parts of a
//! run contain no page yet. They are watched, but not protected, because protection needs page tables.
//!
//! Owns: the registration of mappings, the scan of mappings, and the report of discarded pages.
//! Invariants: a reported page is protected before the page is copied. If the process writes to the page
//! during the copy, the next scan reports the page again. A page that was never protected counts as written,
//! so that all pages of new mappings are reported. When a mapping is registered again, all protection from
//! the previous registration is removed.
//! Does not: handle page faults; the kernel lifts the protection itself.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use model::{Address, AddressRange, ByteCount, Pid};
use sys::pagemap::{PageRegions, Pagemap};
use sys::userfaultfd;
use sys::{Errno, Error};
use tracee::WorkerPool;
use tracee::procfs::Mapping;

use crate::ahead::Ahead;
use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::error::TrackError;
use crate::finder::Inspector;
use crate::full::ContentScan;
use crate::handler::{Handler, Waiting};
use crate::loosen::{LIFT_BYTES, Loosener};
use crate::query;
use crate::runs::{Run, Runs, Verdict};
use crate::spans::Spans;
use crate::survey::Survey;
use crate::tracker::{Attach, Coverage, Moment, Tracker, TrackerKind, UnwatchedReason};

/// Largest shared mapping that is watched. The page tables of a mapping of this size take 32 MiB.
const SHARED_MAX: ByteCount = ByteCount(16 << 30);
/// Maximum number of attempts to scan a watched run in one scan. An attempt fails if the process has placed
/// an unwatched mapping in the run. After the last attempt, all pages of the run are reported.
const SCAN_ATTEMPTS_MAX: usize = 3;

/// An address above all mappings of a process.
const EVERYTHING_END: Address = Address(u64::MAX);

const EBUSY: Errno = Errno(16);

/// The tracker of one address space.
#[derive(Debug)]
pub(crate) struct Watch {
    kind: &'static dyn TrackerKind,
    pid: Pid,
    handler: Handler,
    runs: Runs,
    content_scan: ContentScan,
    inspector: Inspector,
    regions: PageRegions,
    /// Ranges in which the current scan has found pages, inside the bare parts of a run.
    found: Vec<AddressRange>,
    ahead: Ahead,
    /// Result of the query that `prepare` makes before the tracker is attached. The first call of `cover`
    /// uses this result.
    survey: Survey,
}

impl Tracker for Watch {
    fn kind(&self) -> &'static dyn TrackerKind {
        self.kind
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        let (handler, map) = (&self.handler, &self.content_scan.map);
        let survey = std::mem::take(&mut self.survey);
        self.runs.renew(mappings, |range, class| {
            let fd = handler.fd_for(class);
            if survey.is_unprotected(range) {
                return judge(range, class, || userfaultfd::register(fd, range));
            }
            judge(range, class, || watch(fd, map, range))
        });
        Ok(&self.runs.coverage)
    }

    fn prepare_scan(&mut self, min_bytes: ByteCount) {
        self.ahead.prepare(&self.runs.list, min_bytes);
    }

    fn post_scan(&mut self, worker_pool: &Arc<WorkerPool>, min_bytes: ByteCount) {
        self.ahead.begin(&self.runs.list, worker_pool, min_bytes);
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        self.handler.check()?;
        self.inspector.begin_scan(moment);
        let mut runs = std::mem::take(&mut self.runs.list);
        match moment {
            Moment::Stopped => self.ahead.join(),
            // A previous stop may have been aborted before its scan. Results of workers for this scan are
            // still unreported.
            Moment::Running => self.report_ahead(&runs, EVERYTHING_END, into),
        }
        let outcome = runs.iter_mut().try_for_each(|run| self.scan_run(run, moment, into));
        self.report_ahead(&runs, EVERYTHING_END, into);
        let outcome = outcome.and_then(|()| self.report_removed(&mut runs, moment, into));
        self.runs.list = runs;
        match outcome {
            Err(error) => Err(TrackError::of_scan(self.pid, error)),
            Ok(()) if self.content_scan.map.is_alive()? => Ok(()),
            Ok(()) => Err(TrackError::Gone(self.pid)),
        }
    }

    fn loosener(&self) -> Option<Loosener> {
        Some(Loosener::new(&self.content_scan.map, self.handler.descriptors()))
    }

    /// Lifts the protection of all watched memory in small requests. A request holds the mmap lock as a
    /// reader. Without these requests, the kernel lifts the protection when the watch ends. It then holds the
    /// mmap lock as a writer for 20 to 70 ms per GiB. While the lock has a writer, the process can neither
    /// map memory nor handle page faults.
    fn unwind(&mut self) {
        for run in self.runs.list.iter().filter(|run| run.watched) {
            let fd = self.handler.fd_for(run.class);
            let parts = &run.spans.parts;
            let pieces = parts.iter().flat_map(|part| part.pieces(LIFT_BYTES));
            let bare = (0..=parts.len()).map(|index| run.spans.bare(index)).filter(|part| !part.is_empty());
            for piece in pieces.chain(bare) {
                // If a request fails, the kernel lifts the protection when the watch ends.
                let _ = userfaultfd::lift(fd, piece);
            }
        }
    }

    /// Ends the watch of all runs. The function registers each run for missing pages instead of writes, and
    /// then unregisters the run. The kernel can end a watch for missing pages without a walk over all pages.
    /// The process is stopped, so it does not access missing pages meanwhile.
    fn leave(&mut self) {
        let list = &self.runs.list;
        for (index, run) in list.iter().enumerate().filter(|(_, run)| run.watched) {
            let fd = self.handler.fd_for(run.class);
            // If a mapping has grown since it was listed, the new part is watched, too. Therefore the range
            // extends to the start of the next run. A part that is not unregistered stays watched until the
            // last duplicate of the descriptor is closed. A new child of this process has a duplicate until
            // its execve(2). Before this execve(2), an mremap(2) of the old and the new part together would
            // fail.
            let next = list.get(index + 1).map_or(run.range.end, |next| next.range.start);
            if !end(fd, AddressRange::new(run.range.start, next)) {
                // If this request fails too, the watch ends when the descriptor is closed.
                end(fd, run.range);
            }
        }
        self.handler.close();
    }
}

impl Watch {
    pub(crate) fn prepare(
        kind: &'static dyn TrackerKind,
        pid: Pid,
        mappings: &[Mapping],
    ) -> Result<Attach, TrackError> {
        let content_scan = ContentScan::open(pid)?;
        let (ahead, inspector) = (Ahead::new(&content_scan.map), Inspector::new(pid, &content_scan.map));
        let regions = PageRegions::new();
        let survey = Survey::of(pid, mappings);
        let waiting = Waiting::begin(pid)?;
        Ok(Box::new(move |session| {
            Ok(Box::new(Self {
                kind,
                pid,
                handler: waiting.attach(session)?,
                runs: Runs::default(),
                content_scan,
                inspector,
                regions,
                found: Vec::with_capacity(64),
                ahead,
                survey,
            }))
        }))
    }

    fn scan_run(&mut self, run: &mut Run, moment: Moment, into: &mut DirtyPages) -> Result<(), Error> {
        for _ in 0..SCAN_ATTEMPTS_MAX {
            if run.lost && moment == Moment::Stopped {
                self.reregister(run)?;
            }
            if run.lost || !run.watched {
                break;
            }
            match self.scan_watched(run, moment, into) {
                // The process has replaced a part of the run. This part must not be registered while the
                // process runs: the list of mappings is outdated, so a registration could split a mapping. If
                // the program then resized the split mapping, the kernel would refuse. The next scan of the
                // stopped process registers the part.
                Err(error) if is_unwatched(&error) => {
                    self.report_ahead(std::slice::from_ref(run), run.range.end, into);
                    into.push_replaced(run.range);
                    (run.lost, run.new) = (true, true);
                }
                outcome => return outcome,
            }
        }
        if moment == Moment::Stopped {
            // The run stays unwatched until the next call of `cover`.
            run.new |= std::mem::take(&mut run.watched);
            run.lost = false;
        }
        self.content_scan.report_all(run, into)
    }

    /// Registers the mappings in a run again, because some of them are no longer watched.
    fn reregister(&mut self, run: &mut Run) -> Result<(), Error> {
        let fd = self.handler.fd_for(run.class);
        run.lost = false;
        for mapping in tracee::procfs::mappings(self.pid)? {
            let part = AddressRange {
                start: mapping.range.start.max(run.range.start),
                end: mapping.range.end.min(run.range.end),
            };
            if part.start < part.end && watch(fd, &self.content_scan.map, part).is_err() {
                run.new |= std::mem::take(&mut run.watched);
            }
        }
        Ok(())
    }

    fn scan_watched(&mut self, run: &mut Run, moment: Moment, into: &mut DirtyPages) -> Result<(), Error> {
        let is_running = moment == Moment::Running;
        let with_content = is_running || run.new || run.class == Class::PrivateFile;
        let scan_mode = ScanMode { with_content, is_running };
        for index in 0..run.spans.parts.len() {
            let part = run.spans.parts[index];
            self.rearm(part, run, scan_mode, into)?;
        }
        self.scan_bare(run, ScanMode { with_content: true, is_running }, into)?;
        run.new = false;
        Ok(())
    }

    /// Reports the results of the workers (see `ahead`) for all pieces that begin before `end`. Regions
    /// outside of `runs` are ignored, because memory outside of `runs` is no longer tracked.
    fn report_ahead(&mut self, runs: &[Run], end: Address, into: &mut DirtyPages) {
        while self.ahead.begins_before(end) {
            // The returned address, where the request ended, is not needed. Written pages beyond this address
            // are still unprotected, so the next request finds them.
            let _ = self.ahead.take_next(&mut self.regions);
            for (region, _) in self.regions.iter() {
                for run in runs.iter().filter(|run| run.range.overlaps(region)) {
                    let start = region.start.max(run.range.start);
                    into.push(AddressRange::new(start, region.end.min(run.range.end)), Content::Unknown);
                }
            }
        }
    }

    /// Reports discarded pages of file mappings and shared memory. A discarded page stays protected, so the
    /// scan for written pages does not find the page. The kernel sends a message before it discards pages. In
    /// a running process, an announced discard may be incomplete, so the list is kept for the next scan. In a
    /// stopped process, all announced discards are complete, so the list is cleared.
    fn report_removed(
        &mut self,
        runs: &mut [Run],
        moment: Moment,
        into: &mut DirtyPages,
    ) -> Result<(), Error> {
        let mut removals = self.handler.removals();
        if removals.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for run in runs.iter_mut().filter(|run| run.watched && run.class != Class::Anonymous) {
            let mut finder = self.inspector.finder(run.class, &mut run.uncertain, into);
            removals.within(run.range, |range| {
                let reported = finder.take_with_content(range, Content::Unknown);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(reported);
            });
        }
        if moment == Moment::Stopped && outcome.is_ok() {
            removals.clear();
        }
        outcome
    }

    fn scan_bare(&mut self, run: &mut Run, scan_mode: ScanMode, into: &mut DirtyPages) -> Result<(), Error> {
        self.found.clear();
        for index in 0..=run.spans.parts.len() {
            let bare = run.spans.bare(index);
            let found = &mut self.found;
            let map = &self.content_scan.map;
            query::ask(map, &query::present(), bare, &mut self.regions, |range, _| {
                let around = Spans::around(range, bare);
                match found.last_mut() {
                    Some(last) if last.end >= around.start => last.end = last.end.max(around.end),
                    _ => found.push(around),
                }
            })?;
        }
        for index in 0..self.found.len() {
            let part = self.found[index];
            run.spans.add(part);
            self.rearm(part, run, scan_mode, into)?;
        }
        Ok(())
    }

    /// Reports the written pages of a part of a run, and protects them again, in one request.
    fn rearm(
        &mut self,
        part: AddressRange,
        run: &mut Run,
        scan_mode: ScanMode,
        into: &mut DirtyPages,
    ) -> Result<(), Error> {
        let question = if scan_mode.with_content { query::rearm_with_content() } else { query::REARM };
        let mut finder = self.inspector.finder(run.class, &mut run.uncertain, into);
        if !scan_mode.is_running {
            finder.settle_rechecks()?;
        }
        let mut start = part.start;
        while start < part.end {
            let rest = AddressRange::new(start, part.end);
            let ahead = if scan_mode.with_content { None } else { self.ahead.take(rest, &mut self.regions) };
            let asked = match ahead {
                Some(asked) => asked,
                None => {
                    let rest = if scan_mode.with_content { rest } else { self.ahead.before(rest) };
                    self.content_scan.map.select(&question, rest, &mut self.regions)
                }
            };
            // The regions are reported even if the request has failed. Their pages are already protected, so
            // the next scan would not find them.
            for (range, categories) in self.regions.iter() {
                if scan_mode.with_content {
                    finder.take_with_content(range, query::meaning(categories))?;
                } else {
                    finder.take(range)?;
                }
                if scan_mode.is_running && !query::meaning(categories).must_read() {
                    finder.recheck_pages(range)?;
                }
            }
            start = asked?;
        }
        Ok(())
    }
}

/// How a scan treats one part of a run.
#[derive(Clone, Copy, Debug)]
struct ScanMode {
    /// The request also returns the content of each page.
    with_content: bool,
    /// The process runs during the scan. Where a page table is missing, a request reports pages as empty, and
    /// then protects them. Between the two steps, the process can fill a page. Where a page table exists,
    /// both steps are atomic.
    is_running: bool,
}

fn judge(range: AddressRange, class: Class, watch: impl FnOnce() -> Result<(), Error>) -> Verdict {
    if class == Class::Shared && range.len() > SHARED_MAX {
        return Verdict::Unwatched(UnwatchedReason::TooSparse);
    }
    match watch() {
        Ok(()) => Verdict::Watched,
        Err(error) if error.errno == EBUSY => Verdict::Unwatched(UnwatchedReason::WatchedByProgram),
        Err(error) if error.errno == Errno::EPERM && class == Class::Shared => Verdict::Constant,
        Err(error) => Verdict::Unwatched(UnwatchedReason::Unwatchable(error.errno)),
    }
}

/// Begins to watch the writes to a mapping, or to a part of a mapping. Removes the protection that the pages
/// still have, unless this tracker already watches the mapping.
///
/// Unwatched memory can contain protected pages, and writes to these pages are not reported. For example,
/// mremap(2) moves memory next to a watched mapping, and the kernel merges the two mappings. The kernel ends
/// the watch of the merged mapping, but lifts the protection only in the moved part (mm/mremap.c and
/// mremap_userfaultfd_prep, Linux 6.18).
fn watch(fd: BorrowedFd<'_>, map: &Pagemap, range: AddressRange) -> Result<(), Error> {
    // If the program watches this memory itself, `register` fails with EBUSY and changes nothing.
    let is_watched = map.is_watched(range.start);
    // Lifting takes 25 to 50 ms per GiB inside the pause, even if no page is protected. The query for
    // protected pages takes 0.6 ms per GiB. If the query fails, the protection is lifted.
    let needs_no_lift = is_watched || map.has_protected(range).is_ok_and(|has_some| !has_some);
    userfaultfd::register(fd, range)?;
    if needs_no_lift { Ok(()) } else { userfaultfd::lift(fd, range) }
}

/// Ends the watch of a range, and reports whether this succeeded. Fails if the range contains a mapping that
/// cannot be registered for missing pages.
fn end(fd: BorrowedFd<'_>, range: AddressRange) -> bool {
    userfaultfd::register_for_missing(fd, range).is_ok() && userfaultfd::unregister(fd, range).is_ok()
}

/// Reports whether a request failed because the range contains memory that is not watched.
fn is_unwatched(error: &Error) -> bool {
    error.errno == Errno::EPERM || error.errno == Errno::ENOENT
}
