//! Handles each bind(2), listen(2), connect(2) and connecting send of a component.
//!
//! Owns: the hand-over of a held socket at bind(2), the duplicate of a new socket at listen(2), and the hold of a
//! caller at connect(2).
//! Invariants: a handler never waits for a program. If a step fails, the kernel executes the call unchanged. A handler
//! changes the state only while the reported call still waits, and checks this under the lock. `Channels::died` takes
//! the same lock after the death of a program. Therefore a notification of the dead program cannot change the sockets
//! of the next incarnation.
//! Does not: receive calls.

use std::os::fd::AsFd;
use std::sync::Arc;

use model::Tid;
use rustix::net::sockopt::Timeout;
use sys::socket_call::{CallHandler, CallKind, Handled, ReportedCall, SocketCall, read};

use crate::address::{Address, Reach};
use crate::callers::{Call, Caller};
use crate::held::{Claim, Held, Slot, Taken, closes_on_exec};
use crate::id::ComponentId;
use crate::inner::{Inner, LISTEN_LIMIT};
use crate::place::{Identity, Place};
use crate::route::Target;
use crate::search::find;
use crate::state::{Outcome, Pending, State};

/// The handler for the calls of one component.
#[derive(Debug)]
pub(crate) struct Handler {
    inner: Arc<Inner>,
    component: ComponentId,
}

impl Handler {
    pub(crate) fn new(inner: Arc<Inner>, component: ComponentId) -> Self {
        Self { inner, component }
    }
}

impl CallHandler for Handler {
    fn handle(&self, reported: &ReportedCall<'_>) -> Handled {
        let Some(call) = read(reported.notification) else { return Handled::Pass };
        // The lock is not held during the calls that mark the socket.
        let mark = self.inner.state().component(self.component).mark;
        if let Some(mark) = mark.filter(|_| call.kind != CallKind::Bind) {
            // If the socket cannot be marked, the next checkpoint marks the socket.
            let _ = mark.claim_of(thread_of(reported), call.socket);
        }
        match call.kind {
            CallKind::Bind => self.bind(reported, &call),
            CallKind::Listen => self.listen(reported, &call),
            CallKind::Connect => self.connect(reported, &call),
            CallKind::Send => Handled::Pass,
        }
    }
}

fn thread_of(reported: &ReportedCall<'_>) -> Tid {
    reported.notification.tid()
}

impl Handler {
    /// Handles bind(2): replaces the socket of the program by a matching held socket. If no held socket matches, closes
    /// unclaimed held sockets that would block the address.
    fn bind(&self, reported: &ReportedCall<'_>, call: &SocketCall) -> Handled {
        let Some(address) = Address::from_bytes(&call.address) else { return Handled::Pass };
        if matches!(&address, Address::Inet(address) if address.port() == 0) {
            self.bind_anywhere(reported, call);
            return Handled::Pass;
        }
        let is_far = |held: &Held| !held.address.conflicts(false, &address, false);
        if self.inner.state().component(self.component).held.iter().all(is_far) {
            return Handled::Pass;
        }
        match Binding::read(reported, call, address) {
            Some(binding) => self.complete_bind(reported, &binding),
            None => Handled::Pass,
        }
    }

    /// Handles a bind(2) whose address equals or overlaps the address of a held socket.
    fn complete_bind(&self, reported: &ReportedCall<'_>, binding: &Binding) -> Handled {
        let gone = self.closed_meanwhile(binding);
        let mut outcome = Outcome::default();
        let handled = {
            let mut state = self.inner.state();
            if !reported.is_waiting() {
                return Handled::Pass;
            }
            let all = &mut state.component(self.component).held;
            all.iter_mut()
                .filter(|held| gone.contains(&held.identity))
                .for_each(|held| held.claim = Claim::Open);
            let handled = bind_held(reported, binding, all, &mut outcome);
            // If the program has unlinked the path of a held socket, callers of the path have waited for this bind(2).
            outcome.callers = state.release(self.component);
            handled
        };
        outcome.settle();
        handled
    }

    /// Returns held sockets that would block the bind(2), but that the program has closed since the last call of
    /// `Channels::scan`. The search reads many files of `/proc`, so the lock is not held during the search.
    fn closed_meanwhile(&self, binding: &Binding) -> Vec<Identity> {
        let is_asked = |held: &&Held| !held.is_open() && binding.meets(held);
        let asked: Vec<(Identity, Option<Slot>)> = {
            let mut state = self.inner.state();
            let held = state.component(self.component).held.iter().filter(is_asked);
            held.map(|held| (held.identity, held.slot)).collect()
        };
        let is_gone =
            |asked: &(Identity, Option<Slot>)| find(asked.0, asked.1, binding.program.slot.0).is_none();
        asked.into_iter().filter(is_gone).map(|asked| asked.0).collect()
    }

    /// Records a socket that is bound to port 0, for which the kernel chooses the port.
    fn bind_anywhere(&self, reported: &ReportedCall<'_>, call: &SocketCall) {
        let path = format!("/proc/{}/fd/{}", thread_of(reported), call.socket);
        if let Ok(stat) = rustix::fs::stat(&path)
            && reported.is_waiting()
        {
            let mut state = self.inner.state();
            state.component(self.component).bind_anywhere((stat.st_dev, stat.st_ino));
        }
    }

    /// Handles listen(2): duplicates a socket that is about to listen.
    fn listen(&self, reported: &ReportedCall<'_>, call: &SocketCall) -> Handled {
        let thread = thread_of(reported);
        let Some(taken) = Taken::of_thread(thread, call.socket) else { return Handled::Pass };
        let address = sys::socket::local(taken.socket.as_fd()).ok();
        let address = address.and_then(|address| Address::from_bytes(&address));
        let place = address.as_ref().and_then(Address::path).and_then(|path| Place::of_thread(thread, path));
        let mut state = self.inner.state();
        if state.is_ending || !reported.is_waiting() {
            return Handled::Pass;
        }
        let component = state.component(self.component);
        if let Some(Address::Inet(address)) = &address
            && address.port() == 0
        {
            component.bind_anywhere(taken.identity);
        }
        if let Some(held) = component.held.iter_mut().find(|held| held.identity == taken.identity) {
            held.take(taken.slot);
            component.listens = true;
            return Handled::Pass;
        }
        if !component.is_lasting(taken.identity) {
            component.listens = true;
            return Handled::Pass;
        }
        let deadline = self.inner.after(LISTEN_LIMIT);
        state.expect_listen(Pending { component: self.component, taken, place, deadline });
        self.inner.wake();
        Handled::Pass
    }

    /// Handles connect(2): holds the call if the provider does not listen yet. A program may connect to its own address
    /// to find another running instance of itself. If the held socket of this address is unclaimed, no instance runs,
    /// and the call is refused.
    fn connect(&self, reported: &ReportedCall<'_>, call: &SocketCall) -> Handled {
        let thread = thread_of(reported);
        let Some(address) = Address::from_bytes(&call.address) else { return Handled::Pass };
        let mut state = self.inner.state();
        if state.is_ending || (address.path().is_some() && !state.has_paths()) {
            return Handled::Pass;
        }
        let target = Target::of_thread(thread, address);
        let is_unserved = state.component(self.component).is_unserved(&target);
        let awaited = state.awaited(self.component, &target);
        if !is_unserved && awaited.is_none() {
            return Handled::Pass;
        }
        // `of_thread` returns `None` for a datagram socket, which cannot reach a listening socket. The C library
        // connects datagram sockets to sort addresses.
        let Some(socket) = Taken::of_thread(thread, call.socket) else { return Handled::Pass };
        if is_unserved {
            let refused = sys::Errno(libc::ECONNREFUSED);
            let answered = reported.listener.answer_errno(reported.notification.id(), refused);
            return if answered.is_ok() { Handled::Answered } else { Handled::Pass };
        }
        let Some((provider, reach)) = awaited else { return Handled::Pass };
        if reach == Reach::IfLocal && !target.is_local() {
            return Handled::Pass;
        }
        self.hold(reported, &socket, (provider, target), &mut state)
    }

    fn hold(
        &self,
        reported: &ReportedCall<'_>,
        socket: &Taken,
        wanted: (ComponentId, Target),
        state: &mut State,
    ) -> Handled {
        let (thread, now, limits) = (thread_of(reported), self.inner.clock.now(), &self.inner.limits);
        let limit = match rustix::net::sockopt::socket_timeout(&socket.socket, Timeout::Send) {
            _ if socket.is_nonblocking() => limits.nonblocking,
            Ok(Some(own)) => own.min(limits.blocking),
            _ => limits.blocking,
        };
        let (mut since, mut deadline) = (now, self.inner.after(limit));
        if let Some(earlier) = state.callers.take_earlier(thread)
            && (earlier.provider, &earlier.target) == (wanted.0, &wanted.1)
            && earlier.component == self.component
        {
            // This call repeats an earlier call, which a signal or a checkpoint has interrupted. The limit of the
            // earlier call still applies.
            (since, deadline) = (earlier.since, deadline.min(earlier.deadline));
        }
        if deadline <= now || state.callers.len() >= limits.callers_max {
            return Handled::Pass;
        }
        let id = reported.notification.id();
        let Some(row) = reported.held.note(id) else { return Handled::Pass };
        let call = Call { id, listener: Arc::clone(reported.listener), _row: row };
        let is_interruptible = state.component(self.component).is_traced;
        let caller = Caller::new((self.component, thread), wanted, (since, deadline), call, is_interruptible);
        state.callers.add(caller);
        self.inner.wake();
        Handled::Held
    }
}

/// Reports success of bind(2) to the program, and marks the held socket as claimed.
fn answer_success(reported: &ReportedCall<'_>, held: &mut Held, slot: Slot) -> Handled {
    let answered = reported.listener.answer_value(reported.notification.id(), 0);
    match answered {
        Ok(true) => held.take(slot),
        _ => held.claim = Claim::Interrupted(thread_of(reported)),
    }
    Handled::Answered
}

/// A bind(2) whose address equals or overlaps the address of a held socket.
struct Binding {
    thread: Tid,
    address: Address,
    /// The directory and the name, if the address is a path.
    place: Option<Place>,
    program: Taken,
    closes_on_exec: bool,
}

impl Binding {
    /// Reads the socket of the call. Returns `None` for an unknown kind of socket and for an interrupted call.
    fn read(reported: &ReportedCall<'_>, call: &SocketCall, address: Address) -> Option<Self> {
        let thread = thread_of(reported);
        let place = address.path().and_then(|path| Place::of_thread(thread, path));
        let program = Taken::of_thread(thread, call.socket)?;
        let closes_on_exec = closes_on_exec(thread, call.socket)?;
        // If the calling thread still waits, its tid was not reused, so the data above belongs to this thread.
        reported.is_waiting().then_some(Self { thread, address, place, program, closes_on_exec })
    }

    /// Reports whether a held socket would block this bind(2).
    fn meets(&self, held: &Held) -> bool {
        held.identity != self.program.identity && held.is_in_the_way(&self.address, self.program.kind)
    }
}

/// Replaces the socket of the program by the matching held socket. If no held socket matches, removes the unclaimed
/// held sockets that block the address.
fn bind_held(
    reported: &ReportedCall<'_>,
    binding: &Binding,
    all: &mut Vec<Held>,
    outcome: &mut Outcome,
) -> Handled {
    let (program, address) = (&binding.program, &binding.address);
    if let Some(held) = all.iter_mut().find(|held| held.identity == program.identity) {
        // The program repeats a bind(2) that a signal interrupted after the socket was replaced.
        if held.claim != Claim::Interrupted(binding.thread) || held.address != *address {
            return Handled::Pass;
        }
        return answer_success(reported, held, program.slot);
    }
    let place = binding.place.as_ref();
    let fits = |held: &mut Held| held.is_open() && held.matches(address, program.kind, place);
    if let Some(held) = all.iter_mut().find_map(|held| fits(held).then_some(held)) {
        held.adopt_settings(program);
        let (id, at) = (reported.notification.id(), program.slot.1);
        let source = held.socket.as_fd();
        if reported.listener.replace_descriptor(id, source, at, binding.closes_on_exec).is_ok() {
            return answer_success(reported, held, program.slot);
        }
        // The thread was killed or interrupted, so the kernel does not execute the call.
        if !reported.is_waiting() {
            return Handled::Pass;
        }
    }
    // The sockets must be closed before the kernel executes the call. Otherwise the call fails with EADDRINUSE.
    outcome.closed.extend(all.extract_if(.., |held| held.is_open() && binding.meets(held)));
    Handled::Pass
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    use model::Fd;
    use sys::clock::Clock;
    use sys::listener_holder::ListenerHolder;
    use sys::seccomp_listener::{Receipt, Reported, filter_program};
    use sys::watched_start::watch_from_start;

    use super::*;
    use crate::Channels;
    use crate::inner::Limits;

    /// Holds a listening socket of this process as the held socket of a dead incarnation.
    fn held_of_dead(inner: &Inner, component: ComponentId, socket: &TcpListener) {
        let taken =
            Taken::of_thread(Tid(rustix::thread::gettid().as_raw_nonzero().get()), Fd(socket.as_raw_fd()));
        let mut state = inner.state();
        let component = state.component(component);
        assert!(component.hold(Held::new(taken.unwrap(), None).unwrap()).is_none());
        component.die();
    }

    #[test]
    fn a_socket_of_another_user_is_not_replaced() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let own_thread = Tid(rustix::thread::gettid().as_raw_nonzero().get());
        let taken = |socket: &TcpListener| Taken::of_thread(own_thread, Fd(socket.as_raw_fd())).unwrap();
        let (held, new) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = sys::socket::local(held.as_fd()).unwrap();
        let address = Address::from_bytes(&address).unwrap();
        let mut held = Held::new(taken(&held), None).unwrap();
        assert!(held.matches(&address, taken(&new).kind, None));
        rustix::fs::fchown(&new, Some(rustix::fs::Uid::from_raw(65_534)), None).unwrap();
        assert!(!held.matches(&address, taken(&new).kind, None));
        assert!(held.is_in_the_way(&address, taken(&new).kind), "the kernel decides on the bind");
    }

    #[test]
    fn a_bind_of_a_killed_program_closes_no_held_socket() {
        if let Some(why) = Channels::missing() {
            println!("unsupported: {why}");
            return;
        }
        if Command::new("python3").arg("--version").output().is_err() {
            println!("unsupported: python3 is not installed");
            return;
        }
        let holder = ListenerHolder::start(|create| create()).unwrap();
        let null = File::options().write(true).open("/dev/null").unwrap();
        let inner = Arc::new(Inner::new(holder, null, Clock::default(), Limits::default()));
        let component = ComponentId(1);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        held_of_dead(&inner, component, &socket);

        let port = socket.local_addr().unwrap().port();
        let text = format!("import socket; socket.socket().bind(('127.0.0.1', {port}))");
        let mut command = Command::new("python3");
        command.args(["-c", &text]).stdin(Stdio::null());
        let pending = watch_from_start(&mut command, filter_program(Reported::Channels), None).unwrap();
        let mut child = command.spawn().unwrap();
        let listener = Arc::new(pending.receive().unwrap());
        let mut buffer = inner.holder.buffer().unwrap();
        let call = loop {
            listener.wait(None).unwrap();
            if matches!(listener.receive(&mut buffer), Ok(Receipt::Call)) {
                match read(&buffer) {
                    Some(call) if call.kind == CallKind::Bind => break call,
                    _ => listener.answer_continue(buffer.id()).unwrap(),
                };
            }
        };
        let held = inner.holder.held_calls();
        let reported = ReportedCall { notification: &buffer, listener: &listener, held: &held };
        let handler = Handler::new(Arc::clone(&inner), component);
        let address = Address::from_bytes(&call.address).unwrap();
        let binding = Binding::read(&reported, &call, address).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(handler.complete_bind(&reported, &binding), Handled::Pass);
        assert_eq!(inner.state().component(component).held.len(), 1);
        assert!(Held::is_open(&inner.state().component(component).held[0]));
    }
}
