//! Preserves the *channels* of a program while the program is dead: its listening sockets, and the connect(2) calls to
//! them.
//!
//! A *component* is a supervised program, and an *incarnation* is one run of the program. The listening sockets of a
//! dead component stay open. A *caller* is a thread of a component whose connect(2) goes to another component, its
//! *provider*. If the provider does not listen yet, the caller waits, and is not refused.
//!
//! Owns: the held sockets, the waiting callers, and the threads that handle bind(2), listen(2) and connect(2) of
//! components.
//! Invariants: a program needs no change. If this crate cannot parse a call, or if this process has died, the kernel
//! executes the call unchanged.
//! Does not: decide when a component is started or ready, or preserve established connections.
//!
//! # How it works
//!
//! A seccomp filter ([`sys::seccomp_listener`]) reports bind(2), listen(2) and connect(2) to this process. The filter
//! does not report other system calls.
//!
//! - listen(2): this process duplicates the socket. The duplicate (the *held socket*) stays open when the program dies,
//!   and clients queue in its backlog. While the program is dead, the backlog of a TCP socket is net.core.somaxconn.
//! - bind(2): if the next incarnation *claims* a held socket by a bind(2) to its address, the held socket replaces the
//!   new socket. The descriptor number and the close-on-exec flag do not change, and the call succeeds. In both
//!   sockets, the address, the family, the type, the protocol, IPV6_V6ONLY, the interface, the network namespace and
//!   the user who has created the socket must be equal. If O_NONBLOCK or one of the options below differs, it is copied
//!   to the held socket. If several held sockets share an address (SO_REUSEPORT), the first bind(2) receives the socket
//!   that began to listen first, and so on.
//! - connect(2): if the address belongs to another component, and this component does not listen yet, the call is
//!   *held* (the caller waits in the kernel). The hold ends when the called component is ready or listens, or at a time
//!   limit ([`Limits`]). The kernel then executes the call. If the caller dies or receives a signal with a handler, the
//!   hold ends within 50 ms, plus 0.2 ms for each held call.
//!
//! If a tracer stops the caller's component for checkpoints ([`Channels::expect_stops`]), a signal or a stop interrupts
//! the held call. If the caller repeats the call, the call waits for the remaining part of its time limit.
//!
//! If a component connects to its own held socket before its bind(2), the call fails with ECONNREFUSED. Programs use
//! such a call to find another running instance of themselves.
//!
//! Copied options: SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PASSCRED, SO_PRIORITY,
//! SO_RCVLOWAT, SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF; TCP_NODELAY, TCP_DEFER_ACCEPT, TCP_FASTOPEN,
//! TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT; IP_TOS, IPV6_TCLASS.
//!
//! # Limits
//!
//! - A socket that is bound to port 0 gets another port in each incarnation. Such a socket is held only for a component
//!   with checkpoints ([`Channels::expect_stops`]).
//! - The held socket replaces a new socket only in one descriptor. If the program has duplicated this descriptor before
//!   bind(2), the duplicate refers to the unbound new socket. An earlier registration in an epoll instance also refers
//!   to the unbound socket. A packet filter (SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF) of the new socket is not
//!   copied.
//! - When a program dies, the file of its Unix socket gets a second link (`.NAME.undying-INODE`) in the same directory.
//!   If the next incarnation unlinks the path and binds a socket to the path again, the second link is renamed to the
//!   path. Between the unlink(2) and the bind(2), callers wait, and clients that are not components find no file.
//! - If a program is ended for a restart, the second link is created before. If the program then unlinks the path, the
//!   path leads to the socket again 2 ms later.
//! - If the second link cannot be created, and the program unlinks the path, the program gets a new socket. Clients
//!   that wait at the held socket receive an end of file.
//! - If a program has renamed its socket file after bind(2), the next incarnation gets a new socket.
//! - The filter does not report listen or connect requests of io_uring. Sockets of such requests are not held, and
//!   connect requests do not wait.
//! - If a program installs its own seccomp filter with a listener, the kernel refuses the program's filter with EBUSY.
//! - While a program is dead, its Unix socket queues at most as many clients as the program has requested as backlog.
//!   Further clients block in connect(2), or fail with EAGAIN if their sockets are nonblocking.
//! - At a death, a socket file of a component with checkpoints gets no second link, because a restore receives the held
//!   socket.
//! - All addresses are assumed to belong to one network namespace.
//! - Components that wait for each other wait until the limit. [`Channels::waiting`] shows these callers.
//! - If this process dies while a component is dead, the held sockets of the component are closed. Second links are not
//!   removed.
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
