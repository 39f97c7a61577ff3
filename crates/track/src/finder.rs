//! Classifies pages that are reported as written.
//!
//! Owns: whether a page has content, as far as the kernel shows it.
//! Invariants: a page that may have content is never called empty. If the process runs and the state is unknown, the
//! page is checked again when the process is stopped.
//! Does not: protect pages.

use std::sync::Arc;

use model::{AddressRange, PageCount, Pid};
use sys::Error;
use sys::pagemap::{Categories, PageQuery, PageRegions, Pagemap};

use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::query;
use crate::tracker::Moment;

/// Written pages in a row from which on it pays to ask what they hold before they are read.
///
/// Asking takes a microsecond. Reading takes a third of a microsecond a page, and makes a page table entry in the
/// process for each page that was not there.
const LOOK_MIN: PageCount = PageCount(64);
/// Uncertain ranges of one run (64 KiB of them); each costs a microsecond inside the next pause.
const RECHECKS_MAX: usize = 4096;

/// Asks what pages of a process hold.
#[derive(Debug)]
pub(crate) struct Inspector {
    map: Arc<Pagemap>,
    content: PageQuery,
    regions: PageRegions,
    swap: Swap,
}

/// Whether pages of the process may be swapped out, asked for once a scan.
#[derive(Debug)]
struct Swap {
    pid: Pid,
    moment: Moment,
    used: Option<bool>,
}

/// What becomes of pages of one run that are reported as written.
pub(crate) struct Finder<'a> {
    inspector: &'a mut Inspector,
    uncertain: &'a mut Vec<AddressRange>,
    class: Class,
    into: &'a mut DirtyPages,
}

impl Inspector {
    pub(crate) fn new(pid: Pid, map: &Arc<Pagemap>) -> Self {
        let swap = Swap { pid, moment: Moment::Stopped, used: None };
        Self { map: Arc::clone(map), content: query::content(), regions: PageRegions::new(), swap }
    }

    /// Forgets what is true for one scan only.
    pub(crate) const fn begin_scan(&mut self, moment: Moment) {
        (self.swap.moment, self.swap.used) = (moment, None);
    }

    /// For the pages of a run.
    pub(crate) const fn finder<'a>(
        &'a mut self,
        class: Class,
        uncertain: &'a mut Vec<AddressRange>,
        into: &'a mut DirtyPages,
    ) -> Finder<'a> {
        Finder { inspector: self, uncertain, class, into }
    }
}

impl Finder<'_> {
    /// Written pages of which nothing else is known; they are protected already.
    pub(crate) fn take(&mut self, range: AddressRange) -> Result<(), Error> {
        if self.class != Class::Anonymous || range.pages() < LOOK_MIN {
            self.into.push(range, Content::Unknown);
            return Ok(());
        }
        let Inspector { map, content, regions, swap } = &mut *self.inspector;
        query::ask(map, content, range, regions, |range, categories| {
            self.into.push(range, meaning_after(categories, swap));
        })
    }

    /// Written pages and what they held when they were protected.
    pub(crate) fn take_told(&mut self, range: AddressRange, content: Content) -> Result<(), Error> {
        match (self.class, content) {
            (Class::Shared, _) => self.into.push(range, Content::Unknown),
            // Of the pages that are there, those of the file are no business of ours.
            (Class::PrivateFile, Content::Present | Content::Unknown) => {
                return self.report_own(range);
            }
            _ => self.into.push(range, content),
        }
        Ok(())
    }

    /// Pages that were told to be empty, and are protected now.
    pub(crate) fn look_again(&mut self, range: AddressRange) -> Result<(), Error> {
        let question = match self.class {
            Class::Shared => return Ok(()),
            Class::Anonymous => query::present(),
            Class::PrivateFile => query::own(),
        };
        let Inspector { map, regions, swap, .. } = &mut *self.inspector;
        query::ask(map, &question, range, regions, |range, categories| {
            match meaning_after(categories, swap) {
                Content::Unknown if swap.moment == Moment::Running => recheck(self.uncertain, range),
                content if content.must_read() => self.into.push(range, Content::Unknown),
                _ => {}
            }
        })
    }

    /// Reports of a part of a file mapping which pages are the process's own; the rest shows the file.
    pub(crate) fn report_own(&mut self, range: AddressRange) -> Result<(), Error> {
        let mut start = range.start;
        let Inspector { map, regions, swap, .. } = &mut *self.inspector;
        query::ask(map, &query::own(), range, regions, |own, categories| {
            let content = meaning_after(categories, swap);
            if content.must_read() {
                if start < own.start {
                    self.into.push(AddressRange::new(start, own.start), Content::Absent);
                }
                self.into.push(own, Content::Unknown);
                start = own.end;
            }
        })?;
        if start < range.end {
            self.into.push(AddressRange::new(start, range.end), Content::Absent);
        }
        Ok(())
    }

    /// What could not be told while the process ran.
    pub(crate) fn settle_rechecks(&mut self) -> Result<(), Error> {
        while let Some(range) = self.uncertain.pop() {
            self.look_again(range)?;
        }
        Ok(())
    }
}

/// What a page holds that is protected already: its protection, where no page is, looks like one swapped out.
fn meaning_after(categories: Categories, swap: &mut Swap) -> Content {
    match query::meaning(categories) {
        Content::Swapped if swap.is_used() => Content::Unknown,
        Content::Swapped => Content::Absent,
        content => content,
    }
}

/// Remembers an uncertain range; too many of them become one, in which more is looked at than need be.
fn recheck(uncertain: &mut Vec<AddressRange>, range: AddressRange) {
    uncertain.push(range);
    if uncertain.len() > RECHECKS_MAX {
        let start = uncertain.iter().map(|range| range.start).min().unwrap_or(range.start);
        let end = uncertain.iter().map(|range| range.end).max().unwrap_or(range.end);
        uncertain.clear();
        uncertain.push(AddressRange::new(start, end));
    }
}

impl Swap {
    /// While the process stands, its own number of swapped pages is exact; while it runs, only that there is nowhere
    /// to swap to.
    fn is_used(&mut self) -> bool {
        let (pid, moment) = (self.pid, self.moment);
        *self.used.get_or_insert_with(|| match moment {
            Moment::Running => kilobytes("/proc/meminfo", "SwapTotal") != Some(0),
            Moment::Stopped => kilobytes(&format!("/proc/{pid}/status"), "VmSwap") != Some(0),
        })
    }
}

fn kilobytes(path: &str, line: &str) -> Option<u64> {
    let text = tracee::procfs::read(path).ok()?;
    tracee::procfs::status_line(&text, line)?.split(' ').next()?.parse().ok()
}
