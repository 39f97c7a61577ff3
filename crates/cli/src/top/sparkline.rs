//! A series of values as one line of block characters.
//!
//! Owns: the choice of the characters.
//! Does not: interpret the values.

/// Blocks from one eighth of a line to a full line.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Formats the last `width` values. The newest value is at the right. The largest value is a full block, and zero is a
/// space.
pub(super) fn line(values: &[u64], width: usize) -> String {
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().copied().max().unwrap_or(0);
    let empty = " ".repeat(width - shown.len());
    let block = |value: u64| match value {
        0 => ' ',
        value => {
            // The level is rounded up, so that a small value is visible.
            let level = (u128::from(value) * BLOCKS.len() as u128).div_ceil(u128::from(most.max(1)));
            BLOCKS[(level as usize).clamp(1, BLOCKS.len()) - 1]
        }
    };
    empty + &shown.iter().map(|value| block(*value)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_scaled_to_the_largest_that_is_shown() {
        assert_eq!(line(&[0, 1, 4, 8], 4), " ▁▄█");
        assert_eq!(line(&[9, 1, 4, 8], 3), "▁▄█");
        assert_eq!(line(&[5], 3), "  █");
        assert_eq!(line(&[], 2), "  ");
        assert_eq!(line(&[1, u64::MAX], 2), "▁█");
    }
}
