//! The command `undying deaths [NAME] [--json]`: lists the deaths of subjects (protected process trees).
//!
//! Owns: the table of deaths.
//! Does not: find the causes of deaths; `guardian` does.

use std::time::Duration;

use clap::{Arg, ArgMatches};
use guardian::{DeathRow, History};

use super::interface::Verb;
use crate::failure::{Failure, report_left_out};
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "deaths",
    about: "List how subjects died and what followed",
    arguments: |command| command.arg(Arg::new("NAME").help("The subject")).arg(parse::json()),
    run,
};

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("NAME").map(String::as_str);
    let mut history = History::open(&parse::given_store(matches)?, name)?;
    let found = guardian::deaths(&history.read()?);
    if matches.get_flag("json") {
        print::json(&found)?;
        return Ok(report_left_out(&history.take_failed()));
    }
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    print::table(&["TIME", "NAME", "PID", "CAUSE", "FOLLOWED BY"], &rows)?;
    Ok(report_left_out(&history.take_failed()))
}

fn row(death: &DeathRow) -> Vec<String> {
    let cause = match (death.signal, death.exit) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(exit)) => format!("exit {exit}"),
        (None, None) => "not known".to_owned(),
    };
    let cause = match death.child {
        Some(child) => format!("signal {} of child {}", child.signal, child.pid),
        None => death.fault.map_or(cause, |fault| fault.to_string()),
    };
    let followed = match (death.seq, death.took_us) {
        (Some(sequence), Some(took)) => {
            let time = |us| print::duration(Duration::from_micros(us));
            let lost = death.age_us.map_or(String::new(), |age| format!(", the work of {} lost", time(age)));
            format!("{} at {sequence} after {}{lost}", death.followed_by, time(took))
        }
        _ => death.followed_by.to_string(),
    };
    let followed = match &death.why {
        Some(why) => format!("{followed}: {}", guardian::one_line(why)),
        None => followed,
    };
    vec![death.time.clone(), death.name.clone(), death.pid.to_string(), cause, followed]
}
