//! Configuration of EMQX 5, written from its documentation; not run in the project's tests.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{BrokerConfig, CONNECTIONS, INFLIGHT};
use edgesync_transport::tls::CLOUD;

/// Maximum length of a client's queue: EMQX counts messages, not bytes.
const QUEUED_MESSAGES: u32 = 10_000;

pub(super) fn files(config: &BrokerConfig, ends: Timestamp) -> BTreeMap<String, String> {
    [("emqx.conf".to_owned(), configuration(config, ends)), ("acl.conf".to_owned(), rules(config))].into()
}

fn configuration(config: &BrokerConfig, ends: Timestamp) -> String {
    let BrokerConfig { directory, port, max_packet, .. } = config;
    let names = config.names.join(", ");
    format!(
        "# EMQX 5 for edgesync: nodes are told apart by their certificates.
# Written after EMQX's documentation and not tested by the project: try it before you rely on it.
#
# To install:
#   - put all files into {directory}, readable by EMQX's user only:
#       chown -R emqx {directory} && chmod 700 {directory} && chmod 600 {directory}/*
#   - put what is below into EMQX's own emqx.conf, behind what is there (node name, cookie, dashboard), and restart it
#   - tell the cloud side: broker.mode = \"external\", link.broker = \"mqtts://HOST:{port}\"
# The certificate is for {names}; it ends on {ends}: make new files before.
#
# Revocation: EMQX takes revocation lists only from an HTTP address that stands in the certificates, so it does not use
# revoked.crl. After 'edgesync-cloud node revoke NAME' ban the client id NAME in the dashboard, and cut its connection:
# emqx ctl clients kick NAME. The cloud side listens to nothing that comes from a revoked node, whatever EMQX does.

listeners.tcp.default.enable = false
listeners.ws.default.enable = false
listeners.wss.default.enable = false

listeners.ssl.default {{
  bind = \"0.0.0.0:{port}\"
  max_connections = {CONNECTIONS}
  # The certificate says who it is; nothing else is asked for.
  enable_authn = false
  tcp_options.nodelay = true
  ssl_options {{
    cacertfile = \"{directory}/ca.crt\"
    certfile = \"{directory}/server.crt\"
    keyfile = \"{directory}/server.key\"
    versions = [\"tlsv1.3\", \"tlsv1.2\"]
    verify = verify_peer
    fail_if_no_peer_cert = true
  }}
}}

mqtt {{
  # Who a client is stands in its certificate, whatever it says itself.
  peer_cert_as_username = cn
  peer_cert_as_clientid = cn
  # link.max_frame and what MQTT adds.
  max_packet_size = {max_packet}B
  max_inflight = {INFLIGHT}
  max_mqueue_len = {QUEUED_MESSAGES}
  session_expiry_interval = 1h
  retain_available = true
  wildcard_subscription = true
}}

retainer {{
  enable = true
  # One presence for each node and one of the cloud side.
  max_payload_size = 4KB
  backend.type = built_in_database
  backend.storage_type = ram
  backend.max_retained_messages = 100000
}}

authorization {{
  no_match = deny
  deny_action = ignore
  sources = [
    {{ type = file, enable = true, path = \"{directory}/acl.conf\" }}
  ]
}}
"
    )
}

fn rules(config: &BrokerConfig) -> String {
    let prefix = &config.prefix;
    format!(
        "%% Who may do what, by the common name of the certificate. No node can have a name with a colon.
{{allow, {{username, \"{CLOUD}\"}}, subscribe, [\"{prefix}/nodes/+/up\", \"{prefix}/nodes/+/presence\", \"{prefix}/cloud\"]}}.
{{allow, {{username, \"{CLOUD}\"}}, publish, [\"{prefix}/nodes/+/down\", \"{prefix}/cloud\"]}}.
{{allow, all, publish, [\"{prefix}/nodes/${{username}}/up\", \"{prefix}/nodes/${{username}}/presence\"]}}.
{{allow, all, subscribe, [\"{prefix}/nodes/${{username}}/down\", \"{prefix}/nodes/${{username}}/presence\", {{eq, \"{prefix}/cloud\"}}]}}.
{{deny, all}}.
"
    )
}
