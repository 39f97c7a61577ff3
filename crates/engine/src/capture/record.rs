//! The records of a capture.
//!
//! Owns: which records there are beside pages, and the content of the commit record.
//! Does not: ask the subject anything.

use std::time::SystemTime;

use image::{RecordSet, Timings};
use store::CommitMeta;

use super::before::Before;
use super::options::CheckpointOptions;
use super::threads;
use crate::error::Result;

/// All records of a capture. Nothing of it needs the subject to be stopped.
pub(super) fn records(before: &mut Before) -> Result<RecordSet> {
    let mut records = RecordSet::new();
    before.processes.write(&before.objects, &mut records);
    before.objects.put(&mut records);
    before.descriptors.write_files(&mut records);
    before.descriptors.write(&before.processes, &mut records)?;
    threads::write(&before.processes, &mut records)?;
    Ok(records)
}

/// What the commit record has beside them.
pub(super) fn meta(
    before: &Before,
    options: &CheckpointOptions,
    time: SystemTime,
    timings: Timings,
) -> CommitMeta {
    CommitMeta {
        sequence: options.sequence,
        time,
        subject: options.name.clone(),
        pids: before.processes.order.clone(),
        kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        timings,
    }
}
