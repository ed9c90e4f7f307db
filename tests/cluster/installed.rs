//! Reads what is installed in a cluster: versions of objects, and the configuration of Pods.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::cluster::install::Setup;

impl Setup {
    /// Returns UID, name and version of the installed objects.
    pub(crate) fn versions(&self) -> Vec<[Value; 3]> {
        let kinds = "crd,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,services,\
                     deployments,networkpolicies";
        let mut list = self.get(&[kinds, "-A", "-l", "app.kubernetes.io/name=edgesync"]);
        let items = list["items"].as_array_mut().unwrap().iter_mut();
        let parts = ["uid", "name", "resourceVersion"];
        items.map(|item| parts.map(|part| item["metadata"][part].take())).collect()
    }

    /// Returns the configuration of the Pods.
    pub(crate) fn configuration(&self) -> String {
        let spec =
            self.get(&["deployment", "edgesync-cloud", "-n", "edgesync"])["spec"]["template"]["spec"].take();
        let volumes = spec["volumes"].as_array().unwrap();
        let name = volumes.iter().find_map(|volume| volume["configMap"]["name"].as_str()).unwrap();
        let map = self.get(&["configmap", name, "-n", "edgesync"]);
        map["data"]["edgesync-cloud.toml"].as_str().unwrap().to_owned()
    }
}
