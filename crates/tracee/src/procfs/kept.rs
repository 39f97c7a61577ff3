//! Files of `/proc` that are held open and read again and again.
//!
//! Owns: the open files and the memory they are read into; what has ended is opened anew.
//! Invariants: a read tells what is so now; it allocates only when a file outgrows all that it held before; of files
//! that nobody asks for any more none stays open longer than until the second sweep. What a crew has read is told once
//! and as of the pause in which it was begun.
//! Does not: parse. An open, two reads and a close take five times as long as one read of an open file.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use model::{Pid, Tid};
use sys::{Errno, Error, Result};

use super::ahead::ReadAhead;
use super::files::{ROOM, path_of_thread, read_whole};
use crate::crew::Crew;

/// Files held open at most: a process may open 1024 unless told otherwise, and there are others. Beyond it, a file is
/// opened for each read.
const FILES_MAX: usize = 192;

/// Open files of threads.
#[derive(Debug, Default)]
pub struct KeptFiles {
    files: HashMap<(Pid, Tid, &'static str), Kept>,
    /// What was read of a file for which there was no place.
    other: Option<Kept>,
    ahead: ReadAhead,
}

#[derive(Debug)]
struct Kept {
    file: Arc<File>,
    bytes: Vec<u8>,
    used: bool,
    /// Where it stands in the list that was prepared last.
    place: Option<usize>,
}

impl KeptFiles {
    /// Opens a file of a thread for later; see `path_of_thread`.
    pub fn open(&mut self, pid: Pid, tid: Tid, name: &'static str) -> Result<()> {
        let key = (pid, tid, name);
        if !self.files.contains_key(&key) && self.files.len() < FILES_MAX {
            self.files.insert(key, Kept::open(pid, tid, name)?);
        }
        Ok(())
    }

    /// All that a file of a thread holds now.
    pub fn read(&mut self, pid: Pid, tid: Tid, name: &'static str) -> Result<&[u8]> {
        let key = (pid, tid, name);
        let known = match self.files.get_mut(&key) {
            Some(kept) => match kept.read(Some(&self.ahead)) {
                Ok(()) => true,
                // A thread of that number has ended; there may be another.
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
        if self.files.len() < FILES_MAX {
            return Ok(&self.files.entry(key).or_insert(kept).bytes);
        }
        Ok(&self.other.insert(kept).bytes)
    }

    /// Lists all files, for a crew to read them in the next pause.
    pub fn prepare_ahead(&mut self) {
        let files = self.files.values_mut().enumerate().map(|(place, kept)| {
            kept.place = Some(place);
            Arc::clone(&kept.file)
        });
        self.ahead.prepare(files, ROOM);
    }

    /// Has a crew begin to read them.
    pub fn begin_ahead(&mut self, crew: &Crew) {
        self.ahead.begin(crew);
    }

    /// Closes files that were not read since this was called last, and forgets what a crew has read.
    pub fn sweep(&mut self) {
        self.ahead.forget();
        self.files.retain(|_, kept| std::mem::take(&mut kept.used));
        self.other = None;
    }
}

impl Kept {
    fn open(pid: Pid, tid: Tid, name: &'static str) -> Result<Self> {
        let path = path_of_thread(pid, tid, name);
        let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { file: Arc::new(file), bytes: Vec::with_capacity(ROOM), used: true, place: None })
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn an_open_file_tells_what_is_so_now_and_an_ended_thread_is_an_error() {
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
        // The kernel tells who joins it a moment before the thread is gone from `/proc`.
        let patience = Instant::now() + Duration::from_secs(20);
        while files.read(pid, tid, "comm").is_ok() {
            assert!(Instant::now() < patience, "an ended thread is still read");
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
        assert!(text.len() > 2 * ROOM && last.starts_with("VmFlags"), "{last}");
    }
}
