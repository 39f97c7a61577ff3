//! The survey before a rollback: compares the present files with the files at a checkpoint.
//!
//! The *target* contains the inodes and names that the undo log has recorded since the checkpoint. A *recorded name* is
//! an entry of the target: a directory, a name, and the inode to which the name led at the checkpoint. A name without a
//! record has not changed since the checkpoint.
//!
//! An inode belongs to the checkpoint if the inode had a name at the checkpoint. The survey applies these rules to each
//! inode of the target:
//!
//! - At the checkpoint, a recorded name in a directory of the checkpoint led to the inode. The inode belongs to the
//!   checkpoint.
//! - No recorded name led to the inode. The inode belongs to the checkpoint if one present name of the inode is an *old
//!   name*. An old name has no record, is not below a directory that the subject has created, and is not in a keep
//!   directory.
//! - An epoch before the checkpoint preserves the inode by a hard link. The inode belongs to the checkpoint, because a
//!   later rollback to an older checkpoint may need the content of the inode at this checkpoint.
//!
//! The work directories of rollbacks, into which rollbacks move files, are also in keep directories.
//!
//! Owns: the lists of inodes that belong to the checkpoint, of names that lead to a wrong inode, and of files that
//! prevent a rollback.
//! Invariants: the survey changes nothing. All results follow from the target, the present files and the journal.
//! Does not: execute steps.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use rustix::fs::FileType;

use super::attributes::{attributes_to_set, differing};
use super::files::{FileSystem, Status, Work};
use crate::error::Result;
use crate::key::{FileKey, Time};
use crate::log::target::{Index, Layer, Target, TargetInode};
use crate::rights::Aspects;

/// A recorded name that does not lead to the same inode as at the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WrongName {
    pub(crate) directory: Index,
    pub(crate) name: Vec<u8>,
    /// The inode to which the name led at the checkpoint; `None` if the name did not exist.
    pub(crate) before: Option<Index>,
    /// The inode to which the name leads now; `None` if the name does not exist now.
    pub(crate) now: Option<Status>,
}

/// The present state of the inodes in the target.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The present status of each inode, by index in the target. `None` means that the inode has no name any more.
    pub(crate) now: Vec<Option<Status>>,
    /// For each index in the target, whether the inode belongs to the checkpoint.
    pub(crate) belongs: Vec<bool>,
    /// Names that must change, in the order of the target.
    pub(crate) wrong: Vec<WrongName>,
    /// How many recorded names lead to an inode now, by index in the target.
    pub(crate) counted: HashMap<Index, u64>,
    /// Inodes that belong to the checkpoint, and whose content or attributes differ or can differ from the checkpoint.
    pub(crate) changed: Vec<Index>,
}

impl Survey {
    /// Compares the present files with the target. `works` are the work directories of the rollback in all keep
    /// directories.
    pub(crate) fn of<Files: FileSystem>(
        files: &Files,
        target: &Target,
        works: &[Work<Files::Node>],
    ) -> Result<Self> {
        let mut survey = Self { belongs: vec![false; target.inodes.len()], ..Self::default() };
        for inode in &target.inodes {
            let node = files.find(&inode.key, &inode.path)?;
            survey.now.push(node.map(|node| files.status(&node)).transpose()?);
        }
        for (index, inode) in target.inodes.iter().enumerate() {
            survey.belongs[index] |= survey.now[index].is_some() && target.kept_before.contains(&inode.key);
        }
        survey.judge_directories(files, target, works)?;
        survey.counted = survey.compare_names(files, target)?;
        survey.judge_files(files, target, works)?;
        for (index, inode) in target.inodes.iter().enumerate() {
            if survey.belongs[index] && survey.is_changed(files, index, inode)? {
                survey.changed.push(index);
            }
        }
        Ok(survey)
    }

    /// Decides which directories belong to the checkpoint. A directory belongs to the checkpoint in two cases. In the
    /// first case, a recorded name in a directory of the checkpoint led to the directory. In the second case, the
    /// directory is below a directory of the checkpoint or below a root, and no name on the path between them has a
    /// record. A directory that belongs to the checkpoint can fulfil a condition for further directories. Therefore,
    /// the loop repeats until no further directory is found.
    fn judge_directories<Files: FileSystem>(
        &mut self,
        files: &Files,
        target: &Target,
        works: &[Work<Files::Node>],
    ) -> Result<()> {
        let mut tops = HashSet::new();
        for node in works.iter().flat_map(|work| [&work.aside, &work.transit, &work.new]) {
            tops.insert(files.status(node)?.key);
        }
        // Maps a directory of the target to a list. The list contains the directory itself, and the directories of the
        // target below it, if no name on the path between them has a record.
        let mut below: HashMap<Index, Vec<Index>> = HashMap::new();
        for (index, inode) in target.inodes.iter().enumerate() {
            if !self.now[index].as_ref().is_some_and(Status::is_directory) {
                continue;
            }
            let Some(node) = files.find(&inode.key, &inode.path)? else { continue };
            let (above, is_root_reached) = old_path(files, target, node, &tops)?;
            self.belongs[index] = is_root_reached;
            for above in above {
                below.entry(above).or_default().push(index);
            }
        }
        let mut has_old_name = vec![false; target.inodes.len()];
        loop {
            let mut is_done = true;
            for ((directory, _), before) in &target.names {
                let Some(before) = before.filter(|before| self.belongs[*directory] && !has_old_name[*before])
                else {
                    continue;
                };
                (has_old_name[before], self.belongs[before], is_done) = (true, true, false);
                for index in below.get(&before).into_iter().flatten() {
                    self.belongs[*index] = true;
                }
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// Compares the recorded names in directories that belong to the checkpoint. Returns for each inode of the target
    /// how many recorded names lead to the inode now.
    fn compare_names<Files: FileSystem>(
        &mut self,
        files: &Files,
        target: &Target,
    ) -> Result<HashMap<Index, u64>> {
        let mut counted = HashMap::new();
        let mut last: Option<(Index, Option<Files::Node>)> = None;
        for ((directory, name), before) in &target.names {
            if !self.belongs[*directory] {
                continue;
            }
            if last.as_ref().is_none_or(|(index, _)| index != directory) {
                let inode = &target.inodes[*directory];
                last = Some((*directory, files.find(&inode.key, &inode.path)?));
            }
            let node = last.as_ref().and_then(|(_, node)| node.as_ref());
            let found = node.map(|node| files.lookup(node, name)).transpose()?.flatten();
            let now = found.map(|found| files.status(&found)).transpose()?;
            let index = now.as_ref().and_then(|now| target.indices.get(&now.key)).copied();
            if let Some(index) = index {
                *counted.entry(index).or_default() += 1;
            }
            if index != *before || (index.is_none() && now.is_some()) {
                let (directory, name, before) = (*directory, name.clone(), *before);
                self.wrong.push(WrongName { directory, name, before, now });
            }
        }
        Ok(counted)
    }

    /// Applies the second rule of the module documentation to files. Starts with the link count of each file, and
    /// subtracts all names that are not old names. If a name remains, the file belongs to the checkpoint.
    fn judge_files<Files: FileSystem>(
        &mut self,
        files: &Files,
        target: &Target,
        works: &[Work<Files::Node>],
    ) -> Result<()> {
        let mut left = HashMap::new();
        for (index, now) in self.now.iter().enumerate() {
            let Some(now) = now.as_ref().filter(|now| !now.is_directory()) else { continue };
            let names = now.links.saturating_sub(self.counted.get(&index).copied().unwrap_or(0));
            if !self.belongs[index] && names > 0 {
                left.insert(index, names);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let inodes = left.keys().map(|index| target.inodes[*index].key.inode).collect();
        let mut walk = Walk { files, target, left, inodes };
        for kept in files.kept()? {
            walk.below(&kept, &self.belongs)?;
        }
        for work in works {
            walk.below(&work.aside, &self.belongs)?;
            walk.below(&work.transit, &self.belongs)?;
            walk.below(&work.new, &self.belongs)?;
        }
        for wrong in &self.wrong {
            let Some(now) = wrong.now.as_ref().filter(|now| now.is_directory()) else { continue };
            if target.indices.get(&now.key).is_none_or(|index| !self.belongs[*index])
                && let Some(node) = files.find(&now.key, &target.path_of(wrong.directory, &wrong.name))?
            {
                walk.below(&node, &self.belongs)?;
            }
        }
        for (index, names) in walk.left {
            self.belongs[index] = names > 0;
        }
        Ok(())
    }

    fn is_changed<Files: FileSystem>(
        &self,
        files: &Files,
        index: Index,
        inode: &TargetInode,
    ) -> Result<bool> {
        let Some(now) = &self.now[index] else { return Ok(true) };
        // The kernel sets the status change time at each change. No program can set this time.
        if inode.changed == Some(now.changed) {
            return Ok(false);
        }
        Ok(has_other_content(inode, now) || attributes_to_set(files, inode, now)?.is_some())
    }

    /// Excludes files from the rollback of content and attributes.
    pub(crate) fn leave(&mut self, target: &Target, files: &[(u64, u64)]) {
        self.changed.retain(|index| {
            let key = &target.inodes[*index].key;
            !files.contains(&(key.device, key.inode))
        });
    }

    /// Returns the keys of all inodes that the rollback will change, for the journal.
    pub(crate) fn touching(&self, target: &Target) -> Vec<FileKey> {
        let at_names = self.wrong.iter().filter_map(|wrong| wrong.now.as_ref()).map(|now| now.key.clone());
        // Adding or removing a name changes the directory of the name, too. A later attempt, for another checkpoint,
        // must not take the new ctime of this directory for a change by another program.
        let of_names = self.wrong.iter().flat_map(|wrong| wrong.before.into_iter().chain([wrong.directory]));
        let known =
            of_names.chain(self.changed.iter().copied()).map(|index| target.inodes[index].key.clone());
        let keys: HashSet<FileKey> = at_names.chain(known).collect();
        keys.into_iter().collect()
    }

    /// Returns the files that the rollback will change, and that another program has changed since the subject ended at
    /// `ended`. `explains` reports whether the state of an inode can be the work of an earlier attempt at the rollback.
    pub(crate) fn conflicts<Files: FileSystem>(
        &self,
        files: &Files,
        target: &Target,
        ended: Time,
        explains: impl Fn(&Status) -> bool,
    ) -> Result<Vec<PathBuf>> {
        let is_later = |now: &Status| now.changed > ended && !explains(now);
        let mut paths = self.led_away(files, target, ended)?;
        for wrong in &self.wrong {
            let before = wrong.before.and_then(|index| self.now[index].as_ref());
            // Ignore the ctime of a directory, because a change of any name in the directory changes the ctime.
            let before = before.filter(|now| !now.is_directory());
            if wrong.now.as_ref().is_some_and(is_later) || before.is_some_and(is_later) {
                paths.push(target.path_of(wrong.directory, &wrong.name));
            }
        }
        for index in &self.changed {
            let (inode, now) = (&target.inodes[*index], &self.now[*index]);
            let Some(now) = now.as_ref().filter(|now| is_later(now)) else { continue };
            // Ignore the times of a directory, because a change of any name in the directory changes the times.
            let is_conflict = !now.is_directory()
                || attributes_to_set(files, inode, now)?.is_some_and(|wanted| {
                    differing(&wanted, &now.attributes)
                        .intersects(Aspects::RIGHTS | Aspects::EXTENDED | Aspects::PRIVILEGED)
                });
            if is_conflict {
                paths.push(inode.path.clone());
            }
        }
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    /// Returns two kinds of files: missing files whose content is not in the log, and files whose copy in a keep
    /// directory is missing.
    pub(crate) fn lost<Files: FileSystem>(&self, files: &Files, target: &Target) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for (index, inode) in target.inodes.iter().enumerate().filter(|(index, _)| self.belongs[*index]) {
            let copy = inode.content.iter().rev().find_map(Layer::copy);
            let is_gone = self.now[index].is_none();
            let has_copy = copy.is_some_and(|copy| files.has_copy(copy));
            let can_be_made = match inode.attributes.kind() {
                FileType::RegularFile => has_copy || (copy.is_none() && inode.is_whole_in_pieces()),
                _ => true,
            };
            if (is_gone && !can_be_made) || (copy.is_some() && !has_copy) {
                paths.push(inode.path.clone());
            }
        }
        paths
    }
}

/// Goes upwards from a directory to its parent directories, as long as the passed names have no record. Stops at a
/// root, at a recorded name, or at a work directory (`tops`). Returns the passed directories that are in the target,
/// beginning with the directory itself, and whether the walk has stopped at a root.
fn old_path<Files: FileSystem>(
    files: &Files,
    target: &Target,
    node: Files::Node,
    tops: &HashSet<FileKey>,
) -> Result<(Vec<Index>, bool)> {
    let (mut node, mut passed) = (node, Vec::new());
    loop {
        let key = files.status(&node)?.key;
        if tops.contains(&key) {
            return Ok((passed, false));
        }
        passed.extend(target.indices.get(&key));
        let Some((above, name)) = files.place_of(&node)? else { return Ok((passed, true)) };
        let above_key = files.status(&above)?.key;
        let above_index = target.indices.get(&above_key).copied();
        if above_index.is_some_and(|index| target.names.contains_key(&(index, name))) {
            return Ok((passed, false));
        }
        node = above;
    }
}

/// Reports whether the content of a file differs or can differ from the checkpoint.
pub(crate) fn has_other_content(inode: &TargetInode, now: &Status) -> bool {
    let is_touched = inode.is_made || inode.aspects().contains(Aspects::CONTENT);
    let differs = !inode.content.is_empty() || now.attributes.size != inode.attributes.size;
    now.is_file() && is_touched && differs
}

/// Subtracts names that are not old names from the counts of names in `left`.
struct Walk<'a, Files> {
    files: &'a Files,
    target: &'a Target,
    left: HashMap<Index, u64>,
    inodes: HashSet<u64>,
}

impl<Files: FileSystem> Walk<'_, Files> {
    /// Subtracts all names below a directory, except names below directories that belong to the checkpoint.
    fn below(&mut self, directory: &Files::Node, belongs: &[bool]) -> Result<()> {
        let top = self.files.status(directory)?.key;
        // Store keys instead of descriptors: a tree can contain more directories than the limit on descriptors allows.
        let mut keys = Vec::new();
        let mut next = Some(directory.clone());
        while let Some(directory) = next {
            for entry in self.files.names(&directory)? {
                if !entry.may_be_directory && !self.inodes.contains(&entry.inode) {
                    continue;
                }
                let Some(node) = self.files.lookup(&directory, &entry.name)? else { continue };
                let status = self.files.status(&node)?;
                let index = self.target.indices.get(&status.key).copied();
                if let Some(left) = index.and_then(|index| self.left.get_mut(&index)) {
                    *left = left.saturating_sub(1);
                }
                let belongs = index.is_some_and(|index| belongs[index]);
                if status.is_directory() && !belongs && status.key.device == top.device {
                    keys.push(status.key);
                }
            }
            next = None;
            while next.is_none()
                && let Some(key) = keys.pop()
            {
                next = self.files.find(&key, &PathBuf::new())?;
            }
        }
        Ok(())
    }
}
