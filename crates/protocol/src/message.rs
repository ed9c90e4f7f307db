//! Object messages in KubeEdge's shape (`header`, `route`, `content`) and their validation into a
//! [`Change`].
//!
//! This project's link omits `msg_id`, `timestamp` and `source` and adds `plural`, `scope` and
//! `supersedes`; a stock CloudCore does the opposite. One type serves both.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use edgesync_object::name::{self, Problem};
use edgesync_object::{
    Budget, Head, ObjectRef, Resource, ResourceVersion, Scope, check_reference, split_api_version,
};

use super::body::Body;
use super::change::{Change, Delete, Put, RejectReason, Rejected, Uid};
use super::digest::{Epoch, MessageDigest};

/// The header: message ids, timestamp and object version.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Header<'a> {
    /// The identity of the message, on links that acknowledge single messages.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<Cow<'a, str>>,
    /// The message that this one answers.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub parent_msg_id: Option<Cow<'a, str>>,
    /// Milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// The version of the object in `content`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub resourceversion: Option<Cow<'a, str>>,
    /// The newer version that this older one deliberately replaces.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Cow<'a, str>>,
}

/// The route: operation and object.
#[derive(Debug, Serialize, Deserialize)]
pub struct Route<'a> {
    /// The module that sends the message.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Cow<'a, str>>,
    /// The addressed module group.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Cow<'a, str>>,
    /// `insert`, `update` or `delete`.
    #[serde(borrow)]
    pub operation: Cow<'a, str>,
    /// `<namespace>/<type>/<name>`, the type in lower case, the namespace `null` for cluster scope.
    #[serde(borrow)]
    pub resource: Cow<'a, str>,
    /// The plural of the kind in lower case.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub plural: Option<Cow<'a, str>>,
    /// Whether the kind is namespaced; `None` for a value unknown to this version.
    #[serde(default, deserialize_with = "known_scope", skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

fn known_scope<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Scope>, D::Error> {
    Ok(match Option::<Cow<'_, str>>::deserialize(deserializer)?.as_deref() {
        Some("Namespaced") => Some(Scope::Namespaced),
        Some("Cluster") => Some(Scope::Cluster),
        _ => None,
    })
}

/// One object message, decoded or to encode.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message<'a> {
    /// Message identity and object version.
    #[serde(borrow)]
    pub header: Header<'a>,
    /// Operation and object path.
    #[serde(borrow)]
    pub route: Route<'a>,
    /// The object; for a delete only its identity.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a RawValue>,
}

/// A [`Message`] as JSON text. The object, its large part, is shared by the messages to all nodes.
#[derive(Clone, Debug)]
pub struct MessageText {
    /// The text up to the object; the whole text if there is none.
    head: String,
    body: Option<Body>,
    /// The text after the object.
    tail: &'static str,
}

impl MessageText {
    /// Returns the text of a message that is nothing but a shared text, such as a patch.
    pub(crate) fn of_body(body: Body) -> Self {
        Self { head: String::new(), body: Some(body), tail: "" }
    }

    /// Returns a text without bytes, of a message that is not sent as text.
    pub(crate) fn empty() -> Self {
        Self { head: String::new(), body: None, tail: "" }
    }

    /// Returns whether the text has no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn pieces(&self) -> [&str; 3] {
        [&self.head, self.body.as_ref().map_or("", Body::as_str), self.tail]
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no text of a message is empty")]
    pub fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    /// Appends the text to `out`.
    pub fn write_to(&self, out: &mut String) {
        out.extend(self.pieces());
    }

    /// Returns the digest of the text.
    pub(crate) fn digest(&self, epoch: Epoch) -> MessageDigest {
        epoch.message_digest(self.pieces())
    }

    /// Returns whether `offset` is a character boundary of the text.
    #[must_use]
    pub fn is_char_boundary(&self, offset: usize) -> bool {
        let mut rest = offset;
        for piece in self.pieces() {
            if rest <= piece.len() {
                return piece.is_char_boundary(rest);
            }
            rest -= piece.len();
        }
        false
    }

    /// Returns at most `room` bytes of the text from `offset` on, cut at a character boundary.
    /// `offset` must be the end of an earlier piece.
    #[must_use]
    pub fn cut(&self, offset: usize, room: usize) -> String {
        let (mut out, mut skip) = (String::with_capacity(room.min(self.len())), offset);
        for piece in self.pieces() {
            let end = piece.floor_char_boundary((skip + room - out.len()).min(piece.len()));
            out.push_str(piece.get(skip..end).unwrap_or_default());
            if end < piece.len() && skip < piece.len() {
                break;
            }
            skip = skip.saturating_sub(piece.len());
        }
        out
    }
}

/// An object on its way to a node, the source of a [`Message`].
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The UID of the object.
    pub uid: Uid,
    /// The version to send, or the deleted one.
    pub version: ResourceVersion,
    /// The newer version on the edge that this one deliberately replaces.
    pub supersedes: Option<ResourceVersion>,
    /// The kind of the object.
    pub resource: Arc<Resource>,
    /// The namespace, empty for cluster scope.
    pub namespace: Arc<str>,
    /// The object's name, unique per kind and namespace.
    pub name: Arc<str>,
    /// The object; `None` for a delete.
    pub body: Option<Body>,
}

impl Outgoing {
    /// Returns the object's reference.
    #[must_use]
    pub fn object_ref(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.resource.api_version().into(),
            kind: self.resource.kind.as_str().into(),
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
        }
    }

    /// Encodes the message as JSON text.
    ///
    /// # Errors
    /// Fails when memory is exhausted.
    pub fn to_text(&self) -> serde_json::Result<MessageText> {
        let namespace = if self.namespace.is_empty() { "null" } else { &self.namespace };
        let kind = self.resource.kind.to_ascii_lowercase();
        let operation = if self.body.is_some() { "update" } else { "delete" };
        let mut head = serde_json::to_string(&Message {
            header: Header {
                resourceversion: Some(self.version.as_str().into()),
                supersedes: self.supersedes.as_ref().map(|version| version.as_str().into()),
                ..Header::default()
            },
            route: Route {
                source: None,
                group: None,
                operation: operation.into(),
                resource: format!("{namespace}/{kind}/{}", self.name).into(),
                plural: Some(self.resource.plural.as_str().into()),
                scope: Some(self.resource.scope),
            },
            content: None,
        })?;
        // `content` is the last member.
        head.pop();
        head.push_str(r#","content":"#);
        if self.body.is_none() {
            let identity = serde_json::json!({
                "apiVersion": self.resource.api_version(),
                "kind": self.resource.kind,
                "metadata": { "name": &*self.name, "namespace": &*self.namespace, "uid": &*self.uid },
            });
            head.push_str(&identity.to_string());
            head.push('}');
        }
        let tail = if self.body.is_some() { "}" } else { "" };
        Ok(MessageText { head, body: self.body.clone(), tail })
    }
}

/// Interns one [`Resource`] per kind while a frame is decoded, shared by its objects.
#[derive(Default)]
pub(crate) struct Interner {
    last: Vec<Arc<Resource>>,
}

impl Interner {
    fn intern(&mut self, api_version: &str, kind: &str, plural: &str, scope: Scope) -> Arc<Resource> {
        let (group, version) = split_api_version(api_version);
        let known = self.last.iter().find(|r| {
            r.kind == kind
                && r.plural == plural
                && r.version == version
                && r.group == group
                && r.scope == scope
        });
        if let Some(resource) = known {
            return resource.clone();
        }
        let resource = Arc::new(Resource {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            plural: plural.into(),
            scope,
        });
        if self.last.len() < 64 {
            self.last.push(resource.clone());
        }
        resource
    }
}

/// Returns the object that a message claims to carry, if the claim is short and printable.
fn claimed(head: &Head<'_>) -> Option<ObjectRef> {
    let meta = &head.metadata;
    let short = |text: &str| text.len() <= name::MAX_SUBDOMAIN && !text.contains(char::is_control);
    let whole = !head.kind.is_empty() && !meta.name.is_empty();
    let texts = [&*head.api_version, &*head.kind, &*meta.namespace, &*meta.name];
    (whole && texts.into_iter().all(short)).then(|| ObjectRef {
        api_version: (&*head.api_version).into(),
        kind: (&*head.kind).into(),
        namespace: (&*meta.namespace).into(),
        name: (&*meta.name).into(),
    })
}

/// Checks the result of a patch like the object of a message: its identity is the one of the row
/// that it replaces.
///
/// # Errors
/// Fails if the text is no such object.
pub(crate) fn patched(
    body: Box<RawValue>,
    version: &ResourceVersion,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    uid: &Uid,
) -> Result<Put, ObjectError> {
    let head = read_head(body.get())?;
    check_uid(&head)?;
    let meta = &head.metadata;
    let is_same = (&*meta.uid, &*meta.namespace, &*meta.name) == (&**uid, namespace, name)
        && (&*head.api_version, &*head.kind) == (&*resource.api_version(), &*resource.kind);
    if !is_same {
        return Err(ObjectError::other_object(&format!("{namespace}/{}/{name}", resource.plural), &head));
    }
    check_version(&head, Some(version.as_str()))?;
    Ok(Put {
        uid: uid.clone(),
        version: version.clone(),
        supersedes: None,
        resource: Arc::clone(resource),
        namespace: namespace.into(),
        name: name.into(),
        body,
    })
}

/// The unverified identity of a message's object: enough to reject it by name.
struct Claim<'m, 'a> {
    message: &'m Message<'a>,
    head: Head<'a>,
}

impl<'a> Message<'a> {
    /// Converts the message into a change and validates everything that the store and local readers
    /// rely on.
    ///
    /// # Errors
    /// Returns a [`Rejected`] that names the object as far as the message did.
    pub(crate) fn to_change(&self, interner: &mut Interner, max_object: usize) -> Result<Change, Rejected> {
        let version = self.header.resourceversion.as_deref().unwrap_or_default();
        let reject = |head: Option<&Head<'_>>, fault| rejected(head, version, fault);
        let Some(content) = self.content else {
            return Err(reject(None, invalid("`content` must be an object")));
        };
        let read = read_head(content.get());
        let head: Head<'a> = read.map_err(|error| reject(None, invalid(error.to_string())))?;
        check_extent(content.get(), max_object).map_err(|fault| reject(Some(&head), fault))?;
        let claim = Claim { message: self, head };
        let checked = claim.check(interner);
        checked.map_err(|error| reject(Some(&claim.head), invalid(error.to_string())))
    }
}

/// The reason why an object cannot be held, for programs and for people.
pub type Fault = (RejectReason, String);

/// Returns the fault of an invalid object.
pub fn invalid(message: impl Into<String>) -> Fault {
    (RejectReason::Invalid, message.into())
}

/// Rejects the version of an object and names it as far as its head is known.
pub fn rejected(head: Option<&Head<'_>>, version: &str, (reason, message): Fault) -> Rejected {
    let uid = head.map_or("", |head| &*head.metadata.uid);
    let uid = if name::check_uid(uid).is_ok() { uid } else { "" };
    Rejected {
        uid: uid.into(),
        resource_version: clip(version, name::MAX_UID).into(),
        reason,
        message: clip(&message, 256).into(),
        object: head.and_then(claimed).map(Box::new),
    }
}

/// Problem of the object of a message.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The content does not have type and metadata of an object.
    #[error("`content` must be a Kubernetes object: {0}")]
    Content(serde_json::Error),
    /// A change has no content.
    #[error("`content` must be an object")]
    NoContent,
    /// The UID cannot be stored.
    #[error("`metadata.uid` {0}")]
    Uid(Problem),
    /// API version, kind, namespace or name is invalid.
    #[error("{0}")]
    Reference(Problem),
    /// The version is too long, or missing.
    #[error("`metadata.resourceVersion` {0}")]
    Version(Problem),
    /// The header claims another version than that of the content.
    #[error("`header.resourceversion` must be the version of `content`")]
    OtherVersion,
    /// The route names no object.
    #[error("`route.resource` must be <namespace>/<type>/<name>, is '{0}'")]
    Resource(String),
    /// The route names another object than the content; all texts are truncated.
    #[error(
        "`content` must be the object that `route.resource` names: '{resource}' is not {kind} '{namespace}/{name}'"
    )]
    OtherObject {
        /// The resource of the route.
        resource: String,
        /// The kind of the content.
        kind: String,
        /// The namespace of the content.
        namespace: String,
        /// The name of the content.
        name: String,
    },
    /// The operation is unknown; the text is truncated.
    #[error("`route.operation` must be insert, update or delete, is '{0}'")]
    Operation(String),
    /// The plural of the kind is invalid.
    #[error("`route.plural` {0}")]
    Plural(Problem),
    /// A namespaced object has no namespace, or a cluster-scoped one has one.
    #[error("`metadata.namespace` must fit the scope, which is {0:?}")]
    Scope(Scope),
}

impl ObjectError {
    /// Returns the error of a content that is another object than the route names.
    #[must_use]
    pub fn other_object(resource: &str, head: &Head<'_>) -> Self {
        Self::OtherObject {
            resource: clip(resource, 80).to_owned(),
            kind: clip(&head.kind, 40).to_owned(),
            namespace: clip(&head.metadata.namespace, 40).to_owned(),
            name: clip(&head.metadata.name, 80).to_owned(),
        }
    }
}

/// Parses type and metadata of an object.
pub fn read_head(content: &str) -> Result<Head<'_>, ObjectError> {
    serde_json::from_str(content).map_err(ObjectError::Content)
}

/// Checks the size and the nesting depth of an object.
pub fn check_extent(content: &str, max_object: usize) -> Result<(), Fault> {
    let mut budget = Budget::of(max_object);
    budget
        .take_bytes(content.len())
        .map_err(|exceeded| (RejectReason::TooLarge, format!("{exceeded}, has {}", content.len())))?;
    budget.check_depth(content).map_err(|exceeded| invalid(exceeded.to_string()))
}

/// Checks the names that paths and queries are built from.
pub fn check_names(head: &Head<'_>) -> Result<(), ObjectError> {
    let meta = &head.metadata;
    check_reference(&head.api_version, &head.kind, &meta.namespace, &meta.name)
        .map_err(ObjectError::Reference)
}

/// Checks that an object has a storable UID.
pub fn check_uid(head: &Head<'_>) -> Result<(), ObjectError> {
    name::check_uid(&head.metadata.uid).map_err(ObjectError::Uid)
}

/// Checks that an object has a version and that the header claims no other one.
pub fn check_version(head: &Head<'_>, claimed: Option<&str>) -> Result<(), ObjectError> {
    let version = &*head.metadata.resource_version;
    name::check_version(version).map_err(ObjectError::Version)?;
    if claimed.is_some_and(|claimed| claimed != version) {
        return Err(ObjectError::OtherVersion);
    }
    Ok(())
}

impl Claim<'_, '_> {
    fn check(&self, interner: &mut Interner) -> Result<Change, ObjectError> {
        let meta = &self.head.metadata;
        let route = &self.message.route;
        check_uid(&self.head)?;
        let mut segments = route.resource.splitn(3, '/');
        let (Some(namespace), Some(kind), Some(object)) = (segments.next(), segments.next(), segments.next())
        else {
            return Err(ObjectError::Resource(route.resource.clone().into_owned()));
        };
        let namespace = if namespace == "null" { "" } else { namespace };
        let same =
            meta.name == object && meta.namespace == namespace && self.head.kind.to_ascii_lowercase() == kind;
        if !same {
            return Err(ObjectError::other_object(&route.resource, &self.head));
        }
        check_names(&self.head)?;
        self.change(interner, namespace, object)
    }

    fn change(&self, interner: &mut Interner, namespace: &str, object: &str) -> Result<Change, ObjectError> {
        let Message { header, route, content } = self.message;
        let resource = self.resource(interner, namespace)?;
        let uid = Arc::from(&*self.head.metadata.uid);
        match &*route.operation {
            "insert" | "update" => {}
            "delete" => return Ok(Change::Delete(Delete { uid, key: resource.key(namespace, object) })),
            other => return Err(ObjectError::Operation(clip(other, 40).to_owned())),
        }
        check_version(&self.head, header.resourceversion.as_deref())?;
        let Some(body) = content else { return Err(ObjectError::NoContent) };
        Ok(Change::Put(Put {
            uid,
            version: (&*self.head.metadata.resource_version).into(),
            supersedes: header.supersedes.as_deref().map(Into::into),
            resource,
            namespace: namespace.into(),
            name: object.into(),
            body: (*body).to_owned(),
        }))
    }

    /// Returns the kind. Missing plural and scope are derived from kind and namespace.
    fn resource(&self, interner: &mut Interner, namespace: &str) -> Result<Arc<Resource>, ObjectError> {
        let route = &self.message.route;
        let scope =
            route.scope.unwrap_or(if namespace.is_empty() { Scope::Cluster } else { Scope::Namespaced });
        if (scope == Scope::Cluster) != namespace.is_empty() {
            return Err(ObjectError::Scope(scope));
        }
        let guessed;
        let plural = match &route.plural {
            Some(plural) => {
                name::check_label(plural).map_err(ObjectError::Plural)?;
                &**plural
            }
            None => {
                guessed = edgesync_object::pluralize(&self.head.kind);
                &guessed
            }
        };
        Ok(interner.intern(&self.head.api_version, &self.head.kind, plural, scope))
    }
}

/// Truncates a text to at most `limit` bytes at a character boundary.
pub fn clip(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outgoing(body: Option<&str>) -> Outgoing {
        Outgoing {
            uid: "u1".into(),
            version: 7.into(),
            supersedes: None,
            resource: Arc::new(Resource {
                group: String::new(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
                plural: "configmaps".into(),
                scope: Scope::Namespaced,
            }),
            namespace: "default".into(),
            name: "settings".into(),
            body: body.map(|body| Body::new(body.into()).unwrap()),
        }
    }

    const BODY: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings",
        "namespace":"default","uid":"u1","resourceVersion":"7"},"data":{"a":"b"}}"#;

    fn json(outgoing: &Outgoing) -> String {
        let (text, mut json) = (outgoing.to_text().unwrap(), String::new());
        text.write_to(&mut json);
        assert_eq!(text.len(), json.len());
        json
    }

    fn read(json: &str) -> Result<Change, Rejected> {
        let message: Message<'_> = serde_json::from_str(json).unwrap();
        message.to_change(&mut Interner::default(), 1 << 20)
    }

    #[test]
    fn an_object_arrives_as_it_was_sent() {
        let Ok(Change::Put(put)) = read(&json(&outgoing(Some(BODY)))) else {
            panic!("must be a put");
        };
        assert_eq!((&*put.uid, put.version.as_str(), put.body.get()), ("u1", "7", BODY));
        assert_eq!(*put.resource, *outgoing(None).resource);
    }

    #[test]
    fn resources_that_differ_in_anything_are_kept_apart() {
        let mut interner = Interner::default();
        let first = interner.intern("apps/v1", "Deployment", "deployments", Scope::Namespaced);
        assert!(Arc::ptr_eq(
            &first,
            &interner.intern("apps/v1", "Deployment", "deployments", Scope::Namespaced)
        ));
        for (version, kind, plural, scope) in [
            ("apps/v2", "Deployment", "deployments", Scope::Namespaced),
            ("other/v1", "Deployment", "deployments", Scope::Namespaced),
            ("apps/v1", "Other", "deployments", Scope::Namespaced),
            ("apps/v1", "Deployment", "others", Scope::Namespaced),
            ("apps/v1", "Deployment", "deployments", Scope::Cluster),
        ] {
            let other = interner.intern(version, kind, plural, scope);
            assert_eq!((other.api_version(), &*other.kind, &*other.plural), (version.into(), kind, plural));
            assert_eq!(other.scope, scope);
        }
    }

    #[test]
    fn weak_reference_is_to_one_text() {
        let (body, equal) = (Body::new(BODY.into()).unwrap(), Body::new(BODY.into()).unwrap());
        assert!(body.downgrade().is(&body) && !body.downgrade().is(&equal));
    }

    #[test]
    fn a_delete_names_its_uid() {
        let Ok(Change::Delete(delete)) = read(&json(&outgoing(None))) else {
            panic!("must be a delete");
        };
        assert_eq!((&*delete.uid, &*delete.key.name), ("u1", "settings"));
    }

    #[test]
    fn rejections_have_the_problem_and_the_uid() {
        let json = json(&outgoing(Some(BODY)));
        let cases = [
            (json.replace("settings", "a..b"), "metadata.name"),
            (json.replace("settings", "../etc"), "metadata.name"),
            (json.replacen("default/", "other/", 1), "route.resource"),
            (json.replacen("default/configmap/settings", "x", 1), "route.resource"),
            (json.replacen("update", "upsert", 1), "route.operation"),
            (json.replacen(r#""resourceVersion":"7""#, r#""resourceVersion":"8""#, 1), "resourceversion"),
            (json.replacen(r#""resourceVersion":"7""#, r#""x":"8""#, 1), "resourceVersion"),
            (json.replacen("Namespaced", "Cluster", 1), "scope"),
        ];
        for (json, expected) in cases {
            let rejected = read(&json).unwrap_err();
            assert_eq!((rejected.reason, &*rejected.uid), (RejectReason::Invalid, "u1"), "{json}");
            assert!(rejected.message.contains(expected), "{} in {}", expected, rejected.message);
            assert!(rejected.message.len() <= 256);
        }
    }

    #[test]
    fn deep_nesting_and_size_are_refused() {
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        let body = BODY.replace(r#""b""#, &deep);
        assert!(read(&json(&outgoing(Some(&body)))).unwrap_err().message.contains("deep"));
        let body = BODY.replace(r#""b""#, &format!("{:?}", "x".repeat(2 << 20)));
        let rejected = read(&json(&outgoing(Some(&body)))).unwrap_err();
        assert_eq!(rejected.reason, RejectReason::TooLarge);
    }

    #[test]
    fn a_companion_is_dropped_with_the_last_body() {
        let (body, companion) = (Body::new("{}".into()).unwrap(), Arc::new(()));
        body.accompany(Arc::clone(&companion));
        let (other, weak) = (body.clone(), body.downgrade());
        drop(body);
        assert_eq!((weak.upgrade().is_some(), Arc::strong_count(&companion)), (true, 2));
        drop(other);
        assert_eq!((weak.upgrade().is_some(), Arc::strong_count(&companion)), (false, 1));
    }

    proptest! {
        #[test]
        fn pieces_of_a_message_make_the_message(rooms in prop::collection::vec(4usize..90, 1..200), text in ".{0,200}") {
            let body = BODY.replace(r#""b""#, &serde_json::to_string(&text).unwrap());
            for outgoing in [outgoing(Some(&body)), outgoing(None)] {
                let (text, mut pieces) = (outgoing.to_text().unwrap(), String::new());
                for room in rooms.iter().cycle() {
                    let piece = text.cut(pieces.len(), *room);
                    prop_assert!(piece.len() <= *room);
                    pieces.push_str(&piece);
                    if piece.is_empty() {
                        break;
                    }
                }
                prop_assert_eq!(pieces, json(&outgoing));
            }
        }

        #[test]
        fn no_route_or_content_makes_it_panic(
            resource in ".{0,20}", operation in ".{0,8}", uid in ".{0,8}", kind in ".{0,8}", version in ".{0,8}",
        ) {
            let json = serde_json::json!({
                "header": {},
                "route": {"operation": operation, "resource": resource},
                "content": {"kind": kind, "metadata": {"uid": uid, "name": version, "resourceVersion": version}},
            });
            let _ = read(&json.to_string());
        }
    }
}
