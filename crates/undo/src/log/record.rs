//! Records of the undo log and their frames.
//!
//! Owns: the frame, the kinds of records with their versions, their protobuf shape.
//! Invariants: a frame is decoded only after its checksum was found good; a kind or version that this release does not
//! know is an error that names it.
//! Does not: read or write files.
//!
//! Frame, little-endian: length of the record (4), length of the data behind it (4), CRC-32C of these 8 bytes, the
//! record and the data (4), the record, the data. Only ranges have data.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use prost::Message;
use sys::file_handle::FileHandle;

use crate::key::{Attributes, FileKey, Time};

/// Bytes of a frame before its record.
pub(crate) const HEAD_BYTES: usize = 12;
/// Most bytes of a record without its data: a record holds names and extended attributes, which the kernel bounds.
pub(crate) const RECORD_BYTES_MAX: usize = 4 << 20;
/// Most bytes of data of one frame. Longer ranges take several.
pub(crate) const DATA_BYTES_MAX: usize = 64 << 20;
/// The version of every kind so far.
const VERSION: u32 = 1;

/// One record of any kind.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(uint32, tag = "2")]
    pub(crate) version: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) body: Vec<u8>,
}

/// A kind of record.
pub(crate) trait Kind: Message + Default {
    /// Its name in the log.
    const NAME: &'static str;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Message)]
            pub(crate) struct $kind {
                $($(#[$attribute])* pub(crate) $field: $type,)*
            }

            impl Kind for $kind {
                const NAME: &'static str = $name;
            }
        )*

        /// A decoded record.
        #[derive(Clone, PartialEq, Debug)]
        pub(crate) enum AnyRecord {
            $($kind($kind),)*
        }

        /// Decodes a record of a known kind and version.
        ///
        /// # Errors
        ///
        /// What is unknown or malformed, as the rest of a sentence that begins with "the epoch".
        pub(crate) fn decode(bytes: &[u8]) -> Result<AnyRecord, String> {
            let record = Record::decode(bytes).map_err(|error| format!("holds a malformed record: {error}"))?;
            match (record.kind.as_str(), record.version) {
                $(($name, VERSION) => match $kind::decode(record.body.as_slice()) {
                    Ok(body) => Ok(AnyRecord::$kind(body)),
                    Err(error) => Err(format!("holds a malformed record {}: {error}", $name)),
                },)*
                (kind, version) => Err(format!(
                    "holds a record {kind} (version {version}) that this release does not understand"
                )),
            }
        }
    };
}

kinds! {
    /// The first record of a file of the log.
    Header "header" {
        #[prost(string, tag = "1")]
        boot: String,
        #[prost(uint64, tag = "2")]
        ordinal: u64,
        /// The epoch before this one; 0 for none.
        #[prost(uint64, tag = "3")]
        after: u64,
        #[prost(uint64, repeated, tag = "4")]
        sequences: Vec<u64>,
    }
    /// The epoch is also the way back to a further checkpoint. Nothing has changed before this record.
    Exact "exact" {
        #[prost(uint64, tag = "1")]
        sequence: u64,
    }
    /// A directory that names of this epoch refer to.
    Directory "directory" {
        #[prost(uint32, tag = "1")]
        id: u32,
        #[prost(message, required, tag = "2")]
        key: KeyMessage,
        #[prost(message, required, tag = "3")]
        attributes: AttributesMessage,
        #[prost(bytes = "vec", tag = "4")]
        path: Vec<u8>,
    }
    /// An inode that names and ranges of this epoch refer to.
    Inode "inode" {
        #[prost(uint32, tag = "1")]
        id: u32,
        #[prost(message, required, tag = "2")]
        key: KeyMessage,
        #[prost(message, required, tag = "3")]
        attributes: AttributesMessage,
        #[prost(bytes = "vec", tag = "4")]
        path: Vec<u8>,
    }
    /// What a name led to.
    Name "name" {
        #[prost(uint32, tag = "1")]
        directory: u32,
        #[prost(bytes = "vec", tag = "2")]
        name: Vec<u8>,
        #[prost(uint32, optional, tag = "3")]
        before: Option<u32>,
    }
    /// Content of a range: the data of the frame.
    Range "range" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(uint64, tag = "2")]
        offset: u64,
    }
    /// A range without content.
    Hole "hole" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(uint64, tag = "2")]
        offset: u64,
        #[prost(uint64, tag = "3")]
        length: u64,
    }
    /// The whole content is in a file of a keep directory.
    Whole "whole" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(bytes = "vec", tag = "2")]
        file: Vec<u8>,
    }
    /// The inode has a further name in a keep directory.
    Linked "linked" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(bytes = "vec", tag = "2")]
        link: Vec<u8>,
    }
    /// A file that can change without a trace.
    Uncovered "uncovered" {
        #[prost(uint64, tag = "1")]
        device: u64,
        #[prost(uint64, tag = "2")]
        inode: u64,
        #[prost(bytes = "vec", tag = "3")]
        path: Vec<u8>,
    }
    /// The epoch cannot be crossed.
    Broken "broken" {
        #[prost(string, tag = "1")]
        why: String,
    }
    /// The subject has ended, unless another record follows.
    Ended "ended" {
        #[prost(message, required, tag = "1")]
        time: TimeMessage,
    }
    /// Going back has made an inode again: records before this one that name the old inode mean the new one.
    Alias "alias" {
        #[prost(message, required, tag = "1")]
        old: KeyMessage,
        #[prost(message, required, tag = "2")]
        new: KeyMessage,
    }
    /// A keep directory of this log.
    Place "place" {
        #[prost(bytes = "vec", tag = "1")]
        path: Vec<u8>,
    }
    /// The journal of going back: an attempt begins.
    Attempt "attempt" {
        #[prost(uint64, tag = "1")]
        to: u64,
        #[prost(uint64, tag = "2")]
        number: u64,
        #[prost(string, tag = "3")]
        boot: String,
        #[prost(bool, tag = "4")]
        is_forced: bool,
        #[prost(bool, tag = "5")]
        is_durable: bool,
        /// The newest epoch. When a newer one is there, going back is done.
        #[prost(uint64, tag = "6")]
        ordinal: u64,
    }
    /// The journal of going back: these inodes are about to be changed.
    Touching "touching" {
        #[prost(message, repeated, tag = "1")]
        keys: Vec<KeyMessage>,
    }
    /// Something that was moved aside.
    Aside "aside" {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(bytes = "vec", tag = "2")]
        path: Vec<u8>,
        #[prost(uint64, tag = "3")]
        bytes: u64,
        #[prost(message, required, tag = "4")]
        time: TimeMessage,
    }
}

/// [`FileKey`] in the log.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyMessage {
    #[prost(uint64, tag = "1")]
    pub(crate) device: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) inode: u64,
    #[prost(sint32, tag = "3")]
    pub(crate) kind: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) handle: Vec<u8>,
}

/// [`Time`] in the log.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TimeMessage {
    #[prost(sint64, tag = "1")]
    pub(crate) s: i64,
    #[prost(uint32, tag = "2")]
    pub(crate) ns: u32,
}

/// An extended attribute in the log.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExtendedMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// [`Attributes`] in the log.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributesMessage {
    #[prost(uint32, tag = "1")]
    mode: u32,
    #[prost(uint32, tag = "2")]
    owner: u32,
    #[prost(uint32, tag = "3")]
    group: u32,
    #[prost(uint64, tag = "4")]
    rdev: u64,
    #[prost(uint64, tag = "5")]
    size: u64,
    #[prost(message, required, tag = "6")]
    accessed: TimeMessage,
    #[prost(message, required, tag = "7")]
    modified: TimeMessage,
    #[prost(bytes = "vec", tag = "8")]
    link: Vec<u8>,
    #[prost(message, repeated, tag = "9")]
    extended: Vec<ExtendedMessage>,
}

/// Head and record of a frame whose data follows separately.
pub(crate) fn frame<Body: Kind>(body: &Body, data: &[u8]) -> Vec<u8> {
    let record = Record { kind: Body::NAME.to_owned(), version: VERSION, body: body.encode_to_vec() };
    let length = record.encoded_len();
    let mut frame = Vec::with_capacity(HEAD_BYTES + length);
    frame.extend_from_slice(&(length as u32).to_le_bytes());
    frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&record.encode_to_vec());
    let sum = crc32c::crc32c(&frame[..8]);
    let sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, &frame[HEAD_BYTES..]), data);
    frame[8..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// The first frame of some bytes and what follows it; `None` when no whole frame is there.
pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = lengths(bytes)?;
    let end = HEAD_BYTES.checked_add(length.0)?.checked_add(length.1)?;
    bytes.split_at_checked(end)
}

/// Lengths of the record and the data of a frame.
pub(crate) fn lengths(head: &[u8]) -> Option<(usize, usize)> {
    let number = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?) as usize);
    Some((number(0)?, number(4)?))
}

/// The record of a whole frame; `None` when its checksum is not that of its bytes.
pub(crate) fn verified(frame: &[u8]) -> Option<&[u8]> {
    let (head, behind) = frame.split_at_checked(HEAD_BYTES)?;
    let (length, _) = lengths(head)?;
    let stored = u32::from_le_bytes(*head[8..].first_chunk()?);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..8]), behind);
    if sum == stored { behind.get(..length) } else { None }
}

/// The path of bytes in a record.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The bytes of a path.
pub(crate) fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

impl From<&FileKey> for KeyMessage {
    fn from(key: &FileKey) -> Self {
        let FileHandle { kind, bytes } = &key.handle;
        Self { device: key.device, inode: key.inode, kind: *kind, handle: bytes.clone() }
    }
}

impl From<KeyMessage> for FileKey {
    fn from(key: KeyMessage) -> Self {
        let handle = FileHandle { kind: key.kind, bytes: key.handle };
        Self { device: key.device, inode: key.inode, handle }
    }
}

impl From<Time> for TimeMessage {
    fn from(time: Time) -> Self {
        Self { s: time.s, ns: time.ns }
    }
}

impl From<TimeMessage> for Time {
    fn from(time: TimeMessage) -> Self {
        Self { s: time.s, ns: time.ns }
    }
}

impl From<&Attributes> for AttributesMessage {
    fn from(attributes: &Attributes) -> Self {
        let extended = attributes.extended.iter();
        Self {
            mode: attributes.mode,
            owner: attributes.owner,
            group: attributes.group,
            rdev: attributes.rdev,
            size: attributes.size,
            accessed: attributes.accessed.into(),
            modified: attributes.modified.into(),
            link: attributes.link.clone(),
            extended: extended
                .map(|(name, value)| ExtendedMessage { name: name.clone(), value: value.clone() })
                .collect(),
        }
    }
}

impl From<AttributesMessage> for Attributes {
    fn from(message: AttributesMessage) -> Self {
        Self {
            mode: message.mode,
            owner: message.owner,
            group: message.group,
            rdev: message.rdev,
            size: message.size,
            accessed: message.accessed.into(),
            modified: message.modified.into(),
            link: message.link,
            extended: message.extended.into_iter().map(|pair| (pair.name, pair.value)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_unknown_kind_or_version_is_named() {
        let record = Record { kind: "colour".to_owned(), version: 3, body: Vec::new() };
        let why = decode(&record.encode_to_vec()).unwrap_err();
        assert_eq!(why, "holds a record colour (version 3) that this release does not understand");
        let record = Record { kind: "hole".to_owned(), version: 2, body: Vec::new() };
        assert!(decode(&record.encode_to_vec()).unwrap_err().contains("hole (version 2)"));
    }
}
