//! The channels (listening sockets and waiting callers) of all components of one guardian (the supervising process).
//!
//! Owns: the public interface of this crate, and its threads.
//! Invariants: a program with a filter never runs without a thread that answers its calls. If the thread cannot be
//! started, the program is killed.
//! Does not: decide when a component is started, ready, dead or stopped permanently.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::JoinHandle;

use model::{Inode, Pid};
use sys::clock::Clock;
use sys::features::{self, Feature};
use sys::listener_holder::ListenerHolder;
use sys::seccomp_listener::{FilterProgram, Listener, Reported, filter_program};
use sys::socket_call::CallHandler;
use sys::watched_start::{PendingListener, watch_from_start};

use crate::address::Address;
use crate::callers::Caller;
use crate::error::{ChannelError, Result};
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
/// On drop, all held callers proceed, and the held listening sockets are closed. Later calls of running programs
/// continue as if the programs had no filter.
#[derive(Debug)]
pub struct Channels {
    inner: Arc<Inner>,
    /// The thread that ends the waits of callers.
    waits: Option<JoinHandle<()>>,
}

impl Channels {
    /// Returns the reason if this machine cannot report socket calls. The text names the missing privilege or kernel
    /// feature.
    #[must_use]
    pub fn missing() -> Option<String> {
        let entry = features::entry(Feature::FileNotify);
        if !features::enabled(Feature::FileNotify) {
            return Some(format!("{} is forced off", entry.name()));
        }
        let outcome = (entry.probe)(&std::env::temp_dir());
        outcome.err().map(|error| format!("{}: {error}", entry.name()))
    }

    /// Creates channels without components. The holder is a helper process: if this process dies, the holder lets the
    /// calls of all components continue. The holder must have been started before this process had threads.
    ///
    /// # Errors
    ///
    /// An error if /dev/null cannot be opened, or if the thread cannot be started.
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

    /// Declares addresses of a component, so that callers wait before the component has ever listened there. The forms
    /// are `127.0.0.1:80`, `[::1]:80`, `localhost:80`, `/path` and `@abstract`, with an optional prefix `tcp:` or
    /// `unix:`. The addresses replace the addresses of an earlier call.
    ///
    /// # Errors
    ///
    /// `BadAddress`. In this case, nothing is changed.
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

    /// Makes the held calls of a component interruptible. This is for a component that a tracer stops for checkpoints:
    /// a held call then does not delay the stop. Call this function before the first start of the component.
    ///
    /// A signal whose handler lacks SA_RESTART then makes a held connect(2) fail with EINTR, and no connection is in
    /// progress. For other components, a signal makes the held connect(2) proceed.
    pub fn expect_stops(&self, component: ComponentId) {
        self.inner.state().component(component).is_traced = true;
    }

    /// Starts a program as the next incarnation (run) of a component. The program's calls of bind(2), listen(2) and
    /// connect(2) are handled from its first instruction. A `Command` can be started only once, because the filter
    /// stays in the `Command`.
    ///
    /// # Errors
    ///
    /// `Spawn` if the program cannot be executed. ENOSPC if processes of [`sys::listener_holder::BUFFERS_MAX`]
    /// incarnations are alive. Other errors if the calls of the program cannot be received. After an error, the program
    /// does not run.
    pub fn start(&self, component: ComponentId, command: &mut Command) -> Result<Child> {
        let pending = self.prepare(component, command)?;
        let mut child = command.spawn().map_err(|source| ChannelError::Spawn {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        if let Err(error) = self.started(component, pending) {
            // Without a thread that answers, the calls of the program would block forever.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(child)
    }

    /// Prepares a command for [`Channels::started`]. The caller spawns the command between the two calls.
    ///
    /// # Errors
    ///
    /// An error if the filter cannot be prepared.
    pub fn prepare(&self, component: ComponentId, command: &mut Command) -> Result<PendingListener> {
        let program = self.filter(component);
        let held = Some((&self.inner.holder, self.inner.null.as_fd()));
        Ok(watch_from_start(command, program, held)?)
    }

    /// Begins to handle the calls of a program that was prepared by [`Channels::prepare`] and then spawned.
    ///
    /// # Errors
    ///
    /// An error if the calls of the program cannot be received. The calls would then block, so the caller must kill the
    /// program.
    pub fn started(&self, component: ComponentId, pending: PendingListener) -> Result<()> {
        let listener = pending.receive()?;
        self.begin(component, false);
        self.serve(component, listener)
    }

    /// Returns the filter for an incarnation that is being restored. Install the filter with
    /// [`sys::seccomp_listener::flags_of`], and pass its listener to [`Channels::attach`].
    #[must_use]
    pub fn filter(&self, component: ComponentId) -> FilterProgram {
        let program = filter_program(Reported::Channels);
        match self.inner.state().component(component).is_traced {
            true => program.interruptible(),
            false => program,
        }
    }

    /// Reports whether the holder that was passed to [`Channels::new`] is alive. Without the holder, no program can be
    /// started with a filter.
    pub fn has_holder(&self) -> bool {
        self.inner.holder.is_alive()
    }

    /// Begins to handle the calls of a restored incarnation. The first call of [`Channels::scan`] then finds the
    /// listening sockets of the incarnation.
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
    /// incarnation are not reported to this process. Its later sockets are therefore not held, and its callers do not
    /// wait.
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

    /// Returns the handler of a component whose notifications another crate receives, for example the crate that
    /// watches files. The guardian then calls [`Channels::begin`] for each incarnation.
    #[must_use]
    pub fn handler(&self, component: ComponentId) -> Arc<dyn CallHandler> {
        Arc::new(Handler::new(Arc::clone(&self.inner), component))
    }

    /// Begins the next incarnation of a component: a new start, or a restore from an image. [`Channels::start`],
    /// [`Channels::started`] and [`Channels::attach`] call this function themselves.
    pub fn begin(&self, component: ComponentId, is_restored: bool) {
        let claim_until = self.inner.after(self.inner.limits.unclaimed);
        self.inner.state().component(component).begin(is_restored, claim_until);
    }

    /// Reports that the component is ready. Its held callers proceed.
    pub fn provider_ready(&self, component: ComponentId) {
        let claim_until = self.inner.after(self.inner.limits.unclaimed_after_ready);
        let callers = {
            let mut state = self.inner.state();
            state.component(component).ready(claim_until);
            state.release(component)
        };
        Outcome { callers, ..Outcome::default() }.settle();
    }

    /// Reports that the incarnation has ended and that another incarnation follows. The listening sockets stay open.
    /// Call this function as soon as the death is detected, and before the start of the next incarnation.
    pub fn died(&self, component: ComponentId) {
        let outcome = {
            let mut state = self.inner.state();
            // The last instruction of the program may have been a call of listen(2).
            let outcome = state.confirm(self.inner.clock.now());
            state.component(component).die();
            outcome
        };
        outcome.settle();
    }

    /// Reports that no further incarnation follows. The listening sockets are closed, held callers proceed, and new
    /// callers are refused.
    pub fn stopped(&self, component: ComponentId) {
        let mut state = self.inner.state();
        let closed = state.component(component).stop();
        state.pending.retain(|pending| pending.component != component);
        let callers = state.release(component);
        drop(state);
        Outcome { callers, closed }.settle();
    }

    /// Releases listening sockets that no process has open, because the program has closed them. Two successive scans
    /// must miss a socket. With one scan in a second, the release therefore takes one to two seconds. In this time,
    /// clients queue at the socket and are not served. Also releases sockets that the incarnation has not claimed in
    /// time ([`Limits::unclaimed`]).
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

    /// Reports whether the current incarnation listens at an address, which indicates that it is ready. For a restored
    /// incarnation, [`Channels::scan`] detects this.
    #[must_use]
    pub fn listens(&self, component: ComponentId) -> bool {
        self.inner.state().components.get(&component).is_some_and(|component| component.listens)
    }

    /// Returns the addresses of a component, for `undying status`.
    #[must_use]
    pub fn held(&self, component: ComponentId) -> Vec<HeldListener> {
        let state = self.inner.state();
        let Some(component) = state.components.get(&component) else { return Vec::new() };
        let listeners = component.held().iter().map(|held| HeldListener {
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
            target: caller.target.address().to_string(),
            waited: now.saturating_duration_since(caller.since),
        };
        state.callers.waiting().map(row).collect()
    }

    /// Returns duplicates of the held listening sockets of a component. A restore from an image gives each socket to
    /// the next incarnation, under the descriptor number from the checkpoint. The checkpoint must have recorded the
    /// sockets as inherited, by device and inode.
    ///
    /// # Errors
    ///
    /// EMFILE if this process has no free descriptor.
    pub fn inherit(&self, component: ComponentId) -> Result<Vec<InheritedListener>> {
        let state = self.inner.state();
        let held = state.components.get(&component).map_or(&[][..], |component| component.held());
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
            // An error means that the thread has panicked. Programs with held callers may outlive this process.
            let _ = waits.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    Ok(started.map_err(|error| sys::Error::new("start a thread", error))?)
}
