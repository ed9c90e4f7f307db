//! Resolves a kind, as typed or as in a manifest, to its resource: from the built-in table first,
//! then from the server.

use tokio::sync::OnceCell;

use super::CliError;
use edgesync_admin::Route;
use edgesync_api::{Client, ClientError};
use edgesync_object::{Resource, kinds};

/// Resolver of kinds; queries the server at most once.
pub struct Kinds<'a> {
    client: &'a Client,
    served: OnceCell<Vec<Resource>>,
}

impl<'a> Kinds<'a> {
    /// Creates a resolver that queries this server.
    #[must_use]
    pub fn new(client: &'a Client) -> Self {
        Self { client, served: OnceCell::new() }
    }

    /// Resolves a word: `cm`, `ConfigMap`, `deployments.apps`, `widgets.v1.example.com`.
    ///
    /// # Errors
    /// The word is unknown, or the query fails.
    pub async fn by_word(&self, word: &str) -> Result<Resource, CliError> {
        if let Some(known) = kinds::by_word(word) {
            return Ok(known.resource());
        }
        let found = self.served().await?.iter().find(|resource| matches_word(resource, word));
        found.cloned().ok_or_else(|| CliError::UnknownKind { word: word.to_owned() })
    }

    /// Resolves the kind of an object. An unknown one is derived from the name of the kind,
    /// namespaced if `has_namespace`.
    ///
    /// # Errors
    /// The query fails.
    pub async fn by_kind(
        &self,
        api_version: &str,
        kind: &str,
        has_namespace: bool,
    ) -> Result<Resource, CliError> {
        if let Some(known) = kinds::by_kind(api_version, kind) {
            return Ok(known.resource());
        }
        let same = |resource: &&Resource| resource.kind == kind && resource.api_version() == api_version;
        let served = self.served().await?.iter().find(same);
        Ok(served.cloned().unwrap_or_else(|| kinds::guess(api_version, kind, has_namespace)))
    }

    async fn served(&self) -> Result<&Vec<Resource>, ClientError> {
        let path = Route::Resources.path();
        self.served.get_or_try_init(|| self.client.get(&path)).await
    }
}

/// Returns whether a word denotes a resource that is not in the table.
fn matches_word(resource: &Resource, word: &str) -> bool {
    let (name, rest) = word.split_once('.').unwrap_or((word, ""));
    let named = resource.plural.eq_ignore_ascii_case(name) || resource.kind.eq_ignore_ascii_case(name);
    let with_version = format!("{}.{}", resource.version, resource.group);
    named
        && (rest.is_empty()
            || rest.eq_ignore_ascii_case(&resource.group)
            || rest.eq_ignore_ascii_case(&with_version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_kind_matches_kind_and_plural_with_or_without_group() {
        let widget = kinds::guess("example.com/v1", "Widget", true);
        for word in ["widget", "Widget", "widgets", "widgets.example.com", "widgets.v1.example.com"] {
            assert!(matches_word(&widget, word), "{word}");
        }
        for word in ["widgets.apps", "widgets.v2.example.com", "gadgets", "", "."] {
            assert!(!matches_word(&widget, word), "{word}");
        }
    }
}
