//! Tests which changes are reported before they happen.
//!
//! Owns: tests.
//! Invariants: a test that lacks pre-content events prints `unsupported:` and returns. A thread of the test
//! changes the files, and waits for answers like any other process.
//! Does not: measure.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use super::*;

/// A directory that is removed when the value is dropped.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("undying-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PAGE: u64 = 4096;
const LENGTH: u64 = 16 * PAGE;

fn is_supported() -> bool {
    match (crate::features::entry(crate::features::Feature::FileContent).probe)(&std::env::temp_dir()) {
        Ok(_) => true,
        Err(error) => {
            println!("unsupported: file-content: {error}");
            false
        }
    }
}

fn fresh(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all_at(&vec![b'A'; LENGTH as usize], 0).unwrap();
    file
}

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// The state of the file at the time of an event: the reported range, the length of the file, and its first
/// byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    range: Option<(u64, u64)>,
    length: u64,
    first: u8,
}

/// Executes a change in a thread. Returns what is reported meanwhile.
fn seen(events: &ContentEvents, change: impl FnOnce() + Send) -> Vec<Seen> {
    let mut found = Vec::new();
    let mut reader = events.reader();
    std::thread::scope(|scope| {
        let thread = scope.spawn(change);
        loop {
            let mut wait = libc::pollfd { fd: events.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the kernel reads and writes one pollfd at the given address.
            if !reader.has_read() && unsafe { libc::poll(&raw mut wait, 1, 5) } == 0 {
                if thread.is_finished() {
                    break;
                }
                continue;
            }
            let event = reader.receive().unwrap().unwrap();
            let file = File::from(event.file().try_clone_to_owned().unwrap());
            let mut first = [0];
            file.read_exact_at(&mut first, 0).unwrap();
            let range = event.range().map(|range| (range.offset.get(), range.length.get()));
            assert_eq!(event.pid(), Pid(std::process::id() as i32));
            found.push(Seen { range, length: file.metadata().unwrap().len(), first: first[0] });
            event.allow();
        }
        thread.join().unwrap();
    });
    found
}

fn before(offset: u64, length: u64) -> Seen {
    Seen { range: Some((offset, length)), length: LENGTH, first: b'A' }
}

#[test]
fn each_kind_of_change_is_reported_before_it_happens() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("fanotify-kinds");
    let path = directory.0.join("file");
    let other = fresh(&directory.0.join("other"));
    type Change = fn(&File, &File);
    let changes: [(&str, Change, u64, u64); 8] = [
        ("pwrite", |file, _| file.write_all_at(b"new", 9000).unwrap(), 2 * PAGE, PAGE),
        ("ftruncate", |file, _| file.set_len(100).unwrap(), 0, PAGE),
        ("fallocate", |file, _| punch(file), PAGE, PAGE),
        ("copy_file_range", |file, other| copy(file, other), PAGE, PAGE),
        ("sendfile", |file, other| send_file(file, other), 0, PAGE),
        ("writev", |file, _| write_parts(file), 0, PAGE),
        ("splice", |file, _| splice(file), PAGE, PAGE),
        ("mmap", |file, _| map(file), 0, 2 * PAGE),
    ];
    for (name, change, offset, length) in changes {
        drop(fresh(&path));
        let events = ContentEvents::new(&Enabler::new().unwrap()).unwrap();
        let marked = File::open(&path).unwrap();
        events.watch(marked.as_fd()).unwrap();
        let file = read_write().open(&path).unwrap();
        let found = seen(&events, || change(&file, &other));
        assert!(found.contains(&before(offset, length)), "{name}: {found:?}");
        assert!(found.iter().all(|seen| seen.first == b'A' && seen.length == LENGTH), "{name}: {found:?}");
    }
}

#[test]
fn an_append_is_reported_with_its_length() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("fanotify-append");
    let path = directory.0.join("file");
    let marked = fresh(&path);
    let events = ContentEvents::new(&Enabler::new().unwrap()).unwrap();
    events.watch(marked.as_fd()).unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let found = seen(&events, || std::io::Write::write_all(&mut &file, b"x").unwrap());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].length, found[0].first), (LENGTH, b'A'));
    assert_eq!(marked.metadata().unwrap().len(), LENGTH + 1);
}

#[test]
fn a_silenced_file_is_silent_until_it_is_not() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("fanotify-silence");
    let path = directory.0.join("file");
    let marked = fresh(&path);
    let events = ContentEvents::new(&Enabler::new().unwrap()).unwrap();
    // A file that is silenced from the start can report later, too.
    events.silence(marked.as_fd()).unwrap();
    let file = read_write().open(&path).unwrap();
    let write = || file.write_all_at(b"new", PAGE).unwrap();
    let count = |events: &ContentEvents| seen(events, write).len();
    assert_eq!(count(&events), 0);
    events.unsilence(marked.as_fd()).unwrap();
    assert_eq!(count(&events), 0, "it is not watched");
    events.watch(marked.as_fd()).unwrap();
    assert_eq!(count(&events), 1);
    events.silence(marked.as_fd()).unwrap();
    assert_eq!([count(&events), count(&events)], [0, 0], "a write does not end it");
    events.unsilence(marked.as_fd()).unwrap();
    assert_eq!(count(&events), 1);
    events.forget(marked.as_fd()).unwrap();
    events.forget(marked.as_fd()).unwrap();
    assert_eq!(count(&events), 0);
    events.watch(marked.as_fd()).unwrap();
    assert_eq!(count(&events), 1, "what was opened under a mark reports under a later one");
}

#[test]
fn an_enabler_of_a_mount_makes_files_able_and_says_nothing() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("fanotify-enabler");
    let enabler = Enabler::new().unwrap();
    let events = ContentEvents::new(&enabler).unwrap();
    let early = fresh(&directory.0.join("early"));
    events.watch(early.as_fd()).unwrap();
    assert_eq!(seen(&events, || early.write_all_at(b"new", PAGE).unwrap()), [], "opened under no mark");
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&directory.0).unwrap();
    enabler.enable_mount(root.as_fd()).unwrap();
    let path = directory.0.join("file");
    let file = fresh(&path);
    let write = || file.write_all_at(b"new", PAGE).unwrap();
    assert_eq!(seen(&events, write), [], "the enabler asks nobody");
    enabler.disable_mount(root.as_fd()).unwrap();
    enabler.disable_mount(root.as_fd()).unwrap();
    assert_eq!(seen(&events, write), []);
    events.watch(file.as_fd()).unwrap();
    assert_eq!(seen(&events, write), [before(PAGE, PAGE)]);
}

#[test]
fn what_waits_happens_when_reader_or_group_are_gone() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("fanotify-gone");
    let path = directory.0.join("file");
    let marked = fresh(&path);
    let events = ContentEvents::new(&Enabler::new().unwrap()).unwrap();
    events.watch(marked.as_fd()).unwrap();
    let open = || read_write().open(&path).unwrap();
    std::thread::scope(|scope| {
        let (one, two) = (open(), open());
        let first = scope.spawn(move || one.write_all_at(b"1", 0).unwrap());
        let second = scope.spawn(move || two.write_all_at(b"2", PAGE).unwrap());
        let mut reader = events.reader();
        let event = reader.receive().unwrap().unwrap();
        assert!(!first.is_finished() || !second.is_finished());
        drop(event);
        drop(reader);
        // The second event may arrive after the reader was dropped.
        std::thread::sleep(Duration::from_millis(20));
        drop(events);
        first.join().unwrap();
        second.join().unwrap();
    });
    let mut bytes = [0; 1];
    marked.read_exact_at(&mut bytes, PAGE).unwrap();
    assert_eq!(bytes, *b"2");
}

#[test]
fn a_file_system_without_events_is_named() {
    let Ok(events) = Enabler::new().and_then(|enabler| ContentEvents::new(&enabler)) else {
        return println!("unsupported: CAP_SYS_ADMIN");
    };
    let path = Path::new("/proc/self/status");
    let error = events.watch(File::open(path).unwrap().as_fd()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("watch the content of /proc/") && text.contains("/status"), "{error}");
}

fn punch(file: &File) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, PAGE as i64, PAGE as i64) }, 0);
}

fn copy(file: &File, other: &File) {
    let (mut from, mut to) = (0_i64, PAGE as i64);
    let (source, target) = (other.as_raw_fd(), file.as_raw_fd());
    // SAFETY: the kernel reads and writes two offsets, which live during the call.
    let result =
        unsafe { libc::copy_file_range(source, &raw mut from, target, &raw mut to, PAGE as usize, 0) };
    assert_eq!(result, PAGE as isize);
}

fn send_file(file: &File, other: &File) {
    let mut from = 0_i64;
    // SAFETY: the kernel reads and writes one offset, which lives during the call.
    let result = unsafe { libc::sendfile(file.as_raw_fd(), other.as_raw_fd(), &raw mut from, PAGE as usize) };
    assert_eq!(result, PAGE as isize);
}

fn write_parts(file: &File) {
    let parts = [std::io::IoSlice::new(b"ne"), std::io::IoSlice::new(b"w")];
    assert_eq!(std::io::Write::write_vectored(&mut &*file, &parts).unwrap(), 3);
}

fn splice(file: &File) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&write, b"new").unwrap();
    let mut offset = PAGE as i64;
    // SAFETY: the kernel reads and writes one offset, which lives during the call.
    let result =
        unsafe { libc::splice(read.as_raw_fd(), ptr::null_mut(), file.as_raw_fd(), &raw mut offset, 3, 0) };
    assert_eq!(result, 3);
}

fn map(file: &File) {
    let (protection, length) = (libc::PROT_READ | libc::PROT_WRITE, 2 * PAGE as usize);
    // SAFETY: the kernel chooses a free address for the mapping. The code stores one byte within the mapping,
    // and unmaps it afterwards.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
            .cast::<u8>();
        assert_ne!(start.cast(), libc::MAP_FAILED);
        start.write_volatile(b'x');
        libc::munmap(start.cast(), length);
    }
}
