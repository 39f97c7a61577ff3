//! One living process of a subject: the state before the stop, and the state that the stop adds.
//!
//! Owns: the state of the process, apart from its address space.
//! Invariants: every open file of `/proc` refers to the present program of the process. After execve(2), the
//! process is inspected again.
//! Does not: know other processes, or descriptors.

use std::collections::HashSet;

use image::SpaceId;
use model::{Address, Pid, Signal, Tid};
use resource::state::RawState;
use sys::kcmp;
use sys::ptrace::Registers;
use tracee::procfs::{self, Mapping, Stat};

use super::address_space::AddressSpace;
use super::objects::Objects;
use crate::error::{EngineError, Result};
use crate::obstacles;
use crate::records::{LayoutMessage, ProcessMessage};

pub(super) struct Process {
    pub(super) stat: Stat,
    /// `true` if the process shared the memory of its parent at the inspection, as between vfork(2) and
    /// execve(2). Files of `/proc` opened then refer to the memory of the parent. That memory continues to
    /// exist, so these files do not show when the process gets its own memory.
    pub(super) is_borrowed: bool,
    pub(super) space: AddressSpace,
    executable: u64,
    auxiliary_vector: Vec<u8>,
    pub(super) stop_signal: Option<Signal>,
    /// The tables that the process shares with its parent in the pause, as flags of clone(2).
    pub(super) shares: u64,
    pub(super) threads: Vec<ThreadState>,
}

pub(super) struct ThreadState {
    pub(super) tid: Tid,
    pub(super) registers: Registers,
    pub(super) extended_state: Vec<u8>,
    pub(super) signal_mask: u64,
    /// The raw bytes of each state kind, in the order of the registry of state kinds.
    pub(super) raw: Vec<Option<RawState>>,
}

impl Process {
    /// Inspects a process. `tracked` contains the processes to which this program has attached a tracker.
    pub(super) fn inspect(
        pid: Pid,
        stat: Stat,
        space: SpaceId,
        objects: &mut Objects,
        tracked: &HashSet<Pid>,
    ) -> Result<Self> {
        // This check must come first. Files of `/proc` opened before the process has its own memory refer to
        // the memory of the parent.
        let is_borrowed = kcmp::shared(kcmp::Shared::Memory, pid, stat.ppid).unwrap_or(false);
        if let Some(obstacle) = obstacles::of_architecture(pid) {
            return Err(EngineError::Refused(vec![obstacle]));
        }
        let mut space = AddressSpace::open(pid, space, tracked)?;
        let auxiliary_vector = procfs::read(format!("/proc/{pid}/auxv"))?;
        space.is_settled &= objects.inspect(pid, &space.mappings);
        let executable = match objects.executable(pid, &space.mappings)? {
            Some(object) => object,
            // The program was replaced by execve(2) during the inspection.
            None if is_borrowed || space.has_changed()? => {
                return Err(sys::Error::process("find the program of", pid, sys::Errno::ENOENT).into());
            }
            None => return Err(EngineError::Refused(vec![obstacles::of_executable(pid)])),
        };
        let (stop_signal, shares, threads) = (None, 0, Vec::new());
        Ok(Self { stat, is_borrowed, space, executable, auxiliary_vector, stop_signal, shares, threads })
    }

    /// Reports whether the known state belongs to the process and program from which `stat` was read.
    pub(super) fn is_of(&self, stat: &Stat) -> bool {
        self.stat.may_be_program_of(stat) && !self.is_borrowed
    }

    pub(super) fn message(&self) -> ProcessMessage {
        ProcessMessage {
            stop_signal: self.stop_signal.map_or(0, Signal::get),
            threads: self.threads.iter().map(|thread| thread.tid.get()).collect(),
            executable: self.executable,
            layout: Some(self.layout()),
            space: self.space.id.0,
            shares: self.shares,
            ..relations(&self.stat)
        }
    }

    fn layout(&self) -> LayoutMessage {
        let (stat, mappings) = (&self.stat, &self.space.mappings);
        let heap_end = mappings
            .iter()
            .filter(|mapping| mapping.name == "[heap]")
            .map(|mapping| mapping.range.end)
            .max()
            .unwrap_or(stat.start_brk);
        let kernel: Vec<&Mapping> =
            mappings.iter().filter(|mapping| mapping.is_kernel() && mapping.name != "[vsyscall]").collect();
        let start = kernel.first().map_or(Address(0), |mapping| mapping.range.start);
        let end = kernel.last().map_or(Address(0), |mapping| mapping.range.end);
        let code = kernel
            .iter()
            .find(|mapping| mapping.name == "[vdso]")
            .map_or(Address(0), |mapping| mapping.range.start);
        let addresses = [
            stat.startcode,
            stat.endcode,
            stat.start_data,
            stat.end_data,
            stat.start_brk,
            heap_end,
            stat.startstack,
            stat.arg_start,
            stat.arg_end,
            stat.env_start,
            stat.env_end,
        ];
        LayoutMessage {
            addresses: addresses.iter().map(|address| address.get()).collect(),
            auxiliary_vector: self.auxiliary_vector.clone(),
            vdso_start: start.get(),
            vdso_length: end.get() - start.get(),
            vdso_code: code.get(),
        }
    }
}

pub(super) fn relations(stat: &Stat) -> ProcessMessage {
    ProcessMessage {
        pid: stat.pid.get(),
        parent: stat.ppid.get(),
        group: stat.pgrp.get(),
        session: stat.session.get(),
        exit_signal: Some(stat.exit_signal),
        foreground: (stat.tty_nr != 0).then_some(stat.tpgid),
        ..ProcessMessage::default()
    }
}
