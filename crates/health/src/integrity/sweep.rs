//! The sweep: passes over a tree, one after the other, and the confirmation of what differs.
//!
//! Owns: when the next step is due, the recheck of pages that differ, the reports.
//! Invariants: a pass takes `every` at least, in steps at equal distances; a change is found in the pass that is going
//! on or in the next one. A change is reported once. A page is reported only if it has the same bytes at the recheck,
//! in the same mapping of the same file.
//! Does not: restart anything.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::{Address, AddressRange, PAGE_BYTES, Pid, ProcessKey};
use tracee::{procfs, tree};

use super::changed::{Changed, Kind, Place};
use super::memory::Memory;
use super::page::{self, PAGE, Present};
use super::pass::{Extent, Pass, Suspect};
use super::process::{self, Mapping, Way};
use super::verdict::{Evidence, judge};

/// From the end of a pass to the recheck: a debugger that steps over a breakpoint, and a program that replaces several
/// instructions, are done by then.
const RECHECK: Duration = Duration::from_millis(100);

/// The shortest time of a pass: a shorter one would take a noticeable part of a processor.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Compares all executable pages of a tree once in a given time.
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
    /// A sweep without a tree, which takes so long for each pass, and a second at least.
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

    /// Begins with the tree of a new incarnation; `None` ends it. What its first pass finds is taken for right, except
    /// for pages of the page cache that earlier incarnations have shown otherwise.
    pub fn set_root(&mut self, root: Option<Pid>, now: Instant) {
        self.memory.begin_incarnation();
        (self.root, self.last) = (root, None);
        self.begin_pass(now);
    }

    /// When it is to be advanced; `None` without a tree.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What the last whole pass has covered.
    #[must_use]
    pub fn last_pass(&self) -> Option<Extent> {
        self.last
    }

    /// Makes one step, if it is due. At the end of a pass, gives the pages that have changed.
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

    /// A pass over the processes that the tree has now. A root that has ended has no tree; the caller sets another one.
    fn list(&self) -> Option<Pass> {
        self.root.map(|root| Pass::new(tree::descendants(root).unwrap_or_default()))
    }

    /// When the next step of the pass is due: in proportion to the pages, and not before the time of the event.
    fn step_due(&self, pass: &Pass, now: Instant) -> Instant {
        let (done, all) = pass.position();
        if pass.is_listing() || all == 0 {
            return now;
        }
        let share = self.every.mul_f64(done as f64 / all as f64);
        (self.began + share).max(now)
    }

    fn end_pass(&mut self, pass: &Pass, now: Instant) {
        self.memory.end_pass(pass.mappings());
        self.last = Some(pass.extent());
        self.begin_pass(now.max(self.began + self.every));
    }

    fn begin_pass(&mut self, at: Instant) {
        (self.began, self.due) = (at, self.root.map(|_| at));
        (self.pass, self.is_recheck) = (None, false);
    }

    /// Rechecks the pages that differ.
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
                let file = page::read_file(mapping, at, Way::Cached).ok();
                if file.as_ref() == Some(content) {
                    // A debugger has taken out its breakpoint again.
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
        let sum = crc32c::crc32c(content);
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

    /// The bytes of the page on its device if they are those of before, and whether they are those of now.
    fn of_device(&self, suspect: &Suspect) -> (Option<Vec<u8>>, bool) {
        let Suspect { mapping, page, content } = suspect;
        let Ok(device) = page::read_file(mapping, page.at, Way::Direct) else { return (None, false) };
        let before = self.memory.sum_of_file(mapping.file, mapping.page_in_file(page.at));
        let is_before = before == Some(crc32c::crc32c(&device));
        let is_now = device == *content;
        (is_before.then_some(device), is_now)
    }
}

/// Whether a page still differs in the same way, in the same mapping of the same file.
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

/// Whether a program other than this one traces a process.
fn is_traced_by_another(pid: Pid) -> bool {
    let tracer = procfs::status(pid).map_or(Pid(0), |status| status.tracer);
    // The tracer is a thread; a thread of ours stops the process for a checkpoint and changes no code.
    let is_ours = || procfs::status(tracer).is_ok_and(|of| of.tgid.get() == std::process::id() as i32);
    tracer.get() != 0 && !is_ours()
}
