//! The memory that system calls read and write.
//!
//! Owns: finding the ranges of a part, comparing inputs between replicas, and copying outputs to followers.
//! Invariants: memory that cannot be read is equal to memory that cannot be read: the kernel then returns EFAULT in each
//! replica.
//! Does not: know calls; `calls` does.

use model::{Address, ByteCount};
use tracee::ProcessMemory;
use tracee::procfs::{self, Mapping};

use crate::calls::{Arguments, Length, Part};
use crate::error::Result;
use crate::replicas::Replica;

/// Longest string that the kernel accepts as a path, with its zero byte. A longer one is compared up to here.
const TEXT_MAX: u64 = 4096;
/// Bytes of a page: strings are read page by page, because the next page may not exist.
const PAGE: u64 = 4096;
/// Largest number of entries in an array of `struct iovec` (IOV_MAX).
const VECTOR_MAX: u64 = 1024;
/// Bytes that are compared or copied at once.
const CHUNK: u64 = 1 << 20;

type Range = (Address, u64);

/// Returns the ranges of a part in the memory of one replica; `None` if they cannot be found.
fn ranges(memory: &ProcessMemory, arguments: &Arguments, result: i64, part: Part) -> Option<Vec<Range>> {
    let length = |length: Length| match length {
        Length::Fixed(bytes) => bytes,
        Length::Argument(place, bytes) => arguments[place].saturating_mul(bytes),
        Length::Result(bytes) => (result.max(0) as u64).saturating_mul(bytes),
        Length::At(place) => {
            let mut bytes = [0; 4];
            // A pointer to nothing stands for no memory.
            memory
                .read(Address(arguments[place]), &mut bytes)
                .map_or(0, |()| u64::from(u32::from_ne_bytes(bytes)))
        }
    };
    match part {
        Part::Text(place) => text(memory, Address(arguments[place])).map(|range| vec![range]),
        Part::Bytes(place, bytes) => Some(vec![(Address(arguments[place]), length(bytes))]),
        Part::Vector(place, count, bytes) => {
            let count = arguments[count].min(VECTOR_MAX);
            let array = memory.read_vec(Address(arguments[place]), ByteCount(16 * count)).ok()?;
            let mut left = bytes.map_or(u64::MAX, length);
            let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
            let entries = array.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..])));
            let taken = entries.map(|(address, length)| {
                let taken = length.min(left);
                left -= taken;
                (Address(address), taken)
            });
            Some(taken.collect())
        }
    }
}

/// Returns the range of a string with its zero byte.
fn text(memory: &ProcessMemory, start: Address) -> Option<Range> {
    let mut length = 0;
    while length < TEXT_MAX {
        let at = start.get() + length;
        let here = PAGE - at % PAGE;
        let bytes = memory.read_vec(Address(at), ByteCount(here)).ok()?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            return Some((start, length + end as u64 + 1));
        }
        length += here;
    }
    Some((start, TEXT_MAX))
}

/// Returns the first difference between the inputs of a call in the first replica and in another one.
pub(crate) fn compare(replicas: &[Replica], arguments: &Arguments, inputs: &[Part]) -> Option<String> {
    let (first, others) = replicas.split_first()?;
    for part in inputs {
        let own = ranges(&first.memory, arguments, 0, *part);
        for other in others {
            if own != ranges(&other.memory, arguments, 0, *part) {
                return Some("the lengths of the inputs".to_owned());
            }
            for (start, length) in own.iter().flatten() {
                if let Some(at) = differing(&first.memory, &other.memory, (*start, *length)) {
                    return Some(format!("byte {at} of an input at {start}"));
                }
            }
        }
    }
    None
}

/// Returns the offset of the first byte that differs.
fn differing(one: &ProcessMemory, other: &ProcessMemory, (start, length): Range) -> Option<u64> {
    if start == Address(0) {
        return None;
    }
    let mut done = 0;
    while done < length {
        let bytes = ByteCount((length - done).min(CHUNK));
        let at = start + ByteCount(done);
        match (one.read_vec(at, bytes), other.read_vec(at, bytes)) {
            (Ok(one), Ok(other)) if one == other => {}
            (Ok(one), Ok(other)) => {
                let place = one.iter().zip(&other).position(|(one, other)| one != other);
                return Some(done + place.unwrap_or(0) as u64);
            }
            (Err(_), Err(_)) => return None,
            _ => return Some(done),
        }
        done += bytes.get();
    }
    None
}

/// Reports whether other processes see writes to a range of memory.
pub(crate) fn is_shared(replica: &Replica, start: Address, length: ByteCount) -> Result<bool> {
    let end = start.get().saturating_add(length.get());
    let overlaps = |mapping: &Mapping| mapping.range.start.get() < end && start < mapping.range.end;
    let mappings = procfs::mappings(replica.pid())?;
    Ok(mappings.iter().any(|mapping| mapping.protection.shared && overlaps(mapping)))
}

/// Copies the outputs of a call from the leader to a follower. Memory that the leader cannot read was not written by the
/// call: the kernel has returned EFAULT.
pub(crate) fn copy(
    leader: &Replica,
    follower: &Replica,
    call: (&Arguments, i64),
    outputs: &[Part],
) -> Result<()> {
    let (arguments, result) = call;
    for part in outputs {
        for (start, length) in ranges(&leader.memory, arguments, result, *part).into_iter().flatten() {
            let mut done = 0;
            while start != Address(0) && done < length {
                let bytes = ByteCount((length - done).min(CHUNK));
                let at = start + ByteCount(done);
                let Ok(content) = leader.memory.read_vec(at, bytes) else { break };
                follower.memory.write(at, &content)?;
                done += bytes.get();
            }
        }
    }
    Ok(())
}

/// Returns the addresses of all input bytes of a call: the buffers in flight.
pub(crate) fn input_ranges(
    replica: &Replica,
    arguments: &Arguments,
    inputs: &[Part],
) -> Vec<(Address, ByteCount)> {
    let found = inputs.iter().filter_map(|part| ranges(&replica.memory, arguments, 0, *part)).flatten();
    found
        .filter(|(start, length)| *start != Address(0) && *length > 0)
        .map(|(start, length)| (start, ByteCount(length)))
        .collect()
}
