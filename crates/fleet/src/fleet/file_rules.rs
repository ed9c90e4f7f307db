//! The file rules that nodes report, by their text: most nodes of a fleet share one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use edgesync_object::file_rules::FileRules;

/// Number of texts below which those that no node has any more are kept.
const MIN_TEXTS: usize = 64;

/// File rules of all nodes, each text once.
#[derive(Debug, Default)]
pub(super) struct SharedFileRules {
    by_text: HashMap<Box<str>, Weak<FileRules>>,
    /// Number of texts at which those without a node are removed.
    limit: usize,
}

impl SharedFileRules {
    /// Returns the rules of a text; `None` if it is empty or cannot be read.
    pub(super) fn get(&mut self, text: &str) -> Option<Arc<FileRules>> {
        if let Some(known) = self.by_text.get(text).and_then(Weak::upgrade) {
            return Some(known);
        }
        let rules = Arc::new(FileRules::parse(text)?);
        if self.by_text.len() >= self.limit {
            self.by_text.retain(|_, rules| rules.strong_count() > 0);
            self.limit = MIN_TEXTS.max(2 * self.by_text.len());
        }
        self.by_text.insert(text.into(), Arc::downgrade(&rules));
        Some(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_their_rules_and_unused_ones_are_dropped() {
        let mut shared = SharedFileRules::default();
        let kept = shared.get(r#"[{"names":["kept"]}]"#).unwrap();
        assert_eq!(shared.get(""), None);
        for number in 0..10 * MIN_TEXTS {
            assert!(shared.get(&format!(r#"[{{"names":["{number}"]}}]"#)).is_some());
        }
        assert!(shared.by_text.len() <= 2 * MIN_TEXTS);
        assert!(Arc::ptr_eq(&kept, &shared.get(r#"[{"names":["kept"]}]"#).unwrap()));
    }
}
