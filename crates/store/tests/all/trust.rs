//! Tests that objects that another user owns, can write or has planted are refused before they are opened. Other
//! subjects of the store remain usable.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{ByteCount, PageCount, Sequence};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use store::{
    Base, BufferStock, CheckpointSink, Error, ImageReader, LogOptions, StorageService, Store, SubjectName,
    Urgency, trust,
};

use crate::common::{append, meta, options, records, verify, write_image};

use undying_store as store;

/// The uid of an account that owns no files.
const NOBODY: u32 = 65_534;

/// The time limit of a test: much longer than a refusal, and much shorter than a hang.
const LIMIT: Duration = Duration::from_secs(20);

struct Scratch {
    directory: tempfile::TempDir,
    store: Store,
}

impl Scratch {
    /// Creates a store with an image of `good`, an image of `bad`, and a log of `logged`.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store")).unwrap();
        for name in ["good", "bad"] {
            let writer = store.begin(&subject(name), Sequence(1), options()).unwrap();
            append(&writer, 0, 0, &[7; 20]).unwrap();
            writer.finish(&records(), meta(1)).unwrap();
        }
        write_log(&store, "logged", 1);
        Self { directory, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.store.root().join(name)
    }

    fn segment(&self) -> PathBuf {
        let entries = fs::read_dir(self.path("logged/log")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.remove(0)
    }

    /// Checks that the untouched subject can be listed and verified, and that `garbage` reports the damaged subjects.
    fn others_go_on(&self, damaged: &[&str]) {
        assert_eq!(self.store.list(&subject("good")).unwrap().len(), 1);
        self.store.read(&self.store.resolve("good").unwrap()).unwrap().verify(|_| ()).unwrap();
        let garbage = self.store.garbage(false).unwrap();
        let found: Vec<&str> = garbage.damaged.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, damaged, "{garbage:?}");
    }
}

fn subject(name: &str) -> SubjectName {
    name.parse().unwrap()
}

fn write_log(store: &Store, name: &str, sequence: u64) {
    let options = LogOptions {
        segment: ByteCount(1 << 20),
        buffers: 3.try_into().unwrap(),
        service: StorageService::new(BufferStock::new(PageCount(16))),
        ..LogOptions::default()
    };
    let log = store.open_log(&subject(name), options).unwrap();
    let epoch = log.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let mut batch = epoch.pool().buffer().unwrap();
    batch.push(image::SpaceId(0), model::Address(0), PageCount(3)).unwrap().fill(7);
    epoch.append(batch).unwrap();
    epoch.commit(records(), meta(sequence)).unwrap().wait().unwrap();
    log.close().unwrap();
}

/// Calls a function in another thread and returns its error. A call that blocks fails the test instead of hanging it.
fn refused<T: Send + 'static>(call: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Error {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call().map(drop)));
    receiver.recv_timeout(LIMIT).expect("the call blocks").expect_err("it was accepted")
}

/// Replaces a file by another kind of object. Returns false and prints the reason if this is not permitted.
fn plant(kind: &str, path: &Path) -> bool {
    let _ = fs::remove_file(path);
    let mode = Mode::RUSR | Mode::WUSR;
    match kind {
        "FIFO" => mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap(),
        // The device is /dev/zero: reading it to the end would never finish.
        "device" => match mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(1, 5)) {
            Err(Errno::PERM) => {
                println!("unsupported: device nodes");
                return false;
            }
            outcome => outcome.unwrap(),
        },
        "directory" => fs::create_dir(path).unwrap(),
        "link" => symlink("/dev/zero", path).unwrap(),
        _ => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
    }
    true
}

/// Creates a leftover directory of a dead writer.
fn leftover(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("pages-0.seg"), [1; 100]).unwrap();
    path
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    for kind in ["FIFO", "device", "directory", "link", "socket"] {
        for name in ["commit", "records", "index", "pages-0.seg"] {
            let scratch = Scratch::new();
            let image = scratch.path("bad/1");
            if !plant(kind, &image.join(name)) {
                continue;
            }
            let begun = Instant::now();
            let error = refused({
                let image = image.clone();
                move || ImageReader::open(&image)
            });
            assert!(matches!(error, Error::WrongType { .. }) && error.is_damage(), "{kind} {name}: {error}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("help: "), "{text}");
            assert!(refused(move || verify(&image)).is_damage());
            assert!(begun.elapsed() < LIMIT);
        }
    }
}

#[test]
fn a_planted_segment_stops_its_own_subject_only() {
    for kind in ["FIFO", "device", "link"] {
        let scratch = Scratch::new();
        let segment = scratch.segment();
        if !plant(kind, &segment) {
            continue;
        }
        let store = scratch.store.clone();
        let error = refused(move || store.entries(&subject("logged")));
        assert!(matches!(error, Error::WrongType { .. }), "{kind}: {error}");
        scratch.others_go_on(&["logged"]);
    }
}

#[test]
fn what_others_may_write_is_refused() {
    let scratch = Scratch::new();
    for (path, mode) in [
        ("bad/1", 0o720),
        ("bad/1", 0o702),
        ("bad/1/commit", 0o620),
        ("bad/1/records", 0o602),
        ("bad/1/index", 0o620),
        ("bad/1/pages-0.seg", 0o606),
    ] {
        let path = scratch.path(path);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = ImageReader::open(&scratch.path("bad/1")).unwrap_err();
        assert!(matches!(error, Error::Writable { mode: found, .. } if found == mode), "{error}");
        assert!(error.is_damage() && error.to_string().contains("help: "), "{error}");
        fs::set_permissions(&path, before).unwrap();
    }
    ImageReader::open(&scratch.path("bad/1")).unwrap();
    fs::set_permissions(scratch.path("bad"), Permissions::from_mode(0o770)).unwrap();
    fs::set_permissions(scratch.path("logged/log"), Permissions::from_mode(0o702)).unwrap();
    for name in ["bad", "logged"] {
        let error = scratch.store.list(&subject(name)).unwrap_err();
        assert!(matches!(error, Error::Writable { .. }), "{name}: {error}");
    }
    assert!(scratch.store.begin(&subject("bad"), Sequence(2), options()).is_err(), "nor is it written to");
    scratch.others_go_on(&["bad", "logged"]);
}

#[test]
fn what_another_user_owns_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: changing owners");
        return;
    }
    let scratch = Scratch::new();
    for path in ["bad/1", "bad/1/commit", "bad/1/records", "bad/1/index", "bad/1/pages-0.seg"] {
        let path = scratch.path(path);
        chown(&path, Some(NOBODY), None).unwrap();
        let error = ImageReader::open(&scratch.path("bad/1")).unwrap_err();
        assert!(matches!(error, Error::Untrusted { owner: NOBODY, own: 0, .. }), "{error}");
        assert!(error.is_damage(), "{error}");
        assert!(error.to_string().contains("help: ") && error.to_string().contains("cp -r"), "{error}");
        chown(&path, Some(0), None).unwrap();
    }
    ImageReader::open(&scratch.path("bad/1")).unwrap();
    chown(scratch.path("bad"), Some(NOBODY), None).unwrap();
    chown(scratch.segment(), Some(NOBODY), None).unwrap();
    for name in ["bad", "logged"] {
        let error = scratch.store.entries(&subject(name)).unwrap_err();
        assert!(matches!(error, Error::Untrusted { .. }), "{name}: {error}");
    }
    scratch.others_go_on(&["bad", "logged"]);
    chown(scratch.store.root(), Some(NOBODY), None).unwrap();
    assert!(matches!(Store::open(scratch.store.root()), Err(Error::Untrusted { .. })));
}

#[test]
fn the_operators_own_links_lead_to_an_image_and_a_store() {
    let scratch = Scratch::new();
    let outside = scratch.directory.path();
    symlink(scratch.path("good/1"), outside.join("latest")).unwrap();
    symlink(scratch.store.root(), outside.join("linked")).unwrap();
    verify(&outside.join("latest")).unwrap();
    let store = Store::open(&outside.join("linked")).unwrap();
    store.read(&store.resolve("good").unwrap()).unwrap().verify(|_| ()).unwrap();
    store
        .read(&store.resolve(outside.join("latest").to_str().unwrap()).unwrap())
        .unwrap()
        .verify(|_| ())
        .unwrap();
    write_image(&outside.join("linked/good/2"), 2).unwrap();
    assert_eq!(store.list(&subject("good")).unwrap().len(), 2);
}

#[test]
fn a_file_that_may_have_to_be_created_is_checked_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    use std::io::Write;
    for _ in 0..2 {
        trust::open_or_create(&path, trust::Access::Append).unwrap().write_all(b"line\n").unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "line\nline\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    for kind in ["FIFO", "device", "link", "socket"] {
        if !plant(kind, &path) {
            continue;
        }
        for access in [trust::Access::Append, trust::Access::Write] {
            let path = path.clone();
            let error = refused(move || trust::open_or_create(&path, access));
            assert!(matches!(error, Error::WrongType { .. }), "{kind}: {error}");
        }
    }
}

#[test]
fn every_writer_sweeps_what_dead_writers_left_beside_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let leftover = |name: &str| leftover(folder.path().join(name));
    let dead: Vec<PathBuf> =
        (0..20).map(|number| leftover(&format!(".image-{number}.7-{number}.partial"))).collect();
    let foreign = leftover(".download.partial");
    let other = leftover(".other.7-1.partial");
    fs::write(other.join("report.txt"), "").unwrap();
    let live = store::ImageWriter::create(&folder.path().join("live"), options()).unwrap();
    write_image(&folder.path().join("image"), 1).unwrap();
    assert!(dead.iter().all(|path| !path.exists()), "leftovers under other names stay");
    assert!(foreign.exists() && other.exists(), "what is not ours stays");
    append(&live, 0, 0, &[1; 20]).unwrap();
    live.finish(&records(), meta(2)).unwrap();
    verify(&folder.path().join("live")).unwrap();
}

#[test]
fn every_writer_of_a_store_sweeps_all_subjects() {
    let scratch = Scratch::new();
    let dead = || ["bad", "logged"].map(|name| leftover(scratch.path(name).join(".9.7-1.partial")));
    let left = dead();
    drop(scratch.store.begin(&subject("good"), Sequence(5), options()).unwrap());
    assert!(left.iter().all(|path| !path.exists()), "an image");
    // `undying run` opens a log in the same way.
    let left = dead();
    write_log(&scratch.store, "new", 1);
    assert!(left.iter().all(|path| !path.exists()), "a log");
    write_log(&scratch.store, "logged", 2);
}

#[test]
fn a_copy_between_stores_sweeps_where_it_goes() {
    let scratch = Scratch::new();
    let image = scratch.path("good/1");
    let other = Store::open(&scratch.directory.path().join("other")).unwrap();
    let dead = |name: &str, number: u32| {
        fs::create_dir_all(other.root().join(name)).unwrap();
        fs::set_permissions(other.root().join(name), Permissions::from_mode(0o700)).unwrap();
        leftover(other.root().join(name).join(format!(".{number}.7-1.partial")))
    };
    // One leftover has the sequence number of the copy; the other leftover has another number.
    let linked = [dead("linked", 1), dead("linked", 9)];
    other.read(&other.link(&image, &subject("linked")).unwrap()).unwrap().verify(|_| ()).unwrap();
    let exported = dead("exported", 9);
    other.export(&image, &other.root().join("exported/1"), None).unwrap();
    other.read(&other.root().join("exported/1")).unwrap().verify(|_| ()).unwrap();
    // The leftover of a killed copy must not reserve the name.
    let kept = dead("kept", 1);
    other.read(&other.keep_copy(&image, &subject("kept")).unwrap()).unwrap().verify(|_| ()).unwrap();
    assert!(linked.iter().chain([&exported, &kept]).all(|path| !path.exists()));
    let again = other.keep_copy(&image, &subject("kept")).unwrap_err();
    assert!(matches!(again, Error::Exists { .. }), "{again}");
}
