//! The MQTT client against a scripted broker and a bad network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use edgesync_transport::link::{Cause, Link, LinkEvent, Publish, PublishError, SessionIntro};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAckProperties, ConnectReturnCode, Packet, PingResp, PubAckReason, SubscribeReasonCode,
};
use support::links::{PATIENCE, cause, connected, message, next, options};
use support::proxy::{Mode, Proxy, Way};
use support::scripted_broker::{Peer, ScriptedBroker};
use support::timing::{assert_within, is_within, receive_within, within};

/// Returns the cause of the first failure with a broker that follows the script.
async fn cause_with(script: impl Fn(usize, Peer) + Send + Sync + 'static) -> Cause {
    let broker = ScriptedBroker::start(script);
    let (_link, mut events) = Link::spawn(options(broker.address()));
    loop {
        match next(&mut events).await {
            LinkEvent::Disconnected { cause, .. } => return cause,
            LinkEvent::Connected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn connack_properties() -> ConnAckProperties {
    ConnAckProperties {
        session_expiry_interval: None,
        receive_max: None,
        max_qos: None,
        retain_available: None,
        max_packet_size: None,
        assigned_client_identifier: None,
        topic_alias_max: None,
        reason_string: None,
        user_properties: Vec::new(),
        wildcard_subscription_available: None,
        subscription_identifiers_available: None,
        shared_subscription_available: None,
        server_keep_alive: None,
        response_information: None,
        server_reference: None,
        authentication_method: None,
        authentication_data: None,
    }
}

#[tokio::test]
async fn connection_without_a_connack_times_out() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.read_connect();
        while peer.read().is_some() {}
    });
    let mut options = options(broker.address());
    options.connect_timeout = Duration::from_millis(200);
    let (_link, mut events) = Link::spawn(options);
    assert!(matches!(cause(&mut events).await, Cause::ConnectTimeout { .. }));
}

#[tokio::test]
async fn refused_subscription_is_an_error_with_filter_and_code() {
    let cause = cause_with(|_, mut peer| {
        peer.accept();
        peer.answer_subscribe(SubscribeReasonCode::NotAuthorized);
        peer.read();
    })
    .await;
    let Cause::SubscriptionRefused { filter, code, reason } = cause else { panic!("{cause:?}") };
    assert_eq!((filter.as_str(), code, reason.as_str()), ("t/down", 0x87, "not authorized"));
}

#[tokio::test]
async fn refusals_of_the_broker_have_distinct_causes() {
    for (code, label) in [
        (ConnectReturnCode::NotAuthorized, "not-authorized"),
        (ConnectReturnCode::BadUserNamePassword, "not-authorized"),
        (ConnectReturnCode::ServerBusy, "unavailable"),
        (ConnectReturnCode::ClientIdentifierNotValid, "rejected"),
    ] {
        let cause = cause_with(move |_, mut peer| {
            peer.read_connect();
            peer.send_connack(code, None);
        })
        .await;
        assert_eq!(cause.label(), label, "{cause}");
    }
}

#[tokio::test]
async fn ends_of_a_connection_have_distinct_causes() {
    let ends: [(&[u8], &str); 6] = [
        (&[0xe0, 0x02, 0x8b, 0x00], "unavailable"),
        // mosquitto's form, without the length of the properties.
        (&[0xe0, 0x01, 0x95], "packet-too-large"),
        (&[0xe0, 0x01, 0x98], "ended"),
        (&[0xff; 64], "protocol"),
        (&[0x30, 0xff, 0xff, 0xff, 0x7f], "packet-too-large"),
        (&[], "closed"),
    ];
    for (bytes, label) in ends {
        let cause = cause_with(move |_, mut peer| {
            peer.accept_and_grant();
            peer.send_bytes(bytes);
        })
        .await;
        assert_eq!(cause.label(), label, "{bytes:x?}: {cause}");
    }
}

#[tokio::test]
async fn unknown_hosts_and_closed_ports_have_distinct_causes() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let (link, mut events) = Link::spawn(options(free));
    let refused = cause(&mut events).await;
    assert_eq!(refused.label(), "refused");
    assert!(link.endings().failed[refused.index()] >= 1, "an attempt that failed");
    assert_eq!(link.endings().lost, [0; Cause::COUNT], "there was no connection to lose");
    let mut nowhere = options(free);
    nowhere.endpoints[0].host = "a..b".to_owned();
    let (_link, mut events) = Link::spawn(nowhere);
    assert_eq!(cause(&mut events).await.label(), "dns");
}

#[tokio::test]
async fn session_taken_over_backs_off_for_minutes() {
    for bytes in [&[0xe0, 0x02, 0x8e, 0x00][..], &[0xe0, 0x01, 0x8e]] {
        let bytes = bytes.to_vec();
        let broker = ScriptedBroker::start(move |_, mut peer| {
            peer.accept_and_grant();
            peer.send_bytes(&bytes);
            while peer.read().is_some() {}
        });
        let (link, mut events) = Link::spawn(options(broker.address()));
        connected(&mut events).await;
        let LinkEvent::Disconnected { cause, retry_in } = next(&mut events).await else { panic!() };
        assert_eq!(cause, Cause::TakenOver { client_id: "node-1".to_owned() });
        assert_eq!(link.endings().lost[cause.index()], 1);
        assert_eq!(link.endings().failed, [0; Cause::COUNT]);
        assert!(cause.to_string().contains("one name"), "{cause}");
        assert!(retry_in >= Duration::from_secs(300), "{retry_in:?}");
    }
}

#[tokio::test]
async fn puback_errors_name_their_message() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        let ids: Vec<u16> = (0..3).map(|_| peer.read_publish().pkid).collect();
        peer.acknowledge(ids[0], PubAckReason::NoMatchingSubscribers);
        peer.acknowledge(ids[1], PubAckReason::QuotaExceeded);
        peer.acknowledge(ids[2], PubAckReason::Success);
        peer.publish("t/down", b"done", 1);
        while peer.read().is_some() {}
    });
    let (link, mut events) = Link::spawn(options(broker.address()));
    connected(&mut events).await;
    assert_eq!(link.traffic().round_trip, None);
    for topic in ["t/a", "t/b", "t/c"] {
        link.try_publish(topic, vec![1], false).unwrap();
    }
    let LinkEvent::Rejected { topic, code, reason } = next(&mut events).await else { panic!() };
    assert_eq!((topic.as_str(), code, reason.as_str()), ("t/b", 0x97, "quota exceeded"));
    message(&mut events).await;
    let traffic = link.traffic();
    assert_eq!((traffic.rejected, traffic.no_subscriber, traffic.unacknowledged), (1, 1, 0));
    assert_eq!(traffic.messages_out, 3);
    let round_trip = traffic.round_trip.unwrap();
    assert!(round_trip < PATIENCE, "{round_trip:?}");
}

#[tokio::test]
async fn link_observes_the_brokers_limits() {
    let (seen, window) = channel();
    let broker = ScriptedBroker::start(move |_, mut peer| {
        peer.read_connect();
        let limits =
            ConnAckProperties { max_packet_size: Some(2000), receive_max: Some(3), ..connack_properties() };
        peer.send_connack(ConnectReturnCode::Success, Some(limits));
        peer.answer_subscribe(SubscribeReasonCode::Success(QoS::AtLeastOnce));
        let ids: Vec<u16> = (0..3).map(|_| peer.read_publish().pkid).collect();
        // A fourth message would arrive before the ping that follows the silence.
        let fourth = peer.expect();
        seen.send(matches!(fourth, Packet::PingReq(_))).unwrap();
        peer.send(&Packet::PingResp(PingResp));
        for id in ids {
            peer.acknowledge(id, PubAckReason::Success);
        }
        peer.acknowledge_and_drop();
    });
    let mut options = options(broker.address());
    options.keepalive = Duration::from_secs(2);
    let (link, mut events) = Link::spawn(options);
    assert_eq!(connected(&mut events).await, 2000);
    let too_large = link.try_publish("t/up", vec![0; 2000], false);
    assert!(matches!(too_large, Err(PublishError::TooLarge { limit: 2000, .. })), "{too_large:?}");
    for _ in 0..5 {
        link.try_publish("t/up", vec![0; 100], false).unwrap();
    }
    let kept = tokio::task::spawn_blocking(move || receive_within(&window, PATIENCE)).await.unwrap();
    assert_eq!(kept, Ok(true), "more than three messages were in flight");
    assert!(link.shutdown(Vec::new(), PATIENCE).await);
}

#[tokio::test]
async fn queued_messages_are_dropped_with_their_connection() {
    let (seen, second) = channel();
    let broker = ScriptedBroker::start(move |number, mut peer| {
        peer.accept_and_grant();
        if number == 0 {
            peer.read_publish();
            return;
        }
        seen.send(peer.acknowledge_and_drop()).unwrap();
    });
    let mut options = options(broker.address());
    options.inflight = 1;
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    for number in 0..5 {
        link.try_publish("t/up", vec![number], false).unwrap();
    }
    cause(&mut events).await;
    assert_eq!(link.traffic().discarded, 5);
    connected(&mut events).await;
    link.try_publish("t/up", vec![9], false).unwrap();
    assert!(link.shutdown(Vec::new(), PATIENCE).await);
    let got = tokio::task::spawn_blocking(move || receive_within(&second, PATIENCE).unwrap()).await.unwrap();
    assert_eq!(got, (vec![vec![9]], true));
}

#[tokio::test]
async fn full_queue_refuses_messages_until_it_is_ready() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let broker = ScriptedBroker::start(move |_, mut peer| {
        peer.accept_and_grant();
        wait.lock().unwrap().recv().unwrap();
        peer.acknowledge_and_drop();
    });
    let mut options = options(broker.address());
    (options.queue, options.inflight) = (2, 1);
    let (link, mut events) = Link::spawn(options);
    assert_eq!(link.try_publish("t/up", vec![1], false), Err(PublishError::NotConnected));
    assert_eq!(link.ready().await, Err(PublishError::NotConnected));
    connected(&mut events).await;
    let mut sent = 0;
    while link.try_publish("t/up", vec![1], false) != Err(PublishError::Full) {
        sent += 1;
        tokio::task::yield_now().await;
    }
    assert!((2..=3).contains(&sent), "{sent}");
    go.send(()).unwrap();
    within("the queue has room", PATIENCE, link.ready()).await.unwrap();
    link.try_publish("t/up", vec![2], false).unwrap();
}

#[tokio::test]
async fn shutdown_sends_queue_then_farewell_then_disconnect() {
    let (seen, ended) = channel();
    let broker = ScriptedBroker::start(move |_, mut peer| {
        peer.accept_and_grant();
        seen.send(peer.acknowledge_and_drop()).unwrap();
    });
    let mut options = options(broker.address());
    options.inflight = 2;
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    for number in 0..20 {
        link.try_publish("t/up", vec![number], false).unwrap();
    }
    let farewell = Publish { topic: "t/presence".to_owned(), payload: b"bye".to_vec(), retain: true };
    assert!(link.shutdown(vec![farewell], PATIENCE).await);
    let (payloads, disconnected) =
        tokio::task::spawn_blocking(move || receive_within(&ended, PATIENCE).unwrap()).await.unwrap();
    let mut expected: Vec<Vec<u8>> = (0..20).map(|number| vec![number]).collect();
    expected.push(b"bye".to_vec());
    assert_eq!(payloads, expected);
    assert!(disconnected);
    assert_eq!(events.recv().await, None);
}

#[tokio::test]
async fn shutdown_times_out_without_acknowledgements_or_consumer() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        for number in 1..=20 {
            peer.publish("t/down", &[number], number.into());
        }
        while peer.read().is_some() {}
    });
    let mut options = options(broker.address());
    options.events = 1;
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    link.try_publish("t/up", vec![1], false).unwrap();
    let shutdown = link.shutdown(Vec::new(), Duration::from_millis(300));
    assert!(!within("the shutdown ends", PATIENCE, shutdown).await, "nothing was acknowledged");
}

#[tokio::test]
async fn dropped_event_receiver_disconnects_the_link() {
    let (seen, ended) = channel();
    let broker = ScriptedBroker::start(move |_, mut peer| {
        peer.accept_and_grant();
        seen.send(peer.acknowledge_and_drop().1).unwrap();
    });
    let (_link, mut events) = Link::spawn(options(broker.address()));
    connected(&mut events).await;
    drop(events);
    let disconnected = tokio::task::spawn_blocking(move || receive_within(&ended, PATIENCE)).await.unwrap();
    assert_eq!(disconnected, Ok(true));
}

#[tokio::test]
async fn will_and_greetings_are_built_for_each_connection() {
    let (seen, said) = channel();
    let broker = ScriptedBroker::start(move |_, mut peer| {
        let (_, will) = peer.accept();
        peer.answer_subscribe(SubscribeReasonCode::Success(QoS::AtLeastOnce));
        let greeting = peer.read_publish();
        let will = will.unwrap();
        assert!(will.retain && greeting.retain);
        let _ = seen.send((will.message.to_vec(), greeting.payload.to_vec()));
    });
    let mut options = options(broker.address());
    options.introduce = Arc::new(|connection| {
        let publish = |word: &str| Publish {
            topic: "t/presence".to_owned(),
            payload: format!("{word} {connection}").into_bytes(),
            retain: true,
        };
        SessionIntro { will: Some(publish("offline")), greetings: vec![publish("online")] }
    });
    let (_link, mut events) = Link::spawn(options);
    let mut said_before = Vec::new();
    for _ in 0..2 {
        let LinkEvent::Connected { connection, .. } = next(&mut events).await else { panic!() };
        cause(&mut events).await;
        let (will, greeting) = receive_within(&said, PATIENCE).unwrap();
        assert_eq!(will, format!("offline {connection}").into_bytes());
        assert_eq!(greeting, format!("online {connection}").into_bytes());
        assert!(!said_before.contains(&will));
        said_before.push(will);
    }
}

#[tokio::test]
async fn messages_before_the_suback_follow_the_connected_event() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept();
        peer.publish("t/down", b"early", 1);
        peer.answer_subscribe(SubscribeReasonCode::Success(QoS::AtLeastOnce));
        let Packet::PubAck(puback) = peer.expect() else { panic!() };
        assert_eq!(puback.pkid, 1);
        peer.publish("t/down", b"acknowledged", 2);
        while peer.read().is_some() {}
    });
    let (_link, mut events) = Link::spawn(options(broker.address()));
    connected(&mut events).await;
    assert_eq!(message(&mut events).await.1, b"early");
    assert_eq!(message(&mut events).await.1, b"acknowledged");
}

#[tokio::test]
async fn stalled_consumer_loses_the_connection_and_a_slow_one_nothing() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        for number in 0..100_u16 {
            peer.publish("t/down", &number.to_be_bytes(), number + 1);
        }
        peer.acknowledge_and_drop();
    });
    let mut options = options(broker.address());
    options.events = 4;
    options.keepalive = Duration::from_secs(2);
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    for number in 0..100_u16 {
        assert_eq!(message(&mut events).await.1, number.to_be_bytes());
        tokio::task::yield_now().await;
    }
    link.give_up();
    assert_eq!(cause(&mut events).await, Cause::Unanswered);
    // From here the consumer takes no events for longer than the keepalive.
    let started = Instant::now();
    while link.traffic().stalled == 0 {
        assert!(is_within(started.elapsed(), PATIENCE), "the connection is kept for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(link.traffic().messages_in, 100 + 4, "one event was the connection, one more is held");
    assert!(started.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn keepalive_pings_idle_links_and_detects_half_open_ones() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        for _ in 0..3 {
            let Packet::PingReq(_) = peer.expect() else { panic!("not a ping") };
            peer.send(&Packet::PingResp(PingResp));
        }
        peer.publish("t/down", b"three pings", 1);
        while peer.read().is_some() {}
    });
    let proxy = Proxy::start(broker.address());
    let mut options = options(proxy.address());
    options.keepalive = Duration::from_secs(2);
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    assert_eq!(message(&mut events).await.1, b"three pings", "an idle link was dropped");
    proxy.set(Mode::Stall);
    let stalled = Instant::now();
    assert!(matches!(cause(&mut events).await, Cause::KeepAlive { .. }));
    assert_within(stalled.elapsed(), Duration::from_secs(4));
    proxy.set(Mode::Pass);
    connected(&mut events).await;
    assert_eq!(link.traffic().connected, 2);
}

#[tokio::test]
async fn arriving_bytes_of_a_large_frame_keep_the_connection() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        let mut publish = vec![0x30, 0xa0, 0x9c, 0x01, 0, 6];
        publish.extend_from_slice(b"t/down\0");
        publish.resize(4 + 20_000, 7);
        // Until the message is complete, nothing else can be sent, not even a ping response.
        let (_never, clock) = channel::<()>();
        for piece in publish.chunks(2000) {
            let _ = clock.recv_timeout(Duration::from_millis(300));
            peer.send_bytes(piece);
        }
        peer.acknowledge_and_drop();
    });
    let mut options = options(broker.address());
    options.keepalive = Duration::from_secs(2);
    let (_link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    let (topic, payload) = message(&mut events).await;
    assert_eq!((topic.as_str(), payload.len()), ("t/down", 20_000 - 9));
}

#[tokio::test]
async fn cut_in_mid_frame_loses_the_frame_and_reconnects() {
    let broker = ScriptedBroker::start(|_, mut peer| {
        peer.accept_and_grant();
        peer.publish("t/down", &[1; 10_000], 1);
        peer.acknowledge_and_drop();
    });
    let proxy = Proxy::start(broker.address());
    // CONNACK, SUBACK and a part of the message pass.
    proxy.cut_after(Way::Down, 500);
    let (_link, mut events) = Link::spawn(options(proxy.address()));
    connected(&mut events).await;
    assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
    connected(&mut events).await;
    assert_eq!(message(&mut events).await.1.len(), 10_000);
    proxy.set(Mode::Refuse);
    proxy.cut();
    cause(&mut events).await;
    assert!(matches!(cause(&mut events).await, Cause::Closed | Cause::Network { .. }));
    proxy.set(Mode::Delay(Duration::from_millis(20)));
    while !matches!(next(&mut events).await, LinkEvent::Connected { .. }) {}
    assert_eq!(message(&mut events).await.1.len(), 10_000);
}
