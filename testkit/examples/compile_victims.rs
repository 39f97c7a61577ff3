//! Compiles every victim (test program) and prints the paths of the programs. The output is for machines without a
//! compiler or with a slow compiler.
#![forbid(unsafe_code)]

use undying_testkit::{HarnessError, compile, victims};

fn main() -> Result<(), HarnessError> {
    for victim in victims()? {
        println!("{}", compile(&victim)?.display());
    }
    Ok(())
}
