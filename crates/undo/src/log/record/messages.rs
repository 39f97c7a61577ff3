//! Conversions between keys and rights, and their protobuf messages.
//!
//! Owns: the conversions in both directions.
//! Does not: define the messages; `record` does.

use sys::file_handle::FileHandle;
use sys::file_rights::FileRights;

use super::{KeyMessage, Rights};
use crate::key::FileKey;

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
        Self { id, user, group, supplementary, effective, namespace: rights.namespace.clone() }
    }
}

impl From<Rights> for crate::rights::Rights {
    fn from(record: Rights) -> Self {
        let Rights { user, group, supplementary, effective, namespace, .. } = record;
        let files = FileRights { user, group, supplementary, effective };
        Self { files, namespace }
    }
}
