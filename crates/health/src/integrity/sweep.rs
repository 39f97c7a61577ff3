//! The sweep: successive passes over the executable pages of a process tree, and the recheck of pages that differ.
//!
//! Owns: the time of the next step, the recheck, and the reports.
//! Invariants: a pass lasts at least `every`, and its steps are spread evenly. A change is found in the current pass or
//! in the next pass. A change is reported once. A page is reported only if the recheck finds the same bytes in the same
//! mapping of the same file.
//! Does not: restart programs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::{Address, AddressRange, PAGE_BYTES, Pid, ProcessKey};
use tracee::{procfs, tree};

use super::changed::{Changed, Kind, Place};
use super::memory::Memory;
use super::page::{self, PAGE, Present};
use super::pass::{Extent, Pass, Suspect};
use super::process::{self, Mapping, ReadSource};
use super::verdict::{Evidence, judge};

/// Delay from the end of a pass to the recheck. In this time, a debugger steps over its breakpoint, and a program
/// completes the replacement of several instructions.
const RECHECK: Duration = Duration::from_millis(100);

/// Shortest duration of a pass. A shorter pass would use a significant part of a CPU.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Compares all executable pages of a process tree once in each period.
#[derive(Debug)]
pub struct Sweep {
    every: Duration,
    root: Option<Pid>,
    began: Instant,
    due: Option<Instant>,
    /// `None` until the pass is due.
    pub(super) pass: Option<Pass>,
    pub(super) is_recheck: bool,
    pub(super) memory: Memory,
    last: Option<Extent>,
}

impl Sweep {
    /// Creates a sweep without a tree. Each pass lasts `every`, but at least one second.
    #[must_use]
    pub fn new(every: Duration, now: Instant) -> Self {
        Self {
            every: every.max(EVERY_MIN),
            root: None,
            began: now,
            due: None,
            pass: None,
            is_recheck: false,
            memory: Memory::default(),
            last: None,
        }
    }

    /// Starts to sweep the tree of a new incarnation; `None` stops the sweep. The first pass accepts the pages that it
    /// finds. An exception is a page of the page cache that differs from its earlier checksum.
    pub fn set_root(&mut self, root: Option<Pid>, now: Instant) {
        self.memory.begin_incarnation();
        (self.root, self.last) = (root, None);
        self.begin_pass(now);
    }

    /// Returns the time of the next call of [`Sweep::advance`]; `None` without a tree.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the pages that the last complete pass has covered.
    #[must_use]
    pub fn last_pass(&self) -> Option<Extent> {
        self.last
    }

    /// Executes one step if a step is due. At the end of a pass, returns the pages that have changed.
    pub fn advance(&mut self, now: Instant) -> Vec<Changed> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let Some(mut pass) = self.pass.take().or_else(|| self.list()) else { return Vec::new() };
        if self.is_recheck {
            let changed = self.confirm(&mut pass);
            self.end_pass(&pass, now);
            return changed;
        }
        pass.step(&mut self.memory);
        if pass.is_over() && !pass.has_suspects() {
            self.end_pass(&pass, now);
            return Vec::new();
        }
        self.is_recheck = pass.is_over();
        self.due = Some(if self.is_recheck { now + RECHECK } else { self.step_due(&pass, now) });
        self.pass = Some(pass);
        Vec::new()
    }

    /// Creates a pass over the current processes of the tree. The pass is empty if the root has ended; the caller then
    /// sets another root.
    fn list(&self) -> Option<Pass> {
        self.root.map(|root| Pass::new(tree::descendants(root).unwrap_or_default()))
    }

    /// Returns the time of the next step, in proportion to the visited pages. The time is not before `now`.
    fn step_due(&self, pass: &Pass, now: Instant) -> Instant {
        let (done, all) = pass.position();
        if pass.is_listing() || all == 0 {
            return now;
        }
        let share = self.every.mul_f64(done as f64 / all as f64);
        (self.began + share).max(now)
    }

    fn end_pass(&mut self, pass: &Pass, now: Instant) {
        self.memory.end_pass(&pass.mappings);
        self.last = Some(pass.extent);
        self.begin_pass(now.max(self.began + self.every));
    }

    fn begin_pass(&mut self, at: Instant) {
        (self.began, self.due) = (at, self.root.map(|_| at));
        (self.pass, self.is_recheck) = (None, false);
    }

    /// Rechecks the pages that differ, and returns the confirmed changes.
    fn confirm(&mut self, pass: &mut Pass) -> Vec<Changed> {
        let suspects = pass.take_suspects();
        let mut pages: HashMap<ProcessKey, usize> = HashMap::new();
        for suspect in suspects.iter().filter(|suspect| suspect.page.place == Place::Process) {
            *pages.entry(suspect.mapping.process).or_default() += 1;
        }
        let is_only = |suspect: &Suspect| pages.get(&suspect.mapping.process) == Some(&1);
        suspects
            .iter()
            .filter(|suspect| is_unchanged(suspect))
            .filter_map(|suspect| self.report(suspect, is_only(suspect)))
            .collect()
    }

    fn report(&mut self, suspect: &Suspect, is_only: bool) -> Option<Changed> {
        let Suspect { mapping, page, content } = suspect;
        let (process, at, number) = (mapping.process, page.at, mapping.page_in_file(page.at));
        let (original, is_on_device) = match page.place {
            Place::PageCache => self.of_device(suspect),
            Place::Process => {
                let file = page::read_file(mapping, at, ReadSource::Cached).ok();
                if file.as_ref() == Some(content) {
                    // A debugger has removed its breakpoint.
                    self.memory.forget(process, at);
                    return None;
                }
                let learnt = self.memory.learnt(process, at);
                (learnt.map_or(file, |learnt| learnt.content().map(<[u8]>::to_vec)), false)
            }
        };
        let is_traced = is_traced_by_another(process.pid);
        let original = original.as_deref();
        let verdict =
            judge(&Evidence { place: page.place, content, original, is_on_device, is_traced, is_only });
        let sum = crc_fast::crc32_iscsi(content);
        match page.place {
            Place::Process => self.memory.learn(process, at, content),
            Place::PageCache if verdict.kind == Kind::FileChanged => {
                self.memory.set_sum_of_file(mapping.file, number, sum);
            }
            Place::PageCache => self.memory.report(mapping.file, number, sum),
        }
        Some(Changed {
            pid: process.pid,
            address: Address(at.get() + verdict.first),
            file: mapping.name.clone(),
            offset: number * PAGE_BYTES + verdict.first,
            bits: verdict.bits,
            place: page.place,
            kind: verdict.kind,
        })
    }

    /// Returns the page of the device if the page has the earlier checksum. Also reports whether the page of the device
    /// is equal to the current content.
    fn of_device(&self, suspect: &Suspect) -> (Option<Vec<u8>>, bool) {
        let Suspect { mapping, page, content } = suspect;
        let Ok(device) = page::read_file(mapping, page.at, ReadSource::Direct) else { return (None, false) };
        let before = self.memory.sum_of_file(mapping.file, mapping.page_in_file(page.at));
        let is_before = before == Some(crc_fast::crc32_iscsi(&device));
        let is_now = device == *content;
        (is_before.then_some(device), is_now)
    }
}

/// Reports whether a page still has the same differing bytes in the same mapping of the same file.
fn is_unchanged(suspect: &Suspect) -> bool {
    let Suspect { mapping, page, content } = suspect;
    let pid = mapping.process.pid;
    let is_same = |other: &Mapping| {
        (other.process, other.file) == (mapping.process, mapping.file)
            && other.range.contains(page.at)
            && other.page_in_file(page.at) == mapping.page_in_file(page.at)
    };
    let is_mapped = process::list(pid).is_ok_and(|listing| listing.mappings.iter().any(is_same));
    let range = AddressRange::new(page.at, Address(page.at.get() + PAGE_BYTES));
    let found: Vec<Present> = page::present(pid, range).unwrap_or_default();
    let mut again = Vec::with_capacity(PAGE);
    is_mapped
        && found.first() == Some(page)
        && page::read(pid, &found, &mut again).is_ok()
        && again == *content
}

/// Reports whether a program other than this program traces a process.
fn is_traced_by_another(pid: Pid) -> bool {
    let tracer = procfs::status(pid).map_or(Pid(0), |status| status.tracer);
    // The tracer is a thread. A thread of this program stops the process for a checkpoint, and changes no code.
    let is_ours = || procfs::status(tracer).is_ok_and(|of| of.tgid.get() == std::process::id() as i32);
    tracer.get() != 0 && !is_ours()
}
