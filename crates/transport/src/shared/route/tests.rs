use super::*;

fn offer(server_name: Option<&str>, protocols: Option<&[&str]>) -> Offer {
    let bytes = |protocol: &&str| protocol.as_bytes().to_vec();
    Offer {
        server_name: server_name.map(str::to_owned),
        protocols: protocols.map(|protocols| protocols.iter().map(bytes).collect()),
    }
}

fn routes() -> Routes {
    Routes {
        services: vec![Service::Mqtt, Service::Join, Service::Api],
        names: vec![
            ("mqtt.example".to_owned(), Service::Mqtt),
            ("join.example".to_owned(), Service::Join),
            ("api.example".to_owned(), Service::Api),
        ],
        join_paths: &["/ca.crt", "/edge.crt"],
    }
}

fn speaks(name: Option<&str>, protocols: Option<&[&str]>) -> Speaks {
    routes().by_hello(&offer(name, protocols)).unwrap().speaks
}

fn choice(speaks: Speaks, only: Option<Service>) -> Choice {
    Choice { speaks, only }
}

fn destination(choice: Choice, bytes: &str) -> Result<Option<(Service, bool)>, NoRoute> {
    let chosen = routes().by_first_bytes(choice, bytes.as_bytes())?;
    Ok(chosen.map(|chosen| (chosen.service, chosen.web_socket)))
}

#[test]
fn alpn_decides_between_mqtt_and_http() {
    assert_eq!(speaks(None, Some(&["mqtt"])), Speaks::Mqtt);
    assert_eq!(speaks(None, Some(&["h2", "http/1.1"])), Speaks::Http);
    assert_eq!(speaks(None, Some(&["mqtt", "http/1.1"])), Speaks::Mqtt);
    assert_eq!(speaks(None, Some(&["http/1.1", "mqtt"])), Speaks::Http);
    assert_eq!(speaks(Some("mqtt.example"), Some(&["http/1.1"])), Speaks::Http, "a WebSocket");
}

#[test]
fn name_or_first_byte_decides_without_alpn() {
    assert_eq!(speaks(None, None), Speaks::Either);
    assert_eq!(speaks(Some("cloud.example"), None), Speaks::Either);
    assert_eq!(speaks(Some("mqtt.example"), None), Speaks::Either);
    assert_eq!(speaks(Some("join.example"), None), Speaks::Http);
    let either = choice(Speaks::Either, None);
    assert_eq!(destination(either, ""), Ok(None));
    assert_eq!(destination(either, "\x10\x0c"), Ok(Some((Service::Mqtt, false))));
    assert_eq!(destination(either, "GET /ca.crt HTTP/1.1\r\n"), Ok(Some((Service::Join, false))));
    let http = choice(Speaks::Http, None);
    assert_eq!(destination(http, "\x10\x0c"), Err(NoRoute::Unknown(0x10)), "HTTP was agreed on");
}

#[test]
fn protocols_that_nobody_speaks_are_named_in_the_refusal() {
    for protocols in [&["h2"] as &[&str], &["h3", "spdy/3"], &["MQTT"], &["mqtt\n"], &[]] {
        let refused = routes().by_hello(&offer(None, Some(protocols))).unwrap_err();
        assert!(matches!(refused, NoRoute::Protocols(_)), "{protocols:?}");
    }
    let refused = routes().by_hello(&offer(None, Some(&["h2", "a\nb"]))).unwrap_err().to_string();
    assert!(refused.contains("the client offers h2, a\\nb (ALPN), this port speaks mqtt"), "{refused}");
    let long = "x".repeat(255);
    let many: Vec<&str> = std::iter::repeat_n(long.as_str(), 200).collect();
    let refused = routes().by_hello(&offer(None, Some(&many))).unwrap_err().to_string();
    assert!(refused.len() < 400 && refused.contains('…'), "{refused}");
}

#[test]
fn agreed_mqtt_needs_no_first_byte() {
    assert_eq!(destination(choice(Speaks::Mqtt, None), ""), Ok(Some((Service::Mqtt, false))));
    assert_eq!(destination(choice(Speaks::Mqtt, None), "GET / HTTP/1.1\n"), Ok(Some((Service::Mqtt, false))));
}

#[test]
fn path_of_the_first_request_chooses_the_service() {
    let http = choice(Speaks::Http, None);
    for (line, expected) in [
        ("GET /mqtt HTTP/1.1\r\n", (Service::Mqtt, true)),
        ("GET /mqtt?x=/ca.crt HTTP/1.1\r\n", (Service::Mqtt, true)),
        ("GET https://cloud.example:443/mqtt HTTP/1.1\r\n", (Service::Mqtt, true)),
        ("GET /edge.crt?a HTTP/1.1\n", (Service::Join, false)),
        ("POST /edge.crt HTTP/1.0\r\n", (Service::Join, false)),
        ("GET /mqtt/ HTTP/1.1\r\n", (Service::Api, false)),
        ("GET /MQTT HTTP/1.1\r\n", (Service::Api, false)),
        ("GET /api/v1/nodes?u=http://x/mqtt HTTP/1.1\r\n", (Service::Api, false)),
        ("GET https://cloud.example HTTP/1.1\r\n", (Service::Api, false)),
        ("OPTIONS * HTTP/1.1\r\n", (Service::Api, false)),
    ] {
        assert_eq!(destination(http, line), Ok(Some(expected)), "{line}");
        // No part of the line decides before its end.
        assert_eq!(destination(http, &line[..line.len() - 1]), Ok(None), "{line}");
    }
}

#[test]
fn lines_that_are_no_request_are_refused() {
    let http = choice(Speaks::Http, None);
    for line in ["GET /\r\n", "GET / HTTP/2.0\r\n", "GET  / HTTP/1.1\r\n", "GET /mqtt HTTP/1.1 x\r\n", "A\n"]
    {
        assert!(matches!(destination(http, line), Err(NoRoute::Line(_))), "{line}");
    }
    assert_eq!(destination(http, "PRI * HTTP/2.0\r\n"), Err(NoRoute::Http2));
    assert_eq!(destination(http, "\r\nGET / HTTP/1.1\r\n"), Err(NoRoute::Unknown(b'\r')));
    assert_eq!(destination(http, &"A".repeat(MAX_LINE - 1)), Ok(None));
    assert!(matches!(destination(http, &"A".repeat(MAX_LINE)), Err(NoRoute::Line(_))));
    let bytes = routes().by_first_bytes(http, b"GET /\xff HTTP/1.1\r\n");
    assert!(matches!(bytes, Err(NoRoute::Line(_))));
}

#[test]
fn reserved_name_serves_its_service_only() {
    let api = routes().by_hello(&offer(Some("api.example"), None)).unwrap();
    assert_eq!(api.only, Some(Service::Api));
    assert_eq!(destination(api, "GET /version HTTP/1.1\r\n"), Ok(Some((Service::Api, false))));
    for line in ["GET /ca.crt HTTP/1.1\r\n", "GET /mqtt HTTP/1.1\r\n"] {
        let refused = destination(api, line).unwrap_err().to_string();
        assert!(refused.contains("under this host name, which is for api"), "{refused}");
    }
    let refused = routes().by_hello(&offer(Some("join.example"), Some(&["mqtt"]))).unwrap_err();
    assert_eq!(refused.to_string(), "mqtt is not served under this host name, which is for join");
    let mqtt = routes().by_hello(&offer(Some("mqtt.example"), Some(&["http/1.1"]))).unwrap();
    assert_eq!(destination(mqtt, "GET /mqtt HTTP/1.1\r\n"), Ok(Some((Service::Mqtt, true))));
}

#[test]
fn service_that_is_off_is_refused_on_every_way() {
    let none = Routes { services: vec![Service::Join], ..routes() };
    let off = |service| NoRoute::NotServed { service, place: "on this address".to_owned() };
    assert_eq!(none.by_hello(&offer(None, Some(&["mqtt"]))), Err(off(Service::Mqtt)));
    let either = none.by_hello(&offer(None, None)).unwrap();
    assert_eq!(none.by_first_bytes(either, b"\x10"), Err(off(Service::Mqtt)));
    assert_eq!(none.by_first_bytes(either, b"GET /mqtt HTTP/1.1\r\n"), Err(off(Service::Mqtt)));
    assert_eq!(none.by_first_bytes(either, b"GET / HTTP/1.1\r\n"), Err(off(Service::Api)));
    assert!(none.by_first_bytes(either, b"GET /ca.crt HTTP/1.1\r\n").is_ok());
}
