//! Worker threads for work that may block: restores, opening a log, ending the remaining processes of a dead subject.
//!
//! Owns: the threads and the queue of work.
//! Invariants: the event loop never waits for a worker. A worker lives as long as its host. Otherwise the kernel would
//! send the signal of PR_SET_PDEATHSIG to each process that the worker has created.
//! Does not: know the content of the work.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use sys::Error;

use crate::error::Result;

/// Maximum number of threads. Each piece of work can wait for a disk or a dying process. More threads would only
/// compete for the same one or two disks.
const WORKERS_MAX: usize = 16;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// The interface of the event loop to the workers.
pub(super) struct Workers<T> {
    queue: Arc<Queue<T>>,
    done: Receiver<std::result::Result<T, Box<dyn Any + Send>>>,
    sender: Sender<std::result::Result<T, Box<dyn Any + Send>>>,
    threads: Vec<JoinHandle<()>>,
}

struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// An eventfd that is written after each finished piece of work.
    bell: OwnedFd,
}

struct State<T> {
    waiting: VecDeque<Work<T>>,
    idle: usize,
    is_closed: bool,
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next piece of work. Returns `None` when the queue is closed and empty.
    fn next(&self) -> Option<Work<T>> {
        let mut state = self.state();
        state.idle += 1;
        while state.waiting.is_empty() && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle -= 1;
        state.waiting.pop_front()
    }
}

impl<T: Send + 'static> Workers<T> {
    pub(super) fn new() -> Result<Self> {
        let failed = |errno| Error::new("make an event descriptor", errno);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let state = State { waiting: VecDeque::new(), idle: 0, is_closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new(), bell });
        let (sender, done) = mpsc::channel();
        Ok(Self { queue, done, sender, threads: Vec::new() })
    }

    /// Returns a descriptor that becomes readable when a piece of work is finished.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.queue.bell.as_fd()
    }

    /// Queues a piece of work for the workers. [`Self::take`] returns the result.
    ///
    /// # Errors
    ///
    /// No worker thread exists, and no thread can be started.
    pub(super) fn submit(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Result<()> {
        let mut state = self.queue.state();
        state.waiting.push_back(Box::new(work));
        let lacks_one = state.waiting.len() > state.idle && self.threads.len() < WORKERS_MAX;
        drop(state);
        if lacks_one {
            self.start()?;
        }
        self.queue.changed.notify_one();
        Ok(())
    }

    /// Returns the result of a finished piece of work, if there is one. A panic of the work continues in the caller.
    pub(super) fn take(&self) -> Option<T> {
        // The eventfd is reset before the receive, so that a later result makes it readable again. The read fails if
        // the eventfd is already reset.
        let _ = rustix::io::read(&self.queue.bell, &mut [0_u8; 8]);
        let done = self.done.try_recv().ok()?;
        Some(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    fn start(&mut self) -> Result<()> {
        let (queue, sender) = (Arc::clone(&self.queue), self.sender.clone());
        let work = move || {
            while let Some(work) = queue.next() {
                // The send fails only after the end of the host. No result is needed then.
                let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
                // The counter cannot overflow, because the loop reads it after every write.
                let _ = rustix::io::write(&queue.bell, &1_u64.to_ne_bytes());
            }
        };
        let started = std::thread::Builder::new().name("undying-work".to_owned()).spawn(work);
        match started {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => {
                return Err(Error::new("start a thread", error).into());
            }
            // The existing threads do the work one piece after another.
            Err(_) => {}
        }
        Ok(())
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Panics of the work were caught before.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_that_blocks_holds_up_no_other() {
        let mut workers = Workers::new().unwrap();
        let (open, gate) = mpsc::channel();
        workers.submit(move || gate.recv().unwrap()).unwrap();
        workers.submit(|| 2).unwrap();
        let next = |workers: &Workers<i32>| {
            loop {
                match workers.take() {
                    Some(done) => return done,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        assert_eq!(next(&workers), 2);
        open.send(1).unwrap();
        assert_eq!(next(&workers), 1);
        for number in 0..100 {
            workers.submit(move || number).unwrap();
        }
        let mut done: Vec<i32> = (0..100).map(|_| next(&workers)).collect();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        assert!(workers.threads.len() <= WORKERS_MAX);
    }
}
