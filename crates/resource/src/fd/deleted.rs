//! Descriptor kind `fd/deleted`: regular files without a name, which were unlinked while open, replaced, or created
//! with O_TMPFILE.
//!
//! Owns: recognizing these files, and refusing files that cannot be saved.
//! Does not: save extended attributes, or restore the last path component of the link in `/proc/PID/fd`.

use std::os::fd::AsFd;

use rustix::fs::FileType;
use sys::file_handle;

use super::description::Description;
use super::file_state::{self, FileCapture, FilePayload};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::memfd::is_memfd;
use super::nameless::{CLOSE_IT, open_handle};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::nearest_directory;
use crate::support::content::{DATA_BYTES_MAX, data_bytes};
use crate::support::opening::reader;
use crate::support::path::Name;

const NAME: &str = "fd/deleted";
/// File systems whose files cannot be saved as bytes: magic number (`f_type` of statfs(2)) and name.
const UNREADABLE: &[(i64, &str)] = &[(0x9584_58f6, "huge pages"), (0x5345_434d, "secret memory")];

/// Descriptor kind ([`FdKind`]) of open regular files without a name.
#[derive(Clone, Copy, Debug)]
pub struct Deleted;

impl FdKind for Deleted {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<FilePayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::RegularFile
            && matches!(Name::of(description), Name::Gone(_))
            && !is_memfd(description)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let system = rustix::fs::fstatfs(&description.duplicate).map_or(0, |system| system.f_type);
        if let Some((_, what)) = UNREADABLE.iter().find(|row| row.0 == system) {
            return vec![description.obstacle(what, "such memory cannot be read as a file", CLOSE_IT)];
        }
        if description.stat.st_nlink > 0 {
            return handle_obstacle(description).into_iter().collect();
        }
        if scope.maps(description) {
            return Vec::new();
        }
        content_obstacle(description).into_iter().collect()
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(FileCapture::new(description, scope)?))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn check_files(&self, records: &[FdRecord]) -> Result<()> {
        file_state::check_files(NAME, records)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        file_state::create(NAME, records, context)
    }
}

fn handle_obstacle(description: &Description) -> Option<Obstacle> {
    let found = nearest_directory(Name::of(description).path()).map_err(|refusal| refusal.to_string());
    let found = found.and_then(|home| {
        let handle = file_handle::of(description.as_fd());
        handle.and_then(|handle| open_handle(&home, &handle)).map_err(|error| error.to_string())
    });
    let why = format!("its name was removed, and its other names cannot be found: {}", found.err()?);
    Some(description.obstacle(
        "deleted file with other names",
        &why,
        "run undying with CAP_DAC_READ_SEARCH, or keep the file on a file system with handles (ext4, xfs, btrfs)",
    ))
}

fn content_obstacle(description: &Description) -> Option<Obstacle> {
    let what = "deleted file";
    match reader(description.as_fd()).and_then(|reader| data_bytes(reader.as_fd())) {
        Ok(bytes) if bytes <= DATA_BYTES_MAX => None,
        Ok(_) => {
            let why = format!(
                "it contains more than {} MiB, the limit of an image for such a file",
                DATA_BYTES_MAX >> 20
            );
            Some(description.obstacle(what, &why, "give the file a name, or let the program close it"))
        }
        Err(error) => {
            let why = format!("its content cannot be read: {error}");
            Some(description.obstacle(what, &why, "run undying as a user that may read it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::Path;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::support::content::same;
    use crate::support::opening;
    use crate::support::testing::{Subject, flags, position};

    fn create(path: &Path) -> File {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"end", 1 << 30).unwrap();
        file
    }

    #[test]
    fn content_holes_mode_and_sharing_are_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let first = create(&path);
        let second = OpenOptions::new().append(true).open(&path).unwrap();
        let third = File::open(&path).unwrap();
        first.set_permissions(fs::Permissions::from_mode(0o420)).unwrap();
        rustix::fs::seek(&third, rustix::fs::SeekFrom::Start(3)).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another file of that name").unwrap();
        let subject = Subject::new(&[&second, &first, &third]);
        let built = subject.round_trip(&Deleted).unwrap();
        assert!(same(&first, &built[1]));
        for (original, again) in [&second, &first, &third].into_iter().zip(&built) {
            assert_eq!(flags(again), flags(original));
        }
        assert_eq!(position(&built[2]), 3);
        let (before, after) = (first.metadata().unwrap(), rustix::fs::fstat(&built[1]).unwrap());
        assert_eq!(before.permissions().mode(), after.st_mode);
        assert_eq!(after.st_nlink, 0);
        assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_ino, after.st_ino);
        rustix::io::write(&built[0], b"!").unwrap();
        assert!(!same(&first, &built[2]), "the copies are files of their own");
        assert_eq!(fs::read_to_string(&path).unwrap(), "another file of that name");
    }

    #[test]
    fn a_temporary_file_can_still_be_linked() {
        let folder = tempfile::tempdir().unwrap();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(folder.path(), flags, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::io::write(&file, b"text").unwrap();
        let built = Subject::new(&[&file]).round_trip(&Deleted).unwrap();
        assert!(same(&file, &built[0]));
        assert_eq!(
            super::super::super::support::testing::flags(&built[0]),
            super::super::super::support::testing::flags(&file)
        );
        let name = folder.path().join("published");
        let link = |file: &OwnedFd| {
            rustix::fs::linkat(
                rustix::fs::CWD,
                opening::own_link(file),
                rustix::fs::CWD,
                &name,
                rustix::fs::AtFlags::SYMLINK_FOLLOW,
            )
        };
        link(&built[0]).unwrap();
        assert_eq!(fs::read_to_string(&name).unwrap(), "text");
        // The linked file has a name again, but the link in /proc does not show this name. The handle finds the file.
        let again = Subject::new(&[&built[0]]);
        if again.obstacles(&Deleted).is_empty() {
            let built = again.round_trip(&Deleted).unwrap();
            assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_ino, fs_inode(&name));
        } else {
            println!("unsupported: file handles");
        }
        let unlinked = create(&folder.path().join("a"));
        fs::remove_file(folder.path().join("a")).unwrap();
        fs::remove_file(&name).unwrap();
        let built = Subject::new(&[&unlinked]).round_trip(&Deleted).unwrap();
        assert!(link(&built[0]).is_err(), "an unlinked file can be given no name");
    }

    fn fs_inode(path: &Path) -> u64 {
        rustix::fs::stat(path).unwrap().st_ino
    }

    #[test]
    fn a_file_with_another_name_is_found_by_its_handle() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        let file = create(&path);
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&path).unwrap();
        let subject = Subject::new(&[&file]);
        if !subject.obstacles(&Deleted).is_empty() {
            return println!("unsupported: file handles");
        }
        let envelopes = subject.capture(&Deleted, || {}).unwrap();
        let built = subject.build(&Deleted, &envelopes, &[]).unwrap();
        assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_ino, fs_inode(&other));
        drop((built, file));
        drop(subject.descriptions.into_iter().next().unwrap());
        fs::remove_file(&other).unwrap();
        let error = Subject::new(&[]).build(&Deleted, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("help:") && error.contains("cannot be found"), "{error}");
    }

    #[test]
    fn the_file_is_restored_after_its_directory_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = create(&inner.join("a"));
        fs::remove_dir_all(&inner).unwrap();
        let built = Subject::new(&[&file]).round_trip(&Deleted).unwrap();
        assert!(same(&file, &built[0]));
    }

    #[test]
    fn content_above_the_limit_is_an_obstacle() {
        let file = tempfile::tempfile().unwrap();
        let piece = vec![7_u8; 1 << 20];
        for number in 0..=DATA_BYTES_MAX >> 20 {
            file.write_all_at(&piece, number << 20).unwrap();
        }
        let subject = Subject::new(&[&file]);
        let found = subject.obstacles(&Deleted);
        assert!(found.len() == 1 && found[0].why.contains("64 MiB"), "{found:?}");
        let error = subject.capture(&Deleted, || {}).unwrap_err().to_string();
        assert!(error.contains("64 MiB"), "{error}");
    }

    #[test]
    fn mapped_content_is_saved_with_memory() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"elsewhere", 0).unwrap();
        let mut subject = Subject::new(&[&file]);
        let mut envelopes = subject.capture(&Deleted, || {}).unwrap();
        let object = tempfile::tempfile().unwrap();
        subject
            .objects
            .insert(rustix::fs::fstat(&file).unwrap().st_ino, OwnedFd::from(object.try_clone().unwrap()));
        let built = subject.build(&Deleted, &envelopes, &[]).unwrap();
        assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_ino, rustix::fs::fstat(&object).unwrap().st_ino);
        subject.objects.clear();
        let mut payload: FilePayload = crate::error::decode(NAME, &envelopes[0].payload).unwrap();
        payload.nameless.as_mut().unwrap().content = None;
        envelopes[0].payload = prost::Message::encode_to_vec(&payload);
        let error = subject.build(&Deleted, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
    }
}
