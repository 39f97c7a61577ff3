//! The check of rights before a rollback.
//!
//! A rollback runs with the rights of this program, usually those of root. The subject had fewer rights, or has lost
//! rights since its change. A rollback reverts only changes that the subject itself could revert now. Otherwise, a
//! program could use its own death to revert changes of the administrator.
//!
//! Owns: the comparison of recorded rights with the present files, and the search for files that no program can change.
//! Invariants: the check changes no file. A change that was made with the rights of this program is always permitted.
//! Does not: check directories above a file. A rollback opens files by their handles.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use sys::file_rights::{self, Access};

use super::attributes::{attributes_to_set, differing, differing_names};
use super::files::{FileSystem, Status};
use super::survey::{Survey, WrongName, has_other_content};
use crate::error::Result;
use crate::key::{Attributes, Extended, FileKey};
use crate::log::target::{Target, TargetInode};
use crate::rights::{Aspects, Owner, Rights};

/// The mode bits for set-user-ID and set-group-ID.
const SET_IDS: u32 = 0o6000;
const ASPECTS: [Aspects; 5] =
    [Aspects::CONTENT, Aspects::TIMES, Aspects::RIGHTS, Aspects::EXTENDED, Aspects::PRIVILEGED];

/// Returns the files that the subject could not roll back itself. `explains` reports whether the state of an inode can be
/// the work of an earlier attempt at the rollback, which was permitted and may have changed owners and modes.
pub(crate) fn denied<Files: FileSystem>(
    files: &Files,
    target: &Target,
    survey: &Survey,
    explains: impl Fn(&Status) -> bool,
) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for wrong in &survey.wrong {
        let Some(rights) = target.names_by.get(&(wrong.directory, wrong.name.clone())) else { continue };
        let is_known = survey.now[wrong.directory].as_ref().is_some_and(&explains);
        let is_permitted = is_known
            || may_change_name(files, target, wrong, rights)?
                && may_fetch(files, target, survey, wrong, rights)?;
        if !is_permitted {
            paths.push(target.path_of(wrong.directory, &wrong.name));
        }
    }
    for index in &survey.changed {
        let (inode, now) = (&target.inodes[*index], &survey.now[*index]);
        let Some(now) = now.as_ref().filter(|now| !explains(now)) else { continue };
        if !may_change(files, inode, now)? {
            paths.push(inode.path.clone());
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Returns the files that the rollback would change, but that are immutable or append-only. Not even the administrator
/// can change such files.
pub(crate) fn fixed<Files: FileSystem>(
    files: &Files,
    target: &Target,
    survey: &Survey,
) -> Result<Vec<PathBuf>> {
    let is_fixed = |key: &FileKey, path: &Path| match files.find(key, path)? {
        Some(node) => files.is_fixed(&node),
        None => Ok(false),
    };
    let mut paths = Vec::new();
    for index in &survey.changed {
        let inode = &target.inodes[*index];
        if is_fixed(&inode.key, &inode.path)? {
            paths.push(inode.path.clone());
        }
    }
    for wrong in &survey.wrong {
        let path = target.path_of(wrong.directory, &wrong.name);
        let touched = [Some(wrong.directory), wrong.before];
        let mut keys: Vec<_> = touched.into_iter().flatten().map(|index| &target.inodes[index].key).collect();
        keys.extend(wrong.now.as_ref().map(|now| &now.key));
        for key in keys {
            if is_fixed(key, &path)? {
                paths.push(path.clone());
            }
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn may_change_name<Files: FileSystem>(
    files: &Files,
    target: &Target,
    wrong: &WrongName,
    rights: &[Rights],
) -> Result<bool> {
    let directory = &target.inodes[wrong.directory];
    let Some(node) = files.find(&directory.key, &directory.path)? else { return Ok(true) };
    let status = files.status(&node)?;
    let owner = owner_of(&status.attributes);
    for rights in rights {
        let is_kept_out = wrong
            .now
            .as_ref()
            .is_some_and(|now| rights.is_kept_out(status.attributes.mode, owner, owner_of(&now.attributes)));
        if !is_kept_out && may(files, &node, &status, rights, Access::CHANGE_NAMES)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reports whether the subject could give an inode back its name from where the inode is now. The subject has left the
/// inode at a recorded name, or has removed it, so that only links in keep directories are left. In any other case,
/// another program has moved the inode, perhaps to a place that the subject cannot reach.
fn may_fetch<Files: FileSystem>(
    files: &Files,
    target: &Target,
    survey: &Survey,
    wrong: &WrongName,
    rights: &[Rights],
) -> Result<bool> {
    let Some(before) = wrong.before else { return Ok(true) };
    if survey.now[before].is_none() {
        return Ok(rights.iter().any(|rights| may_make(rights, &target.inodes[before].attributes)));
    }
    let (inode, now) = (&target.inodes[before], &survey.now[before]);
    let (Some(now), None | Some(0)) = (now, survey.counted.get(&before)) else { return Ok(true) };
    let Some(node) = files.find(&inode.key, &inode.path)? else { return Ok(true) };
    if now.is_directory() {
        let Some((above, _)) = files.place_of(&node)? else { return Ok(true) };
        let place = files.status(&above)?;
        let is_moved = place.key != target.inodes[wrong.directory].key;
        return any(rights, |rights| {
            let (owner, own) = (owner_of(&place.attributes), owner_of(&now.attributes));
            Ok(!rights.is_kept_out(place.attributes.mode, owner, own)
                && may(files, &above, &place, rights, Access::CHANGE_NAMES)?
                && (!is_moved || may(files, &node, now, rights, Access::WRITE)?))
        });
    }
    if now.links <= kept_links(files, &inode.key)? {
        return Ok(true);
    }
    // The rules of `fs.protected_hardlinks`.
    any(rights, |rights| {
        let is_safe = now.is_file() && now.attributes.mode & SET_IDS == 0;
        Ok(rights.owns(owner_of(&now.attributes))
            || (is_safe && files.permits(&node, rights, Access::READ_WRITE)?))
    })
}

fn any(rights: &[Rights], permits: impl Fn(&Rights) -> Result<bool>) -> Result<bool> {
    for rights in rights {
        if permits(rights)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the number of links of an inode in keep directories.
pub(super) fn kept_links<Files: FileSystem>(files: &Files, key: &FileKey) -> Result<u64> {
    let mut count = 0;
    for kept in files.kept()? {
        if files.status(&kept)?.key.device == key.device {
            count += files.names(&kept)?.iter().filter(|entry| entry.inode == key.inode).count() as u64;
        }
    }
    Ok(count)
}

fn may_change<Files: FileSystem>(files: &Files, inode: &TargetInode, now: &Status) -> Result<bool> {
    let wanted = attributes_to_set(files, inode, now)?;
    let mut present = None;
    let mut aspects = Aspects::NONE;
    if has_other_content(inode, now) {
        aspects |= Aspects::CONTENT;
    }
    if let Some(wanted) = &wanted {
        let Some(node) = files.find(&inode.key, &inode.path)? else { return Ok(true) };
        let is = present.insert(Attributes { extended: files.extended(&node)?, ..now.attributes.clone() });
        aspects |= differing(wanted, is);
    }
    let change = wanted.as_ref().zip(present.as_ref());
    for aspect in ASPECTS {
        if aspects.contains(aspect) && !may_change_aspect(files, inode, now, change, aspect)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn may_change_aspect<Files: FileSystem>(
    files: &Files,
    inode: &TargetInode,
    now: &Status,
    change: Option<(&Attributes, &Attributes)>,
    aspect: Aspects,
) -> Result<bool> {
    let by = if aspect == Aspects::TIMES { Aspects::TIMES | Aspects::CONTENT } else { aspect };
    let owner = owner_of(&now.attributes);
    for (_, rights) in inode.touched.iter().filter(|(aspects, _)| aspects.intersects(by)) {
        let Some(rights) = rights else { return Ok(true) };
        let is_permitted = match aspect {
            Aspects::RIGHTS => change.is_none_or(|(wanted, present)| {
                // A write by another user clears these bits, and they must not come back on the content of this user.
                let gains_ids = wanted.mode & !present.mode & SET_IDS != 0;
                let is_unwritten = present.modified == inode.attributes.modified;
                may_set_rights(rights, owner, wanted) && (!gains_ids || is_unwritten)
            }),
            Aspects::PRIVILEGED => change.is_none_or(|(wanted, present)| {
                differing_names(wanted, present)
                    .filter(|name| Aspects::of_extended(name) == Aspects::PRIVILEGED)
                    .all(|name| rights.may_set_privileged(name, owner))
            }),
            _ => match files.find(&inode.key, &inode.path)? {
                Some(node) => may(files, &node, now, rights, Access::WRITE)?,
                None => true,
            },
        };
        if is_permitted {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reports whether the owner, group and mode of a file with the present owner `owner` can be set to the wanted ones.
fn may_set_rights(rights: &Rights, owner: Owner, wanted: &Attributes) -> bool {
    let to = owner_of(wanted);
    rights.owns(owner) && (to == owner || rights.could_give(owner, to)) && rights.may_set_ids(wanted.mode, to)
}

/// Reports whether the subject could create an inode with these attributes.
fn may_make(rights: &Rights, wanted: &Attributes) -> bool {
    let to = owner_of(wanted);
    let own = Owner { user: rights.files.user, group: rights.files.group };
    let is_device = [FileType::CharacterDevice, FileType::BlockDevice].contains(&wanted.kind());
    (to == own || rights.could_give(own, to))
        && (!is_device || rights.has_everywhere(file_rights::MKNOD))
        && rights.may_set_ids(wanted.mode, to)
        && wanted.extended.iter().all(|Extended { name, .. }| {
            Aspects::of_extended(name) != Aspects::PRIVILEGED || rights.may_set_privileged(name, to)
        })
}

/// Reports whether rights permit an access. The owner of a file can give the permission to itself.
fn may<Files: FileSystem>(
    files: &Files,
    node: &Files::Node,
    status: &Status,
    rights: &Rights,
    access: Access,
) -> Result<bool> {
    let owner = owner_of(&status.attributes);
    let overrides = rights.namespace.is_some() && rights.has(file_rights::DAC_OVERRIDE, owner);
    Ok(rights.owns(owner) || overrides || files.permits(node, rights, access)?)
}

fn owner_of(attributes: &Attributes) -> Owner {
    Owner { user: attributes.owner, group: attributes.group }
}
