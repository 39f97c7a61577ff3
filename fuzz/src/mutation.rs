//! Mutations of a seed, repeatable from a number.
//!
//! Owns: changes of bytes, and changes of the fields of a protobuf message.
//! Does not: learn from what a target did; a fuzzer does.

use fastrand::Rng;

/// Longest protobuf message inside a message that is changed.
const DEPTH_MAX: u32 = 4;

/// Values that programs do not expect.
const VALUES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xfff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_f000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_f000,
    u64::MAX,
];

/// A seed with a few bytes changed, or for a file of records sometimes fields of them.
#[must_use]
pub fn mutate(seed: &[u8], random: &mut Rng) -> Vec<u8> {
    if seed.get(5) == Some(&b'R') && random.usize(..4) != 0 {
        return mutate_records(seed, random);
    }
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.usize(..4) {
        change_bytes(&mut bytes, random);
    }
    bytes
}

fn change_bytes(bytes: &mut Vec<u8>, random: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.usize(..bytes.len());
    let length = (1 + random.usize(..8)).min(bytes.len() - at);
    let value = VALUES[random.usize(..VALUES.len())].to_le_bytes();
    match random.usize(..6) {
        0 => bytes[at] ^= 1 << random.usize(..8),
        1 => bytes[at..at + length].copy_from_slice(&value[..length]),
        2 => drop(bytes.drain(at..at + length)),
        3 => drop(bytes.splice(at..at, value)),
        4 => bytes.truncate(at),
        _ => bytes[at] = random.u8(..),
    }
}

/// Changes fields of a few records of a file, and repairs the lengths around them.
fn mutate_records(file: &[u8], random: &mut Rng) -> Vec<u8> {
    const HEADER_BYTES: usize = 32;
    const FRAME_BYTES: usize = 8;
    let mut records: Vec<Vec<u8>> = Vec::new();
    let mut rest = file.get(HEADER_BYTES..).unwrap_or_default();
    while let Some((frame, behind)) = rest.split_first_chunk::<FRAME_BYTES>() {
        let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let Some((record, behind)) = behind.split_at_checked(length) else { break };
        records.push(record.to_vec());
        rest = behind;
    }
    for _ in 0..1 + random.usize(..3) {
        if records.is_empty() {
            break;
        }
        let at = random.usize(..records.len());
        match random.usize(..16) {
            0 => drop(records.remove(at)),
            1 => records.push(records[at].clone()),
            _ => {
                let changed = mutate_message(&records[at], random, DEPTH_MAX);
                records[at] = changed;
            }
        }
    }
    let mut changed = file[..HEADER_BYTES.min(file.len())].to_vec();
    for record in records {
        changed.extend_from_slice(&(record.len() as u32).to_le_bytes());
        changed.extend_from_slice(&[0; 4]);
        changed.extend_from_slice(&record);
    }
    changed.extend_from_slice(&[0; 4]);
    changed
}

/// One field of a message: its key, and its value as it is encoded, without the length of wire type 2.
struct Field {
    key: u64,
    value: Value,
}

enum Value {
    Number(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
}

fn mutate_message(message: &[u8], random: &mut Rng, depth: u32) -> Vec<u8> {
    let Some(mut fields) = parse(message) else {
        let mut bytes = message.to_vec();
        change_bytes(&mut bytes, random);
        return bytes;
    };
    if fields.is_empty() {
        return message.to_vec();
    }
    let at = random.usize(..fields.len());
    let number = VALUES[random.usize(..VALUES.len())];
    match (&mut fields[at].value, random.usize(..10)) {
        (_, 0) => drop(fields.remove(at)),
        (_, 1) => {
            let key = fields[at].key;
            fields.push(Field { key: key & !7, value: Value::Number(number) });
        }
        (Value::Number(value), 2) => *value = random.u64(..),
        (Value::Number(value), _) => *value = number,
        (Value::Fixed(bytes), _) => {
            let length = bytes.len();
            bytes.copy_from_slice(&number.to_le_bytes()[..length]);
        }
        (Value::Bytes(bytes), 2) => change_bytes(bytes, random),
        (Value::Bytes(bytes), _) if depth > 0 => *bytes = mutate_message(bytes, random, depth - 1),
        (Value::Bytes(bytes), _) => change_bytes(bytes, random),
    }
    encode(&fields)
}

/// The fields of a message; `None` if it is none.
fn parse(mut rest: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = take_number(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Number(take_number(&mut rest)?),
            1 => Value::Fixed(take(&mut rest, 8)?),
            5 => Value::Fixed(take(&mut rest, 4)?),
            2 => {
                let length = take_number(&mut rest)?;
                Value::Bytes(take(&mut rest, usize::try_from(length).ok()?)?)
            }
            _ => return None,
        };
        fields.push(Field { key, value });
    }
    Some(fields)
}

fn take(rest: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken.to_vec())
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in 0..10 {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f).checked_shl(7 * place).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    for field in fields {
        put_number(&mut message, field.key);
        match &field.value {
            Value::Number(number) => put_number(&mut message, *number),
            Value::Fixed(bytes) => message.extend_from_slice(bytes),
            Value::Bytes(bytes) => {
                put_number(&mut message, bytes.len() as u64);
                message.extend_from_slice(bytes);
            }
        }
    }
    message
}

fn put_number(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}
