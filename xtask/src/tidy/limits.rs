//! Rule 12, second half: `docs/limits.md` has a row for every refusal that a victim (test program) demonstrates. Every
//! row has its victim.
//!
//! Owns: the comparison of `testkit/victims/refuse_*.c` with the first column of the table.
//! Does not: run the victims; the tests do.

use super::tree::Tree;
use super::{Report, Rule};

const LIMITS: &str = "docs/limits.md";
const VICTIMS: &str = "testkit/victims/";
const PREFIX: &str = "refuse_";

pub(super) struct Limits;

impl Rule for Limits {
    fn number(&self) -> u8 {
        12
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let rows: Vec<(usize, &str)> = tree.file(LIMITS).map(|file| rows(&file.text)).unwrap_or_default();
        let victims: Vec<&str> = tree.files.iter().filter_map(|file| victim_of(&file.path)).collect();
        for victim in victims.iter().filter(|victim| !rows.iter().any(|(_, row)| row == *victim)) {
            let path = format!("{VICTIMS}{victim}.c");
            report.add(
                &path,
                1,
                format!("`{victim}` has no row in {LIMITS}"),
                "write what is refused and why",
            );
        }
        for (line, row) in rows.iter().filter(|(_, row)| !victims.contains(row)) {
            let mend = format!("write {VICTIMS}{row}.c, or remove the row");
            report.add(LIMITS, *line, format!("row `{row}` is proved by no victim"), mend);
        }
    }
}

fn victim_of(path: &str) -> Option<&str> {
    path.strip_prefix(VICTIMS)?.strip_suffix(".c").filter(|name| name.starts_with(PREFIX))
}

/// Returns the names in lines of the form ``| `refuse_…` |``, each with its line number.
fn rows(text: &str) -> Vec<(usize, &str)> {
    let row = |line: &'_ str| -> Option<(usize, usize)> {
        let start = line.find("| `refuse_")? + 3;
        Some((start, start + line[start..].find('`')?))
    };
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| row(line).map(|(start, end)| (index + 1, &line[start..end])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn a_refusal_and_its_row_belong_together() {
        let row = (LIMITS, "| program | what |\n|---|---|\n| `refuse_aio` | aio |\n");
        let victim = ("testkit/victims/refuse_aio.c", "int main(void) { return 0; }");
        assert!(findings(&Limits, &[row, victim]).is_empty());
        assert_eq!(findings(&Limits, &[row]).len(), 1);
        assert_eq!(findings(&Limits, &[victim]).len(), 1);
    }
}
