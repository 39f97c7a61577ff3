//! Outside connections without a socket between its end and its restore, and dropping their packets.
//!
//! Owns: the packet filter table that drops packets for these connections. The kernel would answer a packet without a
//! socket with a reset.
//! Invariants: only packets of the given connections are dropped. Each locked connection is unlocked when its socket
//! starts again. If a restore never follows, the table affects no other connections.
//! Does not: lock without the `nft` command. Then a connection survives only if no packet arrives meanwhile.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sys::{Errno, Error};

use crate::error::Result;

const COMMAND: &str = "nft";
const TABLE: &str = "inet undying";

/// Locks connections: drops their packets. Each is given by its local and its peer's address.
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

/// Unlocks connections; those that are not locked are ignored.
pub(super) fn unlock(connections: &[(SocketAddr, SocketAddr)]) -> Result<()> {
    if connections.is_empty() || !is_there() {
        return Ok(());
    }
    // Deleting a missing element would fail the whole script, so all are added first.
    run(&format!("{}{}", elements("add", connections), elements("delete", connections)))
}

/// Connections whose old sockets were disconnected in favour of restored ones. Their packets are dropped until they
/// start. Sockets of a failed restore are kept for the next attempt. When the last clone is dropped, their peers are
/// reset.
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

    /// Sockets that an earlier attempt has built.
    pub(super) fn take_built(&self) -> Vec<Arc<OwnedFd>> {
        std::mem::take(&mut self.lock().built)
    }

    /// Forgets the connections, which have started and belong to a running program.
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

fn is_there() -> bool {
    let words = ["list", "table"].into_iter().chain(TABLE.split(' '));
    let quiet = Command::new(COMMAND).args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

fn run(script: &str) -> Result<()> {
    let child = Command::new(COMMAND)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Error::path("run", COMMAND, error))?,
    };
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(|error| Error::path("write to", COMMAND, error))?;
    }
    let output = child.wait_with_output().map_err(|error| Error::path("run", COMMAND, error))?;
    if output.status.success() {
        return Ok(());
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
