//! Builds threads by remote system calls. A *stub* is a new, stopped thread whose whole state the tracer
//! sets.
//!
//! Owns: the processes and threads that a restore builds, until they are detached.
//! Invariants: the kernel kills every stub when this program ends, so an incomplete process never runs. Therefore a
//! stub needs no restore frame. Calls use a `syscall` instruction that is mapped in the stub. Single-stepping or
//! syscall stops show the end of a call.
//! Does not: know what is being restored.

use std::marker::PhantomData;

use model::{Address, AddressRange, ByteCount, Pid, Signal, Tid};
use sys::clone::{WantedPid, spawn_waiting};
use sys::ptrace::{self, Options, Registers, Stop, WaitStatus};
use sys::{Errno, Error};

use crate::arch;
use crate::freeze;
use crate::memory::ProcessMemory;
use crate::procfs;
use crate::remote::RemoteError;
use crate::thread::{Running, Thread};
use crate::tracer;

const OPTIONS: Options = freeze::OPTIONS.with(Options::EXIT_KILL);
/// SIGTRAP.
const TRAP: Signal = Signal(5);

const E2BIG: Errno = Errno(7);

/// The method to detect the end of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stepping {
    /// Each call causes one stop, because the processor raises SIGTRAP after the instruction. This method is
    /// not possible after the signal actions of the subject are set, because SIGTRAP then has an action of
    /// the subject.
    SingleStep,
    /// Each call causes two stops, and no signal.
    SyscallStops,
}

/// A stopped thread of a process under construction.
#[derive(Debug)]
pub struct Stub {
    pid: Pid,
    tid: Tid,
    /// Registers from which the registers for each call are derived. They contain the segment selectors and
    /// flags of a 64-bit thread.
    base: Registers,
    instruction: Address,
    data: AddressRange,
    stepping: Stepping,
    options: Options,
    /// The stub has created other threads of its process, or is creating one.
    has_threads: bool,
    bound_to_tracer: PhantomData<*const ()>,
}

/// All signals except SIGTRAP, which reports a single step to the tracer.
const ALL_BUT_TRAP: u64 = !(1 << 4);

impl Stub {
    /// Creates a process with the wanted pid as a copy of this process, and stops it.
    pub fn spawn(wanted: WantedPid) -> Result<Self, RemoteError> {
        let pid = spawn_waiting(wanted)?;
        // After an error, the process is reaped. A zombie would occupy the pid, and a further restore with
        // this pid would be refused.
        Self::seize(pid).inspect_err(|_| sys::clone::end(pid))
    }

    fn seize(pid: Pid) -> Result<Self, RemoteError> {
        let tid = pid.leader();
        ptrace::seize(tid, OPTIONS).map_err(|error| {
            // The kernel reports EPERM for a task that has already ended.
            let has_ended = procfs::thread_stat(pid, tid).is_ok_and(|stat| stat.is_zombie());
            if has_ended { RemoteError::Ended(tid) } else { error.into() }
        })?;
        ptrace::interrupt(tid)?;
        let mut stub = Self::adopt(pid, tid)?;
        stub.instruction = find_syscall(pid)?;
        Ok(stub)
    }

    fn adopt(pid: Pid, tid: Tid) -> Result<Self, RemoteError> {
        tracer::attached(tid);
        await_event_stop(tid)?;
        // All signals except SIGTRAP are blocked. A signal that is sent to this pid during the restore stays
        // pending for the restored program.
        ptrace::set_signal_mask(tid, ALL_BUT_TRAP)?;
        let base = ptrace::registers(tid)?;
        let nothing = AddressRange::new(Address(0), Address(0));
        Ok(Self {
            pid,
            tid,
            base,
            instruction: Address(0),
            data: nothing,
            stepping: Stepping::SingleStep,
            options: OPTIONS,
            has_threads: false,
            bound_to_tracer: PhantomData,
        })
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the tid of the thread.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Sets the address of the `syscall` instruction for the following calls.
    pub fn use_instruction(&mut self, instruction: Address) {
        self.instruction = instruction;
    }

    /// Sets the range of the stub's memory for arguments and results of the following calls.
    pub fn use_data(&mut self, data: AddressRange) {
        self.data = data;
    }

    /// Uses syscall stops instead of SIGTRAP to detect the end of the following calls. Must be called before
    /// the signal actions of the subject are set.
    pub fn use_syscall_stops(&mut self) {
        self.stepping = Stepping::SyscallStops;
    }

    /// Suspends seccomp filters for the remote calls of the stub, until the stub is run or detached. Needs
    /// CAP_SYS_ADMIN.
    pub fn suspend_seccomp(&self) -> Result<(), Error> {
        ptrace::set_options(self.tid, self.options.with(Options::SUSPEND_SECCOMP))
    }

    /// Adds ptrace options to the options that every stub has.
    pub(crate) fn add_options(&mut self, options: Options) -> Result<(), Error> {
        ptrace::set_options(self.tid, self.options.with(options))?;
        self.options = self.options.with(options);
        Ok(())
    }

    /// Returns the range for arguments and results.
    pub fn data(&self) -> AddressRange {
        self.data
    }

    /// Makes one system call.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
        let (result, _) = self.call_watching(number, arguments)?;
        Ok(result)
    }

    /// Writes `bytes` to the data range, and makes one system call.
    ///
    /// # Errors
    ///
    /// E2BIG if the bytes do not fit into the range. Bytes from an image can be too long.
    pub fn call_with(
        &mut self,
        memory: &ProcessMemory,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(Address) -> [u64; 6],
    ) -> Result<u64, RemoteError> {
        if bytes.len() as u64 > self.data.len().get() {
            return Err(RemoteError::Refused { tid: self.tid, number, errno: E2BIG });
        }
        memory.write(self.data.start, bytes)?;
        self.call(number, arguments(self.data.start))
    }

    /// Makes a call that creates a thread or process. Returns a stub for the new thread or process, which is
    /// stopped.
    pub fn call_creating(
        &mut self,
        number: i64,
        arguments: [u64; 6],
        same_process: bool,
    ) -> Result<Self, RemoteError> {
        // The flag is set before the call: if the process is killed during the call, the new thread may
        // already exist.
        self.has_threads |= same_process;
        let (result, created) = self.call_watching(number, arguments)?;
        let tid = created.unwrap_or(Tid(result as i32));
        let pid = if same_process { self.pid } else { Pid(tid.get()) };
        let mut child = Self::adopt(pid, tid)?;
        child.instruction = self.instruction;
        child.data = self.data;
        child.stepping = self.stepping;
        Ok(child)
    }

    fn call_watching(&mut self, number: i64, arguments: [u64; 6]) -> Result<(u64, Option<Tid>), RemoteError> {
        let registers = arch::with_syscall(&self.base, self.instruction, number, arguments);
        ptrace::set_registers(self.tid, &registers)?;
        let mut created = None;
        let (mut stops_left, expected) = match self.stepping {
            Stepping::SingleStep => (1, Stop::Delivery(TRAP)),
            Stepping::SyscallStops => (2, Stop::Syscall),
        };
        while stops_left > 0 {
            match self.stepping {
                Stepping::SingleStep => ptrace::single_step(self.tid)?,
                Stepping::SyscallStops => ptrace::resume_to_syscall(self.tid, None)?,
            }
            match self.wait()? {
                WaitStatus::Stopped(stop) if stop == expected => stops_left -= 1,
                WaitStatus::Stopped(Stop::Creation) => {
                    created = Some(Tid(ptrace::event_message(self.tid)? as i32));
                }
                WaitStatus::Stopped(_) => {}
                WaitStatus::Exited(_) | WaitStatus::Killed(_) => return Err(RemoteError::Ended(self.tid)),
            }
        }
        let result = ptrace::registers(self.tid)?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(RemoteError::Refused { tid: self.tid, number, errno: Errno(-result as i32) });
        }
        Ok((result as u64, created))
    }

    /// Moves the thread from a syscall stop to an event stop. The thread executes no instruction in between.
    pub fn reach_event_stop(&mut self) -> Result<(), RemoteError> {
        loop {
            ptrace::interrupt(self.tid)?;
            ptrace::resume(self.tid, None)?;
            match self.wait()? {
                WaitStatus::Stopped(Stop::Event | Stop::Group(_)) => return Ok(()),
                WaitStatus::Stopped(_) => {}
                WaitStatus::Exited(_) | WaitStatus::Killed(_) => return Err(RemoteError::Ended(self.tid)),
            }
        }
    }

    fn wait(&self) -> Result<WaitStatus, Error> {
        let is_leader = self.tid == self.pid.leader();
        if is_leader && self.has_threads { tracer::wait_for_leader(self.pid) } else { ptrace::wait(self.tid) }
    }

    /// Resumes and detaches the thread. `signal` is the stop signal if the process was in a group stop.
    pub fn detach(self, signal: Option<Signal>) -> Result<(), Error> {
        tracer::detached(self.tid);
        ptrace::detach(self.tid, signal)
    }

    /// Resumes the thread, and continues to trace it. The kernel kills the thread when this program ends.
    pub(crate) fn run(self, signal: Option<Signal>) -> Result<Thread<Running>, Error> {
        // This ends the suspension of seccomp filters, so the filters apply to all further calls of the
        // thread.
        ptrace::set_options(self.tid, self.options)?;
        ptrace::resume(self.tid, signal)?;
        Ok(Thread::attached(self.pid, self.tid, self.options))
    }

    /// Detaches the thread, which then makes a system call that does not return.
    pub fn leave_with(self, number: i64, arguments: [u64; 6]) -> Result<(), Error> {
        let registers = arch::with_syscall(&self.base, self.instruction, number, arguments);
        ptrace::set_registers(self.tid, &registers)?;
        self.detach(None)
    }
}

fn await_event_stop(tid: Tid) -> Result<(), RemoteError> {
    loop {
        match ptrace::wait(tid)? {
            WaitStatus::Stopped(Stop::Event) => return Ok(()),
            WaitStatus::Stopped(_) => {
                ptrace::interrupt(tid)?;
                ptrace::resume(tid, None)?;
            }
            WaitStatus::Exited(_) | WaitStatus::Killed(_) => return Err(RemoteError::Ended(tid)),
        }
    }
}

/// Returns the address of a `syscall` instruction in the vDSO of a process.
pub fn find_syscall(pid: Pid) -> Result<Address, RemoteError> {
    let memory = ProcessMemory::open(pid)?;
    for mapping in procfs::mappings(pid)?.iter().filter(|mapping| mapping.name == "[vdso]") {
        let code = memory.read_vec(mapping.range.start, mapping.range.len())?;
        if let Some(offset) = code.windows(2).position(|window| window == arch::SYSCALL) {
            return Ok(mapping.range.start + ByteCount(offset as u64));
        }
    }
    Err(RemoteError::NoGadget(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let mut stub = match Stub::spawn(WantedPid::Any) {
            Ok(stub) => stub,
            Err(error) => return println!("unsupported: ptrace: {error}"),
        };
        let memory = ProcessMemory::open(stub.pid()).unwrap();
        stub.use_data(AddressRange::new(Address(4096), Address(8192)));
        let outcome = stub.call_with(&memory, 0, &[0; 4097], |_| [0; 6]);
        assert!(matches!(outcome, Err(RemoteError::Refused { errno: E2BIG, .. })), "{outcome:?}");
    }

    // CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM.
    const THREAD: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
    const PAGE: u64 = 4096;

    /// Returns a stub and the arguments of a call that creates a thread in it. Returns `None` if ptrace is
    /// not possible.
    fn stub_and_call() -> Option<(Stub, [u64; 6])> {
        let mut stub =
            Stub::spawn(WantedPid::Any).inspect_err(|error| println!("unsupported: ptrace: {error}")).ok()?;
        // The stub is a copy of this process, with the same memory.
        let room: &'static mut [u64; 512] = Box::leak(Box::new([0; 512]));
        let start = Address(room.as_ptr() as u64);
        stub.use_data(AddressRange::new(start, start + ByteCount(PAGE)));
        let memory = ProcessMemory::open(stub.pid()).unwrap();
        let bytes = sys::clone::CloneArguments { flags: THREAD, ..Default::default() }.to_bytes();
        memory.write(start, &bytes).unwrap();
        Some((stub, [start.get(), bytes.len() as u64, 0, 0, 0, 0]))
    }

    /// Reaps the threads of a killed process, with the leader last.
    fn collect(pid: Pid) {
        let others =
            || crate::procfs::threads(pid).unwrap().into_iter().filter(move |tid| *tid != pid.leader());
        while others().next().is_some() {
            for tid in others() {
                // This also consumes the first stop of a new thread, if the thread has not ended yet.
                let _ = ptrace::poll(tid);
            }
        }
        sys::clone::end(pid);
    }

    /// The kernel reports the end of a leader only after its other threads are reaped.
    #[test]
    fn a_leader_that_is_killed_with_its_threads_is_not_waited_for_without_end() {
        const PAUSE: i64 = 34;
        let Some((mut stub, call)) = stub_and_call() else { return };
        let thread = stub.call_creating(arch::numbers::CLONE3, call, true).unwrap();
        assert_ne!(thread.tid(), stub.tid());
        let pid = stub.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            sys::signal::send(pid, Signal(9)).unwrap();
        });
        let outcome = stub.call(PAUSE, [0; 6]);
        assert!(matches!(outcome, Err(RemoteError::Ended(_))), "{outcome:?}");
        killer.join().unwrap();
        collect(pid);
    }

    /// A new thread exists and is traced before the call that creates it has ended.
    #[test]
    fn a_leader_that_is_killed_while_it_creates_its_first_thread_is_not_waited_for_without_end() {
        const ROUNDS: usize = 300;
        let mut ended = 0;
        for _ in 0..ROUNDS {
            let Some((mut stub, call)) = stub_and_call() else { return };
            let pid = stub.pid();
            let killer = std::thread::spawn(move || {
                while crate::procfs::threads(pid).unwrap().len() < 2 {}
                sys::signal::send(pid, Signal(9)).unwrap();
            });
            ended += usize::from(stub.call_creating(arch::numbers::CLONE3, call, true).is_err());
            killer.join().unwrap();
            collect(pid);
        }
        println!("killed before the call had ended: {ended} of {ROUNDS}");
        assert!(ended > 0, "no kill came early enough");
    }
}
