//! The memory kind of shared, writable mappings of named tmpfs files: POSIX shared memory and named semaphores.
//!
//! Owns: recognizing these mappings by file type and file system; finding or creating the file at a restore.
//! Invariants: the content comes from the image. A restore is refused if a process outside the restored process tree
//! can write to the file.
//! Does not: recognize files that the subject can only read. The kinds of ordinary files save mappings of these files.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{OFlags, Stat};
use sys::{Errno, Error};
use tracee::procfs::Backing;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use super::source_file;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::support::opening;
use crate::support::tmpfs::{self, Found, TmpfsFile as NamedFile};

const NAME: &str = "memory/tmpfs_file";
/// The suffix that the kernel shows for a removed name.
const GONE: &str = " (deleted)";

/// The memory kind of named tmpfs files.
pub(super) struct TmpfsFile;

impl MemoryKind for TmpfsFile {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        may_write(of) && !of.mapping.flags.has("ht") && find(of).is_some()
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::Object
    }

    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        match find(of) {
            Some(place) if place.lasting_name().is_none() => vec![of.obstacle(
                "shared memory file",
                "its name was removed, and its other names are in other directories",
                "give it a name in the directory in which it was created, or remove all its names",
            )],
            // The mapping or the last name no longer exists. The caller lists the mappings again.
            _ => Vec::new(),
        }
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let gone = || Error::path("find the shared memory file", source_file::path(of), Errno::ENOENT);
        let place = find(of).ok_or_else(gone)?;
        let name = place.lasting_name().ok_or_else(gone)?;
        // The name can now lead to a FIFO or a device, so the file is first compared without an open.
        let handle = opening::open(&place.path, OFlags::PATH | OFlags::CLOEXEC)?;
        let stat = rustix::fs::fstat(&handle).map_err(|errno| Error::path("inspect", &place.path, errno))?;
        if (stat.st_dev, stat.st_ino) != (place.stat.st_dev, place.stat.st_ino) {
            return Err(gone().into());
        }
        let file = opening::reopen(&handle, OFlags::RDONLY | OFlags::CLOEXEC)?;
        let described = NamedFile::describe(&name, &file, &place.stat)?;
        Ok((described.encode_to_vec(), place.stat.st_size as u64))
    }

    fn makes_objects(&self) -> bool {
        false
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        crate::error::decode::<NamedFile>(NAME, &record.payload).map(drop)
    }

    fn label(&self, record: &ObjectRecord) -> Option<String> {
        crate::support::label::first_field(&record.payload)
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        let file: NamedFile = crate::error::decode(NAME, &record.payload)?;
        match file.find_or_make()? {
            Found::Ready(opened) => Ok(opened),
            Found::Shared(user, _) => {
                let why =
                    format!("{user} can write to it too, and the restore would change that process's memory");
                Err(file.refused(why, "end that process, then restore again"))
            }
        }
    }

    fn clear(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        tmpfs::clear(object, record.length)
    }
}

/// Reports whether a mapping can write to its object. A mapping that is new in the pause has no flags yet.
fn may_write(of: MappingOf<'_>) -> bool {
    of.mapping.protection.shared && (of.mapping.flags.has("mw") || of.mapping.flags.is_empty())
}

/// A path that leads to the file of a mapping now, with the stat of the file.
struct Place {
    path: PathBuf,
    stat: Stat,
    /// The path in the list of mappings.
    listed: PathBuf,
}

impl Place {
    /// Returns a name by which the file can be found later.
    fn lasting_name(&self) -> Option<PathBuf> {
        if self.path == self.listed {
            return Some(self.path.clone());
        }
        let gone =
            self.listed.to_str().map_or(self.listed.as_path(), |path| Path::new(path.trim_end_matches(GONE)));
        tmpfs::other_name(gone, &self.stat)
    }
}

/// Finds the file of a mapping. Returns `None` if the file is not a tmpfs file with a name.
fn find(of: MappingOf<'_>) -> Option<Place> {
    let Backing::File { inode, device, path: listed } = &of.mapping.backing else { return None };
    let is_mapped = |stat: &Stat| {
        let found = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        (found, stat.st_ino) == (*device, inode.get())
    };
    let place = match rustix::fs::stat(listed) {
        Ok(stat) if is_mapped(&stat) => Place { path: listed.clone(), stat, listed: listed.clone() },
        _ => {
            let path = PathBuf::from(of.link());
            let stat = rustix::fs::stat(&path).ok()?;
            Place { path, stat, listed: listed.clone() }
        }
    };
    let system = rustix::fs::statfs(&place.path).ok()?.f_type;
    (place.stat.st_nlink > 0 && tmpfs::is_on_tmpfs(&place.stat, system)).then_some(place)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use tracee::procfs::Mapping;

    use super::*;

    struct Mapped {
        path: PathBuf,
        file: File,
        mapping: Mapping,
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn mapping_of(path: &Path) -> Mapping {
        let found = std::fs::metadata(path).unwrap();
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let line = format!(
            "7f0000000000-7f0000001000 rw-s 00000000 {major:02x}:{minor:02x} {} {}\n",
            found.ino(),
            path.display()
        );
        tracee::procfs::mappings_in(line.as_bytes()).unwrap().remove(0)
    }

    /// Creates a tmpfs file. Returns `None` if /dev/shm has no tmpfs.
    fn mapped(name: &str) -> Option<Mapped> {
        let path = PathBuf::from(format!("/dev/shm/undying-test-{}-{name}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let Ok(file) = options else {
            println!("unsupported: tmpfs on /dev/shm");
            return None;
        };
        file.write_all_at(b"before", 0).unwrap();
        Some(Mapped { mapping: mapping_of(&path), path, file })
    }

    fn record(mapped: &Mapped) -> ObjectRecord {
        let of = MappingOf { pid: model::Pid(std::process::id() as i32), mapping: &mapped.mapping };
        assert!(TmpfsFile.claims(of), "{:?}", mapped.mapping);
        let (payload, length) = TmpfsFile.describe(of).unwrap();
        ObjectRecord { payload, length, ..ObjectRecord::default() }
    }

    /// Closes the only writable descriptor of the file.
    fn close(mapped: &mut Mapped) {
        mapped.file = File::open(&mapped.path).unwrap();
    }

    #[test]
    fn the_same_file_is_opened_and_its_length_is_restored() {
        let Some(mut mapped) = mapped("same") else { return };
        let record = record(&mapped);
        mapped.file.write_all_at(b"longer than before", 0).unwrap();
        close(&mut mapped);
        let object = TmpfsFile.open(&record, &Opener::default()).unwrap();
        TmpfsFile.clear(&record, &object).unwrap();
        assert_eq!(std::fs::read(&mapped.path).unwrap(), [0; 6]);
    }

    #[test]
    fn a_missing_file_is_created_and_found_by_the_next_restore() {
        let Some(mut mapped) = mapped("missing") else { return };
        rustix::fs::fchmod(&mapped.file, rustix::fs::Mode::from_raw_mode(0o642)).unwrap();
        let record = record(&mapped);
        std::fs::remove_file(&mapped.path).unwrap();
        drop(TmpfsFile.open(&record, &Opener::default()).unwrap());
        let made = std::fs::metadata(&mapped.path).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o642);
        close(&mut mapped);
        match TmpfsFile.open(&record, &Opener::default()) {
            Ok(again) => {
                let again = rustix::fs::fstat(&again).unwrap();
                assert_eq!(again.st_ino, made.ino());
            }
            Err(error) => println!("unsupported: extended attributes on tmpfs: {error}"),
        }
    }

    #[test]
    fn another_file_of_the_name_and_a_link_are_refused() {
        let Some(mapped) = mapped("other") else { return };
        let record = record(&mapped);
        std::fs::remove_file(&mapped.path).unwrap();
        std::fs::write(&mapped.path, "another's").unwrap();
        let error = TmpfsFile.open(&record, &Opener::default()).unwrap_err().to_string();
        assert!(error.contains("another file") && error.contains("help:"), "{error}");
        assert_eq!(std::fs::read_to_string(&mapped.path).unwrap(), "another's");
        std::fs::remove_file(&mapped.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &mapped.path).unwrap();
        let error = TmpfsFile.open(&record, &Opener::default()).unwrap_err().to_string();
        assert!(error.contains("no longer a regular file"), "{error}");
    }

    #[test]
    fn a_file_that_another_process_can_write_is_refused() {
        let Some(mapped) = mapped("outside") else { return };
        let record = record(&mapped);
        // This writable descriptor stands for a descriptor of another process.
        let error = TmpfsFile.open(&record, &Opener::default()).unwrap_err().to_string();
        assert!(error.contains("can write to it too") && error.contains("help:"), "{error}");
        assert_eq!(std::fs::read(&mapped.path).unwrap(), b"before");
    }

    #[test]
    fn a_read_only_file_is_not_claimed() {
        let Some(mut mapped) = mapped("read") else { return };
        let claims = |mapping: &Mapping| {
            TmpfsFile.claims(MappingOf { pid: model::Pid(std::process::id() as i32), mapping })
        };
        mapped.mapping.flags.insert(*b"rd");
        assert!(!claims(&mapped.mapping));
        mapped.mapping.flags.insert(*b"mw");
        assert!(claims(&mapped.mapping));
        let regular = tempfile::NamedTempFile::new().unwrap();
        let is_tmpfs = rustix::fs::statfs(regular.path()).unwrap().f_type == tmpfs::TMPFS;
        assert_eq!(claims(&mapping_of(regular.path())), is_tmpfs);
    }
}
