//! Records of the undo log.
//!
//! Owns: the kinds and versions of records, and the protobuf messages of records.
//! Invariants: an unknown kind or version is an error that names the kind and the version.
//! Does not: read or write files.

mod messages;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use prost::Message;

use crate::key::{Attributes, Time};
use crate::rights::Namespace;

/// The version of all kinds of records in this release.
const VERSION: u32 = 1;

/// A record of any kind, with an encoded body.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(uint32, tag = "2")]
    pub(crate) version: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) body: Vec<u8>,
}

/// Encodes a record.
pub(crate) fn encode<Body: Kind>(body: &Body) -> Vec<u8> {
    Record { kind: Body::NAME.to_owned(), version: VERSION, body: body.encode_to_vec() }.encode_to_vec()
}

/// A kind of record.
pub(crate) trait Kind: Message + Default {
    /// The name of the kind in the log.
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

        /// A decoded record of any kind.
        #[derive(Clone, PartialEq, Debug)]
        pub(crate) enum AnyRecord {
            $($kind($kind),)*
        }

        /// Decodes a record of a known kind and version.
        ///
        /// # Errors
        ///
        /// Returns a text that names the unknown or malformed part. The text is a verb phrase; the caller writes the
        /// subject of the sentence, for example "the epoch".
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
    /// The first record in the file of an epoch.
    Header "header" {
        #[prost(string, tag = "1")]
        boot: String,
        #[prost(uint64, tag = "2")]
        ordinal: u64,
        /// The ordinal number of the previous epoch; 0 if this epoch is the first epoch.
        #[prost(uint64, tag = "3")]
        after: u64,
        #[prost(uint64, repeated, tag = "4")]
        sequences: Vec<u64>,
        /// The time at which the epoch began. All inodes that existed then have an earlier time of birth.
        #[prost(message, optional, tag = "5")]
        time: Option<Time>,
    }
    /// A checkpoint that belongs to the epoch, in addition to the checkpoints in the header. No file has changed
    /// between the beginning of the epoch and this record.
    Exact "exact" {
        #[prost(uint64, tag = "1")]
        sequence: u64,
    }
    /// A checkpoint that is not exact, although this epoch or an earlier epoch lists the checkpoint. A later pause of the
    /// same checkpoint has found that its files cannot be recorded.
    Retracted "retracted" {
        #[prost(uint64, tag = "1")]
        sequence: u64,
    }
    /// A directory. The records of names in this epoch refer to the directory by `id`.
    Directory "directory" {
        #[prost(uint32, tag = "1")]
        id: u32,
        #[prost(message, required, tag = "2")]
        key: KeyMessage,
        #[prost(message, required, tag = "3")]
        attributes: Attributes,
        #[prost(bytes = "vec", tag = "4")]
        path: Vec<u8>,
    }
    /// An inode. The other records of this epoch refer to the inode by `id`.
    Inode "inode" {
        #[prost(uint32, tag = "1")]
        id: u32,
        #[prost(message, required, tag = "2")]
        key: KeyMessage,
        #[prost(message, required, tag = "3")]
        attributes: Attributes,
        #[prost(bytes = "vec", tag = "4")]
        path: Vec<u8>,
        /// The aspects that the recorded call changes. A record without this field allows every change.
        #[prost(uint32, optional, tag = "5")]
        aspects: Option<u32>,
        /// The rights of the recorded call; 0 means the rights of this program.
        #[prost(uint32, tag = "6")]
        rights: u32,
        /// The status change time (`st_ctime`). Recorded only if a later change must set another time.
        #[prost(message, optional, tag = "7")]
        changed: Option<Time>,
    }
    /// A name, and the inode to which the name led when the epoch began. Without `before`, the name did not exist.
    Name "name" {
        #[prost(uint32, tag = "1")]
        directory: u32,
        #[prost(bytes = "vec", tag = "2")]
        name: Vec<u8>,
        #[prost(uint32, optional, tag = "3")]
        before: Option<u32>,
        /// The rights of the recorded call; 0 means the rights of this program.
        #[prost(uint32, tag = "4")]
        rights: u32,
    }
    /// The rights of a thread of the subject. The other records of this epoch refer to the rights by `id`.
    Rights "rights" {
        #[prost(uint32, tag = "1")]
        id: u32,
        #[prost(uint32, tag = "2")]
        user: u32,
        #[prost(uint32, tag = "3")]
        group: u32,
        #[prost(uint32, repeated, tag = "4")]
        supplementary: Vec<u32>,
        #[prost(fixed64, tag = "5")]
        effective: u64,
        /// The ids in the user namespace of the thread, if this is not the user namespace of this program.
        #[prost(message, optional, tag = "6")]
        namespace: Option<Namespace>,
    }
    /// A further change of a recorded inode: other aspects, or other rights.
    Touched "touched" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(uint32, tag = "2")]
        aspects: u32,
        #[prost(uint32, tag = "3")]
        rights: u32,
        /// The attributes before this change.
        #[prost(message, required, tag = "4")]
        attributes: Attributes,
    }
    /// The content of a range of a file when the epoch began. The data of the frame is the content.
    Range "range" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(uint64, tag = "2")]
        offset: u64,
    }
    /// A range of a file that was a hole or contained zeros when the epoch began.
    Hole "hole" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(uint64, tag = "2")]
        offset: u64,
        #[prost(uint64, tag = "3")]
        length: u64,
    }
    /// A file in a keep directory that contains the whole old content of an inode.
    Whole "whole" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(bytes = "vec", tag = "2")]
        file: Vec<u8>,
    }
    /// A copy of an inode in a keep directory that the watch updates as the epoch goes on. While this epoch is the newest
    /// epoch, a rollback applies the copy before the ranges of this epoch. The ranges of an earlier epoch are complete
    /// without the copy.
    Shadow "shadow" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(bytes = "vec", tag = "2")]
        file: Vec<u8>,
    }
    /// A hard link of an inode in a keep directory.
    Linked "linked" {
        #[prost(uint32, tag = "1")]
        inode: u32,
        #[prost(bytes = "vec", tag = "2")]
        link: Vec<u8>,
    }
    /// A file that can change during the epoch without being detected.
    Uncovered "uncovered" {
        #[prost(uint64, tag = "1")]
        device: u64,
        #[prost(uint64, tag = "2")]
        inode: u64,
        #[prost(bytes = "vec", tag = "3")]
        path: Vec<u8>,
    }
    /// The epoch is broken: no rollback across this epoch is possible.
    Broken "broken" {
        #[prost(string, tag = "1")]
        why: String,
    }
    /// The time at which the subject ended. Cancelled by the next record.
    Ended "ended" {
        #[prost(message, required, tag = "1")]
        time: Time,
        /// The lengths of the files that the subject shared with its guardian.
        #[prost(message, repeated, tag = "2")]
        lengths: Vec<LengthMessage>,
    }
    /// No process of the subject runs, because the epoch begins with a rollback. Cancelled by the next record.
    Idle "idle" {
    }
    /// Processes of the subject run from now on. Cancels `ended` and `idle`.
    Running "running" {
    }
    /// An inode that a rollback has created again. Records that name the old inode apply to the new inode.
    Alias "alias" {
        #[prost(message, required, tag = "1")]
        old: KeyMessage,
        #[prost(message, required, tag = "2")]
        new: KeyMessage,
    }
    /// The path of a keep directory of this log, in the list of keep directories.
    Place "place" {
        #[prost(bytes = "vec", tag = "1")]
        path: Vec<u8>,
    }
    /// In the journal of a rollback: the beginning of an attempt at the rollback.
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
        /// The ordinal number of the newest epoch at the beginning of the rollback. The rollback is complete as soon as
        /// an epoch with a higher number exists.
        #[prost(uint64, tag = "6")]
        ordinal: u64,
    }
    /// In the journal of a rollback: the inodes that the rollback is about to change.
    Touching "touching" {
        #[prost(message, repeated, tag = "1")]
        keys: Vec<KeyMessage>,
    }
    /// In the journal of a rollback: the state of an inode when an attempt at the rollback has failed.
    Left "left" {
        #[prost(message, required, tag = "1")]
        key: KeyMessage,
        #[prost(message, required, tag = "2")]
        attributes: Attributes,
    }
    /// A file or directory that a rollback moves aside, because the subject has created the file or directory.
    Aside "aside" {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(bytes = "vec", tag = "2")]
        path: Vec<u8>,
        #[prost(uint64, tag = "3")]
        bytes: u64,
        #[prost(message, required, tag = "4")]
        time: Time,
        /// The directory of the path.
        #[prost(message, optional, tag = "5")]
        directory: Option<KeyMessage>,
    }
}

impl AnyRecord {
    /// Reports whether the record describes the state of a file at the beginning of the epoch.
    pub(crate) fn is_state(&self) -> bool {
        let is_other = matches!(
            self,
            Self::Exact(_)
                | Self::Retracted(_)
                | Self::Ended(_)
                | Self::Idle(_)
                | Self::Running(_)
                | Self::Alias(_)
        );
        !is_other
    }
}

/// The encoding of [`crate::key::FileKey`] in the log.
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

/// The length of a file, with its device and inode number.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LengthMessage {
    #[prost(uint64, tag = "1")]
    pub(crate) device: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) inode: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) bytes: u64,
}

/// Converts bytes of a record to a path.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Converts a path to bytes for a record.
pub(crate) fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
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
