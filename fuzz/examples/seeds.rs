//! Writes seeds from images: `seeds NAME DIRECTORY…`, a directory being an image or a log.
//!
//! Owns: the choice of what becomes a seed of which target.
//! Does not: shorten anything; give it small images.
#![forbid(unsafe_code)]

use std::path::Path;

use undying_fuzz::{kinds, of_kind, pack};

/// Longer files are pages, which no decoder looks into.
const BYTES_MAX: usize = 512 << 10;
/// Bytes of a block.
const BLOCK_BYTES: usize = 4096;

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for directory in words {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let (name, mut bytes) =
                (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?);
            // A segment has its whole length from the beginning.
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if name.ends_with(".seg") {
                bytes.truncate(used.next_multiple_of(BLOCK_BYTES).min(bytes.len()));
            }
            files.push((name, bytes));
        }
        files.sort();
        let is_log = files.iter().any(|(file, _)| file.ends_with(".seg") && !file.starts_with("pages"));
        write(&corpus.join(if is_log { "log" } else { "image" }), &name, &pack(&files))?;
        for (file, bytes) in files.iter().filter(|(file, _)| !file.contains(".seg")) {
            write(&corpus.join("parts"), &format!("{name}-{file}"), bytes)?;
            if file == "records" {
                write(&corpus.join("plan"), &name, bytes)?;
                write_kinds(&corpus.join("payloads"), &name, bytes)?;
            }
        }
    }
    Ok(())
}

/// Writes the records of each kind that has no seed yet, and of the kind whose victim the image is of.
fn write_kinds(folder: &Path, image: &str, bytes: &[u8]) -> std::io::Result<()> {
    let failed = |error: image::Error| std::io::Error::other(error.to_string());
    let records = image::RecordSet::decode(bytes).map_err(failed)?;
    for kind in kinds() {
        let name = kind.replace('/', "-");
        let Some(found) = of_kind(&records, kind) else { continue };
        if kind.replace('/', "_") == image || !folder.join(&name).exists() {
            write(folder, &name, &found.encode().map_err(failed)?)?;
        }
    }
    Ok(())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    if bytes.len() > BYTES_MAX {
        eprintln!("{name}: {} bytes are too many for a seed of {}", bytes.len(), folder.display());
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(name), bytes)
}
