//! Rows of all other kinds with specific columns.

use super::*;

#[test]
fn plain_kinds_show_their_fields() {
    assert_eq!(cells("cm", json!({"data": {"a": "", "b": ""}, "binaryData": {"c": ""}})), "Data=3");
    assert_eq!(cells("secret", json!({"type": "Opaque", "data": {"a": ""}})), "Type='Opaque' Data=1");
    assert_eq!(cells("ns", json!({"status": {"phase": "Active"}})), "Status='Active'");
    assert_eq!(cells("sa", json!({"secrets": [{"name": "a"}]})), "Secrets=1");
    assert_eq!(cells("limitrange", json!({})), "");
    assert_eq!(
        cells("pdb", json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}})),
        "Min Available='50%' Max Unavailable='N/A' Allowed Disruptions=2"
    );
    assert_eq!(
        cells("pc", json!({"value": 1000, "globalDefault": true})),
        "Value=1000 Global-Default=true *PreemptionPolicy=''"
    );
    assert_eq!(cells("netpol", json!({"spec": {"podSelector": {}}})), "Pod-Selector='<none>'");
    assert_eq!(cells("validatingwebhookconfiguration", json!({"webhooks": [{}, {}]})), "Webhooks=2");
    assert_eq!(cells("runtimeclass", json!({"handler": "runc"})), "Handler='runc'");
    let revision = json!({"revision": 3, "metadata": {"ownerReferences": [
        {"kind": "Other", "apiVersion": "v1", "name": "o"},
        {"kind": "StatefulSet", "apiVersion": "apps/v1", "name": "web", "controller": true}]}});
    assert_eq!(cells("controllerrevision", revision), "Controller='statefulset.apps/web' Revision=3");
}

#[test]
fn kinds_without_an_age_show_their_creation_time() {
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2024-01-01T23:00:00Z"}});
    for word in ["crd", "role", "clusterrole"] {
        let view = TableView::new(&kind(known::by_word(word).unwrap()), Include::Metadata, META_V1);
        assert_eq!(shown(&view, &object), "Name='x' Created At='2024-01-01T23:00:00Z'");
    }
}

#[test]
fn nodes_show_state_roles_and_addresses() {
    let node = json!({
        "metadata": {"labels": {"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
            "kubernetes.io/role": "worker", "node-role.kubernetes.io/": ""}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.30", "osImage": "Debian"}},
    });
    assert_eq!(
        cells("no", node),
        "Status='Ready,SchedulingDisabled' Roles='agent,edge,worker' Version='v1.30' *Internal-IP='10.0.0.1' \
         *External-IP='<none>' *OS-Image='Debian' *Kernel-Version='<unknown>' *Container-Runtime='<unknown>'"
    );
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    assert!(cells("no", lost).starts_with("Status='NotReady' Roles='<none>'"));
    assert!(cells("no", json!({})).starts_with("Status='Unknown'"));
}

#[test]
fn services_and_endpoints_show_their_addresses() {
    let service = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.9", "selector": {"app": "web"},
        "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}});
    assert_eq!(
        cells("svc", service),
        "Type='NodePort' Cluster-IP='10.0.0.9' External-IP='<none>' Port(s)='80:30080/TCP,53/UDP' *Selector='app=web'"
    );
    let external = |service: Value| {
        let shown = cells("svc", service);
        shown.split("External-IP=").nth(1).unwrap().split(" Port").next().unwrap().to_owned()
    };
    let balanced = json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
        "status": {"loadBalancer": {"ingress": [{"hostname": "lb"}, {"ip": "1.2.3.4"}]}}});
    assert_eq!(external(balanced), "'1.2.3.4,lb,9.9.9.9'");
    assert_eq!(external(json!({"spec": {"type": "LoadBalancer"}})), "'<pending>'");
    assert_eq!(
        external(json!({"spec": {"type": "ExternalName", "externalName": "db.example"}})),
        "'db.example'"
    );
    assert_eq!(external(json!({"spec": {"type": "Odd"}})), "'<unknown>'");

    let endpoints = json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "::1"}],
        "ports": [{"port": 80}, {"port": 443}]}, {"addresses": [{"ip": "2.2.2.2"}]}]});
    assert_eq!(cells("ep", endpoints), "Endpoints='1.1.1.1:80,[::1]:80,1.1.1.1:443 + 2 more...'");
    assert_eq!(cells("ep", json!({})), "Endpoints='<none>'");
    let slice = json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "x"}, {}],
        "endpoints": [{"addresses": ["1.1.1.1"]}, {"addresses": ["2.2.2.2"]}]});
    assert_eq!(
        cells("endpointslice", slice),
        "AddressType='IPv4' Ports='80,x,*' Endpoints='1.1.1.1,2.2.2.2'"
    );
    let ingress = json!({"spec": {"ingressClassName": "nginx", "tls": [{}], "rules": [{"host": "a"}, {}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
    assert_eq!(cells("ing", ingress), "Class='nginx' Hosts='a' Address='1.2.3.4' Ports='80, 443'");
    let class =
        json!({"spec": {"controller": "c", "parameters": {"apiGroup": "g.io", "kind": "K", "name": "n"}}});
    assert_eq!(cells("ingressclass", class), "Controller='c' Parameters='K.g.io/n'");
}

#[test]
fn volumes_show_size_modes_and_claim() {
    let volume = json!({"spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "fast",
        "claimRef": {"namespace": "n", "name": "c"}, "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}});
    assert_eq!(
        cells("pv", volume),
        "Capacity='5Gi' Access Modes='RWO,ROX' Reclaim Policy='Retain' Status='Bound' Claim='n/c' \
         StorageClass='fast' VolumeAttributesClass='<unset>' Reason='' *VolumeMode='Filesystem'"
    );
    let claim = json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "spec": {"volumeName": "v"},
        "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany"]}});
    assert_eq!(
        cells("pvc", claim),
        "Status='Terminating' Volume='v' Capacity='5Gi' Access Modes='RWX' StorageClass='' \
         VolumeAttributesClass='<unset>' *VolumeMode='<unset>'"
    );
    let class = json!({"metadata": {"name": "fast", "creationTimestamp": "2024-01-01T23:00:00Z",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"});
    assert_eq!(
        shown(&TableView::new(&kind(known::by_word("sc").unwrap()), Include::Metadata, META_V1), &class),
        "Name='fast (default)' Provisioner='p' ReclaimPolicy='Delete' VolumeBindingMode='Immediate' \
         AllowVolumeExpansion=false Age='60m'"
    );
}

#[test]
fn bindings_and_autoscalers_show_their_references() {
    let binding = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
        {"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "Group", "name": "g"},
        {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]});
    let expected = "Role='Role/r' *Users='u, v' *Groups='g' *ServiceAccounts='n/s'";
    assert_eq!(cells("rolebinding", binding.clone()), expected);
    assert_eq!(cells("clusterrolebinding", binding), expected);
    let scaler = json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
        {"type": "Pods", "pods": {"target": {"averageValue": "10"}}}, {"type": "Odd"}]},
        "status": {"currentReplicas": 2, "currentMetrics": [{"resource": {"current": {"averageUtilization": 20}}}]}});
    assert_eq!(
        cells("hpa", scaler),
        "Reference='Deployment/d' Targets='cpu: 20%/80%, <unknown>/10 + 1 more...' MinPods='<unset>' MaxPods=5 \
         Replicas=2"
    );
    let older = json!({"spec": {"targetCPUUtilizationPercentage": 50}});
    assert!(cells("horizontalpodautoscalers.v1.autoscaling", older).contains("Targets='cpu: <unknown>/50%'"));
}

#[test]
fn leases_show_their_holder_and_syncs_the_held_version() {
    let lease = json!({"spec": {"holderIdentity": "edge-1", "renewTime": "2024-01-01T23:59:50.123456Z",
        "leaseDurationSeconds": 40, "leaseTransitions": 2}});
    assert_eq!(cells("lease", lease), "Holder='edge-1' *Renewed='9s' *Duration='40s' *Transitions=2");
    assert_eq!(
        cells("lease", json!({})),
        "Holder='' *Renewed='<unknown>' *Duration='<unset>' *Transitions=0"
    );
    let view = TableView::new(&kind(known::by_word("objectsyncs").unwrap()), Include::Metadata, META_V1);
    let mut record = json!({"metadata": {"name": "edge.1.lab.413d-1fd6", "namespace": "lab"},
        "spec": {"objectAPIVersion": "v1", "objectKind": "ConfigMap", "objectName": "web"},
        "status": {"objectResourceVersion": "455"}});
    assert_eq!(
        shown(&view, &record),
        "Name='edge.1.lab.413d-1fd6' Node='edge.1.lab' Object='configmap/lab/web' Held Version='455' \
         Age='<unknown>' *UID='413d-1fd6' *API Version='v1'"
    );
    record["metadata"] = json!({"name": "odd"});
    let of_cluster =
        TableView::new(&kind(known::by_word("clusterobjectsyncs").unwrap()), Include::Metadata, META_V1);
    assert!(shown(&of_cluster, &record).starts_with("Name='odd' Node='<unknown>' Object='configmap/web'"));
}

#[test]
fn both_kinds_of_events_show_the_same() {
    let core = json!({"metadata": {"name": "e"}, "type": "Warning", "reason": "BackOff", "message": " no luck\n",
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"}, "count": 7,
        "source": {"component": "kubelet", "host": "edge-1"},
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T23:59:00Z"});
    let newer = json!({"metadata": {"name": "e"}, "type": "Warning", "reason": "BackOff", "note": "no luck",
        "regarding": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"}, "deprecatedCount": 7,
        "reportingController": "kubelet", "reportingInstance": "edge-1",
        "eventTime": "2024-01-01T00:00:00.000000Z", "deprecatedLastTimestamp": "2024-01-01T23:59:00Z"});
    let expected = "Last Seen='60s' Type='Warning' Reason='BackOff' Object='pod/p' \
        *Subobject='spec.containers{c}' *Source='kubelet, edge-1' Message='no luck' *First Seen='24h' *Count=7 \
        *Name='e'";
    for (word, event) in [("events", core), ("events.events.k8s.io", newer.clone())] {
        let view = TableView::new(&kind(known::by_word(word).unwrap()), Include::Metadata, META_V1);
        assert_eq!(shown(&view, &event), expected);
    }
    let mut series = newer;
    series["series"] = json!({"count": 9, "lastObservedTime": "2024-01-01T23:59:30.000000Z"});
    let view = TableView::new(&kind(known::by_word("events").unwrap()), Include::Metadata, META_V1);
    let shown_series = shown(&view, &series);
    assert!(
        shown_series.starts_with("Last Seen='30s'") && shown_series.contains("*Count=9"),
        "{shown_series}"
    );
    assert!(shown(&view, &json!({})).starts_with("Last Seen='<unknown>' Type='' Reason='' Object=''"));
}
