//! Starts a program under a seccomp filter, and receives the listener of the filter before the program runs.
//!
//! Owns: the transfer of the listener from the child to this process and to the listener holder, before the child
//! executes the program. The holder is a process that lets calls continue after the death of this process.
//! Invariants: the program inherits no additional descriptor.
//! Does not: receive calls.
//!
//! Man page: seccomp_unotify(2), unix(7) SCM_RIGHTS
//! Since: Linux 5.0
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the program runs unwatched

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use crate::error::{Errno, Error, Result};
use crate::fd_passing::{receive_descriptors, send_descriptors};
use crate::listener_holder::{HolderSockets, ListenerHolder};
use crate::seccomp_listener::{FilterProgram, Listener, install};
use crate::socket;

/// The receiving end for the listener of a program that is being started.
#[derive(Debug)]
pub struct PendingListener {
    from: OwnedFd,
    holders: Option<Arc<HolderSockets>>,
}

/// Makes the child of a command install the filter right before the child executes the program. The child sends the
/// listener to this process. If there is a holder, the child first sends the holder the listener and the file that
/// the holder marks as broken.
///
/// The first reported call of the program waits until the listener is served. The program inherits no additional
/// descriptor.
///
/// # Errors
///
/// Fails if the pair of sockets or a duplicate descriptor cannot be created. `Command::spawn` returns the errors of
/// the child.
pub fn watch_from_start(
    command: &mut Command,
    program: FilterProgram,
    holder: Option<(&ListenerHolder, BorrowedFd<'_>)>,
) -> Result<PendingListener> {
    let (from, to) = socket::pair(libc::SOCK_SEQPACKET)?;
    let holders = holder.map(|(holder, broken)| holder.sockets(broken)).transpose()?.map(Arc::new);
    let of_child = holders.clone();
    let prepare = move || {
        let raw = |error: Error| std::io::Error::from_raw_os_error(error.errno.0);
        let listener = install(&program).map_err(raw)?;
        // The holders get the listener first. From then on, the death of the parent process does not harm a call.
        if let Some(holders) = &of_child {
            holders.send(listener.as_fd()).map_err(raw)?;
        }
        send_descriptors(to.as_fd(), &[listener.as_raw_fd()]).map_err(raw)
    };
    // SAFETY: between fork and exec, the closure makes system calls only. The closure takes no lock and allocates
    // nothing. Dropping the listener closes one descriptor.
    unsafe { command.pre_exec(prepare) };
    Ok(PendingListener { from, holders })
}

impl PendingListener {
    /// Receives the listener of a program that `Command::spawn` has started.
    ///
    /// # Errors
    ///
    /// EAGAIN if the filter was not installed.
    pub fn receive(self) -> Result<Listener> {
        let [listener, _] = receive_descriptors(self.from.as_fd(), libc::MSG_DONTWAIT)?;
        let listener = listener.ok_or_else(|| Error::new("receive a listener", Errno::SHORT))?;
        if let Some(holders) = &self.holders {
            holders.received(listener.as_fd())?;
        }
        Listener::new(listener)
    }
}
