//! Receives the events of process forks and process ends from the kernel.
//!
//! Owns: the process connector (netlink family NETLINK_CONNECTOR, CN_IDX_PROC) and the layout of its
//! messages.
//! Invariants: events that the kernel could not deliver are reported by an event of their own,
//! [`ProcessEvent::Lost`]. If the kernel accepts a subscription but does not answer the subscription, the
//! subscription counts as refused.
//! Does not: select processes. The events are those of all processes of the machine.
//!
//! Man page: none; include/uapi/linux/cn_proc.h, Documentation/driver-api/connector.rst
//! Since: Linux 2.6.15 (CONFIG_PROC_EVENTS); CAP_NET_ADMIN, the initial PID, user and network namespaces
//! Probe: `features::REGISTRY` entry "process-events"
//! Fallback: none; `run --restart-on child-signal` is refused, and the error names the feature

use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use model::{Pid, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{RecvFlags, SocketFlags, bind, sockopt};

use crate::clock::Deadline;
use crate::error::{Errno, Error, Result};
use crate::netlink::{self, NetlinkSocket};

const NAME: &str = "subscribe to the ends of processes";
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;

/// Length of `nlmsghdr` and `cn_msg`.
const HEADER_BYTES: usize = netlink::HEADER_BYTES + 20;
const NONE: u32 = 0;
const FORK: u32 = 1;
const EXIT: u32 = 0x8000_0000;

/// Maximum length of a message in bytes. The longest message has several hundred bytes.
const MESSAGE_BYTES: usize = 4096;
/// Size of the receive buffer in bytes. The buffer holds tens of thousands of events.
const QUEUE_BYTES: usize = 8 << 20;
/// Maximum time to wait for the answer to a subscription. The kernel answers before the send call returns, so
/// this time is generous.
const ANSWER: Duration = Duration::from_millis(200);

/// An event of a process of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEvent {
    /// A process has created a child process.
    Forked {
        /// The parent of the new process.
        parent: Pid,
        /// The new process.
        child: Pid,
        /// The time of the fork on CLOCK_MONOTONIC. This time is before the new process runs.
        at: Duration,
    },
    /// A signal has killed a thread, and therefore its whole process.
    Killed {
        /// The process.
        pid: Pid,
        /// The signal that killed the process.
        signal: Signal,
        /// The time of the end on CLOCK_MONOTONIC. The parent may have been woken, and may have reaped the
        /// process, before this time.
        at: Duration,
    },
    /// Events were lost, because earlier events were not read in time.
    Lost,
}

/// A subscription to the events of all processes.
#[derive(Debug)]
pub struct ProcessEvents {
    socket: NetlinkSocket,
}

impl ProcessEvents {
    /// Subscribes to the events. Events that happen after this call are delivered.
    pub fn subscribe() -> Result<Self> {
        let socket = NetlinkSocket::open(CONNECTOR, SocketFlags::NONBLOCK, NAME)?;
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC)).map_err(|errno| socket.failed(errno))?;
        // Without CAP_NET_ADMIN, the receive buffer keeps its default size.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES);
        socket.send(&subscription())?;
        let events = Self { socket };
        events.await_answer()?;
        Ok(events)
    }

    /// Returns the socket, which becomes readable when an event arrives.
    #[must_use]
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the next event. Returns `None` if no event has arrived. Does not wait.
    pub fn poll(&self) -> Result<Option<ProcessEvent>> {
        while let Some(message) = self.receive()? {
            if let Some(Message::Event(event)) = message {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn await_answer(&self) -> Result<()> {
        let deadline = Deadline::after(ANSWER);
        loop {
            match self.receive()? {
                Some(Some(Message::Answer(0))) => return Ok(()),
                Some(Some(Message::Answer(errno))) => return Err(Error::new(NAME, Errno(errno))),
                Some(_) => {}
                None => {
                    let left = deadline.left();
                    // The kernel does not answer processes outside the initial PID namespace and the initial
                    // user namespace.
                    if left.is_zero() {
                        return Err(Error::new(NAME, Errno::EPERM));
                    }
                    let mut waiting = [PollFd::from_borrowed_fd(self.handle(), PollFlags::IN)];
                    let left = left.try_into().map_err(|_| Error::new(NAME, Errno::EINVAL))?;
                    match poll(&mut waiting, Some(&left)) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(errno) => return Err(Error::new(NAME, errno)),
                    }
                }
            }
        }
    }

    /// Receives a message, if one has arrived, and parses it.
    fn receive(&self) -> Result<Option<Option<Message>>> {
        let mut bytes = [0; MESSAGE_BYTES];
        match self.socket.receive(&mut bytes, RecvFlags::empty()) {
            Ok(length) => Ok(Some(read(&bytes[..length.min(MESSAGE_BYTES)]))),
            Err(error) if [libc::EAGAIN, libc::EINTR].contains(&error.errno.0) => Ok(None),
            Err(error) if error.errno == Errno(libc::ENOBUFS) => {
                Ok(Some(Some(Message::Event(ProcessEvent::Lost))))
            }
            Err(error) => Err(error),
        }
    }
}

/// A message of the connector that this module uses.
#[derive(Debug)]
enum Message {
    /// The answer to a subscription: an errno, or 0.
    Answer(i32),
    Event(ProcessEvent),
}

fn subscription() -> Vec<u8> {
    let order = PROC_CN_MCAST_LISTEN.to_ne_bytes();
    // The words after the ids are the sequence number, the acknowledgement number and the length of the order.
    let words = [CN_IDX_PROC, CN_VAL_PROC, 0, 0, order.len() as u32].map(u32::to_ne_bytes);
    let mut message = Vec::new();
    netlink::write(&mut message, netlink::DONE, 0, 0, &[words.as_flattened(), &order].concat());
    message
}

/// Returns `None` for any other message.
fn read(bytes: &[u8]) -> Option<Message> {
    let words: Vec<u32> = bytes.chunks_exact(size_of::<u32>()).map(|bytes| netlink::word(bytes, 0)).collect();
    let (header, event) = words.split_at_checked(HEADER_BYTES / size_of::<u32>())?;
    // The fields of the union follow the common fields of all events.
    let [kind, _processor, low, high, fields @ ..] = event else { return None };
    if header[4..6] != [CN_IDX_PROC, CN_VAL_PROC] {
        return None;
    }
    let at = Duration::from_nanos(u64::from(*low) | u64::from(*high) << 32);
    let pid = |field: u32| Pid(field.cast_signed());
    match (*kind, fields) {
        (NONE, [errno, ..]) => Some(Message::Answer(errno.cast_signed())),
        // The fields are: tid and pid of the parent, tid and pid of the child. A new thread has another tid.
        (FORK, [_, parent, thread, child, ..]) if thread == child => {
            let (parent, child) = (pid(*parent), pid(*child));
            Some(Message::Event(ProcessEvent::Forked { parent, child, at }))
        }
        // The fields are: tid, pid, and the status in the format of wait(2).
        (EXIT, [_, dead, status, ..]) if status & 0x7f != 0 => {
            let signal = Signal((status & 0x7f).cast_signed());
            Some(Message::Event(ProcessEvent::Killed { pid: pid(*dead), signal, at }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::clock::monotonic as now;

    fn subscribe() -> Option<ProcessEvents> {
        ProcessEvents::subscribe().map_err(|error| println!("unsupported: process-events: {error}")).ok()
    }

    #[test]
    fn the_start_and_the_end_of_a_child_are_reported() {
        let Some(events) = subscribe() else { return };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        let before = now();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let (mut forked, mut killed) = (false, None);
        // The kernel wakes the parent before the kernel reports the end of the child.
        let deadline = Deadline::after(Duration::from_secs(30));
        while killed.is_none() && !deadline.has_passed() {
            match events.poll().unwrap() {
                Some(ProcessEvent::Forked { parent, child, at }) if child == pid => {
                    forked = parent == Pid(std::process::id() as i32) && at <= before;
                }
                Some(ProcessEvent::Killed { pid: dead, signal, at }) if dead == pid => {
                    killed = Some((signal, at));
                }
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
        assert!(forked, "its start was not reported");
        let (signal, at) = killed.expect("its end is reported");
        assert_eq!(signal, Signal(9));
        assert!((before..=now()).contains(&at), "{at:?} is not between {before:?} and now");
    }

    #[test]
    fn a_message_that_is_cut_short_is_none() {
        let mut message = subscription();
        message.resize(HEADER_BYTES, 0);
        message.extend(EXIT.to_ne_bytes());
        assert!(read(&message).is_none());
    }
}
