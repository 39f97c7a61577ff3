//! Channels that survive: the listeners of a component outlive it, and its callers wait instead of being refused.
//!
//! Owns: the held listeners, the callers that wait, the threads that handle bind(2), listen(2) and connect(2) of
//! components.
//! Invariants: a program needs no change; a call that is not understood, and every call after the death of this process,
//! happens as if this crate were not there.
//! Does not: start components by itself, find out whether they are ready, or keep established connections.
//!
//! # How it works
//!
//! A seccomp filter ([`sys::seccomp_listener`]) reports the three calls; every other call costs nothing.
//!
//! - listen(2): a duplicate of the socket is taken, and kept when the program dies. Clients queue in its backlog. The
//!   backlog of a dead program is as long as net.core.somaxconn allows, for TCP.
//! - bind(2) of the next incarnation to the same address, with a socket of the same family, type, protocol,
//!   IPV6_V6ONLY, interface and network namespace: the held socket replaces the program's own one under the same number,
//!   and the call succeeds. The close-on-exec flag stays. O_NONBLOCK and the options below are copied where they differ.
//!   Several sockets of one address (SO_REUSEPORT) are handed out in their order.
//! - connect(2) to an address of another component that does not listen yet: the call is held until the component is
//!   ready or listens, or a limit passes ([`Limits`]). Then it continues, and gets the result of the kernel. A signal with a
//!   handler ends the wait within a tenth of a second, so does the death of the caller. In a component whose threads are
//!   stopped for checkpoints ([`Channels::expect_stops`]) a signal or a stop breaks the call off; if it is repeated, it
//!   waits for the rest of its limit.
//!
//!   A component that connects to its own held listener before it has bound it is refused: programs look for an earlier
//!   instance of themselves in this way.
//!
//! Copied options: SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PASSCRED, SO_PRIORITY, SO_RCVLOWAT,
//! SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF; TCP_NODELAY, TCP_DEFER_ACCEPT, TCP_FASTOPEN, TCP_KEEPIDLE,
//! TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT; IP_TOS, IPV6_TCLASS.
//!
//! # Limits
//!
//! - Listeners bound to port 0 get another port in each incarnation, and are not held, unless the component has
//!   checkpoints.
//! - A descriptor that the program has duplicated, or registered in an epoll, between socket(2) and bind(2) stays the
//!   unbound one. So do packet filters (SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF) that are attached before bind(2).
//! - A Unix socket keeps its path by a second link (`.NAME.undying-INODE`) in the same directory, made when its program
//!   dies. It is moved back when the next incarnation has unlinked the path and binds it. Between the two calls of the
//!   program, callers that are components wait, and other clients find no file. Where the second link cannot be made, a
//!   path that was unlinked is bound anew, and clients that waited in the old socket get an end of file.
//! - A program that renames its socket file after bind(2) gets a new socket.
//! - Calls through io_uring are not seen: such a listener is not held, and such a caller does not wait.
//! - A program that installs a seccomp filter with a listener itself is refused by the kernel with EBUSY.
//! - A Unix socket takes no more clients than its backlog while its program is dead; further ones wait in connect(2), or
//!   fail with EAGAIN if their sockets are nonblocking.
//! - The path of a component with checkpoints gets no second link: its restore has the listener.
//! - Addresses are taken as those of one network namespace.
//! - Components that wait for each other wait until the limit: [`Channels::waiting`] shows it.
//! - The death of this process closes the listeners of components that are dead at that time, and leaves second links.
//! - UDP and other sockets without listen(2) are left alone.
//! - A listener that the program closes while it lives stays open for one to two seconds: see [`Channels::look`].
//! - While a component is dead, connecting to it succeeds. A readiness probe that only connects therefore proves
//!   nothing: ask [`Channels::listens`] first.
#![forbid(unsafe_code)]

mod address;
mod callers;
mod channels;
mod component;
mod error;
mod handler;
mod held;
mod id;
mod inner;
mod options;
mod place;
mod report;
mod route;
mod search;
mod serve;
mod state;

pub use channels::Channels;
pub use error::{ChannelError, Result};
pub use id::ComponentId;
pub use inner::Limits;
pub use report::{HeldListener, InheritedListener, Level, WaitingCaller};
