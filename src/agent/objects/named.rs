//! Objects in memory, sorted by name. Pure.

use std::sync::Arc;

use edgesync_api::{Cursor, Page, PageQuery, Stored};

/// Returns the index of a name, or where to insert it.
pub(super) fn position(items: &[Stored], name: &str) -> Result<usize, usize> {
    items.binary_search_by(|item| (*item.name).cmp(name))
}

/// The objects of one kind at one moment.
#[derive(Debug)]
pub(crate) struct SynthesizedList {
    pub(super) version: u64,
    pub(super) items: Arc<Vec<Stored>>,
}

impl SynthesizedList {
    pub(super) fn get(&self, name: &str) -> Option<Stored> {
        position(&self.items, name).ok().and_then(|at| self.items.get(at)).cloned()
    }

    pub(super) fn page(&self, query: &PageQuery) -> Page {
        let after = query.after.as_ref().map_or("", |cursor| &cursor.0);
        let mut page = Page::default();
        for item in self.items.iter() {
            let is_wanted = *item.name > *after
                && query.name.as_ref().is_none_or(|name| item.name == *name)
                && query.filter.as_ref().is_none_or(|filter| filter(item));
            if !is_wanted {
                continue;
            }
            if page.items.len() >= query.limit.max(1) {
                page.next = page.items.last().map(|last| Cursor(last.name.clone()));
                break;
            }
            page.items.push(item.clone());
        }
        page
    }
}
