//! Saves and restores epoll(7) sets: the descriptor kind `fd/epoll`.
//!
//! Owns: the members of a set. A member has an fd, a watched open file description, events and data.
//! Invariants: a member is the pair of a description and the fd under which the description was registered. The
//! program may have closed or reused this fd. The watched description is found by its inode. If several descriptions
//! share the inode, kcmp(2) distinguishes them. Members are registered last, when all watched descriptions exist.
//! Does not: save busy-poll settings, or the list of ready members. The kernel computes this list again, so an
//! edge-triggered event may be reported twice but is never lost.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use prost::Message;
use rustix::event::epoll::{CreateFlags, create};
use rustix::fs::{FileType, makedev};
use sys::epoll::{Registration, is_spent, register, watches};
use sys::{Errno, Error};
use tracee::arch::numbers::EPOLL_CTL;

use super::description::{Description, Known};
use super::fdinfo::{FdInfo, unparsable};
use super::kind::{FdCapture, FdConnect, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "fd/epoll";
const EPOLL_CTL_ADD: u64 = 1;

const ORPHAN: &str = "it watches a file that is open in no process of the tree";
const ORPHAN_FIX: &str = "close the set, or checkpoint the process that holds the file as well";

/// Descriptor kind ([`FdKind`]) of epoll sets.
#[derive(Debug)]
pub struct Epoll {
    /// Returns the kind of a description that a set watches.
    pub kind_of: fn(&Description) -> Option<&'static dyn FdKind>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(message, repeated, tag = "1")]
    members: Vec<Member>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Member {
    #[prost(int32, tag = "1")]
    number: i32,
    /// The id of the watched description.
    #[prost(uint32, tag = "2")]
    target: u32,
    #[prost(fixed32, tag = "3")]
    events: u32,
    #[prost(fixed64, tag = "4")]
    data: u64,
    /// Set when the watched description is complete only after [`FdKind::connect`].
    #[prost(bool, tag = "5")]
    late: bool,
}

/// A member as a line of fdinfo shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    number: Fd,
    events: u32,
    data: u64,
    inode: Inode,
    device: u64,
    /// Number of preceding members with the same fd.
    index: u32,
}

#[derive(Debug)]
struct Capture {
    kind_of: fn(&Description) -> Option<&'static dyn FdKind>,
    info: FdInfo,
    members: Vec<Member>,
}

impl FdKind for Epoll {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[eventpoll]"
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let orphans = orphans(description, scope).unwrap_or_default();
        orphans
            .iter()
            .map(|line| Obstacle {
                place: format!("registered as fd {}", line.number),
                ..description.obstacle("epoll", ORPHAN, ORPHAN_FIX)
            })
            .collect()
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(Capture { kind_of: self.kind_of, info: FdInfo::default(), members: Vec::new() }))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        for record in records {
            let set =
                create(CreateFlags::CLOEXEC).map_err(|errno| Error::new("create an epoll set", errno))?;
            context.created.insert(record.id, set);
        }
        Ok(())
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        let mut registrations = Vec::new();
        for record in records {
            let mut state: State = crate::error::decode(NAME, &record.payload)?;
            state.members.retain(|member| !member.late);
            state.members.sort_by_key(|member| !is_spent(member.events));
            for member in state.members {
                registrations.push(Registration {
                    set: find(created, record.id)?,
                    number: Fd(member.number),
                    target: find(created, DescriptionId(member.target))?,
                    events: member.events,
                    data: member.data,
                });
            }
        }
        Ok(register(&registrations)?)
    }

    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            let set = context.table.iter().find(|row| row.1 == record.id).map(|row| row.0);
            for member in state.members.iter().filter(|member| member.late) {
                let is_here = context.table.contains(&(Fd(member.number), DescriptionId(member.target)));
                if let (Some(set), true) = (set, is_here) {
                    register_late(member, set, context)?;
                }
            }
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn fdinfo_read(&mut self, text: &[u8]) {
        self.info.set(text);
    }

    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        self.members.clear();
        for line in lines(&self.info)? {
            let target = match find_by_number(description, &line, scope)? {
                Some(target) => Some(target),
                None => find_target(description, &line, scope)?,
            };
            let Some(target) = target else {
                if is_ours(&line) {
                    continue;
                }
                return Err(orphan(description, &line));
            };
            let late = scope.with_duplicate(target, |target| {
                (self.kind_of)(target).is_some_and(|kind| kind.completes_in_connect(target))
            });
            let late = late.unwrap_or(false);
            self.members.push(Member {
                number: line.number.get(),
                target: target.id.get(),
                events: line.events,
                data: line.data,
                late,
            });
        }
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(State { members: std::mem::take(&mut self.members) }.encode_to_vec())
    }
}

fn find(created: &HashMap<DescriptionId, OwnedFd>, id: DescriptionId) -> Result<BorrowedFd<'_>> {
    let found = created.get(&id).map(AsFd::as_fd);
    let why = || format!("it watches open file description {id}, which the image does not contain");
    found.ok_or_else(|| ResourceError::malformed(NAME, why()))
}

/// Registers a member from inside the process. EEXIST means that another process, which shares the set, has already
/// registered the member.
fn register_late(member: &Member, set: Fd, context: &mut FdConnect<'_>) -> Result<()> {
    let mut event = member.events.to_ne_bytes().to_vec();
    event.extend(member.data.to_ne_bytes());
    let arguments = |address: model::Address| {
        [set.get() as u64, EPOLL_CTL_ADD, member.number as u64, address.get(), 0, 0]
    };
    match context.stub.call_with(context.memory, EPOLL_CTL, &event, arguments) {
        Ok(_) => Ok(()),
        Err(tracee::RemoteError::Refused { errno: Errno::EEXIST, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Finds the description that a member watches by the member's fd, in a process that holds the set. Most members are
/// found in this way.
fn find_by_number<'a>(
    set: &Description,
    line: &Line,
    scope: &CaptureScope<'a>,
) -> Result<Option<&'a Arc<Known>>> {
    let Some(id) = scope.description_of(set.pid, line.number) else { return Ok(None) };
    let found = scope.descriptions.get(id.get() as usize);
    let is_it = |one: &&Arc<Known>| (one.id, one.file()) == (id, (line.device, line.inode));
    let Some(found) = found.filter(is_it) else { return Ok(None) };
    if found.target().starts_with("socket:") {
        return Ok(Some(found));
    }
    let order = watches(set.as_fd(), line.number, line.index, scope.place_of(found))?;
    Ok(order.is_eq().then_some(found))
}

fn find_target<'a>(
    set: &Description,
    line: &Line,
    scope: &CaptureScope<'a>,
) -> Result<Option<&'a Arc<Known>>> {
    let found: Vec<_> = scope.of_file((line.device, line.inode)).collect();
    // A socket has its own inode, but all anonymous files share one inode.
    if let [only] = found.as_slice()
        && only.target().starts_with("socket:")
    {
        return Ok(Some(only));
    }
    for candidate in found {
        let order = watches(set.as_fd(), line.number, line.index, scope.place_of(candidate))?;
        if order.is_eq() {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

/// Returns members whose watched description no process of the subject has open. The subject may be running.
fn orphans(description: &Description, scope: &CaptureScope<'_>) -> Result<Vec<Line>> {
    let mut info = FdInfo::default();
    info.take(description)?;
    let mut found = Vec::new();
    for line in lines(&info)? {
        if matches!(find_by_number(description, &line, scope), Ok(Some(_))) {
            continue;
        }
        // A file that was opened after the descriptors were listed does not count as missing.
        let appeared = || scope.pids.iter().any(|pid| is_open(*pid, &line));
        if matches!(find_target(description, &line, scope), Ok(None)) && !appeared() && !is_ours(&line) {
            found.push(line);
        }
    }
    // A member that was removed from the set in the meantime does not count either.
    info.take(description)?;
    let still = lines(&info)?;
    found.retain(|line| still.contains(line));
    Ok(found)
}

/// Reports whether this process has the watched socket open. The socket is then a connection that is kept for the
/// next incarnation of the program, and the program has closed it. Without our duplicate, the kernel would have
/// removed the member at this close.
fn is_ours(line: &Line) -> bool {
    let Ok(own) = std::fs::read_dir("/proc/self/fd") else { return false };
    // All anonymous files share one inode, but each socket has its own inode.
    let is_it = |path: std::path::PathBuf| {
        rustix::fs::stat(path).is_ok_and(|stat| {
            let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
            is_socket && (stat.st_dev, Inode(stat.st_ino)) == (line.device, line.inode)
        })
    };
    own.flatten().any(|entry| is_it(entry.path()))
}

fn is_open(pid: Pid, line: &Line) -> bool {
    let path = format!("/proc/{pid}/fd/{}", line.number);
    rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, Inode(stat.st_ino)) == (line.device, line.inode))
}

fn orphan(description: &Description, line: &Line) -> ResourceError {
    ResourceError::Unsupported {
        pid: description.pid,
        what: format!("fd {} (epoll), registered as fd {}", description.fd, line.number),
        why: ORPHAN.to_owned(),
        fix: ORPHAN_FIX.to_owned(),
    }
}

fn lines(info: &FdInfo) -> Result<Vec<Line>> {
    let mut found = Vec::new();
    let mut seen: HashMap<Fd, u32> = HashMap::new();
    for text in info.text().lines().filter(|text| text.starts_with("tfd:")) {
        let mut line = parse(text).ok_or_else(|| unparsable("tfd"))?;
        let count = seen.entry(line.number).or_default();
        line.index = *count;
        *count += 1;
        found.push(line);
    }
    Ok(found)
}

/// Parses a line of fdinfo: `tfd:        5 events:       1d data: ffffffffffffffff pos:0 ino:61af sdev:7`
fn parse(text: &str) -> Option<Line> {
    let value = |name: &str| {
        let rest = &text[text.find(name)? + name.len()..];
        rest.split_whitespace().next()
    };
    // The kernel prints its internal device number: 12 bits major, 20 bits minor.
    let device = u64::from_str_radix(value("sdev:")?, 16).ok()?;
    Some(Line {
        number: Fd(value("tfd:")?.parse().ok()?),
        events: u32::from_str_radix(value("events:")?, 16).ok()?,
        data: u64::from_str_radix(value("data:")?, 16).ok()?,
        inode: Inode(u64::from_str_radix(value("ino:")?, 16).ok()?),
        device: makedev((device >> 20) as u32, (device & 0xf_ffff) as u32),
        index: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::super::test_support::{capture, create as create_all, describe_all, known_of};
    use super::*;
    use crate::fd::kind_of;

    const EPOLL: Epoll = Epoll { kind_of };
    use rustix::event::epoll::{self, Event, EventData, EventFlags};
    use rustix::event::{EventfdFlags, Timespec, eventfd};
    use rustix::fs::{major, minor};

    fn set() -> OwnedFd {
        create(CreateFlags::CLOEXEC).unwrap()
    }

    fn counter(count: u32) -> OwnedFd {
        eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn ready(set: &OwnedFd) -> Vec<u64> {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(set, &mut events[..], Some(&now)).unwrap();
        let mut data: Vec<u64> = events[..count].iter().map(|event| event.data.u64()).collect();
        data.sort_unstable();
        data
    }

    fn restore(originals: &[&OwnedFd], others: &[usize]) -> HashMap<DescriptionId, OwnedFd> {
        let fds: Vec<_> = originals.iter().map(|fd| fd.as_fd()).collect();
        let records = capture(&EPOLL, &describe_all(&fds), false).unwrap();
        let existing = others
            .iter()
            .map(|index| (DescriptionId(*index as u32), originals[*index].try_clone().unwrap()))
            .collect();
        let created = create_all(&EPOLL, &records, existing, false).unwrap();
        EPOLL.start(&records, &created).unwrap();
        created
    }

    #[test]
    fn members_are_restored_with_fd_events_and_data_also_in_nested_sets() {
        let (outer, inner, one, other, spent) = (set(), set(), counter(1), counter(0), counter(1));
        epoll::add(&outer, &one, EventData::new_u64(u64::MAX), EventFlags::IN).unwrap();
        epoll::add(&outer, &inner, EventData::new_u64(7), EventFlags::IN).unwrap();
        epoll::add(&inner, &other, EventData::new_u64(8), EventFlags::IN | EventFlags::ET).unwrap();
        epoll::add(&outer, &spent, EventData::new_u64(9), EventFlags::IN | EventFlags::ONESHOT).unwrap();
        assert_eq!(ready(&outer), [9, u64::MAX]);
        let created = restore(&[&outer, &inner, &one, &other, &spent], &[2, 3, 4]);
        let (new_outer, new_inner) = (&created[&DescriptionId(0)], &created[&DescriptionId(1)]);
        assert_eq!(ready(new_outer), [u64::MAX]);
        rustix::io::write(&other, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(ready(new_outer), [7, u64::MAX]);
        assert_eq!(ready(new_inner), [8]);
        let (mut old, mut new) = (FdInfo::default(), FdInfo::default());
        old.take(&outer).unwrap();
        new.take(new_outer).unwrap();
        let numbers = |info: &FdInfo| {
            let mut all: Vec<_> =
                lines(info).unwrap().iter().map(|line| (line.number, line.events)).collect();
            all.sort();
            all
        };
        assert_eq!(numbers(&old), numbers(&new));
    }

    #[test]
    fn a_reused_fd_does_not_lead_to_the_wrong_file() {
        let (watching, first, second) = (set(), counter(1), counter(1));
        epoll::add(&watching, &first, EventData::new_u64(1), EventFlags::IN).unwrap();
        let kept = first.try_clone().unwrap();
        let number = first.as_raw_fd();
        drop(first);
        let again = rustix::io::fcntl_dupfd_cloexec(&second, number).unwrap();
        epoll::add(&watching, &again, EventData::new_u64(2), EventFlags::IN).unwrap();
        let created = restore(&[&watching, &kept, &again], &[1, 2]);
        assert_eq!(ready(&created[&DescriptionId(0)]), [1, 2]);
        rustix::io::read(&kept, &mut [0; 8]).unwrap();
        assert_eq!(ready(&created[&DescriptionId(0)]), [2]);
    }

    #[test]
    fn a_member_without_an_open_descriptor_is_a_named_obstacle() {
        let (watching, lost) = (set(), counter(0));
        epoll::add(&watching, &lost, EventData::new_u64(1), EventFlags::IN).unwrap();
        let number = lost.as_raw_fd();
        let elsewhere = rustix::io::fcntl_dupfd_cloexec(&lost, 900).unwrap();
        drop(lost);
        let descriptions = describe_all(&[watching.as_fd()]);
        let error = capture(&EPOLL, &descriptions, false).unwrap_err().to_string();
        assert!(error.contains(&format!("registered as fd {number}")), "{error}");
        let (pids, table) = ([], []);
        let scope = CaptureScope {
            pids: &pids,
            descriptions: &known_of(&descriptions),
            open: &descriptions,
            inherited: &[],
            table: &table,
            kills: false,
            loses_connections: false,
            sockets: &Default::default(),
            mappings: Vec::new(),
            index: Default::default(),
        };
        let obstacles = EPOLL.obstacles(&descriptions[0], &scope);
        assert_eq!(obstacles.len(), 1, "{obstacles:?}");
        drop(elsewhere);
    }

    #[test]
    fn beside_the_subject_a_member_is_found_under_another_fd() {
        let (watching, first) = (set(), counter(0));
        epoll::add(&watching, &first, EventData::new_u64(1), EventFlags::IN).unwrap();
        let kept = first.try_clone().unwrap();
        drop(first);
        let descriptions = describe_all(&[watching.as_fd(), kept.as_fd()]);
        let obstacles = |known: &[Arc<Known>]| {
            let scope = CaptureScope {
                pids: &[],
                descriptions: known,
                open: &[],
                inherited: &[],
                table: &[],
                kills: false,
                loses_connections: false,
                sockets: &Default::default(),
                mappings: Vec::new(),
                index: Default::default(),
            };
            EPOLL.obstacles(&descriptions[0], &scope).len()
        };
        let known = known_of(&descriptions);
        assert_eq!((obstacles(&known), obstacles(&known[..1])), (0, 1));
    }

    #[test]
    fn a_line_is_parsed_with_the_kernels_device_number() {
        let line = parse("tfd:       12 events: 40000000 data: ffffffffffffffff  pos:0 ino:61af sdev:801234")
            .unwrap();
        assert_eq!((line.number, line.inode), (Fd(12), Inode(0x61af)));
        assert_eq!((major(line.device), minor(line.device)), (8, 0x1234));
        assert!(parse("tfd: x").is_none());
    }
}
