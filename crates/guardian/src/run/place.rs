//! The place of the checkpoints of a subject in the store.
//!
//! Owns: the values that are needed to open the log again.
//! Does not: write checkpoints; `store` does.

use model::Sequence;
use store::{
    ImageReader, LogOptions, LogWriter, RetentionPolicy, SegmentCompression, StorageService, Store,
    SubjectName,
};

use super::request::RunRequest;
use crate::error::Result;

/// The place of the checkpoints: the values that are needed to open the log again.
#[derive(Clone, Debug)]
pub(super) struct Place {
    store: Store,
    name: SubjectName,
    options: LogOptions,
}

impl Place {
    pub(super) fn new(
        store: &Store,
        name: &SubjectName,
        request: &RunRequest,
        storage: &StorageService,
    ) -> Self {
        let compression =
            request.compression.map(|codec| SegmentCompression::new(codec, request.compress_after));
        let options = LogOptions {
            keep: RetentionPolicy::thinned(request.keep),
            size: request.store_max,
            compression,
            service: storage.clone(),
            ..LogOptions::default()
        };
        Self { store: store.clone(), name: name.clone(), options }
    }

    pub(super) fn open(&self) -> Result<LogWriter> {
        Ok(self.store.open_log(&self.name, self.options.clone())?)
    }

    pub(super) fn image(&self, sequence: Sequence) -> store::Result<ImageReader> {
        self.store.image(&self.name, sequence)
    }
}
