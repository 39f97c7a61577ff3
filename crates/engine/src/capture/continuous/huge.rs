//! Gives a subject (a protected process tree) its huge pages back.
//!
//! The first write to a protected part of a huge page makes the kernel split it into 512 small pages. The kernel builds new
//! huge pages, but only 16 MiB in 10 s, and a program that writes to random places of much memory runs up to a third
//! slower with small pages. So after a checkpoint, this module asks the kernel to build huge pages again, where the
//! program would have them without this program.
//!
//! Owns: the thread that asks, from one checkpoint to the next.
//! Invariants: the thread asks only for whole blocks that are not protected, and not during a checkpoint: the kernel locks
//! the mappings of the process for each request. The requests take at most a quarter of the time.
//! Does not: choose blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use model::AddressRange;
use sys::clock::Stopwatch;
use sys::{Errno, huge_pages};

const ENOMEM: Errno = Errno(12);
/// With shorter intervals, building huge pages costs more than they save until the next checkpoint.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// After each request, the thread rests this many times as long as the request took.
const RESTS: u32 = 3;

/// Blocks of one process that should be huge pages.
#[derive(Debug)]
pub(super) struct Blocks {
    /// A pidfd of the process.
    pub(super) process: OwnedFd,
    pub(super) ranges: Vec<AddressRange>,
}

/// The building of huge pages between two checkpoints.
#[derive(Debug)]
pub(super) struct HugePages {
    thread: Option<JoinHandle<bool>>,
    is_over: Arc<AtomicBool>,
    /// The time since the last checkpoint.
    since: Stopwatch,
    /// The kernel does not permit the requests.
    is_refused: bool,
}

impl HugePages {
    pub(super) fn new() -> Self {
        Self { thread: None, is_over: Arc::default(), since: Stopwatch::start(), is_refused: false }
    }

    /// Reports whether huge pages are worth their cost, if the next checkpoint follows after the same time as this one. Must
    /// be called once in each checkpoint.
    pub(super) fn are_worth_it(&mut self) -> bool {
        self.since.lap() >= INTERVAL_MIN && !self.is_refused
    }

    /// Begins to build huge pages. The subject may run.
    pub(super) fn begin(&mut self, blocks: Vec<Blocks>) {
        self.end();
        if blocks.is_empty() {
            return;
        }
        self.is_over = Arc::default();
        let is_over = Arc::clone(&self.is_over);
        let thread = std::thread::Builder::new().name("undying-huge".to_owned());
        // Without a thread, the program runs with small pages.
        self.thread = thread.spawn(move || build(&blocks, &is_over)).ok();
    }

    /// Ends the requests. Waits for the last one, a few milliseconds.
    pub(super) fn end(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            self.is_refused |= thread.join().unwrap_or(true);
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks for huge pages, one after the other. Returns whether the kernel does not permit it.
fn build(blocks: &[Blocks], is_over: &AtomicBool) -> bool {
    for Blocks { process, ranges } in blocks {
        for range in ranges {
            if is_over.load(Ordering::Acquire) {
                return false;
            }
            let asking = Stopwatch::start();
            match huge_pages::build(process.as_fd(), *range) {
                Err(Errno::EPERM) => return true,
                // The process has ended, or no memory is free.
                Err(Errno::ESRCH | ENOMEM) => break,
                // The program has changed the block.
                Ok(()) | Err(_) => std::thread::park_timeout(RESTS * asking.elapsed()),
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use model::{Address, PageCount, Pid};
    use sys::scratch::{HUGE_PAGE_BYTES, Scratch};

    use super::*;

    fn own(ranges: Vec<AddressRange>) -> Vec<Blocks> {
        vec![Blocks { process: sys::pidfd::open(Pid(std::process::id() as i32)).unwrap(), ranges }]
    }

    #[test]
    fn small_pages_become_huge_pages_with_the_same_content() {
        let pages = PageCount(2 * HUGE_PAGE_BYTES / 4096);
        let mut memory = Scratch::new(pages).unwrap();
        (0..pages.get()).for_each(|page| memory.write(PageCount(page), page as u8));
        let range = memory.range();
        let mut huge = HugePages::new();
        huge.begin(own(range.pieces(model::ByteCount(HUGE_PAGE_BYTES)).collect()));
        let waiting = Stopwatch::start();
        while huge.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            assert!(waiting.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        huge.end();
        for page in 0..pages.get() {
            assert_eq!(memory.read(PageCount(page)), page as u8);
        }
        if huge.is_refused || !huge_pages::are_supported() {
            println!("unsupported: building huge pages");
        } else {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            assert!(text.lines().any(|line| line.starts_with("AnonHugePages:") && !line.ends_with(" 0 kB")));
        }
    }

    #[test]
    fn the_end_does_not_wait_for_the_rest() {
        let mut huge = HugePages::new();
        // Nothing is mapped here, so each request fails.
        let block = AddressRange::new(Address(HUGE_PAGE_BYTES), Address(2 * HUGE_PAGE_BYTES));
        huge.begin(own(vec![block; 1_000_000]));
        let ending = Stopwatch::start();
        huge.end();
        assert!(ending.elapsed() < Duration::from_secs(1), "{:?}", ending.elapsed());
    }
}
