//! Holds the packets that marked sockets send, until the packets are released or dropped.
//!
//! Owns: the packet filter table that selects packets by the mark (SO_MARK) of their socket, and the kernel
//! queue (NFQUEUE) that holds the selected packets.
//! Invariants: packets leave the queue in the order in which they were sent. When this process ends for any
//! reason, the kernel removes the table and the queue, and drops the held packets. TCP sends the data of the
//! dropped packets again. Without the table, no packet is held any more.
//! Does not: decide which sockets are marked, or when packets are released.
//!
//! When any hook of the packet filter is removed in a network namespace, the kernel drops all held packets of
//! this namespace. TCP sends the data of these packets again, in new packets, which are held as well.
//!
//! Man page: none; include/uapi/linux/netfilter/nfnetlink_queue.h, nf_tables.h
//! Since: Linux 5.12 for tables with an owner (CONFIG_NF_TABLES, CONFIG_NETFILTER_NETLINK_QUEUE, and
//! CONFIG_NFT_QUEUE, or CONFIG_NFT_COMPAT with CONFIG_NETFILTER_XT_TARGET_NFQUEUE); CAP_NET_ADMIN
//! Probe: `features::REGISTRY` entry "packet-hold"
//! Fallback: none; components whose output must be held are refused, and the error names the component

use std::cmp::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{self, AtomicUsize};
use std::sync::{Mutex, PoisonError};

use model::{Fd, Pid, Tid};
use rustix::net::{RecvFlags, ipproto, sockopt};

use crate::error::{Errno, Error, Result};
use crate::netlink::{Attributes, PIECE_BYTES, messages};
use crate::nfnetlink::{HEADER_BYTES, Message, Wire};
use crate::packet_drop::PacketDrop;
use crate::pidfd;
use crate::socket_option::{SocketOption, get_int, set_int};

mod table;

const NAME: &str = "hold packets back";
const MARK: SocketOption = SocketOption { level: libc::SOL_SOCKET, number: libc::SO_MARK, name: "SO_MARK" };
const QUEUES: u8 = 3;
const PACKET: u16 = (QUEUES as u16) << 8;
const CONFIGURE: (u8, u8) = (QUEUES, 2);
const VERDICT_FOR_ALL: (u8, u8) = (QUEUES, 3);
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// Maximum number of held packets. The kernel drops further packets, and TCP sends their data again.
const PACKETS_MAX: u32 = 64 * 1024;
/// Size in bytes of the receive buffer for the messages about held packets. A message has several hundred
/// bytes, and stays in the buffer until `queued` reads the message. If a message does not fit into the
/// buffer, the kernel drops the packet of the message.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
/// NFQA_CFG_F_GSO: segments are queued as TCP made them, with up to 64 KiB each.
const WHOLE_SEGMENTS: u32 = 4;
/// The first queue number that this module uses. Programs choose the numbers of their queues themselves, so a
/// number can be in use in the network namespace. Therefore, up to `TRIES` numbers are tried. The first tried
/// number depends on the pid.
const NUMBERS_FIRST: u16 = 21_000;
const NUMBERS: u16 = 4096;
const TRIES: u16 = 256;

/// The value of SO_MARK that identifies the sockets of one program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketMark(pub u32);

/// The sequence number of a packet in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketNumber(u32);

impl PartialOrd for PacketNumber {
    /// Compares two packets of one queue that are less than 2^31 packets apart. The numbers of the kernel wrap around.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.0.wrapping_sub(other.0).cast_signed().cmp(&0))
    }
}

/// A queue that holds the packets of marked sockets.
#[derive(Debug)]
pub struct PacketHold {
    queue: Wire,
    number: u16,
    mark: SocketMark,
    /// The packet of the last message that `queued` has received.
    last: Mutex<Option<PacketNumber>>,
    /// Number of sockets whose output is not held.
    unheld: AtomicUsize,
    drops: PacketDrop,
    /// The socket that owns the tables. The kernel removes the tables when the socket is closed.
    _tables: Wire,
}

impl PacketHold {
    /// Creates a queue and its table. Packets that sockets with [`PacketHold::mark`] send after this call are
    /// held.
    ///
    /// Each process that holds packets needs its own queue and its own mark. The mark is derived from the
    /// queue number.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN, ENOENT or EOPNOTSUPP if the kernel does not support queues. If no tried
    /// queue number is free, returns the error of the last attempt.
    pub fn start() -> Result<Self> {
        let first = (std::process::id() % u32::from(NUMBERS)) as u16;
        let mut outcome = Err(Error::new(NAME, Errno(libc::EBUSY)));
        for step in 0..TRIES {
            let number = NUMBERS_FIRST + (first + step) % NUMBERS;
            outcome = Self::at(number);
            match &outcome {
                // If another socket owns the queue, the kernel returns EPERM.
                Err(error) if [libc::EPERM, libc::EBUSY, libc::EEXIST].contains(&error.errno.0) => {}
                _ => break,
            }
        }
        outcome
    }

    fn at(number: u16) -> Result<Self> {
        const BIND: u8 = 1;
        const COPY_META: u8 = 1;
        let queue = Wire::open(NAME)?;
        let configure =
            |body| queue.request(&Message { kind: CONFIGURE, flags: 0, family: 0, resource: number, body });
        configure(Attributes::default().bytes(1, &[BIND, 0, 0, 0]))?;
        configure(Attributes::default().bytes(2, &[0, 0, 0, 0, COPY_META]))?;
        configure(Attributes::default().word(3, PACKETS_MAX))?;
        configure(Attributes::default().word(5, WHOLE_SEGMENTS).word(4, WHOLE_SEGMENTS))?;
        let _ = sockopt::set_socket_recv_buffer_size_force(&queue, RECEIVE_BUFFER_BYTES);
        let mark = SocketMark(MARKS | u32::from(number));
        let tables = Wire::open(NAME)?;
        table::make(&tables, mark.0, number)?;
        let drops = PacketDrop::owned(format!("undying-{:08x}-drops", mark.0))?;
        let (last, unheld) = (Mutex::new(None), AtomicUsize::new(0));
        Ok(Self { queue, number, mark, last, unheld, drops, _tables: tables })
    }

    /// Returns the mark of the sockets whose packets are held.
    #[must_use]
    pub fn mark(&self) -> SocketMark {
        self.mark
    }

    /// Returns the table that drops the packets of connections of the program while their sockets are being replaced. It is
    /// removed together with the hold.
    #[must_use]
    pub fn drops(&self) -> &PacketDrop {
        &self.drops
    }

    /// Notes how many sockets of the program can send output that this queue does not hold: UDP sockets and Unix
    /// sockets.
    pub fn note_unheld(&self, count: usize) {
        self.unheld.store(count, atomic::Ordering::Relaxed);
    }

    /// Returns the last number of [`Self::note_unheld`].
    #[must_use]
    pub fn unheld(&self) -> usize {
        self.unheld.load(atomic::Ordering::Relaxed)
    }

    /// Returns the packet that was queued last. This packet may already have been released or dropped.
    ///
    /// # Errors
    ///
    /// Returns the errors of the socket, except ENOBUFS. ENOBUFS only means that packets were dropped.
    pub fn queued(&self) -> Result<Option<PacketNumber>> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.queue.0.receive(&mut piece, RecvFlags::DONTWAIT) {
                Ok(length) => {
                    let packets = messages(&piece[..length]).flatten().filter(|one| one.kind == PACKET);
                    *last = packets.filter_map(|one| packet_number(one.bytes)).last().or(*last);
                }
                Err(error) if error.errno == Errno(libc::EAGAIN) => return Ok(*last),
                Err(error) if [libc::EINTR, libc::ENOBUFS].contains(&error.errno.0) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends all held packets up to and including `through`.
    pub fn release(&self, through: PacketNumber) -> Result<()> {
        self.judge(through, ACCEPT)
    }

    /// Drops all held packets up to and including `through`.
    pub fn discard(&self, through: PacketNumber) -> Result<()> {
        self.judge(through, DROP)
    }

    /// Drops all packets that are queued at the time of the call.
    pub fn discard_all(&self) -> Result<()> {
        self.queued()?.map_or(Ok(()), |last| self.discard(last))
    }

    fn judge(&self, through: PacketNumber, verdict: u32) -> Result<()> {
        let words = [verdict.to_be_bytes(), through.0.to_be_bytes()].concat();
        let body = Attributes::default().bytes(2, &words);
        self.queue.send(&Message { kind: VERDICT_FOR_ALL, flags: 0, family: 0, resource: self.number, body })
    }
}

/// The upper 16 bits of all marks that this module creates. The lower 16 bits are the queue number.
const MARKS: u32 = 0x7564_0000;

impl SocketMark {
    /// The value of SO_MARK of a socket without a mark.
    pub const NONE: Self = Self(0);

    /// Returns the mark of a socket.
    ///
    /// # Errors
    ///
    /// Fails if the descriptor is not a socket.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self(get_int(socket, MARK)? as u32))
    }

    /// Sets the mark of a socket. Connections that the socket accepts after this call inherit the mark.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN.
    pub fn put_on(self, socket: BorrowedFd<'_>) -> Result<()> {
        set_int(socket, MARK, self.0 as i32)
    }

    /// Sets the mark of a socket, unless the program has set another mark itself. Returns whether the socket now has
    /// this mark.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN. Fails if the descriptor is not a socket.
    pub fn claim(self, socket: BorrowedFd<'_>) -> Result<bool> {
        let present = Self::of(socket)?;
        if present != self && (present == Self::NONE || present.is_ours()) {
            self.put_on(socket)?;
        }
        Ok(present == Self::NONE || present.is_ours())
    }

    /// Works like [`Self::claim`] for a TCP socket of a thread. Does nothing for any other socket. Before listen(2) or
    /// connect(2) of this thread, this call makes the output of the connections be held from the first byte on.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::claim`], and errors if the thread has ended.
    pub fn claim_of(self, thread: Tid, socket: Fd) -> Result<bool> {
        let handle = pidfd::open_thread(thread)?;
        let socket = pidfd::duplicate(handle.as_fd(), Pid(thread.get()), socket)?;
        if is_tcp(socket.as_fd()) { self.claim(socket.as_fd()) } else { Ok(false) }
    }

    /// Reports whether this module has created this mark, in this process or in another process.
    #[must_use]
    pub fn is_ours(self) -> bool {
        self.0 & 0xffff_0000 == MARKS
    }
}

/// Reports whether a socket sends TCP segments.
fn is_tcp(socket: BorrowedFd<'_>) -> bool {
    // If the client does not use MPTCP, a connection of an MPTCP listener is a plain TCP connection.
    let protocol = sockopt::socket_protocol(socket);
    protocol.is_ok_and(|protocol| [Some(ipproto::TCP), Some(ipproto::MPTCP)].contains(&protocol))
}

/// Returns the listening TCP sockets that this process has inherited and passes to its children.
#[must_use]
pub fn inherited_listeners() -> Vec<OwnedFd> {
    let own = Pid(std::process::id().cast_signed());
    let Ok(handle) = pidfd::open(own) else { return Vec::new() };
    let is_passed_on = |fd: &Fd| {
        let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0)
    };
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    listed
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Fd))
        .filter(is_passed_on)
        .filter_map(|fd| pidfd::duplicate(handle.as_fd(), own, fd).ok())
        .filter(|socket| is_tcp(socket.as_fd()) && sockopt::socket_acceptconn(socket) == Ok(true))
        .collect()
}

/// Returns the sequence number of the packet of a message. The first attribute of the message begins with
/// this number.
fn packet_number(message: &[u8]) -> Option<PacketNumber> {
    let word = message.get(HEADER_BYTES + 4..)?.first_chunk()?;
    Some(PacketNumber(u32::from_be_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(3);
    const ATTEMPTS: usize = 5;

    /// Lets only one test of this module run at a time, also if the tests have their own processes. When one test drops
    /// its `PacketHold`, the kernel may drop packets that other tests hold.
    fn alone() -> File {
        let program = std::env::current_exe().and_then(File::open).unwrap();
        program.lock().unwrap();
        program
    }

    fn hold() -> Option<PacketHold> {
        match PacketHold::start() {
            Ok(hold) => Some(hold),
            Err(error) => {
                println!("unsupported: holding packets: {error}");
                None
            }
        }
    }

    /// Repeats an attempt while the attempt returns `None`, which means that held packets were lost. The
    /// kernel drops held packets when another process removes a hook of the packet filter.
    fn in_peace(attempt: impl Fn() -> Option<()>) {
        let _alone = alone();
        assert!((0..ATTEMPTS).any(|_| attempt().is_some()), "nothing was received in {ATTEMPTS} attempts");
    }

    /// Receives three bytes. Returns `None` if nothing arrives in time, because the held packets may have
    /// been dropped.
    fn received(peer: &mut TcpStream) -> Option<Vec<u8>> {
        peer.set_read_timeout(Some(LONG)).unwrap();
        let mut bytes = [0; 3];
        peer.read_exact(&mut bytes).ok().map(|()| bytes.to_vec())
    }

    fn is_silent(peer: &mut TcpStream) -> bool {
        peer.set_read_timeout(Some(SHORT)).unwrap();
        let outcome = peer.read(&mut [0]);
        peer.set_read_timeout(Some(LONG)).unwrap();
        outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits for a message about a packet, and returns the last queued packet.
    fn awaited(hold: &PacketHold) -> Option<PacketNumber> {
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        poll(&mut [PollFd::new(&hold.queue, PollFlags::IN)], Some(&limit)).unwrap();
        hold.queued().unwrap()
    }

    fn pair(hold: &PacketHold, at: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).unwrap();
        hold.mark().put_on(listener.as_fd()).unwrap();
        // The connection is established although the listener is marked, because packets with SYN are not
        // held.
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        // Without TCP_NODELAY, the second write would wait until the first write is acknowledged.
        own.set_nodelay(true).unwrap();
        (own, peer)
    }

    #[test]
    fn what_a_marked_socket_sends_is_held_until_it_is_released() {
        in_peace(|| {
            let Some(hold) = hold() else { return Some(()) };
            for at in ["127.0.0.1:0", "[::1]:0"] {
                let (mut own, mut peer) = pair(&hold, at);
                let (mut own_free, mut peer_free) = {
                    let listener = TcpListener::bind(at).unwrap();
                    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                    (listener.accept().unwrap().0, peer)
                };
                own.write_all(b"one").unwrap();
                let first = awaited(&hold)?;
                own.write_all(b"two").unwrap();
                assert!(is_silent(&mut peer));
                own_free.write_all(b"x").unwrap();
                peer_free.read_exact(&mut [0]).unwrap();
                hold.release(first).unwrap();
                assert_eq!(received(&mut peer)?, b"one");
                assert!(is_silent(&mut peer), "the second packet is not released");
                hold.release(awaited(&hold)?).unwrap();
                assert_eq!(received(&mut peer)?, b"two");
            }
            Some(())
        });
    }

    #[test]
    fn what_is_held_is_sent_again_once_it_is_held_no_longer() {
        in_peace(|| {
            let Some(hold) = hold() else { return Some(()) };
            let (mut own, mut peer) = pair(&hold, "127.0.0.1:0");
            own.write_all(b"one").unwrap();
            hold.discard(awaited(&hold)?).unwrap();
            assert!(is_silent(&mut peer));
            drop(hold);
            assert_eq!(received(&mut peer)?, b"one");
            Some(())
        });
    }

    #[test]
    fn what_was_read_of_before_is_dropped_as_well() {
        in_peace(|| {
            let Some(hold) = hold() else { return Some(()) };
            let (mut own, mut peer) = pair(&hold, "127.0.0.1:0");
            own.write_all(b"one").unwrap();
            let first = awaited(&hold)?;
            assert_eq!(hold.queued().unwrap(), Some(first));
            hold.discard_all().unwrap();
            hold.release(first).unwrap();
            assert!(is_silent(&mut peer));
            Some(())
        });
    }

    #[test]
    fn several_hold_beside_each_other() {
        in_peace(|| {
            let (Some(one), Some(other)) = (hold(), hold()) else { return Some(()) };
            assert_ne!(one.mark(), other.mark());
            let (mut own, mut peer) = pair(&other, "127.0.0.1:0");
            own.write_all(b"one").unwrap();
            let number = awaited(&other)?;
            assert_eq!(one.queued().unwrap(), None);
            other.release(number).unwrap();
            assert_eq!(received(&mut peer)?, b"one");
            Some(())
        });
    }
}
