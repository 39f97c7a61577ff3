//! Holds the network output of a subject, until a durable checkpoint contains the sending of the output. After a death,
//! a restore can continue the TCP connections of such a subject.
//!
//! Owns: the packet queue in the kernel, and the connections of checkpoints. `supervise` decides what is released.
//! Invariants: a packet is released only after a later checkpoint that a restart can use has become durable, or after
//! [`supervise::OUTPUT_TIMEOUT`]. Without a timeout, a peer never has output that the restored program has not sent. If
//! data of a peer was acknowledged, the
//! restored program has this data.
//! Does not: take checkpoints, or restore connections.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Kept, Vacated};
use model::Sequence;
use supervise::{LateRelease, OutputPoints};
use sys::features::{Feature, enabled};
use sys::packet_hold::{PacketHold, PacketNumber, SocketMark, inherited_listeners};
use sys::sock_diag::SockDiag;
use sys::socket;
use sys::socket_call::{self, CallHandler, CallKind, Handled, ReportedCall};

use crate::error::{GuardianError, Result};
use crate::inspection::missing;

/// Maximum interval between checkpoints of a subject whose output is held.
const EVERY_MAX: Duration = Duration::from_secs(1);

/// The output of one subject.
#[derive(Debug)]
pub(super) struct HeldOutput {
    hold: Arc<PacketHold>,
    points: OutputPoints<PacketNumber, Connections>,
    /// Connections of durable checkpoints that no restart uses, since the last checkpoint that has released output.
    unused: Vec<Arc<OwnedFd>>,
    /// Listeners that the program shares with other processes. They lose the mark at the end.
    inherited: Vec<OwnedFd>,
}

/// The connections that the program had at a checkpoint.
#[derive(Debug)]
struct Connections {
    sockets: Vec<Arc<OwnedFd>>,
    /// Connections whose old sockets were disconnected, because restored sockets replace the old sockets.
    vacated: Vacated,
}

/// Marks the TCP sockets of a program when they begin to listen or to connect. Without this handler, output is held only
/// after the first pause that finds the socket.
#[derive(Debug)]
pub(super) struct MarksSockets(pub(super) SocketMark);

impl CallHandler for MarksSockets {
    fn handle(&self, reported: &ReportedCall<'_>) -> Handled {
        if let Some(call) = socket_call::read(reported.notification)
            && call.kind != CallKind::Bind
        {
            // If the socket cannot be marked, the next pause marks the socket.
            let _ = self.0.claim_of(reported.notification.tid(), call.socket);
        }
        Handled::Pass
    }

    fn may_hold(&self) -> bool {
        false
    }
}

impl HeldOutput {
    /// Starts to hold the output of a subject with a checkpoint interval of `every`.
    pub(super) fn start(every: Option<Duration>, now: Instant) -> Result<Self> {
        if every.is_none_or(|every| every > EVERY_MAX) {
            return Err(GuardianError::OutputWaits);
        }
        if !enabled(Feature::PacketHold) {
            return Err(missing(Feature::PacketHold));
        }
        let hold = PacketHold::start().map_err(|_| missing(Feature::PacketHold))?;
        let (hold, points) = (Arc::new(hold), OutputPoints::new(now));
        Ok(Self { hold, points, unused: Vec::new(), inherited: Vec::new() })
    }

    /// Marks the listeners that the program will inherit from this process.
    pub(super) fn with_inherited(mut self) -> Self {
        self.inherited = inherited_listeners();
        // If a socket cannot be marked, the first pause marks the socket.
        self.inherited.iter().for_each(|socket| drop(self.mark().claim(socket.as_fd())));
        self
    }

    pub(super) fn hold(&self) -> Arc<PacketHold> {
        Arc::clone(&self.hold)
    }

    pub(super) fn mark(&self) -> SocketMark {
        self.hold.mark()
    }

    /// Returns the number of connections that can be rolled back to the newest durable checkpoint.
    pub(super) fn connections(&self) -> usize {
        self.points.durable().map_or(0, |connections| connections.sockets.len())
    }

    /// Records a checkpoint that was taken.
    pub(super) fn taken(
        &mut self,
        sequence: Sequence,
        through: Option<PacketNumber>,
        sockets: Vec<Arc<OwnedFd>>,
    ) {
        let point = Connections { sockets, vacated: Vacated::default() };
        let unused = self.points.taken(sequence, through, point);
        self.keep_unused(unused);
    }

    /// Records that a checkpoint is durable, although no restart uses the checkpoint: files cannot be rolled back to it.
    /// The output before the checkpoint waits for a later checkpoint.
    pub(super) fn unusable(&mut self, sequence: Sequence) {
        let unused = self.points.unusable(sequence);
        self.keep_unused(unused);
    }

    /// Keeps the connections of a checkpoint that releases no output.
    fn keep_unused(&mut self, point: Option<Connections>) {
        let sockets = point.into_iter().flat_map(|point| point.sockets);
        let is_new = |socket: &Arc<OwnedFd>| !self.unused.iter().any(|known| Arc::ptr_eq(known, socket));
        let new: Vec<_> = sockets.filter(is_new).collect();
        self.unused.extend(new);
    }

    /// Records that a checkpoint is durable. Releases the output before the checkpoint, and closes our duplicates of
    /// connections that the program had closed before the checkpoint.
    pub(super) fn committed(&mut self, sequence: Sequence, now: Instant) {
        let Some(released) = self.points.committed(sequence, now) else { return };
        if let Some(through) = released.through {
            // An error means that the hold is broken. In this case, the peers send their packets again, and `turn`
            // releases the output later.
            let _ = self.hold.release(through);
        }
        let open = numbers(self.points.first().map_or(&[], |point| &point.sockets));
        let unused = std::mem::take(&mut self.unused);
        let closed = released.others.iter().flat_map(|point| &point.sockets).chain(&unused);
        closed.filter(|socket| !open.contains(&number(socket))).for_each(unmark);
    }

    /// Removes a checkpoint that could not be written.
    pub(super) fn failed(&mut self, sequence: Sequence) {
        let _ = self.points.unusable(sequence);
    }

    /// Returns the time when output must be released, even if no checkpoint is durable.
    pub(super) fn due(&self) -> Instant {
        self.points.due()
    }

    /// Releases output that was held for too long. Returns `None` if the output is not due.
    pub(super) fn turn(&mut self, now: Instant) -> Option<LateRelease> {
        self.points.is_late(now).then(|| {
            let last = self.release_all();
            self.points.released_late(last)
        })
    }

    fn release_all(&self) -> Option<PacketNumber> {
        let last = self.hold.queued().ok().flatten()?;
        let _ = self.hold.release(last);
        Some(last)
    }

    /// Rolls back the connections of a dead subject to a checkpoint. Drops the output after the checkpoint, and resets
    /// connections that no checkpoint contains. Returns the connections that can be rolled back.
    pub(super) fn go_back(&mut self, to: Sequence) -> Kept {
        let Some(released) = self.points.go_back(to) else {
            self.abandon();
            return Kept { mark: Some(self.mark()), ..Kept::default() };
        };
        if let Some(through) = released.through {
            let _ = self.hold.release(through);
        }
        self.drop_rest();
        let (sockets, vacated) = self
            .points
            .first()
            .map(|point| (point.sockets.clone(), point.vacated.clone()))
            .unwrap_or_default();
        // A connection that began after the checkpoint has no program any more. Without a reset, the kernel would send
        // its data again.
        let kept = numbers(&sockets);
        let later = released.others.into_iter().flat_map(|point| point.sockets).chain(self.unused.drain(..));
        later.filter(|socket| !kept.contains(&number(socket))).for_each(|socket| reset(&socket));
        Kept { sockets, rewinds: Some(self.hold()), vacated, mark: Some(self.mark()) }
    }

    /// Records that the subject runs again with these connections.
    pub(super) fn is_back(&mut self, sockets: Vec<Arc<OwnedFd>>, now: Instant) {
        if let Some(point) = self.points.is_back(now) {
            *point = Connections { sockets, vacated: Vacated::default() };
        }
    }

    /// Drops output and resets all connections of a dead subject, because no connection can be rolled back.
    pub(super) fn abandon(&mut self) {
        self.drop_rest();
        let sockets = self.points.abandon().flat_map(|point| point.sockets);
        sockets.chain(self.unused.drain(..)).for_each(|socket| reset(&socket));
    }

    /// Drops held packets. Also ends connections that have lost their process, because the kernel would still send data
    /// of these connections.
    fn drop_rest(&self) {
        let _ = SockDiag::open().and_then(|diag| diag.end_orphans(self.hold.mark()));
        let _ = self.hold.discard_all();
    }
}

impl Drop for HeldOutput {
    fn drop(&mut self) {
        self.inherited.iter().for_each(|socket| drop(SocketMark::NONE.put_on(socket.as_fd())));
        // The subject has exited, or continues without a guardian. No further checkpoint is taken.
        let _ = self.release_all();
    }
}

/// Returns the number that identifies a socket. Duplicates have the same number.
fn number(socket: &Arc<OwnedFd>) -> Option<u64> {
    socket::cookie(socket.as_fd()).ok()
}

fn numbers(sockets: &[Arc<OwnedFd>]) -> HashSet<Option<u64>> {
    sockets.iter().map(number).collect()
}

/// Removes the mark from a duplicate before the duplicate is closed, so that packets of the connection are no longer
/// held. A checkpoint contains everything that the kernel still sends for the connection.
fn unmark(socket: &Arc<OwnedFd>) {
    let _ = SocketMark::NONE.put_on(socket.as_fd());
}

/// Makes the peer of a connection receive a reset when the last duplicate is closed.
fn reset(socket: &Arc<OwnedFd>) {
    unmark(socket);
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use supervise::OUTPUT_TIMEOUT;

    use super::*;

    const EVERY: Option<Duration> = Some(Duration::from_millis(50));
    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(3);
    const ATTEMPTS: usize = 5;

    /// Starts to hold output. Tests run one by one, because the end of a hold drops the held packets of other holds.
    fn started() -> Option<(File, HeldOutput)> {
        let alone = testkit::alone();
        let output = HeldOutput::start(EVERY, sys::clock::Clock::default().now())
            .map_err(|error| println!("unsupported: {error}"))
            .ok()?;
        Some((alone, output))
    }

    /// Returns a connection of a program whose output is held, and the connection of its peer.
    fn pair(output: &HeldOutput) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        output.hold.mark().put_on(listener.as_fd()).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        // Otherwise the second write would wait until the first write is acknowledged.
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

    /// Reads three bytes. Returns `None` if no data arrives, because the held packets may have been dropped.
    fn received(peer: &mut TcpStream) -> Option<Vec<u8>> {
        let mut bytes = [0; 3];
        peer.read_exact(&mut bytes).ok().map(|()| bytes.to_vec())
    }

    /// Repeats an attempt until data is received. An attempt can fail, because the kernel drops held packets when
    /// another test or program removes a hook of the packet filter.
    fn in_peace(attempt: impl Fn() -> Option<()>) {
        assert!((0..ATTEMPTS).any(|_| attempt().is_some()), "nothing was received in {ATTEMPTS} attempts");
    }

    /// Returns the last packet that was held so far. A pause records this packet.
    fn through(output: &HeldOutput) -> Option<PacketNumber> {
        until_some(|| output.hold.queued().unwrap())
    }

    fn until_some<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        (0..1000).find_map(|_| {
            let found = poll();
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
    fn output_waits_for_a_checkpoint_that_a_restart_uses() {
        in_peace(|| {
            let Some((_alone, mut output)) = started() else { return Some(()) };
            let (mut own, mut peer) = pair(&output);
            let now = sys::clock::Clock::default().now();
            output.taken(Sequence(1), None, vec![copy(&own)]);
            output.committed(Sequence(1), now);
            own.write_all(b"one").unwrap();
            let first = through(&output);
            output.taken(Sequence(2), first, vec![copy(&own)]);
            output.unusable(Sequence(2));
            assert!(is_silent(&mut peer), "it was released by a checkpoint that no restart uses");
            assert_eq!(output.connections(), 1, "connections go back to the checkpoint before");
            output.taken(Sequence(3), first, vec![copy(&own)]);
            output.committed(Sequence(3), now);
            assert_eq!(received(&mut peer)?, b"one");
            Some(())
        });
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
            let first = through(&output);
            assert!(is_silent(&mut peer) && output.turn(now).is_none());
            assert_eq!(
                output.turn(now + OUTPUT_TIMEOUT),
                Some(LateRelease { is_first: true, has_sent: true })
            );
            assert_eq!(received(&mut peer)?, b"one");
            assert!(output.go_back(Sequence(1)).sockets.is_empty());
            // Output is released again and again, as long as no checkpoint is durable.
            own.write_all(b"two").unwrap();
            let second = until_some(|| output.hold.queued().unwrap().filter(|last| Some(*last) != first));
            let again = output.turn(output.due());
            assert!(second.is_some() && again == Some(LateRelease { is_first: false, has_sent: true }));
            let idle = output.turn(output.due()).unwrap();
            assert!(!idle.is_first);
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
        // This connection is in no checkpoint.
        let (mut own, mut peer) = pair(&output);
        own.write_all(b"two").unwrap();
        drop(own);
        output.abandon();
        assert_eq!(peer.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_connection_that_began_after_the_checkpoint_is_reset() {
        let Some((_alone, mut output)) = started() else { return };
        let now = sys::clock::Clock::default().now();
        let (older, _older_peer) = pair(&output);
        output.taken(Sequence(1), None, vec![copy(&older)]);
        output.committed(Sequence(1), now);
        let (mut own, mut peer) = pair(&output);
        own.write_all(b"one").unwrap();
        output.taken(Sequence(2), through(&output), vec![copy(&older), copy(&own)]);
        // The program dies before checkpoint 2 is durable. The restored program does not know the output.
        drop(own);
        assert_eq!(output.go_back(Sequence(1)).sockets.len(), 1);
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
