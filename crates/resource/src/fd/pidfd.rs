//! Saves and restores process file descriptors (pidfds), created with pidfd_open(2) or clone(2): the descriptor kind
//! `fd/pidfd`.
//!
//! Owns: the process to which a pidfd refers.
//! Invariants: one of the processes that hold the pidfd opens the pidfd again, when the target process exists. All
//! holders share this open file description.
//! Does not: handle processes outside the subject, or threads other than thread group leaders (both are refused). The
//! exit status of a reaped process is not restored.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use model::{DescriptionId, Fd, Pid};
use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sys::Error;
use tracee::arch::numbers as nr;

use super::description::{Description, Known};
use super::fdinfo::FdInfo;
use super::kind::{FdCapture, FdConnect, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::support::outside;

const NAME: &str = "fd/pidfd";
const F_GETFD: u64 = 1;
const FD_CLOEXEC: u64 = 1;
const O_CLOEXEC: u64 = 0o2_000_000;
/// Flags of pidfd_open(2): PIDFD_NONBLOCK and PIDFD_THREAD.
const PIDFD_FLAGS: u32 = 0o4_000 | 0o200;
const PIDFD_THREAD: u32 = 0o200;

/// Descriptor kind ([`FdKind`]) of process file descriptors.
#[derive(Debug)]
pub struct Pidfd;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    /// The pid of the target; -1 for a process that has ended and was reaped.
    #[prost(sint32, tag = "1")]
    pid: i32,
    /// Inode of the pidfd. Pidfds of one process have equal inodes on kernels where pidfds have their own inodes.
    #[prost(uint64, tag = "2")]
    inode: u64,
}

#[derive(Debug, Default)]
struct Capture {
    info: FdInfo,
}

impl FdKind for Pidfd {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        // Since Linux 6.9, pidfds are on their own file system. The link in `/proc/PID/fd` is unchanged.
        description.target().starts_with("anon_inode:[pidfd]") || description.target().starts_with("pidfd:")
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let Ok(pid) = target(description) else { return Vec::new() };
        if is_dead(pid) {
            return Vec::new();
        }
        let about = |why: &str, fix: &str| Obstacle {
            place: format!("refers to {}", outside::describe(Some(pid))),
            ..description.obstacle("pidfd", why, fix)
        };
        let is_thread = description.info.description_flags() & PIDFD_THREAD != 0;
        if is_thread && !scope.pids.contains(&pid) {
            return vec![about(
                "it refers to a thread other than the leader of its process",
                "let the program close it before the checkpoint",
            )];
        }
        // A child process that was forked after the processes were listed is in the subject too.
        if !scope.pids.contains(&pid) && !descends(pid, scope) {
            return vec![about(
                "the process it refers to is outside the tree",
                "let the program close it before the checkpoint, or checkpoint a common ancestor",
            )];
        }
        if !scope.is_held(description.id) {
            return vec![about(
                "it is in flight in a socket, and only a process that holds it can restore it",
                "retry when it has been received",
            )];
        }
        Vec::new()
    }

    fn completes_in_connect(&self, description: &Description) -> bool {
        target(description).is_ok_and(|pid| !is_dead(pid))
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut dead: BTreeMap<u64, Vec<DescriptionId>> = BTreeMap::new();
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            if is_dead(Pid(state.pid)) {
                dead.entry(state.inode).or_default().push(record.id);
            } else {
                context.created.insert(record.id, placeholder()?);
            }
        }
        for ids in dead.into_values() {
            let handles = sys::dead_process::handles(ids.len())?;
            context.created.extend(ids.into_iter().zip(handles));
        }
        Ok(())
    }

    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            if !is_dead(Pid(state.pid)) {
                connect(record, Pid(state.pid), context)?;
            }
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let pid = self.info.parse("Pid", |text| text.parse().ok())?;
        Ok(State { pid, inode: description.inode().get() }.encode_to_vec())
    }
}

/// Returns the pid of the target in the pid namespace of this process.
fn target(description: &Description) -> Result<Pid> {
    let mut info = FdInfo::default();
    info.take(description)?;
    info.parse("Pid", |text| text.parse().ok().map(Pid))
}

fn is_dead(pid: Pid) -> bool {
    pid.get() < 0
}

fn descends(mut pid: Pid, scope: &CaptureScope<'_>) -> bool {
    /// Maximum number of ancestors that are inspected. No process tree is deeper than the default number of pids.
    const DEPTH_MAX: usize = 32_768;
    for _ in 0..DEPTH_MAX {
        match tracee::procfs::stat(pid) {
            Ok(stat) if scope.pids.contains(&stat.ppid) => return true,
            Ok(stat) if stat.ppid.get() > 1 => pid = stat.ppid,
            _ => return false,
        }
    }
    false
}

/// Creates a placeholder: an eventfd that every holder of the pidfd has until [`FdKind::connect`].
fn placeholder() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC)
        .map_err(|errno| Error::new("create a placeholder descriptor", errno).into())
}

/// Replaces the placeholder by the pidfd.
fn connect(record: &FdRecord, target: Pid, context: &mut FdConnect<'_>) -> Result<()> {
    let flags = u64::from(record.flags & PIDFD_FLAGS);
    let handle = if context.stub.pid() == record.holder.0 {
        context.stub.call(nr::PIDFD_OPEN, [target.get() as u64, flags, 0, 0, 0, 0])?
    } else {
        fetch(record, context)?
    };
    put(handle, record, context)
}

/// Duplicates a description from its recorded holder, the first of the processes that share the description.
pub(super) fn fetch(record: &FdRecord, context: &mut FdConnect<'_>) -> Result<u64> {
    let (holder, held) = record.holder;
    let process = context.stub.call(nr::PIDFD_OPEN, [holder.get() as u64, 0, 0, 0, 0, 0])?;
    let handle = context.stub.call(nr::PIDFD_GETFD, [process, held.get() as u64, 0, 0, 0, 0])?;
    context.stub.call(nr::CLOSE, [process, 0, 0, 0, 0, 0])?;
    Ok(handle)
}

/// Duplicates a descriptor of a process to all fds of the record, and so replaces the placeholders. Then closes the
/// descriptor.
pub(super) fn put(handle: u64, record: &FdRecord, context: &mut FdConnect<'_>) -> Result<()> {
    for fd in numbers(context.table, record.id) {
        let fd = fd.get() as u64;
        let closes = context.stub.call(nr::FCNTL, [fd, F_GETFD, 0, 0, 0, 0])? & FD_CLOEXEC != 0;
        context.stub.call(nr::DUP3, [handle, fd, if closes { O_CLOEXEC } else { 0 }, 0, 0, 0])?;
    }
    context.stub.call(nr::CLOSE, [handle, 0, 0, 0, 0, 0])?;
    Ok(())
}

fn numbers(table: &[(Fd, DescriptionId)], id: DescriptionId) -> Vec<Fd> {
    table.iter().filter(|row| row.1 == id).map(|row| row.0).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::fd::AsFd;

    use super::super::test_support::{capture, create, describe, describe_all, us};
    use super::*;

    fn obstacles(description: &Description, pids: &[Pid]) -> Vec<Obstacle> {
        let table = [(us(), description.fd, description.id)];
        let scope = CaptureScope {
            pids,
            descriptions: &[],
            open: &[],
            inherited: &[],
            table: &table,
            kills: false,
            loses_connections: false,
            sockets: &Default::default(),
            mappings: Vec::new(),
            index: Default::default(),
        };
        Pidfd.obstacles(description, &scope)
    }

    #[test]
    fn a_process_in_the_tree_is_accepted_and_one_outside_is_named() {
        let own = describe(0, sys::pidfd::open(us()).unwrap());
        assert!(Pidfd.claims(&own), "{own:?}");
        assert!(Pidfd.completes_in_connect(&own));
        assert_eq!(obstacles(&own, &[us()]), []);
        let found = obstacles(&own, &[Pid(1)]);
        assert!(found.is_empty() || found[0].place.contains(&us().to_string()), "{found:?}");
        let init = describe(1, sys::pidfd::open(Pid(1)).unwrap());
        assert_eq!(obstacles(&init, &[us()]).len(), 1);
    }

    #[test]
    fn a_pidfd_of_an_ended_process_is_restored() {
        let dead = sys::dead_process::handles(2).unwrap();
        let fds: Vec<_> = dead.iter().map(AsFd::as_fd).collect();
        let descriptions = describe_all(&fds);
        assert!(!Pidfd.completes_in_connect(&descriptions[0]));
        let records = capture(&Pidfd, &descriptions, false).unwrap();
        let created = create(&Pidfd, &records, HashMap::new(), false).unwrap();
        let copies: Vec<Description> = (0..2).map(|id| describe(id, &created[&DescriptionId(id)])).collect();
        assert!(copies.iter().all(|copy| is_dead(target(copy).unwrap())));
        let is_one = |ends: &[Description]| ends[0].inode() == ends[1].inode();
        assert_eq!(is_one(&copies), is_one(&descriptions));
    }
}
