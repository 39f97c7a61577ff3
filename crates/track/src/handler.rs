//! Reads the userfaultfd messages of a watched process, in the *handler thread*.
//!
//! A process is *watched* while its memory is registered with a userfaultfd. The kernel sends a message before the
//! process discards pages of some mappings. The discarding thread waits until the message was read.
//!
//! Owns: the two userfaultfd descriptors of a process, the handler thread, and the list of discarded ranges.
//! Invariants: the handler thread reads every message. If a message cannot be read, the next scan reports the
//! failure. If this program dies, the kernel closes the descriptors and resumes the waiting threads. The handler thread owns the descriptors only while it
//! processes messages. While it waits for messages, [`Handler::close`] can close the descriptors and end the
//! watch.
//! Does not: delay a thread that writes. The kernel lifts the protection itself.

use std::io::PipeWriter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use model::Pid;
use sys::userfaultfd::{self, Discards, Event, Inbox, Messages};
use sys::{Errno, Error};
use tracee::RemoteSession;

use crate::attach;
use crate::class::Class;
use crate::error::TrackError;
use crate::removals::Removals;

/// Time that the handler thread sleeps after a failure. The failure can persist, so the thread must not retry
/// at once.
const AFTER_FAILURE: Duration = Duration::from_millis(1);
/// Interval at which [`Handler::close`] checks whether the handler thread still uses the descriptors.
const POLL_INTERVAL: Duration = Duration::from_micros(5);

/// The userfaultfd descriptors of a process and their handler thread. Dropping this value ends the watch of
/// the process.
#[derive(Debug)]
pub(crate) struct Handler {
    pid: Pid,
    /// `None` once the descriptors are closed.
    descriptors: Option<Arc<Descriptors>>,
    shared: Arc<Shared>,
    /// Write end of a pipe. Closing it ends the handler thread.
    end_pipe: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Watches anonymous memory. If the process discards anonymous pages, the kernel removes their
    /// protection, so that a scan finds them as written. Therefore no message is needed, and the kernel sends
    /// none.
    silent: OwnedFd,
    /// Watches file mappings and shared memory. If the process discards pages of these mappings, their
    /// protection stays, and a scan does not find them. Therefore the kernel sends a message before it
    /// discards pages.
    announcing: OwnedFd,
}

impl Descriptors {
    /// Returns the descriptor that watches mappings of a class.
    pub(crate) fn fd_for(&self, class: Class) -> BorrowedFd<'_> {
        match class {
            Class::Anonymous => self.silent.as_fd(),
            Class::PrivateFile | Class::Shared => self.announcing.as_fd(),
        }
    }
}

#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    removals: Mutex<Removals>,
    failure: Mutex<Option<Error>>,
}

/// A handler thread that waits for its descriptors. If this value is dropped before the descriptors exist,
/// the thread ends.
#[derive(Debug)]
pub(crate) struct Waiting {
    pid: Pid,
    shared: Arc<Shared>,
    end_pipe: PipeWriter,
    hand_over: Sender<Weak<Descriptors>>,
    thread: JoinHandle<()>,
}

impl Waiting {
    /// Starts the handler thread. The thread waits until [`Self::attach`] passes the descriptors to it.
    pub(crate) fn begin(pid: Pid) -> Result<Self, TrackError> {
        let failed = |error: std::io::Error| Error::process("start a fault handler", pid, error);
        let (end_pipe_reader, end_pipe) = std::io::pipe().map_err(failed)?;
        let inbox = Inbox::new(end_pipe_reader.as_fd())?;
        let (removals, failure) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { inbox, removals, failure });
        let (hand_over, descriptors) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let listen = move || {
            if let Ok(descriptors) = descriptors.recv() {
                of_thread.listen(&descriptors);
            }
            // The inbox detects that `end_pipe` was closed only while the read end of the pipe is open.
            drop(end_pipe_reader);
        };
        let thread = std::thread::Builder::new().name("undying-faults".to_owned());
        let thread = thread.spawn(listen).map_err(failed)?;
        Ok(Self { pid, shared, end_pipe, hand_over, thread })
    }

    /// Creates the descriptors in the process of a stopped thread, and passes them to the handler thread.
    pub(crate) fn attach(self, session: &mut RemoteSession<'_>) -> Result<Handler, TrackError> {
        let Self { pid, shared, end_pipe, hand_over, thread } = self;
        let [silent, announcing] =
            attach::userfaultfds(pid, session, [Discards::Silent, Discards::Announced])?;
        shared.inbox.add(silent.as_fd())?;
        shared.inbox.add(announcing.as_fd())?;
        let descriptors = Arc::new(Descriptors { silent, announcing });
        hand_over
            .send(Arc::downgrade(&descriptors))
            .map_err(|_| Error::process("reach the fault handler", pid, Errno::ESRCH))?;
        Ok(Handler {
            pid,
            descriptors: Some(descriptors),
            shared,
            end_pipe: Some(end_pipe),
            thread: Some(thread),
        })
    }
}

impl Handler {
    /// Returns the descriptor that watches mappings of a class.
    pub(crate) fn fd_for(&self, class: Class) -> BorrowedFd<'_> {
        let descriptors = self.descriptors.as_ref().expect("nothing is watched once they are closed");
        descriptors.fd_for(class)
    }

    /// Returns the descriptors for a thread that uses them from time to time. [`Self::close`] waits for the end of each use.
    pub(crate) fn descriptors(&self) -> Weak<Descriptors> {
        self.descriptors.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Closes the descriptors, which ends the watch. The process must be stopped. The handler thread ends
    /// when this value is dropped.
    pub(crate) fn close(&mut self) {
        // The descriptors are closed when their last owner drops them. The handler thread is an owner while
        // it processes a last message. The descriptors must be closed when this function returns, so the loop
        // waits until this function is the last owner.
        let mut descriptors = self.descriptors.take();
        while let Some(served) = descriptors {
            descriptors = Arc::try_unwrap(served).err();
            if descriptors.is_some() {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Locks and returns the list of discarded ranges. If the process is stopped, the list contains all its
    /// discards.
    pub(crate) fn removals(&self) -> MutexGuard<'_, Removals> {
        locked(&self.shared.removals)
    }

    /// Returns an error if the handler thread has failed since the last call of this function.
    pub(crate) fn check(&self) -> Result<(), TrackError> {
        let failure = locked(&self.shared.failure).take();
        failure.map_or(Ok(()), |cause| Err(TrackError::Handler { pid: self.pid, cause }))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        drop(self.end_pipe.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread needs no handling here. Closing the descriptors resumes all threads that
            // still wait for an answer.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn listen(&self, descriptors: &Weak<Descriptors>) {
        let mut messages = Messages::default();
        loop {
            match self.serve(descriptors, &mut messages) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    *locked(&self.failure) = Some(error);
                    std::thread::sleep(AFTER_FAILURE);
                }
            }
        }
    }

    /// Waits for messages and reads them. Returns false if the handler thread must end.
    fn serve(&self, descriptors: &Weak<Descriptors>, messages: &mut Messages) -> Result<bool, Error> {
        if !self.inbox.wait()? {
            return Ok(false);
        }
        let Some(descriptors) = descriptors.upgrade() else { return Ok(false) };
        for fd in [descriptors.silent.as_fd(), descriptors.announcing.as_fd()] {
            // `read` resumes the thread that waits to discard pages. The list is locked before `read`, and unlocked
            // when it contains the range. Therefore a scan after the discard finds the range in the list.
            let mut removals = locked(&self.removals);
            userfaultfd::read(fd, messages)?;
            for event in messages.take() {
                if let Event::Remove(range) = event {
                    removals.note(range);
                }
            }
        }
        Ok(true)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values behind these locks are valid after every statement. A panic of another thread does not
    // invalidate them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
