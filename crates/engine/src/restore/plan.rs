//! Decodes and checks all records of an image before any process is created.
//!
//! Owns: the consumption of all records, and the checks against this kernel and its processes.
//! Invariants: if a record is not consumed, the restore is refused, and the error names the record.
//! Does not: open files, or create mappings or processes.

use std::collections::BTreeSet;
use std::time::Duration;

use image::{Owner, RecordSet, SpaceId};
use model::{Address, AddressRange, Pid, Tid};
use resource::fd;
use resource::fd::envelope::Envelope;
use resource::fd::pieces::Pieces;
use resource::files::{DirectoryRecord, FileRecord};
use resource::memory::{self, AreaRecord, ObjectRecord};
use resource::state::{self, Level, StateKind};
use store::ImageReader;
use sys::clock;
use sys::ptrace::Registers;
use tracee::procfs;

use super::pids;
use crate::error::{EngineError, Result};
use crate::records::{
    AreasMessage, DescriptorRow, DescriptorsMessage, DirectoriesMessage, EngineRecord, FilesMessage,
    LayoutMessage, ObjectsMessage, ProcessMessage, ThreadMessage, TreeMessage,
};

pub(super) struct Plan {
    /// The processes: the roots first, and parents before their children.
    pub(super) processes: Vec<PlannedProcess>,
    root_count: usize,
    pub(super) objects: Vec<ObjectRecord>,
    pub(super) envelopes: Vec<(u32, Envelope)>,
    /// Regular files that the subject could write; `None` in images of earlier versions, which did not record
    /// files.
    pub(super) files: Option<Vec<FileRecord>>,
    /// Directories of files that can be truncated. `None` if there are no such files, and in images of earlier
    /// versions.
    pub(super) directories: Option<Vec<DirectoryRecord>>,
    vdso_checksum: u32,
    /// The boot id of the kernel of the checkpoint. Empty if the image is from an earlier version.
    boot: String,
    monotonic: Duration,
    boottime: Duration,
}

#[derive(Default)]
pub(super) struct PlannedProcess {
    pub(super) pid: Pid,
    pub(super) message: ProcessMessage,
    pub(super) layout: LayoutMessage,
    pub(super) areas: Vec<AreaRecord>,
    pub(super) guards: Vec<AddressRange>,
    pub(super) descriptors: Vec<DescriptorRow>,
    pub(super) states: Vec<PlannedState>,
    pub(super) threads: Vec<PlannedThread>,
}

/// One thread to create. The leader is the first thread of its process.
pub(super) struct PlannedThread {
    pub(super) tid: Tid,
    pub(super) registers: Registers,
    pub(super) extended_state: Vec<u8>,
    pub(super) signal_mask: u64,
    pub(super) states: Vec<PlannedState>,
}

pub(super) struct PlannedState {
    pub(super) kind: &'static dyn StateKind,
    pub(super) version: u32,
    pub(super) payload: Vec<u8>,
}

impl Plan {
    /// Creates a plan from the records of `reader`, and checks that the vDSO of this kernel matches. Takes the
    /// records out of `reader`.
    pub(super) fn of(reader: &mut ImageReader) -> Result<Self> {
        let plan = Self::read(reader.take_records())?;
        plan.check_kernel()?;
        Ok(plan)
    }

    pub(super) fn read(mut records: RecordSet) -> Result<Self> {
        let tree = TreeMessage::take(&mut records, Owner::Tree)?;
        let objects = ObjectsMessage::take(&mut records, Owner::Tree)?.objects;
        let files = FilesMessage::take_if_there(&mut records, Owner::Tree)?;
        let directories = DirectoriesMessage::take_if_there(&mut records, Owner::Tree)?;
        let mut processes = Vec::new();
        let root_count = (tree.roots as usize).max(1);
        for pid in tree.pids {
            processes.push(PlannedProcess::read(&mut records, Pid(pid))?);
        }
        if processes.get(..root_count).is_none_or(|roots| roots.iter().any(|root| root.message.zombie)) {
            return Err(EngineError::Incomplete("the image contains no living process".to_owned()));
        }
        let mut envelopes = Vec::new();
        let mut pieces = Pieces::take(&mut records)?;
        for kind in fd::REGISTRY {
            for record in records.take_all(kind.name()) {
                let Owner::Description(id) = record.owner else {
                    let what = format!("record {} has no description", record.kind);
                    return Err(EngineError::Incomplete(what));
                };
                if record.version > kind.version() {
                    return Err(unknown(&record));
                }
                let envelope = Envelope::from_record(&record, id, &mut pieces)?;
                kind.check(record.version, &envelope.payload)?;
                envelopes.push((id.get(), envelope));
            }
        }
        pieces.finish()?;
        if let Some(record) = records.first_left() {
            return Err(unknown(record));
        }
        let files = files.map(|message| message.files);
        let directories = directories.map(|message| message.directories);
        let (monotonic, boottime) =
            (Duration::from_nanos(tree.monotonic_ns), Duration::from_nanos(tree.boottime_ns));
        let plan = Self {
            processes,
            root_count,
            objects,
            envelopes,
            files,
            directories,
            vdso_checksum: tree.vdso_checksum,
            boot: tree.boot,
            monotonic,
            boottime,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Returns the pids of all processes, including zombies.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.processes.iter().map(|process| process.pid).collect()
    }

    /// Makes a root that was stopped run, together with the stopped processes of its process group. If the root was not
    /// stopped, a process of the tree may have stopped the others, and continues them later.
    pub(super) fn continue_root_groups(&mut self) {
        let stopped = self.roots().iter().filter(|root| root.message.stop_signal != 0);
        let groups: Vec<i32> = stopped.map(|root| root.message.group).collect();
        for process in self.processes.iter_mut().filter(|process| groups.contains(&process.message.group)) {
            process.message.stop_signal = 0;
        }
    }

    /// Returns the root processes. There is at least one.
    pub(super) fn roots(&self) -> &[PlannedProcess] {
        &self.processes[..self.root_count]
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &PlannedProcess> {
        self.processes.iter().filter(|process| !process.message.zombie)
    }

    pub(super) fn space_owner(&self, space: SpaceId) -> Option<&PlannedProcess> {
        self.living().find(|process| process.message.space == space.0)
    }

    pub(super) fn descriptor_numbers(&self) -> BTreeSet<i32> {
        self.processes.iter().flat_map(|process| &process.descriptors).map(|row| row.fd).collect()
    }

    /// Refuses objects of kinds that this version does not support, and records with impossible values.
    fn check(&self) -> Result<()> {
        for object in &self.objects {
            let known = memory::kind_named(&object.kind).filter(|kind| kind.version() >= object.version);
            let kind = known.ok_or_else(|| EngineError::UnknownRecord {
                kind: object.kind.clone(),
                version: object.version,
            })?;
            kind.check(object)?;
        }
        self.check_bounds()
    }

    /// Checks that the vDSO code of this kernel is the code of the checkpoint. Stacks can contain addresses in the
    /// vDSO.
    fn check_kernel(&self) -> Result<()> {
        let ours = own_vdso()?;
        if self.vdso_checksum != 0 && ours.checksum != self.vdso_checksum {
            return Err(EngineError::KernelDiffers(
                "the vDSO of this kernel is not the one that the program was linked to when it ran"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Reports whether the kernel was started again since the checkpoint.
    pub(super) fn is_of_another_boot(&self) -> bool {
        !self.boot.is_empty() && self.boot != clock::boot_id()
    }

    /// Refuses an image whose clocks are ahead of the clocks of this machine. Programs store the times at which their
    /// waits end. Such a wait would last until the clock has reached the time of the checkpoint.
    pub(super) fn check_clocks(&self) -> Result<()> {
        let clocks = [
            ("CLOCK_MONOTONIC", self.monotonic, clock::monotonic()),
            ("CLOCK_BOOTTIME", self.boottime, clock::boottime()),
        ];
        let behind = clocks.into_iter().filter_map(|(name, then, now)| Some((name, then.checked_sub(now)?)));
        match behind.max_by_key(|(_, behind)| *behind) {
            Some((clock, behind)) if !behind.is_zero() => Err(EngineError::ClockBehind {
                clock,
                behind: format!("{:.1} s", behind.as_secs_f64()),
                boot: if self.is_of_another_boot() { " (the machine was restarted since)" } else { "" },
            }),
            _ => Ok(()),
        }
    }

    /// Waits until every pid and tid that the tree needs is free, except the pids `reserved`.
    pub(super) fn check_pids(&self, reserved: &[Pid]) -> Result<()> {
        for process in &self.processes {
            let threads = process.threads.iter().map(|thread| Pid(thread.tid.get()));
            for number in threads.chain([process.pid]).filter(|number| !reserved.contains(number)) {
                pids::await_free(number)?;
            }
        }
        let births = self.births();
        for (number, _) in births.dead_sessions.iter().chain(&births.dead_groups) {
            pids::await_free(*number)?;
        }
        Ok(())
    }
}

/// The vDSO of this process.
pub(super) struct Vdso {
    pub(super) range: AddressRange,
    pub(super) checksum: u32,
    /// The address of a `syscall` instruction in the vDSO.
    pub(super) syscall: Address,
}

/// Finds the vDSO of this process. The kernel maps the same vDSO in every process.
pub(super) fn own_vdso() -> Result<Vdso> {
    let pid = Pid(std::process::id() as i32);
    let mappings = procfs::mappings(pid)?;
    let mapping = mappings
        .iter()
        .find(|mapping| mapping.name == "[vdso]")
        .ok_or_else(|| EngineError::KernelDiffers("this kernel maps no vDSO".to_owned()))?;
    let memory = tracee::ProcessMemory::open(pid)?;
    let code = memory.read_vec(mapping.range.start, mapping.range.len())?;
    let syscall = tracee::stub::find_syscall(pid)?;
    Ok(Vdso { range: mapping.range, checksum: image::Checksum::of(&code).get(), syscall })
}

impl PlannedProcess {
    /// Reports whether the process does not share the descriptor table of its parent.
    pub(super) fn has_own_descriptors(&self) -> bool {
        const CLONE_FILES: u64 = 0x400;
        self.message.shares & CLONE_FILES == 0
    }

    fn read(records: &mut RecordSet, pid: Pid) -> Result<Self> {
        let message = ProcessMessage::take(records, Owner::Process(pid))?;
        if message.zombie {
            return Ok(Self { pid, message, ..Self::default() });
        }
        let layout = message
            .layout
            .clone()
            .ok_or_else(|| EngineError::Incomplete(format!("pid {pid} has no memory layout")))?;
        let AreasMessage { areas, guards } = AreasMessage::take(records, Owner::Process(pid))?;
        let guards = guards
            .chunks_exact(2)
            .map(|pair| AddressRange::new(Address(pair[0]), Address(pair[1])))
            .filter(|guard| !guard.is_empty())
            .collect();
        let descriptors = DescriptorsMessage::take(records, Owner::Process(pid))?.rows;
        let states = take_states(records, Level::Process, Owner::Process(pid))?;
        let mut threads = Vec::new();
        for tid in message.threads.iter().copied().map(Tid) {
            threads.push(PlannedThread::read(records, tid)?);
        }
        if threads.first().is_none_or(|leader| leader.tid != pid.leader()) {
            return Err(EngineError::Incomplete(format!("pid {pid} has no leading thread")));
        }
        Ok(Self { pid, message, layout, areas, guards, descriptors, states, threads })
    }
}

impl PlannedThread {
    fn read(records: &mut RecordSet, tid: Tid) -> Result<Self> {
        let message = ThreadMessage::take(records, Owner::Thread(tid))?;
        let words: [u64; 27] = message
            .registers
            .try_into()
            .map_err(|_| EngineError::Incomplete(format!("thread {tid} does not have 27 registers")))?;
        Ok(Self {
            tid,
            registers: Registers::from_words(&words),
            extended_state: message.extended_state,
            signal_mask: message.signal_mask,
            states: take_states(records, Level::Thread, Owner::Thread(tid))?,
        })
    }
}

fn take_states(records: &mut RecordSet, level: Level, owner: Owner) -> Result<Vec<PlannedState>> {
    let mut found = Vec::new();
    for kind in state::REGISTRY.iter().copied().filter(|kind| kind.facts().level == level) {
        for record in records.take_each(kind.name(), owner) {
            if record.version > kind.version() {
                return Err(unknown(&record));
            }
            kind.check(record.version, &record.payload)?;
            found.push(PlannedState { kind, version: record.version, payload: record.payload.into() });
        }
    }
    Ok(found)
}

fn unknown(record: &image::Record) -> EngineError {
    EngineError::UnknownRecord { kind: record.kind.clone(), version: record.version }
}
