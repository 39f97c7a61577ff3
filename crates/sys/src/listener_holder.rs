//! The listener holders: two child processes that let the calls of a subject continue if the guardian dies.
//!
//! A seccomp filter reports some system calls of the subject, and each reported call waits for an answer. The
//! *listener* is the descriptor of the filter. The *guardian* is the process that receives the reported calls from the
//! listener, and answers them. A *held call* was received, and stays unanswered while the guardian receives other
//! calls. Each holder has a duplicate of each listener. If the last duplicate of a listener is closed, the calls of the
//! subject fail with ENOSYS.
//!
//! Owns: the holders, and their replacement: a thread waits for the death of a holder, and creates a new holder.
//! The new holder receives duplicates of all listeners.
//! Invariants: if any two of the guardian and the holders die at the same time, one of them is left. If the
//! guardian dies, one holder at a time lets every reported call of the subject continue, including the calls
//! that the guardian has received but not answered. Before the first call continues, a holder appends a line to a
//! file. The holders got this file together with the listener. If the subject ends while the guardian is alive, each
//! holder appends an end mark to this file. A holder makes only system calls, allocates nothing and never returns.
//! Does not: decide about calls, or help a subject if the guardian and both holders are killed at the same time.
//!
//! Man page: clone3(2), seccomp_unotify(2), pidfd_open(2), close_range(2)
//! Since: Linux 5.9 (close_range)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the files of an unwatched program are not restored together with the program

mod memory;
mod process;

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use model::Pid;

use crate::clone::{self, CloneArguments};
use crate::error::{Errno, Error, Result};
use crate::fd_passing::send_descriptors;
use crate::{pidfd, socket};

use memory::Shared;
pub use memory::{HeldCall, HeldCalls, NotificationBuffer};
pub use process::{BROKEN_LINE, BUFFERS_MAX, HELD_CALLS_MAX, MARKS_BYTES_MAX, end_of};

/// Number of holders. With the guardian, three processes have each listener, so that each pair can die.
const HOLDERS: usize = 2;
/// The names of the holder processes. They differ, so that a kill by name ends one of them.
const NAMES: [&CStr; HOLDERS] = [c"undying-holder", c"undying-spare"];
/// Number of bytes that are reserved in the file for the line of the holder. With this reserve, the line can
/// be appended on a full file system.
const RESERVED_BYTES: i64 = 4096;
/// Maximum time in milliseconds that the drop of [`ListenerHolder`] waits for the exit of a holder. After
/// the exit, the holder is reaped.
const EXIT_LIMIT_MS: i32 = 200;
/// Time between two attempts to replace a dead holder, if processes or descriptors are missing.
const RETRY_MS: i32 = 50;

/// A function that creates a process. The caller of [`ListenerHolder::start`] executes the function, so that the caller
/// can record the new child before another thread finds the child.
pub type Creation<'a> = &'a dyn Fn() -> Result<Pid>;
type Record = Box<dyn Fn(Creation<'_>) -> Result<Pid> + Send + Sync>;

/// The handle with which the guardian controls the holders.
#[derive(Debug)]
pub struct ListenerHolder {
    inner: Arc<Inner>,
    /// The thread that replaces holders. The thread ends when the other end of `end` is closed.
    thread: Option<(JoinHandle<()>, OwnedFd)>,
}

/// The part of [`ListenerHolder`] that the thread shares.
struct Inner {
    shared: Arc<Shared>,
    record: Record,
    state: Mutex<State>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inner").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    holders: [Option<Holder>; HOLDERS],
    /// The listeners, each with its file, that a new holder receives.
    held: Vec<(OwnedFd, OwnedFd)>,
}

/// One holder.
#[derive(Debug)]
struct Holder {
    pid: Pid,
    handle: OwnedFd,
    socket: OwnedFd,
}

/// Duplicates of the sockets to the holders, for a child that installs a filter.
#[derive(Debug)]
pub(crate) struct HolderSockets {
    inner: Arc<Inner>,
    sockets: [Option<(Pid, OwnedFd)>; HOLDERS],
    broken: OwnedFd,
}

impl ListenerHolder {
    /// Creates the holders, and the thread that replaces a holder that has died.
    ///
    /// A holder is a child without an exit signal, in a session of its own. A holder closes all inherited
    /// descriptors except a pidfd of this process, a pidfd of the other holder and one end of a socket pair. A holder
    /// opens `/proc/PID/stat` of this process. With CAP_SYS_RESOURCE, the OOM killer never selects a holder.
    ///
    /// Each holder is created by a call of `record`, which must call its argument and return the result.
    ///
    /// A holder keeps a copy of the memory that this process has at the creation of the holder.
    ///
    /// # Errors
    ///
    /// Fails if the memory, the thread or a holder cannot be created.
    pub fn start(record: impl Fn(Creation<'_>) -> Result<Pid> + Send + Sync + 'static) -> Result<Self> {
        let shared = Arc::new(Shared::map()?);
        let inner = Arc::new(Inner { shared, record: Box::new(record), state: Mutex::default() });
        let mut holder = Self { inner, thread: None };
        holder.inner.repair(&mut holder.inner.state())?;
        let (own, of_thread) = socket::pair(libc::SOCK_STREAM)?;
        let inner = Arc::clone(&holder.inner);
        let builder = std::thread::Builder::new().name("undying-holders".to_owned());
        let thread = builder.spawn(move || inner.replace_dead(of_thread.as_fd()));
        let thread = thread.map_err(|error| Error::new("start a thread", error))?;
        holder.thread = Some((thread, own));
        Ok(holder)
    }

    /// Returns the pids of the living holders.
    #[must_use]
    pub fn pids(&self) -> Vec<Pid> {
        self.inner.state().holders.iter().flatten().map(|holder| holder.pid).collect()
    }

    /// Replaces dead holders now.
    ///
    /// # Errors
    ///
    /// Fails if no holder lives, and none can be created.
    pub fn repair(&self) -> Result<()> {
        self.inner.repair(&mut self.inner.state())
    }

    /// Takes a buffer for one receiving thread. Returns `None` if all buffers are taken.
    #[must_use]
    pub fn buffer(&self) -> Option<NotificationBuffer> {
        self.inner.shared.take_buffer()
    }

    /// Returns the table of held calls.
    #[must_use]
    pub fn held_calls(&self) -> HeldCalls {
        self.inner.shared.held_calls()
    }

    /// Sends duplicates of a listener and of the file `broken` to the holders. The holders and this process keep the
    /// duplicates until no task uses the filter of the listener.
    ///
    /// `broken` must be open for writing. If the last task ends while this process is alive, each holder appends an end
    /// mark ([`end_of`]) to `broken`. If this process dies while a task uses the filter, each holder
    /// appends [`BROKEN_LINE`] to `broken`. If a holder cannot find out whether this process or the last
    /// task ended first, the holder appends the line, too.
    ///
    /// This process may have another descriptor that watches the subject, for example a fanotify group. At an
    /// exit of this process, the kernel releases this descriptor. With procfs, the holder detects the exit
    /// before the release. So the holder appends the line if the last task ends after the release.
    ///
    /// # Errors
    ///
    /// Fails if no holder lives and none can be created, or if a descriptor cannot be duplicated.
    pub fn hold(&self, listener: BorrowedFd<'_>, broken: BorrowedFd<'_>) -> Result<()> {
        reserve(broken);
        self.inner.hold(listener, broken, &[])
    }

    /// Returns duplicates of the sockets to the holders. A child of this process can send its listener and the file
    /// `broken` through these sockets, as `hold` does.
    pub(crate) fn sockets(&self, broken: BorrowedFd<'_>) -> Result<HolderSockets> {
        reserve(broken);
        let mut state = self.inner.state();
        self.inner.repair(&mut state)?;
        let mut sockets = [None, None];
        for (socket, holder) in sockets.iter_mut().zip(state.holders.iter().flatten()) {
            *socket = Some((holder.pid, duplicate(holder.socket.as_fd())?));
        }
        drop(state);
        Ok(HolderSockets { inner: Arc::clone(&self.inner), sockets, broken: duplicate(broken)? })
    }
}

impl HolderSockets {
    /// Sends a listener and the file to the holders. Allocates nothing, so that a child can call this function between
    /// fork and exec.
    ///
    /// # Errors
    ///
    /// Fails if no holder has received the listener.
    pub(crate) fn send(&self, listener: BorrowedFd<'_>) -> Result<()> {
        let descriptors = [listener.as_raw_fd(), self.broken.as_raw_fd()];
        let mut outcome = Err(Error::new("send a listener to its holders", Errno(libc::EPIPE)));
        for (_, socket) in self.sockets.iter().flatten() {
            let sent = send_descriptors(socket.as_fd(), &descriptors);
            outcome = outcome.or(sent);
        }
        outcome
    }

    /// Records the listener that a child has sent, and sends the listener to holders that were created since.
    pub(crate) fn received(&self, listener: BorrowedFd<'_>) -> Result<()> {
        let has_it: Vec<Pid> = self.sockets.iter().flatten().map(|(pid, _)| *pid).collect();
        self.inner.hold(listener, self.broken.as_fd(), &has_it)
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a listener, and sends the listener to all holders, except the holders `has_it`.
    fn hold(&self, listener: BorrowedFd<'_>, broken: BorrowedFd<'_>, has_it: &[Pid]) -> Result<()> {
        let mut state = self.state();
        state.held.retain(|(listener, _)| !is_unused(listener.as_fd()));
        self.repair(&mut state)?;
        for holder in state.holders.iter().flatten().filter(|holder| !has_it.contains(&holder.pid)) {
            // An error means that the holder has died. Its successor receives the listener.
            let _ = holder.send(listener, broken);
        }
        state.held.push((duplicate(listener)?, duplicate(broken)?));
        Ok(())
    }

    /// Replaces dead holders. Fails only if no holder lives afterwards.
    fn repair(&self, state: &mut State) -> Result<()> {
        let mut outcome = Ok(());
        for (index, name) in NAMES.into_iter().enumerate() {
            if let Some(dead) = state.holders[index].take_if(|holder| ends_within(holder.handle.as_fd(), 0)) {
                reap(dead.pid);
            }
            if state.holders[index].is_some() {
                continue;
            }
            let elder = state.holders[HOLDERS - 1 - index].as_ref().map(|holder| holder.handle.as_fd());
            match self.create(name, elder) {
                Ok(holder) => {
                    state.held.retain(|(listener, _)| !is_unused(listener.as_fd()));
                    for (listener, broken) in &state.held {
                        let _ = holder.send(listener.as_fd(), broken.as_fd());
                    }
                    state.holders[index] = Some(holder);
                }
                Err(error) => outcome = Err(error),
            }
        }
        if state.holders.iter().any(Option::is_some) { Ok(()) } else { outcome }
    }

    /// Creates a holder with this name. `elder` is a pidfd of the other holder, if the other holder lives.
    fn create(&self, name: &'static CStr, elder: Option<BorrowedFd<'_>>) -> Result<Holder> {
        let (socket, remote) = socket::pair(libc::SOCK_SEQPACKET)?;
        let own = pidfd::open(Pid(std::process::id() as i32))?;
        let kept = process::Inherited {
            guardian: own.as_raw_fd(),
            elder: elder.map(|elder| elder.as_raw_fd()),
            socket: remote.as_raw_fd(),
            name,
        };
        let pid = (self.record)(&|| {
            let unanswered = self.shared.unanswered();
            self.shared.inherit(true);
            // SAFETY: a holder makes only system calls, and allocates nothing.
            let created =
                unsafe { clone::create(&CloneArguments::default(), || process::run(kept, unanswered)) };
            self.shared.inherit(false);
            created.map_err(|errno| Error::new("create the holder of listeners", errno))
        })?;
        Ok(Holder { pid, handle: pidfd::open(pid)?, socket })
    }

    /// Replaces holders that die, until the other end of `end` is closed.
    fn replace_dead(&self, end: BorrowedFd<'_>) {
        loop {
            let state = self.state();
            let mut waits = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; HOLDERS + 1];
            waits[HOLDERS].fd = end.as_raw_fd();
            let mut is_complete = true;
            let mut handles = [const { None }; HOLDERS];
            for ((wait, handle), holder) in waits.iter_mut().zip(&mut handles).zip(&state.holders) {
                // `hold` can replace a holder and close its pidfd during the wait.
                *handle = holder.as_ref().and_then(|holder| duplicate(holder.handle.as_fd()).ok());
                is_complete &= handle.is_some();
                wait.fd = handle.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            }
            drop(state);
            let limit = if is_complete { -1 } else { RETRY_MS };
            // SAFETY: the kernel reads and writes the structures of the live array.
            unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, limit) };
            if waits[HOLDERS].revents != 0 {
                return;
            }
            // After an error, the next turn of the loop tries again.
            let mut state = self.state();
            if self.repair(&mut state).is_err() {
                drop(state);
                std::thread::sleep(Duration::from_millis(RETRY_MS as u64));
            }
        }
    }
}

impl Holder {
    fn send(&self, listener: BorrowedFd<'_>, broken: BorrowedFd<'_>) -> Result<()> {
        send_descriptors(self.socket.as_fd(), &[listener.as_raw_fd(), broken.as_raw_fd()])
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|error| Error::new("duplicate a descriptor for a holder", error))
}

/// Reserves blocks of the file, so that a holder can append the line on a full file system.
fn reserve(broken: BorrowedFd<'_>) {
    // SAFETY: the call takes plain numbers. If the file system cannot reserve blocks, the line is written
    // only if there is space.
    unsafe { libc::fallocate(broken.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) };
}

impl Drop for ListenerHolder {
    fn drop(&mut self) {
        if let Some((thread, end)) = self.thread.take() {
            drop(end);
            let _ = thread.join();
        }
        // The message without descriptors dismisses a holder. If no task uses a held listener's filter, the
        // holder exits and does not append the line. Otherwise the holder stays, and lets the calls of the
        // subject continue after the end of this process.
        let state = self.inner.state();
        let asked = |holder: &Holder| send_descriptors(holder.socket.as_fd(), &[]);
        let outcomes =
            state.holders.iter().flatten().map(|holder| (holder, asked(holder))).collect::<Vec<_>>();
        for (holder, asked) in outcomes {
            if asked.is_err() || ends_within(holder.handle.as_fd(), EXIT_LIMIT_MS) {
                reap(holder.pid);
            }
        }
    }
}

/// Reaps a holder that has ended.
fn reap(holder: Pid) {
    // SAFETY: the call takes plain numbers and does not wait. The holder is a child of this process,
    // so its pid is not reused before the holder is reaped here.
    unsafe { libc::waitpid(holder.get(), ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
}

/// Reports whether no task uses the filter of a listener.
fn is_unused(listener: BorrowedFd<'_>) -> bool {
    let mut wait = libc::pollfd { fd: listener.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the kernel reads and writes one live pollfd.
    unsafe { libc::poll(&raw mut wait, 1, 0) == 1 && wait.revents & libc::POLLHUP != 0 }
}

/// Reports whether a process ends within a time limit. `process` is a pidfd.
fn ends_within(process: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut wait = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one live pollfd.
    unsafe { libc::poll(&raw mut wait, 1, milliseconds) == 1 }
}
