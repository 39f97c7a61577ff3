//! What the holder does, from its birth to its end.
//!
//! Owns: its descriptors, its wait, its answers.
//! Invariants: makes system calls only and allocates nothing: its memory is a copy made at any moment of its parent.
//! Does not: end while a listener has tasks.
//!
//! Man page: poll(2), close_range(2), proc_pid_oom_score_adj(5), seccomp_unotify(2)
//! Since: Linux 5.9
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; files do not go back with a program that is not watched

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Errno;
use crate::fd_passing::receive_descriptors;
use crate::seccomp_listener::{Listener, Notification, NotificationId, Receipt, Waited, is_gone};

/// Notifications that can be received into buffers at a time: one for each listener that is held.
pub const BUFFERS_MAX: usize = HELD_MAX;
/// Received calls that can be put aside at a time, to be answered later: the table takes two pages.
pub const HELD_CALLS_MAX: usize = 1024;
/// What the holder appends to the file of a listener when the guardian dies and the subject may have lived on.
pub const BROKEN_LINE: &[u8] = b"the guardian died, and the subject went on unwatched\n";
/// Listeners that are held at a time: one for each incarnation of each component, of which the last may still be ending.
/// Each costs two descriptors of the holder, whose limit is often 1,024.
const HELD_MAX: usize = 256;
/// How long an orphaned holder without listeners waits for one that a child of its guardian is about to send.
const ORPHAN_LIMIT_MS: i32 = 10_000;

/// A listener with the file that is marked when no process answers it.
struct Held {
    listener: Listener,
    broken: OwnedFd,
}

/// Calls that the guardian has received and not answered, in memory that it shares.
#[derive(Clone, Copy)]
pub(super) struct Unanswered {
    /// [`BUFFERS_MAX`] notifications: those that were received last.
    pub(super) buffers: *const Notification,
    /// [`HELD_CALLS_MAX`] ids of calls that were put aside; zero is none.
    pub(super) calls: *const AtomicU64,
}

struct Holder {
    guardian: RawFd,
    /// Where listeners come from; negative once there is no other end.
    socket: RawFd,
    held: [Option<Held>; HELD_MAX],
    unanswered: Unanswered,
    is_dismissed: bool,
    is_orphaned: bool,
}

/// What a wait has found.
struct Ready {
    guardian: bool,
    socket: bool,
    listeners: [bool; HELD_MAX],
    /// Listeners of whose filter there is no task any more.
    gone: [bool; HELD_MAX],
    is_late: bool,
}

/// The whole life of the holder.
pub(super) fn run(guardian: RawFd, socket: RawFd, unanswered: Unanswered) -> ! {
    settle(guardian, socket);
    let held = [const { None }; HELD_MAX];
    let (is_dismissed, is_orphaned) = (false, false);
    let mut holder = Holder { guardian, socket, held, unanswered, is_dismissed, is_orphaned };
    holder.wait_for_the_end();
    holder.take_over();
    holder.serve();
    exit()
}

fn exit() -> ! {
    loop {
        // SAFETY: a plain number; it does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

/// Leaves the session, the directory and the descriptors of the guardian, and cannot be ended by a signal but SIGKILL.
fn settle(guardian: RawFd, socket: RawFd) {
    let everything = u64::MAX;
    let (low, high) = (guardian.min(socket) as u32, guardian.max(socket) as u32);
    // SAFETY: system calls on numbers and on static or local memory, in a process of our own. The descriptors that are
    // closed are copies that no code of this process uses: it never returns to their owners.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const everything, 0_usize, 8_usize);
        libc::syscall(libc::SYS_setsid);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, c"undying-holder".as_ptr(), 0, 0, 0);
        let adjust = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        // Refused without CAP_SYS_RESOURCE: it is then as likely to be ended as its parent.
        libc::write(adjust, b"-1000".as_ptr().cast(), 5);
        libc::chdir(c"/".as_ptr());
        if low > 0 {
            libc::syscall(libc::SYS_close_range, 0, low - 1, 0);
        }
        if high - low > 1 {
            libc::syscall(libc::SYS_close_range, low + 1, high - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, high + 1, u32::MAX, 0);
    }
}

impl Holder {
    /// Returns when the guardian is dead: all its threads have ended, so none receives any more.
    fn wait_for_the_end(&mut self) {
        loop {
            let ready = self.wait(libc::POLLIN, 0, -1);
            if ready.guardian {
                return;
            }
            if ready.gone.contains(&true) {
                if !self.guardian_watches() {
                    return self.await_death();
                }
                self.drop_listeners(ready.gone);
            }
            if ready.socket {
                self.take(0);
            }
            if (self.is_dismissed || self.socket < 0) && self.held.iter().all(Option::is_none) {
                exit();
            }
        }
    }

    /// Whether the guardian has not begun to end. When it ends, its descriptors are closed in the order of their numbers
    /// before its death shows, and what it watched happens unseen from then on. The socket is older than those by which
    /// it watches.
    fn guardian_watches(&self) -> bool {
        let wait = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut waits = [wait(self.guardian, libc::POLLIN), wait(self.socket, 0)];
        // SAFETY: the kernel reads and writes two structures that live.
        unsafe { libc::poll(waits.as_mut_ptr(), 2, 0) };
        let has_closed = waits[1].revents != 0 || self.socket < 0;
        waits[0].revents == 0 && (self.is_dismissed || !has_closed)
    }

    fn await_death(&self) {
        let mut wait = libc::pollfd { fd: self.guardian, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one structure that lives.
        while unsafe { libc::poll(&raw mut wait, 1, -1) } != 1 {}
    }

    /// Marks the files, and answers what the guardian has left unanswered.
    fn take_over(&mut self) {
        while self.socket >= 0 && self.take(libc::MSG_DONTWAIT) {}
        self.is_orphaned = true;
        for held in self.held.iter().flatten() {
            // Tasks that have ended may have ended after the guardian, unless it has said that all is well.
            if !(self.is_dismissed && held.is_gone()) {
                held.mark();
            }
        }
        for index in 0..BUFFERS_MAX {
            // SAFETY: the mapping has BUFFERS_MAX notifications of plain numbers, and the only process beside this one
            // that wrote them is dead.
            let notification = unsafe { self.unanswered.buffers.add(index).read_volatile() };
            self.answer(notification.id());
        }
        for index in 0..HELD_CALLS_MAX {
            // SAFETY: the mapping has HELD_CALLS_MAX numbers behind the notifications, and both processes only ever reach
            // them as atomics.
            let id = unsafe { &*self.unanswered.calls.add(index) }.load(Ordering::Relaxed);
            self.answer(NotificationId(id));
        }
    }

    /// Lets a call continue that the guardian has received. It may have answered it already.
    fn answer(&self, id: NotificationId) {
        if id == NotificationId::default() {
            return;
        }
        // Numbers begin at random: that of one listener is unknown to the others.
        for held in self.held.iter().flatten() {
            let _ = held.listener.answer_continue(id);
        }
    }

    /// Lets every call continue until no process is left to make one.
    fn serve(&mut self) {
        loop {
            let is_empty = self.held.iter().all(Option::is_none);
            if is_empty && self.socket < 0 {
                return;
            }
            let ready = self.wait(0, libc::POLLIN, if is_empty { ORPHAN_LIMIT_MS } else { -1 });
            if is_empty && ready.is_late {
                return;
            }
            self.drop_listeners(ready.gone);
            for (held, is_ready) in self.held.iter().zip(ready.listeners) {
                if let (Some(held), true) = (held, is_ready) {
                    held.let_continue();
                }
            }
            if ready.socket {
                self.take(libc::MSG_DONTWAIT);
            }
        }
    }

    /// Waits for what there is.
    fn wait(&self, of_guardian: i16, of_listeners: i16, limit_ms: i32) -> Ready {
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut waits = [none; HELD_MAX + 2];
        if of_guardian != 0 {
            waits[0] = libc::pollfd { fd: self.guardian, events: of_guardian, revents: 0 };
        }
        waits[1] = libc::pollfd { fd: self.socket, events: libc::POLLIN, revents: 0 };
        for (wait, held) in waits[2..].iter_mut().zip(&self.held) {
            let fd = held.as_ref().map_or(-1, |held| held.listener.as_fd().as_raw_fd());
            *wait = libc::pollfd { fd, events: of_listeners, revents: 0 };
        }
        // SAFETY: the kernel reads and writes the structures of the live array.
        let count = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, limit_ms) };
        let of = |wanted: fn(i16) -> bool| std::array::from_fn(|index| wanted(waits[index + 2].revents));
        Ready {
            guardian: waits[0].revents != 0,
            socket: waits[1].revents != 0,
            listeners: of(|events| events & libc::POLLIN != 0),
            gone: of(|events| events & libc::POLLIN == 0 && is_gone(events)),
            is_late: count == 0,
        }
    }

    fn drop_listeners(&mut self, gone: [bool; HELD_MAX]) {
        for (held, is_gone) in self.held.iter_mut().zip(gone) {
            if is_gone {
                *held = None;
            }
        }
    }

    /// Takes one message; whether there was one.
    fn take(&mut self, flags: i32) -> bool {
        // SAFETY: the descriptor is open until it is closed below, where the number is forgotten.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket) };
        match receive_descriptors(socket, flags) {
            Ok([Some(listener), Some(broken)]) => {
                if let Ok(listener) = Listener::new(listener) {
                    self.keep(Held { listener, broken });
                }
            }
            Ok([None, None]) => self.is_dismissed = true,
            Ok(_) => {}
            Err(error) if error.errno == Errno::EAGAIN => return false,
            Err(_) => {
                // SAFETY: closes a descriptor that only this value names.
                unsafe { libc::close(self.socket) };
                self.socket = -1;
                return false;
            }
        }
        true
    }

    fn keep(&mut self, held: Held) {
        if self.is_orphaned && !held.is_gone() {
            held.mark();
        }
        if self.held.iter().all(Option::is_some) {
            // One without tasks, if there is one. It counts as unwatched if its tasks may have ended after the guardian.
            let is_gone = |held: &Option<Held>| held.as_ref().is_some_and(Held::is_gone);
            if let Some(index) = self.held.iter().position(is_gone) {
                if !self.guardian_watches() {
                    self.held[index].iter().for_each(Held::mark);
                }
                self.held[index] = None;
            }
        }
        if self.held.iter().all(Option::is_some) {
            // The oldest incarnation: that of the newest could not be running beside so many others.
            self.held.rotate_left(1);
            self.held[HELD_MAX - 1] = None;
        }
        if let Some(free) = self.held.iter_mut().find(|held| held.is_none()) {
            *free = Some(held);
        }
    }
}

impl Held {
    fn is_gone(&self) -> bool {
        self.listener.wait(Some(Duration::ZERO)) == Ok(Waited::Gone)
    }

    /// Says in the file, durably, that calls are no longer watched.
    fn mark(&self) {
        let file = self.broken.as_raw_fd();
        // SAFETY: the kernel reads the bytes of a static slice. A failure can be reported to no process.
        unsafe {
            libc::write(file, BROKEN_LINE.as_ptr().cast(), BROKEN_LINE.len());
            libc::fdatasync(file);
        }
    }

    fn let_continue(&self) {
        let mut notification = Notification::default();
        if self.listener.receive(&mut notification) == Ok(Receipt::Call) {
            // A call that has been broken off waits for no answer.
            let _ = self.listener.answer_continue(notification.id());
        }
    }
}
