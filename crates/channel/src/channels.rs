//! The channels of all components of one guardian.
//!
//! Owns: the interface of this crate, and the threads behind it.
//! Invariants: a program never runs with a filter that no thread answers: where that would be, it is ended.
//! Does not: decide when a component is started, ready, dead or given up.

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

/// The channels of all components of one guardian. Shared by its threads.
///
/// Dropping it lets every held caller proceed and closes the held listeners; calls of programs that still run continue
/// as if there were no filter.
#[derive(Debug)]
pub struct Channels {
    inner: Arc<Inner>,
    /// The thread that ends waits.
    waits: Option<JoinHandle<()>>,
}

impl Channels {
    /// Why calls cannot be reported here, if they cannot: privilege or kernel feature by name.
    #[must_use]
    pub fn missing() -> Option<String> {
        let entry = features::entry(Feature::FileNotify);
        if !features::enabled(Feature::FileNotify) {
            return Some(format!("{} is forced off", entry.name()));
        }
        let outcome = (entry.probe)(&std::env::temp_dir());
        outcome.err().map(|error| format!("{}: {error}", entry.name()))
    }

    /// No components yet. The holder lets the calls of all of them continue, should this process die; it was made before
    /// this process had threads.
    ///
    /// # Errors
    ///
    /// Why there is no thread.
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

    /// Makes callers of these addresses wait for a component before it has ever listened there: `127.0.0.1:80`,
    /// `[::1]:80`, `localhost:80`, `/path`, `@abstract`, each also behind `tcp:` or `unix:`. They replace those of an
    /// earlier call.
    ///
    /// # Errors
    ///
    /// `BadAddress`, before anything is changed.
    pub fn declare(&self, component: ComponentId, addresses: &[impl AsRef<str>]) -> Result<()> {
        let mut routes = Vec::new();
        for address in addresses {
            routes.extend(Address::parse(address.as_ref())?.into_iter().map(Route::declared));
        }
        self.inner.state().component(component).declare(routes);
        Ok(())
    }

    /// Whether `declare` takes an address.
    ///
    /// # Errors
    ///
    /// `BadAddress`.
    pub fn check_address(address: &str) -> Result<()> {
        Address::parse(address).map(drop)
    }

    /// Makes held calls of a component interruptible, for a component that a tracer stops for checkpoints: a held call
    /// then does not delay the stop. Call it before the component is started for the first time.
    ///
    /// The price: a signal whose handler lacks SA_RESTART makes a held connect(2) fail with EINTR, and no connection is in
    /// progress. For other components, a signal makes the held connect(2) proceed.
    pub fn expect_stops(&self, component: ComponentId) {
        self.inner.state().component(component).is_traced = true;
    }

    /// Starts a program as the next incarnation of a component. Its bind(2), listen(2) and connect(2) are handled from
    /// its first instruction on. A `Command` can be started once: the filter stays in it.
    ///
    /// # Errors
    ///
    /// `Spawn` if the program is not executed; otherwise why its filter is not served, ENOSPC if processes of
    /// [`sys::listener_holder::BUFFERS_MAX`] incarnations live. No program is left running.
    pub fn start(&self, component: ComponentId, command: &mut Command) -> Result<Child> {
        let pending = self.prepare(component, command)?;
        let mut child = command.spawn().map_err(|source| ChannelError::Spawn {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        if let Err(error) = self.started(component, pending) {
            // Its calls would wait for ever.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(child)
    }

    /// The first half of `start`, for a caller that spawns the command itself.
    ///
    /// # Errors
    ///
    /// Why the filter cannot be prepared.
    pub fn prepare(&self, component: ComponentId, command: &mut Command) -> Result<PendingListener> {
        let program = self.filter(component);
        let held = Some((&self.inner.holder, self.inner.null.as_fd()));
        Ok(watch_from_start(command, program, held)?)
    }

    /// The second half of `start`.
    ///
    /// # Errors
    ///
    /// Why the filter is not served. The calls of the program then wait, so that it has to be ended.
    pub fn started(&self, component: ComponentId, pending: PendingListener) -> Result<()> {
        let listener = pending.receive()?;
        self.begin(component, false);
        self.serve(component, listener)
    }

    /// The filter of an incarnation that is being restored, whose listener is for `attach`. Install it with
    /// [`sys::seccomp_listener::flags_of`].
    #[must_use]
    pub fn filter(&self, component: ComponentId) -> FilterProgram {
        let program = filter_program(Reported::Channels);
        match self.inner.state().component(component).is_traced {
            true => program.interruptible(),
            false => program,
        }
    }

    /// Whether the holder lives that was given to `new`. Without it no program can be started with a filter.
    pub fn has_holder(&self) -> bool {
        self.inner.holder.is_alive()
    }

    /// Handles the calls of an incarnation that was restored, from now on. The first `look` finds which listeners it has.
    ///
    /// # Errors
    ///
    /// As for `started`.
    pub fn attach(&self, component: ComponentId, listener: OwnedFd) -> Result<()> {
        self.inner.holder.hold(listener.as_fd(), self.inner.null.as_fd())?;
        self.begin(component, true);
        self.serve(component, Listener::new(listener)?)
    }

    /// Takes duplicates of the listeners of an incarnation that an earlier guardian has started. Its calls are not
    /// reported here: what it binds from now on is not held, and it does not wait for others.
    ///
    /// # Errors
    ///
    /// If the kernel lists no sockets.
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

    /// The handler of a component whose notifications another crate receives, such as the watch over files. The guardian
    /// then calls `begin` for each incarnation.
    #[must_use]
    pub fn handler(&self, component: ComponentId) -> Arc<dyn CallHandler> {
        Arc::new(Handler::new(Arc::clone(&self.inner), component))
    }

    /// Begins the next incarnation of a component, fresh or restored from an image. `start`, `started` and `attach` call
    /// it themselves.
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

    /// Reports that the incarnation has ended and another one follows. Its listeners stay open. Call it as soon as the death
    /// is known, and before the next incarnation is started.
    pub fn died(&self, component: ComponentId) {
        let outcome = {
            let mut state = self.inner.state();
            // A listener may be as young as its last instruction.
            let outcome = state.confirm(self.inner.clock.now());
            state.component(component).die();
            outcome
        };
        outcome.settle();
    }

    /// Reports that no incarnation follows. Listeners are closed, held callers proceed, and new callers are refused.
    pub fn stopped(&self, component: ComponentId) {
        let mut state = self.inner.state();
        let closed = state.component(component).stop();
        state.pending.retain(|pending| pending.component != component);
        let callers = state.release(component);
        drop(state);
        Outcome { callers, closed }.settle();
    }

    /// Releases listeners that no process has any more: the program has closed them on purpose. Until then, clients of
    /// such a listener queue and are not served: two scans in a row have to miss it, so at a scan each second it takes one to
    /// two seconds. Listeners that the incarnation has not taken in time ([`Limits::unclaimed`]) are released as well.
    ///
    /// `root` is the first process of the incarnation. A listener is looked for in its tree, then in every process.
    pub fn look(&self, component: ComponentId, root: Pid) {
        let Some(wanted) = self.inner.state().component(component).wanted() else { return };
        let found = wanted.find(root, search::find);
        let mut state = self.inner.state();
        let closed = state.component(component).judge(&found, self.inner.clock.now());
        let callers = state.release(component);
        drop(state);
        Outcome { callers, closed }.settle();
    }

    /// Whether the present incarnation has begun to listen somewhere: a sign that it is ready. Of a restored one, `look` finds
    /// that.
    #[must_use]
    pub fn listens(&self, component: ComponentId) -> bool {
        self.inner.state().components.get(&component).is_some_and(|component| component.listens)
    }

    /// The addresses of a component, for `status`.
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

    /// Callers that wait, of all components.
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

    /// Duplicates of the held listeners of a component: its next incarnation, restored from an image, gets them under the
    /// numbers that it had. The checkpoint must have noted them as inherited, by device and inode.
    ///
    /// # Errors
    ///
    /// EMFILE if this process has no descriptor left.
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
        // Slower without it, and right.
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
            // It has panicked if this fails, and the callers are those of programs that outlive this.
            let _ = waits.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    Ok(started.map_err(|error| sys::Error::new("start a thread", error))?)
}
