//! POSIX message queues.
//!
//! Owns: opening, creating and removing queues by name, their attributes, and sending and receiving messages.
//! Invariants: no call waits. A queue that is full or empty is reported as EAGAIN.
//! Does not: register notifications, which belong to one process.
//!
//! Man page: mq_overview(7)
//! Since: Linux 2.6.6
//! Probe: none; without support, the calls fail with ENOSYS
//! Fallback: none; the restore reports the failure

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Errno, Error, Result, done, owned};

/// The access modes of a queue: O_RDONLY, O_WRONLY or O_RDWR.
const ACCESS: i32 = libc::O_ACCMODE;
const ALWAYS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// The attributes of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Maximum number of messages.
    pub messages_max: i64,
    /// Maximum length of a message in bytes.
    pub message_bytes: i64,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The priority, at most 32,767.
    pub priority: u32,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Opens an existing queue. `name` has no slash. `flags` contains the access mode.
///
/// # Errors
///
/// The errors of mq_open(3), for example ENOENT if no queue has this name.
pub fn open(name: &[u8], flags: i32) -> Result<OwnedFd> {
    let path = path(name)?;
    // SAFETY: the path is a string that outlives the call. The call creates a descriptor, which has no other owner.
    let queue = unsafe { owned(libc::mq_open(path.as_ptr(), (flags & ACCESS) | ALWAYS)) };
    queue.map_err(|errno| failed("open", name, errno))
}

/// Creates a queue for reading and writing. `name` has no slash. The mode of the queue is 0600.
///
/// # Errors
///
/// The errors of mq_open(3), for example EEXIST if a queue has this name.
pub fn create(name: &[u8], attributes: Attributes) -> Result<OwnedFd> {
    let path = path(name)?;
    // SAFETY: the structure contains only integers, for which zero is valid.
    let mut raw: libc::mq_attr = unsafe { std::mem::zeroed() };
    raw.mq_maxmsg = attributes.messages_max;
    raw.mq_msgsize = attributes.message_bytes;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | ALWAYS;
    // SAFETY: path and attributes outlive the call, and the mode is an integer. The call creates a descriptor, which has
    // no other owner.
    let queue = unsafe { owned(libc::mq_open(path.as_ptr(), flags, 0o600, &raw const raw)) };
    queue.map_err(|errno| failed("create", name, errno))
}

/// Removes the name of a queue.
pub fn unlink(name: &[u8]) -> Result<()> {
    let path = path(name)?;
    // SAFETY: the path is a string that outlives the call.
    Errno::check(unsafe { libc::mq_unlink(path.as_ptr()) })
        .map(drop)
        .map_err(|errno| failed("unlink", name, errno))
}

/// Returns the attributes of a queue, and the number of messages that wait in it.
pub fn attributes(queue: BorrowedFd<'_>) -> Result<(Attributes, u64)> {
    // SAFETY: the structure contains only integers, for which zero is valid.
    let mut raw: libc::mq_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `struct mq_attr` to `raw`.
    Errno::check(unsafe { libc::mq_getattr(queue.as_raw_fd(), &raw mut raw) })
        .map_err(|errno| Error::new("read the attributes of a message queue", errno))?;
    let attributes = Attributes { messages_max: raw.mq_maxmsg, message_bytes: raw.mq_msgsize };
    Ok((attributes, raw.mq_curmsgs as u64))
}

/// Removes the oldest message of the highest priority from a queue. `buffer` is at least as long as the longest message
/// of the queue. Returns `None` if the queue is empty.
pub fn receive(queue: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<Message>> {
    let mut priority = 0;
    // The time lies in the past, so that the call does not wait if the description has no O_NONBLOCK.
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer, and one priority.
    let length = unsafe {
        libc::mq_timedreceive(
            queue.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut priority,
            &raw const never,
        )
    };
    match usize::try_from(length) {
        Ok(length) => Ok(Some(Message { priority, bytes: buffer[..length].to_vec() })),
        Err(_) => match Errno::last() {
            Errno::EAGAIN | Errno::ETIMEDOUT => Ok(None),
            errno => Err(Error::new("receive from a message queue", errno)),
        },
    }
}

/// Adds a message to a queue, behind the messages of the same priority.
///
/// # Errors
///
/// The errors of mq_send(3): EAGAIN or ETIMEDOUT if the queue is full.
pub fn send(queue: BorrowedFd<'_>, message: &Message) -> Result<()> {
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads `bytes.len()` bytes of the message, and one time.
    let result = unsafe {
        libc::mq_timedsend(
            queue.as_raw_fd(),
            message.bytes.as_ptr().cast(),
            message.bytes.len(),
            message.priority,
            &raw const never,
        )
    };
    done("send to a message queue", result).map(drop)
}

fn path(name: &[u8]) -> Result<CString> {
    let with_slash = [b"/", name].concat();
    CString::new(with_slash).map_err(|_| failed("open", name, Errno::EINVAL))
}

fn failed(operation: &str, name: &[u8], errno: Errno) -> Error {
    Error::new(format!("{operation} the message queue /{}", String::from_utf8_lossy(name)), errno)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_are_received_by_priority_and_age() {
        let name = format!("undying-test-{}", std::process::id());
        let attributes_wanted = Attributes { messages_max: 3, message_bytes: 16 };
        let queue = match create(name.as_bytes(), attributes_wanted) {
            Err(error) if error.errno == Errno::ENOSYS => return println!("unsupported: {error}"),
            queue => queue.unwrap(),
        };
        let again = open(name.as_bytes(), libc::O_WRONLY);
        unlink(name.as_bytes()).unwrap();
        let message = |priority, text: &str| Message { priority, bytes: text.as_bytes().to_vec() };
        for (priority, text) in [(1, "low"), (7, "first"), (7, "second")] {
            send(again.as_ref().unwrap().as_fd(), &message(priority, text)).unwrap();
        }
        assert!(send(queue.as_fd(), &message(0, "full")).is_err());
        assert_eq!(attributes(queue.as_fd()).unwrap(), (attributes_wanted, 3));
        let mut buffer = [0; 16];
        let mut next = || receive(queue.as_fd(), &mut buffer).unwrap();
        assert_eq!(next(), Some(message(7, "first")));
        assert_eq!(next(), Some(message(7, "second")));
        assert_eq!(next(), Some(message(1, "low")));
        assert_eq!(next(), None);
        assert_eq!(open(name.as_bytes(), libc::O_RDONLY).unwrap_err().errno, Errno::ENOENT);
    }
}
