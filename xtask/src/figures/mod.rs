//! The generated tables of README.md and benches/results/RESULTS.md. Their data are the rows (result files) in
//! benches/results.
//!
//! Owns: the list of generated sections, with their data and their files.
//! Invariants: the text between the two marks of a section is generated. The text outside the marks is not changed.
//! Does not: measure anything.

mod clients;
mod comparison;
mod continuous;
mod pages;
mod programs;
mod rows;

use std::path::{Path, PathBuf};

use crate::failure::Failure;

const README: &str = "README.md";
const RESULTS: &str = "benches/results/RESULTS.md";

/// A section that is generated from rows.
struct Section {
    file: &'static str,
    name: &'static str,
    make: fn(&Path) -> Result<String, Failure>,
}

const SECTIONS: &[Section] = &[
    Section { file: README, name: "comparison", make: comparison::short },
    Section { file: README, name: "programs", make: programs::by_group },
    Section { file: README, name: "clients", make: clients::committed },
    Section { file: README, name: "continuous", make: continuous::short },
    Section { file: RESULTS, name: "comparison", make: comparison::whole },
    Section { file: RESULTS, name: "continuous", make: continuous::whole },
    Section { file: RESULTS, name: "programs", make: programs::all },
    Section { file: RESULTS, name: "pages", make: pages::list },
];

/// Returns the directory of the workspace, independent of the current directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes all sections below `root`. With `is_check`, writes nothing and returns whether all sections are up to date.
pub(crate) fn run(root: &Path, is_check: bool) -> Result<bool, Failure> {
    let mut is_good = true;
    for file in [README, RESULTS] {
        let path = root.join(file);
        let text = rows::read(&path)?;
        let mut new = text.clone();
        for section in SECTIONS.iter().filter(|section| section.file == file) {
            let made = (section.make)(root)?;
            new = replaced(&new, section.name, &made).ok_or_else(|| Failure::Rows {
                path: path.clone(),
                what: format!("no marks of {}", section.name),
            })?;
        }
        if new == text {
            continue;
        }
        is_good = false;
        if is_check {
            println!("{file}: out of date; `cargo xtask figures` writes it");
        } else {
            std::fs::write(&path, new).map_err(|source| Failure::Write { path, source })?;
            println!("{file}: written");
        }
    }
    Ok(is_good || !is_check)
}

/// Replaces the text between the marks of a section. Returns `None` if the marks are missing.
fn replaced(text: &str, name: &str, made: &str) -> Option<String> {
    let begin = format!("<!-- begin: {name}, written by cargo xtask figures -->");
    let from = text.find(&begin)? + begin.len();
    let to = from + text[from..].find("<!-- end -->")?;
    Some(format!("{}\n\n{}\n\n{}", &text[..from], made.trim_end(), &text[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_and_the_results_are_what_the_rows_say() {
        assert!(run(&root(), true).unwrap(), "run `cargo xtask figures`");
    }

    #[test]
    fn a_changed_row_is_found() {
        let root = root();
        let copy = tempfile::tempdir().unwrap();
        let results = copy.path().join("benches/results");
        std::fs::create_dir_all(&results).unwrap();
        std::fs::create_dir_all(copy.path().join("docs/operating")).unwrap();
        for file in [README, "docs/operating/channels.md"] {
            std::fs::copy(root.join(file), copy.path().join(file)).unwrap();
        }
        for entry in std::fs::read_dir(root.join("benches/results")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), results.join(entry.file_name())).unwrap();
        }
        assert!(run(copy.path(), true).unwrap());
        let path = results.join("checkpoint-restore.csv");
        let text = std::fs::read_to_string(&path).unwrap();
        let changed: String =
            text.lines().map(|line| line.replace("tiny,criu,", "tiny,criu,9") + "\n").collect();
        assert_ne!(changed, text);
        let doubled: String = changed.lines().map(|line| line.replacen(",4", ",94", 1) + "\n").collect();
        std::fs::write(&path, doubled).unwrap();
        assert!(!run(copy.path(), true).unwrap());
        assert!(run(copy.path(), false).unwrap(), "it is written");
        assert!(run(copy.path(), true).unwrap(), "and is up to date then");
    }

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let text = "a\n<!-- begin: x, written by cargo xtask figures -->\nold\n<!-- end -->\nb <!-- end -->";
        let new = replaced(text, "x", "new\n").unwrap();
        assert_eq!(
            new,
            "a\n<!-- begin: x, written by cargo xtask figures -->\n\nnew\n\n<!-- end -->\nb <!-- end -->"
        );
        assert_eq!(replaced(text, "y", "new"), None);
    }
}
