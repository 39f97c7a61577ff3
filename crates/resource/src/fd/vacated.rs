//! Drops packets of outside TCP connections (to processes outside the subject) while their sockets are being
//! replaced.
//!
//! Owns: the packet filter table that drops these packets. Without this table, the kernel would answer such a packet
//! with a reset, since the connection has no socket.
//! Invariants: only packets of the given connections are dropped. A locked connection (its packets are dropped) is
//! unlocked when its restored socket starts. A table that remains after a failed restore affects no other connection.
//! Does not: lock without the `nft` command. Without a lock, a connection survives only if no packet arrives before
//! the restore.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sys::{Errno, Error};

use crate::error::Result;

const COMMAND: &str = "nft";
const TABLE: &str = "inet undying";
/// How often a script is run if `nft` is killed. A script can be repeated, because each of its commands can.
const ATTEMPTS_MAX: usize = 3;

/// Locks connections: their packets are dropped. A connection is a pair of the local address and the peer's address.
pub(super) fn lock(connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
    if connections.is_empty() {
        return Ok(());
    }
    let mut script = format!("add table {TABLE}\n");
    for (set, family) in [("held4", "ipv4_addr"), ("held6", "ipv6_addr")] {
        let _ = writeln!(
            script,
            "add set {TABLE} {set} {{ type {family} . inet_service . {family} . inet_service; }}"
        );
    }
    for (chain, hook) in [("incoming", "input"), ("outgoing", "output")] {
        let _ = writeln!(script, "add chain {TABLE} {chain} {{ type filter hook {hook} priority -310; }}");
        let _ = writeln!(script, "flush chain {TABLE} {chain}");
    }
    for (set, ip) in [("held4", "ip"), ("held6", "ip6")] {
        let _ = writeln!(
            script,
            "add rule {TABLE} incoming {ip} saddr . tcp sport . {ip} daddr . tcp dport @{set} drop\n\
             add rule {TABLE} outgoing {ip} daddr . tcp dport . {ip} saddr . tcp sport @{set} drop"
        );
    }
    script.push_str(&elements("add", connections));
    run(&script)
}

/// Unlocks connections. Ignores connections that are not locked.
pub(super) fn unlock(connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
    if connections.is_empty() || !is_there() {
        return Ok(());
    }
    // Deleting a missing element would fail the whole script, so the script first adds all elements.
    run(&format!("{}{}", elements("add", connections), elements("delete", connections)))
}

/// Connections whose old sockets were disconnected, so that restored sockets can take them over. Packets of these
/// connections are dropped until the restored sockets start. The sockets of a failed restore are kept for the next
/// attempt. When the last clone is dropped, the sockets are closed and the kernel resets the peers.
#[derive(Clone, Debug, Default)]
pub struct Vacated(Arc<Mutex<Locked>>);

#[derive(Debug, Default)]
struct Locked {
    connections: Vec<(SocketAddr, SocketAddr)>,
    built: Vec<Arc<OwnedFd>>,
}

impl Vacated {
    pub(super) fn add(&self, connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        self.lock().connections.extend(connections);
        lock(connections)
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

    /// Removes all connections from this list, since their restored sockets have started in the running program.
    pub fn forget(&self) {
        let mut locked = self.lock();
        locked.connections.clear();
        locked.built.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        for socket in &self.built {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        let _ = unlock(&self.connections);
    }
}

fn elements(verb: &str, connections: &[(SocketAddr, SocketAddr)]) -> String {
    let mut script = String::new();
    for (local, peer) in connections {
        let set = if local.is_ipv4() { "held4" } else { "held6" };
        let _ = writeln!(
            script,
            "{verb} element {TABLE} {set} {{ {} . {} . {} . {} }}",
            peer.ip(),
            peer.port(),
            local.ip(),
            local.port()
        );
    }
    script
}

/// Reports whether the table may exist. If `nft` was killed, the table may exist.
fn is_there() -> bool {
    let words = ["list", "table"].into_iter().chain(TABLE.split(' '));
    let quiet = Command::new(COMMAND).args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success() || status.signal().is_some())
}

fn run(script: &str) -> Result<()> {
    (1..ATTEMPTS_MAX).find_map(|_| run_once(script).transpose()).unwrap_or_else(|| {
        let killed = || Error::new("drop packets: nft was killed", Errno::EAGAIN).into();
        run_once(script)?.ok_or_else(killed)
    })
}

/// Runs a script. Returns `None` if `nft` was killed.
fn run_once(script: &str) -> Result<Option<()>> {
    let child = Command::new(COMMAND)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Some(())),
        other => other.map_err(|error| Error::path("run", COMMAND, error))?,
    };
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(script.as_bytes()) {
            // The status tells whether `nft` was killed.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(Error::path("write to", COMMAND, error).into());
            }
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(|error| Error::path("run", COMMAND, error))?;
    if output.status.success() {
        return Ok(Some(()));
    }
    if output.status.signal().is_some() {
        return Ok(None);
    }
    let reported = String::from_utf8_lossy(&output.stderr);
    let reported = reported.lines().next().unwrap_or_default().to_owned();
    Err(Error::new(format!("drop packets with nft ({reported})"), Errno::EINVAL).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_connection_receives_no_packet_until_it_is_unlocked() {
        use std::io::Read;
        let _alone = super::super::test_support::alone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let pair = [(server.local_addr().unwrap(), server.peer_addr().unwrap())];
        if let Err(error) = lock(&pair) {
            return println!("unsupported: {error}");
        }
        client.write_all(b"x").unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let blocked = server.read(&mut [0; 1]);
        unlock(&pair).unwrap();
        unlock(&pair).unwrap();
        if Command::new(COMMAND).arg("-v").output().is_err() {
            return println!("unsupported: nft");
        }
        assert!(blocked.is_err());
        server.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 1);
    }
}
