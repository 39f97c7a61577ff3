//! The command `undying metrics [--listen ADDRESS]`: prints or serves metrics.
//!
//! Owns: the arguments of the command.
//! Does not: define or serve the metrics; `crate::metrics` does.

use clap::{ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::metrics::{self, Address};
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "metrics",
    about: "Print the state of guarded subjects in the OpenMetrics format, or serve the metrics to Prometheus",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        parse::option("listen", "ADDRESS", "Answer HTTP requests for /metrics at a path of a Unix socket or at a loopback address, as 127.0.0.1:9185")
            .value_parser(|text: &str| text.parse::<Address>()),
    )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let store = parse::given_store(matches)?;
    if let Some(address) = matches.get_one::<Address>("listen") {
        let Err(error) = metrics::serve(address, &store);
        return Err(Failure::Listen(address.to_string(), error));
    }
    let found = guardian::status(&store, None)?;
    print::lines(metrics::text(&found.rows).trim_end())?;
    Ok(crate::failure::report_left_out(&found.failed))
}
