//! Conversions between the state of a file and its protobuf messages.
//!
//! Owns: the conversions in both directions.
//! Does not: define the messages; `record` does.

use sys::file_handle::FileHandle;
use sys::file_rights::FileRights;

use super::{AttributesMessage, ExtendedMessage, KeyMessage, Rights, TimeMessage};
use crate::key::{Attributes, FileKey, Time};

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

impl Rights {
    /// Encodes rights.
    pub(crate) fn of(id: u32, rights: &crate::rights::Rights) -> Self {
        let FileRights { user, group, supplementary, effective } = rights.files.clone();
        let namespace = rights.namespace.as_ref().map(Into::into);
        Self { id, user, group, supplementary, effective, namespace }
    }
}

impl From<Rights> for crate::rights::Rights {
    fn from(record: Rights) -> Self {
        let Rights { user, group, supplementary, effective, namespace, .. } = record;
        let files = FileRights { user, group, supplementary, effective };
        Self { files, namespace: namespace.map(Into::into) }
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
            born: attributes.born.map(Into::into),
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
            born: message.born.map(Into::into),
            link: message.link,
            extended: message.extended.into_iter().map(|pair| (pair.name, pair.value)).collect(),
        }
    }
}
