//! A thread under construction: its whole state is set by system calls from outside.
//!
//! Owns: the processes and threads that a restore builds, until they are detached.
//! Invariants: the kernel kills every stub when this program ends, so incomplete processes never run. Calls are
//! single-stepped at a `syscall` instruction that the stub maps. A stub has no restore frame, and needs none.
//! Does not: know what is being built.

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

/// How the end of a call is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stepping {
    /// One stop a call, by a SIGTRAP of the processor; wrong once SIGTRAP has a disposition of the subject's.
    SingleStep,
    /// Two stops a call, which involve no signal.
    SyscallStops,
}

/// A stopped thread of a process under construction.
#[derive(Debug)]
pub struct Stub {
    pid: Pid,
    tid: Tid,
    /// Registers that calls start from: segment selectors and flags of a 64-bit thread.
    base: Registers,
    instruction: Address,
    data: AddressRange,
    stepping: Stepping,
    options: Options,
    /// It has created other threads of its process, or has begun to.
    has_threads: bool,
    bound_to_tracer: PhantomData<*const ()>,
}

/// Every signal but SIGTRAP, by which the tracer is told of a single step.
const ALL_BUT_TRAP: u64 = !(1 << 4);

impl Stub {
    /// Creates a process with a wanted number, as a copy of this one, and stops it.
    pub fn spawn(wanted: WantedPid) -> Result<Self, RemoteError> {
        let pid = spawn_waiting(wanted)?;
        // As a zombie it would keep its number, and everything that is restored under it would be refused.
        Self::seize(pid).inspect_err(|_| sys::clone::end(pid))
    }

    fn seize(pid: Pid) -> Result<Self, RemoteError> {
        let tid = pid.leader();
        ptrace::seize(tid, OPTIONS).map_err(|error| {
            // The kernel calls it a lack of permission when a task has ended already.
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
        // What is sent to the number meanwhile waits for the program that comes back under it.
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

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The thread.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Makes calls from another `syscall` instruction from now on.
    pub fn use_instruction(&mut self, instruction: Address) {
        self.instruction = instruction;
    }

    /// Uses a range of the stub's memory for arguments and results from now on.
    pub fn use_data(&mut self, data: AddressRange) {
        self.data = data;
    }

    /// Notices the end of calls without SIGTRAP from now on: the subject's signal actions are about to be set.
    pub fn use_syscall_stops(&mut self) {
        self.stepping = Stepping::SyscallStops;
    }

    /// Seccomp filters do not judge the stub's calls until it is detached; needs CAP_SYS_ADMIN.
    pub fn suspend_seccomp(&self) -> Result<(), Error> {
        ptrace::set_options(self.tid, self.options.with(Options::SUSPEND_SECCOMP))
    }

    /// Adds options to those of other clients.
    pub(crate) fn add_options(&mut self, options: Options) -> Result<(), Error> {
        ptrace::set_options(self.tid, self.options.with(options))?;
        self.options = self.options.with(options);
        Ok(())
    }

    /// The range for arguments and results.
    pub fn data(&self) -> AddressRange {
        self.data
    }

    /// Makes one system call.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
        let (result, _) = self.call_watching(number, arguments)?;
        Ok(result)
    }

    /// Makes one system call with `bytes` in the data range.
    ///
    /// # Errors
    ///
    /// E2BIG if the range is too short for them: they can come from an image.
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

    /// Makes a call that creates a task, and returns it stopped as well.
    pub fn call_creating(
        &mut self,
        number: i64,
        arguments: [u64; 6],
        same_process: bool,
    ) -> Result<Self, RemoteError> {
        // A kill can come when the thread is there, and the call has not ended.
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

    fn wait(&self) -> Result<WaitStatus, Error> {
        let is_leader = self.tid == self.pid.leader();
        if is_leader && self.has_threads { tracer::wait_for_leader(self.pid) } else { ptrace::wait(self.tid) }
    }

    /// Writes the final registers.
    pub fn set_registers(&self, registers: &Registers) -> Result<(), Error> {
        ptrace::set_registers(self.tid, registers)
    }

    /// Lets the thread run, detached, with a stop signal when its process was stopped by one.
    pub fn detach(self, signal: Option<Signal>) -> Result<(), Error> {
        tracer::detached(self.tid);
        ptrace::detach(self.tid, signal)
    }

    /// Lets the thread run, still held: the kernel kills it when this program ends.
    pub(crate) fn run(self, signal: Option<Signal>) -> Result<Thread<Running>, Error> {
        // Its filters judge it from now on.
        ptrace::set_options(self.tid, self.options)?;
        ptrace::resume(self.tid, signal)?;
        Ok(Thread::attached(self.pid, self.tid, self.options))
    }

    /// Lets the thread run, detached, into a call from which it does not come back.
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

/// The address of a `syscall` instruction in the vDSO of a process.
pub fn find_syscall(pid: Pid) -> Result<Address, RemoteError> {
    let memory = ProcessMemory::open(pid)?;
    for area in procfs::areas(pid)?.iter().filter(|area| area.name == "[vdso]") {
        let code = memory.read_vec(area.range.start, area.range.len())?;
        if let Some(offset) = code.windows(2).position(|window| window == arch::SYSCALL) {
            return Ok(area.range.start + ByteCount(offset as u64));
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

    /// A stub, and the call that creates a thread in it; `None` where ptrace is not possible.
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

    /// Takes the ends of a killed process, its leader's last.
    fn collect(pid: Pid) {
        let others =
            || crate::procfs::threads(pid).unwrap().into_iter().filter(move |tid| *tid != pid.leader());
        while others().next().is_some() {
            for tid in others() {
                // One that stands in its first stop ends when that is taken, or without.
                let _ = ptrace::poll(tid);
            }
        }
        sys::clone::end(pid);
    }

    /// The kernel reports the end of a leader only once the ends of its other threads were taken.
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

    /// The new thread is there, and traced, before the call that creates it has ended.
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
