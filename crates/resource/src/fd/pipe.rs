//! Saves and restores pipes without a name (pipe(2)): the descriptor kind `fd/pipe`.
//!
//! Owns: the ends and the content of a pipe, and creating the ends together.
//! Invariants: content is copied without consuming it, once per pipe. If all processes have closed an end, the end
//! stays closed (end of file, SIGPIPE). If only a process outside the subject holds the other end, the checkpoint is
//! refused, except when the restoring process will inherit this pipe.
//! Does not: detect later changes of pages that vmsplice(2) has put into the pipe.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::pipe::PipeFlags;
use sys::Error;

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::inherited::Inherited;
use crate::support::opening::{access_mode, flags_for, is_path_only, may_read, may_write, reopen};
use crate::support::path::other_holder;
use crate::support::pipe_queue::{self, Chunk, QueueCopy, QueueError};

const NAME: &str = "fd/pipe";
const O_DIRECT: u32 = 0o40_000;
/// The names of the two ends in an error message.
const READING: &str = "reading";
const WRITING: &str = "writing";

/// The payload: one end of a pipe as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct PipePayload {
    #[prost(uint64, tag = "1")]
    device: u64,
    #[prost(uint64, tag = "2")]
    inode: u64,
    /// Capacity of the pipe in bytes.
    #[prost(uint64, tag = "3")]
    capacity: u64,
    /// Unread content. Only the record of one readable end contains the content.
    #[prost(message, repeated, tag = "4")]
    chunks: Vec<Chunk>,
    /// Set when the restoring process inherits this pipe.
    #[prost(bool, tag = "5")]
    inherited: bool,
}

/// Descriptor kind ([`FdKind`]) of pipes without a name.
#[derive(Clone, Copy, Debug)]
pub struct Pipe;

impl FdKind for Pipe {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<PipePayload>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Fifo
            && description.target().starts_with("pipe:[")
            && !is_path_only(description.info.flags)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let missing = match missing_end(description, scope) {
            Some(end) if !scope.is_inherited(&description.stat) && !scope.loses_connections => end,
            _ => return Vec::new(),
        };
        let fits = if missing == READING { may_read } else { may_write };
        let holder = other_holder(description, scope, fits);
        vec![description.obstacle(
            "pipe",
            &format!("its {missing} end belongs to {holder}, which is not part of the subject"),
            &format!(
                "if the program does not use the pipe, start it without ({0}>&- in a shell); else checkpoint the \
                 process at the other end with it, start the program with files instead of a pipe, or accept the end of the \
                 pipe with --lose-connections",
                description.fd
            ),
        )]
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let inherited = scope.is_inherited(&description.stat);
        let queue = if is_carrier(description, scope) && !inherited {
            Some(QueueCopy::new(pipe_queue::capacity(&description.duplicate)?)?)
        } else {
            None
        };
        let packets =
            ends(description, scope).any(|end| may_write(end.info.flags) && end.info.flags & O_DIRECT != 0);
        Ok(Box::new(PipeCapture { queue, inherited, packets, capacity: 0 }))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut inherited = Inherited::default();
        let mut pipes: BTreeMap<(u64, u64), PipeEnds> = BTreeMap::new();
        for record in records {
            let payload: PipePayload = crate::error::decode(NAME, &record.payload)?;
            if payload.inherited {
                let inode = Inode(payload.inode);
                let file = inherited.take(context, payload.device, inode, record.flags)?;
                context.created.insert(record.id, file.ok_or_else(|| not_inherited(record.holder))?);
                continue;
            }
            let pipe = pipes.entry((payload.device, payload.inode)).or_default();
            pipe.ends.push((record.id, record.flags));
            pipe.capacity = payload.capacity as usize;
            if !payload.chunks.is_empty() {
                pipe.chunks = payload.chunks;
            }
        }
        pipes.values().try_for_each(|pipe| pipe.create(context))
    }
}

/// Returns the descriptions of the subject that are ends of the same pipe.
fn ends<'a>(
    description: &'a Description,
    scope: &'a CaptureScope<'_>,
) -> impl Iterator<Item = &'a Arc<Known>> {
    scope.of_file(description.file())
}

/// Reports whether this description is the readable end whose record contains the content of the pipe.
pub(super) fn is_carrier(description: &Description, scope: &CaptureScope<'_>) -> bool {
    let first = ends(description, scope).find(|end| may_read(end.info.flags));
    first.is_some_and(|first| first.id == description.id)
}

/// Returns the name of an end that only processes outside the subject hold; `None` without such an end. The function
/// poll(2) shows whether the kernel counts an end: it reports POLLHUP without a writer, and POLLERR without a reader.
fn missing_end(description: &Description, scope: &CaptureScope<'_>) -> Option<&'static str> {
    let mut ends = ends(description, scope);
    let reads = may_read(description.info.flags);
    let writes = may_write(description.info.flags);
    if reads && writes {
        return None;
    }
    let (is_there, closed, name) = if reads {
        (ends.any(|end| may_write(end.info.flags)), PollFlags::HUP, WRITING)
    } else {
        (ends.any(|end| may_read(end.info.flags)), PollFlags::ERR, READING)
    };
    (!is_there && !events(description).intersects(closed)).then_some(name)
}

/// Returns the poll(2) events of a description.
pub(super) fn events(description: &Description) -> PollFlags {
    let mut polled = [PollFd::new(&description.duplicate, PollFlags::IN | PollFlags::OUT)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => polled[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

fn not_inherited(holder: (Pid, Fd)) -> ResourceError {
    ResourceError::Unsupported {
        pid: holder.0,
        what: format!("fd {} (pipe)", holder.1),
        why: "its other end belonged to the process that started undying, and was not inherited here"
            .to_owned(),
        fix: "start the program with files instead of a pipe".to_owned(),
    }
}

#[derive(Debug)]
struct PipeCapture {
    queue: Option<QueueCopy>,
    inherited: bool,
    packets: bool,
    capacity: usize,
}

impl FdCapture for PipeCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.capacity = pipe_queue::capacity(&description.duplicate)?;
        if let Some(queue) = &mut self.queue {
            queue.copy(description.duplicate.as_fd())?;
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let chunks = match &mut self.queue {
            Some(queue) => content(queue, self.packets, description, "pipe")?,
            None => Vec::new(),
        };
        let payload = PipePayload {
            device: description.stat.st_dev,
            inode: description.stat.st_ino,
            capacity: self.capacity as u64,
            chunks,
            inherited: self.inherited,
        };
        Ok(payload.encode_to_vec())
    }
}

/// Returns the content of a queue that was copied in the pause. `what` names the object in an error message.
pub(super) fn content(
    queue: &mut QueueCopy,
    packets: bool,
    description: &Known,
    what: &str,
) -> Result<Vec<Chunk>> {
    queue.take(packets).map_err(|error| match error {
        QueueError::Kernel(error) => error.into(),
        QueueError::Mixed => description
            .obstacle(
                what,
                "it contains packets behind bytes, and the boundary between them is not visible",
                "let the program set O_DIRECT when it creates the pipe, not later",
            )
            .into(),
    })
}

/// One pipe in a restore.
#[derive(Debug, Default)]
struct PipeEnds {
    ends: Vec<(DescriptionId, u32)>,
    capacity: usize,
    chunks: Vec<Chunk>,
}

impl PipeEnds {
    fn create(&self, context: &mut FdCreate<'_>) -> Result<()> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
            .map_err(|errno| Error::new("create a pipe", errno))?;
        if pipe_queue::capacity(&writer)? != self.capacity {
            pipe_queue::set_capacity(&writer, self.capacity)?;
        }
        pipe_queue::fill(writer.as_fd(), &self.chunks)?;
        let (mut reader, mut writer) = (Some(reader), Some(writer));
        let mut late = Vec::new();
        for (id, flags) in &self.ends {
            let made = match access_mode(*flags) {
                OFlags::RDONLY => reader.take(),
                OFlags::WRONLY => writer.take(),
                _ => None,
            };
            match made {
                Some(file) => drop(context.created.insert(*id, file)),
                None => late.push((*id, *flags)),
            }
        }
        for (id, flags) in late {
            let file = {
                let known = self.ends.iter().find_map(|(id, _)| context.created.get(id));
                let any = known.or(reader.as_ref()).or(writer.as_ref());
                reopen(any.expect("both ends were created above"), flags_for(flags) - OFlags::DIRECT)?
            };
            context.created.insert(id, file);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::support::testing::{Subject, flags, ourselves};

    fn pipe(flags: PipeFlags) -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(flags | PipeFlags::CLOEXEC).unwrap()
    }

    fn read(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let count = rustix::io::read(file, &mut bytes[..]).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn content_ends_and_flags_are_restored() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"waiting").unwrap();
        let both = reopen(&reader, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        let second = reopen(&reader, OFlags::WRONLY).unwrap();
        let files = [&writer, &reader, &both, &second];
        let built = Subject::new(&[&writer, &reader, &both, &second]).round_trip(&Pipe).unwrap();
        for (original, again) in files.into_iter().zip(&built) {
            assert_eq!(flags(again), flags(original));
        }
        rustix::io::write(&built[0], b" and more").unwrap();
        rustix::io::write(&built[3], b" and most").unwrap();
        assert_eq!(read(&built[1]), b"waiting and more and most");
        assert_eq!(read(&reader), b"waiting");
    }

    #[test]
    fn packets_and_capacity_are_restored() {
        let (reader, writer) = pipe(PipeFlags::DIRECT);
        pipe_queue::set_capacity(&writer, 1 << 18).unwrap();
        rustix::io::write(&writer, b"one").unwrap();
        rustix::io::write(&writer, b"2").unwrap();
        let built = Subject::new(&[&reader, &writer]).round_trip(&Pipe).unwrap();
        assert_eq!(flags(&built[1]), flags(&writer));
        assert_eq!(pipe_queue::capacity(&built[0]).unwrap(), 1 << 18);
        assert_eq!(read(&built[0]), b"one");
        assert_eq!(read(&built[0]), b"2");
    }

    #[test]
    fn closed_ends_stay_closed() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"last words").unwrap();
        drop(writer);
        let built = Subject::new(&[&reader]).round_trip(&Pipe).unwrap();
        assert_eq!(read(&built[0]), b"last words");
        assert_eq!(read(&built[0]), b"");
        let (reader, writer) = pipe(PipeFlags::NONBLOCK);
        drop(reader);
        let built = Subject::new(&[&writer]).round_trip(&Pipe).unwrap();
        assert_eq!(rustix::io::write(&built[0], b"x"), Err(rustix::io::Errno::PIPE));
    }

    #[test]
    fn an_outside_end_is_refused_with_the_name_of_its_holder() {
        let (reader, writer) = pipe(PipeFlags::empty());
        // This process is started first. A search that accepts either end would find it first.
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .stdout(std::process::Stdio::from(writer.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(std::process::Stdio::from(reader))
            .spawn()
            .unwrap();
        // A child that another test creates at this time has all descriptors for a moment.
        let eventually = |is_right: &dyn Fn(&[Obstacle]) -> bool| {
            let found = || Subject::new(&[&writer]).obstacles(&Pipe);
            (0..200).any(|_| {
                is_right(&found()) || {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    false
                }
            })
        };
        let name = format!("pid {} (sleep)", child.id());
        let is_named = eventually(&|found| found.len() == 1 && found[0].why.contains(&name));
        for process in [&mut other, &mut child] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert!(is_named, "the holder of the other end is not named");
        assert!(eventually(&|found| found.is_empty()), "the reader has ended");
    }

    #[test]
    fn an_inherited_pipe_is_passed_on_and_its_content_is_not_consumed() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"text").unwrap();
        let mut subject = Subject::new(&[&writer]);
        assert_eq!(subject.obstacles(&Pipe).len(), 1);
        let stat = subject.descriptions[0].stat;
        let key = (stat.st_dev, Inode(stat.st_ino));
        subject.inherited = vec![key];
        assert!(subject.obstacles(&Pipe).is_empty());
        let envelopes = subject.capture(&Pipe, || {}).unwrap();
        let handed = [(key.0, key.1, writer.try_clone().unwrap())];
        let built = subject.build(&Pipe, &envelopes, &handed).unwrap();
        rustix::io::write(&built[0], b" more").unwrap();
        assert_eq!(read(&reader), b"text more");
        let error = subject.build(&Pipe, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", ourselves())) && error.contains("help:"), "{error}");
    }

    #[test]
    fn later_writes_are_not_saved() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"before").unwrap();
        let subject = Subject::new(&[&reader, &writer]);
        let envelopes = subject
            .capture(&Pipe, || {
                assert_eq!(read(&reader), b"before");
                rustix::io::write(&writer, b"after").unwrap();
            })
            .unwrap();
        let built = subject.build(&Pipe, &envelopes, &[]).unwrap();
        assert_eq!(read(&built[0]), b"before");
    }
}
