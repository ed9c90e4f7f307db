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
        "# EMQX 5 for edgesync: nodes are identified by their certificates.
# Written from EMQX's documentation and not tested by the project: test it before production use.
#
# To install:
#   - put all files into {directory}, readable by EMQX's user only:
#       chown -R emqx {directory} && chmod 700 {directory} && chmod 600 {directory}/*
#   - append the settings below to EMQX's own emqx.conf (node name, cookie, dashboard), and restart it
#   - on the cloud side: broker.mode = \"external\", link.broker = \"mqtts://HOST:{port}\"
# The certificate is for {names}; it expires on {ends}: generate new files before.
#
# Revocation: EMQX takes revocation lists only from an HTTP address in the certificates, so it does not use
# revoked.crl. After 'edgesync-cloud node revoke NAME' ban the client id NAME in the dashboard, and disconnect it:
# emqx ctl clients kick NAME. The cloud side ignores all messages of a revoked node in any case.

listeners.tcp.default.enable = false
listeners.ws.default.enable = false
listeners.wss.default.enable = false

listeners.ssl.default {{
  bind = \"0.0.0.0:{port}\"
  max_connections = {CONNECTIONS}
  # The certificate authenticates the client; no password is required.
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
  # The certificate identifies a client, not its CONNECT packet.
  peer_cert_as_username = cn
  peer_cert_as_clientid = cn
  # link.max_frame and the overhead of MQTT.
  max_packet_size = {max_packet}B
  max_inflight = {INFLIGHT}
  max_mqueue_len = {QUEUED_MESSAGES}
  session_expiry_interval = 1h
  retain_available = true
  wildcard_subscription = true
}}

retainer {{
  enable = true
  # One presence per node and one of the cloud side.
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
        "%% Access rules by the common name of the certificate. Names of nodes never contain a colon.
{{allow, {{username, \"{CLOUD}\"}}, subscribe, [\"{prefix}/nodes/+/up\", \"{prefix}/nodes/+/presence\", \"{prefix}/cloud\"]}}.
{{allow, {{username, \"{CLOUD}\"}}, publish, [\"{prefix}/nodes/+/down\", \"{prefix}/cloud\"]}}.
{{allow, all, publish, [\"{prefix}/nodes/${{username}}/up\", \"{prefix}/nodes/${{username}}/presence\"]}}.
{{allow, all, subscribe, [\"{prefix}/nodes/${{username}}/down\", \"{prefix}/nodes/${{username}}/presence\", {{eq, \"{prefix}/cloud\"}}]}}.
{{deny, all}}.
"
    )
}
