//! Output of a subject, held until a checkpoint contains it.
//!
//! Owns: the packet queue in the kernel; which packets and which connections belong to which checkpoint.
//! Invariants: a packet is released only when a checkpoint that was taken after it is durable. So no peer has received
//! output that a restored program has not sent, and no data of a peer is acknowledged that the restored program lacks.
//! Does not: take checkpoints, or build connections again.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Kept, Vacated};
use model::Sequence;
use sys::features::{Feature, enabled};
use sys::packet_hold::{PacketHold, PacketNumber, SocketMark};
use sys::sock_diag::SockDiag;
use sys::socket;

use crate::error::{GuardianError, Result};
use crate::inspection::missing;

/// The longest time that output is held while no checkpoint becomes durable. Peers give up after some more.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// How often output is released from then on, until a checkpoint is durable.
const LATE_EACH: Duration = Duration::from_millis(100);
/// The longest time between two checkpoints of such a subject.
const EVERY_MAX: Duration = Duration::from_secs(1);

/// The output of one subject.
#[derive(Debug)]
pub(super) struct HeldOutput {
    hold: Arc<PacketHold>,
    /// Checkpoints, rising: the newest durable one, if its connections can go back to it, and later ones.
    points: VecDeque<Point>,
    /// The last checkpoint whose output was released.
    released: Option<Sequence>,
    /// The time at which output is released without a checkpoint, if the program lives.
    until: Instant,
    /// It is, until a checkpoint is durable.
    is_late: bool,
}

#[derive(Debug)]
struct Point {
    sequence: Sequence,
    /// The last packet that was sent before.
    through: Option<PacketNumber>,
    /// Those that the program had.
    connections: Vec<Arc<OwnedFd>>,
    /// Those of them whose sockets have given way to a restore.
    vacated: Vacated,
}

impl HeldOutput {
    /// Begins to hold, for a subject with a checkpoint so often.
    pub(super) fn start(every: Option<Duration>, now: Instant) -> Result<Self> {
        if every.is_none_or(|every| every > EVERY_MAX) {
            return Err(GuardianError::OutputWaits);
        }
        if !enabled(Feature::PacketHold) {
            return Err(missing(Feature::PacketHold));
        }
        let hold = PacketHold::start().map_err(|_| missing(Feature::PacketHold))?;
        let until = now + TIMEOUT;
        Ok(Self { hold: Arc::new(hold), points: VecDeque::new(), released: None, until, is_late: false })
    }

    /// Where packets are held.
    pub(super) fn hold(&self) -> Arc<PacketHold> {
        Arc::clone(&self.hold)
    }

    /// How many connections go back to the newest durable checkpoint.
    pub(super) fn connections(&self) -> usize {
        let durable = self.points.iter().find(|point| Some(point.sequence) == self.released);
        durable.map_or(0, |point| point.connections.len())
    }

    /// A checkpoint was taken.
    pub(super) fn taken(
        &mut self,
        sequence: Sequence,
        through: Option<PacketNumber>,
        connections: Vec<Arc<OwnedFd>>,
    ) {
        self.points.push_back(Point { sequence, through, connections, vacated: Vacated::default() });
    }

    /// A checkpoint is durable: releases earlier output, and closes connections that the program had closed by then.
    pub(super) fn committed(&mut self, sequence: Sequence, now: Instant) {
        let Some(place) = self.points.iter().position(|point| point.sequence == sequence) else { return };
        let older: Vec<Point> = self.points.drain(..place).collect();
        let Some(point) = self.points.front() else { return };
        if let Some(through) = point.through {
            // A hold that is broken is noticed by peers, which try again, and by `turn`.
            let _ = self.hold.release(through);
        }
        let number = |socket: &Arc<OwnedFd>| socket::cookie(socket.as_fd()).ok();
        let open: HashSet<Option<u64>> = point.connections.iter().map(number).collect();
        let closed = older.iter().flat_map(|point| &point.connections);
        closed.filter(|socket| !open.contains(&number(socket))).for_each(let_go);
        self.released = Some(sequence);
        self.wait_anew(now);
    }

    /// A checkpoint that was taken is none.
    pub(super) fn failed(&mut self, sequence: Sequence) {
        self.points.retain(|point| point.sequence != sequence);
    }

    /// When output has to be released, whatever becomes of checkpoints.
    pub(super) fn due(&self) -> Instant {
        self.until
    }

    /// Releases what has waited too long; whether it is the first time since a checkpoint was durable. Connections cannot
    /// go back from then on, until the next checkpoint.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        if self.until > now {
            return false;
        }
        self.until = now + LATE_EACH;
        self.points.clear();
        self.released = None;
        self.release_all();
        !std::mem::replace(&mut self.is_late, true)
    }

    fn wait_anew(&mut self, now: Instant) {
        (self.until, self.is_late) = (now + TIMEOUT, false);
    }

    fn release_all(&self) {
        if let Ok(Some(last)) = self.hold.queued() {
            let _ = self.hold.release(last);
        }
    }

    /// The subject is dead, and goes back to a checkpoint: what it has sent since is dropped, and connections that no
    /// checkpoint has seen are reset. Those that can go back.
    pub(super) fn go_back(&mut self, to: Sequence) -> Kept {
        let place = self.points.iter().position(|point| point.sequence == to);
        let is_current = self.released.is_none_or(|released| released <= to);
        let Some(point) = place.filter(|_| is_current).and_then(|place| self.points.remove(place)) else {
            self.abandon();
            return Kept::default();
        };
        if let Some(through) = point.through {
            let _ = self.hold.release(through);
        }
        self.drop_rest();
        let (sockets, vacated) = (point.connections.clone(), point.vacated.clone());
        self.released = Some(to);
        self.points = VecDeque::from([Point { through: None, ..point }]);
        Kept { sockets, rewinds: Some(self.hold()), vacated }
    }

    /// The subject runs again, with these connections.
    pub(super) fn is_back(&mut self, connections: Vec<Arc<OwnedFd>>, now: Instant) {
        self.wait_anew(now);
        if let Some(point) = self.points.front_mut() {
            point.connections = connections;
            point.vacated = Vacated::default();
        }
    }

    /// The subject is dead, and none of its connections goes back.
    pub(super) fn abandon(&mut self) {
        self.drop_rest();
        self.points.drain(..).flat_map(|point| point.connections).for_each(|socket| reset(&socket));
        self.released = None;
    }

    /// Drops held packets, and those that the kernel still sends for connections that have ended with the subject.
    fn drop_rest(&self) {
        let _ = SockDiag::open().and_then(|diag| diag.end_orphans(self.hold.mark()));
        let _ = self.hold.discard_all();
    }
}

impl Drop for HeldOutput {
    fn drop(&mut self) {
        // The subject has exited, or continues without a guardian.
        self.release_all();
    }
}

/// Closes a duplicate. What the kernel still sends for the connection is in a checkpoint.
fn let_go(socket: &Arc<OwnedFd>) {
    let _ = SocketMark::NONE.put_on(socket.as_fd());
}

/// Has the peer of a connection see a reset once the last duplicate is closed.
fn reset(socket: &Arc<OwnedFd>) {
    let_go(socket);
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    const EVERY: Option<Duration> = Some(Duration::from_millis(50));
    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(3);
    const ATTEMPTS: usize = 5;

    /// The end of any hold drops what others hold.
    fn started() -> Option<(MutexGuard<'static, ()>, HeldOutput)> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let output = HeldOutput::start(EVERY, sys::clock::Clock::default().now())
            .map_err(|error| println!("unsupported: {error}"))
            .ok()?;
        Some((alone, output))
    }

    /// A connection of a program whose output is held, and that of its peer.
    fn pair(output: &HeldOutput) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        output.hold.mark().put_on(listener.as_fd()).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        // What is written next would else wait until the first is acknowledged.
        own.set_nodelay(true).unwrap();
        (own, peer)
    }

    fn copy(socket: &TcpStream) -> Arc<OwnedFd> {
        Arc::new(socket.try_clone().unwrap().into())
    }

    fn is_silent(peer: &mut TcpStream) -> bool {
        peer.set_read_timeout(Some(SHORT)).unwrap();
        let outcome = peer.read(&mut [0; 8]);
        peer.set_read_timeout(Some(LONG)).unwrap();
        outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// `None` if nothing comes: what was held may have been dropped.
    fn received(peer: &mut TcpStream) -> Option<Vec<u8>> {
        let mut bytes = [0; 3];
        peer.read_exact(&mut bytes).ok().map(|()| bytes.to_vec())
    }

    /// The kernel drops what is held when another test, or another program, removes a hook of the packet filter. That
    /// does not happen each time.
    fn in_peace(attempt: impl Fn() -> Option<()>) {
        assert!((0..ATTEMPTS).any(|_| attempt().is_some()), "nothing was received in {ATTEMPTS} attempts");
    }

    /// The last packet so far, as a pause finds it.
    fn through(output: &HeldOutput) -> Option<PacketNumber> {
        until_some(|| output.hold.queued().unwrap())
    }

    fn until_some<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
        (0..1000).find_map(|_| {
            let found = look();
            if found.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            found
        })
    }

    #[test]
    fn output_goes_out_when_the_checkpoint_after_it_is_durable() {
        in_peace(|| {
            let Some((_alone, mut output)) = started() else { return Some(()) };
            let (mut own, mut peer) = pair(&output);
            let now = sys::clock::Clock::default().now();
            own.write_all(b"one").unwrap();
            let first = through(&output);
            output.taken(Sequence(1), first, vec![copy(&own)]);
            own.write_all(b"two").unwrap();
            let second = until_some(|| output.hold.queued().unwrap().filter(|last| Some(*last) != first));
            output.taken(Sequence(2), second, vec![copy(&own)]);
            assert!(is_silent(&mut peer));
            output.committed(Sequence(1), now);
            assert_eq!(received(&mut peer)?, b"one");
            assert!(is_silent(&mut peer));
            assert_eq!(output.connections(), 1);
            output.committed(Sequence(2), now);
            assert_eq!(received(&mut peer)?, b"two");
            Some(())
        });
    }

    #[test]
    fn a_connection_that_the_program_had_closed_ends_with_the_checkpoint() {
        let Some((_alone, mut output)) = started() else { return };
        let (own, mut peer) = pair(&output);
        let now = sys::clock::Clock::default().now();
        output.taken(Sequence(1), None, vec![copy(&own)]);
        output.committed(Sequence(1), now);
        drop(own);
        output.taken(Sequence(2), None, Vec::new());
        assert!(is_silent(&mut peer));
        output.committed(Sequence(2), now);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_waits_too_long_goes_out_and_nothing_goes_back_then() {
        in_peace(|| {
            let Some((_alone, mut output)) = started() else { return Some(()) };
            let (mut own, mut peer) = pair(&output);
            let now = sys::clock::Clock::default().now();
            output.taken(Sequence(1), None, vec![copy(&own)]);
            output.committed(Sequence(1), now);
            own.write_all(b"one").unwrap();
            assert!(is_silent(&mut peer) && !output.turn(now));
            assert!(output.turn(now + TIMEOUT));
            assert_eq!(received(&mut peer)?, b"one");
            assert!(output.go_back(Sequence(1)).sockets.is_empty());
            // As long as no checkpoint is durable.
            own.write_all(b"two").unwrap();
            assert!(through(&output).is_some() && !output.turn(now + TIMEOUT + LATE_EACH), "told once");
            assert_eq!(received(&mut peer)?, b"two");
            Some(())
        });
    }

    #[test]
    fn connections_go_back_to_the_newest_durable_checkpoint_and_no_older_one() {
        let Some((_alone, mut output)) = started() else { return };
        let (own, _peer) = pair(&output);
        let now = sys::clock::Clock::default().now();
        for number in 1..=3 {
            output.taken(Sequence(number), None, vec![copy(&own)]);
        }
        output.committed(Sequence(2), now);
        assert!(output.go_back(Sequence(3)).rewinds.is_some(), "durable, and not heard of yet");
        output.is_back(vec![copy(&own)], now);
        assert_eq!(output.go_back(Sequence(3)).sockets.len(), 1, "again, before the next one");
        assert!(output.go_back(Sequence(2)).rewinds.is_none());
    }

    #[test]
    fn connections_that_do_not_go_back_are_reset_and_get_nothing() {
        let Some((_alone, mut output)) = started() else { return };
        let (mut own, mut peer) = pair(&output);
        output.taken(Sequence(1), None, vec![copy(&own)]);
        own.write_all(b"one").unwrap();
        // The program dies: its own descriptors are closed.
        drop(own);
        output.abandon();
        assert_eq!(peer.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        // One that no checkpoint has seen.
        let (mut own, mut peer) = pair(&output);
        own.write_all(b"two").unwrap();
        drop(own);
        output.abandon();
        assert_eq!(peer.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn output_that_would_wait_for_long_is_refused() {
        let now = sys::clock::Clock::default().now();
        for every in [None, Some(Duration::from_secs(2))] {
            assert!(matches!(HeldOutput::start(every, now), Err(GuardianError::OutputWaits)));
        }
    }
}
