//! Requests of a subject to its guardian: datagrams of one line to the socket that `UNDYING_SOCKET` names.
//!
//! Owns: the socket, the permission check, the protocol, the callers that hold checkpoints back.
//! Invariants: programs without requests pay nothing. Only the subject and its owner can make a request. A hold ends
//! with the process that requested it, and after a limit in any case.
//! Does not: carry out a request.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey};
use rustix::io::IoSliceMut;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrAny,
    SocketAddrUnix, SocketFlags, SocketType, UCred, bind, recvmsg, sendto, socket_with, sockopt,
};
use sys::Error;
use tracee::{procfs, tree};

use crate::error::Result;

/// The environment variable with the name of the socket for requests.
pub(super) const VARIABLE: &str = "UNDYING_SOCKET";
/// Stands for the zero byte that begins an abstract name, as in /proc/net/unix.
const ABSTRACT: &str = "@";
/// What every name of a guardian begins with; random digits follow.
const PREFIX: &str = "@undying/";
const RANDOM_BYTES: usize = 8;
/// The longest line that makes sense, and more.
const LINE_MAX: usize = 256;
/// A section that lasts longer is a program that has forgotten it.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Poll interval for the life of a holder.
const HOLDER_LOOK: Duration = Duration::from_secs(1);
/// Requests that may wait for a checkpoint at most; further ones are refused.
const WAITING_MAX: usize = 1024;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// A checkpoint now; answered when it is durable.
    Checkpoint,
    /// Initialisation is over.
    Ready,
    /// No checkpoint from the answer on.
    Hold,
    /// Checkpoints may be taken again.
    Release,
    /// An unknown request.
    Unknown,
}

/// The caller, and the address for the answer.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) process: ProcessKey,
    address: SocketAddrUnix,
}

/// The guardian's end.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: OwnedFd,
    name: String,
    /// Requested checkpoints, with the number of the one that answers them, once it is being taken.
    waiting: Vec<(Asker, Option<model::Sequence>)>,
    /// Callers that wait until no checkpoint is being taken.
    quiet: Vec<Asker>,
    holds: HashMap<ProcessKey, Instant>,
}

impl Requests {
    /// Opens a socket under the name that an earlier guardian of the same process has recorded, or under a new one. A
    /// name that comes from the process itself is never bound: it could be another service's.
    pub(super) fn open(recorded: Option<&str>) -> Result<Self> {
        let failed = |errno| Error::new("open a socket for requests", errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(failed)?;
        sockopt::set_socket_passcred(&socket, true).map_err(failed)?;
        // A name that another socket has in the meantime is replaced by a new one.
        let recorded = recorded.filter(|name| is_ours(name) && bind_to(&socket, name).is_ok());
        let name = match recorded {
            Some(name) => name.to_owned(),
            None => {
                let mut random = [0_u8; RANDOM_BYTES];
                rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                    .map_err(failed)?;
                let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
                bind_to(&socket, &name).map_err(failed)?;
                name
            }
        };
        Ok(Self { socket, name, waiting: Vec::new(), quiet: Vec::new(), holds: HashMap::new() })
    }

    /// What `UNDYING_SOCKET` is set to.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Becomes readable with a request.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the next request of a permitted caller.
    pub(super) fn poll(&self, root: Pid) -> Option<(Word, Asker)> {
        loop {
            let mut line = [0_u8; LINE_MAX];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut line)];
            let got = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::empty()).ok()?;
            let credentials = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials),
                _ => None,
            });
            let address = got.address.and_then(|address| unix(&address));
            // A caller without an address cannot be answered; a caller without permission is not.
            if let (Some(credentials), Some(address)) = (credentials, address)
                && let Some(process) = admitted(&credentials, root)
            {
                let word = Word::of(&line[..got.bytes.min(LINE_MAX)]);
                return Some((word, Asker { process, address }));
            }
        }
    }

    /// Answers. A caller that has ended, or does not read, gets no answer.
    pub(super) fn answer(&self, asker: &Asker, line: &str) {
        let _ = sendto(&self.socket, line.as_bytes(), SendFlags::DONTWAIT, &asker.address);
    }

    /// Records a request for a checkpoint.
    pub(super) fn want(&mut self, asker: Asker) {
        // A caller without an answer repeats its request, and waits for the same checkpoint.
        let is_same = |known: &Asker| known.process == asker.process && known.address == asker.address;
        if self.waiting.iter().any(|(known, _)| is_same(known)) {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push((asker, None));
        } else {
            self.answer(&asker, "error too many requests\n");
        }
    }

    /// A checkpoint of this number is being taken: it answers all requests so far.
    pub(super) fn taking(&mut self, sequence: model::Sequence) {
        for (_, by) in self.waiting.iter_mut().filter(|(_, by)| by.is_none()) {
            *by = Some(sequence);
        }
    }

    /// It is not to be; the next one answers.
    pub(super) fn not_taken(&mut self, sequence: model::Sequence) {
        for (_, by) in self.waiting.iter_mut().filter(|(_, by)| *by == Some(sequence)) {
            *by = None;
        }
    }

    /// Whether a requested checkpoint is not being taken yet.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.waiting.iter().any(|(_, by)| by.is_none())
    }

    /// Answers the callers that wait for a checkpoint.
    pub(super) fn answer_for(&mut self, sequence: model::Sequence, line: &str) {
        let (done, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, by)| *by == Some(sequence));
        self.waiting = waiting;
        let done: Vec<(Asker, Option<model::Sequence>)> = done;
        done.iter().for_each(|(asker, _)| self.answer(asker, line));
    }

    /// A process holds checkpoints back. It is answered when none is being taken.
    pub(super) fn hold(&mut self, asker: Asker, now: Instant) {
        self.holds.entry(asker.process).or_insert(now);
        self.quiet.push(asker);
    }

    /// The process ends its hold.
    pub(super) fn release(&mut self, asker: &Asker) {
        self.holds.remove(&asker.process);
        self.answer(asker, "ok\n");
    }

    /// No checkpoint is being taken.
    pub(super) fn tell_quiet(&mut self) {
        for asker in std::mem::take(&mut self.quiet) {
            self.answer(&asker, "ok\n");
        }
    }

    /// Whether a caller holds checkpoints back.
    pub(super) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Ends the holds of processes that have ended or have held for too long; gives the latter.
    pub(super) fn end_stale_holds(&mut self, now: Instant) -> Vec<Pid> {
        let mut overdue = Vec::new();
        self.holds.retain(|process, since| {
            let is_overdue = now.duration_since(*since) >= HOLD_MAX;
            if is_overdue {
                overdue.push(process.pid);
            }
            !is_overdue && procfs::key(process.pid).is_ok_and(|key| key == *process)
        });
        overdue
    }

    /// The time until the next check of the holders; `None` without any.
    pub(super) fn look(&self) -> Option<Duration> {
        self.is_held().then_some(HOLDER_LOOK)
    }

    /// The subject has died, and its callers with it.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.quiet.clear();
        self.holds.clear();
    }
}

impl Word {
    fn of(line: &[u8]) -> Self {
        match line.trim_ascii() {
            b"checkpoint" => Self::Checkpoint,
            b"ready" => Self::Ready,
            b"hold" => Self::Hold,
            b"release" => Self::Release,
            _ => Self::Unknown,
        }
    }
}

fn bind_to(socket: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let body = name.strip_prefix(ABSTRACT).unwrap_or(name);
    bind(socket, &SocketAddrUnix::new_abstract_name(body.as_bytes())?)
}

/// Whether a name is one that a guardian makes.
fn is_ours(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(is_digit)
}

fn unix(address: &SocketAddrAny) -> Option<SocketAddrUnix> {
    let address = SocketAddrUnix::try_from(address.clone()).ok()?;
    (address.abstract_name().is_some() || address.path().is_some()).then_some(address)
}

/// The process behind credentials, if it is permitted: one of the subject, or one of its owner.
fn admitted(credentials: &UCred, root: Pid) -> Option<ProcessKey> {
    let pid = Pid(credentials.pid.as_raw_nonzero().get());
    let process = procfs::key(pid).ok()?;
    let is_owner = credentials.uid.is_root() || credentials.uid == rustix::process::geteuid();
    let is_inside = || tree::descendants(root).is_ok_and(|pids| pids.contains(&pid));
    (is_owner || is_inside()).then_some(process)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    /// A client of a socket, with a name of its own.
    fn client(requests: &Requests) -> UnixDatagram {
        let name = format!("{}/client", &requests.name()[1..]);
        let client = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let server = SocketAddr::from_abstract_name(&requests.name()[1..]).unwrap();
        client.connect_addr(&server).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    fn heard(client: &UnixDatagram) -> Option<String> {
        let mut line = [0; 64];
        let length = client.recv(&mut line).ok()?;
        Some(String::from_utf8_lossy(&line[..length]).into_owned())
    }

    fn ask(requests: &Requests, client: &UnixDatagram, line: &str) -> (Word, Asker) {
        client.send(line.as_bytes()).unwrap();
        requests.poll(own()).unwrap()
    }

    #[test]
    fn only_a_name_that_a_guardian_makes_is_bound_again() {
        let first = Requests::open(None).unwrap();
        let name = first.name().to_owned();
        assert_ne!(Requests::open(Some(&name)).unwrap().name(), name, "it is in use");
        drop(first);
        assert_eq!(Requests::open(Some(&name)).unwrap().name(), name);
        let foreign = format!("@org.example.service-{}", own());
        for name in [&foreign, "@undying/", "@undying/0123456789abcdeF", "@undying/0123456789abcdef0", ""] {
            let opened = Requests::open(Some(name)).unwrap();
            assert!(opened.name() != name && is_ours(opened.name()), "{name}");
        }
    }

    #[test]
    fn words_are_heard_with_the_process_that_says_them() {
        let requests = Requests::open(None).unwrap();
        let client = client(&requests);
        assert!(requests.poll(own()).is_none());
        for (line, word) in [
            ("checkpoint\n", Word::Checkpoint),
            ("ready", Word::Ready),
            (" hold ", Word::Hold),
            ("release\n", Word::Release),
            ("please", Word::Unknown),
            ("", Word::Unknown),
        ] {
            let (asked, asker) = ask(&requests, &client, line);
            assert_eq!((asked, asker.process.pid), (word, own()), "{line:?}");
        }
    }

    #[test]
    fn a_checkpoint_answers_those_who_asked_before_it() {
        let mut requests = Requests::open(None).unwrap();
        let client = client(&requests);
        let asked = ask(&requests, &client, "checkpoint").1;
        requests.want(asked.clone());
        assert!(requests.wants_checkpoint());
        requests.taking(model::Sequence(7));
        requests.want(asked);
        assert!(!requests.wants_checkpoint(), "asked again, and answered by the same");
        requests.not_taken(model::Sequence(7));
        assert!(requests.wants_checkpoint());
        requests.taking(model::Sequence(8));
        requests.answer_for(model::Sequence(7), "ok 7\n");
        assert_eq!(heard(&client), None);
        requests.answer_for(model::Sequence(8), "ok 8\n");
        assert_eq!(heard(&client).as_deref(), Some("ok 8\n"));
    }

    #[test]
    fn a_hold_ends_with_a_release_its_time_or_its_process() {
        let mut requests = Requests::open(None).unwrap();
        let client = client(&requests);
        let asker = ask(&requests, &client, "hold").1;
        let now = Instant::now();
        requests.hold(asker.clone(), now);
        assert!(requests.is_held() && heard(&client).is_none());
        requests.tell_quiet();
        assert_eq!(heard(&client).as_deref(), Some("ok\n"));
        assert!(requests.end_stale_holds(now).is_empty() && requests.is_held());
        requests.release(&asker);
        assert!(!requests.is_held());
        requests.hold(asker.clone(), now);
        assert_eq!(requests.end_stale_holds(now + HOLD_MAX), [own()]);
        assert!(!requests.is_held());
        let gone = ProcessKey { start: model::StartTime(1), ..asker.process };
        requests.hold(Asker { process: gone, ..asker }, now);
        assert!(requests.end_stale_holds(now).is_empty() && !requests.is_held());
    }
}
