//! Observes when process trees send data over sockets.
//!
//! A tree is identified by the listener of its seccomp filter: each thread of the tree inherits the filter, also after
//! fork(2) and execve(2). Programs on two tracepoints of the kernel record, for each socket of an observed tree, the
//! kind of the socket, both ends, and the time of the last send. The sending thread does not wait for this process.
//!
//! Owns: the programs, their maps, and the decoding of a recorded socket.
//! Invariants: the time of a send that has returned to the program is recorded. A socket whose record was forgotten
//! because the map was full is recorded again with its next send.
//! Does not: decide which sends matter.
//!
//! Man page: bpf(2); the tracepoints `sock_send_length` and `sock_recv_length`
//! Since: Linux 6.13 with CONFIG_DEBUG_INFO_BTF (`bpf_task_from_vpid`); the tracepoints exist since Linux 6.3
//! Probe: `features::REGISTRY` entry "send-observer"
//! Fallback: none; the caller must assume that a tree has sent data

mod program;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use model::Tid;

use self::program::{KEY_BYTES, Offsets, VALUE_BYTES, Value};
use crate::bpf::types::KernelTypes;
use crate::bpf::{AttachedProgram, CalledProgram, Map, WhenFull};
use crate::error::{Errno, Error, Result};
use crate::feature::{Feature, enabled};

/// Maximum number of trees that one process observes.
const TREES_MAX: u32 = 1 << 12;
/// Maximum number of sockets of all observed trees. A record takes about 150 bytes.
const SOCKETS_MAX: u32 = 1 << 15;

/// Observes trees of this process.
#[derive(Debug)]
pub struct SendObserver {
    trees: Map<8, 1>,
    sockets: Map<KEY_BYTES, VALUE_BYTES>,
    finder: CalledProgram,
    offsets: Offsets,
    _attached: [AttachedProgram; 2],
}

/// A tree whose sends are recorded, until this value is dropped.
#[derive(Debug)]
pub struct ObservedTree {
    observer: Arc<SendObserver>,
    /// The address of the listener in the kernel. No other listener has this address as long as the tree or a copy of
    /// the listener's descriptor exists.
    listener: [u8; 8],
}

/// A socket of an observed tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedSocket {
    /// The address family, for example AF_INET.
    pub family: u16,
    /// The type, for example SOCK_STREAM.
    pub kind: u16,
    /// The inode number.
    pub inode: u64,
    /// Whether the program has chosen the local port by bind(2).
    pub has_bound_port: bool,
    /// Whether a Unix socket has an address. An accepted socket has the address of its listening socket.
    pub has_address: bool,
    /// The inode number of the connected Unix socket, or 0.
    pub peer_inode: u64,
    /// The local end of an internet socket.
    pub local: Option<SocketAddr>,
    /// The remote end of an internet socket.
    pub remote: Option<SocketAddr>,
    /// The time of the last send on CLOCK_MONOTONIC. `None` if the tree has only received data.
    pub sent: Option<Duration>,
}

impl SendObserver {
    /// Returns the observer of this process, which all observed trees share. Loads the programs if no tree is observed.
    ///
    /// # Errors
    ///
    /// ENOSYS if the feature is switched off, ENOENT if this kernel does not describe its structures, and the errors of
    /// bpf(2) if this process may not load programs.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<SendObserver>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(observer) = shared.upgrade() {
            return Ok(observer);
        }
        let observer = Arc::new(Self::new()?);
        *shared = Arc::downgrade(&observer);
        Ok(observer)
    }

    fn new() -> Result<Self> {
        if !enabled(Feature::SendObserver) {
            return Err(Error::new(
                "observe sends: the feature send-observer is switched off",
                Errno::ENOSYS,
            ));
        }
        let types = KernelTypes::get()?;
        let offsets = Offsets::of(types)?;
        let (trees, sockets) =
            (Map::new(TREES_MAX, WhenFull::Refuse)?, Map::new(SOCKETS_MAX, WhenFull::Forget)?);
        let finder =
            CalledProgram::load(&program::find_listener(&offsets, types)?, "finds the filter of a thread")?;
        let record = |is_send| program::record(&offsets, &trees, &sockets, is_send);
        let sends = AttachedProgram::attach(c"sock_send_length", &record(true))?;
        let receipts = AttachedProgram::attach(c"sock_recv_length", &record(false))?;
        Ok(Self { trees, sockets, finder, offsets, _attached: [sends, receipts] })
    }

    /// Observes the tree of a thread from now on. The thread has a seccomp filter with a listener.
    ///
    /// # Errors
    ///
    /// ESRCH if the thread does not exist, ENOENT if no filter of the thread has a listener, and the errors of bpf(2).
    pub fn observe(self: &Arc<Self>, thread: Tid) -> Result<ObservedTree> {
        let failed = |errno: Errno| Error::thread("find the filter of", thread, errno);
        let mut context = [0; program::FINDER_BYTES];
        context[..4].copy_from_slice(&thread.get().to_ne_bytes());
        match self.finder.run(&mut context).map_err(failed)? {
            program::FOUND => {}
            program::NO_THREAD => return Err(failed(Errno::ESRCH)),
            _ => return Err(failed(Errno::ENOENT)),
        }
        let mut listener = [0; 8];
        listener.copy_from_slice(&context[8..16]);
        self.trees.set(&listener, &[1])?;
        Ok(ObservedTree { observer: Arc::clone(self), listener })
    }

    fn sockets_of(&self, listener: [u8; 8]) -> Result<Vec<([u8; KEY_BYTES], Value)>> {
        let all = self.sockets.entries()?;
        Ok(all
            .into_iter()
            .filter(|(key, _)| key[..8] == listener)
            .map(|(key, value)| (key, Value::decode(&value, &self.offsets)))
            .collect())
    }
}

impl ObservedTree {
    /// Returns the sockets over which the tree has sent or received data since the tree is observed.
    ///
    /// # Errors
    ///
    /// The map of sockets cannot be read.
    pub fn sockets(&self) -> Result<Vec<ObservedSocket>> {
        let found = self.observer.sockets_of(self.listener)?;
        Ok(found.into_iter().map(|(key, value)| ObservedSocket::new(&key, &value)).collect())
    }
}

impl Drop for ObservedTree {
    fn drop(&mut self) {
        self.observer.trees.remove(&self.listener);
        // The kernel can use the address of the listener again, so no record may remain.
        for (key, _) in self.observer.sockets_of(self.listener).unwrap_or_default() {
            self.observer.sockets.remove(&key);
        }
    }
}

impl ObservedSocket {
    fn new(key: &[u8; KEY_BYTES], value: &Value) -> Self {
        let inode =
            u64::from_ne_bytes([key[8], key[9], key[10], key[11], key[12], key[13], key[14], key[15]]);
        let is_unix = i32::from(value.family) == libc::AF_UNIX;
        Self {
            family: value.family,
            kind: value.kind,
            inode,
            has_bound_port: value.has_bound_port,
            has_address: is_unix && value.unix_address != 0,
            peer_inode: if is_unix { value.unix_peer } else { 0 },
            local: address(value.family, value.local, value.local_port),
            remote: address(value.family, value.remote, value.remote_port),
            sent: (value.sent != 0).then(|| Duration::from_nanos(value.sent)),
        }
    }
}

/// Returns the address of an internet socket. An IPv4 address of an IPv6 socket becomes a plain IPv4 address.
fn address(family: u16, (v4, v6): ([u8; 4], [u8; 16]), port: u16) -> Option<SocketAddr> {
    let address = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(v4)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(v6)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests;
