//! Rows of Pods and workloads.

use super::*;

#[test]
fn workloads_show_ready_pods_and_containers() {
    let template = json!({"spec": {"nodeSelector": {"a": "b"}, "containers": [
        {"name": "web", "image": "nginx:1"}, {"name": "log", "image": "fluent"}]}});
    let selector = json!({"matchLabels": {"tier": "x", "app": "web"}, "matchExpressions": [
        {"key": "env", "operator": "In", "values": ["prod", "dev"]}, {"key": "old", "operator": "DoesNotExist"},
        {"key": "b", "operator": "Exists"}, {"key": "c", "operator": "NotIn", "values": ["1"]},
        {"key": "odd", "operator": "Near"}]});
    let selected = "app=web,b,c notin (1),env in (dev,prod),!old,tier=x";
    let running = "*Containers='web,log' *Images='nginx:1,fluent'";
    let spec = json!({"replicas": 3, "template": template, "selector": selector});
    assert_eq!(
        cells("deploy", json!({"spec": spec, "status": {"readyReplicas": 2, "updatedReplicas": 1}})),
        format!("Ready='2/3' Up-to-date=1 Available=0 {running} *Selector='{selected}'")
    );
    assert_eq!(cells("sts", json!({})), "Ready='0/1' *Containers='' *Images=''");
    assert_eq!(
        cells("rs", json!({"spec": spec, "status": {"replicas": 3, "readyReplicas": 2}})),
        format!("Desired=3 Current=3 Ready=2 {running} *Selector='{selected}'")
    );
    assert_eq!(
        cells("rc", json!({"spec": {"replicas": 0, "selector": {"a": "b", "c": "d"}}})),
        "Desired=0 Current=0 Ready=0 *Containers='' *Images='' *Selector='a=b,c=d'"
    );
    assert_eq!(
        cells("ds", json!({"spec": spec, "status": {"desiredNumberScheduled": 4, "numberReady": 3}})),
        format!(
            "Desired=4 Current=0 Ready=3 Up-to-date=0 Available=0 Node Selector='a=b' {running} *Selector='{selected}'"
        )
    );
}

#[test]
fn jobs_show_their_progress() {
    let done = json!({"spec": {"completions": 3}, "status": {"succeeded": 3,
        "startTime": "2024-01-01T00:00:00Z", "completionTime": "2024-01-01T00:03:20Z",
        "conditions": [{"type": "Complete", "status": "True"}]}});
    let rest = "*Containers='' *Images='' *Selector='<none>'";
    assert_eq!(cells("job", done), format!("Status='Complete' Completions='3/3' Duration='3m20s' {rest}"));
    let running = json!({"spec": {"parallelism": 2}, "status": {"startTime": "2024-01-01T23:59:00Z"}});
    assert_eq!(
        cells("job", running),
        format!("Status='Running' Completions='0/1 of 2' Duration='60s' {rest}")
    );
    assert_eq!(cells("job", json!({})), format!("Status='Running' Completions='0/1' Duration='' {rest}"));
    for (condition, expected) in [("Failed", "Failed"), ("Suspended", "Suspended"), ("Odd", "Running")] {
        let job = json!({"status": {"conditions": [{"type": condition, "status": "True"}]}});
        assert!(cells("job", job).starts_with(&format!("Status='{expected}'")));
    }
    let cron = json!({"spec": {"schedule": "* * * * *", "suspend": false},
        "status": {"active": [{}], "lastScheduleTime": "2024-01-01T23:59:55Z"}});
    assert_eq!(
        cells("cj", cron),
        format!("Schedule='* * * * *' Timezone='<none>' Suspend='False' Active=1 Last Schedule='5s' {rest}")
    );
}

/// The cells of a Pod with two containers, without wide columns.
fn pod(mut object: Value) -> String {
    if object["spec"]["containers"].is_null() {
        object["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
    }
    let shown = cells("po", object);
    shown.split(" *").next().unwrap().to_owned()
}

#[test]
fn pod_shows_the_state_of_its_containers() {
    let running = json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let crashed = json!({"name": "b", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2024-01-01T23:55:00Z"}}});
    let done = json!({"name": "b", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
    for (containers, expected) in [
        (json!([]), "Ready='0/2' Status='Running' Restarts='0'"),
        (json!([running, running]), "Ready='2/2' Status='Running' Restarts='0'"),
        (json!([running, crashed]), "Ready='1/2' Status='CrashLoopBackOff' Restarts='3 (5m ago)'"),
        (json!([done, done]), "Ready='0/2' Status='Completed' Restarts='0'"),
        (json!([done, running]), "Ready='1/2' Status='NotReady' Restarts='0'"),
        (json!([{"state": {"terminated": {"signal": 9}}}]), "Ready='0/2' Status='Signal:9' Restarts='0'"),
        (json!([{"state": {"terminated": {"exitCode": 2}}}]), "Ready='0/2' Status='ExitCode:2' Restarts='0'"),
    ] {
        let status = json!({"phase": "Running", "containerStatuses": containers});
        assert_eq!(pod(json!({"status": status})), expected);
    }
    let ready = json!({"phase": "Running", "containerStatuses": [done, running],
        "conditions": [{"type": "Ready", "status": "True"}]});
    assert_eq!(pod(json!({"status": ready})), "Ready='1/2' Status='Running' Restarts='0'");
}

#[test]
fn pod_shows_the_reason_that_blocks_it() {
    let init = |statuses: Value| {
        json!({"spec": {"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
        "status": {"phase": "Pending", "initContainerStatuses": statuses}})
    };
    let done = json!({"name": "i", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}});
    for (statuses, expected) in [
        (json!([{"name": "i"}]), "Ready='0/3' Status='Init:0/2' Restarts='0'"),
        (json!([done, {"name": "s"}]), "Ready='0/3' Status='Init:1/2' Restarts='1'"),
        (
            json!([done, {"name": "s", "started": true, "ready": true, "restartCount": 2}]),
            "Ready='1/3' Status='Pending' Restarts='2'",
        ),
        (
            json!([{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]),
            "Ready='0/3' Status='Init:ErrImagePull' Restarts='0'",
        ),
        (
            json!([{"name": "i", "state": {"terminated": {"exitCode": 1}}}]),
            "Ready='0/3' Status='Init:ExitCode:1' Restarts='0'",
        ),
    ] {
        assert_eq!(pod(init(statuses)), expected);
    }
    let gated = json!({"phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]});
    let evicted = json!({"phase": "Failed", "reason": "Evicted"});
    let status = |pod: &str| pod.split('\'').nth(3).unwrap().to_owned();
    assert_eq!(status(&pod(json!({"status": gated}))), "SchedulingGated");
    assert_eq!(status(&pod(json!({"status": evicted}))), "Evicted");
    assert_eq!(status(&pod(json!({}))), "<unknown>");
    let deleted =
        |status: Value| json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": status});
    assert_eq!(status(&pod(deleted(json!({"phase": "Running"})))), "Terminating");
    assert_eq!(status(&pod(deleted(json!({"phase": "Succeeded"})))), "Succeeded");
    assert_eq!(status(&pod(deleted(json!({"phase": "Running", "reason": "NodeLost"})))), "Unknown");
}

#[test]
fn wide_pod_shows_address_and_node() {
    let object = json!({"spec": {"nodeName": "edge-1", "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"podIPs": [{"ip": "10.1.1.1"}], "conditions": [{"type": "a", "status": "True"}]}});
    let wide = cells("po", object);
    let expected = "*IP='10.1.1.1' *Node='edge-1' *Nominated Node='<none>' *Readiness Gates='1/2'";
    assert!(wide.ends_with(expected), "{wide}");
}
