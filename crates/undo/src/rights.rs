//! The rights with which a thread of the subject has changed a file, and the aspects of a file that a call changes.
//!
//! The kernel lets a thread change a file if the rights of the thread permit the change. The watch records a change
//! only if the thread may make the change. A rollback reverts a change only if a thread that has made the change may
//! now revert the change.
//!
//! Owns: capabilities in user namespaces, and the rules for owners of files and for sticky directories.
//! Invariants: functions are pure.
//! Does not: decide about access by mode and ACL; the kernel does, for a thread that acts with these rights.

use std::ops::{BitOr, BitOrAssign};

use prost::Message;
use sys::file_rights::{self, FileRights};

/// The rights of a thread of the subject.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rights {
    pub(crate) files: FileRights,
    /// The ids that the user namespace of the thread contains. `None` means that the thread is in the user namespace of
    /// this program.
    pub(crate) namespace: Option<Namespace>,
}

/// The ids that a user namespace contains, as ranges. Each range is two numbers: the first id and the number of ids. The
/// tags are those of the undo log.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct Namespace {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) users: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) groups: Vec<u32>,
}

/// Owner and group of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl From<&rustix::fs::Stat> for Owner {
    fn from(stat: &rustix::fs::Stat) -> Self {
        Self { user: stat.st_uid, group: stat.st_gid }
    }
}

impl Rights {
    /// Returns the rights that this program can act with to let the kernel decide. The capabilities of another user
    /// namespace are missing, because they apply only to files of some owners ([`Self::has`]).
    pub(crate) fn to_act(&self) -> FileRights {
        let effective = if self.namespace.is_none() { self.files.effective } else { 0 };
        FileRights { effective, ..self.files.clone() }
    }

    /// Reports whether a capability applies to a file. A capability applies only to files whose owner and group are in
    /// the user namespace of the thread (capable_wrt_inode_uidgid() in the kernel).
    pub(crate) fn has(&self, capability: u64, owner: Owner) -> bool {
        let contains = |ranges: &[u32], id: u32| {
            ranges.chunks_exact(2).any(|range| id >= range[0] && id - range[0] < range[1])
        };
        let is_in_namespace = self.namespace.as_ref().is_none_or(|namespace| {
            contains(&namespace.users, owner.user) && contains(&namespace.groups, owner.group)
        });
        self.files.effective & capability != 0 && is_in_namespace
    }

    /// Reports whether a capability that needs no owner applies: the thread is in the user namespace of this program.
    pub(crate) fn has_everywhere(&self, capability: u64) -> bool {
        self.namespace.is_none() && self.files.effective & capability != 0
    }

    /// Reports whether the thread counts as the owner of a file.
    pub(crate) fn owns(&self, owner: Owner) -> bool {
        self.files.user == owner.user || self.has(file_rights::FOWNER, owner)
    }

    /// Reports whether the thread may give a file this owner. `None` means that the call does not change the user or
    /// the group.
    pub(crate) fn may_give(&self, now: Owner, user: Option<u32>, group: Option<u32>) -> bool {
        if self.has(file_rights::CHOWN, now) {
            return true;
        }
        let own_groups = |group: u32| {
            group == now.group || group == self.files.group || self.files.supplementary.contains(&group)
        };
        // The call has the ids of the user namespace of the thread, which this program does not translate.
        let is_foreign = self.namespace.is_some();
        let may_set_user = user.is_none_or(|user| is_foreign || user == now.user);
        let may_set_group = group.is_none_or(|group| is_foreign || own_groups(group));
        self.files.user == now.user && may_set_user && may_set_group
    }

    /// Works like [`Self::may_give`] at a rollback, for ids of the user namespace of this program.
    pub(crate) fn could_give(&self, now: Owner, to: Owner) -> bool {
        let is_own_group = to.group == self.files.group || self.files.supplementary.contains(&to.group);
        (self.has(file_rights::CHOWN, now) && self.has(file_rights::CHOWN, to))
            || (self.files.user == now.user && to.user == now.user && (to.group == now.group || is_own_group))
    }

    /// Reports whether the thread may set the mode bits for set-user-ID and set-group-ID of a file that has this owner
    /// then.
    pub(crate) fn may_set_ids(&self, mode: u32, owner: Owner) -> bool {
        const SET_USER_ID: u32 = 0o4000;
        const SET_GROUP_ID: u32 = 0o2000;
        let is_in_group = owner.group == self.files.group
            || self.files.supplementary.contains(&owner.group)
            || self.has(file_rights::FSETID, owner);
        (mode & (SET_USER_ID | SET_GROUP_ID) == 0 || self.owns(owner))
            && (mode & SET_GROUP_ID == 0 || is_in_group)
    }

    /// Reports whether the thread may set or remove an extended attribute of [`Aspects::PRIVILEGED`].
    pub(crate) fn may_set_privileged(&self, name: &[u8], owner: Owner) -> bool {
        if name == b"security.capability" {
            self.has(file_rights::SETFCAP, owner)
        } else {
            self.has_everywhere(file_rights::SYS_ADMIN)
        }
    }

    /// Reports whether the sticky bit of a directory protects a file in this directory from the thread.
    pub(crate) fn is_kept_out(&self, directory_mode: u32, directory: Owner, file: Owner) -> bool {
        const STICKY: u32 = 0o1000;
        directory_mode & STICKY != 0
            && self.files.user != file.user
            && self.files.user != directory.user
            && !self.has(file_rights::FOWNER, file)
    }
}

/// Aspects of an inode that a call can change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Aspects(pub(crate) u32);

impl Aspects {
    /// No aspect. The inode is recorded because one of its names changes.
    pub(crate) const NONE: Self = Self(0);
    /// Content and length. Each change of content also sets the modification time.
    pub(crate) const CONTENT: Self = Self(1);
    /// The access time and the modification time.
    pub(crate) const TIMES: Self = Self(2);
    /// Owner, group, mode and ACL.
    pub(crate) const RIGHTS: Self = Self(4);
    /// Extended attributes that the owner of a file or a thread that may write the file can set.
    pub(crate) const EXTENDED: Self = Self(8);
    /// Extended attributes that need a capability: file capabilities and `trusted.*`.
    pub(crate) const PRIVILEGED: Self = Self(16);
    pub(crate) const ALL: Self = Self(31);

    /// Returns the aspect to which an extended attribute belongs.
    pub(crate) fn of_extended(name: &[u8]) -> Self {
        if name.starts_with(b"system.") {
            Self::RIGHTS
        } else if name.starts_with(b"security.") || name.starts_with(b"trusted.") {
            Self::PRIVILEGED
        } else {
            Self::EXTENDED
        }
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Aspects {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Aspects {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The id of rights in the records of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct RightsId(pub(crate) u32);

impl RightsId {
    /// The rights of this program. They need no record, and a rollback does not check them.
    pub(crate) const OWN: Self = Self(0);
}

/// A change of some aspects of an inode, with some rights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Touch {
    pub(crate) aspects: Aspects,
    pub(crate) rights: RightsId,
}

impl Touch {
    /// Any change, with the rights of this program.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) const ANY: Self = Self { aspects: Aspects::ALL, rights: RightsId::OWN };

    /// Reports whether this change makes a record of another change unnecessary.
    pub(crate) fn covers(self, other: Self) -> bool {
        (self.rights == other.rights || self.rights == RightsId::OWN) && self.aspects.contains(other.aspects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(user: u32, effective: u64, namespace: Option<Namespace>) -> Rights {
        let supplementary = vec![7];
        Rights { files: FileRights { user, group: user, supplementary, effective }, namespace }
    }

    #[test]
    fn capabilities_of_a_user_namespace_apply_to_its_own_files() {
        let namespace = Namespace { users: vec![1000, 1, 5000, 10], groups: vec![1000, 1] };
        let inside = rights(1000, file_rights::FOWNER, Some(namespace));
        assert!(inside.owns(Owner { user: 5009, group: 1000 }));
        assert!(!inside.owns(Owner { user: 5010, group: 1000 }));
        assert!(!inside.owns(Owner { user: 0, group: 0 }));
        assert!(!inside.owns(Owner { user: 5009, group: 0 }));
        assert_eq!(inside.to_act().effective, 0);
        assert!(rights(1000, file_rights::FOWNER, None).owns(Owner { user: 0, group: 0 }));
    }

    #[test]
    fn an_owner_gives_a_file_only_to_an_own_group() {
        let owner = rights(1000, 0, None);
        let now = Owner { user: 1000, group: 1000 };
        assert!(owner.may_give(now, None, Some(7)) && owner.may_give(now, Some(1000), None));
        assert!(!owner.may_give(now, None, Some(8)) && !owner.may_give(now, Some(0), None));
        assert!(!owner.may_give(Owner { user: 0, group: 7 }, None, Some(7)));
        assert!(rights(1000, file_rights::CHOWN, None).may_give(Owner { user: 0, group: 0 }, Some(0), None));
    }

    #[test]
    fn a_sticky_directory_keeps_others_out() {
        let (owner, other) = (Owner { user: 1000, group: 0 }, Owner { user: 0, group: 0 });
        let thread = rights(1000, 0, None);
        assert!(thread.is_kept_out(0o41777, other, other));
        assert!(!thread.is_kept_out(0o40777, other, other));
        assert!(!thread.is_kept_out(0o41777, owner, other) && !thread.is_kept_out(0o41777, other, owner));
    }
}
