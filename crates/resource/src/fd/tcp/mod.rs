//! Descriptor kind `fd/tcp`: TCP listeners, TCP connections, and TCP sockets before or after a connection.
//!
//! Owns: classifying a socket, and the order in which the sockets are built.
//! Invariants: a connection between two sockets of the subject is restored with all data in flight. A connection to
//! an outside process is restored if the checkpoint killed the subject (`kills`). Its packets are dropped until the
//! restored socket starts. Otherwise, the connection was lost with its process, and is restored as a socket that
//! reports an error.
//! Does not: restore urgent data, or outside clients that waited to be accepted (these are reset). Kernel TLS, signed
//! segments, and MPTCP connections that would have to be taken over are refused.

mod address;
mod capture;
mod connection;
mod ended;
mod live;
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

use self::state::NAME;
use super::description::Description;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use super::socket_family::{AF_INET, AF_INET6, Family, IPPROTO_MPTCP, IPPROTO_TCP, SOCK_STREAM};
use super::socket_options;
use super::waiting;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::support::label;

const UPPER_PROTOCOL: SocketOption = SocketOption { level: IPPROTO_TCP, number: 31, name: "TCP_ULP" };

const AUTHENTICATION: SocketOption = SocketOption { level: IPPROTO_TCP, number: 40, name: "TCP_AO_INFO" };

/// Descriptor kind ([`FdKind`]) of TCP sockets.
#[derive(Debug)]
pub struct Tcp;

impl FdKind for Tcp {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<state::State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| {
                family.kind == SOCK_STREAM
                    && [IPPROTO_TCP, IPPROTO_MPTCP].contains(&family.protocol)
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
            found.push(capture::being_established(description));
        }
        if is_multipath(description) {
            let is_taken = takes_outside(scope) || capture::has_peer_inside(description, scope);
            if capture::is_connected(state) && is_taken {
                found.push(capture::connection_obstacle(
                    description,
                    capture::MULTIPATH.0,
                    capture::MULTIPATH.1,
                ));
            }
            return found;
        }
        found.extend(unreadable(description, scope));
        let is_taken = || takes_outside(scope) || capture::has_peer_inside(description, scope);
        if capture::is_connected(state) && !scope.sockets.may_repair() && is_taken() {
            found.push(capture::connection_obstacle(
                description,
                "taking a connection over needs CAP_NET_ADMIN",
                "run undying as root, let the program close its connections before the checkpoint, or accept the end \
                 of outside connections with --lose-connections",
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

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: state::State = crate::error::decode(NAME, payload)?;
        state.listener.map_or(Ok(()), |listener| waiting::check(NAME, &listener.waiting))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        let state: state::State = crate::error::decode(NAME, payload).ok()?;
        let addresses = label::addresses(&state.local, &state.peer);
        Some(match state.tcp_state() {
            Some(known) => format!("{addresses} ({known:?})"),
            None => addresses,
        })
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        restore::create(records, context)
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        restore::start(records, created)
    }
}

/// Reports whether connections to outside processes are taken over.
fn takes_outside(scope: &CaptureScope<'_>) -> bool {
    scope.kills && !scope.loses_connections
}

/// Reports whether a socket is an MPTCP socket. A connection that an MPTCP listener has accepted from a TCP client is
/// not an MPTCP socket.
fn is_multipath(description: &Description) -> bool {
    Family::of(description).is_ok_and(|family| family.protocol == IPPROTO_MPTCP)
}

/// Returns the obstacle of state that no interface returns.
fn unreadable(description: &Description, scope: &CaptureScope<'_>) -> Option<Obstacle> {
    let socket = description.as_fd();
    let mut bytes = [0; 64];
    let upper = socket_option::get(socket, UPPER_PROTOCOL, &mut bytes);
    if upper.is_ok_and(|length| length > 0 && bytes[0] != 0) {
        return Some(capture::connection_obstacle(
            description,
            "an upper layer protocol such as kernel TLS is attached to it (TCP_ULP)",
            "start the program without kernel TLS",
        ));
    }
    let local = socket::local(socket).ok()?;
    let peer = socket::peer(socket).ok()?.unwrap_or_else(|| {
        let mut unspecified = local.0.clone();
        unspecified[2..].fill(0);
        socket::SocketAddress(unspecified)
    });
    let has_keys =
        || scope.sockets.diag()?.has_md5_keys(&local, &peer).map_err(crate::error::ResourceError::from);
    if socket_option::get(socket, AUTHENTICATION, &mut bytes).is_ok() || has_keys().unwrap_or(false) {
        return Some(capture::connection_obstacle(
            description,
            "its segments are signed (TCP_MD5SIG, TCP_AO_ADD_KEY), and the keys cannot be read",
            "let the program close it before the checkpoint, or configure it without TCP authentication",
        ));
    }
    None
}
