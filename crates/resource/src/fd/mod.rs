//! Registry of descriptor kinds.
//!
//! Owns: the order of the kinds, and which kind handles a description.
//! Invariants: every open file description is saved once, however many descriptors refer to it. The [`envelope`], not
//! the kind, saves the properties that all types have (status flags, position, owner).
//! Does not: install descriptors into processes; the crate `engine` does.
//!
//! A restore has two main steps. [`FdKind::create`] runs in the restoring process before any process of the subject
//! exists. `create` runs once per kind with all records of the kind, so that both ends of a pipe are created
//! together. Every process under construction inherits all created descriptions. [`FdKind::connect`] runs when each
//! descriptor has its fd in its process, and restores state that depends on fds (epoll registrations).

pub mod bpf_map;
pub mod deleted;
pub(crate) mod description;
pub mod device;
pub mod directory;
pub mod duplicate;
pub mod envelope;
pub mod epoll;
pub mod eventfd;
pub mod fanotify;
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
pub mod mqueue;
pub(crate) mod multicast;
mod nameless;
pub mod namespace;
pub mod netlink;
pub mod packet;
pub(crate) mod peek_queue;
pub mod pidfd;
pub mod pieces;
pub mod pipe;
pub mod proc_file;
pub mod raw;
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
mod tcp_stream;
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
pub use self::kind::{
    Connections, Constant, FdCapture, FdConnect, FdCreate, FdFacts, FdKind, FdRecord, InheritedFile, Kept,
};
pub use self::scope::{CaptureScope, ScopeIndex};
pub use self::vacated::Vacated;

/// Every descriptor kind. The first kind that claims a description handles it.
pub const REGISTRY: &[&dyn FdKind] = &[
    // `ProcFile` precedes the kinds of files and directories, which claim every description with a path.
    &proc_file::ProcFile,
    &namespace::Namespace,
    &directory::Directory,
    &device::Device,
    &pipe::Pipe,
    &fifo::Fifo,
    &tty::Tty,
    &symlink::Symlink,
    // `Mqueue` precedes the kinds of files, which claim every regular file.
    &mqueue::Mqueue,
    &regular::Regular,
    &deleted::Deleted,
    &memfd::Memfd,
    &eventfd::Eventfd,
    &signalfd::Signalfd,
    &timerfd::Timerfd,
    &inotify::Inotify,
    &fanotify::Fanotify,
    &pidfd::Pidfd,
    &bpf_map::BpfMap,
    &epoll::Epoll { kind_of },
    &tcp::Tcp,
    &udp::Udp,
    &raw::Raw,
    &packet::Packet,
    &netlink::Netlink,
    &unix::Unix,
];

/// Returns the kind that claims a description. The result is cached, since the kind does not change and
/// [`FdKind::claims`] can make system calls.
#[must_use]
pub fn kind_of(description: &Description) -> Option<&'static dyn FdKind> {
    let find = || REGISTRY.iter().position(|kind| kind.claims(description));
    description.known().kind.get_or_init(find).map(|place| REGISTRY[place])
}

/// Returns the kind that claims a description, if [`kind_of`] has already determined the kind.
#[must_use]
pub fn known_kind(known: &Known) -> Option<&'static dyn FdKind> {
    known.kind.get().copied().flatten().map(|place| REGISTRY[place])
}

/// Returns the kind whose records have this name.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn FdKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}
