//! Descriptor kind `fd/unix`: Unix socket pairs, named sockets, listeners and datagram sockets, with their unread
//! messages.
//!
//! Owns: classifying a socket, and the order in which the sockets are built.
//! Invariants: a connection is restored if both of its ends are sockets of the subject. The messages of both
//! directions, descriptors in flight, names, shut directions, and clients that wait to be accepted are restored too.
//! Does not: restore a connection to an outside process, which cannot be given a new socket. Such a connection is
//! refused with the name of the peer. With `loses_connections`, such a connection is restored as closed instead. The
//! connection of an outside client to a server that continues is always restored as closed.

mod bind;
mod calls;
mod capture;
mod names;
mod queue;
mod restore;
mod state;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

use model::{Inode, Pid};
use rustix::event::PollFlags;
use rustix::fs::FileType;
use sys::sock_diag::{self, SockDiag, UnixSocket};
use sys::socket;

use self::state::NAME;
use super::description::Description;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::peek_queue::peek_all;
use super::scope::CaptureScope;
use super::socket_events::events;
use super::socket_family::{AF_UNIX, Family, SOCK_DGRAM};
use super::socket_options;
use super::waiting;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::support::outside;

/// Descriptor kind ([`FdKind`]) of Unix sockets.
#[derive(Debug)]
pub struct Unix;

impl FdKind for Unix {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<state::State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| family.domain == AF_UNIX)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, "Unix socket");
        found.extend(names::obstacle(description));
        found.extend(urgent_byte(description));
        let Ok(diag) = scope.sockets.diag() else { return found };
        let Ok(own) = capture::look_up(&diag, description) else { return found };
        found.extend(outside_peer(&diag, &own, description, scope));
        found.extend(unaccepted_bytes(&diag, &own, description, scope));
        found
    }

    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        // No message and no client is waiting.
        if !events(description)?.contains(PollFlags::IN) {
            return Ok(Vec::new());
        }
        let family = Family::of(description)?;
        let own = capture::look_up(&SockDiag::open()?, description)?;
        if own.state != sock_diag::LISTENING {
            let seen = peek_all(description.as_fd(), family.kind)?;
            return Ok(seen.into_iter().flat_map(|message| message.rights).collect());
        }
        let waiting = if takes { own.receive_queue } else { 0 };
        (0..waiting).map(|_| Ok(socket::accept(description.as_fd())?)).collect()
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(capture::Capture::new(description, scope)?))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: state::State = crate::error::decode(NAME, payload)?;
        state.listener.map_or(Ok(()), |listener| waiting::check(NAME, &listener.waiting))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        let state: state::State = crate::error::decode(NAME, payload).ok()?;
        let own = state::show(&sys::socket::SocketAddress(state.local));
        let is_listener = state.listener.is_some();
        Some(if is_listener { format!("{own} (Listen)") } else { own })
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        restore::create(records, context)
    }
}

fn urgent_byte(description: &Description) -> Option<Obstacle> {
    let is_urgent = capture::is_urgent(description).unwrap_or(false);
    is_urgent.then(|| description.obstacle("Unix socket", capture::URGENT, capture::URGENT_FIX))
}

/// Returns the obstacle of a client that has sent bytes, but was not accepted.
fn unaccepted_bytes(
    diag: &SockDiag,
    own: &UnixSocket,
    description: &Description,
    scope: &CaptureScope<'_>,
) -> Option<Obstacle> {
    // The peer of such a client is a socket without a descriptor.
    own.peer.filter(|peer| *peer == Inode(0) && !scope.kills)?;
    capture::waits_for(diag, description, scope).ok()??;
    let bytes = socket::unacknowledged_bytes(description.as_fd()).ok()?;
    let obstacle = || description.obstacle("Unix socket", capture::UNACCEPTED_BYTES, capture::RETRY);
    (bytes > 0).then(obstacle)
}

/// Returns the obstacle of a socket that is connected to an outside process.
fn outside_peer(
    diag: &SockDiag,
    own: &UnixSocket,
    description: &Description,
    scope: &CaptureScope<'_>,
) -> Option<Obstacle> {
    let peer = own.peer.filter(|peer| *peer != Inode(0))?;
    let name = socket::peer(description.as_fd()).ok().flatten().unwrap_or_default();
    let is_datagram = i32::from(own.kind) == SOCK_DGRAM;
    if capture::find(scope, peer).is_some() || (is_datagram && !name.body().is_empty()) {
        return None;
    }
    if scope.loses_connections {
        return None;
    }
    if capture::may_end(description, scope) && capture::is_server(diag, own).unwrap_or(false) {
        return None;
    }
    let link = format!("socket:[{peer}]");
    // A socket that was opened after the descriptors were listed is no obstacle.
    if scope.pids.iter().any(|pid| holds(*pid, &link)) {
        return None;
    }
    let holder = outside::describe(outside::holder(scope, &link));
    let mut place = format!("connected to {holder}");
    if !name.body().is_empty() {
        place = format!("{place} by the name {}", state::show(&name));
    }
    Some(Obstacle {
        place,
        ..description.obstacle(
            "Unix socket",
            "the process at its other end is outside the tree and cannot be given a new socket",
            "let the program close it before the checkpoint, checkpoint a common ancestor, or accept the end of \
             the connection with --lose-connections (harmless if the program connects again, as clients of \
             gpg-agent and similar agents do)",
        )
    })
}

fn holds(pid: Pid, link: &str) -> bool {
    let numbers = tracee::procfs::descriptors(pid).unwrap_or_default();
    let links = numbers.iter().map(|fd| tracee::procfs::link(format!("/proc/{pid}/fd/{fd}")));
    links.flatten().any(|found| found.as_os_str() == link)
}
