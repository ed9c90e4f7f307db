//! The demo's objects: about 1 KB each, typical of a plant's gateway, identical on every run. Pure.

use serde_json::{Value, json};

/// Namespaces of the objects; the cloud side's configuration places them on the node.
pub(super) const NAMESPACES: [&str; 2] = ["plant-north", "plant-south"];

/// An object and its API path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DemoObject {
    /// Path of the collection.
    pub(super) collection: String,
    pub(super) name: String,
    /// The object as applied.
    pub(super) body: Value,
}

impl DemoObject {
    /// Returns the path of the object.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }
}

/// Returns object number `index` in a revision: half are ConfigMaps, a quarter each Secrets and
/// Pods. Another revision has different content under the same name.
pub(super) fn object(index: u32, node: &str, revision: u32) -> DemoObject {
    let random = &mut Random(u64::from(index) << 32 | u64::from(revision));
    let line = index / 8 % 40;
    let (plural, kind, name, content) = match index % 4 {
        0 | 1 => ("configmaps", "ConfigMap", format!("line-{line:02}-settings-{index:05}"), settings(random)),
        2 => ("secrets", "Secret", format!("line-{line:02}-credentials-{index:05}"), credentials(random)),
        _ => {
            // Only the images of an existing Pod may change.
            let image =
                format!("registry.example.com/plant/driver:2.{}.{}", random.below(20), random.below(10));
            let same = &mut Random(u64::from(index) << 32);
            ("pods", "Pod", format!("line-{line:02}-driver-{index:05}"), driver(same, index, node, &image))
        }
    };
    let namespace = NAMESPACES[index as usize / 4 % NAMESPACES.len()];
    let mut body = json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": "line-control",
                "app.kubernetes.io/part-of": "plant",
                "plant.example.com/line": format!("{line:02}"),
            },
            "annotations": { "plant.example.com/revision": revision.to_string() },
        },
    });
    if let (Some(body), Value::Object(content)) = (body.as_object_mut(), content) {
        body.extend(content);
    }
    DemoObject { collection: format!("/api/v1/namespaces/{namespace}/{plural}"), name, body }
}

/// Settings of a production line's controller.
fn settings(random: &mut Random) -> Value {
    let mut text = String::from("# set points of the line; units in the names\n");
    for station in 0..9 {
        let (speed, torque, limit) = (random.below(1800), random.below(400), 60 + random.below(40));
        text.push_str(&format!(
            "station-{station}:\n  speed_rpm: {speed}\n  torque_ncm: {torque}\n  temperature_limit_c: {limit}\n"
        ));
    }
    json!({ "data": { "line.yaml": text, "log-level": "info" } })
}

/// Device keys in Base64, as in a Secret.
fn credentials(random: &mut Random) -> Value {
    json!({
        "type": "Opaque",
        "data": { "client.key": random.base64(480), "password": random.base64(32), "user": "bGluZS1jb250cm9s" },
    })
}

fn driver(random: &mut Random, index: u32, node: &str, image: &str) -> Value {
    json!({ "spec": {
        "nodeName": node,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "containers": [{
            "name": "driver",
            "image": image,
            "args": ["--bus=/dev/ttyS1", format!("--station={}", random.below(64)), "--config=/etc/line/line.yaml"],
            "env": [
                { "name": "CYCLE_MS", "value": (20 + random.below(480)).to_string() },
                { "name": "LOG_LEVEL", "value": "info" },
            ],
            "ports": [{ "name": "metrics", "containerPort": 9100, "protocol": "TCP" }],
            "resources": {
                "requests": { "cpu": "50m", "memory": "32Mi" },
                "limits": { "cpu": "200m", "memory": format!("{}Mi", 64 + random.below(64)) },
            },
            "livenessProbe": { "httpGet": { "path": "/healthz", "port": "metrics" }, "periodSeconds": 10 },
            "volumeMounts": [{ "name": "settings", "mountPath": "/etc/line", "readOnly": true }],
        }],
        "volumes": [{ "name": "settings", "configMap": { "name": format!("driver-{}", index % 16) } }],
    } })
}

/// Deterministic pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns this many characters of Base64; a multiple of four.
    fn base64(&mut self, length: usize) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..length).map(|_| char::from(ALPHABET[self.next() as usize % ALPHABET.len()])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::Object;
    use std::collections::BTreeSet;

    #[test]
    fn objects_are_identical_on_every_run() {
        for index in 0..40 {
            assert_eq!(object(index, "n", 1), object(index, "n", 1));
        }
        let (one, other) = (object(7, "n", 1), object(7, "n", 2));
        assert_eq!(one.path(), other.path());
        assert_ne!(one.body, other.body);
    }

    #[test]
    fn pod_revisions_differ_in_images_only() {
        let without_image = |revision| {
            let mut spec = object(7, "n", revision).body["spec"].take();
            let image = spec["containers"][0]["image"].take();
            (spec, image)
        };
        let ((one, old), (other, new)) = (without_image(1), without_image(2));
        assert_eq!(one, other);
        assert_ne!(old, new);
    }

    #[test]
    fn names_are_unique_and_sizes_about_a_kilobyte() {
        let mut paths = BTreeSet::new();
        for index in 0..2000 {
            let object = object(index, "gateway-1", 1);
            let size = object.body.to_string().len();
            assert!((700..1500).contains(&size), "{} has {size} bytes", object.path());
            assert!(paths.insert(object.path()), "{} twice", object.path());
        }
        let all = |plural: &str| paths.iter().filter(|path| path.contains(plural)).count();
        assert_eq!((all("/configmaps/"), all("/secrets/"), all("/pods/")), (1000, 500, 500));
    }

    #[test]
    fn objects_are_accepted_by_the_api() {
        for index in 0..40 {
            let DemoObject { body, name, collection } = object(index, "gateway-1", 1);
            let parsed = Object::parse(&body.to_string()).unwrap();
            assert_eq!(parsed.name(), name);
            assert!(collection.contains(parsed.namespace()), "{collection}");
        }
    }
}
