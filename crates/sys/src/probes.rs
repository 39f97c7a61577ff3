//! Probes kernel features. Each probe uses a feature on this process, or on a child that is created for the
//! probe.
//!
//! Owns: one probe for each feature of `features::REGISTRY`.
//! Invariants: a probe leaves no process, file or setting behind, even if it fails halfway.
//! Does not: decide whether a feature is needed; the caller does.
//!
//! Man page: the pages of the modules that are probed
//! Since: the oldest kernel that each module supports
//! Probe: this module contains the probes
//! Fallback: none needed

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use model::{Address, ByteCount, Fd, PAGE_BYTES, PageCount, Pid, Signal, Tid};

use crate::clone::{WantedPid, spawn_waiting};
use crate::dirty_tracker::DirtyTracker;
use crate::error::{Errno, Error, Result};
use crate::fanotify::{ContentEvents, Enabler};
use crate::pagemap::{PageEntry, Pagemap};
use crate::ptrace::{self as trace, WaitStatus};
use crate::scratch::Scratch;
use crate::seccomp_listener::{self, Listener, Notification, Waited};
use crate::send_observer::SendObserver;
use crate::task_reader::{Field, TaskReader};
use crate::userfaultfd::{self, Discards};

const KILL: Signal = Signal(9);
/// CAP_SYS_PTRACE as a bit of `CapEff`.
const CAP_SYS_PTRACE: u64 = 1 << 19;
/// The value that the probe of process memory reads. A child has a copy of this memory, so the value is the
/// same at the same address in the child.
static MARK: u64 = 0x756e_6479_696e_6721;

/// How long a probe waits for an event of the kernel.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// A child that is killed and reaped when this value is dropped.
struct Child(Pid);

impl Child {
    fn spawn(wanted: WantedPid) -> Result<Self> {
        spawn_waiting(wanted).map(Self)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // If the child was already reaped, both calls fail without an effect.
        let _ = crate::signal::send(self.0, KILL);
        while let Ok(WaitStatus::Stopped(_)) = trace::wait(self.0.leader()) {}
    }
}

pub(crate) fn ptrace(_: &Path) -> Result<String> {
    let child = Child::spawn(WantedPid::Any)?;
    let tid = child.0.leader();
    trace::seize(tid, trace::Options::EXIT_KILL)?;
    trace::interrupt(tid)?;
    match trace::wait(tid)? {
        WaitStatus::Stopped(_) => trace::registers(tid)?,
        _ => return Err(Error::thread("stop", tid, Errno::ESRCH)),
    };
    Ok("a child was stopped and its registers read".to_owned())
}

pub(crate) fn process_memory(_: &Path) -> Result<String> {
    let child = Child::spawn(WantedPid::Any)?;
    let address = Address((&raw const MARK) as u64);
    let mut bytes = [0; 8];
    crate::process_memory::read(child.0, address, &mut bytes)?;
    if bytes != MARK.to_ne_bytes() {
        return Err(Error::memory("read", child.0, address, ByteCount(8), Errno::SHORT));
    }
    Ok("memory of a child was read".to_owned())
}

pub(crate) fn pidfd(_: &Path) -> Result<String> {
    let child = Child::spawn(WantedPid::Any)?;
    let handle = crate::pidfd::open(child.0)?;
    // The child has a copy of the descriptor table of this process. So the child has a descriptor with the
    // same number.
    crate::pidfd::duplicate(handle.as_fd(), child.0, any_descriptor()?)?;
    Ok("a descriptor of a child was duplicated".to_owned())
}

fn any_descriptor() -> Result<Fd> {
    let path = "/proc/self/fd";
    let mut entries = std::fs::read_dir(path).map_err(|error| Error::path("list", path, error))?;
    let number = entries.find_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    number.map(Fd).ok_or_else(|| Error::path("find a descriptor in", path, Errno::ENOENT))
}

pub(crate) fn kcmp(_: &Path) -> Result<String> {
    let own = Pid(std::process::id() as i32);
    let shared = crate::kcmp::shared(crate::kcmp::Shared::Memory, own, own)?;
    let found = if shared { "we share our memory with ourselves" } else { "it answers, and wrongly" };
    Ok(found.to_owned())
}

pub(crate) fn proc_children(_: &Path) -> Result<String> {
    let child = Child::spawn(WantedPid::Any)?;
    let path = "/proc/thread-self/children";
    let text = std::fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
    let number = child.0.to_string();
    if text.split_whitespace().any(|word| word == number) {
        Ok("a child was found".to_owned())
    } else {
        Err(Error::path(format!("find child {number} in"), path, Errno::ENOENT))
    }
}

pub(crate) fn set_tid(_: &Path) -> Result<String> {
    // The pid was freed when the first child was dropped.
    let pid = Child::spawn(WantedPid::Any)?.0;
    let again = Child::spawn(WantedPid::Exactly(pid))?;
    Ok(format!("pid {} was used twice", again.0))
}

pub(crate) fn map_files(_: &Path) -> Result<String> {
    crate::shared_memory::anonymous(ByteCount(PAGE_BYTES))?;
    Ok("shared memory was opened through its link".to_owned())
}

pub(crate) fn tcp_repair(_: &Path) -> Result<String> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)
        .map_err(|errno| Error::new("create a TCP socket", errno))?;
    crate::tcp_repair::set_repair(socket.as_fd(), crate::tcp_repair::Repair::On)?;
    Ok("a socket was put into repair mode".to_owned())
}

pub(crate) fn packet_drop(_: &Path) -> Result<String> {
    crate::packet_drop::PacketDrop::try_sets()?;
    Ok("a table with sets of connections was made".to_owned())
}

pub(crate) fn packet_hold(_: &Path) -> Result<String> {
    crate::packet_hold::PacketHold::start()?;
    Ok("a queue and a rule for it were made".to_owned())
}

pub(crate) fn process_events(_: &Path) -> Result<String> {
    crate::process_events::ProcessEvents::subscribe()?;
    Ok("a subscription was answered".to_owned())
}

pub(crate) fn pagemap_scan(_: &Path) -> Result<String> {
    let map = Pagemap::open(Pid(std::process::id() as i32))?;
    if map.supports_scan() {
        Ok("PAGEMAP_SCAN answered".to_owned())
    } else {
        Err(Error::new("use PAGEMAP_SCAN", Errno::ENOSYS))
    }
}

pub(crate) fn userfaultfd_async(_: &Path) -> Result<String> {
    let fd = userfaultfd::create(userfaultfd::USER_MODE_ONLY)?;
    userfaultfd::begin(fd.as_fd(), Discards::Announced)?;
    Ok("a userfaultfd agreed to asynchronous write protection".to_owned())
}

pub(crate) fn userfaultfd_missing(_: &Path) -> Result<String> {
    let fd = userfaultfd::create(0)?;
    userfaultfd::begin_for_missing(fd.as_fd())?;
    Ok("a userfaultfd agreed to tell of missing pages and of forks".to_owned())
}

pub(crate) fn soft_dirty(_: &Path) -> Result<String> {
    let mut scratch = Scratch::new(PageCount(1))?;
    scratch.write(PageCount(0), 1);
    let map = Pagemap::open(Pid(std::process::id() as i32))?;
    let mut entry = [PageEntry::default()];
    map.read_entries_at(scratch.range().start, &mut entry)?;
    if entry[0].is_soft_dirty() {
        Ok("a fresh page has its bit set".to_owned())
    } else {
        Err(Error::new("find a soft-dirty bit", Errno::ENOSYS))
    }
}

pub(crate) fn io_uring(_: &Path) -> Result<String> {
    crate::direct_io::probe_ring()?;
    Ok("a ring was created".to_owned())
}

pub(crate) fn direct_io(directory: &Path) -> Result<String> {
    let file: std::io::Result<File> = OpenOptions::new()
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(directory);
    let file = file.map_err(|error| Error::path("open a file with O_DIRECT in", directory, error))?;
    debug_assert!(file.as_raw_fd() >= 0, "an open file has a descriptor");
    Ok(format!("a file was opened with O_DIRECT in {}", directory.display()))
}

pub(crate) fn cachestat(_: &Path) -> Result<String> {
    let path = "/proc/self/exe";
    let file = File::open(path).map_err(|error| Error::path("open", path, error))?;
    crate::part_reader::probe_cachestat(&file)?;
    Ok("the cached pages of a file were counted".to_owned())
}

pub(crate) fn ptrace_scope(_: &Path) -> Result<String> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
    let set = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    if capabilities & CAP_SYS_PTRACE != 0 {
        return Ok("this user has CAP_SYS_PTRACE".to_owned());
    }
    let path = "/proc/sys/kernel/yama/ptrace_scope";
    match std::fs::read_to_string(path) {
        Ok(scope) if scope.trim() != "0" => {
            Err(Error::path(format!("trace others: {} stands in", scope.trim()), path, Errno::EPERM))
        }
        _ => Ok("own processes can be traced".to_owned()),
    }
}

pub(crate) fn task_reader(_: &Path) -> Result<String> {
    let own = Tid(rustix::thread::gettid().as_raw_nonzero().get());
    TaskReader::new(&[Field("pdeath_signal")])?.read(own)?;
    Ok("fields of this thread read".to_owned())
}

pub(crate) fn send_observer(_: &Path) -> Result<String> {
    SendObserver::shared()?;
    Ok("two tracepoints observed".to_owned())
}

pub(crate) fn dirty_tracker(_: &Path) -> Result<String> {
    DirtyTracker::new()?.settle()?;
    Ok("one tracepoint tracked".to_owned())
}

pub(crate) fn file_notify(_: &Path) -> Result<String> {
    let operation = "ask about a system call of our own";
    let status = std::fs::read_to_string("/proc/thread-self/status")
        .map_err(|error| Error::path("read", "/proc/thread-self/status", error))?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    if mode.is_some_and(|mode| mode.trim() != "0") {
        return Err(Error::new("watch others from inside of a sandbox", Errno::EPERM));
    }
    std::thread::scope(|scope| {
        let (give, take) = std::sync::mpsc::channel();
        // A seccomp filter belongs to one thread. This thread ends, and its filter with it.
        let caller = std::thread::Builder::new().name("probe".to_owned()).spawn_scoped(scope, move || {
            let listener = seccomp_listener::install(&seccomp_listener::watch_program())?;
            // If the receiver of the channel is gone, the listener is dropped, and the call below fails with
            // ENOSYS.
            let _ = give.send(listener);
            // SAFETY: the call takes plain numbers. No descriptor has the number -1.
            unsafe { libc::ftruncate(-1, 0) };
            Ok(Errno::last())
        });
        let caller = caller.map_err(|error| Error::new("start a thread", error))?;
        if let Ok(listener) = take.recv() {
            let listener = Listener::new(listener)?;
            let mut notification = Notification::default();
            if listener.wait(Some(PROBE_LIMIT))? == Waited::Ready {
                listener.receive(&mut notification)?;
                listener.answer_continue(notification.id())?;
            }
        }
        match caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))? {
            Errno::EBADF => Ok("a system call was reported and continued".to_owned()),
            errno => Err(Error::new(operation, errno)),
        }
    })
}

pub(crate) fn file_content(directory: &Path) -> Result<String> {
    let open = || OpenOptions::new().write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(directory);
    let unnamed = open().map_err(|error| Error::path("open a file in", directory, error))?;
    let events = ContentEvents::new(&Enabler::new()?)?;
    events.watch(unnamed.as_fd())?;
    // The file is opened again, because `watch` has put the fanotify mark on the file only now.
    let path = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
    let file =
        OpenOptions::new().write(true).open(&path).map_err(|error| Error::path("open", &path, error))?;
    std::thread::scope(|scope| {
        let write = move || std::io::Write::write(&mut &file, b"x");
        let writer = std::thread::Builder::new().name("probe".to_owned()).spawn_scoped(scope, write);
        let writer = writer.map_err(|error| Error::new("start a thread", error))?;
        let found = match await_event(&events)? {
            true => events.reader().receive()?.and_then(|event| event.range()),
            false => None,
        };
        // Dropping the fanotify group lets a waiting write continue.
        drop(events);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.map_err(|error| Error::path("write a file in", directory, error))?;
        match found {
            Some(_) => Ok(format!("a write was reported before it happened in {}", directory.display())),
            None => Err(Error::path("be asked before a write in", directory, Errno::ENOSYS)),
        }
    })
}

fn await_event(events: &ContentEvents) -> Result<bool> {
    let wait = rustix::event::PollFd::new(events, rustix::event::PollFlags::IN);
    let limit = rustix::time::Timespec { tv_sec: PROBE_LIMIT.as_secs() as i64, tv_nsec: 0 };
    let count = rustix::io::retry_on_intr(|| rustix::event::poll(&mut [wait.clone()], Some(&limit)))
        .map_err(|errno| Error::new("wait for an event of a file", errno))?;
    Ok(count > 0)
}
