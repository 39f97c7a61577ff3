//! A temporary store with one log, and helpers to inspect the directory of the log.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use model::{ByteCount, PageCount};
use store::{
    BufferStock, LogOptions, LogThreads, LogWriter, RetentionPolicy, SegmentCompression, SizeLimit,
    StorageService, Store, SubjectName,
};

use undying_store as store;

pub(crate) struct Scratch {
    _directory: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) name: SubjectName,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store")).unwrap();
        Self { _directory: directory, store, name: "subject".parse().unwrap() }
    }

    pub(crate) fn open(&self, options: LogOptions) -> LogWriter {
        self.store.open_log(&self.name, options).unwrap()
    }

    pub(crate) fn image(&self, sequence: u64) -> PathBuf {
        self.store.root().join("subject").join(sequence.to_string())
    }

    pub(crate) fn listed(&self) -> Vec<u64> {
        self.store.list(&self.name).unwrap().into_iter().map(|(sequence, _)| sequence.0).collect()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.store.root().join("subject/log")
    }

    /// Returns the number of files in the log directory whose names end with `suffix`.
    pub(crate) fn files(&self, suffix: &str) -> usize {
        let entries = std::fs::read_dir(self.log()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with(suffix)).count()
    }

    /// Returns the format version of the last written root.
    pub(crate) fn newest_root_version(&self) -> u32 {
        let entries = std::fs::read_dir(self.log()).unwrap();
        let plain = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "seg");
        let mut segments: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(plain).collect();
        segments.sort();
        let magic = b"\x89undyT\r\n";
        // The newest segment may contain slots but no root yet.
        let root = segments.iter().rev().find_map(|path| {
            let bytes = std::fs::read(path).unwrap();
            let root = bytes.windows(magic.len()).rposition(|window| window == magic)?;
            Some(bytes[root + 8..root + 12].to_vec())
        });
        u32::from_le_bytes(root.unwrap().try_into().unwrap())
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        let entries = std::fs::read_dir(self.log()).unwrap();
        // Another thread may remove an entry meanwhile.
        entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
    }
}

pub(crate) fn options() -> LogOptions {
    LogOptions {
        buffers: NonZeroUsize::new(4).unwrap(),
        service: StorageService::new(BufferStock::new(PageCount(16))),
        segment: ByteCount(1 << 18),
        keep: RetentionPolicy::newest(3),
        size: SizeLimit::None,
        wasted_max: PageCount(8),
        compression: None,
        threads: LogThreads::Own,
    }
}

/// Returns options that compress segments as soon as they are full.
pub(crate) fn compressing(codec: &str) -> LogOptions {
    let codec = store::codec(codec).unwrap();
    LogOptions { compression: Some(SegmentCompression::new(codec, Duration::ZERO)), ..options() }
}
