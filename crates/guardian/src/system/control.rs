//! A system has a control socket. A caller connects to the socket and sends one request. The caller receives one answer
//! when the request was executed or refused.
//!
//! Owns: the socket, the form of requests and answers, and the permission check.
//! Invariants: the guardian never waits for a caller. A caller that does not read loses its answer. The number of
//! waiting callers is bounded. The user root and the user of the guardian are operators, and may send every request.
//! Any other user can only complain, and only from a process of a component.
//! Does not: execute a request.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::Pid;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use sys::{Errno, Error};

use super::random;
use crate::error::Result;

/// Prefix of the name of a control socket; random digits follow. The name is an abstract socket name, so the name
/// vanishes with the guardian.
const PREFIX: &str = "undying-system/";
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum number of accepted connections.
const CALLERS_MAX: usize = 256;
/// Maximum number of accepted callers that are not operators. Without this limit, other users could take all places of
/// the operators.
const OTHERS_MAX: usize = 32;
/// Maximum length of a request in bytes. The longest request is a complaint with its text.
const REQUEST_MAX: usize = 16 << 10;

/// An order to the guardian of a system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum SystemOrder {
    /// End all components and the guardian.
    Down,
    /// Read the system file again, and apply its changes.
    Reload,
    /// Start a component, and the components that it needs.
    Start {
        /// Name of the component.
        component: String,
    },
    /// End a component.
    Stop {
        /// Name of the component.
        component: String,
    },
    /// End a component, and start it from its beginning.
    Restart {
        /// Name of the component.
        component: String,
    },
    /// Complain about a component.
    Complain {
        /// Name of the component.
        component: String,
        /// The reason, for the events.
        why: String,
        /// Weight of the complaint.
        weight: NonZeroU32,
    },
}

impl SystemOrder {
    /// Returns the component that the order is about. Returns `None` for an order about the whole system.
    pub(crate) fn component(&self) -> Option<&str> {
        match self {
            Self::Down | Self::Reload => None,
            Self::Start { component }
            | Self::Stop { component }
            | Self::Restart { component }
            | Self::Complain { component, .. } => Some(component),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The request was executed.
    Done { what: String },
    /// The request was not executed, and will not be executed.
    Refused {
        why: String,
        /// The exit code of the caller, if the reason is no refusal.
        code: Option<u8>,
    },
}

/// A process that has sent an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) pid: Pid,
    /// Whether the caller is root or the user of the guardian.
    pub(crate) is_operator: bool,
}

/// The socket of the guardian, with its connections.
#[derive(Debug)]
pub(crate) struct Control {
    listener: OwnedFd,
    pub(crate) name: String,
    callers: BTreeMap<u32, (Caller, OwnedFd)>,
    accepted: u32,
}

impl Control {
    /// Opens a socket under a new name.
    pub(crate) fn open() -> Result<Self> {
        let failed = |errno| Error::new("open the control socket", errno);
        let name = format!("{PREFIX}{:016x}", random::number()?);
        let listener = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(failed)?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        bind(&listener, &address).and_then(|()| listen(&listener, BACKLOG)).map_err(failed)?;
        Ok(Self { listener, name, callers: BTreeMap::new(), accepted: 0 })
    }

    /// Returns a descriptor that becomes readable when a caller connects.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns the connections with their numbers. A connection becomes readable when a request arrives, or when the
    /// caller closes the connection.
    pub(crate) fn callers(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.callers.iter().map(|(number, (_, socket))| (*number, socket.as_fd()))
    }

    pub(crate) fn accept(&mut self) {
        let own = rustix::process::geteuid().as_raw();
        while self.callers.len() < CALLERS_MAX
            && let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            let Ok(peer) = sockopt::socket_peercred(&socket) else { continue };
            let user = peer.uid.as_raw();
            let pid = Pid(peer.pid.as_raw_nonzero().get());
            let caller = Caller { pid, is_operator: user == 0 || user == own };
            let others = self.callers.values().filter(|(caller, _)| !caller.is_operator).count();
            if !caller.is_operator && others >= OTHERS_MAX {
                continue;
            }
            self.callers.insert(self.accepted, (caller, socket));
            self.accepted = self.accepted.wrapping_add(1);
        }
    }

    /// Receives the request of a connection, if it has arrived. Closes a connection that has ended, or whose request is
    /// not valid.
    pub(crate) fn take(&mut self, number: u32) -> Option<(Caller, SystemOrder)> {
        let (caller, socket) = self.callers.get(&number)?;
        let mut text = vec![0_u8; REQUEST_MAX];
        let caller = *caller;
        match recv(socket, &mut text, RecvFlags::TRUNC) {
            Ok((_, length)) if (1..=REQUEST_MAX).contains(&length) => {
                match serde_json::from_slice(&text[..length]) {
                    Ok(ask) => return Some((caller, ask)),
                    Err(error) => {
                        self.answer(number, &Answer::Refused { why: error.to_string(), code: None })
                    }
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            _ => drop(self.callers.remove(&number)),
        }
        None
    }

    /// Sends an answer, and closes the connection.
    pub(crate) fn answer(&mut self, number: u32, answer: &Answer) {
        if let Some((_, socket)) = self.callers.remove(&number)
            && let Ok(text) = serde_json::to_vec(answer)
        {
            // A caller that has disconnected needs no answer.
            let _ = send(&socket, &text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

/// Sends a request to the guardian with this socket name, and waits for the answer.
///
/// # Errors
///
/// ECONNREFUSED if no guardian has this socket name, ECONNRESET if the guardian has ended meanwhile.
pub(crate) fn call(name: &str, ask: &SystemOrder) -> Result<Answer> {
    let failed = |errno| Error::new("ask the guardian of the system", errno);
    let socket = socket(SocketFlags::CLOEXEC).map_err(failed)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    let text = serde_json::to_vec(ask).unwrap_or_default();
    rustix::io::retry_on_intr(|| send(&socket, &text, SendFlags::NOSIGNAL)).map_err(failed)?;
    let mut answer = vec![0_u8; REQUEST_MAX];
    let (_, length) =
        rustix::io::retry_on_intr(|| recv(&socket, &mut answer[..], RecvFlags::empty())).map_err(failed)?;
    let ended = || {
        Error::new("wait for the guardian of the system", Errno(rustix::io::Errno::CONNRESET.raw_os_error()))
    };
    Ok(serde_json::from_slice(&answer[..length]).map_err(|_| ended())?)
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = found() {
                return found;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_request_is_answered_and_garbage_is_refused() {
        let mut control = Control::open().unwrap();
        let name = control.name.clone();
        let ask = SystemOrder::Stop { component: "db".to_owned() };
        let asked = ask.clone();
        let caller = std::thread::spawn(move || call(&name, &asked).unwrap());
        let (number, (from, got)) = until(|| {
            control.accept();
            let number = control.callers().next()?.0;
            control.take(number).map(|got| (number, got))
        });
        assert_eq!((from.pid, from.is_operator, got), (Pid(std::process::id() as i32), true, ask));
        control.answer(number, &Answer::Done { what: "stopped".to_owned() });
        assert_eq!(caller.join().unwrap(), Answer::Done { what: "stopped".to_owned() });
        assert_eq!(control.callers().count(), 0);

        let socket = socket(SocketFlags::CLOEXEC).unwrap();
        let address = SocketAddrUnix::new_abstract_name(control.name.as_bytes()).unwrap();
        connect(&socket, &address).unwrap();
        send(&socket, b"{\"verb\":\"explode\"}", SendFlags::empty()).unwrap();
        until(|| {
            control.accept();
            let number = control.callers().next().map(|(number, _)| number);
            if let Some(number) = number {
                assert_eq!(control.take(number), None);
            }
            (control.callers().count() == 0).then_some(())
        });
        let mut text = [0_u8; 512];
        let (_, length) = recv(&socket, &mut text, RecvFlags::empty()).unwrap();
        assert!(String::from_utf8_lossy(&text[..length]).contains("explode"));
    }

    #[test]
    fn a_caller_that_goes_away_is_forgotten_and_no_guardian_is_an_error() {
        let mut control = Control::open().unwrap();
        let socket = socket(SocketFlags::CLOEXEC).unwrap();
        connect(&socket, &SocketAddrUnix::new_abstract_name(control.name.as_bytes()).unwrap()).unwrap();
        until(|| {
            control.accept();
            control.callers().next().map(drop)
        });
        drop(socket);
        let number = control.callers().next().unwrap().0;
        assert_eq!(control.take(number), None);
        assert_eq!(control.callers().count(), 0);
        let name = control.name.clone();
        drop(control);
        assert!(call(&name, &SystemOrder::Down).is_err());
    }
}
