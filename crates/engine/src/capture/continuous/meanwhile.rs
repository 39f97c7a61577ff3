//! What is done for a subject between two checkpoints: memory that it rewrites loses its protection, and gets its huge
//! pages back.
//!
//! The first write to a protected part of a huge page makes the kernel split it into 512 small pages. The kernel builds
//! new huge pages, but only 16 MiB in 10 s, and a program that writes to random places of much memory runs up to a
//! third slower with small pages. So after a checkpoint, this module asks the kernel to build huge pages again, where
//! the program would have them without this program. During the interval it looks several times which further blocks
//! will be rewritten before the next checkpoint (see `rewritten`).
//!
//! Owns: the thread that works from one checkpoint to the next.
//! Invariants: the thread changes only whole blocks of anonymous memory, and nothing during a checkpoint: the kernel
//! locks the mappings of the process for each request. The requests for huge pages take at most a quarter of the time.
//! Does not: choose blocks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use model::AddressRange;
use sys::clock::Stopwatch;
use sys::pagemap::PageRegions;
use sys::{Errno, huge_pages};
use track::Loosener;

use super::rewritten::Looks;

const ENOMEM: Errno = Errno(12);
/// With shorter intervals, building huge pages costs more than they save until the next checkpoint.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// After each request, the thread rests this many times as long as the request took.
const RESTS: u32 = 3;
/// When the thread looks for rewritten blocks: after the interval divided by each of these numbers.
const LOOKS: [u32; 3] = [8, 4, 2];

/// One process until the next checkpoint.
#[derive(Debug)]
pub(super) struct Space {
    /// A pidfd of the process.
    pub(super) process: OwnedFd,
    /// Blocks without protection that should be huge pages.
    pub(super) loose: Vec<AddressRange>,
    /// Finds further blocks, if the tracker can do that.
    pub(super) looks: Option<(Loosener, Looks)>,
}

/// The thread between two checkpoints.
#[derive(Debug)]
pub(super) struct Meanwhile {
    thread: Option<JoinHandle<bool>>,
    is_over: Arc<AtomicBool>,
    /// The time since the last checkpoint.
    since: Stopwatch,
    /// The kernel does not permit the requests.
    is_refused: bool,
}

impl Meanwhile {
    pub(super) fn new() -> Self {
        Self { thread: None, is_over: Arc::default(), since: Stopwatch::start(), is_refused: false }
    }

    /// Ends an interval. Returns its length if huge pages are worth their cost, supposed that the next interval has the same
    /// length. Must be called once in each checkpoint.
    pub(super) fn lap(&mut self) -> Option<Duration> {
        Some(self.since.lap()).filter(|interval| *interval >= INTERVAL_MIN && !self.is_refused)
    }

    /// Begins to work for an interval. The subject may run.
    pub(super) fn begin(&mut self, spaces: Vec<Space>, interval: Duration) {
        self.end();
        if spaces.is_empty() {
            return;
        }
        self.is_over = Arc::default();
        let is_over = Arc::clone(&self.is_over);
        let thread = std::thread::Builder::new().name("undying-huge".to_owned());
        // Without a thread, the program runs with small pages.
        self.thread = thread.spawn(move || Work::new(spaces).until(interval, &is_over)).ok();
    }

    /// Ends the work. Waits for the last request, a few milliseconds.
    pub(super) fn end(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            self.is_refused |= thread.join().unwrap_or(true);
        }
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        self.end();
    }
}

struct Work {
    spaces: Vec<Space>,
    /// Blocks that should become huge pages, with the index of their process.
    due: VecDeque<(usize, AddressRange)>,
    regions: PageRegions,
}

impl Work {
    fn new(mut spaces: Vec<Space>) -> Self {
        let mut due = VecDeque::new();
        for (index, space) in spaces.iter_mut().enumerate() {
            due.extend(std::mem::take(&mut space.loose).into_iter().map(|block| (index, block)));
        }
        Self { spaces, due, regions: PageRegions::new() }
    }

    /// Works until all is done, or another thread ends the work. Returns whether the kernel does not permit the requests.
    fn until(mut self, interval: Duration, is_over: &AtomicBool) -> bool {
        let since = Stopwatch::start();
        let mut looks = LOOKS.map(|part| interval / part).into_iter().peekable();
        while !is_over.load(Ordering::Acquire) {
            let elapsed = since.elapsed();
            if looks.next_if(|at| *at <= elapsed).is_some() {
                self.look(elapsed, interval);
            } else if let Some((index, block)) = self.due.pop_front() {
                let asking = Stopwatch::start();
                match huge_pages::build(self.spaces[index].process.as_fd(), block) {
                    Err(Errno::EPERM) => return true,
                    // The process has ended, or no memory is free.
                    Err(Errno::ESRCH | ENOMEM) => self.due.retain(|(other, _)| *other != index),
                    // The program has changed the block.
                    Ok(()) | Err(_) => std::thread::park_timeout(RESTS * asking.elapsed()),
                }
            } else if let Some(at) = looks.peek() {
                std::thread::park_timeout(at.saturating_sub(elapsed));
            } else {
                break;
            }
        }
        false
    }

    /// Ends the protection of the blocks that the subject will probably have rewritten at the end of the interval.
    fn look(&mut self, at: Duration, interval: Duration) {
        for (index, space) in self.spaces.iter_mut().enumerate() {
            if let Some((loosener, looks)) = &mut space.looks {
                let blocks = looks.take(loosener, &mut self.regions, at, interval);
                loosener.loosen(&blocks);
                self.due.extend(blocks.into_iter().map(|block| (index, block)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Address, PageCount, Pid};
    use sys::scratch::{HUGE_PAGE_BYTES, Scratch};

    use super::*;

    fn own(loose: Vec<AddressRange>) -> Vec<Space> {
        let process = sys::pidfd::open(Pid(std::process::id() as i32)).unwrap();
        vec![Space { process, loose, looks: None }]
    }

    #[test]
    fn small_pages_become_huge_pages_with_the_same_content() {
        let pages = PageCount(2 * HUGE_PAGE_BYTES / 4096);
        let mut memory = Scratch::new(pages).unwrap();
        (0..pages.get()).for_each(|page| memory.write(PageCount(page), page as u8));
        let range = memory.range();
        let mut huge = Meanwhile::new();
        huge.begin(own(range.pieces(model::ByteCount(HUGE_PAGE_BYTES)).collect()), Duration::ZERO);
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
        let mut huge = Meanwhile::new();
        // Nothing is mapped here, so each request fails.
        let block = AddressRange::new(Address(HUGE_PAGE_BYTES), Address(2 * HUGE_PAGE_BYTES));
        huge.begin(own(vec![block; 1_000_000]), Duration::ZERO);
        let ending = Stopwatch::start();
        huge.end();
        assert!(ending.elapsed() < Duration::from_secs(1), "{:?}", ending.elapsed());
    }
}
