//! Checkpoint and restore from the command line, without the rest of the product; for work on the engine.
use std::path::Path;

use model::Pid;
use store::{ImageReader, ImageWriter, WriteOptions};
use undying_engine::{CheckpointOptions, RestoreOptions, checkpoint, restore};

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let outcome = match words[1].as_str() {
        "dump" => {
            let pid = Pid(words[2].parse().expect("a pid"));
            let options = CheckpointOptions { kill: words.len() > 4, ..CheckpointOptions::default() };
            ImageWriter::create(Path::new(&words[3]), WriteOptions::default())
                .map_err(undying_engine::EngineError::from)
                .and_then(|writer| checkpoint(pid, Box::new(writer), &options))
                .map(|report| eprintln!("{:?} {:?}", report.commit.timings, report.total))
        }
        _ => ImageReader::open(Path::new(&words[2]))
            .map_err(undying_engine::EngineError::from)
            .and_then(|reader| restore(reader, RestoreOptions::default()))
            .map(|restored| eprintln!("{restored:?}")),
    };
    if let Err(error) = outcome {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
