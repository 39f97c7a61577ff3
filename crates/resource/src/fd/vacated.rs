//! Outside TCP connections (to processes outside the subject) while their sockets are being replaced: their packets
//! are dropped.
//!
//! Owns: the connections of one restart whose packets are dropped. If the packets were not dropped, the kernel would
//! answer a packet with a reset, since the connection has no socket.
//! Invariants: the packets of a connection pass again when its restored socket starts, or when the restart was given
//! up. If this process ends, the kernel lets them pass.
//! Does not: drop packets; `sys::packet_drop` does.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sys::packet_drop::{Ends, PacketDrop};
use sys::packet_hold::PacketHold;

use crate::error::Result;

/// Lets the packets of connections pass that a checkpoint of a killed subject has begun to drop. Ignores connections
/// whose packets are not dropped.
pub(super) fn pass(connections: &[Ends]) -> Result<()> {
    if !connections.is_empty() {
        PacketDrop::lasting()?.remove(connections)?;
    }
    Ok(())
}

/// Connections whose old sockets were disconnected, so that restored sockets can take them over. Packets of these
/// connections are dropped until the restored sockets start. The sockets of a failed restore are kept for the next
/// attempt. When the last clone is dropped, the sockets are closed and the kernel resets the peers.
#[derive(Clone, Debug, Default)]
pub struct Vacated(Arc<Mutex<Replaced>>);

#[derive(Debug, Default)]
struct Replaced {
    connections: Vec<Ends>,
    built: Vec<Arc<OwnedFd>>,
    /// Has the table that drops the packets.
    hold: Option<Arc<PacketHold>>,
}

impl Replaced {
    fn pass(&self) -> Result<()> {
        if let Some(hold) = self.hold.as_ref().filter(|_| !self.connections.is_empty()) {
            hold.drops().remove(&self.connections)?;
        }
        Ok(())
    }
}

impl Vacated {
    /// Begins to drop the packets of connections. All calls for one value must have the same `hold`.
    pub(super) fn add(&self, hold: &Arc<PacketHold>, connections: &[Ends]) -> Result<()> {
        let mut replaced = self.lock();
        replaced.hold = Some(Arc::clone(hold));
        // A second attempt names the connections of the first one again.
        let known = &replaced.connections;
        let new: Vec<Ends> = connections.iter().filter(|ends| !known.contains(ends)).copied().collect();
        replaced.connections.extend(new);
        if !replaced.connections.is_empty() {
            // A failed attempt may have let the packets of some connections pass.
            hold.drops().add(&replaced.connections)?;
        }
        Ok(())
    }

    pub(super) fn has(&self, connection: (SocketAddr, SocketAddr)) -> bool {
        self.lock().connections.contains(&connection)
    }

    pub(super) fn note_built(&self, socket: Arc<OwnedFd>) {
        self.lock().built.push(socket);
    }

    /// Removes and returns the sockets that an earlier restore attempt has built.
    pub(super) fn take_built(&self) -> Vec<Arc<OwnedFd>> {
        std::mem::take(&mut self.lock().built)
    }

    /// Lets the packets of the connections pass. Must be called when their restored sockets are about to start.
    pub fn pass(&self) -> Result<()> {
        self.lock().pass()
    }

    /// Removes all connections from this list, since their restored sockets have started in the running program.
    pub fn forget(&self) {
        let mut replaced = self.lock();
        replaced.connections.clear();
        replaced.built.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Replaced> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        for socket in &self.built {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        let _ = self.pass();
    }
}
