//! The command `undying metrics [--listen ADDRESS]`: prints or serves metrics.
//!
//! Owns: the arguments of the command.
//! Does not: define or serve the metrics; `crate::metrics` does.

use clap::{Arg, ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::metrics::{self, Address};
use crate::{parse, print};

pub(super) struct Metrics;

impl Verb for Metrics {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn about(&self) -> &'static str {
        "Print the state of guarded subjects in the OpenMetrics format, or serve the metrics to Prometheus"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(
            Arg::new("listen")
                .long("listen")
                .value_name("ADDRESS")
                .value_parser(|text: &str| text.parse::<Address>())
                .help("Answer HTTP requests for /metrics at a path of a Unix socket or at a loopback address, as 127.0.0.1:9185"),
        )
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let store = parse::given_store(matches)?;
        if let Some(address) = matches.get_one::<Address>("listen") {
            let Err(error) = metrics::serve(address, &store);
            return Err(Failure::Listen(address.to_string(), error));
        }
        let found = guardian::status(&store, None)?;
        print::lines(metrics::text(&found.rows).trim_end())?;
        Ok(crate::failure::report_left_out(&found.failed))
    }
}
