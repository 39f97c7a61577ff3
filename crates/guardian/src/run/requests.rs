//! A guardian receives requests of its subject on a socket, for example requests for a checkpoint. The environment
//! variable `UNDYING_SOCKET` names the socket. A request is a datagram with one line of text.
//!
//! A hold is a request to take no checkpoint until the hold is released.
//!
//! Owns: the socket, the permission check, the protocol, and the list of holds.
//! Invariants: a program that makes no request has no cost. Only the subject, the user root and the user of the
//! guardian can make a request. A hold ends when the requesting process ends, and not later than after [`HOLD_MAX`].
//! Does not: execute a request.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSliceMut;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrAny,
    SocketAddrUnix, SocketFlags, SocketType, UCred, bind, recv, recvmsg, sendto, socket_with, sockopt,
};
use sys::Error;
use tracee::{Roots, procfs, tree};

use crate::error::{GuardianError, Result};
use crate::exit::ExitCode;

/// Represents the zero byte that begins an abstract name, as in /proc/net/unix.
const ABSTRACT: &str = "@";
/// Prefix of every socket name that a guardian creates; random digits follow.
const PREFIX: &str = "@undying/";
const RANDOM_BYTES: usize = 8;
/// Maximum length of a request in bytes. Valid requests are shorter.
const LINE_MAX: usize = 256;
/// Maximum duration of a hold. A program that holds checkpoints back for longer has forgotten to release the hold.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Poll interval of the check whether a process with a hold still lives.
const HOLDER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of a reply in bytes. A refusal names the processes and the reasons.
const REPLY_MAX: usize = 8192;
/// The beginning of a request to remove checkpoints; a number follows.
const PRUNE: &str = "prune ";
const RESTART: &str = "restart";
/// The beginning of a request to hold the program; a number of milliseconds follows.
const HOLD_PROGRAM: &str = "hold-program ";
const RELEASE_PROGRAM: &str = "release-program";
/// Maximum time for which a caller waits until a guardian has written a checkpoint.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Maximum time for which a caller waits until a guardian has restarted a subject: the limits of the steps before the
/// kill, and a restore.
const RESTART_MAX: Duration = Duration::from_secs(120);
/// Maximum number of requests that wait for a checkpoint. Further requests are refused.
const WAITING_MAX: usize = 1024;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Take a checkpoint now. The reply is sent when the checkpoint is durable.
    Checkpoint,
    /// The initialisation of the program is complete.
    Ready,
    /// Take no checkpoint after the reply, until the hold is released.
    Hold,
    /// Checkpoints may be taken again.
    Release,
    /// Take a checkpoint now, and keep only this number of the newest checkpoints. The reply is sent when the checkpoint is
    /// durable.
    Prune(usize),
    /// Restart the subject from a checkpoint of this moment. The reply is sent when the subject runs again.
    Restart,
    /// Stop the subject after a checkpoint of this moment, for at most this time. The reply is sent when it is stopped.
    HoldProgram(Duration),
    /// Let the stopped subject continue.
    ReleaseProgram,
    /// An unknown request.
    Unknown,
}

/// The process that has sent a request, and the address to which the reply is sent.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) process: ProcessKey,
    /// Whether the process runs as the user root or as the user of the guardian.
    pub(super) is_owner: bool,
    address: SocketAddrUnix,
}

/// The socket of the guardian, with the requests that wait for a reply.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: OwnedFd,
    /// The value of `UNDYING_SOCKET`.
    pub(super) name: String,
    /// Requests for a checkpoint. When the checkpoint for a request begins, the sequence number is set.
    waiting: Vec<(Asker, Option<model::Sequence>)>,
    /// Processes with a hold that wait for the reply. The reply is sent when no checkpoint is being taken.
    quiet: Vec<Asker>,
    holds: HashMap<ProcessKey, Instant>,
}

impl Requests {
    /// Opens a socket under the name `recorded`, or under a new name. `recorded` is the name that an earlier guardian
    /// of the same process has written to the status file. The name in the environment of the process is not used,
    /// because the process could have chosen the name of another service.
    pub(super) fn open(recorded: Option<&str>) -> Result<Self> {
        let failed = |errno| Error::new("open a socket for requests", errno);
        let socket = new_socket()?;
        sockopt::set_socket_passcred(&socket, true).map_err(failed)?;
        // If another socket has this name in the meantime, a new name is used.
        let recorded = recorded.filter(|name| is_ours(name) && bind_to(&socket, name).is_ok());
        let name = match recorded {
            Some(name) => name.to_owned(),
            None => bind_to_new_name(&socket)?,
        };
        Ok(Self { socket, name, waiting: Vec::new(), quiet: Vec::new(), holds: HashMap::new() })
    }

    /// Returns a descriptor that becomes readable when a request arrives.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives the next request of a permitted process.
    pub(super) fn poll(&self, roots: &Roots) -> Option<(Word, Asker)> {
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
            let address = got.address.zip(credentials.as_ref());
            let address = address.and_then(|(address, credentials)| unix(&address, is_owner(credentials)));
            // A request without a return address, or without permission, gets no reply.
            if let (Some(credentials), Some(address)) = (credentials, address)
                && let Some(process) = admitted(&credentials, roots)
            {
                let word = Word::of(&line[..got.bytes.min(LINE_MAX)]);
                let is_owner = is_owner(&credentials);
                return Some((word, Asker { process, is_owner, address }));
            }
        }
    }

    /// Sends a reply. A process that has ended, or does not read, gets no reply.
    pub(super) fn answer(&self, asker: &Asker, line: &str) {
        let _ = sendto(&self.socket, line.as_bytes(), SendFlags::DONTWAIT, &asker.address);
    }

    pub(super) fn want(&mut self, asker: Asker) {
        // A process that has received no reply may repeat its request. Both requests wait for the same checkpoint.
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

    /// Records that a checkpoint is being taken. This checkpoint satisfies all waiting requests.
    pub(super) fn taking(&mut self, sequence: model::Sequence) {
        for (_, by) in self.waiting.iter_mut().filter(|(_, by)| by.is_none()) {
            *by = Some(sequence);
        }
    }

    /// Records that a checkpoint was not taken. The next checkpoint satisfies the requests that waited for this
    /// checkpoint.
    pub(super) fn not_taken(&mut self, sequence: model::Sequence) {
        for (_, by) in self.waiting.iter_mut().filter(|(_, by)| *by == Some(sequence)) {
            *by = None;
        }
    }

    /// Reports whether a request waits for a checkpoint that is not being taken yet.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.waiting.iter().any(|(_, by)| by.is_none())
    }

    /// Replies to the requests that wait for this checkpoint.
    pub(super) fn answer_for(&mut self, sequence: model::Sequence, line: &str) {
        let (done, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, by)| *by == Some(sequence));
        self.waiting = waiting;
        let done: Vec<(Asker, Option<model::Sequence>)> = done;
        done.iter().for_each(|(asker, _)| self.answer(asker, line));
    }

    /// Records that a process holds checkpoints back. The reply is sent when no checkpoint is being taken.
    pub(super) fn hold(&mut self, asker: Asker, now: Instant) {
        self.holds.entry(asker.process).or_insert(now);
        self.quiet.push(asker);
    }

    /// Ends the hold of a process.
    pub(super) fn release(&mut self, asker: &Asker) {
        self.holds.remove(&asker.process);
        self.answer(asker, "ok\n");
    }

    /// Replies to all processes that wait for a hold. Must be called while no checkpoint is being taken.
    pub(super) fn answer_holds(&mut self) {
        for asker in std::mem::take(&mut self.quiet) {
            self.answer(&asker, "ok\n");
        }
    }

    /// Reports whether a process holds checkpoints back.
    pub(super) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Ends the holds of processes that have ended, and holds that last too long. Returns the processes whose holds
    /// lasted too long.
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

    /// Returns the time until the next check of the holds. Returns `None` without holds.
    pub(super) fn next_check(&self) -> Option<Duration> {
        self.is_held().then_some(HOLDER_CHECK_INTERVAL)
    }

    /// Drops all requests, because the subject and its processes have died.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.quiet.clear();
        self.holds.clear();
    }
}

impl Word {
    fn of(line: &[u8]) -> Self {
        let line = line.trim_ascii();
        let number = |prefix: &str| -> Option<u64> {
            std::str::from_utf8(line.strip_prefix(prefix.as_bytes())?).ok()?.trim().parse().ok()
        };
        if let Some(count) = number(PRUNE).and_then(|count| count.try_into().ok()) {
            return Self::Prune(count);
        }
        if let Some(time) = number(HOLD_PROGRAM) {
            return Self::HoldProgram(Duration::from_millis(time));
        }
        match line {
            b"checkpoint" => Self::Checkpoint,
            b"ready" => Self::Ready,
            b"hold" => Self::Hold,
            b"release" => Self::Release,
            b"restart" => Self::Restart,
            b"release-program" => Self::ReleaseProgram,
            _ => Self::Unknown,
        }
    }
}

/// Removes all but the `keep` newest checkpoints of a running subject: sends the request to the socket `name` of its
/// guardian, and waits until the guardian has written a checkpoint.
///
/// # Errors
///
/// `NotDone` with the reason of the guardian, or after the time limit.
pub(crate) fn prune(name: &str, keep: usize) -> Result<()> {
    match ask(name, &format!("{PRUNE}{keep}"), ANSWER_MAX)? {
        Some(Reply::Done(_)) => Ok(()),
        Some(Reply::Refused(why)) => Err(refused(format!("no checkpoint was removed: {why}"))),
        None => {
            let help = "help: `undying status` shows whether checkpoints are taken";
            Err(refused(format!(
                "the guardian has taken no checkpoint within {ANSWER_MAX:?}; it removes checkpoints with the next one\n{help}"
            )))
        }
    }
}

/// Restarts a running subject from a checkpoint of this moment: sends the request to the socket `name` of its guardian,
/// and waits until the subject runs again. Returns the sequence number of the checkpoint.
///
/// # Errors
///
/// `NotDone` with the reason of the guardian, or after the time limit.
pub(crate) fn restart(name: &str) -> Result<String> {
    order(name, RESTART)
}

/// Sends a request that the guardian executes in several steps. Returns the rest of the reply.
fn order(name: &str, request: &str) -> Result<String> {
    match ask(name, request, RESTART_MAX)? {
        Some(Reply::Done(rest)) => Ok(rest),
        Some(Reply::Refused(why)) => Err(refused(why)),
        None => {
            let why = format!("the guardian has not answered within {RESTART_MAX:?}");
            Err(GuardianError::NotDone { why, code: Some(ExitCode::Failure.number()) })
        }
    }
}

/// Stops a running subject after a checkpoint of this moment, for at most `time`. Returns the sequence number of the
/// checkpoint.
///
/// # Errors
///
/// `NotDone` with the reason of the guardian, or after the time limit.
pub(crate) fn hold(name: &str, time: Duration) -> Result<String> {
    order(name, &format!("{HOLD_PROGRAM}{}", time.as_millis()))
}

/// Lets a subject continue that was stopped by [`hold`].
///
/// # Errors
///
/// `NotDone` with the reason of the guardian, or after the time limit.
pub(crate) fn release(name: &str) -> Result<()> {
    order(name, RELEASE_PROGRAM).map(drop)
}

/// Returns the error for a request that the guardian has refused. Nothing was changed.
fn refused(why: String) -> GuardianError {
    GuardianError::NotDone { why, code: None }
}

enum Reply {
    /// The request was executed. The text is the rest of the reply.
    Done(String),
    /// The request was not executed, for this reason.
    Refused(String),
}

/// Sends a request to the socket `name` of a guardian, and waits for the reply. Returns `None` after the time limit.
fn ask(name: &str, request: &str, limit: Duration) -> Result<Option<Reply>> {
    let own = new_socket()?;
    bind_to_new_name(&own)?;
    let failed = |errno| Error::new("send a request to the guardian", errno);
    let body = name.strip_prefix(ABSTRACT).unwrap_or(name);
    let guardian = SocketAddrUnix::new_abstract_name(body.as_bytes()).map_err(failed)?;
    sendto(&own, format!("{request}\n").as_bytes(), SendFlags::empty(), &guardian).map_err(failed)?;
    let mut waiting = [PollFd::new(&own, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
    if rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&limit))).map_err(failed)? == 0 {
        return Ok(None);
    }
    let mut line = vec![0; REPLY_MAX];
    let length = recv(&own, &mut line[..], RecvFlags::empty()).map_err(failed)?.0;
    let reply = String::from_utf8_lossy(&line[..length]);
    let reply = reply.trim();
    Ok(Some(match reply.strip_prefix("error ") {
        Some(why) => Reply::Refused(why.to_owned()),
        None => Reply::Done(reply.strip_prefix("ok").unwrap_or(reply).trim().to_owned()),
    }))
}

fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let created = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    Ok(created.map_err(|errno| Error::new("open a socket for requests", errno))?)
}

fn bind_to_new_name(socket: &OwnedFd) -> Result<String> {
    let failed = |errno| Error::new("open a socket for requests", errno);
    let mut random = [0_u8; RANDOM_BYTES];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(failed)?;
    let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
    bind_to(socket, &name).map_err(failed)?;
    Ok(name)
}

fn bind_to(socket: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let body = name.strip_prefix(ABSTRACT).unwrap_or(name);
    bind(socket, &SocketAddrUnix::new_abstract_name(body.as_bytes())?)
}

/// Reports whether a name has the form of the names that a guardian creates.
fn is_ours(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(is_digit)
}

/// Returns the address for the reply. A path is accepted only from root and the user of the guardian: another sender
/// could replace the path by a link to the socket of a service, to which only the guardian has access.
fn unix(address: &SocketAddrAny, is_owner: bool) -> Option<SocketAddrUnix> {
    let address = SocketAddrUnix::try_from(address.clone()).ok()?;
    (address.abstract_name().is_some() || is_owner && address.path().is_some()).then_some(address)
}

/// Reports whether the sender runs as the user root or as the user of the guardian.
fn is_owner(credentials: &UCred) -> bool {
    credentials.uid.is_root() || credentials.uid == rustix::process::geteuid()
}

/// Returns the process that sent the credentials. Returns `None` unless the process belongs to the subject, or runs as
/// the user root or as the user of the guardian.
fn admitted(credentials: &UCred, roots: &Roots) -> Option<ProcessKey> {
    let pid = Pid(credentials.pid.as_raw_nonzero().get());
    let process = procfs::key(pid).ok()?;
    let is_inside = || tree::descendants(roots).is_ok_and(|pids| pids.contains(&pid));
    (is_owner(credentials) || is_inside()).then_some(process)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    /// Creates a client of the socket, with a name of its own.
    fn client(requests: &Requests) -> UnixDatagram {
        let name = format!("{}/client", &requests.name[1..]);
        let client = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let server = SocketAddr::from_abstract_name(&requests.name[1..]).unwrap();
        client.connect_addr(&server).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    fn received(client: &UnixDatagram) -> Option<String> {
        let mut line = [0; 64];
        let length = client.recv(&mut line).ok()?;
        Some(String::from_utf8_lossy(&line[..length]).into_owned())
    }

    fn ask(requests: &Requests, client: &UnixDatagram, line: &str) -> (Word, Asker) {
        client.send(line.as_bytes()).unwrap();
        requests.poll(&own().into()).unwrap()
    }

    #[test]
    fn only_a_name_that_a_guardian_makes_is_bound_again() {
        let first = Requests::open(None).unwrap();
        let name = first.name.clone();
        assert_ne!(Requests::open(Some(&name)).unwrap().name, name, "it is in use");
        drop(first);
        assert_eq!(Requests::open(Some(&name)).unwrap().name, name);
        let foreign = format!("@org.example.service-{}", own());
        for name in [&foreign, "@undying/", "@undying/0123456789abcdeF", "@undying/0123456789abcdef0", ""] {
            let opened = Requests::open(Some(name)).unwrap();
            assert!(opened.name != name && is_ours(&opened.name), "{name}");
        }
    }

    #[test]
    fn no_reply_goes_to_a_path_of_another_user() {
        let path = SocketAddrUnix::new("/run/service").unwrap();
        let name = SocketAddrUnix::new_abstract_name(b"client").unwrap();
        for (address, is_owner, is_accepted) in
            [(&path, false, false), (&path, true, true), (&name, false, true), (&name, true, true)]
        {
            let accepted = unix(&SocketAddrAny::from(address.clone()), is_owner);
            assert_eq!(accepted.as_ref(), is_accepted.then_some(address));
        }
    }

    #[test]
    fn requests_are_received_with_the_process_that_sends_them() {
        let requests = Requests::open(None).unwrap();
        let client = client(&requests);
        assert!(requests.poll(&own().into()).is_none());
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
        assert_eq!(received(&client), None);
        requests.answer_for(model::Sequence(8), "ok 8\n");
        assert_eq!(received(&client).as_deref(), Some("ok 8\n"));
    }

    #[test]
    fn a_hold_ends_with_a_release_its_time_or_its_process() {
        let mut requests = Requests::open(None).unwrap();
        let client = client(&requests);
        let asker = ask(&requests, &client, "hold").1;
        let now = Instant::now();
        requests.hold(asker.clone(), now);
        assert!(requests.is_held() && received(&client).is_none());
        requests.answer_holds();
        assert_eq!(received(&client).as_deref(), Some("ok\n"));
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
