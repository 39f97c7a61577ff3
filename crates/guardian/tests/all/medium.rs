//! A medium in a directory. The test decides when the log of the medium is written.
//!
//! A medium is the storage interface of the store.
//!
//! Owns: the gate before each write and after each sync of the log.
//! Does not: delay any other operation.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use model::ByteCount;
use store::{Directory, Entry, Kind, Lock, Medium, NewFile, PageFile, PageSource, Writes};
use sys::Result;
use sys::direct_io::Rings;
use sys::page_buffer::PageBuffer;

/// Time limit of a wait at the gate, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A gate at which writes wait while it is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
    }

    pub(crate) fn open(&self) {
        self.state().is_closed = false;
        self.changed.notify_all();
    }

    /// Reports whether a write waits at the closed gate.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.state();
        state.is_closed && state.waiting > 0
    }

    fn pass(&self) {
        let mut state = self.state();
        state.waiting += 1;
        while state.is_closed {
            let (next, timeout) = self.changed.wait_timeout(state, LIMIT).unwrap();
            state = next;
            assert!(!timeout.timed_out(), "the gate stays closed");
        }
        state.waiting -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A medium in a directory, with a gate.
#[derive(Debug)]
pub(crate) struct GatedMedium {
    inner: Directory,
    gate: Arc<Gate>,
}

impl GatedMedium {
    pub(crate) fn new(gate: &Arc<Gate>) -> Self {
        Self { inner: Directory::default(), gate: Arc::clone(gate) }
    }
}

impl Medium for GatedMedium {
    fn create_directory(&self, path: &Path) -> Result<()> {
        self.inner.create_directory(path)
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>> {
        self.inner.create_file(path)
    }

    fn create_pages(&self, path: &Path, writes: Writes) -> Result<Box<dyn PageFile>> {
        self.inner.create_pages(path, writes)
    }

    fn create_log(&self, path: &Path, length: ByteCount, rings: &Rings) -> Result<Box<dyn PageFile>> {
        let file = self.inner.create_log(path, length, rings)?;
        Ok(Box::new(GatedLog { file, gate: Arc::clone(&self.gate) }))
    }

    fn open_pages(&self, path: &Path) -> store::Result<Box<dyn PageSource>> {
        self.inner.open_pages(path)
    }

    fn read_file(&self, path: &Path, limit: ByteCount) -> store::Result<Vec<u8>> {
        self.inner.read_file(path, limit)
    }

    fn check_directory(&self, path: &Path) -> store::Result<()> {
        self.inner.check_directory(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        self.inner.list(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<Kind>> {
        self.inner.kind(path)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.inner.sync_file(path)
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        self.inner.sync_directory(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        self.inner.remove_directory(path)
    }

    fn lock(&self, path: &Path) -> Result<Option<Box<dyn Lock>>> {
        self.inner.lock(path)
    }
}

/// A segment of the log, whose writes wait at the gate.
#[derive(Debug)]
struct GatedLog {
    file: Box<dyn PageFile>,
    gate: Arc<Gate>,
}

impl PageFile for GatedLog {
    fn submit(&mut self, buffer: PageBuffer, part: Range<ByteCount>, offset: ByteCount) -> Result<()> {
        self.gate.pass();
        self.file.submit(buffer, part, offset)
    }

    fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()> {
        self.gate.pass();
        self.file.rewrite(bytes, offset)
    }

    fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        self.file.take_done()
    }

    fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        self.file.wait_done()
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync()?;
        self.gate.pass();
        Ok(())
    }

    fn finish(self: Box<Self>, length: ByteCount) -> Result<()> {
        self.file.finish(length)
    }
}
