//! Creates the processes of a tree with their pids, parents, sessions and process groups. Also creates the threads
//! of the processes.
//!
//! Owns: the roots; the seccomp filter of a watched subject; the order of creation; zombies; placeholders.
//! A placeholder is a temporary process with the pid of a dead session or group leader.
//! Invariants: every process is a stub with mapped scratch pages and no other change. No seccomp filter checks a call
//! of a stub. Seccomp is suspended for the first stub before the filter is installed, and all other stubs inherit the
//! suspension. No stub keeps the listener, the descriptor that receives the notifications of the filter. Every
//! placeholder is reaped before any process runs. At the end, each process has its session and its process group, or
//! the restore fails.
//! Does not: lay out memory, or answer notifications. When the tree runs, the receiver of the listener must answer
//! the notifications.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use model::{Address, AddressRange, ByteCount, Fd, PAGE_BYTES, Pid, Tid};
use resource::ResourceError;
use store::ImageReader;
use sys::clone::{CloneArguments, WantedPid};
use sys::seccomp_listener::{self, FilterProgram, SET_FILTER};
use sys::{Errno, pidfd, ptrace, userfaultfd};
use tracee::arch;
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, RemoteError, Stub, procfs};

use super::built::{Built, BuiltProcess, SIGCHLD};
use super::files::{self, OpenFiles};
use super::fork_memory;
use super::inherited::Inherited;
use super::pids;
use super::plan::{Plan, PlannedProcess};
use crate::error::{EngineError, Result};
use crate::relations::{Birth, Births, Relation};
use crate::sharing;

/// The number of scratch pages: one page for code, the other pages for arguments.
const SCRATCH_PAGES: u64 = 9;
/// The start of the search for a free range: the lowest address that an ordinary program may map.
const LOWEST_ADDRESS: u64 = 0x1_0000;

const PROT_ALL: u64 = 7;
const MAP_PRIVATE_ANONYMOUS_FIXED: u64 = 0x02 | 0x20 | 0x0010_0000;
const CLONE_THREAD_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
const PR_SET_PDEATHSIG: u64 = 1;
const RSEQ_UNREGISTER: u64 = 1;
const WAIT_STATUS_SIGNAL: i32 = 0x7f;
const CLONE_PARENT: u64 = 0x8000;
/// __WALL of wait4(2): waits for children with any exit signal.
const WAIT_ALL: u64 = 0x4000_0000;
/// The size of `struct sock_fprog` in bytes: a count and an address.
const PROGRAM_BYTES: usize = 16;

/// The seccomp filter of a restored tree.
pub struct FilterInstall {
    /// The instructions of the filter.
    pub program: FilterProgram,
    /// Receives the listener (the descriptor for notifications of the filter) while the tree is under construction.
    /// An error ends the restore.
    pub listener: Box<dyn FnOnce(OwnedFd) -> sys::Result<()> + Send>,
}

impl fmt::Debug for FilterInstall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FilterInstall").finish_non_exhaustive()
    }
}

/// Creates all processes. Fills the memory in `inherited`, so that children share it with their parents.
pub(super) fn build(
    (reader, plan, open): (&ImageReader, &Plan, &OpenFiles),
    watch: Option<FilterInstall>,
    inherited: &mut Inherited,
) -> Result<Built> {
    let scratch = find_scratch(plan)?;
    let first = plan.roots()[0].pid;
    let mut leader = spawn_root(first)?;
    map_scratch(&mut leader, scratch)?;
    if let Some(filter) = watch {
        // All other stubs are created from this stub and inherit the filter.
        install(filter, &mut leader)?;
    }
    let mut built = Built { processes: HashMap::new(), scratch };
    built.add(first, leader)?;
    for root in &plan.roots()[1..] {
        // This process is the parent of all roots.
        let stub = built.get(first)?.create(root.pid.leader(), CLONE_PARENT, 0)?;
        built.add(root.pid, stub)?;
    }
    create_family((reader, plan, open), inherited, &mut built)?;
    end_zombies(plan, &mut built)?;
    Ok(built)
}

fn spawn_root(pid: Pid) -> Result<Stub> {
    pids::create(pid, || Stub::spawn(WantedPid::Exactly(pid))).map_err(|error| match error {
        EngineError::Resource(ResourceError::Remote(RemoteError::Kernel(error)))
            if error.errno == Errno::EPERM =>
        {
            EngineError::Permission {
                pid,
                why: "choosing a process number needs CAP_CHECKPOINT_RESTORE".to_owned(),
            }
        }
        other => other,
    })
}

/// Installs the filter in the first stub.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN, or if this program runs in a sandbox.
fn install(filter: FilterInstall, stub: &mut Stub) -> Result<()> {
    stub.suspend_seccomp()?;
    let memory = ProcessMemory::open(stub.pid())?;
    let code = filter.program.bytes();
    let mut bytes = vec![0_u8; PROGRAM_BYTES];
    let count = (code.len() / sys::seccomp::INSTRUCTION_BYTES) as u16;
    bytes[..2].copy_from_slice(&count.to_ne_bytes());
    let at = stub.data().start.get() + PROGRAM_BYTES as u64;
    bytes[8..].copy_from_slice(&at.to_ne_bytes());
    bytes.extend_from_slice(&code);
    let mut set =
        |flags| stub.call_with(&memory, nr::SECCOMP, &bytes, |at| [SET_FILTER, flags, at.get(), 0, 0, 0]);
    let [first, older] = seccomp_listener::flags_of(&filter.program);
    let number = match set(first) {
        Err(RemoteError::Refused { errno: Errno::EINVAL, .. }) => set(older)?,
        outcome => outcome?,
    };
    let handle = pidfd::open(stub.pid())?;
    let listener = pidfd::duplicate(handle.as_fd(), stub.pid(), Fd(number as i32))?;
    stub.call(nr::CLOSE, [number, 0, 0, 0, 0, 0])?;
    Ok((filter.listener)(listener)?)
}

/// Finds an address range that is free in every process of the image and in this process.
fn find_scratch(plan: &Plan) -> Result<AddressRange> {
    let own = procfs::mappings(Pid(std::process::id() as i32))?;
    let mut taken: Vec<AddressRange> = own.iter().map(|mapping| mapping.range).collect();
    for process in &plan.processes {
        taken.extend(process.areas.iter().map(resource::memory::AreaRecord::range));
        let start = Address(process.layout.vdso_start);
        taken.push(AddressRange::new(start, start + ByteCount(process.layout.vdso_length)));
    }
    taken.sort_unstable();
    let length = ByteCount(SCRATCH_PAGES * PAGE_BYTES);
    let mut start = Address(LOWEST_ADDRESS);
    for range in taken {
        if range.start > start && range.start - start >= length {
            break;
        }
        start = start.max(range.end);
    }
    if start + length > arch::USER_SPACE_END {
        return Err(EngineError::NotBuildable("the address space has no free place".to_owned()));
    }
    Ok(AddressRange::new(start, start + length))
}

fn map_scratch(stub: &mut Stub, scratch: AddressRange) -> Result<()> {
    let memory = ProcessMemory::open(stub.pid())?;
    // The stub has inherited the rseq registration of this process. The kernel writes to the registered address,
    // but the memory at this address will be unmapped.
    let rseq = ptrace::rseq_configuration(stub.tid())?;
    if rseq.address != 0 {
        let arguments =
            [rseq.address, u64::from(rseq.length), RSEQ_UNREGISTER, u64::from(rseq.signature), 0, 0];
        stub.call(nr::RSEQ, arguments)?;
    }
    let flags = MAP_PRIVATE_ANONYMOUS_FIXED;
    stub.call(nr::MMAP, [scratch.start.get(), scratch.len().get(), PROT_ALL, flags, u64::MAX, 0])?;
    // Clears the parent-death signal, which would kill the restored process when this process exits. A stub does
    // not need this signal: the stub is seized, so the kernel kills the stub when its tracer dies.
    stub.call(nr::PRCTL, [PR_SET_PDEATHSIG, 0, 0, 0, 0, 0])?;
    memory.write(scratch.start, arch::SYSCALL)?;
    stub.use_instruction(scratch.start);
    stub.use_data(AddressRange::new(scratch.start + ByteCount(PAGE_BYTES), scratch.end));
    Ok(())
}

impl Built {
    pub(super) fn add(&mut self, pid: Pid, leader: Stub) -> Result<()> {
        let memory = ProcessMemory::open(pid)?;
        self.processes.insert(pid, BuiltProcess { memory, threads: vec![leader] });
        Ok(())
    }

    pub(super) fn get(&mut self, pid: Pid) -> Result<&mut BuiltProcess> {
        self.processes
            .get_mut(&pid)
            .ok_or_else(|| EngineError::Incomplete(format!("pid {pid} has no parent in the image")))
    }
}

impl BuiltProcess {
    pub(super) fn leader(&mut self) -> (&mut Stub, &ProcessMemory) {
        (&mut self.threads[0], &self.memory)
    }

    /// Creates a userfaultfd of the process, and moves the descriptor into the restoring process.
    pub(super) fn userfaultfd(&mut self, flags: u64) -> std::result::Result<OwnedFd, RemoteError> {
        let (stub, _) = self.leader();
        let pid = Pid(stub.tid().get());
        let call = [userfaultfd::CREATE_FLAGS | flags, 0, 0, 0, 0, 0];
        let number = stub.call(nr::USERFAULTFD, call)?;
        let handle = pidfd::open(pid)?;
        let descriptor = pidfd::duplicate(handle.as_fd(), pid, Fd(number as i32))?;
        stub.call(nr::CLOSE, [number, 0, 0, 0, 0, 0])?;
        Ok(descriptor)
    }

    /// Makes the leader create a task with the tid `wanted`. With the flags of a thread, the task is a thread of the
    /// process. Otherwise it is a child process, which shares the tables that `flags` names.
    pub(super) fn create(&mut self, wanted: Tid, flags: u64, exit_signal: u64) -> Result<Stub> {
        let (stub, memory) = self.leader();
        let data = stub.data().start;
        let pids = data + ByteCount(PAGE_BYTES);
        let arguments = CloneArguments {
            flags,
            exit_signal,
            set_tid: pids.get(),
            set_tid_size: 1,
            ..CloneArguments::default()
        };
        let bytes = arguments.to_bytes();
        memory.write(data, &bytes)?;
        memory.write(pids, &wanted.get().to_ne_bytes())?;
        let call = [data.get(), bytes.len() as u64, 0, 0, 0, 0];
        let same_process = flags == CLONE_THREAD_FLAGS;
        pids::create(Pid(wanted.get()), || stub.call_creating(nr::CLONE3, call, same_process))
    }

    pub(super) fn create_threads(&mut self, process: &PlannedProcess) -> Result<()> {
        for thread in process.threads.iter().skip(1) {
            let stub = self.create(thread.tid, CLONE_THREAD_FLAGS, 0)?;
            self.threads.push(stub);
        }
        Ok(())
    }
}

/// Ends the processes that were zombies at the checkpoint. Their parents are still stubs, so the SIGCHLD of the
/// zombie can be discarded.
fn end_zombies(plan: &Plan, built: &mut Built) -> Result<()> {
    for process in plan.processes.iter().filter(|process| process.message.zombie) {
        let Some(mut zombie) = built.processes.remove(&process.pid) else { continue };
        let code = process.message.exit_code;
        let stub = zombie.threads.remove(0);
        let signal = code & WAIT_STATUS_SIGNAL;
        if signal == 0 {
            let call = [(code >> 8) as u64 & 0xff, 0, 0, 0, 0, 0];
            stub.leave_with(nr::EXIT_GROUP, call)?;
        } else {
            let tid = stub.tid();
            ptrace::set_signal_mask(tid, 0)?;
            sys::signal::send(process.pid, model::Signal(signal))?;
            match stub.detach(None) {
                // SIGKILL has ended the stub before `detach`. The parent is notified only after the tracer has
                // waited for the stub.
                Err(error) if error.errno == Errno::ESRCH => {
                    while let ptrace::WaitStatus::Stopped(_) = ptrace::wait(tid)? {}
                }
                outcome => outcome?,
            }
        }
        await_zombie(process.pid)?;
        if let Some(parent) = built.processes.get_mut(&Pid(process.message.parent)) {
            let (stub, memory) = parent.leader();
            drop_child_signal(stub, memory)?;
        }
    }
    Ok(())
}

fn await_zombie(pid: Pid) -> Result<()> {
    const POLLS_MAX: usize = 100_000;
    for _ in 0..POLLS_MAX {
        if procfs::stat(pid)?.is_zombie() {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Err(EngineError::NotBuildable(format!("pid {pid} did not end as it should")))
}

/// A temporary process with the pid of a dead session or group leader.
struct Placeholder {
    process: BuiltProcess,
    parent: Pid,
}

/// The context in which the processes of a tree are created.
struct Family<'a> {
    reader: &'a ImageReader,
    plan: &'a Plan,
    open: &'a OpenFiles,
    births: Births,
    inherited: &'a mut Inherited,
    placeholders: HashMap<Pid, Placeholder>,
}

/// Creates all descendants of the existing roots. Each process joins its session and its process group.
fn create_family(
    (reader, plan, open): (&ImageReader, &Plan, &OpenFiles),
    inherited: &mut Inherited,
    built: &mut Built,
) -> Result<()> {
    let births = plan.births();
    if let Some((pid, _)) = births.homeless.first() {
        return Err(EngineError::NotBuildable(format!("pid {pid} cannot be given its session")));
    }
    let mut family = Family { reader, plan, open, births, inherited, placeholders: HashMap::new() };
    plan.roots().iter().try_for_each(|root| family.create_children(root, built))?;
    family.set_groups(built)?;
    for placeholder in family.placeholders.into_values() {
        placeholder.dismiss(built)?;
    }
    check_relations(plan)
}

impl Family<'_> {
    fn create_children(&mut self, process: &PlannedProcess, built: &mut Built) -> Result<()> {
        fork_memory::prepare(self.inherited, (self.reader, self.plan, self.open), process, built)?;
        self.create_those(Birth::EarlyChild, process, built)?;
        if leads_session(process) {
            let (stub, memory) = built.get(process.pid)?.leader();
            stub.call(nr::SETSID, [0; 6])?;
            files::lead(self.plan, self.open, stub)?;
            for state in &process.states {
                state.kind.lead(state.version, &state.payload, stub, memory)?;
            }
        }
        for birth in [Birth::Child, Birth::Sibling, Birth::Placeholder] {
            self.create_those(birth, process, built)?;
        }
        Ok(())
    }

    fn create_those(&mut self, birth: Birth, parent: &PlannedProcess, built: &mut Built) -> Result<()> {
        let plan = self.plan;
        let is_due = |child: &&PlannedProcess| {
            child.message.parent == parent.pid.get() && self.births.birth(child.pid) == birth
        };
        let due: Vec<&PlannedProcess> = plan.processes.iter().filter(is_due).collect();
        for child in due {
            let wanted = child.pid.leader();
            let exit_signal = child.message.exit_signal.map_or(SIGCHLD, |signal| signal as u64);
            let session = Pid(child.message.session);
            let stub = match birth {
                Birth::EarlyChild | Birth::Child => {
                    let shares = child.message.shares & sharing::WITH_PARENT_FLAGS;
                    let useless = self.inherited.useless(parent.pid, child.pid);
                    let parent = built.get(parent.pid)?;
                    fork_memory::leave_out(parent.leader().0, &useless, true)?;
                    let stub = parent.create(wanted, shares, exit_signal)?;
                    fork_memory::leave_out(parent.leader().0, &useless, false)?;
                    stub
                }
                Birth::Sibling => built.get(session)?.create(wanted, CLONE_PARENT, 0)?,
                Birth::Placeholder => {
                    self.leader(session, parent.pid, built)?.create(wanted, CLONE_PARENT, 0)?
                }
            };
            built.add(child.pid, stub)?;
            self.create_children(child, built)?;
        }
        Ok(())
    }

    /// Returns the placeholder that leads a session, and creates the placeholder at first use. The placeholder
    /// creates its siblings (CLONE_PARENT), which get the exit signal of the placeholder.
    fn leader(&mut self, session: Pid, parent: Pid, built: &mut Built) -> Result<&mut BuiltProcess> {
        let placeholder = match self.placeholders.entry(session) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut process = place(session, parent, SIGCHLD, built)?;
                process.leader().0.call(nr::SETSID, [0; 6])?;
                entry.insert(Placeholder { process, parent })
            }
        };
        Ok(&mut placeholder.process)
    }

    /// Makes each process join its process group. Group leaders come first, so that a group exists when its members
    /// join.
    fn set_groups(&mut self, built: &mut Built) -> Result<()> {
        for (group, member) in &self.births.dead_groups {
            let mut process = place(*group, *member, 0, built)?;
            process.leader().0.call(nr::SETPGID, [0; 6])?;
            self.placeholders.insert(*group, Placeholder { process, parent: *member });
        }
        let leads = |process: &&PlannedProcess| process.message.group == process.pid.get();
        let (leaders, members): (Vec<_>, Vec<_>) = self.plan.processes.iter().partition(leads);
        for process in leaders.into_iter().chain(members) {
            // A session leader already leads its process group.
            if !leads_session(process) && !is_outer(self.plan, process.message.group) {
                let (stub, _) = built.get(process.pid)?.leader();
                stub.call(nr::SETPGID, [0, process.message.group as u64, 0, 0, 0, 0])?;
            }
        }
        Ok(())
    }
}

fn place(number: Pid, parent: Pid, exit_signal: u64, built: &mut Built) -> Result<BuiltProcess> {
    let stub = built.get(parent)?.create(number.leader(), 0, exit_signal)?;
    Ok(BuiltProcess { memory: ProcessMemory::open(number)?, threads: vec![stub] })
}

impl Placeholder {
    /// Ends the placeholder, and makes the parent reap the placeholder. The members of the placeholder's session
    /// and process group remain members.
    fn dismiss(self, built: &mut Built) -> Result<()> {
        let Self { mut process, parent } = self;
        let stub = process.threads.remove(0);
        let number = stub.pid();
        stub.leave_with(nr::EXIT_GROUP, [0; 6])?;
        let (stub, memory) = built.get(parent)?.leader();
        stub.call(nr::WAIT4, [number.get() as u64, 0, WAIT_ALL, 0, 0, 0])?;
        drop_child_signal(stub, memory)
    }
}

/// Discards a pending SIGCHLD of a process under construction. The signal comes from the restore, so the program
/// must not receive the signal.
fn drop_child_signal(stub: &mut Stub, memory: &ProcessMemory) -> Result<()> {
    const SET_BYTES: u64 = 8;
    const TIMEOUT_BYTES: usize = 16;
    let set = stub.data().start;
    let bit: u64 = 1 << (SIGCHLD - 1);
    let mut bytes = bit.to_ne_bytes().to_vec();
    bytes.extend([0; TIMEOUT_BYTES]);
    memory.write(set, &bytes)?;
    let timeout = set + ByteCount(SET_BYTES);
    match stub.call(nr::RT_SIGTIMEDWAIT, [set.get(), 0, timeout.get(), SET_BYTES, 0, 0]) {
        Ok(_) | Err(RemoteError::Refused { errno: sys::Errno::EAGAIN, .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn leads_session(process: &PlannedProcess) -> bool {
    process.message.session == process.pid.get()
}

/// Reports whether `number` is the session or process group of a root, and no process of the tree has the pid
/// `number`. Instead of this session or group, the restored tree has that of the restoring process.
fn is_outer(plan: &Plan, number: i32) -> bool {
    let is_of = |root: &PlannedProcess| number == root.message.group || number == root.message.session;
    plan.roots().iter().any(is_of) && !plan.processes.iter().any(|process| process.pid.get() == number)
}

fn check_relations(plan: &Plan) -> Result<()> {
    for process in &plan.processes {
        let stat = procfs::stat(process.pid)?;
        let (session, group) = (process.message.session, process.message.group);
        let has_session = is_outer(plan, session) || stat.session.get() == session;
        let has_group = is_outer(plan, group) || stat.pgrp.get() == group;
        if !has_session || !has_group {
            return Err(EngineError::NotBuildable(format!(
                "pid {} cannot be given its session {session} and its process group {group}",
                process.pid
            )));
        }
    }
    Ok(())
}

impl Plan {
    /// Determines which process creates each process.
    pub(super) fn births(&self) -> Births {
        let relation = |process: &PlannedProcess| Relation {
            pid: process.pid,
            parent: Pid(process.message.parent),
            group: Pid(process.message.group),
            session: Pid(process.message.session),
        };
        Births::of(&self.processes.iter().map(relation).collect::<Vec<_>>())
    }
}
