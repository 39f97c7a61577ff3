//! The code that the listener holder executes, from its creation to its end. The parent module defines
//! *guardian*, *subject*, *listener* and *held call*. The *tasks* of a listener are the threads that use its
//! filter.
//!
//! Owns: the descriptors of the holder, its wait loop, its answers to calls.
//! Invariants: the holder makes only system calls and allocates nothing. The memory of the holder is a copy
//! of the guardian's memory. At the time of the copy, another thread of the guardian may have held a lock. No
//! thread of the holder would release this lock.
//! Does not: end while a listener has tasks.
//!
//! Man page: poll(2), close_range(2), proc_pid_oom_score_adj(5), seccomp_unotify(2)
//! Since: Linux 5.9
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the files of an unwatched program are not restored together with the program

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::Errno;
use crate::fd_passing::receive_descriptors;
use crate::seccomp_listener::{Listener, Notification, NotificationId, Receipt, Waited, is_gone};

/// Maximum number of buffers for received notifications: one buffer for each held listener.
pub const BUFFERS_MAX: usize = HELD_MAX;
/// Maximum number of held calls. A table of this size takes two pages.
pub const HELD_CALLS_MAX: usize = 1024;
/// The line that the holder appends to the file of a listener after the death of the guardian. The holder
/// omits the line only if the subject has certainly ended before the guardian.
pub const BROKEN_LINE: &[u8] = b"the guardian died, and the subject went on unwatched\n";
/// The beginning of the end mark, which the holder appends to the file of a listener when the last task has ended while
/// the guardian was alive. The time follows: seconds since 1970 (8 bytes) and nanoseconds (4 bytes), little-endian.
const END_PREFIX: &[u8] = b"the subject ended, watched to its end: ";
/// Length of an end mark in bytes.
const END_MARK_BYTES: usize = END_PREFIX.len() + 12;
/// Maximum length of all marks of one listener in bytes. Each holder appends one mark, and a holder that has died is
/// replaced.
pub const MARKS_BYTES_MAX: usize = 4096;
/// Maximum number of listeners that are held at a time. Each incarnation of each component (each run of a
/// watched program) has its own listener. When an incarnation starts, the previous incarnation may still be
/// ending. A held listener occupies two descriptors of the holder. The descriptor limit of the holder is
/// often 1,024.
const HELD_MAX: usize = 256;
/// Time in milliseconds that a holder without listeners waits after the death of the guardian. A child of the
/// guardian can still send a listener in this time.
const ORPHAN_LIMIT_MS: i32 = 10_000;
/// Number of bytes of `/proc/PID/stat` that are read. The flags are within the first 150 bytes, because the
/// kernel limits the name of a process to 64 bytes.
const STAT_BYTES: usize = 512;

/// Returns the earliest time in the end marks of one listener. Returns `None` if no holder has seen the end, or if the
/// text contains anything else than marks.
///
/// One end mark is sufficient. A holder appends it only if the guardian was alive after the last task had ended. Another
/// holder may then have appended [`BROKEN_LINE`], because the guardian died before this holder looked.
#[must_use]
pub fn end_of(mut text: &[u8]) -> Option<SystemTime> {
    let mut ended = None;
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix(BROKEN_LINE) {
            text = rest;
            continue;
        }
        let (seconds, rest) = text.strip_prefix(END_PREFIX)?.split_first_chunk()?;
        let (nanoseconds, rest) = rest.split_first_chunk()?;
        let (seconds, nanoseconds) = (u64::from_le_bytes(*seconds), u32::from_le_bytes(*nanoseconds));
        let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds.min(999_999_999)))?;
        ended = Some(ended.map_or(time, |earlier: SystemTime| earlier.min(time)));
        text = rest;
    }
    ended
}

/// A held listener, and the file to which the holder appends [`BROKEN_LINE`] or an end mark.
struct Held {
    listener: Listener,
    broken: OwnedFd,
}

/// Calls that the guardian has received, and may not have answered. The guardian shares this memory with the
/// holder.
#[derive(Clone, Copy)]
pub(super) struct Unanswered {
    /// [`BUFFERS_MAX`] buffers, each with the notification that was received last. One more buffer follows, for the
    /// holder that answers calls after the death of the guardian.
    pub(super) buffers: *mut Notification,
    /// [`HELD_CALLS_MAX`] ids of held calls. Zero means that the row is free.
    pub(super) calls: *const AtomicU64,
}

/// The descriptors that a holder keeps from the guardian.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    /// A pidfd of the guardian.
    pub(super) guardian: RawFd,
    /// A pidfd of the elder: the other holder, if it lived at the creation of this holder.
    pub(super) elder: Option<RawFd>,
    /// One end of the socket pair.
    pub(super) socket: RawFd,
    /// The name of the holder process.
    pub(super) name: &'static CStr,
}

struct Holder {
    guardian: RawFd,
    /// A pidfd of the elder. Negative if there is no elder.
    elder: RawFd,
    /// The open file `/proc/PID/stat` of the guardian. Negative if procfs is not available.
    stat: RawFd,
    /// The socket that listeners are received from. Negative after the other end was closed.
    socket: RawFd,
    held: [Option<Held>; HELD_MAX],
    unanswered: Unanswered,
    is_dismissed: bool,
    is_orphaned: bool,
}

/// The result of a wait.
struct Ready {
    process: bool,
    socket: bool,
    listeners: [bool; HELD_MAX],
    /// Marks the listeners whose filter no task uses any more.
    gone: [bool; HELD_MAX],
    is_late: bool,
}

/// Runs the holder until its end.
pub(super) fn run(kept: Inherited, unanswered: Unanswered) -> ! {
    let Inherited { guardian, elder, socket, .. } = kept;
    detach_from_guardian(kept);
    let stat = open_stat_of_parent();
    let held = [const { None }; HELD_MAX];
    let (is_dismissed, is_orphaned) = (false, false);
    let elder = elder.unwrap_or(-1);
    let mut holder = Holder { guardian, elder, stat, socket, held, unanswered, is_dismissed, is_orphaned };
    holder.wait_for_the_end();
    holder.mark_all();
    holder.serve();
    exit()
}

/// Opens `/proc/PID/stat` of the parent, which is the guardian. If the guardian has already died, the parent
/// is another process. Therefore, the result is used only together with the pidfd of the guardian.
fn open_stat_of_parent() -> RawFd {
    const PREFIX: &[u8] = b"/proc/";
    const SUFFIX: &[u8] = b"/stat\0";
    const DIGITS_MAX: usize = 10;
    // SAFETY: the call takes no arguments.
    let mut left = unsafe { libc::syscall(libc::SYS_getppid) } as u64;
    let mut path = [0_u8; PREFIX.len() + DIGITS_MAX + SUFFIX.len()];
    let mut digits = [0_u8; DIGITS_MAX];
    let mut first = DIGITS_MAX;
    while first == DIGITS_MAX || (left > 0 && first > 0) {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let bytes = PREFIX.iter().chain(&digits[first..]).chain(SUFFIX);
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    // SAFETY: the path ends with a zero byte and lives during the call.
    unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) }
}

/// Reports whether the text of a `/proc/PID/stat` has the flag PF_EXITING (proc_pid_stat(5), field 9).
/// Returns `None` if the text is malformed.
fn is_exiting(stat: &[u8]) -> Option<bool> {
    const FLAGS_AFTER_NAME: usize = 6;
    const PF_EXITING: u32 = 0x4;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = stat[after_name..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let flags = std::str::from_utf8(fields.nth(FLAGS_AFTER_NAME)?).ok()?;
    Some(flags.parse::<u32>().ok()? & PF_EXITING != 0)
}

fn exit() -> ! {
    loop {
        // SAFETY: the call takes a plain number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

/// Leaves the session and the working directory of the guardian, and closes the inherited descriptors. Blocks
/// signals, so that only SIGKILL can end the holder.
fn detach_from_guardian(kept: Inherited) {
    let (everything, name) = (u64::MAX, kept.name.as_ptr());
    let mut kept = [kept.guardian, kept.elder.unwrap_or(kept.guardian), kept.socket];
    kept.sort_unstable();
    // SAFETY: the system calls take numbers and static or local memory. The closed descriptors are copies
    // that no code of the holder uses, because the holder never returns to their owners.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const everything, 0_usize, 8_usize);
        libc::syscall(libc::SYS_setsid);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, name, 0, 0, 0);
        let adjust = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        // Without CAP_SYS_RESOURCE, the write fails, and the holder keeps the inherited value of the
        // guardian.
        libc::write(adjust, b"-1000".as_ptr().cast(), 5);
        libc::chdir(c"/".as_ptr());
        let mut next = 0;
        for fd in kept.map(|fd| fd as u32) {
            if next < fd {
                libc::syscall(libc::SYS_close_range, next, fd - 1, 0);
            }
            next = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, next, u32::MAX, 0);
    }
}

impl Holder {
    /// Serves the socket until the guardian is dead. When this function returns, all threads of the guardian
    /// have ended, so no thread receives notifications any more.
    fn wait_for_the_end(&mut self) {
        loop {
            let ready = self.wait(self.guardian, 0, -1);
            if ready.process {
                return;
            }
            if ready.gone.contains(&true) {
                if !self.guardian_watches() {
                    return self.await_death();
                }
                let gone = self.held.iter().zip(ready.gone).filter(|(_, is_gone)| *is_gone);
                gone.filter_map(|(held, _)| held.as_ref()).for_each(Held::mark_end);
                self.drop_listeners(ready.gone);
            }
            if ready.socket {
                self.receive_message(0);
            }
            if (self.is_dismissed || self.socket < 0) && self.held.iter().all(Option::is_none) {
                exit();
            }
        }
    }

    /// Reports whether the guardian is alive and has not begun to exit.
    ///
    /// The pidfd reports the death too late. Before this report, the kernel releases the descriptors of the
    /// guardian, in an unknown order. After the release of a descriptor that watches the subject, events can
    /// be missed. All threads of the guardian share one descriptor table, and the kernel releases the table
    /// when the last thread exits. Before this release, the main thread has the flag PF_EXITING (do_exit,
    /// Linux 6.18). Without procfs, the flag cannot be read, and only the release of the socket is detected.
    ///
    /// A guardian that has dismissed the holder closes the socket itself, and exits in an orderly way. In
    /// this case, only the pidfd is checked.
    fn guardian_watches(&self) -> bool {
        let wait = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut waits = [wait(self.guardian, libc::POLLIN), wait(self.socket, 0)];
        // SAFETY: the kernel reads and writes two live structures.
        unsafe { libc::poll(waits.as_mut_ptr(), 2, 0) };
        let has_closed = waits[1].revents != 0 || self.socket < 0;
        let is_ending = has_closed || self.guardian_exits();
        waits[0].revents == 0 && (self.is_dismissed || !is_ending)
    }

    /// Reports whether the main thread of the guardian has begun to exit, or no longer exists.
    fn guardian_exits(&self) -> bool {
        let mut text = [0_u8; STAT_BYTES];
        // SAFETY: the kernel writes to a live array of the given length.
        let length = unsafe { libc::pread(self.stat, text.as_mut_ptr().cast(), text.len(), 0) };
        match usize::try_from(length) {
            Ok(length) => is_exiting(&text[..length]).unwrap_or(true),
            Err(_) => self.stat >= 0,
        }
    }

    fn await_death(&self) {
        let mut wait = libc::pollfd { fd: self.guardian, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one live structure.
        while unsafe { libc::poll(&raw mut wait, 1, -1) } != 1 {}
    }

    /// Marks the files after the death of the guardian.
    fn mark_all(&mut self) {
        while self.socket >= 0 && self.receive_message(libc::MSG_DONTWAIT) {}
        self.is_orphaned = true;
        for held in self.held.iter().flatten() {
            // The file of a listener without tasks is marked, too: the last task may have ended after the
            // guardian. If the guardian has dismissed the holder, this order is excluded.
            if !(self.is_dismissed && held.is_gone()) {
                held.mark();
            }
        }
    }

    /// Answers the calls that the guardian or the elder has received and not answered.
    fn answer_unanswered(&self) {
        for index in 0..=BUFFERS_MAX {
            // SAFETY: the mapping has BUFFERS_MAX + 1 notifications, which consist of plain numbers. Only the
            // guardian and the elder wrote to the notifications, and both are dead.
            let notification = unsafe { self.unanswered.buffers.add(index).read_volatile() };
            self.answer(notification.id());
        }
        for index in 0..HELD_CALLS_MAX {
            // SAFETY: the mapping has HELD_CALLS_MAX numbers after the notifications. All processes access
            // the numbers only as atomics.
            let id = unsafe { &*self.unanswered.calls.add(index) }.load(Ordering::Relaxed);
            self.answer(NotificationId(id));
        }
    }

    /// Lets a call continue that the guardian has received. The guardian may already have answered the call.
    fn answer(&self, id: NotificationId) {
        if id == NotificationId::default() {
            return;
        }
        // The ids of each listener begin at a random number. So an id of one listener is unknown to the other
        // listeners.
        for held in self.held.iter().flatten() {
            let _ = held.listener.answer_continue(id);
        }
    }

    /// Lets every call continue until no task is left that could make a call. While the elder lives, the elder answers
    /// calls: if two processes received calls from several listeners, each could block on a listener without calls.
    fn serve(&mut self) {
        let mut leads = false;
        loop {
            if !leads && self.elder < 0 {
                leads = true;
                self.answer_unanswered();
            }
            let is_empty = self.held.iter().all(Option::is_none);
            if is_empty && self.socket < 0 {
                return;
            }
            let events = if leads { libc::POLLIN } else { 0 };
            let ready = self.wait(self.elder, events, if is_empty { ORPHAN_LIMIT_MS } else { -1 });
            if is_empty && ready.is_late {
                return;
            }
            if ready.process {
                self.elder = -1;
                continue;
            }
            self.drop_listeners(ready.gone);
            for (held, is_ready) in self.held.iter().zip(ready.listeners) {
                if let (Some(held), true) = (held, is_ready) {
                    // SAFETY: the last buffer of the mapping is used only by the holder that answers calls.
                    held.let_continue(unsafe { &mut *self.unanswered.buffers.add(BUFFERS_MAX) });
                }
            }
            if ready.socket {
                self.receive_message(libc::MSG_DONTWAIT);
            }
        }
    }

    /// Waits for the end of a process, and for events of the socket and of the listeners. `process` is a pidfd, or
    /// negative. `of_listeners` are poll(2) events. A negative `limit_ms` means no time limit.
    fn wait(&self, process: RawFd, of_listeners: i16, limit_ms: i32) -> Ready {
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut waits = [none; HELD_MAX + 2];
        waits[0] = libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 };
        waits[1] = libc::pollfd { fd: self.socket, events: libc::POLLIN, revents: 0 };
        // poll(2) refuses more structures than this process may have descriptors, even if they are empty. So there is
        // one structure for each listener, and no empty one.
        let mut places = [None; HELD_MAX];
        let mut length = 2;
        for (place, held) in places.iter_mut().zip(&self.held) {
            if let Some(held) = held {
                let fd = held.listener.as_fd().as_raw_fd();
                waits[length] = libc::pollfd { fd, events: of_listeners, revents: 0 };
                *place = Some(length);
                length += 1;
            }
        }
        // SAFETY: the kernel reads and writes the structures of the live array.
        let count = unsafe { libc::poll(waits.as_mut_ptr(), length as libc::nfds_t, limit_ms) };
        let of =
            |wanted: fn(i16) -> bool| places.map(|place| place.is_some_and(|at| wanted(waits[at].revents)));
        Ready {
            process: waits[0].revents != 0,
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

    /// Receives one message from the socket. Returns false if no message was received.
    ///
    /// A message with two descriptors has a listener and its file. A message without descriptors dismisses
    /// the holder: the guardian ends in an orderly way.
    fn receive_message(&mut self, flags: i32) -> bool {
        // SAFETY: the descriptor is open until it is closed below. Then `self.socket` is set to -1.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket) };
        match receive_descriptors(socket, flags) {
            Ok([Some(listener), Some(broken)]) => {
                if let Ok(listener) = Listener::new(listener) {
                    self.add_listener(Held { listener, broken });
                }
            }
            Ok([None, None]) => self.is_dismissed = true,
            Ok(_) => {}
            Err(error) if error.errno == Errno::EAGAIN => return false,
            Err(_) => {
                // SAFETY: only `self.socket` has this descriptor.
                unsafe { libc::close(self.socket) };
                self.socket = -1;
                return false;
            }
        }
        true
    }

    fn add_listener(&mut self, held: Held) {
        if self.is_orphaned && !held.is_gone() {
            held.mark();
        }
        if self.held.iter().all(Option::is_some) {
            // All slots are used. Drops a listener without tasks, if one exists. If the guardian may have
            // begun to exit before the last task ended, the file of the listener is marked first.
            let is_gone = |held: &Option<Held>| held.as_ref().is_some_and(Held::is_gone);
            if let Some(index) = self.held.iter().position(is_gone) {
                if !self.guardian_watches() {
                    self.held[index].iter().for_each(Held::mark);
                }
                self.held[index] = None;
            }
        }
        if self.held.iter().all(Option::is_some) {
            // All listeners have tasks. Drops the listener in the first slot, normally the listener of the
            // oldest incarnation. Fewer than HELD_MAX incarnations are current at a time, so the oldest
            // incarnation is no longer current.
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

    /// Appends the line to the file and syncs the file. The line records that calls are no longer watched.
    fn mark(&self) {
        let file = self.broken.as_raw_fd();
        // SAFETY: the kernel reads the bytes of a static slice. A failure cannot be reported to any process.
        unsafe {
            libc::write(file, BROKEN_LINE.as_ptr().cast(), BROKEN_LINE.len());
            libc::fdatasync(file);
        }
    }

    /// Appends an end mark to the file: the guardian has watched the subject until its last task ended.
    fn mark_end(&self) {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut mark = [0_u8; END_MARK_BYTES];
        let (prefix, time) = mark.split_at_mut(END_PREFIX.len());
        prefix.copy_from_slice(END_PREFIX);
        // SAFETY: the kernel writes a live structure, and reads a live array. A failure cannot be reported to any
        // process.
        unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
            time[..8].copy_from_slice(&now.tv_sec.to_le_bytes());
            time[8..].copy_from_slice(&(now.tv_nsec as u32).to_le_bytes());
            libc::write(self.broken.as_raw_fd(), mark.as_ptr().cast(), mark.len());
        }
    }

    /// Lets one call continue. If this process dies in between, the next holder finds the call in `notification`.
    fn let_continue(&self, notification: &mut Notification) {
        if self.listener.receive(notification) == Ok(Receipt::Call) {
            // If the call was interrupted, no thread waits for the answer, and the answer fails.
            let _ = self.listener.answer_continue(notification.id());
        }
    }
}
