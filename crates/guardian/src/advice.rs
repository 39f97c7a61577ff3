//! Advice about missing features, without the parts that this kernel already meets.
//!
//! Owns: the removal of a kernel version from an advice.
//! Does not: contain advice; the registry of features does.

/// The text between which an advice names a version, as in `use Linux 6.7 or later with CONFIG_USERFAULTFD`.
const BEFORE: &str = "Linux ";
const AFTER: &str = " or later";
/// The advice if the version of the kernel is all that an advice asks for.
const NEW_ENOUGH: &str = "this version of Linux has it: look for a seccomp filter, a security module or a kernel \
                          configuration that removes it";

/// Removes the advice to use a later kernel if the running kernel, of this release, is not earlier.
pub(crate) fn unmet(advice: &str, release: &str) -> String {
    let Some((start, end)) = version_in(advice)
        .filter(|(_, _, version)| *version <= of_release(release))
        .map(|found| (found.0, found.1))
    else {
        return advice.to_owned();
    };
    let (before, after) = (&advice[..start], &advice[end..]);
    let kept = |text: &str| text.trim_start_matches([',', ' ']).trim_start_matches("and ").to_owned();
    match before {
        "use " if after.is_empty() => NEW_ENOUGH.to_owned(),
        // The kernel is new enough, but may lack a part of its configuration.
        "use " if after.starts_with(" with ") => format!("use a kernel{after}"),
        "use " => kept(after),
        before => {
            let before = before.trim_end_matches(" on ").trim_end_matches(" or ").trim_end_matches(',');
            format!("{before}{after}")
        }
    }
}

/// Returns the range of the text about a version, and the version.
fn version_in(advice: &str) -> Option<(usize, usize, (u32, u32))> {
    let start = advice.find(BEFORE)?;
    let rest = &advice[start + BEFORE.len()..];
    let length = rest.find(AFTER)?;
    Some((start, start + BEFORE.len() + length + AFTER.len(), of_release(&rest[..length])))
}

/// Returns the first two numbers of a release, as in `6.18.44-generic`.
fn of_release(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use sys::features::REGISTRY;

    use super::*;

    #[test]
    fn a_kernel_that_is_new_enough_is_not_asked_for() {
        for (advice, unmet_here) in [
            ("use Linux 6.7 or later", NEW_ENOUGH),
            ("use Linux 6.7 or later with CONFIG_A and CONFIG_B", "use a kernel with CONFIG_A and CONFIG_B"),
            ("use Linux 6.7 or later, and run as root", "run as root"),
            ("use a kernel with CONFIG_A, or Linux 6.7 or later", "use a kernel with CONFIG_A"),
            ("run as root, on Linux 5.9 or later", "run as root"),
            ("run as root on Linux 6.14 or later, with files on ext4", "run as root, with files on ext4"),
            ("mount /proc", "mount /proc"),
        ] {
            assert_eq!(unmet(advice, "6.18.44-generic"), unmet_here);
            assert_eq!(unmet(advice, "5.4.0"), advice);
        }
    }

    #[test]
    fn no_feature_asks_a_new_kernel_for_a_later_one() {
        for entry in REGISTRY {
            let advice = unmet(entry.fix, "99.0");
            assert!(!advice.contains(AFTER) && !advice.starts_with([' ', ',']), "{}: {advice}", entry.name());
            assert!(!advice.ends_with([' ', ',']), "{}: {advice}", entry.name());
        }
    }
}
