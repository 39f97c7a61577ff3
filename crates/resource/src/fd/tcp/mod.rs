//! TCP sockets: listeners, connections, and what has not become or is no longer either.
//!
//! Owns: which of these a socket is, and in which order all are built.
//! Invariants: a connection between two sockets of the subject comes back with everything that was under way in
//! it. One to the outside comes back when the subject was ended for it (`kills`): from then on its packets are
//! held back until it starts again. In any other case it was lost with its process, and comes back as a socket
//! that says so.
//! Does not: bring back clients from outside that waited to be accepted (they are reset), urgent data, kernel TLS
//! (refused), TCP-MD5 keys.

mod capture;
mod connection;
mod ended;
mod lock;
mod restore;
mod segment;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use model::DescriptionId;
use rustix::fs::FileType;
use sys::socket;
use sys::socket_option::{self, SocketOption};
use sys::tcp_repair::{self, State as TcpState};

use super::socket_options::{self, AF_INET, AF_INET6, Family, IPPROTO_TCP};
use super::{CaptureScope, Description, FdCapture, FdCreate, FdKind, FdRecord, inet_address};
use crate::error::Result;
use crate::obstacle::Obstacle;

pub(super) const NAME: &str = "fd/tcp";
const SOCK_STREAM: i32 = 1;
const UPPER_PROTOCOL: SocketOption = SocketOption { level: IPPROTO_TCP, number: 31, name: "TCP_ULP" };

/// TCP sockets.
#[derive(Debug)]
pub struct Tcp;

impl FdKind for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "tcp: listeners with their backlog, connections with queues, options, half-closed ones"
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| {
                family.kind == SOCK_STREAM
                    && family.protocol == IPPROTO_TCP
                    && [AF_INET, AF_INET6].contains(&family.domain)
            })
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, "TCP socket");
        let state = tcp_repair::info(description.as_fd()).ok();
        let state = state.and_then(|info| TcpState::from_number(info.state));
        if state == Some(TcpState::SynReceived) {
            found.push(connection_obstacle(description, "it is just being made", "try again in a moment"));
        }
        let mut name = [0; 16];
        let upper = socket_option::get(description.as_fd(), UPPER_PROTOCOL, &mut name);
        if upper.is_ok_and(|length| length > 0 && name[0] != 0) {
            found.push(connection_obstacle(
                description,
                "the kernel encrypts it or carries another protocol in it (TCP_ULP)",
                "start the program without kernel TLS",
            ));
        }
        let is_taken = || scope.kills || capture::has_peer_inside(description, scope);
        if capture::is_connected(state) && !scope.sockets.may_repair() && is_taken() {
            found.push(connection_obstacle(
                description,
                "taking a connection over needs CAP_NET_ADMIN",
                "run undying as root, or let the program close its connections first",
            ));
        }
        found
    }

    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        let mut found = Vec::new();
        if !takes {
            return Ok(found);
        }
        let info = tcp_repair::info(description.as_fd())?;
        if TcpState::from_number(info.state) != Some(TcpState::Listen) {
            return Ok(found);
        }
        for _ in 0..info.unacknowledged {
            found.push(socket::accept(description.as_fd())?);
        }
        Ok(found)
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(capture::Capture::new(description, scope)?))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        restore::create(records, context)
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        restore::start(records, created)
    }
}

fn connection_obstacle(description: &Description, why: &str, fix: &str) -> Obstacle {
    let socket = description.as_fd();
    let show = |address: Option<_>| address.map_or_else(String::new, |one| inet_address::show(&one));
    let local = show(socket::local(socket).ok());
    let peer = show(socket::peer(socket).ok().flatten());
    Obstacle { place: format!("{local} - {peer}"), ..description.obstacle("TCP connection", why, fix) }
}

/// Whether this process has CAP_NET_ADMIN.
pub(super) fn may_repair() -> bool {
    const CAP_NET_ADMIN: u64 = 1 << 12;
    let us = model::Pid(std::process::id() as i32);
    tracee::procfs::status(us).is_ok_and(|status| status.cap_effective & CAP_NET_ADMIN != 0)
}
