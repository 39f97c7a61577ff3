//! Starting a program whose calls are reported from its first one on.
//!
//! Owns: the way of the listener from the child, before it executes the program, to this process and to the holder.
//! Invariants: the program gets no descriptor by this.
//! Does not: receive calls.
//!
//! Man page: seccomp_unotify(2), unix(7) SCM_RIGHTS
//! Since: Linux 5.0
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the program runs unwatched

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Errno, Error, Result};
use crate::fd_passing::{receive_descriptors, send_descriptors};
use crate::listener_holder::{self, ListenerHolder};
use crate::seccomp_listener::{FilterProgram, Listener, install};
use crate::socket;

/// A listener on its way from a program that is being started.
#[derive(Debug)]
pub struct PendingListener {
    from: OwnedFd,
}

/// Has a command install the filter right before it is executed, and hand the listener to this process and, with the
/// file that it marks as broken, to the holder. The first call of the program that is reported waits until the listener
/// is served. The program gets no descriptor by this.
///
/// # Errors
///
/// Why there is no pair of sockets. What fails in the child is the error of `Command::spawn`.
pub fn watch_from_start(
    command: &mut Command,
    program: FilterProgram,
    holder: Option<(&ListenerHolder, BorrowedFd<'_>)>,
) -> Result<PendingListener> {
    let (from, to) = socket::pair(libc::SOCK_SEQPACKET)?;
    let duplicate = |fd: BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(|error| Error::new("duplicate a descriptor for the holder", error))
    };
    let holder = match holder {
        Some((holder, broken)) => {
            listener_holder::reserve(broken);
            Some((duplicate(holder.socket())?, duplicate(broken)?))
        }
        None => None,
    };
    let prepare = move || {
        let raw = |error: Error| std::io::Error::from_raw_os_error(error.errno.0);
        let listener = install(&program).map_err(raw)?;
        // The holder first: from then on, the death of this program's parent harms no call.
        if let Some((socket, broken)) = &holder {
            send_descriptors(socket.as_fd(), &[listener.as_raw_fd(), broken.as_raw_fd()]).map_err(raw)?;
        }
        send_descriptors(to.as_fd(), &[listener.as_raw_fd()]).map_err(raw)
    };
    // SAFETY: between fork and exec it makes system calls only; it takes no lock and allocates nothing. Dropping the
    // listener closes one descriptor.
    unsafe { command.pre_exec(prepare) };
    Ok(PendingListener { from })
}

impl PendingListener {
    /// The listener of a program that `Command::spawn` has started.
    ///
    /// # Errors
    ///
    /// EAGAIN if the filter was not installed.
    pub fn receive(self) -> Result<Listener> {
        let [listener, _] = receive_descriptors(self.from.as_fd(), libc::MSG_DONTWAIT)?;
        Listener::new(listener.ok_or_else(|| Error::new("receive a listener", Errno::SHORT))?)
    }
}
