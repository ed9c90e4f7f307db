//! The MQTT client with a real mosquitto.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use std::sync::Arc;
use std::time::Duration;

use edgesync_transport::link::{
    Cause, Introduce, Link, LinkEvent, LinkHandle, LinkOptions, Publish, PublishError, SessionIntro,
};
use support::links::{PATIENCE, cause, connected, message, options, reconnected};
use support::mosquitto::Mosquitto;
use support::proxy::Proxy;
use support::timing::within;
use tokio::sync::mpsc::Receiver;

#[tokio::test]
async fn links_exchange_messages_across_a_mosquitto_restart() {
    let mut broker = Mosquitto::start();
    let mut one = options(broker.address());
    one.introduce = presence("online");
    let (link, mut events) = Link::spawn(one);
    let mut other = LinkOptions { client_id: "cloud".to_owned(), ..options(broker.address()) };
    other.subscriptions = vec!["t/up".to_owned(), "t/presence".to_owned()];
    let (cloud, mut received) = Link::spawn(other);
    for round in 0..2_u8 {
        reconnected(&mut events).await;
        reconnected(&mut received).await;
        assert_eq!(message(&mut received).await.1, b"online");
        link.try_publish("t/up", vec![round], false).unwrap();
        assert_eq!(message(&mut received).await, ("t/up".to_owned(), vec![round]));
        cloud.try_publish("t/down", vec![round; 100_000], false).unwrap();
        assert_eq!(message(&mut events).await.1, vec![round; 100_000]);
        if round == 0 {
            broker.restart();
            cause(&mut events).await;
            cause(&mut received).await;
        }
    }
}

fn presence(word: &'static str) -> Introduce {
    Arc::new(move |_| {
        let greeting = Publish { topic: "t/presence".to_owned(), payload: word.into(), retain: true };
        SessionIntro { will: None, greetings: vec![greeting] }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_through_mosquitto_lose_no_message() {
    let broker = Mosquitto::start();
    let (node, mut down) = Link::spawn(options(broker.address()));
    let mut other = LinkOptions { client_id: "cloud".to_owned(), ..options(broker.address()) };
    other.subscriptions = vec!["t/up".to_owned()];
    let (cloud, mut up) = Link::spawn(other);
    connected(&mut down).await;
    connected(&mut up).await;
    let sending = async { tokio::join!(send_all(&node, "t/up"), send_all(&cloud, "t/down")) };
    let receiving = async { tokio::join!(receive_all(&mut up), receive_all(&mut down)) };
    tokio::join!(sending, receiving);
    assert_eq!((node.traffic().connected, cloud.traffic().connected), (1, 1));
}

const BURST: u32 = 5000;

async fn send_all(link: &LinkHandle, topic: &str) {
    for number in 0..BURST {
        loop {
            match link.try_publish(topic, number.to_be_bytes().to_vec(), false) {
                Ok(()) => break,
                Err(PublishError::Full) => link.ready().await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn receive_all(events: &mut Receiver<LinkEvent>) {
    for number in 0..BURST {
        assert_eq!(message(events).await.1, number.to_be_bytes());
    }
}

#[tokio::test]
async fn links_with_one_id_detect_each_other_through_mosquitto() {
    let broker = Mosquitto::start();
    let spawn = |who: &'static str| {
        let mut options = options(broker.address());
        options.own_topic = Some("t/presence".to_owned());
        options.introduce = Arc::new(move |connection| {
            let publish = |word: &str| Publish {
                topic: "t/presence".to_owned(),
                payload: format!("{word} {who} {connection}").into_bytes(),
                retain: true,
            };
            SessionIntro { will: Some(publish("offline")), greetings: vec![publish("online")] }
        });
        Link::spawn(options)
    };
    let (_one, mut one) = spawn("one");
    connected(&mut one).await;
    let (_two, mut two) = spawn("two");
    let taken_over = within("a connection is taken over", PATIENCE, async {
        loop {
            let event = tokio::select! {
                event = one.recv() => event,
                event = two.recv() => event,
            };
            if let Some(LinkEvent::Disconnected { cause: Cause::TakenOver { .. }, retry_in }) = event {
                return retry_in;
            }
        }
    });
    let retry_in = taken_over.await;
    assert!(retry_in >= Duration::from_secs(300));
}

#[tokio::test]
async fn killed_link_publishes_its_will_and_a_shut_down_one_does_not() {
    let broker = Mosquitto::start();
    let mut watching = LinkOptions { client_id: "cloud".to_owned(), ..options(broker.address()) };
    watching.subscriptions = vec!["t/presence".to_owned()];
    let (_watch, mut received) = Link::spawn(watching);
    connected(&mut received).await;
    let proxy = Proxy::start(broker.address());
    let mut options = options(proxy.address());
    options.introduce = Arc::new(|_| {
        let publish =
            |word: &str| Publish { topic: "t/presence".to_owned(), payload: word.into(), retain: true };
        SessionIntro { will: Some(publish("will")), greetings: vec![publish("online")] }
    });
    let (link, mut events) = Link::spawn(options);
    connected(&mut events).await;
    assert_eq!(message(&mut received).await.1, b"online");
    proxy.cut();
    assert_eq!(message(&mut received).await.1, b"will");
    cause(&mut events).await;
    connected(&mut events).await;
    assert_eq!(message(&mut received).await.1, b"online");
    let farewell = Publish { topic: "t/presence".to_owned(), payload: b"farewell".to_vec(), retain: true };
    assert!(link.shutdown(vec![farewell.clone()], PATIENCE).await);
    assert_eq!(message(&mut received).await.1, b"farewell");
    // A will would arrive before this message.
    let (last, mut events) = Link::spawn(LinkOptions {
        client_id: "last".to_owned(),
        ..support::links::options(broker.address())
    });
    connected(&mut events).await;
    last.try_publish("t/presence", b"last".to_vec(), false).unwrap();
    assert_eq!(message(&mut received).await.1, b"last");
}
