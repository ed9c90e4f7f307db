//! The page for browsers: its embedded files, and the keys that authorize its requests where client
//! certificates are not required. Reasons: `docs/decisions/0023-page.md`.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;

use edgesync_admin::cloud::PageInvitation;
use edgesync_api::{Caller, PageFile, PageKeys};
use edgesync_enrollment::pages::Keys;
use edgesync_object::status::Result;
use edgesync_object::time::rfc3339;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal: $media_type:ident = $file:literal;)*) => {
        &[$(($path, PageFile { media_type: $media_type, body: include_bytes!(concat!("page/site/", $file)) })),*]
    };
}

/// All files of the page, by their path below `/page/`.
const FILES: &[(&str, PageFile)] = files! {
    "": HTML = "index.html";
    "style.css": CSS = "style.css";
    "icon.svg": SVG = "icon.svg";
    "main.js": SCRIPT = "main.js";
    "api.js": SCRIPT = "api.js";
    "dom.js": SCRIPT = "dom.js";
    "fleet.js": SCRIPT = "fleet.js";
    "states.js": SCRIPT = "states.js";
    "charts.js": SCRIPT = "charts.js";
    "heatmap.js": SCRIPT = "heatmap.js";
    "overview.js": SCRIPT = "overview.js";
    "node.js": SCRIPT = "node.js";
    "objects.js": SCRIPT = "objects.js";
    "rollout.js": SCRIPT = "rollout.js";
    "waves.js": SCRIPT = "waves.js";
};

/// The page, if it is served.
#[derive(Clone)]
pub struct Page {
    keys: Arc<Keys>,
    /// Address at which browsers on this machine get it.
    address: Option<SocketAddr>,
}

impl Page {
    /// Creates a page with these keys, served without TLS at this address.
    pub fn new(keys: Keys, address: Option<SocketAddr>) -> Self {
        Self { keys: Arc::new(keys), address }
    }

    /// Returns the keys that authorize requests.
    pub fn keys(&self) -> Arc<dyn PageKeys> {
        Arc::clone(&self.keys) as Arc<dyn PageKeys>
    }

    /// Returns the URL with a key for this caller, and the key's expiry; `None` if the page is not
    /// served without certificates.
    pub(super) fn invitation(&self, caller: &Caller) -> Option<PageInvitation> {
        let address = self.address?;
        let (key, ends) = self.keys.sign(caller, Timestamp::now());
        let url = format!("http://{address}/page/#key={key}");
        Some(PageInvitation { url, role: caller.role.to_string(), expires: rfc3339(ends) })
    }

    /// Revokes all keys. Blocks on the disk.
    ///
    /// # Errors
    /// The new secret cannot be written; then the keys stay valid.
    pub(super) fn revoke_keys(&self) -> Result<()> {
        self.keys.revoke_all()
    }
}

/// Returns a file of the page by its path.
pub(super) fn file(path: &str) -> Option<PageFile> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, file)| *file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of all files together, in bytes.
    const BUDGET: usize = 90_000;

    fn text(path: &str) -> &'static str {
        std::str::from_utf8(file(path).unwrap().body).unwrap()
    }

    #[test]
    fn page_stays_within_its_size_budget() {
        let all: usize = FILES.iter().map(|(_, file)| file.body.len()).sum();
        assert!(all <= BUDGET, "{all} bytes of {BUDGET}");
    }

    #[test]
    fn page_files_reference_only_files_of_the_page() {
        for (path, file) in FILES.iter().filter(|(_, file)| file.media_type != SVG) {
            let text = std::str::from_utf8(file.body).unwrap();
            assert!(!text.contains("://"), "{path:?} names another place");
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let name = line.split("'./").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or(line);
                assert!(super::file(name).is_some(), "{path:?} imports {name:?}");
            }
        }
        for name in ["main.js", "style.css", "icon.svg"] {
            assert!(text("").contains(&format!("\"{name}\"")), "{name} is not in the page");
        }
    }

    #[test]
    fn scripts_never_parse_text_as_markup() {
        for (path, file) in FILES.iter().filter(|(_, file)| file.media_type == SCRIPT) {
            let text = std::str::from_utf8(file.body).unwrap();
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
            ] {
                assert!(!text.contains(way), "{path:?} has {way}");
            }
        }
        assert!(!text("").contains("<script>") && !text("").contains(" style=") && !text("").contains(" on"));
    }
}
