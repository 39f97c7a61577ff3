//! Attaches System V shared memory segments in processes under construction.
//!
//! Owns: the grouping of areas (mappings) into attachments, and the removal of objects that a failed restore has
//! created.
//! Invariants: each process gets the attachments and mappings of the checkpoint, so that the attach count in the
//! kernel is the same as at the checkpoint.
//! Does not: create segments. The memory kind creates them.

use std::collections::BTreeMap;

use model::{Address, AddressRange, ByteCount};
use resource::memory::{self, AreaRecord, ObjectRecord};
use sys::segment::SegmentId;
use tracee::Stub;
use tracee::arch::numbers as nr;

use super::plan::Plan;
use crate::error::{EngineError, Result};

const SHM_RDONLY: u64 = 0o10_000;
const SHM_EXEC: u64 = 0o100_000;
const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// The segments of an image: id and length by object number.
pub(super) type Segments = BTreeMap<u64, (SegmentId, ByteCount)>;

/// One attachment of a segment: its whole address range, and the parts of this range that were mapped at the checkpoint.
struct Attachment<'a> {
    id: SegmentId,
    whole: AddressRange,
    pieces: Vec<&'a AreaRecord>,
}

/// Finds the segments among the objects of an image.
pub(super) fn of_plan(plan: &Plan) -> Result<Segments> {
    let mut found = Segments::new();
    for object in &plan.objects {
        let Some(kind) = memory::kind_named(&object.kind) else { continue };
        if let Some(id) = kind.segment(object)? {
            // shmat(2) attaches whole pages.
            found.insert(object.id, (id, ByteCount(object.length.next_multiple_of(model::PAGE_BYTES))));
        }
    }
    Ok(found)
}

/// Attaches the segments of a process. Must be called before the other areas of the process are mapped.
pub(super) fn attach(stub: &mut Stub, areas: &[AreaRecord], segments: &Segments) -> Result<()> {
    for attachment in attachments(areas, segments)? {
        attachment.make(stub)?;
    }
    Ok(())
}

/// Groups areas into attachments. In all areas of one attachment, the start address minus the offset is the same.
fn attachments<'a>(areas: &'a [AreaRecord], segments: &Segments) -> Result<Vec<Attachment<'a>>> {
    let mut found: BTreeMap<(u64, u64), Attachment<'_>> = BTreeMap::new();
    for mapping in areas {
        let Some((id, length)) = segments.get(&mapping.object) else { continue };
        let senseless =
            || EngineError::Incomplete(format!("area {} lies outside of its segment", mapping.range()));
        let start = mapping.start.checked_sub(mapping.offset).ok_or_else(senseless)?;
        let end = start.checked_add(length.get()).filter(|end| mapping.end <= *end).ok_or_else(senseless)?;
        let whole = AddressRange::new(Address(start), Address(end));
        let attachment = found.entry((start, mapping.object));
        attachment.or_insert_with(|| Attachment { id: *id, whole, pieces: Vec::new() }).pieces.push(mapping);
    }
    Ok(found.into_values().collect())
}

impl Attachment<'_> {
    fn make(&self, stub: &mut Stub) -> Result<()> {
        let may_write = self.pieces.iter().any(|piece| piece.has("mw"));
        let executes = self.pieces.iter().any(|piece| piece.protection & PROT_EXEC != 0);
        let mut protection = if may_write { PROT_READ | PROT_WRITE } else { PROT_READ };
        let mut flags = if may_write { 0 } else { SHM_RDONLY };
        if executes {
            protection |= PROT_EXEC;
            flags |= SHM_EXEC;
        }
        stub.call(nr::SHMAT, [self.id.0 as u64, self.whole.start.get(), flags, 0, 0, 0])?;
        let mut at = self.whole.start;
        for piece in &self.pieces {
            unmap(stub, at, piece.range().start)?;
            at = piece.range().end;
        }
        unmap(stub, at, self.whole.end)?;
        for piece in self.pieces.iter().filter(|piece| piece.protection != protection) {
            let range = piece.range();
            let wanted = u64::from(piece.protection);
            stub.call(nr::MPROTECT, [range.start.get(), range.len().get(), wanted, 0, 0, 0])?;
        }
        Ok(())
    }
}

fn unmap(stub: &mut Stub, from: Address, to: Address) -> Result<()> {
    if from < to {
        stub.call(nr::MUNMAP, [from.get(), (to - from).get(), 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Notifies the memory kinds: the segments are attached in every process.
pub(super) fn attached(plan: &Plan) -> Result<()> {
    for object in &plan.objects {
        if let Some(kind) = memory::kind_named(&object.kind) {
            kind.attached(object)?;
        }
    }
    Ok(())
}

/// The objects of a restore that has not succeeded yet. Dropping the value removes objects that the restore has
/// created and that would outlive this process. A successful restore clears the list.
pub(super) struct Unfinished(pub(super) Vec<ObjectRecord>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        for object in &self.0 {
            if let Some(kind) = memory::kind_named(&object.kind) {
                kind.abandon(object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, offset: u64, object: u64) -> AreaRecord {
        AreaRecord { start, end, offset, object, ..AreaRecord::default() }
    }

    #[test]
    fn pieces_of_one_attachment_are_put_together() {
        let segments = Segments::from([(7, (SegmentId(3), ByteCount(0x4000)))]);
        let areas = [
            mapping(0x10000, 0x11000, 0, 7),
            mapping(0x12000, 0x14000, 0x2000, 7),
            mapping(0x15000, 0x16000, 0, 0),
            mapping(0x20000, 0x24000, 0, 7),
        ];
        let found = attachments(&areas, &segments).unwrap();
        let shapes: Vec<(u64, u64, usize)> =
            found.iter().map(|one| (one.whole.start.get(), one.whole.end.get(), one.pieces.len())).collect();
        assert_eq!(shapes, [(0x10000, 0x14000, 2), (0x20000, 0x24000, 1)]);
    }

    #[test]
    fn a_mapping_outside_of_its_segment_is_refused() {
        let segments = Segments::from([(7, (SegmentId(3), ByteCount(0x1000)))]);
        assert!(attachments(&[mapping(0x1000, 0x2000, 0x2000, 7)], &segments).is_err());
        assert!(attachments(&[mapping(0x10000, 0x12000, 0, 7)], &segments).is_err());
    }
}
