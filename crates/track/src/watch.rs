//! Watching writes through a userfaultfd: the common part of the asynchronous and the synchronous tracker.
//!
//! Owns: registering mappings, scanning them, the fate of discarded pages.
//! Invariants: a page that is reported is protected before it is read, so that a write during the copy is reported
//! again. A page that was never protected counts as written, so that new and replaced mappings are reported. A mapping
//! that is watched again has no earlier protection left.
//! Does not: handle faults.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use model::{Address, AddressRange, ByteCount, Pid};
use sys::pagemap::{PageRegions, Pagemap};
use sys::userfaultfd::{self, Mode};
use sys::{Errno, Error};
use tracee::WorkerPool;
use tracee::procfs::Area;

use crate::ahead::Ahead;
use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::error::TrackError;
use crate::finder::Inspector;
use crate::full::Look;
use crate::handler::{Handler, Waiting};
use crate::query;
use crate::runs::{Run, Runs, Verdict};
use crate::spans::Spans;
use crate::survey::Survey;
use crate::tracker::{Attach, Coverage, Moment, Tracker, TrackerKind, Why};

/// Shared memory up to this size is watched: its page tables take at most 32 MiB.
const SHARED_MAX: ByteCount = ByteCount(16 << 30);
/// Times a run is watched again in one scan because something was mapped into it; a process that does so without
/// end gets it reported whole.
const HEALS_MAX: usize = 3;

/// Times a range is tried to be protected while areas change; each waits for the handler, some microseconds.
const PROTECT_TRIES_MAX: usize = 100_000;

/// Memory whose protection is lifted with one request: some 25 microseconds, for which nothing can be mapped.
const LIFT_BYTES: ByteCount = ByteCount(1 << 20);

/// Behind all that a process may map.
const EVERYTHING_END: Address = Address(u64::MAX);

const EAGAIN: Errno = Errno(11);
const EBUSY: Errno = Errno(16);

/// What watches one address space.
#[derive(Debug)]
pub(crate) struct Watch {
    kind: &'static dyn TrackerKind,
    pid: Pid,
    handler: Handler,
    mode: Mode,
    runs: Runs,
    look: Look,
    inspector: Inspector,
    regions: PageRegions,
    /// Parts that turned out to hold something in the bare part of a run.
    found: Vec<AddressRange>,
    ahead: Ahead,
    /// Of the time before, for the first list of areas.
    survey: Survey,
}

impl Tracker for Watch {
    fn kind(&self) -> &'static dyn TrackerKind {
        self.kind
    }

    fn cover(&mut self, areas: &[Area]) -> Result<&Coverage, TrackError> {
        let (handler, map, mode) = (&self.handler, &self.look.map, self.mode);
        let survey = std::mem::take(&mut self.survey);
        self.runs.renew(areas, |range, class| {
            let fd = handler.watches(class);
            if survey.is_open(range) {
                return judge(range, class, || userfaultfd::register(fd, range));
            }
            judge(range, class, || watch(fd, map, mode, range))
        });
        Ok(&self.runs.coverage)
    }

    fn prepare_scan(&mut self, least: ByteCount) {
        if self.mode == Mode::Async {
            self.ahead.prepare(&self.runs.list, least);
        }
    }

    fn post_scan(&mut self, worker_pool: &Arc<WorkerPool>, least: ByteCount) {
        if self.mode == Mode::Async {
            self.ahead.begin(&self.runs.list, worker_pool, least);
        }
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        self.handler.check()?;
        self.inspector.begin_scan(moment);
        let mut runs = std::mem::take(&mut self.runs.list);
        match moment {
            Moment::Stopped => self.ahead.join(),
            // Of a stop that came to nothing.
            Moment::Running => self.report_ahead(&runs, EVERYTHING_END, into),
        }
        let outcome = runs.iter_mut().try_for_each(|run| self.scan_run(run, moment, into));
        self.report_ahead(&runs, EVERYTHING_END, into);
        let outcome = outcome.and_then(|()| self.report_removed(&mut runs, moment, into));
        self.runs.list = runs;
        match outcome {
            Err(error) => Err(TrackError::of_scan(self.pid, error)),
            Ok(()) if self.look.map.is_alive()? => Ok(()),
            Ok(()) => Err(TrackError::Gone(self.pid)),
        }
    }

    /// The kernel lifts protection under the lock of all areas when it ends a watch, 20 to 70 ms a gigabyte in which
    /// the process can neither map memory nor serve faults. By request it takes the lock as a reader.
    fn unwind(&mut self) {
        for run in self.runs.list.iter().filter(|run| run.watched) {
            let fd = self.handler.watches(run.class);
            let parts = run.spans.parts();
            let pieces = parts.iter().flat_map(|part| part.pieces(LIFT_BYTES));
            let bare = (0..=parts.len()).map(|index| run.spans.bare(index)).filter(|part| !part.is_empty());
            for piece in pieces.chain(bare) {
                // What cannot be lifted is lifted when the watch ends.
                let _ = userfaultfd::lift(fd, piece);
            }
        }
    }

    /// Ends the watch over writes, without a look at each page, by one for missing pages in its place, which no page
    /// triggers.
    fn leave(&mut self) {
        let list = &self.runs.list;
        for (index, run) in list.iter().enumerate().filter(|(_, run)| run.watched) {
            let fd = self.handler.watches(run.class);
            // What has grown since it was listed would else be watched in part until the last duplicate of the
            // descriptor is closed, also that of a child of ours before its exec, and mremap(2) over both parts fail.
            let next = list.get(index + 1).map_or(run.range.end, |next| next.range.start);
            if !end(fd, AddressRange::new(run.range.start, next)) {
                // Otherwise it ends with the descriptor.
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
        mode: Mode,
        areas: &[Area],
    ) -> Result<Attach, TrackError> {
        let look = Look::open(pid)?;
        let (ahead, inspector) = (Ahead::new(&look.map), Inspector::new(pid, &look.map));
        let regions = PageRegions::new();
        let survey = Survey::of(pid, areas);
        let waiting = Waiting::begin(pid, mode)?;
        Ok(Box::new(move |session| {
            Ok(Box::new(Self {
                kind,
                pid,
                handler: waiting.attach(session)?,
                mode,
                runs: Runs::default(),
                look,
                inspector,
                regions,
                found: Vec::with_capacity(64),
                ahead,
                survey,
            }))
        }))
    }

    fn scan_run(&mut self, run: &mut Run, moment: Moment, into: &mut DirtyPages) -> Result<(), Error> {
        for _ in 0..HEALS_MAX {
            if run.lost && moment == Moment::Stopped {
                self.heal(run)?;
            }
            if run.lost || !run.watched {
                break;
            }
            match self.scan_watched(run, moment, into) {
                // To watch what has replaced it would split areas that the list does not tell right any more, and a
                // program that resizes one just then would be refused: that has to wait until it stands.
                Err(error) if is_unwatched(&error) => {
                    self.report_ahead(std::slice::from_ref(run), run.range.end, into);
                    into.push_replaced(run.range);
                    (run.lost, run.new) = (true, true);
                }
                outcome => return outcome,
            }
        }
        if moment == Moment::Stopped {
            // Until the areas are told again.
            run.new |= std::mem::take(&mut run.watched);
            run.lost = false;
        }
        self.look.report_all(run, into)
    }

    /// Has those parts of a run watched again that are not.
    fn heal(&mut self, run: &mut Run) -> Result<(), Error> {
        let fd = self.handler.watches(run.class);
        run.lost = false;
        for area in tracee::procfs::areas(self.pid)? {
            let part = AddressRange {
                start: area.range.start.max(run.range.start),
                end: area.range.end.min(run.range.end),
            };
            if part.start < part.end && watch(fd, &self.look.map, self.mode, part).is_err() {
                run.new |= std::mem::take(&mut run.watched);
            }
        }
        Ok(())
    }

    fn scan_watched(&mut self, run: &mut Run, moment: Moment, into: &mut DirtyPages) -> Result<(), Error> {
        let unsteady = moment == Moment::Running;
        let telling = unsteady || run.new || run.class == Class::PrivateFile || self.mode == Mode::Sync;
        let way = Way { telling, unsteady };
        for index in 0..run.spans.parts().len() {
            let part = run.spans.parts()[index];
            self.rearm(part, run, way, into)?;
        }
        self.scan_bare(run, Way { telling: true, unsteady }, into)?;
        run.new = false;
        Ok(())
    }

    /// Reports what was asked ahead up to an address and will not be taken in its place, as far as it lies in some
    /// runs; the rest is no longer of interest.
    fn report_ahead(&mut self, runs: &[Run], end: Address, into: &mut DirtyPages) {
        while self.ahead.begins_before(end) {
            // Where it ended does not matter: what was not seen is still written.
            let _ = self.ahead.take_next(&mut self.regions);
            for (region, _) in self.regions.iter() {
                for run in runs.iter().filter(|run| run.range.overlaps(region)) {
                    let start = region.start.max(run.range.start);
                    into.push(AddressRange::new(start, region.end.min(run.range.end)), Content::Unknown);
                }
            }
        }
    }

    /// Reports what was discarded: its protection has stayed. The message comes before the deed, so that only a
    /// process that stands has done it.
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
                let reported = finder.take_told(range, Content::Unknown);
                outcome = std::mem::replace(&mut outcome, Ok(())).and(reported);
            });
        }
        if moment == Moment::Stopped && outcome.is_ok() {
            removals.clear();
        }
        outcome
    }

    fn scan_bare(&mut self, run: &mut Run, way: Way, into: &mut DirtyPages) -> Result<(), Error> {
        self.found.clear();
        for index in 0..=run.spans.parts().len() {
            let bare = run.spans.bare(index);
            let found = &mut self.found;
            let map = &self.look.map;
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
            self.rearm(part, run, way, into)?;
        }
        Ok(())
    }

    /// Reports what was written in a part of a run, protected again.
    fn rearm(
        &mut self,
        part: AddressRange,
        run: &mut Run,
        way: Way,
        into: &mut DirtyPages,
    ) -> Result<(), Error> {
        let question = match (self.mode, way.telling) {
            (Mode::Sync, _) => query::written(),
            (Mode::Async, true) => query::rearm_telling(),
            (Mode::Async, false) => query::REARM,
        };
        let mut finder = self.inspector.finder(run.class, &mut run.uncertain, into);
        if !way.unsteady {
            finder.settle_rechecks()?;
        }
        let mut start = part.start;
        while start < part.end {
            let rest = AddressRange::new(start, part.end);
            let ahead = if way.telling { None } else { self.ahead.take(rest, &mut self.regions) };
            let asked = match ahead {
                Some(asked) => asked,
                None => {
                    let rest = if way.telling { rest } else { self.ahead.before(rest) };
                    self.look.map.select(&question, rest, &mut self.regions)
                }
            };
            // Also after a failure: what was protected is reported here or never.
            for (range, categories) in self.regions.iter() {
                if way.telling {
                    finder.take_told(range, query::meaning(categories))?;
                } else {
                    finder.take(range)?;
                }
                if self.mode == Mode::Sync {
                    protect(self.handler.watches(run.class), range)?;
                }
                if way.unsteady && !query::meaning(categories).must_read() {
                    finder.look_again(range)?;
                }
            }
            start = asked?;
        }
        Ok(())
    }
}

/// How a part is gone through.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The answer tells what pages hold.
    telling: bool,
    /// Pages may be filled between the moment they are told to be empty and their protection: a request is atomic
    /// for each page table, and not where there is none.
    unsteady: bool,
}

fn judge(range: AddressRange, class: Class, watch: impl FnOnce() -> Result<(), Error>) -> Verdict {
    if class == Class::Shared && range.len() > SHARED_MAX {
        return Verdict::Unwatched(Why::TooSparse);
    }
    match watch() {
        Ok(()) => Verdict::Watched,
        Err(error) if error.errno == EBUSY => Verdict::Unwatched(Why::WatchedByProgram),
        Err(error) if error.errno == Errno::EPERM && class == Class::Shared => Verdict::Constant,
        Err(error) => Verdict::Unwatched(Why::Unwatchable(error.errno)),
    }
}

/// Has an area, or a part of one, watched.
///
/// One that is not may hold protected pages all the same, whose writes are not reported: memory that mremap(2) moves
/// beside a watched area can become one with it, and the kernel then ends the watch over both and lifts the protection
/// of what was moved alone (mm/mremap.c and mremap_userfaultfd_prep, Linux 6.18).
fn watch(fd: BorrowedFd<'_>, map: &Pagemap, mode: Mode, range: AddressRange) -> Result<(), Error> {
    // Of the program's own watch nothing is touched: to register says EBUSY. Only the asynchronous one can be asked
    // about without a change; with the other, all of the area counts as written.
    let is_watched = mode == Mode::Async && map.is_watched(range.start);
    // To lift what is not there takes 25 to 50 ms a gigabyte, inside the pause; to look for it 0.6 ms. Where that cannot
    // be asked, there may be some.
    let is_open = is_watched || map.has_protected(range).is_ok_and(|has_some| !has_some);
    userfaultfd::register(fd, range)?;
    if is_open { Ok(()) } else { userfaultfd::lift(fd, range) }
}

/// Ends the watch over a range, and says whether it could: something else may lie in it.
fn end(fd: BorrowedFd<'_>, range: AddressRange) -> bool {
    userfaultfd::register_for_missing(fd, range).is_ok() && userfaultfd::unregister(fd, range).is_ok()
}

/// Protects a range, as soon as the areas have stopped changing: a thread waits to discard pages, and the handler
/// resumes it.
fn protect(fd: BorrowedFd<'_>, range: AddressRange) -> Result<(), Error> {
    for _ in 0..PROTECT_TRIES_MAX {
        match userfaultfd::protect(fd, range) {
            Err(error) if error.errno == EAGAIN => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
    userfaultfd::protect(fd, range)
}

/// Whether a request failed because something that is not watched is mapped there.
fn is_unwatched(error: &Error) -> bool {
    error.errno == Errno::EPERM || error.errno == Errno::ENOENT
}
