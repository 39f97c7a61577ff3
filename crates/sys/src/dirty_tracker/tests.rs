//! Tests of the tracker with files of this process.
//!
//! Owns: tests.
//! Does not: test the copies of tracked files.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use model::{ByteCount, PAGE_BYTES, PageCount};
use rustix::mm::{MapFlags, ProtFlags};

use super::*;
use crate::writeback;

/// A file with a shared mapping.
struct Mapped {
    file: File,
    start: *mut u8,
    pages: usize,
}

impl Mapped {
    fn new(pages: usize) -> Self {
        let file = tempfile();
        file.write_all_at(&vec![1; pages * PAGE_BYTES as usize], 0).unwrap();
        file.sync_all().unwrap();
        let (length, protection) = (pages * PAGE_BYTES as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses an unused address.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0) };
        Self { file, start: start.unwrap().cast(), pages }
    }

    fn store(&self, page: usize, value: u8) {
        assert!(page < self.pages);
        // SAFETY: the page is mapped, and no reference to it exists.
        unsafe { self.start.add(page * PAGE_BYTES as usize).write_volatile(value) };
    }

    /// Writes all pages back. The kernel can skip a page, for example a page that is being written at this time.
    fn clean(&self) {
        let begun = std::time::Instant::now();
        while self.dirty_pages() > 0 {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "pages stay dirty");
            writeback::start(&self.file, ByteCount(0), ByteCount(self.pages as u64 * PAGE_BYTES)).unwrap();
            std::thread::yield_now();
        }
    }

    fn dirty_pages(&self) -> u64 {
        writeback::dirty_pages(&self.file, ByteCount(0), ByteCount(self.pages as u64 * PAGE_BYTES)).unwrap()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and is not used any more.
        unsafe { rustix::mm::munmap(self.start.cast(), self.pages * PAGE_BYTES as usize) }.unwrap();
    }
}

/// Creates a file on a file system with writeback: the directory of the build.
fn tempfile() -> File {
    let path = std::env::current_exe().unwrap().with_file_name(format!(
        "undying-dirty-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn tracker() -> Option<Arc<DirtyTracker>> {
    match DirtyTracker::new() {
        Err(error) if [libc::EPERM, libc::ENOSYS, libc::ENOENT].contains(&error.errno.0) => {
            println!("unsupported: {error}");
            None
        }
        tracker => Some(tracker.unwrap()),
    }
}

fn track(tracker: &Arc<DirtyTracker>, file: &File, pages: usize) -> TrackedFile {
    let found = file.metadata().unwrap();
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    tracker.track(device, found.ino(), PageCount(pages as u64)).unwrap()
}

fn taken(file: &mut TrackedFile) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    let note = |first, bits: u64| {
        pages.extend((0..WORD_PAGES).filter(|bit| bits & 1 << bit != 0).map(|bit| first + bit));
    };
    assert!(file.take(note).unwrap(), "reports are lost");
    pages
}

#[test]
fn a_store_to_a_clean_page_is_reported_and_a_store_to_a_dirty_page_is_not() {
    let Some(tracker) = tracker() else { return };
    let mapped = Mapped::new(700);
    let other = Mapped::new(1);
    let mut tracked = track(&tracker, &mapped.file, 700);
    for round in 0..20 {
        let stored: BTreeSet<u64> = [5, 63, 64, 400 + round, 699].into_iter().collect();
        stored.iter().for_each(|page| mapped.store(*page as usize, round as u8));
        other.store(0, round as u8);
        let reported = taken(&mut tracked);
        // A folio can have several pages.
        assert!(reported.is_superset(&stored), "{reported:?}");
        stored.iter().for_each(|page| mapped.store(*page as usize, round as u8 + 1));
        assert_eq!(taken(&mut tracked), BTreeSet::new());
        mapped.clean();
    }
}

#[test]
fn a_write_is_reported_with_all_pages_of_its_folios() {
    let Some(tracker) = tracker() else { return };
    let mapped = Mapped::new(4096);
    let mut tracked = track(&tracker, &mapped.file, 4096);
    mapped.file.write_all_at(&vec![2; 3000 * PAGE_BYTES as usize], 17 * PAGE_BYTES).unwrap();
    assert!(taken(&mut tracked).is_superset(&(17..3017).collect()));
}

#[test]
fn a_file_that_outgrows_its_room_loses_reports_until_it_has_more_room() {
    let Some(tracker) = tracker() else { return };
    let mapped = Mapped::new(1);
    let mut tracked = track(&tracker, &mapped.file, 1);
    let behind = REGION_PAGES_MIN + 9;
    mapped.file.write_all_at(b"x", behind * PAGE_BYTES).unwrap();
    assert!(!tracked.take(|_, _| {}).unwrap());
    assert!(tracked.take(|_, _| {}).unwrap());
    tracked.make_room(PageCount(behind + 1)).unwrap();
    mapped.file.write_all_at(b"x", (behind + 1) * PAGE_BYTES).unwrap();
    assert!(taken(&mut tracked).contains(&(behind + 1)));
    drop(tracked);
    assert!(tracker.regions.lock().unwrap().is_empty());
}

#[test]
fn many_threads_that_store_beside_writeback_lose_no_report() {
    const PAGES: usize = 2048;
    let Some(tracker) = tracker() else { return };
    let mapped = Mapped::new(PAGES);
    let mut tracked = track(&tracker, &mapped.file, PAGES);
    let address = mapped.start as usize;
    for round in 0..50_u8 {
        let stored: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || {
                        let pages = (0..200)
                            .map(move |step| (thread * 7919 + step * 31 + usize::from(round)) % PAGES);
                        for page in pages.clone() {
                            let at = (address + page * PAGE_BYTES as usize) as *mut u8;
                            // SAFETY: the page is mapped until all threads have ended.
                            unsafe { at.write_volatile(round) };
                        }
                        pages.collect::<Vec<_>>()
                    })
                })
                .collect();
            writeback::start(&mapped.file, ByteCount(0), ByteCount(PAGES as u64 * PAGE_BYTES)).unwrap();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        // A page that is not reported was dirty before: so all pages are written back at the end of a round.
        let reported = taken(&mut tracked);
        assert!(stored.iter().all(|page| reported.contains(&(*page as u64))), "round {round}");
        mapped.file.sync_data().unwrap();
        mapped.clean();
    }
}
