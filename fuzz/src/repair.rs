//! Checksums made good, so that a mutated file reaches the decoder behind them.
//!
//! Owns: the envelope of docs/format.md, written a second time and from that document alone.
//! Does not: keep what it repairs meaningful.

const HEADER_BYTES: usize = 32;
const TRAILER_BYTES: usize = 4;
const FRAME_BYTES: usize = 8;
const MAGIC: &[u8] = b"\x89undy";

/// The same file with its length and checksums made good; short input is returned as it is. A whole block of a log is
/// longer than its envelope, which the header then says: such a length is kept.
#[must_use]
pub fn repair(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    if file.len() < HEADER_BYTES + TRAILER_BYTES || !file.starts_with(MAGIC) {
        return file;
    }
    let room = file.len() - HEADER_BYTES - TRAILER_BYTES;
    let is_block = matches!(file[5], b'H' | b'S') && length_of(&file) <= room as u64;
    let body = if is_block { length_of(&file) as usize } else { room };
    let version = if file[8].is_multiple_of(2) { 2_u32 } else { 1 };
    file[8..12].copy_from_slice(&version.to_le_bytes());
    file[16..24].copy_from_slice(&(body as u64).to_le_bytes());
    seal(&mut file, body);
    file
}

/// As `repair`, for a file of records: the checksum of each record and their number are made good as well, and what
/// is behind the last whole record is cut off.
#[must_use]
pub fn repair_records(file: &[u8]) -> Vec<u8> {
    if file.len() < HEADER_BYTES + TRAILER_BYTES {
        return file.to_vec();
    }
    let body = &file[HEADER_BYTES..file.len() - TRAILER_BYTES];
    let mut whole = Vec::with_capacity(file.len());
    whole.extend_from_slice(b"\x89undyR\r\n");
    whole.extend_from_slice(&1_u32.to_le_bytes());
    whole.resize(HEADER_BYTES, 0);
    let (mut rest, mut count) = (body, 0_u32);
    while let Some((frame, behind)) = rest.split_first_chunk::<FRAME_BYTES>() {
        let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let Some(record) = behind.get(..length) else { break };
        whole.extend_from_slice(&frame[..4]);
        whole.extend_from_slice(&crc32c::crc32c(record).to_le_bytes());
        whole.extend_from_slice(record);
        count += 1;
        rest = &behind[length..];
    }
    let body = whole.len() - HEADER_BYTES;
    whole[16..24].copy_from_slice(&(body as u64).to_le_bytes());
    whole[24..28].copy_from_slice(&count.to_le_bytes());
    whole.resize(whole.len() + TRAILER_BYTES, 0);
    seal(&mut whole, body);
    whole
}

fn length_of(file: &[u8]) -> u64 {
    file[16..24].iter().rev().fold(0, |length, byte| length << 8 | u64::from(*byte))
}

/// Writes both checksums of a file whose body has this length.
fn seal(file: &mut [u8], body: usize) {
    let header = crc32c::crc32c(&file[..HEADER_BYTES - 4]);
    file[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header.to_le_bytes());
    let all = crc32c::crc32c(&file[..HEADER_BYTES + body]);
    file[HEADER_BYTES + body..][..TRAILER_BYTES].copy_from_slice(&all.to_le_bytes());
}
