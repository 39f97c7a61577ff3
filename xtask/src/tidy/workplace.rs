//! Rule 16: no file contains a path of the machine or of the directory in which it was written.

use super::tree::Tree;
use super::{Report, Rule};

pub(super) struct Workplace;

impl Rule for Workplace {
    fn number(&self) -> u8 {
        16
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let needles = needles();
        for file in &tree.files {
            for (line, text) in file.lines() {
                for needle in needles.iter().filter(|needle| text.contains(needle.as_str())) {
                    let mend = "name a path of the reader's machine, or one relative to the tree";
                    report.add(&file.path, line, format!("names a workplace: `{needle}`"), mend);
                }
            }
        }
    }
}

/// Returns the forbidden texts. The texts are built at run time, so that this file does not contain them.
fn needles() -> [String; 2] {
    [format!("/{}/", "work"), format!(".{}", "library")]
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn a_workplace_is_found_in_any_file() {
        for needle in needles() {
            let text = format!("a\nsee {needle}x\n");
            assert_eq!(findings(&Workplace, &[("docs/a.md", &text)]).len(), 1, "{needle}");
        }
        assert!(findings(&Workplace, &[("docs/a.md", "work/ and /working/ in the library")]).is_empty());
    }
}
