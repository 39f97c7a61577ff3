//! The thread that handles the userfaultfd messages of a watched process.
//!
//! Owns: the two descriptors of a process, the thread, and the list of discarded pages.
//! Invariants: every message is answered. If the handler fails, the process continues, and the next scan reports the
//! failure. Should this program die, the kernel resumes all waiting threads. The thread has the descriptors only while
//! it serves, so that closing them ends all watching.
//! Does not: delay a writer longer than lifting the protection of one page takes.

use std::io::PipeWriter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::userfaultfd::{self, Discards, Inbox, Message, Messages, Mode};
use sys::{Errno, Error};
use tracee::RemoteSession;

use crate::attach;
use crate::class::Class;
use crate::error::TrackError;
use crate::removals::Removals;

/// How long the handler rests after a failure, which may well last.
const AFTER_FAILURE: Duration = Duration::from_millis(1);
/// How often the descriptors are looked at that the thread is done with at once.
const POLL_INTERVAL: Duration = Duration::from_micros(5);

/// The descriptors and their handler; dropping it ends all watching.
#[derive(Debug)]
pub(crate) struct Handler {
    pid: Pid,
    /// Until they are closed.
    descriptors: Option<Arc<Descriptors>>,
    shared: Arc<Shared>,
    /// Closing it ends the thread.
    bell: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Descriptors {
    /// Watches anonymous memory: discarding it undoes its protection, which shows.
    silent: OwnedFd,
    /// Watches the rest: discarding it leaves the protection behind as if nothing had happened.
    announcing: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    removals: Mutex<Removals>,
    failure: Mutex<Option<Error>>,
}

/// A thread that waits for the descriptors it is to listen to. It ends with the thread that would hand them over.
#[derive(Debug)]
pub(crate) struct Waiting {
    pid: Pid,
    mode: Mode,
    shared: Arc<Shared>,
    bell: PipeWriter,
    hand_over: Sender<Weak<Descriptors>>,
    thread: JoinHandle<()>,
}

impl Waiting {
    /// Starts the thread.
    pub(crate) fn begin(pid: Pid, mode: Mode) -> Result<Self, TrackError> {
        let failed = |error: std::io::Error| Error::process("start a fault handler", pid, error);
        let (ending, bell) = std::io::pipe().map_err(failed)?;
        let inbox = Inbox::new(ending.as_fd())?;
        let (removals, failure) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { inbox, removals, failure });
        let (hand_over, descriptors) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let listen = move || {
            if let Ok(descriptors) = descriptors.recv() {
                of_thread.listen(&descriptors);
            }
            // Until here the end of the pipe is told.
            drop(ending);
        };
        let thread = std::thread::Builder::new().name("undying-faults".to_owned());
        let thread = thread.spawn(listen).map_err(failed)?;
        Ok(Self { pid, mode, shared, bell, hand_over, thread })
    }

    /// Creates the descriptors in the process of a stopped thread, and has them listened to.
    pub(crate) fn attach(self, session: &mut RemoteSession<'_>) -> Result<Handler, TrackError> {
        let Self { pid, mode, shared, bell, hand_over, thread } = self;
        let [silent, announcing] =
            attach::userfaultfds(pid, session, mode, [Discards::Silent, Discards::Announced])?;
        shared.inbox.add(silent.as_fd())?;
        shared.inbox.add(announcing.as_fd())?;
        let descriptors = Arc::new(Descriptors { silent, announcing });
        hand_over
            .send(Arc::downgrade(&descriptors))
            .map_err(|_| Error::process("reach the fault handler", pid, Errno::ESRCH))?;
        Ok(Handler { pid, descriptors: Some(descriptors), shared, bell: Some(bell), thread: Some(thread) })
    }
}

impl Handler {
    /// The descriptor that watches areas of a class.
    pub(crate) fn watches(&self, class: Class) -> BorrowedFd<'_> {
        let descriptors = self.descriptors.as_ref().expect("nothing is watched once they are closed");
        match class {
            Class::Anonymous => descriptors.silent.as_fd(),
            Class::PrivateFile | Class::Shared => descriptors.announcing.as_fd(),
        }
    }

    /// Ends all watching of a process that stands. The thread goes later.
    pub(crate) fn close(&mut self) {
        // It may have one last message in hand; its sender has continued, and is stopped. The last owner closes them:
        // that has to be over here.
        let mut descriptors = self.descriptors.take();
        while let Some(served) = descriptors {
            descriptors = Arc::try_unwrap(served).err();
            if descriptors.is_some() {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// What has been discarded. Stopped threads that have discarded something were recorded.
    pub(crate) fn removals(&self) -> MutexGuard<'_, Removals> {
        locked(&self.shared.removals)
    }

    /// What went wrong since this was asked last.
    pub(crate) fn check(&self) -> Result<(), TrackError> {
        let failure = locked(&self.shared.failure).take();
        failure.map_or(Ok(()), |cause| Err(TrackError::Handler { pid: self.pid, cause }))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        drop(self.bell.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing to say here; what it left unanswered ends with the descriptors.
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

    /// Serves what has come; false when that was the last time.
    fn serve(&self, descriptors: &Weak<Descriptors>, messages: &mut Messages) -> Result<bool, Error> {
        if !self.inbox.wait()? {
            return Ok(false);
        }
        let Some(descriptors) = descriptors.upgrade() else { return Ok(false) };
        let fds = [descriptors.silent.as_fd(), descriptors.announcing.as_fd()];
        let mut outcome = Ok(true);
        for fd in fds {
            {
                // Reading a message resumes its sender. The list stays locked until the message is in it, so
                // that a later reader finds it.
                let mut removals = locked(&self.removals);
                userfaultfd::read(fd, messages)?;
                for message in messages.iter() {
                    if let Message::Remove(range) = message {
                        removals.note(range);
                    }
                }
            }
            for message in messages.iter() {
                if let Message::Fault(address) = message {
                    outcome = outcome.and(self.let_go(fd, address.page_floor()));
                }
            }
        }
        outcome
    }

    /// Lets the writer of a page go on, whatever happens.
    fn let_go(&self, fd: BorrowedFd<'_>, page: Address) -> Result<bool, Error> {
        let range = AddressRange::new(page, page + ByteCount(PAGE_BYTES));
        if userfaultfd::lift(fd, range).is_err() {
            // The areas are changing, or nothing is mapped there any more: the writer tries again. Or it cannot be
            // lifted by single pages: then that page is watched no longer.
            userfaultfd::wake(fd, range).or_else(|_| userfaultfd::unregister(fd, range))?;
        }
        Ok(true)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole after every step; a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
