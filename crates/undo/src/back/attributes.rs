//! The attributes that a rollback sets.
//!
//! A rollback sets only the aspects of an inode that the subject has changed. Other programs can change other aspects
//! meanwhile. Example: the subject writes to a file, and the administrator changes the mode of the file. The rollback
//! keeps the new mode. For the same reason, a rollback does not set a set-user-ID bit that a write has cleared.
//!
//! Owns: the choice of the attributes of an inode.
//! Does not: set attributes.

use super::files::{FileSystem, Status};
use crate::error::Result;
use crate::key::{Attributes, Extended};
use crate::log::target::TargetInode;
use crate::rights::Aspects;

/// Returns the attributes that a rollback sets. Returns `None` if the inode already has these attributes. `now` is the
/// present status.
pub(crate) fn attributes_to_set<Files: FileSystem>(
    files: &Files,
    inode: &TargetInode,
    now: &Status,
) -> Result<Option<Attributes>> {
    let aspects = if inode.is_made { Aspects::ALL } else { inode.aspects() };
    if aspects.is_none() {
        return Ok(None);
    }
    let Some(node) = files.find(&inode.key, &inode.path)? else { return Ok(None) };
    // The target of a symbolic link never changes.
    let link = inode.attributes.link.clone();
    let present = Attributes { extended: files.extended(&node)?, link, ..now.attributes.clone() };
    let wanted = merged(inode, &present, aspects);
    Ok((wanted != present).then_some(wanted))
}

/// Returns the aspects in which attributes differ. Ignores content and access times.
pub(crate) fn differing(one: &Attributes, other: &Attributes) -> Aspects {
    let rights = |attributes: &Attributes| (attributes.mode, attributes.owner, attributes.group);
    let mut aspects = Aspects::NONE;
    if one.modified != other.modified {
        aspects |= Aspects::TIMES;
    }
    if rights(one) != rights(other) {
        aspects |= Aspects::RIGHTS;
    }
    differing_names(one, other).fold(aspects, |aspects, name| aspects | Aspects::of_extended(name))
}

/// Returns the names of the extended attributes in which attributes differ.
pub(crate) fn differing_names<'a>(
    one: &'a Attributes,
    other: &'a Attributes,
) -> impl Iterator<Item = &'a [u8]> {
    let missing = |of: &'a Attributes, from: &'a Attributes| {
        of.extended.iter().filter(|one| !from.extended.contains(one)).map(|one| one.name.as_slice())
    };
    missing(one, other).chain(missing(other, one))
}

/// Returns the present attributes, with the recorded values for some aspects. The length stays: it is set with the
/// content.
fn merged(inode: &TargetInode, present: &Attributes, aspects: Aspects) -> Attributes {
    let recorded = &inode.attributes;
    let mut wanted = present.clone();
    if aspects.intersects(Aspects::CONTENT | Aspects::TIMES) {
        (wanted.accessed, wanted.modified) = (recorded.accessed, recorded.modified);
    }
    if aspects.contains(Aspects::RIGHTS) {
        (wanted.mode, wanted.owner, wanted.group) = (recorded.mode, recorded.owner, recorded.group);
    }
    let is_taken = |one: &&Extended| aspects.contains(Aspects::of_extended(&one.name));
    let others = present.extended.iter().filter(|one| !is_taken(one));
    wanted.extended = recorded.extended.iter().filter(is_taken).chain(others).cloned().collect();
    wanted.extended.sort_unstable();
    wanted
}
