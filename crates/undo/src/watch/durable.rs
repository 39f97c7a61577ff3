//! Whether a subject has told a peer about data that it has made durable.
//!
//! A program that syncs a file and then sends something to a peer outside its tree has possibly told the peer that the
//! data is safe. A rollback to a checkpoint before the sync would take back what the peer was told.
//!
//! Owns: the first sync after each checkpoint, and the comparison with the last send to a peer.
//! Invariants: in doubt, the subject has told a peer. A subject that never syncs costs nothing: sends are observed from
//! the first sync on.
//! Does not: choose the checkpoint of a restart.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use model::{Sequence, Tid};
use sys::send_observer::{ObservedSocket, ObservedTree, SendObserver};

use super::epoch::Id;
use crate::key::FileKey;

/// The first sync after a range of checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sync {
    /// The last checkpoint before the sync. The range begins after the checkpoint of the previous entry.
    after: Sequence,
    /// The time on CLOCK_MONOTONIC at which the call was reported, which is before the data was durable.
    at: Duration,
    /// Whether an incarnation that has ended has told a peer after the sync.
    is_told: bool,
}

/// The sends of the present incarnation.
#[derive(Debug, Default)]
enum Sends {
    /// The subject has not synced yet, so that its sends do not matter.
    #[default]
    Ignored,
    Observed(ObservedTree),
    /// The incarnation has ended. The field is the time of its last send to a peer.
    Ended(Option<Duration>),
    /// Sends cannot be observed.
    Unknown,
}

/// What a subject has made durable, and what it may have told about it.
#[derive(Debug)]
pub(super) struct Durable {
    /// In rising order of `after`.
    syncs: Vec<Sync>,
    /// The times of the exact checkpoints, on CLOCK_MONOTONIC and on the wall clock.
    boundaries: BTreeMap<Sequence, Moment>,
    /// Files that were open at a boundary so that each write makes its data durable, with the last such boundary.
    written_through: HashMap<Id, (FileKey, Sequence)>,
    sends: Sends,
}

/// The time of a moment on CLOCK_MONOTONIC and on the wall clock.
pub(super) type Moment = (Duration, SystemTime);

impl Durable {
    /// Begins at a checkpoint, or at the beginning of the subject.
    pub(super) fn starting_at(start: Sequence, now: Moment) -> Self {
        Self {
            syncs: Vec::new(),
            boundaries: BTreeMap::from([(start, now)]),
            written_through: HashMap::new(),
            sends: Sends::Ignored,
        }
    }

    /// Records that checkpoint `sequence` is exact. The subject has opened the files `written_through` so that each
    /// write makes its data durable (O_SYNC, O_DSYNC).
    pub(super) fn boundary(&mut self, sequence: Sequence, now: Moment, written_through: Vec<FileKey>) {
        self.boundaries.insert(sequence, now);
        for key in written_through {
            self.written_through.insert((key.device, key.inode), (key, sequence));
        }
    }

    /// Records that `thread` is about to make data durable. Sends of its tree are observed from now on. `is_over` reports
    /// whether the thread was killed before its call.
    pub(super) fn syncs(&mut self, thread: Tid, now: Duration, is_over: &impl Fn() -> bool) {
        if matches!(self.sends, Sends::Ignored | Sends::Ended(_)) {
            let tree = SendObserver::shared().and_then(|observer| observer.observe(thread));
            // A killed thread has no filter any more, and makes nothing durable.
            if tree.is_err() && is_over() {
                return;
            }
            self.sends = tree.map_or(Sends::Unknown, Sends::Observed);
        }
        let newest = self.boundaries.keys().next_back().copied().unwrap_or(Sequence(0));
        if self.syncs.last().is_none_or(|last| last.after < newest) {
            self.syncs.push(Sync { after: newest, at: now, is_told: false });
        }
    }

    /// Returns those of the checkpoints `since` after which the subject has made data durable, and has then told a
    /// peer. `has_changed` reports whether a file has changed since a time.
    pub(super) fn told(
        &self,
        since: &[Sequence],
        has_changed: impl Fn(&FileKey, SystemTime) -> bool,
    ) -> Vec<Sequence> {
        let synced: Vec<(Sequence, Duration)> =
            since.iter().filter_map(|since| Some((*since, self.synced(*since, &has_changed)?))).collect();
        let sent = if synced.is_empty() { None } else { self.last_sent() };
        let is_told = |(since, synced): &(Sequence, Duration)| {
            sent >= Some(*synced) || self.first_sync(*since).is_some_and(|sync| sync.is_told)
        };
        synced.into_iter().filter(is_told).map(|(since, _)| since).collect()
    }

    fn first_sync(&self, since: Sequence) -> Option<&Sync> {
        self.syncs.iter().find(|sync| sync.after >= since)
    }

    /// Returns the time of the first sync after a checkpoint.
    fn synced(
        &self,
        since: Sequence,
        has_changed: &impl Fn(&FileKey, SystemTime) -> bool,
    ) -> Option<Duration> {
        // The time of a synchronous write is unknown; the earliest possible time is the time of the checkpoint.
        let is_written = |wall: SystemTime| {
            let mut files = self.written_through.values().filter(|(_, last)| *last >= since);
            files.any(|(key, _)| has_changed(key, wall))
        };
        let boundary = self.boundaries.get(&since);
        let through = boundary.filter(|(_, wall)| is_written(*wall)).map(|(at, _)| *at);
        self.first_sync(since).map(|sync| sync.at).into_iter().chain(through).min()
    }

    /// Returns the time of the last send to a peer. If sends cannot be observed, any time counts as such a time.
    fn last_sent(&self) -> Option<Duration> {
        match &self.sends {
            Sends::Ignored => None,
            Sends::Ended(sent) => *sent,
            Sends::Unknown => Some(Duration::MAX),
            Sends::Observed(tree) => {
                tree.sockets().map_or(Some(Duration::MAX), |sockets| last_sent(&sockets))
            }
        }
    }

    /// Records the end of an incarnation, whose sends are then complete.
    pub(super) fn ended(&mut self) {
        let sent = self.last_sent();
        for sync in &mut self.syncs {
            sync.is_told |= sent.is_some_and(|sent| sent >= sync.at);
        }
        self.sends = Sends::Ended(sent);
    }

    /// Continues from checkpoint `to`, after a rollback.
    pub(super) fn go_back(&mut self, to: Sequence) {
        self.boundaries.split_off(&Sequence(to.get() + 1));
        let kept = self.syncs.iter().position(|sync| sync.after >= to);
        if let Some(first) = kept {
            self.syncs.truncate(first + 1);
            // The syncs of the discarded incarnation remain syncs after the checkpoints before `to`.
            match to.get().checked_sub(1) {
                Some(before) => self.syncs[first].after = Sequence(before),
                None => self.syncs.clear(),
            }
        }
    }

    /// Forgets all checkpoints that are not in `kept` (in rising order), except checkpoints after the last of `kept`.
    pub(super) fn retain(&mut self, kept: &[Sequence]) {
        let (Some(oldest), Some(newest)) = (kept.first().copied(), kept.last().copied()) else { return };
        self.boundaries.retain(|one, _| *one > newest || kept.binary_search(one).is_ok());
        self.written_through.retain(|_, (_, last)| *last >= oldest);
        let mut previous = None;
        self.syncs.retain(|sync| {
            let is_in_range = |one: &&Sequence| Some(**one) > previous && **one <= sync.after;
            let is_needed = sync.after > newest || kept.iter().any(|one| is_in_range(&one));
            previous = Some(sync.after);
            is_needed
        });
    }
}

/// Returns the time of the last send to a peer outside the tree.
fn last_sent(sockets: &[ObservedSocket]) -> Option<Duration> {
    let is_outside = |socket: &&ObservedSocket| leads_to_peer(socket) && !is_inside(socket, sockets);
    sockets.iter().filter(is_outside).filter_map(|socket| socket.sent).max()
}

/// Reports whether a socket leads to a peer that expects promises. These are connections that the subject has accepted,
/// TCP connections that it has made, and ports and Unix addresses that it serves. Connections that it has made to Unix
/// sockets are not: they lead to a terminal server, a message bus or a system log.
fn leads_to_peer(socket: &ObservedSocket) -> bool {
    let is_datagram = i32::from(socket.kind) == libc::SOCK_DGRAM;
    match i32::from(socket.family) {
        libc::AF_UNIX => socket.has_address,
        libc::AF_INET | libc::AF_INET6 if is_datagram => socket.has_bound_port,
        libc::AF_INET | libc::AF_INET6 => i32::from(socket.kind) != libc::SOCK_RAW,
        libc::AF_NETLINK | libc::AF_PACKET | libc::AF_ALG | libc::AF_KEY => false,
        _ => !is_datagram,
    }
}

/// Reports whether both ends of a connection are in the tree. Of a Unix socket, the inode number of the peer is known;
/// of an internet socket, the addresses.
fn is_inside(socket: &ObservedSocket, sockets: &[ObservedSocket]) -> bool {
    match (socket.local, socket.remote) {
        (Some(local), Some(remote)) => sockets.iter().any(|other| {
            other.local == Some(remote) && other.remote == Some(local) && other.kind == socket.kind
        }),
        _ => socket.peer_inode != 0 && sockets.iter().any(|other| other.inode == socket.peer_inode),
    }
}

#[cfg(test)]
mod tests {
    use sys::file_handle::FileHandle;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn socket(family: i32, kind: i32, sent: Option<u64>) -> ObservedSocket {
        ObservedSocket {
            family: family as u16,
            kind: kind as u16,
            inode: 1,
            has_bound_port: false,
            has_address: false,
            peer_inode: 0,
            local: None,
            remote: None,
            sent: sent.map(seconds),
        }
    }

    fn tcp(inode: u64, local: u16, remote: u16, sent: Option<u64>) -> ObservedSocket {
        let at = |port| Some(([127, 0, 0, 1], port).into());
        ObservedSocket {
            inode,
            local: at(local),
            remote: at(remote),
            ..socket(libc::AF_INET, libc::SOCK_STREAM, sent)
        }
    }

    #[test]
    fn only_sends_to_peers_after_the_sync_count() {
        let has = |sockets: &[ObservedSocket]| last_sent(sockets) >= Some(seconds(10));
        assert!(has(&[tcp(1, 80, 5000, Some(10))]));
        assert!(!has(&[tcp(1, 80, 5000, Some(9)), tcp(2, 80, 5001, None)]));
        let unix = socket(libc::AF_UNIX, libc::SOCK_STREAM, Some(11));
        assert!(!has(std::slice::from_ref(&unix)), "a message bus");
        assert!(has(&[ObservedSocket { has_address: true, ..unix }]), "a client of the program");
        let log = socket(libc::AF_UNIX, libc::SOCK_DGRAM, Some(11));
        assert!(!has(std::slice::from_ref(&log)), "a message to the system log");
        assert!(has(&[ObservedSocket { has_address: true, ..log }]), "an answer of a server");
        let question = socket(libc::AF_INET, libc::SOCK_DGRAM, Some(11));
        assert!(!has(std::slice::from_ref(&question)));
        assert!(has(&[ObservedSocket { has_bound_port: true, ..question }]), "an answer of a name server");
        assert!(!has(&[socket(libc::AF_NETLINK, libc::SOCK_RAW, Some(11))]));
        assert!(has(&[socket(libc::AF_VSOCK, libc::SOCK_STREAM, Some(11))]));
    }

    #[test]
    fn connections_inside_the_tree_do_not_count() {
        let pair = [tcp(1, 80, 5000, Some(11)), tcp(2, 5000, 80, None)];
        assert_eq!(last_sent(&pair), None);
        assert_eq!(last_sent(&pair[..1]), Some(seconds(11)));
        let unix = |inode, peer_inode, has_address| ObservedSocket {
            inode,
            peer_inode,
            has_address,
            ..socket(libc::AF_UNIX, libc::SOCK_STREAM, Some(11))
        };
        assert_eq!(last_sent(&[unix(1, 2, true), unix(2, 1, false)]), None);
        assert_eq!(last_sent(&[unix(1, 3, true), unix(2, 4, false)]), Some(seconds(11)));
    }

    /// A subject without observed sends, which counts as one that has sent something after each sync.
    fn unobserved(boundaries: &[(u64, u64)]) -> Durable {
        let mut durable = Durable::starting_at(Sequence(0), (seconds(0), SystemTime::UNIX_EPOCH));
        durable.sends = Sends::Unknown;
        for (sequence, at) in boundaries {
            let now = (seconds(*at), SystemTime::UNIX_EPOCH + seconds(*at));
            durable.boundary(Sequence(*sequence), now, Vec::new());
        }
        durable
    }

    fn told(durable: &Durable) -> Vec<u64> {
        let all: Vec<Sequence> = (0..10).map(Sequence).collect();
        durable.told(&all, |_, _| false).into_iter().map(Sequence::get).collect()
    }

    #[test]
    fn a_checkpoint_after_the_last_sync_is_not_told() {
        let mut durable = unobserved(&[(1, 1), (2, 2)]);
        assert!(told(&durable).is_empty());
        durable.syncs(Tid(1), seconds(3), &|| false);
        durable.syncs(Tid(1), seconds(4), &|| false);
        assert_eq!(durable.syncs.len(), 1);
        assert_eq!(told(&durable), [0, 1, 2]);
        durable.boundary(Sequence(5), (seconds(5), SystemTime::now()), Vec::new());
        assert_eq!(told(&durable), [0, 1, 2]);
    }

    #[test]
    fn what_an_ended_incarnation_has_told_stays_told_for_older_checkpoints() {
        let mut durable = unobserved(&[(1, 1), (2, 2), (3, 3)]);
        durable.syncs(Tid(1), seconds(4), &|| false);
        durable.ended();
        assert_eq!(told(&durable), [0, 1, 2, 3]);
        durable.go_back(Sequence(3));
        assert_eq!(told(&durable), [0, 1, 2]);
        durable.go_back(Sequence(0));
        assert!(told(&durable).is_empty());
    }

    #[test]
    fn syncs_after_retained_checkpoints_are_retained() {
        let mut durable = unobserved(&[]);
        for sequence in 1..9 {
            let at = seconds(2 * sequence);
            durable.boundary(Sequence(sequence), (at, SystemTime::UNIX_EPOCH + at), Vec::new());
            durable.syncs(Tid(1), at + seconds(1), &|| false);
        }
        durable.retain(&[2, 5, 6].map(Sequence));
        let left: Vec<u64> = durable.syncs.iter().map(|sync| sync.after.get()).collect();
        assert_eq!(left, [2, 5, 6, 7, 8]);
        assert_eq!(durable.boundaries.len(), 5);
    }

    #[test]
    fn a_file_that_is_written_through_counts_from_the_checkpoint_on() {
        let mut durable = unobserved(&[(1, 1)]);
        let key = FileKey { device: 1, inode: 2, handle: FileHandle { kind: 1, bytes: vec![2] } };
        durable.boundary(Sequence(2), (seconds(2), SystemTime::UNIX_EPOCH + seconds(2)), vec![key]);
        let changed = |at: u64| move |_: &FileKey, since| SystemTime::UNIX_EPOCH + seconds(at) >= since;
        let all = [Sequence(1), Sequence(2)];
        assert_eq!(durable.told(&all, changed(3)), all);
        assert!(durable.told(&all[1..], changed(1)).is_empty());
        durable.ended();
        assert_eq!(durable.told(&all, changed(3)), all);
        durable.retain(&[Sequence(3)]);
        assert!(durable.told(&all, changed(3)).is_empty());
    }
}
