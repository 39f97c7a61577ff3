//! Classifies pages that are reported as written.
//!
//! Owns: the decision whether a page has content, as far as the kernel shows it.
//! Invariants: a page that may have content is never reported as empty. If the process runs and the state of
//! a page is uncertain, the page is rechecked when the process is stopped.
//! Does not: protect pages.

use std::sync::Arc;

use model::{AddressRange, PageCount, Pid};
use sys::Error;
use sys::pagemap::{Categories, PageQuery, PageRegions, Pagemap};

use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::query;
use crate::tracker::Moment;

/// Minimum length of a range of written pages whose content is queried before it is read.
///
/// A query takes one microsecond. A read takes a third of a microsecond per page. It also creates a page
/// table entry in the process for each missing page.
const QUERY_MIN: PageCount = PageCount(64);
/// Maximum number of uncertain ranges of one run. The list takes 64 KiB, and each range costs one microsecond
/// inside the next pause.
const RECHECKS_MAX: usize = 4096;

/// Queries the content of pages of a process.
#[derive(Debug)]
pub(crate) struct Inspector {
    map: Arc<Pagemap>,
    content: PageQuery,
    regions: PageRegions,
    swap: Swap,
}

/// Whether pages of the process can be swapped out. Determined at most once per scan.
#[derive(Debug)]
struct Swap {
    pid: Pid,
    moment: Moment,
    used: Option<bool>,
}

/// Reports the written pages of one run with their content.
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

    /// Begins a scan, and forgets the state of swap from the last scan.
    pub(crate) const fn begin_scan(&mut self, moment: Moment) {
        (self.swap.moment, self.swap.used) = (moment, None);
    }

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
    /// Reports written pages that are already protected again. Their content is unknown.
    pub(crate) fn take(&mut self, range: AddressRange) -> Result<(), Error> {
        if self.class != Class::Anonymous || range.pages() < QUERY_MIN {
            self.into.push(range, Content::Unknown);
            return Ok(());
        }
        let Inspector { map, content, regions, swap } = &mut *self.inspector;
        query::ask(map, content, range, regions, |range, categories| {
            self.into.push(range, meaning_after(categories, swap));
        })
    }

    /// Reports written pages with the content that they had when they were protected.
    pub(crate) fn take_with_content(&mut self, range: AddressRange, content: Content) -> Result<(), Error> {
        match (self.class, content) {
            (Class::Shared, _) => self.into.push(range, Content::Unknown),
            // Present pages can be pages of the file. Only the private pages of the process are reported as
            // content.
            (Class::PrivateFile, Content::Present | Content::Unknown) => {
                return self.report_own(range);
            }
            _ => self.into.push(range, content),
        }
        Ok(())
    }

    /// Rechecks pages that a request found empty before it protected them. Pages with content are reported.
    /// If the process runs and a page may be swapped out, its range is added to the uncertain ranges.
    pub(crate) fn recheck_pages(&mut self, range: AddressRange) -> Result<(), Error> {
        let question = match self.class {
            Class::Shared => return Ok(()),
            Class::Anonymous => query::present(),
            Class::PrivateFile => query::own(),
        };
        let Inspector { map, regions, swap, .. } = &mut *self.inspector;
        query::ask(map, &question, range, regions, |range, categories| {
            match meaning_after(categories, swap) {
                Content::Unknown if swap.moment == Moment::Running => add_uncertain(self.uncertain, range),
                content if content.must_read() => self.into.push(range, Content::Unknown),
                _ => {}
            }
        })
    }

    /// Reports the private pages in a range of a file mapping as content. The other pages are reported as
    /// absent, because they show the file.
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

    /// Rechecks the ranges that were uncertain while the process ran.
    pub(crate) fn settle_rechecks(&mut self) -> Result<(), Error> {
        while let Some(range) = self.uncertain.pop() {
            self.recheck_pages(range)?;
        }
        Ok(())
    }
}

/// Returns the content of a page that is already protected. If no page is present, the kernel stores the
/// protection in a marker that looks like a swapped-out page.
fn meaning_after(categories: Categories, swap: &mut Swap) -> Content {
    match query::meaning(categories) {
        Content::Swapped if swap.is_used() => Content::Unknown,
        Content::Swapped => Content::Absent,
        content => content,
    }
}

/// Adds an uncertain range. If the list is full, all ranges are merged into one, which contains more pages
/// than necessary.
fn add_uncertain(uncertain: &mut Vec<AddressRange>, range: AddressRange) {
    uncertain.push(range);
    if uncertain.len() > RECHECKS_MAX {
        let start = uncertain.iter().map(|range| range.start).min().unwrap_or(range.start);
        let end = uncertain.iter().map(|range| range.end).max().unwrap_or(range.end);
        uncertain.clear();
        uncertain.push(AddressRange::new(start, end));
    }
}

impl Swap {
    /// Reports whether pages of the process may be swapped out. If the process is stopped, its own count of
    /// swapped pages is exact. If the process runs, the answer is false only if the machine has no swap.
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
