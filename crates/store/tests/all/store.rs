//! Tests of the store in a real directory: listing, choosing, pruning, sweeping and refusing images.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::Sequence;
use store::{BACKENDS, Error, Result, Store, SubjectName};

use crate::common::{append, meta, options, records, verify, write_image};

use undying_store as store;

struct Scratch {
    directory: tempfile::TempDir,
    store: Store,
    name: SubjectName,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("deep/store")).unwrap();
        Self { directory, store, name: "subject".parse().unwrap() }
    }

    fn subject(&self) -> PathBuf {
        self.store.root().join("subject")
    }

    fn write(&self, sequence: u64) -> Result<()> {
        let writer = self.store.begin(&self.name, Sequence(sequence), options())?;
        append(&writer, 0, 0, &[sequence as u8; 20])?;
        writer.finish(&records(), meta(sequence)).map(drop)
    }

    fn listed(&self) -> Vec<u64> {
        self.store.list(&self.name).unwrap().into_iter().map(|(sequence, _)| sequence.0).collect()
    }
}

#[test]
fn images_are_listed_in_order_and_pruned_from_the_oldest() {
    let scratch = Scratch::new();
    assert_eq!(scratch.store.next_sequence(&scratch.name).unwrap(), Sequence(1));
    assert!(scratch.store.newest(&scratch.name).unwrap().is_none());
    (1..=12).for_each(|sequence| scratch.write(sequence).unwrap());
    assert_eq!(scratch.listed(), (1..=12).collect::<Vec<_>>());
    assert_eq!(scratch.store.next_sequence(&scratch.name).unwrap(), Sequence(13));
    assert!(matches!(scratch.write(12), Err(Error::Exists { .. })));
    fs::write(scratch.subject().join("5/commit"), "").unwrap();
    let removed = scratch.store.prune(&scratch.name, 3).unwrap();
    assert_eq!(removed, (1..=9).map(Sequence).collect::<Vec<_>>());
    assert_eq!(scratch.listed(), [10, 11, 12]);
    assert_eq!(scratch.store.names().unwrap(), [scratch.name]);
}

#[test]
fn an_image_is_named_by_path_name_or_number() {
    let scratch = Scratch::new();
    (1..=2).for_each(|sequence| scratch.write(sequence).unwrap());
    let one_shot = scratch.directory.path().join("one-shot");
    write_image(&one_shot, 1).unwrap();
    let resolve = |spec: &str| scratch.store.resolve(spec);
    assert_eq!(resolve("subject").unwrap(), scratch.subject().join("2"));
    assert_eq!(resolve("subject@1").unwrap(), scratch.subject().join("1"));
    assert_eq!(resolve(one_shot.to_str().unwrap()).unwrap(), one_shot);
    assert!(matches!(resolve("subject@9"), Err(Error::NotFound { .. })));
    assert!(matches!(resolve("other"), Err(Error::NotFound { .. })));
    assert!(matches!(resolve("subject@x"), Err(Error::InvalidName { .. })));
    assert!(matches!(resolve(""), Err(Error::InvalidName { .. })));
    assert!(matches!(resolve("/nowhere"), Err(Error::NoPath { .. })));
    assert!(matches!(resolve(".."), Err(Error::NotCommitted { .. })));
}

#[test]
fn a_store_that_others_can_read_is_refused() {
    let scratch = Scratch::new();
    let root = scratch.store.root();
    assert_eq!(fs::metadata(root).unwrap().permissions().mode() & 0o7777, 0o700);
    for mode in [0o755, 0o750, 0o701, 0o710] {
        fs::set_permissions(root, fs::Permissions::from_mode(mode)).unwrap();
        let error = Store::open(root).unwrap_err();
        assert!(matches!(error, Error::Exposed { mode: found, .. } if found == mode), "{error}");
        assert!(error.to_string().contains("help: chmod 0700"), "{error}");
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap();
    Store::open(root).unwrap();
    let file = scratch.directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Store::open(&file), Err(Error::NotDirectory { .. })));
}

#[test]
fn a_scheme_chooses_the_backend() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    Store::open(Path::new(&format!("{}://{}", BACKENDS[0].scheme, path.display()))).unwrap();
    assert!(path.is_dir());
    assert!(matches!(Store::open(Path::new("tape://x")), Err(Error::UnknownBackend { .. })));
}

#[test]
fn what_a_dead_writer_left_is_swept_and_a_live_one_is_not() {
    let scratch = Scratch::new();
    scratch.write(1).unwrap();
    let dead = scratch.subject().join(".2.1-0.partial");
    fs::create_dir(&dead).unwrap();
    fs::set_permissions(&dead, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(dead.join("pages-0.seg"), "half").unwrap();
    let strange = scratch.subject().join(".keep");
    fs::create_dir(&strange).unwrap();
    let live = scratch.store.begin(&scratch.name, Sequence(2), options()).unwrap();
    assert!(!dead.exists());
    assert_eq!(scratch.store.sweep(&scratch.name).unwrap(), 0, "the live one is locked");
    append(&live, 0, 0, &[1; 50]).unwrap();
    live.finish(&records(), meta(2)).unwrap();
    assert!(strange.exists(), "what is not ours stays");
    assert_eq!(scratch.listed(), [1, 2]);
}

#[test]
fn nothing_is_swept_through_a_symbolic_link() {
    let scratch = Scratch::new();
    scratch.write(1).unwrap();
    let precious = scratch.directory.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    std::os::unix::fs::symlink(&precious, scratch.subject().join(".2.1-0.partial")).unwrap();
    assert_eq!(scratch.store.sweep(&scratch.name).unwrap(), 0);
    let medium = store::Directory::default();
    let through = scratch.subject().join(".2.1-0.partial");
    assert!(store::Medium::lock(&medium, &through).is_err());
    assert!(store::Medium::remove_file(&medium, &through.join("file")).is_err());
    assert!(precious.join("file").exists());
}

#[test]
fn a_reader_keeps_an_image_that_is_pruned_meanwhile() {
    let scratch = Scratch::new();
    (1..=2).for_each(|sequence| scratch.write(sequence).unwrap());
    let image = scratch.store.read(&scratch.store.get(&scratch.name, Sequence(1)).unwrap()).unwrap();
    scratch.store.prune(&scratch.name, 1).unwrap();
    assert!(!image.path().exists());
    image.load::<Error>(image.index().extents(), 2.try_into().unwrap(), |_| Ok(())).unwrap();
}

#[test]
fn readers_see_only_whole_images_while_a_writer_works() {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for sequence in 1..=60 {
                scratch.write(sequence).unwrap();
                scratch.store.prune(&scratch.name, 2).unwrap();
            }
        });
        while !writer.is_finished() {
            if let Some((sequence, path)) = scratch.store.newest(&scratch.name).unwrap() {
                match verify(&path) {
                    Ok(report) => assert_eq!(report.pages.0, 20, "{sequence}"),
                    // The image may be pruned after two more checkpoints, before it is opened.
                    Err(error) => assert!(
                        matches!(error, Error::NotCommitted { .. } | Error::NoPath { .. }),
                        "{sequence}: {error}"
                    ),
                }
            }
        }
    });
    assert_eq!(scratch.listed(), [59, 60]);
}

#[test]
fn a_full_file_system_gives_a_clean_error() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(scratch.path()) else {
        println!("unsupported: mounting a tmpfs");
        return;
    };
    let store = Store::open(&scratch.path().join("store")).unwrap();
    let name: SubjectName = "subject".parse().unwrap();
    let writer = store.begin(&name, Sequence(1), options()).unwrap();
    writer.finish(&records(), meta(1)).unwrap();
    let writer = store.begin(&name, Sequence(2), options()).unwrap();
    let result =
        append(&writer, 0, 0, &vec![7; 1000]).and_then(|()| writer.finish(&records(), meta(2)).map(drop));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Full(_)), "{error}");
    let subject = fs::read_dir(store.root().join("subject")).unwrap();
    assert_eq!(subject.count(), 1, "nothing of the second image stays");
    assert_eq!(store.newest(&name).unwrap().unwrap().0, Sequence(1));
    store.read(&store.get(&name, Sequence(1)).unwrap()).unwrap().verify(|_| ()).unwrap();
}

/// A mounted tmpfs of 1 MiB.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(at.to_path_buf()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_copy_is_no_subject_and_is_removed_as_one_only() {
    let scratch = Scratch::new();
    scratch.write(1).unwrap();
    scratch.write(2).unwrap();
    let store = &scratch.store;
    let name = |text: &str| text.parse::<SubjectName>().unwrap();
    let subject = store.names().unwrap().remove(0);
    let path = store.keep_copy(&store.resolve(subject.as_str()).unwrap(), &name("before")).unwrap();
    assert!(store.copy_of(&name("before")).unwrap().is_some());
    assert_eq!(store.copy_of(&name("nothing")).unwrap(), None);
    for taken in ["before", subject.as_str()] {
        let again = store.keep_copy(&path, &name(taken));
        assert!(matches!(again, Err(Error::Exists { .. })), "{taken}: {again:?}");
    }
    store.keep_copy(&path, &name("second")).unwrap();
    assert!(matches!(store.remove_copy(&name("nothing")), Err(Error::NotFound { .. })));

    let reader = store.read(&path).unwrap();
    store.remove_copy(&name("before")).unwrap();
    assert!(!store.root().join("before").exists());
    assert!(store.resolve("before").is_err());
    reader.load::<Error>(reader.index().extents(), std::num::NonZeroUsize::MIN, |_| Ok(())).unwrap();
    store.read(&store.resolve("second").unwrap()).unwrap().verify(|_| ()).unwrap();
}
