//! From a typed request to what the keeper of the objects does, and back to a response.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use hyper::Response;

use super::media::Format;
use super::objects::{Extension, ExtensionCall, Objects, Preconditions};
use super::request::{
    COLLECTION_METHODS, OBJECT_METHODS, Options, READ_METHODS, Refusal, Request, ResourcePath, Verb,
};
use super::response::{self, ResponseBody};
use crate::object::name::{check_label, check_subdomain};
use crate::object::status::{Cause, Result};
use crate::object::{Head, Object, Resource, Scope, Status};

/// The longest kind that is learnt, in bytes: that of a DNS label, because its plural becomes one.
const MAX_KIND: usize = 63;
/// The Kubernetes version whose rules the API follows; clients compare theirs with it.
const KUBERNETES_MINOR: &str = "33";

/// A body that is read when it is needed, and not at all if the request is refused before.
pub(super) trait ReadBody {
    /// Reads it whole.
    fn read(self) -> impl Future<Output = Result<Value>> + Send;
}

/// Answers a request.
pub(super) async fn answer<O: Objects, E: Extension>(
    objects: &Arc<O>,
    extension: &E,
    request: Request,
    format: Format,
    body: impl ReadBody,
) -> Result<Response<ResponseBody>, Refusal> {
    let value = match request {
        Request::Alive => return Ok(ok()),
        Request::Ready => {
            objects.ready()?;
            return Ok(ok());
        }
        Request::Version => version(),
        Request::Resources => json!(objects.resources()),
        Request::Extension { method, path, query } => {
            let body = body.read().await?;
            extension.call(ExtensionCall { method, path, query, body }).await?
        }
        Request::Objects { verb, path, options } => {
            return on_objects(objects, verb, path, options, format, body).await;
        }
    };
    Ok(response::text(200, format.media_type(), format.render_value(&value)?))
}

fn ok() -> Response<ResponseBody> {
    response::text(200, "text/plain; charset=utf-8", "ok".into())
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": format!("v1.{KUBERNETES_MINOR}.0+edgesync.{}", env!("CARGO_PKG_VERSION")),
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

async fn on_objects<O: Objects>(
    objects: &Arc<O>,
    verb: Verb,
    path: ResourcePath,
    options: Options,
    format: Format,
    body: impl ReadBody,
) -> Result<Response<ResponseBody>, Refusal> {
    let Some(resource) = objects.resource(&path.group, &path.version, &path.plural) else {
        if verb == Verb::Create {
            return Ok(create_unknown(objects, &path, format, body).await?);
        }
        return Err(Status::no_such_path().into());
    };
    check_served(&**objects, &resource, verb, &path)?;
    let namespace = path.namespace.unwrap_or_default();
    let name = path.name.unwrap_or_default();
    match verb {
        Verb::List => {
            let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
            Ok(response::list(objects, resource, namespace, options, format).await?)
        }
        Verb::Get => {
            let found = objects.get(&resource, &namespace, &name).await?;
            let found = found.ok_or_else(|| Status::not_found(&resource, &name))?;
            Ok(response::object(200, format, found)?)
        }
        Verb::Create => {
            let object = agree(&resource, &namespace, None, body.read().await?)?;
            Ok(response::object(201, format, objects.create(&resource, object).await?)?)
        }
        Verb::Update => {
            let object = agree(&resource, &namespace, Some(&name), body.read().await?)?;
            Ok(response::object(200, format, objects.replace(&resource, object).await?)?)
        }
        Verb::Delete => {
            let preconditions = preconditions(&body.read().await?)?;
            let deleted = objects.delete(&resource, &namespace, &name, &preconditions).await?;
            let head: Head<'_> = serde_json::from_str(&deleted).map_err(Status::internal)?;
            let status = Status::deleted(&resource, &name, &head.metadata.uid);
            Ok(response::status(&status, "", format))
        }
        Verb::Watch | Verb::Patch | Verb::DeleteCollection => Err(refuse(&resource, verb, READ_METHODS)),
    }
}

/// Whether a known resource is served under this path with this verb.
fn check_served(
    objects: &impl Objects,
    resource: &Resource,
    verb: Verb,
    path: &ResourcePath,
) -> Result<(), Refusal> {
    let everywhere = path.namespace.is_none();
    let misplaced = match resource.scope {
        Scope::Cluster => !everywhere,
        Scope::Namespaced => everywhere && path.name.is_some(),
    };
    if misplaced || path.subresource.is_some() {
        return Err(Status::no_such_path().into());
    }
    // Only reading works across namespaces; nothing but the listed verbs is known yet.
    let across = resource.scope == Scope::Namespaced && everywhere;
    let allow = match (objects.writable(resource), path.name.is_some()) {
        (false, _) => READ_METHODS,
        (true, _) if across => READ_METHODS,
        (true, false) => COLLECTION_METHODS,
        (true, true) => OBJECT_METHODS,
    };
    let known = !matches!(verb, Verb::Watch | Verb::Patch | Verb::DeleteCollection);
    if known && (!verb.writes() || allow != READ_METHODS) {
        return Ok(());
    }
    Err(refuse(resource, verb, allow))
}

fn refuse(resource: &Resource, verb: Verb, allow: &'static str) -> Refusal {
    Refusal { status: Status::method_not_allowed(resource, verb.as_str()), allow }
}

/// Creates the first object of a kind: only now is the kind known.
async fn create_unknown<O: Objects>(
    objects: &Arc<O>,
    path: &ResourcePath,
    format: Format,
    body: impl ReadBody,
) -> Result<Response<ResponseBody>> {
    let syntax = check_subdomain(&path.group).is_ok() || path.group.is_empty();
    if !syntax || check_label(&path.version).is_err() || check_label(&path.plural).is_err() {
        return Err(Status::no_such_path());
    }
    let body = body.read().await?;
    let kind = body.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !is_kind(kind) {
        let message = format!(
            "the kind {:?} in the data must be a CamelCase word of at most {MAX_KIND} letters and digits that is no list",
            kind.chars().take(64).collect::<String>()
        );
        return Err(Status::bad_request(message));
    }
    let scope = if path.namespace.is_some() { Scope::Namespaced } else { Scope::Cluster };
    let resource = Resource {
        group: path.group.clone(),
        version: path.version.clone(),
        kind: kind.to_owned(),
        plural: path.plural.clone(),
        scope,
    };
    let object = agree(&resource, path.namespace.as_deref().unwrap_or_default(), None, body)?;
    let resource = objects.learn(resource).await?;
    response::object(201, format, objects.create(&resource, object).await?)
}

fn is_kind(kind: &str) -> bool {
    kind.len() <= MAX_KIND
        && kind.starts_with(|first: char| first.is_ascii_uppercase())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && !kind.ends_with("List")
}

/// Checks that an object belongs to the path it was sent to, and fills in what the path says and the
/// object leaves out.
fn agree(resource: &Resource, namespace: &str, name: Option<&str>, body: Value) -> Result<Object> {
    let Value::Object(mut object) = body else {
        let message =
            if body.is_null() { "the body is empty: an object is needed" } else { "the body is no object" };
        return Err(Status::bad_request(message));
    };
    let api_version = resource.api_version();
    fill_in(&mut object, "apiVersion", &api_version).map_err(|sent| {
        Status::bad_request(format!(
            "the API version in the data ({sent}) does not match the expected API version ({api_version})"
        ))
    })?;
    fill_in(&mut object, "kind", &resource.kind).map_err(|sent| {
        Status::bad_request(format!(
            "the kind in the data ({sent}) does not match the expected kind ({})",
            resource.kind
        ))
    })?;
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else {
        let causes = vec![Cause::wrong_type("metadata", "must be an object")];
        return Err(Status::invalid(&resource.group, &resource.kind, name.unwrap_or_default(), causes));
    };
    let agrees = match resource.scope {
        Scope::Namespaced => fill_in(metadata, "namespace", namespace).is_ok(),
        Scope::Cluster => metadata.remove("namespace").is_none_or(|sent| sent.is_null() || sent == json!("")),
    };
    if !agrees {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message));
    }
    if let Some(name) = name {
        fill_in(metadata, "name", name).map_err(|sent| {
            Status::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            ))
        })?;
    }
    Ok(Object::from(object))
}

/// Sets a field that is missing or empty; one that says something else is returned as an error.
fn fill_in(object: &mut Map<String, Value>, field: &str, value: &str) -> Result<(), String> {
    match object.get(field) {
        Some(Value::String(sent)) if sent == value => Ok(()),
        None | Some(Value::Null) => {
            object.insert(field.to_owned(), json!(value));
            Ok(())
        }
        Some(Value::String(sent)) if sent.is_empty() => {
            object.insert(field.to_owned(), json!(value));
            Ok(())
        }
        Some(Value::String(sent)) => Err(sent.chars().take(64).collect()),
        Some(_) => Err("not a string".to_owned()),
    }
}

/// Reads the preconditions of `DeleteOptions`; no body has none.
fn preconditions(body: &Value) -> Result<Preconditions> {
    if body.get("dryRun").is_some_and(|run| !run.is_null() && run != &json!([])) {
        return Err(Status::bad_request("dryRun is not supported by this server"));
    }
    let read = |field: &str| match body.pointer(&format!("/preconditions/{field}")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(value)) => Ok(Some(value.clone())),
        Some(_) => Err(Status::bad_request(format!("preconditions.{field} must be a string"))),
    };
    if !(body.is_null() || body.is_object()) {
        return Err(Status::bad_request("the body of a delete must be DeleteOptions"));
    }
    Ok(Preconditions { uid: read("uid")?, resource_version: read("resourceVersion")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployments() -> Resource {
        Resource {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            scope: Scope::Namespaced,
        }
    }

    #[test]
    fn what_the_path_says_is_filled_in() {
        let object = agree(&deployments(), "ns", Some("d"), json!({"spec": 1})).unwrap();
        let expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "ns", "name": "d"}, "spec": 1
        });
        assert_eq!(Value::Object(object.into_fields()), expected);
        let nodes = Resource { scope: Scope::Cluster, ..deployments() };
        let object = agree(&nodes, "", None, json!({"metadata": {"namespace": "", "name": "n"}})).unwrap();
        assert_eq!(object.metadata(), json!({"name": "n"}).as_object());
    }

    #[test]
    fn an_object_that_belongs_elsewhere_is_refused() {
        let code = |body: Value| agree(&deployments(), "ns", Some("d"), body).unwrap_err().code;
        assert_eq!(code(json!({"apiVersion": "v1"})), 400);
        assert_eq!(code(json!({"kind": "Pod"})), 400);
        assert_eq!(code(json!({"kind": 7})), 400);
        assert_eq!(code(json!({"metadata": {"namespace": "other"}})), 400);
        assert_eq!(code(json!({"metadata": {"name": "other"}})), 400);
        assert_eq!(code(json!({"metadata": []})), 422);
        assert_eq!(code(json!([])), 400);
        assert_eq!(code(Value::Null), 400);
        let cluster = Resource { scope: Scope::Cluster, ..deployments() };
        assert_eq!(agree(&cluster, "", None, json!({"metadata": {"namespace": "x"}})).unwrap_err().code, 400);
    }

    #[test]
    fn delete_options_are_read_and_a_dry_run_is_not_taken_for_a_delete() {
        assert_eq!(preconditions(&Value::Null), Ok(Preconditions::default()));
        let options = json!({"kind": "DeleteOptions", "preconditions": {"uid": "u", "resourceVersion": "7"}});
        let expected = Preconditions { uid: Some("u".into()), resource_version: Some("7".into()) };
        assert_eq!(preconditions(&options), Ok(expected));
        assert_eq!(preconditions(&json!({"dryRun": ["All"]})).unwrap_err().code, 400);
        assert_eq!(preconditions(&json!({"preconditions": {"uid": 7}})).unwrap_err().code, 400);
        assert_eq!(preconditions(&json!([])).unwrap_err().code, 400);
    }

    #[test]
    fn kinds_that_can_be_learnt_are_words_and_no_lists() {
        assert!(is_kind("Widget2"));
        for bad in ["", "widget", "Wid get", "WidgetList", "Wídget", &"W".repeat(64)] {
            assert!(!is_kind(bad), "{bad}");
        }
    }
}
