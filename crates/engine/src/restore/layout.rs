//! Rebuilds the address space of each process: removes all mappings, then creates every recorded mapping at its
//! address.
//!
//! Owns: the order of the steps that the kernel permits: unmap, vDSO, layout addresses, mappings.
//! Invariants: no other mapping remains except the scratch pages (memory for system calls of the restore), which
//! are removed last.
//! Does not: fill pages.

use std::os::fd::AsRawFd;

use model::{Address, AddressRange, ByteCount};
use resource::memory::{self, Advice, AreaRecord};
use tracee::Stub;
use tracee::arch;
use tracee::arch::numbers as nr;

use super::built::{Built, BuiltProcess};
use super::files::OpenFiles;
use super::inherited::Inherited;
use super::plan::{Plan, PlannedProcess};
use super::segments;
use crate::error::{EngineError, Result};

const ARCH_MAP_VDSO_64: u64 = 0x2003;
const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;
const PR_SET_VMA: u64 = 0x5356_4d41;
const MADV_GUARD_INSTALL: u64 = 102;
const LAYOUT_BYTES: usize = 104;
const LAYOUT_ADDRESSES: usize = 11;
const NO_DESCRIPTOR: u64 = u64::MAX;
const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;

/// Creates the mappings of all processes, except the mappings that `inherited` already contains.
pub(super) fn lay_out(plan: &Plan, open: &OpenFiles, inherited: &Inherited, built: &mut Built) -> Result<()> {
    let scratch = built.scratch;
    let segments = segments::of_plan(plan)?;
    for process in plan.living() {
        let target = built.get(process.pid)?;
        let (stub, _) = target.leader();
        if !inherited.is_part(process.pid) {
            clear(stub, scratch, &[])?;
        }
        if process.layout.vdso_start != 0 {
            let call = [ARCH_MAP_VDSO_64, process.layout.vdso_start, 0, 0, 0, 0];
            stub.call(nr::ARCH_PRCTL, call)?;
        }
        set_layout(process, open, target)?;
        segments::attach(target.leader().0, &process.areas, &segments)?;
        let is_missing = |area: &&AreaRecord| !inherited.has(process.pid, area);
        let missing = || process.areas.iter().filter(is_missing);
        for area in missing().filter(|area| !segments.contains_key(&area.object)) {
            map(area, open, target)?;
        }
        replace(plan, process, target)?;
        let (stub, _) = target.leader();
        for area in missing() {
            advise_before_pages(area, stub)?;
        }
        let of_threads = process.threads.iter().flat_map(|thread| &thread.states);
        for state in process.states.iter().chain(of_threads) {
            state.kind.before_pages(state.version, &state.payload, stub)?;
        }
    }
    segments::attached(plan)
}

/// Replaces the mappings of objects that only the process itself can create.
fn replace(plan: &Plan, process: &PlannedProcess, target: &mut BuiltProcess) -> Result<()> {
    for record in &plan.objects {
        let Some(kind) = memory::kind_named(&record.kind).filter(|kind| kind.is_made_by_process()) else {
            continue;
        };
        for area in process.areas.iter().filter(|area| area.object == record.id) {
            let (stub, memory) = target.leader();
            kind.replace(record, area.range(), stub, memory)?;
        }
    }
    Ok(())
}

/// Unmaps all mappings of a process, except the scratch pages and the areas in `kept`, which are in address order.
pub(super) fn clear(stub: &mut Stub, scratch: AddressRange, kept: &[AddressRange]) -> Result<()> {
    let mut kept: Vec<AddressRange> = kept.iter().copied().chain([scratch]).collect();
    kept.sort_unstable();
    let mut start = Address(0);
    for range in kept.into_iter().chain([AddressRange::new(arch::USER_SPACE_END, arch::USER_SPACE_END)]) {
        if start < range.start {
            stub.call(nr::MUNMAP, [start.get(), (range.start - start).get(), 0, 0, 0, 0])?;
        }
        start = range.end;
    }
    Ok(())
}

/// Gives the advice that determines the size of the pages.
pub(super) fn advise_before_pages(area: &AreaRecord, stub: &mut Stub) -> Result<()> {
    memory::advice_before_pages(area).into_iter().try_for_each(|step| apply(stub, area, step))
}

/// Sets brk, stack, arguments, auxiliary vector and executable, which `ps` and brk(2) use.
fn set_layout(process: &PlannedProcess, open: &OpenFiles, target: &mut BuiltProcess) -> Result<()> {
    let layout = &process.layout;
    if layout.addresses.len() != LAYOUT_ADDRESSES {
        return Err(EngineError::Incomplete(format!("pid {} has a layout of another version", process.pid)));
    }
    let executable = open.readable(process.message.executable)?;
    let (stub, memory) = target.leader();
    let vector_at = stub.data().start + ByteCount(LAYOUT_BYTES as u64 + 24);
    memory.write(vector_at, &layout.auxiliary_vector)?;
    let mut bytes: Vec<u8> = layout.addresses.iter().flat_map(|address| address.to_ne_bytes()).collect();
    bytes.extend(vector_at.get().to_ne_bytes());
    bytes.extend((layout.auxiliary_vector.len() as u32).to_ne_bytes());
    bytes.extend(executable.as_raw_fd().to_ne_bytes());
    debug_assert_eq!(bytes.len(), LAYOUT_BYTES, "struct prctl_mm_map");
    let length = bytes.len() as u64;
    stub.call_with(memory, nr::PRCTL, &bytes, |at| [PR_SET_MM, PR_SET_MM_MAP, at.get(), length, 0, 0])?;
    Ok(())
}

pub(super) fn map(area: &AreaRecord, open: &OpenFiles, target: &mut BuiltProcess) -> Result<()> {
    let writes = area.shared && area.has("mw");
    let descriptor = match area.object {
        0 => NO_DESCRIPTOR,
        object if writes => open.object(object)?.as_raw_fd() as u64,
        object => open.readable(object)?.as_raw_fd() as u64,
    };
    let range = area.range();
    let flags = memory::map_flags(area);
    // A private mapping that was writable once stays so accounted. The next checkpoint recognizes it by that.
    let first = if area.code_was_writable { PROT_READ | PROT_WRITE } else { area.protection };
    let protection = u64::from(first);
    let offset = if area.object == 0 { 0 } else { area.offset };
    let call = [range.start.get(), range.len().get(), protection, flags, descriptor, offset];
    let (stub, memory) = target.leader();
    let at = Address(stub.call(nr::MMAP, call)?);
    if at != range.start {
        return Err(EngineError::NotBuildable(format!("area {range} could not be placed")));
    }
    if first != area.protection {
        let call = [range.start.get(), range.len().get(), u64::from(area.protection), 0, 0, 0];
        stub.call(nr::MPROTECT, call)?;
    }
    if !area.name.is_empty() {
        let mut name = area.name.clone().into_bytes();
        name.push(0);
        let call = |at: Address| [PR_SET_VMA, 0, range.start.get(), range.len().get(), at.get(), 0];
        stub.call_with(memory, nr::PRCTL, &name, call)?;
    }
    Ok(())
}

/// Applies memory locks, advice, guard regions and seals. Must be called after the pages are filled.
pub(super) fn advise(plan: &Plan, built: &mut Built) -> Result<()> {
    for process in plan.living() {
        let (stub, _) = built.get(process.pid)?.leader();
        for area in &process.areas {
            for step in memory::advice(area) {
                apply(stub, area, step)?;
            }
        }
        for guard in &process.guards {
            stub.call(nr::MADVISE, [guard.start.get(), guard.len().get(), MADV_GUARD_INSTALL, 0, 0, 0])?;
        }
        for (area, step) in process.areas.iter().filter_map(|area| Some((area, memory::seal(area)?))) {
            apply(stub, area, step)?;
        }
    }
    Ok(())
}

fn apply(stub: &mut Stub, area: &AreaRecord, step: Advice) -> Result<()> {
    let (start, length) = (area.range().start.get(), area.range().len().get());
    match step {
        Advice::Advise(advice) => stub.call(nr::MADVISE, [start, length, advice, 0, 0, 0])?,
        Advice::Lock(flags) => stub.call(nr::MLOCK2, [start, length, flags, 0, 0, 0])?,
        Advice::Seal => stub.call(nr::MSEAL, [start, length, 0, 0, 0, 0])?,
    };
    Ok(())
}
