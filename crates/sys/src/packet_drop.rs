//! Drops the packets of given TCP connections, in both directions.
//!
//! Owns: a packet filter table with the sets of these connections.
//! Invariants: only packets of the given connections are dropped. Each request is executed as a whole or not at
//! all, also beside requests of other processes.
//! Does not: close or change sockets.
//!
//! When any hook of the packet filter is removed in a network namespace, the kernel drops all packets that
//! queues hold (see `packet_hold`). So a table is kept as long as possible, also while it is empty.
//!
//! Man page: none; include/uapi/linux/netfilter/nf_tables.h
//! Since: Linux 4.1 for sets of several values, Linux 5.12 for tables with an owner (CONFIG_NF_TABLES and
//! CONFIG_NF_TABLES_INET); CAP_NET_ADMIN
//! Probe: `features::REGISTRY` entry "packet-drop"
//! Fallback: none; a checkpoint that ends a program with connections is refused, and so is their rewind

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{Errno, Error, Result};
use crate::feature::{Feature, enabled};
use crate::netlink::Attributes;
use crate::nf_tables::{
    self, DELETE_ELEMENTS, Header, Hook, Meta, NEW_ELEMENTS, NEW_SET, SUBSYSTEM, Table, equal, meta,
};
use crate::nfnetlink::{Message, Wire};

const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
const NAME: &str = "drop packets of connections";
/// The name of the table that outlives its creator.
const LASTING: &str = "undying";
/// NFPROTO_INET: one table for IPv4 and IPv6.
const BOTH_FAMILIES: u8 = 1;
/// Before all rules of the system, which could answer a packet with a reset.
const PRIORITY: i32 = -310;
/// NFT_REG32_00, the first of 16 registers with 4 bytes each.
const FIRST_REGISTER: u32 = 8;
const REGISTER_BYTES: u32 = 4;
/// Number of elements in one request. An attribute is at most 64 KiB long.
const ELEMENTS_MAX: usize = 500;
/// Number of connections in one batch of requests. The socket sends at most about 200 KiB at once.
const BATCH_MAX: usize = 1500;

/// A connection: the local address and the peer's address.
pub type Ends = (SocketAddr, SocketAddr);

/// A table whose connections receive and send no packets.
#[derive(Debug)]
pub struct PacketDrop {
    wire: Wire,
    table: Table,
}

impl PacketDrop {
    /// Prepares a table of this process. The kernel removes the table when the value is dropped, or when this
    /// process ends for any reason. `name` must be unique in the network namespace.
    ///
    /// # Errors
    ///
    /// Fails if no netlink socket can be opened.
    pub fn owned(name: String) -> Result<Self> {
        Self::open(name, true)
    }

    /// Prepares to use the table that remains until the end of the network namespace. All processes share it.
    ///
    /// # Errors
    ///
    /// Fails if no netlink socket can be opened.
    pub fn lasting() -> Result<Self> {
        Self::open(LASTING.to_owned(), false)
    }

    /// Creates and removes a table with sets and without rules.
    pub(crate) fn try_sets() -> Result<()> {
        let mut new = Self::owned(String::new())?;
        // Another thread can do the same.
        new.table.name = format!("undying-probe-{}-{}", std::process::id(), new.wire.as_fd().as_raw_fd());
        let [v4, v6] = [Family::V4, Family::V6].map(|family| new.set(family));
        new.wire.transact(SUBSYSTEM, &[new.table.create(), v4, v6])
    }

    fn open(name: String, is_owned: bool) -> Result<Self> {
        Ok(Self { wire: Wire::open(NAME)?, table: Table { family: BOTH_FAMILIES, name, is_owned } })
    }

    /// Begins to drop the packets of connections. Creates the table, unless it exists.
    ///
    /// # Errors
    ///
    /// ENOSYS if the feature is switched off, EPERM without CAP_NET_ADMIN, ENOENT or EOPNOTSUPP if the kernel does not
    /// support such tables. Some connections may have been added.
    pub fn add(&self, connections: &[Ends]) -> Result<()> {
        if !enabled(Feature::PacketDrop) {
            return Err(Error::new("drop packets: the feature packet-drop is switched off", Errno::ENOSYS));
        }
        for (number, part) in connections.chunks(BATCH_MAX).enumerate() {
            let mut requests = if number == 0 { self.requests() } else { Vec::new() };
            requests.extend(self.elements(NEW_ELEMENTS, part));
            self.wire.transact(SUBSYSTEM, &requests)?;
        }
        Ok(())
    }

    /// Lets the packets of connections pass. Ignores connections whose packets are not dropped.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN. Some connections may have been removed.
    pub fn remove(&self, connections: &[Ends]) -> Result<()> {
        for part in connections.chunks(BATCH_MAX) {
            // The deletion of a missing element fails, so all elements are added first.
            let mut requests = self.elements(NEW_ELEMENTS, part);
            requests.extend(self.elements(DELETE_ELEMENTS, part));
            match self.wire.transact(SUBSYSTEM, &requests) {
                // There is no table, or the kernel supports none.
                Err(error) if [Errno::ENOENT, EOPNOTSUPP].contains(&error.errno) => return Ok(()),
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Returns the requests that create the table with its rules. They replace the rules of an existing table.
    fn requests(&self) -> Vec<Message> {
        let table = &self.table;
        let mut requests = vec![table.create()];
        for (direction, hook) in [(Direction::Incoming, Hook::Input), (Direction::Outgoing, Hook::Output)] {
            requests.push(table.chain(direction.chain(), hook, PRIORITY));
            requests.push(table.flush(direction.chain()));
        }
        for family in [Family::V4, Family::V6] {
            requests.push(self.set(family));
            for direction in [Direction::Incoming, Direction::Outgoing] {
                requests.push(table.rule(direction.chain(), family.rule(direction)));
            }
        }
        requests
    }

    fn set(&self, family: Family) -> Message {
        let set = self.table.named().text(2, family.set()).word(3, 0).word(4, family.key_type());
        // The last attribute is a number of the set that is unique in its batch.
        self.table.request(NEW_SET, set.word(5, family.key_bytes()).word(10, u32::from(family.number())))
    }

    fn elements(&self, kind: (u8, u8), connections: &[Ends]) -> Vec<Message> {
        let mut requests = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut keys: Vec<Vec<u8>> = connections.iter().filter_map(|ends| family.key(*ends)).collect();
            // The second deletion of an element in a batch fails, as if there were no table.
            keys.sort_unstable();
            keys.dedup();
            for part in keys.chunks(ELEMENTS_MAX) {
                let list = part.iter().fold(Attributes::default(), |list, key| {
                    list.nest(1, Attributes::default().nest(1, nf_tables::value(key)))
                });
                requests
                    .push(self.table.request(kind, self.table.named().text(2, family.set()).nest(3, list)));
            }
        }
        requests
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Incoming,
    Outgoing,
}

impl Direction {
    fn chain(self) -> &'static str {
        match self {
            Self::Incoming => "incoming",
            Self::Outgoing => "outgoing",
        }
    }
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn set(self) -> &'static str {
        match self {
            Self::V4 => "held4",
            Self::V6 => "held6",
        }
    }

    /// Returns the number of the address family in `Meta::Family`.
    fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }

    fn address_bytes(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// Returns the offsets of the source address and of the destination address in the network header.
    fn address_offsets(self) -> (u32, u32) {
        match self {
            Self::V4 => (12, 16),
            Self::V6 => (8, 24),
        }
    }

    /// Returns the length of a key: the address and the port of the peer, and those of this machine. A port
    /// occupies a register.
    fn key_bytes(self) -> u32 {
        2 * (self.address_bytes() + REGISTER_BYTES)
    }

    /// Returns the type by which the program `nft` prints a key: six bits for each of its four parts.
    fn key_type(self) -> u32 {
        const PORT: u32 = 13;
        let address = match self {
            Self::V4 => 7,
            Self::V6 => 8,
        };
        [address, PORT, address, PORT].into_iter().fold(0, |all, part| all << 6 | part)
    }

    /// Returns the key of a connection of this family.
    fn key(self, (local, peer): Ends) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(self.key_bytes() as usize);
        for end in [peer, local] {
            match (self, end.ip()) {
                (Self::V4, IpAddr::V4(address)) => key.extend(address.octets()),
                (Self::V6, IpAddr::V6(address)) => key.extend(address.octets()),
                _ => return None,
            }
            key.extend(end.port().to_be_bytes());
            key.extend([0, 0]);
        }
        Some(key)
    }

    /// Returns the expressions of the rule that drops the packets of this family in a direction.
    fn rule(self, direction: Direction) -> Vec<Attributes> {
        let (source, destination) = self.address_offsets();
        // The offsets of the addresses and ports of the peer, and of this machine.
        let ends = match direction {
            Direction::Incoming => [(source, 0), (destination, 2)],
            Direction::Outgoing => [(destination, 2), (source, 0)],
        };
        let mut rule = vec![
            meta(Meta::Family),
            equal(&[self.number()]),
            meta(Meta::Protocol),
            equal(&[libc::IPPROTO_TCP as u8]),
        ];
        let mut register = FIRST_REGISTER;
        for (address, port) in ends {
            rule.push(nf_tables::load(register, Header::Network, address, self.address_bytes()));
            register += self.address_bytes() / REGISTER_BYTES;
            rule.push(nf_tables::load(register, Header::Transport, port, 2));
            register += 1;
        }
        rule.extend([nf_tables::is_in(self.set(), FIRST_REGISTER), nf_tables::drop_packet()]);
        rule
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct Connection {
        client: TcpStream,
        server: TcpStream,
        ends: Ends,
    }

    impl Connection {
        fn new(at: &str) -> Self {
            let listener = TcpListener::bind(at).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            let ends = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            Self { client, server, ends }
        }

        fn both() -> [Self; 2] {
            ["127.0.0.1:0", "[::1]:0"].map(Self::new)
        }

        /// Reports whether a byte from one side arrives at the other side soon.
        fn passes(&mut self) -> bool {
            self.client.write_all(b"x").unwrap();
            self.receives(Duration::from_millis(60))
        }

        fn receives(&mut self, within: Duration) -> bool {
            self.server.set_read_timeout(Some(within)).unwrap();
            self.server.read(&mut [0]).is_ok()
        }
    }

    /// Returns `false` where packets cannot be dropped.
    fn may() -> bool {
        match PacketDrop::try_sets() {
            Ok(()) => true,
            Err(error) => {
                println!("unsupported: dropping packets: {error}");
                false
            }
        }
    }

    const SENT_AGAIN: Duration = Duration::from_secs(10);

    #[test]
    fn a_connection_receives_nothing_until_it_is_removed() {
        if !may() {
            return;
        }
        let owned = PacketDrop::owned(format!("undying-test-{}-until", std::process::id())).unwrap();
        for drops in [owned, PacketDrop::lasting().unwrap()] {
            let (mut dropped, mut other) = (Connection::both(), Connection::both());
            let ends = dropped.each_ref().map(|one| one.ends);
            drops.add(&ends).unwrap();
            drops.add(&ends).unwrap();
            for one in &mut dropped {
                assert!(!one.passes(), "{one:?} of {drops:?}");
            }
            assert!(other.iter_mut().all(Connection::passes), "{drops:?}");
            drops.remove(&[ends, ends].concat()).unwrap();
            assert!(dropped.iter_mut().all(|one| one.receives(SENT_AGAIN)), "{drops:?}");
            drops.remove(&ends).unwrap();
        }
    }

    #[test]
    fn the_end_of_one_table_does_not_concern_the_connections_of_another() {
        if !may() {
            return;
        }
        let name = |number| format!("undying-test-{}-{number}", std::process::id());
        let (first, second) = (PacketDrop::owned(name(1)).unwrap(), PacketDrop::owned(name(2)).unwrap());
        let ([mut one, _], [mut other, _]) = (Connection::both(), Connection::both());
        first.add(&[one.ends]).unwrap();
        second.add(&[other.ends]).unwrap();
        assert!(!one.passes() && !other.passes());
        drop(first);
        assert!(one.receives(SENT_AGAIN) && !other.passes());
        drop(second);
        assert!(other.receives(SENT_AGAIN));
    }

    /// The kernel tells the owner of a table by the port of its socket. When a socket is closed, its port becomes free
    /// before its tables are removed.
    #[test]
    fn a_closed_socket_takes_no_table_of_a_new_one_with_it() {
        const THREADS: u32 = 6;
        const ROUNDS: u32 = 60;
        if !may() {
            return;
        }
        let ends = Connection::new("127.0.0.1:0").ends;
        let once = |number: u32| {
            let name = format!("undying-test-{}-port-{number}", std::process::id());
            let new = PacketDrop::owned(name).unwrap();
            new.wire.transact(SUBSYSTEM, &[new.table.create(), new.set(Family::V4)]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            let added = new.wire.transact(SUBSYSTEM, &new.elements(NEW_ELEMENTS, &[ends]));
            assert!(added.is_ok(), "{new:?}: {added:?}");
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || (0..ROUNDS).for_each(|round| once(thread * ROUNDS + round)));
            }
        });
    }

    #[test]
    fn many_connections_need_several_requests() {
        if !may() {
            return;
        }
        let drops = PacketDrop::owned(format!("undying-test-{}-many", std::process::id())).unwrap();
        let [mut v4, mut v6] = Connection::both();
        let far = |port: usize| {
            let peer = SocketAddr::new(
                if port.is_multiple_of(2) { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap(),
                1,
            );
            let local = if port.is_multiple_of(2) { "192.0.2.2" } else { "2001:db8::2" }.parse().unwrap();
            (SocketAddr::new(local, port as u16), peer)
        };
        let mut all: Vec<Ends> = (1..4 * BATCH_MAX).map(far).collect();
        all.extend([v4.ends, v6.ends]);
        drops.add(&all).unwrap();
        assert!(!v4.passes() && !v6.passes());
        drops.remove(&all).unwrap();
        assert!(v4.receives(SENT_AGAIN) && v6.receives(SENT_AGAIN));
    }

    /// An earlier version created the lasting table with the program `nft`. A machine can have this table when a new
    /// version begins to run.
    #[test]
    fn a_table_of_an_earlier_version_is_used() {
        const SCRIPT: &str = "add table inet T
            add set inet T held4 { type ipv4_addr . inet_service . ipv4_addr . inet_service; }
            add set inet T held6 { type ipv6_addr . inet_service . ipv6_addr . inet_service; }
            add chain inet T incoming { type filter hook input priority -310; }
            add chain inet T outgoing { type filter hook output priority -310; }
            add rule inet T incoming ip saddr . tcp sport . ip daddr . tcp dport @held4 drop
            add rule inet T outgoing ip daddr . tcp dport . ip saddr . tcp sport @held4 drop\n";
        let name = format!("undying-test-{}-old", std::process::id());
        let nft = |script: String| {
            let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().ok()?;
            child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            Some(child.wait().unwrap().success())
        };
        if !may() || nft(SCRIPT.replace('T', &name)) != Some(true) {
            return println!("unsupported: nft");
        }
        let drops = PacketDrop::open(name.clone(), false).unwrap();
        let [mut v4, mut v6] = Connection::both();
        let ends = [v4.ends, v6.ends];
        drops.add(&ends).unwrap();
        assert!(!v4.passes() && !v6.passes());
        drops.remove(&ends).unwrap();
        assert!(v4.receives(SENT_AGAIN) && v6.receives(SENT_AGAIN));
        assert_eq!(nft(format!("delete table inet {name}\n")), Some(true));
    }
}
