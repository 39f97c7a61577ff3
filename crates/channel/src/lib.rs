//! Channels that survive the death of a program. The listening sockets of a component (a supervised program) stay open.
//! Callers of the component wait, and are not refused.
//!
//! Owns: the held sockets, the waiting callers, and the threads that handle bind(2), listen(2) and connect(2) of
//! components.
//! Invariants: a program needs no change. If this crate cannot parse a call, or if this process has died, the kernel
//! executes the call unchanged.
//! Does not: start components by itself, check whether components are ready, or preserve established connections.
//!
//! # How it works
//!
//! A seccomp filter ([`sys::seccomp_listener`]) reports the three calls. Other calls have no additional cost.
//!
//! - listen(2): this process duplicates the socket, and keeps the duplicate open when the program dies. Clients queue
//!   in the backlog. For TCP, the backlog of a dead program is net.core.somaxconn.
//! - bind(2) of the next incarnation (run of the program): the held socket replaces the program's own socket under the
//!   same number. The call succeeds. The address, the family, the type, the protocol, IPV6_V6ONLY, the interface and
//!   the network namespace must be equal. The close-on-exec flag is preserved. O_NONBLOCK and the options below are
//!   copied if they differ. If several sockets share an address (SO_REUSEPORT), they are handed over in their original
//!   order.
//! - connect(2) to an address of another component that does not listen yet: the call is held until the component is
//!   ready or listens. The hold also ends at a limit ([`Limits`]). Then the kernel executes the call. A signal with a
//!   handler, or the death of the caller, ends the wait within a tenth of a second.
//!
//!   In a component that is stopped for checkpoints ([`Channels::expect_stops`]), a signal or a stop interrupts the
//!   call. If the call is repeated, it waits for the remaining part of its limit.
//!
//!   A component that connects to its own held socket before its bind(2) is refused. Programs search for an earlier
//!   instance of themselves in this way.
//!
//! Copied options: SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PASSCRED, SO_PRIORITY,
//! SO_RCVLOWAT, SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF; TCP_NODELAY, TCP_DEFER_ACCEPT, TCP_FASTOPEN,
//! TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT; IP_TOS, IPV6_TCLASS.
//!
//! # Limits
//!
//! - A socket that is bound to port 0 gets another port in each incarnation. Such a socket is held only for a component
//!   with checkpoints.
//! - A program may duplicate a descriptor, or register it in an epoll instance, between socket(2) and bind(2). The
//!   duplicate and the registration then refer to the unbound socket. A packet filter (SO_ATTACH_FILTER,
//!   SO_ATTACH_REUSEPORT_CBPF) that is attached before bind(2) also stays at the unbound socket.
//! - A Unix socket keeps its path through a second link (`.NAME.undying-INODE`) in the same directory. The link is
//!   created when the program dies. When the next incarnation has unlinked the path and binds it again, the link is
//!   renamed to the path. Between these two calls, callers that are components wait, and other clients find no file.
//! - If the second link cannot be created, and the program unlinks the path, the program gets a new socket. Clients
//!   that waited at the old socket then receive an end of file.
//! - A program that renames its socket file after bind(2) gets a new socket.
//! - The filter does not report calls through io_uring. Such a socket is not held, and such a caller does not wait.
//! - If a program installs its own seccomp filter with a listener, the kernel refuses the filter with EBUSY.
//! - While a program is dead, its Unix socket queues no more clients than its backlog. Further clients block in
//!   connect(2), or fail with EAGAIN if their sockets are nonblocking.
//! - The path of a component with checkpoints gets no second link, because a restore receives the held socket.
//! - All addresses are assumed to belong to one network namespace.
//! - Components that wait for each other wait until the limit. [`Channels::waiting`] shows these callers.
//! - The death of this process closes the sockets of components that are dead at this time, and does not remove second
//!   links.
//! - UDP sockets and other sockets without listen(2) are not changed.
//! - A socket that a running program closes stays open for one to two seconds: see [`Channels::scan`].
//! - While a component is dead, a connection to the component succeeds. A readiness probe that only connects is
//!   therefore not sufficient; call [`Channels::listens`] first.
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
