//! Test support for descriptor kinds. The tests use descriptors of the test process as the subject's descriptors.
//!
//! Owns: running capture and creation of one kind inside one process.
//! Does not: install descriptors under given fds, which needs another process.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{DescriptionId, Fd, Pid};

use super::description::{Description, Known};
use super::kind::{FdCreate, FdKind, FdRecord, Kept};
use super::scope::CaptureScope;
use super::sockets::Sockets;
use crate::{Opener, Result};

/// Acquires a lock for tests that start programs, or that close and restore sockets. A starting program has
/// duplicates of all descriptors for a moment.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static LOSES_CONNECTIONS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs [`capture`] with `loses_connections` set, so that outside connections are lost.
pub(crate) fn capture_losing(
    kind: &dyn FdKind,
    descriptions: &[Description],
    kills: bool,
) -> Result<Vec<FdRecord>> {
    LOSES_CONNECTIONS.with(|loses| loses.set(true));
    let outcome = capture(kind, descriptions, kills);
    LOSES_CONNECTIONS.with(|loses| loses.set(false));
    outcome
}

/// Returns the pid of this process.
pub(crate) fn us() -> Pid {
    Pid(std::process::id() as i32)
}

/// Returns a description of a descriptor of this process.
pub(crate) fn describe(id: u32, fd: impl AsFd) -> Description {
    let fd = fd.as_fd();
    let number = Fd(fd.as_raw_fd());
    let info = tracee::procfs::descriptor_info(us(), number).unwrap();
    let known = Known::new(DescriptionId(id), (us(), number), info, rustix::fs::fstat(fd).unwrap());
    Description::new(Arc::new(known), fd.try_clone_to_owned().unwrap())
}

/// Returns descriptions of several descriptors, with ids from zero.
pub(crate) fn describe_all(fds: &[BorrowedFd<'_>]) -> Vec<Description> {
    fds.iter().enumerate().map(|(id, fd)| describe(id as u32, fd)).collect()
}

/// Returns the facts of descriptions, without the duplicates.
pub(crate) fn known_of(descriptions: &[Description]) -> Vec<Arc<Known>> {
    descriptions.iter().map(|one| Arc::clone(one.known())).collect()
}

/// Runs `prepare`, `inside`, `relate` and `after` of all descriptions that the kind claims.
pub(crate) fn capture(kind: &dyn FdKind, descriptions: &[Description], kills: bool) -> Result<Vec<FdRecord>> {
    capture_again(kind, descriptions, kills, &Sockets::default(), || {})
}

/// Runs [`capture`] for one of several checkpoints. `meanwhile` runs just before the pause.
pub(crate) fn capture_again(
    kind: &dyn FdKind,
    descriptions: &[Description],
    kills: bool,
    sockets: &Sockets,
    meanwhile: impl FnOnce(),
) -> Result<Vec<FdRecord>> {
    let table: Vec<_> = descriptions.iter().map(|one| (one.pid, one.fd, one.id)).collect();
    let known = known_of(descriptions);
    let scope = CaptureScope {
        pids: &[us()],
        descriptions: &known,
        open: descriptions,
        inherited: &[],
        table: &table,
        kills,
        loses_connections: LOSES_CONNECTIONS.with(std::cell::Cell::get),
        sockets,
        mappings: Vec::new(),
        index: Default::default(),
    };
    let mut captures = Vec::new();
    sockets.begin_preparing();
    for description in descriptions.iter().filter(|one| kind.claims(one)) {
        captures.push((description, kind.prepare(description, &scope)?));
    }
    meanwhile();
    sockets.begin_pause();
    for (description, capture) in &mut captures {
        capture.inside(description)?;
    }
    for (description, capture) in &mut captures {
        capture.relate(description, &scope)?;
    }
    captures
        .into_iter()
        .map(|(description, mut capture)| {
            let mut payload = capture.after(description)?;
            capture.parts().iter().for_each(|part| payload.extend_from_slice(part.bytes()));
            Ok(FdRecord {
                id: description.id,
                holder: (description.pid, description.fd),
                version: kind.version(),
                payload,
                flags: description.info.description_flags(),
                position: description.info.position,
                opener: Opener::default(),
            })
        })
        .collect()
}

/// Runs `create` of a kind. `created` contains descriptions that already exist.
pub(crate) fn create(
    kind: &dyn FdKind,
    records: &[FdRecord],
    mut created: HashMap<DescriptionId, OwnedFd>,
    connections_lost: bool,
) -> Result<HashMap<DescriptionId, OwnedFd>> {
    let (objects, mut shared) = (HashMap::new(), crate::Shared::default());
    let mut context = FdCreate {
        created: &mut created,
        inherited: &[],
        held: &mut Vec::new(),
        handed_on: &mut HashSet::new(),
        covered: &Default::default(),
        objects: &objects,
        connections_lost,
        kept: &Kept::default(),
        connections: &mut Default::default(),
        shared: &mut shared,
    };
    kind.create(records, &mut context)?;
    shared.keep();
    Ok(created)
}

/// Captures one descriptor, and returns the restored descriptor.
pub(crate) fn round_trip(kind: &dyn FdKind, fd: impl AsFd) -> OwnedFd {
    let description = describe(0, fd);
    assert!(kind.claims(&description), "{description:?}");
    let records = capture(kind, &[description], false).unwrap();
    create(kind, &records, HashMap::new(), false).unwrap().remove(&DescriptionId(0)).unwrap()
}
