//! Calls that name the address of a socket, as a filter reports them.
//!
//! Owns: bind(2), listen(2) and connect(2) of x86-64, x32 and i386 as one type; the interface of what handles them.
//! Invariants: what cannot be read in full is no call: the kernel judges it then.
//! Does not: receive notifications, or answer them.
//!
//! What the arguments point to can change between the look and the call. So a handler is no security boundary.

use std::fmt;
use std::sync::Arc;

use model::{Address, ByteCount, Fd, Pid};

use crate::listener_holder::HeldCalls;
use crate::process_memory;
use crate::seccomp_listener::{CallTable, Listener, Notification};
use crate::socket::SocketAddress;

/// Bytes of the largest address (struct sockaddr_storage).
const ADDRESS_BYTES_MAX: u64 = 128;
/// socketcall(2) of i386.
const SOCKETCALL: i64 = 102;
/// Words that it has for bind(2) and connect(2); listen(2) has two.
const WORDS: usize = 3;
const WORD_BYTES: usize = 4;

/// Which call it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallKind {
    /// bind(2).
    Bind,
    /// listen(2).
    Listen,
    /// connect(2).
    Connect,
}

/// A call with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketCall {
    /// Which call it is.
    pub kind: CallKind,
    /// The socket, in the table of the caller.
    pub socket: Fd,
    /// The address of bind(2) or connect(2); empty for listen(2).
    pub address: SocketAddress,
}

/// What became of a reported call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// The handler has answered it.
    Answered,
    /// The handler has noted it in the table of held calls, and answers it later.
    Held,
    /// The receiver answers that it continues.
    Pass,
}

/// A call that was received, and what it is answered with.
#[derive(Clone, Copy, Debug)]
pub struct ReportedCall<'a> {
    /// The call.
    pub notification: &'a Notification,
    /// Where it is answered.
    pub listener: &'a Arc<Listener>,
    /// Where it is noted if it is answered later, so that the listener holder knows it.
    pub held: &'a HeldCalls,
}

/// Handles the calls of one program that name addresses of sockets.
pub trait CallHandler: Send + Sync + fmt::Debug {
    /// Judges a call for which [`kind_of`] is some. It must not wait: other calls wait behind it.
    fn handle(&self, call: &ReportedCall<'_>) -> Handled;
}

/// Which of these calls a notification is; `None` for any other.
#[must_use]
pub fn kind_of(notification: &Notification) -> Option<CallKind> {
    let number = notification.call();
    match (notification.table(), number) {
        (CallTable::X86_64 | CallTable::X32, libc::SYS_bind) | (CallTable::I386, 361) => Some(CallKind::Bind),
        (CallTable::X86_64 | CallTable::X32, libc::SYS_connect) | (CallTable::I386, 362) => {
            Some(CallKind::Connect)
        }
        (CallTable::X86_64 | CallTable::X32, libc::SYS_listen) | (CallTable::I386, 363) => {
            Some(CallKind::Listen)
        }
        // The kernel takes the request as an int.
        (CallTable::I386, SOCKETCALL) => match notification.arguments()[0] as u32 {
            2 => Some(CallKind::Bind),
            3 => Some(CallKind::Connect),
            4 => Some(CallKind::Listen),
            _ => None,
        },
        _ => None,
    }
}

/// Reads a call with its address. `None` for another call, for memory that cannot be read, and for an address of a
/// length that the kernel refuses. Check [`Listener::is_valid`] afterwards if the answer depends on what was read.
#[must_use]
pub fn read(notification: &Notification) -> Option<SocketCall> {
    let kind = kind_of(notification)?;
    let process = Pid(notification.tid().get());
    let is_socketcall = (notification.table(), notification.call()) == (CallTable::I386, SOCKETCALL);
    let [socket, at, length] = if is_socketcall {
        // The third word of listen(2) need not be there.
        let mut words = [0; WORDS * WORD_BYTES];
        let count = if kind == CallKind::Listen { 2 } else { WORDS };
        let from = Address(u64::from(notification.arguments()[1] as u32));
        process_memory::read(process, from, &mut words[..count * WORD_BYTES]).ok()?;
        let word = |index: usize| words[index * WORD_BYTES..].first_chunk().copied().map(u32::from_ne_bytes);
        [u64::from(word(0)?), u64::from(word(1)?), u64::from(word(2)?)]
    } else {
        let [socket, at, length, ..] = notification.arguments();
        [socket, at, length]
    };
    // Both are ints.
    let (socket, length) = (Fd(socket as i32), u64::from(length as u32));
    if kind == CallKind::Listen {
        return Some(SocketCall { kind, socket, address: SocketAddress::default() });
    }
    let at = if notification.table() == CallTable::I386 { u64::from(at as u32) } else { at };
    let length = (length <= ADDRESS_BYTES_MAX).then_some(ByteCount(length))?;
    let mut address = vec![0; length.get() as usize];
    process_memory::read(process, Address(at), &mut address).ok()?;
    Some(SocketCall { kind, socket, address: SocketAddress(address) })
}
