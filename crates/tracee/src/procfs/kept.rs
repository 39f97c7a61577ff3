//! Keeps files of `/proc` open and reads them repeatedly.
//!
//! A read of an open file takes a fifth of the time that an open, two reads and a close take. During a pause,
//! a worker pool can read the files while the tracer does other work. A *sweep* closes the files that were
//! not read since the previous sweep.
//!
//! Owns: the open files and their buffers, and the results of the worker pool.
//! Invariants: a read returns the current contents of a file. If the thread of an open file has ended, the
//! file is opened again. A read allocates memory only if a file is longer than it ever was. A file that is no
//! longer read is closed at the second sweep. A result of the worker pool is returned once. It shows the
//! contents in the pause in which the workers began. The tracer never waits for a worker: if a result is not
//! ready, the tracer reads the file itself.
//! Does not: parse.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use model::{Pid, Tid};
use sys::{Errno, Error, Result};

use super::files::{path_of_thread, read_whole};
use crate::worker_pool::{Work, WorkerPool};

/// The files that are kept open in this process may use one of this many descriptors that are not reserved. Further
/// files of threads are opened for each read, which takes five times as long.
const LIMIT_SHARE: usize = 2;
/// Maximum number of files that this process keeps open. A kernel needs about one KiB for each file.
const FILES_MAX: usize = 16_384;

/// A file may become longer by this many bytes before a worker of the pool has to allocate memory for its contents.
const CAPACITY_SLACK: usize = 64;

/// Descriptors that are left for files that this process opens for a short time.
const LEFT: usize = 512;

/// The number of files that are kept open in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// The number of descriptors that this process needs for other files.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// The lowest limit on descriptors that this process has had at a look. A look is a system call, so not every permit looks.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Open files of threads in `/proc`.
#[derive(Debug, Default)]
pub struct KeptFiles {
    files: HashMap<(Pid, Tid, &'static str), Kept>,
    /// The last file that was read and did not fit into `files`, with its contents.
    other: Option<Kept>,
    ahead: ReadAhead,
}

#[derive(Debug)]
struct Kept {
    file: Arc<File>,
    bytes: Vec<u8>,
    used: bool,
    permit: Option<Permit>,
    /// Index of the file in the list that was prepared last.
    place: Option<usize>,
}

/// A permit to keep one file of `/proc` open.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// Returns `None` if this process keeps as many files open as it may.
    #[must_use]
    pub fn new() -> Option<Self> {
        if LIMIT.load(Ordering::Relaxed) == usize::MAX {
            look_at_limit();
        }
        let max = files_max();
        let more = |open: usize| (open < max).then_some(open + 1);
        // A refused permit must not exist even for a moment: its drop would count one permit less.
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Self(()))
    }

    /// Reports whether more files are open than now permitted: more descriptors were reserved since, or the limit was
    /// lowered.
    #[must_use]
    pub fn are_exceeded() -> bool {
        look_at_limit();
        OPEN.load(Ordering::Relaxed) > files_max()
    }
}

fn look_at_limit() {
    LIMIT.fetch_min(sys::descriptor_table::limit(), Ordering::Relaxed);
}

fn files_max() -> usize {
    let reserved = RESERVED.load(Ordering::Relaxed) + LEFT;
    (LIMIT.load(Ordering::Relaxed).saturating_sub(reserved) / LIMIT_SHARE).min(FILES_MAX)
}

/// Descriptors that this process will need for other files than those that are kept open here.
#[derive(Debug, Default)]
pub struct ReservedDescriptors(usize);

impl ReservedDescriptors {
    /// Changes the number of reserved descriptors.
    pub fn set(&mut self, count: usize) {
        RESERVED.fetch_add(count, Ordering::Relaxed);
        RESERVED.fetch_sub(std::mem::replace(&mut self.0, count), Ordering::Relaxed);
    }
}

impl Drop for ReservedDescriptors {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl KeptFiles {
    /// Opens a file of a thread, so that [`Self::read`] finds the file open. `path_of_thread` defines its
    /// path.
    pub fn open(&mut self, pid: Pid, tid: Tid, name: &'static str) -> Result<()> {
        let key = (pid, tid, name);
        if !self.files.contains_key(&key)
            && let Some(permit) = Permit::new()
        {
            self.files.insert(key, Kept { permit: Some(permit), ..Kept::open(pid, tid, name)? });
        }
        Ok(())
    }

    /// Returns the number of files that are kept open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Reports whether no file is kept open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Reads the current contents of a file of a thread.
    pub fn read(&mut self, pid: Pid, tid: Tid, name: &'static str) -> Result<&[u8]> {
        let key = (pid, tid, name);
        let known = match self.files.get_mut(&key) {
            Some(kept) => match kept.read(Some(&self.ahead)) {
                Ok(()) => true,
                // The thread has ended. Another thread may have the same tid now.
                Err(errno) if errno == Errno::ESRCH || errno == Errno::ENOENT => false,
                Err(errno) => return Err(failed(pid, tid, name, errno)),
            },
            None => false,
        };
        if known {
            return Ok(&self.files[&key].bytes);
        }
        self.files.remove(&key);
        let mut kept = Kept::open(pid, tid, name)?;
        kept.read(None).map_err(|errno| failed(pid, tid, name, errno))?;
        kept.permit = Permit::new();
        if kept.permit.is_some() {
            return Ok(&self.files.entry(key).or_insert(kept).bytes);
        }
        Ok(&self.other.insert(kept).bytes)
    }

    /// Closes all files if more are open in this process than permitted.
    pub fn fit(&mut self) {
        if Permit::are_exceeded() {
            self.files.clear();
        }
    }

    /// Lists all files, so that a worker pool can read them in the next pause.
    pub fn prepare_ahead(&mut self) {
        let files = self.files.values_mut().enumerate().map(|(place, kept)| {
            kept.place = Some(place);
            (Arc::clone(&kept.file), kept.bytes.len() + CAPACITY_SLACK)
        });
        self.ahead.prepare(files);
    }

    /// Makes a worker pool begin to read the listed files.
    pub fn begin_ahead(&mut self, worker_pool: &WorkerPool) {
        self.ahead.begin(worker_pool);
    }

    /// Closes files that were not read since the previous sweep, and drops the results of the worker pool.
    pub fn sweep(&mut self) {
        self.ahead.forget();
        self.files.retain(|_, kept| std::mem::take(&mut kept.used));
        self.other = None;
    }
}

impl Kept {
    fn open(pid: Pid, tid: Tid, name: &'static str) -> Result<Self> {
        let path = path_of_thread(pid, tid, name);
        let file = File::open(&path).map_err(|error| super::files::failed("open", &path, error))?;
        Ok(Self { file: Arc::new(file), bytes: Vec::new(), used: true, permit: None, place: None })
    }

    fn read(&mut self, ahead: Option<&ReadAhead>) -> std::result::Result<(), Errno> {
        self.used = true;
        if let (Some(ahead), Some(place)) = (ahead, self.place)
            && ahead.take(place, &mut self.bytes)
        {
            return Ok(());
        }
        read_whole(&self.file, &mut self.bytes)
    }
}

fn failed(pid: Pid, tid: Tid, name: &str, errno: Errno) -> Error {
    Error::path("read", path_of_thread(pid, tid, name), errno)
}

/// The lists of files that a worker pool reads in the next pause, and in the current pause.
#[derive(Debug, Default)]
pub struct ReadAhead {
    next: Option<Arc<List>>,
    now: Option<Arc<List>>,
}

/// Open files. A worker reads each file at most once.
#[derive(Debug)]
struct List {
    places: Vec<Place>,
    /// Number of files at the start of the list that no worker has begun to read. Workers begin at the end of
    /// the list, because the tracer reads from the start.
    left: AtomicUsize,
}

#[derive(Debug)]
struct Place {
    file: Arc<File>,
    answer: Mutex<Answer>,
}

#[derive(Debug)]
enum Answer {
    /// The file was not read yet. Holds a buffer for its contents.
    Open(Vec<u8>),
    Given(Vec<u8>),
    /// The contents were returned, or could not be read. Holds a buffer, which is freed outside of the pause.
    Over(Vec<u8>),
}

impl ReadAhead {
    /// Lists open files before a pause, each with the capacity of its buffer in bytes.
    pub fn prepare(&mut self, files: impl Iterator<Item = (Arc<File>, usize)>) {
        self.next = Some(List::of(files));
        self.now = None;
    }

    /// Makes a worker pool begin to read the listed files.
    pub fn begin(&mut self, worker_pool: &WorkerPool) {
        self.now = self.next.take();
        if let Some(list) = &self.now {
            worker_pool.post(Arc::clone(list) as Arc<dyn Work>);
        }
    }

    /// If a worker has read a file, swaps the contents into `into`, and returns true. After this call, no
    /// worker reads the file.
    pub fn take(&self, index: usize, into: &mut Vec<u8>) -> bool {
        self.now.as_ref().is_some_and(|list| list.take(index, into))
    }

    /// Drops all lists.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

impl List {
    fn of(files: impl Iterator<Item = (Arc<File>, usize)>) -> Arc<Self> {
        let place =
            |(file, capacity)| Place { file, answer: Mutex::new(Answer::Open(Vec::with_capacity(capacity))) };
        let places: Vec<Place> = files.map(place).collect();
        Arc::new(Self { left: AtomicUsize::new(places.len()), places })
    }

    fn take(&self, index: usize, into: &mut Vec<u8>) -> bool {
        let Some(Ok(mut answer)) = self.places.get(index).map(|place| place.answer.try_lock()) else {
            return false;
        };
        let was_given = matches!(*answer, Answer::Given(_));
        let (Answer::Open(bytes) | Answer::Given(bytes) | Answer::Over(bytes)) = &mut *answer;
        let mut bytes = std::mem::take(bytes);
        if was_given {
            std::mem::swap(&mut bytes, into);
        }
        *answer = Answer::Over(bytes);
        was_given
    }
}

impl Work for List {
    fn step(&self) -> bool {
        let claim = |left: usize| left.checked_sub(1);
        let Ok(left) = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) else {
            return false;
        };
        let place = &self.places[left - 1];
        // The tracer is using this file.
        let Ok(mut answer) = place.answer.try_lock() else { return true };
        if let Answer::Open(bytes) = &mut *answer {
            let mut bytes = std::mem::take(bytes);
            *answer = match read_whole(&place.file, &mut bytes) {
                Ok(()) => Answer::Given(bytes),
                // The tracer reads the file again and gets the error.
                Err(_) => Answer::Over(bytes),
            };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Held by tests that take all permits of this process, and by tests that need one.
    static PERMITS: Mutex<()> = Mutex::new(());

    #[test]
    fn a_refused_permit_lets_no_other_one_in() {
        let _all = PERMITS.lock();
        let all: Vec<Permit> = std::iter::from_fn(Permit::new).collect();
        assert!(!all.is_empty());
        // Another test may return some permits meanwhile.
        let more = (0..1000).filter_map(|_| Permit::new()).collect::<Vec<_>>();
        assert!(more.len() < 100, "{} more", more.len());
    }

    #[test]
    fn an_open_file_tells_what_is_so_now_and_an_ended_thread_is_an_error() {
        let _some = PERMITS.lock();
        let mut files = KeptFiles::default();
        let pid = Pid(std::process::id() as i32);
        let (say, hear) = std::sync::mpsc::channel::<()>();
        let (name, named) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("first".to_owned()).spawn(move || {
            name.send(Tid(rustix::thread::gettid().as_raw_nonzero().get())).unwrap();
            hear.recv().unwrap();
            rustix::thread::set_name(c"second").unwrap();
            name.send(Tid(0)).unwrap();
            hear.recv().unwrap();
        });
        let tid = named.recv().unwrap();
        assert_eq!(files.read(pid, tid, "comm").unwrap(), b"first\n");
        say.send(()).unwrap();
        named.recv().unwrap();
        assert_eq!(files.read(pid, tid, "comm").unwrap(), b"second\n");
        files.sweep();
        assert_eq!(files.files.len(), 1);
        files.sweep();
        assert!(files.files.is_empty(), "nobody asked for it since");
        files.open(pid, tid, "comm").unwrap();
        say.send(()).unwrap();
        thread.unwrap().join().unwrap();
        // The kernel wakes the joining thread shortly before the ended thread disappears from `/proc`.
        let timeout = Instant::now() + Duration::from_secs(20);
        while files.read(pid, tid, "comm").is_ok() {
            assert!(Instant::now() < timeout, "an ended thread is still read");
            std::thread::yield_now();
        }
    }

    #[test]
    fn long_files_are_read_whole() {
        let mut bytes = Vec::new();
        let file = File::open("/proc/self/smaps").unwrap();
        read_whole(&file, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let last = text.lines().last().unwrap();
        assert!(text.len() > 2 * super::super::files::BUFFER_BYTES && last.starts_with("VmFlags"), "{last}");
    }

    #[test]
    fn each_file_is_reported_once_and_what_was_taken_first_is_not_read() {
        let open = |name: &str| (Arc::new(File::open(format!("/proc/self/{name}")).unwrap()), 16);
        let files = ["comm", "personality", "cgroup"].map(open);
        let list = List::of(files.into_iter());
        let mut read_bytes = Vec::new();
        assert!(!list.take(0, &mut read_bytes));
        while list.step() {}
        assert!(list.take(1, &mut read_bytes));
        assert_eq!(read_bytes, std::fs::read("/proc/self/personality").unwrap());
        assert!(
            !list.take(1, &mut read_bytes)
                && !list.take(0, &mut read_bytes)
                && !list.take(3, &mut read_bytes)
        );
        assert!(list.take(2, &mut read_bytes));
        assert_eq!(read_bytes, std::fs::read("/proc/self/cgroup").unwrap());
    }
}
