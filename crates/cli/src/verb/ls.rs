//! The command `undying ls [NAME] [--json]`: lists subjects or checkpoints.
//!
//! Owns: the tables of subjects (protected process trees) and of checkpoints.
//! Does not: read a store; `guardian` does.

use std::time::Duration;

use clap::{Arg, ArgMatches};

use super::interface::Verb;
use crate::failure::{Failure, report_left_out};
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "ls",
    about: "List the subjects of the store, or the checkpoints of one",
    arguments: |command| command.arg(Arg::new("NAME").help("The subject")).arg(parse::json()),
    run,
};

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let store = parse::given_store(matches)?;
    let json = matches.get_flag("json");
    match matches.get_one::<String>("NAME") {
        Some(name) => {
            list_checkpoints(&guardian::checkpoints(&store, name)?, json)?;
            Ok(0)
        }
        None => {
            print::say_if_missing(&store);
            let found = guardian::subjects(&store)?;
            list_subjects(&found.rows, json)?;
            Ok(report_left_out(&found.failed))
        }
    }
}

fn list_subjects(subjects: &[guardian::SubjectRow], json: bool) -> std::io::Result<()> {
    if json {
        return print::json(&subjects);
    }
    let rows: Vec<Vec<String>> = subjects
        .iter()
        .map(|subject| {
            let newest = subject.seq.map_or("-".to_owned(), |sequence| sequence.to_string());
            let time = subject.time.clone().unwrap_or_else(|| "-".to_owned());
            let size = print::bytes(subject.bytes);
            let copy_of = subject.copy_of.clone().unwrap_or_default();
            vec![subject.name.clone(), subject.checkpoints.to_string(), newest, time, size, copy_of]
        })
        .collect();
    print::table(&["NAME", "CHECKPOINTS", "NEWEST", "TIME", "SIZE", "COPY OF"], &rows)
}

fn list_checkpoints(checkpoints: &[guardian::CheckpointRow], json: bool) -> std::io::Result<()> {
    if json {
        return print::json(&checkpoints);
    }
    let rows: Vec<Vec<String>> = checkpoints
        .iter()
        .map(|row| {
            if !row.committed {
                return vec![row.seq.to_string(), "not committed".to_owned()];
            }
            vec![
                row.seq.to_string(),
                row.kind.to_owned(),
                row.time.clone(),
                print::duration(Duration::from_micros(row.pause_us)),
                row.pages.to_string(),
                print::bytes(row.bytes),
                if row.files_exact { "rollback" } else { "compared" }.to_owned(),
            ]
        })
        .collect();
    print::table(&["SEQ", "KIND", "TIME", "PAUSE", "PAGES", "SIZE", "FILES"], &rows)
}
