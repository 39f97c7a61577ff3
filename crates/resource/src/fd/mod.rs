//! Open file descriptions: the registry of descriptor kinds.
//!
//! Owns: the order of the kinds; the kind of each description.
//! Invariants: every open file description is saved once, however many descriptors refer to it. The envelope, not the
//! kind, saves properties of all kinds (status flags, position, owner).
//! Does not: install descriptors into processes; the engine does.
//!
//! A restore has two steps. `create` runs in the restoring process before any process of the subject exists. It runs
//! once per kind with all its records, so that both ends of a pipe are created together. Every process under
//! construction inherits all descriptions. `connect` runs when every descriptor has its fd in its process, for state
//! that depends on fds (epoll registrations, record locks).

pub mod deleted;
pub(crate) mod description;
pub mod device;
pub mod directory;
pub mod duplicate;
pub mod envelope;
pub mod epoll;
pub mod eventfd;
pub mod fdinfo;
pub mod fifo;
#[cfg(test)]
mod file_flags;
mod file_state;
mod held_listener;
mod identify;
pub mod in_flight;
pub(crate) mod inet_address;
pub(crate) mod inherited_socket;
pub mod inotify;
mod kept_connections;
pub(crate) mod kind;
pub mod locks;
pub mod memfd;
pub(crate) mod multicast;
mod nameless;
pub mod netlink;
pub(crate) mod peek_queue;
pub mod pidfd;
pub mod pipe;
pub mod proc_file;
pub(crate) mod raw_packet;
pub mod regular;
pub(crate) mod scope;
pub mod signalfd;
pub(crate) mod socket_events;
mod socket_family;
mod socket_option_table;
pub(crate) mod socket_options;
pub mod sockets;
pub mod symlink;
pub mod tcp;
mod tcp_progress;
#[cfg(test)]
pub(crate) mod test_support;
pub mod timerfd;
pub(crate) mod tmpfs_content;
pub mod tty;
pub mod udp;
pub mod unclaimed;
pub mod unix;
mod vacated;
mod waiting;

pub use self::description::{Description, Known, path_of};
pub use self::kind::{Connections, Constant, FdCapture, FdConnect, FdCreate, FdKind, FdRecord, Kept};
pub use self::scope::{CaptureScope, ScopeIndex};
pub use self::vacated::Vacated;

/// Every descriptor kind. The first that claims a description is its kind.
pub const REGISTRY: &[&dyn FdKind] = &[
    // Before files and directories, which claim by name.
    &proc_file::ProcFile,
    &directory::Directory,
    &device::Device,
    &pipe::Pipe,
    &fifo::Fifo,
    &tty::Tty,
    &symlink::Symlink,
    &regular::Regular,
    &deleted::Deleted,
    &memfd::Memfd,
    &eventfd::Eventfd,
    &signalfd::Signalfd,
    &timerfd::Timerfd,
    &inotify::Inotify,
    &pidfd::Pidfd,
    &epoll::Epoll { kind_of },
    &tcp::Tcp,
    &udp::Udp,
    &netlink::Netlink,
    &unix::Unix,
];

/// The kind that claims a description. The result is cached, since it does not change and `claims` makes system
/// calls.
#[must_use]
pub fn kind_of(description: &Description) -> Option<&'static dyn FdKind> {
    let find = || REGISTRY.iter().position(|kind| kind.claims(description));
    description.known().kind.get_or_init(find).map(|place| REGISTRY[place])
}

/// The kind that claims a description, if [`kind_of`] has determined it.
#[must_use]
pub fn known_kind(known: &Known) -> Option<&'static dyn FdKind> {
    known.kind.get().copied().flatten().map(|place| REGISTRY[place])
}

/// The kind with this record name.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn FdKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}
