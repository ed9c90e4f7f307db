//! Reads and writes of single objects: quorum reads, and writes with preconditions.

use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};

use super::access::{Cluster, Unserved};
use super::api_discovery;
use super::kind_watch::KindWatch;
use edgesync_enrollment::object_store::{Failure, Follow, ObjectStore, Pending, Precondition, WatchEvent};
use edgesync_object::name::check_url_segment;
use edgesync_object::{Object, ObjectKey, Resource};

/// Field manager in `metadata.managedFields`.
const MANAGER: &str = "edgesync-cloud";
/// Page size of list requests.
const PAGE: u32 = 500;

impl Cluster {
    /// Returns the current object, if it exists. A kind that is not served has none.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Failure> {
        let key = || resource.key(namespace, name);
        let got = self.named(resource, namespace, name)?.get_opt(name).await;
        match got.map_err(|error| self.failure(&error, key()))? {
            Some(object) => read(resource, object).map(Some),
            None => Ok(None),
        }
    }

    /// Lists all objects of a kind that match a label selector, in a namespace or in all. The pages
    /// form one consistent snapshot.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<Object>, Failure> {
        let mut objects = Vec::new();
        let mut next = None;
        loop {
            let (page, more) = self.page(resource, namespace, selector, next.as_deref()).await?;
            objects.extend(page);
            if more.is_none() {
                return Ok(objects);
            }
            next = more;
        }
    }

    /// Returns one page of a list, and the continue token of the next page if there is one.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn page(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &str,
        from: Option<&str>,
    ) -> Result<(Vec<Object>, Option<String>), Failure> {
        let namespace = namespace.unwrap_or_default();
        let mut parameters = ListParams::default().limit(PAGE);
        if !selector.is_empty() {
            parameters = parameters.labels(selector);
        }
        if let Some(from) = from {
            parameters = parameters.continue_token(from);
        }
        let page = self.api(resource, namespace)?.list(&parameters).await;
        let page = page.map_err(|error| self.failure(&error, resource.key(namespace, "")))?;
        let objects = page.items.into_iter().map(|object| read(resource, object));
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        Ok((objects.collect::<Result<_, _>>()?, next))
    }

    /// Lists the metadata of all objects of a kind in a namespace that match a label selector.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn list_metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Object>, Failure> {
        let api = self.api(resource, namespace)?;
        let mut objects = Vec::new();
        let mut parameters = ListParams::default().limit(PAGE).labels(selector);
        loop {
            let page = api.list_metadata(&parameters).await;
            let page = page.map_err(|error| self.failure(&error, resource.key(namespace, "")))?;
            for item in page.items {
                let object = json!({
                    "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": item.metadata,
                });
                let object = serde_json::from_value(object);
                objects.push(object.map_err(|error| Failure::Invalid(error.to_string()))?);
            }
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => parameters = parameters.continue_token(&next),
                None => return Ok(objects),
            }
        }
    }

    /// Creates an object. The server drops the status of a kind with the `status` subresource.
    ///
    /// # Errors
    /// [`Failure::Conflict`] if the name exists.
    pub async fn create(&self, resource: &Resource, object: &Object) -> Result<Object, Failure> {
        let (api, key) =
            (self.api(resource, object.namespace())?, resource.key(object.namespace(), object.name()));
        let made = api.create(&parameters(), &self.write(object)?).await;
        read(resource, made.map_err(|error| self.failure(&error, key))?)
    }

    /// Replaces an object; with a `resourceVersion`, as compare-and-swap. The status is treated as
    /// in [`Self::create`].
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn replace(&self, resource: &Resource, object: &Object) -> Result<Object, Failure> {
        let (namespace, name) = (object.namespace(), object.name());
        let (api, key) = (self.named(resource, namespace, name)?, resource.key(namespace, name));
        let replaced = api.replace(name, &parameters(), &self.write(object)?).await;
        read(resource, replaced.map_err(|error| self.failure(&error, key))?)
    }

    /// Replaces only the status of an object, through the `status` subresource.
    ///
    /// # Errors
    /// See [`Failure`]; also [`Failure::NotFound`] if the kind has no such subresource.
    pub(crate) async fn replace_status(
        &self,
        resource: &Resource,
        object: &Object,
    ) -> Result<Object, Failure> {
        let (namespace, name) = (object.namespace(), object.name());
        let (api, key) = (self.named(resource, namespace, name)?, resource.key(namespace, name));
        let replaced = api.replace_status(name, &parameters(), &self.write(object)?).await;
        read(resource, replaced.map_err(|error| self.failure(&error, key))?)
    }

    /// Applies a merge patch (RFC 7386) if the precondition holds.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn merge(
        &self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        precondition: Precondition<'_>,
        mut patch: Value,
    ) -> Result<Object, Failure> {
        let required = [("uid", precondition.uid), ("resourceVersion", precondition.version)];
        let required = required.into_iter().filter_map(|(field, value)| Some((field, value?)));
        required.for_each(|(field, value)| patch["metadata"][field] = json!(value));
        let api = self.named(resource, namespace, name)?;
        let changed = api.patch(name, &by_this_program(), &Patch::Merge(&patch)).await;
        read(resource, changed.map_err(|error| self.failure(&error, resource.key(namespace, name)))?)
    }

    /// Deletes an object if the precondition holds. Returns whether it existed.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn delete(
        &self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        precondition: Precondition<'_>,
    ) -> Result<bool, Failure> {
        let Precondition { uid, version } = precondition;
        let preconditions =
            Preconditions { uid: uid.map(str::to_owned), resource_version: version.map(str::to_owned) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = self.named(resource, namespace, name)?.delete(name, &parameters).await;
        match deleted.map_err(|error| self.failure(&error, resource.key(namespace, name))) {
            Ok(_) => Ok(true),
            Err(Failure::NotFound(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the requests for a kind, in a namespace or in all.
    ///
    /// The client library writes kinds, namespaces and names into paths as they are. A name such as
    /// `?x` would turn the read of an object into a list, and `..` reach another kind: none of them
    /// leaves this function.
    ///
    /// # Errors
    /// [`Failure::Invalid`] for a part that is no segment of a path.
    fn api(&self, resource: &Resource, namespace: &str) -> Result<Api<DynamicObject>, Failure> {
        let required = [("API version", &*resource.version), ("plural", &*resource.plural)];
        let optional = [("API group", &*resource.group), ("namespace", namespace)];
        let optional = optional.into_iter().filter(|(_, part)| !part.is_empty());
        required.into_iter().chain(optional).try_for_each(|(what, part)| check_segment(what, part))?;
        let kind = api_discovery::api_resource(resource);
        Ok(match namespace {
            "" => Api::all_with(self.client.clone(), &kind),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &kind),
        })
    }

    /// Returns the requests for one object; see [`Self::api`].
    fn named(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Api<DynamicObject>, Failure> {
        check_segment("name", name)?;
        self.api(resource, namespace)
    }

    fn write(&self, object: &Object) -> Result<DynamicObject, Failure> {
        let object = serde_json::to_value(object).and_then(serde_json::from_value);
        object.map_err(|error| Failure::Invalid(error.to_string()))
    }

    fn failure(&self, error: &kube::Error, key: ObjectKey) -> Failure {
        let kube::Error::Api(status) = error else { return unserved(&self.unserved(error)) };
        match status.code {
            404 => Failure::NotFound(key),
            409 => Failure::Conflict(key),
            403 => Failure::Forbidden(status.message.clone()),
            400 | 413 | 415 | 422 => Failure::Invalid(status.message.clone()),
            _ => unserved(&self.unserved(error)),
        }
    }
}

fn check_segment(what: &str, part: &str) -> Result<(), Failure> {
    check_url_segment(part).map_err(|problem| Failure::Invalid(format!("{what} {problem}")))
}

/// Converts an object and sets `apiVersion` and `kind`, which items of a list lack.
pub(super) fn read(resource: &Resource, object: DynamicObject) -> Result<Object, Failure> {
    let mut object = serde_json::to_value(object).map_err(|error| Failure::Invalid(error.to_string()))?;
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
    serde_json::from_value(object).map_err(|error| Failure::Invalid(error.to_string()))
}

fn by_this_program() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn parameters() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn unserved(unserved: &Unserved) -> Failure {
    Failure::Unserved(unserved.to_string())
}

impl ObjectStore for Cluster {
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> Pending<'a, Result<Option<Object>, Failure>> {
        Box::pin(self.get(resource, namespace, name))
    }

    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: Option<&'a str>,
        selector: &'a str,
    ) -> Pending<'a, Result<Vec<Object>, Failure>> {
        Box::pin(self.list(resource, namespace, selector))
    }

    fn create<'a>(
        &'a self,
        resource: &'a Resource,
        object: &'a Object,
    ) -> Pending<'a, Result<Object, Failure>> {
        Box::pin(self.create(resource, object))
    }

    fn replace<'a>(
        &'a self,
        resource: &'a Resource,
        object: &'a Object,
    ) -> Pending<'a, Result<Object, Failure>> {
        Box::pin(self.replace(resource, object))
    }

    fn merge<'a>(
        &'a self,
        resource: &'a Resource,
        key: (&'a str, &'a str),
        precondition: Precondition<'a>,
        patch: Value,
    ) -> Pending<'a, Result<Object, Failure>> {
        Box::pin(self.merge(resource, key, precondition, patch))
    }

    fn delete<'a>(
        &'a self,
        resource: &'a Resource,
        key: (&'a str, &'a str),
        precondition: Precondition<'a>,
    ) -> Pending<'a, Result<bool, Failure>> {
        Box::pin(self.delete(resource, key, precondition))
    }

    fn follow(&self, resource: &Resource, namespace: &str, selector: &str) -> Box<dyn Follow> {
        Box::new(self.follow(resource, namespace, selector))
    }
}

impl Follow for KindWatch {
    fn next(&mut self) -> Pending<'_, WatchEvent> {
        Box::pin(Self::next(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;

    /// The server is unreachable, so a request that is sent fails otherwise.
    #[tokio::test]
    async fn parts_of_a_path_that_change_the_request_are_refused() {
        let cluster = Cluster::at(kube::Config::new("http://127.0.0.1:1".parse().unwrap()));
        let map = kinds::guess("v1", "ConfigMap", true);
        let is_invalid = |result: Result<Option<Object>, Failure>| matches!(result, Err(Failure::Invalid(_)));
        assert!(!is_invalid(cluster.get(&map, "default", "settings").await), "a request is sent");
        for name in ["", "?x=1", "../secrets/edgesync-ca", "a/b", "..", "%2e%2e", "a#", "a b"] {
            assert!(is_invalid(cluster.get(&map, "default", name).await), "{name}");
            let mut object = Object::from(serde_json::Map::new());
            object.set_metadata("name", name);
            for written in [cluster.replace(&map, &object).await, cluster.replace_status(&map, &object).await]
            {
                assert!(matches!(written, Err(Failure::Invalid(_))), "{name}: {written:?}");
            }
            let key = ("default", name);
            let deleted = cluster.delete(&map, key, Precondition::default()).await;
            assert!(matches!(deleted, Err(Failure::Invalid(_))), "{name}: {deleted:?}");
            let merged = cluster.merge(&map, key, Precondition::default(), json!({})).await;
            assert!(matches!(merged, Err(Failure::Invalid(_))), "{name}: {merged:?}");
        }
        for namespace in ["../../..", "a/b", "a?b"] {
            assert!(is_invalid(cluster.get(&map, namespace, "a").await), "{namespace}");
            let list = cluster.list(&map, Some(namespace), "").await;
            assert!(matches!(list, Err(Failure::Invalid(_))), "{namespace}: {list:?}");
        }
        let kind = "x/../../../api/v1/secrets";
        for kind in
            [Resource { plural: kind.into(), ..map.clone() }, Resource { version: kind.into(), ..map }]
        {
            assert!(is_invalid(cluster.get(&kind, "default", "a").await), "{kind:?}");
        }
    }
}
