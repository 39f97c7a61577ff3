//! Compares the memory of a process that makes all kinds of changes with a copy that a tracker keeps up to
//! date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::shadow::Shadow;
use crate::common::{Subject, attach, worker_pool};
use model::ByteCount;
use tracee::procfs::Backing;
use tracee::{StoppedTree, WorkerPool, procfs};
use undying_track::{DirtyPages, Layout, Moment, Tracker};

/// Duration of the test of one tracker, without and with the environment variable `UNDYING_LONG_TESTS`.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(120);
/// Minimum amount of memory for a scan by workers. It is so small that workers scan nearly all memory of the
/// subject.
const LEAST: ByteCount = ByteCount(64 << 10);

fn duration() -> Duration {
    testkit::rounds(SHORT, LONG)
}

struct Soak {
    subject: Subject,
    tracker: Box<dyn Tracker>,
    shadow: Shadow,
    layout: Layout,
    dirty: DirtyPages,
    scans: u64,
    checks: u64,
    covers: u64,
    replaced: u64,
    /// Scans the memory ahead of time, if present.
    worker_pool: Option<Arc<WorkerPool>>,
    /// After each comparison, the protection of a part of the memory is ended.
    loosens: bool,
}

impl Soak {
    /// Makes several scans while the process runs, like pre-copy.
    fn scan_running(&mut self) {
        for _ in 0..5 {
            self.dirty.clear();
            self.tracker.scan(Moment::Running, &mut self.dirty).unwrap();
            self.shadow.apply("running", &self.dirty);
            self.scans += 1;
        }
    }

    /// Makes one scan while the process is stopped, and compares the copy with the memory.
    fn check(&mut self) {
        let pid = self.subject.pid();
        let tree = StoppedTree::stop(pid).unwrap();
        let mappings = procfs::mappings(pid).unwrap();
        let changed = self.layout.changed().unwrap();
        if changed {
            let coverage = self.tracker.cover(&mappings).unwrap();
            self.shadow.cover(coverage, &mappings);
            self.covers += 1;
        }
        if let Some(worker_pool) = &self.worker_pool {
            worker_pool.dismiss();
            self.tracker.post_scan(worker_pool, LEAST);
            worker_pool.begin();
            if self.checks % 3 == 2 {
                // The stop is aborted: the process is resumed before the scan, and scans of the running
                // process follow.
                self.checks += 1;
                return tree.resume().unwrap();
            }
        }
        self.dirty.clear();
        self.tracker.scan(Moment::Stopped, &mut self.dirty).unwrap();
        let scan = format!("stopped, areas changed {changed}, replaced {:?}", self.dirty.replaced());
        self.shadow.apply(&scan, &self.dirty);
        self.replaced += self.dirty.replaced().len() as u64;
        self.scans += 1;
        self.checks += 1;
        let differences = self.shadow.differences(&mappings);
        assert!(differences.is_empty(), "check {}:\n{}", self.checks, differences.join("\n"));
        tree.resume().unwrap();
        if self.loosens {
            // The process may already have unmapped some of these mappings.
            let anonymous = mappings.iter().filter(|mapping| mapping.backing == Backing::Anonymous);
            let part =
                anonymous.enumerate().filter(|(index, _)| (*index as u64 + self.checks).is_multiple_of(3));
            let part: Vec<_> = part.map(|(_, mapping)| mapping.range).collect();
            self.tracker.loosener().expect("this tracker can do that").loosen(&part);
        }
        assert!(self.subject.is_alive(), "the subject died");
    }
}

fn soak(name: &str, worker_pool: Option<Arc<WorkerPool>>, loosens: bool) {
    let seed = testkit::seed(name);
    let directory = std::env::temp_dir();
    let arguments = [&seed.to_string(), directory.to_str().unwrap()];
    let Some(subject) = Subject::start("restless", &arguments.map(|text| text)) else { return };
    let pid = subject.pid();
    let Some(tracker) = attach(name, pid) else { return };
    let mut soak = Soak {
        subject,
        tracker,
        shadow: Shadow::new(pid),
        layout: Layout::open(pid).unwrap(),
        dirty: DirtyPages::new(),
        scans: 0,
        checks: 0,
        covers: 0,
        replaced: 0,
        worker_pool,
        loosens,
    };
    let started = Instant::now();
    while started.elapsed() < duration() {
        soak.scan_running();
        soak.check();
    }
    let Soak { scans, checks, covers, replaced, ref shadow, .. } = soak;
    println!(
        "{name}: {scans} scans, {checks} comparisons, {covers} lists of areas, {replaced} replaced areas, \
         {} pages copied, none missed",
        shadow.copied
    );
    drop(soak.tracker);
    // Another test may start a child at this moment. The child holds a duplicate of the descriptor until its
    // exec.
    common::eventually(|| !common::is_watched(pid));
    assert!(soak.subject.is_alive(), "the subject died when tracking ended");
}

#[test]
fn no_page_is_missed_by_pagemap_scan() {
    soak("pagemap-scan", None, false);
}

#[test]
fn no_page_is_missed_by_scans_that_were_begun_ahead() {
    if let Some(worker_pool) = worker_pool() {
        soak("pagemap-scan", Some(worker_pool), false);
    }
}

#[test]
fn no_page_is_missed_where_pages_are_not_protected() {
    soak("pagemap-scan", None, true);
}

#[test]
fn no_page_is_missed_by_soft_dirty() {
    soak("soft-dirty", None, false);
}

#[test]
fn no_page_is_missed_by_full() {
    soak("full", None, false);
}
