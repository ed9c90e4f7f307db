use super::*;
use edgesync_object::Resource;

fn kind(group: &str, version: &str, name: &str, plural: &str, scope: Scope) -> Kind {
    let text = str::to_owned;
    let (group, version, kind, plural) = (text(group), text(version), text(name), text(plural));
    Kind::without_schema(Arc::new(Resource { group, version, kind, plural, scope }))
}

fn kinds() -> Vec<Arc<Kind>> {
    let namespaced = Scope::Namespaced;
    let pods = Kind {
        writable: Writable::Everything,
        status_subresource: true,
        short_names: vec!["po".into()],
        categories: vec!["all".into()],
        ..kind("", "v1", "Pod", "pods", namespaced)
    };
    let older = Kind { preferred: false, ..kind("autoscaling", "v3", "Scaler", "scalers", namespaced) };
    [
        pods,
        kind("", "v1", "Node", "nodes", Scope::Cluster),
        older,
        kind("example.com", "v1beta1", "Early", "earlies", namespaced),
        kind("autoscaling", "v2", "Scaler", "scalers", namespaced),
        kind("example.com", "v1", "Late", "lates", namespaced),
    ]
    .map(Arc::new)
    .into()
}

#[test]
fn core_group_is_under_api_and_others_under_apis() {
    let core = core_versions(&kinds());
    assert_eq!(core["versions"], json!(["v1"]));
    assert_eq!(core["serverAddressByClientCIDRs"], json!([]));
    let list = group_list(&kinds());
    let names: Vec<_> = list["groups"].as_array().unwrap().iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["autoscaling", "example.com", "authentication.k8s.io", "authorization.k8s.io"]);
    assert_eq!(core_versions(&[])["versions"], json!([]));
}

#[test]
fn preferred_version_of_a_group_is_first() {
    let autoscaling = group(&kinds(), "autoscaling").unwrap();
    assert_eq!(autoscaling["kind"], "APIGroup");
    assert_eq!(autoscaling["preferredVersion"], json!({ "groupVersion": "autoscaling/v2", "version": "v2" }));
    assert_eq!(autoscaling["versions"][1]["version"], "v3");
    let example = group(&kinds(), "example.com").unwrap();
    assert_eq!(example["preferredVersion"]["version"], "v1");
    assert_eq!(group(&kinds(), "other"), None);
    assert_eq!(group(&kinds(), ""), None);
}

#[test]
fn resource_list_has_the_verbs_of_each() {
    let list = resource_list(&kinds(), "", "v1").unwrap();
    assert_eq!(list["groupVersion"], "v1");
    let stored_as = |at: usize| storage_version_hash(&kinds()[at].stored_as);
    let expected = json!([
        {
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": WRITABLE,
            "storageVersionHash": stored_as(0), "shortNames": ["po"], "categories": ["all"],
        },
        {
            "name": "pods/status", "singularName": "", "namespaced": true, "kind": "Pod",
            "verbs": ["get", "patch", "update"],
        },
        {
            "name": "nodes", "singularName": "node", "namespaced": false, "kind": "Node",
            "storageVersionHash": stored_as(1), "verbs": ["get", "list", "watch"],
        },
    ]);
    assert_eq!(list["resources"], expected);
    assert_eq!(resource_list(&kinds(), "", "v2"), None);
    assert_eq!(resource_list(&kinds(), "apps", "v1"), None);
    assert_eq!(resource_list(&kinds(), "autoscaling", "v3").unwrap()["groupVersion"], "autoscaling/v3");
}

#[test]
fn writable_status_shows_at_the_status_only() {
    let status = Kind { writable: Writable::Status, ..Kind::clone(&kinds()[0]) };
    let kinds = [Arc::new(status)];
    let list = resource_list(&kinds, "", "v1").unwrap();
    assert_eq!(list["resources"][0]["verbs"], json!(["get", "list", "watch"]));
    assert_eq!(list["resources"][1]["verbs"], json!(["get", "patch", "update"]));
    let core = aggregated(&kinds, Root::Core, Form::V2);
    let pods = &core["items"][0]["versions"][0]["resources"][0];
    assert_eq!(pods["verbs"], json!(["get", "list", "watch"]));
    assert_eq!(pods["subresources"][0]["verbs"], json!(["get", "patch", "update"]));
}

#[test]
fn storage_hash_is_that_of_kubernetes() {
    let hash = |kind: &Kind| {
        let Resource { group, version, .. } = &*kind.resource;
        let list = resource_list(&[Arc::new(kind.clone())], group, version).unwrap();
        list["resources"][0]["storageVersionHash"].as_str().unwrap().to_owned()
    };
    let of = |group, version, name, plural| hash(&kind(group, version, name, plural, Scope::Namespaced));
    assert_eq!(of("", "v1", "Pod", "pods"), "xPOwRZ+Yhw8=");
    assert_eq!(of("apps", "v1", "Deployment", "deployments"), "8aSe+NMegvE=");
    let v1 = kind("example.com", "v1", "Lamp", "lamps", Scope::Namespaced);
    let v2 = kind("example.com", "v2", "Lamp", "lamps", Scope::Namespaced);
    let kept_as_v1 = Kind { stored_as: Arc::clone(&v1.stored_as), ..v2.clone() };
    assert_eq!(hash(&v1), "i8ap9xBZw08=");
    assert_eq!(hash(&kept_as_v1), hash(&v1));
    assert_ne!(hash(&v2), hash(&v1));
}

#[test]
fn root_lists_every_path_once_in_order() {
    let root = root_paths(&kinds(), &["/edgesync/v1", "/version"]);
    let paths: Vec<&str> = root["paths"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for path in ["/api/v1", "/apis/autoscaling", "/apis/autoscaling/v3", "/edgesync/v1", "/readyz"] {
        assert!(paths.contains(&path), "{path} is missing in {paths:?}");
    }
    assert!(paths.is_sorted_by(|a, b| a < b), "{paths:?}");
}

#[test]
fn aggregated_discovery_equals_the_single_documents() {
    let core = aggregated(&kinds(), Root::Core, Form::V2);
    assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2");
    assert_eq!(core["items"][0]["metadata"], json!({}));
    let pods = &core["items"][0]["versions"][0]["resources"][0];
    assert_eq!(pods["responseKind"], json!({ "group": "", "version": "v1", "kind": "Pod" }));
    assert_eq!(pods["scope"], "Namespaced");
    assert_eq!(pods["verbs"], json!(WRITABLE));
    assert_eq!(pods["subresources"][0]["subresource"], "status");
    let named = aggregated(&kinds(), Root::Named, Form::V2Beta1);
    assert_eq!(named["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    assert_eq!(named["items"][0]["metadata"]["name"], "autoscaling");
    assert_eq!(named["items"][0]["versions"][0]["version"], "v2");
    assert_eq!(named["items"].as_array().unwrap().len(), 4);
    assert_eq!(aggregated(&kinds(), Root::Named, Form::Plain), group_list(&kinds()));
    assert_eq!(aggregated(&[], Root::Core, Form::V2)["items"], json!([]));
}

#[test]
fn form_follows_the_accept_headers_of_real_clients() {
    let form = |accept: &str| Form::accepted(Some(accept));
    let aggregated = |version: &str| {
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
    };
    let kubectl = format!("{},{},application/json", aggregated("v2"), aggregated("v2beta1"));
    assert_eq!(form(&kubectl), Form::V2);
    assert_eq!(form(&format!("{};profile=nopeer,{kubectl}", aggregated("v2"))), Form::V2);
    assert_eq!(form(&format!("{},application/json", aggregated("v2beta1"))), Form::V2Beta1);
    assert_eq!(form(&format!("{},application/json", aggregated("v3"))), Form::Plain);
    assert_eq!(form("application/json"), Form::Plain);
    assert_eq!(form("application/json, */*"), Form::Plain);
    assert_eq!(form("text/html"), Form::Plain);
    assert_eq!(Form::accepted(None), Form::Plain);
    assert_eq!(Form::V2.content_type(), Some(aggregated("v2").as_str()));
    assert_eq!(Form::Plain.content_type(), None);
}

#[test]
fn finalizers_of_namespaces_are_updated_only() {
    let namespaces = kind("", "v1", "Namespace", "namespaces", Scope::Cluster);
    let writable = Kind { writable: Writable::Everything, ..namespaces.clone() };
    let list = resource_list(&[Arc::new(writable.clone())], "", "v1").unwrap();
    let finalize = json!({
        "name": "namespaces/finalize", "singularName": "", "namespaced": false, "kind": "Namespace",
        "verbs": ["update"],
    });
    assert_eq!(list["resources"][1], finalize);
    let core = aggregated(&[Arc::new(writable)], Root::Core, Form::V2);
    assert_eq!(core["items"][0]["versions"][0]["resources"][0]["subresources"][0]["subresource"], "finalize");
    let read_only = resource_list(&[Arc::new(namespaces)], "", "v1").unwrap();
    assert_eq!(read_only["resources"].as_array().unwrap().len(), 1);
}

#[test]
fn reviews_are_discovered_without_objects() {
    let list = resource_list(&kinds(), "authentication.k8s.io", "v1").unwrap();
    let tokens = json!({
        "name": "tokenreviews", "singularName": "tokenreview", "namespaced": false, "kind": "TokenReview",
        "verbs": ["create"],
    });
    assert_eq!(list["resources"].as_array().unwrap().last(), Some(&tokens));
    let group = group(&kinds(), "authorization.k8s.io").unwrap();
    assert_eq!(group["preferredVersion"]["groupVersion"], "authorization.k8s.io/v1");
    let events = kind("events.k8s.io", "v1", "Event", "events", Scope::Namespaced);
    let late = kind("example.com", "v1", "Late", "lates", Scope::Namespaced);
    let both = [events, late].map(Arc::new);
    let named = aggregated(&both, Root::Named, Form::V2);
    let items = named["items"].as_array().unwrap();
    let names: Vec<_> = items.iter().map(|group| group["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "example.com"]);
    let reviews = &items[1]["versions"][0]["resources"];
    assert_eq!(reviews[1]["responseKind"]["kind"], "TokenReview");
    assert_eq!((&reviews[1]["verbs"], &reviews[1]["scope"]), (&json!(["create"]), &json!("Cluster")));
    let core = aggregated(&both, Root::Core, Form::V2);
    assert_eq!(core["items"], json!([]));
}
