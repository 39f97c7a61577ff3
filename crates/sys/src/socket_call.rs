//! Reads socket calls (bind, listen, connect, and sends that connect) from the notifications of a seccomp filter.
//!
//! Owns: these calls of x86-64, x32 and i386 as one type, and the trait for handlers of these calls.
//! Invariants: if the arguments of a call cannot be read completely, [`read`] returns `None`, and the kernel
//! decides about the call.
//! Does not: receive or answer notifications.
//!
//! Memory that the arguments point to can change after a handler has read it and before the kernel executes the
//! call. So a handler is no security boundary.

use std::fmt;
use std::sync::Arc;

use model::{Address, ByteCount, Fd, Pid};

use crate::listener_holder::HeldCalls;
use crate::process_memory;
use crate::seccomp_listener::{CallTable, Listener, Notification};
use crate::socket::SocketAddress;

/// Size of the largest address in bytes (struct sockaddr_storage).
const ADDRESS_BYTES_MAX: u64 = 128;
/// Call number of socketcall(2) on i386.
const SOCKETCALL: i64 = 102;
/// Number of words that socketcall(2) reads for bind(2) and connect(2). For listen(2), socketcall(2) reads two
/// words.
const WORDS: usize = 3;
const WORD_BYTES: usize = 4;
/// Call numbers of sendmsg(2) and sendmmsg(2) on x32.
const X32_SENDMSG: i64 = 518;
const X32_SENDMMSG: i64 = 538;

/// The kind of a socket call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallKind {
    /// bind(2).
    Bind,
    /// listen(2).
    Listen,
    /// connect(2).
    Connect,
    /// sendto(2), sendmsg(2) or sendmmsg(2) with MSG_FASTOPEN, which connects the socket.
    Send,
}

/// A socket call with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketCall {
    /// The kind of the call.
    pub kind: CallKind,
    /// The descriptor of the socket in the calling process.
    pub socket: Fd,
    /// The address of bind(2) or connect(2); empty for other calls.
    pub address: SocketAddress,
}

/// The outcome of handling a reported call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// The handler has answered the call.
    Answered,
    /// The handler has recorded the call in the table of held calls, and answers the call later.
    Held,
    /// The handler does not answer. The receiver lets the call continue.
    Pass,
}

/// A received call, and the objects that are needed to answer the call.
#[derive(Clone, Copy, Debug)]
pub struct ReportedCall<'a> {
    /// The notification of the call.
    pub notification: &'a Notification,
    /// The listener through which the call is answered.
    pub listener: &'a Arc<Listener>,
    /// The table that records calls that are answered later. The listener holder, which shares the table, can then
    /// let these calls continue after the death of this process.
    pub held: &'a HeldCalls,
}

impl ReportedCall<'_> {
    /// Reports whether the call still waits for its answer ([`Listener::is_valid`]).
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.listener.is_valid(self.notification.id())
    }
}

/// A handler of the socket calls of one program.
pub trait CallHandler: Send + Sync + fmt::Debug {
    /// Decides about a call for which [`kind_of`] returns a kind. The handler must not block, because other calls
    /// wait until the handler returns.
    fn handle(&self, call: &ReportedCall<'_>) -> Handled;

    /// Reports whether the handler can hold a call for a long time, so that signals must be able to interrupt the call.
    fn may_hold(&self) -> bool {
        true
    }
}

/// Returns the kind of the socket call of a notification; `None` for any other call.
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
        (
            CallTable::X86_64 | CallTable::X32,
            libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg | X32_SENDMSG | X32_SENDMMSG,
        )
        | (CallTable::I386, 345 | 369 | 370) => Some(CallKind::Send),
        // The kernel reads the request as an int.
        (CallTable::I386, SOCKETCALL) => match notification.arguments()[0] as u32 {
            2 => Some(CallKind::Bind),
            3 => Some(CallKind::Connect),
            4 => Some(CallKind::Listen),
            _ => None,
        },
        _ => None,
    }
}

/// Reads a socket call with its address. Returns `None` for any other call, for memory that cannot be read, and for
/// an address length that the kernel refuses. If the answer depends on the result, check [`Listener::is_valid`]
/// afterwards.
#[must_use]
pub fn read(notification: &Notification) -> Option<SocketCall> {
    let kind = kind_of(notification)?;
    let process = Pid(notification.tid().get());
    let is_socketcall = (notification.table(), notification.call()) == (CallTable::I386, SOCKETCALL);
    let [socket, at, length] = if is_socketcall {
        // For listen(2), the memory after the second word need not be readable.
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
    // The kernel reads the descriptor and the length as ints.
    let (socket, length) = (Fd(socket as i32), u64::from(length as u32));
    if matches!(kind, CallKind::Listen | CallKind::Send) {
        return Some(SocketCall { kind, socket, address: SocketAddress::default() });
    }
    let at = if notification.table() == CallTable::I386 { u64::from(at as u32) } else { at };
    let length = (length <= ADDRESS_BYTES_MAX).then_some(ByteCount(length))?;
    let mut address = vec![0; length.get() as usize];
    process_memory::read(process, Address(at), &mut address).ok()?;
    Some(SocketCall { kind, socket, address: SocketAddress(address) })
}
