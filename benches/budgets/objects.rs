//! Realistic objects of about 1 KB: ConfigMaps, Secrets and Pods of a cluster.

use serde_json::{Value, json};

/// SplitMix64, so that every run measures the same bytes.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn token(&mut self, bytes: usize) -> String {
        (0..bytes.div_ceil(16)).map(|_| format!("{:016x}", self.next())).collect::<String>()[..bytes]
            .to_owned()
    }
}

/// Returns object number `n`, in its version `round`.
pub(crate) fn object(n: usize, round: u64) -> Value {
    let mut random = Random((n as u64) << 20 ^ round);
    match n % 10 {
        0..=5 => config_map(n, &mut random),
        6..=8 => secret(n, &mut random),
        _ => pod(n, &mut random),
    }
}

fn meta(kind: &str, n: usize) -> Value {
    json!({
        "name": format!("{kind}-{n:06}"),
        "namespace": format!("plant-{}", n % 7),
        "labels": {
            "app.kubernetes.io/name": format!("station-{}", n % 50),
            "app.kubernetes.io/managed-by": "fleet-operator",
            "line": format!("line-{}", n % 12),
        },
        "annotations": { "fleet.example/revision": format!("{}", n % 1000) },
    })
}

fn config_map(n: usize, random: &mut Random) -> Value {
    let settings: String = (0..8)
        .map(|key| format!("station.parameter.{key}={}\nstation.unit.{key}=mm\n", random.token(24)))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("settings", n),
        "data": { "station.properties": settings, "endpoint": format!("opc.tcp://10.0.{}.{}:4840", n % 250, n % 249) },
    })
}

fn secret(n: usize, random: &mut Random) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": meta("credential", n), "type": "Opaque",
        "data": { "username": "c3RhdGlvbg==", "password": random.token(64), "certificate": random.token(500) },
    })
}

fn pod(n: usize, random: &mut Random) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": meta("collector", n),
        "spec": {
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "hostNetwork": true,
            "containers": [{
                "name": "collector", "image": format!("registry.example/collector:1.{}@sha256:{}", n % 30, random.token(64)),
                "imagePullPolicy": "IfNotPresent",
                "env": [{ "name": "STATION", "value": format!("{n}") }, { "name": "LOG", "value": "info" }],
                "resources": { "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "64Mi" } },
                "volumeMounts": [{ "name": "settings", "mountPath": "/etc/collector", "readOnly": true }],
            }],
            "volumes": [{ "name": "settings", "configMap": { "name": format!("settings-{:06}", n - n % 10) } }],
            "tolerations": [{ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute" }],
        },
    })
}
