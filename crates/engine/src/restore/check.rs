//! Checks a decoded image, without system calls and without open files.
//!
//! Owns: the bounds on which later steps rely: numbers, ranges and references of the records.
//! Invariants: after the checks, only the kernel can refuse to build a plan. No later arithmetic on the plan
//! overflows.
//! Does not: check the payload of a kind; the kind does.
//!
//! Proof: `fuzz/src`, target `plan`.

use std::collections::{HashMap, HashSet};

use model::{Address, AddressRange, Pid};
use tracee::arch;

use super::plan::{Plan, PlannedProcess};
use crate::error::{EngineError, Result};
use crate::records::is_process_space;

/// The lowest number that no descriptor can have: the limit of the kernel for `fs.nr_open`.
const DESCRIPTORS_END: i32 = 0x7fff_ffc0;
/// The maximum number of generations of a tree. Processes are created recursively; 4,096 generations need less than
/// a megabyte of stack.
const GENERATIONS_MAX: u32 = 4096;
/// The maximum size of an auxiliary vector in bytes. The vector of the kernel has less than 512 bytes.
const AUXILIARY_VECTOR_BYTES_MAX: usize = 2048;
const SIGNAL_MAX: i32 = 64;

impl Plan {
    /// Refuses records of a tree that cannot be built. Returns `Incomplete` with the first invalid value.
    pub(super) fn check_bounds(&self) -> Result<()> {
        check_objects(self)?;
        check_ids(self)?;
        check_family(self)?;
        let descriptions: HashSet<u32> = self.envelopes.iter().map(|(id, _)| *id).collect();
        if descriptions.len() != self.envelopes.len() {
            return Err(incomplete("two records of one open file".to_owned()));
        }
        let objects: HashSet<u64> = self.objects.iter().map(|object| object.id).collect();
        for process in self.living() {
            check_layout(process, &objects)?;
            check_mappings(process, &objects)?;
            check_descriptors(process, &descriptions)?;
        }
        Ok(())
    }
}

fn check_objects(plan: &Plan) -> Result<()> {
    let mut known = HashSet::new();
    for object in &plan.objects {
        let is_number = u32::try_from(object.id).is_ok_and(|id| id != 0 && is_process_space(id));
        if !is_number || !known.insert(object.id) {
            return Err(incomplete(format!(
                "object {} has an invalid number, or one that is used twice",
                object.id
            )));
        }
    }
    Ok(())
}

fn check_ids(plan: &Plan) -> Result<()> {
    let (mut pids, mut tids, mut spaces) = (HashSet::new(), HashSet::new(), HashSet::new());
    for process in &plan.processes {
        let pid = process.pid;
        if pid.get() <= 0 || !pids.insert(pid) {
            return Err(incomplete(format!("pid {pid} is invalid or used twice")));
        }
        if let Some(thread) =
            process.threads.iter().find(|thread| thread.tid.get() <= 0 || !tids.insert(thread.tid))
        {
            return Err(incomplete(format!("thread {} is invalid or used twice", thread.tid)));
        }
        if !(0..=SIGNAL_MAX).contains(&process.message.stop_signal) {
            return Err(incomplete(format!(
                "pid {pid} is stopped by signal {}",
                process.message.stop_signal
            )));
        }
        let space = process.message.space;
        if !process.message.zombie && (!is_process_space(space) || !spaces.insert(space)) {
            return Err(incomplete(format!("pid {pid} has no page space of its own")));
        }
    }
    Ok(())
}

/// Checks that each process except the roots has a parent, and that the parent comes first in the plan.
fn check_family(plan: &Plan) -> Result<()> {
    let roots = plan.roots();
    let mut generations: HashMap<i32, u32> = roots.iter().map(|root| (root.pid.get(), 0)).collect();
    for process in &plan.processes[roots.len()..] {
        let generation = match generations.get(&process.message.parent) {
            Some(parent) if *parent < GENERATIONS_MAX => parent + 1,
            Some(_) => return Err(incomplete(format!("pid {} is too far from the root", process.pid))),
            None => return Err(incomplete(format!("pid {} has no parent in the image", process.pid))),
        };
        generations.insert(process.pid.get(), generation);
    }
    match roots.iter().find(|root| generations.contains_key(&root.message.parent)) {
        None => Ok(()),
        Some(root) => Err(incomplete(format!("pid {} is a root and has a parent in the image", root.pid))),
    }
}

fn check_layout(process: &PlannedProcess, objects: &HashSet<u64>) -> Result<()> {
    let layout = &process.layout;
    let vdso_end = layout.vdso_start.checked_add(layout.vdso_length);
    let is_user = |end: Option<u64>| end.is_some_and(|end| end <= arch::USER_SPACE_END.get());
    let has_vdso = is_user(vdso_end)
        && (layout.vdso_code == 0
            || layout.vdso_start <= layout.vdso_code && is_user(Some(layout.vdso_code)));
    if !has_vdso || layout.auxiliary_vector.len() > AUXILIARY_VECTOR_BYTES_MAX {
        return Err(incomplete(format!("pid {} has an invalid memory layout", process.pid)));
    }
    if !objects.contains(&process.message.executable) {
        return Err(incomplete(format!("pid {} has no executable", process.pid)));
    }
    Ok(())
}

fn check_mappings(process: &PlannedProcess, objects: &HashSet<u64>) -> Result<()> {
    let mut end = Address(0);
    for area in &process.areas {
        let range = area.range();
        let is_whole = range.start.page_floor() == range.start && range.end.page_floor() == range.end;
        let is_next = end <= range.start && range.start < range.end && range.end <= arch::USER_SPACE_END;
        if !is_whole || !is_next || area.object != 0 && !objects.contains(&area.object) {
            return Err(incomplete(format!("mapping {range} of pid {} is invalid", process.pid)));
        }
        end = range.end;
    }
    let is_outside = |guard: &&AddressRange| guard.end > arch::USER_SPACE_END;
    match process.guards.iter().find(is_outside) {
        Some(guard) => Err(incomplete(format!("guard region {guard} of pid {} is invalid", process.pid))),
        None => Ok(()),
    }
}

fn check_descriptors(process: &PlannedProcess, descriptions: &HashSet<u32>) -> Result<()> {
    let mut taken = HashSet::new();
    for row in &process.descriptors {
        let (pid, fd): (Pid, i32) = (process.pid, row.fd);
        if !(0..DESCRIPTORS_END).contains(&fd) || !taken.insert(fd) {
            return Err(incomplete(format!("fd {fd} of pid {pid} is invalid or used twice")));
        }
        if !descriptions.contains(&row.description) {
            return Err(incomplete(format!("fd {fd} of pid {pid} has no record of its open file")));
        }
    }
    Ok(())
}

fn incomplete(why: String) -> EngineError {
    EngineError::Incomplete(why)
}

#[cfg(test)]
mod tests {
    use image::{Owner, RecordSet};

    use super::*;
    use crate::records::{
        AreasMessage, DescriptorsMessage, EngineRecord, LayoutMessage, ObjectsMessage, ProcessMessage,
        ThreadMessage, TreeMessage,
    };

    #[test]
    fn records_out_of_bounds_make_no_plan() {
        let (pid, mut records) = (Pid(7), RecordSet::new());
        TreeMessage { pids: vec![pid.get()], ..TreeMessage::default() }.put(&mut records, Owner::Tree);
        ObjectsMessage::default().put(&mut records, Owner::Tree);
        let layout = Some(LayoutMessage::default());
        let process =
            ProcessMessage { pid: pid.get(), threads: vec![pid.get()], layout, ..ProcessMessage::default() };
        process.put(&mut records, Owner::Process(pid));
        AreasMessage::default().put(&mut records, Owner::Process(pid));
        DescriptorsMessage::default().put(&mut records, Owner::Process(pid));
        let thread = ThreadMessage { registers: vec![0; 27], ..ThreadMessage::default() };
        thread.put(&mut records, Owner::Thread(pid.leader()));
        let error = Plan::read(records).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("pid 7 has no executable"), "{error}");
    }
}
