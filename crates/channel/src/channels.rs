//! Manages the channels of all components of one guardian.
//!
//! A seccomp filter in each component reports bind(2), listen(2) and connect(2) to a thread of this crate.
//!
//! Owns: the public interface and the threads of this crate.
//! Invariants: for each running program with a filter, a thread of this crate answers the reported calls. If this
//! thread cannot be started, the program is killed.
//! Does not: decide when a component is started, ready, dead or stopped permanently.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use model::{Inode, Pid};
use sys::clock::Clock;
use sys::features::{self, Feature};
use sys::listener_holder::ListenerHolder;
use sys::packet_hold::SocketMark;
use sys::seccomp_listener::{FilterProgram, Listener, Reported, filter_program};
use sys::socket_call::CallHandler;
use sys::watched_start::{PendingListener, watch_from_start};

use crate::address::Address;
use crate::callers::Caller;
use crate::error::Result;
use crate::handler::Handler;
use crate::held::{Claim, Held};
use crate::id::ComponentId;
use crate::inner::{Inner, LISTEN_LIMIT, Limits};
use crate::report::{HeldListener, InheritedListener, Level, WaitingCaller};
use crate::route::Route;
use crate::search;
use crate::serve::{Source, receive_calls};
use crate::state::{Outcome, Pending};

/// The channels of all components of one guardian. The threads of the guardian share this value.
///
/// On drop, the kernel executes all held calls, and the held sockets are closed. After the drop, running programs
/// continue as if they had no filter.
#[derive(Debug)]
pub struct Channels {
    inner: Arc<Inner>,
    /// The thread that ends the waits of callers.
    waits: Option<JoinHandle<()>>,
}

impl Channels {
    /// If this machine cannot report socket calls, returns the reason: the missing privilege or kernel feature.
    #[must_use]
    pub fn missing() -> Option<String> {
        let entry = features::entry(Feature::FileNotify);
        if !features::enabled(Feature::FileNotify) {
            return Some(format!("{} is forced off", entry.name()));
        }
        let outcome = (entry.probe)(&std::env::temp_dir());
        outcome.err().map(|error| format!("{}: {error}", entry.name()))
    }

    /// Creates channels without components. `holder` is a helper process. If this process dies, the helper process lets
    /// the kernel execute the waiting calls of all components.
    ///
    /// # Errors
    ///
    /// An error if /dev/null cannot be opened, or if the thread that ends waits cannot be started.
    pub fn new(holder: ListenerHolder, limits: Limits, clock: Clock) -> Result<Self> {
        let null = File::options()
            .write(true)
            .open("/dev/null")
            .map_err(|error| sys::Error::path("open", "/dev/null", error))?;
        let inner = Arc::new(Inner::new(holder, null, clock, limits));
        let own = Arc::clone(&inner);
        let waits = spawn("undying-waits", move || own.end_waits())?;
        Ok(Self { inner, waits: Some(waits) })
    }

    /// Declares addresses of a component. A connect(2) to a declared address is held even if the component has never
    /// listened there. The forms of an address are `127.0.0.1:80`, `[::1]:80`, `localhost:80`, `/path` and `@abstract`,
    /// with an optional prefix `tcp:` or `unix:`. The addresses replace the addresses that an earlier call has declared
    /// for the component.
    ///
    /// # Errors
    ///
    /// `BadAddress` if an address has another form. After this error, the declared addresses are unchanged.
    pub fn declare(&self, component: ComponentId, addresses: &[impl AsRef<str>]) -> Result<()> {
        let mut routes = Vec::new();
        for address in addresses {
            routes.extend(Address::parse(address.as_ref())?.into_iter().map(Route::declared));
        }
        self.inner.state().component(component).declare(routes);
        Ok(())
    }

    /// Checks whether [`Channels::declare`] accepts an address.
    ///
    /// # Errors
    ///
    /// `BadAddress`.
    pub fn check_address(address: &str) -> Result<()> {
        Address::parse(address).map(drop)
    }

    /// Makes the held calls of a component interruptible. A component needs interruptible calls if a tracer stops its
    /// threads for checkpoints, because an uninterruptible call would delay the stop. Call this function before the
    /// first start of the component.
    ///
    /// If a signal handler without SA_RESTART interrupts an interruptible connect(2), the call fails with EINTR, and no
    /// connection is in progress. If a signal with a handler arrives during an uninterruptible connect(2), the kernel
    /// executes the call.
    pub fn expect_stops(&self, component: ComponentId) {
        self.inner.state().component(component).is_traced = true;
    }

    /// Marks each TCP socket of a component before the component listens or connects with the socket; `None` marks no
    /// socket. A packet filter holds the output of marked sockets. Accepted connections inherit the mark. Call this
    /// function before the start of the component.
    pub fn mark_sockets(&self, component: ComponentId, mark: Option<SocketMark>) {
        self.inner.state().component(component).mark = mark;
    }

    /// Prepares the command of the next incarnation of a component. The guardian then spawns the command, and passes the
    /// returned value to [`Channels::started`]. From the first instruction of the program, its calls of bind(2),
    /// listen(2) and connect(2) are handled. A `Command` can be started only once, because the filter stays in the
    /// `Command`.
    ///
    /// # Errors
    ///
    /// An error if the filter cannot be prepared.
    pub fn prepare(&self, component: ComponentId, command: &mut Command) -> Result<PendingListener> {
        let program = self.filter(component);
        let held = Some((&self.inner.holder, self.inner.null.as_fd()));
        Ok(watch_from_start(command, program, held)?)
    }

    /// Begins to handle the calls of a program that was prepared by [`Channels::prepare`] and then spawned. With `joins`,
    /// the program joins the present incarnation of the component.
    ///
    /// # Errors
    ///
    /// ENOSPC if [`sys::listener_holder::BUFFERS_MAX`] incarnations have living processes. Another error if the calls of
    /// the program cannot be received. The guardian must kill the program, because its calls
    /// block.
    pub fn started(&self, component: ComponentId, pending: PendingListener, joins: bool) -> Result<()> {
        let listener = pending.receive()?;
        if !joins {
            self.begin(component, false);
        }
        self.serve(component, listener)
    }

    /// Returns the filter for an incarnation that is being restored. Install the filter with
    /// [`sys::seccomp_listener::flags_of`], and pass the listener of the filter to [`Channels::attach`].
    #[must_use]
    pub fn filter(&self, component: ComponentId) -> FilterProgram {
        let program = filter_program(Reported::Channels);
        match self.inner.state().component(component).is_traced {
            true => program.interruptible(),
            false => program,
        }
    }

    /// Replaces the holders that have died.
    ///
    /// # Errors
    ///
    /// No holder lives, and none can be created. No program can be started with a filter now.
    pub fn repair(&self) -> Result<()> {
        Ok(self.inner.holder.repair()?)
    }

    /// Begins to handle the calls of a restored incarnation. The first call of [`Channels::scan`] after this function
    /// finds the listening sockets of the incarnation.
    ///
    /// # Errors
    ///
    /// The same errors as for [`Channels::started`].
    pub fn attach(&self, component: ComponentId, listener: OwnedFd) -> Result<()> {
        self.inner.holder.hold(listener.as_fd(), self.inner.null.as_fd())?;
        self.begin(component, true);
        self.serve(component, Listener::new(listener)?)
    }

    /// Duplicates the listening sockets of an incarnation that an earlier guardian has started. The calls of this
    /// incarnation are not reported to this process. Therefore its connect(2) calls are not held. Sockets that the
    /// incarnation creates after this function are not held either.
    ///
    /// # Errors
    ///
    /// An error if the kernel cannot list the listening sockets.
    pub fn take_over(&self, component: ComponentId, root: Pid) -> Result<()> {
        self.begin(component, true);
        let listeners = search::listeners(root)?;
        let now = self.inner.clock.now();
        let outcome = {
            let mut state = self.inner.state();
            for taken in listeners {
                let place = taken.place();
                state.expect_listen(Pending { component, taken, place, deadline: now + LISTEN_LIMIT });
            }
            state.confirm(now)
        };
        outcome.settle();
        Ok(())
    }

    /// Returns the handler for the calls of a component. This function is for a component whose notifications another
    /// crate receives, for example the crate that watches files. For such a component, the guardian calls
    /// [`Channels::begin`] for each incarnation.
    #[must_use]
    pub fn handler(&self, component: ComponentId) -> Arc<dyn CallHandler> {
        Arc::new(Handler::new(Arc::clone(&self.inner), component))
    }

    /// Begins the next incarnation of a component: a new start, or a restore from an image. [`Channels::started`]
    /// and [`Channels::attach`] call this function themselves.
    pub fn begin(&self, component: ComponentId, is_restored: bool) {
        let claim_until = self.inner.after(self.inner.limits.unclaimed);
        self.inner.state().component(component).begin(is_restored, claim_until);
    }

    /// Records that a component is ready. The kernel executes the held calls to this component.
    pub fn provider_ready(&self, component: ComponentId) {
        let claim_until = self.inner.after(self.inner.limits.unclaimed_after_ready);
        let callers = {
            let mut state = self.inner.state();
            state.component(component).ready(claim_until);
            state.release(component)
        };
        Outcome { callers, ..Outcome::default() }.settle();
    }

    /// Records that a component is being ended, and is then started from its beginning. The held sockets stay open, also
    /// those that the program closes before it ends.
    pub fn ends_for_restart(&self, component: ComponentId) {
        self.inner.state().component(component).end_for_restart();
        self.inner.wake();
    }

    /// Records that the incarnation of a component has ended, and that another incarnation follows. The held sockets
    /// stay open. Call this function as soon as the death is detected, and before the start of the next incarnation.
    pub fn died(&self, component: ComponentId) {
        let outcome = {
            let mut state = self.inner.state();
            // The program may have called listen(2) just before its death. `confirm` holds the socket of this call.
            let outcome = state.confirm(self.inner.clock.now());
            state.component(component).die();
            outcome
        };
        outcome.settle();
    }

    /// Records that no further incarnation of a component follows. The held sockets are closed. The kernel executes the
    /// held calls to this component, and refuses new connections.
    pub fn stopped(&self, component: ComponentId) {
        let mut state = self.inner.state();
        let closed = state.component(component).stop();
        state.pending.retain(|pending| pending.component != component);
        let callers = state.release(component);
        drop(state);
        Outcome { callers, closed }.settle();
    }

    /// Searches processes for the held sockets of a component. Closes a held socket in two cases:
    ///
    /// - The program has closed the socket: two successive scans have found no process with the socket. With one scan
    ///   in a second, this takes one to two seconds. In this time, clients queue at the socket and are not served.
    /// - The incarnation has not bound the address of the socket again in time ([`Limits::unclaimed`]).
    ///
    /// `root` is the first process of the incarnation. The scan covers the tree of `root`, and then all other
    /// processes.
    pub fn scan(&self, component: ComponentId, root: Pid) {
        let Some(wanted) = self.inner.state().component(component).wanted() else { return };
        let found = wanted.find(root, search::find);
        let mut state = self.inner.state();
        let closed = state.component(component).judge(&found, self.inner.clock.now());
        let callers = state.release(component);
        drop(state);
        Outcome { callers, closed }.settle();
    }

    /// Reports whether the current incarnation of a component listens at an address. This indicates that the
    /// incarnation is ready. For a restored incarnation, the result is false until [`Channels::scan`] has found a
    /// listening socket.
    #[must_use]
    pub fn listens(&self, component: ComponentId) -> bool {
        self.inner.state().components.get(&component).is_some_and(|component| component.listens)
    }

    /// Returns the addresses of a component, for `undying status`.
    #[must_use]
    pub fn held(&self, component: ComponentId) -> Vec<HeldListener> {
        let state = self.inner.state();
        let Some(component) = state.components.get(&component) else { return Vec::new() };
        let listeners = component.held.iter().map(|held| HeldListener {
            local: held.address.to_string(),
            kind: held.kind.name(),
            level: Level::Listener,
            is_taken: held.claim == Claim::Taken,
        });
        let bare = component.bare_routes().map(|route| HeldListener {
            local: route.to_string(),
            kind: "",
            level: Level::Callers,
            is_taken: false,
        });
        listeners.chain(bare).collect()
    }

    /// Returns the waiting callers of all components.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingCaller> {
        let now = self.inner.clock.now();
        let state = self.inner.state();
        let row = |caller: &Caller| WaitingCaller {
            caller: caller.component,
            thread: caller.thread,
            provider: caller.provider,
            target: caller.target.address.to_string(),
            waited: now.saturating_duration_since(caller.since),
        };
        state.callers.waiting().map(row).collect()
    }

    /// Returns duplicates of the held sockets of a component. A restore from an image gives each socket to the next
    /// incarnation, under the descriptor number from the checkpoint. The checkpoint must have recorded each socket as
    /// inherited. Device and inode identify the socket.
    ///
    /// # Errors
    ///
    /// EMFILE if this process has no free descriptor.
    pub fn inherit(&self, component: ComponentId) -> Result<Vec<InheritedListener>> {
        let state = self.inner.state();
        let held = state.components.get(&component).map_or(&[][..], |component| &component.held);
        let duplicate = |held: &Held| {
            let (device, inode) = held.identity;
            let socket = held.socket.try_clone();
            let socket = socket.map_err(|error| sys::Error::new("duplicate a held listener", error))?;
            Ok(InheritedListener { device, inode: Inode(inode), socket })
        };
        held.iter().map(duplicate).collect()
    }

    fn serve(&self, component: ComponentId, listener: Listener) -> Result<()> {
        // An error only makes notifications slower.
        let _ = listener.use_sync_wake_up();
        let buffer = self.inner.holder.buffer().ok_or_else(|| {
            sys::Error::new("find a free buffer for calls of the component", sys::Errno::ENOSPC)
        })?;
        let held = self.inner.holder.held_calls();
        let source = Source { listener: Arc::new(listener), buffer, held };
        let handler = self.handler(component);
        spawn("undying-channel", move || receive_calls(handler.as_ref(), source)).map(drop)
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.is_ending = true;
        let closed: Vec<_> = state.components.values_mut().flat_map(|component| component.stop()).collect();
        drop(state);
        drop(closed);
        self.inner.wake();
        if let Some(waits) = self.waits.take() {
            // The thread answers all held calls before it ends, because their programs can outlive this process. An
            // error means that the thread has panicked.
            let _ = waits.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    Ok(started.map_err(|error| sys::Error::new("start a thread", error))?)
}
