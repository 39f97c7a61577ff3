//! The check of rights before a rollback.
//!
//! A rollback runs with the rights of this program, usually those of root. The subject (a protected process tree) had
//! fewer rights, or has lost rights since its change. A rollback reverts only changes that the subject itself could
//! revert now. Otherwise, a program could use its own death to revert changes of the administrator.
//!
//! Owns: the comparison of recorded rights with the present files.
//! Invariants: the check changes no file. A change that was made with the rights of this program is always permitted.
//! Does not: check directories above a file. A rollback opens files by their handles.

use std::collections::HashSet;
use std::path::PathBuf;

use sys::file_rights::{self, Access};

use super::attributes::{attributes_to_set, differing};
use super::files::{FileSystem, Status};
use super::survey::{Survey, WrongName, has_other_content};
use crate::error::Result;
use crate::key::{Attributes, FileKey};
use crate::log::target::{Target, TargetInode};
use crate::rights::{Aspects, Owner, Rights};

/// Returns the files that the subject could not roll back itself. An earlier attempt at the rollback was permitted to
/// change the inodes in `touched`, and may have changed their owners and modes.
pub(crate) fn denied<Files: FileSystem>(
    files: &Files,
    target: &Target,
    survey: &Survey,
    touched: &HashSet<FileKey>,
) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for wrong in &survey.wrong {
        let Some(rights) = target.names_by.get(&(wrong.directory, wrong.name.clone())) else { continue };
        let is_known = touched.contains(&target.inodes[wrong.directory].key);
        if !is_known && !may_change_name(files, target, wrong, rights)? {
            paths.push(target.path_of(wrong.directory, &wrong.name));
        }
    }
    for index in &survey.changed {
        let (inode, now) = (&target.inodes[*index], &survey.now[*index]);
        let Some(now) = now.as_ref().filter(|now| !touched.contains(&now.key)) else { continue };
        if !may_change(files, inode, now)? {
            paths.push(inode.path.clone());
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

fn may_change<Files: FileSystem>(files: &Files, inode: &TargetInode, now: &Status) -> Result<bool> {
    let wanted = attributes_to_set(files, inode, now)?;
    let mut aspects = Aspects::NONE;
    if has_other_content(inode, now) {
        aspects |= Aspects::CONTENT;
    }
    if let Some(wanted) = &wanted {
        let Some(node) = files.find(&inode.key, &inode.path)? else { return Ok(true) };
        let present = Attributes { extended: files.extended(&node)?, ..now.attributes.clone() };
        aspects |= differing(wanted, &present);
    }
    for aspect in [Aspects::CONTENT, Aspects::TIMES, Aspects::RIGHTS, Aspects::EXTENDED] {
        if aspects.contains(aspect) && !may_change_aspect(files, inode, now, wanted.as_ref(), aspect)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn may_change_aspect<Files: FileSystem>(
    files: &Files,
    inode: &TargetInode,
    now: &Status,
    wanted: Option<&Attributes>,
    aspect: Aspects,
) -> Result<bool> {
    let by = if aspect == Aspects::TIMES { Aspects::TIMES | Aspects::CONTENT } else { aspect };
    let owner = owner_of(&now.attributes);
    for (_, rights) in inode.touched.iter().filter(|(aspects, _)| aspects.intersects(by)) {
        let Some(rights) = rights else { return Ok(true) };
        let is_permitted = match aspect {
            Aspects::RIGHTS => {
                let gives = wanted.map(owner_of).filter(|wanted| *wanted != owner);
                let may_give = |to: Owner| {
                    rights.may_give(owner, changed(owner.user, to.user), changed(owner.group, to.group))
                };
                rights.owns(owner) && gives.is_none_or(may_give)
            }
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

fn changed(now: u32, wanted: u32) -> Option<u32> {
    (now != wanted).then_some(wanted)
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
