//! Creating processes with their parents, sessions and groups.
//!
//! Owns: the order of creation, placeholders for leaders that have ended.
//! Invariants: a placeholder has the number of a dead leader and is gone, reaped, before any process runs; each process
//! has its session and its group at the end, or the restore fails.
//! Does not: know what is in a process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use model::{ByteCount, Pid};
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, RemoteError, Stub, procfs};

use super::built::{Built, BuiltProcess, SIGCHLD};
use super::files::{self, OpenFiles};
use super::plan::{Plan, PlannedProcess};
use crate::error::{EngineError, Result};
use crate::relations::{Birth, Births, Relation};

const CLONE_PARENT: u64 = 0x8000;
/// For wait4(2): children whatever signal tells of their end.
const WAIT_ALL: u64 = 0x4000_0000;

/// A process that stands for a dead leader.
struct Placeholder {
    process: BuiltProcess,
    parent: Pid,
}

/// What the processes of a tree are created from.
struct Family<'a> {
    plan: &'a Plan,
    open: &'a OpenFiles,
    births: Births,
    placeholders: HashMap<Pid, Placeholder>,
}

/// Creates all descendants of the root, which is there, and has each join its session and its group.
pub(super) fn create(plan: &Plan, open: &OpenFiles, built: &mut Built) -> Result<()> {
    let births = plan.births();
    if let Some((pid, _)) = births.homeless.first() {
        return Err(EngineError::NotBuildable(format!("pid {pid} cannot be given its session")));
    }
    let mut family = Family { plan, open, births, placeholders: HashMap::new() };
    family.create_children(&plan.processes[0], built)?;
    family.set_groups(built)?;
    for placeholder in family.placeholders.into_values() {
        placeholder.dismiss(built)?;
    }
    check(plan)
}

impl Family<'_> {
    fn create_children(&mut self, process: &PlannedProcess, built: &mut Built) -> Result<()> {
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
        let due: Vec<&PlannedProcess> = plan.processes.iter().skip(1).filter(is_due).collect();
        for child in due {
            let wanted = child.pid.leader();
            let exit_signal = child.message.exit_signal.map_or(SIGCHLD, |signal| signal as u64);
            let session = Pid(child.message.session);
            let stub = match birth {
                Birth::EarlyChild | Birth::Child => built.get(parent.pid)?.create(wanted, 0, exit_signal)?,
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

    /// The placeholder that leads a session. A process that it creates beside itself sends its parent the signal that
    /// the placeholder does.
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

    /// Has processes join their groups, leaders first, so that the others find them.
    fn set_groups(&mut self, built: &mut Built) -> Result<()> {
        for (group, member) in &self.births.dead_groups {
            let mut process = place(*group, *member, 0, built)?;
            process.leader().0.call(nr::SETPGID, [0; 6])?;
            self.placeholders.insert(*group, Placeholder { process, parent: *member });
        }
        let leads = |process: &&PlannedProcess| process.message.group == process.pid.get();
        let (leaders, members): (Vec<_>, Vec<_>) = self.plan.processes.iter().partition(leads);
        for process in leaders.into_iter().chain(members) {
            // A session leader leads its group already.
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
    /// Ends it and has its parent reap it. The members of its session and group keep them.
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

/// Takes a pending SIGCHLD of a process under construction: it tells of what the program knows nothing of.
pub(super) fn drop_child_signal(stub: &mut Stub, memory: &ProcessMemory) -> Result<()> {
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

/// Whether a session or group is one around the tree, for which the restorer's own stands.
fn is_outer(plan: &Plan, number: i32) -> bool {
    let root = &plan.processes[0];
    let is_of_root = number == root.message.group || number == root.message.session;
    is_of_root && !plan.processes.iter().any(|process| process.pid.get() == number)
}

fn check(plan: &Plan) -> Result<()> {
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
    /// How its processes come to their sessions.
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
