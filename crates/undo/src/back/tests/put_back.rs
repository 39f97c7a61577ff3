//! Tests of files that a rollback has moved aside, and that are put back later.

use super::*;

/// A file of an unprivileged user, which a rollback has moved aside from `folder/file`.
fn moved_aside() -> Option<Bench> {
    let mut bench = Bench::new()?;
    fs::set_permissions(bench.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for above in ["", "folder"] {
        bench.parent_of_user(above);
    }
    bench.name("folder/file");
    bench.write("folder/file", "new");
    std::os::unix::fs::chown(bench.path("folder/file"), Some(USER), Some(USER)).unwrap();
    fs::set_permissions(bench.path("folder/file"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(bench.back(0).unwrap().aside.len(), 1);
    Some(bench)
}

const USER: u32 = 65_534;

impl Bench {
    fn parent_of_user(&self, name: &str) {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }

    fn put_back(&self) -> Result<Option<MovedAside>> {
        put_back(&self.undo(), &self.path("folder/file"))
    }

    fn assert_not_put_back(&self, words: &str) {
        let (error, from) = (self.put_back().unwrap_err(), list_aside(&self.undo()).unwrap()[0].to.clone());
        let text = error.to_string();
        assert!(matches!(error, UndoError::NotPutBack { .. }) && text.contains(words), "{text}");
        assert!(text.contains(from.to_str().unwrap()) && from.exists(), "{text}");
    }
}

#[test]
fn a_moved_file_is_put_back_once_and_replaces_nothing() {
    let Some(bench) = moved_aside() else { return };
    bench.write("folder/file", "other");
    assert!(matches!(bench.put_back(), Err(UndoError::Taken { .. })));
    assert_eq!(bench.read("folder/file"), "other");
    fs::remove_file(bench.path("folder/file")).unwrap();
    // The directory is the former one, so its present permissions do not matter.
    std::os::unix::fs::chown(bench.path("folder"), Some(0), Some(0)).unwrap();
    assert!(bench.put_back().unwrap().is_some());
    let put = fs::metadata(bench.path("folder/file")).unwrap();
    assert_eq!((bench.read("folder/file").as_str(), put.mode() & 0o7777, put.uid()), ("new", 0o4755, USER));
    assert_eq!(bench.put_back().unwrap(), None);
}

#[test]
fn a_moved_file_is_put_back_through_no_link_and_into_no_directory_of_another_user() {
    let Some(bench) = moved_aside() else { return };
    let (folder, old, secured) = (bench.path("folder"), bench.path("old"), bench.path("secured"));
    fs::create_dir(&secured).unwrap();
    fs::rename(&folder, &old).unwrap();
    bench.assert_not_put_back("cannot be opened");
    symlink(&secured, &folder).unwrap();
    bench.assert_not_put_back("symbolic link");
    fs::remove_file(&folder).unwrap();
    // The user owns the directory above, and can therefore rename a directory of root.
    fs::rename(&secured, &folder).unwrap();
    bench.assert_not_put_back("may not create files");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::rename(&folder, &secured).unwrap();
    bench.parent_of_user("folder");
    assert!(bench.put_back().unwrap().is_some());
    assert_eq!(bench.read("folder/file"), "new");
}
