//! Tests of all victims (test programs), one trial for each test and victim. `UNDYING_TEST_SEED` changes the moments of
//! the checkpoints.

mod common;
mod musl;
mod refusals;
mod restart;
mod restore;
mod sabotage;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let groups =
        [restart::trials(), restore::trials(), musl::trials(), refusals::trials(), sabotage::trials()];
    libtest_mimic::run(&Arguments::from_args(), groups.into_iter().flatten().collect()).exit_code()
}
