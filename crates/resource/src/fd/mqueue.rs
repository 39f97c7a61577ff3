//! Saves and restores descriptors of POSIX message queues, described in mq_overview(7): the descriptor kind `fd/mqueue`.
//!
//! Owns: name, attributes, owner and mode of a queue, and the messages of a queue without a name.
//! Invariants: a queue with a name belongs to the kernel, as a System V message queue does. A restore opens it with its
//! present messages, and creates it only if it was empty at the checkpoint. A queue without a name ends with the
//! program. Its messages can be read only by removing them, so they are saved only if the program ends after the
//! checkpoint. If it does not end, they are put back in their order.
//! Does not: save registrations of mq_notify(3), because the kernel does not show the value that the signal carries.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use model::Pid;
use prost::Message;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use sys::message_queue::{self as queue, Attributes};
use sys::{Errno, Error};

use super::description::{Description, GONE, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::file_system::is_message_queue;
use crate::support::opening::{flags_for, is_path_only, reader, reopen};
use crate::support::outside;
use crate::support::ownership::owner;

const NAME: &str = "fd/mqueue";
const WHAT: &str = "POSIX message queue";
const PERMISSIONS: u32 = 0o7777;
/// Maximum length of the name of a queue, without the slash.
const NAME_BYTES_MAX: usize = 255;
/// Size of the text that a read of a queue returns.
const TEXT_BYTES: usize = 128;

const HAS_MESSAGES: (&str, &str) = (
    "its name was removed, so it ends with the program, and its messages can be read only by removing them",
    "retry when the program has received the messages, or take the checkpoint with --kill, which saves them",
);
const HAS_REGISTRATION: (&str, &str) = (
    "the program waits for a notification (mq_notify), and the kernel does not show the value that it carries",
    "let the program wait with poll(2) or mq_timedreceive(3) instead, or retry after the notification",
);

/// Descriptor kind ([`FdKind`]) of POSIX message queues.
#[derive(Debug)]
pub struct Mqueue;

#[derive(Clone, PartialEq, Message)]
struct Queue {
    /// The name without the slash. A queue without a name has its former name.
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bool, tag = "2")]
    is_unlinked: bool,
    #[prost(uint64, tag = "3")]
    device: u64,
    #[prost(uint64, tag = "4")]
    inode: u64,
    #[prost(int64, tag = "5")]
    messages_max: i64,
    #[prost(int64, tag = "6")]
    message_bytes: i64,
    #[prost(uint32, tag = "7")]
    mode: u32,
    #[prost(uint32, tag = "8")]
    user: u32,
    #[prost(uint32, tag = "9")]
    group: u32,
    /// Number of messages at the checkpoint.
    #[prost(uint64, tag = "10")]
    waiting: u64,
    /// The messages of a queue without a name, in the order in which they are received. Only the record of one
    /// description of the queue contains them.
    #[prost(message, repeated, tag = "11")]
    messages: Vec<Waiting>,
}

#[derive(Clone, PartialEq, Message)]
struct Waiting {
    #[prost(uint32, tag = "1")]
    priority: u32,
    #[prost(bytes = "vec", tag = "2")]
    bytes: Vec<u8>,
}

impl FdKind for Mqueue {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<Queue>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::RegularFile
            && is_message_queue(description)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let obstacle = |(why, fix): (&str, &str)| vec![description.obstacle(WHAT, why, fix)];
        if is_path_only(description.info.flags) {
            return obstacle((
                "a descriptor with O_PATH is not supported for queues",
                "let the program close the descriptor",
            ));
        }
        let (state, notified) = match inspect(description) {
            Ok(found) => found,
            Err(error) => return obstacle((&error.to_string(), "run undying as the owner of the queue")),
        };
        if notified.is_some_and(|pid| scope.pids.contains(&pid)) {
            return obstacle(HAS_REGISTRATION);
        }
        if !state.is_unlinked {
            return Vec::new();
        }
        if let Some(other) = outside::holder_of_file(scope, &description.stat) {
            let other = outside::describe(Some(other));
            let why = format!("its name was removed, and {other} outside the tree has it open, too");
            return obstacle((&why, "let the program keep the name of the queue, or end the other process"));
        }
        if state.waiting > 0 && !scope.kills { obstacle(HAS_MESSAGES) } else { Vec::new() }
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let first = scope.of_file(description.file()).next();
        let is_first = first.is_some_and(|first| first.id == description.id);
        Ok(Box::new(Capture { takes: scope.kills, is_first, notified: None, state: Queue::default() }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: Queue = crate::error::decode(NAME, payload)?;
        let is_name = (1..=NAME_BYTES_MAX).contains(&state.name.len()) && !state.name.contains(&b'/');
        if is_name { Ok(()) } else { Err(ResourceError::malformed(NAME, "the name of the queue is invalid")) }
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        Queue::decode(payload).ok().map(|state| state.shown())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut queues: HashMap<(u64, u64), Vec<(&FdRecord, Queue)>> = HashMap::new();
        for record in records {
            let state: Queue = crate::error::decode(NAME, &record.payload)?;
            queues.entry((state.device, state.inode)).or_default().push((record, state));
        }
        queues.into_values().try_for_each(|ends| create(&ends, context))
    }
}

#[derive(Debug)]
struct Capture {
    /// Set when the program is killed after the checkpoint.
    takes: bool,
    /// Set for one description of a queue, whose record contains the messages.
    is_first: bool,
    /// The process that has registered for a notification.
    notified: Option<Pid>,
    state: Queue,
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        (self.state, self.notified) = inspect(description)?;
        if self.state.is_unlinked && self.state.waiting > 0 {
            if !self.takes {
                return Err(refused(description, HAS_MESSAGES));
            }
            if self.notified.is_some() {
                // If the checkpoint fails, putting back the messages would cause a notification.
                return Err(refused(description, HAS_REGISTRATION));
            }
            if self.is_first {
                return self.take_messages(description);
            }
        }
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        match self.notified {
            Some(pid) if scope.pids.contains(&pid) => Err(refused(description, HAS_REGISTRATION)),
            _ => Ok(()),
        }
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(self.state.encode_to_vec())
    }

    fn release(&mut self, description: &Description) {
        let taken = std::mem::take(&mut self.state.messages);
        if !taken.is_empty()
            && let Ok(file) = reopen(description, OFlags::WRONLY | OFlags::CLOEXEC)
        {
            // The queue has just contained these messages, and no other process can send to it.
            let _ = put(&file, &taken);
        }
    }
}

impl Capture {
    /// Removes all messages, which `release` puts back.
    fn take_messages(&mut self, description: &Description) -> Result<()> {
        let file = reopen(description, OFlags::RDONLY | OFlags::CLOEXEC)?;
        let mut buffer = vec![0; usize::try_from(self.state.message_bytes).unwrap_or_default()];
        while let Some(message) = queue::receive(file.as_fd(), &mut buffer)? {
            self.state.messages.push(Waiting { priority: message.priority, bytes: message.bytes });
        }
        Ok(())
    }
}

/// Returns the state of a queue without its messages, and the process that has registered for a notification.
fn inspect(description: &Description) -> Result<(Queue, Option<Pid>)> {
    // The duplicate may be an O_PATH descriptor or write-only.
    let file = reader(description.as_fd())?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::new("inspect a message queue", errno))?;
    let (attributes, waiting) = queue::attributes(file.as_fd())?;
    let mut text = [0; TEXT_BYTES];
    let length = rustix::io::pread(&file, &mut text, 0)
        .map_err(|errno| Error::new("read the state of a message queue", errno))?;
    let is_unlinked = stat.st_nlink == 0;
    let state = Queue {
        name: name_of(description, is_unlinked),
        is_unlinked,
        device: stat.st_dev,
        inode: stat.st_ino,
        messages_max: attributes.messages_max,
        message_bytes: attributes.message_bytes,
        mode: stat.st_mode & PERMISSIONS,
        user: stat.st_uid,
        group: stat.st_gid,
        waiting,
        messages: Vec::new(),
    };
    Ok((state, notified(&text[..length])))
}

/// Returns the name of a queue without the slash. The queue may also have been opened through a mount of its file system.
fn name_of(description: &Known, is_unlinked: bool) -> Vec<u8> {
    let target = description.info.target.as_os_str().as_bytes();
    let name = target.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let without_mark = name.strip_suffix(GONE.as_bytes()).filter(|_| is_unlinked);
    without_mark.unwrap_or(name).to_vec()
}

/// Returns the process that has registered for a notification, from a text like
/// `QSIZE:129 NOTIFY:2 SIGNO:0 NOTIFY_PID:8260`.
fn notified(text: &[u8]) -> Option<Pid> {
    let text = std::str::from_utf8(text).ok()?;
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("NOTIFY_PID:"))?;
    word.parse().ok().filter(|pid| *pid != 0).map(Pid)
}

fn refused(description: &Known, (why, fix): (&str, &str)) -> ResourceError {
    description.obstacle(WHAT, why, fix).into()
}

/// Restores all descriptions of one queue.
fn create(ends: &[(&FdRecord, Queue)], context: &mut FdCreate<'_>) -> Result<()> {
    let Some((_, state)) = ends.first() else { return Ok(()) };
    let own = match existing(state)? {
        Some(found) => Some(found).filter(|found| state.is(found)),
        None => {
            let made = make(state, context)?;
            let put_all = |end: &(_, Queue)| put(&made, &end.1.messages);
            ends.iter().try_for_each(put_all).map_err(|error| state.failed(&error))?;
            Some(made)
        }
    };
    for (record, state) in ends {
        let file = match &own {
            Some(own) => reopen(own, flags_for(record.flags))?,
            None => other(state, record)?,
        };
        context.created.insert(record.id, file);
    }
    Ok(())
}

/// Opens the queue that has the name of a recorded queue, with the rights of the restoring process.
fn existing(state: &Queue) -> Result<Option<OwnedFd>> {
    if state.is_unlinked {
        return Ok(None);
    }
    match queue::open(&state.name, OFlags::RDONLY.bits() as i32) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens another queue with the recorded name, with the rights of the holders.
fn other(state: &Queue, record: &FdRecord) -> Result<OwnedFd> {
    let opened = record.opener.run(|| queue::open(&state.name, record.flags as i32))?;
    let file = opened.map_err(|error| state.failed(&error))?;
    if queue::attributes(file.as_fd())?.0 == state.attributes() {
        return Ok(file);
    }
    Err(state.refusal(
        "another queue with other attributes has this name now".to_owned(),
        "remove that queue with mq_unlink(3), then restore again",
    ))
}

/// Creates a queue with the recorded attributes, owner and mode.
fn make(state: &Queue, context: &mut FdCreate<'_>) -> Result<OwnedFd> {
    if !state.is_unlinked && state.waiting > 0 {
        return Err(state.refusal(
            format!("it had {} messages at the checkpoint, and does not exist now", state.waiting),
            "use a checkpoint at which the queue was empty, or create the queue with its messages again",
        ));
    }
    let name = if state.is_unlinked { private_name() } else { state.name.clone() };
    let made = queue::create(&name, state.attributes()).map_err(|error| state.failed(&error))?;
    if state.is_unlinked {
        queue::unlink(&name)?;
    } else {
        context.shared.queues.add(name);
    }
    set_owner(&made, state)?;
    Ok(made)
}

fn set_owner(made: &OwnedFd, state: &Queue) -> Result<()> {
    let now = rustix::fs::fstat(made).map_err(|errno| Error::new("inspect a message queue", errno))?;
    if (now.st_uid, now.st_gid) != (state.user, state.group) {
        let (user, group) = owner(state.user, state.group)?;
        rustix::fs::fchown(made, Some(user), Some(group))
            .map_err(|errno| Error::new("set the owner of a message queue", errno))?;
    }
    rustix::fs::fchmod(made, Mode::from_raw_mode(state.mode))
        .map_err(|errno| Error::new("set the mode of a message queue", errno))?;
    Ok(())
}

/// Sends messages in the given order, which is the order in which they are received.
fn put(file: &OwnedFd, messages: &[Waiting]) -> sys::Result<()> {
    messages.iter().try_for_each(|message| {
        let message = queue::Message { priority: message.priority, bytes: message.bytes.clone() };
        queue::send(file.as_fd(), &message)
    })
}

/// Returns a name that no queue has.
fn private_name() -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("undying-{}-{number}", std::process::id()).into_bytes()
}

impl Queue {
    fn attributes(&self) -> Attributes {
        Attributes { messages_max: self.messages_max, message_bytes: self.message_bytes }
    }

    /// Reports whether a file is the recorded queue.
    fn is(&self, found: &OwnedFd) -> bool {
        let is_same = |stat: Stat| {
            (stat.st_dev, stat.st_ino, stat.st_uid, stat.st_gid)
                == (self.device, self.inode, self.user, self.group)
        };
        rustix::fs::fstat(found).is_ok_and(is_same)
            && queue::attributes(found.as_fd()).is_ok_and(|(attributes, _)| attributes == self.attributes())
    }

    fn shown(&self) -> String {
        format!("/{}", String::from_utf8_lossy(&self.name))
    }

    fn refusal(&self, why: String, fix: &str) -> ResourceError {
        ResourceError::File { path: format!("message queue {}", self.shown()), why, fix: fix.to_owned() }
    }

    fn failed(&self, error: &Error) -> ResourceError {
        self.refusal(
            error.to_string(),
            "raise `ulimit -q` or the limits in /proc/sys/fs/mqueue, or permit the program's user to open the queue",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::kind_of;
    use crate::support::testing::{Subject, describe, flags};

    const SMALL: Attributes = Attributes { messages_max: 4, message_bytes: 32 };

    fn name(test: &str) -> Vec<u8> {
        format!("undying-{test}-{}", std::process::id()).into_bytes()
    }

    fn message(priority: u32, text: &str) -> queue::Message {
        queue::Message { priority, bytes: text.as_bytes().to_vec() }
    }

    fn received(file: &OwnedFd) -> Vec<queue::Message> {
        let mut buffer = [0; 32];
        std::iter::from_fn(|| queue::receive(file.as_fd(), &mut buffer).unwrap()).collect()
    }

    #[test]
    fn a_queue_with_a_name_is_the_same_queue_with_its_messages() {
        let name = name("named");
        let original = queue::create(&name, SMALL).unwrap();
        let writer = queue::open(&name, OFlags::WRONLY.bits() as i32).unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::WRONLY).unwrap();
        queue::send(writer.as_fd(), &message(2, "text")).unwrap();
        let subject = Subject::new(&[&original, &writer]);
        assert_eq!(kind_of(&subject.descriptions[0]).unwrap().name(), NAME);
        let built = subject.round_trip(&Mqueue);
        queue::unlink(&name).unwrap();
        let built = built.unwrap();
        // mq_open(3) leaves O_CLOEXEC in the status flags, and open(2) does not.
        let status = |file: &OwnedFd| flags(file) & !OFlags::CLOEXEC.bits();
        assert_eq!((status(&built[0]), status(&built[1])), (status(&original), status(&writer)));
        queue::send(built[1].as_fd(), &message(9, "later")).unwrap();
        assert_eq!(received(&original), [message(9, "later"), message(2, "text")]);
    }

    #[test]
    fn a_missing_queue_is_created_if_it_was_empty() {
        let name = name("missing");
        let original = queue::create(&name, SMALL).unwrap();
        let owner = rustix::fs::fstat(&original).map(|stat| (stat.st_uid, stat.st_gid)).unwrap();
        rustix::fs::fchmod(&original, Mode::from_raw_mode(0o640)).unwrap();
        let subject = Subject::new(&[&original]);
        let empty = subject.capture(&Mqueue, || {}).unwrap();
        queue::send(original.as_fd(), &message(1, "text")).unwrap();
        let full = subject.capture(&Mqueue, || queue::unlink(&name).unwrap()).unwrap();
        let refused = subject.build(&Mqueue, &full, &[]).unwrap_err();
        assert!(refused.to_string().contains("had 1 messages"), "{refused}");
        let built = subject.build(&Mqueue, &empty, &[]).unwrap();
        let stat = rustix::fs::fstat(&built[0]).unwrap();
        queue::unlink(&name).unwrap();
        assert_eq!((stat.st_mode & PERMISSIONS, (stat.st_uid, stat.st_gid)), (0o640, owner));
        assert_eq!(queue::attributes(built[0].as_fd()).unwrap(), (SMALL, 0));
    }

    #[test]
    fn messages_of_a_queue_without_a_name_are_saved_only_before_a_kill() {
        let name = name("unlinked");
        let original = queue::create(&name, SMALL).unwrap();
        queue::unlink(&name).unwrap();
        let sent = [message(7, "first"), message(7, "second"), message(0, "last")];
        sent.iter().for_each(|one| queue::send(original.as_fd(), one).unwrap());
        let mut subject = Subject::new(&[&original, &reopen(&original, OFlags::RDWR).unwrap()]);
        assert_eq!(subject.obstacles(&Mqueue).len(), 2);
        assert!(subject.capture(&Mqueue, || {}).is_err());
        subject.kills = true;
        let built = subject.round_trip(&Mqueue).unwrap();
        assert_eq!(received(&built[1]), sent);
        assert_eq!(received(&original), []);
    }

    #[test]
    fn a_checkpoint_that_failed_puts_the_messages_back() {
        let name = name("released");
        let original = queue::create(&name, SMALL).unwrap();
        queue::unlink(&name).unwrap();
        let sent = [message(7, "first"), message(0, "last")];
        sent.iter().for_each(|one| queue::send(original.as_fd(), one).unwrap());
        let mut subject = Subject::new(&[&original]);
        subject.kills = true;
        let mut capture = Mqueue.prepare(&subject.descriptions[0], &subject.scope()).unwrap();
        capture.inside(&subject.descriptions[0]).unwrap();
        assert_eq!(queue::attributes(original.as_fd()).unwrap().1, 0);
        capture.release(&subject.descriptions[0]);
        assert_eq!(received(&original), sent);
    }

    #[test]
    fn a_notification_is_found_in_the_text_of_a_queue() {
        let text = b"QSIZE:129        NOTIFY:0     SIGNO:10    NOTIFY_PID:8260  \n";
        assert_eq!(notified(text), Some(Pid(8260)));
        assert_eq!(notified(b"QSIZE:0          NOTIFY:0     SIGNO:0     NOTIFY_PID:0     \n"), None);
    }

    #[test]
    fn a_queue_whose_name_ends_with_the_mark_of_removed_files_keeps_its_name() {
        let name = [name("mark"), GONE.as_bytes().to_vec()].concat();
        let original = queue::create(&name, SMALL).unwrap();
        let (state, _) = inspect(&describe(0, &original)).unwrap();
        queue::unlink(&name).unwrap();
        let (unlinked, _) = inspect(&describe(0, &original)).unwrap();
        assert_eq!((&state.name, state.is_unlinked), (&name, false));
        assert_eq!((&unlinked.name, unlinked.is_unlinked), (&name, true));
    }
}
