//! Compiles every victim and prints the paths of the programs, for machines without a compiler or with a slow one.
#![forbid(unsafe_code)]

use undying_testkit::{HarnessError, compile, victims};

fn main() -> Result<(), HarnessError> {
    for victim in victims()? {
        println!("{}", compile(&victim)?.display());
    }
    Ok(())
}
