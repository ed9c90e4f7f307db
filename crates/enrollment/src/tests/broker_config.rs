//! The generated files; `tests/link` runs them with a real mosquitto.

use super::*;
use crate::broker_config::{BrokerConfig, Flavor, files};
use std::net::SocketAddr;

fn broker_config(flavor: Flavor, directory: &Path, address: SocketAddr) -> BrokerConfig {
    BrokerConfig {
        flavor,
        directory: directory.to_str().unwrap().into(),
        names: vec![address.ip().to_string(), "broker.example".into()],
        port: address.port(),
        prefix: "edgesync/v1".into(),
        max_packet: (256 << 10) + 2048,
    }
}

#[tokio::test]
async fn files_for_emqx_name_all_generated_files() {
    let fixture = fixture().await;
    let config =
        broker_config(Flavor::Emqx, Path::new("/etc/emqx/edgesync"), "127.0.0.1:8883".parse().unwrap());
    let files = files(&fixture.service, &config).unwrap();
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["acl.conf", "ca.crt", "emqx.conf", "revoked.crl", "server.crt", "server.key"]);
    let config = &files["emqx.conf"];
    for words in
        ["peer_cert_as_username = cn", "no_match = deny", "fail_if_no_peer_cert = true", "not tested"]
    {
        assert!(config.contains(words), "{words}");
    }
    assert_eq!(config.matches('{').count(), config.matches('}').count());
    assert!(files["acl.conf"].contains("{allow, all, publish, [\"edgesync/v1/nodes/${username}/up\""));
    assert!(files["acl.conf"].trim_end().ends_with("{deny, all}."));
}

#[tokio::test]
async fn values_with_a_meaning_in_the_files_are_refused() {
    let fixture = fixture().await;
    let good = broker_config(Flavor::Mosquitto, Path::new("/etc/m"), "127.0.0.1:8883".parse().unwrap());
    assert!(files(&fixture.service, &good).is_ok());
    for bad in [
        BrokerConfig { directory: "/etc/a\nallow_anonymous true".into(), ..good.clone() },
        BrokerConfig { directory: "relative".into(), ..good.clone() },
        BrokerConfig { prefix: "a\npattern write #".into(), ..good.clone() },
        BrokerConfig { prefix: "a/%u".into(), ..good.clone() },
        BrokerConfig { prefix: String::new(), ..good.clone() },
        BrokerConfig { names: Vec::new(), ..good.clone() },
        BrokerConfig { names: vec!["a b".into()], ..good.clone() },
        BrokerConfig { port: 0, ..good.clone() },
    ] {
        assert_eq!(files(&fixture.service, &bad).unwrap_err().code, 400, "{bad:?}");
    }
}
