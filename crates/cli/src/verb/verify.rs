//! The command `undying verify IMAGE`: checks an image.
//!
//! Owns: the progress bar, and the text of the result.
//! Does not: check the image; `guardian` does.

use std::io::IsTerminal;

use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use model::ByteCount;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "verify",
    about: "Read and check every byte of an image",
    arguments: |command| command.arg(parse::image()),
    run,
};

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let store = parse::given_store(matches)?;
    let image = parse::given_image(matches);
    let report = if std::io::stderr().is_terminal() {
        let bar = bar();
        let report = guardian::verify(&store, &image, &|done, total| {
            bar.set_length(total.get());
            bar.set_position(done.get());
        });
        bar.finish_and_clear();
        report?
    } else {
        guardian::verify(&store, &image, &|done, total| {
            if done == ByteCount(0) {
                print::say(format_args!("verifying {image}: {}", print::bytes(total.get())));
            }
        })?
    };
    let size = print::bytes(report.bytes);
    print::line(format_args!(
        "{image} is whole: {} records, {} pages, {size} checked",
        report.records, report.pages
    ))?;
    Ok(0)
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
