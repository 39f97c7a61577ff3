//! Stopping, inspecting and resuming threads of other processes.
//!
//! Owns: ptrace(2) requests and waitpid(2) as the tracer sees it, the x86-64 register structures.
//! Invariants: calls act on the calling thread's own tracees only (ptrace is bound to the tracer thread);
//! buffers handed to the kernel are owned here or borrowed for the whole call.
//! Does not: know which stop a thread is in; the typestate above does.
//!
//! Man page: ptrace(2), wait(2)
//! Since: Linux 5.4 (PTRACE_SEIZE 3.4, PTRACE_GETSIGMASK 3.11, PTRACE_GET_RSEQ_CONFIGURATION 5.13)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; without ptrace nothing can be stopped

use std::mem::{MaybeUninit, offset_of, size_of};

use libc::c_void;
use model::{Signal, Tid};

use crate::error::{Errno, Error, Result};

/// What a tracer asks of the kernel about a tracee, composed of what its clients need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options(u64);

impl Options {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Stops at system calls differ from those by SIGTRAP.
    pub const SYSCALL_GOOD: Self = Self(libc::PTRACE_O_TRACESYSGOOD as u64);
    /// A thread that creates a thread stops, and so does the new one.
    pub const CLONE: Self = Self(libc::PTRACE_O_TRACECLONE as u64);
    /// A process that forks stops, and so does the child.
    pub const FORK: Self = Self(libc::PTRACE_O_TRACEFORK as u64);
    /// The same for vfork.
    pub const VFORK: Self = Self(libc::PTRACE_O_TRACEVFORK as u64);
    /// A thread stops on its way out, while everything it owns is still there.
    pub const EXIT: Self = Self(libc::PTRACE_O_TRACEEXIT as u64);
    /// The tracee's seccomp filters do not judge its calls while it is traced.
    pub const SUSPEND_SECCOMP: Self = Self(1 << 21);
    /// The kernel kills the tracee when the tracer ends; for processes under construction.
    pub const EXIT_KILL: Self = Self(libc::PTRACE_O_EXITKILL as u64);

    /// These and others.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These without others.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Most bytes of extended register state the kernel is asked for (AMX needs about 11 KiB).
pub const XSTATE_BYTES_MAX: usize = 16 * 1024;

/// Most queued signals read by one request.
pub const SIGNALS_PER_PEEK: usize = 32;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const NT_X86_XSTATE: usize = 0x202;

/// General registers of a 64-bit thread, as PTRACE_GETREGS lays them out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the field names are the register names")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

const _: () = assert!(size_of::<Registers>() == 216);
const _: () = assert!(size_of::<Registers>() == size_of::<libc::user_regs_struct>());
const _: () = assert!(offset_of!(Registers, orig_rax) == 120);
const _: () = assert!(offset_of!(Registers, rip) == 128);
const _: () = assert!(offset_of!(Registers, fs_base) == 168);

impl Registers {
    /// The registers as words, in the order of the structure.
    #[must_use]
    pub fn to_words(&self) -> [u64; 27] {
        [
            self.r15,
            self.r14,
            self.r13,
            self.r12,
            self.rbp,
            self.rbx,
            self.r11,
            self.r10,
            self.r9,
            self.r8,
            self.rax,
            self.rcx,
            self.rdx,
            self.rsi,
            self.rdi,
            self.orig_rax,
            self.rip,
            self.cs,
            self.eflags,
            self.rsp,
            self.ss,
            self.fs_base,
            self.gs_base,
            self.ds,
            self.es,
            self.fs,
            self.gs,
        ]
    }

    /// Registers from the words of [`Self::to_words`].
    #[must_use]
    pub fn from_words(words: &[u64; 27]) -> Self {
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig_rax,
            rip,
            cs,
            eflags,
            rsp,
            ss,
            fs_base,
            gs_base,
            ds,
            es,
            fs,
            gs,
        ] = *words;
        Self {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig_rax,
            rip,
            cs,
            eflags,
            rsp,
            ss,
            fs_base,
            gs_base,
            ds,
            es,
            fs,
            gs,
        }
    }
}

/// The restartable-sequence area a thread registered (`rseq_cs` and all).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the area; zero when none is registered.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The signature that precedes abort handlers.
    pub signature: u32,
    /// Registration flags.
    pub flags: u32,
    /// Padding of the kernel's structure.
    pub pad: u32,
}

const _: () = assert!(size_of::<RseqConfiguration>() == 24);
const _: () = assert!(offset_of!(RseqConfiguration, signature) == 12);

#[repr(C)]
struct PeekSiginfoArguments {
    offset: u64,
    flags: u32,
    count: i32,
}

const _: () = assert!(size_of::<PeekSiginfoArguments>() == 16);
const _: () = assert!(offset_of!(PeekSiginfoArguments, count) == 12);

/// The 128 bytes of a `siginfo_t`, kept as the kernel gave them.
pub type SiginfoBytes = [u8; 128];

const _: () = assert!(size_of::<libc::siginfo_t>() == size_of::<SiginfoBytes>());

/// Which queue of pending signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalQueue {
    /// Sent to this thread.
    Thread,
    /// Sent to the process.
    Process,
}

/// A change of a tracee, as wait(2) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(Signal),
    /// It is stopped.
    Stopped(Stop),
}

/// Why a tracee is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It was interrupted, or is new and was attached with its creator.
    Event,
    /// A signal has stopped its whole process.
    Group(Signal),
    /// A signal is about to be delivered.
    Delivery(Signal),
    /// It enters or leaves a system call.
    Syscall,
    /// It has created a task; `event_message` gives its number.
    Creation,
    /// It is on its way out.
    Exit,
    /// Another event, by its PTRACE_EVENT number.
    Other(i32),
}

impl Stop {
    /// The signal that the tracee must be resumed with, so that none is lost.
    #[must_use]
    pub const fn carried(self) -> Option<Signal> {
        if let Self::Delivery(signal) = self { Some(signal) } else { None }
    }

    const fn decode(signal: i32, event: i32) -> Self {
        const SYSCALL: i32 = libc::SIGTRAP | 0x80;
        match (event, signal) {
            (0, SYSCALL) => Self::Syscall,
            (0, _) => Self::Delivery(Signal(signal)),
            (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Self::Event,
            (libc::PTRACE_EVENT_STOP, _) => Self::Group(Signal(signal)),
            (libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE, _) => {
                Self::Creation
            }
            (libc::PTRACE_EVENT_EXIT, _) => Self::Exit,
            (event, _) => Self::Other(event),
        }
    }
}

fn request(
    operation: &'static str,
    code: libc::c_uint,
    tid: Tid,
    address: usize,
    data: usize,
) -> Result<i64> {
    // SAFETY: every caller passes either plain numbers or pointers to live buffers of the size that the
    // request defines; the kernel validates the tid.
    let result = unsafe { libc::ptrace(code, tid.get(), address as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(Error::thread(operation, tid, Errno::last())) } else { Ok(result) }
}

/// Attaches to a running thread without stopping it.
pub fn seize(tid: Tid, options: Options) -> Result<()> {
    request("take control", libc::PTRACE_SEIZE, tid, 0, options.0 as usize).map(drop)
}

/// Changes the stop options of a stopped tracee.
pub fn set_options(tid: Tid, options: Options) -> Result<()> {
    request("set the trace options", libc::PTRACE_SETOPTIONS, tid, 0, options.0 as usize).map(drop)
}

/// Asks a seized thread to stop; the stop arrives through [`wait`].
pub fn interrupt(tid: Tid) -> Result<()> {
    request("interrupt", libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Lets a stopped tracee go on, with a signal or without.
pub fn resume(tid: Tid, signal: Option<Signal>) -> Result<()> {
    request("resume", libc::PTRACE_CONT, tid, 0, signal.map_or(0, Signal::get) as usize).map(drop)
}

/// Lets a group-stopped tracee stay stopped while further events are reported.
pub fn listen(tid: Tid) -> Result<()> {
    request("listen to", libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Lets a stopped tracee go on to the next entry into or exit from a system call.
pub fn resume_to_syscall(tid: Tid) -> Result<()> {
    resume_to_syscall_with(tid, None)
}

/// The same, with a signal or without.
pub fn resume_to_syscall_with(tid: Tid, signal: Option<Signal>) -> Result<()> {
    let signal = signal.map_or(0, Signal::get) as usize;
    request("resume to a system call", libc::PTRACE_SYSCALL, tid, 0, signal).map(drop)
}

/// Lets a stopped tracee execute one instruction.
pub fn single_step(tid: Tid) -> Result<()> {
    request("single-step", libc::PTRACE_SINGLESTEP, tid, 0, 0).map(drop)
}

/// Lets a stopped tracee go for good, with a signal or without.
pub fn detach(tid: Tid, signal: Option<Signal>) -> Result<()> {
    request("let go", libc::PTRACE_DETACH, tid, 0, signal.map_or(0, Signal::get) as usize).map(drop)
}

/// General registers of a stopped tracee.
pub fn registers(tid: Tid) -> Result<Registers> {
    let mut registers = Registers::default();
    request("read the registers", libc::PTRACE_GETREGS, tid, 0, (&raw mut registers) as usize)?;
    Ok(registers)
}

/// Writes the general registers of a stopped tracee.
pub fn set_registers(tid: Tid, registers: &Registers) -> Result<()> {
    request("write the registers", libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as usize)
        .map(drop)
}

/// Extended state (x87, SSE, AVX …) in the XSAVE layout of the user ABI; returns the bytes that are valid.
pub fn extended_state(tid: Tid, buffer: &mut [u8; XSTATE_BYTES_MAX]) -> Result<usize> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    request(
        "read the extended registers",
        libc::PTRACE_GETREGSET as libc::c_uint,
        tid,
        NT_X86_XSTATE,
        (&raw mut vector) as usize,
    )?;
    Ok(vector.iov_len)
}

/// Writes the extended state of a stopped tracee.
pub fn set_extended_state(tid: Tid, state: &[u8]) -> Result<()> {
    let mut vector = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    request(
        "write the extended registers",
        libc::PTRACE_SETREGSET as libc::c_uint,
        tid,
        NT_X86_XSTATE,
        (&raw mut vector) as usize,
    )
    .map(drop)
}

/// Blocked signals of a stopped tracee, one bit a signal, bit 0 for signal 1.
pub fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0_u64;
    request("read the signal mask", PTRACE_GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask) as usize)?;
    Ok(mask)
}

/// Sets the blocked signals of a stopped tracee.
pub fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    request("write the signal mask", PTRACE_SETSIGMASK, tid, size_of::<u64>(), (&raw const mask) as usize)
        .map(drop)
}

/// The rseq registration of a stopped tracee.
pub fn rseq_configuration(tid: Tid) -> Result<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    request(
        "read the rseq registration",
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size_of::<RseqConfiguration>(),
        (&raw mut configuration) as usize,
    )?;
    Ok(configuration)
}

/// The number that came with the last event stop (pid of a child, exit status …).
pub fn event_message(tid: Tid) -> Result<u64> {
    let mut message: libc::c_ulong = 0;
    request("read the event message", libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message) as usize)?;
    Ok(message)
}

/// The signal information of a signal stop.
pub fn signal_information(tid: Tid) -> Result<SiginfoBytes> {
    let mut bytes: SiginfoBytes = [0; 128];
    request("read the signal information", libc::PTRACE_GETSIGINFO, tid, 0, bytes.as_mut_ptr() as usize)?;
    Ok(bytes)
}

/// Signals that wait in a queue of a stopped tracee, oldest first, without taking them out.
pub fn pending_signals(tid: Tid, queue: SignalQueue) -> Result<Vec<SiginfoBytes>> {
    let flags = if queue == SignalQueue::Process { 1 } else { 0 };
    let mut found = Vec::new();
    loop {
        let mut batch = [[0_u8; 128]; SIGNALS_PER_PEEK];
        let arguments =
            PeekSiginfoArguments { offset: found.len() as u64, flags, count: SIGNALS_PER_PEEK as i32 };
        let count = request(
            "read the pending signals",
            libc::PTRACE_PEEKSIGINFO,
            tid,
            (&raw const arguments) as usize,
            batch.as_mut_ptr() as usize,
        )? as usize;
        found.extend_from_slice(&batch[..count]);
        if count < SIGNALS_PER_PEEK {
            return Ok(found);
        }
    }
}

/// Waits for the next change of one tracee or child.
pub fn wait(tid: Tid) -> Result<WaitStatus> {
    loop {
        match wait_with(tid, libc::__WALL) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) if error.errno == Errno(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes a change of one tracee or child when there already is one.
pub fn poll(tid: Tid) -> Result<Option<WaitStatus>> {
    wait_with(tid, libc::__WALL | libc::WNOHANG)
}

/// Looks whether a tracee stands in a stop or has ended, and takes neither.
///
/// A stop that was taken carries no signal any more: should the tracer die right then, the signal that the
/// tracee stopped at would be lost. One that was only looked at is delivered.
pub fn peek(tid: Tid) -> Result<Option<WaitStatus>> {
    inspect(libc::P_PID, tid, libc::WNOHANG).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until a tracee of the calling thread is stopped or has ended, and takes neither; `None` when a signal
/// interrupted the wait.
pub fn await_change(tid: Tid) -> Result<Option<WaitStatus>> {
    await_one(libc::P_PID, tid).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until any tracee or child of the calling thread is stopped or has ended, and takes neither; `None` when a
/// signal interrupted the wait.
pub fn await_any() -> Result<Option<Tid>> {
    await_one(libc::P_ALL, Tid(0)).map(|seen| seen.map(|(tid, _)| tid))
}

/// Whether the calling thread has tracees, or children.
#[must_use]
pub fn has_tracees() -> bool {
    // Errors other than ECHILD tell nothing.
    inspect(libc::P_ALL, Tid(0), libc::WNOHANG | libc::__WNOTHREAD).is_ok()
}

/// Takes the end of a tracee or child of this process when it has ended; whether it has. A stop stays untaken: wait(2)
/// reports the stops of a tracee even where only ends are asked for.
pub fn take_end(tid: Tid) -> Result<bool> {
    match peek(tid)? {
        Some(WaitStatus::Exited(_) | WaitStatus::Killed(_)) => poll(tid).map(|_| true),
        _ => Ok(false),
    }
}

/// Blocks until a tracee or child of this process has ended, and takes its end; false when it is stopped, or a signal
/// interrupted the wait.
pub fn await_end(tid: Tid) -> Result<bool> {
    match inspect(libc::P_PID, tid, 0) {
        Ok(_) => take_end(tid),
        Err(error) if error.errno.0 == libc::EINTR => Ok(false),
        Err(error) => Err(error),
    }
}

fn await_one(kind: libc::idtype_t, tid: Tid) -> Result<Option<(Tid, WaitStatus)>> {
    match inspect(kind, tid, libc::__WNOTHREAD) {
        Err(error) if error.errno.0 == libc::EINTR => Ok(None),
        outcome => outcome,
    }
}

fn inspect(kind: libc::idtype_t, tid: Tid, flags: libc::c_int) -> Result<Option<(Tid, WaitStatus)>> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | flags;
    // SAFETY: `information` is writable for one siginfo_t; the kernel checks the number.
    let result = unsafe { libc::waitid(kind, tid.get() as libc::id_t, information.as_mut_ptr(), flags) };
    if result == -1 {
        return Err(Error::thread("wait for a change", tid, Errno::last()));
    }
    // SAFETY: it was zeroed, and any bytes are a valid siginfo_t.
    let information = unsafe { information.assume_init() };
    // SAFETY: the fields of a child's change; all bytes are initialised whatever the kernel filled in.
    let (changed, status) = unsafe { (information.si_pid(), information.si_status()) };
    let seen = match information.si_code {
        _ if changed == 0 => return Ok(None),
        libc::CLD_TRAPPED | libc::CLD_STOPPED => {
            WaitStatus::Stopped(Stop::decode(status & 0xff, status >> 8))
        }
        libc::CLD_EXITED => WaitStatus::Exited(status),
        _ => WaitStatus::Killed(Signal(status & 0x7f)),
    };
    Ok(Some((Tid(changed), seen)))
}

fn wait_with(tid: Tid, flags: libc::c_int) -> Result<Option<WaitStatus>> {
    let mut status = MaybeUninit::<libc::c_int>::uninit();
    // SAFETY: `status` is writable for one int; the kernel fills it when it returns a pid.
    let result = unsafe { libc::waitpid(tid.get(), status.as_mut_ptr(), flags) };
    match result {
        0 => Ok(None),
        -1 => Err(Error::thread("wait for a change", tid, Errno::last())),
        // SAFETY: waitpid returned a pid, so it wrote the status.
        _ => Ok(Some(decode(unsafe { status.assume_init() }))),
    }
}

fn decode(status: libc::c_int) -> WaitStatus {
    if libc::WIFEXITED(status) {
        WaitStatus::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        WaitStatus::Killed(Signal(libc::WTERMSIG(status)))
    } else {
        WaitStatus::Stopped(Stop::decode(libc::WSTOPSIG(status), status >> 16))
    }
}
