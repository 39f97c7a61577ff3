//! The record of how the address space of a process is laid out.
//!
//! Owns: which fields of `/proc/PID/stat` it holds, in which order.
//! Does not: list areas.

use model::Address;
use tracee::procfs::{Area, Stat};

use crate::records::LayoutMessage;

/// The record of a process with these areas.
pub(super) fn of(stat: &Stat, areas: &[Area], auxiliary_vector: &[u8]) -> LayoutMessage {
    let heap_end = areas
        .iter()
        .filter(|area| area.name == "[heap]")
        .map(|area| area.range.end)
        .max()
        .unwrap_or(stat.start_brk);
    let kernel: Vec<&Area> =
        areas.iter().filter(|area| area.is_kernel() && area.name != "[vsyscall]").collect();
    let start = kernel.first().map_or(Address(0), |area| area.range.start);
    let end = kernel.last().map_or(Address(0), |area| area.range.end);
    let code = kernel.iter().find(|area| area.name == "[vdso]").map_or(Address(0), |area| area.range.start);
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
        auxiliary_vector: auxiliary_vector.to_vec(),
        vdso_start: start.get(),
        vdso_length: end.get() - start.get(),
        vdso_code: code.get(),
    }
}
